"""The source of the GPU's loops: files of CUDA C++, and the definitions that make a variant of them.

A variant is one compiled module: the numbers' type, a kernel's profile and the number of outputs are fixed when it is
compiled. NVRTC compiles it for the card at its first use (CuPy keeps the result on disk).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from streamkern.engine.elementwise import ANGULAR_KINDS, RADIAL_KINDS, wide

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


def variants() -> Iterator[tuple[str, Definitions]]:
    """Yield the variants that the library uses: all files, types and profiles, with few and most outputs."""

    def made(file: str, **values: str | int) -> tuple[str, Definitions]:
        return file, tuple(sorted(values.items()))

    def profiled(real: str, kind: int, ready: int, factors: int, outputs: int, residual: int) -> Iterator[Any]:
        of_profile: dict[str, Any] = {"REAL": real, "KIND": kind, "READY": ready, "FACTORS": factors}
        yield made("radial", **of_profile)
        rows = rows_at_once(outputs, real)
        yield made("sums", **of_profile, OUTPUTS=outputs, RESIDUAL=residual, ROWS=rows, TRIANGLE=0)

    for stored, name in STORED.items():
        yield made("rows", REAL="double" if wide(np.dtype(stored)) else "float", STORED=name)
    yield made("images")
    for real in ("float", "double"):
        yield made("norms", REAL=real)
        yield made("manhattan", REAL=real)
        yield made("step", REAL=real)
        for angles in range(len(ANGULAR_KINDS)):
            yield made("angular", REAL=real, ANGLES=angles)
        for kind in range(VALUES, len(RADIAL_KINDS)):
            yield from profiled(real, kind, 0, 0, 10, 1)
        for outputs, residual in ((1, 2), (OUTPUTS, 0)):
            yield from profiled(real, 0, 0, 0, outputs, residual)
    for kind, ready, factors in ((0, 0, 1), (3, 1, 0), (5, 1, 0), (5, 0, 1)):
        yield from profiled("float", kind, ready, factors, 10, 1)
    for outputs in (1, 10, OUTPUTS):
        yield made("sums", REAL="float", KIND=VALUES, READY=0, FACTORS=0, OUTPUTS=outputs, RESIDUAL=0, ROWS=2,
                   TRIANGLE=1)  # fmt: skip


def rows_at_once(outputs: int, real: str) -> int:
    """Return the rows of a warp of ``outputs``: as many as there are registers for."""
    if real == "double":
        return 1
    return 4 if outputs <= 10 else 2
