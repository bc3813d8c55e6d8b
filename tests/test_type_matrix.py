"""Types of columns × doors × ways: a column trained through any door has the same predictions through every other.

A new type is one line of ``TYPES``; a new door one line of ``MEMORY`` or ``FILES``. Every type is predicted through
every door. What trains, scores or ingests is done for a third of the pairs, in which each type and each door occur.
"""

import datetime
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import dask.dataframe
import h5py
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import zarr
from pyarrow import feather

import streamkern as sk
from streamkern.serving.predict_files import evaluate, predict

N = 48
SETTINGS: dict[str, Any] = {"solver": sk.Direct(), "centers": 20, "partition": None, "memory": "4GiB", "threads": 1}
DAY = datetime.datetime(2024, 3, 1)

TYPES: dict[str, tuple[str, Any, Sequence[Any]]] = {
    # name: kind, Arrow type, values
    "float64": ("number", pa.float64(), [0.1, -2.5, 1e-9, 3e4]),
    "float32": ("number", pa.float32(), [0.5, -2.25, 8.0]),
    "int64": ("number", pa.int64(), [-5, 0, 7, 2**40]),
    "uint8": ("number", pa.uint8(), [0, 7, 255]),
    "int64 with gaps": ("number", pa.int64(), [3, None, -1]),
    "float64 with gaps": ("number", pa.float64(), [3.5, None, -1.25]),
    "decimal": ("number", pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-7.25"), Decimal("100.00")]),
    "boolean": ("boolean", pa.bool_(), [True, False]),
    "boolean with gaps": ("boolean", pa.bool_(), [True, None, False]),
    "text": ("category", pa.string(), ["Oslo", "a,b", 'say "x"', "東京"]),
    "text with gaps": ("category", pa.string(), ["Oslo", None, "Rome"]),
    "dictionary of text": ("category", pa.dictionary(pa.int32(), pa.string()), ["Oslo", "a,b", "Rome"]),
    "duration": ("number", pa.duration("ms"), [datetime.timedelta(seconds=90.5), datetime.timedelta(0)]),
    "clock": ("number", pa.time64("us"), [datetime.time(0, 1, 30), datetime.time(0, 0, 9)]),
    "timestamp": ("datetime", pa.timestamp("us"), [DAY, DAY.replace(hour=5, minute=7), DAY.replace(year=2019)]),
    "date": ("datetime", pa.date32(), [DAY.date(), datetime.date(2019, 12, 31)]),
    "category of int64": ("category", pa.int64(), [101, 102, 205]),
    "category of int64 with gaps": ("category", pa.int64(), [101, None, 205]),
    "category of large int64": ("category", pa.int64(), [2**53, 2**53 + 1, 2**62 + 1]),
    "category of uint64": ("category", pa.uint64(), [1, 2**64 - 1, 2**64 - 2]),
    "category of float64": ("category", pa.float64(), [101.0, 0.1, -2.5]),
    "category of float32": ("category", pa.float32(), [0.1, 7.0, -2.5]),
    "category of decimals": ("category", pa.decimal128(9, 2), [Decimal("1.50"), Decimal("0.10"), Decimal("101.00")]),
    "category of booleans": ("category", pa.bool_(), [True, False]),
    "category of dates": ("category", pa.date32(), [DAY.date(), datetime.date(2019, 12, 31)]),
    "category of times": ("category", pa.timestamp("ms"), [DAY, DAY.replace(hour=5, microsecond=500_000)]),
    "category of durations": ("category", pa.duration("ms"), [datetime.timedelta(hours=1.5), datetime.timedelta(3)]),
    "category of clocks": ("category", pa.time64("us"), [datetime.time(1, 30), datetime.time(23, 5, 9)]),
    "category of digits": ("category", pa.string(), ["0101", "101", "7"]),
}


def table(name: str) -> pa.Table:
    """Return rows with a column ``c`` of the type, a number, an integer label and a target that depends on all."""
    _, kind, values = TYPES[name]
    random = np.random.default_rng(0)
    drawn = random.permutation(np.arange(N) % len(values))
    size = random.normal(size=N)
    label = (drawn + (size > 0)) % 2
    target = np.round(size + 3 * drawn, 6)
    column = pa.array([values[j] for j in drawn], kind)
    return pa.table({"c": column, "size": size, "label": label, "target": target})


def as_json(value: Any) -> Any:
    """Return a value as a JSON file has it: what JSON has no type for is text."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, datetime.timedelta):
        return str(pd.Timedelta(value))
    return value.isoformat() if hasattr(value, "isoformat") else value


def arrays(rows: pa.Table, texts: bool = False) -> dict[str, np.ndarray]:
    """Return columns as NumPy arrays; types that it lacks are texts, and so are dates if ``texts`` says so."""
    made = {}
    for name in rows.column_names:
        column, kind = rows.column(name), rows.column(name).type
        plain = pa.types.is_integer(kind) or pa.types.is_boolean(kind)
        if pa.types.is_floating(kind) or (plain and not column.null_count):
            made[name] = column.to_numpy()
        elif plain:
            made[name] = column.cast(pa.int64()).cast(pa.float64()).to_numpy()
        elif not texts and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            made[name] = column.cast(pa.timestamp("ms")).to_numpy()
        else:
            made[name] = np.array([to_text(value) for value in column.to_pylist()], dtype=str)
    return made


def to_text(value: Any) -> str:
    return "" if value is None else str(pd.Timedelta(value)) if isinstance(value, datetime.timedelta) else str(value)


def as_zarr(rows: pa.Table, path: Path) -> Path:
    group = zarr.create_group(path)
    for name, values in arrays(rows).items():
        group.create_array(
            name, shape=values.shape, chunks=(7,), dtype=str if values.dtype.kind == "U" else values.dtype,
            config={"write_empty_chunks": True},
        )[:] = values  # fmt: skip
    return path


def as_hdf5(rows: pa.Table, path: Path) -> Path:
    with h5py.File(path, "w") as file:
        for name, values in arrays(rows, texts=True).items():
            text = values.dtype.kind == "U"
            file.create_dataset(
                name, data=values.astype(object) if text else values, dtype=h5py.string_dtype() if text else None
            )
    return path


def pandas_of(rows: pa.Table) -> pd.DataFrame:
    return rows.to_pandas(date_as_object=True)


def saved(path: Path, write: Callable[[Path], Any]) -> Path:
    write(path)
    return path


MEMORY: dict[str, Callable[[pa.Table], Any]] = {
    "arrow": lambda rows: rows,
    "record batch": lambda rows: rows.combine_chunks().to_batches()[0],
    "pandas": pandas_of,
    "pandas of Arrow types": lambda rows: rows.to_pandas(types_mapper=pd.ArrowDtype),
    "pandas of objects": lambda rows: pandas_of(rows).astype({"c": object}),
    "polars": polars.from_arrow,
    "lazy": lambda rows: polars.from_arrow(rows).lazy(),  # type: ignore[union-attr]
    "records of NumPy": lambda rows: pandas_of(rows).to_records(index=False),
    "dict of columns": lambda rows: rows.to_pydict(),
    "list of dicts": lambda rows: rows.to_pylist(),
    "json": lambda rows: json.loads(json.dumps(rows.to_pylist(), default=as_json)),
    "json of texts": lambda rows: [{k: to_text(v) for k, v in row.items()} for row in rows.to_pylist()],
    "dask": lambda rows: dask.dataframe.from_pandas(rows.to_pandas(types_mapper=pd.ArrowDtype), npartitions=3),
}
FILES: dict[str, Callable[[pa.Table, Path], Path]] = {
    "csv": lambda rows, at: saved(at / "rows.csv", lambda path: pandas_of(rows).to_csv(path, index=False)),
    "csv of Arrow": lambda rows, at: saved(at / "arrow.csv", lambda path: pa.csv.write_csv(rows, path)),
    "parquet": lambda rows, at: saved(
        at / "rows.parquet", lambda path: pa.parquet.write_table(rows, path, row_group_size=7)
    ),
    "feather": lambda rows, at: saved(at / "rows.feather", lambda path: feather.write_feather(rows, path)),
    "zarr": lambda rows, at: as_zarr(rows, at / "rows.zarr"),
}
INGESTED: dict[str, Callable[[pa.Table, Path], Path]] = {
    "hdf5": lambda rows, at: as_hdf5(rows, at / "rows.h5"),
    "npz": lambda rows, at: saved(at / "rows.npz", lambda path: np.savez(path, **arrays(rows))),
}
"""Files that are read by ``ingest`` alone."""

DOORS = [*MEMORY, *FILES]


def trained(data: sk.Dataset) -> sk.KernelRegressor:
    return sk.KernelRegressor(**SETTINGS).fit(data)


LOST = {("category of durations", "csv of Arrow"), ("duration", "csv of Arrow")}
"""Doors that do not keep the values of a type: Arrow writes durations to CSV as numbers without their unit."""

GAPS = ["int64 with gaps", "float64 with gaps", "boolean with gaps"]
REFUSED = {(name, door) for name in GAPS for door in ("zarr", "hdf5", "npz")}
"""Doors whose arrays do not tell that values are missing: training says so, and how to fill them."""

pytestmark = pytest.mark.filterwarnings("ignore:column 'c' is text that looks like")


@functools.cache
def of_arrow(name: str) -> sk.KernelRegressor:
    """Return the model of a type that was trained through the first door."""
    return trained(opened(table(name), name))


def doors(name: str, folder: Path, turn: int | None = None) -> Iterator[tuple[str, Any]]:
    """Yield every door, or the third of them that has its turn with this type, with the rows of the type through it."""
    rows, first = table(name), list(TYPES).index(name)
    for number, door in enumerate(DOORS):
        if (name, door) not in LOST and (turn is None or (first + number) % 3 == turn):
            yield door, through(door, rows, folder)


def through(door: str, rows: pa.Table, folder: Path) -> Any:
    """Return rows through a door: a table in memory, or the path of a file."""
    if door in MEMORY:
        return MEMORY[door](rows)
    (folder / door).mkdir(parents=True, exist_ok=True)
    return FILES[door](rows, folder / door)


def opened(given: Any, name: str, target: str = "target") -> sk.Dataset:
    """Open rows as training data, with the kinds of the columns declared."""
    schema = {"c": TYPES[name][0], "size": "number"}
    if isinstance(given, Path):
        return sk.open_dataset(given, target, columns=["c", "size"], schema=schema)
    return sk.from_arrays(given, table(name).column(target).to_numpy(), schema=schema, columns=["c", "size"])


@pytest.fixture(scope="module", params=TYPES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def odd(name: str) -> bool:
    return bool(list(TYPES).index(name) % 2)


@pytest.mark.slow
def test_predict(tmp_path: Path, name: str) -> None:
    """A model, a ``Predictor`` and files of predictions answer alike for rows of every door."""
    model = of_arrow(name).model_
    if odd(name):
        model = trained(opened(through("csv", table(name), tmp_path / "training"), name)).model_
    predictor, expected = sk.Predictor(model), model.predict(table(name).select(["size", "c"]))
    assert np.ptp(expected) > 1
    for door, rows in doors(name, tmp_path):
        np.testing.assert_array_equal(model.predict(rows), expected, err_msg=door)
        if not isinstance(rows, Path):
            np.testing.assert_allclose(predictor(rows).predictions, expected, rtol=1e-5, atol=1e-5, err_msg=door)


@pytest.mark.slow
def test_fit(tmp_path: Path, name: str) -> None:
    """A model fitted to rows of any door predicts as that of the first door."""
    rows = table(name).select(["c", "size"])
    expected = of_arrow(name).predict(rows)
    for door, given in doors(name, tmp_path, 0):
        if (name, door) in REFUSED:
            with pytest.raises(sk.DataError, match=r'(?s)NaN.*sk\.Impute\("mean"\)'):
                trained(opened(given, name))
            continue
        found = trained(opened(given, name)).predict(rows)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=door)


@pytest.mark.slow
def test_evaluate_and_predict_files(tmp_path: Path, name: str) -> None:
    """A model's scores and files of predictions do not depend on the door."""
    model = of_arrow(name).model_
    expected = model.predict(table(name))
    error = np.mean((expected - table(name)["target"].to_numpy()) ** 2)
    for door, rows in doors(name, tmp_path, 1):
        if door in FILES:
            assert evaluate(model, rows, "target")["mse"] == pytest.approx(error, rel=1e-4), door
            made = predict(model, rows, tmp_path / f"{door}.csv")
            assert not made.unseen_categories
            found = pd.read_csv(made.path)["prediction"].to_numpy(dtype=expected.dtype)
            np.testing.assert_array_equal(found, expected, err_msg=door)


@pytest.mark.slow
def test_ingest(tmp_path: Path, name: str) -> None:
    """Rows that are ingested and trained on are those of the file that they came from."""
    rows = table(name)
    expected = of_arrow(name).predict(rows)
    ingested = [(door, INGESTED[door](rows, tmp_path)) for door in INGESTED]
    for door, given in [*doors(name, tmp_path, 2), *ingested]:
        if door not in MEMORY and (name, door) not in REFUSED:
            place, schema = tmp_path / f"from {door}.zarr", {"c": TYPES[name][0]}
            sk.ingest([given], place, target="target", columns=["c", "size"], schema=schema)
            found = trained(sk.open_dataset(place)).predict(rows)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4, err_msg=door)


@pytest.mark.slow
def test_run(tmp_path: Path, name: str) -> None:
    """A pipeline trained through one door and tested through another sees the same values."""
    pair = ("csv", "zarr") if odd(name) else ("parquet", "csv")
    train, test = (opened(through(door, table(name), tmp_path), name) for door in pair)
    pipeline = sk.Pipeline(
        train, test=test, centers=sk.Uniform(20), solver=sk.Direct(), kernel=sk.Laplace(2.0), task="regression",
        scaling="standard",
    )  # fmt: skip
    result = sk.run(pipeline, tmp_path / "run", memory="4GiB", threads=1)
    assert result["metrics"]["test"]["mse"] == pytest.approx(result["metrics"]["train"]["mse"], rel=1e-6)
    assert not result["unseen_categories"]
