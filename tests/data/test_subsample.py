"""Stratified and weighted samples: exact sizes, the shares they promise, and the same rows under any chunking."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkern as sk
from streamkern.data import row_selection, subsample
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan, Stream
from streamkern.data.row_selection import SelectedIds, selected_ids
from streamkern.data.subsample import proportional_split
from streamkern.rng import row_hash

sizes = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(sum)


@pytest.fixture(autouse=True)
def _let_go_often(monkeypatch):
    """So that a few hundred rows are chosen among in many steps."""
    monkeypatch.setattr(subsample, "_WAITING_ROWS", 5)
    monkeypatch.setattr(row_selection, "_ID_BLOCK", 17)


def ids_of(data: Dataset) -> list[int]:
    return selected_ids(data.rules, 0, int(data.source.bounds[-1])).tolist()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.data())
def test_shares_add_up_and_are_near_their_proportion(sizes, data):
    sizes = np.array(sizes)
    rows = data.draw(st.integers(1, int(sizes.sum())))
    quota = proportional_split(sizes, rows)
    assert quota.sum() == rows
    assert (np.abs(quota - rows * sizes / sizes.sum()) < 1).all()
    assert (quota <= sizes).all()


@settings(max_examples=60)
@given(sizes, st.integers(0, 5), st.booleans(), st.data())
def test_a_stratified_sample_is_the_smallest_hashes_of_each_class(cut_source, sizes, seed, words, data):
    n = sum(sizes)
    y = np.random.default_rng(n).choice([3, 1, 7], n, p=[0.7, 0.2, 0.1])
    source = cut_source(sizes, y=y.astype(str).astype(object) if words else y)
    rows = data.draw(st.integers(1, n))
    sample = Dataset(source).sample(rows, seed, stratify=True)
    ids = ids_of(sample)
    assert len(ids) == sample.base_rows == len(sample) == rows
    assert ids == ids_of(Dataset(cut_source([n], y=source.y)).sample(rows, seed, stratify=True))
    labels, counts = np.unique(y, return_counts=True)
    h = row_hash(np.arange(n), *Dataset(source)._sample_key("stratified", seed))
    for label, quota in zip(labels, proportional_split(counts, rows), strict=True):
        members = np.flatnonzero(y == label)
        expected = members[np.argsort(h[members])][:quota]
        assert sorted(expected.tolist()) == [i for i in ids if y[i] == label]


@settings(max_examples=60)
@given(sizes, st.integers(0, 5), st.data())
def test_a_weighted_sample_is_the_first_of_the_race(cut_source, sizes, seed, data):
    n = sum(sizes)
    weights = np.random.default_rng(n).choice([0.0, 0.5, 3.0], n)
    weights[0] = 1.0
    source = cut_source(sizes)
    rows = data.draw(st.integers(1, int(np.count_nonzero(weights))))
    sample = Dataset(source).sample(rows, seed, weights=weights)
    assert ids_of(sample) == ids_of(Dataset(cut_source([n])).sample(rows, seed, weights=weights))
    h = row_hash(np.arange(n), *Dataset(source)._sample_key("weighted", seed))
    with np.errstate(divide="ignore"):
        race = -np.log(((h >> np.uint64(11)) + 0.5) * 2.0**-53) / weights
    assert ids_of(sample) == sorted(np.argsort(race, kind="stable")[:rows].tolist())
    assert len(sample) == rows


def test_a_column_may_be_the_weights(cut_source):
    X = np.zeros((100, 2))
    X[::3, 1] = 2.0
    by_position = Dataset(cut_source([60, 40], X=X)).sample(30, weights=1)
    assert all(i % 3 == 0 for i in ids_of(by_position))
    named = sk.from_arrays(X, np.arange(100) % 2, columns=["a", "w"]).sample(30, weights="w")
    assert ids_of(named) == ids_of(by_position)


def test_a_part_is_sampled_and_a_sample_split(cut_source):
    data, other = Dataset(cut_source([300, 100])).split(0.25)
    sample = data.sample(100, stratify=True)
    assert set(ids_of(sample)) <= set(ids_of(data))
    assert not set(ids_of(sample)) & set(ids_of(other))
    a, b = sample.split(0.5)
    assert sorted(ids_of(a) + ids_of(b)) == ids_of(sample)
    assert set(ids_of(sample.sample(20))) <= set(ids_of(sample))
    assert set(sample.draw(30).tolist()) <= set(ids_of(sample))


def test_streams_and_scans_deliver_the_sample_in_chunks_they_need(cut_source):
    source = cut_source([50] * 6)
    weights = np.zeros(300)
    weights[60:90] = 1.0
    sample = Dataset(source).sample(20, weights=weights)
    source.reads.clear()
    scan, stream = Scan(Assembly(sample)), Stream(pickle.loads(pickle.dumps(Assembly(sample))), 2, 7)
    scanned = np.concatenate([scan.block((i,)).ids for i in range(len(scan))])
    assert set(source.reads) == {1}
    streamed = np.concatenate([stream.block((0, lane, t)).ids for lane in range(2) for t in range(stream.steps)])
    assert scanned.tolist() == np.sort(streamed).tolist() == ids_of(sample)


def test_samples_are_told_apart_by_their_fingerprints(cut_source):
    data = Dataset(cut_source([200]))
    made = [data.sample(50), data.sample(50, stratify=True), data.sample(50, weights=np.ones(200))]
    made += [data.sample(50, 1, stratify=True), data.sample(50, 1, weights=np.ones(200)), data]
    assert len({sample.fingerprint for sample in made}) == len(made)
    assert data.sample(50, stratify=True).fingerprint == made[1].fingerprint


def test_an_empty_list_keeps_no_row():
    assert not SelectedIds(np.empty(0, np.int64)).keep(np.arange(5)).any()


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(lambda s: sum(s) > 10), seed=st.integers(0, 3))
def test_a_stratified_split_keeps_shares_in_both_parts(cut_source, sizes, seed):
    n = sum(sizes)
    y = np.random.default_rng(seed).choice(3, n, p=[0.8, 0.15, 0.05])
    parts = [
        [
            part._with().rules[-1].keep(np.arange(n))
            for part in Dataset(cut_source(cut, y=y)).split(0.3, seed, stratify=True)
        ]
        for cut in (sizes, [n])
    ]
    rest, test = parts[0]
    assert (rest ^ test).all()
    assert test.sum() == round(0.3 * n)
    counts = np.bincount(y, minlength=3)
    assert np.all(np.abs(np.bincount(y[test], minlength=3) - counts * test.sum() / n) < 1)
    for one, other in zip(*parts, strict=True):
        np.testing.assert_array_equal(one, other)
    both = Dataset(cut_source(sizes, y=y)).split(0.3, seed, stratify=True)
    assert [len(part) for part in both] == [int(rest.sum()), int(test.sum())]
    assert both[0].fingerprint != both[1].fingerprint
