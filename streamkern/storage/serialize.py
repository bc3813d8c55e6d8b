"""Frozen values as JSON and arrays, and back: what a checkpoint is made of.

Only classes marked with ``record`` can come back, field by field, so that reading one executes no code of the file's.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np

from streamkern.errors import ModelFormatError
from streamkern.types import Array

C = TypeVar("C", bound=type)

_RECORDS: dict[str, type] = {}


def record(cls: C) -> C:
    """Mark a dataclass as data: numbers, text, arrays, tuples, lists and dictionaries of these, and other records."""
    assert fields(cls)
    assert cls.__name__ not in _RECORDS, cls.__name__
    _RECORDS[cls.__name__] = cls
    return cls


def pack(value: Any) -> tuple[Any, dict[str, Array]]:
    """A value as JSON, with references to arrays; and the arrays by name.

    Raises:
        TypeError: something in it is neither data nor a record.
    """
    arrays: dict[str, Array] = {}
    return _pack(value, arrays), arrays


def _pack(value: Any, arrays: dict[str, Array]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        name, array = f"a{len(arrays)}", np.asarray(value)
        # Products of the same numbers in another order of memory may differ in their last bits.
        turned = array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous
        arrays[name] = array.T if turned else array
        return {"array": name, "kind": "scalar" if isinstance(value, np.generic) else "turned" if turned else "plain"}
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return {type(value).__name__: [_pack(item, arrays) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _pack(item, arrays) for key, item in value.items()}}
    name = type(value).__name__
    if _RECORDS.get(name) is not type(value):
        raise TypeError(f"{name} is not data")
    inside = {f.name: _pack(getattr(value, f.name), arrays) for f in fields(cast(Any, value))}
    return {"record": name, "fields": inside}


def unpack(tree: Any, arrays: dict[str, Array]) -> Any:
    """The value that ``pack`` took apart.

    Raises:
        ModelFormatError: it is not what ``pack`` makes, or holds a record that this release does not know.
    """
    try:
        return _unpack(tree, arrays)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelFormatError(
            f"A kept state cannot be read: {type(error).__name__} {error}.",
            where="what an earlier run has kept",
            expected="what this release of streamkern writes",
            remedy="delete it: what it was for is computed again",
        ) from error


def _unpack(tree: Any, arrays: dict[str, Array]) -> Any:
    if not isinstance(tree, dict):
        if tree is None or isinstance(tree, bool | int | float | str):
            return tree
        raise TypeError(f"{type(tree).__name__} in place of a value")
    if "array" in tree:
        array = arrays[tree["array"]]
        return {"plain": array, "turned": array.T, "scalar": array[()] if array.ndim == 0 else None}[tree["kind"]]
    if "tuple" in tree:
        return tuple(_unpack(item, arrays) for item in tree["tuple"])
    if "list" in tree:
        return [_unpack(item, arrays) for item in tree["list"]]
    if "dict" in tree:
        return {key: _unpack(item, arrays) for key, item in tree["dict"].items()}
    return _RECORDS[tree["record"]](**{key: _unpack(item, arrays) for key, item in tree["fields"].items()})
