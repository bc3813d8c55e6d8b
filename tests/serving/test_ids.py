"""Ids beside predictions: any column of the rows, whatever its name, also one that is a feature."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

import streamkern as sk
from tests.tables import save

NAMES = ("scores", "probabilities", "interval", "score_p", "lower", "prediction_0", "prediction")
FORMATS = ("parquet", "csv", "zarr")
N = 60
TEXTS, NUMBERS = [f"k{i}" for i in range(N)], list(range(7, 7 + N))
OUTPUTS = {"classes": ["scores", "probabilities"], "values": ["interval"], "two values": ["interval"]}


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=N), "b": rng.normal(size=N), "c": ["u", "v"] * (N // 2), "d": range(N)})


@pytest.fixture(scope="module")
def models() -> dict[str, sk.KernelMachine]:
    X, like = rows(), {"kernel": sk.Laplace(2.0), "centers": sk.Uniform(20), "solver": sk.Direct(1e-3)}
    classes = sk.KernelClassifier(**like).fit(X, np.where(X.a > 0, "p", "q"))
    values = sk.KernelRegressor(**like).fit(X, X.a)
    return {
        "classes": classes.model_,
        "values": values.model_,
        "two values": sk.KernelRegressor(**like).fit(X, np.stack([X.a, X.b], axis=1)).model_,
    }


def read(place: Path, name: str) -> list[Any]:
    if place.suffix == ".zarr":
        return np.asarray(zarr.open_group(place, mode="r")[name][:]).tolist()
    return (pd.read_parquet if place.suffix == ".parquet" else pd.read_csv)(place)[name].to_list()


@pytest.mark.parametrize(("format", "ids"), [("parquet", TEXTS), ("csv", NUMBERS), ("zarr", TEXTS), ("zarr", NUMBERS)])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", OUTPUTS)
def test_an_id_has_any_name_that_no_written_column_has(models, tmp_path: Path, task, name, ids, format):
    data = rows().assign(**{name: ids})
    for output in [None, *OUTPUTS[task]]:
        place = tmp_path / f"{output}.{format}"
        asked = {} if output is None else {output: 0.9 if output == "interval" else True}
        written = sk.predict(models[task], data, tmp_path / f"without-{output}.{format}", **asked)
        if format == "zarr":
            taken = {key for key, _ in zarr.open_group(written.path, mode="r").arrays()}
        else:
            taken = {*written.columns}
        if name in taken:
            with pytest.raises(sk.UsageError, match=f"both called '{name}'"):
                sk.predict(models[task], data, place, id=name, **asked)
            assert not place.exists()
        else:
            assert sk.predict(models[task], data, place, id=name, **asked).columns[0] == name
            assert read(place, name) == ids


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("door", ["csv", "parquet", "feather", "frame", "dict"])
def test_an_id_that_is_also_a_feature_is_copied(models, tmp_path: Path, door: str, format: str):
    frame = rows()
    data = {"frame": frame, "dict": frame.to_dict("list")}.get(door)
    data = save(frame, tmp_path / f"rows.{door}") if data is None else data
    want = sk.predict(models["values"], frame, tmp_path / "want.parquet")
    for name in ("c", "d"):
        place = tmp_path / f"{name}.{format}"
        sk.predict(models["values"], data, place, id=name)
        assert read(place, name) == frame[name].to_list()
        np.testing.assert_allclose(read(place, "prediction"), read(Path(want.path), "prediction"), rtol=1e-6)


def test_a_gap_in_an_id_that_is_a_feature_is_one_error(models, tmp_path: Path):
    frame = rows()
    frame.loc[3, "c"] = None
    sk.predict(models["values"], frame, tmp_path / "out.parquet")
    with pytest.raises(sk.DataError, match="column 'c' is null") as found:
        sk.predict(models["values"], frame, tmp_path / "out.zarr", id="c")
    assert "leave the id out" in str(found.value)


def test_an_id_within_the_numbers_of_ingested_rows_is_explained(models, tmp_path: Path):
    sk.ingest(rows(), tmp_path / "rows.zarr")
    with pytest.raises(sk.DataError, match="'c' is stored among the numbers of the features"):
        sk.predict(models["values"], tmp_path / "rows.zarr", tmp_path / "out.parquet", id="c")


@pytest.mark.parametrize("name", ["a/b", ".hidden", "__x", "zarr.json"])
def test_names_that_zarr_cannot_store_are_refused_by_zarr_alone(models, tmp_path: Path, name: str):
    data = rows().assign(**{name: range(N)})
    with pytest.raises(sk.UsageError, match="An array of zarr cannot be called"):
        sk.predict(models["values"], data, tmp_path / "out.zarr", id=name)
    sk.predict(models["values"], data, tmp_path / "out.csv", id=name)
    assert read(tmp_path / "out.csv", name) == list(range(N))
