"""The CUDA kernels compile for a card where numba-cuda and its compiler are installed, with a card or without."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from numba import cuda, types
from streamkern.backends.device import NARROW, NARROW_OUTPUTS

from streamkern.backends import cuda as kernels

CAPABILITY = (8, 0)

f4, f8, i8, u8, u1 = types.float32, types.float64, types.int64, types.uint64, types.uint8


def matrix(dtype: Any) -> Any:
    return types.Array(dtype, 2, "A")


def vector(dtype: Any) -> Any:
    return types.Array(dtype, 1, "C")


def block(dtype: Any, dimensions: int = 2) -> Any:
    return types.Array(dtype, dimensions, "C")


@pytest.fixture
def ptx(monkeypatch):
    """Compiles a kernel to the text of its instructions."""
    if os.environ.get("NUMBA_ENABLE_CUDASIM") == "1":
        pytest.skip("the simulator compiles nothing")
    if find_spec("numba_cuda") is None or find_spec("nvidia") is None:
        pytest.skip("no CUDA compiler: pip install 'numba-cuda[cu12]'")
    dispatcher = import_module("numba.cuda.dispatcher")

    class Card:
        compute_capability = CAPABILITY

    # Functions that kernels call are compiled for the card at hand.
    monkeypatch.setattr(dispatcher, "get_current_device", Card, raising=False)

    def compiled(kernel: Any, *signature: Any) -> str:
        return str(cuda.compile_ptx(kernel.py_func, signature, cc=CAPABILITY)[0])

    return compiled


def test_rows_and_noise_for_every_stored_type(ptx):
    for dtype, number in ((u1, f4), (f4, f4), (f8, f8)):
        rest = (*[vector(number)] * 2, *[vector(i8)] * 2, u8, u8, f4, types.boolean)
        kernel = kernels._assembler(kernels.f64 if number is f8 else kernels.f32)
        assert ".entry" in ptx(kernel, matrix(dtype), vector(i8), matrix(f4), *rest)


@pytest.mark.parametrize("dtype", [f4, f8])
def test_profiles_angles_and_waves_in_the_type_of_the_rows(ptx, dtype):
    """A float32 kernel holds no instruction of float64, which a card has few units for: a stray literal makes one."""
    numbers = [dtype] * 7
    radial = ptx(kernels._radial, matrix(dtype), vector(dtype), vector(dtype), i8, *numbers)
    angular = ptx(kernels._angular, matrix(dtype), *[vector(dtype)] * 4, i8, i8, *[dtype] * 3)
    ptx(kernels._cosines, matrix(dtype), vector(dtype), *[dtype] * 3)
    ptx(kernels._row_norms(128), matrix(dtype), vector(dtype))
    ptx(kernels._first_bad_row, matrix(dtype), vector(i8))
    assert (".f64" in radial) == (".f64" in angular) == (dtype == f8)


@pytest.mark.parametrize(("d", "outputs"), [(1, 1), (18, 10), (NARROW, NARROW_OUTPUTS)])
def test_the_narrow_product_in_float32(ptx, d, outputs):
    found = ptx(kernels._narrow(d, outputs, 0, 128), *[block(f4)] * 3, block(f4, 3), i8, *[f4] * 6)
    assert ".f64" not in found
    assert ".shared" in found
