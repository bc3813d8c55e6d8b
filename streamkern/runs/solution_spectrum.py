"""Diagnostics of a solution path: the spectrum, and the direction of the weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamkern.engine.packed_triangle import unpacked
from streamkern.errors import UsageError
from streamkern.papers.lanczos import speedup_ratio
from streamkern.solvers.base import Problem
from streamkern.solvers.contributions import NormalEquations
from streamkern.types import Array


def rayleigh_quotient(K: Array, b: Array) -> float:
    """Return ‖K b‖²/‖b‖² of b = α − α̂ (Luo, Huo & Mei 2022, Figure 1): large where b is along large eigenvalues of K.

    At a given training loss ‖K b‖² the error of the estimate, bᵀ K b, is the smaller the larger the quotient is. K (n,
    n) is the kernel matrix of the training rows; b (n,) or (n, c) is the difference from coefficients that interpolate.
    """
    squared = float(np.sum(np.square(b, dtype=np.float64)))
    if squared == 0.0:
        raise UsageError(
            "The difference is zero and has no direction.",
            where="rayleigh_quotient(b)",
            expected="two different vectors",
            remedy="compare weights that differ",
        )
    return float(np.sum(np.square(K @ b, dtype=np.float64))) / squared


def relative_rayleigh_quotient(K: Array, b: Array) -> float:
    """Return the Rayleigh quotient over its largest value σ_1², in [0, 1] (ibid., appendix H.2)."""
    return rayleigh_quotient(K, b) / float(np.linalg.norm(K, 2)) ** 2


def effective_dimension(eigenvalues: Array, ridge: float) -> float:
    """Return N(λ) = Σ σ_i/(σ_i + λ) of K/n's eigenvalues (k,), λ > 0 (Carratino et al. 2018, assumption 5)."""
    if not ridge > 0:
        raise UsageError(f"The ridge is {ridge}.", where="effective_dimension(ridge)", expected="above 0")
    values = np.asarray(eigenvalues, dtype=np.float64)
    return float(np.sum(values / (values + ridge)))


def diagnose(problem: Problem, weights: Array) -> dict[str, Any]:
    """Compare weights (M, c) with the least-squares solution, and return the spectrum; one sweep over rows.

    With Φ the basis on the n training rows, ŵ the least squares solution of smallest norm and b = w − ŵ, the Rayleigh
    quotient is ‖Φ b‖²/‖b‖²: that of ``rayleigh_quotient`` where every row is a center.

    Returns:
        ``rayleigh_quotient`` and ``relative_rayleigh_quotient`` of b, None where b is zero; ``excess_loss`` ‖Φ b‖²/n;
        ``spectrum``, the eigenvalues of ΦᵀΦ/n, largest first; ``effective_dimension`` at ``ridge`` 1/√n (Carratino et
        al. 2018, Corollary 1); and ``speedup_ratio`` of a sketch of rank ``k`` (Gonen et al. 2016, eq. 3).
    """
    basis = problem.basis()
    equations = NormalEquations(basis, problem.encoding.outputs)
    packed, moment, _, n = problem.sweep(equations)
    engine = problem.engine
    gram = engine.mirror(unpacked(packed, basis.width, engine))
    values, vectors = engine.eigh(gram / n)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    kept = values > np.finfo(np.float64).eps * len(values) * values[0]
    exact = vectors[:, kept] @ ((vectors[:, kept].T @ (moment / n)) / values[kept, None])
    b = weights.astype(np.float64) - exact
    excess, squared = float(np.sum(b * (gram @ b))), float(np.sum(np.square(b)))
    quotient = excess / squared if squared > 0 else None
    ridge, k = float(n) ** -0.5, min(30, len(values))
    return {
        "rayleigh_quotient": quotient,
        "relative_rayleigh_quotient": None if quotient is None else quotient / float(n * values[0]),
        "excess_loss": excess / n,
        "spectrum": values.tolist(),
        "ridge": ridge,
        "effective_dimension": effective_dimension(values, ridge),
        "k": k,
        "speedup_ratio": speedup_ratio(values, k),
    }
