"""A GPU; where CUDA has no driver, the stand-in for CuPy, so that what is kept for a card runs everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from streamkern.errors import UsageError
from streamkern.gpu import get_device, has_driver
from tests.cuda_host import COMPILER
from tests.cupy_host import stand_in


@pytest.fixture(scope="module")
def gpu() -> Iterator[Any]:
    """A device of CuPy, which on a machine with a driver is never the stand-in."""
    if has_driver():
        try:
            yield get_device("cuda")
        except UsageError as error:
            pytest.skip(error.what)
    elif COMPILER is None:
        pytest.skip("neither a GPU nor a C++ compiler, with which its loops run on the host")
    else:
        with stand_in() as module:
            yield module.open_device()


@pytest.fixture(scope="module")
def on_card(gpu: Any) -> bool:
    """False on the stand-in: tests are small there, and measure no rate."""
    return bool(gpu.name != "stand-in")
