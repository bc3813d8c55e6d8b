"""Serialisation of frozen values as JSON and arrays, for checkpoints and results of stages.

Only classes marked with ``serializable`` are restored, field by field: reading executes no code from the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np

from streamkern.errors import ModelFormatError
from streamkern.storage.artifact import load_artifact, save_artifact
from streamkern.types import Array

C = TypeVar("C", bound=type)

_CLASSES: dict[str, type] = {}
_NAMES: dict[type, str] = {}  # in files


def serializable(cls: C) -> C:
    """Mark a class, whose fields hold numbers, text, arrays, containers and such classes, as data to write and read."""
    return serializable_as(cls.__name__)(cls)


def serializable_as(name: str) -> Callable[[C], C]:
    """Mark a class as ``serializable`` does, under a name that files have for it."""

    def mark(cls: C) -> C:
        assert name not in _CLASSES, name
        _CLASSES[name], _NAMES[cls] = cls, name
        return cls

    return mark


def is_valid_array(value: Any, shape: tuple[int, ...], kinds: str = "f") -> bool:
    """Return True if a restored value is an array of finite numbers with this shape and a dtype of these kinds."""
    if not isinstance(value, np.ndarray) or value.shape != shape or value.dtype.kind not in kinds:
        return False
    return not value.size or bool(np.isfinite(value.min()) and np.isfinite(value.max()))


def is_valid_number(value: Any) -> bool:
    """Return True if a restored value is a finite number."""
    return isinstance(value, int | float | np.integer | np.floating) and bool(-1e300 < value < 1e300)


def save_value(path: str | os.PathLike[str], kind: str, value: Any) -> None:
    """Write a value as an artifact of this kind."""
    tree, arrays = flatten(value)
    save_artifact(path, kind, arrays, {"value": tree})


def load_value(path: str | os.PathLike[str], kind: str) -> Any:
    """Read what ``save_value`` wrote; StorageError if absent, ModelFormatError if damaged, foreign or unknown."""
    arrays, metadata = load_artifact(path, kind)
    return unflatten(metadata.get("value"), arrays)


def flatten(value: Any) -> tuple[Any, dict[str, Array]]:
    """Return a value as JSON data with references to arrays, and these by name; TypeError for other than data."""
    arrays: dict[str, Array] = {}
    return _flatten(value, arrays), arrays


def _flatten(value: Any, arrays: dict[str, Array]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic):
        name, array = f"a{len(arrays)}", np.asarray(value)
        # Keep the memory order, since products of arrays in another order may differ in the last bits.
        turned = array.ndim == 2 and array.flags.f_contiguous and not array.flags.c_contiguous
        arrays[name] = array.T if turned else array
        return {"array": name, "kind": "scalar" if isinstance(value, np.generic) else "turned" if turned else "plain"}
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        return {type(value).__name__: [_flatten(item, arrays) for item in value]}
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _flatten(item, arrays) for key, item in value.items()}}
    if isinstance(value, dict):  # JSON keys must be text
        return {"items": [[_flatten(key, arrays), _flatten(item, arrays)] for key, item in value.items()]}
    cls = _NAMES.get(type(value))
    if cls is None:
        raise TypeError(f"{type(value).__name__} is not data")
    names = getattr(value, "_fields", None) or [f.name for f in fields(cast(Any, value))]
    inside = {name: _flatten(getattr(value, name), arrays) for name in names}
    return {"record": cls, "fields": inside}


def unflatten(tree: Any, arrays: dict[str, Array]) -> Any:
    """Return the value that ``flatten`` took apart; ModelFormatError if the tree is malformed or a class unknown."""
    try:
        return _unflatten(tree, arrays)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise ModelFormatError(
            f"A kept state cannot be read: {type(error).__name__} {error}.",
            where="a result that an earlier run has kept",
            expected="a file that this release of streamkern writes",
            remedy="delete it: its content is computed again",
        ) from error


def _unflatten(tree: Any, arrays: dict[str, Array]) -> Any:
    if not isinstance(tree, dict):
        if tree is None or isinstance(tree, bool | int | float | str):
            return tree
        raise TypeError(f"{type(tree).__name__} in place of a value")
    if "array" in tree:
        array = arrays[tree["array"]]
        return {"plain": array, "turned": array.T, "scalar": array[()] if array.ndim == 0 else None}[tree["kind"]]
    if "tuple" in tree:
        return tuple(_unflatten(item, arrays) for item in tree["tuple"])
    if "list" in tree:
        return [_unflatten(item, arrays) for item in tree["list"]]
    if "items" in tree:
        return {_unflatten(key, arrays): _unflatten(item, arrays) for key, item in tree["items"]}
    if "dict" in tree:
        return {key: _unflatten(item, arrays) for key, item in tree["dict"].items()}
    return _CLASSES[tree["record"]](**{key: _unflatten(item, arrays) for key, item in tree["fields"].items()})
