"""Rows given to a fitted model: found by name, and refused in the library's words."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import streamkern as sk

RNG = np.random.default_rng(0)
N = 200
PLAIN = pd.DataFrame({"a": RNG.normal(size=N), "b": RNG.normal(size=N), "c": RNG.integers(0, 9, N)})
MIXED = PLAIN.assign(
    t=RNG.choice(["x", "y"], N), when=pd.Timestamp("2024-01-15") + pd.to_timedelta(RNG.integers(0, 500, N), unit="D")
)


def fitted(X: Any, **settings: Any) -> sk.KernelRegressor:
    given: dict[str, Any] = {"kernel": sk.Laplace(3.0), "centers": 40, "solver": sk.Direct(1e-3), "partition": None}
    return sk.KernelRegressor(**(given | settings)).fit(X, (PLAIN.a + PLAIN.c).to_numpy())


@pytest.mark.parametrize("table", [PLAIN, MIXED], ids=["plain", "mixed"])
def test_a_series_is_refused_with_what_is_expected(table: pd.DataFrame) -> None:
    model = fitted(table)
    for given in (table.iloc[0], table["a"]):
        for call in (model.predict, model.model_.predict, sk.Predictor(model.model_)):
            with pytest.raises(sk.DataError, match=r"(?s)a Series is one column.*to_frame\(\)\.T.*give a frame"):
                call(given)
    with pytest.raises(sk.DataError, match="a Series is one column"):
        fitted(PLAIN["a"])
    numbers = fitted(PLAIN.to_numpy())
    for call in (numbers.predict, numbers.model_.predict, sk.Predictor(numbers.model_)):
        with pytest.raises(sk.DataError, match=r"(?s)a Series is one column.*give a frame"):
            call(PLAIN.iloc[0])
    row = table.iloc[0].to_frame().T
    np.testing.assert_allclose(model.predict(row), model.predict(table.head(1)), rtol=1e-5)


@pytest.mark.parametrize("table", [PLAIN, MIXED], ids=["plain", "mixed"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, 1e308])
def test_a_value_that_cannot_be_predicted_is_named_as_it_is_stored(table, value, tmp_path):
    model = fitted(table)
    rows = table.head(3).copy()
    rows.loc[1, "b"] = value
    rows.to_csv(tmp_path / "rows.csv", index=False)
    words = r"too large: 1e\+308" if np.isfinite(value) else "infinity"
    for call in (model.predict, model.model_.predict, sk.Predictor(model.model_)):
        with pytest.raises(sk.DataError, match=rf"(?s)A feature is {words}.*row 1, feature 'b'.*correct the value"):
            call(rows)
    with pytest.raises(sk.DataError, match=rf"(?s)A feature is {words}.*feature 'b'"):
        model.model_.predict(tmp_path / "rows.csv")


@pytest.mark.parametrize("settings", [{}, {"kernel": sk.Laplace(3.0), "solver": sk.EigenPro(epochs=3)}])
@pytest.mark.parametrize("rows", [50, 120])
def test_a_gap_that_only_rows_held_out_of_a_fit_have_is_filled(rows: int, settings: dict[str, Any]) -> None:
    table = PLAIN.head(rows).copy()
    held = sk.from_arrays(table, table.a).split(0.2)[1].rules[-1].keep(np.arange(rows))
    table.loc[np.flatnonzero(held)[0], "b"] = np.nan
    train, validation = sk.from_arrays(table, table.a).split(0.2)
    model = sk.KernelRegressor(validation=validation, **settings).fit(train)
    assert np.isfinite(model.predict(table)).all()


@pytest.mark.parametrize("table", [PLAIN, MIXED], ids=["plain", "mixed"])
@pytest.mark.parametrize("value", [1e300, 1e200])
def test_a_value_too_large_to_fit_is_named_by_its_column(table: pd.DataFrame, value: float, tmp_path: Path) -> None:
    rows = table.copy()
    rows.loc[17, "b"] = value
    for preprocess in ("auto", None) if table is PLAIN else ("auto",):
        with pytest.raises(sk.DataError, match=r"(?s)too large: 1e\+[23]00.*row 17, feature 1 \('b'\)"):
            fitted(rows, preprocess=preprocess)
    data = sk.from_arrays(PLAIN.assign(b=np.where(PLAIN.index == 17, 1e25, PLAIN.b)), PLAIN.a.to_numpy())
    pipe = sk.Pipeline(data, sk.Laplace(1.0), sk.Uniform(10), sk.Direct(), task="regression", dtype="float32")
    with pytest.raises(sk.DataError, match=r"(?s)too large for float32.*: 1e\+25.*row 17, feature 1 \('b'\)"):
        sk.run(pipe, tmp_path / "run", memory="4GiB")


@pytest.mark.parametrize("value", [20240115, 20240115.0, "20240115"])
def test_digits_in_a_column_of_dates_are_no_seconds(value: Any, tmp_path: Path) -> None:
    model = fitted(MIXED)
    rows = MIXED.head(2).astype({"when": object}).assign(when=value)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    for given in (rows, rows.to_dict("records"), tmp_path / "rows.csv"):
        with pytest.raises(sk.DataError, match=r"(?s)'?20240115(.0)?'? of column 'when' is not a date.*%Y%m%d"):
            model.model_.predict(given)
    seconds = pd.Timestamp("2024-01-15").timestamp()
    want = model.predict(MIXED.head(2).assign(when=pd.Timestamp("2024-01-15")))
    np.testing.assert_array_equal(model.predict(rows.assign(when=seconds)), want)
    with pytest.raises(sk.DataError, match="is not a date"):
        sk.from_arrays(rows, schema={"when": "datetime"}).source.read(0)


def written(table: pd.DataFrame, door: str, folder: Path) -> Any:
    """The table as one of the doors takes it."""
    if door in ("frame", "records"):
        return table if door == "frame" else table.astype(object).to_dict("records")
    place = folder / f"rows{len(list(folder.iterdir()))}.{door}"
    if door == "csv":
        table.to_csv(place, index=False)
    else:
        table.to_parquet(place)
    return place


@pytest.mark.parametrize("door", ["frame", "csv", "parquet", "records"])
@pytest.mark.parametrize("kind", ["array", "plain", "plain with gaps", "mixed"])
def test_gaps_are_filled_where_training_had_more_than_numbers_without_gaps(kind, door, tmp_path):
    train = MIXED if kind == "mixed" else PLAIN.copy()
    if kind == "plain with gaps":
        train.loc[::9, "a"] = np.nan
    model = fitted(train.to_numpy() if kind == "array" else train).model_
    rows = train.head(3).copy()
    rows.loc[1, "b"] = np.nan
    given: Any = rows.to_numpy() if kind == "array" else written(rows, door, tmp_path)
    if kind in ("array", "plain"):
        with pytest.raises(sk.DataError, match=r"(?s)A feature is NaN.*row 1.*Impute"):
            model.predict(given)
    else:
        want = model.predict(rows.assign(b=rows.b.fillna(train.b.median())))
        np.testing.assert_allclose(model.predict(given), want, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["zarr", "parquet"])
@pytest.mark.parametrize("file", ["parquet", "csv", "feather"])
def test_gaps_of_plain_numbers_are_filled_alike_in_a_file_and_in_what_is_ingested_of_it(tmp_path, file, form):
    rng = np.random.default_rng(0)
    n = 300
    holes = [pa.array(values, mask=rng.random(n) < 0.2) for values in (rng.normal(size=n), rng.integers(0, 9, n))]
    flags = pa.array(rng.integers(0, 2, n).astype(bool), mask=rng.random(n) < 0.1)
    x = rng.normal(size=n)
    table = pa.table({"x": x, "a": holes[0], "b": holes[1], "flag": flags, "y": x + 0.1 * rng.normal(size=n)})
    path, out = tmp_path / f"rows.{file}", tmp_path / f"ingested.{form}"
    {"parquet": pq.write_table, "csv": pa_csv.write_csv, "feather": feather.write_feather}[file](table, path)
    sk.ingest(path, out, target="y")
    rows = table.drop_columns("y")
    found = []
    for place in (path, out):
        data = sk.open_dataset(place, target="y")
        assert [column.missing or False for column in data.source.schema.columns] == [False, True, True, True]
        model = sk.KernelRegressor(memory="4GiB", seed=0).fit(data)
        found.append(model.predict(rows))
    np.testing.assert_array_equal(*found)
    assert np.corrcoef(found[0], x)[0, 1] > 0.9
    inside = sk.KernelRegressor(memory="4GiB", seed=0).fit(rows, table["y"].to_numpy())
    np.testing.assert_allclose(inside.predict(rows), found[0], atol=0.05)


def test_a_column_of_a_file_without_any_value_is_no_hindrance(tmp_path: Path):
    x = np.random.default_rng(0).normal(size=200)
    pq.write_table(pa.table({"x": x, "none": pa.nulls(200), "y": x}), tmp_path / "rows.parquet")
    model = sk.KernelRegressor(memory="4GiB").fit(sk.open_dataset(tmp_path / "rows.parquet", target="y"))
    assert model.score(pa.table({"x": x, "none": pa.nulls(200)}), x) > 0.99
