"""Augmentations of images: rows are pixels in the order height x width (x channels)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.augment import require_probability
from streamkern.engine.elementwise import Loops
from streamkern.errors import DataError, UsageError, require_finite, require_types
from streamkern.rng import uniform_rows
from streamkern.types import Array, IntArray, Parameters

Shape = tuple[int, int] | tuple[int, int, int]
"""Height and width, or height, width and channels."""


@dataclass(frozen=True)
class RandomCrop(Parameters):
    """Pad an image on every side, and crop it to its original size at a uniformly random position.

    The image is shifted by at most ``padding`` pixels in each direction (LeCun et al. 1998; He et al. 2016).

    Args:
        shape: height and width of the stored images, or height, width and channels.
        padding: pixels on each side.
        value: value of the padding, in units of the scaled features.

    Raises:
        UsageError: a parameter is out of range.
    """

    shape: Shape
    padding: int = 4
    value: float = 0.0

    def __post_init__(self) -> None:
        _require_shape(self)
        require_types(self)
        require_finite(self)
        if self.padding < 0:
            raise UsageError(f"padding is {self.padding}.", where="RandomCrop(padding=...)", expected="at least 0")

    def apply(self, X: Array, row_ids: IntArray, copies: IntArray, seed: int, loops: Loops) -> None:
        images = _images(X, self)
        n, height, width, channels = images.shape
        pad = self.padding
        padded = np.full((n, height + 2 * pad, width + 2 * pad, channels), self.value, dtype=X.dtype)
        padded[:, pad : pad + height, pad : pad + width] = images
        down, right = (uniform_rows(seed, copies, row_ids, 2) * (2 * pad + 1)).astype(np.int64).T
        for i, j in sorted(set(zip(down.tolist(), right.tolist(), strict=True))):
            rows = np.flatnonzero((down == i) & (right == j))
            images[rows] = padded[rows, i : i + height, j : j + width]


@dataclass(frozen=True)
class HorizontalFlip(Parameters):
    """Mirror an image left to right with a given probability.

    Args:
        shape: height and width of the stored images, or height, width and channels.
        probability: probability of mirroring.

    Raises:
        UsageError: a parameter is out of range.
    """

    shape: Shape
    probability: float = 0.5

    def __post_init__(self) -> None:
        _require_shape(self)
        require_types(self)
        require_probability(self)

    def apply(self, X: Array, row_ids: IntArray, copies: IntArray, seed: int, loops: Loops) -> None:
        images = _images(X, self)
        chosen = np.flatnonzero(uniform_rows(seed, copies, row_ids, 1)[:, 0] < self.probability)
        images[chosen] = images[chosen, :, ::-1]


@dataclass(frozen=True)
class RandomErasing(Parameters):
    """Overwrite a random rectangle of an image with a value, with a given probability.

    Zhong, Zheng, Kang, Li, Yang (2020), "Random erasing data augmentation", algorithm 1. The rectangle's share of the
    image and its position are uniform. The logarithm of its aspect ratio is uniform, so tall and wide rectangles are
    equally likely. A side that is longer than the image is cut; the paper draws again instead.

    Args:
        shape: height and width of the stored images, or height, width and channels.
        probability: probability of a rectangle.
        area: smallest and largest share of the image.
        aspect: smallest and largest ratio of height to width.
        value: value of the erased pixels, in units of the scaled features.

    Raises:
        UsageError: a parameter is out of range.
    """

    shape: Shape
    probability: float = 0.5
    area: tuple[float, float] = (0.02, 0.4)
    aspect: tuple[float, float] = (0.3, 1 / 0.3)
    value: float = 0.0

    def __post_init__(self) -> None:
        _require_shape(self)
        require_types(self)
        require_probability(self)
        require_finite(self)
        for name, most in (("area", 1.0), ("aspect", math.inf)):
            low, high = getattr(self, name)
            if not (0 < low <= high <= most and math.isfinite(high)):
                raise UsageError(
                    f"{name} is {(low, high)}.",
                    where=f"RandomErasing({name}=...)",
                    expected="0 < least <= largest" + (" <= 1" if most == 1 else ""),
                )

    def apply(self, X: Array, row_ids: IntArray, copies: IntArray, seed: int, loops: Loops) -> None:
        images = _images(X, self)
        u = uniform_rows(seed, copies, row_ids, 5)
        top, left, bottom, right = self._rectangles(u, *images.shape[1:3])
        bottom[u[:, 0] >= self.probability] = 0  # the whole height is erased
        lines, pixels = np.arange(images.shape[1]), np.arange(images.shape[2])
        high = (lines >= top[:, None]) & (lines < bottom[:, None])
        wide = (pixels >= left[:, None]) & (pixels < right[:, None])
        np.copyto(images, self.value, where=(high[:, :, None] & wide[:, None, :])[..., None])

    def _rectangles(self, u: Array, height: int, width: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """The first and last + 1 line and pixel of a rectangle for each row of ``u``, shape (n, 5)."""
        area = (self.area[0] + u[:, 1] * (self.area[1] - self.area[0])) * height * width
        low, high = np.log(self.aspect)
        aspect = np.exp(low + u[:, 2] * (high - low))
        h = np.clip(np.rint(np.sqrt(area * aspect)), 1, height).astype(np.int64)
        w = np.clip(np.rint(np.sqrt(area / aspect)), 1, width).astype(np.int64)
        top = (u[:, 3] * (height - h + 1)).astype(np.int64)
        left = (u[:, 4] * (width - w + 1)).astype(np.int64)
        return top, left, top + h, left + w


def _require_shape(augmentation: Any) -> None:
    shape = augmentation.shape
    if not isinstance(shape, Sequence) or len(shape) not in (2, 3) or isinstance(shape, str) or min(shape) < 1:
        raise UsageError(
            f"The image shape is {shape}.",
            where=f"{type(augmentation).__name__}(shape)",
            expected="(height, width) or (height, width, channels)",
        )


def require_images(features: int, augmentation: Any) -> None:
    """Raise DataError unless a row has as many features as an image."""
    shape = augmentation.shape
    if features != math.prod(shape):
        raise DataError(
            f"Rows have {features} features and an image of shape {shape} has {math.prod(shape)}.",
            where=type(augmentation).__name__,
            expected=f"{math.prod(shape)} features",
            remedy="give the shape of the stored images: (height, width) or (height, width, channels)",
        )


def _images(X: Array, augmentation: Any) -> Array:
    require_images(X.shape[1], augmentation)
    shape = augmentation.shape
    return X.reshape(len(X), *shape, *((1,) if len(shape) == 2 else ()))
