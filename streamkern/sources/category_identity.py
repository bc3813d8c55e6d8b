"""Categories as values: one text and one code for each, whatever the type or the spelling that stores it.

``101``, ``101.0``, ``"101"`` and ``"101.0"`` are one category, and so are a date and its text in ISO 8601. A text that
no type would print is itself: ``"0101"``, ``"1e5"``, ``" x "``.
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal

import numpy as np

from streamkern.sources.arrow import pa, pc
from streamkern.sources.input_types import DAY
from streamkern.sources.schema import number_of
from streamkern.types import Array

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}

_WHOLE = 1 << 53  # float64 holds every whole number up to here
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?(e[+-]\d{1,3})?")
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d:\d\d)(?::(\d\d)(\.\d{1,9})?)?(?: ?(Z|UTC|[+-]\d\d:?\d\d))?)?")
_CLOCK = re.compile(r"(?:(-?\d{1,6}) days?,? \+?)?(\d{1,2}):(\d\d)(?::(\d\d)(\.\d{1,9})?)?")
_DURATION = re.compile(r"P(-?\d{1,6})DT(\d{1,2})H(\d{1,2})M(\d{1,2})(\.\d{1,9})?S")
_TRUTH = {"true": "True", "false": "False"}


def canonical_text(text: str) -> str:
    """Return the text of a category's value: a number, a truth value, a date or a time in one spelling of many."""
    longest = 80  # characters of a text that may be a number or a date
    if len(text) > longest:
        return text
    stripped = text.strip()
    if (truth := _TRUTH.get(stripped.lower())) is not None:
        return truth
    if stripped[:1].isdigit() or stripped[:1] in ("-", "P"):
        if _NUMBER.fullmatch(stripped):
            return _number(Decimal(stripped))
        if (date := _DATE.fullmatch(stripped)) is not None:
            return _date(date) or text
        if (clock := _CLOCK.fullmatch(stripped) or _DURATION.fullmatch(stripped)) is not None:
            days, hours, minutes, seconds, fraction = clock.groups()
            whole = int(days or 0) * DAY + int(hours) * 3600 + int(minutes) * 60 + int(seconds or 0)
            return _clock(whole * 10**9 + _nanoseconds(fraction))
    return text


def code_of(text: str, coded: bool) -> float:
    """Return the number of a canonical text; ``coded`` numbers, of a column of texts, get codes as texts do."""
    if not coded and text in ("True", "False"):
        return float(text == "True")
    if not coded and (_NUMBER.fullmatch(text) or text in ("inf", "-inf")):
        number = float(text)
        if np.isinf(number) or (abs(number) <= _WHOLE and Decimal(repr(number)) == Decimal(text)):
            return number
    return number_of(text)


def are_codes(values: pa.ChunkedArray) -> bool:
    """Return True if numbers are their own codes: whole, and none beyond 2⁵³."""
    kind = values.type
    if pa.types.is_float64(kind):
        numbers = values.to_numpy()
        if not ((numbers == np.rint(numbers)) | np.isnan(numbers)).all():
            return False
    elif not pa.types.is_integer(kind):
        return False
    ends = pc.min_max(values)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    return low is None or bool(low >= -_WHOLE and high <= _WHOLE)


def texts_of(values: pa.Array) -> list[str | None]:
    """Return the canonical texts of values of any type; None for a missing value and for an empty text."""
    kind, is_type = values.type, pa.types
    if is_type.is_floating(kind):
        numbers = np.asarray(values.to_numpy(zero_copy_only=False))
        # The shortest digits of float32 are those of the text that it was read from.
        return [None if np.isnan(x) else canonical_text(str(x)) for x in numbers]
    if is_type.is_timestamp(kind):
        return [None if n is None else _moment(n, UNITS[kind.unit]) for n in values.cast(pa.int64()).to_pylist()]
    if is_type.is_date(kind):
        return [None if day is None else day.isoformat() for day in values.cast(pa.date32()).to_pylist()]
    if is_type.is_time(kind) or is_type.is_duration(kind):
        whole = values.cast(pa.int64() if kind.bit_width == 64 else pa.int32()).to_pylist()
        return [None if n is None else _clock(n * (10**9 // UNITS[kind.unit])) for n in whole]
    if is_type.is_decimal(kind):
        return [None if value is None else _number(value) for value in values.to_pylist()]
    return [None if value is None or value == "" else canonical_text(str(value)) for value in values.to_pylist()]


def _number(value: Decimal) -> str:
    """Use the fewest digits, and float32's for its numbers: 0.1 of float32 is 0.10000000149011612 in float64."""
    if value == value.to_integral_value() and value.adjusted() < 400:
        return str(int(value))
    number = float(value)
    if Decimal(repr(number)) != value:
        return format(value, "f").rstrip("0")
    with np.errstate(over="ignore", under="ignore"):
        single = np.float32(number)
    return str(single) if float(single) == number else repr(number)


def _date(found: re.Match[str]) -> str | None:
    day, minutes, seconds, fraction, zone = found.groups()
    try:
        moment = datetime.datetime.fromisoformat(f"{day} {minutes or '00:00'}:{seconds or '00'}")
        if zone not in (None, "Z", "UTC"):
            away = datetime.timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]))
            moment = moment - away if zone[0] == "+" else moment + away
    except (ValueError, OverflowError):
        return None
    since = moment - datetime.datetime(1970, 1, 1)
    return _moment((since.days * DAY + since.seconds) * 10**9 + _nanoseconds(fraction), 10**9)


def _moment(since_1970: int, units: int) -> str:
    """A time in UTC as pandas writes it; a midnight as the day."""
    seconds, rest = divmod(since_1970, units)
    text = str(np.datetime64(seconds, "s")).replace("T", " ").removesuffix(" 00:00:00")
    if not rest:
        return text
    return f"{text if ' ' in text else text + ' 00:00:00'}{_fraction(rest * (10**9 // units))}"


def _clock(nanoseconds: int) -> str:
    days, rest = divmod(nanoseconds, DAY * 10**9)
    seconds, fraction = divmod(rest, 10**9)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{_fraction(fraction)}"
    return f"{days} days {clock}" if days else clock


def _nanoseconds(fraction: str | None) -> int:
    return int((fraction or ".0")[1:].ljust(9, "0"))


def _fraction(nanoseconds: int) -> str:
    return f".{nanoseconds:09}".rstrip("0") if nanoseconds else ""


def codes_of(texts: list[str | None], coded: bool, words: dict[float, str] | None) -> Array:
    """Return codes (n,) of canonical texts, NaN for None; add 10,000 texts of 2**20 letters in all to ``words``."""
    numbers = np.array([np.nan if text is None else code_of(text, coded) for text in texts], dtype=np.float64)
    most, max_letters = 10_000, 1 << 20  # of a column, for messages and names of features
    if words is not None and len(words) < most:
        room = max_letters - sum(map(len, tuple(words.values())))  # another thread may add some
        for number, text in zip(numbers[:most].tolist(), texts, strict=False):
            # A number needs no word besides its code in a column of numbers.
            if text is None or number in words or not (coded or _NUMBER.fullmatch(text) is None):
                continue
            if (room := room - len(text)) < 0:
                break
            words[number] = text
    return numbers
