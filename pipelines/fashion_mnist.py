"""Fashion-MNIST, with the 120,000,000 noisy rows of "Toward Large Kernel Models" (2023), Figure 6, as the default.

The images come from Debian's package ``dataset-fashion-mnist`` where it is installed, from the folder that the setting
``source`` names, or from the upstream repository, and are written to zarr once.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import urllib.request
import zlib
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


def store(source: str | None) -> Path:
    """The two parts as zarr groups ``train.zarr`` and ``test.zarr``, written where they are missing.

    Args:
        source: folder that holds the four .gz files; None for Debian's package, else the upstream download.
    """
    # A folder of its own for each source: another source's rows must not be taken for these.
    folder = STORE if source is None else STORE / hashlib.sha256(str(Path(source).resolve()).encode()).hexdigest()[:16]
    for part, (images, labels, n) in FILES.items():
        place = folder / f"{part}.zarr"
        if not place.exists():
            X = _idx(images, source, (n, 784))
            y = _idx(labels, source, (n,))
            staging = place.with_suffix(".tmp")  # renamed when complete, so that what is there is whole
            sk.write_zarr(staging, X, y, target="label", overwrite=True)
            staging.rename(place)
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
    augmentations = [sk.augment.GaussianNoise(noise)] if noise else []
    return sk.Pipeline(
        train=train.augment(*augmentations, rows=rows, seed=seed),
        test=sk.open_dataset(folder / "test.zarr", target="label").scale(1 / 255),
        kernel=sk.Laplace(bandwidth),
        centers=sk.Uniform(centers, seed=seed),
        solver=sk.EigenPro(epochs=epochs, projection=projection),
        seed=seed,
    )


def _bytes(name: str, source: str | None) -> tuple[bytes, str]:
    """A file of the data set, and where it was found."""
    path = (Path(source) if source is not None else DEBIAN) / name
    if path.exists():
        return path.read_bytes(), str(path)
    if source is not None:
        raise sk.errors.StorageError(
            f"{name} is not here.", where=source, expected=", ".join(f for *files, _ in FILES.values() for f in files)
        )
    try:
        with urllib.request.urlopen(UPSTREAM + name, timeout=60) as answer:
            return answer.read(), UPSTREAM + name
    except OSError as error:
        raise sk.errors.StorageError(
            f"{name} could not be downloaded: {error}.",
            where=UPSTREAM,
            remedy="install Debian's package dataset-fashion-mnist, or give --set source=FOLDER",
        ) from error


def _idx(name: str, source: str | None, shape: tuple[int, ...]) -> np.ndarray:
    """A gzipped idx file of unsigned bytes, as an array of the shape it must have."""
    packed, where = _bytes(name, source)
    try:
        data = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise sk.DataError(
            f"The file is damaged: {error}.", where=where, expected="a gzipped idx file", remedy="fetch it again"
        ) from error
    # An idx file: 0, 0, the type (8 for bytes), the number of axes, their lengths, the values.
    axes = data[3] if data[:3] == b"\0\0\x08" and len(data) > 3 else 0
    lengths, values = data[4 : 4 + 4 * axes], np.frombuffer(data[4 + 4 * axes :], dtype=np.uint8)
    found = tuple(int.from_bytes(lengths[i : i + 4], "big") for i in range(0, len(lengths), 4))
    if found[:1] != shape[:1] or math.prod(found) != math.prod(shape) or values.size != math.prod(shape):
        raise sk.DataError(
            f"The file holds {values.size:,} values and says its shape is {found}.",
            where=where,
            expected=f"an idx file of {' x '.join(f'{n:,}' for n in shape)} bytes",
            remedy="fetch it again",
        )
    return values.reshape(shape)
