"""Arrays of artifacts in one layout of zarr version 3, written and read here chunk by chunk, with Blosc alone.

zarr itself is not used, because files would decide which codecs it runs and how much memory it takes. Here every size
follows from the checked manifest and is compared with the files before they are read.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import blosc

from streamkern.errors import StorageError
from streamkern.storage.untrusted_files import read_file
from streamkern.types import Array

CHUNK_BYTES = 4 << 20
"""Bytes of an uncompressed chunk, or of one row if a row is larger."""

_HEADER = 16  # bytes of a Blosc frame's header; incompressible data grow by no more
_DTYPE = re.compile(r"\|b1|[|<][iu][1248]|<f[248]|<c(?:8|16)|<U[0-9]{1,6}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_METADATA = "zarr.json"


@dataclass(frozen=True, eq=False)
class ArtifactArray:
    """An array of an artifact, not read yet; ValueError if its description is impossible.

    Values are little-endian. A chunk has ``rows`` rows along the first axis; the last is padded with zeros. ``sums``
    are the SHA-256 of each chunk as it is stored; None while it is written. A matrix that stays on the disk has a
    ``mean_row`` (d,), float64.
    """

    place: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: int
    sums: tuple[str, ...] | None
    mean_row: Array | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __post_init__(self) -> None:
        sizes = (*self.shape, self.rows)
        whole = len(sizes) <= 33 and all(type(n) is int and 0 <= n < 1 << 50 for n in sizes) and self.rows > 0
        if not whole or self.stated_bytes >= 1 << 50:
            raise ValueError(f"its shape is {str(self.shape)[:80]}, in chunks of {str(self.rows)[:80]} rows")
        max_chunk_bytes = (1 << 31) - 1 - _HEADER  # Blosc's
        if self.chunk_bytes > max_chunk_bytes:
            raise ValueError(f"a chunk has {self.chunk_bytes:,} bytes, and no chunk has more than {max_chunk_bytes:,}")
        if self.sums is not None and len(self.sums) != self.chunks:
            raise ValueError(f"it has {self.chunks} chunks, and the manifest {len(self.sums)}")

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def stated_bytes(self) -> int:
        """Bytes for the check against memory: an axis of length 0 counts as 1."""
        return math.prod(max(1, n) for n in self.shape) * self.dtype.itemsize

    @property
    def chunks(self) -> int:
        """Number of chunks."""
        if not self.shape:
            return 1
        return -(-self.shape[0] // self.rows) if self.nbytes else 0

    @property
    def chunk_bytes(self) -> int:
        """Bytes of a decoded chunk."""
        return (self.rows if self.shape else 1) * math.prod(self.shape[1:]) * self.dtype.itemsize

    def read(self) -> Array:
        """Return the array; StorageError if a chunk is missing or damaged."""
        whole = np.empty(self.shape, self.dtype)
        for rows, tile in self.tiles():
            whole[rows] = tile
        return whole

    def tiles(self) -> Iterator[tuple[Any, Array]]:
        """Yield the chunks in order: a slice, and its rows."""
        return map(self._tile, range(self.chunks))

    def _tile(self, number: int) -> tuple[Any, Array]:
        data = np.frombuffer(self._decoded(number), self.dtype)
        if not self.shape:
            return (), data.reshape(())
        rows = slice(number * self.rows, min((number + 1) * self.rows, self.shape[0]))
        return rows, data.reshape(self.rows, *self.shape[1:])[: rows.stop - rows.start]

    def _decoded(self, number: int) -> bytearray:
        path = self.place / _key(self.shape, number)
        frame = read_inside(self.place.parent, path, _HEADER + self.chunk_bytes)
        if self.sums is not None and hashlib.sha256(frame).hexdigest() != self.sums[number]:
            raise _damaged(path, "the chunk is damaged: its checksum differs")
        decoded, block, stored = (int.from_bytes(frame[at : at + 4], "little") for at in (4, 8, 12))
        # The decoder trusts these sizes when it reads and allocates, so they are checked.
        right = len(frame) >= _HEADER and stored == len(frame) and decoded == self.chunk_bytes and 0 < block <= decoded
        if not right or frame[0] != 2 or not frame[3]:
            raise _damaged(path, f"the chunk is not a Blosc frame of {self.chunk_bytes:,} bytes")
        out = bytearray(self.chunk_bytes)
        try:
            blosc.decompress(frame, out)
        except (RuntimeError, ValueError) as error:
            raise _damaged(path, f"the chunk cannot be decoded: {error}") from error
        return out


class ArrayWriter:
    """Write one array, of booleans, numbers, or text of a fixed width, in chunks of ``rows`` rows; else TypeError."""

    def __init__(self, place: Path, shape: tuple[int, ...], dtype: np.dtype[Any], rows: int) -> None:
        dtype = dtype.newbyteorder("<")
        if not _DTYPE.fullmatch(dtype.str):
            raise TypeError(f"an array of {dtype} cannot be saved")
        self._array = ArtifactArray(place, shape, dtype, rows, None)
        self._sums: list[str] = []

    def write(self, values: Array) -> None:
        """Write the next chunk; only the last may have fewer rows than a chunk has."""
        array = self._array
        tile = np.ascontiguousarray(values, dtype=array.dtype)
        if array.shape and len(tile) < array.rows:
            tile = np.concatenate([tile, np.zeros((array.rows - len(tile), *tile.shape[1:]), array.dtype)])
        flat = tile.reshape(-1)
        frame = bytes(
            blosc.compress(flat.view(np.uint8) if flat.dtype.kind == "U" else flat, b"zstd", 1, blosc.SHUFFLE)
        )
        path = array.place / _key(array.shape, len(self._sums))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(frame)
        self._sums.append(hashlib.sha256(frame).hexdigest())

    def manifest(self) -> dict[str, Any]:
        """Write zarr's metadata of the array; return the fields that reading it needs."""
        array = self._array
        document = _document(array)
        array.place.mkdir(parents=True, exist_ok=True)
        (array.place / _METADATA).write_bytes(document)
        return {
            "shape": list(array.shape),
            "dtype": array.dtype.str,
            "rows": array.rows,
            "chunks": self._sums,
            _METADATA: hashlib.sha256(document).hexdigest(),
        }


def from_manifest(place: Path, manifest: Any) -> ArtifactArray:
    """Return the array that ``ArrayWriter.manifest`` described; ValueError if it is no such description."""
    fields = {"shape": list, "dtype": str, "rows": int, "chunks": list, _METADATA: str}
    if not isinstance(manifest, dict) or any(type(manifest.get(name)) is not kind for name, kind in fields.items()):
        raise ValueError("its manifest is incomplete")
    sums = manifest["chunks"]
    if not all(isinstance(each, str) and _SHA256.fullmatch(each) for each in sums):
        raise ValueError("a checksum of its manifest is not a SHA-256")
    array = ArtifactArray(place, tuple(manifest["shape"]), _dtype(manifest["dtype"]), manifest["rows"], tuple(sums))
    document = read_inside(place.parent, place / _METADATA, 1 << 20)
    if hashlib.sha256(document).hexdigest() != manifest[_METADATA]:
        raise ValueError(f"its {_METADATA} is damaged")
    return array


def read_inside(root: Path, path: Path, most: int) -> bytes:
    """Return a regular file's content, at most ``most`` bytes, below a directory, on a path without links."""
    try:
        for folder in itertools.takewhile(lambda folder: folder != root, path.parents):
            if folder.is_symlink():
                raise _damaged(folder, "this is a symbolic link")
        return read_file(path, most, links=False)
    except StorageError:
        raise
    except OSError as error:
        raise _damaged(path, f"the file cannot be read: {error.strerror}") from error


def _damaged(path: Path, what: str) -> StorageError:
    return StorageError(
        what, where=str(path), expected="the file that was written, a regular one", remedy="restore it from a copy"
    )


def _dtype(text: str) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"its dtype is {text!r}")
    return np.dtype(text)


def _key(shape: tuple[int, ...], number: int) -> str:
    return "/".join(["c", *([str(number)] if shape else []), *("0" for _ in shape[1:])])


def _document(array: ArtifactArray) -> bytes:
    dtype = array.dtype
    text = dtype.kind == "U"
    name = {"name": "fixed_length_utf32", "configuration": {"length_bytes": dtype.itemsize}} if text else dtype.name
    chunk = [array.rows, *(max(1, n) for n in array.shape[1:])] if array.shape else []
    shuffle = {
        "typesize": 1 if text else dtype.itemsize,
        "cname": "zstd",
        "clevel": 1,
        "shuffle": "shuffle",
        "blocksize": 0,
    }
    endian = {"configuration": {"endian": "little"}} if text or dtype.itemsize > 1 else {}
    document = {
        "shape": list(array.shape),
        "data_type": name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "" if text else False if dtype.kind == "b" else [0.0, 0.0] if dtype.kind == "c" else 0,
        "codecs": [{"name": "bytes", **endian}, {"name": "blosc", "configuration": shuffle}],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return json.dumps(document, indent=2).encode()
