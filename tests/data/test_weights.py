"""Sample weights: read beside the rows of any format, kept by everything that chooses rows, and counted in metrics."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from pyarrow import csv, feather
from sklearn.metrics import accuracy_score, mean_squared_error, r2_score

import streamkern as sk
from streamkern.data.row_order import Assembly, Scan, Stream
from streamkern.formats import ArraySource
from streamkern.sources.array_source import WeightedSource
from streamkern.testing.source import SourceSuite, read_all

N = 500
RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (N, 3)).astype(np.uint8)
Y = RNG.integers(0, 3, N)
W = RNG.integers(0, 4, N) / 2.0
TABLE = pa.table({"a": X[:, 0], "importance": W, "b": X[:, 1], "c": X[:, 2], "label": Y})


class TestWeightsInMemory(SourceSuite):
    facets: ClassVar[dict[str, Any]] = {"weight": "w", "from_memory": True}

    @pytest.fixture
    def stored(self, expected_X: np.ndarray, expected_y: np.ndarray) -> tuple[np.ndarray, ...]:
        return expected_X.copy(), expected_y, np.arange(101.0)

    @pytest.fixture
    def expected_w(self, stored: tuple[np.ndarray, ...]) -> np.ndarray:
        return stored[2].copy()

    @pytest.fixture
    def reopen(self, stored: tuple[np.ndarray, ...]) -> Any:
        def opened() -> WeightedSource:
            X, y, w = stored
            return WeightedSource(ArraySource(X, y, chunk_rows=30), w, "w")

        return opened

    @pytest.fixture
    def change(self, stored: tuple[np.ndarray, ...]) -> Any:
        def changed() -> None:
            stored[2][50] += 1.0

        return changed


def written(folder: Path, kind: str) -> Any:
    """The table in a format."""
    path = folder / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(TABLE, path, row_group_size=70)
    elif kind == "zarr":
        group = zarr.open_group(path, mode="w")
        for name, values, rows in (("X", X, 60), ("label", Y, 60), ("importance", W, N)):
            group.create_array(name, data=values, chunks=(rows, *values.shape[1:]))
    elif kind == "csv":
        csv.write_csv(TABLE, path)
    elif kind == "feather":
        feather.write_feather(TABLE, str(path), chunksize=90, compression="uncompressed")
    elif kind == "npz":
        np.savez(path, X=X, label=Y, importance=W)
    else:
        return TABLE
    return path


@pytest.mark.parametrize("format", ["zarr", "parquet"])
@pytest.mark.parametrize("kind", ["parquet", "zarr", "csv", "feather", "npz", "frame"])
def test_weights_stay_with_their_rows_through_ingest(tmp_path: Path, kind: str, format: str) -> None:
    source = written(tmp_path, kind)
    sk.ingest([source, source], tmp_path / "made", target="label", weight="importance", format=format, shuffle=True)
    data = sk.open_dataset(tmp_path / "made")
    rows = read_all(data.source)
    assert (data.weighted, data.n_features) == (True, 3)

    def ordered(X: np.ndarray, y: np.ndarray, w: np.ndarray) -> np.ndarray:
        table = np.column_stack([X, y, w])
        return table[np.lexsort(table.T)]

    np.testing.assert_array_equal(ordered(*rows), np.repeat(ordered(X, Y, W), 2, axis=0))
    assert not np.array_equal(rows.X, np.concatenate([X, X]))
    assert sk.inspect(tmp_path / "made").facts["rows"] == 2 * N


def test_triples_in_memory_are_ingested_with_their_weights(tmp_path: Path) -> None:
    sk.ingest((X, Y, W), tmp_path / "made.zarr", target="weight")
    source = sk.open_dataset(tmp_path / "made.zarr").source
    assert (source.weight, source.target.name) == ("sample_weight", "weight")
    np.testing.assert_array_equal(read_all(source).w, W)


def test_whatever_chooses_rows_keeps_their_weights() -> None:
    data = sk.from_arrays(X, Y, sample_weight=W)
    assert len(data) == np.count_nonzero(W)
    parts = [*data.split(test=0.3), data.sample(50), data.sample(50, stratify=True), data.sample(50, weights=W)]
    parts.append(data.augment(sk.augment.GaussianNoise(0.1), copies=2))
    for part in parts:
        scan = Scan(Assembly(part, mean_weight=2.0), 64)
        blocks = [scan.block((i,)) for i in range(len(scan))]
        assert sum(len(block.ids) for block in blocks) == len(part)
        for block in blocks:
            np.testing.assert_array_equal(block.w, W[block.ids] / 2.0)
    stream = Stream(Assembly(parts[-1]), lanes=2, block_rows=32)
    for step in range(stream.steps):
        block = stream.block((0, step % 2, step))
        np.testing.assert_array_equal(block.w, W[block.ids])


def test_bad_weights_are_told(tmp_path: Path) -> None:
    with pytest.raises(sk.DataError, match=r"row 7, weight 'sample_weight'"):
        sk.KernelRegressor().fit(sk.from_arrays(X, Y, sample_weight=np.where(np.arange(N) == 7, -1.0, W)))
    with pytest.raises(sk.DataError, match="the weight is nan"):
        sk.KernelRegressor().fit(sk.from_arrays(X, Y, sample_weight=np.where(np.arange(N) == 7, np.nan, W)))
    with pytest.raises(sk.DataError, match=r"shape \(499,\)"):
        sk.from_arrays(X, Y, sample_weight=W[1:])
    with pytest.raises(sk.DataError, match="Every sample weight is 0"):
        sk.KernelRegressor().fit(sk.Dataset(sk.from_arrays(X, Y, sample_weight=0 * W).source))
    with pytest.raises(sk.DataError, match="'weihgt' is not there"):
        sk.open_dataset(written(tmp_path, "parquet"), target="label", weight="weihgt")
    with pytest.raises(sk.UsageError, match="a feature and as the weight"):
        sk.open_dataset(written(tmp_path, "parquet"), target="label", weight="a", columns=["a", "b"])
    with pytest.raises(sk.UsageError, match="MixUp"):
        sk.from_arrays(X, Y, sample_weight=W).augment(sk.augment.MixUp(1.0))
    with pytest.raises(sk.UsageError, match="both given"):
        sk.KernelRegressor().fit(sk.from_arrays(X, Y), sample_weight=W)


def regressor(**changes: Any) -> sk.KernelRegressor:
    return sk.KernelRegressor(sk.Gaussian(2.0), solver=sk.Direct(1e-2), scaling="standard", **changes)


def test_whole_weights_count_as_repeated_rows_and_zero_as_none() -> None:
    rng = np.random.default_rng(1)
    rows, y = rng.normal(size=(200, 3)), rng.normal(size=200)
    w = rng.integers(0, 4, 200)
    weighted = regressor().fit(rows, y, sample_weight=2.5 * w)
    repeated = regressor().fit(np.repeat(rows, w, axis=0), np.repeat(y, w))
    plain = regressor().fit(rows, y)
    # Repeated rows are repeated centers, whose normal equations are singular: rounding is 1e5 times larger there.
    np.testing.assert_allclose(weighted.predict(rows), repeated.predict(rows), rtol=0, atol=1e-5)
    assert np.abs(plain.predict(rows) - weighted.predict(rows)).max() > 0.05
    for make in (regressor, sk.KernelRegressor):
        kept = make().fit(rows[w > 0], y[w > 0], sample_weight=w[w > 0])
        without = make().fit(rows, y, sample_weight=w)
        np.testing.assert_array_equal(kept.predict(rows), without.predict(rows))


def test_metrics_are_weighted(tmp_path: Path) -> None:
    w = W + 0.5
    values = RNG.normal(size=N)
    data = sk.from_arrays(X, values, sample_weight=w)
    model = regressor(dtype="float64").fit(X, values, sample_weight=w)
    streamed = regressor(dtype="float64").fit(data)
    np.testing.assert_allclose(streamed.predict(X), model.predict(X), rtol=0, atol=1e-9)
    expected = r2_score(values, model.predict(X), sample_weight=w)
    assert model.score(data) == pytest.approx(expected)
    assert model.score(X, values, w) == pytest.approx(expected)
    mse = mean_squared_error(values, model.predict(X), sample_weight=w)
    assert model.model_.score(data)["mse"] == pytest.approx(mse)
    classes = sk.KernelClassifier(solver=sk.Direct(1e-2)).fit(X, Y, sample_weight=w)
    expected = accuracy_score(Y, classes.predict(X), sample_weight=w)
    assert expected != pytest.approx(accuracy_score(Y, classes.predict(X)), abs=1e-3)
    assert classes.score(sk.from_arrays(X, Y, sample_weight=w)) == pytest.approx(expected)
