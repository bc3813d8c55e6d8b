"""Loops, held to their suite."""

from __future__ import annotations

import pytest

from streamkern.cpu.elementwise import CompiledLoops
from streamkern.engine.elementwise import Loops
from streamkern.testing.elementwise import LoopsSuite


class TestNumpy(LoopsSuite):
    @pytest.fixture
    def loops(self) -> Loops:
        return Loops()


class TestNumba(LoopsSuite):
    @pytest.fixture
    def loops(self) -> Loops:
        return CompiledLoops()
