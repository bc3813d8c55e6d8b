"""Augmentations: pure functions of (rows, row ids, copy numbers, seed)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streamkern.engine.elementwise import Loops
from streamkern.errors import DataError, UsageError, require_counts, require_finite, require_types
from streamkern.rng import uniform_rows
from streamkern.types import Array, IntArray, Parameters, Rows
from streamkern.user_code_digest import code_identity, exception_text, user_code_location


@runtime_checkable
class Augmentation(Protocol):
    """A small frozen object that changes scaled rows in place.

    A pass over the rows may read each row several times. Each time the row is changed, and the result is called a copy.
    ``Dataset.augment`` sets the number of copies. The effect on a row depends only on the row, its id, the number of
    the copy, and the seed. A copy therefore has the same values whenever it is read, in any block of rows.
    """

    def apply(self, X: Array, row_ids: IntArray, copies: IntArray, seed: int, loops: Loops) -> None:
        """Change rows X, shape (b, d), in place. ``row_ids`` and ``copies``, the copy numbers, have shape (b,)."""

    def to_json(self) -> dict[str, Any]:
        """Return the augmentation's name and parameters, for fingerprints and reports."""


@dataclass(frozen=True)
class GaussianNoise(Parameters):
    """Add σ·ε, with independent standard normal ε for each column of a row.

    ε depends only on the seed, the row id, the column, and how often the pass has read the row before.

    Args:
        sigma: standard deviation σ, in units of the scaled features.

    Raises:
        UsageError: sigma is negative or not finite.
    """

    sigma: float

    def __post_init__(self) -> None:
        require_types(self)
        if not (np.isfinite(self.sigma) and self.sigma >= 0):
            raise UsageError(
                f"The noise level is {self.sigma}.", where="GaussianNoise(sigma)", expected="a finite number >= 0"
            )

    def apply(self, X: Array, row_ids: IntArray, copies: IntArray, seed: int, loops: Loops) -> None:
        if X.dtype == np.float32:
            loops.add_noise(X, row_ids, copies=copies, seed=seed, sigma=self.sigma)
        else:
            X += _normals(X, row_ids, copies, seed, loops, self.sigma)


@dataclass(frozen=True)
class FeatureDropout(Parameters):
    """Replace each feature of a row by a value, independently, with a given probability.

    Features that are kept are not scaled up, because prediction sees rows without dropout.

    Args:
        probability: probability that a feature is dropped, in [0, 1].
        value: the replacement, in units of the scaled features; 0 is the mean of standardised features.

    Raises:
        UsageError: a parameter is out of range.
    """

    probability: float
    value: float = 0.0

    def __post_init__(self) -> None:
        require_types(self)
        require_probability(self)
        require_finite(self)

    def apply(self, X: Array, row_ids: IntArray, copies: IntArray, seed: int, loops: Loops) -> None:
        from scipy.special import ndtri

        kept = _normals(X, row_ids, copies, seed, loops, 1.0) >= np.float32(ndtri(self.probability))
        # Exact for finite rows, and branch-free: a masked copy costs ten times as much.
        X *= kept
        if self.value:
            X += np.where(kept, X.dtype.type(0), X.dtype.type(self.value))


@dataclass(frozen=True)
class MixUp(Parameters):
    """Mix each row and its target with another row: x' = λ x + (1 − λ) x₂, y' = λ y + (1 − λ) y₂, λ ~ Beta(α, α).

    Zhang, Cissé, Dauphin, Lopez-Paz (2018), "mixup: beyond empirical risk minimization". Class labels are mixed as
    indicators.

    The partner x₂ is a row of a bank, scaled but not augmented. The bank is a sample of the dataset's rows. It is drawn
    once, and each process keeps it in memory. The partner and λ depend only on the seed, the row id, and how often the
    pass has read the row before. They do not depend on the size of blocks.

    Args:
        alpha: α > 0. Rows hardly change for α near 0; λ is uniform for α = 1.
        bank: largest number of rows in the bank.

    Raises:
        UsageError: a parameter is out of range.
    """

    alpha: float
    bank: int = 4096

    def __post_init__(self) -> None:
        require_types(self)
        if not (np.isfinite(self.alpha) and self.alpha > 0):
            raise UsageError(f"alpha is {self.alpha}.", where="MixUp(alpha)", expected="a finite number > 0")
        require_counts(self, bank=1)

    def mix(
        self, X: Array, y: Array | None, row_ids: IntArray, copies: IntArray, seed: int, bank: Rows
    ) -> Array | None:
        """Mix rows X, (b, d), in place with rows of the bank, scaled (k, d); return the mixed targets, (b, c), or None.

        ``y`` are targets as numbers, shape (b, c), with indicators for classes, as in the bank; or None. ``copies``,
        (b,), is how often the pass has read each row of ``row_ids``, (b,), before. ``seed`` is that of partners and λ.
        """
        partner, share = self.partners(row_ids, copies, seed, len(bank.X))
        X *= share.astype(X.dtype)
        others = bank.X[partner]
        others *= (1 - share).astype(X.dtype)
        X += others
        return None if y is None else self.mixed(y, bank, partner, share)

    def partners(self, row_ids: IntArray, copies: IntArray, seed: int, rows: int) -> tuple[IntArray, Array]:
        """Return positions of the rows' partners in a bank, shape (b,), and the rows' shares λ, shape (b, 1)."""
        from scipy.special import betaincinv

        u = uniform_rows(seed, copies, row_ids, 2)
        return (u[:, 0] * rows).astype(np.int64), betaincinv(self.alpha, self.alpha, u[:, 1])[:, None]

    def mixed(self, y: Array, bank: Rows, partner: IntArray, share: Array) -> Array | None:
        """Return numeric targets, shape (b, c), mixed with the partners' targets. None if the bank has no targets."""
        return None if bank.y is None else share * y + (1 - share) * bank.y[partner]


@dataclass(frozen=True)
class Custom:
    """Change blocks of rows by a user's function ``function(X, U) -> X'``.

    X contains scaled rows, shape (b, d); the function may change them in place. U contains uniform random numbers in
    (0, 1), shape (b, uniforms). Row i of the result must depend on X[i] and U[i] only, so that it does not depend on
    the other rows of a block. ``testing.augmentation.AugmentationSuite`` tests this.

    Args:
        function: the function. To run in other processes, it must be defined at the top level of a module.
        uniforms: number of uniform random numbers for each row.

    Raises:
        UsageError: ``function`` is not callable, or ``uniforms`` is negative.
    """

    function: Callable[[Array, Array], Array]
    uniforms: int = 4

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise UsageError(f"The function is {self.function!r}.", where="Custom(function)", expected="a function")
        require_counts(self, uniforms=0)

    def apply(self, X: Array, row_ids: IntArray, copies: IntArray, seed: int, loops: Loops) -> None:
        """Call the function on rows, in place.

        Raises:
            DataError: the function did not return finite rows of this shape.
        """
        U = uniform_rows(seed, copies, row_ids, self.uniforms)
        try:
            made = self.function(X, U)
        except Exception as error:  # the user's code may raise anything
            raise DataError(
                f"An augmentation raised {exception_text(error)}",
                where=user_code_location(error) or self.name,
                expected=f"rows of shape {X.shape} from rows of that shape and numbers of shape {U.shape}",
                remedy="correct the line",
            ) from error
        shape = getattr(made, "shape", type(made).__name__)
        if shape != X.shape:
            raise DataError(
                f"An augmentation of {X.shape[0]} rows returned {shape}.",
                where=self.name,
                expected=f"an array of shape {X.shape}",
                remedy="return the rows, changed or not",
            )
        if made is not X:
            X[...] = made
        wrong = ~np.isfinite(X).all(axis=1)
        if wrong.any():
            raise DataError(
                "An augmentation returned a number that is not finite.",
                where=f"{self.name}, row id {row_ids[wrong][0]}",
                expected="finite numbers",
                remedy="keep to float32's range, and divide by nothing that may be 0",
            )

    @property
    def name(self) -> str:
        """The function's ``module:qualified.name``."""
        kind = self.function if hasattr(self.function, "__qualname__") else type(self.function)
        return f"{kind.__module__}:{kind.__qualname__}"

    def to_json(self) -> dict[str, Any]:
        """Return the function's name and a digest of its code, so that an edited function has another fingerprint."""
        code = code_identity(self.function).digest
        return {"name": type(self).__name__, "function": self.name, "code": code, "uniforms": self.uniforms}


def require_probability(augmentation: Any) -> None:
    """Raise UsageError unless ``probability`` is in [0, 1]."""
    if not 0 <= augmentation.probability <= 1:
        raise UsageError(
            f"The probability is {augmentation.probability}.",
            where=f"{type(augmentation).__name__}(probability=...)",
            expected="a number from 0 to 1",
        )


def _normals(X: Array, row_ids: IntArray, copies: IntArray, seed: int, loops: Loops, sigma: float) -> Array:
    noise = np.zeros(X.shape, dtype=np.float32)
    loops.add_noise(noise, row_ids, copies=copies, seed=seed, sigma=sigma)
    return noise
