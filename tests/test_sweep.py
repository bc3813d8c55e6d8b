"""A sweep adds each row once in the tree's order; a gather brings rows in the order asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan
from streamkern.data.targets import Classes, Continuous
from streamkern.errors import DataError
from streamkern.execute.base import Stack
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.formats import ArraySource
from streamkern.sweep import ScanWork, gather, sweep


class CountingSource(ArraySource):
    """An array that notes which chunks were read."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.reads: list[int] = []

    def read(self, chunk):
        self.reads.append(chunk)
        return super().read(chunk)


@pytest.fixture(scope="module")
def executors():
    with ThreadsExecutor(1) as one, ThreadsExecutor(4) as four:
        yield one, four


def moments(block, state):
    return len(block.ids), block.X.sum(axis=0), Stack(block.ids.tolist())


def rows(n, d=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32)


@settings(max_examples=40)
@given(st.integers(1, 300), st.integers(1, 60), st.integers(1, 7), st.integers(1, 3))
def test_every_row_is_added_once_and_to_the_same_bits_on_any_threads(executors, n, chunk_rows, block_rows, copies):
    data = Dataset(ArraySource(rows(n), np.arange(n), chunk_rows=chunk_rows)).augment(GaussianNoise(1.0), copies=copies)
    one, four = (sweep(executor, ScanWork(Scan(Assembly(data), block_rows), moments)) for executor in executors)
    assert one[0] == n * copies
    assert list(one[2]) == list(range(n)) * copies  # the tree's order is the stored order
    np.testing.assert_array_equal(one[1], four[1])
    assert list(one[2]) == list(four[2])


def test_the_state_reaches_every_block(executors):
    scan = Scan(Assembly(Dataset(ArraySource(rows(100), chunk_rows=10))), 4)
    assert sweep(executors[1], ScanWork(scan, lambda block, state: (len(block.ids) * state,)), 2.5) == (100 * 2.5,)


def test_a_sweep_over_no_rows_says_so(executors):
    data, _ = Dataset(ArraySource(rows(3))).split(1 - 1e-9)
    with pytest.raises(DataError, match="no rows"):
        sweep(executors[0], ScanWork(Scan(Assembly(data)), moments))


def test_an_error_in_a_block_ends_the_sweep_and_the_executor_lives(executors):
    X = rows(500)
    data = Dataset(ArraySource(X, np.arange(500) % 3, chunk_rows=10))
    bad = ScanWork(Scan(Assembly(data, Classes(np.array([0, 1]))), 5), moments)
    with pytest.raises(DataError, match="label 2"):
        sweep(executors[1], bad)
    good = ScanWork(Scan(Assembly(data), 5), moments)
    assert sweep(executors[1], good)[0] == 500


@settings(max_examples=40)
@given(st.integers(1, 200), st.integers(1, 60), st.data())
def test_rows_are_gathered_in_the_order_asked_for(executors, n, chunk_rows, data):
    ids = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=60)), dtype=np.int64)
    source = CountingSource(rows(n), np.arange(n) % 5, chunk_rows=chunk_rows)
    source.in_memory = data.draw(st.booleans())
    dataset = Dataset(source).scale(2.0).augment(copies=3)
    X, y = gather(executors[1], Assembly(dataset, Classes(np.arange(5))), ids)
    np.testing.assert_array_equal(X, source._X[ids] * np.float32(2))
    np.testing.assert_array_equal(y, ids % 5)
    assert sorted(source.reads) == ([] if source.in_memory else np.unique(ids // chunk_rows).tolist())


def test_a_gathered_row_has_the_noise_of_copy_zero(executors):
    source = ArraySource(rows(50), chunk_rows=7)
    assembly = Assembly(Dataset(source).augment(GaussianNoise(1.0), copies=4, seed=3))
    first = np.concatenate([Scan(assembly, 50).block((i,)).X for i in range(8)])
    ids = np.array([49, 0, 7, 6])
    np.testing.assert_array_equal(gather(executors[0], assembly, ids)[0], first[ids])


@pytest.mark.parametrize(
    ("y", "encoding", "expected"),
    [
        (np.array(["b", "a", "long one"] * 10), Classes(np.array(["a", "b", "long one"])), [1, 0, 2] * 10),
        (np.array(["b", "a"] * 15, dtype=object), Classes(np.array(["a", "b"])), [1, 0] * 15),
        (np.arange(60.0).reshape(30, 2), Continuous(np.zeros(2), flat=False), np.arange(60.0).reshape(30, 2)),
        (np.arange(30), Continuous(np.ones(1)), np.arange(30.0)[:, None] - 1),
        (np.arange(30), None, None),
        (None, None, None),
    ],
    ids=["strings", "objects", "outputs", "values", "unwanted", "none"],
)
def test_targets_are_gathered_with_their_rows(executors, y, encoding, expected):
    ids = np.random.default_rng(0).permutation(30)[:20]
    X, found = gather(executors[1], Assembly(Dataset(ArraySource(rows(30), y, chunk_rows=4)), encoding), ids)
    np.testing.assert_array_equal(X, rows(30)[ids])
    if expected is None:
        assert found is None
    else:
        np.testing.assert_array_equal(found, np.asarray(expected)[ids])
