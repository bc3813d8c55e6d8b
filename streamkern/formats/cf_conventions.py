"""Attributes of arrays by the CF conventions: packed numbers, missing values and times, decoded as xarray does."""

from __future__ import annotations

import base64
import datetime
import re
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.errors import DataError
from streamkern.types import Array

_SINCE = re.compile(r"\s*(\w+)\s+since\s+(.*)", re.IGNORECASE)
_ORIGIN = re.compile(
    r"(\d{4})-(\d{1,2})-(\d{1,2})(?:[T ]+(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.0*)?)?)?\s*(Z|UTC|[+-]00?:?00)?\s*"
)
_SECONDS = {
    "day": 86_400.0, "d": 86_400.0, "hour": 3600.0, "hr": 3600.0, "h": 3600.0, "minute": 60.0, "min": 60.0,
    "second": 1.0, "sec": 1.0, "s": 1.0, "millisecond": 1e-3, "ms": 1e-3, "microsecond": 1e-6, "us": 1e-6,
    "nanosecond": 1e-9, "ns": 1e-9,
}  # fmt: skip
_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")
_REFUSED = ("_Unsigned", "scale_factor", "add_offset", "_FillValue", "missing_value")


@dataclass(frozen=True)
class Packing:
    """How stored numbers become values: missing where they equal one of ``missing``, else times scale plus offset.

    ``unit`` is the seconds of a unit of time, None if values are not times; ``origin`` is the time 0, in seconds since
    1970. Values are floats, or datetime64[us].
    """

    missing: tuple[float, ...]
    scale: float
    offset: float
    unit: float | None
    origin: float
    dtype: np.dtype[Any]

    def values(self, stored: Array) -> Array:
        """Return the values of stored numbers, in their shape, with NaN or NaT where they are missing."""
        gaps = np.isin(stored, np.array(self.missing, dtype=stored.dtype)) if self.missing else np.zeros(1, dtype=bool)
        if stored.dtype.kind == "f":
            gaps = gaps | np.isnan(stored)
        if self.unit is None:
            made = stored.astype(self.dtype)
            if (self.scale, self.offset) != (1.0, 0.0):
                made = made * self.dtype.type(self.scale) + self.dtype.type(self.offset)
            return np.where(gaps, self.dtype.type(np.nan), made)
        numbers = np.where(gaps, 0, stored).astype(np.float64) * self.scale + self.offset
        # Microseconds since the origin, so that whole units stay whole.
        moments = np.rint(numbers * self.unit * 1e6).astype(np.int64) + round(self.origin * 1e6)
        return np.where(gaps, np.datetime64("NaT"), moments.astype("M8[us]"))

    def to_json(self) -> list[Any]:
        return [*self.missing, self.scale, self.offset, self.unit, self.origin, self.dtype.str]


def packing_of(
    attributes: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...], where: str, fill: Any = None
) -> Packing | None:
    """Return how an array is unpacked; None if attributes change nothing. ``fill`` is a missing value's number, too."""
    if dtype.kind not in "iuf":
        return None
    known = {name: _number(name, attributes[name], dtype, where) for name in _REFUSED if name in attributes}
    stated = [] if fill is None else [np.asarray(fill).item()]
    fills = [*known.get("_FillValue", ()), *known.get("missing_value", ()), *stated]
    exact = float if dtype.kind == "f" else int  # whole numbers keep all of their digits
    missing = tuple(dict.fromkeys(exact(value) for value in fills if value == value and _fits(value, dtype)))
    scale, offset = (known.get(name, (neutral,)) for name, neutral in (("scale_factor", 1.0), ("add_offset", 0.0)))
    for name, value in (("scale_factor", scale), ("add_offset", offset)):
        if len(value) != 1 or not np.isfinite(value[0]):
            raise _unfit(name, attributes[name], where, "one finite number")
    unit, origin = _times(attributes, shape, where)
    if unit is None and not missing and (scale[0], offset[0]) == (1.0, 0.0):
        return None
    made = np.dtype("M8[us]") if unit is not None else np.result_type(dtype, np.float32)
    if unit is None and (scale[0], offset[0]) != (1.0, 0.0) and dtype.kind in "iu":
        made = np.dtype(np.float64)
    return Packing(missing, scale[0], offset[0], unit, origin, made)


def _times(attributes: Mapping[str, Any], shape: tuple[int, ...], where: str) -> tuple[float | None, float]:
    """The seconds of a unit of time, None for numbers, and the origin, in seconds since 1970."""
    units = _text(attributes.get("units"))
    found = _SINCE.fullmatch(units)
    if found is None:
        return None, 0.0
    name = found[1].lower()
    seconds = _SECONDS.get(name) or _SECONDS.get(name.removesuffix("s"))
    origin = _ORIGIN.fullmatch(found[2])
    calendar = _text(attributes.get("calendar")).lower() or "standard"
    if calendar not in _CALENDARS:
        raise _unfit("calendar", calendar, where, "the Gregorian calendar")
    moment = None
    if origin is not None:
        year, month, day, hour, minute, second = (int(part or 0) for part in origin.groups()[:6])
        with suppress(ValueError):
            moment = datetime.datetime(year, month, day, hour, minute, second)
    start = datetime.datetime(1582, 10, 15)  # of the Gregorian calendar
    if seconds is None or moment is None or (calendar != "proleptic_gregorian" and moment < start):
        raise _unfit("units", units, where, "days, hours, minutes or seconds since a date in UTC, from 1582 on")
    if len(shape) != 1:
        raise _unfit("units", units, where, "times in an array of one axis")
    return seconds, (moment - datetime.datetime(1970, 1, 1)).total_seconds()


def _number(name: str, value: Any, dtype: np.dtype[Any], where: str) -> tuple[float, ...]:
    if name == "_Unsigned":
        if _text(value).lower() == "true" and dtype.kind == "i":
            raise _unfit(name, value, where, "whole numbers without a sign, stored as such")
        return ()
    try:
        text = _text(value)
        if text and name in ("_FillValue", "missing_value"):
            for read in (int, float):
                with suppress(ValueError):
                    return (read(text),)
            # as xarray writes floats to version 3 of zarr
            return tuple(struct.unpack("<d", base64.b64decode(text, validate=True)))
        numbers = np.atleast_1d(np.asarray(value)).tolist()
        return tuple(each if isinstance(each, int) else float(each) for each in numbers)
    except (TypeError, ValueError, struct.error) as error:
        raise _unfit(name, value, where, "a number") from error


def _fits(value: float, dtype: np.dtype[Any]) -> bool:
    if dtype.kind == "f":
        return True
    ends = np.iinfo(dtype)
    return (isinstance(value, int) or value.is_integer()) and ends.min <= int(value) <= ends.max


def _text(value: Any) -> str:
    value = value.item() if isinstance(value, np.ndarray) and value.size == 1 else value
    return value.decode(errors="replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""


def _unfit(name: str, value: Any, where: str, expected: str) -> DataError:
    return DataError(
        f"The attribute {name!r} is {value!r}.",
        where=where,
        expected=expected,
        remedy="decode the array when it is written, for example with xarray, or leave it out: exclude=[...]",
    )
