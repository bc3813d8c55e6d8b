"""The methods that run on a device: kernel values and their products, the state of a step, the factor of a projection.

Results for arrays on the host are on the host, and for weights or gradients on the device on the device. What is not a
loop of the device uses only the array API. Matrices of the set-up are on the host, except the factor of K(Z, Z).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np

from streamkern.engine.base import Basis, Centered, Respond
from streamkern.engine.device import PANEL_BYTES, Device
from streamkern.engine.packed_triangle import cuts
from streamkern.engine.reference import Engine
from streamkern.engine.residuals import SquaredLoss
from streamkern.gpu.cuda_source import OUTPUTS
from streamkern.gpu.loops import BlockTarget, Halves, Sides
from streamkern.types import Array

_SQUARE = 1024  # rows of a diagonal block that is set at once


class _There:
    """An expansion's arrays on the device (centers, norms, last state), copied when first needed."""

    def __init__(self, Z: Any) -> None:
        self.Z = Z
        self.lock = threading.Lock()
        self.centers: _Centers | None = None
        self.state: tuple[Any, Any] = (None, None)


class _Centers(NamedTuple):
    Z: Any
    norms: Any
    halves: Halves | None


class _Placed:
    """A host matrix with a copy on the device, made when first needed; F as for ``Engine.place_projection``."""

    def __init__(self, W: Any, F: Any = None) -> None:
        self.W, self.F = W, F
        self.there: Any = None


class OnDevice:
    """Methods computed on a device: rows against centers, the state of a step, and exact projection."""

    device: Device
    host: Engine
    keeps_state: bool

    # ------------------------------------------------------------------------------ rows against centers

    def hold(self, Z: Any) -> Any:
        return _There(Z)

    def hold_head(self, resident: Any, Z: Any) -> Any:
        return _There(Z)

    def block(self, expansion: Centered, X: Any, out: Array | None = None) -> Array:
        K = self.host.empty((X.shape[0], expansion.p), expansion.dtype) if out is None else out
        with self.device.turn():
            rows = self.device.put(X)
            for part in _panels(expansion, X.shape[0]):
                K[part] = self.device.take(self._values(expansion, rows[part, :]))
        return K

    def panels(self, basis: Basis, X: Any, prepared: Any = None) -> Iterator[tuple[slice, Array]]:
        for rows in cuts(X.shape[0], basis.row_tile):
            yield rows, basis.block(X[rows, :])

    def begin(self, basis: Basis, X: Any) -> Any:
        """Return None, because beginning a panel would delay a thread that already has the state."""
        return None

    def predict(self, basis: Any, X: Any, W: Array) -> Array:
        out = self.host.empty((X.shape[0], W.shape[1]), basis.dtype)
        with self.device.turn():
            rows, weights = self.device.put(X), self.device.put(W, basis.dtype)
            for part in _panels(basis, X.shape[0]):
                S, sides = self._inner(basis, rows[part, :])
                F = self._times(S, sides, weights)
                out[part] = self.device.take(F)
        return out

    def pull(self, basis: Any, X: Any, W: Any, respond: Respond, outputs: int, prepared: Any = None) -> Any:
        """Take the squared loss's residual on the device; for weights there, the loss is a number on its way."""
        if W.dtype != basis.dtype:
            return Engine.pull(cast(Any, self), basis, X, W, respond, outputs, prepared)
        device, total, losses = self.device, None, list[Any]()
        here = self._is_here(W)
        with device.turn():
            rows, weights = device.put(X), self._shared(basis, W) if here else W
            few = max(W.shape[1], outputs) <= OUTPUTS
            target = self._target(respond) if isinstance(respond, SquaredLoss) else None
            for part in _panels(basis, X.shape[0]):
                S, sides = self._inner(basis, rows[part, :])
                if not few and sides.profile is not None:
                    device.loops.values(S, sides)
                    sides = Sides()
                if target is None:
                    r = device.put(respond(device.take(self._times(S, sides, weights)), part))
                else:
                    of_part = BlockTarget(target.y[part], None if target.w is None else target.w[part])
                    if few:
                        r, lost = device.loops.outputs(S, sides, weights, of_part)
                    else:
                        r = self._times(S, sides, weights)
                        lost = device.loops.residual(r, of_part)
                    losses.append(lost)
                if few:
                    total = device.loops.pulled(S, sides, r, total)
                else:
                    g = S.T @ r
                    total = g if total is None else total + g
            if losses:
                loss = device.number(losses)
                cast(SquaredLoss, respond).loss = float(loss) if here else loss
            if total is None:
                total = self.host.zeros((basis.p, outputs), basis.dtype)
                return total if here else device.put(total)
            return device.take(total) if here else total

    def _target(self, respond: SquaredLoss) -> BlockTarget:
        y, w = respond.y, respond.w
        there = self.device.put(y, np.int64 if y.ndim == 1 else np.float64)
        return BlockTarget(there, None if w is None else self.device.put(w, np.float64))

    def gradients(self, expansion: Centered, X: Any, W: Array, signs: Array | None = None) -> Array:
        """Compute on the device for kernels with device loops, else on the host."""
        if expansion.kernel.profile is None:
            here = expansion.at(np.asarray(expansion.Z), self.host)
            return self.host.gradients(here, self.device.take(self.device.put(X)), W, signs)
        device, kernel = self.device, expansion.kernel
        out = self.host.empty((X.shape[0], W.shape[0] and expansion.Z.shape[1]), expansion.dtype)
        with device.turn():
            Z, z_norms, _ = self._centers(expansion)
            rows, weights = device.put(X), device.put(W, expansion.dtype)
            summed = device.put(W.sum(axis=1)[None, :], expansion.dtype)
            for part in cuts(X.shape[0], max(1, _panels(expansion, X.shape[0])[0].stop // 4)):
                x, V = rows[part, :], summed
                if signs is not None:
                    V = device.put(signs[part], expansion.dtype) @ weights.T
                if kernel.norm == 1:
                    S = device.loops.empty((x.shape[0], expansion.p), expansion.dtype)
                    device.loops.manhattan(x, Z, S)
                    P, _ = kernel.slopes(S, z_norms, z_norms, device.loops)
                    found = device.loops.empty((x.shape[0], Z.shape[1]), expansion.dtype)
                    device.loops.signed_sums(P * V, x, Z, found)
                else:
                    _, Q = kernel.slopes(x @ Z.T, device.loops.row_norms(x), z_norms, device.loops)
                    assert Q is not None
                    Q = Q * V
                    ones = device.put(np.ones((expansion.p, 1), dtype=expansion.dtype))
                    found = (Q @ ones) * x - Q @ Z
                out[part] = device.take(found)
        return out

    # ------------------------------------------------------------------------------ set-up

    def kernel_matrix(self, expansion: Centered, s: int, dtype: Any = np.float64) -> Array:
        return self.host.kernel_matrix(expansion.at(expansion.Z, self.host), s, dtype)

    def kernel_rows(self, expansion: Centered, s: int, dtype: Any = np.float64) -> Iterator[tuple[slice, Array]]:
        return self.host.kernel_rows(expansion.at(expansion.Z, self.host), s, dtype)

    def kernel_factor(self, expansion: Centered, shift: float, K: Array | None = None) -> Array:
        device, wide = self.device, expansion.at(expansion.Z.astype(np.float64))
        diagonal = self.host.diagonal(wide, wide.Z)
        with device.turn():
            A = self._values(wide, self._centers(wide).Z) if K is None else device.put(K)
            for part in cuts(expansion.p, _SQUARE):
                square = device.take(A[part, part])
                np.fill_diagonal(square, diagonal[part] + shift)
                A[part, part] = device.put(square)
            return device.take(device.inverse_factor(A, expansion.dtype))

    def place(self, W: Any) -> Any:
        return _Placed(W)

    def place_projection(self, W: Array, F: Array | None) -> Any:
        return _Placed(W, F)

    def project(self, placed: Any, g: Any) -> Any:
        p, tail = len(placed.W), 1 if placed.F is None else placed.F.shape[1]
        with self.device.turn():
            if placed.there is None:
                q = 0 if placed.F is None else len(placed.F)
                there = self.device.loops.empty((p + q, p), placed.W.dtype)
                for rows in cuts(p, _SQUARE):
                    there[rows, :] = self.device.put(placed.W[rows])
                if placed.F is not None:
                    wide = self.host.zeros((q, p), placed.W.dtype)
                    wide[:, :tail] = placed.F
                    there[p:, :] = self.device.put(wide)
                placed.there = there
            there, right = placed.there, self.device.put(g)
            if g.shape[1] <= OUTPUTS:
                found = self.device.loops.project(there, p, tail, right)
            else:
                first, last = there[:p, :], there[p:, :]
                found = first.T @ (first @ right)
                if placed.F is not None:
                    found = found - last.T @ (last @ right)
            return self.device.take(found) if self._is_here(g) else found

    def resident(self, array: Array) -> Any:
        return self.device.put(array) if self.keeps_state else array

    def on_host(self, array: Any) -> Array:
        if self._is_here(array):
            return cast(Array, array)
        with self.device.turn():
            return self.device.take(array)

    def moved(self, state: Any, g: Any, rate: float, gamma: float, second: float, share: float) -> tuple[Any, Any, Any]:
        if not self.keeps_state:
            return self.host.moved(state, g, rate, gamma, second, share)
        ahead, before, mean = state
        with self.device.turn():
            after: tuple[Any, Any, Any] = self.device.loops.moved(ahead, before, mean, g, rate, gamma, second, share)
            return after

    def packed_product(self, W: Any, B: Array) -> Array:
        """Convert one panel of integers at a time to float32, on the device."""
        if not isinstance(W, _Placed):
            return self.host.packed_product(W, B)
        device, factor = self.device, W.W
        with device.turn():
            if W.there is None:
                W.there = [
                    (device.put(numbers), device.put(np.square(scales)[:, None]))
                    for _, _, numbers, scales in factor.panels()
                ]
            right = device.put(B, np.float32)
            out = device.put(self.host.zeros(B.shape, np.float32))
            for (rows, lead, *_), (numbers, scaled) in zip(factor.panels(), W.there, strict=True):
                A = _as_type(numbers, right.dtype)
                own, before = A[:, lead : lead + rows.stop - rows.start], A[:, :lead]
                T = own @ right[rows, :]
                if lead:
                    T = T + before @ right[:lead, :]
                T = T * scaled
                out[rows, :] = out[rows, :] + own.T @ T
                if lead:
                    out[:lead, :] = out[:lead, :] + before.T @ T
            return device.take(out)

    # ------------------------------------------------------------------------------ on the device

    def _is_here(self, array: Any) -> bool:
        return isinstance(array, np.ndarray)

    def _centers(self, expansion: Centered) -> _Centers:
        there = expansion.resident
        with there.lock:
            if there.centers is None:
                split_width = 8  # features from which a product of split rows, three times as deep, takes less time
                wide = expansion.Z.shape[1] >= split_width and expansion.dtype == np.float32
                radial = expansion.kernel.profile is not None and expansion.kernel.norm == 2
                Z, loops = self.device.put(there.Z), self.device.loops
                halves = loops.split_halves(Z, True) if wide and radial and self.device.splits else None
                there.centers = _Centers(Z, loops.row_norms(Z) if halves is None else halves.norms, halves)
            return cast(_Centers, there.centers)

    def _inner(self, expansion: Centered, X: Any) -> tuple[Any, Sides]:
        """Return S and sides such that ``loops.values`` has the kernel values of rows on the device; others at once."""
        Z, norms, halves = self._centers(expansion)
        kernel, loops = expansion.kernel, self.device.loops
        if halves is not None:
            rows = loops.split_halves(X, False)
            S = self.device.half_product(rows.numbers, halves.numbers)
            return S, Sides(rows.norms, norms, rows.factors, halves.factors, kernel.profile)
        if kernel.norm == 1:
            S = loops.empty((X.shape[0], expansion.p), expansion.dtype)
            loops.manhattan(X, Z, S)
        else:
            S = X @ Z.T
        if kernel.profile is not None:
            return S, Sides(loops.row_norms(X), norms, profile=kernel.profile)
        kernel.apply(S, loops.row_norms(X), norms, loops)
        return S, Sides()

    def _values(self, expansion: Centered, X: Any) -> Any:
        S, sides = self._inner(expansion, X)
        if sides.profile is not None:
            self.device.loops.values(S, sides)
        return S

    def _times(self, S: Any, sides: Sides, W: Any) -> Any:
        if W.shape[1] <= OUTPUTS:
            return self.device.loops.outputs(S, sides, W)[0]
        if sides.profile is not None:
            self.device.loops.values(S, sides)
        return S @ W

    def _shared(self, expansion: Centered, W: Array) -> Any:
        """Return a state on the device, copied once, since all lanes of a step share the same frozen array."""
        held = expansion.resident.state
        if held[0] is not W:
            held = (W, self.device.put(W, expansion.dtype))
            expansion.resident.state = held
        return held[1]


def _as_type(array: Any, dtype: Any) -> Any:
    if hasattr(array, "astype"):
        return array.astype(dtype)
    return array.__array_namespace__().astype(array, dtype)


def _panels(expansion: Centered, n: int) -> list[slice]:
    return cuts(n, max(1, PANEL_BYTES // max(1, expansion.p * expansion.dtype.itemsize)))
