"""Handwritten digits with noise: the embedded example.

scikit-learn's 1,797 digits, 8 x 8 pixels of 0 to 16, are written to zarr once; training sees them again and again with
fresh Gaussian noise, so that the rows of a pass are as many as you like and the memory does not change.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

import streamkern as sk

STORE = Path("data/digits.zarr")


def pixels_and_labels() -> np.ndarray:
    """The rows of scikit-learn's file; to import its data sets takes half a second, and 50 MiB for the whole run."""
    file = Path(find_spec("sklearn").origin).parent / "datasets" / "data" / "digits.csv.gz"
    return np.loadtxt(file, delimiter=",").astype("uint8")


def store() -> Path:
    """The digits as a zarr group, written where it is missing."""
    if not STORE.exists():
        table = pixels_and_labels()
        staging = STORE.with_suffix(".tmp")  # renamed when complete, so that what is there is whole
        sk.write_zarr(staging, table[:, :-1], table[:, -1], target="digit", chunk_rows=256, overwrite=True)
        staging.rename(STORE)
    return STORE


def pipeline(
    rows: int = 300_000,
    centers: int = 1000,
    noise: float = 0.05,
    bandwidth: float = 2.0,
    epochs: int = 1,
    seed: int = 0,
) -> sk.Pipeline:
    """Settings.

    Args:
        rows: training rows in a pass; more than are stored are noisy copies.
        centers: number of centers.
        noise: standard deviation of the noise, in units of the pixels' range.
        bandwidth: bandwidth of the Laplace kernel, in the same units.
        epochs: passes.
        seed: seed of split, centers, noise and order.
    """
    digits = sk.open_dataset(store(), target="digit").scale(1 / 16)
    train, test = digits.split(test=0.2, seed=seed)
    augmentations = [sk.augment.GaussianNoise(noise)] if noise else []
    return sk.Pipeline(
        train=train.augment(*augmentations, rows=rows, seed=seed),
        test=test,
        kernel=sk.Laplace(bandwidth),
        centers=sk.Uniform(centers, seed=seed),
        solver=sk.EigenPro(epochs=epochs),
        seed=seed,
    )
