"""Regression on a table of 18 columns, made here: the function is known, and so is the least error there can be.

Twelve columns matter and six do not. The target is Friedman's first function (Multivariate Adaptive Regression Splines,
1991) of ``x0`` to ``x4``, an absolute difference, a modulated wave and an exponential of ``x5`` to ``x11``, and normal
noise of variance 1. Columns are in units as unlike as those of tables in the wild, from 0.01 to 300. So R2 is at most
1 - 1 / Var(y), about 0.97.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import streamkern as sk

STORE = Path("data/regression.zarr")
ROWS = 60_000
COLUMNS = tuple(f"x{i}" for i in range(18))
UNITS = np.array([1.0, 0.01, 300.0] * 6)


def function(U: np.ndarray) -> np.ndarray:
    """The target without its noise, of rows uniform in [0, 1]^18: shape (n, 18) to (n,)."""
    x = U.T
    friedman = 10 * np.sin(np.pi * x[0] * x[1]) + 20 * (x[2] - 0.5) ** 2 + 10 * x[3] + 5 * x[4]
    wave = 4 * x[7] * np.cos(2 * np.pi * x[8])
    return friedman + 8 * np.abs(x[5] - x[6]) + wave + 6 * np.exp(-2 * x[9] * x[10]) * x[11]


def table(rows: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the table: features of shape (rows, 18), each column in its unit, and targets of shape (rows,)."""
    rng = np.random.default_rng(seed)
    U = rng.random((rows, len(COLUMNS)))
    return (U * UNITS).astype(np.float32), (function(U) + rng.standard_normal(rows)).astype(np.float32)


def store() -> Path:
    """The table as a zarr group, written where it is missing."""
    if not STORE.exists():
        staging = STORE.with_suffix(".tmp")  # renamed when complete, so that what is there is whole
        sk.write_zarr(staging, *table(ROWS), target="y", columns=list(COLUMNS), overwrite=True)
        staging.rename(STORE)
    return STORE


def pipeline(
    rows: int = 50_000,
    centers: int = 2000,
    noise: float = 0.0,
    bandwidth: float = 8.0,
    epochs: int = 4,
    seed: int = 0,
) -> sk.Pipeline:
    """Settings.

    Args:
        rows: training rows in a pass; beyond the 50,000 that are stored they are copies, noisy ones with noise.
        centers: number of centers, drawn from the rows.
        noise: standard deviation of the noise, in units of each column's standard deviation.
        bandwidth: bandwidth of the Gaussian kernel, in the same units.
        epochs: passes.
        seed: seed of split, centers, noise and order.
    """
    train, test = sk.open_dataset(store(), target="y").split(test=1 / 6, seed=seed)
    augmentations = [sk.augment.GaussianNoise(noise)] if noise else []
    return sk.Pipeline(
        train=train.augment(*augmentations, rows=rows, seed=seed),
        test=test,
        preprocess=(sk.Standardise(),),
        kernel=sk.Gaussian(bandwidth),
        centers=sk.Uniform(centers, seed=seed),
        solver=sk.EigenPro(epochs=epochs),
        task="regression",
        seed=seed,
    )
