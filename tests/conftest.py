"""One hypothesis profile for everyone, so that a failure in CI is the one seen at the desk; a cache of our own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline, because the first example pays for compilation; the per-test timeout stands in pyproject.toml.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci")

# A run makes a hundred small files durable: where there is room in memory, no test waits for a disk to do so.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache that is not the user's, and a place for what is temporary that is where ``tmp_path`` is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(tempfile, "tempdir", None)
        yield
