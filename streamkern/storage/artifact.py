"""Named arrays and JSON in one directory: how models, stage results and checkpoints are kept.

A zarr v3 group with JSON attributes; reading it executes no code. It appears by one rename, complete or not at all, and
every array carries the SHA-256 of its bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec
from zarr.storage import LocalStore

from streamkern.errors import ModelFormatError, StorageError
from streamkern.storage.base import digest
from streamkern.types import Array

FORMAT = 1
_CHUNK_BYTES = 4 << 20


def save_artifact(
    path: str | os.PathLike[str], kind: str, arrays: Mapping[str, Array], metadata: dict[str, Any]
) -> None:
    """Write an artifact in place of whatever artifact is there.

    Args:
        path: a local directory.
        kind: what it is, for instance ``KernelMachine``.
        arrays: by name.
        metadata: JSON-serialisable.

    Raises:
        StorageError: the disk is full or not writable; what was there before is still there.
    """
    target = Path(path)
    staging = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    _require_replaceable(target, kind)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(staging, ignore_errors=True)
        group = zarr.create_group(LocalStore(staging))
        sums = {}
        for name, value in arrays.items():
            array: Array = np.ascontiguousarray(value).reshape(np.shape(value))
            rows = max(1, min(len(array), _CHUNK_BYTES // max(1, array[:1].nbytes))) if array.ndim else 1
            stored = group.create_array(
                name,
                shape=array.shape,
                dtype=array.dtype,
                chunks=(rows, *(max(1, n) for n in array.shape[1:])) if array.ndim else (),
                compressors=[BloscCodec(cname="zstd", clevel=1, shuffle="shuffle")],
                config={"write_empty_chunks": True},
            )
            stored[...] = array
            sums[name] = _checksum(array)
        marks: dict[str, Any] = {"format": FORMAT, "kind": kind, "sha256": sums}
        group.attrs["streamkern"] = {**marks, "metadata": metadata, "metadata_sha256": digest(metadata)}
        for folder, _, files in os.walk(staging):
            for file in files:
                _sync(Path(folder) / file)
            _sync(Path(folder))
        _swap(staging, target)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise StorageError(
            f"The {kind} could not be written: {error.strerror or error}.",
            where=str(target),
            remedy="free space or choose another place; what was there before is unchanged",
        ) from error


def load_artifact(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """Read an artifact and verify every array.

    Returns:
        arrays by name, and the metadata.

    Raises:
        StorageError: nothing is there.
        ModelFormatError: it is another kind, of a newer format, or its bytes are not what was written.
    """
    target = _present(Path(path))
    if target is None:
        raise StorageError(f"There is no {kind} here.", where=os.fspath(path), remedy="check the path")
    try:
        group = zarr.open_group(LocalStore(target, read_only=True), mode="r")
        marks: Any = group.attrs.asdict().get("streamkern")
    except Exception as error:
        raise ModelFormatError(f"This is not a {kind}.", where=str(target), expected="a zarr group") from error
    if not isinstance(marks, dict) or marks.get("kind") != kind or not isinstance(marks.get("sha256"), dict):
        raise ModelFormatError(f"This is not a {kind}.", where=str(target), remedy="check the path")
    if not isinstance(marks.get("format"), int) or marks["format"] > FORMAT:
        raise ModelFormatError(
            f"The format is {marks.get('format')!r}.",
            where=str(target),
            expected=f"at most {FORMAT}",
            remedy="read it with the version of streamkern that wrote it, or a later one",
        )
    arrays = {}
    for name, expected in marks["sha256"].items():
        try:
            node = group[name]
            assert isinstance(node, zarr.Array)
            array = np.asarray(node[...])
        except Exception as error:
            raise ModelFormatError(
                f"The array {name!r} cannot be read: {error}", where=str(target), remedy="restore it from a copy"
            ) from error
        if _checksum(array) != expected:
            raise ModelFormatError(
                f"The array {name!r} is not what was written: its checksum differs.",
                where=str(target),
                remedy="restore it from a copy",
            )
        arrays[name] = array
    metadata = marks.get("metadata")
    if not isinstance(metadata, dict) or marks.get("metadata_sha256") != digest(metadata):
        raise ModelFormatError(
            "The description is not what was written: its checksum differs.",
            where=str(target),
            remedy="restore it from a copy",
        )
    return arrays, metadata


def sha256(array: Array) -> str:
    """Hex SHA-256 of an array's bytes in C order."""
    return hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).hexdigest()


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


def _present(target: Path) -> Path | None:
    """The artifact at ``target``; or the earlier one, where a process was killed while it replaced it."""
    if target.exists():
        return target
    return next(iter(_aside(target)), None)


def _aside(target: Path) -> list[Path]:
    """Artifacts moved aside from ``target``."""
    if not target.parent.is_dir():
        return []
    names = (place for place in target.parent.iterdir() if place.name.startswith(f".{target.name}."))
    return sorted(place for place in names if place.suffix == ".old")


def _swap(staging: Path, target: Path) -> None:
    """Put ``staging`` in the place of ``target``. No system call replaces a directory that is not empty."""
    if target.exists():
        old = target.with_name(f".{target.name}.{os.getpid()}.old")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(target, old)
        try:
            os.rename(staging, target)
        except OSError:
            os.rename(old, target)
            raise
    else:
        os.rename(staging, target)
    with contextlib.suppress(OSError):  # the new one is in place; some file systems do not sync directories
        _sync(target.parent)
    for old in _aside(target):
        shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
