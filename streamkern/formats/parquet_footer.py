"""Numbers of the column chunks in a parquet footer, read without Arrow.

Arrow's Python accessors of a column chunk and of its statistics end the process if the footer contradicts itself: no
metadata, columns that the schema does not have, a minimum of the wrong length, encrypted metadata. Arrow checks the
same where it reads rows, and raises. A footer is a struct in Thrift's compact protocol.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import numpy as np

VALUES, SIZE, PAGES, DICTIONARY, NULLS = range(5)
_FIELDS = ((3, 5), (3, 6), (3, 9), (3, 11), (3, 12, 3))  # where a column chunk states these numbers
_ABSENT = b"\x01"  # -1
_MANY = 1 << 13  # bytes of a footer from which the pattern, which takes 40 ms to compile, is used


class _Kind:
    """Kinds of values in the compact protocol."""

    BOOLS = 1, 2
    BYTE = 3
    INTEGERS = 4, 5, 6
    LONG = 6
    DOUBLE = 7
    TEXT = 8
    LISTS = 9, 10
    STRUCT = 12


class Chunks(NamedTuple):
    """What a footer states of its row groups' rows and its column chunks, ``numbers`` (row groups, columns, 5).

    These are values, decoded bytes, offset of the first data page, offset of the dictionary, and missing values; the
    last two are negative if they are not stated.
    """

    rows: tuple[int, ...]
    numbers: np.ndarray


def read_chunks(footer: bytes, columns: int) -> Chunks:
    """Return all column chunks' numbers; ValueError or IndexError if the footer contradicts itself or ends early."""
    reader, rows, found = _Reader(footer), list[bytes](), list[np.ndarray]()
    for key, kind in reader.fields():
        if (key, kind) != (4, _Kind.LISTS[0]):
            reader.value(kind)
            continue
        rows, found = [], []
        for _ in range(reader.items()[0]):
            count, chunks = b"", list[bytes]()
            for part, inside in reader.fields():
                if (part, inside) == (1, _Kind.LISTS[0]):
                    chunks = [number for _ in range(reader.items()[0]) for number in reader.chunk()]
                elif (part, inside) == (3, _Kind.LONG):
                    count = reader.value(inside)
                else:
                    reader.value(inside)
            rows.append(count)
            found.append(_decoded(chunks).reshape(columns, len(_FIELDS)))
    numbers = np.array(found, np.int64).reshape(len(found), columns, len(_FIELDS))
    lengths = _decoded(rows)
    if len(lengths) != len(numbers) or min(lengths.min(initial=0), numbers[:, :, :DICTIONARY].min(initial=0)) < 0:
        raise ValueError("a row group lacks its number of rows, or a number of a column chunk is negative")
    return Chunks(tuple(lengths.tolist()), numbers)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._match = _pattern().match if len(data) > _MANY else None

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) > 127:
            value |= (byte & 127) << shift
            shift += 7
        return value | byte << shift

    def fields(self) -> Iterator[tuple[int, int]]:
        """(number, kind) of a struct's fields; the caller reads each value."""
        key = 0
        while head := self._byte():
            if head >> 4:
                key += head >> 4
            else:
                number = self._varint()
                key = number >> 1 ^ -(number & 1)
            yield key, head & 15

    def items(self) -> tuple[int, int]:
        """(number, kind) of a list's items; the caller reads each value."""
        head = self._byte()
        return head >> 4 if head < 0xF0 else self._varint(), head & 15

    def value(self, kind: int, in_list: bool = False) -> Any:
        """A struct's values by their number, and the bytes of an integer of 64 bits; of other kinds None."""
        start = self._at
        if kind in _Kind.INTEGERS:
            while self._byte() > 127:
                pass
            return self._data[start : self._at] if kind == _Kind.LONG else None
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

    def chunk(self) -> list[bytes] | tuple[bytes, ...]:
        if self._match and (found := self._match(self._data, self._at)):
            self._at = found.end()
            return found.groups(_ABSENT)
        chunk, numbers = self.value(_Kind.STRUCT), []
        for path in _FIELDS:
            number = chunk
            for key in path:
                number = number.get(key) if isinstance(number, dict) else None
            numbers.append(number if isinstance(number, bytes) else _ABSENT)
        if _ABSENT in numbers[:DICTIONARY]:
            raise ValueError("a column chunk is encrypted, or lacks its metadata")
        return numbers


def _decoded(numbers: list[bytes]) -> np.ndarray:
    """Integers of seven bits a byte, the lowest first, doubled for their sign; shape (numbers,)."""
    data = np.frombuffer(b"".join(numbers), np.uint8)
    ends = np.flatnonzero(data < 128) + 1
    starts = np.concatenate([[0], ends])[:-1]
    place = np.arange(len(data)) - np.repeat(starts, ends - starts)
    if place.max(initial=0) > 8:
        raise ValueError("a number of more than 63 bits")
    parts = (data & 127).astype(np.int64) << 7 * place
    values = np.add.reduceat(parts, starts) if len(starts) else parts
    return values >> 1 ^ -(values & 1)


@cache
def _pattern() -> re.Pattern[bytes]:
    """Return a pattern of the column chunks that most writers make, ten times as fast as to read their values.

    It has no texts above 127 bytes, no lists of more than four items but those of numbers, and no struct in a list that
    has texts or structs: such chunks are read value by value.
    """

    def field(*kinds: int, steps: range = range(1, 16)) -> bytes:
        return b"[" + b"".join(b"\\x%02x" % (step << 4 | kind) for step in steps for kind in kinds) + b"]"

    def either(*patterns: bytes) -> bytes:
        return b"(?>" + b"|".join(patterns) + b")"

    def items(item: bytes, most: int, *kinds: int) -> bytes:
        return either(*(field(*kinds, steps=range(n, n + 1)) + b"(?:%b){%d}" % (item, n) for n in range(most + 1)))

    integer = rb"[\x80-\xff]{0,8}+[\x00-\x7f]"
    text = either(*(b"\\x%02x.{%d}" % (size, size) for size in range(128)))
    plain = either(field(*_Kind.INTEGERS) + integer, field(*_Kind.BOOLS))
    numbers = items(integer, 14, *_Kind.INTEGERS)
    flat = either(plain, field(_Kind.LISTS[0]) + numbers) + rb"*+\x00"
    parts = {
        b"int": integer,
        b"text": text,
        b"numbers": numbers,
        b"limits": either(plain, field(_Kind.TEXT) + text),
        b"rest": either(
            plain, field(_Kind.STRUCT) + flat, field(_Kind.LISTS[0]) + either(numbers, items(flat, 4, _Kind.STRUCT))
        ),
    }
    chunk = rb"""
        \x26 %(int)b                                                             # 2, offset
        \x1c                                                                     # 3, metadata:
            \x15 %(int)b                                                         # 1, type
            \x19 %(numbers)b                                                     # 2, encodings
            \x19 (?> \x18 | \x28 %(text)b | \x38 %(text)b %(text)b ) %(text)b    # 3, path
            \x15 %(int)b                                                         # 4, codec
            \x16 (%(int)b)                                                       # 5, values
            \x16 (%(int)b)                                                       # 6, decoded bytes
            \x16 %(int)b                                                         # 7, stored bytes
            \x26 (%(int)b)                                                       # 9, offset of the first data page
            (?: \x26 (%(int)b) )?+                                               # 11, offset of the dictionary
            (?: (?(4) \x1c | \x3c )                                              # 12, statistics:
                (?: (?> \x36 | \x28 %(text)b \x16 | \x18 %(text)b (?> \x26 | \x18 %(text)b \x16 ) )
                    (%(int)b) )?+                                                # 3, missing values
                %(limits)b*+ \x00
            | (?! (?(4) [\x10-\x1f] | [\x10-\x3f] ) ) )                          # no field up to 12
            %(rest)b*+ \x00
        %(rest)b*+ \x00
    """
    return re.compile(chunk % parts, re.DOTALL | re.VERBOSE)
