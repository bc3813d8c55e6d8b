"""Files with the machine code of loops (ADR 45).

The wheel brings files for a level of x86-64, and ``streamkern doctor --compile`` adds them to an installation. Loops
without such a file are compiled at their first call, for this processor, to files in the user's cache. The name of a
folder of files contains a digest of all that compiled code depends on, so code of other sources, of another Python or
another release of Numba is never read.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numba
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.environment import Environment
from numba.core.runtime import rtsys
from numba.core.serialize import dumps

from streamkern.storage.atomic_writes import staged

_PACKAGE = Path(__file__).parent.parent
CODE_ROOT = _PACKAGE / "cpu" / "code"
OWN = "processor"
"""Stands for the level of code that is compiled for this processor alone."""

_SOURCES = ("cpu/*.py", "engine/elementwise.py", "rng.py")
"""Files that loops are compiled from, or whose constants they contain."""

_LEVEL_3 = ("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse4.2", "xsave")
_LEVEL_4 = (*_LEVEL_3, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
LEVELS = {"x86-64-v3": _LEVEL_3, "x86-64-v4": _LEVEL_4}
"""Features that a processor of a level has, by LLVM's names; each level includes those before it."""


@cache
def sources_digest() -> str:
    """Digest of the names and contents of the files that loops are compiled from.

    Numba compiles again where the file of a function changed, but not where that of a function it calls did.
    """
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _SOURCES for path in _PACKAGE.glob(pattern)):
        digest.update(f"{path.relative_to(_PACKAGE)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


@cache
def processor_level() -> str | None:
    """Return the level whose code this process runs; None for other processors, and where the user names one to Numba.

    Some early processors have AVX-512F without the rest of the fourth level. ``gemm`` chooses panels for wide vectors
    there, which code of the third level does not have.
    """
    if numba.config.CPU_NAME or numba.config.CPU_FEATURES or platform.machine() not in ("x86_64", "AMD64"):
        return None
    found = llvm.get_host_cpu_features()
    levels = [level for level, features in LEVELS.items() if all(found.get(feature) for feature in features)]
    narrow = not found.get("avx512f")
    return levels[-1] if levels and (narrow or levels[-1] == "x86-64-v4") else None


def level_environment(level: str) -> dict[str, str]:
    """Return the variables that make Numba compile for a level in a new process."""
    return {"NUMBA_CPU_NAME": level, "NUMBA_CPU_FEATURES": ",".join(f"+{feature}" for feature in LEVELS[level])}


def user_root() -> Path:
    """Return the directory with code that was compiled at first calls: ``NUMBA_CACHE_DIR``, or the user's cache."""
    given = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(given or Path.home() / ".cache") / "streamkern"
    except RuntimeError:  # a user without a home directory: nothing is cached
        return Path(os.devnull) / "streamkern"


@cache
def code_folder(level: str, root: Path = CODE_ROOT) -> Path:
    """Return the folder of a level's files for this Python, this Numba and these sources."""
    python = sys.implementation.cache_tag, getattr(sys, "abiflags", ""), sys.platform
    versions: tuple[Any, ...] = (*python, numba.__version__, llvmlite.__version__, sources_digest())
    if level == OWN:
        named = numba.config.CPU_NAME, numba.config.CPU_FEATURES
        versions += (platform.machine(), *named, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
    return root / f"{level}-{hashlib.sha256(repr(versions).encode()).hexdigest()[:20]}"


def find_code(name: str, root: Path = CODE_ROOT) -> Path | None:
    """Return the file that has the code of ``module.function-dtype`` for this processor, if there is one."""
    level = processor_level()
    folders = [code_folder(level, root)] if level else []
    paths = (folder / name for folder in (*folders, code_folder(OWN, user_root())))
    return next((path for path in paths if path.exists()), None)


class StoredCode(NullCache):  # type: ignore[misc]
    """A dispatcher's cache that consists of one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)  # all that code needs to run; what Numba needs to compile stays unloaded
        return CompileResult._rebuild(target_context, *pickle.loads(self._path.read_bytes()))


def write_code(path: Path, compiled: Any) -> None:
    """Write a compile result as Numba's own cache does, without the modules and texts that only a compiler needs."""
    *code, _annotations, initialisers, environments = compiled._reduce()
    with staged(path, parents=True, sync=False) as staging:
        staging.write_bytes(dumps((*code, "", initialisers, tuple(_without_module(each) for each in environments))))


def _without_module(environment: Any) -> Environment:
    """Return an environment of compiled code with its constants; its module's names are for interpreted code."""
    found = Environment({"__name__": "builtins"})
    found.env_name = environment.env_name
    found.consts.extend(environment.consts)
    return found
