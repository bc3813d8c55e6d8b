"""Chunks are read once while they fit, by any number of threads, and a failed read can be tried again."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkern.data.chunk_cache import CachedReader
from streamkern.data.dataset import Dataset

CHUNK = 10 * (3 + 8)  # ten rows of three bytes and a target


def held(reader: CachedReader) -> int:
    return sum(chunk.nbytes for chunk in reader._chunks.values())


@given(st.integers(0, 6 * CHUNK), st.lists(st.integers(0, 7), max_size=60))
def test_the_most_recent_chunks_stay_within_the_budget(cut_source, budget, order):
    source = cut_source([10] * 8)
    reader = CachedReader(Dataset(source), budget)
    capacity = max(1, budget // CHUNK)
    recent: list[int] = []
    expected = 0
    for index in order:
        chunk = reader.chunk(index)
        assert chunk.first == source.bounds[index]
        np.testing.assert_array_equal(chunk.X, source.X[chunk.first : chunk.first + 10])
        expected += index not in recent
        recent = [*(i for i in recent if i != index), index][-capacity:]
        assert sum(source.reads.values()) == expected
        assert held(reader) == reader._held <= max(budget, CHUNK)


def test_threads_that_want_one_chunk_read_it_once(cut_source):
    source = cut_source([10] * 4)
    read = source.read

    def slow(chunk):
        threading.Event().wait(0.01)  # long enough for the other threads to ask
        return read(chunk)

    source.read = slow
    reader = CachedReader(Dataset(source), 1 << 20)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(reader.chunk, [0, 1, 2, 3] * 8))
    assert set(source.reads.values()) == {1}


def test_threads_do_not_push_out_one_anothers_chunk(cut_source):
    # Two threads go through a chunk each, block by block, with a budget of less than one chunk.
    source = cut_source([10, 10])
    reader, turn = CachedReader(Dataset(source), 1), threading.Barrier(2)

    def walk(index):
        for _ in range(20):
            turn.wait()
            reader.chunk(index)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(walk, [0, 1]))
    assert dict(source.reads) == {0: 1, 1: 1}


@settings(max_examples=20)
@given(st.integers(0, 3 * CHUNK), st.lists(st.integers(0, 5), min_size=1, max_size=100))
def test_the_account_stays_right_under_threads(cut_source, budget, order):
    reader = CachedReader(Dataset(cut_source([10] * 6)), budget)
    with ThreadPoolExecutor(6) as pool:
        for chunk, index in zip(pool.map(reader.chunk, order), order, strict=True):
            assert chunk.first == 10 * index
    assert held(reader) == reader._held <= max(budget, CHUNK)
    assert not reader._reading


def test_a_failure_reaches_one_thread_and_the_others_try_again(cut_source):
    source = cut_source([10])
    source.fail = {0}
    reader = CachedReader(Dataset(source), 1 << 20)
    with ThreadPoolExecutor(4) as pool:
        results = [future.exception() for future in [pool.submit(reader.chunk, 0) for _ in range(8)]]
    assert sum(isinstance(error, OSError) for error in results) == 1
    assert source.reads[0] == 2
