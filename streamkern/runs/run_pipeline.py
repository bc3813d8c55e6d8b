"""Carry out a run of a pipeline, or resume it.

Its directory has a lock, a manifest, stage results, events, ``result.json`` and ``model.zarr``.
"""

from __future__ import annotations

import json
import math
import os
import platform
import secrets
import signal
import time
from contextlib import chdir, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from streamkern.costs.footprint import Footprint
from streamkern.data.dataset import require_unchanged
from streamkern.defaults import CHECKPOINT_SECONDS
from streamkern.errors import (
    NumericalError,
    PlanRefusedError,
    PrecisionError,
    StorageError,
    StreamkernError,
    UsageError,
)
from streamkern.events import EventLog, Listener
from streamkern.execute import open_executor
from streamkern.execute.base import Executor, WorkerCounts
from streamkern.fitting.device_placement import device_for
from streamkern.fitting.memory_projection import preprocessing_steps
from streamkern.fitting.precision_checks import in_float64
from streamkern.fitting.recipe import AUTO
from streamkern.memory import memory_limit, peak_resident_bytes, resident_bytes
from streamkern.partition.one_or_leaves import fit_one_or_leaves, resolve_with_held_out
from streamkern.progress import display_if_verbose
from streamkern.redaction import redacted
from streamkern.resources import Resources, given_resources, scheduler_name
from streamkern.runs.caching_runner import CachingRunner
from streamkern.runs.pipeline_definition import Pipeline, load_pipeline
from streamkern.runs.results import RunResult
from streamkern.runs.run_stages import after_fit
from streamkern.sources.remote_store import REQUEST_COUNTS
from streamkern.storage.atomic_writes import locked, read_json, tidy, write_json
from streamkern.storage.untrusted_files import given_path
from streamkern.user_code_digest import unknown_code, user_code_identities
from streamkern.version import version_of


def run(
    pipeline: Pipeline,
    run_dir: str | os.PathLike[str] | None = None,
    *,
    memory: str | int | None = None,
    threads: int | None = None,
    resources: Resources | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    listeners: tuple[Listener, ...] = (),
    verbose: int = 0,
) -> RunResult:
    """Train a pipeline. If a run of the same pipeline in the same directory was interrupted, resume it.

    Args:
        pipeline: a ``Pipeline``, which defines data, model and solver.
        run_dir: directory for the files of the run; by default ``runs/NAME``, with the name of the pipeline. A run has
            stages, such as preprocessing and training. A later run in the same directory reuses the results of stages
            that have not changed.
        memory: memory limit of the process in bytes, or a size such as ``"8GiB"``; by default, half of the machine's
            memory.
        threads: threads of this process; by default, its number of cores.
        resources: a ``Resources``, for another scheduler or device. None: threads of this process, and a GPU of a kind
            that this library was measured on (docs/gpu.md).
        checkpoint_seconds: seconds between two checkpoints of the training.
        listeners: functions ``f(kind, fields)`` that are called at each event, such as a step of the training. ``kind``
            is a string, and ``fields`` is a dict.
        verbose: 1 shows the progress on standard error; 0 shows nothing.

    Returns:
        A dict of the results, as in the file ``result.json`` in ``run_dir``. The dict has attributes for the main
        results, such as ``metrics``.

    Raises:
        PlanRefusedError: the run would exceed ``memory``. The result of a finished earlier run is unchanged.
        BusyError: another run has locked the directory.
        MemoryLimitError: the process exceeded its memory limit during training; its last checkpoint is kept.
        NumericalError: training diverged or stagnated.
        UsageError: ``pipeline`` is not a Pipeline, ``memory`` cannot be parsed or differs from that of ``resources``,
            or ``checkpoint_seconds`` is negative.
        StreamkernError: any other failure; see its subclasses.
    """
    if not isinstance(pipeline, Pipeline):
        raise UsageError(
            f"The pipeline is {pipeline!r}.", where="run(pipeline)", expected="a Pipeline; load_pipeline reads a file"
        )
    if math.isnan(checkpoint_seconds) or checkpoint_seconds < 0:
        raise UsageError(
            f"checkpoint_seconds is {checkpoint_seconds}.", where="checkpoint_seconds", expected="0 or more"
        )
    folder = Path(given_path(run_dir)) if run_dir is not None else Path("runs") / (pipeline.name or "run")
    given = given_resources(resources, memory, threads)
    with (
        display_if_verbose(verbose) as display,
        locked(folder),
        EventLog(folder / "events.jsonl", (*listeners, *([display] if display else [])), _resource_fields) as events,
    ):
        return _run(pipeline, folder, given, checkpoint_seconds, events)


def _run(pipeline: Pipeline, folder: Path, given: Resources, checkpoint_seconds: float, events: EventLog) -> RunResult:
    """Carry the run out, in a directory that is locked; its result is written, whatever happens."""
    for parent in (folder, folder / "stages", *(folder / "checkpoints").glob("*")):
        tidy(parent)
    earlier, result = read_json(folder / "manifest.json"), read_json(folder / "result.json") or {}
    # The last complete result, of ``model.zarr``. A failed run carries it on, so that it is not lost.
    before = result if result.get("status") == "done" else result.get("last_done")
    finished, manifest = earlier if _is_done(earlier, result) else None, _manifest(pipeline, given, checkpoint_seconds)
    changed = [] if earlier is None or finished else _changed(folder, earlier, manifest)
    write_json(folder / "manifest.json", manifest)
    events.emit("run", state="begin", name=pipeline.name, run_dir=str(folder))
    _warn_of_pipeline(pipeline, changed, events)
    reuse = unknown_code_of(pipeline) is None
    runner = CachingRunner(pipeline, folder, events, given.budget, checkpoint_seconds, reuse)
    started = time.perf_counter()
    try:
        with memory_limit(given.budget):
            _train(runner, given)
    except BaseException as error:
        status = next((word for kind, word in _STATUS if isinstance(error, kind)), "failed")
        failure = runner.trained | {
            "status": status,
            "run": manifest["run"],
            "error": redacted(_in_words(error)),
            "stages": runner.timings,
            "seed": pipeline.seed,
            "peak_memory_bytes": peak_resident_bytes(),
            "last_done": None if runner.trained else before,  # the run that trained model.zarr
        }
        # If the disk failed, a second error must not replace the first.
        with suppress(StorageError):
            if status == "refused" and finished is not None:
                write_json(folder / "manifest.json", finished)  # of the run that result.json still describes
            else:
                write_json(folder / "result.json", failure)
        events.emit("run", state=status, error=failure["error"])
        raise
    result = {"status": "done", **runner.measured, "stages": runner.timings, **runner.trained}
    result |= {"run": manifest["run"], "seconds": time.perf_counter() - started}
    write_json(folder / "result.json", result)
    events.emit("run", state="done", result=result)
    return RunResult(result, folder)


def unknown_code_of(pipeline: Pipeline) -> str | None:
    """Why edits of the user's functions cannot be detected, a sentence; None if they can.

    If they cannot, no result of an earlier run is reused.
    """
    data = [each for each in (pipeline.train, pipeline.test, pipeline.validation) if each is not None]
    rows = [(each.rules, each.transforms, each.augmentations) for each in data]
    parts = (pipeline.kernel, pipeline.centers, pipeline.solver, pipeline.features, pipeline.preprocess)
    return unknown_code(*rows, *parts)


def _warn_of_pipeline(pipeline: Pipeline, changed: list[str], events: EventLog) -> None:
    """Tell what of an earlier run is not gone on with, and which rows are left out."""
    if changed:
        events.emit(
            "warning",
            message=f"{', '.join(changed)} of the pipeline changed since the run that was interrupted here: "
            "training starts again",
        )
    if unknown := unknown_code_of(pipeline):
        events.emit(
            "warning", message=f"nothing of an earlier run is reused, and this one keeps no checkpoint: {unknown}"
        )
    for each in pipeline.train.quarantine:
        events.emit("warning", message=f"left out, {each.where}: {each.why}", rows=[each.start, each.stop])


def resume(
    run_dir: str | os.PathLike[str],
    *,
    memory: str | int | None = None,
    threads: int | None = None,
    resources: Resources | None = None,
    listeners: tuple[Listener, ...] = (),
    verbose: int = 0,
) -> RunResult:
    """Resume an interrupted run with the same settings. A finished run is not changed.

    The run must be of a pipeline file, a Python file that defines a function ``pipeline``. The run continues in the
    working directory where it was started, so that relative paths keep their meaning.

    Args:
        run_dir: directory of the run.
        memory: as for ``run``; by default, as before the interruption.
        threads: as for ``run``; by default, as before.
        resources: a ``Resources``; by default, as before. Its scheduler replaces the earlier scheduler. Its memory,
            threads and device replace the earlier values unless they are None or ``"auto"``.
        listeners: as for ``run``.
        verbose: as for ``run``.

    Returns:
        A dict of the results, as in the file ``result.json`` in ``run_dir``. The dict has attributes for the main
        results, such as ``metrics``.

    Raises:
        UsageError: there is no run here, it is not a run of a pipeline file, or its working directory is gone.
        StreamkernError: as ``run``.
    """
    given, folder = given_resources(resources, memory, threads), Path(given_path(run_dir))
    manifest = read_json(folder / "manifest.json")
    if manifest is None:
        raise UsageError(
            "There is no run here: manifest.json cannot be read.",
            where=str(folder),
            expected="a directory that streamkern run has made",
            remedy="check the path",
        )
    if not manifest.get("file"):
        raise UsageError(
            "This run was not started from a pipeline file.",
            where=str(folder),
            expected="a run of streamkern run PIPELINE",
            remedy="call sk.run with the same pipeline and run_dir: it resumes where this run ended",
        )
    if any("***" in value for value in manifest["settings"].values()):
        raise UsageError(
            "The settings of this run had a secret, which was not saved.",
            where=str(folder / "manifest.json"),
            expected="settings that can be kept",
            remedy="run it again with the same settings and --run-dir: it resumes where this run ended",
        )
    with locked(folder):
        result = read_json(folder / "result.json") or {}
    if _is_done(manifest, result):
        return RunResult(result, folder)
    place = Path(manifest.get("directory", ""))
    if not place.is_dir():
        raise UsageError(
            "The working directory of this run is gone.",
            where=str(place),
            expected="the directory in which the run was started",
            remedy="call streamkern run with the pipeline file and this --run-dir: it resumes where this run ended",
        )
    folder = folder.absolute()
    with chdir(place):
        pipeline = load_pipeline(manifest["file"], manifest["settings"])
        if unknown := unknown_code_of(pipeline):
            raise UsageError(
                f"This run cannot be resumed: {unknown}",
                where=manifest["file"],
                expected="functions whose code, and all that it refers to, can be compared with the earlier run's",
                remedy="remove it from the function; or start again with streamkern run, which then reuses no result",
            )
        return run(
            pipeline,
            folder,
            resources=replace(
                given,
                memory=given.memory or manifest["memory"],
                threads=given.threads or manifest["threads"],
                scheduler=manifest["scheduler"] if resources is None else given.scheduler,
                device=manifest.get("device", "cpu") if given.device == "auto" else given.device,
            ),
            checkpoint_seconds=manifest["checkpoint_seconds"],
            listeners=listeners,
            verbose=verbose,
        )


def _train(runner: CachingRunner, given: Resources) -> None:
    with open_executor(given.scheduler, given.threads) as executor:
        _announce(executor, runner.events)
        try:
            _fit(runner.pipeline, executor, given, runner)
        except PrecisionError as error:
            pipeline, runner.arithmetic = in_float64(runner.pipeline, error)
            _fit(pipeline, executor, given, runner)
        runner.prune()
        runner.trained["peak_memory_bytes"] = peak_resident_bytes()
        if "workers" in runner.trained:  # with those lost in the evaluation
            runner.trained["workers"] = executor.members.to_json()


def _fit(pipeline: Pipeline, executor: Executor, given: Resources, runner: CachingRunner) -> None:
    def on_plan(projected: Footprint) -> None:
        runner.events.emit("memory", projected=projected.peak, budget=given.budget, stages=projected.stages)

    recipe, reason = resolve_with_held_out(pipeline, given.budget, given.device)
    if reason:
        runner.choice(reason, solver=AUTO if recipe.solver == AUTO else recipe.solver.to_json())
    device = runner.device = device_for(recipe, given.device)
    require_unchanged(recipe.train, recipe.validation)  # and again before the model is saved
    folder = runner.folder / "scattered"
    fit_one_or_leaves(recipe, executor, given.budget, runner, on_plan, device, folder, after_fit)


def _announce(executor: Executor, events: EventLog) -> None:
    """Tell of workers, and of what might make results differ."""
    events.facts = partial(_resource_fields, executor.request_counts)
    workers = executor.members.to_json()
    if executor.dashboard is not None or workers:
        events.emit("cluster", dashboard=executor.dashboard, slots=executor.slots, workers=workers)
    executor.members.on_loss = lambda message: events.emit("warning", message=message)
    for doubt in executor.doubts():
        events.emit("warning", message=doubt)


def _in_words(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return f"stopped by {signal.Signals(error.args[0] if error.args else signal.SIGINT).name}"
    return str(error) if isinstance(error, StreamkernError) else f"{type(error).__name__}: {error}"


_STATUS = ((PlanRefusedError, "refused"), (NumericalError, "diverged"), (KeyboardInterrupt, "interrupted"))


def _resource_fields(counts: WorkerCounts | None = None) -> dict[str, Any]:
    """Memory in bytes, and requests to remote stores, workers' included, for every line of the event log."""
    store: dict[str, Any] = REQUEST_COUNTS.now()
    if workers := {} if counts is None else counts.by_worker():
        store = {name: here + sum(each[name] for each in workers.values()) for name, here in store.items()}
        store["workers"] = workers
    memory = {"resident_bytes": resident_bytes(), "peak_bytes": peak_resident_bytes()}
    return memory | ({"store": store} if store["requests"] else {})


def _is_done(manifest: dict[str, Any] | None, result: dict[str, Any]) -> bool:
    return manifest is not None and result.get("status") == "done" and result.get("run") == manifest.get("run")


def _manifest(pipeline: Pipeline, given: Resources, checkpoint_seconds: float) -> dict[str, Any]:
    parts = {
        name: getattr(pipeline, name) for name in ("kernel", "centers", "features", "metric", "partition", "solver")
    }
    return {
        "run": secrets.token_hex(8),
        "name": pipeline.name,
        "file": pipeline.file,
        "directory": os.getcwd(),
        "settings": dict(pipeline.settings),
        "train": {
            "fingerprint": pipeline.train.fingerprint,
            "rows": len(pipeline.train),
            "augmentations": [augmentation.to_json() for augmentation in pipeline.train.augmentations],
            "quarantine": [each._asdict() for each in pipeline.train.quarantine],
        },
        **{name: part if part in (None, AUTO) else part.to_json() for name, part in parts.items()},
        "class_weight": pipeline.class_weight if pipeline.class_weight is None else str(pipeline.class_weight),
        "threshold": pipeline.threshold,
        "preprocess": [step.to_json() for step in preprocessing_steps(pipeline)],
        "code": {
            name: [identity.digest for identity in user_code_identities(getattr(pipeline, name))]
            for name in ("kernel", "centers", "features", "solver", "preprocess")
        },
        "seed": pipeline.seed,
        "lanes": pipeline.lanes,
        "dtype": pipeline.dtype,
        "memory": given.budget,
        "scheduler": scheduler_name(given.scheduler),
        "threads": given.threads,
        "device": given.device,
        "checkpoint_seconds": checkpoint_seconds,
        "versions": {name: version_of(name) for name in ("streamkern", "numpy", "numba", "scipy", "zarr")},
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


_TRAINING = (
    *("train", "kernel", "centers", "features", "metric", "partition", "solver", "class_weight", "preprocess"),
    *("code", "seed", "lanes", "dtype"),
)


def _changed(folder: Path, before: dict[str, Any], manifest: dict[str, Any]) -> list[str]:
    """Differences between the run that is about to begin and one that was interrupted in its training here."""
    if not any((folder / "checkpoints").glob("*/[0-9]*")):
        return []
    now = redacted(json.loads(json.dumps(manifest, default=str)))
    return [name for name in _TRAINING if before.get(name) != now[name]]
