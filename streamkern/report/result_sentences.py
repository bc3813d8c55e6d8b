"""Sentences on a run's result: the model, its accuracy compared with a baseline, and advice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamkern.progress import duration_text
from streamkern.report.run_directory import RunDirectory
from streamkern.report.run_status import LOSSES, advice, error_of
from streamkern.types import Array


def result_sentence(record: RunDirectory) -> str:
    """Return one sentence on the run."""
    if record.state == "running":
        return f"Still running: {_what(record)}."
    if record.state == "dead":
        return f"Dead: the process that was training {_what(record)} ended without a result."
    assert record.result is not None
    seconds = record.result.get("seconds")
    took = "" if seconds is None else f", {duration_text(seconds)}"
    if record.state != "done":
        error = str(record.result.get("error") or "no reason is recorded").splitlines()[0].rstrip(".")
        words = {"refused": "Refused before it began", "interrupted": "Interrupted", "diverged": "Diverged"}
        return f"{words.get(record.state, 'Failed')}: {_what(record)}. {error}."
    return f"Done: {_what(record)}{took}; {accuracy_text(record)}."


def accuracy_text(record: RunDirectory) -> str:
    """Return the accuracy of the model and of the baseline, in words."""
    part = "test" if "test" in record.metrics else "train"
    if part not in record.metrics:
        return "no rows were scored"
    found, n = record.metrics[part], record.metrics[part]["n"]
    base = baseline(record, part)
    if "accuracy" in found:
        low, high = wilson_interval(found["accuracy"], n)
        against = "" if base is None else f", where always answering the commonest class is right on {base:.1%}"
        return (
            f"it is right on {found['accuracy']:.2%} of {n:,} {part_word(part)} rows "
            f"(95% interval {low:.2%} to {high:.2%}){against}"
        )
    error, name = error_of(found)
    if name in LOSSES.values():
        return f"its {name} on {n:,} {part_word(part)} rows is {error:.4g}"
    against = "" if base is None else f", where always answering their mean has {base:.4g}"
    r2 = f" (r² {found['r2']:.4f})" if "r2" in found else ""
    return f"its root mean squared error on {n:,} {part_word(part)} rows is {math.sqrt(found['mse']):.4g}{against}{r2}"


def next_steps(record: RunDirectory) -> list[str]:
    """Return advice: the remedy of a failure, or steps that the numbers suggest."""
    result = record.result or {}
    lines = (line.strip() for line in str(result.get("error") or "").splitlines())
    steps = [f"{line.partition(':')[2].strip()}." for line in lines if line.startswith("do:")]
    suggestion = advice(record)
    if record.state != "done":
        return [*steps, *([f"{suggestion}."] if suggestion else [])]
    history = result.get("history") or []
    train, test = record.metrics.get("train", {}), record.metrics.get("test", {})
    if not test:
        steps.append("No test rows: give Pipeline(test=...) to know how good the model is on rows it has not seen.")
    base = baseline(record, "test")
    if base is not None and "accuracy" in test and test["accuracy"] <= base + 0.01:
        steps.append(
            'No better than the commonest class: look at labels, scaling (scaling="standard") and bandwidth first.'
        )
    if "r2" in test and test["r2"] <= 0.01:
        steps.append('No better than the mean: look at the target, scaling (scaling="standard") and bandwidth first.')
    high_share = 0.05  # a gap in accuracy, or a share of time, that is mentioned
    if "accuracy" in train and "accuracy" in test and train["accuracy"] - test["accuracy"] > high_share:
        gap = 100 * (train["accuracy"] - test["accuracy"])
        steps.append(
            f"Training rows score {gap:.1f} points above test rows: more rows, augmentation, a larger bandwidth, or "
            "validation rows with a patience may close some of it."
        )
    steps += (result.get("solver_report") or {}).get("warnings", [])
    losses = [entry["loss"] for entry in history]  # the first pass's is mostly the loss of the start
    falling_ratio = 0.97  # a loss below this share of the previous pass's is still falling
    if len(losses) > 2 and losses[-1] < falling_ratio * losses[-2]:
        steps.append(
            f"The training loss still fell by {1 - losses[-1] / losses[-2]:.0%} in the last pass: more passes "
            "(epochs) may help."
        )
    waiting = result.get("data_wait_fraction", 0.0)
    seconds = sum(entry["seconds"] for entry in result.get("stages", []) if entry["name"] == "train")
    if waiting > 4 * high_share and seconds > 10:
        steps.append(f"Training waited for data {waiting:.0%} of the time: streamkern ingest gives a faster layout.")
    return steps


def baseline(record: RunDirectory, part: str) -> float | None:
    """Return the baseline without features: accuracy of the most frequent class, or RMSE of the mean."""
    metrics = record.metrics.get(part, {})
    if "accuracy" in metrics:
        counts = record.evaluation[0].get(f"{part}_confusion")
        return None if counts is None else float(counts.sum(axis=1).max() / counts.sum())
    if metrics.get("r2", 1.0) < 1.0 and len(record.encoding.get("mean", [])) == 1:
        return math.sqrt(metrics["mse"] / (1 - metrics["r2"]))
    return None


def part_word(part: str) -> str:
    """Return the word for scored rows, ``train`` or ``test``."""
    return {"train": "training"}.get(part, part)


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's 95% interval (1927) of a share of n rows."""
    z = 1.96
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def frequent_confusions(counts: Array, names: list[str]) -> list[tuple[str, str, int]]:
    """Return the five most frequent pairs of (class, predicted class), in order."""
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:5]
    pairs = (divmod(int(flat), len(counts)) for flat in order)
    return [(names[i], names[j], int(wrong[i, j])) for i, j in pairs if wrong[i, j]]


def _what(record: RunDirectory) -> str:
    manifest, result = record.manifest, record.result or {}
    solver = record.solver.get("name", "a model")
    if (result.get("solver_report") or {}).get("partition", {}).get("leaves", 1) > 1:
        solver = f"{result['solver_report']['partition']['leaves']:,} leaves"
    rows = (manifest.get("train") or {}).get("rows")
    on = "" if rows is None else f" on {rows:,} rows"
    passes = len(result.get("history") or [])
    on += f", {passes} {'pass' if passes == 1 else 'passes'}" if passes else ""
    return f"{solver} with {basis_text(manifest, result)}{on}"


def basis_text(manifest: dict[str, Any], result: dict[str, Any]) -> str:
    """Describe the basis functions: ``1,000 centers of a Laplace kernel (bandwidth 2)``."""
    features = manifest.get("features")
    if features:
        return f"{features.get('name', 'features')} features"
    kernel = result.get("kernel") or manifest.get("kernel")
    count = result.get("n_centers", (manifest.get("centers") or {}).get("p"))
    name = "the default kernel" if not kernel else f"a {kernel.get('name')} kernel"
    if kernel and "bandwidth" in kernel:
        found = kernel["bandwidth"]
        name += f" (bandwidth {found if isinstance(found, str) else format(found, '.4g')})"
    return f"{count:,} centers of {name}" if isinstance(count, int) else name
