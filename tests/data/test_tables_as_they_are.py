"""A row is a row: the same bits from every door, with all kinds of columns, gaps and unseen categories."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkern as sk
from streamkern.sources.schema import Column
from tests.test_type_matrix import DOORS, as_zarr, through

WORDS = ["Oslo", "Zürich", "東京", "a,b", 'say "x"', " x ", "NA?", "0123"]
N = 90
SETTINGS: dict[str, Any] = {"memory": "4GiB", "threads": 1, "centers": 30}


def generated(seed: int, n: int = N, words: list[str] | None = None) -> pd.DataFrame:
    """Return a table of every kind of column, with gaps in each."""
    random = np.random.default_rng(seed)
    gaps = [random.random(n) < 0.15 for _ in range(6)]
    when = pd.Timestamp("2023-03-01 06:30") + pd.to_timedelta(random.integers(0, 10**8, n), unit="s")
    return pd.DataFrame({
        "size": np.where(gaps[0], np.nan, random.normal(50, 9, n)),
        "tail": np.exp(3 * random.normal(size=n)),
        "count": pd.array(np.where(gaps[1], None, random.integers(0, 99, n)), dtype="Int64"),
        "town": np.where(gaps[2], None, random.choice(words or WORDS[:5], n)),
        "open": pd.array(np.where(gaps[3], None, random.random(n) < 0.5), dtype="boolean"),
        "when": pd.Series(when).mask(gaps[4]),
        "day": pd.Series(when.normalize()),
        "zip": random.choice(["0123", "0200", "9"], n),
    })  # fmt: skip


def target(table: pd.DataFrame) -> np.ndarray:
    return (table["size"].fillna(50) - 50 + 9 * (table["town"] == "Oslo")).to_numpy(dtype=np.float64)


@pytest.fixture(scope="module")
def fitted() -> sk.KernelRegressor:
    table = generated(0)
    return sk.KernelRegressor(**SETTINGS).fit(table, target(table))


def arrow_of(table: pd.DataFrame) -> pa.Table:
    return pa.Table.from_pandas(table, preserve_index=False)


def doors(table: pd.DataFrame, folder: Path) -> dict[str, Any]:
    """Return the same rows through every door."""
    made = {door: through(door, arrow_of(table), folder) for door in DOORS if door != "pandas of objects"}
    return made | {
        "shuffled columns": table[sorted(table.columns)].assign(more="left out"),
        "categorical": table.astype({"town": "category", "zip": "category"}),
        "objects": table.to_numpy(dtype=object),
        "dataset": sk.open_dataset(made["parquet"], columns=list(table.columns)),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*have a category of 'town'")
@settings(max_examples=5, deadline=None)
@given(
    seed=st.integers(1, 1000), words=st.lists(st.text("abλ中 ,\"'\n", min_size=1, max_size=6), min_size=1, max_size=3)
)
def test_a_row_is_a_row(fitted, tmp_path_factory, seed, words):
    table = generated(seed, 20, [*WORDS, *(word for word in words if word.strip())])
    expected = fitted.predict(table)
    assert np.isfinite(expected).all()
    folder = tmp_path_factory.mktemp("doors")
    made = doors(table, folder)
    for name, rows in made.items():
        np.testing.assert_array_equal(fitted.predict(rows), expected, err_msg=name)
        if not isinstance(rows, Path | sk.Dataset):
            np.testing.assert_array_equal(fitted.model_.predict(rows), expected, err_msg=name)
    fitted.save(folder / "model.zarr")
    loaded = sk.load_model(folder / "model.zarr")
    columns = fitted.model_.schema.columns
    assert loaded.schema == sk.Schema(tuple(Column(c.name, c.kind, c.text, c.missing or None) for c in columns))
    np.testing.assert_array_equal(loaded.predict(table), expected)
    predictor = sk.Predictor(loaded)
    np.testing.assert_array_equal(predictor(made["json"]).predictions, expected)
    one_by_one = [predictor(row).predictions[0] for row in table.iloc[:5].to_dict("records")]
    np.testing.assert_array_equal(one_by_one, expected[:5])
    written = sk.predict(loaded, folder / "csv" / "rows.csv", folder / "out.parquet")
    np.testing.assert_array_equal(pd.read_parquet(folder / "out.parquet")["prediction"], expected)
    unseen = ~table["town"].isin(WORDS[:5]) & table["town"].notna()
    assert written.unseen_categories == ({"town": int(unseen.sum())} if unseen.any() else {})


def test_equal_content_in_memory_has_equal_fingerprints(tmp_path):
    table, other = generated(3), generated(4)
    rows = doors(table, tmp_path)
    names = ("polars", "arrow", "record batch", "categorical", "dict of columns", "list of dicts")
    prints = {
        sk.from_arrays(rows[name]).source.conformed(sk.from_arrays(table).source.schema).fingerprint for name in names
    }
    assert prints == {sk.from_arrays(table).source.fingerprint}
    assert sk.from_arrays(other).source.fingerprint not in prints


def test_the_schema_is_inferred_overridden_and_survives_ingest(tmp_path):
    table = generated(5)
    table.assign(id=np.arange(N)).to_csv(tmp_path / "t.csv", index=False)
    options = {"schema": {"zip": "category", "count": "category"}, "exclude": ["id"]}
    source = sk.open_dataset(tmp_path / "t.csv", **options).source
    kinds = ["number", "number", "category", "category", "boolean", "datetime", "datetime", "category"]
    assert [column.kind for column in source.schema.columns] == kinds
    assert "0123" in source.words(7).values() or source.read(0) is not None
    assert set(source.words(7).values()) == {"0123", "0200", "9"}, "a category keeps the zeros before its digits"
    for format in ("zarr", "parquet"):
        sk.ingest(tmp_path / "t.csv", tmp_path / f"t.{format}", **options)
        stored = sk.open_dataset(tmp_path / f"t.{format}").source
        assert stored.schema.kinds == source.schema.kinds
        assert set(stored.words(7).values()) == {"0123", "0200", "9"}
        np.testing.assert_array_equal(stored.read(0).X, source.read(0).X)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.schema == source.schema
    found = sk.inspect(tmp_path / "t.csv", **options)
    assert "category  count, town, zip" in found.text()
    with pytest.raises(sk.DataError, match="excluded column 'ID' is not there"):
        sk.open_dataset(tmp_path / "t.csv", exclude=["ID"])
    with pytest.raises(sk.UsageError, match="kind of column 'zip' is 'text'"):
        sk.open_dataset(tmp_path / "t.csv", schema={"zip": "text"})


@pytest.mark.parametrize("door", ["frame", "json", "csv"])
def test_a_value_of_another_kind_is_named_as_it_is_written(fitted, tmp_path, door):
    table = generated(6, 8).astype({"size": object})
    table.loc[5, "size"] = "about 40"
    rows: Any = table if door == "frame" else table.to_dict("records")
    if door == "csv":
        table.to_csv(rows := tmp_path / "t.csv", index=False)
    with pytest.raises(sk.DataError, match=r"(?s)The value 'about 40' of column 'size' is not a number.*row 5"):
        fitted.predict(rows)
    with pytest.raises(sk.DataError, match="'town' is not there"):
        fitted.predict(table.drop(columns="town"))
    with pytest.raises(sk.DataError, match="'town' is stored as numbers, and the model was trained on text"):
        fitted.predict(sk.from_arrays(np.ones((3, 8))))


def test_a_category_that_training_did_not_see_is_named_by_its_word_where_it_is_an_error(tmp_path):
    table = generated(7)[["town", "zip"]]
    model = sk.KernelRegressor(preprocess=(sk.OneHot(unknown="error"),), **SETTINGS).fit(table, np.arange(N))
    model.save(tmp_path / "model.zarr")
    with pytest.raises(sk.DataError, match=r"The value 'Oslo2' of column 'town' was not among.*") as error:
        sk.load_model(tmp_path / "model.zarr").predict([{"town": "Oslo2", "zip": "9"}])
    assert "Zürich" in str(error.value)


def test_rows_that_cannot_be_predicted_say_why(fitted):
    table = generated(8, 4)
    with pytest.raises(sk.DataError, match=r"(?s)'town' is not there.*the columns that the model was trained on"):
        fitted.predict(table.drop(columns="town").to_dict("records"))
    with pytest.raises(sk.DataError, match=r"(?s)A feature is infinity.*row 2, feature 'size'.*correct the value"):
        fitted.predict(table.assign(size=[1.0, 2.0, np.inf, 3.0]))
    in_milliseconds = [row | {"when": 1_700_000_000_000} for row in table.to_dict("records")]
    with pytest.raises(sk.DataError, match=r"of column 'when' is not a date, or seconds since 1970"):
        fitted.predict(in_milliseconds)
    with pytest.raises(sk.DataError, match=r"to_frame\(\)\.T"):
        fitted.predict(table.iloc[0])
    np.testing.assert_array_equal(fitted.predict(table.iloc[0].to_frame().T), fitted.predict(table)[:1])


@pytest.mark.parametrize("columns", [["b", "a"], ["c", "a", "b"]])
def test_a_data_set_with_its_columns_in_another_order_is_said_to_have_other_columns(columns: list[str]) -> None:
    rows = pd.DataFrame({"a": list("xyzx") * 20, "b": np.arange(80) % 7, "c": 1.0})
    model = sk.KernelClassifier(centers=20).fit(sk.from_arrays(rows[["a", "b"]], np.arange(80) % 2))
    with pytest.raises(sk.DataError, match=f"columns differ from those of training: '{columns[0]}' is where 'a' was"):
        model.score(sk.from_arrays(rows[columns], np.arange(80) % 2))


@pytest.mark.slow
def test_arrays_of_columns_are_a_table_for_every_command(tmp_path):
    table = generated(6, 400).assign(late=lambda rows: np.where(rows["tail"] > 1, "late", "in time"))
    as_zarr(arrow_of(table), tmp_path / "rows.zarr")
    table.to_parquet(tmp_path / "rows.parquet")
    options = {"target": "late", "exclude": ["day"], "schema": {"zip": "category", "when": "datetime"}}
    found = sk.inspect(tmp_path / "rows.zarr", **options)
    assert "category  town, zip" in found.text()
    data = sk.open_dataset(tmp_path / "rows.zarr", **options)
    like = sk.open_dataset(tmp_path / "rows.parquet", columns=list(data.columns), **options)
    assert pickle.loads(pickle.dumps(data)).fingerprint == data.fingerprint
    other = sk.open_dataset(tmp_path / "rows.zarr", **options | {"schema": {"size": "category", "when": "datetime"}})
    assert data.fingerprint != other.fingerprint
    sk.ingest(tmp_path / "rows.zarr", tmp_path / "made.zarr", **options)
    stored = sk.open_dataset(tmp_path / "made.zarr")
    assert set(stored.source.words(stored.columns.index("zip")).values()) == {"0123", "0200", "9"}
    sk.run(sk.Pipeline(data, centers=sk.Uniform(30)), tmp_path / "run", memory="4GiB")
    model = sk.load_model(tmp_path / "run" / "model.zarr")
    predictions = [model.decision_function(rows) for rows in (data, like, stored)]
    np.testing.assert_array_equal(predictions[0], predictions[1])
    np.testing.assert_array_equal(predictions[0], predictions[2])
    sk.predict(model, tmp_path / "rows.zarr", tmp_path / "out.parquet")
    np.testing.assert_array_equal(pd.read_parquet(tmp_path / "out.parquet")["prediction"], model.predict(data))


def test_a_lost_chunk_of_text_is_no_column_of_gaps(tmp_path):
    as_zarr(arrow_of(generated(7)), tmp_path / "rows.zarr")
    data = sk.open_dataset(tmp_path / "rows.zarr")
    (tmp_path / "rows.zarr" / "town" / "c" / "3").unlink()
    chunks = range(len(data.source.bounds) - 1)
    with pytest.raises(sk.errors.CorruptChunkError, match="town/c/3"):
        [data.source.read(chunk) for chunk in chunks]
