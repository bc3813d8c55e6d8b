"""The soak of random faults, in short: see tests/soak/soak.py, and docs/reliability.md for a long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_few_random_faults_lose_nothing():
    soak = Path(__file__).parent / "soak/soak.py"
    done = subprocess.run(
        [sys.executable, str(soak), "--faults", "7", "--seed", "3"],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing lost" in done.stdout
