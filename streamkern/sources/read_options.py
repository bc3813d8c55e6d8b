"""How text tables are read where their content does not say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from streamkern.errors import UsageError


@dataclass(frozen=True)
class ReadOptions:
    """Options of a text table; see ``read_options``."""

    delimiter: str | None = None
    decimal: str = "."
    encoding: str | None = None
    missing: tuple[str, ...] = ()
    skip: int = 0

    def __post_init__(self) -> None:
        for name in ("delimiter", "decimal"):
            value = getattr(self, name)
            if value is None and name == "delimiter":
                continue
            if not (isinstance(value, str) and len(value) == 1 and value.isascii()) or value in '"\r\n\0':
                raise _refused(name, value, "one ASCII character, such as ';'")
        if self.delimiter == self.decimal:
            raise _refused("delimiter", self.delimiter, "another character than decimal")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)  # LookupError for encodings of bytes, such as base64, too
            except (LookupError, TypeError, ValueError):
                raise _refused("encoding", self.encoding, "an encoding of Python, such as 'latin-1'") from None
        missing: Any = self.missing
        missing = (missing,) if isinstance(missing, str) else missing
        if not isinstance(missing, Sequence) or not all(isinstance(text, str) for text in missing):
            raise _refused("missing", self.missing, "texts, such as ['-999', 'unknown']")
        object.__setattr__(self, "missing", tuple(missing))
        if not isinstance(self.skip, int) or isinstance(self.skip, bool) or self.skip < 0:
            raise _refused("skip", self.skip, "a number of lines")


def read_options(
    *,
    delimiter: str | None = None,
    decimal: str = ".",
    encoding: str | None = None,
    missing: str | Sequence[str] = (),
    skip: int = 0,
) -> ReadOptions:
    """Return options for text tables: ``open_dataset(path, read_options=sk.read_options(decimal=","))``.

    Args:
        delimiter: character between fields. By default, the one of ``,``, tab, ``;`` and ``|`` that divides line 1 into
            the most names.
        decimal: decimal point.
        encoding: Python's name of the text encoding. By default UTF-16 if the file begins with its byte order mark,
            otherwise UTF-8.
        missing: texts or numbers that mean a missing value, in every column. An empty field is always missing; so are
            NA, NULL, NaN and the like in columns of numbers.
        skip: number of lines to skip before the names of the columns. Blank lines and comments (``# ...``) there are
            skipped in any case.

    Raises:
        UsageError: a value has the wrong type, a delimiter or decimal point is not one character, or Python has no such
            encoding.
    """
    return ReadOptions(delimiter, decimal, encoding, missing, skip)  # type: ignore[arg-type]


def given_options(options: Any) -> ReadOptions | None:
    """Return the options that a user gave, also as a dict; None for none."""
    if options is None or isinstance(options, ReadOptions):
        return options
    names = [field.name for field in fields(ReadOptions)]
    if not isinstance(options, Mapping) or not set(options) <= set(names):
        raise UsageError(
            f"read_options is {options!r}.", where="read_options", expected=f"sk.read_options({', '.join(names)})"
        )
    return ReadOptions(**options)


def _refused(name: str, value: Any, expected: str) -> UsageError:
    return UsageError(f"{name} is {value!r}.", where=f"read_options({name}=...)", expected=expected)
