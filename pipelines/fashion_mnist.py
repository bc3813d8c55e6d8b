"""Fashion-MNIST, with the 120,000,000 noisy rows of "Toward Large Kernel Models" (2023), Figure 6, as the default.

The images come from Debian's package ``dataset-fashion-mnist`` where it is installed, from the folder that the setting
``source`` names, or from the upstream repository, and are written to zarr once.
"""

from __future__ import annotations

import gzip
import urllib.request
from pathlib import Path

import numpy as np

import streamkern as sk

STORE = Path("data/fashion_mnist")
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
UPSTREAM = "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"
FILES = {
    "train": ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", 60_000),
    "test": ("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz", 10_000),
}


def store(source: str | None, folder: Path = STORE) -> Path:
    """The two parts as zarr groups ``train.zarr`` and ``test.zarr``, written where they are missing.

    Args:
        source: folder that holds the four .gz files; None for Debian's package, else the upstream download.
        folder: where to write.
    """
    for part, (images, labels, n) in FILES.items():
        place = folder / f"{part}.zarr"
        if not place.exists():
            X = _idx(_bytes(images, source), (n, 784))
            y = _idx(_bytes(labels, source), (n,))
            sk.write_zarr(str(place), X, y, target="label")
    return folder


def pipeline(
    rows: int = 120_000_000,
    centers: int = 10_000,
    noise: float = 0.1,
    bandwidth: float = 20.0,
    epochs: int = 1,
    projection: str = "auto",
    seed: int = 0,
    source: str | None = None,
) -> sk.Pipeline:
    """Settings; ``rows=60_000 noise=0`` is the plain data set.

    Args:
        rows: training rows in a pass; more than 60,000 are noisy copies.
        centers: number of centers, drawn from the images.
        noise: standard deviation of the noise, in units of the pixels' range.
        bandwidth: bandwidth of the Laplace kernel, in the same units.
        epochs: passes.
        projection: auto, exact, inexact or delayed.
        seed: seed of centers, noise and order.
        source: folder with the four files of the data set; looked for by default.
    """
    folder = store(source)
    train = sk.open_dataset(folder / "train.zarr", target="label").scale(1 / 255)
    augmentations = [sk.GaussianNoise(noise)] if noise else []
    return sk.Pipeline(
        train=train.augment(*augmentations, rows=rows, seed=seed),
        test=sk.open_dataset(folder / "test.zarr", target="label").scale(1 / 255),
        kernel=sk.Laplace(bandwidth),
        centers=sk.Uniform(centers, seed=seed),
        solver=sk.EigenPro(epochs=epochs, projection=projection),
        seed=seed,
    )


def _bytes(name: str, source: str | None) -> bytes:
    folder = Path(source) if source is not None else DEBIAN
    if (folder / name).exists():
        return (folder / name).read_bytes()
    if source is not None:
        raise sk.StorageError(
            f"{name} is not here.", where=source, expected=f"the files {', '.join(f for p in FILES.values() for f in p[:2])}"
        )
    try:
        with urllib.request.urlopen(UPSTREAM + name, timeout=60) as answer:
            data: bytes = answer.read()
            return data
    except OSError as error:
        raise sk.StorageError(
            f"{name} could not be downloaded: {error}.",
            where=UPSTREAM,
            remedy="install Debian's package dataset-fashion-mnist, or give --set source=FOLDER",
        ) from error


def _idx(packed: bytes, shape: tuple[int, ...]) -> np.ndarray:
    """Bytes of an idx file of unsigned bytes, as an array of the shape it must have."""
    data = gzip.decompress(packed)
    header = 4 + 4 * data[3]
    found = tuple(int(v) for v in np.frombuffer(data[4:header], dtype=">u4"))
    values = np.frombuffer(data, dtype=np.uint8, offset=header)
    if found[0] != shape[0] or values.size != int(np.prod(shape)):
        raise sk.DataError(f"An idx file has shape {found}.", expected=f"{shape[0]} rows of Fashion-MNIST")
    return values.reshape(shape)
