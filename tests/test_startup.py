"""What stands between typing a command and the first step."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parent / "benchmarks" / "startup.py"


@pytest.mark.slow
def test_imports_set_up_and_compiled_loops_take_seconds():
    told = subprocess.run(
        [sys.executable, BENCHMARK, "--repeats", "1", "--d", "64"], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"later runs .*fitted after +[0-9.]+ s \(processor +([0-9.]+) s\)", told)
    assert found is not None, told
    assert float(found[1]) < 6  # 2.2 on the machine of docs/performance.md: nothing is compiled again
