"""Numbers that lie far from 0: what they differ in is kept, in features and targets, training and prediction."""

import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import mean_squared_error, r2_score

import streamkern as sk
from streamkern.data.targets import Continuous, encoding_from_json, encoding_to_json
from streamkern.models.partitioned_machine import load_model
from streamkern.registry.retrain import with_warm_start
from streamkern.solvers import Direct, EigenPro, EigenPro2

UNIX = 1.7e9
N, HELD = 700, 200


def table(offset: float = 0.0, unit: float = 1.0, dtype: str = "float64") -> tuple[np.ndarray, np.ndarray]:
    """Rows of three features, and a smooth function of them."""
    U = np.random.default_rng(0).normal(size=(N, 3))
    y = np.sin(U[:, 0]) + U[:, 1] * 0.5 + 0.05 * np.random.default_rng(1).normal(size=N)
    return (U * unit + offset).astype(dtype), y


def regressor(**given: Any) -> sk.KernelRegressor:
    kernel, solver = given.pop("kernel", sk.Laplace(4.0)), given.pop("solver", Direct())
    return sk.KernelRegressor(kernel, given.pop("centers", 200), solver, dtype="float32", threads=1, **given)


def r2(model: Any, X: Any, y: np.ndarray) -> float:
    model.fit(X[:-HELD], y[:-HELD])
    return float(r2_score(y[-HELD:], model.predict(X[-HELD:])))


@cache
def plain(scaling: str | None) -> float:
    """The score without an offset."""
    return r2(regressor(scaling=scaling), *table())


@pytest.mark.parametrize("scaling", [None, "standard"])
@pytest.mark.parametrize("offset", [1e5, 1e7, UNIX, -(2.0**40)])
def test_an_offset_of_float64_costs_nothing(scaling: str | None, offset: float):
    assert plain(scaling) > 0.95
    assert r2(regressor(scaling=scaling), *table(offset)) == pytest.approx(plain(scaling), abs=2e-3)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("scaling", [None, "standard"])
def test_an_offset_of_wide_integers_costs_nothing(scaling: str | None, dtype: str):
    near, far = (table(offset, unit=100, dtype=dtype) for offset in (1000, UNIX))
    kernel = sk.Laplace(400.0 if scaling is None else 4.0)
    models = [regressor(scaling=scaling, kernel=kernel) for _ in range(2)]
    assert r2(models[1], *far) == pytest.approx(r2(models[0], *near), abs=2e-3)


def stored(X: np.ndarray, y: np.ndarray, folder: Path) -> float:
    """Of centers that stay where they are stored."""
    sk.write_zarr(folder / "rows.zarr", X[:-HELD], y[:-HELD], target="y")
    data = sk.open_dataset(folder / "rows.zarr", target="y")
    regressor(centers=sk.AllRows(), solver=EigenPro2(epochs=4)).fit(data).save(folder / "model")
    return float(r2_score(y[-HELD:], load_model(folder / "model").predict(X[-HELD:])))


def mapped(map_: sk.FeatureMap, X: np.ndarray, y: np.ndarray, folder: Path) -> float:
    centers = sk.Uniform(100) if map_.needs_centers else None
    pipeline = sk.Pipeline(sk.from_arrays(X, y), features=map_, centers=centers, solver=Direct(), task="regression")
    return float(sk.run(pipeline, folder)["metrics"]["train"]["r2"])


def augmented(augmentation: Any, X: np.ndarray, y: np.ndarray, folder: Path) -> float:
    data = sk.from_arrays(X[:-HELD], y[:-HELD]).augment(augmentation, copies=2)
    return float(r2_score(y[-HELD:], regressor(solver=EigenPro(epochs=2)).fit(data).predict(X[-HELD:])))


STEPS = (sk.Impute("mean"), sk.Standardise())
WAYS: dict[str, tuple[Callable[[np.ndarray, np.ndarray, Path], float], float]] = {
    "imputed": (lambda X, y, _: r2(regressor(preprocess=STEPS[:1]), X, y), 2e-3),
    "two steps": (lambda X, y, _: r2(regressor(preprocess=STEPS), X, y), 2e-3),
    "unit range": (lambda X, y, _: r2(regressor(preprocess=(sk.UnitRange(),), kernel=sk.Laplace(0.7)), X, y), 2e-3),
    "EigenPro": (lambda X, y, _: r2(regressor(solver=EigenPro(epochs=4)), X, y), 5e-3),
    "Falkon": (lambda X, y, _: r2(regressor(solver=sk.Falkon(epochs=10)), X, y), 5e-3),
    "given centers": (lambda X, y, _: r2(regressor(centers=sk.Given(X[:150])), X, y), 1e-2),
    "k-means": (lambda X, y, _: r2(regressor(centers=sk.KMeans(60)), X, y), 1e-2),
    "RPCholesky": (lambda X, y, _: r2(regressor(centers=sk.RPCholesky(60, sk.Laplace(4.0))), X, y), 1e-2),
    "stored centers": (stored, 5e-3),
    "waves": (partial(mapped, sk.RandomFourier(sk.Laplace(4.0), 300)), 2e-2),
    "Nystrom": (partial(mapped, sk.Nystrom(sk.Laplace(4.0))), 2e-2),
    "noise": (partial(augmented, sk.augment.GaussianNoise(0.1)), 2e-2),
    "mixed rows": (partial(augmented, sk.augment.MixUp(0.2)), 2e-2),
    "dropped features": (partial(augmented, sk.augment.FeatureDropout(0.0)), 2e-2),
}


@pytest.mark.parametrize("name", WAYS)
def test_an_offset_costs_nothing_in_any_way_of_training(name: str, tmp_path: Path):
    way, apart = WAYS[name]
    near, far = (way(*table(offset), tmp_path / str(offset)) for offset in (0.0, UNIX))
    assert far == pytest.approx(near, abs=apart)


def test_dropped_features_have_the_user_s_value_and_not_that_of_shifted_rows():
    X, y = table(UNIX)
    data = sk.from_arrays(X, y).augment(sk.augment.FeatureDropout(1.0, value=UNIX + 1.0))._relative_to(np.full(3, UNIX))
    block = sk.data.row_order.Scan(sk.data.row_order.Assembly(data)).block((0,))
    assert (block.X == 1.0).all()


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(offset=st.floats(-UNIX, UNIX), unit=st.sampled_from([1.0, 1e3]))
def test_shifted_targets_have_residuals_as_good_and_predictions_that_differ(offset: float, unit: float):
    X, y = table()
    near = regressor().fit(X[:-HELD], unit * y[:-HELD]).predict(X[-HELD:])
    far = regressor().fit(X[:-HELD], unit * y[:-HELD] + offset).predict(X[-HELD:])
    assert np.abs((far - offset) - near).max() < 2e-4 * unit
    assert len(np.unique(far)) == HELD


def test_predictions_are_float64_only_where_float32_cannot_hold_the_targets(tmp_path: Path):
    X, y = table()
    for offset, dtype in ((0.0, np.float32), (5.0, np.float32), (50.0, np.float64), (UNIX, np.float64)):
        model = regressor().fit(X, y + offset)
        assert model.predict(X).dtype == dtype
        assert model.model_.decision_function(np.empty((0, 3))).dtype == dtype
    sk.predict(model.model_, X, tmp_path / "p.parquet")
    np.testing.assert_array_equal(pd.read_parquet(tmp_path / "p.parquet")["prediction"], model.predict(X))
    both = np.stack([y, y + UNIX], axis=1)
    assert regressor().fit(X, both).predict(X).dtype == np.float64


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [1.0, 1e4, 1e7])
def test_epoch_seconds_have_as_many_predictions_as_rows(spread: float, dtype: str):
    X, y = table(dtype=dtype)
    model = regressor().fit(X, UNIX + spread * y)
    many = np.random.default_rng(2).normal(size=(20_000, 3)).astype(dtype)
    assert len(np.unique(model.predict(many))) > 19_900
    assert len(np.unique(sk.Predictor(model.model_, max_rows=len(many))(many).predictions)) > 19_900


def test_outputs_in_unlike_units_are_fitted_as_each_by_itself(tmp_path: Path):
    X, y = table()
    both = np.stack([y, 1e6 * X[:, 0] + UNIX], axis=1)
    model = regressor(solver=EigenPro(epochs=3, batch=100)).fit(X, both)
    scale = model.model_.encoding.scale
    assert np.log2(scale).tolist() == [0.0, 20.0]
    for j in range(2):
        alone = regressor(solver=EigenPro(epochs=3, batch=100)).fit(X, both[:, j])
        np.testing.assert_allclose(model.predict(X)[:, j], alone.predict(X), rtol=1e-12, atol=1e-5 * scale[j])
    model.save(tmp_path / "model.zarr")
    saved = load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(saved.predict(X), model.predict(X))
    assert saved.fingerprint == model.model_.fingerprint
    np.testing.assert_array_equal(sk.Predictor(saved)(X).predictions, model.predict(X))
    found = saved.score(X, both)
    assert found["mse"] == pytest.approx(mean_squared_error(both, model.predict(X)), rel=1e-5)
    assert found["r2"] == pytest.approx(r2_score(both, model.predict(X)), abs=1e-6)
    with sk.open_executor() as executor:
        detail = saved._score_in_detail(sk.from_arrays(X, both), executor)
    np.testing.assert_allclose(detail.actual, both)
    assert "scale" not in encoding_to_json(regressor().fit(X, np.stack([y, 8 * y], axis=1)).model_.encoding)
    for damaged in ([1.0], [1.0, -1.0]):
        with pytest.raises(ValueError, match="units"):
            encoding_from_json(encoding_to_json(model.model_.encoding) | {"scale": damaged})


def test_unlike_units_do_not_decide_when_training_stops():
    X, y = table()
    noise = np.random.default_rng(3).normal(size=N) * 1e6  # the larger output cannot be learnt
    data = sk.from_arrays(X, np.stack([y, noise], axis=1))
    train, held = data.split(0.3)
    model = regressor(solver=EigenPro(epochs=12, batch=50, patience=2), validation=held).fit(train)
    assert r2_score(y, model.predict(X)[:, 0]) > 0.9


def test_one_mean_is_added_wherever_predictions_are_made():
    encoding = Continuous(np.array([UNIX]), precision="float64")
    again = encoding_from_json(json.loads(json.dumps(encoding_to_json(encoding))))
    assert isinstance(again, Continuous)
    assert again.precision == "float64"
    assert again.decode(np.full((1, 1), 0.25, np.float32))[0, 0] == UNIX + 0.25
    assert "precision" not in encoding_to_json(Continuous(np.array([1.0])))  # as models of earlier releases


def test_a_data_set_that_the_user_scaled_is_scored_as_it_was_trained():
    X, y = table(UNIX)
    data = sk.from_arrays(X, y).scale(0.5)
    train, test = data.split(0.2)
    model = regressor(kernel=sk.Laplace(2.0)).fit(train)
    assert model.score(test) > 0.95
    with pytest.raises(sk.UsageError, match="scaled in another way"):
        model.model_.score(sk.from_arrays(X, y).scale(0.25))


def test_a_champion_goes_on_far_from_0(tmp_path: Path):
    X, y = table(UNIX)
    pipeline = sk.Pipeline(
        sk.from_arrays(X, y), kernel=sk.Laplace(4.0), centers=sk.Uniform(200), solver=EigenPro(epochs=6),
        task="regression",
    )  # fmt: skip
    sk.run(pipeline, tmp_path / "cold")
    going_on, reason = with_warm_start(pipeline, load_model(tmp_path / "cold" / "model.zarr"))
    assert reason is None
    assert sk.run(going_on, tmp_path / "warm")["metrics"]["train"]["r2"] > 0.95


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float32", "float64", "int64"])
@pytest.mark.parametrize("preprocess", [(), (sk.Impute("mean"), sk.Standardise())], ids=["plain", "steps"])
def test_a_row_has_the_same_prediction_in_whatever_dtype_it_comes(dtype: str, preprocess: tuple[Any, ...]):
    X, y = table(100, unit=20)
    X = np.clip(np.round(X), 0, 255).astype(dtype)
    model = regressor(scaling="standard", kernel=sk.Laplace(4.0), preprocess=preprocess).fit(X, y).model_
    expected = model.predict(X)
    for carrier in ("uint8", "int16", "int32", "int64", "float32", "float64"):
        np.testing.assert_array_equal(model.predict(X.astype(carrier)), expected)
    np.testing.assert_array_equal(sk.Predictor(model)(X.tolist()).predictions, expected)
