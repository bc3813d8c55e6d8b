"""The examples of examples/schedulers: each is executed as its scheduler does, and ends as its scheduler understands.

cron's and systemd's lines run in the environments that these give, and the Dask client leaves a real cluster. Airflow
and Prefect are no dependencies of the tests: AIRFLOW_PYTHON and PREFECT_PYTHON name interpreters that have them.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster

import streamkern as sk

SCHEDULERS = Path(__file__).parent.parent / "examples/schedulers"
COMMAND = ".venv/bin/streamkern retrain nightly.py --registry models --quiet"
CRON = {"SHELL": "/bin/sh", "PATH": "/usr/bin:/bin", "LOGNAME": "root"}
SYSTEMD = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
    "LANG": "C.UTF-8",
    "USER": "nightly",
    "LOGNAME": "nightly",
    "SHELL": "/bin/sh",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What /srv/nightly is in the examples."""
    place = tmp_path_factory.mktemp("nightly")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 1500)
    X = rng.standard_normal((1500, 4)) + 1.5 * y[:, None]
    sk.write_zarr(place / "rows.zarr", X.astype("float32"), y, target="label", chunk_rows=500)
    shutil.copy(SCHEDULERS / "nightly.py", place)
    (place / ".venv").symlink_to(sys.prefix)
    return place


def example(name: str, folder: Path) -> str:
    return (SCHEDULERS / name).read_text(encoding="utf-8").replace("/srv/nightly", str(folder))


def executed(command: list[str], environment: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Without a terminal, a login's environment or standard input; standard error where standard output goes."""
    return subprocess.run(
        command, cwd=cwd, env={**environment, "HOME": str(cwd)}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, start_new_session=True, check=False,
    )  # fmt: skip


def last_decision(text: str) -> dict[str, Any]:
    """The last line of stdout; an error in words may follow it on stderr."""
    found: dict[str, Any] = json.loads([line for line in text.splitlines() if line.startswith("{")][-1])
    return found


def logged(folder: Path) -> dict[str, Any]:
    return last_decision((folder / "retrain.log").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_cron_sends_mail_of_failures_alone(folder: Path) -> None:
    found = re.findall(r"^(?:[\d*]+ ){5}(.*)$", example("crontab", folder), re.MULTILINE)
    assert len(found) == 1
    assert "%" not in found[0]  # the end of a command, to cron
    (folder / "home").mkdir()

    def night() -> tuple[int, str]:
        done = executed(["/bin/sh", "-c", found[0]], CRON, folder / "home")
        return done.returncode, done.stdout

    shutil.rmtree(folder / "models", ignore_errors=True)
    assert night() == (0, "")
    assert logged(folder)["status"] == "promoted"
    models = sk.Registry(folder / "models")
    with models.lock():
        assert night() == (0, "")
    assert logged(folder)["exit_status"] == 75
    (folder / "rows.zarr").rename(folder / "gone")
    status, mail = night()
    (folder / "gone").rename(folder / "rows.zarr")
    assert status == 1
    assert mail.startswith("retraining ended with status 1\n")
    assert (last_decision(mail)["status"], logged(folder)["exit_status"]) == ("failed", 1)
    assert "error: " in mail
    assert models.champion == 1


def unit(name: str, folder: Path) -> RawConfigParser:
    parsed = RawConfigParser(strict=True, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read_string(example(name, folder))
    return parsed


@pytest.mark.slow
def test_systemd_starts_it_and_takes_75_for_no_failure(folder: Path) -> None:
    service = unit("streamkern-retrain.service", folder)["Service"]
    assert service["WorkingDirectory"] == service["ReadWritePaths"] == str(folder)
    command = shlex.split(service["ExecStart"])

    def night() -> tuple[int, str]:
        done = executed(command, SYSTEMD, folder)
        return done.returncode, last_decision(done.stdout)["status"]

    status, said = night()
    assert (status, said in ("promoted", "unchanged")) == (0, True)
    with sk.Registry(folder / "models").lock():
        assert night() == (int(service["SuccessExitStatus"]), "failed")


def test_systemd_understands_the_units(folder: Path, tmp_path: Path) -> None:
    timer = unit("streamkern-retrain.timer", folder)
    assert timer["Install"]["WantedBy"] == "timers.target"
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    for name in ("streamkern-retrain.service", "streamkern-retrain.timer"):
        (tmp_path / name).write_text(example(name, folder), encoding="utf-8")
        done = subprocess.run(
            [analyze, "verify", "--man=no", tmp_path / name], capture_output=True, text=True, check=False
        )
        # Some complain of other units of the machine, or that there is no manager.
        assert [line for line in done.stderr.splitlines() if "streamkern" in line] == []
    calendar = [analyze, "calendar", timer["Timer"]["OnCalendar"]]
    assert "03:17:00" in subprocess.run(calendar, capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_a_night_left_with_a_dask_cluster_goes_on_when_the_client_has_gone(folder: Path) -> None:
    shutil.rmtree(folder / "models", ignore_errors=True)
    log, end = folder / "models/decisions.jsonl", time.monotonic() + 200
    with LocalCluster(
        n_workers=1, threads_per_worker=1, host="127.0.0.1", dashboard_address=":0", silence_logs=50
    ) as cluster:
        client = [sys.executable, SCHEDULERS / "dask_night.py", cluster.scheduler_address, folder]
        subprocess.run(client, check=True, timeout=200)
        while not log.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
    decision = json.loads(log.read_text(encoding="utf-8"))
    assert (decision["status"], sk.Registry(folder / "models").champion) == ("promoted", 1)


def test_every_scheduler_gives_the_same_command() -> None:
    for name in ("crontab", "streamkern-retrain.service", "airflow_dag.py"):
        assert COMMAND in (SCHEDULERS / name).read_text(encoding="utf-8")
    words = re.findall(r'"([^"]*)"', (SCHEDULERS / "prefect_flow.py").read_text(encoding="utf-8"))
    at = words.index("retrain")
    assert words[at : at + 5] == COMMAND.split()[1:]


def other_python(name: str) -> str:
    found = os.environ.get(name)
    if found is None:
        pytest.skip(f"{name} names no interpreter")
    return found


def test_airflow_runs_the_dag(folder: Path) -> None:
    python = other_python("AIRFLOW_PYTHON")
    environment = {
        **CRON, "NIGHTLY": str(folder), "AIRFLOW_HOME": str(folder / "airflow"), "PYTHONPATH": str(SCHEDULERS),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "AIRFLOW__CORE__DAGS_FOLDER": str(SCHEDULERS),
    }  # fmt: skip
    migrated = executed([python, "-m", "airflow", "db", "migrate"], environment, folder)
    assert migrated.returncode == 0, migrated.stdout

    def night() -> str:
        done = executed([python, "-m", "airflow", "dags", "test", "streamkern_retrain"], environment, folder)
        assert done.returncode == 0, done.stdout
        return done.stdout

    shutil.rmtree(folder / "models", ignore_errors=True)
    assert "promoted, champion 1" in night()
    with sk.Registry(folder / "models").lock():
        assert "Skipping" in night()


PREFECT = """
import sys
import prefect_flow
state = prefect_flow.night(sys.argv[1], return_state=True)
print(state.name, state.result(raise_on_failure=False))
"""


def test_prefect_runs_the_flow(folder: Path) -> None:
    python = other_python("PREFECT_PYTHON")
    environment = {
        **CRON, "PREFECT_HOME": str(folder / "prefect"), "PYTHONPATH": str(SCHEDULERS),
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "900",
    }  # fmt: skip

    def night() -> str:
        done = executed([python, "-c", PREFECT, str(folder)], environment, folder)
        assert done.returncode == 0, done.stdout
        return done.stdout

    assert "Completed {'time'" in night()  # the decision
    with sk.Registry(folder / "models").lock():
        assert "Skipped None" in night()
