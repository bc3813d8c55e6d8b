"""Mutated models, checkpoints and registries, some of them: see tests/fuzz_artifacts.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz_artifacts import KINDS, READERS


@pytest.mark.slow
def test_a_mutated_file_is_an_error_or_a_correct_load():
    script = Path(__file__).parent / "fuzz_artifacts.py"
    done = subprocess.run(
        [sys.executable, str(script), "--files", str(READERS * len(KINDS)), "--seed", "1"],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "an error" in done.stdout
    assert [kind for kind in KINDS if f"{READERS} x {kind}" not in done.stdout] == []
