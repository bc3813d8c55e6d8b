"""Blocks with rows on a device: stored rows are copied to it; scaling and noise are computed on it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np

from streamkern.backends.device import Device
from streamkern.data.augment import GaussianNoise
from streamkern.data.encoders import Lookup
from streamkern.data.stream import Assembly, Block, Key, Raw
from streamkern.types import IntArray


def placed(assembly: Assembly, device: Device | None) -> Assembly:
    """Return the assembly with its rows on a device; the assembly itself without a device."""
    if device is None:
        return assembly
    return DeviceAssembly(**{f.name: getattr(assembly, f.name) for f in fields(Assembly)}, device=device)


@dataclass(eq=False)
class DeviceAssembly(Assembly):
    """``Assembly`` whose blocks have their X on a device; targets and ids stay on the host.

    Noise is made on the device, from the same counters as on the CPU. Other operations (transforms, images, mixing, a
    user's function, float64) are done on the CPU, and the finished rows are copied.
    """

    device: Device | None = field(default=None, kw_only=True)

    def build(self, raw: Raw, index: IntArray, key: Key, where: str, lookup: Lookup | None = None) -> Block:
        assert self.device is not None
        data = self.dataset
        noises = [a for a in data.augmentations if isinstance(a, GaussianNoise)]
        if data.transforms or self.dtype != np.float32 or len(noises) < len(data.augmentations):
            block = self._host.build(raw, index, key, where, lookup)
            return block._replace(X=self.device.upload(block.X))
        ids, copies = raw.ids[index], raw.copies[index]
        X = self.device.rows(
            *self.stored(raw.X, index),
            scale=data.factor,
            offset=data.shift - data.origin - self.center,
            ids=ids,
            copies=copies,
            noises=[(data.seed + number, noise.sigma) for number, noise in enumerate(noises)],
        )
        y = None
        if self.encoding is not None and raw.y is not None:
            y = self.encoding.encode(raw.y[index], ids, where)
        return Block(X, y, ids, key, None if raw.w is None else raw.w[index] / self.mean_weight)

    @cached_property
    def _host(self) -> Assembly:
        return Assembly(**{f.name: getattr(self, f.name) for f in fields(Assembly)})

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in super().__getstate__().items() if name != "_host"}
