"""Named arrays and JSON in one directory: how models, stage results and checkpoints are kept.

A zarr v3 group with JSON attributes; reading it executes no code. It appears by one rename, complete or not at all, and
every array carries the SHA-256 of its bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import zarr
from zarr.codecs import BloscCodec
from zarr.storage import LocalStore

from streamkern.errors import ModelFormatError, StorageError
from streamkern.storage.base import digest
from streamkern.storage.writer import present, staged
from streamkern.types import Array

FORMAT = 1
_CHUNK_BYTES = 4 << 20


class Rows(Protocol):
    """Rows that are read tile by tile rather than held."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        ...

    def tiles(self) -> Iterator[tuple[slice, Array]]:
        """Which rows, and the rows, in order."""
        ...


def save_artifact(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, Array | Rows], metadata: dict[str, Any]
) -> None:
    """Write an artifact in place of whatever artifact is there.

    Args:
        path: a local directory.
        kind: what it is, for instance ``KernelMachine``.
        arrays: by name; one whose tiles are read is not held.
        metadata: JSON-serialisable.

    Raises:
        StorageError: the disk is full or not writable; what was there before is still there.
    """
    _require_replaceable(Path(path), kind)
    with staged(path, folder=True, parents=True) as staging:
        group = zarr.create_group(LocalStore(staging))
        sums = {}
        for name, value in arrays.items():
            if not isinstance(value, np.ndarray):
                sums[name] = _save_rows(group, name, value)
                continue
            array: Array = np.ascontiguousarray(value).reshape(np.shape(value))
            rows = max(1, min(len(array), _CHUNK_BYTES // max(1, array[:1].nbytes))) if array.ndim else 1
            _create(group, name, array.shape, array.dtype, rows)[...] = array
            sums[name] = _checksum(array)
        marks: dict[str, Any] = {"format": FORMAT, "kind": kind, "sha256": sums}
        group.attrs["streamkern"] = {**marks, "metadata": metadata, "metadata_sha256": digest(metadata)}


def _create(group: zarr.Group, name: str, shape: tuple[int, ...], dtype: np.dtype[Any], rows: int) -> zarr.Array[Any]:
    return group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=(rows, *(max(1, n) for n in shape[1:])) if shape else (),
        compressors=[BloscCodec(cname="zstd", clevel=1, shuffle="shuffle")],
        config={"write_empty_chunks": True},
    )


def _save_rows(group: zarr.Group, name: str, value: Rows) -> str:
    """Write an array tile by tile, a chunk each; its checksum."""
    total, stored = hashlib.sha256(), None
    for rows, tile in value.tiles():
        if stored is None:
            stored = _create(group, name, value.shape, value.dtype, len(tile))
        stored[rows] = tile
        total.update(_bytes(tile))
    return digest(np.dtype(value.dtype).str, value.shape, total.hexdigest())


@dataclass(frozen=True, eq=False)
class SavedRows:
    """An array of an artifact that stays on the disk, read a chunk at a time.

    Args:
        path: the artifact.
        name: of the array.
        mean_row: mean of its rows, shape (d,), float64.
    """

    path: str
    name: str
    mean_row: Array

    @cached_property
    def _stored(self) -> zarr.Array[Any]:
        found = zarr.open_group(LocalStore(self.path, read_only=True), mode="r")[self.name]
        assert isinstance(found, zarr.Array)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "name": self.name, "mean_row": self.mean_row}

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)."""
        n, d = self._stored.shape
        return n, d

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values."""
        return np.dtype(self._stored.dtype)

    def __len__(self) -> int:
        """How many rows there are."""
        return self.shape[0]

    def tiles(self) -> Iterator[tuple[slice, Array]]:
        """Which rows, and the rows, in order."""
        size = self._stored.chunks[0]
        for start in range(0, len(self), size):
            rows = slice(start, min(start + size, len(self)))
            yield rows, np.asarray(self._stored[rows])


def load_artifact(
    path: str | os.PathLike[str], kind: str, stay: tuple[str, str] | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read an artifact and verify every array.

    Args:
        path: a local directory.
        kind: what it must be.
        stay: (a, b): where there is an array b, a stays on the disk as ``SavedRows`` whose mean is b.

    Returns:
        arrays by name, and the metadata.

    Raises:
        StorageError: nothing is there.
        ModelFormatError: it is another kind, of a newer format, or its bytes are not what was written.
    """
    target = present(Path(path))
    if target is None:
        raise StorageError(
            f"There is no {kind} here.",
            where=os.fspath(path),
            expected=f"the directory of a {kind}",
            remedy="check the path",
        )
    try:
        group = zarr.open_group(LocalStore(target, read_only=True), mode="r")
        marks: Any = group.attrs.asdict().get("streamkern")
    except Exception as error:
        raise ModelFormatError(
            f"This is not a {kind}.", where=str(target), expected="a zarr group", remedy="check the path"
        ) from error
    if not isinstance(marks, dict) or marks.get("kind") != kind or not isinstance(marks.get("sha256"), dict):
        raise ModelFormatError(
            f"This is not a {kind}.",
            where=str(target),
            expected=f"a {kind} that streamkern has written",
            remedy="check the path",
        )
    if not isinstance(marks.get("format"), int) or marks["format"] > FORMAT:
        raise ModelFormatError(
            f"The format is {marks.get('format')!r}.",
            where=str(target),
            expected=f"at most {FORMAT}",
            remedy="read it with the version of streamkern that wrote it, or a later one",
        )
    arrays: dict[str, Any] = {}
    for name, expected in marks["sha256"].items():
        stays = stay is not None and name == stay[0] and stay[1] in marks["sha256"]
        try:
            if stays:
                rows = SavedRows(str(target), name, np.empty(0))
                arrays[name], found = rows, _checksum_of_rows(rows)
            else:
                node = group[name]
                assert isinstance(node, zarr.Array)
                arrays[name] = np.asarray(node[...])
                found = _checksum(arrays[name])
        except Exception as error:
            raise ModelFormatError(
                f"The array {name!r} cannot be read: {error}",
                where=str(target),
                expected="an array that is whole",
                remedy="restore it from a copy",
            ) from error
        if found != expected:
            raise ModelFormatError(
                f"The array {name!r} is not what was written: its checksum differs.",
                where=str(target),
                expected="the checksum it was written with",
                remedy="restore it from a copy",
            )
    if stay is not None and stay[1] in arrays:
        arrays[stay[0]] = SavedRows(str(target), stay[0], arrays[stay[1]])
    metadata = marks.get("metadata")
    if not isinstance(metadata, dict) or marks.get("metadata_sha256") != digest(metadata):
        raise ModelFormatError(
            "The description is not what was written: its checksum differs.",
            where=str(target),
            expected="the checksum it was written with",
            remedy="restore it from a copy",
        )
    return arrays, metadata


def sha256(array: Array) -> str:
    """Hex SHA-256 of an array's bytes in C order."""
    return hashlib.sha256(_bytes(array)).hexdigest()


def _bytes(array: Array) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _checksum_of_rows(rows: SavedRows) -> str:
    total = hashlib.sha256()
    for _, tile in rows.tiles():
        total.update(_bytes(tile))
    return digest(rows.dtype.str, rows.shape, total.hexdigest())


def _checksum(array: Array) -> str:
    """Of bytes, dtype and shape."""
    return digest(array.dtype.str, array.shape, sha256(array))


def _require_replaceable(target: Path, kind: str) -> None:
    """Refuse to write over anything but an artifact, which may be a damaged one, or an empty directory.

    Raises:
        StorageError: there is something else.
    """
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        text = (target / "zarr.json").read_bytes()
        try:
            marks = json.loads(text).get("attributes", {}).get("streamkern", {})
        except ValueError:
            return
        if "kind" in marks:
            return
    raise StorageError(
        f"There is something here that is no {kind}.",
        where=str(target),
        expected="nothing, or an earlier one to replace",
        remedy="choose another place, or move away what is there",
    )
