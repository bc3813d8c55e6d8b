"""Shuffle quality is 1 for a random order, and what the stream's own batches show otherwise."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkern as sk
from streamkern.data.row_order import Assembly, Scan, Stream
from streamkern.data.statistics import RawScan
from streamkern.data.targets import Classes
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.formats import ArraySource
from streamkern.inspection.shuffle_quality import LabelVariation, shuffle_warning, stored_ratio, stream_ratio
from streamkern.sources import format_rules
from streamkern.sweep import ScanWork, sweep


def dataset(y, rows: int = 100) -> sk.Dataset:
    return sk.Dataset(ArraySource(np.zeros((len(y), 1), dtype=np.float32), y, chunk_rows=rows))


def ratio(y, batch: int, rows: int = 100, block_rows: int = 4096) -> float:
    pivot = None if y.dtype == object else np.asarray(y[0], dtype=np.float64).reshape(-1)
    scan = RawScan(Scan(Assembly(dataset(y, rows)), block_rows))
    with ThreadsExecutor(2) as executor:
        return stored_ratio(sweep(executor, ScanWork(scan, LabelVariation(pivot, batch))))


def defined(y, batch: int, rows: int) -> float:
    """Between-batch mean square over the variance, from one-hot labels or numbers."""
    Y = (y[:, None] == np.unique(y)).astype(float) if y.ndim == 1 else y
    parts = [
        Y[a : min(a + batch, c + rows)] for c in range(0, len(y), rows) for a in range(c, min(c + rows, len(y)), batch)
    ]
    between = sum(len(p) * np.square(p.mean(axis=0) - Y.mean(axis=0)).sum() for p in parts) / (len(parts) - 1)
    return between / Y.var(axis=0, ddof=1).sum()


@settings(max_examples=25)
@given(
    st.integers(60, 400), st.integers(2, 40), st.integers(41, 90), st.integers(2, 5), st.booleans(), st.integers(0, 99)
)
def test_the_ratio_is_the_one_of_the_analysis_of_variance(n, batch, rows, classes, text, seed):
    y = np.random.default_rng(seed).integers(0, classes, n)
    y[:2] = 0, 1
    y = np.sort(y) if seed % 2 else y
    labels = np.array([f"class {v}" for v in y], dtype=object) if text else y
    np.testing.assert_allclose(ratio(labels, batch, rows), defined(y, batch, rows), rtol=1e-9)


def test_several_outputs_are_measured_as_numbers():
    y = np.cumsum(np.random.default_rng(0).normal(size=(500, 2)), axis=0)
    np.testing.assert_allclose(ratio(y, 20), defined(y, 20, 100), rtol=1e-9)
    np.testing.assert_allclose(ratio(np.arange(5000.0), 20), defined(np.arange(5000.0)[:, None], 20, 100), rtol=1e-9)


def test_a_random_order_has_ratio_one_on_average_and_a_sorted_one_the_batch_size():
    y = np.repeat(np.arange(10), 400)
    ratios = [ratio(np.random.default_rng(seed).permutation(y), 20) for seed in range(12)]
    assert abs(np.mean(ratios) - 1) < 4 * np.std(ratios) / np.sqrt(12) + 0.01
    assert ratio(y, 20) == pytest.approx(20, rel=0.01)
    assert ratio(np.zeros(300, dtype=int), 20) == 1.0


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
            run_rows=1,
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
