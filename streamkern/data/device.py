"""Blocks with rows on a device: stored rows stay there or are copied to it; scaling and noise are computed on it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from streamkern.backends.base import wide
from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.data.encoders import Lookup
from streamkern.data.stream import Assembly, Block, Held, Key, Raw
from streamkern.engine.gpu import Device
from streamkern.engine.gpu.source import STORED
from streamkern.types import Array, IntArray


def placed(assembly: Assembly, device: Device | None, rest: int = 0, cache_bytes: int = 0) -> Assembly:
    """Return the assembly with its rows on a device; the assembly itself without a device.

    Args:
        assembly: of the host.
        device: where rows are wanted, or None.
        rest: bytes of the device that stored rows may take, to stay there.
        cache_bytes: bytes of the host that their targets and weights may take.
    """
    if device is None:
        return assembly
    made = DeviceAssembly(**{f.name: getattr(assembly, f.name) for f in fields(Assembly)}, device=device)
    target = assembly.dataset.source.target
    values = 1 + (0 if target is None else target.width)
    targets = 8 * values * int(assembly.dataset.source.bounds[-1])
    made.stays = made.on_device and stored_bytes(assembly.dataset) <= rest and targets <= cache_bytes
    return made


def stored_bytes(dataset: Dataset) -> int:
    """Return the bytes of all stored rows of a data set's source."""
    source = dataset.source
    return int(source.bounds[-1]) * source.n_features * source.dtype.itemsize


class _Columns(NamedTuple):
    """Factor and offset of each column on the device."""

    scale: Any
    offset: Any


@dataclass(eq=False)
class DeviceAssembly(Assembly):
    """``Assembly`` whose blocks have their X on a device; targets and ids stay on the host.

    Noise is made on the device, from the same counters as on the CPU. Other operations (transforms, images, mixing, a
    user's function, float64) are done on the CPU, and the finished rows are copied.

    Attributes:
        stays: whether all stored rows are copied to the device once, and blocks are gathered there.
    """

    device: Device | None = field(default=None, kw_only=True)
    stays: bool = field(default=False, init=False)

    @property
    def on_device(self) -> bool:
        """True if the device makes blocks from stored rows."""
        data = self.dataset
        noises = [a for a in data.augmentations if isinstance(a, GaussianNoise)]
        plain = not data.transforms and self.dtype == np.float32 and len(noises) == len(data.augmentations)
        stored = data.source.dtype
        return plain and stored.name in STORED and wide(stored) == data.takes_float64

    def held(self) -> Held | None:
        if not self.stays:
            return None
        with self._lock:
            return self._held

    @cached_property
    def _held(self) -> Held:
        """All stored rows on the device, with their targets and weights on the host; the lock is held."""
        assert self.device is not None
        source = self.dataset.source
        bounds = source.bounds
        X = self.device.loops.empty((int(bounds[-1]), source.n_features), source.dtype)
        y: list[Array] = []
        w: list[Array] = []
        for number in range(len(bounds) - 1):
            rows = source.read_checked(number)
            with self.device.turn():
                X[int(bounds[number]) : int(bounds[number + 1]), :] = self.device.put(rows.X)
            y += [] if rows.y is None else [rows.y]
            w += [] if rows.w is None else [rows.w]
        return Held(X, np.concatenate(y) if y else None, np.concatenate(w) if w else None)

    def build(self, raw: Raw, index: IntArray, key: Key, where: str, lookup: Lookup | None = None) -> Block:
        assert self.device is not None
        data = self.dataset
        noises = [a for a in data.augmentations if isinstance(a, GaussianNoise)]
        if data.transforms or self.dtype != np.float32 or len(noises) < len(data.augmentations):
            block = self._host.build(raw, index, key, where, lookup)
            return block._replace(X=self.device.upload(block.X))
        ids, copies = raw.ids[index], raw.copies[index]
        held = self.held()
        rows, at = (raw.X, ids) if held is not None and raw.X is held.X else self.stored(raw.X, index)
        X = self.device.rows(
            rows,
            at,
            scale=self._columns.scale,
            offset=self._columns.offset,
            ids=ids,
            copies=copies,
            noises=[(data.seed + number, noise.sigma) for number, noise in enumerate(noises)],
        )
        y = None
        if self.encoding is not None and raw.y is not None:
            y = self.encoding.encode(raw.y[index], ids, where)
        return Block(X, y, ids, key, None if raw.w is None else raw.w[index] / self.mean_weight)

    @cached_property
    def _columns(self) -> _Columns:
        assert self.device is not None
        data = self.dataset
        number = np.float64 if data.takes_float64 else np.float32
        d = data.source.n_features
        offset = data.shift - data.origin - self.center
        return _Columns(*(self.device.put(np.broadcast_to(np.asarray(v, number), (d,))) for v in (data.factor, offset)))

    @cached_property
    def _host(self) -> Assembly:
        return Assembly(**{f.name: getattr(self, f.name) for f in fields(Assembly)})

    def __getstate__(self) -> dict[str, Any]:
        made = ("_host", "_held", "_columns")
        return {name: value for name, value in super().__getstate__().items() if name not in made} | {"stays": False}
