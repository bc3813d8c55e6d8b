"""A scan has all rows once in stored order, reads what it needs, and says where rows lie."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan
from streamkern.data.row_selection import selected_ids
from streamkern.data.targets import Classes

sizes = st.lists(st.integers(0, 40), min_size=1, max_size=10)


def scan_of(data: Dataset, block_rows: int = 8, only=None) -> Scan:
    return Scan(Assembly(data, Classes(np.arange(10))), block_rows, only)


@given(sizes, st.integers(1, 50), st.booleans(), st.one_of(st.none(), st.integers(1, 300)))
def test_rows_come_once_a_round_in_stored_order(cut_source, sizes, block_rows, part, rows):
    source = cut_source(sizes)
    data = Dataset(source).split(0.5)[0] if part else Dataset(source)
    data = data if rows is None else data.augment(rows=rows)
    scan = scan_of(data, block_rows)
    raws = [scan.raw((i,)) for i in range(len(scan))]
    n = sum(sizes)
    ids, copies = (
        np.concatenate([np.empty(0, np.int64), *(getattr(raw, name) for raw, _ in raws)]) for name in ("ids", "copies")
    )
    base = np.arange(n) if not data.rules else selected_ids(data.rules, 0, n)
    expected = [base] * data._full_rounds + ([selected_ids(data._last_round, 0, n)] if data._last_round else [])
    assert ids.tolist() == [i for round_ in expected for i in round_.tolist()]
    assert copies.tolist() == [c for c, round_ in enumerate(expected) for _ in round_]
    for raw, where in raws:
        assert 0 < len(raw.ids) <= block_rows
        np.testing.assert_array_equal(raw.X, source.X[raw.ids])
        np.testing.assert_array_equal(raw.y, source.y[raw.ids])
        number = int(where.removeprefix("chunk "))
        assert source.bounds[number] <= raw.ids[0] <= raw.ids[-1] < source.bounds[number + 1]


@given(sizes.filter(sum), st.data(), st.integers(1, 50), st.integers(1, 3))
def test_only_the_rows_asked_for(cut_source, sizes, data, block_rows, copies):
    source = cut_source(sizes)
    ids = np.array(sorted(data.draw(st.sets(st.integers(0, sum(sizes) - 1)))), dtype=np.int64)
    scan = scan_of(Dataset(source).augment(copies=copies), block_rows, ids)
    blocks = [scan.block((i,)) for i in range(len(scan))]
    assert [i for block in blocks for i in block.ids.tolist()] == ids.tolist()
    assert all(len(block.ids) for block in blocks)
    assert set(source.reads) == set((np.searchsorted(source.bounds, ids, side="right") - 1).tolist())
    assert set(source.reads.values()) <= {1}


def test_a_pickled_scan_gives_the_same_blocks(cut_source):
    scan = scan_of(Dataset(cut_source([30, 4])).augment(GaussianNoise(1.0), rows=50))
    scan.block((0,))
    sent = pickle.loads(pickle.dumps(scan))
    assert len(sent) == len(scan)
    for i in range(len(scan)):
        for one, other in zip(scan.block((i,))[:3], sent.block((i,))[:3], strict=True):
            np.testing.assert_array_equal(one, other)
