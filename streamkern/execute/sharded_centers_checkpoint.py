"""Shares of a state whose centers are shared out: each kept by the worker that holds the tiles, and the steps since.

A state is a complete set of shares, and the sums of the steps that followed it. From both, any worker makes the part of
any tile again, to the same bits. So no process needs all weights while it trains, a checkpoint is written at any moment
without the workers, and other workers, or threads, may go on from it (ADR 26).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamkern.errors import ModelFormatError, StorageError
from streamkern.execute.base import KeptShares, Tile
from streamkern.storage.artifact import open_artifact, save_artifact
from streamkern.types import Array

_KIND = "Share"


def stacked_tiles(tiles: Sequence[Tile]) -> tuple[list[int], dict[str, Array]]:
    """Return the rows of each tile, and copies of their arrays, one after another."""
    rows = [len(next(iter(tile.values()))) for tile in tiles]
    return rows, {name: np.concatenate([tile[name] for tile in tiles]) for name in tiles[0]}


def write_share(folder: Path, first: int, rows: Sequence[int], arrays: Mapping[str, Array]) -> None:
    """Write a share: it is there whole or not at all.

    ``rows`` are those of each tile, and ``arrays`` those of its tiles, one after another.

    Raises:
        StorageError: the disk is full or cannot be written.
    """
    save_artifact(_place(folder, first), _KIND, arrays, {"rows": list(rows)})


def read_tiles(folder: Path, kept: KeptShares, tiles: range) -> list[Tile]:
    """Return some tiles of a set, reading no more than the chunks that they lie in.

    The tiles are contiguous.

    Raises:
        StorageError, ModelFormatError: a share is missing or damaged, or lacks a tile.
    """
    if not kept.name:
        return list(kept.tiles[tiles.start : tiles.stop])
    found: list[Tile] = []
    for first, ends, arrays in _shares(folder, kept):
        here = range(max(tiles.start, first), min(tiles.stop, first + len(ends) - 1))
        if here:
            a, b = ends[here.start - first], ends[here.stop - first]
            parts = {name: array.part(a, b) for name, array in arrays.items()}
            found += [
                {name: part[ends[i - first] - a : ends[i + 1 - first] - a] for name, part in parts.items()}
                for i in here
            ]
    if len(found) != len(tiles):
        raise _lacking(folder / kept.name, f"{len(found)} of the tiles {tiles.start} to {tiles.stop - 1}")
    return found


def require_whole(folder: Path, kept: KeptShares) -> None:
    """Check every byte of a set of shares, holding a chunk at a time.

    Raises:
        StorageError, ModelFormatError: a share is missing or damaged.
    """
    if not kept.name:
        return
    stops = []
    for first, ends, arrays in _shares(folder, kept):
        stops.append(first + len(ends) - 1)
        for array in arrays.values():
            for _ in array.tiles():
                pass
    if kept.starts[:1] != (0,) or kept.starts[1:] != tuple(stops[:-1]):
        raise _lacking(folder / kept.name, "shares whose tiles do not follow one another")


def _shares(folder: Path, kept: KeptShares) -> Iterator[tuple[int, list[int], dict[str, Any]]]:
    """The first tile of each share, the rows at which its tiles begin and the last ends, and its arrays, not read."""
    if not kept.name.startswith("shares-") or "/" in kept.name:  # which comes from a file
        raise _lacking(folder, f"a name {kept.name[:80]!r}")
    for first in kept.starts:
        place = _place(folder / kept.name, first)
        arrays, metadata = open_artifact(place, _KIND)
        rows = metadata.get("rows")
        if not isinstance(rows, list) or not rows or not all(type(each) is int and each >= 0 for each in rows):
            raise _lacking(place, "no numbers of rows")
        ends = [0, *np.cumsum(rows).tolist()]
        if any(array.shape[:1] != (ends[-1],) for array in arrays.values()):
            raise _lacking(place, "arrays of other numbers of rows")
        yield first, ends, arrays


def _place(folder: Path, first: int) -> Path:
    return folder / f"share-{first:06}"


def _lacking(place: Path, found: str) -> StorageError:
    return ModelFormatError(
        f"The shares of a checkpoint have {found}.",
        where=str(place),
        expected="the shares that workers have written",
        remedy="delete this checkpoint: an earlier one is taken",
    )
