"""The promises of a source as tests: subclass `SourceSuite` to hold a new format to them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import pytest

from streamkern.data.row_selection import FilteredSource, OutsideRanges
from streamkern.formats.joined_tables import JoinedSource
from streamkern.sources.array_source import WeightedSource
from streamkern.sources.base import FACETS, Source
from streamkern.types import Array, Rows


def read_all(source: Source) -> Rows:
    """All rows of a source, chunk after chunk: X of shape (n, d), y of shape (n, ...) and w of shape (n,), or None."""
    chunks = [source.read(chunk) for chunk in range(len(source.bounds) - 1)]
    X = np.concatenate([np.empty((0, source.n_features), source.dtype), *(rows.X for rows in chunks)])
    if source.target is None:
        y = None
    else:
        none = np.empty((0, *source.target.outputs), source.target.dtype)
        y = np.concatenate([none, *(rows.y for rows in chunks if rows.y is not None)])
    weights = [rows.w for rows in chunks if rows.w is not None]
    return Rows(X, y, np.concatenate(weights) if weights else None)


class SourceSuite:
    """Conformance tests of a Source.

    A subclass gives two fixtures: ``reopen``, which opens data that hold ``expected_X`` and ``expected_y`` in at least
    three chunks, always at the same place; and ``change``, which changes one stored value. It may override the expected
    rows, and names the facets that are not what ``Source`` declares by default.
    """

    facets: ClassVar[dict[str, Any]] = {}
    """Facets of the source that differ from the defaults: ``weight``, ``remote``, and so on."""

    @pytest.fixture
    def expected_X(self) -> Array:
        """Rows of the source, shape (n, d), in the dtype it declares."""
        return np.random.default_rng(7).normal(size=(101, 6)).astype(np.float32)

    @pytest.fixture
    def expected_y(self) -> Array | None:
        """Targets of the source, shape (n,) or (n, c), or None."""
        return np.random.default_rng(8).integers(0, 10, 101)

    @pytest.fixture
    def expected_w(self) -> Array | None:
        """Sample weights of the source, shape (n,), or None."""
        return None

    @pytest.fixture
    def source(self, reopen: Callable[[], Source]) -> Source:
        """The data, opened for the first time."""
        return reopen()

    def test_declares_every_facet(self, source: Source) -> None:
        """Each is the default of the contract or the one that the subclass of the suite states, and of its type."""
        assert isinstance(source, Source)
        for facet in set(FACETS) - {"bounds", "n_features", "dtype", "columns", "target", "schema"}:
            expected = self.facets.get(facet, getattr(Source, facet))
            assert getattr(source, facet) == expected, facet
            assert type(getattr(source, facet)) is type(expected), facet
        assert self.facets.get("columns", source.columns) == source.columns
        assert set(source.text) <= set(source.columns or ())
        assert not {name for name, _ in source.non_features} & set(source.columns or ())

    def test_bounds_run_from_zero_to_the_number_of_rows(self, source: Source, expected_X: Array) -> None:
        """Chunks hold at least one row each and leave none out."""
        assert source.bounds.dtype == np.int64
        assert source.bounds[0] == 0
        assert source.bounds[-1] == len(expected_X)
        assert (np.diff(source.bounds) > 0).all()
        assert len(source.bounds) >= 4, "the suite needs at least three chunks"

    def test_rows_are_those_stored_in_order(self, source: Source, expected_X: Array, expected_y: Array | None) -> None:
        """Chunk after chunk gives every row once, at its place."""
        rows = read_all(source)
        np.testing.assert_array_equal(rows.X, expected_X)
        if expected_y is None:
            assert rows.y is None
        else:
            np.testing.assert_array_equal(rows.y, expected_y)

    def test_weights_are_those_stored(self, source: Source, expected_w: Array | None) -> None:
        """There is a weight a row, in float64, exactly where the source names its weights."""
        assert (source.weight is None) == (expected_w is None)
        for chunk, (a, b) in enumerate(zip(source.bounds[:-1], source.bounds[1:], strict=True)):
            w = source.read(chunk).w
            if expected_w is None or w is None:
                assert w is expected_w
            else:
                assert w.dtype == np.float64
                np.testing.assert_array_equal(w, expected_w[a:b])

    def test_a_chunk_is_what_the_metadata_says(self, source: Source, expected_X: Array) -> None:
        """Shape, dtype and layout in memory are known before reading."""
        assert source.dtype == expected_X.dtype
        assert source.dtype.isnative
        assert source.n_features == expected_X.shape[1]
        if source.columns is not None:
            assert len(set(source.columns)) == source.n_features
        for chunk, n in enumerate(np.diff(source.bounds)):
            X, y, _ = source.read(chunk)
            assert X.shape == (n, source.n_features)
            assert X.dtype == source.dtype
            assert X.flags.c_contiguous
            assert (y is None) == (source.target is None)
            if y is not None and source.target is not None:
                assert y.shape == (n, *source.target.outputs)
                assert y.dtype == source.target.dtype
                assert y.flags.c_contiguous

    def test_chunks_can_be_read_in_any_order_and_again(self, source: Source, expected_X: Array) -> None:
        """A read does not depend on the reads before it."""
        order = np.random.default_rng(0).permutation(np.repeat(np.arange(len(source.bounds) - 1), 2))
        for chunk in order:
            np.testing.assert_array_equal(
                source.read(int(chunk)).X, expected_X[source.bounds[chunk] : source.bounds[chunk + 1]]
            )

    def test_what_is_read_cannot_spoil_what_is_stored(self, source: Source) -> None:
        """Rows are either read-only or the reader's own."""
        first = source.read(0)
        before = [values.copy() for values in first if values is not None]
        for values in first:
            if values is not None and values.flags.writeable:
                values[...] = values[::-1].copy()
        after = [values for values in source.read(0) if values is not None]
        for one, other in zip(before, after, strict=True):
            np.testing.assert_array_equal(one, other)

    def test_pickling_keeps_rows_and_fingerprint(self, source: Source, expected_X: Array) -> None:
        """A source is sent to workers, also after it has been read and from there on again."""
        source.read(0)
        copy: Source = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(source))))
        np.testing.assert_array_equal(read_all(copy).X, expected_X)
        np.testing.assert_array_equal(copy.bounds, source.bounds)
        assert copy.fingerprint == source.fingerprint
        for facet in set(FACETS) - {"bounds"}:
            assert getattr(copy, facet) == getattr(source, facet), facet
        assert copy.describe(0) == source.describe(0)

    def test_eight_threads_read_what_one_reads(self, source: Source, expected_X: Array) -> None:
        """Reads are safe side by side."""
        chunks = list(range(len(source.bounds) - 1)) * 8
        with ThreadPoolExecutor(8) as pool:
            for chunk, rows in zip(chunks, pool.map(source.read, chunks), strict=True):
                np.testing.assert_array_equal(rows.X, expected_X[source.bounds[chunk] : source.bounds[chunk + 1]])

    def test_fingerprint_is_stable_until_the_data_change(
        self, source: Source, reopen: Callable[[], Source], change: Callable[[], None]
    ) -> None:
        """The same data opened twice have one fingerprint; a changed value gives another."""
        before = source.fingerprint
        assert len(bytes.fromhex(before)) >= 16
        assert reopen().fingerprint == before
        change()
        assert reopen().fingerprint != before

    def test_a_chunk_out_of_range_is_an_index_error(self, source: Source) -> None:
        """Neither a negative number nor one past the end is a chunk."""
        for chunk in (-1, len(source.bounds) - 1):
            with pytest.raises(IndexError, match=str(chunk)):
                source.read(chunk)

    def test_where_tells_chunks_apart_and_names_their_rows(self, source: Source) -> None:
        """An error can say which chunk it met."""
        texts = [source.where(chunk) for chunk in range(len(source.bounds) - 1)]
        assert len(set(texts)) == len(texts)
        for chunk, text in enumerate(texts):
            assert f"rows {source.bounds[chunk]} to {source.bounds[chunk + 1] - 1}" in text

    def test_where_row_names_the_row(self, source: Source) -> None:
        """An error can say which row it met, as the whole source counts it or as the file does."""
        last = len(source.bounds) - 2
        rows = range(int(source.bounds[last + 1] - source.bounds[last]))
        texts = [source.where_row(last, row) for row in rows]
        assert len(set(texts)) == len(rows)
        assert all("row" in text for text in texts)

    def test_what_is_in_memory_is_read_without_copying(self, source: Source) -> None:
        """Plans count no memory for such a read."""
        if source.in_memory:
            assert np.shares_memory(source.read(0).X, source.read(0).X)

    def test_rows_by_number_are_those_of_the_chunks(self, source: Source) -> None:
        """In any order, and again; or a source says that it reads chunks."""
        ids = np.random.default_rng(0).integers(0, int(source.bounds[-1]), 50)
        found = source.rows(ids)
        if found is not None:
            chunks = np.searchsorted(source.bounds, ids, side="right") - 1
            at = ids - source.bounds[chunks]
            for row, (chunk, place) in enumerate(zip(chunks.tolist(), at.tolist(), strict=True)):
                X, y, w = source.read(chunk)
                np.testing.assert_array_equal(found.X[row], X[place])
                assert found.w is w is None
                assert (found.y is None) == (y is None)
                if y is not None and found.y is not None:
                    np.testing.assert_array_equal(found.y[row], y[place])

    def test_non_features_are_described(self, source: Source) -> None:
        """There is one description a column, of no more values than there are rows."""
        for chunk, n in enumerate(np.diff(source.bounds)):
            whole = source.describe(chunk)
            assert len(whole) == len(source.non_features)
            for each in whole:
                assert each.counts is None or each.missing + each.counts.total() <= n

    def test_no_facet_is_lost_when_sources_are_joined(self, source: Source) -> None:
        """Twice the rows have the facets of once; except that two shuffled halves are not one shuffled whole."""
        joined = JoinedSource([source, source])
        for facet in set(FACETS) - {"bounds", "shuffled"}:
            assert getattr(joined, facet) == getattr(source, facet), facet
        assert not joined.shuffled
        n, chunks = int(source.bounds[-1]), len(source.bounds) - 1
        np.testing.assert_array_equal(joined.bounds, [*source.bounds[:-1], *(source.bounds + n)])
        for chunk in range(chunks):
            assert joined.where_row(chunks + chunk, 0) == source.where_row(chunk, 0)
            assert joined.describe(chunks + chunk) == source.describe(chunk)
            _same(joined.read(chunks + chunk), source.read(chunk))

    def test_no_facet_is_lost_when_rows_are_left_out(self, source: Source) -> None:
        """The remaining rows have the facets of all: here without the second chunk, and the first row of the third."""
        cut = int(source.bounds[2]) + 1
        part = FilteredSource(source, [OutsideRanges(((int(source.bounds[1]), cut),))])
        for facet in set(FACETS) - {"bounds", "in_memory", "non_features"}:
            assert getattr(part, facet) == getattr(source, facet), facet
        first, ids = source.read(0), part.ids(1)
        _same(part.read(0), first)
        third = source.read(2)
        if len(third.X) == 1:
            return
        assert ids[0] == cut
        _same(part.read(1), third.each(lambda values: values[1:]))
        assert part.where_row(1, 0) == source.where_row(2, 1)

    def test_no_facet_is_lost_when_weights_are_added(self, source: Source) -> None:
        """Rows with weights in memory have the facets of those without."""
        if source.weight is not None:
            return
        w = np.arange(int(source.bounds[-1])) / 2
        weighted = WeightedSource(source, w, "w")
        for facet in set(FACETS) - {"bounds", "weight", "in_memory"}:
            assert getattr(weighted, facet) == getattr(source, facet), facet
        assert weighted.weight == "w"
        assert weighted.where_row(1, 0) == source.where_row(1, 0)
        assert weighted.describe(1) == source.describe(1)
        _same(weighted.read(1), source.read(1)._replace(w=w[source.bounds[1] : source.bounds[2]]))


def _same(found: Rows, expected: Rows) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
