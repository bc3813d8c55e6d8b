"""Counters: what a solver really evaluates, multiplies and reads, to hold its ``Cost`` to."""

from __future__ import annotations

import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import scipy.linalg

from streamkern.backends import lapack, thin
from streamkern.backends import product as panels
from streamkern.data.stream import Assembly
from streamkern.kernels import Basis
from streamkern.precondition import eigensystem
from streamkern.solvers import dense
from streamkern.solvers.cost import eigh
from streamkern.storage import ArraySource
from streamkern.types import Array


@dataclass(eq=False)
class Counts:
    """What was counted, by kind.

    ``values`` and ``values64`` of the basis; ``panel`` operations of products with them, ``host`` operations of other
    matrix products and ``eigen`` operations; ``rows`` assembled; ``stored_rows`` and ``bytes`` read from the source.
    """

    total: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, kind: str, number: float) -> None:
        """Count ``number`` more of a kind."""
        with self.lock:
            self.total[kind] += number

    def take(self) -> dict[str, float]:
        """What was counted since the last time."""
        with self.lock:
            found, self.total = self.total, defaultdict(float)
        return found


class _Counted(np.ndarray[Any, Any]):
    """An array whose matrix products are counted; what they give is an ordinary array."""

    counts: Counts | None = None
    kind = ""

    def __array_finalize__(self, parent: Any) -> None:
        self.counts, self.kind = getattr(parent, "counts", None), getattr(parent, "kind", "")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **more: Any) -> Any:
        if out is not None:
            more["out"] = tuple(map(_plain, out))
        found = getattr(ufunc, method)(*map(_plain, inputs), **more)
        if ufunc is np.matmul and self.counts is not None:
            self.counts.add(self.kind, 2.0 * found.size * inputs[0].shape[-1])
        return found


def _plain(array: Any) -> Any:
    return array.view(np.ndarray) if isinstance(array, _Counted) else array


def _counted(array: Array, counts: Counts, kind: str) -> Array:
    view = array.view(_Counted)
    view.counts, view.kind = counts, kind
    return view


class CountingSource(ArraySource):
    """Rows in memory that count what is read of them."""

    counts: Counts | None = None

    def read(self, chunk: int) -> Any:
        """As ``ArraySource`` reads, counted."""
        rows = super().read(chunk)
        if self.counts is not None:
            self.counts.add("stored_rows", len(rows.X))
            self.counts.add("bytes", rows.X.nbytes)
        return rows


_OWN = ("streamkern.solvers", "streamkern.precondition")


def watch(thing: Any, counts: Counts) -> None:
    """Count the products of every matrix that an iteration, or what it holds of solvers' own, keeps."""
    for name, value in vars(thing).items():
        if isinstance(value, np.ndarray) and value.ndim == 2:
            object.__setattr__(thing, name, _counted(_plain(value), counts, "host"))
        elif type(value).__module__.startswith(_OWN) and hasattr(value, "__dict__") and not hasattr(value, "prepare"):
            watch(value, counts)


@contextmanager
def counting(source: CountingSource | None = None) -> Iterator[Counts]:
    """Count while the context is open, in this process.

    Args:
        source: rows whose reading is counted too.
    """
    counts, inside = Counts(), threading.local()

    def values(block: Callable[..., Array]) -> Callable[..., Array]:
        def counted(self: Basis, X: Array, out: Array | None = None) -> Array:
            if getattr(inside, "depth", 0):  # a feature map's own kernel values are part of the features
                return block(self, X, out)
            inside.depth = 1
            try:
                K = block(self, _plain(X), out)
            finally:
                inside.depth = 0
            counts.add("values64" if K.dtype == np.float64 else "values", K.size)
            return _counted(K, counts, "panel")

        return counted

    def product(multiply: Callable[..., Array], share: float) -> Callable[..., Array]:
        def counted(A: Array, B: Array, *more: Any, **named: Any) -> Array:
            counts.add("host", share * A.shape[0] * A.shape[1] * B.shape[1])
            return multiply(_plain(A), _plain(B), *more, **named)

        return counted

    def gram(multiply: Callable[..., Array]) -> Callable[..., Array]:
        def counted(W: Array, B: Array, *more: Any, lower: bool = False, **named: Any) -> Array:
            counts.add("host", (2.0 if lower else 4.0) * W.shape[0] * W.shape[1] * B.shape[1])
            return multiply(_plain(W), _plain(B), *more, lower=lower, **named)

        return counted

    def symmetric(A: Array, *more: Any) -> Array:
        counts.add("host", 1.0 * A.shape[0] * A.shape[0] * A.shape[1])
        return square(_plain(A), *more)

    def factor(work: Callable[..., None]) -> Callable[..., None]:
        return lambda A, *more: work(_counted(_plain(A), counts, "host"), *more)

    def build(self: Assembly, raw: Any, index: Array, *more: Any) -> Any:
        counts.add("rows", len(index))
        return assemble(self, raw, index, *more)

    def triangular(A: Array, B: Array, *more: Any, **named: Any) -> Any:
        counts.add("host", float(A.shape[0]) ** 2 * (B.shape[1] if B.ndim > 1 else 1))
        return solve(_plain(A), _plain(B), *more, **named)

    def decomposed(decompose: Callable[..., Any]) -> Callable[..., Any]:
        def counted(A: Array, *more: Any, **named: Any) -> Any:
            counts.add("eigen", eigh(len(A)) * A.dtype.itemsize / 8)
            return decompose(_plain(A), *more, **named)

        return counted

    assemble, solve, square = Assembly.build, scipy.linalg.solve_triangular, dense.gram
    products = {"matmul": 2.0, "times_lower": 1.0}
    with ExitStack() as stack:

        def replace(owner: Any, name: str, new: Any) -> None:
            stack.enter_context(patch.object(owner, name, new))

        for module in (panels, thin):
            replace(module, "VECTORS", 0)  # NumPy multiplies, which is counted
        replace(Basis, "warm", lambda self, X: None)  # and every panel where it is used
        for basis in _subclasses(Basis):
            if "block" in vars(basis):
                replace(basis, "block", values(vars(basis)["block"]))
        counted = {name: product(getattr(dense, name), share) for name, share in products.items()}
        counted |= {"gram_matmul": gram(dense.gram_matmul), "gram": symmetric}
        for module in [m for name, m in sys.modules.items() if name.startswith("streamkern.")]:
            for name, count in counted.items():
                if module is not dense and getattr(module, name, None) is getattr(dense, name):
                    replace(module, name, count)
        for name in ("_cholesky", "_invert_lower"):
            replace(dense, name, factor(getattr(dense, name)))
        replace(Assembly, "build", build)
        replace(scipy.linalg, "solve_triangular", triangular)
        replace(eigensystem, "top_eigenpairs", decomposed(lapack.top_eigenpairs))
        replace(scipy.linalg, "eigh", decomposed(scipy.linalg.eigh))
        replace(np.linalg, "eigh", decomposed(np.linalg.eigh))
        if source is not None:
            replace(source, "counts", counts)
        yield counts


def _subclasses(kind: type) -> list[type]:
    children: list[type] = kind.__subclasses__()
    return [found for child in children for found in (child, *_subclasses(child))]
