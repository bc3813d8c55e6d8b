"""Export of a run directory to MLflow: parameters, metrics by pass, results, and files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from streamkern.errors import StorageError, UsageError
from streamkern.evaluation.metrics import flat_metrics
from streamkern.report.run_directory import RunDirectory, read_run

_STATES = {"done": "FINISHED", "interrupted": "KILLED", "running": "RUNNING"}  # all other states are FAILED
_FILES = ("manifest.json", "result.json", "report.html")
_PARAMETERS = ("train", "kernel", "centers", "features", "solver", "preprocess", "seed", "lanes", "dtype", "memory")
_RESULTS = ("seconds", "samples_per_second", "data_wait_fraction", "peak_memory_bytes", "projected_memory_bytes")


def log_to_mlflow(
    run_dir: str | os.PathLike[str], uri: str | None = None, *, experiment: str = "streamkern", model: bool = False
) -> str:
    """Log a run to MLflow. A run that is already logged is not logged again.

    The parameters in MLflow are the settings of the pipeline. The metrics are the scores of training and test rows,
    loss and validation scores of every pass, memory and speed. A tag has the digest of the weights. The files
    ``manifest.json``, ``result.json`` and, if it exists, ``report.html`` are logged too.

    Args:
        run_dir: the run directory; training may have failed, but must have ended.
        uri: address of the tracking store, such as ``sqlite:///mlflow.db`` or ``http://host:5000``; by default from
            MLflow's environment variables.
        experiment: name of the experiment, created if it is missing.
        model: log the directory ``model.zarr``, too.

    Returns:
        MLflow's id of the run.

    Raises:
        UsageError: MLflow is not installed, the directory has no run, or the run has not ended.
        StorageError: the tracking store refuses the run.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException
    except ModuleNotFoundError as error:
        raise UsageError(
            f"Logging needs {error.name}.",
            where="log_to_mlflow",
            expected="the extra mlflow",
            remedy="pip install 'streamkern[mlflow]'",
        ) from error
    record = read_run(run_dir)
    if record.state == "running":
        raise UsageError(
            "The run has not ended.", where=str(run_dir), expected="a run that has ended", remedy="wait for its end"
        )
    try:
        return _logged(MlflowClient(tracking_uri=uri), record, experiment, model)
    except MlflowException as error:
        raise StorageError(
            f"MLflow's store refuses: {error}",
            where=uri or "the store of MLflow's environment",
            expected="a tracking store that takes runs",
            remedy="check the URI and MLflow's version",
        ) from error


def _logged(client: Any, record: RunDirectory, experiment: str, model: bool) -> str:
    """A run that is logged already is not logged again."""
    from mlflow.entities import Metric, Param, RunTag

    mark = str(record.manifest.get("run", ""))
    times = [int(1000 * event["time"]) for event in record.events] or [0]
    tags = {"streamkern.run": mark, "streamkern.state": record.state, "streamkern.run_dir": str(record.folder)}
    if "weights_sha256" in (result := record.result or {}):
        tags["streamkern.weights_sha256"] = str(result["weights_sha256"])
    found = client.get_experiment_by_name(experiment)
    number = client.create_experiment(experiment) if found is None else found.experiment_id
    there = client.search_runs([number], f"tags.`streamkern.run` = '{mark}'") if mark.isalnum() else []
    for each in there:
        if each.info.status != "RUNNING":
            return str(each.info.run_id)
        client.delete_run(each.info.run_id)  # left by a process that was killed during logging
    run = client.create_run(number, start_time=times[0], run_name=record.name).info.run_id
    client.log_batch(
        run,
        metrics=[Metric(name, value, times[-1], step) for name, value, step in _metrics(record)],
        params=[Param(name, value) for name, value in _parameters(record.manifest)],
        tags=[RunTag(name, value) for name, value in tags.items()],
    )
    for name in _FILES:
        if (record.folder / name).exists():
            client.log_artifact(run, str(record.folder / name))
    if model and (record.folder / "model.zarr").exists():
        client.log_artifacts(run, str(record.folder / "model.zarr"), "model.zarr")
    client.set_terminated(run, _STATES.get(record.state, "FAILED"), end_time=times[-1])
    return str(run)


def _parameters(manifest: dict[str, Any]) -> Iterator[tuple[str, str]]:
    given = {name: manifest[name] for name in _PARAMETERS if manifest.get(name) is not None}
    given |= {f"settings.{name}": value for name, value in manifest.get("settings", {}).items()}
    given |= {f"version.{name}": value for name, value in manifest.get("versions", {}).items()}
    longest = 500  # characters of a parameter that every MLflow store accepts
    for name, value in given.items():
        for key, part in value.items() if isinstance(value, dict) else [("", value)]:
            text = part if isinstance(part, str) else json.dumps(part)
            if text not in ("null", "[]"):
                yield (f"{name}.{key}" if key else name), text[:longest]


def _metrics(record: RunDirectory) -> Iterator[tuple[str, float, int]]:
    result = record.result or {}
    history = result.get("history", [])
    for entry in history:
        yield "loss", float(entry["loss"]), int(entry["pass"])
        for name, value in entry.get("validation", {}).items():
            yield f"validation.{name}", float(value), int(entry["pass"])
    for part, metrics in result.get("metrics", {}).items():
        for name, value in flat_metrics(metrics).items():
            if value is not None:
                yield f"{part}.{name}", float(value), len(history)
    for name in _RESULTS:
        if name in result:
            yield name, float(result[name]), len(history)
