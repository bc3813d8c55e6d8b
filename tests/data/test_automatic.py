"""``preprocess="auto"``: what it does to each kind of column, against plain NumPy; and when it does nothing."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import streamkern as sk
from streamkern.data.encoders import Calendar, TargetMeans, fold_numbers
from streamkern.data.row_order import Assembly, Scan
from streamkern.data.transforms import dump, load
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.fitting.preparation import fit_step, prepare
from streamkern.fitting.stage import Runner
from streamkern.preprocessing.automatic_steps import planned_note
from streamkern.preprocessing.feature_origins import features_of
from streamkern.preprocessing.steps import Units, with_expected_width
from tests.processors import own_products

N = 900
RNG = np.random.default_rng(0)
SETTINGS: dict[str, Any] = {"memory": "4GiB", "threads": 1, "centers": 40}


class Recipe:
    """The part of a recipe that preprocessing looks at."""

    features = validation = class_weight = None
    kernel = None
    centers = sk.Uniform(10)
    solver = sk.Direct()

    def __init__(self, train: sk.Dataset, task: str = "regression", preprocess: Any = "auto", **given: Any) -> None:
        self.train, self.task, self.preprocess = train, task, preprocess
        self.scaling = given.get("scaling", "auto")


def prepared(table: Any, y: Any, task: str = "regression", **given: Any) -> sk.Dataset:
    recipe = Recipe(sk.from_arrays(table, y), task, **given)
    with ThreadsExecutor(2) as threads:
        return prepare(recipe, threads, Runner())[0]


def rows_of(data: sk.Dataset) -> dict[str, np.ndarray]:
    scan = Scan(Assembly(data, dtype=np.dtype(np.float64)), 64)
    X = np.concatenate([scan.block((i,)).X for i in range(len(scan))])
    return dict(zip(data.columns, X.T, strict=True))


def standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / x.std()


def test_each_kind_of_column_becomes_what_it_should() -> None:
    size = RNG.normal(1e6, 5, N)
    size[::7] = np.nan
    when = pd.Timestamp("2024-02-28 00:00") + pd.to_timedelta(RNG.integers(0, 300, N), unit="D")
    table = pd.DataFrame({
        "size": size, "tail": np.exp(2 * RNG.normal(size=N)), "town": RNG.choice(["Oslo", "Rome", None], N),
        "when": when, "flag": RNG.random(N) < 0.3, "same": 1.0, "id": [f"r{i}" for i in range(N)], 
        "none": [None] * N, "code": [f"c{i % 300}" for i in range(N)],
    })  # fmt: skip
    y = RNG.normal(size=N) + (table["town"] == "Oslo")
    made = rows_of(prepared(table, y))
    filled = np.where(np.isnan(size), np.nanmedian(size), size)
    np.testing.assert_allclose(made["size"], standard(filled), atol=1e-9)
    np.testing.assert_array_equal(made["size is missing"], np.isnan(size))
    for word in ("Oslo", "Rome"):
        np.testing.assert_array_equal(made[f"town={word}"], table["town"] == word)
    np.testing.assert_array_equal(made["town=missing"], table["town"].isna())
    np.testing.assert_array_equal(made["flag"], table["flag"])
    seconds = (when - pd.Timestamp(0)).total_seconds().to_numpy()
    np.testing.assert_allclose(made["when"], standard(seconds), atol=1e-9)
    np.testing.assert_allclose(made["when.weekday.sin"], np.sin(2 * np.pi * when.day_of_week / 7), atol=1e-12)
    np.testing.assert_allclose(
        made["when.yearday.cos"], np.cos(2 * np.pi * (when.day_of_year - 1) / 365.2425), atol=1e-9
    )
    assert "when.hour.sin" not in made
    assert "when.year" not in made
    assert "id" not in made
    assert "none" not in made
    ranks = (np.argsort(np.argsort(table["tail"])) + 0.5) / N
    middle = (ranks > 0.02) & (ranks < 0.98)
    np.testing.assert_allclose(made["tail"], standard(np.asarray(table["tail"])), atol=1e-9)
    curve = standard(np.clip(norm.ppf(ranks), -2.6, 2.6))
    np.testing.assert_allclose(made["tail (quantile)"][middle], curve[middle], atol=0.1)
    assert not {"flag (quantile)", "same (quantile)", "when (quantile)", "town=Oslo (quantile)"} & made.keys()
    assert "code (mean)" in made


def test_means_of_the_target_are_out_of_fold_in_training_and_of_all_rows_in_prediction() -> None:
    word = RNG.choice(np.array(["a", "b", "c", ""], dtype=object), N)
    for task, y in (("regression", RNG.normal(size=N)), ("classification", RNG.choice(np.array(["x", "y", "z"]), N))):
        data = prepared({"word": word, "x": RNG.normal(size=N)}, y, task, preprocess=(sk.TargetEncode(smooth=3.0),))
        fold = fold_numbers(np.arange(N), 5)
        outputs = [y] if task == "regression" else [(y == label).astype(float) for label in "xyz"]
        every, last = rows_of(data), rows_of(data._final())
        for k, values in enumerate(outputs):
            name = "word (mean)" if len(outputs) == 1 else f"word (mean {k})"
            for i in range(0, N, 37):
                for same, found in ((fold != fold[i], every), (np.full(N, True), last)):
                    rows = same & (word == word[i])
                    by_hand = (values[rows].sum() + 3.0 * values.mean()) / (rows.sum() + 3.0)
                    np.testing.assert_allclose(found[name][i], by_hand, rtol=1e-9)
    described, arrays = dump(data.transforms)
    (again,) = load(described, arrays)
    assert isinstance(again, TargetMeans)
    np.testing.assert_array_equal(again.means[0], data.transforms[0].means[0])
    described[0]["folds"] = 3
    with pytest.raises(ValueError, match="cannot be applied"):
        load(described, arrays)


def test_a_calendar_knows_leap_years_and_times_before_1970() -> None:
    moments = ["1969-12-31T18:00:00", "2024-02-29T12:30:00", "2023-12-31T23:59:59", "NaT"]
    x = np.array(moments, "datetime64[s]").astype(np.float64)
    x[3] = np.nan
    parts = ("time", "year", "month", "day", "yearday", "weekday", "hour")
    made = Calendar(1, (0,), (parts,))
    found = dict(zip(made.names(("t",)), made.apply(x[:, None].copy(), np.arange(4), "").T, strict=True))
    assert np.isnan([values[3] for values in found.values()]).all()
    np.testing.assert_array_equal(found["t.year"][:3], [1969, 2024, 2023])

    def turn(name: str) -> np.ndarray:
        return (np.arctan2(found[f"t.{name}.sin"], found[f"t.{name}.cos"])[:3] / (2 * np.pi)) % 1

    np.testing.assert_allclose(turn("hour") * 24, [18, 12.5, 24 - 1 / 3600], atol=1e-9)
    np.testing.assert_allclose(turn("weekday") * 7, [2, 3, 6], atol=1e-9)
    np.testing.assert_allclose(turn("month") * 12, [11, 1, 11], atol=1e-9)
    np.testing.assert_allclose(turn("day") * 31, [30, 28, 30], atol=1e-9)
    np.testing.assert_allclose((turn("yearday") * 365.2425)[1], 59.5 + 12.5 / 24 - 0.5, atol=1e-6)
    assert sk.Dates(parts=["time", "hour"]).parts == ("time", "hour")
    with pytest.raises(sk.UsageError, match="minute"):
        sk.Dates(parts=("minute",))


def test_text_that_stands_for_numbers_or_dates_is_warned_of() -> None:
    n = 300
    X = pd.DataFrame({
        "amount": [f"{i * 7919 % 10**6:,}" for i in range(n)],
        "when": [f"{1 + i % 28:02}.{1 + i % 12:02}.2024" for i in range(n)],
        "zip": [f"{i % 5:05}" for i in range(n)],
        "size": np.arange(n) % 17,
    })  # fmt: skip
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        sk.KernelClassifier(centers=20).fit(X, X["size"] > 8)
    told = " ".join(str(warning.message) for warning in given)
    assert "column 'amount' is text that looks like numbers ('0')" in told
    assert "pandas.to_numeric" in told
    assert "column 'when' is text that looks like dates ('01.01.2024')" in told
    assert "pandas.to_datetime" in told
    assert "zip" not in told


def test_explicit_steps_take_columns_by_name() -> None:
    when = pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"] * 30)
    table = pd.DataFrame(
        {"a": RNG.normal(size=90), "b": np.exp(RNG.normal(size=90)), "when": when, "c": ["u", "v", None] * 30}
    )
    steps = (sk.Impute("median"), sk.Quantile(("b",)), sk.Dates(parts=("weekday",)), sk.OneHot(("c",)))
    made = rows_of(prepared(table, np.arange(90.0), preprocess=steps))
    assert list(made) == ["a", "b", "when.weekday.sin", "when.weekday.cos", "c=u", "c=v", "c=missing"]
    np.testing.assert_array_equal(made["a"], table["a"])
    np.testing.assert_array_equal(made["c=missing"], [0, 0, 1] * 30)
    with pytest.raises(sk.UsageError, match="Feature 'c' is a category"):
        prepared(table, np.arange(90.0), preprocess=(sk.Impute("median", columns=("c",)), sk.OneHot()))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "standardised"), [("digits", False), ("wine", True), ("breast_cancer", True)])
def test_plain_numbers_are_standardised_and_joined_by_quantiles_where_their_units_differ(name, standardised):
    datasets = pytest.importorskip("sklearn.datasets")
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    X, y, rest = X[:150], y[:150], X[150:]
    model = sk.KernelClassifier(**SETTINGS).fit(X, y)
    note, *joined = model.result_.report["preprocess"]
    assert note.startswith("features standardised" if standardised else "features left as they are")
    assert len(joined) == standardised
    assert all(each.startswith("normal quantiles added as further columns: 0, 1, ") for each in joined)
    other = sk.KernelClassifier(**SETTINGS, preprocess=None)
    if standardised:  # as two steps that a user can take
        X, rest = with_quantiles(X, X), with_quantiles(rest, X)
        other.set_params(scaling="standard")
    expected = other.fit(X, y).decision_function(rest)
    np.testing.assert_allclose(model.decision_function(rest[:, : model.n_features_in_]), expected, atol=2e-3)


def with_quantiles(X: np.ndarray, train: np.ndarray) -> np.ndarray:
    """The reference: scikit-learn's normal quantiles of the training rows, behind the numbers."""
    levels = (np.arange(100) + 0.5) / 100
    made = [X]
    for x, known in zip(X.T, train.T, strict=True):
        if len(np.unique(known)) > 10:
            ends = np.quantile(known, levels)
            values = np.unique(ends)
            made.append(np.interp(x, values, [norm.ppf(levels)[ends == v].mean() for v in values])[:, None])
    return np.concatenate(made, axis=1)


@pytest.mark.slow
def test_units_a_million_apart_are_no_loss_and_a_users_units_stay() -> None:
    X = RNG.normal(size=(600, 6))
    y = np.sin(X[:, 0]) + X[:, 1]
    far = X * np.array([1, 1, 1, 1, 1, 1e6])
    scores = [
        sk.KernelRegressor(memory="4GiB", threads=1).fit(Z[:400], y[:400]).score(Z[400:], y[400:]) for Z in (X, far)
    ]
    assert scores[1] > scores[0] - 0.02
    assert [Units().differ(np.var(Z, axis=0)) for Z in (X, far)] == [False, True]
    for given in (
        {"kernel": sk.Laplace(3.0)},
        {"centers": sk.Given(far[:40])},
        {"preprocess": None, "kernel": sk.Laplace("median")},
    ):
        with pytest.warns(UserWarning, match="make up 99% of the variance"):
            model = sk.KernelRegressor(**(SETTINGS | given)).fit(far, y)
        assert np.ndim(model.model_.factor) == 0
        assert "preprocess" not in model.result_.report


def test_missing_numbers_of_a_table_are_filled_and_of_an_array_are_an_error() -> None:
    X = RNG.normal(size=(100, 3))
    X[5, 1] = np.nan
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    model = sk.KernelRegressor(**SETTINGS).fit(frame, X[:, 0])
    assert model.model_.transforms
    assert np.isfinite(model.predict(frame)).all()
    with pytest.raises(sk.DataError, match=r"(?s)A feature is NaN.*row 5, feature 1"):
        sk.KernelRegressor(**SETTINGS).fit(X, X[:, 0])
    with pytest.raises(sk.DataError, match=r"(?s)A feature is NaN.*row 5, feature 1 \('b'\)"):
        sk.KernelRegressor(preprocess=None, **SETTINGS).fit(frame, X[:, 0])
    frame.loc[7, "c"] = np.inf
    with pytest.raises(sk.DataError, match=r"(?s)A feature is infinity.*row 7, column 'c'"):
        sk.KernelRegressor(**SETTINGS).fit(frame, X[:, 0])


def test_rows_of_another_kind_than_in_training_are_refused_with_what_can_be_done_about_them() -> None:
    table = pd.DataFrame({
        "x": RNG.normal(size=N), "flag": RNG.random(N) < 0.5, "when": pd.date_range("2026-01-01", periods=N, freq="h"),
    })  # fmt: skip
    model = sk.KernelRegressor(**SETTINGS).fit(table, table.x)
    few = table.head(3)
    for other, message in (
        (few.assign(x=few.when), "a number, not a date"),
        (few.assign(x=["a", "b", "c"]), "number"),
        (few.assign(flag=[0, 2, 1]), "boolean"),
    ):
        with pytest.raises(sk.DataError, match=message) as found:
            model.predict(other)
        assert "in the rows of training" in str(found.value)
        assert "schema=" not in str(found.value)
    assert model.predict(few.assign(flag=[0, 1, 1])).shape == (3,)
    numbers = sk.KernelRegressor(**SETTINGS).fit(sk.from_arrays(table, table.x, schema={"when": "number"}))
    assert np.isfinite(numbers.predict(few)).all()  # dates that the user calls numbers stay so


def test_what_tells_no_rows_apart_is_refused() -> None:
    with pytest.raises(sk.DataError, match="No column distinguishes rows"):
        prepared({"a": ["x"] * 600, "b": [f"r{i}" for i in range(600)]}, np.arange(600.0))
    codes = [f"c{i % 300}" for i in range(900)]
    step = sk.TargetEncode(("code",))
    with pytest.raises(sk.DataError, match="'code' has too many categories for indicators, and the target 40 classes"):
        prepared({"code": codes}, np.arange(900) % 40, "classification", preprocess=(step,))
    with pytest.raises(sk.UsageError, match="no columns of categories"):
        prepared({"a": np.arange(9.0)}, np.arange(9.0), preprocess=(sk.OneHot(),))
    with pytest.raises(sk.DataError, match=r"(?s)A category is infinity.*row 1, column 'a'"):
        prepared({"a": [1.0, np.inf]}, np.arange(2.0), preprocess=(sk.OneHot(("a",)),))
    with pytest.raises(sk.UsageError, match="folds"):
        sk.TargetEncode(folds=1000)
    with pytest.raises(sk.UsageError, match="unknown is 'drop'"):
        sk.OneHot(unknown="drop")
    many = sk.from_arrays({"a": [f"r{i}" for i in range(10_002)]}, np.arange(10_002.0))
    with ThreadsExecutor(1) as threads, pytest.raises(sk.DataError, match="Column 'a' has more than 10,000"):
        fit_step(many, sk.TargetEncode(task="regression"), threads)
    with pytest.raises(sk.UsageError, match="'a' is text"):
        prepared({"a": ["x", "y"]}, np.arange(2.0), preprocess=(sk.Standardise(),))


def test_a_run_counts_unseen_categories_and_the_plan_those_of_the_first_chunk(tmp_path: Path) -> None:
    town = RNG.choice([f"t{i}" for i in range(150)], N)
    table = pd.DataFrame({"town": town, "x": RNG.normal(size=N), "y": RNG.integers(0, 2, N)})
    table.to_parquet(tmp_path / "train.parquet")
    table.assign(town=np.where(np.arange(N) < 12, "elsewhere", town)).to_csv(tmp_path / "test.csv", index=False)
    train, test = (sk.open_dataset(tmp_path / name, "y") for name in ("train.parquet", "test.csv"))
    pipe = sk.Pipeline(train, centers=sk.Uniform(40), test=test, solver=sk.Direct(1e-3))
    assert with_expected_width(train, (sk.OneHot(),)).n_features == 1 + len(set(town))
    plan = sk.plan(pipe, memory="4GiB", threads=1)
    assert any(f"town: {len(set(town))}" in choice for choice in plan.choices)
    messages: list[str] = []
    with warnings.catch_warnings():
        result = sk.run(
            pipe, tmp_path / "run", memory="4GiB", threads=1,
            listeners=(lambda kind, fields: messages.append(str(fields.get("message", ""))),),
        )  # fmt: skip
    assert result["unseen_categories"] == {"town": 12}
    assert any("1.3% of the test rows have a category of 'town'" in message for message in messages)
    assert result["preprocess"] == [
        "normal quantiles added as further columns: x",
        f"an indicator for each category: town ({len(set(town))})",
        "standardised: x, x (quantile)",
    ]
    assert Units().reason(np.array([1.0, 1.0])).startswith("features left")
    assert planned_note(sk.from_arrays(np.ones((3, 2))), (Units(),))


@pytest.mark.slow
def test_a_row_group_of_all_rows_is_what_a_refusal_names_first(tmp_path: Path) -> None:
    n = 300_000
    table = pd.DataFrame({f"x{j}": np.zeros(n) for j in range(20)} | {"y": np.arange(n) % 2})
    table.to_parquet(tmp_path / "whole.parquet", row_group_size=n)
    pipe = sk.Pipeline(sk.open_dataset(tmp_path / "whole.parquet", "y"), centers=sk.Uniform(100))
    needed = sk.plan(pipe, memory="64GiB", threads=1).footprint.peak
    with pytest.raises(sk.errors.PlanRefusedError) as error:
        sk.plan(pipe, memory=needed - (60 << 20), threads=1)
    assert error.value.remedy.startswith("store the rows in chunks of 4.0 MiB with streamkern ingest")


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        pytest.param(pd.arrays.SparseArray(np.tile([0.0, 1.5, 0.0, 2.5], 50)), "number", 1.5, marks=own_products),
        (pd.Categorical(pd.to_datetime(["2026-01-02", "2026-02-03"] * 100)), "datetime", pd.Timestamp("2026-01-02")),
        (np.array([True, "north", 1, False] * 50, dtype=object), "category", True),
    ],
    ids=["sparse", "categories of dates", "words and booleans"],
)
def test_columns_of_unusual_types_are_what_they_say_and_a_row_by_itself_is_the_same(column, kind, value) -> None:
    frame = pd.DataFrame({"a": np.random.default_rng(0).normal(size=200), "b": column})
    model = sk.KernelRegressor(sk.Laplace("median"), centers=50).fit(frame, frame.a)
    schema = model.model_.schema
    assert schema is None or schema.columns[1].kind == kind
    at = next(row for row, each in enumerate(frame.b) if each is value or each == value)
    row = {"a": float(frame.a[at]), "b": value}
    assert (
        model.predict(frame)[at]
        == model.predict(frame[at : at + 1])[0]
        == sk.Predictor(model.model_)(row).predictions[0]
    )


def test_complex_numbers_are_refused() -> None:
    frame = pd.DataFrame({"a": np.arange(20.0), "b": np.arange(20) * 1j})
    with pytest.raises(sk.DataError, match="complex"):
        sk.KernelRegressor().fit(frame, frame.a)


@pytest.mark.parametrize("dtype", ["boolean", "Int64", "int64[pyarrow]"])
def test_nullable_labels_stay_what_they_are(dtype: str) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = pd.Series(pd.array(X[:, 0] > 0).astype(int)).astype(dtype)
    model = sk.KernelClassifier(sk.Laplace("median")).fit(X, y)
    assert model.classes_.dtype == model.predict(X).dtype == (np.dtype(bool) if dtype == "boolean" else np.int64)
    assert (model.predict(X) == y.to_numpy()).all()


def test_features_of_a_table_come_from_the_columns_they_were_made_of() -> None:
    rng = np.random.default_rng(0)
    table = {
        "x=y": np.where(rng.random(200) < 0.2, np.nan, rng.normal(size=200)),
        "town": rng.choice(["a", "b", "c"], 200).tolist(),
        "z": rng.normal(size=200),
    }
    found = features_of(prepared(table, rng.normal(size=200)))
    assert found.origins is not None
    of = dict(zip(found.names, found.origins, strict=True))
    assert {name: of[name] for name in ("x=y", "x=y is missing", "town=a", "town=c", "z")} == {
        "x=y": 0, "x=y is missing": 0, "town=a": 1, "town=c": 1, "z": 2,
    }  # fmt: skip
    assert [sorted(found.names[j] for j in block) for block in found.categories] == [["town=a", "town=b", "town=c"]]
    sums = found.by_column(np.ones(len(of)))
    assert [found.names[q] for _, q in found.joined] == ["x=y (quantile)", "z (quantile)"]
    # The gradient of a number goes along its own axis and that of its quantiles: four times one of them.
    np.testing.assert_allclose(sums, np.array([4 + 1, 3, 4]) * len(of) / 12)


def test_columns_that_a_step_mixes_are_of_none() -> None:
    X = np.random.default_rng(0).normal(size=(50, 6))
    found = features_of(prepared(X, X[:, 0], preprocess=(sk.RandomProjection(3),)))
    assert found.origins is None
    np.testing.assert_array_equal(found.by_column(np.arange(3.0)), np.arange(3.0))
