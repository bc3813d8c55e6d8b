"""Files of kindred types are one column of the wider type, in a folder as in a list."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import streamkern as sk

DAY = datetime.datetime(2026, 3, 14, 15, 9)
NULLS = pa.nulls(2)
WHOLE, FRACTIONS = pa.array([1, 2]), pa.array([1.5, None])
WORDS = pa.array(["x", "y"])
TIMES = pa.array([DAY, None], pa.timestamp("us"))
PAIRS: dict[str, tuple[Any, Any]] = {
    "nulls and text": (NULLS, WORDS),
    "nulls and whole numbers": (NULLS, WHOLE),
    "nulls and flags": (NULLS, pa.array([True, False])),
    "nulls and times": (NULLS, TIMES),
    "text and large text": (WORDS, pa.array(["x", "z"], pa.large_string())),
    "text and categories": (WORDS, pa.array(["z", "x"]).dictionary_encode()),
    "whole numbers and fractions": (WHOLE, FRACTIONS),
    "whole numbers of two widths": (pa.array([1, 2], pa.int8()), pa.array([1, 3])),
    "whole numbers with and without a sign": (pa.array([1, 2], pa.uint32()), pa.array([-1, 2])),
    "floats of two widths": (pa.array([1, 2], pa.float32()), pa.array([0.1, 0.2])),
    "times of two units": (TIMES.cast(pa.timestamp("ms")), TIMES),
    "dates and times": (pa.array([DAY.date(), None]), TIMES),
    "durations of two units": (pa.array([1, 2], pa.duration("s")), pa.array([1, 2], pa.duration("ms"))),
    "decimals of two scales": (pa.array([decimal.Decimal("1.5")] * 2), pa.array([decimal.Decimal("0.25")] * 2)),
    "decimals and fractions": (pa.array([decimal.Decimal("1.5")] * 2), FRACTIONS),
}


def written(folder: Path, *columns: Any) -> list[Path]:
    folder.mkdir()
    paths = [folder / f"{number}.parquet" for number in range(len(columns))]
    for path, column in zip(paths, columns, strict=True):
        pq.write_table(pa.table({"a": [1.0, 2.0], "c": column, "y": [0, 1]}), path)
    return paths


def rows(source: Any) -> list[float]:
    return [x for chunk in range(len(source.bounds) - 1) for x in source.read(chunk).X[:, 1].tolist()]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("pair", PAIRS)
def test_kindred_types_in_one_folder_are_one_column(tmp_path: Path, pair: str, first: int):
    one, other = PAIRS[pair][:: 1 - 2 * first]
    written(tmp_path / "both", one, other)
    source = sk.open_dataset(tmp_path / "both", "y").source
    schema = {column.name: column.kind for column in source.schema.columns}
    alone = {"text": "category", "times": "datetime", "flags": "boolean"}
    assert schema["c"] == next((kind for word, kind in alone.items() if word in pair), "number")
    want: list[float] = []
    for name, column in (("one", one), ("other", other)):
        (path,) = written(tmp_path / name, column)
        kinds = None if column is NULLS else {"c": schema["c"]}
        want += [np.nan] * 2 if column is NULLS else rows(sk.open_dataset(path, "y", schema=kinds).source)
    np.testing.assert_array_equal(rows(source), want)
    model = sk.KernelRegressor(kernel=sk.Laplace(1.0), centers=4, solver=sk.Direct(1e-3))
    model.fit(sk.open_dataset(tmp_path / "both", "y"))
    assert np.isfinite(model.predict(sk.open_dataset(tmp_path / "both", "y"))).all()
    assert sk.ingest(tmp_path / "both", tmp_path / "both.zarr", target="y").rows == 4


@pytest.mark.parametrize(
    ("pair", "want"),
    [
        ((WHOLE, pa.array([1.5, 2.5])), [1.0, 2.0, 1.5, 2.5]),
        ((pa.array([1.5, 2.5]), WHOLE), [1.5, 2.5, 1.0, 2.0]),
        ((WORDS, WORDS.dictionary_encode()), ["x", "y", "x", "y"]),
        ((pa.array([1, 2], pa.int8()), pa.array([300, 4])), [1, 2, 300, 4]),
    ],
)
def test_targets_of_kindred_types_are_of_the_wider(tmp_path: Path, pair: Any, want: list[Any]):
    written(tmp_path / "both", *pair)
    source = sk.open_dataset(tmp_path / "both", "c", columns=["a"]).source
    found = [source.read(chunk).y for chunk in range(2)]
    assert [label for part in found for label in part.tolist()] == want
    assert {part.dtype for part in found} == {source.target.dtype}


@pytest.mark.parametrize("pair", [(WHOLE, WORDS), (pa.array([True, False]), WHOLE), (WORDS, TIMES)])
def test_types_of_other_kinds_are_one_error_that_names_both_files(tmp_path: Path, pair: Any):
    written(tmp_path / "both", *pair)
    with pytest.raises(sk.DataError, match=r"column 'c' is (.|\n)*1\.parquet and (.|\n)*0\.parquet"):
        sk.open_dataset(tmp_path / "both", "y")
