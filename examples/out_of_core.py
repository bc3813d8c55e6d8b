"""Write a data set block by block, then train on it under a memory budget. No more than a few chunks are held."""

from collections.abc import Iterator

import numpy as np

import streamkern as sk

ROWS, BLOCK, WIDTH = 400_000, 20_000, 64


def blocks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows as they would come from anywhere: (X, y), a block at a time."""
    for start in range(0, ROWS, BLOCK):
        X = np.random.default_rng(start).normal(size=(BLOCK, WIDTH)) / np.arange(1, WIDTH + 1)
        yield X.astype("float32"), (np.abs(X[:, 0]) + X[:, 1] > 0.8).astype("uint8")


if __name__ == "__main__":
    sk.write_zarr("rows.zarr", blocks(), n_rows=ROWS, target="far", overwrite=True)
    train, test = sk.open_dataset("rows.zarr", target="far").split(test=0.05)  # reads nothing
    pipeline = sk.Pipeline(train=train, test=test, kernel=sk.Gaussian(2.0), centers=sk.Uniform(500))
    result = sk.run(pipeline, "run", memory="600MiB")  # refused beforehand if it could not fit
    print(f"stored {ROWS * WIDTH * 4 / 2**20:.0f} MiB, accuracy {result['metrics']['test']['accuracy']:.3f}")
    print(
        f"peak {result['peak_memory_bytes'] / 2**20:.0f} MiB of the process, "
        f"projected {result['projected_memory_bytes'] / 2**20:.0f}"
    )
