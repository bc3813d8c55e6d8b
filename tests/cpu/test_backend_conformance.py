"""Backends, held to the suite."""

from __future__ import annotations

import pytest

from streamkern.cpu import Backend, NumpyBackend
from streamkern.cpu.elementwise import NumbaBackend
from streamkern.testing.backend import BackendSuite


class TestNumpy(BackendSuite):
    @pytest.fixture
    def backend(self) -> Backend:
        return NumpyBackend()


class TestNumba(BackendSuite):
    @pytest.fixture
    def backend(self) -> Backend:
        return NumbaBackend()
