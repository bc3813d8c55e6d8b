"""Compilation of loops without fast-math, when they are first called with a dtype."""

from __future__ import annotations

import pickle
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
from numba.core.sigutils import normalize_signature
from numba.np.numpy_support import as_dtype

from streamkern.startup import paused_collector
from streamkern.storage.atomic_writes import write_lock


def _kept() -> bool:
    """Return True if compiled code can be cached on disk, which is impossible in a read-only container."""
    try:
        numba.njit(cache=True)(_kept)
    except RuntimeError:
        warnings.warn(
            "Compiled code cannot be cached, so every process compiles again for some ten seconds: neither the "
            "package's directory nor the user's cache directory is writable. Set NUMBA_CACHE_DIR to a writable one.",
            stacklevel=2,
        )
        return False
    return True


OPTIONS = {"cache": _kept(), "nogil": True, "error_model": "numpy", "boundscheck": False}


_NOTE = "streamkern.sources"
"""File beside cached code that says of which sources it is."""


@cache
def _sources() -> str:
    """Names, times and sizes of the files that loops are compiled from.

    Numba compiles again where the file of a function changed, but not where that of a function it calls did.
    """
    stats = [(path.name, path.stat()) for path in sorted(Path(__file__).parent.glob("*.py"))]
    return "\n".join(f"{name} {found.st_mtime_ns} {found.st_size}" for name, found in stats)


def _is_current(folder: Path) -> bool:
    try:
        return (folder / _NOTE).read_text() == _sources()
    except OSError:
        return False


def _forget_older(folder: Path) -> None:
    if _is_current(folder):
        return
    with suppress(OSError):  # where nothing can be written
        for index in folder.glob("*.nbi"):
            index.unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / _NOTE).write_text(_sources())


def _signatures_of(index: Path) -> set[Any]:
    """Signatures of the code that an index lists, if this release of Numba wrote it; it has the release, then keys."""
    with suppress(Exception), index.open("rb") as file:  # an index of any other release may have any content
        if pickle.load(file) == numba.__version__:
            _, overloads = pickle.loads(file.read())
            return {signature for signature, *_ in overloads}
    return set()


class Loop:
    """A compiled function: a run compiles only the loops that it calls, for the dtypes that it calls them with."""

    def __init__(self, function: Callable[..., Any], signatures: dict[np.dtype[Any], Any]) -> None:
        self._function = function
        self._signatures = signatures
        self._lock = threading.Lock()
        self._compiled: dict[np.dtype[Any], Callable[..., Any]] = {}

    @cached_property
    def inside(self) -> Callable[..., Any]:
        """The function for calls from other loops; conversion to the listed types compiles it once for all callers."""
        inside: Any = numba.njit(**OPTIONS)(self._function)
        compiled = inside.compile

        def listed(signature: Any) -> Any:
            arguments, _ = normalize_signature(signature)
            return compiled(self._signatures[as_dtype(arguments[0].dtype)])

        inside.compile = listed
        called: Callable[..., Any] = inside
        return called

    def __call__(self, *args: Any) -> Any:
        compiled = self._compiled.get(args[0].dtype)
        if compiled is None:
            with self._lock:
                compiled = self._compiled.get(args[0].dtype)
                if compiled is None:
                    compiled = self._compiled[args[0].dtype] = self._compile(args[0].dtype)
        return compiled(*args)

    def is_compiled(self, dtype: Any) -> bool:
        """Return True if a call with this dtype compiles nothing: code is loaded, or in a current cache."""
        if np.dtype(dtype) in self._compiled:
            return True
        folder, signature = numba.njit(**OPTIONS)(self._function).stats.cache_path, self._signatures[np.dtype(dtype)]
        if not folder:
            return False
        written = Path(self._function.__code__.co_filename).stat().st_mtime
        indexes = Path(folder).glob(f"*.{self._function.__name__}-*.nbi")
        found = any(index.stat().st_mtime >= written and signature in _signatures_of(index) for index in indexes)
        return found and _is_current(Path(folder))

    def _compile(self, dtype: np.dtype[Any]) -> Callable[..., Any]:
        signature = self._signatures[dtype]
        dispatcher = numba.njit(**OPTIONS)(self._function)
        # Numba writes the name of a function's code to an index before the code itself, without a lock: another process
        # could load the old file of that name, compiled by another release of numba or for another type.
        folder = dispatcher.stats.cache_path
        # Compiling leaves garbage; reading cached code does not.
        pause = paused_collector() if self.is_compiled(dtype) else nullcontext()
        with pause, write_lock(Path(folder) / "streamkern") if folder else nullcontext():
            if folder:
                _forget_older(Path(folder))
            dispatcher.compile(signature)
        dispatcher.disable_compile()
        compiled: Callable[..., Any] = dispatcher
        return compiled


def loop(signature: Callable[[Any], Any], *dtypes: Any) -> Callable[[Callable[..., Any]], Loop]:
    """Return a decorator that compiles a function for the dtype of its first argument, at the first call with it."""
    return lambda function: Loop(function, {as_dtype(dtype): signature(dtype) for dtype in dtypes})


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
