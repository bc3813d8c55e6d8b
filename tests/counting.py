"""A counting engine: the verbs of the real one, each counted by the rule of the meter as it is called with real arrays.

So a run with numbers is counted by the verbs it really calls, as often as it calls them and at the shapes it calls
them with: what the meter says of a run before it runs is held to that.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import numpy as np

from streamkern.cpu.engine import HostEngine
from streamkern.data.row_order import Assembly
from streamkern.engine.operation_counts import eigh
from streamkern.formats import ArraySource
from streamkern.types import Array


class OperationCounts:
    """Numbers by kind, from any thread."""

    def __init__(self) -> None:
        self.total: dict[str, float] = defaultdict(float)
        self.lock = threading.Lock()

    def add(self, kind: str, number: float) -> None:
        with self.lock:
            self.total[kind] += number

    def take(self) -> dict[str, float]:
        with self.lock:
            found, self.total = self.total, defaultdict(float)
        return found


class CountingEngine(HostEngine):
    """``HostEngine``, counted.

    ``values`` and ``values64`` of the basis, each where it is evaluated; ``panel`` operations of products with them;
    ``matrix`` operations of products and factors of matrices; ``eigen`` operations.
    """

    def __init__(self, counts: OperationCounts, *maps: Any) -> None:
        super().__init__(*maps)
        self.counts = counts

    def __reduce__(self) -> tuple[Any, ...]:
        raise AssertionError("counted in this process only")

    def bound(self, executor: Any) -> Any:
        return CountingEngine(self.counts, executor.host_map, executor.imap, executor.overlaps)

    def here(self) -> Any:
        return CountingEngine(self.counts, self.parallel)

    def block(self, expansion: Any, X: Array, out: Array | None = None) -> Array:
        self.counts.add("values64" if expansion.dtype == np.float64 else "values", len(X) * expansion.p)
        return super().block(expansion, X, out)

    def begin(self, basis: Any, X: Array) -> Any:
        return None  # each panel is evaluated where it is used

    def predict(self, basis: Any, X: Array, W: Array) -> Array:
        self.counts.add("panel", 2.0 * len(X) * W.size)
        return super().predict(basis, X, W)

    def pull(self, basis: Any, X: Array, W: Array, respond: Any, outputs: int, prepared: Any = None) -> Array:
        self.counts.add("panel", 2.0 * len(X) * (W.size + basis.width * outputs))
        return super().pull(basis, X, W, respond, outputs, prepared)

    def panel_product(self, W: Array) -> Any:
        times = super().panel_product(W)

        def counted(phi: Array) -> Array:
            self.counts.add("panel", 2.0 * len(phi) * W.size)
            return times(phi)

        return counted

    def add_transposed(self, phi: Array, r: Array, sums: Array) -> None:
        self.counts.add("panel", 2.0 * phi.size * r.shape[1])
        super().add_transposed(phi, r, sums)

    def kernel_product(self, expansion: Any, V: Array) -> Array:
        self.counts.add("panel" if V.shape[1] < 64 else "matrix", 2.0 * expansion.p * V.size)
        return super().kernel_product(expansion, V)

    def covariance(self, basis: Any, X: Array, V: Array) -> Array:
        self.counts.add("matrix", 4.0 * len(X) * V.size)
        return super().covariance(basis, X, V)

    def product(self, A: Array, B: Array) -> Array:
        self.counts.add("matrix", 2.0 * len(A) * B.size)
        return super().product(A, B)

    def product_t(self, U: Array, V: Array) -> Array:
        self.counts.add("matrix", 2.0 * U.shape[1] * V.size)
        return super().product_t(U, V)

    def gram(self, A: Array) -> Array:
        self.counts.add("matrix", 1.0 * len(A) * A.size)
        return super().gram(A)

    def add_gram(self, packed: Array, phi: Array) -> None:
        n, M = phi.shape
        self.counts.add("matrix", float(n) * M * (M + min(M, 256)))
        super().add_gram(packed, phi)

    def gram_product(self, W: Any, B: Array, *, lower: bool = False) -> Array:
        self.counts.add("matrix", (2.0 if lower else 4.0) * W.size * B.shape[1])
        return super().gram_product(W, B, lower=lower)

    def packed_factor(self, expansion: Any, shift: float, lead: int) -> Any:
        rest = 2.0 * (expansion.p - lead) * float(lead) * lead
        self.counts.add("matrix", 2.0 / 3.0 * float(lead) ** 3 + rest)
        return super().packed_factor(expansion, shift, lead)

    def packed_product(self, W: Any, B: Array) -> Array:
        self.counts.add("matrix", 4.0 * B.shape[1] * sum(panel.size for panel in W.numbers))
        return super().packed_product(W, B)

    def inverse_factor(self, A: Array, dtype: Any) -> Array:
        self.counts.add("matrix", 2.0 / 3.0 * float(len(A)) ** 3)
        return super().inverse_factor(A, dtype)

    def cholesky(self, A: Array) -> Array:
        self.counts.add("matrix", float(len(A)) ** 3 / 3)
        return super().cholesky(A)

    def triangular_solve(self, R: Array, B: Array, *, lower: bool, transposed: bool = False) -> Array:
        self.counts.add("matrix", 1.0 * len(R) * B.size)
        return super().triangular_solve(R, B, lower=lower, transposed=transposed)

    def eigh(self, A: Array, B: Array | None = None, top: int | None = None) -> tuple[Array, Array]:
        self.counts.add("eigen", eigh(len(A)))
        return super().eigh(A, B, top)

    def top_eigenvalue(self, matvec: Any, n: int) -> float:
        before = self.counts.take()  # its steps are as many as the spectrum asks for: counted by themselves
        found = super().top_eigenvalue(matvec, n)
        self.counts.take()
        self.counts.total.update(before)
        return found


class CountingSource(ArraySource):
    """An array whose rows are counted as they are read."""

    counts: OperationCounts | None = None

    def read(self, chunk: int) -> Any:
        found = super().read(chunk)
        if self.counts is not None:
            self.counts.add("stored_rows", len(found.X))
            self.counts.add("bytes", found.X.nbytes)
        return found


def counted_rows(monkeypatch: Any, counts: OperationCounts) -> None:
    """Count the rows that are assembled."""
    build = Assembly.build

    def counted(self: Assembly, raw: Any, index: Array, *more: Any) -> Any:
        counts.add("rows", len(index))
        return build(self, raw, index, *more)

    monkeypatch.setattr(Assembly, "build", counted)
