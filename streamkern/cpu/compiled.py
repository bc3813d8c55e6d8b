"""Compilation of loops without fast-math, when they are first called with a dtype."""

from __future__ import annotations

import pickle
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba.core import types
from numba.core.caching import NullCache
from numba.core.sigutils import normalize_signature
from numba.np.numpy_support import as_dtype

from streamkern.cpu.code_files import StoredCode, find_code, sources_digest, write_code
from streamkern.startup import paused_collector
from streamkern.storage.atomic_writes import write_lock


def _can_be_cached() -> bool:
    """Return True if compiled code can be cached on disk, which is impossible in a read-only container."""
    try:
        numba.njit(cache=True)(_can_be_cached)
    except RuntimeError:
        return False
    return True


OPTIONS = {"cache": _can_be_cached(), "nogil": True, "error_model": "numpy", "boundscheck": False}


_NOTE = "streamkern.sources"
"""File beside Numba's cached code that has the digest of its sources."""


def _is_current(folder: Path) -> bool:
    try:
        return (folder / _NOTE).read_text() == sources_digest()
    except OSError:
        return False


def _forget_older(folder: Path) -> None:
    if _is_current(folder):
        return
    with suppress(OSError):  # where nothing can be written
        for index in folder.glob("*.nbi"):
            index.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _NOTE).write_text(sources_digest())


def _keys_of(index: Path, stamp: Any) -> set[Any]:
    """Keys of the code that an index lists, if this release of Numba wrote it from a file with this stamp."""
    with suppress(Exception), index.open("rb") as file:  # an index of any other release may have any content
        if pickle.load(file) == numba.__version__:
            written, overloads = pickle.loads(file.read())
            return set(overloads) if written == stamp else set()
    return set()


def _is_cached(dispatcher: Any, signature: Any) -> bool:
    """Return True if Numba's own cache has the code of a signature for this processor."""
    cached, folder = dispatcher._cache, Path(dispatcher.stats.cache_path or "")
    if not dispatcher.stats.cache_path or not _is_current(folder):
        return False
    stamp = cached._impl.locator.get_source_stamp()
    index = folder / f"{cached._impl.filename_base}.nbi"
    return cached._index_key(signature, dispatcher.targetctx.codegen()) in _keys_of(index, stamp)


COMPILING = (
    "compiling kernels for this processor, once: this run takes some ten seconds longer "
    "(`streamkern doctor --compile` does it ahead)\n"
)
"""What the first process that compiles writes to standard error."""

_NO_CACHE = (
    "Compiled code cannot be cached, so every process compiles again for some ten seconds: neither the "
    "package's directory nor the user's cache directory is writable. Set NUMBA_CACHE_DIR to a writable one."
)


@cache
def _announce() -> None:
    """Say once in a process that it compiles."""
    if not OPTIONS["cache"]:
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
        """Return the code for a dtype: from a file, from Numba's cache, or compiled now."""
        with self._lock:
            compiled = self._compiled.get(dtype)
            if compiled is None:
                compiled = self._compiled[dtype] = self._compile(dtype)
        return compiled

    def is_compiled(self, dtype: Any) -> bool:
        """Return True if a call with this dtype compiles nothing: code is loaded, in a file, or in a current cache."""
        dtype = np.dtype(dtype)
        if dtype in self._compiled or find_code(self.code_name(dtype)) is not None:
            return True
        return _is_cached(self._dispatcher(), self._signatures[dtype])

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
        self.inside._cache = NullCache()  # code that was read from Numba's cache cannot be written
        self.inside.compile(signature)  # once for this file, and for the loops that call it
        write_code(path, self.inside.get_compile_result(signature))

    def _dispatcher(self) -> Any:
        return numba.njit(**OPTIONS)(self._function)

    def _compile(self, dtype: np.dtype[Any]) -> Callable[..., Any]:
        dispatcher = self._from_file(dtype) or self._from_cache(dtype)
        dispatcher.disable_compile()
        for overload in dispatcher.overloads.values():
            overload.library._shared_module = None  # bitcode for callers among compiled functions: they call ``inside``
        compiled: Callable[..., Any] = dispatcher
        return compiled

    def _from_file(self, dtype: np.dtype[Any]) -> Any:
        path = find_code(self.code_name(dtype))
        if path is None:
            return None
        dispatcher = numba.njit(**OPTIONS | {"cache": False})(self._function)
        dispatcher._cache = StoredCode(path)
        try:
            with paused_collector():
                dispatcher.compile(self._signatures[dtype])
        except Exception:  # damaged, or written by a build that differs in more than the folder's name says
            return None
        return dispatcher

    def _from_cache(self, dtype: np.dtype[Any]) -> Any:
        dispatcher, signature = self._dispatcher(), self._signatures[dtype]
        # Numba writes the name of a function's code to an index before the code itself, without a lock: another process
        # could load the old file of that name, compiled by another release of numba or for another type.
        folder = dispatcher.stats.cache_path
        with write_lock(Path(folder) / "streamkern") if folder else nullcontext():
            # Compiling leaves garbage; reading cached code does not.
            cached = _is_cached(dispatcher, signature)
            if folder:
                _forget_older(Path(folder))
            if not cached:
                _announce()
            with paused_collector() if cached else nullcontext():
                dispatcher.compile(signature)
        return dispatcher


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
