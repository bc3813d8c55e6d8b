"""The reference backend: the formulas in plain NumPy, against which faster backends are tested."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streamkern.engine.elementwise import (
    Profile,
    check_angular,
    check_cosines,
    check_gather,
    check_manhattan,
    check_row_ids,
    check_tile,
    check_written,
    coincident,
    magnitudes,
    radial_formula,
    wide,
)
from streamkern.errors import UsageError
from streamkern.rng import normal_rows
from streamkern.types import Array, IntArray


class NumpyBackend:
    """Plain NumPy. Slow, short and obviously right; needs no compiler."""

    name = "numpy"

    def assemble(
        self, raw: Array, index: IntArray, out: NDArray[np.float32], *, scale: ArrayLike, offset: ArrayLike
    ) -> None:
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
        self.assemble(raw, index, out, scale=scale, offset=offset)
        self.add_noise(out, row_ids, copies=copies, seed=seed, sigma=sigma)

    def finite_rows(self, X: Array) -> int:
        bad = ~np.isfinite(X).all(axis=1)
        return int(bad.argmax()) if bad.any() else -1

    def assign(
        self, X: Array, at: IntArray, directions: Array, cuts: Array, children: IntArray
    ) -> tuple[IntArray, IntArray]:
        spans, found, done = np.empty((len(cuts) + 1, 2), dtype=np.int64), [np.empty(0, dtype=np.int64)], 0
        waiting = [(0 if len(cuts) else -1, at)]
        while waiting:
            node, rows = waiting.pop()
            if node < 0:
                spans[-1 - node] = done, done + len(rows)
                done += len(rows)
                found.append(rows)
                continue
            t, (low, _, high) = self.project(X, rows, directions[node]), cuts[node]
            waiting.append((int(children[node, 1]), rows[t >= low]))
            waiting.append((int(children[node, 0]), rows[t < high]))
        return spans, np.concatenate(found)

    def moments(self, X: Array, w: Array | None, pivot: Array) -> tuple[Array, Array, Array, Array]:
        X = X.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            centred = X - pivot
            weighted = centred if w is None else w[:, None] * centred
            sums = weighted.sum(axis=0), (weighted * centred).sum(axis=0)
        return X.min(axis=0, initial=np.inf), X.max(axis=0, initial=-np.inf), *sums

    def project(self, X: Array, at: IntArray, direction: Array) -> Array:
        t: Array = np.multiply(X[at], direction, dtype=np.float64).sum(axis=1)
        return t

    def route(
        self, X: Array, directions: Array, cuts: Array, children: IntArray, width: float
    ) -> tuple[IntArray, Array]:
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

    def row_norms(self, X: Array) -> Array:
        if X.dtype not in (np.float32, np.float64):
            raise UsageError(f"Row norms of {X.dtype} values.", where="X", expected="float32 or float64")
        squared: Array = np.square(X, dtype=np.float64).sum(axis=1)
        with np.errstate(over="ignore"):
            return squared.astype(X.dtype)

    def manhattan(self, X: Array, Z: Array, out: Array) -> None:
        check_manhattan(X, Z, out)
        check_written(out, np.float32, np.float64)
        out[...] = 0
        for x, z in zip(X.T, Z.T, strict=True):
            out += np.abs(x[:, None] - z)

    def signed_sums(self, P: Array, X: Array, Z: Array, out: Array) -> None:
        check_manhattan(X, Z, P)
        for k, (x, z) in enumerate(zip(X.T, Z.T, strict=True)):
            out[:, k] = np.einsum("ij,ij->i", P, np.sign(x[:, None] - z))

    def radial(
        self, S: Array, x_norms: Array, z_norms: Array, kind: str | Profile, params: Mapping[str, float]
    ) -> None:
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
        check_angular(S, x_norms, z_norms, kind, depth)
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
        check_cosines(S, phases)
        turns = S + phases
        S[...] = scale * np.cos(2 * np.pi * (turns - np.rint(turns)))
