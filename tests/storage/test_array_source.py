"""NumPy and Dask arrays as sources."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import dask
import dask.array as da
import numpy as np
import pytest

from streamkern.errors import DataError, StorageError, UsageError
from streamkern.formats import ArraySource
from streamkern.formats.dask_source import DaskArraySource
from streamkern.testing.source import SourceSuite, read_all


class TestArraySource(SourceSuite):
    facets: ClassVar[dict[str, Any]] = {"in_memory": True, "from_memory": True, "columns": tuple("abcdef")}

    @pytest.fixture
    def held(self, expected_X, expected_y):
        return expected_X.copy(), expected_y.copy()

    @pytest.fixture
    def reopen(self, held):
        return lambda: ArraySource(held[0].copy(), held[1].copy(), columns=list("abcdef"), chunk_rows=30)

    @pytest.fixture
    def change(self, held):
        def change():
            held[0][50, 3] += 1

        return change


class TestDaskArraySource(TestArraySource):
    facets: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def reopen(self, held):
        # Blocks of no rows, a second axis in blocks, and a target in other blocks.
        return lambda: DaskArraySource(
            da.from_array(held[0], chunks=((40, 0, 40, 21), (4, 2))), da.from_array(held[1], chunks=25)
        )


def test_images_are_flattened_a_row_at_a_time():
    images = np.arange(5 * 3 * 2, dtype=np.uint8).reshape(5, 3, 2)
    for source in (ArraySource(images), DaskArraySource(da.from_array(images, chunks=2))):
        np.testing.assert_array_equal(read_all(source).X, images.reshape(5, 6))
        assert source.target is None


def test_default_chunks_are_between_one_and_eight_megabytes_or_one_row():
    source = ArraySource(np.zeros((200_000, 50), np.float16))
    sizes = np.diff(source.bounds)[:-1] * 100
    assert ((sizes >= 1 << 20) & (sizes <= 8 << 20)).all()
    wide = ArraySource(np.broadcast_to(np.zeros(1, np.float64), (3, 2_000_000)))
    assert wide.bounds.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("layout", ["F", "big-endian", "strided", "memmap"])
def test_any_layout_in_memory_reads_as_native_contiguous_rows(layout, tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 4))
    if layout == "memmap":
        stored = np.lib.format.open_memmap(tmp_path / "x.npy", mode="w+", dtype=X.dtype, shape=X.shape)
        stored[:] = X
    else:
        stored = {"F": np.asfortranarray(X), "big-endian": X.astype(">f8"), "strided": np.repeat(X, 2, axis=0)[::2]}[
            layout
        ]
    source = ArraySource(stored, chunk_rows=7)
    assert source.dtype.isnative
    assert source.read(1).X.flags.c_contiguous
    np.testing.assert_array_equal(read_all(source).X, X)


def test_fingerprint_of_an_array_is_of_its_rows_not_of_its_chunks():
    X, y = np.random.default_rng(0).normal(size=(40, 4)), np.array(["a", "b"] * 20)
    assert ArraySource(X, y, chunk_rows=7).fingerprint == ArraySource(np.asfortranarray(X), y).fingerprint
    assert ArraySource(X, y).fingerprint != ArraySource(X, np.array(["a", "c"] * 20)).fingerprint


def test_strings_and_several_outputs_are_targets():
    X = np.zeros((4, 2))
    text = ArraySource(X, np.array(["cat", "dog", "cat", "eel"]))
    assert text.target.dtype == object
    assert text.read(0).y.tolist() == ["cat", "dog", "cat", "eel"]
    assert ArraySource(X, np.zeros((4, 3), np.float32)).target.outputs == (3,)


@pytest.mark.parametrize("kind", [ArraySource, DaskArraySource])
@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros(4), None, r"shape \(4,\)(.|\n)*X\[:, None\]"),
        (np.zeros((4, 0)), None, r"shape \(4, 0\)"),
        (np.zeros((4, 2), complex), None, "complex128 cannot be used(.|\n)*encode"),
        (np.zeros((4, 2)), np.zeros(3), r"4 rows of features and a target of shape \(3,\)"),
        (np.zeros((4, 2)), np.zeros((4, 2, 2)), "3 axes"),
        (np.zeros((4, 2)), np.zeros(4, complex), "complex128 cannot be used"),
    ],
)
def test_what_cannot_be_rows_is_refused_with_a_remedy(kind, X, y, message):
    with pytest.raises(DataError, match=message):
        kind(da.from_array(X) if kind is DaskArraySource else X, y)


def test_objects_are_no_features():
    with pytest.raises(DataError, match="dtype object cannot be used"):
        ArraySource([[1, "x"], [None, 2]])


def test_unknown_dask_chunks_say_how_to_know_them():
    X = da.from_array(np.random.default_rng(0).normal(size=(20, 3)), chunks=5)
    unknown = X[X[:, 0] > 0]
    with pytest.raises(UsageError, match=r"X\.compute_chunk_sizes\(\)"):
        DaskArraySource(unknown)
    assert DaskArraySource(unknown.compute_chunk_sizes()).bounds[-1] == int((X[:, 0] > 0).sum())


def test_a_failing_dask_block_is_named():
    def fail(block, block_info=None):
        raise RuntimeError("the disk is on fire")

    X = da.zeros((20, 3), chunks=(5, 3)).map_blocks(fail, dtype=float, meta=np.empty((0, 0)))
    with pytest.raises(StorageError, match=r"the disk is on fire(.|\n)*block 2, rows 10 to 14"):
        DaskArraySource(X).read(2)


def test_a_dask_block_unlike_its_declaration_is_an_error():
    X = da.zeros((20, 3), chunks=(5, 3)).map_blocks(lambda block: block[:4], dtype=float)
    with pytest.raises(DataError, match=r"float64\(4, 3\)(.|\n)*block 1"):
        DaskArraySource(X).read(1)


def test_a_dask_block_is_computed_in_the_calling_thread():
    threads = []

    def note(block):
        threads.append(threading.get_ident())
        return block

    X = da.zeros((20, 3), chunks=(5, 3)).map_blocks(note, dtype=float, meta=np.empty((0, 0)))
    with dask.config.set(scheduler="threads"):
        DaskArraySource(X).read(3)
    assert threads == [threading.get_ident()]
