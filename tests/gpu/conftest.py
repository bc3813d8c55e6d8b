"""A GPU, or the reason why there is none: `pytest -m gpu` runs what only a card can show."""

from __future__ import annotations

import pytest

from streamkern.backends import get_device
from streamkern.errors import UsageError


@pytest.fixture(scope="session")
def gpu():
    try:
        return get_device("cuda")
    except UsageError as error:
        pytest.skip(error.what)
