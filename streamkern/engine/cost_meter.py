"""The meter: an engine for arrays without values. It counts operations by kind and allocated bytes.

A solver's own methods run on it, so a plan needs no cost formulas of solvers: each method here has the costs and the
scratch memory of its implementation in ``cpu/engine.py`` (``tests/engine/test_cost_meter.py`` compares them). What
depends on data has declared bounds: conditions, counts of eigenvalues, and the largest, which determines the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from streamkern.defaults import LIKELY_LANCZOS_STEPS
from streamkern.engine.abstract_array import AbstractArray, CostMeter, count_product
from streamkern.engine.base import (
    COVARIANCE_GROUP,
    KERNEL_TILE,
    MANY,
    ROW_TILE,
    SLAB,
    SUMS,
    TILE,
    Basis,
    Centered,
    R,
    Respond,
    TaskRunner,
)
from streamkern.engine.elementwise import Loops
from streamkern.engine.operation_counts import eigh
from streamkern.engine.packed_triangle import cuts
from streamkern.engine.quantised_factor import PANEL, PackedFactor, padded
from streamkern.engine.reference import Engine
from streamkern.types import Array


def triangle(size: int) -> float:
    """Return the values evaluated for a symmetric kernel matrix: rows by tiles, each up to its diagonal."""
    return float(sum((part.stop - part.start) * part.stop for part in cuts(size, KERNEL_TILE)))


class MeterEngine(Engine):
    """The engine's methods on arrays without values, for a run on ``real`` with ``slots`` concurrent threads or blocks.

    ``top`` is the largest eigenvalue of a preconditioned kernel, as a share of its trace. With ``likely``, decisions
    take the likely value instead of the bound.
    """

    name = "meter"

    def __init__(
        self,
        meter: CostMeter,
        real: Engine,
        slots: int = 1,
        overlaps: bool = False,
        top: float = 1.0,
        likely: bool = False,
    ) -> None:
        self.meter, self.real = meter, real
        self.slots, self.overlaps, self.top, self.likely = slots, overlaps, top, likely
        self.loops: Loops = Loops()

    def bound(self, executor: TaskRunner) -> Engine:
        return self

    def here(self) -> Engine:
        return self

    @contextmanager
    def meanwhile(self, work: Callable[[], R] | None) -> Iterator[Callable[[], R | None]]:
        """Count the peak of the evaluation as allocated until the context ends."""
        if work is None or not self.overlaps:
            yield work or (lambda: None)
            return
        before, self.meter.peak = self.meter.peak, self.meter.alive
        done = work()
        rest = self.meter.peak - self.meter.alive
        self.meter.peak = max(self.meter.peak, before)
        with self.meter.scratch(rest):
            yield lambda: done

    # ------------------------------------------------------------------------------ arrays and decisions

    def empty(self, shape: tuple[int, ...], dtype: Any = np.float64) -> Array:
        return self._new(shape, dtype)

    zeros = empty

    def normal(self, shape: tuple[int, ...], *key: Any) -> Array:
        return self._new(shape, numbers=float(np.prod(shape)))

    def decide(self, condition: Any, bound: bool, likely: bool | None = None) -> bool:
        return likely if self.likely and likely is not None else bound

    def count(self, mask: Array) -> int:
        return int(mask.size)

    # ------------------------------------------------------------------------------ rows against centers

    def hold(self, Z: Array) -> Any:
        return self._new((self.real.held_bytes(Z.shape[0], Z.shape[1], Z.dtype),), np.uint8)

    def hold_head(self, resident: Any, Z: Array) -> Any:
        return resident

    def tile_bytes(self, c: int) -> int:
        return self.real.tile_bytes(c)

    def compiling_bytes(self) -> int:
        return self.real.compiling_bytes()

    def held_bytes(self, p: int, d: int, dtype: Any) -> int:
        return self.real.held_bytes(p, d, dtype)

    def diagonal(self, expansion: Centered, X: Array) -> Array:
        return self._new((len(X),), X.dtype)

    def block(self, expansion: Centered, X: Array, out: Array | None = None) -> Array:
        return self.evaluated(len(X), expansion.p, expansion.dtype, out)

    def evaluated(self, n: int, M: int, dtype: Any, out: Any = None) -> Any:
        """Values φ(X) of n rows and M functions, in ``out`` where given."""
        self.meter.count("values64" if dtype == np.float64 else "values", n * M)
        if out is None:
            return self.meter.array((n, M), dtype, "panel")
        return out._view(out.shape, "panel")

    def panels(self, basis: Basis, X: Array, prepared: Any = None) -> Iterator[tuple[slice, Array]]:
        """Yield one panel that represents all."""
        buffer = self._buffer(basis) if prepared is None else prepared
        try:
            n, tile = len(X), min(len(X), basis.row_tile)
            if n:
                with self.meter.scaled(n / tile):
                    yield slice(0, tile), basis.block(X[:tile], buffer[:tile])
        finally:
            basis.buffers.append(buffer)

    def begin(self, basis: Basis, X: Array) -> Any:
        """Allocate the first panel, whose values ``panels`` counts."""
        return self._buffer(basis)

    def predict(self, basis: Basis, X: Array, W: Array) -> Array:
        """Count also the copy of W that the loops read; a bound, since one compiled call needs no panel."""
        out = self._new((len(X), W.shape[1]), basis.dtype)
        with self.meter.scratch(W.nbytes + self.real.tile_bytes(W.shape[1])):
            for _, phi in self.panels(basis, X):
                phi @ W
        return out

    def pull(self, basis: Basis, X: Array, W: Array, respond: Respond, outputs: int, prepared: Any = None) -> Array:
        """Count also the loops' copies of W and of the sum."""
        g = self._new((basis.width, outputs), W.dtype)
        with self.meter.scratch(W.nbytes + g.nbytes):
            for rows, phi in self.panels(basis, X, prepared):
                phi.T @ respond(phi @ W, rows)
        return g

    def panel_product(self, W: Array) -> Callable[[Array], Array]:
        copy = self._new(W.shape, W.dtype)
        return lambda phi: phi @ copy

    def sums(self, p: int, c: int, dtype: Any) -> Array:
        return self._new((p, c), dtype)

    def add_transposed(self, phi: Array, r: Array, sums: Array) -> None:
        """Count the product alone, since it is added without a temporary array."""
        count_product(self.meter, phi.T, r, 2.0 * phi.size * r.shape[1], r.shape[1], False)

    def gradients(self, expansion: Centered, X: Array, W: Array, signs: Array | None = None) -> Array:
        n, p, d, itemsize = len(X), expansion.p, expansion.Z.shape[1], expansion.dtype.itemsize
        held = 2 * p * d * itemsize + 10 * min(n, expansion.row_tile) * p * itemsize
        products = 2.0 * n * p * (d + (0 if signs is None else W.shape[1]))
        return self._new(
            (n, d), expansion.dtype, held + W.nbytes, values=n * p, numbers=10.0 * n * p / self.slots, gemm=products
        )

    def values(self, basis: Basis, X: Array, then: Callable[[Array], Array] | None = None) -> Array:
        tile = min(len(X), ROW_TILE)
        with self.meter.scaled(len(X) / tile):
            part = basis.block(X[:tile])
            part = part if then is None else then(part)
        transient = (2 * self.slots if then is not None else 0) * tile * basis.width * basis.dtype.itemsize
        shape, dtype = (len(X), part.shape[1]), part.dtype
        del part
        return self._new(shape, dtype, len(X) * shape[1] * dtype.itemsize + transient)

    def covariance(self, basis: Basis, X: Array, V: Array) -> Array:
        n, M = len(X), basis.width
        with self.meter.scaled(n / min(n, ROW_TILE)):
            basis.block(X[: min(n, ROW_TILE)])
        tiles = min(self.slots, COVARIANCE_GROUP) * min(n, ROW_TILE) * M * (8 + basis.dtype.itemsize)
        return self._new(V.shape, scratch=COVARIANCE_GROUP * V.nbytes + tiles, gemm64=4.0 * n * V.size)

    def kernel_values(self, expansion: Centered, X: Array) -> Array:
        return self.values(expansion, X)

    def kernel_matrix(self, expansion: Centered, s: int, dtype: Any = np.float64) -> Array:
        K = self._new((s, s), dtype)
        for _ in self.kernel_rows(expansion, s, dtype):
            pass
        self.meter.count("numbers", s * s)
        return K

    def kernel_rows(self, expansion: Centered, s: int, dtype: Any = np.float64) -> Iterator[tuple[slice, Array]]:
        """Yield the last tile, which represents all, with the tiles of running threads."""
        d, tile, dtype = expansion.Z.shape[1], min(s, KERNEL_TILE), np.dtype(dtype)
        self.meter.count("values64" if dtype == np.float64 else "values", triangle(s))
        centers = 0 if dtype == expansion.dtype else s * d * dtype.itemsize + self.real.held_bytes(s, d, dtype)
        flying = 2 * self.slots * tile * s * dtype.itemsize
        with self.meter.scratch(centers + flying), self.meter.scaled((s / tile + 1) / 2):
            yield slice(s - tile, s), self._new((tile, s), dtype)

    def kernel_product(self, expansion: Centered, V: Array) -> Array:
        p, c = V.shape
        tile, itemsize = min(expansion.row_tile, p), expansion.dtype.itemsize
        flying = self.slots * tile * (p * itemsize + c * (itemsize + 16))
        products = {"panel" if c < MANY else "gemm": 2.0 * p * p * c}
        return self._new((p, c), scratch=2 * V.size * itemsize + V.size * 8 + flying, values=p * p, **products)

    # ------------------------------------------------------------------------------ matrices

    def right_factor(self, B: Array) -> Any:
        packed, (m, d) = self._new(B.shape, B.dtype), B.shape

        def times(A: Any) -> Any:
            return self._new((len(A), m), A.dtype, **{_gemm(A.dtype): 2.0 * len(A) * m * d})

        return SimpleNamespace(times=times, packed=packed)

    def product(self, A: Array, B: Array) -> Array:
        """Count also packed and widened copies."""
        shape, dtype = (len(A), B.shape[1]), np.result_type(A.dtype, B.dtype)
        count_product(self.meter, _unmarked(A), _unmarked(B), 2.0 * len(A) * B.size, B.shape[1], B.shape[1] >= MANY)
        packed = B.nbytes if A.dtype == B.dtype and B.shape[1] >= MANY else 0
        widened = 0 if A.dtype == dtype else self.slots * TILE * A.shape[1] * dtype.itemsize
        return self._new(shape, dtype, packed + widened)

    def product_t(self, U: Array, V: Array) -> Array:
        return self.product(U.T, V)

    def symmetric_product(self, K: Array, W: Array) -> Array:
        return self.product(K, W)

    def row_squares(self, A: Array) -> Array:
        return self._new((len(A),), numbers=A.size / self.slots)

    def gram(self, A: Array) -> Array:
        scratch = self.slots * TILE * (A.shape[1] + len(A)) * A.dtype.itemsize
        return self._new((len(A), len(A)), A.dtype, scratch, **{_gemm(A.dtype): 1.0 * len(A) * A.size})

    def add_gram(self, packed: Array, phi: Array) -> None:
        rows, M = phi.shape
        self.meter.count("gemm64", float(rows) * M * (M + min(M, TILE)))
        self.meter.count("numbers", 3.0 * M * M * rows / ROW_TILE)
        with self.meter.scratch(phi.nbytes + TILE * rows * 8):
            pass

    def gram_product(self, W: Array, B: Array, *, lower: bool = False) -> Array:
        n, c = B.shape
        dtype = np.result_type(W.dtype, B.dtype)
        products = {"thin" if dtype == np.float32 else "thin64": (2.0 if lower else 4.0) * W.size * c}
        return self._new((n, c), dtype, (SUMS + 2) * n * min(c + 15, SLAB) * dtype.itemsize, **products)

    def on_host(self, array: Any) -> Array:
        return array

    def kernel_factor(self, expansion: Centered, shift: float, K: Array | None = None) -> Array:
        """Reuse the memory of K; bounds include a second factor, in float64."""
        dtype = expansion.dtype
        A: Any = self.kernel_matrix(expansion, expansion.p, dtype) if K is None else K
        p = len(A)
        self.meter.count(_gemm(A.dtype), 2.0 / 3.0 * float(p) ** 3)
        with self.meter.scratch((self.slots + 2) * TILE * p * A.dtype.itemsize):
            pass
        if A.dtype != np.float64 and self.decide(False, bound=True, likely=False):
            del A, K
            return self.kernel_factor(expansion, shift, self.kernel_matrix(expansion, p))
        A.memory.resize(p * p * dtype.itemsize)
        W: Any = AbstractArray(self.meter, (p, p), dtype, A.memory, "")
        return W

    def packed_factor(self, expansion: Centered, shift: float, lead: int) -> PackedFactor:
        """Count the lead's panels in 32 bits and the others in 16; then the lead's in 16, too."""
        p, wide = expansion.p, max(lead, min(PANEL, expansion.p))
        for rows in cuts(p, PANEL):
            self.meter.count("values", (rows.stop - rows.start) * (min(rows.start, lead) + rows.stop - rows.start))
        self.meter.count("gemm", 2.0 / 3.0 * float(lead) ** 3 + 2.0 * (p - lead) * float(lead) * lead)
        # Kernel values, V, the panel, and packed copies.
        with self.meter.scratch(4 * min(PANEL, p) * wide * 4 + 6 * PANEL * PANEL * 8):
            inside = [self._new((rows.stop - rows.start, rows.stop), np.float32) for rows in cuts(lead, PANEL)]
            beyond = [
                self._new((rows.stop - rows.start, lead + padded(rows.stop - rows.start)), np.int16)
                for rows in cuts(p, PANEL)[len(inside) :]
            ]
        numbers = []
        while inside:
            panel = inside.pop(0)
            numbers.append(self._new((len(panel), padded(panel.shape[1])), np.int16))
        return PackedFactor(p, lead, self._new((p,), np.float32), (*numbers, *beyond))

    def packed_product(self, W: Any, B: Array) -> Array:
        """Return Wᵀ W B; packed integers count with their width in registers."""
        n, c = B.shape
        products = 4.0 * c * sum(panel.size for panel in W.numbers)
        return self._new((n, c), np.float32, (SUMS + 3) * n * min(c, SLAB) * 4, thin=products)

    def cholesky(self, A: Array) -> Array:
        self.meter.count(_gemm(A.dtype), float(len(A)) ** 3 / 3)
        with self.meter.scratch((self.slots + 2) * TILE * (len(A) + TILE) * A.dtype.itemsize):
            return A

    def condition(self, L: Array, norm: float) -> float:
        self.meter.count("thin64", 10.0 * len(L) ** 2)
        return 1.0

    def orthonormal(self, A: Array, floor: float) -> tuple[Array, Array]:
        self.meter.count("serial64", 2.0 / 3.0 * float(len(A)) ** 3)
        with self.meter.scratch(2 * A.nbytes):
            return self._new((len(A),), np.int64), self._new(A.shape)

    def triangular_solve(self, R: Array, B: Array, *, lower: bool, transposed: bool = False) -> Array:
        columns = B.shape[1] if B.ndim > 1 else 1
        operations = float(len(R)) ** 2 * columns * B.dtype.itemsize / 8
        tasks = min(self.slots, -(-columns // TILE))
        solves = {"thin64" if columns < MANY else "serial64": operations / tasks}
        return self._new(B.shape, scratch=min(B.nbytes, tasks * TILE * len(R) * B.dtype.itemsize), **solves)

    def mirror(self, A: Array) -> Array:
        self.meter.count("numbers", A.size)
        return A

    def eigh(self, A: Array, B: Array | None = None, top: int | None = None) -> tuple[Array, Array]:
        n = len(A)
        k = n if top is None else min(n, top)
        self.meter.count("eigen", eigh(n))
        with self.meter.scratch((1 if B is None else 3) * n * n * 8):
            return self._new((k,)), self._new((n, k))

    def pivoted_qr(self, A: Array) -> tuple[Array, Array]:
        n, k = A.shape
        self.meter.count("serial64", 4.0 * n * k * k)
        with self.meter.scratch(A.nbytes):
            return self._new((n, min(n, k))), self._new((min(n, k), k))

    def top_eigenvalue(self, matvec: Callable[[Array], Array], n: int) -> float:
        with self.meter.scaled(LIKELY_LANCZOS_STEPS):
            matvec(self._new((n,)))
        return self.top * n

    # ------------------------------------------------------------------------------ common to methods

    def _new(self, shape: tuple[int, ...], dtype: Any = np.float64, scratch: int = 0, **operations: float) -> Any:
        """A new array, for which these operations are counted, and ``scratch`` bytes are allocated meanwhile."""
        for kind, number in operations.items():
            self.meter.count(kind, number)
        with self.meter.scratch(scratch):
            return self.meter.array(shape, dtype)

    def _buffer(self, basis: Basis) -> Any:
        return basis.buffers.pop() if basis.buffers else self._new((basis.row_tile, basis.width), basis.dtype)


def _gemm(dtype: Any) -> str:
    return "gemm64" if dtype == np.float64 else "gemm"


def _unmarked(A: Any) -> Any:
    """A without its mark as a panel, since these methods' products are of matrices."""
    return A._view(A.shape, "") if isinstance(A, AbstractArray) else A
