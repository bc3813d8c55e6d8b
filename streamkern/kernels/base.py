"""Kernels, and the evaluation of k(X, Z) by tiles.

A kernel turns inner products into values: k(x, z) = φ(⟨x, z⟩, ‖x‖², ‖z‖²). So one matrix product and one elementwise
pass make a tile, and only a tile is in memory: ``Expansion`` evaluates f(x) = Σ_j α_j k(x, z_j) within a budget. Sums,
products and positive multiples of kernels are here because the operators of ``Kernel`` return them.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Self, SupportsFloat

import numpy as np

from streamkern.cpu import default_engine
from streamkern.engine import Engine
from streamkern.engine.base import TILE_BYTES, Centered
from streamkern.engine.elementwise import Loops
from streamkern.engine.packed_triangle import cuts
from streamkern.engine.parallel import row_parts, run_parts
from streamkern.errors import UsageError, quoted
from streamkern.kernels.derivatives import Slopes, add_slopes, numerical_slopes
from streamkern.types import Array, IntArray, Parameters

STRIP_ROWS = 32
"""Rows of a tile that a sum or product of kernels copies at once."""


class Kernel(Parameters, ABC):
    """A positive-definite function k(x, z). ``kernel(X, Z)`` is the matrix k(X, Z); + and * combine kernels."""

    __array_ufunc__: ClassVar[None] = None  # so that ``np.float64(2) * kernel`` calls ``Kernel.__rmul__``

    @property
    def translation_invariant(self) -> bool:
        """True if k(x + a, z + a) = k(x, z). Rows may then be centred, for accurate distances in float32."""
        return False

    @property
    def norm(self) -> int:
        """1 if the kernel depends on L1 distances; 2 if it depends on inner products or L2 distances."""
        return 2

    @property
    def on_device(self) -> bool:
        """False if values are computed on the CPU only, as those of a user's NumPy function are."""
        return True

    @abstractmethod
    def apply(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
        """Turn inner products S = X Zᵀ, shape (b, p), into k(X, Z) in place. If ``norm`` is 1, S has L1 distances.

        Args:
            S: inner products or L1 distances, float32 or float64. Each row is contiguous; S need not be.
            x_norms: squared norms of X, shape (b,).
            z_norms: squared norms of Z, shape (p,).
            loops: the object whose methods compute elementwise functions, with NumPy or with compiled code.
        """

    def slopes(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
        """Return P and Q of the gradient: ∇_x k(x, z) = P z + Q x, or P sign(x − z) if ``norm`` is 1.

        By default, they are finite differences of ``apply`` in float64; see ``kernels.derivatives``.

        Args:
            S: as for ``apply``; it is not changed.
            x_norms: as for ``apply``.
            z_norms: as for ``apply``.
            loops: as for ``apply``.

        Returns:
            P and Q, both of shape (b, p); Q is None if it is 0.
        """
        return numerical_slopes(self.apply, S, x_norms, z_norms, loops)

    @property
    def profile(self) -> tuple[str, Mapping[str, float]] | None:
        """Kind and parameters of a radial kernel with a compiled loop; None for other kernels."""
        return None

    @abstractmethod
    def diag(self, X: Array) -> Array:
        """Return k(x, x) of every row of X: shape (n,)."""

    def __call__(self, X: Array, Z: Array | None = None, *, threads: int | None = None) -> Array:
        """Return the kernel matrix k(X, Z), shape (n, p), in X's floating dtype.

        Args:
            X: rows, shape (n, d).
            Z: centers, shape (p, d); None for k(X, X), with an exact diagonal.
            threads: largest number of threads; by default, the number of cores. The bits do not depend on it.

        Raises:
            UsageError: shapes do not fit, or ``threads`` is below 1.
        """
        X, shift, basis = self._against(X, Z)
        K = np.empty((len(X), basis.p), X.dtype)

        def part(rows: slice) -> None:
            basis.block(X[rows] - shift, out=K[rows])

        run_parts(part, row_parts(len(X), *basis.Z.shape), threads)
        if Z is None:
            np.fill_diagonal(K, self.diag(X))
        return K

    def matvec(self, X: Array, Z: Array, W: Array, *, threads: int | None = None) -> Array:
        """Return k(X, Z) W without storing k(X, Z): shape (n, c), or (n,) if W has shape (p,).

        Args:
            X: rows, shape (n, d).
            Z: centers, shape (p, d).
            W: weights, shape (p, c) or (p,).
            threads: largest number of threads; by default, the number of cores. The bits do not depend on it.

        Raises:
            UsageError: shapes do not fit, or ``threads`` is below 1.
        """
        X, shift, basis = self._against(X, Z)
        if len(W) != len(Z):
            raise UsageError(f"W has {len(W)} rows where Z has {len(Z)}.", where="W", expected="one row a center")
        weights = np.asarray(W, dtype=X.dtype)
        columns = weights.reshape(len(Z), -1)
        out = np.empty((len(X), columns.shape[1]), X.dtype)

        def part(rows: slice) -> None:
            out[rows] = basis.predict(X[rows] - shift, columns)

        run_parts(part, row_parts(len(X), *basis.Z.shape), threads)
        return out.reshape((len(X), *weights.shape[1:]))

    def _against(self, X: Array, Z: Array | None) -> tuple[Array, Array, Expansion]:
        """Rows in a floating dtype, the centers' mean or 0 if the kernel forbids centring, and the centers less it."""
        X = _floating(X, "X")
        Z = X if Z is None else _floating(Z, "Z").astype(X.dtype, copy=False)
        if X.shape[1] != Z.shape[1]:
            what = f"X has {X.shape[1]} features and Z has {Z.shape[1]}."
            raise UsageError(what, where="Z", expected="rows of the same width")
        centred = self.translation_invariant and len(Z)
        shift = Z.mean(axis=0, dtype=np.float64).astype(Z.dtype) if centred else np.zeros((), Z.dtype)
        return X, shift, Expansion(self, Z - shift if centred else Z)

    @property
    def needs_median(self) -> bool:
        """True if a length scale is the median distance between two rows, and not yet known."""
        return False

    @property
    def is_open(self) -> bool:
        """True if a search chooses the length scale, as of a kernel that is given by its name alone."""
        return False

    def at_median(self, distance: float) -> Kernel:
        """Return the kernel with ``distance``, in the units of the rows, in place of every ``"median"``."""
        return self

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name, for scikit-learn's tools.

        Args:
            deep: whether to add the parameters of nested kernels, as ``kernel__bandwidth`` or ``parts__0__bandwidth``.
        """
        found: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        for name, value in list(found.items()) if deep else ():
            inside = {name: value} if isinstance(value, Kernel) else {}
            if isinstance(value, tuple):
                inside = {f"{name}__{i}": part for i, part in enumerate(value)}
            for prefix, kernel in inside.items():
                found |= {f"{prefix}__{each}": given for each, given in kernel.get_params().items()}
        return found

    def set_params(self, **given: Any) -> Self:
        """Return a new kernel with other parameters, named as in ``get_params``.

        Raises:
            UsageError: a name is unknown, or a value is not allowed.
        """
        kernel = self
        for name, value in given.items():
            head, _, rest = name.partition("__")
            old = kernel.get_params(deep=False).get(head, kernel)
            index, _, inner = rest.partition("__")
            if rest and isinstance(old, tuple) and index.isdecimal() and int(index) < len(old):
                part = old[int(index)].set_params(**{inner: value}) if inner else value
                value = (*old[: int(index)], part, *old[int(index) + 1 :])
            elif rest and isinstance(old, Kernel) and old is not kernel:
                value = old.set_params(**{rest: value})
            elif rest or old is kernel:
                raise UsageError(
                    f"{type(self).__name__} has no parameter {name!r}.",
                    where="set_params",
                    expected="one of " + ", ".join(self.get_params()),
                )
            kernel = replace(kernel, **{head: value})  # type: ignore[type-var]
        return kernel

    def __add__(self, other: object) -> Sum:
        if not isinstance(other, Kernel):
            return NotImplemented
        return Sum((*_parts(self, Sum), *_parts(other, Sum)))

    def __mul__(self, other: object) -> Kernel:
        if isinstance(other, Kernel):
            return Product((*_parts(self, Product), *_parts(other, Product)))
        if isinstance(other, SupportsFloat) and not isinstance(other, np.ndarray):
            return Scaled(self, float(other))
        return NotImplemented

    __rmul__ = __mul__


@dataclass(frozen=True)
class _Combined(Kernel):
    parts: tuple[Kernel, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        _check_kernels(self, *self.parts)
        if len({part.norm for part in self.parts}) > 1:
            raise UsageError(
                f"The parts {self.parts!r} are kernels of different norms.",
                where=type(self).__name__,
                expected="kernels that all have norm=1, or none of them",
                remedy="give every part the same norm",
            )

    @property
    def translation_invariant(self) -> bool:
        return all(part.translation_invariant for part in self.parts)

    @property
    def norm(self) -> int:
        return self.parts[0].norm

    @property
    def on_device(self) -> bool:
        return all(part.on_device for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        return {"name": type(self).__name__, "parts": [part.to_json() for part in self.parts]}

    @property
    def needs_median(self) -> bool:
        return any(part.needs_median for part in self.parts)

    def at_median(self, distance: float) -> Self:
        return type(self)(tuple(part.at_median(distance) for part in self.parts))


@dataclass(frozen=True)
class Sum(_Combined):
    """k(x, z) = Σ_i k_i(x, z), the result of ``k1 + k2``. Evaluation copies a strip of a tile, as for ``Product``.

    ``UsageError`` if ``parts`` is empty, a part is not a kernel, or parts with norm 1 and norm 2 are mixed.
    """

    def apply(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
        _fold(self.parts, np.add, S, x_norms, z_norms, loops)

    def slopes(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
        P, Q = self.parts[0].slopes(S, x_norms, z_norms, loops)
        for part in self.parts[1:]:
            more = part.slopes(S, x_norms, z_norms, loops)
            P, Q = P + more[0], add_slopes(Q, more[1])
        return P, Q

    def diag(self, X: Array) -> Array:
        return np.asarray(np.sum([part.diag(X) for part in self.parts], axis=0))


@dataclass(frozen=True)
class Product(_Combined):
    """k(x, z) = Π_i k_i(x, z), from ``k1 * k2``; positive definite by Schur's theorem. Errors as for ``Sum``."""

    def apply(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
        _fold(self.parts, np.multiply, S, x_norms, z_norms, loops)

    def slopes(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
        value: Any = 1.0
        P, Q = S * 0, None
        for part in self.parts:
            own, here = part.slopes(S, x_norms, z_norms, loops), S.copy()
            part.apply(here, x_norms, z_norms, loops)
            P, Q = P * here + value * own[0], None if Q is None else Q * here
            Q, value = add_slopes(Q, None if own[1] is None else value * own[1]), value * here
        return P, Q

    def diag(self, X: Array) -> Array:
        return np.asarray(np.prod([part.diag(X) for part in self.parts], axis=0))


@dataclass(frozen=True)
class Scaled(Kernel):
    """k(x, z) = c k_0(x, z), the result of ``c * k0``; ``UsageError`` unless c, ``scale``, is positive and finite."""

    kernel: Kernel
    scale: float

    def __post_init__(self) -> None:
        _check_kernels(self, self.kernel)
        set_number(self, "scale", positive=True)

    @property
    def translation_invariant(self) -> bool:
        return self.kernel.translation_invariant

    @property
    def norm(self) -> int:
        return self.kernel.norm

    @property
    def on_device(self) -> bool:
        return self.kernel.on_device

    def apply(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
        self.kernel.apply(S, x_norms, z_norms, loops)
        S *= S.dtype.type(self.scale)

    def slopes(self, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> Slopes:
        P, Q = self.kernel.slopes(S, x_norms, z_norms, loops)
        return P * self.scale, None if Q is None else Q * self.scale

    def diag(self, X: Array) -> Array:
        K = self.kernel.diag(X)
        return np.asarray(K * K.dtype.type(self.scale))

    @property
    def needs_median(self) -> bool:
        return self.kernel.needs_median

    def at_median(self, distance: float) -> Scaled:
        return Scaled(self.kernel.at_median(distance), self.scale)


@dataclass(eq=False)
class Expansion(Centered):
    """f(x) = Σ_j α_j k(x, z_j): a kernel against fixed centers, evaluated by an engine.

    Z (p, d) is float32 or float64, and already centred if the kernel allows it. A thread holds at most ``tile_bytes``.
    """

    identity_penalty = False

    kernel: Kernel
    Z: Array
    engine: Engine = field(default_factory=default_engine)
    tile_bytes: int = TILE_BYTES

    def __post_init__(self) -> None:
        if isinstance(self.Z, np.ndarray):
            self.Z = np.ascontiguousarray(self.Z)
        self.resident = self.engine.hold(self.Z)

    @property
    def width(self) -> int:
        return self.p

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.Z.dtype

    def at(self, Z: Array, engine: Engine | None = None) -> Expansion:
        return Expansion(self.kernel, Z, engine or self.engine)

    def head(self, n: int) -> Expansion:
        head = object.__new__(type(self))  # not a copy, which would pack all centers again
        head.__dict__ = self.__getstate__()
        head.Z = self.Z[:n]
        head.resident = self.engine.hold_head(self.resident, head.Z)
        return head

    def block(self, X: Array, out: Array | None = None) -> Array:
        return self.engine.block(self, X, out)

    def values_of(self, functions: IntArray, X: Array, engine: Engine) -> Array:
        return engine.values(self.at(self.Z[functions], engine), X).astype(np.float64)

    def penalty_matrix(self) -> Array:
        return self.engine.kernel_matrix(self, self.p)

    def add_penalty(self, A: Array, ridge: float) -> None:
        for rows, below in self.engine.kernel_rows(self, self.p):  # a few tiles of K(Z, Z) are in memory
            A[rows, : rows.stop] += ridge * below

    def penalise(self, W: Array) -> Array:
        return self.engine.kernel_product(self, W)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "resident"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.resident = self.engine.hold(self.Z)


def set_number(owner: Any, name: str, *, positive: bool = False) -> None:
    """Convert a field of a frozen dataclass to a Python float >= 0 (or > 0 if ``positive``), for JSON."""
    value = getattr(owner, name)
    real = isinstance(value, SupportsFloat) and not isinstance(value, bool | np.ndarray)
    try:
        number = float(value) if real else np.nan
    except OverflowError:  # an integer beyond floats
        number = np.inf
    if not (np.isfinite(number) and (number > 0 or (number == 0 and not positive))):
        raise UsageError(
            f"The {name} is {quoted(value)}.",
            where=f"{type(owner).__name__}({name}=...)",
            expected="a positive finite number" if positive else "a finite number, 0 or above",
        )
    object.__setattr__(owner, name, number)


def set_integer(owner: Any, name: str, low: int, high: int | None = None) -> None:
    """Convert a field of a frozen dataclass to a Python int and check that it is in [low, high]."""
    value = getattr(owner, name)
    try:
        number = low - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = low - 1
    if number < low or (high is not None and number > high):
        raise UsageError(
            f"The {name} is {value!r}.",
            where=f"{type(owner).__name__}({name}=...)",
            expected=f"a whole number from {low}" + (f" to {high}" if high is not None else ""),
        )
    object.__setattr__(owner, name, number)


def _parts(kernel: Kernel, kind: type[Sum] | type[Product]) -> tuple[Kernel, ...]:
    return kernel.parts if isinstance(kernel, kind) else (kernel,)


def _check_kernels(whole: Kernel, *parts: Any) -> None:
    if not parts or not all(isinstance(part, Kernel) for part in parts):
        raise UsageError(f"The parts are {parts!r}.", where=type(whole).__name__, expected="one kernel or more")
    for part in parts:
        require_bandwidth(part, type(whole).__name__)


def require_bandwidth(kernel: Kernel, where: str) -> None:
    """Raise UsageError for a kernel whose bandwidth only a search for the whole kernel chooses."""
    if kernel.is_open:
        raise UsageError(
            f"The bandwidth of {kernel!r} is left to a search for the kernel.",
            where=where,
            expected='a number, or "median"',
            remedy='give the bandwidth "median"; a search chooses only a kernel that is passed alone, by its name',
        )


def _fold(parts: tuple[Kernel, ...], combine: np.ufunc, S: Array, x_norms: Array, z_norms: Array, loops: Loops) -> None:
    """Combine the parts' values in place, by strips of rows, so that temporary arrays stay in the cache."""
    for rows in cuts(len(S), STRIP_ROWS):
        strip, norms = S[rows], x_norms[rows]
        values = []
        for part in parts[1:]:
            values.append(strip.copy())
            part.apply(values[-1], norms, z_norms, loops)
        parts[0].apply(strip, norms, z_norms, loops)
        for value in values:
            combine(strip, value, out=strip)


def _floating(X: Array, name: str) -> Array:
    X = np.asarray(X)
    if X.ndim != 2:
        raise UsageError(f"{name} has {X.ndim} dimensions.", where=name, expected="shape (rows, features)")
    return X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)
