"""What a user hands over as data, beside a path and an array: lists of paths, LazyFrames, sparse rows, long keys."""

import gc
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse

import streamkern as sk
from streamkern.serving.predict_files import evaluate
from streamkern.serving.predictor import Predictor

N = 40
LIKE: dict[str, Any] = {"kernel": sk.Laplace(2.0), "centers": sk.Uniform(20), "solver": sk.Direct(1e-3)}


def frame() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({"a": rng.normal(size=N), "c": ["u", "v"] * (N // 2), "y": rng.normal(size=N)})


@pytest.fixture(scope="module")
def model() -> sk.KernelMachine:
    return sk.KernelRegressor(**LIKE).fit(frame()[["a", "c"]], frame().y).model_


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """The rows in two files, whose order is not that of their names."""
    frame()[:15].to_csv(tmp_path / "z.csv", index=False)
    frame()[15:].to_parquet(tmp_path / "b.parquet", index=False)
    return [tmp_path / "z.csv", tmp_path / "b.parquet"]


def predictions(place: Path) -> list[float]:
    return pd.read_parquet(place).prediction.to_list()


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_paths_is_a_data_set_on_every_door(model, paths, tmp_path, kind):
    given, want = kind(paths), frame()
    data = sk.open_dataset(given, "y")
    np.testing.assert_array_equal(
        np.concatenate([data.source.read(chunk).y for chunk in range(2)]), want.y.to_numpy(), strict=True
    )
    sk.predict(model, given, tmp_path / "out.parquet", id="c")
    np.testing.assert_allclose(predictions(tmp_path / "out.parquet"), model.predict(want[["a", "c"]]), rtol=1e-12)
    assert evaluate(model, given, "y")["n"] == N
    assert sk.ingest(given, tmp_path / "all.zarr", target="y").rows == N
    assert sk.ingest([str(path) for path in given], tmp_path / "all.zarr", target="y").kept == N


def test_a_lazy_frame_is_the_rows_it_computes_on_every_door(model, tmp_path):
    want, lazy = frame(), pl.from_pandas(frame()).lazy()
    X = lazy.select("c", "a").filter(pl.col("a").is_not_null())
    expected = model.predict(want[["a", "c"]])
    fitted = sk.KernelRegressor(**LIKE).fit(X.select("a", "c"), want.y)
    np.testing.assert_allclose(fitted.predict(X), expected, rtol=1e-4)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-12)
    np.testing.assert_allclose(Predictor(model)(X).predictions, expected, rtol=1e-12)
    sk.predict(model, lazy, tmp_path / "out.parquet")
    np.testing.assert_allclose(predictions(tmp_path / "out.parquet"), expected, rtol=1e-12)
    assert evaluate(model, lazy, "y")["n"] == sk.ingest(lazy, tmp_path / "l.zarr", target="y").rows == N
    assert len(sk.from_arrays(X, want.y)) == len(sk.open_dataset(lazy, "y")) == N
    keeping = sk.KernelRegressor(kernel=sk.Laplace(2.0), centers=sk.Uniform(20), solver=sk.Direct(1e-3))
    assert keeping.partial_fit(X, want.y).partial_fit(X, want.y).result_.report["updates"]


def test_a_lazy_frame_is_read_in_batches_from_a_file_that_goes_with_its_source(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data = sk.open_dataset(pl.LazyFrame({"a": np.arange(2_000_000), "y": np.arange(2_000_000) % 7}), "y")
    assert len(data.source.bounds) > 5
    again = pickle.loads(pickle.dumps(data.source))
    np.testing.assert_array_equal(again.read(2).X, data.source.read(2).X)
    del again
    gc.collect()
    assert len(list(tmp_path.iterdir())) == 1
    del data
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_a_lazy_frame_that_cannot_be_computed_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    lazy = pl.LazyFrame({"a": ["x"]}).select(pl.col("a").cast(pl.Int64))
    with pytest.raises(sk.errors.StorageError, match="computing the LazyFrame failed"):
        sk.open_dataset(lazy)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [scipy.sparse.csr_matrix, scipy.sparse.coo_array])
def test_sparse_rows_are_one_error_on_every_door(model, tmp_path, make):
    X, y = make(np.eye(N, 2)), np.arange(N)
    for work in (
        lambda: sk.KernelRegressor(**LIKE).fit(X, y),
        lambda: sk.KernelRegressor(**LIKE).partial_fit(X, y),
        lambda: sk.KernelRegressor(**LIKE).fit(np.eye(N, 2), y).predict(X),
        lambda: model.predict(X),
        lambda: Predictor(model)(X),
        lambda: sk.from_arrays(X, y),
        lambda: sk.open_dataset(X),
        lambda: sk.ingest([(X, y)], tmp_path / "out.zarr"),
        lambda: sk.predict(model, X, tmp_path / "out.parquet"),
    ):
        with pytest.raises(sk.DataError, match=r"X is sparse(.|\n)*toarray"):
            work()


def test_sparse_targets_and_weights_are_named():
    X, sparse = frame()[["a", "c"]], scipy.sparse.csr_matrix(np.ones((N, 1)))
    fit = sk.KernelRegressor(**LIKE).fit
    for name, work in (
        ("y", lambda: fit(X, sparse)),
        ("y", lambda: sk.from_arrays(X, sparse)),
        ("sample_weight", lambda: fit(X, frame().y, sample_weight=sparse)),
        ("sample_weight", lambda: sk.from_arrays(X, frame().y, sample_weight=sparse)),
    ):
        with pytest.raises(sk.DataError, match=rf"{name} is sparse(.|\n)*{name}\.toarray"):
            work()


def test_a_path_is_a_data_set_where_rows_are_read_and_refused_where_they_are_served(model, paths):
    want = np.tile(model.predict(frame()[["a", "c"]]), 2)
    fitted = sk.KernelRegressor(**LIKE).fit(frame()[["a", "c"]], frame().y)
    for given in ([*paths, *paths], tuple(map(str, [*paths, *paths]))):
        np.testing.assert_array_equal(model.predict(given), want)
        np.testing.assert_allclose(fitted.predict(given), want, rtol=1e-4)
    serve = Predictor(model)
    for given in (paths[0], str(paths[0]), paths, ["text"]):
        for work in (serve, serve.predict_interval, serve.unseen_categories):
            with pytest.raises(sk.DataError, match=r"This is a path, or a text(.|\n)*predict\(path\)"):
                work(given)
        with pytest.raises(sk.UsageError, match=r"X is a path(.|\n)*sk\.open_dataset\(path, target\)"):
            fitted.fit(given, frame().y)


def test_a_list_of_tables_and_paths_is_a_data_set(paths):
    data = sk.open_dataset([frame(), pl.from_pandas(frame()), paths[0]], "y")
    assert len(data) == 2 * N + 15
    assert len(sk.open_dataset(frame().to_dict("records"), "y")) == N


def test_a_frame_in_groups_is_no_frame(model):
    with pytest.raises(sk.DataError, match="These are not rows of a table"):
        model.predict(frame().groupby("c"))


def test_a_dask_frame_that_dask_cannot_describe_is_one_error(model):
    import dask.dataframe

    rows = frame().assign(c=pd.arrays.IntervalArray(pd.cut(frame().a, 3)))
    with pytest.raises(sk.errors.StorageError, match="computing the frame failed"):
        model.predict(dask.dataframe.from_pandas(rows, npartitions=2))


@pytest.mark.parametrize(
    "target",
    [
        pd.Series(pd.period_range("2026-01", periods=N, freq="M")),
        pd.cut(pd.Series(np.arange(N)), 4),
        pd.Series(pd.interval_range(0, periods=N)),
    ],
)
@pytest.mark.parametrize("kind", [sk.KernelRegressor, sk.KernelClassifier])
def test_a_target_of_periods_or_intervals_is_one_error_with_the_conversion(kind, target):
    with pytest.raises(sk.DataError, match=r"(?s)neither a number nor text: (Period|Interval).*row 0.*str\(value\)"):
        kind(**LIKE).fit(frame()[["a"]], target)


def test_a_number_beyond_float64_is_refused_with_its_column(model):
    rows = [{"a": 10**400 if i == 3 else i, "c": "u"} for i in range(N)]
    for work in (lambda: sk.KernelRegressor(**LIKE).fit(rows, np.arange(N)), lambda: model.predict(rows)):
        with pytest.raises(sk.DataError, match="column 'a': float64 cannot represent 1000"):
            work()


def test_keys_of_twenty_digits_are_read_as_they_are_or_refused_by_name(model, tmp_path):
    keys = [10**20 + i // 20 for i in range(N)]
    for key, part in frame().groupby(keys):
        (tmp_path / "hive" / f"k={key}").mkdir(parents=True)
        part.to_parquet(tmp_path / "hive" / f"k={key}" / "rows.parquet", index=False)
    data = sk.open_dataset(tmp_path / "hive", "k", columns=["a", "c"])
    with pytest.raises(sk.DataError, match=r"column 'k' is 100000000000000000000, which(.|\n)*row 0 of the dataset"):
        data.source.read(0)
    frame().assign(k=keys).to_csv(tmp_path / "rows.csv", index=False)
    sk.predict(model, tmp_path / "rows.csv", tmp_path / "out.parquet", id="k")
    assert pd.read_parquet(tmp_path / "out.parquet").k.to_list() == list(map(str, keys))
    with pytest.raises(
        sk.DataError, match=r"number 100000000000000000000 of the target has too many(.|\n)*str\(value\)"
    ):
        sk.KernelClassifier(**LIKE).fit(frame()[["a"]], keys)
