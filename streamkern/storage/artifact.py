"""Named arrays and JSON in one directory: the storage of models, stage results and checkpoints.

A zarr v3 group with JSON attributes; reading it executes no code. It appears by one rename, complete or not at all, and
the group's attributes have the SHA-256 of every stored chunk. Checksums detect damage, not tampering: the author of an
artifact computes them. No read or allocation exceeds the sizes that the artifact declares, even if the source is
untrusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streamkern.errors import ModelFormatError, StorageError
from streamkern.memory import format_bytes, machine_memory
from streamkern.storage.artifact_arrays import (
    CHUNK_BYTES,
    ArrayWriter,
    ArtifactArray,
    from_manifest,
    read_inside,
)
from streamkern.storage.atomic_writes import keep_in_use, staged, target_or_previous
from streamkern.storage.untrusted_files import MAX_JSON_BYTES, given_path, parse_json, read_file, require_modest_json
from streamkern.storage.value_digest import array_content, digest
from streamkern.types import Array

FORMAT = 2
"""Version of the format."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")


Contents = tuple[str, Mapping[str, Any], dict[str, Any]]
"""The parts of an artifact: kind, arrays by name, and JSON-serialisable metadata.

In place of an array may stand a matrix whose ``tiles`` yields slices and their rows, in order.
"""


def save_artifact(
    path: str | os.PathLike[str],
    kind: str,
    arrays: Mapping[str, Any],
    metadata: dict[str, Any],
    members: Mapping[str, Callable[[], Contents]] | None = None,
) -> None:
    """Write an artifact, replacing an existing one; ``members`` return contents of artifacts inside, by name."""
    _require_replaceable(Path(given_path(path)), kind)
    with staged(path, folder=True, parents=True) as staging:
        for name, contents in (members or {}).items():
            (staging / name).mkdir()
            _write(staging / name, contents(), f"{path}/{name}")
        _write(staging, (kind, arrays, metadata), str(path))


def _write(folder: Path, contents: Contents, shown: str) -> None:
    kind, arrays, metadata = contents
    manifest = {name: _save(folder, name, value) for name, value in arrays.items()}
    marks = {"format": FORMAT, "kind": kind, "arrays": manifest, "metadata": metadata}
    marks["sha256"] = digest(kind, manifest, metadata)
    group = {"attributes": {"streamkern": marks}, "zarr_format": 3, "node_type": "group"}
    document = json.dumps(group, indent=1).encode()
    require_modest_json(document, shown)
    (folder / "zarr.json").write_bytes(document)


def _save(staging: Path, name: str, value: Any) -> dict[str, Any]:
    """Return the fields that reading the array needs."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"an array cannot be called {name!r}")
    if isinstance(value, np.ndarray):
        rows = max(1, min(len(value), CHUNK_BYTES // max(1, value[:1].nbytes))) if value.ndim else 1
        starts = range(0, len(value) if value.size else 0, rows) if value.ndim else [None]
        writer = ArrayWriter(staging / name, value.shape, value.dtype, rows)
        for start in starts:
            writer.write(value if start is None else value[start : start + rows])
        return writer.manifest()
    rest: ArrayWriter | None = None
    for _, tile in value.tiles():
        rest = rest or ArrayWriter(staging / name, value.shape, np.dtype(value.dtype), len(tile))
        rest.write(tile)
    rest = rest or ArrayWriter(staging / name, value.shape, np.dtype(value.dtype), 1)
    return rest.manifest()


def artifact_kind(path: str | os.PathLike[str]) -> str:
    """Return the kind that an artifact declares, or "" if it cannot be read."""
    target = target_or_previous(Path(given_path(path)))
    if target is not None:
        with contextlib.suppress(OSError, StorageError, ValueError, KeyError, TypeError):
            document = parse_json(read_inside(target, target / "zarr.json", MAX_JSON_BYTES), str(target))
            kind = document["attributes"]["streamkern"]["kind"]
            return kind if isinstance(kind, str) else ""
    return ""


def load_artifact(
    path: str | os.PathLike[str], kind: str, stay: tuple[str, str] | None = None, *, links: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read an artifact and verify every array; return arrays by name, and the metadata.

    With ``stay`` (a, b), array a stays on disk as an ``ArtifactArray`` with mean b, if there is an array b. An artifact
    inside another may not be a symbolic link (``links``). StorageError if nothing is there; ModelFormatError for
    another kind, a newer format or damage.
    """
    target, manifest, metadata = _opened(Path(given_path(path)), kind, links)
    stays = {stay[0]} if stay is not None and stay[1] in manifest else set()
    stored = {name: _described(target, name, each) for name, each in manifest.items()}
    require_machine_room(sum(array.stated_bytes for name, array in stored.items() if name not in stays), target, kind)
    arrays: dict[str, Any] = {}
    for name, array in stored.items():
        try:
            if name not in stays:
                arrays[name] = array.read()
                continue
            for _ in array.tiles():  # compares checksums
                pass
        except StorageError as error:
            raise _unreadable(target, name, error) from error
    for name in stays & stored.keys():
        assert stay is not None
        arrays[name] = replace(stored[name], mean_row=arrays[stay[1]])
        keep_in_use(target, arrays[name])
    return arrays, metadata


def _opened(path: Path, kind: str, links: bool) -> tuple[Path, dict[str, Any], dict[str, Any]]:
    target = target_or_previous(path)
    if target is None:
        raise StorageError(
            f"There is no {kind} here.", where=str(path), expected=f"the directory of a {kind}", remedy="check the path"
        )
    if not links and target.is_symlink():
        raise _damaged("This is a symbolic link.", target, f"the directory of a {kind}, inside of the model's")
    marks = _marks(target, kind)
    metadata, manifest = marks.get("metadata"), marks.get("arrays")
    right = marks.get("sha256") == digest(kind, manifest, metadata)
    if not (right and isinstance(manifest, dict) and isinstance(metadata, dict)):
        what = "The description is damaged: its checksum differs."
        raise _damaged(what, target, "the checksum it was written with")
    return target, manifest, metadata


def _marks(target: Path, kind: str) -> dict[str, Any]:
    marks: Any = None
    reason = ""
    try:
        document = parse_json(read_inside(target, target / "zarr.json", MAX_JSON_BYTES), str(target))
        marks = document["attributes"]["streamkern"]
    except StorageError as error:
        reason = f" {error.what[:1].upper()}{error.what[1:]}."
    except (ValueError, KeyError, TypeError):
        pass
    if not isinstance(marks, dict) or marks.get("kind") != kind:
        raise ModelFormatError(
            f"This is not a {kind}.{reason}",
            where=str(target),
            expected=f"a {kind} that streamkern has written: a zarr group of version 3",
            remedy="check the path",
        )
    if type(marks.get("format")) is not int or marks["format"] != FORMAT:
        raise ModelFormatError(
            f"The format is {marks.get('format')!r}.",
            where=str(target),
            expected=str(FORMAT),
            remedy="read it with the version of streamkern that wrote it",
        )
    return marks


def _described(target: Path, name: str, manifest: Any) -> ArtifactArray:
    try:
        if not _NAME.fullmatch(name):
            raise ValueError("no array is called so")
        return from_manifest(target / name, manifest)
    except (StorageError, ValueError) as error:
        raise _unreadable(target, name, error) from error


def require_machine_room(total: int, target: str | Path, kind: str) -> None:
    """Raise StorageError if the arrays are larger than the machine's memory."""
    if total > (machine := machine_memory()):
        raise StorageError(
            f"The arrays of this {kind} have {format_bytes(total)}.",
            where=str(target),
            expected=f"at most this machine's memory, {format_bytes(machine)}",
            remedy="read it on a machine with more memory; if it should be small, it is damaged",
        )


def _unreadable(target: Path, name: str, error: Exception) -> ModelFormatError:
    reason, where = (error.what, error.where) if isinstance(error, StorageError) else (error, None)
    what = f"The array {name[:200]!r} cannot be read: {reason}."
    return _damaged(what, where or target, "an array that is whole, as it was written")


def _damaged(what: str, where: str | Path, expected: str) -> ModelFormatError:
    return ModelFormatError(what, where=str(where), expected=expected, remedy="restore it from a copy")


def sha256(array: Array) -> str:
    """Hex SHA-256 of an array's bytes in C order."""
    return hashlib.sha256(array_content(array)).hexdigest()


def _require_replaceable(target: Path, kind: str) -> None:
    """Refuse to overwrite anything but an artifact, damaged or not, or an empty directory."""
    if not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir())):
        return
    with contextlib.suppress(OSError, AttributeError, TypeError):
        text = read_file(target / "zarr.json", MAX_JSON_BYTES)
        try:
            marks = parse_json(text, str(target)).get("attributes", {}).get("streamkern", {})
        except ValueError:
            return
        if "kind" in marks:
            return
    raise StorageError(
        f"This path already exists and is not a {kind}.",
        where=str(target),
        expected="nothing, or an earlier one to replace",
        remedy="choose another place, or move the existing content away",
    )
