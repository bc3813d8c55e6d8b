"""Search for the ends of records in a text table, and for errors in quotes.

The rules are those of Arrow's parser: a quote opens a quoted field only at the field's beginning, so that the inch mark
in ``5" pipe`` is a character; inside, quotes are doubled, and the closing quote is followed by a delimiter or line end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from streamkern.errors import DataError
from streamkern.memory import format_bytes

MAX_RECORD_BLOCKS = 4
"""Most blocks in one record. A longer record means an unclosed quote, or a file without lines."""

_QUOTE, _LINE, _LINE_ENDS = ord('"'), b"\n", b"\r\n"


def record_blocks(
    stream: BinaryIO, start: int, line: int, delimiters: bytes, block_bytes: int, path: str
) -> Iterator[tuple[int, int, bytes]]:
    """Yield (offset, line, text) of whole records, about ``block_bytes`` of text at a time, from byte ``start`` on.

    Lines count from 1. ``delimiters`` are bytes that may separate fields. DataError if a quote is not closed, or closed
    in the middle of text; for a NUL byte, or a record above ``MAX_RECORD_BLOCKS`` blocks.
    """
    stream.seek(start)
    rest, final = b"", False
    while not final:
        more = stream.read(block_bytes)
        final = not more
        text = rest + more if rest else more
        if (nul := text.find(b"\0")) >= 0:
            raise DataError(
                "the file holds a NUL byte",
                where=f"{path}, line {line + text.count(_LINE, 0, nul)}",
                expected="a text table in UTF-8, or in UTF-16 with a byte order mark",
                remedy='if it is in UTF-16, say so: read_options=sk.read_options(encoding="utf-16-le"); else it is '
                "damaged: restore it",
            )
        end, opened = last_record_end(text, delimiters, line, path)
        if final and opened is not None:
            raise _unclosed(path, line + text.count(b"\n", 0, opened), "before the end of the file")
        if len(text) - end > MAX_RECORD_BLOCKS * block_bytes:
            size = format_bytes(len(text) - end)
            if opened is not None:
                raise _unclosed(path, line + text.count(b"\n", 0, opened), f"within {size}")
            raise DataError(
                f"a record is longer than {size}",
                where=f"{path}, line {line + text.count(_LINE, 0, end)}",
                expected=f"records of at most {format_bytes(MAX_RECORD_BLOCKS * block_bytes)}, a line each",
                remedy="check that lines end in a line feed; or store the table as parquet, or give more memory",
            )
        end = len(text) if final else end
        if end:
            yield start, line, text[:end]
            start += end
            line += text.count(b"\n", 0, end)
        rest = text[end:]


def last_record_end(text: bytes, delimiters: bytes, line: int, path: str) -> tuple[int, int | None]:
    """Return the end of a text's last whole record, or 0; and the position of an unclosed quote, or None."""
    if b'"' not in text:
        return text.rfind(b"\n") + 1, None
    values = np.frombuffer(text, dtype=np.uint8)
    quotes = np.flatnonzero(values == _QUOTE)
    if not _is_regular(values, quotes, delimiters):
        return _last_end_one_by_one(text, delimiters, line, path)
    lines = np.flatnonzero(values == ord("\n"))
    ends = lines[np.searchsorted(quotes, lines) % 2 == 0]
    return int(ends[-1]) + 1 if len(ends) else 0, int(quotes[-1]) if len(quotes) % 2 else None


def _is_regular(values: np.ndarray, quotes: np.ndarray, delimiters: bytes) -> bool:
    """True if quotes alternately open and close fields, so that counting them is enough."""
    around = np.zeros(256, dtype=bool)
    around[list(delimiters + _LINE_ENDS)] = True
    adjacent = np.diff(quotes) == 1
    opening, closing = quotes[::2], quotes[1::2]
    opens = (opening == 0) | around[values[opening - 1]]
    opens[1:] |= adjacent[1::2][: len(opens) - 1]
    closes = (closing == len(values) - 1) | around[values[np.minimum(closing + 1, len(values) - 1)]]
    doubled = adjacent[1::2]
    closes[: len(doubled)] |= doubled
    return bool(opens.all() and closes.all())


def _last_end_one_by_one(text: bytes, delimiters: bytes, line: int, path: str) -> tuple[int, int | None]:
    between = delimiters + _LINE_ENDS
    opening = re.compile(rb"(?:\A|(?<=[" + re.escape(between) + rb']))"')
    end = at = 0
    while (found := opening.search(text, at)) is not None:
        begin = found.start()
        end = max(end, text.rfind(b"\n", at, begin) + 1)
        close = text.find(b'"', begin + 1)
        while close >= 0 and text[close + 1 : close + 2] == b'"':
            close = text.find(b'"', close + 2)
        if close < 0:
            return end, begin
        at = close + 1
        after = text[at : at + 1]
        if after and after not in between:
            one, other = (line + text.count(b"\n", 0, place) for place in (begin, close))
            more = "" if one == other else f", in line {other}"
            raise DataError(
                f"the quote that opens here is closed in the middle of text{more}: "
                + repr(text[max(begin, close - 20) : close + 10].decode(errors="replace")),
                where=f"{path}, line {one}",
                expected="a quoted field whose closing quote is followed by a delimiter or a line end",
                remedy='close the field in its own line; write a quote inside a quoted field as ""',
            )
    return max(end, text.rfind(b"\n", at) + 1), None


def first_record_end(text: bytes, delimiters: bytes, path: str) -> int:
    """Return the end of the first record of a text: after a line end outside quotes, else the end of the text."""
    end = 0
    while (found := text.find(b"\n", end)) >= 0:
        end = found + 1
        if last_record_end(text[:end], delimiters, 1, path)[0] == end:
            return end
    return len(text)


def _unclosed(path: str, line: int, within: str) -> DataError:
    return DataError(
        f"the quote that opens here is not closed {within}",
        where=f"{path}, line {line}",
        expected="a closing quote, followed by a delimiter or a line end",
        remedy='close the field in its own line; write a quote inside a quoted field as ""',
    )
