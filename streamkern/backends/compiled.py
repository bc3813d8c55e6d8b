"""How loops are compiled: when they are first called, once for the types listed with them, without fast-math."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numba
from numba.core import types

OPTIONS = {"cache": True, "nogil": True, "error_model": "numpy", "boundscheck": False}


class Loop:
    """A function compiled when it is first called: an import stays cheap, and no run compiles what it does not use."""

    def __init__(self, function: Callable[..., Any], signatures: list[Any]) -> None:
        self._function = function
        self._signatures = signatures
        self._lock = threading.Lock()
        self._compiled: Callable[..., Any] | None = None

    @cached_property
    def inside(self) -> Callable[..., Any]:
        """The same, to be called by another loop, with which it is compiled."""
        inside: Callable[..., Any] = numba.njit(**OPTIONS)(self._function)
        return inside

    def __call__(self, *args: Any) -> Any:
        """The function's value."""
        if self._compiled is None:
            with self._lock:
                if self._compiled is None:
                    self._compiled = numba.njit(self._signatures, **OPTIONS)(self._function)
        return self._compiled(*args)


def loop(signature: Callable[[Any], Any], *dtypes: Any) -> Callable[[Callable[..., Any]], Loop]:
    """Compile a function, when it is first called, for the signature at each dtype."""
    return lambda function: Loop(function, [signature(dtype) for dtype in dtypes])


def rows(dtype: Any, *, readonly: bool = False) -> types.Array:
    """Two-dimensional, row-strided; read-only accepts writable arrays too."""
    return types.Array(dtype, 2, "A", readonly=readonly)


def vector(dtype: Any) -> types.Array:
    """One-dimensional, contiguous, read-only."""
    return types.Array(dtype, 1, "C", readonly=True)
