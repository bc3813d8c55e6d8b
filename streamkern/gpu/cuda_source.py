"""The source of the GPU's loops: files of CUDA C++, and the definitions that make a variant of them.

A variant is one module, which NVRTC compiles at its first use for the numbers' type, a kernel's profile and the number
of outputs; CuPy keeps it on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "cuda"

KERNELS: Mapping[str, tuple[str, ...]] = {
    "rows": ("assemble",),
    "images": ("move_pixels", "mix_rows"),
    "norms": ("row_norms", "split_rows", "first_bad_row"),
    "radial": ("radial",),
    "angular": ("angular", "cosines"),
    "manhattan": ("manhattan", "signed_sums"),
    "sums": ("outputs", "pulled"),
    "step": ("residual", "moved"),
}
"""Kernels by file."""

VALUES, DISTANCES = -2, -1
"""Numbers of no profile: S holds values already, or the squared distances are wanted."""

OUTPUTS = 16
"""Most outputs of ``outputs`` and ``pulled``, whose sums are in registers."""

STORED: Mapping[str, str] = {
    "uint8": "u8", "int8": "i8", "uint16": "u16", "int16": "i16", "uint32": "u32", "int32": "i32", "uint64": "u64",
    "int64": "i64", "float32": "float", "float64": "double",
}  # fmt: skip
"""Types of stored rows, as the source names them."""

Definitions = tuple[tuple[str, str | int], ...]
"""Macros of a variant: (name, value), sorted by name."""


@cache
def source(file: str) -> str:
    """Return the text of a file of ``KERNELS``, after those that it builds on."""
    before = {"rows": ("philox.cuh",), "images": ("philox.cuh",), "radial": ("profile.cuh",), "sums": ("profile.cuh",)}
    names = ("prelude.cuh", *before.get(file, ()), f"{file}.cu")
    return "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in names)


def options(definitions: Definitions) -> tuple[str, ...]:
    """Return the compiler's options of a variant."""
    return ("--std=c++17", *(f"-D{name}={value}" for name, value in definitions))


def rows_at_once(outputs: int, real: str) -> int:
    """Return the rows of a warp of ``outputs``: as many as there are registers for."""
    if real == "double":
        return 1
    return 4 if outputs <= 10 else 2
