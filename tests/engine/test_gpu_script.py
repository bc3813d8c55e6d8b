"""The script for a machine with a card: what of it needs none."""

from __future__ import annotations

import re
import sys

import pytest

from tests.benchmarks.gpu import SESSION, further, session
from tests.device import HostDevice


def test_l1_and_gradients_are_timed_on_a_device(capsys: pytest.CaptureFixture[str]):
    further(HostDevice(), 40, 30, 1)
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["18"] * 3 + ["64"] * 3 + ["784"] * 3
    assert all(float(re.split(r"\s{2,}", line)[-2]) > 0 for line in lines)


def test_a_session_goes_on_after_a_failure_and_ends_in_time(capfd: pytest.CaptureFixture[str]):
    commands = [[sys.executable, "-c", text] for text in ("exit(3)", "pass", "import time; time.sleep(60)", "pass")]
    assert session(commands, 4 / 60) == 3
    ends = capfd.readouterr().out.splitlines()[-4:]
    assert [re.split(r"\s{2,}", line)[0] for line in ends][:2] == ["status 3", "status 0"]
    assert all(line.startswith("out of time") for line in ends[2:])
    assert SESSION[0][2:5] == ("pytest", "-m", "gpu")
