"""A hundred million rows cost nothing to describe and about a millisecond to seek in; state is O(chunks)."""

import pickle
import tracemalloc
from functools import partial

import numpy as np
import pytest

from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan, Stream
from streamkern.sources.base import Source
from streamkern.types import Rows, Target
from tests.clock import processor_seconds, require_quick


class Virtual(Source):
    """Many rows of zeros, made when they are read."""

    def __init__(self, rows, chunk_rows):
        self.bounds = np.append(np.arange(0, rows, chunk_rows, dtype=np.int64), np.int64(rows))
        self.n_features, self.columns, self.dtype = 2, None, np.dtype(np.uint8)
        self.target = Target("target", np.dtype(np.int64))

    @property
    def fingerprint(self):
        return "virtual"

    def read(self, chunk):
        a, b = self.bounds[chunk], self.bounds[chunk + 1]
        return Rows(np.zeros((b - a, 2), np.uint8), np.arange(a, b) % 10)

    def where(self, chunk):
        return f"chunk {chunk}"


def seek(stream: Stream, place: tuple[int, int, int]) -> float:
    """Seconds of the processor until a block in the middle of a pass is there."""
    return processor_seconds(partial(stream.block, place))


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    Stream(Assembly(Dataset(Virtual(10, 10)).augment(GaussianNoise(1.0))), 1, 8).block((0, 0, 0))


MANY = {
    "copies": lambda: Dataset(Virtual(60_000, 5_000)).augment(GaussianNoise(0.1), copies=2000),
    "chunks": lambda: Dataset(Virtual(100_000_000, 4_000)),
}


@pytest.mark.parametrize("describe", MANY.values(), ids=MANY)
def test_seeking_far_into_a_pass_takes_milliseconds(describe):
    # The bounds leave room for a slow machine: 0.1 ms, then 0.8 and 0.3 ms, of the processor.
    def begin() -> Stream:
        stream = Stream(Assembly(describe()), lanes=4, block_rows=256, mix_chunks=12)
        assert stream.rows >= 100_000_000
        assert max(map(stream.lane_rows, range(stream.lanes))) > 256 * (stream.steps - 1)
        return stream

    require_quick(begin, 0.5)
    stream = begin()
    last = stream.steps - 1
    assert min(seek(stream, (pass_, 3, last)) for pass_ in range(5)) < 0.02
    assert min(seek(stream, (9, 2, last - 64 * i)) for i in range(8)) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("part", ["split", "sample"])
def test_a_choice_among_a_hundred_million_rows_is_counted_in_seconds(part):
    data = Dataset(Virtual(100_000_000, 4_000))
    chosen: list[Dataset] = []

    def choose() -> None:
        chosen[:] = [data.split(0.2)[0] if part == "split" else data.sample(50_000_000)]
        Stream(Assembly(chosen[0]), lanes=4, block_rows=256, mix_chunks=12)

    require_quick(choose, 10)  # 0.7 and 1.3 s
    stream = Stream(Assembly(chosen[0]), lanes=4, block_rows=256, mix_chunks=12)
    assert min(seek(stream, (0, 1, 64 * i + 3000)) for i in range(8)) < 0.02
    if part == "sample":
        assert stream.rows == 50_000_000


@pytest.mark.slow
def test_state_is_of_the_size_of_the_chunk_list():
    source = Virtual(100_000_000, 4_000)
    chunks = len(source.bounds)
    tracemalloc.start()
    data = Dataset(source).sample(30_000_000)
    stream = Stream(Assembly(data), lanes=4, block_rows=256, mix_chunks=4)
    described = tracemalloc.get_traced_memory()[1]
    for i in range(40):
        stream.block((0, i % 4, 1000 * i))
    Scan(Assembly(data))
    built = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert described < 200 * chunks  # 5 MB, and two hashed blocks of ids
    orders = 8 * stream._orders.budget
    assert built - described < 4 * orders + 300 * chunks
    assert orders < 8 * ((1 << 17) + 5 * 16_000) + 1
    assert len(pickle.dumps(stream)) < 40 * chunks + 10_000


def test_a_large_draw_keeps_what_it_draws():
    tracemalloc.start()
    ids = Dataset(Virtual(10_000_000, 4_000)).draw(1000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(ids)) == 1000
    assert peak < 8_000_000
