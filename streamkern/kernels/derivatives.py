"""Derivatives of kernels by their first argument, for the gradient of a model.

A kernel of inner products and norms has ∇_x k(x, z) = P z + Q x with P = ∂k/∂⟨x, z⟩ and Q = 2 ∂k/∂‖x‖². For a radial
kernel Q = −P = φ'(r)/r, where r = ‖x − z‖. A kernel of the L1 distance has ∇_x k(x, z) = P sign(x − z) with P = φ'(r).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from streamkern.defaults import DERIVATIVE_STEP, MIN_DERIVATIVE_DISTANCE
from streamkern.engine.elementwise import Loops, magnitudes
from streamkern.types import Array

Slopes = tuple[Array, Array | None]
"""P and Q, shape (b, p) each; Q is None for 0."""


def squared_distances(S: Array, x_norms: Array, z_norms: Array) -> tuple[Array, Array]:
    """Return ‖x − z‖² from inner products S, or 1 for rows too near for a derivative; and factors, 0 there, else 1."""
    xp = _namespace(S)
    squared = x_norms[:, None] + z_norms[None, :] - 2.0 * S
    apart = squared > MIN_DERIVATIVE_DISTANCE**2
    return xp.where(apart, squared, xp.ones_like(squared)), xp.where(
        apart, xp.ones_like(squared), xp.zeros_like(squared)
    )


def slopes_of_profile(S: Array, x_norms: Array, z_norms: Array, kind: str, params: Mapping[str, float]) -> Slopes:
    """Return P and Q of a kernel of ``RADIAL_KINDS``; S has inner products, or L1 distances if ``norm`` is 1."""
    xp, sigma = _namespace(S), params["bandwidth"]
    if params.get("norm", 2) == 1:
        apart = S > MIN_DERIVATIVE_DISTANCE
        r = xp.where(apart, S, xp.ones_like(S))
        power = (r / sigma) ** (1.0 if kind == "laplace" else params["exponent"])
        slope = -(1.0 if kind == "laplace" else params["exponent"]) * power / r * xp.exp(-power)
        return xp.where(apart, slope, xp.zeros_like(slope)), None
    squared, apart = squared_distances(S, x_norms, z_norms)
    t = squared**0.5 / sigma
    match kind:
        case "laplace":
            Q = -xp.exp(-t) / (sigma**2 * t)
        case "gaussian":
            Q = -xp.exp(-0.5 * t * t) / sigma**2
        case "cauchy":
            Q = -2.0 / (sigma * (1.0 + t * t)) ** 2
        case "matern32":
            Q = -3.0 / sigma**2 * xp.exp(-(3.0**0.5) * t)
        case "matern52":
            Q = -5.0 / (3.0 * sigma**2) * (1.0 + 5.0**0.5 * t) * xp.exp(-(5.0**0.5) * t)
        case _:
            power = t ** params["exponent"]
            Q = -params["exponent"] * power / squared * xp.exp(-power)
    Q = Q * apart
    return -Q, Q


def angular_slopes(S: Array, x_norms: Array, z_norms: Array, kind: str, depth: int) -> Slopes:
    """Return P and Q of a kernel of ``ANGULAR_KINDS``, in float64: k is m(x) m(z) κ(cos θ), see ``Loops.angular``.

    κ_0' = 1/(π sin θ), κ_1' = κ_0 and κ_2' = 4/3 κ_1. If k is homogeneous of degree h in x, Euler's theorem ⟨∇_x k, x⟩
    = h k gives Q. At an angle of 0, where κ_0 has no derivative, the derivative at 1e-5 is used.
    """
    s, a, b = (np.asarray(v, np.float64) for v in (S, x_norms, z_norms))
    sizes = np.sqrt(a)[:, None] * np.sqrt(b)
    some = sizes > 0
    over = np.where(some, sizes, 1.0)
    u = tangent = np.clip(s / over, -1.0, 1.0)
    slope = tangent_slope = np.ones_like(u)
    for _ in range(depth):
        theta, sine = np.arccos(u), np.sqrt((1 - u) * (1 + u))
        k0, k1 = 1 - theta / np.pi, (sine + (np.pi - theta) * u) / np.pi
        k0_slope = 1 / (np.pi * np.maximum(sine, 1e-5))
        if kind == "arccos0":
            u, slope = k0, k0_slope * slope
        elif kind == "arccos2":
            u, slope = (3 * u * sine + (np.pi - theta) * (1 + 2 * u * u)) / (3 * np.pi), 4 / 3 * k1 * slope
        else:
            tangent_slope = k0 * slope + tangent_slope * k0 + tangent * k0_slope * slope
            tangent, u, slope = k1 + tangent * k0, k1, k0 * slope
        u = np.clip(u, -1.0, 1.0)
    magnitude = magnitudes(kind, depth, a)[:, None] * magnitudes(kind, depth, b)
    value, change = (tangent, tangent_slope) if kind == "ntk" else (u, slope)
    degree = {"arccos0": 0, "arccos2": 2**depth}.get(kind, 1)
    P = np.where(some, magnitude * change / over, 0.0)
    Q = np.where(some, (degree * magnitude * value - P * s) / np.where(a > 0, a, 1.0)[:, None], 0.0)
    return P.astype(S.dtype), Q.astype(S.dtype)


def profile_slopes(profile: Callable[[Array], Array], S: Array, x_norms: Array, z_norms: Array) -> Slopes:
    """Return P and Q of a user's function g of squared distances, by finite differences in float64."""
    squared, apart = squared_distances(*(np.asarray(v, np.float64) for v in (S, x_norms, z_norms)))
    step = DERIVATIVE_STEP * squared
    Q = (profile(squared + step) - profile(squared - step)) / step * apart
    Q = Q.astype(S.dtype)
    return -Q, Q


def dot_slopes(profile: Callable[[Array], Array], S: Array) -> Slopes:
    """Return P of a user's function g of inner products, by finite differences in float64."""
    s = np.asarray(S, np.float64)
    step = DERIVATIVE_STEP * np.maximum(1.0, np.abs(s))
    return ((profile(s + step) - profile(s - step)) / (2 * step)).astype(S.dtype), None


def numerical_slopes(apply: Any, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
    """Return P and Q of any kernel of inner products and norms, by finite differences of ``apply`` in float64."""
    s, a, b = (np.asarray(v, np.float64) for v in (S, x_norms, z_norms))

    def value(inner: Array, norms: Array) -> Array:
        K = inner.copy()
        apply(K, norms, b, loops)
        return K

    along = DERIVATIVE_STEP * np.maximum(np.sqrt(a)[:, None] * np.sqrt(b), np.finfo(np.float64).tiny ** 0.5)
    across = DERIVATIVE_STEP * np.maximum(a, np.finfo(np.float64).tiny ** 0.5)
    P = (value(s + along, a) - value(s - along, a)) / (2 * along)
    Q = (value(s, a + across) - value(s, a - across)) / across[:, None]
    return P.astype(S.dtype), Q.astype(S.dtype)


def add_slopes(left: Array | None, right: Array | None) -> Array | None:
    """Return the sum of two slopes; None stands for 0."""
    if left is None or right is None:
        return right if left is None else left
    return left + right


def _namespace(A: Any) -> Any:
    """NumPy if A has none, since NumPy's functions also accept CuPy's arrays."""
    return A.__array_namespace__() if hasattr(A, "__array_namespace__") else np
