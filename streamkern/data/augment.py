"""Augmentations: pure functions of (rows, row ids, copy numbers, seed)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from streamkern.backends.base import Backend
from streamkern.errors import UsageError
from streamkern.types import Array, IntArray


class Augmentation(Protocol):
    """A small frozen value that changes scaled rows in place.

    What it does to a row depends on the row, its id, its copy number and the seed alone, never on its neighbours in
    the block; so rows read again, or cut differently, come out the same.
    """

    def apply(self, X: Array, row_ids: IntArray, copies: IntArray, seed: int, backend: Backend) -> None:
        """Change rows X, shape (b, d), in place; ``row_ids`` and ``copies`` have shape (b,)."""
        ...

    def to_json(self) -> dict[str, Any]:
        """What the augmentation is, for fingerprints and reports."""
        ...


@dataclass(frozen=True)
class GaussianNoise:
    """Adds σ·ε, ε standard normal for each (seed, copy, row id, column).

    Args:
        sigma: standard deviation, in units of the scaled features.

    Raises:
        UsageError: sigma is negative or not finite.
    """

    sigma: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.sigma) and self.sigma >= 0):
            raise UsageError(
                f"The noise level is {self.sigma}.", where="GaussianNoise(sigma)", expected="a finite number >= 0"
            )

    def apply(self, X: Array, row_ids: IntArray, copies: IntArray, seed: int, backend: Backend) -> None:
        """Add the noise in place."""
        if X.dtype == np.float32:
            backend.add_noise(X, row_ids, copies=copies, seed=seed, sigma=self.sigma)
        else:
            noise = np.zeros(X.shape, dtype=np.float32)
            backend.add_noise(noise, row_ids, copies=copies, seed=seed, sigma=self.sigma)
            X += noise

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": type(self).__name__, **asdict(self)}
