"""The GPU's loops compile for three generations of cards, within their registers; no card is needed.

A float kernel without an instruction of float64 runs at the speed of the card's float32 units; one stray literal of
double would make it many times slower on most cards.
"""

import ctypes
import functools
import importlib.metadata
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from streamkern.engine.elementwise import ANGULAR_KINDS, RADIAL_KINDS, wide
from streamkern.gpu.cuda_source import KERNELS, OUTPUTS, STORED, VALUES, Definitions, options, rows_at_once, source

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")
"""A100, H100 and B200."""

MOST_REGISTERS = 128
"""Two blocks of 256 threads have 65,536 registers to share: as many as ``__launch_bounds__`` of sums.cu asks for."""


@functools.cache
def nvrtc() -> ctypes.CDLL:
    """The compiler, of the package nvidia-cuda-nvrtc."""
    try:
        files = importlib.metadata.files("nvidia-cuda-nvrtc") or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("no NVRTC: pip install nvidia-cuda-nvrtc")
    found = sorted(str(file.locate()) for file in files if re.fullmatch(r"libnvrtc\.so\.\d+", file.name))
    assert found, "the package nvidia-cuda-nvrtc has no library for this system"
    return ctypes.CDLL(found[0])


class Compiled(NamedTuple):
    """A variant's result: the compiler's status and messages, and its instructions."""

    status: int
    log: str
    ptx: str


def compiled(file: str, definitions: Definitions, architecture: str) -> Compiled:
    """Compile a variant as CuPy does, with the assembler's account of registers and memory."""
    library, program = nvrtc(), ctypes.c_void_p()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source(file).encode(), b"loops.cu", 0, None, None) == 0
    words = [*options(definitions), f"--gpu-architecture={architecture}", "--ptxas-options=-v"]
    given = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
    status = int(library.nvrtcCompileProgram(program, len(words), given))
    log = _text(program, "ProgramLog")
    ptx = "" if status else _text(program, "PTX")
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return Compiled(status, log, ptx)


def _text(program: ctypes.c_void_p, name: str) -> str:
    size = ctypes.c_size_t()
    assert getattr(nvrtc(), f"nvrtcGet{name}Size")(program, ctypes.byref(size)) == 0
    text = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc(), f"nvrtcGet{name}")(program, text) == 0
    return text.value.decode()


def wide_instructions(ptx: str, kernel: str) -> bool:
    """Return True if the body of a kernel has instructions of float64."""
    body = re.search(rf"\.entry {kernel}\(.*?^\}}", ptx, re.S | re.M)
    return ".f64" in body.group(0)


def faults(file: str, definitions: Definitions, architecture: str) -> list[str]:
    """What is wrong with a variant: it does not compile, spills, has a stack, too many registers or stray float64."""
    status, log, ptx = compiled(file, definitions, architecture)
    if status:
        return [f"does not compile: {log}"]
    values, found = dict(definitions), []
    real = values.get("REAL", "float") == "float"
    stack = [int(size) for size in re.findall(r"(\d+) bytes (?:stack frame|spill stores|spill loads)", log)]
    if max(stack, default=0) > 0:
        found.append(f"a stack or spills: {log}")
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", log)]
    if len(registers) != len(KERNELS[file]):
        found.append(f"no account of each kernel's registers: {log}")
    if real and max(registers, default=0) > MOST_REGISTERS:
        found.append(f"{max(registers)} registers")
    plain = {"radial": ("radial",), "manhattan": ("manhattan", "signed_sums"), "angular": ("angular", "cosines"),
             "sums": ("pulled",) if values.get("RESIDUAL") else ("pulled", "outputs")}  # fmt: skip
    if real:
        found += [f"float64 in {kernel}" for kernel in plain.get(file, ()) if wide_instructions(ptx, kernel)]
    return found


def all_faults(architecture: str, listed: list[tuple[str, Definitions]]) -> dict[str, list[str]]:
    """Faults of variants, which compile side by side: ctypes lets other threads run meanwhile."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        found = pool.map(lambda variant: faults(*variant, architecture), listed)
    return {str(variant): each for variant, each in zip(listed, found, strict=True) if each}


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


def some(file: str, **values: str | int) -> tuple[str, Definitions]:
    return next((f, found) for f, found in variants() if f == file and values.items() <= dict(found).items())


FEW = [
    some("rows", STORED="u8"),
    some("norms", REAL="float"),
    some("radial", REAL="float", KIND=0),
    some("angular", REAL="float", ANGLES=3),
    some("manhattan", REAL="float"),
    some("step", REAL="float"),
    some("sums", REAL="float", KIND=0, FACTORS=1),
    some("sums", REAL="float", OUTPUTS=16, KIND=0),
    some("sums", TRIANGLE=1, OUTPUTS=10),
]
"""A variant of each file, those of the largest block of a step among them."""


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_variants_compile_within_their_registers(architecture: str):
    """One of each file for every generation, and every variant for one of them in turn."""
    listed = list(dict.fromkeys(variants()))
    assert {file for file, _ in listed} == {file for file, _ in FEW} | {"images"} == KERNELS.keys()
    turn = listed[ARCHITECTURES.index(architecture) :: len(ARCHITECTURES)]
    assert all_faults(architecture, list(dict.fromkeys([*FEW, *turn]))) == {}


def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch):
    """A literal of double, a stack and an error, in place of a file's text."""

    def of(body: str) -> list[str]:
        text = f'extern "C" __global__ void radial(float* x, int n) {{ {body} }}'
        monkeypatch.setitem(globals(), "source", lambda file: text)
        return faults("radial", (("REAL", "float"),), "sm_90")

    assert of("x[0] += 1.0f;") == []
    assert of("x[0] = x[0] * 1.1;") == ["float64 in radial"]
    assert of("x[0] = nothing;")[0].startswith("does not compile")
    assert of("float y[64]; for (int i = 0; i < n; i++) y[i % 64] = x[i]; x[n] = y[n % 64];")[0].startswith("a stack")


def test_the_folder_of_the_source_has_no_file_that_nothing_compiles():
    folder = Path(source.__wrapped__.__code__.co_filename).parent / "cuda"
    text = "\n".join(source(file) for file in KERNELS)
    assert all(path.read_text(encoding="utf-8") in text for path in folder.iterdir())
