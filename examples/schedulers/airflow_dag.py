"""Airflow: a DAG of one night. Put it into the DAGs folder; NIGHTLY names the directory, /srv/nightly by default.

Airflow needs no streamkern of its own: the command runs in the environment ``.venv`` of that directory. Status 75, the
registry is busy, skips the night; any other but 0 fails the task. The last line of stdout, the decision, is its XCom.
"""

import json
import os
from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

with DAG(
    "streamkern_retrain",
    schedule="17 3 * * *",
    start_date=datetime(2025, 1, 1),
    catchup=False,  # one night makes up for all that were missed
    max_active_runs=1,
):
    retrain = BashOperator(
        task_id="retrain",
        bash_command=".venv/bin/streamkern retrain nightly.py --registry models --quiet",
        cwd=os.environ.get("NIGHTLY", "/srv/nightly"),
        skip_on_exit_code=75,
        retries=1,  # goes on from the checkpoint
        retry_delay=timedelta(minutes=10),
        execution_timeout=timedelta(hours=4),
    )

    @task
    def decided(line: str) -> dict:
        """The decision; what follows a promotion (a restart of the service, a message) goes here."""
        decision = json.loads(line)
        print(f"{decision['status']}, champion {decision['champion']}: {'; '.join(decision['reasons'])}")
        return decision

    decided(retrain.output)
