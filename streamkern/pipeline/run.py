"""A run: a directory with a lock, a manifest, stage results, events, ``result.json`` and ``model.zarr``."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from streamkern.errors import BusyError, NumericalError, StorageError, StreamkernError
from streamkern.events import EventLog, Listener
from streamkern.execute import open_executor
from streamkern.memory import default_budget, parse_bytes, peak_resident, resident
from streamkern.model import KernelMachine
from streamkern.pipeline.pipeline import Pipeline
from streamkern.pipeline.stages import Stages
from streamkern.solvers import Problem
from streamkern.solvers.footprint import footprint
from streamkern.storage.base import digest


def run(
    pipeline: Pipeline,
    run_dir: str | os.PathLike[str] | None = None,
    *,
    memory: str | int | None = None,
    threads: int | None = None,
    scheduler: str = "threads",
    listeners: tuple[Listener, ...] = (),
) -> dict[str, Any]:
    """Train a pipeline.

    Args:
        pipeline: the definition.
        run_dir: where to keep what the run makes; ``runs/NAME`` by default. A later run in the same directory takes
            over the stages that have not changed.
        memory: bytes the process may hold, or a size such as ``"8GiB"``; half of the machine's by default.
        threads: threads of the ``threads`` scheduler; the process's cores by default.
        scheduler: ``threads``, ``processes``, ``processes:N`` or the address of a Dask scheduler.
        listeners: told of every event.

    Returns:
        What is written to ``result.json``.

    Raises:
        PlanRefusedError: the run would not fit the memory; nothing has been written but the manifest.
        BusyError: another run holds the directory.
        NumericalError: training diverged or stagnated.
        StreamkernError: any other failure, told by its class.
    """
    folder = Path(run_dir) if run_dir is not None else Path("runs") / (pipeline.name or "run")
    budget = default_budget() if memory is None else parse_bytes(memory)
    _make(folder)
    with _locked(folder), EventLog(folder / "events.jsonl", listeners) as events:
        _write_json(folder / "manifest.json", _manifest(pipeline, budget, scheduler))
        events.emit("run", state="begin", name=pipeline.name, run_dir=str(folder))
        timings: list[dict[str, Any]] = []
        started = time.perf_counter()
        try:
            result = _train(pipeline, folder, budget, threads, scheduler, events, timings)
        except BaseException as error:
            status = "diverged" if isinstance(error, NumericalError) else "failed"
            if isinstance(error, KeyboardInterrupt):
                status = "interrupted"
            failure = {
                "status": status,
                "error": str(error) if isinstance(error, StreamkernError) else f"{type(error).__name__}: {error}",
                "stages": timings,
                "seed": pipeline.seed,
                "peak_memory_bytes": peak_resident(),
            }
            # The disk may be what failed: the error that is on its way must not be replaced by a second one.
            _write_json(folder / "result.json", failure, quietly=True)
            events.emit("run", state=status, error=failure["error"])
            raise
        result["seconds"] = time.perf_counter() - started
        _write_json(folder / "result.json", result)
        events.emit("run", state="done", result=result)
        return result


def _train(
    pipeline: Pipeline,
    folder: Path,
    budget: int,
    threads: int | None,
    scheduler: str,
    events: EventLog,
    timings: list[dict[str, Any]],
) -> dict[str, Any]:
    with open_executor(scheduler, threads) as executor:
        p = pipeline.centers.count(pipeline.train)
        pipeline.train.require_rows()
        fits = footprint(
            pipeline.train,
            p,
            OUTPUTS_GUESS,
            pipeline.solver,
            budget=budget,
            baseline=resident(),
            slots=executor.slots,
            lanes=pipeline.lanes,
            itemsize=4 if pipeline.dtype == "float32" else 8,
        )
        events.emit("memory", projected=fits.peak, budget=budget, stages=fits.stages)
        stages = Stages(pipeline, executor, events, folder / "stages", timings)
        facts = stages.statistics(pipeline.train)
        assert facts.encoding is not None
        train_set, validation, test = stages.prepared(facts)
        centers = stages.centers(train_set)
        problem = Problem(
            train_set,
            facts.encoding,
            pipeline.kernel,
            centers,
            executor,
            dtype=centers.Z.dtype,
            seed=pipeline.seed,
            lanes=pipeline.lanes,
            memory=fits.solver_bytes,
            cache_bytes=fits.cache_bytes,
            validation=validation,
        )
        outcome, report = stages.fit(problem, fits)
        model = KernelMachine(
            pipeline.kernel,
            centers.Z,
            outcome.weights,
            facts.encoding,
            train_set.factor,
            train_set.shift,
            train_set.source.columns,
            {"pipeline": pipeline.name, "rows": outcome.rows, "passes": outcome.passes, "data": train_set.fingerprint},
        )
        metrics = stages.evaluate(model, digest(model.weights_sha256, train_set.fingerprint), train_set, test)
        started = time.perf_counter()
        model.save(folder / "model.zarr")
        timings.append({"name": "save", "seconds": time.perf_counter() - started, "cached": False})
        return {
            "status": "done",
            "metrics": metrics,
            "stages": timings,
            "samples_per_second": outcome.rows / max(outcome.seconds, 1e-9),
            "data_wait_fraction": outcome.wait,
            "peak_memory_bytes": peak_resident(),
            "projected_memory_bytes": fits.peak,
            "memory_budget_bytes": budget,
            "weights_sha256": model.weights_sha256,
            "n_rows": len(train_set),
            "n_centers": len(centers.Z),
            "solver": pipeline.solver.to_json()["name"],
            "solver_report": report,
            "history": outcome.history,
            "seed": pipeline.seed,
            "executor": executor.name,
        }


OUTPUTS_GUESS = 16
"""Outputs assumed before the labels are known; they weigh little beside the centers."""


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the directory. The lock goes with the process, so that a dead run never leaves one behind."""
    with (folder / ".lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            raise BusyError(
                f"Another run holds this directory (process {file.read().strip() or 'unknown'}).",
                where=str(folder),
                remedy="wait for it, or give another --run-dir",
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _manifest(pipeline: Pipeline, budget: int, scheduler: str) -> dict[str, Any]:
    return {
        "name": pipeline.name,
        "train": {"fingerprint": pipeline.train.fingerprint, "rows": len(pipeline.train)},
        "kernel": pipeline.kernel.to_json(),
        "centers": pipeline.centers.to_json(),
        "solver": pipeline.solver.to_json(),
        "seed": pipeline.seed,
        "lanes": pipeline.lanes,
        "dtype": pipeline.dtype,
        "memory": budget,
        "scheduler": scheduler,
        "versions": {name: version(name) for name in ("streamkern", "numpy", "numba", "scipy", "zarr")},
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"The run directory cannot be made: {error.strerror}.", where=str(folder), remedy="give another --run-dir"
        ) from error


def _write_json(path: Path, data: dict[str, Any], quietly: bool = False) -> None:
    """Write by one rename, so that a reader sees the old file or the new one."""
    staging = path.with_name(f".{path.name}.tmp")
    try:
        with staging.open("w", encoding="utf-8") as file:
            json.dump(data, file, indent=1, default=str)
            file.flush()
            os.fsync(file.fileno())
        os.replace(staging, path)
    except OSError as error:
        if not quietly:
            raise StorageError(
                f"{path.name} could not be written: {error.strerror}.",
                where=str(path),
                remedy="free space; earlier results are unchanged",
            ) from error
