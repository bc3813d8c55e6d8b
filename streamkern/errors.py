"""What can go wrong, said so that a person can act on it.

Every error of this library carries four things: what was found, where (file, chunk, row or parameter), what was
expected, and what to do about it. The class fixes the exit status of the command line.
"""

from __future__ import annotations

import operator
from typing import Any, ClassVar

from streamkern.redaction import redacted


class StreamkernError(Exception):
    """Base class. ``what`` is one sentence; the keywords are optional and printed one a line, without secrets.

    Args:
        what: what was found, in one sentence.
        where: file, chunk, row or parameter it was found in.
        expected: what would have been right.
        remedy: what to do now.
    """

    exit_status: ClassVar[int] = 1

    def __init__(
        self, what: str, *, where: str | None = None, expected: str | None = None, remedy: str | None = None
    ) -> None:
        what = redacted(what)
        super().__init__(what)
        self.what = what
        self.where = redacted(where)
        self.expected = redacted(expected)
        self.remedy = redacted(remedy)

    def __str__(self) -> str:
        lines = [self.what]
        lines += [
            f"  {label}: {text}"
            for label, text in (("where", self.where), ("expected", self.expected), ("do", self.remedy))
            if text is not None
        ]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries on a cluster; the default protocol would drop the keywords.
        return _rebuild, (type(self), self.what, self.where, self.expected, self.remedy)


def _rebuild(
    kind: type[StreamkernError], what: str, where: str | None, expected: str | None, remedy: str | None
) -> StreamkernError:
    return kind(what, where=where, expected=expected, remedy=remedy)


class UsageError(StreamkernError, ValueError):
    """A parameter, setting or command that cannot be carried out as given."""

    exit_status = 2


class PlanRefusedError(UsageError):
    """The run would not fit: refused before it begins, with the parameter that would make it fit."""


def require_counts(owner: object, **least: int) -> None:
    """Fields of a dataclass, made Python ints, that are counts or None.

    Args:
        owner: the dataclass.
        least: the smallest value of each field.

    Raises:
        UsageError: a field is no whole number, or one below its smallest value.
    """
    for name, smallest in least.items():
        value = getattr(owner, name)
        if value is None:
            continue
        try:
            number = smallest - 1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = smallest - 1
        if number < smallest:
            raise UsageError(
                f"{name} is {value!r}.",
                where=f"{type(owner).__name__}({name}=...)",
                expected=f"a whole number, at least {smallest}",
            )
        object.__setattr__(owner, name, number)


class DataError(StreamkernError, ValueError):
    """Rows that cannot be used: NaN, wrong width, unknown label, empty, constant."""


class StorageError(StreamkernError, OSError):
    """Rows that cannot be read: missing, truncated, corrupt, unreachable; or a disk that cannot be written."""

    def __str__(self) -> str:  # OSError defines its own
        return StreamkernError.__str__(self)


class CorruptChunkError(StorageError):
    """A chunk that is missing, or whose bytes do not decode however often they are read."""


class ModelFormatError(StorageError):
    """A model or checkpoint that is not what it says it is."""


class NumericalError(StreamkernError, ArithmeticError):
    """The iteration left the region where its numbers mean anything: diverged, stagnated, or non-finite."""

    exit_status = 3


class BusyError(StreamkernError):
    """Another run holds the lock (EX_TEMPFAIL)."""

    exit_status = 75
