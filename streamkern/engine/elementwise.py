"""Elementwise arithmetic on blocks of rows and tiles of kernel values, in NumPy: the reference of faster loops.

Every function is single-threaded, has no state and gives the same bits on any thread: parallelism is across blocks.
Arrays named ``out`` and ``S`` are written in place. Two-dimensional arrays may be row-strided views (a tile of a larger
buffer), as long as the elements of a row are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamkern.errors import UsageError
from streamkern.rng import normal_rows
from streamkern.types import Array, IntArray

Profile: TypeAlias = Callable[[Array], Array]
"""A user's radial profile: squared distances to kernel values, elementwise, in NumPy."""

RADIAL_KINDS = ("laplace", "matern32", "matern52", "gaussian", "cauchy", "exponential_power")
"""Radial profiles. With r = ‖x − z‖, σ = ``bandwidth`` and γ = ``exponent``:

======================  ==========================================
``laplace``             exp(−r/σ)
``matern32``            (1 + t) exp(−t),            t = √3 r/σ
``matern52``            (1 + t + t²/3) exp(−t),     t = √5 r/σ
``gaussian``            exp(−r²/(2σ²))
``cauchy``              1/(1 + r²/σ²)
``exponential_power``   exp(−(r/σ)^γ)
======================  ==========================================

If ``norm`` is 1, which ``laplace`` and ``exponential_power`` allow, r = Σ_k |x_k − z_k|.
"""

ANGULAR_KINDS = ("arccos0", "arccos1", "arccos2", "ntk")
"""Kernels of the angle θ between x and z: arc-cosine kernels of order 0, 1, 2 (Cho & Saul 2009), and the neural tangent
kernel of a ReLU network (Jacot et al. 2018).
"""


def wide(dtype: np.dtype[Any]) -> bool:
    """Return True if float32 cannot hold all values of a dtype of stored rows: float64 and integers of 32 bits."""
    return not np.can_cast(dtype, np.float32)


def coincident(dtype: np.dtype[Any]) -> float:
    """Share of ‖x‖² + ‖z‖² below which a squared distance is 0.

    In float64 smaller values are rounding errors, whose root, about 1e-8, would separate a row from an equal center:
    repeating a row would differ from weighting it. In float32 the root is about 1e-3: such distances may be real.
    """
    return float(8 * np.finfo(np.float64).eps) if dtype == np.float64 else 0.0


def magnitudes(kind: str, depth: int, norms: Array) -> Array:
    """Return m(x) of an angular kernel from squared norms, (n,).

    1 for ``arccos0``, ‖x‖ for ``arccos1`` and ``ntk``. A layer of ``arccos2`` takes q = k(x, x) to 3q²: m = √q.
    """
    match kind:
        case "arccos0":
            return np.ones_like(norms)
        case "arccos2":
            q = norms
            with np.errstate(over="ignore"):  # three layers overflow float32 if norms are above a thousand
                for _ in range(depth):
                    q = 3 * np.square(q)
            return np.sqrt(q)
        case _:
            return np.sqrt(norms)


def radial_coefficients(kind: str, params: Mapping[str, float]) -> tuple[float, float, float]:
    """Return the three numbers (a, b, c) of a radial kind's formula, after checking parameters.

    With s the squared distance and t = √(a s): (1 + b t + c t²) exp(−t) for ``laplace`` and the Matern kinds; for
    the others exp(−a s), 1/(1 + a s) and exp(−(a s)^b) in the order of ``RADIAL_KINDS``.
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
    """Return a kind's formula: its name in ``RADIAL_KINDS``, its numbers, and whether S already has distances.

    In the L1 norm s is the distance, not squared: ``laplace`` is exp(−a s), the formula of ``gaussian``, and
    ``exponential_power`` is exp(−(a s)^γ) with a = 1/σ.
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
    """Return True if the elements of each row of X (n, d) are contiguous, for any distance between rows."""
    return X.size == 0 or (bool(X.flags.aligned) and (X.shape[1] == 1 or X.strides[1] == X.itemsize))


def check_gathered(raw: Any, rows: int, out: Any) -> None:
    """Check that so many rows of an array fit an output."""
    if raw.ndim != 2 or out.shape != (rows, raw.shape[1]):
        raise UsageError(
            f"Cannot gather {rows} rows of an array of shape {raw.shape} into one of shape {out.shape}.",
            where="out",
            expected=f"an output of shape ({rows}, {raw.shape[-1]})",
        )


def check_gather(raw: Array, index: IntArray, out: Array) -> None:
    """Check what a compiled gather would otherwise read or write out of bounds."""
    check_gathered(raw, len(index), out)
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


def check_floats(X: Any) -> None:
    """Check that rows are of a dtype whose norms are computed."""
    if X.dtype not in (np.float32, np.float64):
        raise UsageError(f"Row norms of {X.dtype} values.", where="X", expected="float32 or float64")


def check_angular(kind: str, depth: int) -> None:
    """Check a kind and a depth."""
    if kind not in ANGULAR_KINDS or depth < 1:
        raise UsageError(
            f"Unknown angular kernel {kind!r} of depth {depth}.",
            where="kind, depth",
            expected=f"one of {', '.join(ANGULAR_KINDS)}, of depth 1 or more",
        )


def check_phases(S: Any, phases: Any) -> None:
    """Check that phases fit a tile."""
    if S.ndim != 2 or phases.shape != S.shape[1:]:
        raise UsageError(
            f"Phases of shape {phases.shape} do not fit a tile of shape {S.shape}.",
            where="phases",
            expected="shape (S.shape[1],)",
        )


def check_manhattan(X: Array, Z: Array, out: Array) -> None:
    """Check that rows, centers and distances fit."""
    if X.shape[1:] != Z.shape[1:] or out.shape != (len(X), len(Z)) or not X.dtype == Z.dtype == out.dtype:
        raise UsageError(
            f"{X.dtype} rows {X.shape} and {Z.dtype} centers {Z.shape} do not fit distances {out.dtype} {out.shape}.",
            where="out",
            expected=f"rows of one width and dtype, and an output of shape ({len(X)}, {len(Z)})",
        )


def check_norms(S: Any, x_norms: Any, z_norms: Any) -> None:
    """Check that norms fit a tile of inner products."""
    if S.ndim != 2 or (len(x_norms), len(z_norms)) != S.shape:
        raise UsageError(
            f"Norms of {len(x_norms)} and {len(z_norms)} rows do not fit a tile of shape {S.shape}.",
            where="x_norms, z_norms",
            expected="S of shape (len(x_norms), len(z_norms))",
        )


def check_tile(S: Array, x_norms: Array, z_norms: Array) -> None:
    """Check that norms fit a tile of inner products, and that the tile can be written row by row."""
    check_norms(S, x_norms, z_norms)
    check_written(S, np.float32, np.float64)


def check_written(X: Array, *dtypes: type[np.floating]) -> None:
    """Check that a loop can write to an array row by row."""
    if X.dtype not in dtypes or not has_dense_rows(X) or not X.flags.writeable:
        raise UsageError(
            f"Cannot write to an array of {X.dtype} with strides {X.strides}, writeable: {X.flags.writeable}.",
            where="S",
            expected=f"a writeable array of {' or '.join(t.__name__ for t in dtypes)} with contiguous rows",
        )


class Loops:
    """The elementwise arithmetic of a block, in plain NumPy: the reference, which needs no compiler.

    Faster loops have the same methods; those of cards lack ``route`` and what follows it, which are over rows that no
    card computes. ``UsageError`` where shapes, dtypes or parameters do not fit.
    """

    name = "numpy"

    def assemble(
        self, raw: Array, index: IntArray, out: NDArray[np.float32], *, scale: ArrayLike, offset: ArrayLike
    ) -> None:
        """Gather, convert and scale: ``out[i] = float32(raw[index[i]]) * scale + offset``.

        Rows of a ``wide`` dtype are ``float32(float64(raw[index[i]]) * scale + offset)``, so that an offset is
        subtracted before rounding. ``raw`` is (N, d), of any integer, floating or bool dtype; ``index`` (n,) has rows
        in any order, with repetitions; ``out`` is (n, d), float32; ``scale`` and ``offset`` are numbers or (d,).
        """
        check_gather(raw, index, out)
        if wide(raw.dtype):
            with np.errstate(over="ignore", invalid="ignore"):  # finite_rows reports overflows of float32
                out[...] = raw[index].astype(np.float64) * np.asarray(scale, np.float64) + np.asarray(
                    offset, np.float64
                )
            return
        out[...] = raw[index]
        out *= np.asarray(scale, dtype=np.float32)
        out += np.asarray(offset, dtype=np.float32)

    def add_noise(
        self, out: NDArray[np.float32], row_ids: IntArray, *, copies: int | IntArray, seed: int, sigma: float
    ) -> None:
        """Add Gaussian noise: ``out[i] += sigma * normal(seed, copies[i], row_ids[i])``, see ``rng.normal_rows``.

        ``out`` is (n, d), float32; row ids are (n,), int64; copies (n,) or one number. Sigma is in the units of
        ``out``.
        """
        check_row_ids(row_ids, len(out))
        of_row = np.broadcast_to(np.asarray(copies, dtype=np.int64), (len(out),))
        for copy in np.unique(of_row):
            rows = np.flatnonzero(of_row == copy)
            out[rows] += np.float32(sigma) * normal_rows(seed, int(copy), row_ids[rows], out.shape[1])

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

        ``row_ids`` are of the rows of ``out`` (not of ``raw``), and ``sigma`` is in the units of ``out``: after
        scaling.
        """
        self.assemble(raw, index, out, scale=scale, offset=offset)
        self.add_noise(out, row_ids, copies=copies, seed=seed, sigma=sigma)

    def finite_rows(self, X: Array) -> int:
        """Return the first row of ``X`` (n, d) with a NaN or an infinity, or -1 if all values are finite."""
        bad = ~np.isfinite(X).all(axis=1)
        return int(bad.argmax()) if bad.any() else -1

    def row_norms(self, X: Array) -> Array:
        """Return the squared norm of each row of ``X`` (n, d), summed in float64: shape (n,), in the dtype of X."""
        check_floats(X)
        squared: Array = np.square(X, dtype=np.float64).sum(axis=1)
        with np.errstate(over="ignore"):
            return squared.astype(X.dtype)

    def manhattan(self, X: Array, Z: Array, out: Array) -> None:
        """Compute L1 distances: ``out[i, j] = Σ_k |X[i, k] − Z[j, k]|``, summed in the dtype of the rows.

        X is (b, d), Z (p, d), ``out`` (b, p), all float32 or all float64.
        """
        check_manhattan(X, Z, out)
        check_written(out, np.float32, np.float64)
        out[...] = 0
        for x, z in zip(X.T, Z.T, strict=True):
            out += np.abs(x[:, None] - z)

    def signed_sums(self, P: Array, X: Array, Z: Array, out: Array) -> None:
        """Sum gradients of L1 distances: ``out[i, k] = Σ_j P[i, j] sign(X[i, k] − Z[j, k])``.

        P is (b, p), X and ``out`` (b, d), Z (p, d), all float32 or all float64.
        """
        check_manhattan(X, Z, P)
        for k, (x, z) in enumerate(zip(X.T, Z.T, strict=True)):
            out[:, k] = np.einsum("ij,ij->i", P, np.sign(x[:, None] - z))

    def radial(
        self, S: Array, x_norms: Array, z_norms: Array, kind: str | Profile, params: Mapping[str, float]
    ) -> None:
        """Turn inner products into kernel values in place: S (b, p) is X Zᵀ on entry and k(X, Z) on exit.

        With the parameter ``norm`` 1, S has the L1 distances of ``manhattan`` on entry, and the norms are not read.

        Squared distances are x_norms[:, None] + z_norms − 2 S, and 0 if this is below ``coincident`` times the sum of
        the norms; a NaN stays a NaN. In float32 they carry a rounding error of a few 1e-7 of the squared norms, which
        the square root magnifies near x = z: centre the data, and set the diagonal of k(Z, Z) exactly. A value below
        the smallest normal number is 0, because subnormal numbers make the following matrix product many times slower.

        ``kind`` is one of ``RADIAL_KINDS``, with parameters ``bandwidth`` σ > 0, ``exponent`` γ in (0, 2] for
        ``exponential_power``, and ``norm``, 1 or 2 (the default); or a NumPy function of squared distances, without
        any.
        """
        check_tile(S, x_norms, z_norms)
        formula, (a, b, c), ready = (None, (0, 0, 0), False) if callable(kind) else radial_formula(kind, params)
        if not ready:
            sizes = x_norms[:, None] + z_norms
            S[...] = sizes - 2 * S
            S[np.less(S, coincident(S.dtype) * sizes)] = 0  # with this order of the comparison, a NaN stays a NaN
        if callable(kind):
            S[...] = kind(S)
            return
        with np.errstate(under="ignore"):
            S *= S.dtype.type(a)
            match formula:
                case "gaussian":
                    np.exp(-S, out=S)
                case "cauchy":
                    np.divide(1, 1 + S, out=S)
                case "exponential_power":
                    np.exp(-(S**b), out=S)
                case _:
                    t = np.sqrt(S)
                    np.multiply(1 + t * (b + t * c), np.exp(-t), out=S)
        S[np.abs(S) < np.finfo(S.dtype).tiny] = 0

    def angular(self, S: Array, x_norms: Array, z_norms: Array, kind: str, depth: int) -> None:
        """Turn inner products into values of an angular kernel in place: S (b, p) is X Zᵀ on entry and k(X, Z) on exit.

        With u = cos θ = ⟨x, z⟩/(‖x‖ ‖z‖), 0 where a norm is 0, one layer of the arc-cosine kernel of order n is κ_n(u)
        = J_n(θ)/J_n(0) (Cho & Saul 2009, section 2)::

            κ_0 = 1 − θ/π      κ_1 = (sin θ + (π − θ) u)/π      κ_2 = (3 u sin θ + (π − θ)(1 + 2u²))/(3π)

        and ``depth`` layers are κ_n(κ_n(...(u))) m(x) m(z), with the magnitudes of ``magnitudes``. The tangent kernel
        is ‖x‖ ‖z‖ t_depth with t_0 = u_0 = u, u_l = κ_1(u_{l−1}), t_l = u_l + t_{l−1} κ_0(u_{l−1}) (Arora et al. 2019).

        An angle has the rounding error of its cosine: in float32 κ_0, and so ``arccos0`` and ``ntk``, is wrong by up to
        2e-4 at z = x, and κ_0(κ_0(u)) by the root of 2e-4. Set the diagonal of k(Z, Z) exactly. Norms are squared.
        """
        check_angular(kind, depth)
        check_tile(S, x_norms, z_norms)
        with np.errstate(divide="ignore"):
            x_inverse, z_inverse = (np.where(n > 0, 1 / np.sqrt(n), 0) for n in (x_norms, z_norms))
        u = tangent = np.clip(S * x_inverse[:, None] * z_inverse, -1, 1)
        for _ in range(depth):
            rest = 1 - np.arccos(u) / np.pi
            sine = np.sqrt((1 - u) * (1 + u)) / np.pi
            match kind:
                case "arccos0":
                    u = rest
                case "arccos2":
                    u = u * sine + rest * (1 + 2 * u * u) / 3
                case _:
                    u = sine + u * rest
                    tangent = u + tangent * rest
            u = np.clip(u, -1, 1)
        value = tangent if kind == "ntk" else u
        S[...] = value * magnitudes(kind, depth, x_norms)[:, None] * magnitudes(kind, depth, z_norms)

    def cosines(self, S: Array, phases: Array, scale: float) -> None:
        """Compute cosines of angles in turns, in place: ``S[i, j] = scale * cos(2π (S[i, j] + phases[j]))``.

        In turns, the reduction to one turn is exact, so the only rounding error is of the sum. S (b, p) is below 2²⁰
        turns in float32, so that fractions of a turn have digits; phases (p,) are in turns.
        """
        check_phases(S, phases)
        check_written(S, np.float32, np.float64)
        turns = S + phases
        S[...] = scale * np.cos(2 * np.pi * (turns - np.rint(turns)))

    def assign(
        self, X: Array, at: IntArray, directions: Array, cuts: Array, children: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return the training rows of each leaf of a tree of cuts: projections below high go left, from low on right.

        ``at`` (k,), int64, are positions of the rows of X (n, d) to assign, ascending; the tree is that of ``route``.
        The result is begin and end of each leaf's rows, (m + 1, 2); and the rows, leaf by leaf from left to right,
        ascending within a leaf. Projections equal those of ``project`` to the bit.
        """
        spans, found, done = np.empty((len(cuts) + 1, 2), dtype=np.int64), [np.empty(0, dtype=np.int64)], 0
        waiting = [(0 if len(cuts) else -1, at)]
        while waiting:
            node, rows = waiting.pop()
            if node < 0:
                spans[-1 - node] = done, done + len(rows)
                done += len(rows)
                found.append(rows)
                continue
            t, (low, _, high) = self.project(X, directions[node], rows), cuts[node]
            waiting.append((int(children[node, 1]), rows[t >= low]))
            waiting.append((int(children[node, 0]), rows[t < high]))
        return spans, np.concatenate(found)

    def moments(self, X: Array, w: Array | None, pivot: Array) -> tuple[Array, Array, Array, Array]:
        """Return min x, max x, Σ w (x − c) and Σ w (x − c)² of each column, four of shape (d,), float64.

        X (n, d) is finite, and summed in the order of its rows; w (n,) and the pivot c (d,) are float64. None is w = 1.
        """
        X = X.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            centred = X - pivot
            weighted = centred if w is None else w[:, None] * centred
            sums = weighted.sum(axis=0), (weighted * centred).sum(axis=0)
        return X.min(axis=0, initial=np.inf), X.max(axis=0, initial=-np.inf), *sums

    def project(self, X: Array, direction: Array, rows: IntArray | None = None) -> Array:
        """Return X · direction in float64 for some rows (m,) of X (n, d), or all; direction (d,) is float64.

        A row's bits do not depend on other rows.
        """
        return cast(Array, np.multiply(X if rows is None else X[rows], direction, dtype=np.float64).sum(axis=1))

    def route(
        self, X: Array, directions: Array, cuts: Array, children: IntArray, width: float
    ) -> tuple[IntArray, Array]:
        """Return the leaves of a tree of cuts that predict each row, and their weights, both of shape (n, 2).

        A row's projection t on a cut's direction goes left below its threshold and right from it on. At the first cut
        where t is near the threshold, it goes both ways, with weights linear in t. A row's bits do not depend on other
        rows. Without a second leaf it is -1; weights sum to 1.

        Args:
            X: rows, shape (n, d).
            directions: directions of the cuts, the root first, shape (m, d), float64.
            cuts: low, threshold and high of each cut, shape (m, 3), float64.
            children: left and right side of each cut, shape (m, 2): the number of a cut, or -1 - leaf.
            width: width of the interval in which rows are near: from low to high for 1, empty for 0.
        """
        n = len(X)
        leaves, weights = np.full((n, 2), -1, dtype=np.int64), np.zeros((n, 2))
        weights[:, 0] = 1.0
        waiting = [(0 if len(cuts) else -1, np.arange(n), np.zeros(n, dtype=np.int64))]
        while waiting:
            node, at, side = waiting.pop()
            if node < 0:
                leaves[at, side] = -1 - node
                continue
            t = np.multiply(X[at], directions[node], dtype=np.float64).sum(axis=1)
            low, threshold, high = cuts[node].tolist()
            begin, end = threshold - width * (threshold - low), threshold + width * (high - threshold)
            share = (t - begin) / (end - begin) if end > begin else np.zeros(len(t))
            near = (weights[at, 0] == 1.0) & (t > begin) & (t < end) & (share > 0) & (share < 1)
            weights[at[near]] = np.stack([1.0 - share[near], share[near]], axis=1)
            right, left = near | (t >= threshold), near | (t < threshold)
            waiting.append((int(children[node, 1]), at[right], np.where(near, 1, side)[right]))
            waiting.append((int(children[node, 0]), at[left], side[left]))
        return leaves, weights
