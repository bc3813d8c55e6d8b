"""Numbers that are codes: joined by the mean target of each value, where that tells more than the values beside it."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.data.encoders import fold_numbers
from streamkern.preprocessing.appended_columns import appended_columns, explains_more
from tests.data.test_automatic import prepared, rows_of, standard

N = 3_000
SETTINGS: dict[str, Any] = {"kernel": sk.Laplace("median"), "centers": 60, "memory": "4GiB"}


def table(seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """A code whose values have levels of their own, an age along which the target is smooth, and a text."""
    rng = np.random.default_rng(seed)
    code, age = rng.integers(0, 40, N), rng.integers(18, 80, N)
    y = rng.normal(size=40)[code] + np.sin(age / 15) + 0.3 * rng.normal(size=N)
    return pd.DataFrame({"code": code / 10, "age": age, "town": rng.choice(["Oslo", "Rome"], N)}), y


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_code_is_joined_by_the_means_of_its_values_out_of_fold_and_an_age_is_not(task: str) -> None:
    frame, y = table()
    y = np.where(y > 0.5, "yes", "no") if task == "classification" else y + 1e3
    target = (y == "yes").astype(float) if task == "classification" else y
    data = prepared(frame, y, task)
    every, last = rows_of(data), rows_of(data._final())
    assert [name for name in every if "(by value)" in name] == ["code (by value) (mean)"]
    fold, expected = fold_numbers(np.arange(N), 5), np.empty(N)
    code = frame["code"].to_numpy()
    for i in range(N):
        rows = (fold != fold[i]) & (code == code[i])
        expected[i] = (target[rows].sum() + 10 * target.mean()) / (rows.sum() + 10)
    np.testing.assert_allclose(every["code (by value) (mean)"], standard(expected), atol=1e-6)
    of_all = np.array([(target[code == v].sum() + 10 * target.mean()) / ((code == v).sum() + 10) for v in code])
    np.testing.assert_allclose(last["code (by value) (mean)"], (of_all - expected.mean()) / expected.std(), atol=1e-6)


def test_chance_has_no_levels_and_what_is_smooth_is_told_by_its_neighbours() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        values, fold = rng.integers(0, 100, N), rng.integers(0, 5, N)
        for y, expected in (
            (rng.normal(size=N), False),
            (np.sin(values / 20) + rng.normal(size=N), False),
            (rng.normal(size=100)[values] + rng.normal(size=N), True),
            (np.where(values == 50, 2.0, 0.0) + 0.5 * rng.normal(size=N), True),
        ):
            centred = y - y.mean()
            mass, sums = np.zeros((5, 100)), np.zeros((5, 100, 1))
            np.add.at(mass, (fold, values), 1.0)
            np.add.at(sums, (fold, values, 0), centred)
            assert explains_more(mass, sums, 10.0, float(centred @ centred)) is expected
    assert not explains_more(np.ones((5, 3)), np.zeros((5, 3, 1)), 10.0, 0.0)


def test_only_values_that_come_again_are_looked_at_and_ten_thousand_together_at_most() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 40, N), rng.normal(size=N), rng.integers(0, 8, N), np.arange(N) // 2])
    assert appended_columns(X, range(4)).means == [0, 3]
    assert appended_columns(X, range(4)).quantiles == [0, 1, 3]
    ids = np.arange(20_000)[:, None] // [4, 3, 5]  # 5,000, 6,667 and 4,000 values
    assert appended_columns(ids.astype(float), range(3)).means == [0, 2]


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_ids_of_a_table_of_numbers_alone_have_means_too(task: str) -> None:
    rng = np.random.default_rng(0)
    person, level = rng.permutation(np.arange(N) // 5), rng.normal(size=N // 5)
    X = np.column_stack([person * 13.0, rng.normal(size=N)])
    y = level[person] + 0.3 * rng.normal(size=N)
    y = (y > 0).astype(float) if task == "classification" else y
    estimator = sk.KernelClassifier if task == "classification" else sk.KernelRegressor
    train, test = slice(0, 2_400), slice(2_400, N)
    model = estimator(memory="4GiB").fit(X[train], y[train])
    assert any("0 (by value) (600)" in note for note in model.result_.report["preprocess"])
    without = estimator(memory="4GiB", preprocess=(sk.Standardise(),)).fit(X[train], y[train])
    assert 1 - model.score(X[test], y[test]) < 0.7 * (1 - without.score(X[test], y[test]))
    unseen: Counter[str] = Counter()
    list(model.model_.stream_predictions(X[test] + 1, unseen=unseen))
    assert not unseen
    many = sk.KernelClassifier(**SETTINGS).fit(X, person % 40)  # more classes than have means each
    assert not any("by value" in note for note in many.result_.report["preprocess"])
    pixels = sk.KernelRegressor(**SETTINGS).fit(np.column_stack([person % 256, rng.integers(0, 256, N)]), level[person])
    assert not any("by value" in note for note in pixels.result_.report["preprocess"])


def test_a_row_has_one_prediction_in_either_precision_and_unseen_numbers_are_nothing_to_tell(tmp_path: Path) -> None:
    frame, y = table()
    stored = frame.assign(code=frame["code"].astype(np.float32))
    stored.assign(y=y).to_parquet(tmp_path / "train.parquet")
    train = sk.open_dataset(tmp_path / "train.parquet", target="y")
    one, many = (sk.KernelRegressor(**SETTINGS, threads=k).fit(train) for k in (1, 3))
    assert one.model_.weights_sha256 == many.model_.weights_sha256
    assert any("code (by value) (40)" in note for note in one.result_.report["preprocess"])
    one.save(tmp_path / "model.zarr")
    found = one.predict(frame[:200])
    np.testing.assert_allclose(
        sk.Predictor(tmp_path / "model.zarr")(stored[:200])[0], found, atol=1e-3
    )  # a level is 0.3 from the next
    assert np.corrcoef(found, y[:200])[0, 1] > 0.9
    strange = frame[:5].assign(code=77.7)
    unseen: Counter[str] = Counter()
    list(one.model_.stream_predictions(strange, unseen=unseen))
    assert not unseen


def test_a_scaling_that_is_asked_for_takes_no_means_away() -> None:
    frame, y = table()
    frame["street"] = [f"street {i % 400}" for i in range(N)]
    model = sk.KernelRegressor(**SETTINGS, scaling="standard").fit(frame, y)
    notes = " ".join(model.result_.report["preprocess"])
    assert "code (by value) (40)" in notes
    assert "street (400)" in notes


def test_rows_can_be_forgotten_and_labels_be_several() -> None:
    """Sums that are kept have no features that depend on the targets of other rows."""
    frame, y = table()
    model = sk.KernelRegressor(**SETTINGS, solver=sk.Direct(1e-3, keep_sums=True)).fit(frame, y)
    assert "mean" not in " ".join(model.result_.report["preprocess"])
    model.forget(frame[:5], y[:5])
    labels = np.column_stack([y > 0, y > 1]).astype(int)
    several = sk.KernelClassifier(**SETTINGS).fit(frame, labels)
    assert several.predict_proba(frame[:10]).shape == (10, 2)
