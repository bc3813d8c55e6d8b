"""The default engine: compiled tiles on the CPU, in threads, with the same bits for any number of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from streamkern.cpu import fused_predict, int16_factor
from streamkern.cpu.alignment import aligned_rows
from streamkern.cpu.elementwise import CompiledLoops
from streamkern.cpu.gemm import Factor, inner, pack, packed_bytes
from streamkern.cpu.gemv import MOST, add_transposed, laid_out, prepared, room, times
from streamkern.cpu.kernel_gradients import sums_of_signs, whole_vectors
from streamkern.cpu.linear_algebra import TiledAlgebra
from streamkern.cpu.manhattan import distances, packed_for_manhattan
from streamkern.defaults import COMPILING_BYTES, MIN_DERIVATIVE_DISTANCE
from streamkern.engine.base import CENTER_TILE, KERNEL_TILE, ROW_TILE, Basis, Centered, Imap, Map, Respond
from streamkern.engine.packed_triangle import cuts, packed_panels
from streamkern.engine.quantised_factor import PackedFactor
from streamkern.engine.reference import one_by_one
from streamkern.types import Array


class HostEngine(TiledAlgebra):
    """``Engine`` with compiled products, fused kernel values and tiled linear algebra."""

    name = "host"

    def __init__(self, parallel: Map = one_by_one, imap: Imap | None = None, overlaps: bool = False) -> None:
        super().__init__(parallel, imap, overlaps)
        self.loops: CompiledLoops = CompiledLoops()

    # ------------------------------------------------------------------------------ rows against centers

    def hold(self, Z: Array) -> Any:
        """Return squared norms of the centers, and the centers packed for products; None if BLAS multiplies."""
        return self.loops.row_norms(Z), pack(Z)

    def hold_head(self, resident: Any, Z: Array) -> Any:
        return resident[0][: len(Z)], resident[1]

    def held_bytes(self, p: int, d: int, dtype: Any) -> int:
        return super().held_bytes(p, d, dtype) + packed_bytes(p, d, np.dtype(dtype).itemsize)

    def tile_bytes(self, c: int) -> int:
        return fused_predict.tile_bytes(c)

    def compiling_bytes(self) -> int:
        return 0 if self.loops.compiled else COMPILING_BYTES

    def block(self, expansion: Centered, X: Array, out: Array | None = None) -> Array:
        K = np.empty((len(X), expansion.p), dtype=expansion.dtype) if out is None else out
        kernel, (z_norms, packed), x_norms = expansion.kernel, expansion.resident, self.loops.row_norms(X)
        profile = kernel.profile
        if kernel.norm == 1 and profile is not None:
            self.loops.manhattan_products(
                X, packed_for_manhattan(expansion.Z) if packed is None else packed, K, *profile
            )
            return K
        if packed is not None and profile is not None:
            self.loops.radial_products(X, packed, K, x_norms, z_norms, *profile)
            return K
        for rows in cuts(len(X), ROW_TILE):
            for cols in cuts(expansion.p, CENTER_TILE):
                S = K[rows, cols]
                if kernel.norm == 1:
                    self.loops.manhattan(X[rows], expansion.Z[cols], S)
                elif packed is None:
                    np.matmul(X[rows], expansion.Z[cols].T, out=S)
                else:
                    inner(X[rows], packed, cols, S)
                kernel.apply(S, x_norms[rows], z_norms[cols], self.loops)
        return K

    def panels(self, basis: Basis, X: Array, prepared: Any = None) -> Iterator[tuple[slice, Array]]:
        """Reuse one buffer, because page faults would cost more than the elementwise pass."""
        buffer = _buffer(basis) if prepared is None else prepared
        try:
            for rows in cuts(len(X), basis.row_tile):
                panel = buffer[: rows.stop - rows.start]
                if rows.start or prepared is None:
                    panel = basis.block(X[rows], out=panel)
                yield rows, panel
        finally:
            basis.buffers.append(buffer)

    def begin(self, basis: Basis, X: Array) -> Any:
        buffer, first = _buffer(basis), X[: basis.row_tile]
        basis.block(first, out=buffer[: len(first)])
        return buffer

    def predict(self, basis: Basis, X: Array, W: Array) -> Array:
        if not _fits_one_call(basis, X, W):
            return super().predict(basis, X, W)
        expansion = cast(Centered, basis)
        z_norms, packed = expansion.resident
        return self.loops.radial_outputs(X, packed, W, self.loops.row_norms(X), z_norms, *expansion.kernel.profile)

    def multiplier(self, W: Array) -> Callable[[Array], Array]:
        right, c = prepared(W), W.shape[1]
        return lambda phi: times(phi, right)[:, :c]

    def sums(self, p: int, c: int, dtype: Any) -> Array:
        return room(p, c, dtype)

    def add_transposed(self, phi: Array, r: Array, sums: Array) -> None:
        add_transposed(phi, r, sums)

    def pull(self, basis: Basis, X: Array, W: Array, respond: Respond, outputs: int, prepared: Any = None) -> Array:
        if W.dtype != basis.dtype:
            return super().pull(basis, X, W, respond, outputs, prepared)
        product, g = self.multiplier(W), room(basis.width, outputs, W.dtype)
        for rows, phi in self.panels(basis, X, prepared):
            add_transposed(phi, respond(product(phi), rows), g)
        return np.ascontiguousarray(g)

    def manhattan(self, Z: Array) -> tuple[Callable[[Array, Array], None], Callable[[Array, Array], Array]]:
        packed, centers = packed_for_manhattan(Z), whole_vectors(Z)
        return lambda X, S: distances(X, packed, S), lambda P, X: sums_of_signs(P, X, centers)

    def slopes(self, kernel: Any, S: Array, V: Array, x_norms: Array, z_norms: Array) -> tuple[Array, Array | None]:
        profile = kernel.profile
        if profile is None:
            return super().slopes(kernel, S, V, x_norms, z_norms)
        kind, params = profile
        self.loops.radial_slopes(S, V, x_norms, z_norms, kind, params, MIN_DERIVATIVE_DISTANCE)
        if kernel.norm == 2:
            np.negative(S, out=S)
        return S, None

    # ------------------------------------------------------------------------------ matrices

    def right_factor(self, B: Array) -> Any:
        return Factor(B)

    def symmetric_product(self, K: Array, W: Array) -> Array:
        """Read each tile from memory once, for the columns on both sides."""
        out, right = room(len(K), W.shape[1], W.dtype), laid_out(W)
        for rows in cuts(len(K), KERNEL_TILE):
            A = K[rows, : rows.stop]
            out[rows] += times(A, right[: rows.stop])[:, : W.shape[1]]
            add_transposed(A[:, : rows.start], W[rows], out[: rows.start])
        return np.ascontiguousarray(out)

    def add_gram(self, packed: Array, phi: Array) -> None:
        columns = phi.T.copy()
        for cols, panel in packed_panels(packed, len(columns)):
            Factor(columns[cols]).product(columns[cols.start :], panel, add=True)

    def packed_factor(self, expansion: Centered, shift: float, lead: int) -> PackedFactor:
        return int16_factor.packed_factor(self, expansion, shift, lead)

    def packed_product(self, W: Any, B: Array) -> Array:
        return int16_factor.packed_product(W, B, self.parallel)


def _buffer(basis: Basis) -> Array:
    try:
        return basis.buffers.pop()
    except IndexError:
        return aligned_rows(basis.row_tile, basis.width, basis.dtype)


def _fits_one_call(basis: Any, X: Array, W: Array) -> bool:
    _, packed = getattr(basis, "resident", (None, None))
    if packed is None or basis.kernel.norm != 2 or basis.kernel.profile is None:
        return False
    return bool(X.dtype == W.dtype == packed.dtype == np.float32 and len(X) and len(W) and 0 < W.shape[1] <= MOST)
