"""The soak of random faults, in short: see tests/soak/soak.py, and docs/reliability.md for a long one."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_few_random_faults_lose_nothing():
    soak = Path(__file__).parent / "soak/soak.py"
    words = [sys.executable, str(soak), "--faults", "4", "--seed", "3"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            said, _ = process.communicate(timeout=240)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)  # it ends its cluster and unmounts its disk
            said, _ = process.communicate(timeout=40)
    assert process.returncode == 0, said
    assert "nothing lost" in said
