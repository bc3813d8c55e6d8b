"""Rows are chosen by a hash of their ids: the same choice under any chunks, without reading a row."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from streamkern.data import row_selection
from streamkern.data.dataset import Dataset
from streamkern.data.row_selection import (
    HASH_SPAN,
    Rule,
    count_selected,
    draw_ids,
    sample_rule,
    selected_ids,
)

rules = st.lists(
    st.builds(
        lambda key, a, b: Rule((key,), min(a, b), max(a, b)),
        st.integers(0, 5),
        st.integers(0, HASH_SPAN),
        st.integers(0, HASH_SPAN),
    ),
    max_size=3,
)
sizes = st.lists(st.integers(0, 40), max_size=10)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """So that a few hundred ids are hashed in many blocks."""
    monkeypatch.setattr(row_selection, "_ID_BLOCK", 17)


def ids_of(data: Dataset) -> list[int]:
    n = int(data.source.bounds[-1])
    kept = selected_ids(data.rules, 0, n)
    return list(range(n)) if kept is None else kept.tolist()


@given(rules, st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=12))
def test_counts_are_those_of_the_ids_with_gaps_and_empty_ranges(rules, gaps):
    edges = np.cumsum(np.array(gaps, dtype=np.int64).reshape(-1))
    starts, stops = edges[::2], edges[1::2]
    expected = [
        b - a if not rules else len(selected_ids(rules, a, b))
        for a, b in zip(starts.tolist(), stops.tolist(), strict=True)
    ]
    assert count_selected(rules, starts, stops).tolist() == expected


@given(st.integers(0, 400), st.sampled_from([0.01, 0.2, 0.5, 0.9]), st.integers(0, 5))
def test_the_parts_of_a_split_are_disjoint_and_complete(cut_source, n, test, seed):
    rest, part = Dataset(cut_source([n])).split(test, seed)
    assert sorted(ids_of(rest) + ids_of(part)) == list(range(n))
    assert (rest.base_rows, part.base_rows) == (len(ids_of(rest)), len(ids_of(part)))


@given(sizes.filter(sum), st.integers(0, 9), st.integers(1, 9))
def test_choices_do_not_depend_on_chunks(cut_source, sizes, seed, k):
    a, b = (Dataset(cut_source(some)) for some in (sizes, [sum(sizes)]))
    assert ids_of(a.split(0.3, seed)[1]) == ids_of(b.split(0.3, seed)[1])
    k = min(k, sum(sizes))
    assert ids_of(a.sample(k, seed)) == ids_of(b.sample(k, seed))
    assert a.draw(k, seed).tolist() == b.draw(k, seed).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.01, 0.2, 0.5])
def test_a_part_has_about_its_share(cut_source, share):
    n = 20_000
    counts = [Dataset(cut_source([n])).split(share, seed)[1].base_rows for seed in range(20)]
    assert np.abs(np.array(counts) - share * n).max() < 5 * np.sqrt(n * share * (1 - share))
    assert len(set(counts)) > 1


def test_a_part_can_be_split_again_with_the_same_seed(cut_source):
    n = 5000
    rest, _ = Dataset(cut_source([n])).split(0.5, seed=4)
    train, validation = rest.split(0.5, seed=4)
    assert sorted(ids_of(train) + ids_of(validation)) == ids_of(rest)
    assert abs(validation.base_rows - n / 4) < 200
    assert abs(train.base_rows - n / 4) < 200


@given(rules, st.integers(0, 200), st.integers(0, 60), st.integers(0, 3))
def test_the_smallest_are_those_of_a_full_sort(rules, n, k, key):
    ids, hashes = draw_ids(rules, n, k, (key,))
    all_ids, all_hashes = draw_ids(rules, n, n, (key,))
    assert ids.tolist() == all_ids[:k].tolist()
    assert hashes.tolist() == all_hashes[:k].tolist() == sorted(hashes.tolist())
    if 1 <= k <= len(all_ids):
        rule = sample_rule(rules, n, k, (key,))
        assert selected_ids((*rules, rule), 0, n).tolist() == sorted(ids.tolist())


@given(st.integers(1, 300), st.data())
def test_a_sample_has_exactly_its_size(cut_source, n, data):
    k = data.draw(st.integers(1, n))
    dataset = Dataset(cut_source([n])).sample(k)
    assert len(ids_of(dataset)) == dataset.base_rows == k
    j = data.draw(st.integers(1, k))
    assert set(ids_of(dataset.sample(j))) <= set(ids_of(dataset))
    assert dataset.sample(j).base_rows == j


def test_draws_are_nested_distinct_uniform_and_of_the_chosen_rows(cut_source):
    data, _ = Dataset(cut_source([100])).split(0.5)
    small, large = data.draw(5, 7), data.draw(30, 7)
    assert large[:5].tolist() == small.tolist()
    assert len(set(large.tolist())) == 30
    assert set(large.tolist()) <= set(ids_of(data))
    everything = Dataset(cut_source([50]))
    draws = np.array([everything.draw(5, seed) for seed in range(4000)])
    for column in (draws[:, 0], draws[:, 4], draws.ravel()):  # in an order that is uniform too
        assert stats.chisquare(np.bincount(column, minlength=50)).pvalue > 1e-4


def test_splits_samples_and_draws_of_one_seed_are_independent(cut_source):
    data = Dataset(cut_source([20_000]))
    rest, _ = data.split(0.5, seed=1)
    kept = set(ids_of(rest))
    for ids in (ids_of(data.sample(5000, seed=1)), data.draw(5000, 1).tolist()):
        assert abs(len(kept & set(ids)) - 2500) < 200
