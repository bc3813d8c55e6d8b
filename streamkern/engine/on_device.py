"""The methods that run on a device: kernel values, their products, and the factor of an exact projection.

Results for arrays on the host are on the host. The code uses only the array API, so it runs with the namespace of any
device. Arrays with p or d numbers a row are on the device; arrays with a number for each output (residuals, gradients,
weights) are copied to the host, where solvers, sums and checkpoints are the same as without a device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import numpy as np

from streamkern.backends.device import NARROW, NARROW_OUTPUTS, PANEL_BYTES, Device
from streamkern.engine.base import Centered, Engine, Evaluated, Respond
from streamkern.engine.numpy import NumpyEngine
from streamkern.engine.triangle import cuts
from streamkern.types import Array

_SQUARE = 1024  # rows of a diagonal block that is set at once


class _There:
    """An expansion's arrays on the device (centers, norms, last state), copied when first needed."""

    def __init__(self, Z: Any) -> None:
        self.Z = Z
        self.lock = threading.Lock()
        self.centers: tuple[Any, Any] | None = None
        self.state: tuple[Any, Any] = (None, None)


class _Placed:
    """A host matrix with a copy on the device, made when first needed."""

    def __init__(self, W: Any) -> None:
        self.W = W
        self.there: Any = None


class OnDevice:
    """Methods computed on a device: rows against centers, and products with K(Z, Z) for an exact projection.

    Attributes:
        device: where values are computed.
        host: the engine of the host.
    """

    device: Device
    host: Engine

    # ------------------------------------------------------------------------------ rows against centers

    def hold(self, Z: Any) -> Any:
        """Return centers, of the host or device; they are copied to the device when first needed, and stay."""
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

    def panels(self, basis: Evaluated, X: Any, begun: Any = None) -> Iterator[tuple[slice, Array]]:
        for rows in cuts(X.shape[0], basis.row_tile):
            yield rows, basis.block(X[rows, :])

    def begin(self, basis: Evaluated, X: Any) -> Any:
        """Return None, because beginning a panel would delay a thread that already has the state."""
        return None

    def predict(self, basis: Any, X: Any, W: Array) -> Array:
        out = self.host.empty((X.shape[0], W.shape[1]), basis.dtype)
        with self.device.turn():
            rows, weights = self.device.put(X), self.device.put(W, basis.dtype)
            for part in _panels(basis, X.shape[0]):
                out[part] = self.device.take(self._product(basis, rows[part, :], weights))
        return out

    def pull(self, basis: Any, X: Any, W: Array, respond: Respond, outputs: int, begun: Any = None) -> Array:
        """Return φ(X)ᵀ respond(φ(X) W): F is copied to the host, r to the device, which sums the product."""
        if W.dtype != basis.dtype:
            return NumpyEngine.pull(cast(Any, self), basis, X, W, respond, outputs, begun)
        device, total = self.device, None
        with device.turn():
            rows, weights = device.put(X), self._shared(basis, W)
            for part in _panels(basis, X.shape[0]):
                tile = rows[part, :]
                if _narrow(basis) and max(W.shape[1], outputs) <= NARROW_OUTPUTS:
                    # Evaluating values twice without writing them is faster if a value is cheap.
                    r = device.put(respond(device.take(self._product(basis, tile, weights)), part))
                    g = device.loops.narrow(self._centers(basis)[0], tile, r, *basis.kernel.profile)
                else:
                    K = self._values(basis, tile)
                    g = K.T @ device.put(respond(device.take(K @ weights), part))
                total = g if total is None else total + g
            return self.host.zeros((basis.p, outputs), basis.dtype) if total is None else device.take(total)

    def gradients(self, expansion: Centered, X: Any, W: Array, signs: Array | None = None) -> Array:
        """Return ∇ Σ_l s_l f_l at each row, on the host; computed on the device for kernels with device loops."""
        if expansion.kernel.profile is None:
            here = expansion.at(np.asarray(expansion.Z), self.host)
            return self.host.gradients(here, self.device.take(self.device.put(X)), W, signs)
        device, kernel = self.device, expansion.kernel
        out = self.host.empty((X.shape[0], W.shape[0] and expansion.Z.shape[1]), expansion.dtype)
        with device.turn():
            Z, z_norms = self._centers(expansion)
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
        """Evaluate and factor K(Z, Z) + shift I on the device; see ``Engine.kernel_factor``.

        Raises:
            NumericalError: K(Z, Z) + shift I is not positive definite.
        """
        device, wide = self.device, expansion.at(expansion.Z.astype(np.float64))
        diagonal = self.host.diagonal(wide, wide.Z)
        with device.turn():
            A = self._values(wide, self._centers(wide)[0]) if K is None else device.put(K)
            for part in cuts(expansion.p, _SQUARE):
                square = device.take(A[part, part])
                np.fill_diagonal(square, diagonal[part] + shift)
                A[part, part] = device.put(square)
            return device.take(device.inverse_factor(A, expansion.dtype))

    def place(self, W: Any) -> Any:
        """Return W with a copy on the device, made by the first product."""
        return _Placed(W)

    def gram_product(self, W: Any, B: Array, *, lower: bool = False) -> Array:
        if not isinstance(W, _Placed):
            return self.host.gram_product(W, B, lower=lower)
        with self.device.turn():
            if W.there is None:
                W.there = self.device.put(W.W)
            right = self.device.put(B, W.W.dtype)
            return self.device.take(W.there.T @ (W.there @ right))

    def packed_product(self, W: Any, B: Array) -> Array:
        """Return Wᵀ W B with integers on the device, of which one panel at a time is converted to float32."""
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

    def _centers(self, expansion: Centered) -> tuple[Any, Any]:
        """Z and its squared norms on the device."""
        there = expansion.resident
        with there.lock:
            if there.centers is None:
                Z = self.device.put(there.Z)
                there.centers = Z, self.device.loops.row_norms(Z)
            centers: tuple[Any, Any] = there.centers
            return centers

    def _values(self, expansion: Centered, X: Any) -> Any:
        """Return k(X, Z) on the device, for rows on the device: one matrix product and one elementwise pass."""
        Z, norms = self._centers(expansion)
        if expansion.kernel.norm == 1:
            S = self.device.loops.empty((X.shape[0], expansion.p), expansion.dtype)
            self.device.loops.manhattan(X, Z, S)
        else:
            S = X @ Z.T
        expansion.kernel.apply(S, self.device.loops.row_norms(X), norms, self.device.loops)
        return S

    def _product(self, expansion: Centered, X: Any, W: Any) -> Any:
        if _narrow(expansion) and W.shape[1] <= NARROW_OUTPUTS:
            return self.device.loops.narrow(X, self._centers(expansion)[0], W, *expansion.kernel.profile)
        return self._values(expansion, X) @ W

    def _shared(self, expansion: Centered, W: Array) -> Any:
        """Return a state on the device, copied once, since all lanes of a step share the same frozen array."""
        held = expansion.resident.state
        if held[0] is not W:
            held = (W, self.device.put(W, expansion.dtype))
            expansion.resident.state = held
        return held[1]


def _as_type(array: Any, dtype: Any) -> Any:
    """Return a device array in another dtype, by its method or by the array API's function."""
    if hasattr(array, "astype"):
        return array.astype(dtype)
    return array.__array_namespace__().astype(array, dtype)


def _narrow(expansion: Centered) -> bool:
    """Return True if rows are so narrow that values are summed without being stored."""
    radial = expansion.kernel.profile is not None
    return radial and expansion.Z.shape[1] <= NARROW and expansion.dtype == np.float32


def _panels(expansion: Centered, n: int) -> list[slice]:
    return cuts(n, max(1, PANEL_BYTES // max(1, expansion.p * expansion.dtype.itemsize)))
