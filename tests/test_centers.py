"""Choices of centers: uniform and given rows, k-means, randomly pivoted Cholesky; none depends on where blocks run."""

import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkern.centers import Given, KMeans, RPCholesky, Uniform
from streamkern.data import from_arrays
from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.errors import DataError, UsageError
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.formats import ArraySource
from streamkern.kernels import Gaussian, Kernel, Laplace

F4, F8 = np.dtype(np.float32), np.dtype(np.float64)


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


def squares(X, Z):
    return ((X[:, None] - Z) ** 2).sum(axis=2)


def require_distribution(X: Any, weights: Callable[[Any], Any], draw: Callable[[int], list[int]]) -> None:
    """Four of six rows are drawn as one at a time would be, each by its weight given those before."""
    p, runs = 4, 1500

    def likelihood(order: tuple[int, ...]) -> float:
        chance = 1.0
        for i in range(p):
            found = weights(X[list(order[:i])])
            chance *= found[order[i]] / found.sum()
        return chance

    expected: Counter[tuple[int, ...]] = Counter()
    for order in permutations(range(len(X)), p):
        expected[tuple(sorted(order))] += runs * likelihood(order)
    found = Counter(tuple(sorted(draw(seed))) for seed in range(runs))
    chi = sum((found[key] - e) ** 2 / e for key, e in expected.items())
    assert chi < 36.1  # 14 degrees of freedom: one run in a thousand


# ------------------------------------------------------------------------------------------------- uniform and given


def pixels(n: int = 500) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 6)).astype(np.uint8)


def test_uniform_centers_are_distinct_rows_as_they_are_scaled_and_not_augmented(executors):
    X = pixels()
    data = from_arrays(X).scale(1 / 255)
    Z, ids = Uniform(100).choose(data.augment(GaussianNoise(10.0), copies=3), executors[1], F4)
    assert Z.dtype == F4
    assert len(np.unique(ids)) == 100
    np.testing.assert_allclose(Z, X[ids] / 255, rtol=1e-6)


@pytest.mark.parametrize("chunk_rows", [1, 7, 128, 500])
def test_chunks_and_threads_do_not_matter(executors, chunk_rows: int):
    for executor in executors:
        found = Uniform(50).choose(dataset(pixels(), chunk_rows), executor, F4)
        np.testing.assert_array_equal(found.Z, pixels()[found.ids].astype(F4))
        np.testing.assert_array_equal(found.ids, from_arrays(pixels()).draw(50, 0))


def test_all_rows_can_be_centers_and_no_more(executors):
    data = from_arrays(pixels(40))
    assert sorted(Uniform(40).choose(data, executors[1], F4).ids) == list(range(40))
    with pytest.raises(DataError, match="40"):
        Uniform(41).choose(data, executors[1], F4)
    with pytest.raises(UsageError, match="at least 1"):
        Uniform(0)


def test_given_centers_are_taken_as_they_are(executors):
    Z = np.random.default_rng(0).normal(size=(7, 6))
    given = Given(Z)
    found = given.choose(from_arrays(pixels()), executors[1], F4)
    np.testing.assert_array_equal(found.Z, Z.astype(F4))
    assert found.ids is None
    assert given.count(from_arrays(pixels())) == 7
    found.Z[:] = 0
    assert Z.any()
    assert Given(np.ones((2, 3))).to_json() == Given(np.ones((2, 3), np.float32)).to_json() != given.to_json()


@pytest.mark.parametrize("Z", [np.zeros((3, 5)), np.zeros(6), np.zeros((0, 6)), np.full((2, 6), np.nan)])
def test_given_centers_that_do_not_fit(executors, Z: np.ndarray):
    with pytest.raises((DataError, UsageError), match=r"shape \(p, (6|d)\)"):
        Given(Z).choose(from_arrays(pixels()), executors[1], F4)


# ----------------------------------------------------------------------------------------------------------- k-means


def clumps(n, d=5, number=20, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(scale=4, size=(number, d))[rng.integers(number, size=n)] + rng.normal(size=(n, d))


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


def test_seeding_and_sweeps_each_lower_the_squared_distances(executors):
    X = clumps(4000, number=40)
    data = dataset(X)
    uniform = mean_square(X, X[data.draw(40, 0)])
    seeded, swept = (mean_square(X, KMeans(40, i).choose(data, executors[1], F8).Z) for i in (0, 10))
    assert swept < 0.8 * seeded < 0.8 * uniform


@pytest.mark.slow
def test_the_seeding_has_the_distribution_of_kmeans_plus_plus(executors):
    X = np.array([0.0, 1.0, 5.0, 6.0, 11.0, 13.0])[:, None]

    def draw(seed):
        Z = KMeans(4, 0, seed=seed).choose(dataset(X), executors[0], F8).Z
        return squares(Z, X).argmin(axis=1).tolist()

    require_distribution(X, lambda Z: squares(X, Z).min(axis=1) if len(Z) else np.ones(len(X)), draw)


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
        asked = [KMeans(3)] if value == 1e200 else [KMeans(3), RPCholesky(3, Laplace(1.0), subsample=len(X))]
        for each in asked:
            with pytest.raises(DataError, match="not finite") as caught:
                each.choose(dataset(bad), executors[1], F8)
            assert caught.value.where == f"row {row}"


# ------------------------------------------------------------------------------------------ pivoted Cholesky


@dataclass(frozen=True)
class Plane(Kernel):
    """k(x, z) = ⟨x, z⟩, whose matrices have the rank of the rows."""

    def apply(self, S, x_norms, z_norms, backend):
        pass

    def diag(self, X):
        return (X**2).sum(axis=1)


def rows(n, d=4, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def residual(kernel, X, Z):
    """Diagonal of k(X, X) − k(X, Z) K(Z, Z)⁺ k(Z, X)."""
    K = kernel(X, Z)
    return kernel.diag(X) - np.einsum("ij,ij->i", K @ np.linalg.pinv(kernel(Z), hermitian=True), K)


@settings(max_examples=25)
@given(st.integers(1, 12), st.integers(0, 1000), st.sampled_from([F4, F8]))
def test_as_many_pivots_as_the_rank_recover_the_kernel(executors, rank, seed, dtype):
    X = rows(200, rank, seed) @ rows(rank, 20, seed + 1)
    Z, _ = RPCholesky(rank, Plane(), seed=seed).choose(dataset(X.astype(dtype)), executors[1], dtype)
    assert Z.dtype == dtype
    assert np.linalg.matrix_rank(Z.astype(F8), tol=1e-6) == rank
    assert np.abs(residual(Plane(), X, Z.astype(F8))).max() < (1e-9 if dtype == F8 else 1e-2)


def test_once_the_rank_is_spent_the_rest_is_drawn_from_the_other_rows(executors):
    X = rows(100, 3)
    Z, ids = RPCholesky(20, Plane()).choose(dataset(X), executors[1], F8)
    assert len(set(ids.tolist())) == 20
    assert np.abs(residual(Plane(), X, Z[:3])).max() < 1e-10


def test_the_trace_of_the_residual_falls_faster_than_with_uniform_rows(executors):
    # 97% of the rows in one clump: uniform rows hardly ever see the others.
    rng = np.random.default_rng(0)
    X = np.concatenate([0.1 * rows(2910), rows(90) + 5 * rng.choice([-1, 1], size=(90, 4))])
    data, kernel = dataset(X), Gaussian(1.5)
    ours = [residual(kernel, X, RPCholesky(p, kernel).choose(data, executors[1], F8).Z).sum() for p in (5, 20, 80)]
    uniform = [residual(kernel, X, X[data.draw(p, 0)]).sum() for p in (5, 20, 80)]
    assert ours[0] > ours[1] > 5 * ours[2]
    assert ours[1] < 0.8 * uniform[1]
    assert ours[2] < 0.15 * uniform[2]


def test_a_prefix_of_the_pivots_spans_nearly_as_much_as_pivots_of_their_own(executors):
    X, kernel = rows(1500), Gaussian(2.0)
    whole = RPCholesky(200, kernel).choose(dataset(X), executors[1], F8).Z
    alone = RPCholesky(50, kernel).choose(dataset(X), executors[1], F8).Z
    assert residual(kernel, X, whole[:50]).sum() < 1.3 * residual(kernel, X, alone).sum()


def test_pivots_are_told_in_json_with_the_kernel_that_they_follow():
    told = [json.dumps(RPCholesky(50, Gaussian(bandwidth)).to_json()) for bandwidth in (2.0, 2.0, 3.0)]
    assert told[0] == told[1] != told[2]


@pytest.mark.slow
def test_pivots_have_the_distribution_of_one_at_a_time(executors):
    X, kernel = np.array([0.0, 0.4, 0.9, 2.0, 2.1, 7.0])[:, None], Laplace(2.0)
    data = dataset(X)
    require_distribution(
        X,
        lambda Z: residual(kernel, X, Z) if len(Z) else kernel.diag(X),
        lambda seed: RPCholesky(4, kernel, seed=seed).choose(data, executors[0], F8).ids.tolist(),
    )


@pytest.mark.parametrize("dtype", [F4, F8], ids=str)
def test_the_same_rows_on_any_threads_and_any_chunks(executors, dtype):
    X = rows(3000).astype(np.float32)
    choice = RPCholesky(150, Laplace(2.0), subsample=2500, seed=4)
    (Z, ids), *others = (choice.choose(dataset(X, c), e, dtype) for c, e in zip((3000, 41, 64), executors, strict=True))
    for other in others:
        np.testing.assert_array_equal(ids, other.ids)
        np.testing.assert_array_equal(Z, other.Z)
    assert not np.array_equal(ids, RPCholesky(150, Laplace(2.0), 2500, seed=5).choose(dataset(X), executors[0], F4).ids)


@pytest.mark.parametrize("dtype", [F4, F8], ids=str)
def test_equal_rows_are_never_chosen_twice(executors, dtype):
    # Through float32 products two equal rows look a little apart to this kernel.
    distinct = rows(40, 100).astype(np.float32) + 30
    distinct[0] = 0
    repeated = np.concatenate([distinct, -distinct[:1], distinct, distinct])
    for seed in range(20):
        Z, ids = RPCholesky(40, Laplace(1.0), seed=seed).choose(dataset(repeated), executors[1], dtype)
        assert len(np.unique(Z, axis=0)) == 40
        np.testing.assert_array_equal(Z, repeated[ids])


def test_centers_are_scaled_rows_that_take_part_and_are_not_augmented(executors):
    X = rows(500)
    data = dataset(X).scale(3.0, 1.0).split(0.5)[0]
    noisy = data.augment(GaussianNoise(1.0), copies=2)
    Z, ids = RPCholesky(60, Laplace(3.0), subsample=100).choose(noisy, executors[1], F8)
    np.testing.assert_allclose(Z, 3 * X[ids] + 1, rtol=1e-12)
    assert set(ids.tolist()) <= set(data.draw(100, 0).tolist())


def test_too_few_distinct_rows_say_so(executors):
    data = dataset(np.repeat(rows(5), 30, axis=0))
    with pytest.raises(DataError, match="has 5 distinct ones, and 6 centers"):
        RPCholesky(6, Laplace(1.0)).choose(data, executors[0], F8)
    with pytest.raises(DataError, match="151 rows"):
        RPCholesky(151, Laplace(1.0)).choose(data, executors[0], F8)
