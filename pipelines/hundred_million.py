"""100,000,000 rows of 18 columns that really are on disk: 7.2 GB of float32, made once by this file.

Two classes, the sides of a curved surface through the first eight columns; the other ten say nothing. One label in
twenty is wrong, so that no model can be right more often than in 95% of the rows. Columns are in units as unlike as
those of tables in the wild, from 0.01 to 300.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

import streamkern as sk

STORE = Path("data/hundred_million")
COLUMNS = 18
UNITS = np.array([1.0, 0.01, 300.0, 7.0, 0.3, 40.0] * 3, dtype=np.float32)
WRONG = 0.05
TEST_ROWS = 20_000
BLOCK = 1 << 16


def block(rows: int, seed: int, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Some rows: features uniform in [0, 1] of their units, shape (rows, 18), and labels 0 and 1, shape (rows,)."""
    rng = np.random.default_rng((seed, number))
    X = rng.random((rows, COLUMNS), dtype=np.float32)
    x = X.T
    height = np.sin(3 * x[0] + 2 * x[1]) * np.cos(4 * x[2]) + (x[3] - x[4]) * (1 + x[5]) + 2 * (x[6] - 0.5) * x[7]
    return X * UNITS, ((height > 0) ^ (rng.random(rows) < WRONG)).astype(np.uint8)


def blocks(rows: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All of them, one block at a time."""
    for number, start in enumerate(range(0, rows, BLOCK)):
        yield block(min(BLOCK, rows - start), seed, number)


def store(rows: int) -> tuple[Path, Path]:
    """Training and test rows as zarr groups, written where they are missing."""
    parts = STORE / f"train-{rows}.zarr", STORE / f"test-{TEST_ROWS}.zarr"
    for seed, (place, size) in enumerate(zip(parts, (rows, TEST_ROWS), strict=True)):
        if not place.exists():
            staging = place.with_suffix(".tmp")  # renamed when complete, so that what is there is whole
            sk.write_zarr(staging, blocks(size, seed), target="label", n_rows=size, overwrite=True)
            staging.rename(place)
    return parts


def pipeline(
    rows: int = 100_000_000,
    centers: int = 1000,
    noise: float = 0.0,
    bandwidth: float = 1.5,
    epochs: int = 1,
    seed: int = 0,
    leaf_rows: int = 0,
) -> sk.Pipeline:
    """Settings.

    Args:
        rows: training rows on disk; each number of rows is a data set of its own, of which the smaller are the first
            rows of the larger.
        centers: number of centers, drawn from the rows.
        noise: standard deviation of noise added to the rows, in units of each column.
        bandwidth: bandwidth of the Gaussian kernel, in the same units.
        epochs: passes.
        seed: seed of centers and order.
        leaf_rows: rows of a leaf of a partition, each with its own centers; one model by default.
    """
    train, test = store(rows)
    augmentations = [sk.augment.GaussianNoise(noise)] if noise else []
    return sk.Pipeline(
        train=sk.open_dataset(train).scale(1 / UNITS).augment(*augmentations, seed=seed),
        test=sk.open_dataset(test).scale(1 / UNITS),
        kernel=sk.Gaussian(bandwidth),
        centers=sk.Uniform(centers, seed=seed),
        solver=sk.EigenPro(epochs=epochs),
        seed=seed,
        partition=sk.Partition(rows=leaf_rows) if leaf_rows else None,
    )
