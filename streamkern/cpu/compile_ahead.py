"""Compile the loops that defaults use ahead of their first call, in processes side by side (ADR 45).

``hatch_build.py`` does so when a wheel is built, and ``streamkern doctor --compile`` in an installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np

from streamkern.cpu.code_files import CODE_ROOT, code_folder, level_environment, processor_level, user_root
from streamkern.cpu.compiled import LOOPS, Loop
from streamkern.startup import paused_collector

DEFAULTS = {
    "loops.radial_products": ("float32", "float64"),
    "fused_predict.radial_outputs": ("float32",),
    "cholesky._block": ("float64",),
    "loops.radial": ("float32", "float64"),
    "manhattan.products": ("float32", "float64"),
    "loops.assemble_noisy": ("uint8", "float32"),
    "kernel_gradients.radial_slopes": ("float32", "float64"),
    "loops.angular": ("float64",),
    "loops.cosines": ("float64",),
    "gemm.inner_loop": ("float32", "float64"),
    "manhattan.distances": ("float32", "float64"),
    "kernel_gradients.signed_sums": ("float32", "float64"),
    "gemv._times": ("float32",),
    "gemv._add_transposed": ("float32",),
    "columns.moments": ("float32", "float64"),
    "leaf_routing.project": ("float32", "float64"),
    "loops.assemble": ("uint8", "float32"),
    "loops.assemble_wide": ("float64",),
    "loops.row_norms": ("float32", "float64"),
    "loops.first_row_with_exponent": ("uint32", "uint64"),
    "gemm.pack_rows": ("float32", "float64"),
}
"""Loops, and types of their first argument, that the README, the first steps, examples and pipelines call.

The slowest to compile come first. ``tests/cpu/test_compile_ahead.py`` finds what is missing.
"""

WORKERS = 2
"""Processes that compile at once. More gain little: the types below share no code, and the loops of a type do."""

FIRST = ("float32", "float64")
"""Type that each process begins with: what its loops call is then compiled once."""

PROGRAM = (sys.executable, "-m", "streamkern.cpu.compile_ahead")


def default_loops() -> list[tuple[str, str]]:
    """Return full names and types of the loops of ``DEFAULTS``, in order."""
    return [(f"streamkern.cpu.{name}", dtype) for name, dtypes in DEFAULTS.items() for dtype in dtypes]


def missing_loops(level: str, root: Path = CODE_ROOT) -> list[tuple[str, str]]:
    """Return the default loops without a file for a level."""
    folder = code_folder(level, root)
    return [(name, dtype) for name, dtype in default_loops() if not (folder / f"{name}-{dtype}").exists()]


def compile_ahead(level: str, root: Path = CODE_ROOT, *, program: Sequence[str] | None = None) -> str | None:
    """Compile what is missing for a level of x86-64 to files under ``root``; return None, or why it failed.

    ``program`` are the words of a command that calls ``compile_claimed`` with further words, ``PROGRAM`` by default.
    """
    with tempfile.TemporaryDirectory(prefix="streamkern-") as name:
        claims = Path(name)
        # New processes, because Numba reads its variables when it is imported.
        children = []
        for worker in range(min(WORKERS, len(missing_loops(level, root)))):
            with (claims / f"log-{worker}").open("wb") as log:
                command = [*(program or PROGRAM), level, str(root), name, FIRST[worker % len(FIRST)]]
                environment = os.environ | level_environment(level)
                children.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        for child in children:
            child.wait()
        failed = [worker for worker, child in enumerate(children) if child.returncode]
        if not failed:
            return None
        said = (claims / f"log-{failed[0]}").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return said[-1] if said else f"exit status {children[failed[0]].returncode}"


def compile_claimed(words: Sequence[str]) -> None:
    """Compile the loops that no other process has claimed by a file in a folder.

    Level, root, the folder, and the type to begin with are words.
    """
    level, root, claims, first = words
    with paused_collector():
        for name, dtype in sorted(missing_loops(level, Path(root)), key=lambda each: each[1] != first):
            try:
                (Path(claims) / f"{name}-{dtype}").touch(exist_ok=False)
            except FileExistsError:
                continue
            _loop(name).compile_to(code_folder(level, Path(root)) / f"{name}-{dtype}", np.dtype(dtype))


def compile_here(root: Path = CODE_ROOT) -> str:
    """Compile what is missing for this processor; return a sentence that says what was done, and where.

    Files beside the package serve every user of an installation, also in a read-only container. Where they cannot be
    written, or the processor has no level, the user's cache gets the code.
    """
    began, level = time.perf_counter(), processor_level()
    missing = missing_loops(level, root) if level else default_loops()
    place, reason = str(root), compile_ahead(level, root) if level else "this processor is of no level of x86-64"
    if reason:
        place = f"{user_root()} ({reason})"
        for name, dtype in missing:
            _loop(name).load(np.dtype(dtype))
    seconds = time.perf_counter() - began
    done = f"{len(missing)} compiled in {seconds:.1f} s" if missing else "all compiled before"
    return f"{len(default_loops())} loops for {level or 'this processor'}, {done}: {place}\n"


def _loop(name: str) -> Loop:
    import_module(name.rpartition(".")[0])
    return LOOPS[name]


if __name__ == "__main__":
    compile_claimed(sys.argv[1:])
