"""Any chunking, row-group size and format gives the same rows at the same numbers."""

import tempfile
from pathlib import Path

import dask.array as da
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Stream
from streamkern.data.targets import Continuous
from streamkern.formats import ArraySource
from streamkern.formats.dask_source import DaskArraySource
from streamkern.formats.open_tables import open_tables
from streamkern.formats.parquet import write_parquet
from streamkern.formats.training_zarr import write_zarr
from streamkern.testing.source import read_all

shapes = st.tuples(st.integers(0, 40), st.integers(1, 5))
dtypes = st.sampled_from(["?", "u1", "i4", "i8", "f2", "f4", "f8"])
rows = st.builds(
    lambda shape, dtype, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
    shapes,
    dtypes,
    st.integers(0, 1000),
)


def every_format(folder: Path, X, y, size: int, cut: int):
    """The same rows through every door."""
    yield ArraySource(X, y, chunk_rows=size)
    yield DaskArraySource(da.from_array(X, chunks=(size, cut)), da.from_array(y, chunks=cut))
    write_zarr(folder / "a.zarr", X, y, chunk_rows=size)
    yield open_tables(folder / "a.zarr")
    blocks = [(X[a : a + cut], y[a : a + cut]) for a in range(0, max(1, len(X)), cut)]
    write_zarr(folder / "b.zarr", iter(blocks), n_rows=len(X), chunk_rows=size)
    yield open_tables(folder / "b.zarr")
    group = zarr.create_group(str(folder / "c.zarr"), zarr_format=2)
    group.create_array("X", shape=X.shape, chunks=(size, cut), dtype=X.dtype, config={"write_empty_chunks": True})[
        :
    ] = X
    group.create_array("target", shape=y.shape, chunks=cut, dtype=y.dtype, config={"write_empty_chunks": True})[:] = y
    yield open_tables(folder / "c.zarr", target="target")
    sharded = zarr.create_group(str(folder / "d.zarr"))
    options = {"shards": (size * 3, X.shape[1]), "chunks": (size, X.shape[1]), "config": {"write_empty_chunks": True}}
    sharded.create_array("X", shape=X.shape, dtype=X.dtype, **options)[:] = X
    sharded.create_array("target", shape=y.shape, chunks=cut, dtype=y.dtype, config={"write_empty_chunks": True})[:] = y
    yield open_tables(folder / "d.zarr", target="target")
    write_parquet(folder / "e.parquet", X, y, row_group_rows=size)
    yield open_tables(folder / "e.parquet")
    names = [f"c{j}" for j in range(X.shape[1])]
    (folder / "f").mkdir()
    for part, start in enumerate(range(0, max(1, len(X)), cut * 4)):
        piece = slice(start, start + cut * 4)
        table = pa.table({**dict(zip(names, X[piece].T, strict=True)), "target": y[piece]})
        pq.write_table(table, folder / "f" / f"{part}.parquet", row_group_size=size)
    yield open_tables(folder / "f", target="target")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(X.ravel()), X.shape[1])
    pq.write_table(pa.table({"x": lists, "target": y}), folder / "g.parquet", row_group_size=size)
    yield open_tables(folder / "g.parquet", target="target")
    pq.write_table(
        pa.table({"x": lists.cast(pa.list_(lists.type.value_type)), "target": y}),
        folder / "h.parquet",
        row_group_size=size,
    )
    if len(X):  # lists of no rows have no width
        yield open_tables(folder / "h.parquet", target="target")


@pytest.mark.slow
@settings(max_examples=25)
@given(X=rows, size=st.integers(1, 12), cut=st.integers(1, 7))
def test_every_format_and_chunking_gives_the_same_rows(X, size, cut):
    y = np.arange(len(X)) * 3
    with tempfile.TemporaryDirectory() as folder:
        for source in every_format(Path(folder), X, y, size, cut):
            found = read_all(source)
            assert source.dtype == X.dtype
            np.testing.assert_array_equal(found.X, X)
            np.testing.assert_array_equal(found.y, y)


@pytest.mark.slow
@settings(max_examples=8)
@given(
    n=st.integers(1, 40),
    size=st.integers(1, 12),
    cut=st.integers(1, 7),
    lanes=st.integers(1, 5),
    block=st.integers(1, 9),
    window=st.integers(1, 4),
    copies=st.integers(1, 2),
)
def test_every_format_streams_each_row_once_a_pass(n, size, cut, lanes, block, window, copies):
    X = np.arange(n * 3, dtype=np.float32).reshape(n, 3)
    with tempfile.TemporaryDirectory() as folder:
        for source in every_format(Path(folder), X, np.arange(n) * 3, size, cut):
            data = Dataset(source).augment(copies=copies)
            stream = Stream(Assembly(data, Continuous(np.zeros(1))), lanes, block, window, cache_bytes=100)
            for pass_ in (0, 1):
                blocks = [stream.block((pass_, lane, step)) for step in range(stream.steps) for lane in range(lanes)]
                ids = np.concatenate([made.ids for made in blocks])
                np.testing.assert_array_equal(np.sort(ids), np.repeat(np.arange(n), copies))
                np.testing.assert_array_equal(np.concatenate([made.X for made in blocks]), X[ids])
                np.testing.assert_array_equal(np.concatenate([made.y for made in blocks])[:, 0], 3 * ids)


@pytest.mark.slow
@settings(max_examples=20)
@given(
    text=hnp.arrays(
        object, st.integers(1, 30), elements=st.text(st.characters(codec="utf-8", exclude_characters="\0"))
    ),
    size=st.integers(1, 12),
)
def test_text_targets_come_back_as_they_were(text, size):
    X = np.ones((len(text), 2), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        write_zarr(Path(folder) / "a.zarr", X, text, chunk_rows=size)
        write_parquet(Path(folder) / "a.parquet", X, text, row_group_rows=size)
        for name in ("a.zarr", "a.parquet"):
            assert read_all(open_tables(Path(folder) / name)).y.tolist() == text.tolist()
