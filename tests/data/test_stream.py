"""The order of rows is a pure function of integers: complete, seekable, the same for any chunks and any lanes.

A scan has all rows once in stored order, reads what it needs, and says where rows lie.
"""

import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan, Stream
from streamkern.data.row_selection import selected_ids
from streamkern.data.targets import Classes
from streamkern.errors import UsageError
from streamkern.formats import ArraySource

CODES = Classes(np.arange(10))

some_sizes = st.lists(st.integers(0, 40), min_size=1, max_size=12)
sizes = some_sizes.filter(sum)
shapes = st.fixed_dictionaries(
    {
        "lanes": st.integers(1, 9),
        "block_rows": st.integers(1, 17),
        "window_blocks": st.integers(1, 5),
        "mix_chunks": st.sampled_from([None, 1, 2, 5]),
        "seed": st.integers(0, 3),
        "cache_bytes": st.sampled_from([0, 100, 1 << 20]),
    }
)
choices = st.fixed_dictionaries(
    {
        "split": st.sampled_from([None, "rest", "test"]),
        "sample": st.sampled_from([None, 1, 7]),
        "rows": st.one_of(st.none(), st.integers(1, 400)),
    }
)


def chosen(source, split=None, sample=None, rows=None) -> Dataset:
    data = Dataset(source)
    if split is not None:
        data = data.split(0.4, seed=3)[split == "test"]
    if sample is not None and sample <= data.base_rows:
        data = data.sample(sample)
    return data if rows is None else data.augment(GaussianNoise(1.0), rows=rows)


def stream_of(data: Dataset, **shape) -> Stream:
    return Stream(Assembly(data, CODES), **{"lanes": 2, "block_rows": 8, **shape})


def keys(stream: Stream, pass_: int):
    return [(pass_, lane, step) for step in range(stream.steps) for lane in range(stream.lanes)]


def same(a, b) -> bool:
    return a.key == b.key and all(np.array_equal(one, other) for one, other in zip(a[:3], b[:3], strict=True))


def virtual(stream: Stream, pass_: int) -> Counter:
    """How often a pass has each (row id, copy): raw windows know the copies."""
    seen: Counter = Counter()
    for lane in range(stream.lanes):
        for window in range(-(-stream.steps // stream.window_blocks)):
            raw, order = stream._window(pass_, lane, window)
            assert np.array_equal(np.sort(order), np.arange(len(raw.ids)))
            seen.update(zip(raw.ids.tolist(), raw.copies.tolist(), strict=True))
    return seen


@pytest.mark.slow
@given(sizes, shapes, choices)
def test_every_pass_has_each_virtual_row_once(cut_source, sizes, shape, choice):
    data = chosen(cut_source(sizes), **choice)
    stream = stream_of(data, **shape)
    ids = [int(i) for i in range(sum(sizes)) if all(rule.keep(np.array([i]))[0] for rule in data.rules)]
    assert len(ids) == data.base_rows
    full = {(i, copy) for i in ids for copy in range(data._full_rounds)}
    first = virtual(stream, 0)
    assert virtual(stream, 1) == first
    assert set(first.values()) <= {1}
    assert full <= set(first)
    rest = {i for i, copy in set(first) - full}
    assert {copy for i, copy in set(first) - full} <= {data._full_rounds}
    assert rest <= set(ids)
    assert len(first) == len(data) == stream.rows


@pytest.mark.slow
@given(sizes, sizes, shapes, shapes, choices)
def test_the_rows_of_a_pass_do_not_depend_on_chunks_or_lanes(cut_source, sizes, others, shape, other, choice):
    n = min(sum(sizes), sum(others))
    cuts = [np.minimum(np.cumsum([0, *some]), n) for some in (sizes, others)]
    a, b = (chosen(cut_source(np.diff(cut)), **choice) for cut in cuts)
    assert virtual(stream_of(a, **shape), 0) == virtual(stream_of(b, **other), 0)


@pytest.mark.slow
@given(sizes, shapes, choices)
def test_counts_of_rows_agree_with_the_blocks(cut_source, sizes, shape, choice):
    stream = stream_of(chosen(cut_source(sizes), **choice), **shape)
    rows = {key: len(stream.block(key).ids) for key in keys(stream, 2)}
    assert sum(rows.values()) == stream.rows
    for lane in range(stream.lanes):
        mine = [rows[2, lane, step] for step in range(stream.steps)]
        assert sum(mine) == stream.lane_rows(lane)
        # full blocks, a shorter one, and empty ones
        assert all(left == stream.block_rows or right == 0 for left, right in pairwise(mine))
    for step in range(stream.steps):
        assert any(rows[2, lane, step] for lane in range(stream.lanes))
    assert stream.batch_rows == stream.lanes * stream.block_rows


@pytest.mark.slow
@given(sizes, shapes, choices, st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_a_block_is_the_same_from_anywhere_and_in_several_threads(cut_source, sizes, shape, choice, random):
    data = chosen(cut_source(sizes), **choice)
    stream = stream_of(data, **shape)
    order = keys(stream, 0) + keys(stream, 1)
    expected = {key: stream.block(key) for key in order}
    random.shuffle(order)
    fresh, sent, shared = stream_of(data, **shape), pickle.loads(pickle.dumps(stream)), stream_of(data, **shape)
    for key in order[:30]:
        assert same(fresh.block(key), expected[key])
        assert same(sent.block(key), expected[key])
    names = (keys(stream, 0) * 2)[:200]
    with ThreadPoolExecutor(6) as pool:
        for built, key in zip(pool.map(shared.block, names), names, strict=True):
            assert same(built, expected[key])


def test_features_and_targets_belong_to_the_ids(cut_source):
    source = cut_source([30, 0, 50, 1, 19])
    stream = stream_of(Dataset(source).scale(0.5, 1.0), lanes=3)
    for key in keys(stream, 0):
        block = stream.block(key)
        np.testing.assert_array_equal(block.X, source.X[block.ids] * np.float32(0.5) + np.float32(1))
        np.testing.assert_array_equal(block.y, source.y[block.ids])


def ids_of(stream: Stream, pass_: int) -> list[int]:
    return np.concatenate([stream.block(key).ids for key in keys(stream, pass_)]).tolist()


@pytest.mark.parametrize("sizes", [[50] * 8, [400]], ids=len)
def test_passes_copies_and_seeds_have_orders_of_their_own(cut_source, sizes):
    source = cut_source(sizes)
    shape = {"lanes": 1, "block_rows": 50, "window_blocks": 1}
    stream = stream_of(Dataset(source).augment(copies=2), **shape)
    orders = [ids_of(stream, 0), ids_of(stream, 1), ids_of(stream_of(Dataset(source), seed=1, **shape), 0)]
    orders = [orders[0][:400], orders[0][400:], orders[1][:400], orders[2]]
    assert all(sorted(order) == list(range(400)) for order in orders)
    assert len(set(map(tuple, orders))) == 4
    # which rows meet in a window, and how they lie inside it
    assert len({tuple(frozenset(order[i : i + 50]) for i in range(0, 400, 50)) for order in orders}) == 4
    assert len({tuple(np.argsort(np.argsort(order[:50]))) for order in orders}) == 4


def test_a_lane_without_rows_in_full_rounds_may_have_some_in_the_last(cut_source):
    # Shares of 5 rows and of 3 rows over 8 lanes do not have the same gaps.
    stream = stream_of(Dataset(cut_source([5])).augment(rows=8), lanes=8, block_rows=1)
    assert sum(virtual(stream, 0).values()) == 8


def test_an_empty_block_is_a_block(cut_source):
    stream = stream_of(Dataset(cut_source([5])), lanes=8, block_rows=2)
    block = stream.block((0, 0, stream.steps))
    assert block.X.shape == (0, 3)
    assert block.y.shape == (0,)


def test_string_targets_of_different_widths(cut_source):
    y = np.array(["no", "yes", "perhaps"] * 10)
    source = cut_source([10] * 3, y=y)
    cut = source.read
    source.read = lambda chunk: cut(chunk)._replace(y=np.array(cut(chunk).y.tolist()[:10], dtype=f"U{7 + chunk}"))
    encoding = Classes(np.unique(y))
    stream = Stream(Assembly(Dataset(source), encoding), lanes=1, block_rows=30)
    block = stream.block((0, 0, 0))
    np.testing.assert_array_equal(encoding.values[block.y], y[block.ids])


@pytest.mark.parametrize("name", ["lanes", "block_rows", "window_blocks", "mix_chunks"])
def test_sizes_below_one_are_refused(cut_source, name):
    with pytest.raises(UsageError, match=name):
        stream_of(Dataset(cut_source([5])), **{name: 0})


def reads(source, data: Dataset, **shape) -> int:
    stream = stream_of(data, **shape)
    for key in keys(stream, 0):
        stream.block(key)
    return sum(source.reads.values())


@pytest.mark.parametrize("mix", [1, 2, 4])
def test_chunks_are_read_about_once_a_pass(cut_source, mix):
    # A chunk is 1,100 bytes with its targets, and the cache holds a group for each lane and one more.
    source = cut_source([100] * 60)
    shape = {"lanes": 3, "block_rows": 5, "mix_chunks": mix}
    # a group at the border of two lanes' shares is read by both
    assert reads(source, Dataset(source), cache_bytes=4 * mix * 1100, **shape) <= 60 + 2 * mix
    # a cache that is one chunk too small costs some chunks twice, and not every chunk every time
    source = cut_source([100] * 60)
    assert reads(source, Dataset(source), cache_bytes=(3 * mix - 1) * 1100, **shape) <= 60 * 5


def test_label_sorted_rows_are_mixed_as_by_a_global_shuffle(cut_source):
    """The variance of class shares in a batch over that of a global shuffle, for rows sorted by label."""

    def ratio(mix_chunks):
        source = cut_source([500] * 120, d=1, y=np.repeat(np.arange(10), 6000))
        stream = stream_of(Dataset(source), lanes=4, block_rows=256, mix_chunks=mix_chunks, window_blocks=8)
        blocks = (stream.block(key) for key in keys(stream, 0))
        batches = zip(*[blocks] * stream.lanes, strict=True)
        shares = [np.bincount(np.concatenate([b.y for b in batch]), minlength=10) / 1024 for batch in batches][:-1]
        return np.mean((np.array(shares) - 0.1) ** 2) / (0.09 / 1024)

    assert ratio(None) < 1.3
    assert ratio(30) < ratio(5) / 2  # more chunks side by side mix better


def test_with_replacement_rows_are_independent_draws():
    """As many rows a pass; each comes as often as a Poisson number says, in any chunks, and on any machine alike."""
    n = 4000
    X = np.arange(n, dtype=np.float32)[:, None]
    for chunk in (n, 170):
        data = Dataset(ArraySource(X, np.zeros(n, dtype=int), chunk_rows=chunk))
        stream = stream_of(data, lanes=4, block_rows=25, replacement=True)
        passes = []
        for pass_ in range(2):
            ids = np.concatenate([stream.block(key).ids for key in keys(stream, pass_)])
            assert len(ids) == n
            times = np.bincount(np.bincount(ids, minlength=n), minlength=6)[:6] / n
            np.testing.assert_allclose(times, [0.368, 0.368, 0.184, 0.061, 0.015, 0.003], atol=0.025)
            passes.append(ids)
        assert not np.array_equal(*passes)
        again = pickle.loads(pickle.dumps(stream))
        np.testing.assert_array_equal(again.block((1, 2, 7)).ids, stream.block((1, 2, 7)).ids)
    few = stream_of(Dataset(ArraySource(X, np.zeros(n, dtype=int), chunk_rows=100)), mix_chunks=4, replacement=True)
    ids = np.concatenate([few.block(key).ids for key in keys(few, 0)])
    # Of the chunks read side by side each gives as many rows as it has, give or take; none is left out.
    assert np.unique(ids // 100).tolist() == list(range(40))


def scan_of(data: Dataset, block_rows: int = 8, only=None) -> Scan:
    return Scan(Assembly(data, CODES), block_rows, only)


@given(some_sizes, st.integers(1, 50), st.booleans(), st.one_of(st.none(), st.integers(1, 300)))
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


@given(sizes, st.data(), st.integers(1, 50), st.integers(1, 3))
def test_only_the_rows_asked_for(cut_source, sizes, data, block_rows, copies):
    source = cut_source(sizes)
    ids = np.array(sorted(data.draw(st.sets(st.integers(0, sum(sizes) - 1)))), dtype=np.int64)
    scan = scan_of(Dataset(source).augment(copies=copies), block_rows, ids)
    blocks = [scan.block((i,)) for i in range(len(scan))]
    assert [i for block in blocks for i in block.ids.tolist()] == ids.tolist()
    assert all(len(block.ids) for block in blocks)
    assert set(source.reads) == set((np.searchsorted(source.bounds, ids, side="right") - 1).tolist())
    assert set(source.reads.values()) <= {1}
