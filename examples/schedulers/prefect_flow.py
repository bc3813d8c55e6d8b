"""Prefect: a flow of one night. ``python prefect_flow.py`` serves it every night at 3:17; NIGHTLY names the directory.

Prefect needs no streamkern of its own: the command runs in the environment ``.venv`` of that directory. Status 75, the
registry is busy, is a night that was skipped; any other but 0 fails the flow.
"""

import json
import os
import subprocess

from prefect import flow, get_run_logger, task
from prefect.states import Completed, State

BUSY = 75


@task(retries=1, retry_delay_seconds=600, timeout_seconds=4 * 3600)  # a second attempt goes on from the checkpoint
def retrain(folder: str) -> dict:
    """The decision, which is the last line of stdout."""
    command = [f"{folder}/.venv/bin/streamkern", "retrain", "nightly.py", "--registry", "models", "--quiet"]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, BUSY):
        raise RuntimeError(f"retraining ended with status {done.returncode}: {done.stdout.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


@flow(name="streamkern-retrain")
def night(folder: str = os.environ.get("NIGHTLY", "/srv/nightly")) -> dict | State:
    """One night."""
    decision = retrain(folder)
    if decision["exit_status"] == BUSY:
        return Completed(name="Skipped", message="; ".join(decision["reasons"]))
    get_run_logger().info("%s, champion %s", decision["status"], decision["champion"])
    return decision


if __name__ == "__main__":
    night.serve(name="nightly", cron="17 3 * * *")
