"""Errors: each names the finding, its place, the values accepted and the remedy; its class fixes the exit status."""

from __future__ import annotations

import math
import operator
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from reprlib import Repr
from typing import Any, ClassVar, Literal, Union, get_args, get_origin

import numpy as np

from streamkern.redaction import redacted

_SHORTENED = Repr()
_SHORTENED.maxlist = _SHORTENED.maxtuple = _SHORTENED.maxdict = 20
_SHORTENED.maxstring = _SHORTENED.maxother = _SHORTENED.maxlong = 1 << 30  # ``redacted`` misses half a secret


def quoted(value: object) -> str:
    """Return a value as text for a message, with its first 20 elements at most: it may be a long list."""
    return _SHORTENED.repr(value)


class StreamkernError(Exception):
    """Base class of the library's errors. The message has a line for each given argument.

    Secrets, such as passwords in URLs, are replaced by ``***``.

    Args:
        what: the problem that was found, in one sentence.
        where: file, chunk, row or parameter of the problem.
        expected: the accepted values.
        remedy: the next step for the user.
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


_INSIDE = ("streamkern", "sklearn", "joblib")


def warn(message: str) -> None:
    """Issue a UserWarning at the line of the first caller outside this library, scikit-learn and joblib."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INSIDE:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


class UsageError(StreamkernError, ValueError):
    """A parameter, setting or command is not valid."""

    exit_status = 2


class UnlikeChampionError(UsageError):
    """The champion, which is the version that a registry has in use, cannot be updated with these rows.

    This was found only when the rows were read.
    """


class PlanRefusedError(UsageError):
    """The run would exceed its memory limit, so it does not begin. The message has a remedy."""


class PrecisionError(PlanRefusedError):
    """The dtype cannot represent the kernel on these rows. Training is refused; the message has a remedy."""


def require_types(owner: Any, *names: str) -> None:
    """Check that fields of a dataclass, by default all, have their declared types; convert NumPy's numbers to Python's.

    A whole number is accepted for a float, and a list for a tuple. NaN is refused; so are True and False for numbers.
    """
    for name, kind in _declared(type(owner)).items():  # type: ignore[arg-type]
        value = getattr(owner, name)
        if names and name not in names:
            continue
        options = options_of(kind)
        if not any(_fits(value, option) for option in options):
            raise UsageError(
                f"{name} is {value!r}.",
                where=f"{type(owner).__name__}({name}=...)",
                expected=" or ".join(dict.fromkeys(map(_in_words, options))),
            )
        if isinstance(value, np.generic):
            object.__setattr__(owner, name, value.item())


def require_step(solver: Any) -> None:
    """Check that the step of a solver is None, or a positive finite number."""
    if solver.step is not None and not (math.isfinite(solver.step) and solver.step > 0):
        where = f"{type(solver).__name__}(step=...)"
        raise UsageError(f"The step is {solver.step}.", where=where, expected="a positive number")


def require_ridge(solver: Any) -> None:
    """Check that the ridge of a solver is a finite number >= 0."""
    ridge = solver.ridge
    real = isinstance(ridge, int | float | np.integer | np.floating) and not isinstance(ridge, bool)
    if not (real and math.isfinite(ridge) and ridge >= 0):
        where = f"{type(solver).__name__}(ridge=...)"
        raise UsageError(f"The ridge is {ridge!r}.", where=where, expected="a finite number >= 0")


def require_finite(owner: Any) -> None:
    """Raise UsageError unless the ``value`` of a preprocessing step or an augmentation is a finite number."""
    if not math.isfinite(owner.value):
        where = f"{type(owner).__name__}(value=...)"
        raise UsageError(f"value is {owner.value}.", where=where, expected="a finite number")


def require_counts(owner: object, **least: int) -> None:
    """Check the types of all fields of a dataclass, and that named ones are None or integers >= the given values."""
    require_types(owner)
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
    """Rows cannot be used: they have NaN, the wrong width or an unknown label, or there are no rows."""


class StorageError(StreamkernError, OSError):
    """Rows cannot be read, because they are missing, truncated, corrupt or unreachable; or a disk cannot be written."""

    def __str__(self) -> str:  # OSError defines its own
        return StreamkernError.__str__(self)


class CorruptChunkError(StorageError):
    """A chunk is missing, or its bytes cannot be decoded after repeated reads."""


class ModelFormatError(StorageError):
    """A model or checkpoint is damaged, or does not have the format that it states."""


class NumericalError(StreamkernError, ArithmeticError):
    """The iteration diverged, stagnated, or produced numbers that are not finite."""

    exit_status = 3


class MemoryLimitError(StreamkernError, MemoryError):
    """The process exceeded its memory limit, or the system refused to allocate memory."""

    def __str__(self) -> str:
        return StreamkernError.__str__(self)


class BusyError(StreamkernError):
    """Another process has locked a run directory, a registry or an output (exit status EX_TEMPFAIL)."""

    exit_status = 75


# ---------------------------------------------------------------------------------- declared types of parameters

_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    str: "text",
    tuple: "a tuple",
    Callable: "a function",
    Mapping: "a dictionary",
    type(None): "None",
}


@cache
def _declared(owner: type) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(owner)
    except (NameError, TypeError):
        return {}
    return {name: hints[name] for name in getattr(owner, "__dataclass_fields__", {}) if name in hints}


def options_of(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def _fits(value: Any, kind: Any) -> bool:
    origin = get_origin(kind) or kind
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is bool:
        return isinstance(value, bool | np.bool_)
    if kind is int:
        return hasattr(value, "__index__") and not isinstance(value, bool | np.bool_ | np.ndarray)
    if kind is float:
        real = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        return real and not math.isnan(value)
    if origin is tuple:
        return isinstance(value, tuple | list)
    if origin is Callable or origin is typing.get_origin(Callable[[], Any]):
        return callable(value)
    if not isinstance(origin, type) or origin in (Any, np.ndarray) or getattr(origin, "_is_protocol", False):
        return True  # the caller checks its methods
    return isinstance(value, origin)


def _in_words(kind: Any) -> str:
    origin = get_origin(kind) or kind
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(kind))
    for known, words in _WORDS.items():
        if origin is (get_origin(known) or known):
            return words
    return f"a {origin.__name__}" if isinstance(origin, type) else str(origin)
