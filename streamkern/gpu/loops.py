"""The loops over a block on a GPU: which variant of which kernel, on how many threads, with which arguments.

The arithmetic is in ``cuda/``. A subclass makes arrays and launches kernels: by CuPy on a card, in tests on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from streamkern.engine.elementwise import (
    ANGULAR_KINDS,
    RADIAL_KINDS,
    Profile,
    check_angular,
    check_floats,
    check_gathered,
    check_manhattan,
    check_norms,
    check_phases,
    check_row_ids,
    magnitudes,
    radial_formula,
    wide,
)
from streamkern.gpu.cuda_source import DISTANCES, STORED, VALUES, Definitions, rows_at_once
from streamkern.rng import seed_words
from streamkern.types import IntArray

_WARP, _THREADS = 32, 256
_WARPS = _THREADS // _WARP
_BLOCKS = 2048
"""Blocks of threads that keep any card busy: a loop whose threads walk down columns is cut into about this many."""

_MOST = 65535
"""Most blocks along the second axis of a grid."""

_PULLED_COLUMNS = 64
"""Columns of a block of ``pulled``."""

i32, i64, u32 = np.int32, np.int64, np.uint32


class Sides(NamedTuple):
    """The parts of kernel values that belong to rows and to centers, and the profile.

    Squared norms of rows (n,) and centers (p,), powers of two of split rows (n,) and centers (p,) or None, and (kind,
    params) as for ``Loops.radial``. Norms of rows and profile are None if S has values already.
    """

    x_norms: Any = None
    z_norms: Any = None
    x_factors: Any = None
    z_factors: Any = None
    profile: tuple[str, Mapping[str, float]] | None = None


class Halves(NamedTuple):
    """Rows as sums of two 16-bit numbers, (n, 3 w), w ≥ d a multiple of 8; norms and factors (n,), float32."""

    numbers: Any
    norms: Any
    factors: Any


class BlockTarget(NamedTuple):
    """Targets of a block on a device: codes (n,) int64, or values (n, c) float64; and weights (n,) float64, or None."""

    y: Any
    w: Any = None


class CudaLoops:
    """The loops of ``Loops`` on a device's arrays, and the sums of kernel values times few columns."""

    name = "cuda"

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        raise NotImplementedError

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        raise NotImplementedError

    def put(self, array: Any) -> Any:
        raise NotImplementedError

    def launch(
        self, file: str, definitions: Definitions, kernel: str, grid: tuple[int, int], block: tuple[int, int], args: Any
    ) -> None:
        """Run a kernel of a variant.

        ``args`` are arrays of the device, None for a null pointer, and NumPy's numbers of the parameters' types.
        """
        raise NotImplementedError

    # ---------------------------------------------------------------------------------------------------- rows

    def assemble(self, raw: Any, index: IntArray | None, out: Any, *, scale: ArrayLike, offset: ArrayLike) -> None:
        self._assemble(raw, index, out, scale, offset, None, None, 0, 0.0)

    def add_noise(self, out: Any, row_ids: IntArray, *, copies: int | IntArray, seed: int, sigma: float) -> None:
        self.assemble_noisy(
            out, None, out, scale=1, offset=-0.0, row_ids=row_ids, copies=copies, seed=seed, sigma=sigma
        )

    def assemble_noisy(
        self, raw: Any, index: IntArray | None, out: Any, *, scale: ArrayLike, offset: ArrayLike, row_ids: IntArray,
        copies: int | IntArray, seed: int, sigma: float,
    ) -> None:  # fmt: skip
        check_row_ids(row_ids, len(out))
        if not hasattr(copies, "shape") or copies.shape != (len(out),):
            copies = np.broadcast_to(np.asarray(copies, dtype=i64), (len(out),))
        self._assemble(raw, index, out, scale, offset, row_ids, copies, seed, sigma)

    def move_pixels(
        self, X: Any, ids: Any, copies: Any, *, seed: int, shape: tuple[int, ...], padding: int, value: float,
        probability: float,
    ) -> Any:  # fmt: skip
        """Return images (n, d), moved within a padding; if that is below 0, mirrored with a probability."""
        n, out = len(X), self.empty(X.shape, np.float32)
        height, width, channels = (*shape, 1)[:3]
        low, high = seed_words(seed)
        self._by_row("images", (), "move_pixels", n, (
            X, out, i32(n), i32(height), i32(width), i32(channels), self._integers(ids), self._integers(copies),
            u32(low), u32(high), i32(padding), np.float32(value), np.float64(probability),
        ))  # fmt: skip
        return out

    def mix_rows(self, X: Any, bank: Any, partner: Any, share: Any) -> Any:
        """Mix rows X (n, d) in place with rows ``partner`` of a bank: share X + (1 − share) bank[partner]."""
        n, d = X.shape
        self._by_row("images", (), "mix_rows", n, (X, bank, i32(n), i32(d), self._integers(partner), self.put(share)))
        return X

    def _by_row(self, file: str, definitions: Definitions, kernel: str, n: int, args: Any) -> None:
        if n:
            self.launch(file, definitions, kernel, (-(-n // _WARPS), 1), (_THREADS, 1), args)

    def _assemble(
        self, raw: Any, index: Any, out: Any, scale: Any, offset: Any, ids: Any, copies: Any, seed: int, sigma: float
    ) -> None:
        n, d = out.shape
        check_gathered(raw, n if index is None else len(index), out)
        if not n or not d:
            return
        real = np.float64 if wide(raw.dtype) else np.float32
        low, high = seed_words(seed)
        groups = -(-d // 4)
        self.launch(
            "rows",
            (("REAL", _real(real)), ("STORED", STORED[np.dtype(raw.dtype).name])),
            "assemble",
            (-(-groups // _WARP), min(_MOST, -(-n // _WARPS))),
            (_WARP, _WARPS),
            (
                raw, _stride(raw), self._integers(index), out, i32(n), i32(d), self._of_columns(scale, d, real),
                self._of_columns(offset, d, real), self._integers(ids), self._integers(copies), u32(low), u32(high),
                np.float32(sigma), i32(ids is not None),
            ),
        )  # fmt: skip

    def _integers(self, values: Any) -> Any:
        if values is None or not isinstance(values, np.ndarray):
            return values
        return self.put(np.ascontiguousarray(values, dtype=i64))

    def _of_columns(self, values: Any, d: int, real: Any) -> Any:
        """Arrays of the device have the right shape and type."""
        if not isinstance(values, np.ndarray | np.generic | int | float):
            return values
        return self.put(np.ascontiguousarray(np.broadcast_to(np.asarray(values, real), (d,))))

    def finite_rows(self, X: Any) -> int:
        n, d = X.shape
        first = self.put(np.full(1, n, i64))
        if n and d:
            grid = (-(-d // _WARP), min(_MOST, -(-n // _WARPS)))
            args = (X, _stride(X), i32(n), i32(d), first)
            self.launch("norms", (("REAL", _real(X.dtype)),), "first_bad_row", grid, (_WARP, _WARPS), args)
        row = int(first[0])
        return -1 if row == n else row

    def row_norms(self, X: Any) -> Any:
        check_floats(X)
        n, d = X.shape
        out = self.empty((n,), X.dtype)
        self._by_row("norms", (("REAL", _real(X.dtype)),), "row_norms", n, (X, _stride(X), i32(n), i32(d), out))
        return out

    def split_halves(self, X: Any, centers: bool) -> Halves:
        """Return rows (n, d), float32 and finite, as sums of two numbers; ``centers`` are a right factor."""
        n, d = X.shape
        aligned = 8  # numbers of 16 bits: tensor cores read rows that begin there
        width = -(-d // aligned) * aligned
        found = Halves(self.empty((n, 3 * width), np.uint16), *(self.empty((n,), np.float32) for _ in range(2)))
        args = (X, _stride(X), i32(n), i32(d), i32(width), *found, i32(centers))
        self._by_row("norms", (("REAL", "float"),), "split_rows", n, args)
        return found

    # -------------------------------------------------------------------------------------- kernel values

    def manhattan(self, X: Any, Z: Any, out: Any) -> None:
        check_manhattan(X, Z, out)
        (n, p), d = out.shape, X.shape[1]
        if n and p:
            args = (X, _stride(X), Z, _stride(Z), out, _stride(out), i32(n), i32(p), i32(d))
            grid = (-(-p // _WARP), min(_MOST, -(-n // _WARP)))
            self.launch("manhattan", (("REAL", _real(X.dtype)),), "manhattan", grid, (_THREADS, 1), args)

    def signed_sums(self, P: Any, X: Any, Z: Any, out: Any) -> None:
        check_manhattan(X, Z, P)
        (n, p), d = P.shape, X.shape[1]
        args = (P, _stride(P), X, _stride(X), Z, _stride(Z), out, _stride(out), i32(n), i32(p), i32(d))
        self._down("manhattan", (("REAL", _real(X.dtype)),), "signed_sums", n, d, args)

    def radial(self, S: Any, x_norms: Any, z_norms: Any, kind: str | Profile, params: Mapping[str, float]) -> None:
        check_norms(S, x_norms, z_norms)
        if isinstance(kind, str):
            self.values(S, Sides(x_norms, z_norms, profile=(kind, params)))
            return
        self.values(S, Sides(x_norms, z_norms))
        S[...] = kind(S)

    def values(self, S: Any, sides: Sides) -> None:
        """Put kernel values, or without a profile squared distances, in place of inner products S, shape (n, p)."""
        definitions, args = self._profile(S, sides)
        n, p = S.shape
        self._down("radial", definitions, "radial", n, p, (S, _stride(S), i32(n), i32(p), *args))

    def _profile(self, S: Any, sides: Sides) -> tuple[Definitions, tuple[Any, ...]]:
        """Definitions of a profile, and the arguments from the norms to the profile's numbers."""
        real, code, (a, b, c), ready = S.dtype.type, DISTANCES, (0.0, 0.0, 0.0), False
        if sides.profile is not None:
            formula, (a, b, c), ready = radial_formula(*sides.profile)
            code = RADIAL_KINDS.index(formula)
        elif sides.x_norms is None:
            code = VALUES
        factors = sides.x_factors is not None
        definitions = (("FACTORS", int(factors)), ("KIND", code), ("READY", int(ready)), ("REAL", _real(real)))
        numbers = (real(a), real(b), real(c))
        return definitions, (sides.x_norms, sides.z_norms, sides.x_factors, sides.z_factors, *numbers)

    def angular(self, S: Any, x_norms: Any, z_norms: Any, kind: str, depth: int) -> None:
        check_angular(kind, depth)
        check_norms(S, x_norms, z_norms)
        n, p = S.shape
        sizes = [magnitudes(kind, depth, norms) for norms in (x_norms, z_norms)]
        args = (S, _stride(S), i32(n), i32(p), x_norms, z_norms, *sizes, i32(depth))
        self._down("angular", (("ANGLES", ANGULAR_KINDS.index(kind)), ("REAL", _real(S.dtype))), "angular", n, p, args)

    def cosines(self, S: Any, phases: Any, scale: float) -> None:
        check_phases(S, phases)
        n, p = S.shape
        args = (S, _stride(S), i32(n), i32(p), phases, S.dtype.type(scale))
        self._down("angular", (("ANGLES", 0), ("REAL", _real(S.dtype))), "cosines", n, p, args)

    def _down(self, file: str, definitions: Definitions, kernel: str, n: int, columns: int, args: Any) -> None:
        threads = 128  # of a block, along columns
        if n and columns:
            across = -(-columns // threads)
            down = max(1, min(_MOST, n, _BLOCKS // across))
            self.launch(file, definitions, kernel, (across, down), (threads, 1), args)

    # ------------------------------------------------------------------------------------------------ sums

    def outputs(self, S: Any, sides: Sides, W: Any, target: BlockTarget | None = None) -> tuple[Any, Any]:
        """Return K W for the kernel values K of inner products S, which are not stored, and losses.

        S is (n, p), and W (p, c), c <= ``OUTPUTS``, has its type. With a target, K W (n, c) is replaced by K W − y
        times the rows' weights, and losses are Σ w ‖K W − y‖² in parts to add up, float64.
        """
        return self._outputs(S, sides, W, target, len(S), 0)

    def _outputs(self, S: Any, sides: Sides, W: Any, target: BlockTarget | None, p: int, tail: int) -> tuple[Any, Any]:
        n, c = len(S), W.shape[1]
        triangle = tail > 0
        rows = 2 if triangle else rows_at_once(c, _real(S.dtype))
        blocks = -(-n // (_WARPS * rows))
        F, losses = self.empty((n, c), S.dtype), None
        y = w = None
        residual = 0
        if target is not None:
            y, w = target
            residual, losses = 1 if y.ndim == 1 else 2, self.empty((blocks,), np.float64)
        definitions, args = self._profile(S, sides)
        definitions = tuple(
            sorted((*definitions, ("OUTPUTS", c), ("RESIDUAL", residual), ("ROWS", rows), ("TRIANGLE", int(triangle))))
        )
        if n:
            codes, values = (y, None) if residual == 1 else (None, y)
            self.launch(
                "sums", definitions, "outputs", (blocks, 1), (_THREADS, 1),
                (S, _stride(S), i32(n), i32(p if triangle else S.shape[1]), *args, W, F, i32(tail), codes, values, w,
                 losses),
            )  # fmt: skip
        return F, losses

    def residual(self, F: Any, target: BlockTarget) -> Any:
        """Put F − y, times the rows' weights, in place of outputs F (n, c); return losses as ``outputs`` does."""
        (n, c), (y, w) = F.shape, target
        losses = self.empty((n,), np.float64)
        codes, values = (y, None) if y.ndim == 1 else (None, y)
        args = (F, i32(n), i32(c), codes, values, w, losses)
        self._by_row("step", (("REAL", _real(F.dtype)),), "residual", n, args)
        return losses

    def pulled(self, S: Any, sides: Sides, r: Any, into: Any = None) -> Any:
        """Return Kᵀ r (p, c) for K of ``outputs``, added to ``into`` if given; the order of sums depends on shapes."""
        return self._pulled(S, sides, r, into, False)

    def _pulled(self, S: Any, sides: Sides, r: Any, into: Any, triangle: bool) -> Any:
        (n, p), c = S.shape, r.shape[1]
        g = self.zeros((p, c), S.dtype) if into is None and not n else into
        if not n:
            return g
        across, splits = -(-p // _PULLED_COLUMNS), pulled_splits(n, p)
        share = -(-n // splits)
        g = self.empty((p, c), S.dtype) if into is None else into
        definitions, args = self._profile(S, sides)
        definitions = tuple(sorted((*definitions, ("OUTPUTS", c), ("TRIANGLE", int(triangle)))))
        self.launch(
            "sums", definitions, "pulled", (across, splits), (_THREADS, 1),
            (S, _stride(S), i32(n), i32(p), *args, r, g, i32(share), i32(into is not None),
             self.empty((splits, p, c), S.dtype), self._arrived(across)),
        )  # fmt: skip
        return g

    def _arrived(self, blocks: int) -> Any:
        """Counters that every launch of ``pulled`` leaves at zero."""
        return self.zeros((blocks,), u32)

    def project(self, W: Any, p: int, tail: int, g: Any) -> Any:
        """Return LᵀL g − FᵀF g for W = [L; F]: shape (p + q, p), L lower triangular, F zero from column ``tail`` on."""
        t, _ = self._outputs(W, Sides(), g, None, p, max(1, tail))
        return self._pulled(W, Sides(), t, None, True)

    def moved(
        self, ahead: Any, before: Any, mean: Any, g: Any, rate: float, gamma: float, second: float, share: float
    ) -> tuple[Any, Any, Any]:
        """Return α, the weights of the next gradient and the average: ``Engine.moved`` for weights, α and mean."""
        real = g.dtype.type
        made = self.empty(g.shape, g.dtype), self.empty(g.shape, g.dtype), self.empty(g.shape, np.float64)
        size = g.shape[0] * g.shape[1]
        self.launch(
            "step", (("REAL", _real(real)),), "moved", (min(_BLOCKS, -(-size // _THREADS)), 1), (_THREADS, 1),
            (ahead, before, mean, g, i64(size), real(rate), real(gamma), real(second), np.float64(share), *made),
        )  # fmt: skip
        return made


def pulled_splits(n: int, p: int) -> int:
    """Return the number of parts that the rows of S (n, p) are cut into for ``pulled``."""
    least = 64  # rows of a part
    splits = max(1, min(_BLOCKS // -(-p // _PULLED_COLUMNS), -(-n // least)))
    return -(-n // -(-n // splits))


def _real(dtype: Any) -> str:
    return "double" if dtype == np.float64 else "float"


def _stride(array: Any) -> np.int64:
    """Numbers from one row to the next of a matrix whose rows are contiguous."""
    assert array.shape[1] <= 1 or array.strides[1] == array.itemsize, "a row is not contiguous"
    return i64(array.strides[0] // array.itemsize)
