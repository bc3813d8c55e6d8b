"""Kernels, and the evaluation of k(X, Z) by tiles.

A kernel turns inner products into values: k(x, z) = φ(⟨x, z⟩, ‖x‖², ‖z‖²). So one matrix product and one elementwise
pass make a tile, and a tile is the only thing held: ``Expansion`` evaluates f(x) = Σ_j α_j k(x, z_j) within a budget.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from streamkern.backends import get_backend
from streamkern.backends.base import Backend
from streamkern.errors import UsageError
from streamkern.types import Array

TILE_BYTES = 16 << 20
"""Largest panel k(X_tile, Z) held at once by one thread, in bytes, unless a single row is larger."""

ROW_TILE = 256
CENTER_TILE = 2048
"""Rows and centers of one matrix product: large enough for BLAS, small enough that the pass after it finds it in cache."""


class Kernel(ABC):
    """A positive-definite function k(x, z). Subclasses are frozen dataclasses of numbers."""

    translation_invariant: ClassVar[bool] = False
    """Whether k(x + a, z + a) = k(x, z): then rows may be centred, which float32 distances need."""

    @abstractmethod
    def apply(self, S: Array, x_norms: Array, z_norms: Array, backend: Backend) -> None:
        """Turn inner products S = X Zᵀ, shape (b, p), into k(X, Z) in place.

        Args:
            S: inner products, float32 or float64; may be a row-strided view.
            x_norms: squared norms of X, shape (b,).
            z_norms: squared norms of Z, shape (p,).
            backend: where the elementwise arithmetic runs.
        """

    @abstractmethod
    def diag(self, X: Array) -> Array:
        """k(x, x) of every row of X: shape (n,)."""

    def __call__(self, X: Array, Z: Array | None = None) -> Array:
        """Kernel matrix k(X, Z), shape (n, p), in X's floating dtype; Z None: k(X, X) with an exact diagonal."""
        X = _floating(X, "X")
        same = Z is None
        Z = X if Z is None else _floating(Z, "Z").astype(X.dtype, copy=False)
        _check_width(X, Z)
        if self.translation_invariant and len(Z):
            shift = Z.mean(axis=0, dtype=np.float64).astype(X.dtype)
            X, Z = X - shift, Z - shift
        K = Expansion(self, Z).block(X)
        if same:
            np.fill_diagonal(K, self.diag(X))
        return K

    def matvec(self, X: Array, Z: Array, W: Array) -> Array:
        """k(X, Z) W without holding k(X, Z): shape (n, c) for W of shape (p, c), (n,) for W of shape (p,)."""
        X = _floating(X, "X")
        Z = _floating(Z, "Z").astype(X.dtype, copy=False)
        _check_width(X, Z)
        if len(W) != len(Z):
            raise UsageError(f"W has {len(W)} rows where Z has {len(Z)}.", where="W", expected="one row a center")
        if self.translation_invariant and len(Z):
            shift = Z.mean(axis=0, dtype=np.float64).astype(X.dtype)
            X, Z = X - shift, Z - shift
        weights = np.asarray(W, dtype=X.dtype)
        out = Expansion(self, Z).predict(X, weights.reshape(len(Z), -1))
        return out.reshape((len(X), *weights.shape[1:]))

    def to_json(self) -> dict[str, Any]:
        """The kernel as JSON-serialisable data, read back by ``kernel_from_json``."""
        return {"name": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]


class Basis(ABC):
    """M functions φ_1 .. φ_M of a row, evaluated by panels: every model here is f(x) = Σ_j w_j φ_j(x).

    Kernel values at centers are such functions (``Expansion``), and so are feature maps.
    """

    tile_bytes: int = TILE_BYTES

    @property
    @abstractmethod
    def width(self) -> int:
        """Number M of functions."""

    @property
    @abstractmethod
    def dtype(self) -> np.dtype[Any]:
        """Of the values, and of the arithmetic."""

    @abstractmethod
    def block(self, X: Array, out: Array | None = None) -> Array:
        """φ(X), shape (b, M), written to ``out`` where given."""

    @property
    def row_tile(self) -> int:
        """Rows of one panel."""
        return int(np.clip(self.tile_bytes // max(1, self.width * self.dtype.itemsize), 1, ROW_TILE))

    @property
    def scratch_bytes(self) -> int:
        """Bytes that one thread holds while it evaluates."""
        return self.row_tile * self.width * self.dtype.itemsize

    def panels(self, X: Array) -> Iterator[tuple[slice, Array]]:
        """Panels φ(X[rows]) in turn, each valid until the next: (rows, panel)."""
        scratch = getattr(self._scratch, "panel", None)
        if scratch is None:
            # One buffer a thread for as long as the thread lives: fresh pages for every panel would cost more than
            # the elementwise pass.
            scratch = self._scratch.panel = np.empty((self.row_tile, self.width), dtype=self.dtype)
        for rows in _tiles(len(X), self.row_tile):
            tile = X[rows]
            yield rows, self.block(tile, out=scratch[: len(tile)])

    def predict(self, X: Array, W: Array) -> Array:
        """f(X) = φ(X) W, shape (b, c)."""
        out = np.empty((len(X), W.shape[1]), dtype=self.dtype)
        for rows, panel in self.panels(X):
            np.matmul(panel, W, out=out[rows])
        return out

    @cached_property
    def _scratch(self) -> threading.local:
        return threading.local()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_scratch"}


@dataclass(eq=False)
class Expansion(Basis):
    """f(x) = Σ_j α_j k(x, z_j): the tiled evaluation of a kernel against fixed centers.

    Args:
        kernel: the kernel.
        Z: centers, shape (p, d), float32 or float64, already centred if the kernel allows it.
        backend: where elementwise arithmetic runs.
        tile_bytes: largest panel held by one thread, in bytes.
    """

    kernel: Kernel
    Z: Array
    backend: Backend = field(default_factory=get_backend)
    tile_bytes: int = TILE_BYTES

    def __post_init__(self) -> None:
        self.Z = np.ascontiguousarray(self.Z)
        self.norms = self.backend.row_norms(self.Z)

    @property
    def p(self) -> int:
        """Number of centers."""
        return len(self.Z)

    @property
    def width(self) -> int:
        """Number p of centers."""
        return len(self.Z)

    @property
    def dtype(self) -> np.dtype[Any]:
        """That of the centers."""
        return self.Z.dtype

    def block(self, X: Array, out: Array | None = None) -> Array:
        """k(X, Z), shape (b, p), written to ``out`` where given."""
        K = np.empty((len(X), self.p), dtype=self.Z.dtype) if out is None else out
        x_norms = self.backend.row_norms(X)
        for rows in _tiles(len(X), ROW_TILE):
            for cols in _tiles(self.p, CENTER_TILE):
                S = K[rows, cols]
                np.matmul(X[rows], self.Z[cols].T, out=S)
                self.kernel.apply(S, x_norms[rows], self.norms[cols], self.backend)
        return K


def _tiles(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(n, start + size))


def _floating(X: Array, name: str) -> Array:
    X = np.asarray(X)
    if X.ndim != 2:
        raise UsageError(f"{name} has {X.ndim} dimensions.", where=name, expected="shape (rows, features)")
    return X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)


def _check_width(X: Array, Z: Array) -> None:
    if X.shape[1] != Z.shape[1]:
        raise UsageError(
            f"X has {X.shape[1]} features and Z has {Z.shape[1]}.", where="Z", expected="rows of the same width"
        )
