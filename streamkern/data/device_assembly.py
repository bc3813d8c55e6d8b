"""Blocks with rows on a device: stored rows stay there or are copied to it; scaling and noise are computed on it."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np

from streamkern.data.augment import GaussianNoise, MixUp
from streamkern.data.dataset import Dataset
from streamkern.data.encoders import Lookup
from streamkern.data.image_augmentation import HorizontalFlip, RandomCrop, require_images
from streamkern.data.row_order import Assembly, Block, Key, RawRows
from streamkern.data.targets import as_values
from streamkern.engine.device import Change, Device
from streamkern.engine.elementwise import wide
from streamkern.gpu.cuda_source import STORED
from streamkern.types import Array, IntArray, Rows


def assembly_on_device(assembly: Assembly, device: Device | None, rest: int = 0, cache_bytes: int = 0) -> Assembly:
    """Return the assembly for a device, where rows stay if they fit ``rest`` bytes, and targets ``cache_bytes``."""
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
    """Factor and offset of each column on the device, and ones and the offset of rows that are augmented before."""

    scale: Any
    offset: Any
    one: Any
    last: Any


def _change(augmentation: Any, seed: int, loops: Any, X: Any, ids: Any, copies: Any) -> Any:
    if isinstance(augmentation, GaussianNoise):
        loops.add_noise(X, ids, copies=copies, seed=seed, sigma=augmentation.sigma)
        return X
    crop = isinstance(augmentation, RandomCrop)
    require_images(X.shape[1], augmentation)
    return loops.move_pixels(
        X, ids, copies, seed=seed, shape=augmentation.shape, padding=augmentation.padding if crop else -1,
        value=augmentation.value if crop else 0.0, probability=0.0 if crop else augmentation.probability,
    )  # fmt: skip


def _mix(bank: Any, partner: Any, share: Any, loops: Any, X: Any, ids: Any, copies: Any) -> Any:
    return loops.mix_rows(X, bank, partner, share)


def _shift(columns: _Columns, loops: Any, X: Any, ids: Any, copies: Any) -> Any:
    loops.assemble(X, None, X, scale=columns.one, offset=columns.last)
    return X


@dataclass(eq=False)
class DeviceAssembly(Assembly):
    """``Assembly`` whose blocks have their X on a device; targets and ids stay on the host.

    Noise, flips, crops and mixing are computed on the device, from the same counters as on the CPU. Other operations
    (transforms, erasing, a user's function, float64) are done on the CPU, and the finished rows are copied. If
    ``stays``, all stored rows are copied to the device once, and blocks are gathered there.
    """

    device: Device | None = field(default=None, kw_only=True)
    stays: bool = field(default=False, init=False)

    @property
    def on_device(self) -> bool:
        """True if the device makes blocks from stored rows."""
        data = self.dataset
        made = all(isinstance(each, GaussianNoise | HorizontalFlip | RandomCrop | MixUp) for each in data.augmentations)
        plain = made and not data.transforms and self.dtype == np.float32 and (self._simple or not np.any(data.origin))
        stored = data.source.dtype
        return plain and stored.name in STORED and wide(stored) == data._takes_float64

    @property
    def _simple(self) -> bool:
        """True if rows may be shifted to the center before they are augmented."""
        return all(isinstance(each, GaussianNoise) for each in self.dataset.augmentations)

    def held(self) -> Rows | None:
        if not self.stays:
            return None
        with self._lock:
            return self._held

    @cached_property
    def _held(self) -> Rows:
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
        return Rows(X, np.concatenate(y) if y else None, np.concatenate(w) if w else None)

    def build(self, raw: RawRows, index: IntArray, key: Key, where: str, lookup: Lookup | None = None) -> Block:
        assert self.device is not None
        data = self.dataset
        if not self.on_device:
            block = self._host.build(raw, index, key, where, lookup)
            return block._replace(X=self.device.put(block.X))
        ids, copies = raw.ids[index], raw.copies[index]
        held = self.held()
        rows, at = (raw.X, ids) if held is not None and raw.X is held.X else self.stored(raw.X, index)
        y = None
        if self.encoding is not None and raw.y is not None:
            y = self.encoding.encode(raw.y[index], ids, where)
        noise, then = None, list[Change]()
        for number, each in enumerate(data.augmentations):
            seed = data.seed + number
            if isinstance(each, MixUp):
                bank = self._bank(number)
                partner, share = each.partners(ids, copies, seed, bank.X.shape[0])
                if y is not None and self.encoding is not None:
                    y = each.mixed(as_values(y, self.encoding.outputs), bank, partner, share)
                then.append(partial(_mix, bank.X, partner, share))
            elif number == 0 and isinstance(each, GaussianNoise):
                noise = seed, each.sigma
            else:
                then.append(partial(_change, each, seed))
        if not self._simple and np.any(self.center):
            then.append(partial(_shift, self._columns))
        X = self.device.rows(
            rows, at, scale=self._columns.scale, offset=self._columns.offset, ids=ids, copies=copies, noise=noise,
            then=then,
        )  # fmt: skip
        return Block(X, y, ids, key, None if raw.w is None else raw.w[index] / self.mean_weight)

    @cached_property
    def _columns(self) -> _Columns:
        assert self.device is not None
        data, d = self.dataset, self.dataset.source.n_features
        number = np.float64 if data._takes_float64 else np.float32
        offset = data.shift - data.origin - self.center if self._simple else data.shift
        values = ((data.factor, number), (offset, number), (1.0, np.float32), (-np.asarray(self.center), np.float32))
        return _Columns(*(self.device.put(np.broadcast_to(np.asarray(v, t), (d,))) for v, t in values))

    @cached_property
    def _host(self) -> Assembly:
        return Assembly(**{f.name: getattr(self, f.name) for f in fields(Assembly)})

    def __getstate__(self) -> dict[str, Any]:
        made = ("_host", "_held", "_columns")
        return {name: value for name, value in super().__getstate__().items() if name not in made} | {"stays": False}
