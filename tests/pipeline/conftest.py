from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk


def _write(place: Path, n: int = 600, d: int = 6, seed: int = 0) -> Path:
    """Two overlapping clouds of points, as a zarr group of several chunks."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    X = rng.standard_normal((n, d)) + 2.0 * y[:, None]
    sk.write_zarr(place, X.astype("float32"), y, target="label", chunk_rows=128)
    return place


@pytest.fixture
def write_rows() -> Callable[..., Path]:
    return _write


@pytest.fixture(scope="session")
def maker() -> Callable[[Path], Callable[..., sk.Pipeline]]:
    """Writes rows to a folder, and returns what makes small pipelines over them."""

    def written(folder: Path) -> Callable[..., sk.Pipeline]:
        train_rows, test_rows = _write(folder / "train.zarr"), _write(folder / "test.zarr", 200, seed=1)

        def pipeline(**changes: object) -> sk.Pipeline:
            noise = changes.pop("noise", 0.1)
            train = sk.open_dataset(changes.pop("rows", train_rows), target="label")
            given: dict[str, object] = {
                "train": train.augment(sk.augment.GaussianNoise(noise), copies=3, seed=changes.pop("augment_seed", 0)),
                "test": sk.open_dataset(test_rows, target="label"),
                "kernel": sk.Laplace(2.0),
                "centers": sk.Uniform(40),
                "solver": sk.EigenPro(),
                "name": "clouds",
            }
            return sk.Pipeline(**(given | changes))

        return pipeline

    return written


@pytest.fixture
def make(maker: Callable[[Path], Callable[..., sk.Pipeline]], tmp_path: Path) -> Callable[..., sk.Pipeline]:
    """Makes small pipelines over the same stored rows."""
    return maker(tmp_path)
