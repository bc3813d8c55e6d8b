"""Decoding of whole chunks in `write_zarr`'s layout, without the copies of zarr's pipeline."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import zarr
from numcodecs import blosc
from numcodecs.checksum32 import CRC32C

from streamkern.types import Array

_CODECS = (["bytes", "blosc"], ["bytes", "blosc", "crc32c"])
_HEADER = 16  # bytes before the data of a Blosc frame


@dataclass(frozen=True)
class WholeChunks:
    """Chunks of whole rows, each one Blosc frame of little-endian numbers, followed by a CRC-32C if ``checksum``."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    checksum: bool

    @classmethod
    def of(cls, array: zarr.Array[Any]) -> WholeChunks | None:
        """Return the decoder of an array's chunks; None for other layouts, which zarr decodes."""
        metadata = array.metadata.to_dict()
        codecs: list[Any] = list(cast("Iterable[Any]", metadata.get("codecs") or ()))
        dtype, names = np.dtype(array.dtype), [codec["name"] for codec in codecs]
        if names not in _CODECS or dtype.kind not in "biuf" or dtype.newbyteorder("<") != dtype:
            return None
        order = codecs[0].get("configuration", {}).get("endian", "little")
        if order != "little" or array.shards is not None or array.chunks[1:] != array.shape[1:]:
            return None
        return cls(array.chunks, dtype, len(names) == 3)

    def decoded(self, stored: Any) -> Array:
        """Return a stored chunk's rows; ValueError if its sizes do not fit, RuntimeError if it does not decode."""
        frame = memoryview(CRC32C(location="end").decode(stored) if self.checksum else stored)
        expected = math.prod(self.shape) * self.dtype.itemsize
        size, length = (int.from_bytes(bytes(frame[at : at + 4]), "little") for at in (4, 12))
        if length != len(frame) or size != expected:
            raise ValueError(f"a Blosc frame of {length} bytes for {size}, in a chunk of {len(frame)} for {expected}")
        copied = 2  # the flag, in byte 2, of uncompressed data
        if frame[2] & copied and length == size + _HEADER:  # incompressible: used without a copy
            rows = np.frombuffer(frame, self.dtype, offset=_HEADER).reshape(self.shape)
            return rows if rows.flags.aligned else rows.copy()
        rows = np.empty(self.shape, self.dtype)
        blosc.decompress(frame, rows)
        return rows
