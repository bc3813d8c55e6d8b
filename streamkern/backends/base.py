"""The protocol of backends: the few loops over blocks of rows that NumPy expressions are too slow for.

Every function is single-threaded, keeps no state and gives the same bits whatever thread it runs on: parallelism is
across blocks. Arrays named ``out`` and ``S`` are written in place. Two-dimensional arrays may be row-strided views
(a tile of a larger buffer), as long as the elements of a row are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamkern.errors import UsageError
from streamkern.types import Array, IntArray

Profile: TypeAlias = Callable[[Array], Array]
"""A user's radial profile: squared distances to kernel values, elementwise, in NumPy."""

RADIAL_KINDS = ("laplace", "matern32", "matern52", "gaussian", "cauchy", "exponential_power")
"""Radial profiles every backend knows. With r = ‖x − z‖, σ = ``bandwidth`` and γ = ``exponent``:

======================  ==========================================
``laplace``             exp(−r/σ)
``matern32``            (1 + t) exp(−t),            t = √3 r/σ
``matern52``            (1 + t + t²/3) exp(−t),     t = √5 r/σ
``gaussian``            exp(−r²/(2σ²))
``cauchy``              1/(1 + r²/σ²)
``exponential_power``   exp(−(r/σ)^γ)
======================  ==========================================

Where ``norm`` is 1, which ``laplace`` and ``exponential_power`` allow, r = Σ_k |x_k − z_k|.
"""

ANGULAR_KINDS = ("arccos0", "arccos1", "arccos2", "ntk")
"""Kernels of the angle θ between x and z that every backend knows: ``arccos0`` to ``arccos2`` are the arc-cosine
kernels of order n = 0, 1, 2 (Cho & Saul 2009), ``ntk`` the neural tangent kernel of a ReLU network (Jacot et al. 2018).
"""


class Backend(Protocol):
    """The backend that computes the elementwise arithmetic of a block."""

    @property
    def name(self) -> str:
        """The backend's name, as ``get_backend`` and reports say it."""

    def assemble(
        self, raw: Array, index: IntArray, out: NDArray[np.float32], *, scale: ArrayLike, offset: ArrayLike
    ) -> None:
        """Gather, convert and scale: ``out[i] = float32(raw[index[i]]) * scale + offset``.

        Rows of a ``wide`` dtype are ``float32(float64(raw[index[i]]) * scale + offset)``: the offset subtracted there
        goes before they are rounded.

        Args:
            raw: stored rows, shape (N, d); any integer, floating or bool dtype.
            index: shape (n,), rows of ``raw`` in [0, N), in any order, with repetitions.
            out: shape (n, d), float32, overwritten.
            scale: a number or shape (d,), used in float32; in float64 where ``raw`` is wide.
            offset: a number or shape (d,), used as ``scale`` is.

        Raises:
            UsageError: the shapes disagree or an index is out of range.
        """

    def add_noise(
        self, out: NDArray[np.float32], row_ids: IntArray, *, copies: int | IntArray, seed: int, sigma: float
    ) -> None:
        """Add Gaussian noise: ``out[i] += sigma * normal(seed, copies[i], row_ids[i])``, see ``rng.normal_rows``.

        Args:
            out: shape (n, d), float32, changed in place.
            row_ids: shape (n,), int64.
            copies: one copy number, or one a row, shape (n,).
            seed: any integer, taken modulo 2⁶⁴.
            sigma: standard deviation, in the units of ``out``.

        Raises:
            UsageError: the shapes disagree.
        """

    def assemble_noisy(
        self,
        raw: Array,
        index: IntArray,
        out: NDArray[np.float32],
        *,
        scale: ArrayLike,
        offset: ArrayLike,
        row_ids: IntArray,
        copies: int | IntArray,
        seed: int,
        sigma: float,
    ) -> None:
        """``assemble``, then ``add_noise``, in one pass over ``out``; the same result to the bit.

        Args:
            raw: as in ``assemble``.
            index: as in ``assemble``.
            out: as in ``assemble``.
            scale: as in ``assemble``.
            offset: as in ``assemble``.
            row_ids: shape (n,), the ids of the rows of ``out`` (not of ``raw``).
            copies: as in ``add_noise``.
            seed: as in ``add_noise``.
            sigma: as in ``add_noise``, in the units of ``out``, that is after scaling.

        Raises:
            UsageError: the shapes disagree or an index is out of range.
        """

    def finite_rows(self, X: Array) -> int:
        """Return the first row of ``X`` (n, d) that holds a NaN or an infinity, or -1 if all values are finite."""

    def row_norms(self, X: Array) -> Array:
        """Return the squared norm of each row of ``X`` (n, d), summed in float64: shape (n,), in the dtype of X.

        Args:
            X: float32 or float64.

        Raises:
            UsageError: another dtype.
        """

    def manhattan(self, X: Array, Z: Array, out: Array) -> None:
        """Distances in the L1 norm: ``out[i, j] = Σ_k |X[i, k] − Z[j, k]|``, summed in the dtype of the rows.

        Args:
            X: shape (b, d), float32 or float64.
            Z: shape (p, d), in the dtype of X.
            out: shape (b, p), in the dtype of X, overwritten.

        Raises:
            UsageError: shapes or dtypes that disagree, or an output that cannot be written.
        """
        ...

    def signed_sums(self, P: Array, X: Array, Z: Array, out: Array) -> None:
        """Gradients of L1 distances, summed: ``out[i, k] = Σ_j P[i, j] sign(X[i, k] − Z[j, k])``.

        Args:
            P: shape (b, p), in the dtype of the rows.
            X: shape (b, d), float32 or float64.
            Z: shape (p, d), in the dtype of X.
            out: shape (b, d), in the dtype of X, overwritten.

        Raises:
            UsageError: shapes or dtypes that disagree.
        """
        ...

    def radial(
        self, S: Array, x_norms: Array, z_norms: Array, kind: str | Profile, params: Mapping[str, float]
    ) -> None:
        """Turn inner products into kernel values in place: S holds X Zᵀ on entry and k(X, Z) on exit.

        With ``norm`` 1 among the parameters S holds L1 distances on entry, as ``manhattan`` gives them, and the norms
        are not read.

        Squared distances are x_norms[:, None] + z_norms − 2 S, and 0 where that is below ``coincident`` of the sum of
        the norms, a NaN staying a NaN. In float32 they carry a rounding error of a few 1e-7 of the squared norms, which
        the square root magnifies near x = z: centre the data, and set the diagonal of k(Z, Z) exactly. A value below
        the smallest normal number is 0, because subnormal numbers make the matrix product that follows many times
        slower.

        Args:
            S: shape (b, p), float32 or float64.
            x_norms: squared norms of X, shape (b,).
            z_norms: squared norms of Z, shape (p,).
            kind: one of ``RADIAL_KINDS``, or a NumPy function of squared distances.
            params: ``bandwidth`` σ > 0, ``exponent`` γ in (0, 2] for ``exponential_power``, and ``norm``, 1 or 2 (the
                default). A function reads none of them.

        Raises:
            UsageError: unknown kind, a parameter that is missing or out of range, or shapes that disagree.
        """

    def angular(self, S: Array, x_norms: Array, z_norms: Array, kind: str, depth: int) -> None:
        """Turn inner products into values of an angular kernel in place: S holds X Zᵀ on entry and k(X, Z) on exit.

        With u = cos θ = ⟨x, z⟩/(‖x‖ ‖z‖), 0 where a norm is 0, one layer of the arc-cosine kernel of order n is
        κ_n(u) = J_n(θ)/J_n(0) (Cho & Saul 2009, section 2)::

            κ_0 = 1 − θ/π      κ_1 = (sin θ + (π − θ) u)/π      κ_2 = (3 u sin θ + (π − θ)(1 + 2u²))/(3π)

        and ``depth`` layers are κ_n(κ_n(...(u))) m(x) m(z), with the magnitudes of ``magnitudes``. The tangent kernel
        is ‖x‖ ‖z‖ t_depth with t_0 = u_0 = u, u_l = κ_1(u_{l−1}), t_l = u_l + t_{l−1} κ_0(u_{l−1}) (Arora et al. 2019).

        An angle carries the rounding of its cosine: in float32 κ_0, and so ``arccos0`` and ``ntk``, is wrong by up to
        2e-4 where z is x, and κ_0(κ_0(u)) by the root of that. Set the diagonal of k(Z, Z) exactly.

        Args:
            S: shape (b, p), float32 or float64.
            x_norms: squared norms of X, shape (b,).
            z_norms: squared norms of Z, shape (p,).
            kind: one of ``ANGULAR_KINDS``.
            depth: number of layers, at least 1.

        Raises:
            UsageError: unknown kind or depth, or shapes that disagree.
        """

    def cosines(self, S: Array, phases: Array, scale: float) -> None:
        """Cosines of angles in turns, in place: ``S[i, j] = scale * cos(2π (S[i, j] + phases[j]))``.

        In turns, the reduction to one turn is exact. What float32 has left to lose is the rounding of the sum.

        Args:
            S: shape (b, p), float32 or float64; below 2²⁰ turns in float32, where a turn still has digits.
            phases: in turns, shape (p,).
            scale: the amplitude.

        Raises:
            UsageError: shapes that disagree, or a tile that cannot be written.
        """


class HostBackend(Backend, Protocol):
    """The loops of the CPU."""

    def route(
        self, X: Array, directions: Array, cuts: Array, children: IntArray, width: float
    ) -> tuple[IntArray, Array]:
        """Return the leaves of a tree of cuts that predict each row, and their weights, both of shape (n, 2).

        A row's projection t on a cut's direction goes left below its threshold and right from it on. At the first cut
        where t is near the threshold, it goes both ways, with weights that change along a line. A row has the same bits
        whatever rows are around it.

        Args:
            X: rows, shape (n, d).
            directions: of the cuts, the root first, shape (m, d), float64.
            cuts: low, threshold and high of each cut, shape (m, 3), float64.
            children: left and right side of each cut, shape (m, 2): the number of a cut, or -1 - leaf.
            width: where rows are near: from low to high at 1, nowhere at 0.

        Returns:
            Leaves, the second -1 where there is one alone; and weights, which sum to 1.
        """

    def assign(
        self, X: Array, at: IntArray, directions: Array, cuts: Array, children: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return the rows that each leaf of a tree of cuts is trained on: projections below high left, from low right.

        Args:
            X: rows, shape (n, d).
            at: those of them that are assigned, ascending, shape (k,), int64.
            directions: as in ``route``.
            cuts: as in ``route``.
            children: as in ``route``.

        Returns:
            Where the rows of each leaf begin and end, shape (m + 1, 2); and the rows, leaf after leaf from the left of
            the tree to its right, ascending within one. Projections are those of ``project``, to the bit.
        """

    def moments(self, X: Array, w: Array | None, pivot: Array) -> tuple[Array, Array, Array, Array]:
        """Return min x, max x, Σ w (x − c) and Σ w (x − c)² of each column, four of shape (d,), float64.

        Args:
            X: finite rows, shape (n, d), summed in their order.
            w: weights of rows, shape (n,), float64; None: each is 1.
            pivot: c, shape (d,), float64.
        """

    def project(self, X: Array, at: IntArray, direction: Array) -> Array:
        """Return X · direction in float64 of some rows, the same bits for a row whatever rows are around it.

        Args:
            X: rows, shape (n, d).
            at: positions of rows, shape (m,).
            direction: shape (d,), float64.
        """


def wide(dtype: np.dtype[Any]) -> bool:
    """Return True if float32 cannot hold all values of a dtype of stored rows: float64 and integers of 32 bits."""
    return not np.can_cast(dtype, np.float32)


def coincident(dtype: np.dtype[Any]) -> float:
    """Share of ‖x‖² + ‖z‖² below which a squared distance is 0.

    In float64 what is left there is rounding, and its root, of 1e-8, would make a row that is a center differ from it:
    repeating a row would not be weighting it. In float32 that root is of 1e-3, and such distances may mean something.
    """
    return float(8 * np.finfo(np.float64).eps) if dtype == np.float64 else 0.0


def magnitudes(kind: str, depth: int, norms: Array) -> Array:
    """m(x) of an angular kernel, from squared norms: shape (n,), in their dtype.

    1 for ``arccos0``, ‖x‖ for ``arccos1`` and ``ntk``. A layer of ``arccos2`` takes q = k(x, x) to 3q²: m = √q.
    """
    match kind:
        case "arccos0":
            return np.ones_like(norms)
        case "arccos2":
            q = norms
            with np.errstate(over="ignore"):  # three layers of norms beyond a thousand leave float32
                for _ in range(depth):
                    q = 3 * np.square(q)
            return np.sqrt(q)
        case _:
            return np.sqrt(norms)


def radial_coefficients(kind: str, params: Mapping[str, float]) -> tuple[float, float, float]:
    """Return the three numbers (a, b, c) of a radial kind's formula, checked.

    With s the squared distance and t = √(a s): (1 + b t + c t²) exp(−t) for ``laplace`` and the Matern kinds; for
    the others exp(−a s), 1/(1 + a s) and exp(−(a s)^b) in the order of ``RADIAL_KINDS``.

    Raises:
        UsageError: unknown kind, or a parameter that is missing or out of range.
    """
    if kind not in RADIAL_KINDS:
        raise UsageError(f"Unknown radial kernel {kind!r}.", where="kind", expected=f"one of {', '.join(RADIAL_KINDS)}")
    bandwidth = _parameter(params, "bandwidth", np.inf)
    inverse = bandwidth**-2.0
    match kind:
        case "matern32":
            return 3.0 * inverse, 1.0, 0.0
        case "matern52":
            return 5.0 * inverse, 1.0, 1.0 / 3.0
        case "gaussian":
            return inverse / 2.0, 0.0, 0.0
        case "exponential_power":
            return inverse, _parameter(params, "exponent", 2.0) / 2.0, 0.0
        case _:
            return inverse, 0.0, 0.0


def radial_formula(kind: str, params: Mapping[str, float]) -> tuple[str, tuple[float, float, float], bool]:
    """Return a kind's formula: its name among ``RADIAL_KINDS``, its numbers, and whether S holds distances already.

    In the L1 norm no square is taken: with s the distance itself, ``laplace`` is exp(−a s), the formula of
    ``gaussian``, and ``exponential_power`` is exp(−(a s)^γ) with a = 1/σ.

    Raises:
        UsageError: as ``radial_coefficients``, or a kind that has no L1 norm.
    """
    a, b, c = radial_coefficients(kind, params)
    if params.get("norm", 2) == 2:
        return kind, (a, b, c), False
    if kind not in ("laplace", "exponential_power") or params["norm"] != 1 or 2 * b > 1:
        raise UsageError(
            f"Unknown radial kernel {kind!r} of the norm {params['norm']}.",
            where="kind, norm",
            expected="laplace, or exponential_power with an exponent of at most 1, for the norm 1; or the norm 2",
        )
    return ("gaussian", (a**0.5, 0.0, 0.0), True) if kind == "laplace" else (kind, (a**0.5, 2 * b, 0.0), True)


def _parameter(params: Mapping[str, float], name: str, upper: float) -> float:
    value = params.get(name)
    if value is None or not 0.0 < value <= upper or not np.isfinite(value):
        bound = "a positive number" + (f", at most {upper:g}" if np.isfinite(upper) else "")
        raise UsageError(f"The kernel's {name} is {value}.", where=name, expected=bound)
    return float(value)


def has_dense_rows(X: Array) -> bool:
    """Return True if the elements of each row of X (n, d) are contiguous, whatever the distance between rows."""
    return X.size == 0 or (bool(X.flags.aligned) and (X.shape[1] == 1 or X.strides[1] == X.itemsize))


def check_gather(raw: Array, index: IntArray, out: Array) -> None:
    """Check the indices and shapes of a compiled gather, which would otherwise read or write out of bounds.

    Raises:
        UsageError: the shapes disagree, an index is out of range, or the output cannot be written row by row.
    """
    if raw.ndim != 2 or out.shape != (len(index), raw.shape[1]):
        raise UsageError(
            f"Cannot gather {len(index)} rows of an array of shape {raw.shape} into one of shape {out.shape}.",
            where="out",
            expected=f"an output of shape ({len(index)}, {raw.shape[-1]})",
        )
    if len(index) and (int(index.min()) < 0 or int(index.max()) >= len(raw)):
        raise UsageError(
            f"Row indices run from {index.min()} to {index.max()} where there are {len(raw)} rows.",
            where="index",
            expected=f"indices in [0, {len(raw)})",
        )
    check_written(out, np.float32)


def check_row_ids(row_ids: IntArray, n: int) -> None:
    """Raise UsageError unless there is one id for each of n rows."""
    if len(row_ids) != n:
        raise UsageError(f"{len(row_ids)} row ids do not fit {n} rows.", where="row_ids", expected="one id a row")


def check_angular(S: Array, x_norms: Array, z_norms: Array, kind: str, depth: int) -> None:
    """Check a kind and a depth, and make the checks of ``check_tile``.

    Raises:
        UsageError: one of them is not as ``Backend.angular`` says.
    """
    if kind not in ANGULAR_KINDS or depth < 1:
        raise UsageError(
            f"Unknown angular kernel {kind!r} of depth {depth}.",
            where="kind, depth",
            expected=f"one of {', '.join(ANGULAR_KINDS)}, of depth 1 or more",
        )
    check_tile(S, x_norms, z_norms)


def check_cosines(S: Array, phases: Array) -> None:
    """Check that phases fit a tile, and that the tile can be written row by row.

    Raises:
        UsageError: they do not, or it cannot.
    """
    if S.ndim != 2 or phases.shape != S.shape[1:]:
        raise UsageError(
            f"Phases of shape {phases.shape} do not fit a tile of shape {S.shape}.",
            where="phases",
            expected="shape (S.shape[1],)",
        )
    check_written(S, np.float32, np.float64)


def check_manhattan(X: Array, Z: Array, out: Array) -> None:
    """Check that rows, centers and distances fit.

    Raises:
        UsageError: they do not.
    """
    if X.shape[1:] != Z.shape[1:] or out.shape != (len(X), len(Z)) or not X.dtype == Z.dtype == out.dtype:
        raise UsageError(
            f"{X.dtype} rows {X.shape} and {Z.dtype} centers {Z.shape} do not fit distances {out.dtype} {out.shape}.",
            where="out",
            expected=f"rows of one width and dtype, and an output of shape ({len(X)}, {len(Z)})",
        )


def check_tile(S: Array, x_norms: Array, z_norms: Array) -> None:
    """Check that norms fit a tile of inner products, and that the tile can be written row by row.

    Raises:
        UsageError: the shapes disagree, or the tile cannot be written.
    """
    if S.ndim != 2 or (len(x_norms), len(z_norms)) != S.shape:
        raise UsageError(
            f"Norms of {len(x_norms)} and {len(z_norms)} rows do not fit a tile of shape {S.shape}.",
            where="x_norms, z_norms",
            expected="S of shape (len(x_norms), len(z_norms))",
        )
    check_written(S, np.float32, np.float64)


def check_written(X: Array, *dtypes: type[np.floating]) -> None:
    """Check that a loop can write to an array row by row.

    Raises:
        UsageError: it cannot, or the array has another dtype.
    """
    if X.dtype not in dtypes or not has_dense_rows(X) or not X.flags.writeable:
        raise UsageError(
            f"Cannot write to an array of {X.dtype} with strides {X.strides}, writeable: {X.flags.writeable}.",
            where="S",
            expected=f"a writeable array of {' or '.join(t.__name__ for t in dtypes)} with contiguous rows",
        )
