"""Compilation of loops without fast-math, when they are first called with a dtype."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import numba
import numpy as np
from numba.core import types
from numba.core.sigutils import normalize_signature
from numba.np.numpy_support import as_dtype

from streamkern.cpu.code_files import OWN, StoredCode, code_folder, find_code, user_root, write_code
from streamkern.errors import StorageError
from streamkern.startup import paused_collector
from streamkern.storage.atomic_writes import write_lock

OPTIONS = {"nogil": True, "error_model": "numpy", "boundscheck": False}

COMPILING = (
    "compiling kernels for this processor, once: this run takes some ten seconds longer "
    "(`streamkern doctor --compile` does it ahead)\n"
)
"""What the first process that compiles writes to standard error."""

_NO_CACHE = (
    "Compiled code cannot be cached, so every process compiles again for some ten seconds: the user's cache directory "
    "cannot be written. Set NUMBA_CACHE_DIR to a writable one."
)


@cache
def _announce(can_be_cached: bool = True) -> None:
    """Say once in a process that it compiles."""
    if not can_be_cached:
        warnings.warn(_NO_CACHE, stacklevel=2)
    elif sys.stderr is not None:
        with suppress(OSError, ValueError):  # a closed stream
            sys.stderr.write(COMPILING)
            sys.stderr.flush()


LOOPS: dict[str, Loop] = {}
"""Loops of the modules that are imported, by ``module.function``."""


class Loop:
    """A compiled function: a run compiles only the loops that it calls, for the dtypes that it calls them with."""

    def __init__(self, function: Callable[..., Any], signatures: dict[np.dtype[Any], Any]) -> None:
        self.name = f"{function.__module__}.{function.__name__}"
        self._function = function
        self._signatures = signatures
        self._lock = threading.Lock()
        self._compiled: dict[np.dtype[Any], Callable[..., Any]] = {}

    @cached_property
    def inside(self) -> Any:
        """The function for calls from other loops; conversion to the listed types compiles it once for all callers."""
        inside = numba.njit(**OPTIONS)(self._function)
        compiled = inside.compile

        def listed(signature: Any) -> Any:
            arguments, _ = normalize_signature(signature)
            return compiled(self._signatures[as_dtype(arguments[0].dtype)])

        inside.compile = listed
        return inside

    def __call__(self, *args: Any) -> Any:
        compiled = self._compiled.get(args[0].dtype)
        if compiled is None:
            compiled = self.load(args[0].dtype)
        return compiled(*args)

    def load(self, dtype: np.dtype[Any]) -> Callable[..., Any]:
        """Return the code for a dtype: from a file, or compiled now."""
        with self._lock:
            compiled = self._compiled.get(dtype)
            if compiled is None:
                compiled = self._compiled[dtype] = self._compile(dtype)
        return compiled

    def is_compiled(self, dtype: Any) -> bool:
        """Return True if a call with this dtype compiles nothing: code is loaded, or in a file."""
        dtype = np.dtype(dtype)
        return dtype in self._compiled or find_code(self.code_name(dtype)) is not None

    @property
    def dtypes(self) -> list[np.dtype[Any]]:
        """Types for which the loop has been called."""
        return list(self._compiled)

    def code_name(self, dtype: np.dtype[Any]) -> str:
        """Name of the file with the code for a dtype."""
        return f"{self.name}-{dtype.name}"

    def compile_to(self, path: Path, dtype: np.dtype[Any]) -> None:
        """Compile for a dtype and write the code to a file."""
        signature = self._signatures[dtype]
        self.inside.compile(signature)  # once for this file, and for the loops that call it
        write_code(path, self.inside.get_compile_result(signature))

    def _compile(self, dtype: np.dtype[Any]) -> Callable[..., Any]:
        signature, path = self._signatures[dtype], find_code(self.code_name(dtype))
        return (path and self._read(path, signature)) or self._written(dtype) or self._kept_in_memory(signature)

    def _read(self, path: Path, signature: Any) -> Callable[..., Any] | None:
        dispatcher = numba.njit(**OPTIONS)(self._function)
        dispatcher._cache = StoredCode(path)
        try:
            with paused_collector():
                dispatcher.compile(signature)
        except Exception:  # damaged, or written by a build that differs in more than the folder's name says
            return None
        dispatcher.disable_compile()
        for overload in dispatcher.overloads.values():
            overload.library._shared_module = None  # bitcode for callers among compiled functions: they call ``inside``
        return cast("Callable[..., Any]", dispatcher)

    def _written(self, dtype: np.dtype[Any]) -> Callable[..., Any] | None:
        """Compile to the user's cache, one process at a time; None if it cannot be written."""
        path = code_folder(OWN, user_root()) / self.code_name(dtype)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with write_lock(path.with_name(f"{path.name}-compiling")):
                found = self._read(path, self._signatures[dtype]) if path.exists() else None
                if found is None:
                    _announce()
                    self.compile_to(path, dtype)
        except (OSError, StorageError):
            return None
        return found or self._read(path, self._signatures[dtype])

    def _kept_in_memory(self, signature: Any) -> Callable[..., Any]:
        _announce(can_be_cached=False)
        self.inside.compile(signature)
        return cast("Callable[..., Any]", self.inside)


def loop(signature: Callable[[Any], Any], *dtypes: Any) -> Callable[[Callable[..., Any]], Loop]:
    """Return a decorator that compiles a function for the dtype of its first argument, at the first call with it."""

    def registered(function: Callable[..., Any]) -> Loop:
        made = Loop(function, {as_dtype(dtype): signature(dtype) for dtype in dtypes})
        LOOPS[made.name] = made
        return made

    return registered


def rows(dtype: Any, *, readonly: bool = False) -> types.Array:
    """Return the type of a two-dimensional, row-strided array; read-only types accept writable arrays, too."""
    return types.Array(dtype, 2, "A", readonly=readonly)


def vector(dtype: Any) -> types.Array:
    """Return the type of a one-dimensional, contiguous, read-only array."""
    return types.Array(dtype, 1, "C", readonly=True)


@numba.njit(**OPTIONS)
def copy(source: Any, out: Any) -> None:
    """Copy numbers to the front of ``out``; Numba takes seconds to compile an assignment of an array to a slice."""
    for i in range(source.shape[0]):
        out[i] = source[i]


@numba.njit(**OPTIONS)
def copy_rows(source: Any, out: Any) -> None:
    """Copy rows of numbers to the first rows and columns of ``out``; see ``copy``."""
    for i in range(source.shape[0]):
        for j in range(source.shape[1]):
            out[i, j] = source[i, j]
