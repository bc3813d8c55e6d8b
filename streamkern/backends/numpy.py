"""The reference backend: the formulas in plain NumPy, which every faster backend is tested equal to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamkern.backends.base import Profile, check_gather, check_radial, radial_coefficients
from streamkern.errors import UsageError
from streamkern.rng import normal_rows
from streamkern.types import Array, IntArray


class NumpyBackend:
    """Plain NumPy. Slow, short and obviously right; needs no compiler."""

    name = "numpy"

    def assemble(
        self, raw: Array, index: IntArray, out: NDArray[np.float32], *, scale: ArrayLike, offset: ArrayLike
    ) -> None:
        """Gather, convert and scale; see ``Backend.assemble``."""
        check_gather(raw, index, out)
        with np.errstate(over="ignore"):  # a float64 beyond float32 becomes infinite, which finite_rows finds
            out[...] = raw[index]
        out *= np.asarray(scale, dtype=np.float32)
        out += np.asarray(offset, dtype=np.float32)

    def add_noise(
        self, out: NDArray[np.float32], row_ids: IntArray, *, copies: int | IntArray, seed: int, sigma: float
    ) -> None:
        """Add Gaussian noise; see ``Backend.add_noise``."""
        if len(row_ids) != len(out):
            raise UsageError(f"{len(row_ids)} row ids do not fit {len(out)} rows.", where="row_ids")
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
        """``assemble``, then ``add_noise``; see ``Backend.assemble_noisy``."""
        self.assemble(raw, index, out, scale=scale, offset=offset)
        self.add_noise(out, row_ids, copies=copies, seed=seed, sigma=sigma)

    def finite_rows(self, X: Array) -> int:
        """Return the first row with a NaN or an infinity, or -1; see ``Backend.finite_rows``."""
        bad = ~np.isfinite(X).all(axis=1)
        return int(bad.argmax()) if bad.any() else -1

    def row_norms(self, X: Array) -> Array:
        """Return the squared norm of each row; see ``Backend.row_norms``."""
        if X.dtype not in (np.float32, np.float64):
            raise UsageError(f"Row norms of {X.dtype} values.", expected="float32 or float64")
        squared: Array = np.square(X, dtype=np.float64).sum(axis=1)
        with np.errstate(over="ignore"):
            return squared.astype(X.dtype)

    def radial(
        self, S: Array, x_norms: Array, z_norms: Array, kind: str | Profile, params: Mapping[str, float]
    ) -> None:
        """Turn inner products into kernel values in place; see ``Backend.radial``."""
        check_radial(S, x_norms, z_norms)
        np.maximum((x_norms[:, None] + z_norms) - 2 * S, 0, out=S)
        if callable(kind):
            S[...] = kind(S)
            return
        a, b, c = radial_coefficients(kind, params)
        with np.errstate(under="ignore"):
            S *= S.dtype.type(a)
            match kind:
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
