"""The contract of a Source: chunked rows at rest."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Protocol, runtime_checkable

import numpy as np

from streamkern.types import IntArray, Rows, Target


@runtime_checkable
class Source(Protocol):
    """Chunked rows at rest: random access by chunk, safe to use from many threads, picklable.

    Opening a source reads metadata only. Row ``i`` of the source is row ``i - bounds[c]`` of chunk ``c`` with
    ``bounds[c] <= i < bounds[c + 1]``; the same row has the same number under any chunking.
    """

    @property
    def bounds(self) -> IntArray:
        """Row numbers where chunks begin, and the end: shape (n_chunks + 1,), from 0 to the number of rows."""
        ...

    @property
    def n_features(self) -> int:
        """Width d of a row."""
        ...

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the d features where the format has them, else None."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """Stored dtype of the features."""
        ...

    @property
    def target(self) -> Target | None:
        """What the target is, or None."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hex digest of what identifies the rows: metadata, never a read of everything."""
        ...

    def read(self, chunk: int) -> Rows:
        """Rows of one chunk. They may be a read-only view of what is stored: copy before writing into them.

        Raises:
            IndexError: there is no such chunk.
            StorageError: the chunk is missing, truncated or corrupt; the message names file and chunk.
            DataError: the rows are not what the metadata promised.
        """
        ...

    def where(self, chunk: int) -> str:
        """The chunk in words a person can find it by: file, chunk number, rows."""
        ...


def digest(*parts: Any) -> str:
    """Hex SHA-256 of JSON-serialisable parts, in order."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
