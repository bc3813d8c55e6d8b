"""Columns of text as categories: numbers stand for them wherever they are read, and OneHot or Ordinal encodes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv

import streamkern as sk
from streamkern.sources.schema import number_of
from streamkern.testing.source import read_all

N = 240
RNG = np.random.default_rng(0)
COLOURS = np.array(["red", "green", "blue", 'ré, "d"'])
COLOUR = COLOURS[RNG.integers(0, 4, N)]
SIZE = RNG.normal(size=N).astype(np.float32)
LABEL = np.where((COLOUR == "red") ^ (SIZE > 0), "yes", "no")
TABLE = pa.table({"colour": COLOUR, "size": SIZE, "note": ["-"] * N, "label": LABEL})
FEATURES = ["colour", "size"]


def written(folder: Path, kind: str, table: pa.Table = TABLE) -> Path:
    path = folder / f"rows.{kind}"
    if kind == "csv":
        csv.write_csv(table, path)
    elif kind == "dictionary.parquet":
        pq.write_table(table.set_column(0, "colour", table["colour"].dictionary_encode()), path, row_group_size=50)
    else:
        pq.write_table(table, path, row_group_size=50)
    return path


def model(step: Any = None) -> sk.KernelClassifier:
    steps = (step or sk.OneHot(("colour",)),)
    return sk.KernelClassifier(
        sk.Gaussian(1.0), centers=sk.Uniform(100), preprocess=steps, solver=sk.Direct(1e-4), dtype="float64"
    )


def test_text_that_is_named_is_read_as_numbers_that_stand_for_it(tmp_path: Path) -> None:
    expected = np.column_stack([[number_of(text) for text in COLOUR], SIZE.astype(np.float64)])
    assert len(np.unique(expected[:, 0])) == 4
    assert np.all(expected[:, 0] == np.floor(expected[:, 0]))
    for kind in ("parquet", "dictionary.parquet"):
        source = sk.open_dataset(written(tmp_path, kind), "label", columns=FEATURES).source
        np.testing.assert_array_equal(read_all(source).X, expected)
    for kind in ("parquet", "csv"):
        for format in ("zarr", "parquet"):
            out = tmp_path / f"{kind}.{format}"
            sk.ingest(written(tmp_path, kind), out, target="label", columns=FEATURES, format=format)
            source = sk.open_dataset(out).source
            assert source.text == ("colour",)
            np.testing.assert_allclose(read_all(source).X, expected, rtol=1e-6)
            np.testing.assert_array_equal(read_all(source).X[:, 0], expected[:, 0])


def test_it_is_encoded_in_training_and_in_prediction(tmp_path: Path) -> None:
    place = written(tmp_path, "parquet")
    fitted = model().fit(sk.open_dataset(place, "label", columns=FEATURES))
    indicators = np.column_stack([*(each == COLOUR for each in np.unique(COLOUR)), SIZE]).astype(np.float64)
    plain = sk.KernelClassifier(sk.Gaussian(1.0), centers=sk.Uniform(100), solver=sk.Direct(1e-4), dtype="float64")
    by_hand = plain.fit(indicators, LABEL).model_.decision_function(indicators)
    np.testing.assert_allclose(fitted.model_.decision_function(place), by_hand, rtol=0, atol=1e-4)
    fitted.save(tmp_path / "model.zarr")
    loaded = sk.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.predict(place), fitted.predict(place))
    assert np.mean(loaded.predict(place) == LABEL) > 0.95
    sk.ingest(written(tmp_path, "csv"), tmp_path / "made.zarr", target="label", columns=FEATURES)
    np.testing.assert_array_equal(loaded.predict(tmp_path / "made.zarr"), fitted.predict(place))


def test_a_category_that_is_new_and_text_that_is_not_encoded_are_told(tmp_path: Path) -> None:
    data = sk.open_dataset(written(tmp_path, "parquet"), "label", columns=FEATURES)
    with pytest.raises(sk.UsageError, match="'colour' is text"):
        model(sk.Standardise()).fit(data)
    for unknown in ("error", "ignore"):
        fitted = model(sk.OneHot((0,), unknown=unknown)).fit(data)
        other = TABLE.set_column(0, "colour", pa.array(["violet"] * N))
        place = tmp_path / "other.parquet"
        pq.write_table(other, place)
        if unknown == "ignore":
            with pytest.warns(UserWarning, match=r"100.0% of the rows have a category of 'colour'"):
                assert len(fitted.predict(place)) == N
        else:
            with pytest.raises(sk.DataError, match="'violet' of column 'colour' was not among the categories"):
                fitted.predict(place)
    assert sk.open_dataset(written(tmp_path, "parquet"), "label").source.text == ("colour", "note")
    with pytest.raises(sk.UsageError, match="contains text"):
        sk.ingest(written(tmp_path, "csv"), tmp_path / "out.zarr", target="label", columns=FEATURES, dtype="float32")
