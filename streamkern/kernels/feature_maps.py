"""Feature maps: f(x) = ⟨w, φ(x)⟩ with an explicit φ.

A map is a frozen dataclass. Its ``basis`` has the M functions for rows of a width, in a dtype. Solvers evaluate them by
panels, like kernel values at centers. Random weights are a function of (seed, feature, d): regenerated, never saved.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, cast

import numpy as np
import scipy.linalg

from streamkern.cpu import default_engine
from streamkern.defaults import FACTOR_JITTER
from streamkern.engine import Engine
from streamkern.engine.base import CENTER_TILE, ROW_TILE, Basis
from streamkern.engine.packed_triangle import cuts
from streamkern.errors import NumericalError, UsageError, require_types
from streamkern.kernels.base import Expansion, Kernel, require_bandwidth, set_integer
from streamkern.kernels.named_kernels import kernel_from_json, restored
from streamkern.kernels.radial import Gaussian, Laplace, Matern, Radial
from streamkern.rng import HashFamily, row_hash
from streamkern.types import Array, Parameters

_SUBSTITUTED_COLUMNS = 512  # columns of a triangular product at a time


class FeatureMap(Parameters, ABC):
    """A function φ from a row to M numbers. Subclasses are frozen dataclasses.

    Attributes:
        needs_centers: whether φ is made from centers Z.
    """

    needs_centers = False

    @property
    def translation_invariant(self) -> bool:
        """True if E ⟨φ(x + a), φ(z + a)⟩, over random draws of φ, does not depend on a. Rows may then be centred."""
        return False

    @abstractmethod
    def width(self, d: int, p: int = 0) -> int:
        """Return the number M of features, for rows with d features and p centers."""

    @abstractmethod
    def resident_bytes(self, d: int, dtype: np.dtype[Any], p: int = 0) -> int:
        """Return the bytes of memory that the result of the method ``basis`` takes."""

    @abstractmethod
    def basis(self, d: int, dtype: np.dtype[Any], Z: Array | None = None, center: Array | float = 0.0) -> Basis:
        """Return the functions φ_1 .. φ_M of a row x with d features.

        Args:
            d: number of features of a row.
            dtype: dtype of values and arithmetic, float32 or float64.
            Z: centers, shape (p, d). None if the map needs no centers.
            center: a number or array of shape (d,). The returned functions get x − center, and compute φ(x). The caller
                subtracts ``center`` from rows, but not from Z.

        Raises:
            UsageError: centers are missing or have another number of features, or the map requires ``center=0``.
            NumericalError: the kernel matrix of the centers is not positive definite.
        """


@dataclass(frozen=True)
class Identity(FeatureMap):
    """φ(x) = x, for linear models."""

    def width(self, d: int, p: int = 0) -> int:
        return d

    def resident_bytes(self, d: int, dtype: np.dtype[Any], p: int = 0) -> int:
        return d * dtype.itemsize

    def basis(self, d: int, dtype: np.dtype[Any], Z: Array | None = None, center: Array | float = 0.0) -> Basis:
        return _Columns(_spread(center, d).astype(dtype))


class _Random(FeatureMap):
    M: int

    def width(self, d: int, p: int = 0) -> int:
        return self.M

    def resident_bytes(self, d: int, dtype: np.dtype[Any], p: int = 0) -> int:
        return (self.M * d + self.M) * dtype.itemsize


@dataclass(frozen=True)
class RandomFourier(_Random):
    """Random Fourier features φ_j(x) = √(2/M) cos(⟨ω_j, x⟩ + b_j), with E ⟨φ(x), φ(z)⟩ = k(x, z) (Rahimi & Recht 2007).

    As in Carratino et al. 2018, example 1 and section 5, the frequencies ω follow the spectral measure of the kernel.
    This measure is normal with scale 1/σ for the Gaussian. It is multivariate t for Laplace, Matérn 3/2 and Matérn 5/2,
    with 1, 3 and 5 degrees of freedom. The phases b are uniform in [0, 2π]. The error of ⟨φ(x), φ(z)⟩ is about 1/√M.

    For rows of d numbers, the map keeps the M × d numbers ω in memory. Up to the factor √(2/M), feature j does not
    depend on M: a smaller map has the first features of a larger map.

    Args:
        kernel: Gaussian, Laplace or Matern.
        M: number of features, 1 or above.
        seed: seed of the draw.
        orthogonal: divide the ω_j into blocks of d, and make those of a block orthogonal to one another (Yu et al.
            2016, "Orthogonal random features"). The distribution of each ω_j does not change. The variance of ⟨φ(x),
            φ(z)⟩ becomes smaller, most of all in many dimensions.

    Raises:
        UsageError: a parameter is out of range, or the spectral measure of the kernel is not available.
    """

    kernel: Kernel
    M: int
    seed: int = 0
    orthogonal: bool = False

    def __post_init__(self) -> None:
        set_integer(self, "M", 1)
        set_integer(self, "seed", 0)
        require_types(self)
        require_bandwidth(self.kernel, "RandomFourier(kernel=...)")
        if not isinstance(self.kernel, Gaussian | Laplace | Matern) or self.kernel.norm != 2:
            raise UsageError(
                f"There are no random Fourier features for {self.kernel!r}.",
                where="RandomFourier(kernel=...)",
                expected="Gaussian, Laplace or Matern, of norm 2",
                remedy="use Nystrom(kernel), which takes any kernel",
            )

    @property
    def translation_invariant(self) -> bool:
        return True

    def basis(self, d: int, dtype: np.dtype[Any], Z: Array | None = None, center: Array | float = 0.0) -> Basis:
        omega = self.frequencies(d)
        omega *= 0.5 / np.pi  # in turns, so that float32 can drop whole turns without an error
        draws = row_hash(np.arange(self.M), _key(self.seed, _Purpose.PHASES))
        phases = (draws >> np.uint64(11)) * 2.0**-53 + omega @ _spread(center, d)
        dtype = np.dtype(dtype)
        return _Cosines(omega.astype(dtype), (phases - np.rint(phases)).astype(dtype))

    def frequencies(self, d: int) -> Array:
        """Frequencies ω, shape (M, d), float64."""
        omega = _normals(self.seed, _Purpose.DIRECTIONS, self.M, d)
        if self.orthogonal:
            for rows in cuts(self.M, d):
                omega[rows] = _orthogonalised(omega[rows])
        kernel = self.kernel
        assert isinstance(kernel, Radial)
        omega /= kernel.sigma
        if not isinstance(kernel, Gaussian):
            # A t variable is a normal variable divided by √(χ²_f/f), f = 2ν (Laplace is ν = 1/2).
            freedom = round(2 * kernel.nu) if isinstance(kernel, Matern) else 1
            chi2 = np.square(_normals(self.seed, _Purpose.SCALES, self.M, freedom)).sum(axis=1)
            # One draw of Laplace in a million is above 1e6/σ: cut it there, where floats still resolve it.
            omega *= np.sqrt(freedom / np.maximum(chi2, 1e-12))[:, None]
        return omega


@dataclass(frozen=True)
class ReLUFeatures(_Random):
    """A random layer φ_j(x) = √(2/M) max(0, ⟨ω_j, x⟩), ω standard normal; E ⟨φ(x), φ(z)⟩ is ``ArcCosine(order=1)``.

    Angles are measured at the origin, so centring the rows would change the kernel. The map keeps the M × d numbers ω
    in memory. Up to the factor √(2/M), feature j does not depend on M.

    Args:
        M: number of features, 1 or above.
        seed: seed of the draw.

    Raises:
        UsageError: a parameter is out of range.
    """

    M: int
    seed: int = 0

    def __post_init__(self) -> None:
        set_integer(self, "M", 1)
        set_integer(self, "seed", 0)

    def basis(self, d: int, dtype: np.dtype[Any], Z: Array | None = None, center: Array | float = 0.0) -> Basis:
        omega = _normals(self.seed, _Purpose.DIRECTIONS, self.M, d)
        omega *= np.sqrt(2.0 / self.M)  # positive factors commute with max(0, ·)
        return _ReLUs(omega.astype(dtype), (omega @ _spread(center, d)).astype(dtype))


@dataclass(frozen=True)
class _AtCenters(FeatureMap):
    kernel: Kernel

    needs_centers = True

    def __post_init__(self) -> None:
        require_types(self)
        require_bandwidth(self.kernel, f"{type(self).__name__}(kernel=...)")

    @property
    def translation_invariant(self) -> bool:
        return self.kernel.translation_invariant

    def width(self, d: int, p: int = 0) -> int:
        return p

    def _centers(self, d: int, Z: Array | None, center: Array | float) -> Array:
        if Z is None or Z.ndim != 2 or Z.shape[1] != d or not len(Z):
            raise UsageError(
                f"{type(self).__name__} of rows of width {d} needs centers.",
                where="Z",
                expected=f"shape (p, {d}), got {None if Z is None else Z.shape}",
            )
        shift = _spread(center, d)
        if shift.any() and not self.translation_invariant:
            raise UsageError(f"{self.kernel!r} changes when rows are centred.", where="center", expected="0")
        return np.asarray(Z - shift)


@dataclass(frozen=True)
class KernelFeatures(_AtCenters):
    """φ_j(x) = k(x, z_j): a radial basis function network. The map keeps the centers z_j in memory.

    Args:
        kernel: the kernel k.
    """

    def resident_bytes(self, d: int, dtype: np.dtype[Any], p: int = 0) -> int:
        return p * d * dtype.itemsize + default_engine().held_bytes(p, d, dtype)

    def basis(self, d: int, dtype: np.dtype[Any], Z: Array | None = None, center: Array | float = 0.0) -> Basis:
        return Expansion(self.kernel, self._centers(d, Z, center).astype(dtype))


@dataclass(frozen=True)
class Nystrom(_AtCenters):
    """Nyström features φ(x) = L⁻¹ k_Z(x) of a kernel k, for p centers Z (Williams & Seeger 2001).

    k_Z(x) is the vector of all k(x, z_j), for the centers z_j. L is the Cholesky factor: L Lᵀ = K(Z, Z). The inner
    product ⟨φ(x), φ(z)⟩ is k projected on the span of all k(·, z_j). It equals k(x, z) if x or z is a center. For
    stability, a few machine epsilons times tr K(Z, Z) are added to the diagonal of K(Z, Z).

    The map keeps Z and the p × p matrix L⁻¹ in memory. Its construction takes one more p × p matrix in float64.

    Args:
        kernel: any kernel k.
    """

    def resident_bytes(self, d: int, dtype: np.dtype[Any], p: int = 0) -> int:
        return (p * d + p * p) * dtype.itemsize + default_engine().held_bytes(p, d, dtype)

    def basis(self, d: int, dtype: np.dtype[Any], Z: Array | None = None, center: Array | float = 0.0) -> Basis:
        centers = self._centers(d, Z, center).astype(np.float64)
        p, dtype = len(centers), np.dtype(dtype)
        K = Expansion(self.kernel, centers).block(centers)
        diagonal = self.kernel.diag(centers)
        K[np.diag_indices(p)] = diagonal + FACTOR_JITTER * np.finfo(dtype).eps * diagonal.sum()
        try:
            L = scipy.linalg.cholesky(K.T, lower=True, overwrite_a=True, check_finite=False)
        except np.linalg.LinAlgError as error:
            raise NumericalError(
                f"K(Z, Z) of {p} centers is not positive definite.",
                where=repr(self.kernel),
                expected="a positive definite kernel matrix",
                remedy="check that the kernel is positive definite, or take fewer centers",
            ) from error
        inverse, _ = scipy.linalg.lapack.dtrtri(L, lower=1, overwrite_c=1)
        return _Orthonormal(np.ascontiguousarray(inverse, dtype=dtype), Expansion(self.kernel, centers.astype(dtype)))


_MAPS: dict[str, Any] = {
    kind.__name__: kind for kind in (Identity, RandomFourier, ReLUFeatures, KernelFeatures, Nystrom)
}


def feature_map_from_json(data: dict[str, Any]) -> FeatureMap:
    """Return the map that ``to_json`` described, without importing or executing anything."""
    parameters = {key: value for key, value in data.items() if key != "name"}
    if isinstance(parameters.get("kernel"), dict):
        parameters["kernel"] = kernel_from_json(parameters["kernel"])
    return cast(FeatureMap, restored("feature map", _MAPS, str(data.get("name")), parameters))


# --------------------------------------------------------------------------------------------------------- the bases


@dataclass(eq=False)
class _OfArray(Basis):
    """As many functions as an array is long, in its dtype."""

    array: Array
    engine: Engine = field(default_factory=default_engine, kw_only=True)

    @property
    def width(self) -> int:
        return len(self.array)

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.array.dtype


class _Columns(_OfArray):
    """x + center."""

    def block(self, X: Array, out: Array | None = None) -> Array:
        out = np.empty((len(X), self.width), dtype=self.dtype) if out is None else out
        return np.add(X, self.array, out=out)


@dataclass(eq=False)
class _Projected(_OfArray):
    offsets: Array

    def block(self, X: Array, out: Array | None = None) -> Array:
        out = np.empty((len(X), self.width), dtype=self.dtype) if out is None else out
        for rows in cuts(len(X), ROW_TILE):
            for cols in cuts(self.width, CENTER_TILE):
                S = out[rows, cols]
                np.matmul(X[rows], self.array[cols].T, out=S)
                self._finish(S, self.offsets[cols])
        return out

    @abstractmethod
    def _finish(self, S: Array, offsets: Array) -> None:
        """Turn inner products into values in place."""


class _Cosines(_Projected):
    """√(2/M) cos 2π(⟨ω_j, x⟩ + b_j)."""

    def _finish(self, S: Array, offsets: Array) -> None:
        self.engine.loops.cosines(S, offsets, np.sqrt(2.0 / self.width))


class _ReLUs(_Projected):
    """max(0, ⟨ω_j, x⟩ + c_j)."""

    def _finish(self, S: Array, offsets: Array) -> None:
        if offsets.any():  # c is 0 unless rows are centred
            S += offsets
        np.maximum(S, 0, out=S)


@dataclass(eq=False)
class _Orthonormal(_OfArray):
    """L⁻¹ k_Z(x)."""

    expansion: Expansion

    @property
    def scratch_bytes(self) -> int:
        return super().scratch_bytes + self.row_tile * min(_SUBSTITUTED_COLUMNS, self.width) * self.dtype.itemsize

    def block(self, X: Array, out: Array | None = None) -> Array:
        out = self.expansion.block(X, out)
        # A triangular product in place, from the last columns, which no others need, to the first: half the work of a
        # square product. BLAS has it, but SciPy's wrapper holds Python's lock.
        for rows in cuts(len(X), ROW_TILE):
            for cols in reversed(cuts(self.width, _SUBSTITUTED_COLUMNS)):
                out[rows, cols] = out[rows, : cols.stop] @ self.array[cols, : cols.stop].T
        return out


# --------------------------------------------------------------------------------------------------- random numbers


class _Purpose(IntEnum):
    DIRECTIONS = 0
    SCALES = 1
    PHASES = 2


def _key(seed: int, purpose: int) -> int:
    return int(row_hash(np.array([purpose]), HashFamily.FEATURES, seed)[0])


def _normals(seed: int, purpose: int, M: int, d: int) -> Array:
    """Standard normals of features, (M, d), as float64 with float32 precision."""
    normals = np.zeros((M, d), dtype=np.float32)
    default_engine().loops.add_noise(normals, np.arange(M), copies=0, seed=_key(seed, purpose), sigma=1.0)
    return normals.astype(np.float64)


def _orthogonalised(rows: Array) -> Array:
    """Orthogonalise rows by Gram and Schmidt; normal rows stay so, since directions and lengths are independent."""
    Q, R = np.linalg.qr(rows.T)
    lengths = np.linalg.norm(rows, axis=1)
    return np.asarray((Q * (np.sign(np.diag(R)) * lengths)).T)


def _spread(value: Array | float, d: int) -> Array:
    return np.broadcast_to(np.asarray(value, dtype=np.float64), (d,))
