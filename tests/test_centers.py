"""Uniform and given centers."""

from __future__ import annotations

import numpy as np
import pytest

from streamkern.centers import Given, Uniform
from streamkern.data import from_arrays
from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.errors import DataError, UsageError
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.formats import ArraySource

F32 = np.dtype(np.float32)


def rows(n: int = 500) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, 6)).astype(np.uint8)


@pytest.fixture(scope="module")
def executor():
    with ThreadsExecutor(2) as pool:
        yield pool


def test_they_are_distinct_rows_as_they_are_scaled(executor: ThreadsExecutor):
    X = rows()
    Z, ids = Uniform(100).choose(from_arrays(X).scale(1 / 255), executor, F32)
    assert Z.dtype == F32
    assert len(np.unique(ids)) == 100
    np.testing.assert_allclose(Z, X[ids] / 255, rtol=1e-6)


@pytest.mark.parametrize("chunk_rows", [1, 7, 128, 500])
def test_chunks_and_threads_do_not_matter(chunk_rows: int):
    for threads in (1, 2):
        with ThreadsExecutor(threads) as executor:
            found = Uniform(50).choose(Dataset(ArraySource(rows(), chunk_rows=chunk_rows)), executor, F32)
        np.testing.assert_array_equal(found.Z, rows()[found.ids].astype(F32))
        np.testing.assert_array_equal(found.ids, from_arrays(rows()).draw(50, 0))


def test_fewer_are_the_first_of_more(executor: ThreadsExecutor):
    """So the first s of p centers are a uniform draw too."""
    data = from_arrays(rows())
    more, fewer = (Uniform(p).choose(data, executor, F32) for p in (200, 30))
    np.testing.assert_array_equal(more.ids[:30], fewer.ids)
    assert not np.array_equal(np.sort(more.ids), more.ids)


def test_another_seed_is_another_draw(executor: ThreadsExecutor):
    data = from_arrays(rows())
    assert not np.array_equal(
        Uniform(50).choose(data, executor, F32).ids, Uniform(50, seed=1).choose(data, executor, F32).ids
    )


def test_every_row_is_as_likely():
    counts = np.zeros(60)
    for seed in range(600):
        counts[from_arrays(rows(60)).draw(20, seed)] += 1
    assert abs(counts - 200).max() < 5 * np.sqrt(600 * (1 / 3) * (2 / 3))


def test_they_are_not_augmented(executor: ThreadsExecutor):
    data = from_arrays(rows())
    noisy = data.augment(GaussianNoise(10.0), copies=3)
    np.testing.assert_array_equal(Uniform(50).choose(noisy, executor, F32).Z, Uniform(50).choose(data, executor, F32).Z)


def test_all_rows_can_be_centers_and_no_more(executor: ThreadsExecutor):
    data = from_arrays(rows(40))
    assert sorted(Uniform(40).choose(data, executor, F32).ids) == list(range(40))
    with pytest.raises(DataError, match="40"):
        Uniform(41).choose(data, executor, F32)
    with pytest.raises(UsageError, match="at least 1"):
        Uniform(0)


def test_given_centers_are_taken_as_they_are(executor: ThreadsExecutor):
    Z = np.random.default_rng(0).normal(size=(7, 6))
    given = Given(Z)
    found = given.choose(from_arrays(rows()), executor, F32)
    np.testing.assert_array_equal(found.Z, Z.astype(F32))
    assert found.ids is None
    assert given.count(from_arrays(rows())) == 7
    found.Z[:] = 0
    assert Z.any()


@pytest.mark.parametrize("Z", [np.zeros((3, 5)), np.zeros(6), np.zeros((0, 6)), np.full((2, 6), np.nan)])
def test_given_centers_that_do_not_fit(executor: ThreadsExecutor, Z: np.ndarray):
    with pytest.raises((DataError, UsageError), match=r"shape \(p, (6|d)\)"):
        Given(Z).choose(from_arrays(rows()), executor, F32)


def test_descriptions_tell_centers_apart():
    Z = np.ones((2, 3))
    assert Uniform(5, seed=2).to_json() == {"name": "Uniform", "p": 5, "seed": 2}
    assert Given(Z).to_json() == Given(Z.astype(np.float32)).to_json()
    assert Given(Z).to_json() != Given(2 * Z).to_json()
