"""Rows added to the sums of Direct and taken away again, against plain NumPy and against fits that never saw them."""

import pickle
import shutil
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import streamkern as sk
from streamkern.errors import (
    DataError,
    ModelFormatError,
    PlanRefusedError,
    StreamkernError,
    UnlikeChampionError,
    UsageError,
)
from streamkern.solvers.direct import StoredSums, Sums
from streamkern.storage.artifact import load_artifact

RIDGE = 1e-4


def rows(n: int, seed: int = 0, d: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n) + 5.0


X, Y = rows(900)
Z = X[:40] + 0.01


def regressor(keep: bool = True, ridge: float = RIDGE, **changes: Any) -> sk.KernelRegressor:
    given: dict[str, Any] = {"centers": sk.Given(Z), "preprocess": None, "dtype": "float64"}
    return sk.KernelRegressor(sk.Laplace(3.0), solver=sk.Direct(ridge, keep_sums=keep), **(given | changes))


def by_hand(X: np.ndarray, y: np.ndarray, w: np.ndarray | None = None) -> tuple[np.ndarray, float]:
    """Weights, and the mean of the targets, in plain NumPy."""
    w = np.ones(len(X)) if w is None else w

    def kernel(A: np.ndarray, B: np.ndarray) -> np.ndarray:
        return np.exp(-np.sqrt(np.square(A[:, None] - B[None]).sum(axis=2)) / 3.0)

    phi, mean = kernel(X, Z), w @ y / w.sum()
    A = phi.T @ (w[:, None] * phi) / w.sum() + RIDGE * kernel(Z, Z)
    return np.linalg.solve(A, phi.T @ (w * (y - mean)) / w.sum()), mean


def far(found: Any, expected: np.ndarray) -> float:
    weights = getattr(found, "model_", found).weights[:, 0] if not isinstance(found, np.ndarray) else found
    return float(np.linalg.norm(weights - expected) / np.linalg.norm(expected))


def test_added_and_forgotten_rows_give_the_weights_of_all_rows_that_are_left():
    model = regressor().fit(X[:700], Y[:700])
    model.partial_fit(X[700:], Y[700:])
    weights, mean = by_hand(X, Y)
    assert far(model, weights) < 1e-6
    assert model.model_.encoding.mean == pytest.approx([mean], rel=1e-12)
    model.forget(X[100:250], Y[100:250])
    left = np.r_[:100, 250:900]
    weights, mean = by_hand(X[left], Y[left])
    assert far(model, weights) < 1e-6
    assert model.model_.encoding.mean == pytest.approx([mean], rel=1e-12)
    assert far(model, regressor().fit(X[left], Y[left]).model_.weights[:, 0]) < 1e-6
    assert model.model_.sums.rows == 750
    assert model.model_.metadata["updates"] | {"answers": ""} == {
        "added": 200, "forgotten": 150, "times": 2, "answers": "",
    }  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*predicted below 0")
@pytest.mark.parametrize("kind", ["target", "weight"])
def test_rows_that_took_the_digits_of_all_others_are_not_forgotten_in_silence(kind: str):
    """After a target of 1e15 the weights were off by 20%, after a weight of 1e12 by .4%."""
    y, w = Y[:700].copy(), np.ones(700)
    if kind == "target":
        y[0] = 1e15
    else:
        w[0] = 1e12
    model = regressor().fit(X[:700], y, w)
    with pytest.raises(UnlikeChampionError, match=f"{kind}s so large .* lost half of their digits") as caught:
        model.forget(X[:1], y[:1], w[:1])
    assert "fit again" in str(caught.value.remedy)
    y[0], w[0] = 1e4, 1e4  # large, and no digits are lost that anyone would miss
    model = regressor().fit(X[:700], y, w).forget(X[:1], y[:1], w[:1])
    weights, _ = by_hand(X[1:700], Y[1:700])
    assert far(model, weights) < 1e-6


def test_rows_that_differ_from_a_constant_are_forgotten():
    y = np.full(700, 2.0)
    y[:5] = 3.0
    model = regressor().fit(X[:700], y).forget(X[:5], y[:5])
    np.testing.assert_allclose(model.predict(X), 2.0, rtol=1e-12)


def test_weights_of_rows_count_whatever_the_calls_they_come_in():
    w = np.random.default_rng(1).uniform(0, 3, 900)
    w[::50] = 0.0
    both = np.concatenate([w[:600], np.ones(300)])
    expected, mean = by_hand(X, Y, both)
    model = regressor().fit(X[:600], Y[:600], w[:600]).partial_fit(X[600:], Y[600:])
    assert far(model, expected) < 1e-6
    assert model.model_.encoding.mean == pytest.approx([mean], rel=1e-12)
    other = regressor().fit(X[600:], Y[600:]).partial_fit(X[:600], Y[:600], w[:600])
    assert far(other, expected) < 1e-6
    assert far(other.forget(X[:300], Y[:300], w[:300]), by_hand(X[300:], Y[300:], both[300:])[0]) < 1e-6


def test_keeping_sums_changes_no_bit_of_the_weights():
    kept, plain = (regressor(keep).fit(X, Y).model_ for keep in (True, False))
    assert kept.weights_sha256 == plain.weights_sha256
    assert plain.sums is None
    assert isinstance(kept.sums, Sums)
    assert sk.Direct().to_json() == {"name": "Direct", "ridge": 1e-9}


@pytest.mark.parametrize("how", [{"threads": 1}, {"threads": 3}, {"resources": sk.Resources(scheduler="processes:2")}])
def test_bits_do_not_depend_on_threads_or_workers(how: dict[str, Any], tmp_path: Path):
    sk.write_zarr(tmp_path / "all.zarr", *rows(3000, 3), chunk_rows=500)
    data = sk.open_dataset(tmp_path / "all.zarr", target="target")
    model = regressor().fit(X, Y).model_
    expected = sk.update_model(model, add=data, threads=2)
    found = sk.update_model(model, add=data, **how)
    assert found.weights_sha256 == expected.weights_sha256
    assert isinstance(found.sums, Sums)
    assert np.array_equal(found.sums.gram, expected.sums.gram)


def test_a_saved_model_has_its_sums_beside_it(tmp_path: Path):
    model = regressor().fit(X[:700], Y[:700]).model_
    model.save(tmp_path / "model.zarr")
    loaded = sk.load_model(tmp_path / "model.zarr")
    assert isinstance(loaded.sums, StoredSums)
    assert (loaded.sums.rows, loaded.sums.nbytes) == (700, model.sums.nbytes)
    added = sk.update_model(loaded, add=(X[700:], Y[700:]))
    assert far(added, by_hand(X, Y)[0]) < 1e-6
    loaded.save(tmp_path / "copy.zarr")
    assert np.array_equal(sk.load_model(tmp_path / "copy.zarr").sums.load().gram, model.sums.gram)
    added.save(tmp_path / "model.zarr")
    assert sk.load_model(tmp_path / "model.zarr").sums.rows == 900
    shutil.rmtree(tmp_path / "copy.zarr" / "sums")
    shutil.copytree(tmp_path / "model.zarr" / "sums", tmp_path / "copy.zarr" / "sums")
    with pytest.raises(ModelFormatError, match="not those of the model"):
        sk.update_model(sk.load_model(tmp_path / "copy.zarr"), add=(X, Y))
    largest = max((tmp_path / "model.zarr" / "sums").rglob("c*/*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-9] + b"damaged!!")
    damaged = sk.load_model(tmp_path / "model.zarr")
    assert np.isfinite(damaged.predict(X[:3])).all()
    with pytest.raises(ModelFormatError):
        sk.update_model(damaged, add=(X, Y))


def test_a_pickle_takes_the_sums_along():
    model = pickle.loads(pickle.dumps(regressor().partial_fit(X[:700], Y[:700])))
    assert far(model.partial_fit(X[700:], Y[700:]), by_hand(X, Y)[0]) < 1e-6
    assert model.result_.outcome.sums is None
    assert not hasattr(clone(model), "model_")


def test_rows_of_dask_arrays_and_of_data_sets_are_added():
    expected = regressor().fit(X[:700], Y[:700]).partial_fit(X[700:], Y[700:]).model_
    lazy = regressor().fit(X[:700], Y[:700]).partial_fit(da.from_array(X[700:], chunks=50), da.from_array(Y[700:], 50))
    data = regressor().fit(X[:700], Y[:700]).partial_fit(sk.from_arrays(X[700:], Y[700:]))
    for found in (lazy, data):
        assert far(found, expected.weights[:, 0]) < 1e-9


def test_centers_that_are_forgotten_rows_are_named_and_can_go():
    model = regressor(centers=sk.Given(X[:40])).fit(X, Y).model_
    with pytest.warns(UserWarning, match="10 of 40 centers are forgotten rows"):
        kept = sk.update_model(model, forget=(X[30:60], Y[30:60]))
    assert kept.n_centers == 40
    left = np.r_[:30, 60:900]
    found = sk.update_model(model, forget=(X[30:60], Y[30:60]), drop_centers=True)
    expected = regressor(centers=sk.Given(X[:30])).fit(X[left], Y[left])
    assert found.n_centers == 30
    assert far(found, expected.model_.weights[:, 0]) < 1e-6
    assert np.allclose(found.predict(X[:9]), expected.predict(X[:9]), rtol=1e-9)
    again = sk.update_model(found, add=(X[30:60], Y[30:60]))
    assert far(again, regressor(centers=sk.Given(X[:30])).fit(X, Y).model_.weights[:, 0]) < 1e-6
    with pytest.raises(UnlikeChampionError, match="No center would be left"):
        sk.update_model(model, forget=(X[:60], Y[:60]), drop_centers=True)


def test_many_centers_in_several_tiles_can_go():
    big, y = rows(1500, 5)
    model = sk.KernelRegressor(
        sk.Laplace(3.0), centers=sk.Given(big[:700]), solver=sk.Direct(1e-3, keep_sums=True), preprocess=None
    ).fit(big, y)
    found = sk.update_model(model.model_, forget=(big[100:600], y[100:600]), drop_centers=True)
    left = np.r_[:100, 600:1500]
    expected = clone(model).set_params(centers=sk.Given(big[np.r_[:100, 600:700]])).fit(big[left], y[left])
    assert far(found, expected.model_.weights[:, 0]) < 1e-6


def test_sums_in_a_better_basis_are_added_to_as_well():
    def made() -> sk.KernelRegressor:
        return sk.KernelRegressor(
            sk.Gaussian(30.0), centers=sk.Given(Z), solver=sk.Direct(1e-13, keep_sums=True), preprocess=None
        )

    whole = made().fit(X, Y)
    assert whole.result_.report["sweeps"] == 2
    assert whole.model_.sums.change is not None
    model = made().fit(X[:700], Y[:700]).partial_fit(X[700:], Y[700:])
    assert np.allclose(model.predict(X), whole.predict(X), atol=1e-4)
    model.forget(X[700:], Y[700:])
    assert np.allclose(model.predict(X), made().fit(X[:700], Y[:700]).predict(X), atol=1e-4)
    with pytest.raises(UnlikeChampionError, match="another basis"):
        sk.update_model(made().set_params(centers=sk.Given(X[:40])).fit(X, Y).model_, forget=(X[:3], Y[:3]),
                        drop_centers=True)  # fmt: skip


def test_a_run_of_features_keeps_sums_too_and_finds_them_in_its_stages(tmp_path: Path):
    def pipeline(n: int) -> sk.Pipeline:
        return sk.Pipeline(
            train=sk.from_arrays(X[:n], Y[:n]), features=sk.RandomFourier(sk.Gaussian(2.0), 64), dtype="float64",
            solver=sk.Direct(1e-4, keep_sums=True), task="regression", preprocess=None,
        )  # fmt: skip

    models = {}
    for n in (700, 900):
        sk.run(pipeline(n), tmp_path / str(n))
        models[n] = sk.load_model(tmp_path / str(n) / "model.zarr")
    found = sk.update_model(models[700], add=(X[700:], Y[700:]))
    assert far(found, models[900].weights[:, 0]) < 1e-6
    again = sk.run(pipeline(700), tmp_path / "700")
    assert next(stage for stage in again["stages"] if stage["name"] == "train")["cached"]
    assert np.array_equal(sk.load_model(tmp_path / "700" / "model.zarr").sums.load().gram, models[700].sums.load().gram)


# ------------------------------------------------------------------------------------------------- tables and classes


def table(n: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "a": np.where(rng.random(n) < 0.1, np.nan, rng.standard_normal(n)),
            "b": rng.exponential(size=n) ** 3,
            "c": rng.choice(["x", "y", "z"], n),
            "when": pd.date_range("2024-01-01", periods=n, freq="h"),
        }
    )
    return frame, np.where(frame.a.fillna(0) + (frame.c == "x") + 0.2 * rng.standard_normal(n) > 0.5, "yes", "no")


def test_a_table_is_prepared_as_the_first_rows_were():
    frame, y = table(1200)
    model = sk.KernelClassifier(sk.Laplace("median"), centers=50).partial_fit(frame[:800], y[:800])
    before, transforms = model.model_.weights, model.model_.transforms
    model.partial_fit(frame[800:], y[800:])
    assert model.model_.transforms is transforms
    assert far(model.model_.weights[:, 0], before[:, 0]) > 1e-4
    assert model.predict_proba(frame[:5]).sum(axis=1) == pytest.approx(np.ones(5))
    model.forget(frame[800:], y[800:])
    assert far(model.model_.weights[:, 0], before[:, 0]) < 1e-6
    unseen = frame[:3].assign(c="never seen")
    with pytest.warns(UserWarning, match=r"100.0% of the rows have a category of 'c'"):
        model.partial_fit(unseen, y[:3])
    assert model.model_.sums.rows == 803


def test_classes_may_come_later_if_they_are_named():
    frame, y = table(600)
    values = frame[["b"]].assign(a=frame.a.fillna(0.0)).to_numpy()
    first = y == "yes"
    with pytest.warns(UserWarning, match="1 of 2 classes are not among"):
        model = sk.KernelClassifier(sk.Laplace("median"), centers=40).partial_fit(
            values[first], y[first], classes=["yes", "no"]
        )
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.predict(values)) == {"yes"}
    model.partial_fit(values[~first], y[~first])
    assert model.model_.metadata["updates"]["answers"] == "kept from an earlier fit"  # these rows lack a class too
    model.partial_fit(values, y)
    assert model.model_.metadata["updates"]["answers"] == "added rows"
    assert model.score(values, y) > 0.7
    with pytest.raises(UsageError, match="The classes are"):
        model.partial_fit(values, y, classes=["yes", "no", "maybe"])
    with pytest.raises(DataError, match="'maybe' was not among the classes"):
        model.partial_fit(values[:2], ["maybe", "yes"])


def test_answers_stay_until_as_many_rows_have_come_or_validation_rows_are_given():
    model = regressor().fit(X[:400], Y[:400])
    first = model.model_.calibration
    assert model.partial_fit(X[400:500], Y[400:500]).model_.calibration is first
    assert model.model_.metadata["updates"]["answers"] == "kept from an earlier fit"
    made = sk.update_model(model.model_, forget=(X[400:500], Y[400:500]), validation=(X[500:], Y[500:]))
    assert made.calibration is not first
    assert made.metadata["updates"]["answers"] == "validation rows"
    inside = made.predict_interval(X[500:], 0.9)
    assert np.mean((inside[:, 0] <= Y[500:]) & (Y[500:] <= inside[:, 1])) == pytest.approx(0.9, abs=0.03)
    small = regressor().partial_fit(X[:100], Y[:100])
    grown = small.partial_fit(X[100:], Y[100:]).model_
    assert grown.metadata["updates"]["answers"] == "added rows"
    new, y = rows(2000, 9)
    ends = grown.predict_interval(new, 0.9)
    assert np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])) == pytest.approx(0.9, abs=0.04)


# ---------------------------------------------------------------------------------------------------------- refusals


def test_what_cannot_be_updated_says_why():
    plain = regressor(False).fit(X, Y)
    with pytest.raises(AttributeError):
        plain.partial_fit(X, Y)
    assert not hasattr(plain, "forget")
    model = regressor().fit(X, Y).model_
    wrong: list[tuple[dict[str, Any], type[StreamkernError], str]] = [
        ({"model": plain.model_, "add": (X, Y)}, UsageError, "keeps no sums"),
        ({}, UsageError, "There are no rows"),
        ({"add": sk.from_arrays(X)}, UsageError, "have no target"),
        ({"add": sk.from_arrays(X, Y).augment(copies=2)}, UsageError, "augmented, or repeated"),
        ({"forget": (X, Y)}, DataError, "900 rows are to be forgotten of 900"),
        ({"forget": (np.repeat(Z[:1], 800, axis=0), Y[:800])}, DataError, "some were never added"),
        ({"add": (X, Y), "memory": "1MiB"}, PlanRefusedError, "may use"),
        ({"add": (X[:, :2], Y)}, DataError, "2"),
    ]
    for given, kind, words in wrong:
        with pytest.raises(kind, match=words):
            sk.update_model(**({"model": model} | given))
    with pytest.raises(UsageError, match="keep_sums is 'yes'"):
        sk.Direct(keep_sums="yes")
    with pytest.raises(UsageError, match="takes the solver Direct, and this is EigenPro"):
        sk.KernelRegressor(solver=sk.EigenPro(epochs=1)).partial_fit(X, Y)
    with pytest.raises(UsageError, match="takes the solver Direct, and this is one with a partition"):
        sk.KernelRegressor(partition=sk.Partition()).partial_fit(X, Y)
    with pytest.raises(UsageError, match="a solver that keeps its sums"):
        sk.KernelRegressor(partition=sk.Partition(), solver=sk.Direct(keep_sums=True)).fit(X, Y)


def test_rows_whose_features_depend_on_others_cannot_be_forgotten(tmp_path: Path):
    frame, y = table(400)
    steps = (sk.TargetEncode(("c",)), sk.Impute(), sk.Standardise())
    model = sk.KernelClassifier(
        sk.Laplace("median"), centers=20, solver=sk.Direct(1e-3, keep_sums=True), preprocess=steps
    ).fit(frame[["a", "c"]], y).model_  # fmt: skip
    sk.update_model(model, add=(frame[["a", "c"]], y))
    loaded = sk.load_model(model.save(tmp_path / "model.zarr"))
    for each in (model, loaded):  # before memory is projected, of which there is not enough to project the update
        with pytest.raises(UsageError, match="encoded by the targets of other rows"):
            sk.update_model(each, forget=(frame[["a", "c"]][:5], y[:5]), memory="1MiB")
    sk.update_model(loaded, add=(frame[["a", "c"]], y))
    arrays, about = load_artifact(tmp_path / "model.zarr" / "sums", "Sums")
    assert about["format"] == 1
    assert sum(array.nbytes for array in arrays.values()) == model.sums.nbytes


def test_weights_of_classes_and_the_threshold_go_on():
    frame, y = table(1500)
    values = np.log1p(frame[["b"]]).assign(a=frame.a.fillna(0.0)).to_numpy()
    rare = np.where((y == "yes") & (np.arange(1500) % 4 == 0), "yes", "no")
    given = {"centers": sk.Given(values[:30]), "preprocess": None, "dtype": "float64"}
    solver = sk.Direct(1e-3, keep_sums=True)
    weights = {"yes": 5.0, "no": 0.5}
    made = sk.KernelClassifier(sk.Laplace(2.0), solver=solver, class_weight=weights, threshold="f1", **given)
    model = clone(made).fit(values[:700], rare[:700])
    cut = model.model_.encoding.cut
    with pytest.warns(UserWarning, match="centers are forgotten"):
        model.partial_fit(values[700:], rare[700:]).forget(values[:100], rare[:100])
    expected = clone(made).fit(values[100:], rare[100:])
    assert far(model, expected.model_.weights[:, 0]) < 1e-6
    assert model.model_.calibration.facts["threshold"]["metric"] == "f1"
    assert model.model_.encoding.cut == model.model_.calibration.cut != cut
    by_rows = clone(made).set_params(class_weight=None, threshold=None)
    w = np.where(rare == "yes", 5.0, 0.5)
    assert far(model, by_rows.fit(values[100:], rare[100:], w[100:]).model_.weights[:, 0]) < 1e-6


def test_intervals_go_on_without_the_centers_that_went():
    model = regressor(centers=sk.Given(X[:150])).fit(X, Y).model_
    found = sk.update_model(model, forget=(X[140:160], Y[140:160]), drop_centers=True)
    new, y = rows(2000, 11)
    widths, inside = [], []
    for each in (model, found):
        ends = each.predict_interval(new, 0.9)
        widths.append(np.mean(ends[:, 1] - ends[:, 0]))
        inside.append(np.mean((ends[:, 0] <= y) & (y <= ends[:, 1])))
    assert inside[1] == pytest.approx(inside[0], abs=0.05)
    assert widths[1] == pytest.approx(widths[0], rel=0.1)
