"""Search for corrupt chunks, before the other chunks are used."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from typing import NamedTuple

from streamkern.errors import CorruptChunkError
from streamkern.sources.base import Source


class Quarantined(NamedTuple):
    """A range of rows that are excluded because their chunk is corrupt.

    Attributes:
        start: id of the first row.
        stop: id of the last row + 1.
        where: description of the chunk.
        why: the error in reading the chunk.
    """

    start: int
    stop: int
    where: str
    why: str


def corrupt_chunks(source: Source) -> tuple[Quarantined, ...]:
    """Read every chunk once and return the corrupt ones, in ascending order of rows."""
    threads = 4  # threads, one chunk each: reading waits for the disk or network more than for the processor
    with ThreadPoolExecutor(threads, thread_name_prefix="streamkern-verify") as pool:
        found = pool.map(_read, repeat(source), range(len(source.bounds) - 1))
        return tuple(each for each in found if each is not None)


def joined_ranges(found: Iterable[Sequence[Quarantined]]) -> tuple[Quarantined, ...]:
    """Return the corrupt chunks of several sources of the same rows, ascending; those that overlap are one."""
    joined: list[Quarantined] = []
    for each in sorted(chain.from_iterable(found)):
        if joined and each.start < joined[-1].stop:
            joined[-1] = joined[-1]._replace(stop=max(each.stop, joined[-1].stop))
        else:
            joined.append(each)
    return tuple(joined)


def _read(source: Source, chunk: int) -> Quarantined | None:
    try:
        source.read(chunk)
    except CorruptChunkError as error:
        start, stop = source.bounds[chunk : chunk + 2].tolist()
        return Quarantined(start, stop, source.where(chunk), error.what)
    return None
