"""The learned metric: exact at its limits, unbiased in its signs, with the same bits from any threads."""

import pickle
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.centers import CenterSet
from streamkern.costs.dry_run import ProblemSize
from streamkern.cpu import default_engine
from streamkern.data import from_arrays
from streamkern.data.row_order import Block
from streamkern.data.targets import Continuous
from streamkern.data.transforms import LinearMap
from streamkern.engine import Engine
from streamkern.execute import ThreadsExecutor
from streamkern.gpu.engine import DeviceEngine
from streamkern.kernels import Expansion
from streamkern.selection.learned_metric import AGOP, GradientOuter, Metric, Rounds, learn_metric
from streamkern.solvers.base import Problem
from tests.device import StrictDevice

KERNEL = sk.Laplace("median")
QUICK: dict[str, Any] = {"rows": 3000, "centers": 250}


def rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


def learned(agop: AGOP, X: np.ndarray, y: np.ndarray, kernel: Any = KERNEL, threads: int = 2, **how: Any) -> Metric:
    y = y.reshape(len(y), -1).astype(np.float64)
    data = from_arrays(X, y - y.mean(axis=0))
    nothing = CenterSet(np.empty((0, X.shape[1]), X.dtype), None)
    with ThreadsExecutor(threads) as executor:
        encoding = Continuous(np.zeros(y.shape[1]), flat=False)
        return learn_metric(agop, kernel, Problem(data, encoding, kernel, nothing, executor, X.dtype, **how))


@pytest.mark.parametrize("kernel", [KERNEL, sk.Laplace("median", norm=1), sk.Gaussian(10.0)], ids=repr)
def test_two_features_of_fifty_get_the_metric(kernel: Any):
    X = rows(3000, 50)
    y = np.sin(2 * X[:, 3]) + X[:, 7]
    found = learned(AGOP(kind="diagonal", **QUICK), X, y, kernel)
    assert found.round >= 1
    assert found.M[[3, 7]].sum() / found.M.sum() >= 0.95
    assert found.importances[[3, 7]].sum() >= 0.95
    assert found.importances.sum() == pytest.approx(1.0)
    distances = [np.square(x[:400, None] - x[None, :400]).sum(axis=2).mean() for x in (X, X * found.factor)]
    if kernel.norm == 2:  # a bandwidth means what it meant before
        assert distances[1] == pytest.approx(distances[0], rel=0.1)


def test_a_linear_target_s_line_is_the_top_direction():
    X, line = rows(3000, 12), rows(1, 12, 1)[0]
    found = learned(AGOP(kind="full", **QUICK), X, X @ line, sk.Gaussian("median"))
    _, vectors = np.linalg.eigh(found.M)
    assert abs(vectors[:, -1] @ line) / np.linalg.norm(line) >= 0.99


def test_an_isotropic_target_leaves_the_metric_near_the_identity():
    X = rows(3000, 4)
    found = learned(AGOP(kind="full", rounds=1, **QUICK), X, np.square(X).sum(axis=1), sk.Gaussian("median"))
    G = found.M
    if found.kind == "none":
        assert np.array_equal(G, np.ones(4))
    else:
        np.testing.assert_allclose(G, np.eye(4), atol=0.15)
    np.testing.assert_allclose(found.importances, 0.25, atol=0.04)


def test_a_metric_that_does_not_help_is_not_kept():
    """All that is left of the target is noise: round 0 is one of the rounds."""
    X = rows(400, 5)
    y = np.random.default_rng(1).normal(size=400)
    found = learned(AGOP(rounds=2, rows=400, centers=40), X, y)
    best = min(found.history, key=lambda each: each["mse"])
    assert (found.kind, found.round) == (best["kind"], best["round"])
    stopped = [each for each in found.history if each["kind"] == "diagonal"]
    assert all(a["mse"] < b["mse"] for a, b in zip(stopped[:-1][1:], stopped[:-2], strict=True))


def outer(expansion: Expansion, X: np.ndarray, W: np.ndarray, full: bool, seed: int) -> np.ndarray:
    block = Block(X, None, np.arange(len(X)), (0,))
    total, mass = GradientOuter(expansion, W.shape[1], full, seed)(block, W)
    return np.asarray(total) / mass


def test_random_signs_are_unbiased():
    Z, X, W = (rows(*size).astype(np.float64) for size in ((30, 3, 0), (20, 3, 1), (30, 4, 2)))
    expansion = Expansion(sk.Gaussian(1.5), Z, Engine())
    exact = sum(outer(expansion, X, W[:, [k]], True, 0) for k in range(4))
    found = np.array([outer(expansion, X, W, True, seed) for seed in range(400)])
    error = found.std(axis=0) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - exact) <= 4 * error).all()
    assert (error > 0).all()
    diagonal = outer(expansion, X, W, False, 7)
    np.testing.assert_allclose(diagonal, np.diag(outer(expansion, X, W, True, 7)), rtol=1e-12)


def test_weights_of_rows_count():
    Z, X, W = rows(10, 3), rows(6, 3, 1), rows(10, 1, 2)
    w = np.array([0.0, 2.0, 1.0, 1.0, 1.0, 1.0])
    expansion = Expansion(sk.Gaussian(1.5), Z, Engine())
    twice = np.concatenate([X[1:], X[1:2]])
    total, mass = GradientOuter(expansion, 1, True, 0)(Block(X, None, np.arange(6), (0,), w), W)
    expected, count = GradientOuter(expansion, 1, True, 0)(Block(twice, None, np.arange(6), (0,)), W)
    assert mass == count
    np.testing.assert_allclose(total, expected, rtol=1e-5)


def test_threads_and_lanes_change_no_bit():
    X = rows(2500, 6)
    Y = np.stack([np.sin(2 * X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
    agop = AGOP(rounds=2, rows=2500, centers=100)
    one = learned(agop, X, Y, threads=1)
    for found in (learned(agop, X, Y, threads=3), learned(agop, X, Y, threads=2, lanes=7)):
        np.testing.assert_array_equal(found.factor, one.factor)
        np.testing.assert_array_equal(found.importances, one.importances)
        assert found.history == one.history


def test_the_reference_and_a_device_learn_the_same_metric():
    X = rows(1200, 6)
    y = np.sin(2 * X[:, 0]) + X[:, 1]
    agop = AGOP(rounds=1, kind="full", rows=1200, centers=60)
    for kernel in (sk.Laplace(3.0), sk.Laplace(5.0, norm=1)):
        host = learned(agop, X, y, kernel, engine=default_engine())
        for engine in (Engine(), DeviceEngine(StrictDevice())):
            found = learned(agop, X, y, kernel, engine=engine)
            np.testing.assert_allclose(found.M, host.M, atol=2e-3)
            assert found.kind == host.kind


def table(n: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    X = rows(n, 8).astype(np.float64) * np.geomspace(0.1, 100, 8)
    return X, np.where(np.sin(2 * X[:, 2] / X[:, 2].std()) + X[:, 5] / X[:, 5].std() > 0, "yes", "no")


@pytest.mark.parametrize("kind", ["diagonal", "full", "auto"])
def test_a_saved_model_predicts_the_same(tmp_path: Any, kind: str):
    X, y = table()
    settings: dict[str, Any] = {"scaling": "standard", "centers": 200, "seed": 1}
    model = sk.KernelClassifier(KERNEL, metric=AGOP(kind=kind, **QUICK), **settings).fit(X[:1000], y[:1000])
    model.save(tmp_path / "model.zarr")
    loaded = sk.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.decision_function(X[1000:]), model.model_.decision_function(X[1000:]))
    assert set(np.argsort(model.feature_importances_)[-2:]) == {2, 5}
    plain = sk.KernelClassifier(KERNEL, **settings).fit(X[:1000], y[:1000])
    assert model.score(X[1000:], y[1000:]) >= plain.score(X[1000:], y[1000:])
    with pytest.raises(AttributeError, match="fit with metric"):
        plain.feature_importances_  # noqa: B018


def test_a_row_through_a_full_metric_has_the_bits_it_has_alone():
    X = rows(40, 9)
    turn = LinearMap(rows(9, 9, 1).astype(np.float64))
    ids = np.arange(40)
    alone = [turn.apply(X[i : i + 1].copy(), ids[i : i + 1], "") for i in range(40)]
    np.testing.assert_array_equal(np.concatenate(alone), turn.apply(X.copy(), ids, ""))
    assert pickle.loads(pickle.dumps(turn)).apply(X, ids, "").dtype == np.float32


def test_a_bill_grows_with_what_is_tried():
    size = ProblemSize(100_000, 2000, 30, 1)
    one, both = (AGOP(kind=kind).cost_estimate(size, 100_000) for kind in ("diagonal", "auto"))
    assert (one.rounds, both.rounds) == (4, 7)
    assert both.work.values > one.work.values > 4 * 25_000 * 2000
    assert one.memory > 2000**2 * 8


def test_what_is_held_is_within_the_bill():
    X = rows(4000, 10)
    y, agop = np.sin(2 * X[:, 0]), AGOP(rounds=1, rows=4000, centers=500)
    learned(AGOP(rounds=1, rows=200, centers=20), X, y)  # compiles
    tracemalloc.start()
    try:
        learned(agop, X, y, threads=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= agop.cost_estimate(ProblemSize(4000, 500, 10, 1, slots=2), 4000).memory


@pytest.mark.parametrize("weighted", [False, True])
def test_rounds_with_every_row_as_a_center_are_ridge_regression_at_the_best_ridge(weighted: bool, executor):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    X[:20] = X[20:40]
    y = np.sin(X[:, :1]) + rng.normal(size=(300, 1))
    data = from_arrays(X, y, sample_weight=rng.uniform(0.2, 2.0, 300) if weighted else None)
    kernel, nothing = sk.Laplace(3.0), CenterSet(np.empty((0, 4)), None)
    ladder = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
    problem = Problem(data, Continuous(np.zeros(1), flat=False), kernel, nothing, executor, X.dtype)
    rounds = replace(Rounds.of(AGOP(rows=300), kernel, problem, 1 / 3, all_rows_are_centers=True), ridges=ladder)
    found = [rounds.fit("none", 0, np.ones(4), np.ones(4), near) for near in (None, 1e-6, 1.0)]
    each = [replace(rounds, ridges=(ridge,)).plain() for ridge in ladder]
    fit, held = (problem.full_rows(np.sort(part.draw(part.base_rows)), part) for part in (rounds.train, rounds.held))
    own = np.ones(len(fit[0])) if fit[2] is None else fit[2]
    for made in each:
        ridge = made.ridge * len(own) * np.diag(1 / own)
        exact = np.linalg.solve(kernel(fit[0], fit[0]) + ridge, fit[1])
        squares = np.square(kernel(held[0], fit[0]) @ exact - held[1])[:, 0]
        assert made.mse == pytest.approx(np.average(squares, weights=held[2]), rel=1e-7)
    best = min(each, key=lambda made: made.mse)
    assert 1e-6 < best.ridge < 1.0
    assert [(made.ridge, made.mse) for made in found] == [(best.ridge, best.mse)] * 3


def test_levels_of_a_category_are_weighed_alike():
    rng = np.random.default_rng(4)
    town, x = rng.choice(["a", "b", "c", "d"], 1200, p=[0.6, 0.3, 0.08, 0.02]), rng.normal(size=1200)
    noise = rng.normal(size=1200)
    data = sk.from_arrays({"town": town.tolist(), "x": x, "noise": noise}, x + 2.0 * (town == "a"))
    model = sk.KernelRegressor(KERNEL, 100, metric=AGOP(1, "diagonal", 1200, 100), memory="4GiB").fit(data)
    assert model.result_.report["metric"]["kind"] == "diagonal"
    names = model.result_.report["metric"]["columns"]
    factor = np.asarray(model.model_.factor)
    levels = [j for j, name in enumerate(names) if name.startswith("town=")]
    assert len(levels) == 4
    assert len(set(factor[levels].tolist())) == 1
    assert factor[names.index("x")] > 2 * factor[names.index("noise")]


def test_gradients_do_not_depend_on_the_tiles_they_are_summed_in(monkeypatch: pytest.MonkeyPatch):
    Z, X, W = rows(300, 5), rows(90, 5, 1), rows(300, 3, 2)
    signs = np.where(rows(90, 3, 3) > 0, 1.0, -1.0)
    for kernel in (sk.Laplace(2.0), sk.Laplace(4.0, norm=1)):
        f = Expansion(kernel, Z)
        whole = default_engine().gradients(f, X, W, signs)
        monkeypatch.setattr("streamkern.engine.reference.GRADIENT_TILE", (7, 1024))
        np.testing.assert_array_equal(default_engine().gradients(f, X, W, signs), whole)
        monkeypatch.undo()


def test_a_table_through_a_turned_metric_keeps_its_preprocessing_and_its_importances():
    rng = np.random.default_rng(3)
    town, x, noise = rng.choice(["a", "b", "c"], 400), rng.normal(size=400), rng.normal(size=400)
    table = {"town": town.tolist(), "x": x, "noise": noise}
    y = x + 3.0 * (town == "a")
    model = sk.KernelRegressor(metric=sk.AGOP(rounds=1, kind="full", centers=60), centers=60, memory="4GiB", threads=1)
    model.fit(table, y)
    assert any("an indicator for each category: town (3)" in each for each in model.result_.report["preprocess"])
    found = dict(
        zip(model.result_.report["metric"]["columns"], model.result_.report["metric"]["importances"], strict=True)
    )
    by_column = dict(zip(table, model.feature_importances_, strict=True))
    assert by_column["town"] + by_column["x"] > 0.8
    town_share = sum(share for name, share in found.items() if name.startswith("town="))
    x_share = (found["x"] ** 0.5 + found["x (quantile)"] ** 0.5) ** 2
    assert by_column["town"] / by_column["x"] == pytest.approx(town_share / x_share)
    assert sum(by_column.values()) == pytest.approx(1.0)
    again = [{"town": str(town[0]), "x": float(x[0]), "noise": float(noise[0])}]
    assert model.predict(again)[0] == model.predict({name: values[:1] for name, values in table.items()})[0]
