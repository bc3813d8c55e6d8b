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


def require_frame(header: bytes, stored: int, decoded: int) -> None:
    """Raise ValueError unless a Blosc frame is ``stored`` bytes long and ``decoded`` ones in memory, if not 0.

    The decoder trusts the lengths in a frame's header: given a truncated frame, it reads past the end of the buffer and
    returns garbage as rows.
    """
    size, length = (int.from_bytes(header[at : at + 4], "little") for at in (4, 12))
    if length != stored or stored < _HEADER:
        raise ValueError(f"{stored} bytes of a Blosc frame of {length}")
    if decoded and size != decoded:
        raise ValueError(f"a Blosc frame of {size} bytes, decoded, for a chunk of {decoded}")


def frame_bytes(array: zarr.Array[Any]) -> int | None:
    """Return the decoded bytes of stored chunks that are Blosc frames, without a checksum around them.

    0 if another codec is applied first, None for other chunks.
    """
    metadata = array.metadata.to_dict()
    codecs: list[Any] = list(cast("Iterable[Any]", metadata.get("codecs") or ()))
    last: Any = (codecs or [metadata.get("compressor")])[-1] or {}
    if array.shards is not None or last.get("name", last.get("id")) not in ("blosc", "numcodecs.blosc"):
        return None
    dtype = np.dtype(array.dtype)
    if metadata.get("filters") or len(codecs) > 2 or dtype.kind in "OT":
        return 0
    return math.prod(array.chunks) * dtype.itemsize


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
        size = math.prod(self.shape) * self.dtype.itemsize
        require_frame(bytes(frame[:_HEADER]), len(frame), size)
        copied = 2  # the flag, in byte 2, of uncompressed data
        if frame[2] & copied and len(frame) == size + _HEADER:  # incompressible: used without a copy
            rows = np.frombuffer(frame, self.dtype, offset=_HEADER).reshape(self.shape)
            return rows if rows.flags.aligned else rows.copy()
        rows = np.empty(self.shape, self.dtype)
        blosc.decompress(frame, rows)
        return rows
