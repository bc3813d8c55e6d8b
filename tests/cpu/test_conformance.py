"""Loops, held to their suite."""

from __future__ import annotations

import pytest

from streamkern.cpu.elementwise import CompiledLoops
from streamkern.engine.elementwise import Loops, NumpyLoops
from streamkern.testing.elementwise import LoopsSuite


class TestNumpy(LoopsSuite):
    @pytest.fixture
    def loops(self) -> Loops:
        return NumpyLoops()


class TestNumba(LoopsSuite):
    @pytest.fixture
    def loops(self) -> Loops:
        return CompiledLoops()
