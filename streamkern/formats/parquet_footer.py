"""Numbers of the column chunks in a parquet footer, read without Arrow.

Arrow's Python accessors of a column chunk and of its statistics end the process if the footer contradicts itself: no
metadata, columns that the schema does not have, a minimum of the wrong length, encrypted metadata. Arrow checks the
same where it reads rows, and raises. A footer is a struct in Thrift's compact protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

VALUES, SIZE, PAGES, DICTIONARY, NULLS = range(5)
_FIELDS = ((3, 5), (3, 6), (3, 9), (3, 11), (3, 12, 3))  # where a column chunk states these numbers


class _Kind:
    """Kinds of values in the compact protocol."""

    BOOLS = 1, 2
    BYTE = 3
    INTEGERS = 4, 5, 6
    DOUBLE = 7
    TEXT = 8
    LISTS = 9, 10
    STRUCT = 12


class Chunks(NamedTuple):
    """What a footer states of its row groups' rows and its column chunks, ``numbers`` (row groups, columns, 5).

    These are values, decoded bytes, offset of the first data page, offset of the dictionary, and missing values; the
    last two are -1 if they are not stated.
    """

    rows: tuple[int, ...]
    numbers: np.ndarray


def read_chunks(footer: bytes, columns: int) -> Chunks:
    """Return the numbers of all column chunks; ValueError, IndexError or OverflowError if the footer is damaged."""
    reader, rows, found = _Reader(footer), list[int](), list[list[list[int]]]()
    for key, kind in reader.fields():
        if (key, kind) != (4, _Kind.LISTS[0]):
            reader.value(kind)
            continue
        rows, found = [], []
        for _ in range(reader.items()[0]):
            count, chunks = -1, list[list[int]]()
            for part, inside in reader.fields():
                if (part, inside) == (1, _Kind.LISTS[0]):
                    chunks = [_numbers(reader.value(_Kind.STRUCT)) for _ in range(reader.items()[0])]
                elif part == 3 and inside in _Kind.INTEGERS:
                    count = reader.value(inside)
                else:
                    reader.value(inside)
            rows.append(count)
            found.append(chunks)
    numbers = np.array(found, np.int64).reshape(len(found), columns, len(_FIELDS))
    if min(rows, default=0) < 0 or numbers[:, :, :DICTIONARY].min(initial=0) < 0:
        raise ValueError("a row group lacks its number of rows, or a column chunk is encrypted or lacks its metadata")
    return Chunks(tuple(rows), numbers)


def page_bytes(header: bytes) -> int:
    """Return bytes of a page, decoded and stored: fields 2 and 3 of its header; 0 if that is damaged."""
    reader = _Reader(header)
    try:
        sizes = [reader.value(kind) for _, kind in islice(reader.fields(), 3)][1:]
        return sum(sizes)
    except (IndexError, TypeError, ValueError):
        return 0


def _numbers(chunk: dict[int, Any]) -> list[int]:
    """The numbers of ``_FIELDS``; -1 for one that is not stated."""
    numbers = []
    for path in _FIELDS:
        number: Any = chunk
        for key in path:
            number = number.get(key) if isinstance(number, dict) else None
        numbers.append(number if isinstance(number, int) else -1)
    return numbers


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) > 127:
            value |= (byte & 127) << shift
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")
        return value | byte << shift

    def _integer(self) -> int:
        number = self._varint()
        return number >> 1 ^ -(number & 1)

    def fields(self) -> Iterator[tuple[int, int]]:
        """(number, kind) of a struct's fields; the caller reads each value."""
        key = 0
        while head := self._byte():
            key = key + (head >> 4) if head >> 4 else self._integer()
            yield key, head & 15

    def items(self) -> tuple[int, int]:
        """(number, kind) of a list's items; the caller reads each value."""
        head = self._byte()
        return head >> 4 if head < 0xF0 else self._varint(), head & 15

    def value(self, kind: int, in_list: bool = False) -> Any:
        """A struct's values by their number, and an integer; of other kinds None."""
        if kind in _Kind.INTEGERS:
            return self._integer()
        if kind == _Kind.STRUCT:
            return {key: self.value(inside) for key, inside in self.fields()}
        if kind in _Kind.LISTS:
            count, inside = self.items()
            for _ in range(count):
                self.value(inside, in_list=True)
        elif kind == _Kind.TEXT:
            size = self._varint()
            self._at += size
        elif kind == _Kind.DOUBLE:
            self._at += 8
        elif kind == _Kind.BYTE or (in_list and kind in _Kind.BOOLS):
            self._at += 1
        elif kind not in _Kind.BOOLS:
            raise ValueError(f"a value of the unknown kind {kind}")
        if self._at > len(self._data):
            raise IndexError("the footer ends inside a value")
        return None
