"""Noise belongs to the row: a function of (seed, copy, row id), whatever the block it comes in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan, Stream
from streamkern.engine.elementwise import Loops
from streamkern.rng import normal_rows


def noisy(source, seed=5, copies=2, sigma=0.3) -> Dataset:
    return Dataset(source).scale(1 / 16, -1.0).augment(GaussianNoise(sigma), copies=copies, seed=seed)


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(sum),
    st.integers(1, 4),
    st.integers(1, 9),
    st.sampled_from(["float32", "float64"]),
    st.integers(-3, 1 << 70),
)
def test_rows_are_the_reference_noise_on_the_stored_rows(cut_source, sizes, lanes, block_rows, dtype, seed):
    source = cut_source(sizes, d=5)
    n, center = sum(sizes), np.linspace(-1, 1, 5)
    assembly = Assembly(noisy(source, seed), center=center, dtype=np.dtype(dtype))
    stream = Stream(assembly, lanes, block_rows, window_blocks=2)
    clean = source.X / 16 - 1 - center
    expected = {copy: clean + 0.3 * normal_rows(seed, copy, np.arange(n), 5) for copy in (0, 1)}
    for lane in range(lanes):
        for step in range(stream.steps):
            raw, order = stream._window(0, lane, step // 2)
            part = order[step % 2 * block_rows :][:block_rows]
            block = stream.block((0, lane, step))
            assert block.X.dtype == dtype
            rows = [expected[c][i] for c, i in zip(raw.copies[part].tolist(), block.ids.tolist(), strict=True)]
            np.testing.assert_allclose(block.X, np.reshape(rows, (-1, 5)), atol=2e-6)


def test_stacked_noise_adds_variances_and_both_dtypes_agree(cut_source):
    n = 3000
    source = cut_source([n], X=np.zeros((n, 5), np.uint8), y=np.zeros(n, np.int64))
    data = Dataset(source).augment(GaussianNoise(3.0), GaussianNoise(4.0), seed=2)
    single, double = (Scan(Assembly(data, dtype=np.dtype(t)), n).block((0,)).X for t in ("float32", "float64"))
    assert abs(single.std() - 5) < 0.2
    np.testing.assert_allclose(single, double, atol=1e-5)


class Doubling:
    """Something that does not commute with the shift to the centre."""

    def apply(self, X, row_ids, copies, seed, backend):
        X *= 2

    def to_json(self):
        return {"name": "Doubling"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_augmentations_see_rows_as_they_were_scaled(cut_source, dtype):
    source = cut_source([20])
    data = Dataset(source).scale(0.5).augment(Doubling())
    block = Scan(Assembly(data, center=np.ones(3), dtype=np.dtype(dtype)), 20).block((0,))
    np.testing.assert_allclose(block.X, source.X - 1.0)


def test_zero_noise_changes_nothing(cut_source):
    source = cut_source([20])
    block = Scan(Assembly(Dataset(source).augment(GaussianNoise(0.0)), loops=Loops()), 20).block((0,))
    np.testing.assert_array_equal(block.X, source.X)
