"""Kernels of the inner product ⟨x, z⟩ and the two norms. Only centred ones are translation invariant."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.engine.elementwise import Loops, magnitudes
from streamkern.engine.packed_triangle import cuts
from streamkern.errors import UsageError
from streamkern.kernels.base import STRIP_ROWS, Kernel, set_integer, set_number
from streamkern.kernels.derivatives import Slopes, angular_slopes, dot_slopes
from streamkern.kernels.radial import UserProfile, profile_values
from streamkern.types import Array


@dataclass(frozen=True)
class Linear(Kernel):
    """k(x, z) = ⟨x, z⟩ + c.

    Args:
        offset: c, 0 or above.
        centred: whether to subtract the mean of the centers from x and z. A constant that is added to all rows then
            changes nothing.

    Raises:
        UsageError: the offset is negative or not finite, or ``centred`` is not a boolean.
    """

    offset: float = 0.0
    centred: bool = False

    def __post_init__(self) -> None:
        set_number(self, "offset")
        if not isinstance(self.centred, bool):
            raise UsageError(f"centred is {self.centred!r}.", where="Linear(centred=...)", expected="True or False")

    def to_json(self) -> dict[str, Any]:
        """Return name and parameters. ``centred`` is left out if False, so hashes of earlier releases stay valid."""
        return {name: value for name, value in super().to_json().items() if name != "centred" or value}

    @property
    def translation_invariant(self) -> bool:
        return self.centred

    def apply(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
        if self.offset:
            S += S.dtype.type(self.offset)

    def slopes(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
        return np.ones_like(S), None

    def diag(self, X: Array) -> Array:
        return _rounded(_squared_norms(X) + self.offset, X)


@dataclass(frozen=True)
class Polynomial(Kernel):
    """k(x, z) = (γ ⟨x, z⟩ + c)^degree.

    Args:
        degree: 1 or above.
        gamma: γ > 0.
        offset: c, 0 or above.

    Raises:
        UsageError: a parameter is out of range.
    """

    degree: int = 2
    gamma: float = 1.0
    offset: float = 1.0

    def __post_init__(self) -> None:
        set_integer(self, "degree", 1)
        set_number(self, "gamma", positive=True)
        set_number(self, "offset")

    def apply(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
        for rows in cuts(len(S), STRIP_ROWS):
            strip = S[rows]
            strip *= S.dtype.type(self.gamma)
            strip += S.dtype.type(self.offset)
            if self.degree == 1:
                continue
            # Square and multiply, from the second highest bit of the degree, because pow of floats is ten times slower.
            base = strip.copy()
            for bit in f"{self.degree:b}"[1:]:
                strip *= strip
                if bit == "1":
                    strip *= base

    def slopes(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
        return self.degree * self.gamma * (self.gamma * S + self.offset) ** (self.degree - 1), None

    def diag(self, X: Array) -> Array:
        return _rounded((self.gamma * _squared_norms(X) + self.offset) ** self.degree, X)


@dataclass(frozen=True)
class ArcCosine(Kernel):
    """Arc-cosine kernel: an infinitely wide network of ``depth`` layers with activation max(0, t)^n, n = ``order``.

    One layer is k(x, z) = 2 E_w [max(0, ⟨w, x⟩)^n max(0, ⟨w, z⟩)^n] over standard normal w (Cho & Saul 2009). For n =
    0, the activation is the step function. More layers compose such kernels. For n = 1, k(x, x) = ‖x‖². For n = 2, a
    layer maps q = k(x, x) to 3q², so rows should have about unit norm. For n = 0 and x near z, each layer halves the
    number of correct digits. The diagonal is exact.

    Args:
        order: the exponent n: 0, 1 or 2.
        depth: number of layers, 1 to 1000.

    Raises:
        UsageError: a parameter is out of range.
    """

    order: int = 1
    depth: int = 1

    def __post_init__(self) -> None:
        set_integer(self, "order", 0, 2)
        set_integer(self, "depth", 1, 1000)

    def apply(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
        loops.angular(S, x_norms, z_norms, f"arccos{self.order}", self.depth)

    def slopes(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
        return angular_slopes(S, x_norms, z_norms, f"arccos{self.order}", self.depth)

    def diag(self, X: Array) -> Array:
        """Return k(x, x) of every row: shape (n,). A row of zeros is taken as orthogonal to every row, even itself."""
        norms = _squared_norms(X)
        K = magnitudes(f"arccos{self.order}", self.depth, norms) ** 2
        right = np.zeros((1, 1))
        self.apply(right, np.ones(1), np.ones(1), Loops())
        return _rounded(np.where(norms > 0, K, right[0, 0] if self.order == 0 else 0.0), X)


@dataclass(frozen=True)
class NTK(Kernel):
    """Neural tangent kernel of a fully connected ReLU network without biases (Jacot et al. 2018, theorem 1).

    k = Θ_depth, with Θ_l = Σ_l + Θ_{l−1} Σ'_l and Θ_0 = ⟨x, z⟩ (Arora et al. 2019). Σ_l is ``ArcCosine(order=1,
    depth=l)``. Σ'_l has the derivative of the ReLU in place of the ReLU in layer l. The scale is Σ_l(x, x) = ‖x‖², so
    k(x, x) = (depth + 1) ‖x‖². For a > 0, k(ax, z) = a k(x, z), so rows may have any norm.

    Args:
        depth: number of hidden layers, 1 or above.

    Raises:
        UsageError: the depth is out of range.
    """

    depth: int = 1

    def __post_init__(self) -> None:
        set_integer(self, "depth", 1, 1000)

    def apply(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
        loops.angular(S, x_norms, z_norms, "ntk", self.depth)

    def slopes(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
        return angular_slopes(S, x_norms, z_norms, "ntk", self.depth)

    def diag(self, X: Array) -> Array:
        return _rounded((self.depth + 1) * _squared_norms(X), X)


@dataclass(frozen=True)
class DotProfile(UserProfile):
    """k(x, z) = g(⟨x, z⟩) for a user's NumPy function g. The user must ensure that k is positive definite.

    If g is a power series with nonnegative coefficients, k is positive definite (Schoenberg 1942).

    A model with such a kernel is saved with the name of g. ``load_model`` does not import g, because it executes no
    code: pass the kernel to it.

    Args:
        function: g, from inner products to values, with the requirements of ``RadialProfile``.

    Raises:
        UsageError: g cannot be called.
    """

    def apply(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
        S[...] = profile_values(self, S)

    def slopes(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
        return dot_slopes(lambda inner: profile_values(self, inner), S)

    def diag(self, X: Array) -> Array:
        return _rounded(profile_values(self, _squared_norms(X)), X)


def _squared_norms(X: Array) -> Array:
    return np.asarray(np.square(X, dtype=np.float64).sum(axis=1))


def _rounded(K: Array, X: Array) -> Array:
    return K.astype(X.dtype if X.dtype.kind == "f" else np.float64, copy=False)
