"""Draws docs/img/augmentations.png: images of Fashion-MNIST as the stream delivers them.

python docs/img/augmentations.py [FOLDER OF THE IDX FILES] [OUT.png]
"""

from __future__ import annotations

import gzip
import struct
import sys
import zlib
from pathlib import Path

import numpy as np

import streamkern as sk
from streamkern.data.row_order import Assembly, Scan

SHAPE, IMAGES, ZOOM, GAP = (28, 28), 5, 2, 4

CHAINS = {
    "as stored": (),
    "GaussianNoise(0.15)": (sk.augment.GaussianNoise(0.15),),
    "HorizontalFlip": (sk.augment.HorizontalFlip(SHAPE, 1.0),),
    "RandomCrop": (sk.augment.RandomCrop(SHAPE, padding=4),),
    "RandomErasing": (sk.augment.RandomErasing(SHAPE, 1.0, value=0.5),),
    "FeatureDropout(0.2)": (sk.augment.FeatureDropout(0.2),),
    "MixUp(1.0)": (sk.augment.MixUp(1.0),),
    "flip, crop, erase, noise": (
        sk.augment.HorizontalFlip(SHAPE),
        sk.augment.RandomCrop(SHAPE),
        sk.augment.RandomErasing(SHAPE, value=0.5),
        sk.augment.GaussianNoise(0.05),
    ),
}


def main(folder: str = "/usr/share/datasets/fashion-mnist", out: str | None = None) -> None:
    """Write the picture."""
    with gzip.open(Path(folder) / "t10k-images-idx3-ubyte.gz") as file:
        X = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    data = sk.from_arrays(X).scale(1 / 255)
    columns = []
    for chain in CHAINS.values():
        scan = Scan(Assembly(data.augment(*chain, seed=1)), block_rows=IMAGES)
        columns.append(scan.block((2,)).X.reshape(-1, *SHAPE))
    height, width = (28 + GAP) * IMAGES + GAP, (28 + GAP) * len(columns) + GAP
    page = np.ones((height, width))
    for j, images in enumerate(columns):
        for i, image in enumerate(images):
            top, left = GAP + i * (28 + GAP), GAP + j * (28 + GAP)
            page[top : top + 28, left : left + 28] = 1 - np.clip(image, 0, 1) * 0.96 - 0.04
    pixels = (page * 255).round().astype(np.uint8).repeat(ZOOM, axis=0).repeat(ZOOM, axis=1)
    path = Path(out) if out else Path(__file__).with_suffix(".png")
    path.write_bytes(png(pixels))
    print(f"{path}: {path.stat().st_size:,} bytes; columns: {', '.join(CHAINS)}")


def png(pixels: np.ndarray) -> bytes:
    """A grey image, uint8, as a PNG file: signature, header, data, end."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = pixels.shape
    lines = np.zeros((height, width + 1), np.uint8)  # each line after the number of its filter, 0 for none
    lines[:, 1:] = pixels
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(*part) for part in ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
