"""k-means: the seeding is k-means++, a sweep is Lloyd's iteration, and neither depends on where blocks run."""

from __future__ import annotations

import json
import pickle
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkern.centers import KMeans
from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.errors import DataError
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.formats import ArraySource

F8 = np.dtype(np.float64)


class Distant(ThreadsExecutor):
    """Threads that everything reaches as on a cluster: pickled."""

    def imap(self, fn, items, shared=()):
        copied = pickle.loads(pickle.dumps((fn, list(items), shared)))
        return pickle.loads(pickle.dumps(list(super().imap(*copied)))).__iter__()


@pytest.fixture(scope="module")
def executors():
    with ThreadsExecutor(1) as one, ThreadsExecutor(4) as four, Distant(2) as distant:
        yield one, four, distant


def dataset(X, chunk_rows=64):
    return Dataset(ArraySource(X, chunk_rows=chunk_rows))


def clumps(n, d=5, number=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(scale=4, size=(number, d))[rng.integers(number, size=n)] + rng.normal(size=(n, d))


def squares(X, Z):
    return ((X[:, None] - Z) ** 2).sum(axis=2)


def mean_square(X, Z):
    return squares(X, Z).min(axis=1).mean()


def lloyd(X, Z, iterations):
    for _ in range(iterations):
        labels = squares(X, Z).argmin(axis=1)
        Z = np.array([X[labels == j].mean(axis=0) for j in range(len(Z))])
    return Z


@settings(max_examples=25)
@given(st.integers(40, 300), st.integers(1, 12), st.integers(1, 80), st.integers(0, 5), st.integers(0, 1000))
def test_iterations_are_lloyds(executors, n, p, chunk_rows, iterations, seed):
    X = clumps(n, seed=seed)
    start = KMeans(p, iterations=0, seed=seed).choose(dataset(X), executors[0], F8)
    found = KMeans(p, iterations, seed=seed).choose(dataset(X, chunk_rows), executors[1], F8)
    assert found.ids is None
    best = min(np.abs(found.Z - lloyd(X, start.Z, i)).max() for i in range(iterations + 1))  # it may have converged
    assert best < 1e-9


def test_sweeps_end_when_they_gain_little(executors):
    X = clumps(5000, d=2)
    for p in (8, 30):
        Z = KMeans(p, 1000).choose(dataset(X), executors[1], F8).Z
        further = lloyd(X, Z, 1)
        assert np.abs(further - Z).max() > 1e-3  # not run to the end
        assert mean_square(X, further) > 0.99 * mean_square(X, Z)


def test_the_same_bits_on_any_executor(executors):
    data = dataset(clumps(3000).astype(np.float32), chunk_rows=100)
    for batch in (None, 500):
        one, *others = (KMeans(30, batch=batch).choose(data, e, np.dtype(np.float32)).Z for e in executors)
        assert one.dtype == np.float32
        for other in others:
            np.testing.assert_array_equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 400])
def test_other_chunks_move_means_by_rounding(executors, batch):
    X = clumps(2000)
    Z = [KMeans(15, batch=batch).choose(dataset(X, rows), executors[1], F8).Z for rows in (7, 333, 2000)]
    np.testing.assert_allclose(Z[1], Z[0], atol=1e-10)
    np.testing.assert_allclose(Z[2], Z[0], atol=1e-10)


def test_minibatches_keep_a_running_mean(executors):
    X, p, batch = clumps(1000), 6, 150
    data = dataset(X)
    Z, total, seen = KMeans(p, 0, seed=3).choose(data, executors[0], F8).Z, np.zeros((p, 5)), np.zeros(p)
    for iteration in range(4):
        (rule,) = data.sample(batch, 3 + iteration).rules
        rows = X[rule.keep(np.arange(1000))]
        labels = squares(rows, Z).argmin(axis=1)
        np.add.at(total, labels, rows)
        seen += np.bincount(labels, minlength=p)
        Z = np.where(seen[:, None] > 0, total / np.maximum(seen, 1)[:, None], Z)
    np.testing.assert_allclose(KMeans(p, 4, batch, seed=3).choose(data, executors[1], F8).Z, Z, atol=1e-10)


def test_minibatches_come_near_to_all_rows(executors):
    X = clumps(20_000)
    few, whole = (KMeans(20, 20, batch).choose(dataset(X, 5000), executors[1], F8).Z for batch in (1000, len(X)))
    assert mean_square(X, few) < 1.1 * mean_square(X, whole)


def test_seeding_and_sweeps_each_lower_the_squared_distances(executors):
    X = clumps(4000, number=40)
    data = dataset(X)
    uniform = mean_square(X, X[data.draw(40, 0)])
    seeded, swept = (mean_square(X, KMeans(40, i).choose(data, executors[1], F8).Z) for i in (0, 10))
    assert swept < 0.8 * seeded < 0.8 * uniform


@pytest.mark.slow
def test_the_seeding_has_the_distribution_of_kmeans_plus_plus(executors):
    X = np.array([0.0, 1.0, 5.0, 6.0, 11.0, 13.0])[:, None]
    p, runs = 4, 1500

    def likelihood(order):
        chance = 1 / len(X)
        for i in range(1, p):
            weights = squares(X, X[list(order[:i])]).min(axis=1)
            chance *= weights[order[i]] / weights.sum()
        return chance

    expected, found = {}, {}
    for order in permutations(range(len(X)), p):
        key = tuple(sorted(order))
        expected[key] = expected.get(key, 0.0) + runs * likelihood(order)
    for seed in range(runs):
        Z = KMeans(p, 0, seed=seed).choose(dataset(X), executors[0], F8).Z
        key = tuple(sorted(squares(Z, X).argmin(axis=1).tolist()))
        found[key] = found.get(key, 0) + 1
    chi = sum((found.get(key, 0) - e) ** 2 / e for key, e in expected.items())
    assert chi < 36.1  # 14 degrees of freedom: one run in a thousand


@pytest.mark.slow
def test_a_center_that_loses_its_rows_gets_others(executors):
    # From the centers -30.4, 10 and 31 the second is left at -9, between rows that its neighbours then take.
    counts = {-30.4: 1, -10.3: 100, -10.0: 19, 10.0: 1, 20.6: 100, 31.0: 1}
    X = np.repeat(list(counts), list(counts.values()))[:, None]
    starts = {seed: KMeans(3, 0, seed=seed).choose(dataset(X), executors[0], F8).Z for seed in range(200)}
    seed = next(seed for seed, Z in starts.items() if np.allclose(np.sort(Z[:, 0]), [-30.4, 10.0, 31.0]))
    empty = mean_square(X, np.array([[-10.3], [20.6]]))
    found = [KMeans(3, 20, seed=seed).choose(dataset(X), executor, F8).Z for executor in executors]
    assert len(np.unique(squares(X, found[0]).argmin(axis=1))) == 3
    assert mean_square(X, found[0]) < empty
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.slow
def test_the_order_of_the_centers_is_random(executors):
    # k-means++ takes the far row first or second.
    X = np.append(np.random.default_rng(0).normal(size=(200, 2)), [[1e3, 1e3]], axis=0)
    places = [KMeans(9, 2, seed=s).choose(dataset(X), executors[0], F8).Z.sum(axis=1).argmax() for s in range(100)]
    assert 3 < np.mean(places) < 5
    assert set(places) == set(range(9))


def test_rows_are_scaled_and_not_augmented_and_left_out_rows_do_not_count(executors):
    X = clumps(600)
    plain = dataset(X).split(0.5)[0]
    noisy = plain.scale(2.0, 1.0).augment(GaussianNoise(9.0), copies=3)
    a, b = (KMeans(5).choose(data, executors[0], F8).Z for data in (plain, noisy))
    np.testing.assert_allclose(b, 2 * a + 1, atol=1e-9)
    Z = KMeans(1, 1).choose(plain, executors[0], F8).Z
    kept = plain.rules[0].keep(np.arange(600))
    np.testing.assert_allclose(Z[0], X[kept].mean(axis=0), atol=1e-12)


def test_far_from_the_origin_float32_still_sees_the_clusters(executors):
    X = clumps(2000, number=6).astype(np.float32)
    near, far = (KMeans(6).choose(dataset(X + shift), executors[1], np.dtype(np.float32)).Z for shift in (0, 10_000))
    np.testing.assert_allclose(far - 10_000, near, atol=1e-2)


def test_as_many_centers_as_rows_are_the_rows(executors):
    X = clumps(30)
    Z = KMeans(30).choose(dataset(X), executors[0], F8).Z
    np.testing.assert_allclose(np.sort(Z, axis=0), np.sort(X, axis=0), atol=1e-12)


def test_a_row_that_is_not_finite_is_refused_wherever_it_lies(executors):
    X = clumps(11_000, d=2)
    order = dataset(X).draw(len(X), 0)
    for row, value in ((order[0], np.nan), (order[-1], np.inf), (order[-1], np.nan), (order[-1], 1e200)):
        bad = X.copy()  # the last rows of the order are not in the sample that the seeding looks at
        bad[row, 1] = value
        with pytest.raises(DataError, match="not finite") as caught:
            KMeans(3).choose(dataset(bad), executors[1], F8)
        assert caught.value.where == f"row {row}"


def test_what_was_asked_for_is_json():
    asked = KMeans(7, 3, batch=100, seed=2)
    assert json.loads(json.dumps(asked.to_json())) == {
        "name": "KMeans", "p": 7, "iterations": 3, "batch": 100, "seed": 2
    }  # fmt: skip
    assert asked.count(dataset(clumps(9))) == 7
