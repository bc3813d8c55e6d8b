"""Elementwise arithmetic on the CPU: compiled, vectorised loops, single-threaded and without Python's lock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy import ascontiguousarray as contiguous
from numpy.typing import ArrayLike, NDArray

from streamkern.cpu import columns, fused_predict, kernel_gradients, leaf_routing, loops, manhattan
from streamkern.cpu.alignment import aligned_rows
from streamkern.cpu.gemm import dense
from streamkern.cpu.gemv import laid_out
from streamkern.cpu.manhattan import packed_for_manhattan
from streamkern.engine.elementwise import (
    ANGULAR_KINDS,
    RADIAL_KINDS,
    Loops,
    Profile,
    check_angular,
    check_floats,
    check_gather,
    check_manhattan,
    check_phases,
    check_row_ids,
    check_tile,
    check_written,
    has_dense_rows,
    magnitudes,
    radial_formula,
    wide,
)
from streamkern.errors import UsageError
from streamkern.rng import seed_words
from streamkern.types import Array, IntArray


class CompiledLoops(Loops):
    """The CPU default: compiled, vectorised, single-threaded loops that release the GIL."""

    name = "numba"

    def assemble(
        self, raw: Array, index: IntArray, out: NDArray[np.float32], *, scale: ArrayLike, offset: ArrayLike
    ) -> None:
        check_gather(raw, index, out)
        d = out.shape[1]
        if wide(raw.dtype):
            _assemble_wide(raw, index, out, *(_spread(value, d, np.float64) for value in (scale, offset)))
            return
        source = _gatherable(raw)
        if source is not None:
            loops.assemble(source, contiguous(index, np.int64), out, _spread(scale, d), _spread(offset, d))
            return
        out[...] = raw[index]
        out *= _spread(scale, d)
        out += _spread(offset, d)

    def add_noise(
        self, out: NDArray[np.float32], row_ids: IntArray, *, copies: int | IntArray, seed: int, sigma: float
    ) -> None:
        here = np.arange(len(out))
        self.assemble_noisy(
            out, here, out, scale=1, offset=-0.0, row_ids=row_ids, copies=copies, seed=seed, sigma=sigma
        )

    def assemble_noisy(
        self, raw: Array, index: IntArray, out: NDArray[np.float32], *, scale: ArrayLike, offset: ArrayLike,
        row_ids: IntArray, copies: int | IntArray, seed: int, sigma: float,
    ) -> None:  # fmt: skip
        check_gather(raw, index, out)
        n, d = out.shape
        check_row_ids(row_ids, n)
        source = _gatherable(raw)
        if source is None:
            self.assemble(raw, index, out, scale=scale, offset=offset)
            source, index, scale, offset = out, np.arange(n), 1, -0.0
        low, high = seed_words(seed)
        loops.assemble_noisy(
            source, contiguous(index, np.int64), out, _spread(scale, d), _spread(offset, d),
            contiguous(row_ids, np.int64), contiguous(np.broadcast_to(np.asarray(copies), (n,)), np.int64), low,
            high, sigma,
        )  # fmt: skip

    def finite_rows(self, X: Array) -> int:
        if X.dtype.kind != "f":
            return -1
        if X.dtype not in (np.float32, np.float64):
            X = X.astype(np.float32)
        bits = np.uint32 if X.dtype == np.float32 else np.uint64
        X = _dense_rows(X)
        return int(loops.first_row_with_exponent(X.view(bits), X.dtype.type(np.inf).view(bits)))

    def route(
        self, X: Array, directions: Array, cuts: Array, children: IntArray, width: float
    ) -> tuple[IntArray, Array]:
        leaves, weights = np.zeros((len(X), 2), dtype=np.int64), np.empty((len(X), 2))
        leaf_routing.route(_floats(X), directions, cuts, children, float(width), leaves, weights)
        return leaves, weights

    def assign(
        self, X: Array, at: IntArray, directions: Array, cuts: Array, children: IntArray
    ) -> tuple[IntArray, IntArray]:
        spans = np.empty((len(cuts) + 1, 2), dtype=np.int64)
        return spans, leaf_routing.assign(_floats(X), contiguous(at, np.int64), directions, cuts, children, spans)

    def moments(self, X: Array, w: Array | None, pivot: Array) -> tuple[Array, Array, Array, Array]:
        d, weights = X.shape[1], np.ones(len(X)) if w is None else contiguous(w, np.float64)
        found = np.full(d, np.inf), np.full(d, -np.inf), np.zeros(d), np.zeros(d)
        columns.moments(_dense_rows(_floats(X)), weights, contiguous(pivot, np.float64), *found)
        return found

    def project(self, X: Array, direction: Array, rows: IntArray | None = None) -> Array:
        at = np.arange(len(X)) if rows is None else contiguous(rows, np.int64)
        out = np.empty(len(at))
        leaf_routing.project(_floats(X), at, contiguous(direction, np.float64), out)
        return out

    def row_norms(self, X: Array) -> Array:
        check_floats(X)
        out = np.empty(len(X), X.dtype)
        loops.row_norms(_dense_rows(X), out)
        return out

    def manhattan(self, X: Array, Z: Array, out: Array) -> None:
        check_manhattan(X, Z, out)
        check_written(out, np.float32, np.float64)
        manhattan.distances(dense(X, out.dtype), packed_for_manhattan(Z), out)

    def signed_sums(self, P: Array, X: Array, Z: Array, out: Array) -> None:
        check_manhattan(X, Z, P)
        out[...] = kernel_gradients.sums_of_signs(dense(P, out.dtype), X, kernel_gradients.whole_vectors(Z))

    def radial_slopes(
        self, S: Array, V: Array, x_norms: Array, z_norms: Array, kind: str, params: Mapping[str, float], near: float
    ) -> None:
        """Turn inner products into φ'(r)/r, or L1 distances into φ'(r), times V (b, p), in place.

        Up to the distance ``near`` a derivative counts as 0. See ``kernels.derivatives``.
        """
        check_tile(S, x_norms, z_norms)
        code, numbers, ready = _radial_numbers(kind, params, S.dtype)
        numbers[3] = near if ready else near**2
        norms = (contiguous(v, S.dtype) for v in (x_norms, z_norms))
        kernel_gradients.radial_slopes(S, dense(V, S.dtype), *norms, code, numbers, ready)

    def manhattan_products(self, X: Array, packed: Array, out: Array, kind: str, params: Mapping[str, float]) -> None:
        """Write a kernel of the L1 norm to ``out`` (b, p), from ``packed_for_manhattan``'s panels."""
        code, numbers, _ = _radial_numbers(kind, params, out.dtype)
        manhattan.products(dense(X, out.dtype), packed, out, code, numbers)

    def radial(
        self, S: Array, x_norms: Array, z_norms: Array, kind: str | Profile, params: Mapping[str, float]
    ) -> None:
        check_tile(S, x_norms, z_norms)
        code, numbers, ready = _radial_numbers(kind, params, S.dtype)
        loops.radial(S, contiguous(x_norms, S.dtype), contiguous(z_norms, S.dtype), code, numbers, ready)
        if not isinstance(kind, str):
            S[...] = kind(S)

    @property
    def compiled(self) -> bool:
        """True if the largest loops of float32 are already compiled, in this process or an earlier one."""
        return all(each.is_compiled(np.float32) for each in (loops.radial_products, fused_predict.radial_outputs))

    def radial_products(
        self,
        X: Array,
        packed: Array,
        out: Array,
        x_norms: Array,
        z_norms: Array,
        kind: str,
        params: Mapping[str, float],
    ) -> None:
        """Write a radial kernel to ``out`` (b, p), from ``pack``'s panels, with the bits of ``radial``."""
        check_tile(out, x_norms, z_norms)
        code, numbers, _ = _radial_numbers(kind, params, out.dtype)
        norms = (contiguous(norms, out.dtype) for norms in (x_norms, z_norms))
        loops.radial_products(dense(X, out.dtype), packed, out, *norms, code, numbers)

    def radial_outputs(
        self, X: Array, packed: Array, W: Array, x_norms: Array, z_norms: Array, kind: str, params: Mapping[str, float]
    ) -> Array:
        """Return k(X, Z) W of a radial kernel, (b, c), float32, in one compiled call that writes no panel.

        W has at most ``gemv.MOST`` columns. Bits are those of ``radial_products`` and ``gemv.times``.
        """
        shapes = (len(x_norms), len(z_norms), packed.shape[1])
        if shapes != (len(X), len(W), X.shape[1]) or not X.size or not len(W) or len(W) > len(packed) * packed.shape[2]:
            raise UsageError(
                f"Outputs of {X.shape} rows with weights of shape {W.shape}, for {shapes[1]} centers of {shapes[2]}.",
                where="X, packed, W, x_norms, z_norms",
                expected="rows and centers of one width, a norm for each, and a row of weights for each center",
            )
        code, numbers, _ = _radial_numbers(kind, params, X.dtype)
        norms = (contiguous(norms, X.dtype) for norms in (x_norms, z_norms))
        out = np.empty((len(X), W.shape[1]), X.dtype)
        tile = aligned_rows(min(len(X), fused_predict.ROWS), fused_predict.COLUMNS, X.dtype)
        fused_predict.radial_outputs(dense(X, X.dtype), packed, *norms, code, numbers, laid_out(W).T, tile, out)
        return out

    def angular(self, S: Array, x_norms: Array, z_norms: Array, kind: str, depth: int) -> None:
        check_angular(kind, depth)
        check_tile(S, x_norms, z_norms)
        with np.errstate(divide="ignore"):
            inverses = [np.where(n > 0, 1 / np.sqrt(n), 0) for n in (x_norms, z_norms)]
        vectors = [
            contiguous(v, S.dtype) for v in (*inverses, *(magnitudes(kind, depth, n) for n in (x_norms, z_norms)))
        ]
        loops.angular(S, *vectors, ANGULAR_KINDS.index(kind), depth)

    def cosines(self, S: Array, phases: Array, scale: float) -> None:
        check_phases(S, phases)
        check_written(S, np.float32, np.float64)
        loops.cosines(S, contiguous(phases, S.dtype), scale)


def _radial_numbers(kind: str | Profile, params: Mapping[str, float], dtype: Any) -> tuple[int, Array, bool]:
    code, coefficients, ready = loops.SQUARED_DISTANCES, (0.0, 0.0, 0.0), False
    if isinstance(kind, str):
        formula, coefficients, ready = radial_formula(kind, params)
        code = RADIAL_KINDS.index(formula)
    return code, loops.radial_numbers(code, coefficients, np.dtype(dtype)), ready


def _spread(value: ArrayLike, d: int, dtype: Any = np.float32) -> Array:
    return contiguous(np.broadcast_to(np.asarray(value, dtype=dtype), (d,)))


def _assemble_wide(raw: Array, index: IntArray, out: Array, scale: Array, offset: Array) -> None:
    if raw.dtype == np.float64 and has_dense_rows(raw):
        loops.assemble_wide(raw, contiguous(index, np.int64), out, scale, offset)
        return
    wide_rows = 256  # rows of integers that are copied to float64 at once
    for start in range(0, len(index), wide_rows):
        part = slice(start, start + wide_rows)
        rows = contiguous(raw[index[part]], dtype=np.float64)
        loops.assemble_wide(rows, np.arange(len(rows)), out[part], scale, offset)


def _floats(X: Array) -> Array:
    return X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)


def _dense_rows(X: Array) -> Array:
    return X if has_dense_rows(X) else contiguous(X)


def _gatherable(raw: Array) -> Array | None:
    """None if NumPy must convert the rows first."""
    if raw.dtype in (np.bool_, np.uint8):
        raw = raw.view(np.uint8)
    elif raw.dtype != np.float32:
        return None
    return raw if has_dense_rows(raw) else None
