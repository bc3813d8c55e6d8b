"""A GPU, or the reason why there is none: `pytest -m gpu` runs what only a card can show.

With STREAMKERN_STAND_IN=1 in the environment the tests run on the stand-in for CuPy, to see that they run at all.
"""

from __future__ import annotations

import os

import pytest

from streamkern.errors import UsageError
from streamkern.gpu import get_device


@pytest.fixture(scope="session")
def gpu():
    if os.environ.get("STREAMKERN_STAND_IN"):
        from tests.cupy_host import stand_in

        with stand_in() as module:
            yield module.open_device()
        return
    try:
        yield get_device("cuda")
    except UsageError as error:
        pytest.skip(error.what)
