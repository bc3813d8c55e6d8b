"""Randomly pivoted Cholesky: the distribution of the pivots, and what they span."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkern.centers import RPCholesky
from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.errors import DataError
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.formats import ArraySource
from streamkern.kernels import Gaussian, Kernel, Laplace

F4, F8 = np.dtype(np.float32), np.dtype(np.float64)


@dataclass(frozen=True)
class Plane(Kernel):
    """k(x, z) = ⟨x, z⟩, whose matrices have the rank of the rows."""

    def apply(self, S, x_norms, z_norms, backend):
        pass

    def diag(self, X):
        return (X**2).sum(axis=1)


@pytest.fixture(scope="module")
def executors():
    with ThreadsExecutor(1) as one, ThreadsExecutor(4) as four:
        yield one, four


def dataset(X, chunk_rows=64):
    return Dataset(ArraySource(X, chunk_rows=chunk_rows))


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


@pytest.mark.slow
def test_pivots_have_the_distribution_of_one_at_a_time(executors):
    X = np.array([0.0, 0.4, 0.9, 2.0, 2.1, 7.0])[:, None]
    kernel, p, runs = Laplace(2.0), 4, 1500

    def likelihood(order):
        chance = 1.0
        for i in range(p):
            weights = residual(kernel, X, X[list(order[:i])]) if i else kernel.diag(X)
            chance *= weights[order[i]] / weights.sum()
        return chance

    expected, found = {}, {}
    for order in permutations(range(len(X)), p):
        key = tuple(sorted(order))
        expected[key] = expected.get(key, 0.0) + runs * likelihood(order)
    data = dataset(X)
    for seed in range(runs):
        key = tuple(sorted(RPCholesky(p, kernel, seed=seed).choose(data, executors[0], F8).ids.tolist()))
        found[key] = found.get(key, 0) + 1
    chi = sum((found.get(key, 0) - e) ** 2 / e for key, e in expected.items())
    assert chi < 36.1  # 14 degrees of freedom: one run in a thousand


@pytest.mark.parametrize("dtype", [F4, F8], ids=str)
def test_the_same_rows_on_any_threads_and_any_chunks(executors, dtype):
    X = rows(3000).astype(np.float32)
    choice = RPCholesky(150, Laplace(2.0), subsample=2500, seed=4)
    (Z, ids), *others = (choice.choose(dataset(X, c), e, dtype) for c, e in zip((3000, 41, 64), executors * 2))  # noqa: B905
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


def test_a_row_that_is_not_finite_is_refused(executors):
    X = rows(50)
    X[7, 1] = np.inf
    with pytest.raises(DataError, match="not finite") as caught:
        RPCholesky(5, Laplace(1.0)).choose(dataset(X), executors[0], F8)
    assert caught.value.where == "row 7"


def test_what_was_asked_for_is_json():
    asked = RPCholesky(7, Gaussian(2.0), seed=3)
    assert json.loads(json.dumps(asked.to_json())) == {
        "name": "RPCholesky", "p": 7, "kernel": {"name": "Gaussian", "bandwidth": 2.0}, "subsample": None, "seed": 3
    }  # fmt: skip
    assert asked.count(dataset(rows(9))) == 7
