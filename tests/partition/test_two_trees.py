"""Two trees whose outputs are averaged, and the weights of features that leaves teach."""

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.costs.footprint import load_libraries
from streamkern.models.cut_tree import CutTree
from streamkern.partition import leaf_rows, leaf_tasks, probed_weights
from streamkern.partition.grow_tree import principal_axis
from streamkern.partition.leaf_tasks import LeafSettings
from streamkern.partition.one_or_leaves import resolve_with_held_out
from streamkern.partition.partition_shape import PartitionShape
from streamkern.partition.probed_weights import probed_leaves

N, D = 3_000, 6


def table(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two features of six matter."""
    X = np.random.default_rng(seed).normal(size=(n, D)).astype(np.float32)
    return X, np.sin(2 * X[:, 3]) + np.abs(X[:, 5])


def pair() -> CutTree:
    """Three leaves of the first tree, two of the second."""
    tree = CutTree.pair(2).grown(0, np.array([1.0, 0.0]), (-0.1, 0.0, 0.1))
    tree = tree.grown(1, np.array([0.0, 1.0]), (0.0, 0.0, 0.0))
    return tree.grown(2, np.array([1.0, 1.0]), (0.9, 1.0, 1.2))


@pytest.mark.parametrize("wrong", [{"trees": 3}, {"trees": 2, "by": "a"}, {"trees": 0}])
def test_a_wrong_number_of_trees_is_a_clear_error(wrong: dict[str, Any]):
    with pytest.raises(sk.UsageError, match="trees"):
        sk.Partition(**wrong)


def test_a_row_is_in_a_leaf_of_each_tree_and_its_prediction_is_their_mean():
    X, tree = np.random.default_rng(0).normal(size=(400, 2)), pair()
    assert (tree.trees, tree.depth, tree.tree_of_leaves.tolist()) == (2, 2, [0, 1, 0, 1, 0])
    leaves, weights = tree.routes(X, 1.0)
    assert (tree.tree_of_leaves[leaves] == [0, 1]).all()
    assert (weights == 0.5).all()
    inside = np.array([tree.in_leaf(X, leaf) for leaf in range(tree.leaves)])
    for number in (0, 1):
        assert (inside[tree.tree_of_leaves == number].sum(axis=0) == 1).all()
    trained = {leaf: set(at.tolist()) for leaf, at in tree.training(X)}
    for number in (0, 1):
        assert set().union(*(trained[leaf] for leaf in np.flatnonzero(tree.tree_of_leaves == number))) == set(
            range(400)
        )


def test_the_second_tree_cuts_in_another_direction():
    X = np.random.default_rng(0).normal(size=(3000, 3)) * [4.0, 3.0, 0.1]
    first, second = (principal_axis((X, None, None, number, None)) for number in (0, 1))
    np.testing.assert_allclose(np.abs(first.axis.direction), [1, 0, 0], atol=0.1)
    np.testing.assert_allclose(np.abs(second.axis.direction), [0.8, 0.6, 0], atol=0.1)


def test_cuts_are_those_of_rows_multiplied_by_weights():
    X, weights = np.random.default_rng(0).normal(size=(3000, 3)) * [4.0, 3.0, 0.1], np.array([0.1, 2.0, 1.0])
    for number in (0, 1):
        found, scaled = (
            principal_axis((X, None, None, number, weights)),
            principal_axis((X * weights, None, None, number, None)),
        )
        np.testing.assert_allclose(found.axis.direction, scaled.axis.direction * weights)
        np.testing.assert_allclose(found.t, scaled.t, atol=1e-5)


def test_the_model_is_the_mean_of_both_trees_in_numpy(tmp_path: Path):
    X, y = table()
    new = table(300, 1)[0]
    how: dict[str, Any] = {"partition": sk.Partition(rows=1_000), "preprocess": None, "scaling": None}
    model = sk.KernelRegressor(**how).fit(X, y)
    machine = model.model_
    assert isinstance(machine, sk.PartitionedMachine)
    assert machine.tree.trees == 2
    weights = machine.metadata["partition"]["weights"]
    assert weights[0] is None  # of few leaves the search saw a large part of the rows
    assert np.argsort(weights[1])[-2:].tolist() in ([3, 5], [5, 3])
    rows = new.astype(np.float64) * machine.factor + machine.shift - machine.origin
    outputs = np.zeros((len(new), machine.encoding.outputs))
    leaves, shares = machine.tree.routes(rows.astype(np.float32), 1.0)
    for leaf in range(machine.tree.leaves):
        one = machine.leaves.model(leaf)
        seen = rows * one.factor + one.shift - one.origin
        apart = np.abs(seen[:, None] - one.Z[None].astype(np.float64))
        apart = apart.sum(axis=2) if one.kernel.norm == 1 else np.sqrt(np.square(apart).sum(axis=2))
        found = np.exp(-apart / one.kernel.bandwidth) @ one.weights.astype(np.float64)
        found = found * one.encoding.unit + one.encoding.mean
        for side in (0, 1):
            outputs += np.where(leaves[:, [side]] == leaf, shares[:, [side]] * found, 0.0)
    expected = outputs * machine.encoding.unit + machine.encoding.mean
    np.testing.assert_allclose(model.predict(new), expected[:, 0], atol=2e-3)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(sk.load_model(tmp_path / "model").predict(new), model.predict(new))


def test_two_trees_and_the_weights_that_leaves_teach_have_less_error_than_one_tree():
    (X, y), (new, truth) = table(), table(2_000, 1)
    errors = []
    for trees in (1, 2):
        model = sk.KernelRegressor(partition=sk.Partition(rows=800, trees=trees)).fit(X, y)
        errors.append(float(np.square(model.predict(new) - truth).mean()))
    assert errors[1] < 0.9 * errors[0]


def test_learned_weights_keep_the_mean_distance_and_follow_the_gradients():
    rng = np.random.default_rng(0)
    settings = LeafSettings.of(sk.Pipeline(sk.from_arrays(*table(50)), task="regression", dtype="float32"))
    leaves = [
        {"mass": mass, "gradient": rng.uniform(0.1, 1, D), "variance": rng.uniform(0.5, 2, D)} for mass in (1.0, 3.0)
    ]
    M, variance = (sum(each["mass"] * each[k] for each in leaves) / 4 for k in ("gradient", "variance"))
    for norm in (1, 2):
        made = replace(settings, recipe=replace(settings.recipe, kernel=sk.Laplace(1.0, norm=norm)))
        found = made.learned_weights(leaves)
        np.testing.assert_allclose(found / found[0], np.sqrt(M / M[0]))
        size = (lambda v: np.sqrt(v).sum()) if norm == 1 else np.sum
        np.testing.assert_allclose(size(np.square(found) * variance), size(variance))
        again = replace(made, weights=found)  # what they had before is kept
        np.testing.assert_allclose(again.learned_weights(leaves) / found, made.learned_weights(leaves))
        further = made.learned_weights(leaves, 2.0)
        np.testing.assert_allclose(further / further[0], np.square(found / found[0]))
        unused = replace(made, weights=np.where(np.arange(D) == 2, 0.0, found)).learned_weights(leaves)
        assert np.flatnonzero(unused == 0).tolist() == [2]
    assert settings.learned_weights([{"mass": 1.0, "gradient": np.zeros(D), "variance": np.ones(D)}]) is None
    assert settings.learned_weights([{"mass": 1.0, "constant": 1}]) is None


# Errors of the leaves of each tree, round by round.
FALLS = ((1.0, 0.9, 0.8), (0.7, 0.6, 0.65), (0.6, 0.6))


STEPS = ((1.0, 0.995, 0.95), (0.9, 0.9))  # the first step is no gain of 1%, both are
HARDLY = ((1.0, 0.997, 0.994),)


@pytest.mark.parametrize("errors", [FALLS, ((1.0, 1.0),), ((1.0, 0.9, 0.95), (0.9, 0.9)), STEPS, HARDLY])
def test_weights_are_learned_in_some_leaves_of_trees_while_their_error_falls(errors, monkeypatch):
    settings = LeafSettings.of(sk.Pipeline(sk.from_arrays(*table(50)), task="regression", dtype="float32"))
    settings = replace(settings, recipe=replace(settings.recipe, kernel=sk.Laplace(1.0)))
    rounds, grown, given = (error for tree in errors for error in tree), [], []

    def grow(weights: Any) -> Any:
        grown.append(weights)
        return SimpleNamespace(leaves=64)

    def fitted(some: list[int], shared: tuple[Any, ...], *_: Any) -> Any:
        assert len(some) == 4
        given.append(shared[1].weights)
        error, facts = next(rounds), {"mass": 1.0, "gradient": np.arange(1.0, D + 1), "variance": np.ones(D)}
        return [facts | {"left_out_error": error * (1 + leaf / 1000)} for leaf in some]

    def rows(assembly: Any, tree: Any, some: list[int], executor: Any) -> Any:
        return SimpleNamespace(leaves=dict.fromkeys(some))

    monkeypatch.setattr(probed_weights, "fitted_leaves", fitted)
    monkeypatch.setattr(probed_weights.RowsOfSomeLeaves, "of", rows)
    found = probed_weights.Probe(settings, None, grow, None, 1, 0).weights()
    assert len(given) == sum(map(len, errors))
    best, first = None, 0
    for number, tree in enumerate(errors):
        assert grown[number] is best  # the rows are cut with the weights of the tree before
        best = given[first + int(np.argmin(tree))] if errors is not HARDLY else None
        first += len(tree)
    assert len(grown) == len(errors)
    if best is None:
        assert not len(found)
    else:
        np.testing.assert_array_equal(found, best)


def test_few_leaves_and_rows_with_a_time_teach_no_weights_first():
    assert [probed_leaves(leaves) for leaves in (1, 63, 64, 128, 512, 4096)] == [0, 0, 4, 8, 16, 16]
    X, y = table(4_000)
    frame = pd.DataFrame(X, columns=list("abcdef")).assign(y=y, time=np.arange(len(X)))
    how: dict[str, Any] = {"task": "regression", "partition": sk.Partition(rows=100)}
    plain = sk.plan(sk.Pipeline(sk.from_arrays(X, y), **how))
    timed = sk.plan(sk.Pipeline(sk.open_dataset(frame, target="y", time="time"), **how))
    assert "weights" in {stage.name for stage in plain.stages}
    assert "weights" not in {stage.name for stage in timed.stages}


class Learned(Exception):
    """The weights that leaves have learned, of a fit that ends there."""


def test_a_small_budget_probes_fewer_leaves_at_a_time_and_learns_the_same_weights(tmp_path, monkeypatch):
    monkeypatch.setattr(probed_weights, "PROBED_PART", 1)  # all four leaves of a tree
    monkeypatch.setattr(probed_weights, "PROBED_TREES", 1)
    changed, running, peak, planned = threading.Condition(), 0, 0, 0
    weights, fit_leaf = probed_weights.Probe.weights, leaf_tasks.fit_leaf

    def learned(probe: Any) -> Any:
        nonlocal peak, planned
        peak, planned = 0, probe.at_once
        raise Learned(weights(probe))

    def counted(*given: Any) -> Any:
        nonlocal running, peak
        with changed:
            running += 1
            peak = max(peak, running)
            changed.notify_all()
            changed.wait_for(lambda: peak >= planned, timeout=3)
        try:
            return fit_leaf(*given)
        finally:
            with changed:
                running -= 1

    monkeypatch.setattr(probed_weights.Probe, "weights", learned)
    monkeypatch.setattr(leaf_tasks, "fit_leaf", counted)
    pipeline = sk.Pipeline(
        sk.from_arrays(*table(4_000)), task="regression", partition=sk.Partition(rows=1_600, trees=2), dtype="float32"
    )

    def found(name: str, memory: int) -> tuple[list[float], int, int]:
        with pytest.raises(Learned) as made:
            sk.run(pipeline, tmp_path / name, threads=4, memory=memory)
        return made.value.args[0].tolist(), planned, peak

    large, shape = found("large", 4 << 30), shape_of(pipeline, 4 << 30)
    small = found("small", shape.held + shape.probing + 5 * shape.each // 2)
    assert sorted(np.argsort(large[0])[-2:].tolist()) == [3, 5]
    assert large == (large[0], 4, 4)
    assert small == (large[0], 2, 2)


def shape_of(pipeline: sk.Pipeline, budget: int) -> PartitionShape:
    """The shape of a fit in leaves, on four threads of this process."""
    recipe = resolve_with_held_out(pipeline, budget)[0]
    on, baseline = LeafSettings.of(recipe).on, load_libraries()
    return PartitionShape.before_rows(recipe, on=on, budget=budget, slots=4, here=True, baseline=baseline)


def test_an_interrupted_run_learns_the_same_weights_in_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probed_weights, "PROBED_PART", 2)
    X, y = table(4_000)
    pipeline = sk.Pipeline(sk.from_arrays(X, y), task="regression", partition=sk.Partition(rows=400))
    whole = sk.run(pipeline, tmp_path / "whole", threads=2)
    for weights in sk.load_model(whole.model_path).metadata["partition"]["weights"]:
        assert sorted(np.argsort(weights)[-2:].tolist()) == [3, 5]

    def stop(kind: str, fields: dict[str, Any]) -> None:
        if kind == "stage" and fields["name"].startswith("leaf-") and fields["state"] == "end":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sk.run(pipeline, tmp_path / "run", threads=1, listeners=(stop,))
    result = sk.run(pipeline, tmp_path / "run", threads=1)
    assert {"weights", "level-sample"} <= {stage["name"] for stage in result["stages"] if stage["cached"]}
    assert result.weights_sha256 == whole.weights_sha256


def test_leaves_that_are_all_kept_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    X, y = table()
    pipeline = sk.Pipeline(sk.from_arrays(X, y), task="regression", partition=sk.Partition(rows=800))
    whole = sk.run(pipeline, tmp_path, threads=1)
    (tmp_path / "model.zarr").rename(tmp_path / "kept.zarr")

    def read(*given: Any) -> Any:
        raise AssertionError("rows of leaves are read")

    monkeypatch.setattr(leaf_rows.LeafIds, "of", read)
    assert sk.run(pipeline, tmp_path, threads=1).weights_sha256 == whole.weights_sha256
