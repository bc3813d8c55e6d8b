"""Each augmentation as a plain loop over rows, from its definition."""

from __future__ import annotations

import numpy as np
from scipy.special import betaincinv, ndtri

from streamkern.data.augment import Augmentation, FeatureDropout, GaussianNoise
from streamkern.data.image_augmentation import HorizontalFlip, RandomCrop, RandomErasing
from streamkern.rng import normal_rows, uniform_rows
from streamkern.types import Array


def augmented(augmentation: Augmentation, x: Array, row_id: int, copy: int, seed: int) -> Array:
    """One augmented row, from the definition, in float64: x has shape (d,)."""
    ids = np.array([row_id], dtype=np.int64)
    x = x.astype(np.float64)

    def u(k: int) -> list[float]:
        return [float(value) for value in uniform_rows(seed, copy, ids, k)[0]]

    if isinstance(augmentation, GaussianNoise):
        return np.asarray(x + augmentation.sigma * normal_rows(seed, copy, ids, len(x))[0])
    if isinstance(augmentation, FeatureDropout):
        dropped = normal_rows(seed, copy, ids, len(x))[0] < ndtri(augmentation.probability)
        return np.where(dropped, augmentation.value, x)
    if isinstance(augmentation, HorizontalFlip):
        height, width = augmentation.shape[:2]
        image = x.reshape(height, width, -1)
        if u(1)[0] < augmentation.probability:
            image = np.array([[image[i, width - 1 - j] for j in range(width)] for i in range(height)])
        return image.ravel()
    if isinstance(augmentation, RandomCrop):
        height, width = augmentation.shape[:2]
        image, pad = x.reshape(height, width, -1), augmentation.padding
        out = np.full_like(image, augmentation.value)
        down, right = (int(value * (2 * pad + 1)) - pad for value in u(2))
        for i in range(height):
            for j in range(width):
                if 0 <= i + down < height and 0 <= j + right < width:
                    out[i, j] = image[i + down, j + right]
        return out.ravel()
    if isinstance(augmentation, RandomErasing):
        height, width = augmentation.shape[:2]
        image = x.reshape(height, width, -1).copy()
        whether, share, ratio, y, x0 = u(5)
        if whether < augmentation.probability:
            low, high = augmentation.area
            area = (low + share * (high - low)) * height * width
            low, high = augmentation.aspect
            aspect = low * (high / low) ** ratio
            h = min(max(round((area * aspect) ** 0.5), 1), height)
            w = min(max(round((area / aspect) ** 0.5), 1), width)
            top, left = int(y * (height - h + 1)), int(x0 * (width - w + 1))
            image[top : top + h, left : left + w] = augmentation.value
        return image.ravel()
    raise TypeError(f"{type(augmentation).__name__} has no reference")


def mixed(alpha: float, x: Array, bank: Array, row_id: int, copy: int, seed: int) -> Array:
    """One row of MixUp, from the definition, in float64: features or values x (d,) with rows of the bank (k, d)."""
    first, second = uniform_rows(seed, copy, np.array([row_id], dtype=np.int64), 2)[0]
    share = betaincinv(alpha, alpha, second)
    return np.asarray(share * x + (1 - share) * bank[int(first * len(bank))])
