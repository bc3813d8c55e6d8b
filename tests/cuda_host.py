"""The GPU's loops compiled for the host by a C++ compiler: the arithmetic of a card's kernels without a card.

``tests/cuda/host_cuda.h`` has what CUDA has and C++ does not, barriers included.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamkern.gpu.cuda_source import KERNELS, Definitions, source
from streamkern.gpu.loops import CudaLoops

HEADER = Path(__file__).parent / "cuda" / "host_cuda.h"
COMPILER = shutil.which("g++") or shutil.which("clang++")
needs_compiler = pytest.mark.skipif(
    COMPILER is None, reason="no C++ compiler: the loops cannot be compiled for the host"
)

FOLDER = Path(tempfile.gettempdir()) / f"streamkern-host-cuda-{os.getuid()}"
"""Where libraries stay from one session to the next: named here, before the tests have a folder of their own."""

_alone = threading.Lock()  # the header keeps the place of a thread in globals


def host_text(text: str, kernels: tuple[str, ...]) -> str:
    """Return the program of a source of CUDA C++ for the host: each kernel with an entry that takes its arguments."""
    entries = []
    for name in kernels:
        found = re.search(rf"__global__ void[^{{;]*?\b{name}\(([^)]*)\) {{", text)
        assert found is not None, name
        types = [" ".join(part.split()[:-1]) for part in found.group(1).split(",")]
        args = ", ".join(f"*({type_}*)args[{k}]" for k, type_ in enumerate(types))
        entries.append(
            f"static void call_{name}(void** args) {{ {name}({args}); }}\n"
            f'extern "C" void launch_{name}(const unsigned* grid, const unsigned* block, void** args)'
            f" {{ launch(call_{name}, grid, block, args); }}\n"
        )
    return f'#include "{HEADER}"\n{text}\n{"".join(entries)}'


@functools.cache
def compiled(text: str, kernels: tuple[str, ...], macros: tuple[str, ...]) -> Any:
    """Return the library of a source, compiled once for all processes of this machine's user."""
    program = host_text(text, kernels)
    key = hashlib.sha256("\0".join((program, HEADER.read_text(), *macros)).encode()).hexdigest()[:24]
    FOLDER.mkdir(mode=0o700, exist_ok=True)
    library = FOLDER / f"{key}.so"
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=FOLDER) as place:
            path = Path(place) / "loops.cpp"
            path.write_text(program)
            made = Path(place) / "loops.so"
            assert COMPILER is not None
            command = [
                COMPILER,
                "-std=c++17",
                "-O1",
                "-ffp-contract=off",
                "-fno-strict-aliasing",
                "-w",
                "-shared",
                "-fPIC",
            ]
            subprocess.run([*command, *macros, "-o", made, path], check=True)
            made.replace(library)
    return ctypes.CDLL(str(library))


def run_kernel(library: Any, kernel: str, grid: Any, block: Any, args: Any) -> None:
    """Call a kernel's entry: arguments are addresses, as integers, and NumPy's numbers."""
    boxes = [np.array(arg) for arg in args]
    pointers = (ctypes.c_void_p * len(boxes))(*(box.ctypes.data for box in boxes))
    sizes = [(ctypes.c_uint32 * 2)(*(int(n) for n in (*shape, 1)[:2])) for shape in (grid, block)]
    with _alone:
        getattr(library, f"launch_{kernel}")(*sizes, pointers)


class HostLoops(CudaLoops):
    """The GPU's loops over NumPy's arrays."""

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """An array of NaN, which a loop that leaves numbers out would show."""
        found = np.empty(shape, dtype)
        found.fill(np.nan if found.dtype.kind == "f" else 77)
        return found

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        return np.zeros(shape, dtype)

    def put(self, array: Any) -> Any:
        return np.asarray(array)

    def launch(self, file: str, definitions: Definitions, kernel: str, grid: Any, block: Any, args: Any) -> None:
        library = compiled(source(file), KERNELS[file], tuple(f"-D{name}={value}" for name, value in definitions))
        run_kernel(library, kernel, grid, block, [_argument(arg) for arg in args])


def _argument(arg: Any) -> Any:
    if arg is None:
        return np.uint64(0)
    return np.uint64(arg.ctypes.data) if isinstance(arg, np.ndarray) else arg
