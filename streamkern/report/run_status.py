"""The state of a run: running, ended, or dead without a result."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from streamkern.memory import format_bytes
from streamkern.progress import duration_text
from streamkern.report.run_directory import RunDirectory

LOSSES = {"poisson_deviance": "Poisson deviance", "pinball_loss": "pinball loss"}
"""Metrics of losses other than squares, in words."""
_SHOWN = ("accuracy", "auc", "log_loss", "ece", *LOSSES, "r2", "mae", "mse")


def error_of(metrics: Mapping[str, Any]) -> tuple[float, str]:
    """Return the error that a model of values or classes minimises, and its name."""
    name = next((name for name in LOSSES if name in metrics), "mse")
    return float(metrics[name]), LOSSES.get(name, "squared error")


def status(record: RunDirectory) -> dict[str, Any]:
    """Return the state of a run, as JSON-serialisable data.

    Keys are ``state``, ``name``, ``run_dir``, ``advice`` (what to do, or None) and, as far as they are known:
    ``stage``, ``stage_seconds``, ``fraction`` of the training rows, ``pass`` and ``step``, ``loss``,
    ``rows_per_second``, ``eta_seconds``, ``memory`` (bytes), ``metrics``, ``error``, ``last_event``, ``seconds``,
    ``process``; and, on a cluster, ``workers``: ``worker`` (address), ``threads``, ``share`` of all threads, and the
    times ``came`` and ``lost``, or None.
    """
    now = time.time()
    found: dict[str, Any] = {"state": record.state, "name": record.name, "run_dir": str(record.folder)}
    found["advice"] = advice(record)
    if record.owner:
        found["process"] = record.owner
    began = record.of("run", "begin")
    if began:
        found["began"] = began[-1]["time"]
        last = record.events[-1]
        found["seconds"] = (now if record.state == "running" else last["time"]) - began[-1]["time"]
        found["last_event"] = {"time": last["time"], "event": _event_text(last)}
    at = record.unfinished if record.state in ("running", "dead") else None
    if at is not None:
        found |= {"stage": at["name"], "stage_seconds": now - at["time"]}
    found |= _progress(record)
    found["memory"] = _memory(record)
    if record.result is not None and record.state != "running":
        found |= {key: record.result[key] for key in ("metrics", "error", "seconds") if key in record.result}
    if record.earlier is not None and record.state != "done":
        found["earlier_metrics"] = record.earlier.get("metrics")
    if workers := _workers(record):
        found["workers"] = workers
    found["warnings"] = [event.get("message", "") for event in record.of("warning")]
    return found


def _workers(record: RunDirectory) -> list[dict[str, Any]]:
    began = record.of("cluster")
    found = (record.result or {}).get("workers") or (began[-1].get("workers", []) if began else [])
    total = sum(each["threads"] for each in found)
    return [each | {"share": each["threads"] / max(1, total)} for each in found]


def worker_in_words(worker: dict[str, Any]) -> str:
    """Return a worker of ``status`` as text: address, threads, share, and when it was lost."""
    lost = "" if worker["lost"] is None else f", lost {local_time(worker['lost'])}"
    return f"{worker['worker']}: {worker['threads']} threads, {worker['share']:.0%} of all{lost}"


def advice(record: RunDirectory) -> str | None:
    """Advice on a run, or None if it needs none."""
    folder = record.folder
    if record.state not in ("running", "done") and record.result is not None and "model" in record.result:
        model = shlex.quote(str(folder / record.result["model"]))
        return (
            f"the model is trained and saved: streamkern evaluate {model} DATA --target NAME scores it; or correct "
            f"the cause that the error names, and {_resume_hint(record)}, without training"
        )
    match record.state:
        case "running":
            return None
        case "done":
            return f"streamkern report {shlex.quote(str(folder))} draws a report; the model is {folder / 'model.zarr'}"
        case "refused":
            return "correct the cause that the error names and run again; nothing has been computed"
        case "diverged":
            return "correct the cause that the error names and run again; the stages before training are kept"
        case "interrupted" | "dead":
            return _resume_hint(record)
        case _:
            return f"correct the cause that the error names; then {_resume_hint(record)}"


def _resume_hint(record: RunDirectory) -> str:
    if record.manifest.get("file"):
        return f"streamkern resume {shlex.quote(str(record.folder))} continues from the kept results"
    return "sk.run with the same pipeline and run_dir continues from the kept results"


def status_text(found: dict[str, Any]) -> str:
    """Return a status as lines of text."""
    lines = [f"{found['name']}: {_headline(found)}"]

    def add(label: str, value: str | None) -> None:
        if value:
            lines.append(f"  {label:<9}{value}")

    if "fraction" in found and found["state"] != "done":
        of = f" of {found['passes']}" if found["passes"] else ""
        step = f", step {found['step']:,} of {found['steps']:,}" if found["steps"] else ""
        add("progress", f"{found['fraction']:.0%} of training, pass {found['pass']}{of}{step}")
        add("loss", f"{found['loss']:.4g}")
        add("speed", f"{found['rows_per_second']:,.0f} rows/s, {found['waiting']:.0%} of the time waiting for data")
        if found["state"] == "running":
            add("left", f"about {duration_text(found['eta_seconds'])} of training")
    for part, metrics in (found.get("metrics") or {}).items():
        add(part, metrics_in_words(metrics))
    words = {"resident": "held", "peak": "at the peak", "projected": "projected", "budget": "allowed"}
    held = found["memory"]
    add("memory", ", ".join(f"{format_bytes(held[key])} {word}" for key, word in words.items() if key in held))
    for worker in found.get("workers", ()):
        add("worker", worker_in_words(worker))
    error = str(found.get("error") or "").splitlines()
    add("error", "\n           ".join(line.strip() for line in error))
    for warning in found["warnings"]:
        add("warning", warning)
    if found["state"] == "dead" and "last_event" in found:
        add("last", f"{found['last_event']['event']}, {local_time(found['last_event']['time'])}")
    if found.get("earlier_metrics"):
        kept = "; ".join(f"{part} {metrics_in_words(m)}" for part, m in found["earlier_metrics"].items())
        add("kept", f"the model of the last complete run: {kept}")
    add("do", found["advice"])
    return "\n".join(lines) + "\n"


def _headline(found: dict[str, Any]) -> str:
    took = f" after {duration_text(found['seconds'])}" if "seconds" in found else ""
    match found["state"]:
        case "running":
            who = f" (process {found['process']})" if "process" in found else ""
            at = f", in {found['stage']} for {duration_text(found['stage_seconds'])}" if "stage" in found else ""
            return f"running{who} for {duration_text(found['seconds'])}{at}" if "seconds" in found else f"starting{who}"
        case "dead":
            return f"dead: it ended without a result{took}" + (f", in {found['stage']}" if "stage" in found else "")
        case state:
            return f"{state}{took}"


def metrics_in_words(metrics: dict[str, Any]) -> str:
    """Return metrics on a line, the most important first."""
    numbers = [f"{name} {metrics[name]:.4g}" for name in _SHOWN if metrics.get(name) is not None]
    return f"{', '.join(numbers)} ({metrics['n']:,} rows)"


def local_time(when: float) -> str:
    """Format a time in the local time zone."""
    return datetime.fromtimestamp(when).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def _progress(record: RunDirectory) -> dict[str, Any]:
    steps = record.steps
    if not steps:
        return {}
    last = steps[-1]
    total, rows = max(1, last["total_rows"]), last["rows"]
    recent_seconds = 30.0  # seconds over which the speed of a running run is averaged
    since = next(event for event in steps if last["time"] - event["time"] <= recent_seconds)
    lapse = last["time"] - since["time"]
    speed = (rows - since["rows"]) / lapse if lapse > 1 else rows / max(1e-9, last["seconds"])
    return {
        "fraction": rows / total,
        "rows": rows,
        "total_rows": total,
        "pass": last["pass_"] + 1,
        "passes": record.solver.get("epochs"),
        "step": last["step"],
        "steps": last["steps"],
        "loss": last["loss"],
        "rows_per_second": speed,
        "waiting": last["wait"],
        "eta_seconds": (total - rows) / speed if speed > 0 else 0.0,
    }


def _memory(record: RunDirectory) -> dict[str, int]:
    found: dict[str, int] = {}
    planned = record.of("memory")
    if planned:
        found |= {"budget": planned[-1]["budget"], "projected": planned[-1]["projected"]}
    elif "memory" in record.manifest:
        found["budget"] = record.manifest["memory"]
    held = [event for event in record.events if "resident_bytes" in event]
    if held:
        found |= {"resident": held[-1]["resident_bytes"], "peak": held[-1]["peak_bytes"]}
    if record.result is not None and "peak_memory_bytes" in record.result:
        found["peak"] = record.result["peak_memory_bytes"]
    return found


def _event_text(event: dict[str, Any]) -> str:
    match event["event"], event.get("state"):
        case "stage", "begin":
            return f"{event['name']} began"
        case "stage", _:
            return f"{event['name']} ended"
        case "step", _:
            return f"step {event['step']:,} of pass {event['pass_'] + 1}"
        case "run", state:
            return "the run began" if state == "begin" else f"the run ended: {state}"
        case kind, _:
            return str(kind)
