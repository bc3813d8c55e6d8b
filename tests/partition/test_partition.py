"""Partitions: routes as in plain NumPy, leaves that are ordinary fits, one model with the same bits anywhere."""

import itertools
import json
import pickle
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss

import streamkern as sk
from streamkern.cpu import host_loops
from streamkern.data.row_order import Assembly
from streamkern.data.targets import Classes, Continuous
from streamkern.engine.elementwise import Loops
from streamkern.execute import ThreadsExecutor
from streamkern.models.cut_tree import CutTree
from streamkern.models.partitioned_machine import Leaves
from streamkern.partition import grow_tree
from streamkern.partition.fit_partition import _count_warnings
from streamkern.partition.grow_tree import Axis, principal_axis, quantile_edges, split_at
from streamkern.partition.leaf_rows import LeafFingerprints, LeafIds, LeafRuns
from streamkern.report import read_run
from streamkern.report.page import page
from streamkern.report.run_status import status
from streamkern.storage.artifact import load_artifact, save_artifact

N, D = 6000, 5
PARTITION = sk.Partition(rows=1600)


def table(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two halves with targets of their own: what one kernel of few centers is bad at."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32)
    return X, np.sign(X[:, 0]) * np.sin(3 * X[:, 1]) + (X[:, 0] > 0) * X[:, 2]


def labels(y: np.ndarray) -> np.ndarray:
    return np.array(["high", "low", "mid"])[np.digitize(y, [-0.5, 0.5])]


def grown() -> CutTree:
    """Three cuts by hand: the first two features, and the sum of both on the right."""
    tree = CutTree.of(2).grown(0, np.array([1.0, 0.0]), (-0.2, 0.0, 0.2))
    tree = tree.grown(0, np.array([0.0, 1.0]), (0.0, 0.0, 0.0))
    return tree.grown(1, np.array([1.0, 1.0]), (0.9, 1.0, 1.2))


@pytest.mark.slow
def test_rows_are_trained_on_both_sides_of_a_border():
    X = np.random.default_rng(0).normal(size=(500, 2))
    found = {leaf: set(at.tolist()) for leaf, at in grown().training(X)}
    left, right = X[:, 0] < 0.2, X[:, 0] >= -0.2
    total = X.sum(axis=1)
    expected = {
        0: left & (X[:, 1] < 0), 2: left & (X[:, 1] >= 0), 1: right & (total < 1.2), 3: right & (total >= 0.9)
    }  # fmt: skip
    assert found == {leaf: set(np.flatnonzero(rows).tolist()) for leaf, rows in expected.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_projections_are_those_of_numpy_and_of_routes(dtype: Any):
    X = (10 * np.random.default_rng(0).normal(size=(500, 7))).astype(dtype)
    direction, at = np.random.default_rng(1).normal(size=7), np.arange(3, 500, 7)
    t = host_loops().project(X, direction, at)
    np.testing.assert_allclose(t, X[at].astype(np.float64) @ direction, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(Loops().project(X, direction, at), t, rtol=1e-12, atol=1e-12)
    # Cut at a row's own projection, it is on the right, and routed there: to the bit.
    cut = CutTree.of(7).grown(0, direction, (t[5], t[5], t[5]))
    assert cut.routes(X[at[5:6]], 0.0)[0][0, 0] == 1
    assert dict(cut.training(X[at]))[1].tolist() == np.flatnonzero(t >= t[5]).tolist()


@pytest.mark.parametrize("width", [0.0, 0.5, 1.0])
def test_weights_of_a_row_sum_to_one_over_two_leaves_at_most(width: float):
    X = np.random.default_rng(0).normal(size=(2000, 2))
    weights = np.zeros((len(X), 4))
    leaves, shares = grown().routes(X, width)
    for leaf, share in zip(leaves.T, shares.T, strict=True):
        at = np.flatnonzero(leaf >= 0)
        weights[at, leaf[at]] += share[at]
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-15)
    assert (weights > 0).sum(axis=1).max() == (2 if width else 1)
    t = X[:, 0]
    near = np.abs(t) < 0.2 * width
    np.testing.assert_allclose(
        weights[:, [1, 3]].sum(axis=1)[near], (t[near] + 0.2 * width) / (0.4 * width or 1), atol=1e-12
    )
    assert np.array_equal(weights[:, [1, 3]].sum(axis=1)[~near], (t >= 0)[~near])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [0.0, 0.5, 1.0])
def test_compiled_routes_are_those_of_the_reference(width: float, dtype: type):
    X = np.random.default_rng(0).normal(size=(3000, 2)).astype(dtype)
    X[:50] = 0.0  # at a threshold
    tree = grown()
    found = [each.route(X, tree.directions, tree.cuts, tree.children, width) for each in (Loops(), host_loops())]
    assert np.array_equal(found[0][0], found[1][0])
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-9)
    strided = np.asfortranarray(X)
    assert np.array_equal(tree.routes(strided, width)[1], found[1][1])
    one = CutTree.of(2).routes(X, width)
    assert (one[0] == [0, -1]).all()
    assert (one[1] == [1, 0]).all()


@pytest.mark.parametrize("d", [2, 54, 301])
def test_a_row_is_routed_alike_whatever_rows_are_around_it(d: int):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, d)).astype(np.float32)
    tree = CutTree.of(d)
    for leaf in range(7):
        t = X @ (direction := rng.normal(size=d))
        low, threshold, high = np.quantile(t, [0.3, 0.5, 0.7])
        tree = tree.grown(leaf // 2, direction, (low, threshold, high))
    leaves, weights = tree.routes(X, 1.0)
    alone = [tree.routes(X[row : row + 1], 1.0) for row in range(len(X))]
    assert np.array_equal(leaves, np.concatenate([found for found, _ in alone]))
    assert np.array_equal(weights, np.concatenate([found for _, found in alone]))
    assert (leaves[:, 1] >= 0).any()


@pytest.mark.parametrize(
    "broken",
    [
        {"children": np.array([[1, 2], [-1, -3], [-2, -2]])},
        {"children": np.array([[1, 2], [0, -3], [-2, -4]])},
        {"cuts": np.array([[0.2, 0.0, 0.2]] * 3)},
        {"cuts": np.full((3, 3), np.nan)},
        {"directions": np.zeros((2, 2))},
    ],
)
def test_a_damaged_tree_is_noticed(broken: dict[str, Any]):
    tree = grown()
    assert tree.sound
    assert CutTree.of(3).sound
    assert tree.depth == 2
    assert CutTree.of(3).depth == 0
    assert not CutTree(**vars(tree) | broken).sound


@pytest.mark.parametrize("overlap", [0.0, 0.1])
def test_a_cut_is_at_the_median_and_its_counts_are_exact(overlap: float):
    t = np.random.default_rng(0).normal(size=20_000)
    edges, counts, share = quantile_edges(t[:5000])
    assert 0.49 < share <= 0.5
    np.testing.assert_array_equal(counts, Axis(np.ones(1), edges).counts(t[:5000]))
    bins = np.bincount(np.searchsorted(edges, t, side="right"), minlength=len(edges) + 1)
    cut = split_at(edges, bins, overlap)
    low, threshold, high = cut.places
    assert abs((t < threshold).mean() - 0.5) < 2e-3
    assert (cut.left, cut.right) == ((t < high).sum(), (t >= low).sum())
    assert ((t >= low) & (t < high)).mean() == pytest.approx(overlap, abs=5e-3)


def test_a_value_that_most_rows_share_is_not_cut_off():
    edges, counts, share = quantile_edges(np.array([0.0] * 999 + [1.0]))
    assert share == 0.001
    assert counts.tolist() == [999, 1]
    assert split_at(edges, np.array([9990, 10]), 0.1) is None


@pytest.mark.slow
def test_threads_make_a_leaf_ready_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    X, y = table(2000)
    partition = sk.Partition(leaves=4)
    model = sk.KernelRegressor(sk.Laplace("median"), centers=50, preprocess=None, partition=partition).fit(X, y).model_
    model.save(tmp_path / "model")
    loaded, made, begun = sk.load_model(tmp_path / "model"), [], threading.Barrier(3, timeout=60)
    make = Leaves._output_function

    def slowly(leaves: Leaves, leaf: int, *given: int) -> Any:
        made.append(leaf)
        time.sleep(0.2)  # long enough for the other threads to come to this leaf
        return make(leaves, leaf, *given)

    def predict(rows: np.ndarray) -> np.ndarray:
        begun.wait()
        return loaded.predict(rows)

    monkeypatch.setattr(Leaves, "_output_function", slowly)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(predict, [X, X[::-1], X]))
    assert sorted(made) == [0, 1, 2, 3]
    for outputs in (found[0], found[1][::-1], found[2]):
        np.testing.assert_array_equal(outputs, model.predict(X))


def test_a_direction_is_that_of_the_largest_variance():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(2000, D)) * [1, 1, 1, 1, 2] @ np.linalg.qr(rng.normal(size=(D, D)))[0] + 7.0
    found = principal_axis((X, None, None, 0, None))
    np.testing.assert_allclose(found.t, X @ found.axis.direction)
    assert (
        found.axis.counts(found.t).tolist() == np.histogram(found.t, [-np.inf, *found.axis.edges, np.inf])[0].tolist()
    )
    values, vectors = np.linalg.eigh(np.cov(X.T))
    assert abs(found.axis.direction @ vectors[:, -1]) > 1 - 1e-9
    assert values[-1] > 3 * values[-2]
    times = rng.integers(1, 4, len(X))
    one, repeated = (
        principal_axis(each) for each in ((X, times, None, 0, None), (np.repeat(X, times, axis=0), None, None, 0, None))
    )
    np.testing.assert_allclose(one.axis.direction, repeated.axis.direction, atol=1e-2)  # each looks at 4,096 rows
    assert principal_axis((np.ones((300, D)), None, None, 0, None)) is None
    wide = np.ones((300, 1200), dtype=np.float32)  # of so many features the one that varies most
    wide[::2, 700], wide[::3, 30] = 3.0, 2.0
    found = principal_axis((wide, None, None, 0, None))
    assert np.flatnonzero(found.axis.direction).tolist() == [700]


@pytest.mark.parametrize(("sample", "names"), [(9000, ["level-sample"]), (2000, ["level-sample", "level-1"])])
def test_cuts_by_the_sample_and_by_counts_are_near_the_median(sample, names, monkeypatch):
    monkeypatch.setattr(grow_tree, "SAMPLE_ROWS", sample)
    monkeypatch.setattr(grow_tree, "MIN_SAMPLE_ROWS_OF_LEAF", 1500)
    X, y = table(9000)
    assembly, seen = Assembly(sk.from_arrays(X, y), Continuous(np.zeros(1), flat=False)), []

    def keep(name: str, tree: CutTree, compute: Any) -> Any:
        seen.append(name)
        return compute()

    with ThreadsExecutor(2) as executor:
        partition = sk.Partition(rows=3000, overlap=0.0)
        grown = grow_tree.TreeBuilder(partition, assembly, executor, 0).grow(keep)
    assert seen == names
    # Where scattering counts rows, they are counted once, for the last tree.
    trees = list[CutTree]()

    def count(tree: CutTree) -> np.ndarray:
        trees.append(tree)
        return np.array([len(at) for _, at in sorted(tree.training(X), key=lambda each: each[0])])

    with ThreadsExecutor(2) as executor:
        again = grow_tree.TreeBuilder(partition, assembly, executor, 0, count).grow(keep)
    assert again.tree.fingerprint == grown.tree.fingerprint
    assert np.array_equal(again.counts, grown.counts)
    assert len(trees) <= 1
    counts = np.array([len(at) for _, at in sorted(grown.tree.training(X), key=lambda each: each[0])])
    assert np.array_equal(counts, grown.counts)
    assert counts.sum() == 9000
    assert (np.abs(counts / 2250 - 1) < 0.06).all()


def test_rows_of_leaves_are_the_same_by_ids_and_from_the_disk(tmp_path: Path):
    X, y = table(3000)
    codes = (y > 0).astype(np.int64)
    w = np.random.default_rng(0).uniform(0.5, 2, 3000)
    data = sk.from_arrays(X, codes, sample_weight=w)
    assembly, tree = Assembly(data, Classes(np.arange(2))), CutTree.of(D).grown(0, np.eye(D)[0], (-0.1, 0, 0.1))
    with ThreadsExecutor(2) as executor:
        here = LeafIds.of(assembly, tree, executor)
        there = LeafRuns.of(assembly, tree, executor, tmp_path / "rows")
        for leaf, kept in enumerate((X[:, 0] < 0.1, X[:, 0] >= -0.1)):
            for rows in (pickle.loads(pickle.dumps(here)).read(leaf), pickle.loads(pickle.dumps(there)).read(leaf)):
                assert np.array_equal(rows.X, X[kept])
                assert np.array_equal(rows.y, codes[kept])
                assert np.array_equal(rows.w, w[kept])
        fingerprints = LeafFingerprints.of(assembly, tree, executor)
        assert there.fingerprints().digests == fingerprints.digests
        assert there.fingerprints().counts.tolist() == fingerprints.counts.tolist()
        times = {path: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()}
        LeafRuns.of(assembly, tree, executor, tmp_path / "rows")  # nothing is written again
        assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "rows").iterdir()}
        (tmp_path / "rows" / "boot").write_text("another start of the machine, before which nothing was synced")
        LeafRuns.of(assembly, tree, executor, tmp_path / "rows")
        assert all(path.stat().st_mtime_ns > times[path] for path in (tmp_path / "rows").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("classify", [False, True])
def test_leaves_beat_one_model_at_the_price_of_a_prediction(classify: bool, tmp_path: Path):
    X, y = table()
    y = labels(y) if classify else y
    kind: Any = sk.KernelClassifier if classify else sk.KernelRegressor
    train, test = slice(0, 5000), slice(5000, None)
    one = kind(sk.Laplace("median"), centers=150).fit(X[train], y[train])
    model = kind(sk.Laplace("median"), centers=150, partition=PARTITION).fit(X[train], y[train])
    error = [1 - each.score(X[test], y[test]) for each in (one, model)]
    assert error[1] < 0.9 * error[0]
    assert model.result_.report["partition"]["leaves"] == 4 == len(model.result_.report["partition"]["by_leaf"])
    model.save(tmp_path / "model")
    loaded = sk.load_model(tmp_path / "model")
    assert isinstance(loaded, sk.PartitionedMachine)
    assert loaded.leaves.models == [None] * 4
    outputs = model.model_.decision_function(X[test])
    assert np.array_equal(loaded.decision_function(X[test]), outputs)
    assert (loaded.fingerprint, loaded.weights_sha256) == (model.model_.fingerprint, model.model_.weights_sha256)
    predictor = sk.Predictor(tmp_path / "model")
    for row in range(40):  # a row is a row
        assert np.array_equal(predictor(X[test][row : row + 1]).outputs, outputs[row : row + 1])
    assert loaded.score(X[test], y[test])["n"] == 1000
    assert pickle.loads(pickle.dumps(loaded)).predict(X[:5]).tolist() == model.predict(X[:5]).tolist()


def test_a_leaf_is_an_ordinary_fit_of_its_rows():
    """Leaf 0 by hand: the same rows, in the same units, through the estimator."""
    X, y = table(3000)
    given = {"kernel": sk.Laplace(2.0), "centers": 80, "preprocess": None}
    model = sk.KernelRegressor(**given, partition=sk.Partition(leaves=2, overlap=0.0)).fit(X, y)
    made = model.model_
    mine = dict(made.tree.training(X))[0]
    alone = sk.KernelRegressor(**given).fit(X[mine], (y[mine] - y.mean())[:, None])
    leaf = made.leaves.model(0)
    assert leaf.weights.shape == alone.model_.weights.shape
    np.testing.assert_allclose(made.predict(X[mine]), alone.predict(X[mine])[:, 0] + y.mean(), atol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["threads", "processes:2"])
def test_weights_are_the_same_wherever_leaves_run_and_rows_lie(scheduler: str, tmp_path: Path):
    X, y = table(3000)
    sk.write_zarr(tmp_path / "rows.zarr", X, labels(y), target="label", chunk_rows=500)
    stored = sk.open_dataset(tmp_path / "rows.zarr", target="label")
    pipeline = sk.Pipeline(stored, centers=sk.Uniform(60), solver="auto", partition=sk.Partition(rows=900))
    result = sk.run(pipeline, tmp_path / "run", resources=sk.Resources(scheduler=scheduler), threads=2)
    here = sk.KernelClassifier(centers=60, partition=sk.Partition(rows=900), threads=1).fit(X, labels(y))
    assert result.weights_sha256 == here.model_.weights_sha256
    assert result["n_centers"] == 60 * 4
    assert not (tmp_path / "run" / "scattered").exists()
    again = sk.run(pipeline, tmp_path / "run")
    assert again.weights_sha256 == result.weights_sha256
    assert all(stage["cached"] for stage in again["stages"] if stage["name"].startswith(("leaf", "level")))


@pytest.mark.slow
def test_a_class_that_a_leaf_lacks_and_a_leaf_of_one_class():
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(4000, D)) * [4, 3, 1, 1, 1]).astype(np.float32)
    y = np.where(X[:, 0] > 0.4, np.where(X[:, 1] > 0, "b", "c"), "a")
    model = sk.KernelClassifier(centers=100, partition=sk.Partition(leaves=4, overlap=0.0)).fit(X, y)
    assert model.result_.report["partition"]["constant"] >= 1
    assert model.score(X, y) > 0.94
    outputs = model.model_.decision_function(X)
    alone = (outputs == [1.0, 0.0, 0.0]).all(axis=1)
    assert 0.2 < alone.mean() < 0.5
    assert (y[alone] == "a").all()
    lacking = (outputs == 0.0).any(axis=1)  # a class that the leaf has no rows of
    assert 0.4 < lacking.mean() < 0.9
    P = model.predict_proba(X)
    np.testing.assert_allclose(P.sum(axis=1), 1.0, rtol=1e-12)
    shares = np.unique(y, return_counts=True)[1] / len(y)
    assert log_loss(y, P) < 0.6 * log_loss(y, np.broadcast_to(shares, P.shape))


def noisy(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Values whose noise has one size on one side of the third feature, and thrice that on the other."""
    X, y = table(n, seed)
    return X, y + np.where(X[:, 2] > 0, 0.6, 0.2) * np.random.default_rng(seed).normal(size=n)


@pytest.mark.slow
@pytest.mark.parametrize("validation", [None, 0.2])
def test_intervals_hold_their_share_and_follow_the_noise(validation: float | None, tmp_path: Path):
    (X, y), (T, t) = noisy(8000, 0), noisy(4000, 1)
    one, model = (
        sk.KernelRegressor(sk.Laplace("median"), centers=150, validation=validation, partition=each).fit(X, y)
        for each in (None, PARTITION)
    )
    assert model.model_.calibration.facts["source"] == ("leave-one-out" if validation is None else "validation")
    ends = model.predict_interval(T, 0.9)
    inside = (ends[:, 0] <= t) & (t <= ends[:, 1])
    assert 0.875 < inside.mean() < 0.925
    width, noise = ends[:, 1] - ends[:, 0], T[:, 2] > 0
    assert width[noise].mean() > 1.3 * width[~noise].mean()
    assert width.mean() < 0.95 * np.diff(one.predict_interval(T, 0.9)).mean()
    assert model.model_.score(sk.from_arrays(T, t))["coverage_90"] == pytest.approx(inside.mean())
    model.save(tmp_path / "model")
    loaded = sk.load_model(tmp_path / "model")
    assert np.array_equal(loaded.predict_interval(T), ends)
    assert loaded.fingerprint == model.model_.fingerprint
    predictor = sk.Predictor(tmp_path / "model")
    assert np.array_equal(np.concatenate([predictor.predict_interval(T[i : i + 1]) for i in range(30)]), ends[:30])


@pytest.mark.slow
@pytest.mark.parametrize("validation", [None, 0.2])
def test_probabilities_and_sets(validation: float | None, tmp_path: Path):
    (X, y), (T, t) = noisy(8000, 0), noisy(4000, 1)
    y, t = labels(y), labels(t)
    one, model = (
        sk.KernelClassifier(sk.Laplace("median"), centers=150, validation=validation, partition=each).fit(X, y)
        for each in (None, PARTITION)
    )
    P = model.predict_proba(T)
    assert log_loss(t, P) < 0.95 * log_loss(t, one.predict_proba(T))
    sets = model.prediction_set(T, 0.9)
    for k, label in enumerate(model.classes_):  # of each class, that share has it in its set
        assert 0.85 < sets[t == label, k].mean() < 0.95
    sure = P.max(axis=1)
    assert abs(sure.mean() - (model.classes_[P.argmax(axis=1)] == t).mean()) < 0.05
    model.save(tmp_path / "model")
    assert np.array_equal(sk.load_model(tmp_path / "model").predict_proba(T), P)


def test_a_leaf_of_one_value_has_the_narrowest_intervals():
    X, y = table(4000)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(sold=np.arange(len(X)) % 2)
    y = np.where(frame["sold"] == 1, y, 0.0)
    model = sk.KernelRegressor(sk.Laplace("median"), centers=60, partition=sk.Partition(by="sold", rows=2500)).fit(
        frame, y
    )
    assert model.result_.report["partition"]["constant"] == 1
    width = np.diff(model.predict_interval(frame))[:, 0]
    assert 0 < width[::2].max() < 0.3 * width[1::2].min()


def test_leaves_without_a_closed_form_take_validation_rows_for_intervals():
    X, y = table(3000)
    options: dict[str, Any] = {"centers": 60, "solver": sk.EigenPro(epochs=1), "partition": sk.Partition(leaves=2)}
    model = sk.KernelRegressor(sk.Laplace("median"), **options).fit(X, y)
    with pytest.raises(sk.UsageError, match="no intervals"):
        model.predict_interval(X)
    held = sk.KernelRegressor(sk.Laplace("median"), **options, validation=0.2).fit(X, y)
    ends = held.predict_interval(X)
    assert held.model_.calibration.facts["functions"] == 0
    assert 0.85 < ((ends[:, 0] <= y) & (y <= ends[:, 1])).mean() < 0.97


def test_a_leaf_whose_steps_diverge_is_solved_directly(monkeypatch: pytest.MonkeyPatch):
    X, y = table(3000)
    partition = sk.Partition(leaves=2)
    right = sk.KernelRegressor(sk.Laplace("median"), centers=60, solver=sk.Direct(), partition=partition).fit(X, y)
    wild = sk.EigenPro(step=1e6, epochs=2)
    monkeypatch.setattr(
        "streamkern.partition.leaf_tasks.resolve_solver", lambda recipe, *_, **__: (replace(recipe, solver=wild), "")
    )
    with pytest.warns(UserWarning, match="Direct instead .in 2 of 2 leaves"):
        model = sk.KernelRegressor(sk.Laplace("median"), centers=60, partition=partition).fit(X, y)
    assert np.array_equal(model.predict(X), right.predict(X))
    assert {each["solver"] for each in model.result_.report["partition"]["by_leaf"]} == {"Direct"}


@pytest.mark.slow
def test_weights_of_rows_reach_the_leaves():
    X, y = table(3000)
    w = np.where(X[:, 2] > 0, 1.0, 0.0)
    kept = w > 0
    options: dict[str, Any] = {"centers": 60, "partition": sk.Partition(rows=900)}
    weighted = sk.KernelRegressor(**options).fit(X, y, sample_weight=w)
    alone = sk.KernelRegressor(**options).fit(X[kept], y[kept])
    assert np.array_equal(weighted.predict(X), alone.predict(X))


def test_no_leaf_is_cut_for_stored_rows_of_weight_0(tmp_path: Path):
    X, y = table(4000)
    kept = np.isin(np.arange(len(X)), np.argsort(X[:, 0])[:1000])
    rows = pd.DataFrame(X, columns=list("abcde")).assign(y=y, w=np.where(kept, 1.0, 0.0))
    rows.to_parquet(tmp_path / "rows.parquet", row_group_size=1000)
    data = sk.open_dataset(tmp_path / "rows.parquet", target="y", weight="w")
    model = sk.KernelRegressor(sk.Laplace("median"), partition=sk.Partition(leaves=8)).fit(data)
    found = [leaf["rows"] for leaf in model.result_.report["partition"]["by_leaf"]]
    assert len(found) == 8
    assert min(found) > 100
    assert 1000 <= sum(found) < 1200
    assert model.score(rows.loc[kept, list("abcde")], y[kept]) > 0.9


@pytest.mark.slow
def test_a_table_with_a_metric_and_validation_rows():
    X, y = table(3000)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(shop=np.where(X[:, 3] > 0, "north", "south"))
    frame.loc[::50, "a"] = np.nan
    model = sk.KernelRegressor(
        centers=80, metric=sk.AGOP(rounds=1, centers=60, rows=500), partition=sk.Partition(rows=900), validation=0.2
    )
    model.fit(frame, y)
    names = model.model_.metadata["metric"]["stored"]
    assert len(model.feature_importances_) == len(names)
    assert model.feature_importances_.sum() == pytest.approx(1.0)
    assert {names[i] for i in np.argsort(model.feature_importances_)[-3:]} & {"a", "b"}
    rows = frame.iloc[:20]
    assert np.array_equal(model.predict(rows), model.predict(rows.to_dict("records")))
    assert np.array_equal(sk.Predictor(model.model_)(rows).predictions, model.predict(rows))


@pytest.mark.slow
@pytest.mark.parametrize("scaling", [None, "standard"])
def test_parts_by_a_column(scaling: str | None):
    rng = np.random.default_rng(0)
    n = 4000
    shop = rng.choice(["a", "b", "c", "rare", "rarer"], n, p=[0.4, 0.25, 0.2, 0.08, 0.07])
    slope = {"a": 3.0, "b": -3.0, "c": 0.0, "rare": 1.0, "rarer": 1.0}
    frame = pd.DataFrame({"x": rng.normal(size=n), "shop": shop})
    y = np.sin(2 * frame["x"].to_numpy()) * [slope[each] for each in shop]
    model = sk.KernelRegressor(centers=60, scaling=scaling, partition=sk.Partition(by="shop")).fit(frame, y)
    rows = [each["rows"] for each in model.result_.report["partition"]["by_leaf"]]
    assert sorted(rows) == sorted([*(int((shop == each).sum()) for each in "abc"), int((shop > "d").sum())])
    assert model.score(frame, y) > 0.97
    with pytest.warns(UserWarning, match="have a category of 'shop' that training did not see"):
        unseen = model.predict(pd.DataFrame({"x": [0.5], "shop": ["new"]}))
    assert np.isfinite(unseen).all()
    with pytest.raises(sk.UsageError, match="no column 'shops' among the encoded features"):
        sk.KernelRegressor(partition=sk.Partition(by="shops")).fit(frame, y)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": sk.ReLUFeatures(50), "centers": None, "solver": sk.EigenPro1()}, "a feature map"),
        ({"centers": sk.Given(np.eye(D, dtype=np.float32))}, "given centers"),
        ({"centers": sk.AllRows(), "solver": sk.EigenPro2()}, "all rows as centers"),
        ({"solver": sk.EigenPro(patience=2)}, "a patience"),
        ({"diagnose": True}, "diagnose"),
        ({"kernel": sk.RadialProfile(np.exp)}, "user's function"),
    ],
)
def test_what_does_not_go_with_a_partition_is_refused(changes: dict[str, Any], words: str, tmp_path: Path):
    X, y = table(500)
    data = sk.from_arrays(X, y > 0)
    given: dict[str, Any] = {"centers": sk.Uniform(20), "validation": data, "partition": sk.Partition(rows=200)}
    for refused in (sk.plan, lambda pipeline: sk.run(pipeline, tmp_path / "run")):
        with pytest.raises(sk.UsageError, match=f"partition= cannot be combined with .*{words}"):
            refused(sk.Pipeline(data, **given | changes))


def test_a_partition_that_does_not_fit_is_refused_with_what_would(tmp_path: Path):
    X, y = table(2000)
    pipeline = sk.Pipeline(sk.from_arrays(X, y > 0), centers=sk.Uniform(200), solver="auto", partition=PARTITION)
    with pytest.raises(sk.errors.PlanRefusedError, match="raise memory to"):
        sk.run(pipeline, tmp_path / "run", memory="80MiB")


def test_seconds_of_stages_are_those_of_the_whole_run(tmp_path: Path):
    X, y = table()
    pipeline = sk.Pipeline(
        train=sk.from_arrays(X, y), task="regression", kernel=sk.Laplace(2.0), centers=sk.Uniform(400),
        partition=sk.Partition(leaves=4),
    )  # fmt: skip
    result = sk.run(pipeline, tmp_path, threads=2)
    leaves = [stage["seconds"] for stage in result["stages"] if stage.get("of") == "leaves"]
    alone = sum(each["seconds"] for each in result["solver_report"]["partition"]["by_leaf"])  # in two threads at most
    assert sum(leaves) > 0.4 * alone
    assert sum(stage["seconds"] for stage in result["stages"]) > 0.7 * result["seconds"]


def test_the_plan_names_leaves_and_sweeps():
    X, y = table()
    data = sk.from_arrays(X, y > 0)
    pipeline = sk.Pipeline(data, test=data, centers=sk.Uniform(100), solver="auto", partition=PARTITION)
    plan = sk.plan(pipeline)
    assert [stage.name for stage in plan.stages] == [
        "preprocess-joinquantiles", "statistics", "kernel", "check-test", "levels", "scatter", "leaves", "calibrate",
        "evaluate",
    ]  # fmt: skip
    assert "about 4 leaves of up to 1,654 rows" not in plan.text()  # cut once more: they would be too large
    assert "about 8 leaves" in plan.text()
    assert json.dumps(plan.to_json())
    with pytest.raises(sk.errors.PlanRefusedError, match="A worker needs"):
        sk.plan(pipeline, resources=sk.Resources(worker_memory="100MiB"))
    assert sk.plan(replace(pipeline, centers=None)).seconds > 0  # priced by what a leaf has


def test_expected_leaves_are_those_of_cuts_at_medians():
    for leaves, rows in itertools.product((1, 2, 3, 8), (1000, 10_001)):
        count, largest = sk.Partition(leaves=leaves).expected(rows)
        assert count == leaves
        assert largest >= rows / leaves
    assert sk.Partition(rows=500, overlap=0.0).expected(1000) == (2, 500)
    assert sk.Partition(rows=500, overlap=0.1).expected(1000)[0] == 4


@pytest.mark.parametrize(("leaf", "rows"), [(40_000, 10**5), (250_000, 10**8)])
def test_few_rows_of_large_leaves_are_trained_twice_however_many_cuts_there_are(leaf: int, rows: int):
    leaves, most = sk.Partition(rows=leaf).expected(rows)
    assert most <= leaf
    assert leaves * most < 1.25 * rows
    assert sk.Partition(leaves=16, overlap=0.2).overlap_at_cut(rows) == 0.2  # as requested


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_leaves_are_those_of_numpy(dtype: Any):
    rng = np.random.default_rng(0)
    X, w = rng.normal(size=(2000, 6)).astype(dtype), rng.integers(0, 3, 2000).astype(np.float64)
    tree = CutTree.of(6)
    for number in range(40):  # a lopsided tree, with leaves that no row comes to
        direction, border = rng.normal(size=6), rng.normal()
        tree = tree.grown(
            int(rng.integers(tree.leaves)), direction, (border - 0.8 * (number % 2), border, border + 0.5)
        )
    spans, rows = tree.assigned(X, w)
    expected = Loops().assign(X, np.flatnonzero(w), tree.directions, tree.cuts, tree.children)
    assert np.array_equal(spans, expected[0])
    assert np.array_equal(rows, expected[1])
    assert (spans[:, 0] == spans[:, 1]).any()
    assert len(rows) > 1.5 * np.count_nonzero(w)  # many rows are in several leaves
    assert set(rows) == set(np.flatnonzero(w))
    assert CutTree.of(6).assigned(X[:0])[0].tolist() == [[0, 0]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two leaves, which tests copy."""
    X, y = table(2000)
    model = sk.KernelRegressor(sk.Laplace("median"), centers=40, partition=sk.Partition(leaves=2)).fit(X, y)
    return Path(model.save(tmp_path_factory.mktemp("saved") / "model"))


def test_a_leaf_that_was_replaced_is_noticed(saved: Path, tmp_path: Path):
    X, y = table(2000)
    shutil.copytree(saved, tmp_path / "model")
    loaded = sk.load_model(tmp_path / "model")
    other = sk.KernelRegressor(sk.Laplace("median"), centers=40, partition=sk.Partition(leaves=2)).fit(X, 2 * y)
    other.save(tmp_path / "model")
    with pytest.raises(sk.errors.ModelFormatError, match="load the model again"):
        loaded.predict(X[:10])


@pytest.mark.parametrize("damage", ["leaf", "cuts", "leaves", "blend"])
def test_a_damaged_model_is_an_error(damage: str, saved: Path, tmp_path: Path):
    X, _ = table(2000)
    shutil.copytree(saved, tmp_path / "model")
    if damage == "leaf":
        chunk = max((tmp_path / "model" / "leaf-00001" / "centers").rglob("*"), key=lambda path: path.stat().st_size)
        content = bytearray(chunk.read_bytes())
        content[len(content) // 2] ^= 1
        chunk.write_bytes(content)
    else:
        arrays, metadata = load_artifact(tmp_path / "model", "PartitionedMachine")
        metadata |= {"leaves": {"leaves": metadata["leaves"][:1]}, "blend": {"blend": 7}}.get(damage, {})
        arrays |= {"cuts": arrays["cuts"][:0]} if damage == "cuts" else {}
        save_artifact(tmp_path / "model", "PartitionedMachine", arrays, metadata)
    with pytest.raises(sk.errors.ModelFormatError):
        sk.load_model(tmp_path / "model").predict(X)


@pytest.mark.slow
def test_leaves_are_retrained_promoted_and_reported(tmp_path: Path):
    def pipeline(partition: sk.Partition | None, seed: int = 0) -> sk.Pipeline:
        (X, y), (A, b) = table(3000, seed), table(1000, 9)
        return sk.Pipeline(
            sk.from_arrays(X, labels(y)), sk.Laplace("median"), sk.Uniform(80), test=sk.from_arrays(A, labels(b)),
            solver="auto",
            partition=partition,
        )  # fmt: skip

    registry = tmp_path / "models"
    parts = sk.Partition(rows=900)
    decided = [
        sk.retrain(each, registry).status
        for each in (pipeline(None), pipeline(parts), pipeline(parts), pipeline(parts, 1))
    ]
    assert decided[:3] == ["promoted", "promoted", "unchanged"]
    assert decided[3] in ("promoted", "rejected")
    model = sk.Registry(registry).load()
    assert isinstance(model, sk.PartitionedMachine)
    assert sk.Predictor(sk.Registry(registry))(table(5)[0]).outputs.shape == (5, 3)
    sk.run(pipeline(parts), tmp_path / "run")
    run = read_run(tmp_path / "run")
    assert status(run)["state"] == "done"
    assert run.steps[-1]["step"] == run.steps[-1]["steps"] == 4
    assert "4 leaves" in page([run])


def test_a_night_whose_rows_leave_a_leaf_empty_is_cut_anew(tmp_path: Path):
    X, y = table(4000)

    def night(rows: np.ndarray) -> Any:
        test = table(500, 9)
        made = sk.Pipeline(
            sk.from_arrays(X[rows], y[rows]), sk.Laplace("median"), sk.Uniform(50), test=sk.from_arrays(*test),
            solver="auto",
            task="regression", partition=sk.Partition(leaves=4), preprocess=(),
        )  # fmt: skip
        return sk.retrain(made, tmp_path, gate="n_test > 1")

    first = night(np.arange(len(X)))
    champion: Any = sk.Registry(tmp_path).load()
    scan, _ = champion.blocks(X)
    seen = np.concatenate([scan.block((i,)).X for i in range(len(scan))])
    leaves = dict(champion.tree.training(seen))
    second = night(np.setdiff1d(leaves.pop(0), np.concatenate([*leaves.values()])))  # no overlap with another
    assert (first["status"], second["status"]) == ("promoted", "promoted")
    assert second["start"] == "cold"
    assert "have no rows" in second["why_cold"]


@pytest.mark.slow
def test_rows_that_one_leaf_may_have_are_one_model():
    rng = np.random.default_rng(1)
    X, noise = rng.normal(size=(3000, D)).astype(np.float32), rng.normal(size=3000)
    few, alone = (
        sk.KernelRegressor(sk.Laplace("median"), centers=50, partition=partition).fit(X, noise)
        for partition in (sk.Partition(), None)
    )
    assert not isinstance(few.model_, sk.PartitionedMachine)
    assert np.array_equal(few.predict(X), alone.predict(X))
    pipeline = sk.Pipeline(sk.from_arrays(X, noise), task="regression", centers=50, partition=sk.Partition())
    assert "3,000 rows are no more than a leaf may have" in sk.plan(pipeline).text()


@pytest.mark.slow
def test_a_run_holds_no_more_than_was_projected(tmp_path: Path):
    """In a process of its own: the peak of this one is that of any test before."""
    X, y = table(10_000)
    sk.write_zarr(tmp_path / "rows.zarr", X, labels(y), target="label", chunk_rows=500)
    (tmp_path / "leaves.py").write_text(
        "import streamkern as sk\n\n\ndef pipeline():\n"
        '    rows = sk.open_dataset("rows.zarr", target="label")\n'
        "    return sk.Pipeline(rows, centers=sk.Uniform(300), partition=sk.Partition(rows=3000))\n"
    )
    command = [sys.executable, "-m", "streamkern", "run", "leaves.py", "--run-dir", "run", "--memory", "1GiB"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["peak_memory_bytes"] <= result["projected_memory_bytes"] <= 1 << 30


def test_warnings_of_leaves_that_differ_in_numbers_are_one():
    warned = [["the residual is 0.05", "a second"], ["the residual is 1.2e-07"], [], ["a second", "a second"]]
    said = _count_warnings([{"warnings": each} for each in warned])
    assert said == [("a second", 2), ("the residual is 0.05", 2)]


def test_values_of_a_column_that_are_near_are_parts_of_their_own():
    """Values nearer than a thousandth of a standard deviation were one part."""
    rng = np.random.default_rng(0)
    rows = 2400
    site = np.where(rng.random(rows) < 0.5, 1000.0, -1000.0) + rng.integers(0, 2, rows) * 0.25
    frame = pd.DataFrame({"x": rng.normal(size=rows), "site": site})
    y = np.sin(frame["x"]) * np.where(site % 1 > 0, 3.0, -3.0)
    model = sk.KernelRegressor(
        sk.Laplace("median"), centers=60, partition=sk.Partition(by="site"), scaling="standard", preprocess=None
    ).fit(frame, y)
    assert model.result_.report["partition"]["leaves"] == 4
    assert model.score(frame, y) > 0.9
