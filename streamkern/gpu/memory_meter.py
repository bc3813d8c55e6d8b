"""A device for arrays without values: the engine's methods run on it, and a meter counts the device's bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import numpy as np

from streamkern.engine.abstract_array import AbstractArray, CostMeter
from streamkern.engine.base import Respond
from streamkern.engine.cost_meter import MeterEngine
from streamkern.engine.device import COLUMNS, TURNS
from streamkern.engine.quantised_factor import PANEL, PackedFactor
from streamkern.engine.reference import Engine
from streamkern.gpu.device_operations import OnDevice
from streamkern.gpu.loops import Halves, pulled_splits
from streamkern.types import Array


class _Loops:
    def __init__(self, meter: CostMeter) -> None:
        self.meter = meter

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return self.meter.array(shape, dtype)

    def row_norms(self, X: Any) -> Any:
        return self.meter.array((len(X),), X.dtype)

    def in_place(self, *arrays: Any) -> None:
        """Count nothing."""

    radial = values = manhattan = in_place

    def split_halves(self, X: Any, centers: bool) -> Halves:
        n, d = X.shape
        width = 3 * (-(-d // 8) * 8)
        return Halves(self.empty((n, width), np.uint16), *(self.empty((n,), np.float32) for _ in range(2)))

    def outputs(self, S: Any, sides: Any, W: Any, target: Any = None) -> tuple[Any, Any]:
        n = len(S)
        return self.empty((n, W.shape[1]), S.dtype), self.empty((n,), np.float64)

    def residual(self, F: Any, target: Any) -> Any:
        return self.empty((len(F),), np.float64)

    def pulled(self, S: Any, sides: Any, r: Any, into: Any = None) -> Any:
        (n, p), c = S.shape, r.shape[1]
        with self.meter.scratch(pulled_splits(n, p) * p * c * S.dtype.itemsize):
            return self.empty((p, c), S.dtype) if into is None else into

    def project(self, W: Any, p: int, tail: int, g: Any) -> Any:
        t, _ = self.outputs(W, None, g)
        return self.pulled(W, None, t)

    def moved(self, ahead: Any, before: Any, mean: Any, g: Any, *numbers: float) -> tuple[Any, Any, Any]:
        return self.empty(g.shape, g.dtype), self.empty(g.shape, g.dtype), self.empty(g.shape, np.float64)


class MeteredDevice:
    """Arrays of a device as shapes."""

    name = "meter"
    budget = 0
    splits = True

    def __init__(self, host: CostMeter, threads: int) -> None:
        self.host, self.meter = host, CostMeter()
        self.loops: Any = _Loops(self.meter)
        self.turns = min(threads, TURNS)
        self._inside = False

    def turn(self) -> AbstractContextManager[None]:
        return nullcontext()

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Count bytes of concurrent threads: the peak of one for each turn, less arrays that stay on the device."""
        if self._inside:
            yield
            return
        meter, peak, before = self.meter, self.meter.peak, self.meter.alive
        meter.peak, self._inside = before, True
        try:
            yield
        finally:
            self._inside = False
            others = self.turns - 1 if self.host.parallel else 0
            meter.peak = max(peak, meter.peak + others * (meter.peak - max(before, meter.alive)))

    @contextmanager
    def in_threads(self) -> Iterator[None]:
        """Count what is inside as computed by threads of this process."""
        before, self.host.parallel = self.host.parallel, True
        try:
            yield
        finally:
            self.host.parallel = before

    def put(self, array: Any, dtype: Any = None) -> Any:
        if isinstance(array, AbstractArray) and array.meter is self.meter:
            return array
        return self.meter.array(array.shape, array.dtype if dtype is None else dtype)

    def take(self, array: Any) -> Any:
        return self.host.array(array.shape, array.dtype)

    def half_product(self, A: Any, B: Any) -> Any:
        return self.meter.array((len(A), len(B)), np.float32)

    def number(self, parts: Any) -> float:
        return 0.0

    def inverse_factor(self, A: Any, dtype: Any) -> Any:
        """Count A's factor and the masks that CuPy clears it with; then the inverse, and columns being solved."""
        p = len(A)
        with self.meter.scratch((8 + 8 + 1) * p * p):
            pass
        with self.meter.scratch(8 * p * p + 3 * 8 * p * min(p, COLUMNS)):
            return self.meter.array((p, p), dtype)


class MeteredDeviceEngine(OnDevice, MeterEngine):
    """The meter of a run on a device, whose bytes ``device.meter.peak`` has; ``meter`` counts the host's."""

    def __init__(self, meter: CostMeter, real: Engine, slots: int, top: float) -> None:
        super().__init__(meter, real, slots, False, top)
        self.keeps_state = True
        self.host: MeterEngine = MeterEngine(meter, real, slots, False, top)
        self.device: Any = MeteredDevice(meter, slots)

    def _is_here(self, array: Any) -> bool:
        return bool(array.meter is not self.device.meter)

    def block(self, expansion: Any, X: Any, out: Any = None) -> Array:
        with self.device.at_once():
            return super().block(expansion, X, out)

    def predict(self, basis: Any, X: Any, W: Array) -> Array:
        with self.device.at_once():
            return super().predict(basis, X, W)

    def pull(self, basis: Any, X: Any, W: Array, respond: Respond, outputs: int, prepared: Any = None) -> Array:
        """Count in the weights' precision and in the values', if wider: the choice depends on data."""
        if W.dtype != basis.dtype:
            self.pull(basis, X, W.astype(basis.dtype), respond, outputs)
        with self.device.at_once():
            return cast(Array, super().pull(basis, X, W, respond, outputs, prepared))

    def values(self, basis: Any, X: Array, then: Any = None) -> Array:
        with self.device.in_threads():
            return MeterEngine.values(self, basis, X, then)

    def covariance(self, basis: Any, X: Array, V: Array) -> Array:
        with self.device.in_threads():
            return MeterEngine.covariance(self, basis, X, V)

    def packed_factor(self, expansion: Any, shift: float, lead: int) -> PackedFactor:
        """Count one panel on the device, which represents all."""
        self.block(expansion, expansion.Z[:PANEL])
        return self.host.packed_factor(expansion, shift, lead)

    def kernel_product(self, expansion: Any, V: Array) -> Array:
        with self.device.in_threads():
            self.block(expansion, expansion.Z[: expansion.row_tile])
        return self.host.kernel_product(expansion, V)
