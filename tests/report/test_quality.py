"""Shuffle quality is 1 for a random order, and what the stream's own batches show otherwise."""

import tracemalloc

import numpy as np
import pytest

import streamkern as sk
from streamkern.data.row_order import Assembly, Stream
from streamkern.data.targets import Classes
from streamkern.formats import ArraySource
from streamkern.inspection.shuffle_quality import shuffle_warning, stream_ratio
from streamkern.sources import format_rules


def dataset(y, rows: int = 100) -> sk.Dataset:
    return sk.Dataset(ArraySource(np.zeros((len(y), 1), dtype=np.float32), y, chunk_rows=rows))


def measured(data: sk.Dataset, mix: int, lanes: int, batch: int) -> float:
    """Variance of the label means of the batches that a stream really makes, over a random order's."""
    y = np.concatenate([data.source.read(c).y for c in range(len(data.source.bounds) - 1)])
    kinds = np.unique(y)
    squares, seen = 0.0, 0
    for pass_ in range(8):
        stream = Stream(
            Assembly(data, Classes(kinds)),
            lanes=lanes,
            block_rows=batch // lanes,
            mix_chunks=mix,
            seed=pass_,
        )
        for step in range(stream.steps - 1):
            codes = np.concatenate([stream.block((pass_, lane, step)).y for lane in range(lanes)])
            shares = np.bincount(codes, minlength=len(kinds)) / len(codes)
            squares += np.square(shares - np.bincount(np.searchsorted(kinds, y)) / len(y)).sum() * len(codes)
            seen += 1
    return squares / seen / (1 - np.square(np.unique(y, return_counts=True)[1] / len(y)).sum())


@pytest.mark.slow
@pytest.mark.parametrize(("mix", "lanes", "batch"), [(1, 4, 64), (4, 4, 64), (16, 2, 100), (2, 1, 40)])
def test_the_estimate_for_the_stream_is_near_what_its_batches_show(mix, lanes, batch):
    data = dataset(np.repeat(np.arange(10), 2000), rows=200)
    estimate = stream_ratio(data, mix, lanes, batch)
    assert estimate == pytest.approx(measured(data, mix, lanes, batch), rel=0.4)
    assert stream_ratio(data, 100, lanes, batch) == 1.0  # all chunks are mixed


@pytest.mark.parametrize("labels", [None, "{}"])
def test_a_random_order_has_ratio_one_on_average_and_a_sorted_one_the_batch_size(labels):
    y = np.repeat(np.arange(10), 2000)
    y = y if labels is None else np.array([labels.format(value) for value in y], dtype=object)
    ratios = [stream_ratio(dataset(np.random.default_rng(seed).permutation(y)), 1, 1, 50) for seed in range(12)]
    assert abs(np.mean(ratios) - 1) < 4 * np.std(ratios) / np.sqrt(12) + 0.01
    assert stream_ratio(dataset(y), 1, 1, 50) == pytest.approx(50, rel=0.1)
    assert stream_ratio(dataset(np.zeros(300, dtype=int)), 1, 1, 50) == 1.0


def test_a_small_last_chunk_is_no_order():
    """Its label mean is far from the others' by chance."""
    for seed in range(20):
        y = np.random.default_rng(seed).permutation(np.repeat(np.arange(4), 501)[:2002])
        assert stream_ratio(dataset(y, 400), 1, 1, 256) < 2


def test_rows_without_a_label_are_left_out():
    y = np.repeat(np.arange(10.0), 400)
    gaps = np.where(np.arange(len(y)) % 100 == 7, np.nan, y)
    assert stream_ratio(dataset(gaps), 1, 1, 50) == pytest.approx(stream_ratio(dataset(y), 1, 1, 50), rel=0.02)
    assert stream_ratio(dataset(np.full(400, np.nan)), 1, 1, 50) is None


def test_training_is_warned_of_sorted_rows_and_not_of_shuffled_ones(tmp_path):
    y = np.repeat(np.arange(10), 2000)
    assert "streamkern ingest" in shuffle_warning(dataset(y), mix_chunks=2, lanes=4, batch=400)
    assert shuffle_warning(dataset(np.random.default_rng(0).permutation(y)), mix_chunks=2, lanes=4, batch=400) is None
    assert shuffle_warning(dataset(np.sort(np.random.default_rng(0).normal(size=20_000))), 2, 4, 400) is not None
    assert shuffle_warning(sk.Dataset(ArraySource(np.eye(50), chunk_rows=5)), 2, 4, 400) is None  # no target
    assert shuffle_warning(dataset(y), mix_chunks=2, lanes=4, batch=None) is None  # every step sees all rows


def test_a_recorded_shuffle_is_trusted_and_nothing_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 2000)
    y = np.repeat(np.arange(10), 2000)
    sk.write_zarr(tmp_path / "sorted.zarr", np.zeros((20_000, 1), dtype=np.float32), y, chunk_rows=500)
    plain = sk.open_dataset(tmp_path / "sorted.zarr", target="target")
    assert shuffle_warning(plain, mix_chunks=2, lanes=4, batch=400) is not None
    for name in ("shuffled.zarr", "shuffled.parquet"):
        sk.ingest(tmp_path / "sorted.zarr", tmp_path / name, target="target", shuffle=True, memory="8GiB")
        made = sk.open_dataset(tmp_path / name)
        assert made.source.shuffled
        assert made.split(0.2)[0].source.shuffled
        with monkeypatch.context() as patch:
            patch.setattr(type(made.source), "read", lambda self, chunk: pytest.fail("read"))
            assert shuffle_warning(made, mix_chunks=2, lanes=4, batch=400) is None


def test_labels_of_one_chunk_are_held_at_a_time():
    rows, chunks = 5000, 64
    labels = np.array(["late", "in time"], dtype=object)[np.arange(rows * chunks) % 2]
    data = dataset(labels, rows)
    tracemalloc.start()
    try:
        assert stream_ratio(data, 2, 4, 256) == pytest.approx(1.0, abs=0.1)
        assert tracemalloc.get_traced_memory()[1] < 16 * rows * 8  # of 64 chunks of pointers
    finally:
        tracemalloc.stop()
