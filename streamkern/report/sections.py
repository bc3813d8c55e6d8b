"""The sections of the page, from the files of a run; an empty section states the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from streamkern.memory import format_bytes
from streamkern.progress import duration_text
from streamkern.report.bokeh_plots import Level, Line, Plots, bins, draw, draw_histogram, number_text
from streamkern.report.calibration_section import by_label, calibration_section, evaluated
from streamkern.report.html_markup import (
    LARGEST_TABLE,
    NONE,
    PLOTTED_OUTPUTS,
    bar,
    confusion_table,
    details,
    image,
    table,
)
from streamkern.report.importance_section import importance_section
from streamkern.report.result_sentences import baseline, frequent_confusions, part_word
from streamkern.report.run_directory import RunDirectory
from streamkern.report.run_status import LOSSES, error_of, metrics_in_words, status
from streamkern.types import Array

_SHOWN_ELSEWHERE = ("spectrum", "eigenvalues", "time", "event", "resident_bytes", "peak_bytes")  # in other sections


class Section(NamedTuple):
    """A part of the page with a heading."""

    key: str
    title: str
    html: str


def run_sections(record: RunDirectory, plots: Plots, image_shape: tuple[int, ...] | None) -> list[Section]:
    """Return all sections of a run, and add the plots for their placeholders to ``plots``."""
    runs = _labelled([record], [""])
    quality = by_label(record) or (_confusion(record) if record.class_labels else _residuals(record, plots))
    return [
        Section("learning", "Learning curve", _learning(runs, plots)),
        Section("quality", "Correct and wrong predictions", quality),
        *([Section("answers", *found)] if (found := calibration_section(record, plots)) else []),
        *([Section("columns", "Important columns", html)] if (html := importance_section(record)) else []),
        Section("spectrum", "Spectrum", _spectrum(runs, plots)),
        Section("rows", "Training rows", _rows(record, image_shape)),
        Section("time", "Time", _time(runs)),
        Section("memory", "Memory", _memory(runs, plots)),
        Section("settings", "Settings and versions", _settings(record)),
    ]


def comparison_sections(records: Sequence[RunDirectory], names: Sequence[str], plots: Plots) -> list[Section]:
    """Return the sections of a comparison."""
    runs = _labelled(records, names)
    return [
        Section("results", "Results", _results(records, names)),
        Section("differences", "Settings that differ", _differences(records, names)),
        Section("learning", "Learning curves", _learning(runs, plots)),
        Section("spectrum", "Spectra", _spectrum(runs, plots)),
        Section("time", "Time", _time(runs)),
        Section("memory", "Memory", _memory(runs, plots)),
    ]


_ANSWERS = (
    ("auc", "AUC", "1 is a perfect order, 0.5 is chance"),
    ("balanced_accuracy", "balanced accuracy", "mean share found of each class"),
    ("log_loss", "log loss", "of the probabilities"),
    ("ece", "calibration error", "mean gap of probability and share"),
)


def key_numbers(record: RunDirectory) -> list[tuple[str, str, str]]:
    """Return headline numbers: (label, value, note)."""
    found, result = status(record), record.result or {}
    numbers: list[tuple[str, str, str]] = []
    for part, metrics in record.metrics.items():
        base, word = baseline(record, part), part_word(part)
        if "accuracy" in metrics:
            note = f"{metrics['n']:,} rows" + ("" if base is None else f"; commonest class {base:.1%}")
            numbers.append((f"accuracy, {word}", f"{metrics['accuracy']:.2%}", note))
            numbers += [
                (f"{name}, {word}", f"{metrics[key]:.4f}", what)
                for key, name, what in _ANSWERS
                if part == "test" and metrics.get(key) is not None
            ]
        else:
            note = f"{metrics['n']:,} rows" + ("" if base is None else f"; mean alone {base:.4g}")
            error, name = error_of(metrics)
            if name in LOSSES.values():
                numbers.append((f"{name}, {word}", f"{error:.4g}", f"{metrics['n']:,} rows"))
            else:
                numbers.append((f"RMSE, {word}", f"{math.sqrt(error):.4g}", note))
    labels = 5  # most labels, of several a row, whose thresholds are shown
    if cut := (result.get("probabilities") or {}).get("threshold"):
        names, values, scores, plain = (cut.get(name) for name in ("labels", "value", "score", "score_without"))
        what = "the lowest score at which the second class is predicted"
        if names is None:
            names, values, scores, plain = [""], [values], [scores], [plain]
        else:
            what = "the lowest output at which the label is predicted"
        for name, value, score, without in list(zip(names, values, scores, plain, strict=True))[:labels]:
            note = what
            if score is not None:
                note += f"; {cut['metric']} {score:.3f} on rows left out, {without:.3f} in the middle"
            numbers.append((f"threshold {name}".strip(), f"{value:.3f}", note))
    if weights := result.get("class_weight"):
        rarest = sorted(weights.items(), key=lambda pair: -pair[1])[:3]
        note = "weight of its rows" + ("; largest of all classes" if len(weights) > len(rarest) else "")
        numbers += [(f"class {label}", f"{weight:.4g}", note) for label, weight in rarest]
    if "fraction" in found and record.state != "done":
        numbers.append(("training", f"{found['fraction']:.0%}", f"pass {found['pass']}"))
        numbers.append(("loss", f"{found['loss']:.4g}", "mean squared residual"))
    if "seconds" in found:
        numbers.append(
            ("time", duration_text(found["seconds"]), "so far" if record.state == "running" else "start to end")
        )
    speed = result.get("samples_per_second", found.get("rows_per_second"))
    if speed is not None:
        numbers.append(("speed", f"{speed:,.0f}", "training rows a second"))
    memory = found["memory"]
    if "peak" in memory:
        note = f"{format_bytes(memory['projected'])} projected" if "projected" in memory else ""
        numbers.append(("memory at the peak", format_bytes(memory["peak"]), note))
    return numbers


class _Run(NamedTuple):
    """A run of the page: a run alone has its lines in three colours, each of several its own."""

    record: RunDirectory
    number: int
    name: str
    many: bool

    @property
    def prefix(self) -> str:
        return f"{self.name}: " if self.many else ""

    def colour(self, alone: int) -> int:
        return self.number if self.many else alone


def _labelled(records: Sequence[RunDirectory], names: Sequence[str]) -> list[_Run]:
    pairs = zip(records, names, strict=True)
    return [_Run(record, number, name, len(records) > 1) for number, (record, name) in enumerate(pairs)]


# -------------------------------------------------------------------------------------------------- learning curve


def _learning(runs: Sequence[_Run], plots: Plots) -> str:
    lines, scores, rows = list[Line](), list[Line](), list[list[str]]()
    measured = "squared error"
    for run in runs:
        record, prefix = run.record, run.prefix
        steps, history = record.steps, (record.result or {}).get("history") or []
        if not steps and not history:
            continue
        curve, mark = (steps, "") if len(steps) > len(history) else (history, "circle")
        x = [entry["rows"] for entry in curve]
        losses = [entry["loss"] for entry in curve]
        lines.append(Line(x, losses, f"{prefix}training loss", run.number, 0, mark))
        seen = [(entry["rows"], entry["validation"]) for entry in history if "validation" in entry]
        at, style = [n for n, _ in seen], (run.colour(1), 1, "square")
        if seen:
            measured = error_of(seen[0][1])[1]
            lines.append(Line(at, [error_of(metrics)[0] for _, metrics in seen], f"{prefix}validation error", *style))
        if seen and "accuracy" in seen[0][1]:
            accuracy = [100 * metrics["accuracy"] for _, metrics in seen]
            scores.append(Line(at, accuracy, f"{prefix}validation rows", *style))
        test = record.metrics.get("test")
        if test and history:
            end = [max(x[-1], history[-1]["rows"])]
            error, measured = error_of(test)
            lines.append(Line(end, [error], f"{prefix}test error (at the end)", run.colour(2), 2, "diamond"))
        rows += _passes(history, prefix)
    if not lines:
        records = [run.record for run in runs]
        return _empty_section(
            "No training step is recorded: the run ended before training, or reused an earlier one.", *records
        )
    caption = (
        f"{measured.capitalize()}, mean over rows and outputs. The training loss is that of the steps as they came, "
        "smoothed, on augmented rows and before any averaging of iterates; validation and test rows are as stored."
    )
    numbers = table("By pass", _PASSES, rows) if rows else ""
    seen_rows = "training rows seen"
    html = draw(plots, "learning", lines, seen_rows, f"mean {measured}", caption, numbers, log_y=True, words="rows")
    if scores:
        caption = "Share of validation rows whose largest output is their class, pass by pass."
        html += draw(plots, "scores", scores, seen_rows, "validation accuracy, %", caption, words="rows")
    return html


_PASSES = ("pass", "rows seen", "training loss", "validation error", "validation accuracy or r²", "seconds")


def _passes(history: Sequence[dict[str, Any]], prefix: str) -> list[list[str]]:
    rows = []
    for entry in history:
        found = entry.get("validation") or {}
        score = found.get("accuracy", found.get("r2"))
        rows.append([
            f"{prefix}{entry['pass']}", f"{entry['rows']:,}", f"{entry['loss']:.5g}",
            f"{error_of(found)[0]:.5g}" if "mse" in found else NONE, NONE if score is None else f"{score:.4f}",
            f"{entry['seconds']:.2f}",
        ])  # fmt: skip
    return rows


# --------------------------------------------------------------------------------------------------------- spectrum


def _spectrum(runs: Sequence[_Run], plots: Plots) -> str:
    lines, levels, said, rows = list[Line](), list[Level](), list[str](), list[list[str]]()
    for run in runs:
        found, prefix, colour = _solver_report(run.record), run.prefix, run.colour(1)
        values = np.asarray(found.get("spectrum") or found.get("eigenvalues") or [], dtype=np.float64)
        if not len(values):
            continue
        size, q = found.get("s"), found.get("q")
        values = values / size if size else values
        mark = "circle" if len(values) < 40 else ""
        x = list(range(1, len(values) + 1))
        lines.append(Line(x, values.tolist(), f"{prefix}eigenvalues", run.number, 0, mark))
        for i in sorted({0, *(2**k for k in range(1, 20) if 2**k < len(values)), len(values) - 1}):
            rows.append([f"{prefix}{i + 1}", f"{values[i]:.5g}", f"{values[0] / values[i]:,.1f}"])
        if not q or q + 1 != len(values):
            continue
        lines.append(Line([1, q + 1], [values[q], values[q]], f"{prefix}after preconditioning", colour, 1))
        name = "" if run.many else f"q = {q}: eigenvalues to its left are reduced"
        levels.append(Level(q + 0.5, name, colour, 2, upright=True))
        said.append(
            f"{prefix}The preconditioner reduces the top q = {q:,} of {size or len(values):,} eigenvalues to the "
            f"next one: the largest eigenvalue falls by a factor of {values[0] / values[q]:,.0f}."
        )
        if found.get("batch") and found.get("critical_batch"):
            said.append(
                f"On held-out rows the critical batch is {found['critical_batch']:,.0f} rows, and a step takes "
                f"{found['batch']:,}."
            )
    if not lines:
        records = [run.record for run in runs]
        return _empty_section(
            "The solver found no spectrum, or ended before it did: not every solver computes one.", *records
        )
    caption = " ".join(["Eigenvalues of the kernel matrix of a subsample, divided by its rows.", *said])
    numbers = table("Eigenvalues", ("number", "eigenvalue", "ratio of the first to it"), rows)
    return draw(
        plots, "spectrum", lines, "number of the eigenvalue", "eigenvalue", caption, numbers,
        levels=levels, log_x=True, log_y=True,
    )  # fmt: skip


def _solver_report(record: RunDirectory) -> dict[str, Any]:
    found = (record.result or {}).get("solver_report")
    if found:
        return dict(found)
    reports = record.of("solver")
    return reports[-1] if reports else {}


# ---------------------------------------------------------------------------------------------------------- quality


def _confusion(record: RunDirectory) -> str:
    found, called = evaluated(record, "confusion"), record.class_labels
    if found is None:
        return _empty_section(f"There are {len(called)} classes, too many for a confusion matrix.")
    part, counts = found
    word = part_word(part)
    totals, right = counts.sum(axis=1), np.diag(counts)
    taken = counts.sum(axis=0)
    rows = [
        [name, f"{n:,}", f"{r:,}", NONE if not n else f"{r / n:.1%}", NONE if not t else f"{r / t:.1%}"]
        for name, n, r, t in zip(called, totals, right, taken, strict=True)
    ]
    wrong = frequent_confusions(counts, called)
    html = ""
    if len(called) <= LARGEST_TABLE:
        html += confusion_table(
            counts, called, f"Confusion matrix: {counts.sum():,} {word} rows by true and predicted class"
        )
        html += (
            '<p class="note">Correct predictions are blue, mistakes orange; darker for a larger share of the row.</p>'
        )
    else:
        rows = sorted(rows, key=lambda row: float(row[3].rstrip("%").replace(NONE, "101")))[:LARGEST_TABLE]
        html += f'<p class="note">The {LARGEST_TABLE} classes of {len(called)} with the fewest correct predictions.</p>'
    if wrong:
        listed = "; ".join(f"{a} predicted as {b} ({n:,})" for a, b, n in wrong)
        html += f"<p>Commonest mistakes: {escape(listed)}.</p>"
    else:
        html += f"<p>No {word} row is predicted as another class.</p>"
    classes = table("By class", ("class", "rows", "right", "found (recall)", "trusted (precision)"), rows)
    return html + (details(classes) if len(called) <= LARGEST_TABLE else classes)


def _residuals(record: RunDirectory, plots: Plots) -> str:
    found = evaluated(record, "actual")
    if found is None:
        why = "No rows were scored: the run ended before the evaluation, or an earlier version evaluated it."
        return _empty_section(why, record)
    part, actual = found
    predicted = record.evaluation[0][f"{part}_predicted"]
    word, width = part_word(part), actual.shape[1]
    html, rows = "", []
    for j in range(width):
        error = predicted[:, j] - actual[:, j]
        label = f"output {j + 1}" if width > 1 else "residual"
        quantiles = np.quantile(error, (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99))
        rows.append(
            [label, *(f"{q:.4g}" for q in quantiles), f"{np.abs(error).max():.4g}", f"{actual[:, j].std():.4g}"]
        )
        if j >= PLOTTED_OUTPUTS:
            continue
        of = f" of output {j + 1}" if width > 1 else ""
        low, high = float(actual[:, j].min()), float(actual[:, j].max())
        points = Line(actual[:, j].tolist(), predicted[:, j].tolist(), "a row", 0, 0, "circle", joined=False)
        diagonal = Line([low, high], [low, high], "prediction equal to target", 6, 1)
        caption = f"A sample of {len(actual):,} {word} rows: on the dashed line, predictions are exact."
        html += draw(plots, f"scatter{j}", [points, diagonal], f"target{of}", "prediction", caption)
        edges, counts = bins(error)
        counted = [[f"{a:.4g} to {b:.4g}", f"{n:,}"] for a, b, n in zip(edges, edges[1:], counts, strict=False)]
        html += draw_histogram(
            plots, f"residuals{j}", edges, counts, f"prediction less target{of}",
            "Residuals of the same rows; the outermost bins include all values beyond.",
            numbers=table("Rows by residual", ("residual", "rows"), counted),
        )  # fmt: skip
    head = ("", "1%", "5%", "25%", "median", "75%", "95%", "99%", "largest", "spread of the target")
    return html + table("Quantiles of prediction less target", head, rows)


# ------------------------------------------------------------------------------------------------------ sample rows


def _rows(record: RunDirectory, image_shape: tuple[int, ...] | None) -> str:
    arrays, _ = record.evaluation
    if "examples_rows" not in arrays:
        why = "The run has kept no rows to show: it ended before the evaluation, or they are very wide."
        return _empty_section(why, record)
    rows, ids = arrays["examples_rows"], arrays["examples_ids"]
    targets = _targets(record, arrays.get("examples_targets"))
    copies = rows.shape[1] - 1
    shape = image_shape or _shape(record, rows.shape[2])
    given = (record.manifest.get("train") or {}).get("augmentations") or []
    varied = ", ".join(f"{a.get('name')}({', '.join(f'{k}={v}' for k, v in a.items() if k != 'name')})" for a in given)
    note = f"A fixed draw of {len(rows)} training rows, scaled as the solver sees them" + (
        f": as stored, and {copies} of their augmented copies{f' ({varied})' if varied else ''}."
        if copies
        else "; the rows are not augmented."
    )
    if shape is None or math.prod(shape) != rows.shape[2]:
        return f'<p class="note">{escape(note)}</p>' + details(_values(rows, ids, targets), "The rows as numbers")
    low, high = float(rows[:, 0].min()), float(rows[:, 0].max())
    figures = []
    for row, row_id, target in zip(rows, ids, targets, strict=True):
        words = ["as stored", *(f"copy {i + 1}" for i in range(copies))]
        images = "".join(
            image(pixels.reshape(shape), low, high, f"row {row_id}, target {target}, {word}")
            for pixels, word in zip(row, words, strict=True)
        )
        figures.append(
            f"<figure><div>{images}</div><figcaption>{escape(target)} (row {row_id:,})</figcaption></figure>"
        )
    return f'<p class="note">{escape(note)}</p><div class="samples">{"".join(figures)}</div>'


def _targets(record: RunDirectory, targets: Array | None) -> list[str]:
    if targets is None:
        return []
    if called := record.class_labels:
        return [called[int(code)] for code in targets]
    mean = np.asarray(record.encoding.get("mean", 0.0))
    return [", ".join(f"{value:.4g}" for value in values) for values in targets + mean]


def _values(rows: Array, ids: Array, targets: Sequence[str], most: int = 24) -> str:
    width = min(most, rows.shape[2])
    head = ("row", "target", *(f"x{j + 1}" for j in range(width)), *(["…"] if width < rows.shape[2] else []))
    lines = []
    for row, row_id, target in zip(rows, ids, targets, strict=True):
        for version, values in enumerate(row[:2]):
            name = f"{row_id}" if version == 0 else f"{row_id}, copy 1"
            lines.append([name, target, *(f"{value:.4g}" for value in values[:width])])
    return table("Scaled features", head, lines)


def _shape(record: RunDirectory, width: int) -> tuple[int, ...] | None:
    for augmentation in (record.manifest.get("train") or {}).get("augmentations") or []:
        if "shape" in augmentation:
            return tuple(augmentation["shape"])
    smallest_side = 8  # pixels; narrower rows are not shown as images unless their shape is given
    for channels in (1, 3):
        side = math.isqrt(width // channels)
        if side >= smallest_side and side * side * channels == width:
            return (side, side) if channels == 1 else (side, side, channels)
    return None


# ------------------------------------------------------------------------------------------------------------- time


_ACTIVITIES = {
    "compute": "computing",
    "wait": "waiting for rows",
    "reduce": "adding up, wire",
    "update": "update of the state",
}


def _time(runs: Sequence[_Run]) -> str:
    html = ""
    longest = max((seconds for run in runs for _, seconds, _ in _stages(run.record)), default=0.0) or 1.0
    for run in runs:
        of = f": {run.name}" if run.many else ""
        if rows := [[name, bar(seconds / longest, words, run.number)] for name, seconds, words in _stages(run.record)]:
            html += table(f"Seconds by stage{of}", (), rows, "bars")
    for run in runs:
        of, steps = f": {run.name}" if run.many else "", run.record.steps
        waiting = (run.record.result or {}).get("data_wait_fraction")
        if waiting is None and steps:
            waiting = steps[-1]["wait"]
        if timelines := [step["timeline"] for step in steps if step.get("timeline")]:
            parts = [(word, sum(line.get(key, 0.0) for line in timelines)) for key, word in _ACTIVITIES.items()]
            most = max(seconds for _, seconds in parts) or 1.0
            rows = [[part, bar(seconds / most, f"{seconds:.2f} s", 2)] for part, seconds in parts]
            html += table(f"Training time by activity (all slots together; then the driver){of}", (), rows, "bars")
        elif waiting is not None:
            shares = {"waiting for rows": waiting, "computing": 1 - waiting}
            rows = [[part, bar(share, f"{share:.1%}", 2)] for part, share in shares.items()]
            html += table(f"Training time by activity{of}", (), rows, "bars")
    return html or _empty_section("No stage has begun.")


def _stages(record: RunDirectory) -> list[tuple[str, float, str]]:
    ended = (record.result or {}).get("stages") or record.of("stage", "end")
    stages = [(s["name"], s["seconds"], "kept" if s.get("cached") else f"{s['seconds']:.2f} s") for s in ended]
    begun = record.unfinished
    if begun is not None:
        # For a running or killed run, only the time so far is known.
        least = "" if record.events[-1]["event"] == "run" else "≥ "
        seconds = max(0.0, record.events[-1]["time"] - begun["time"])
        stages.append((f"{begun['name']}, unfinished", seconds, f"{least}{seconds:.2f} s"))
    return stages


# ----------------------------------------------------------------------------------------------------------- memory


def _memory(runs: Sequence[_Run], plots: Plots) -> str:
    lines, levels, rows, beyond = list[Line](), list[Level](), list[list[str]](), list[str]()
    for run in runs:
        memory, prefix = status(run.record)["memory"], run.prefix
        held = [event for event in run.record.events if "resident_bytes" in event]
        budget, projected = memory.get("budget"), memory.get("projected")
        if held:
            seconds = [event["time"] - held[0]["time"] for event in held]
            lines.append(Line(seconds, [event["resident_bytes"] for event in held], f"{prefix}held", run.number))
            if projected is not None:
                levels.append(Level(projected, f"{prefix}projected", run.colour(1), 1))
            if budget is not None and budget <= 3 * max(projected or 0, memory.get("peak", 0)):
                levels.append(Level(budget, f"{prefix}allowed", run.colour(6), 2))
            elif budget is not None:
                beyond.append(f"{prefix}{format_bytes(budget)}")
        sizes = (memory.get(key) for key in ("peak", "projected", "budget"))
        rows.append([run.name or "this run", *(NONE if size is None else format_bytes(size) for size in sizes)])
    html = ""
    if lines:
        above = f" The budget is above the plot: {', '.join(beyond)}." if beyond else ""
        caption = f"Resident memory of the process that leads the run.{above}"
        html = draw(plots, "memory", lines, "seconds", "memory held", caption, levels=levels, words="bytes", zero=True)
    html += table("Memory of the process that leads the run", ("", "at the peak", "projected", "allowed"), rows)
    if len(runs) == 1:
        planned = runs[0].record.of("memory")
        parts = planned[-1].get("stages") if planned else None
        if parts:
            stages = [[stage, format_bytes(size)] for stage, size in parts.items()]
            html += details(table("Projected for each stage, without the library itself", ("stage", "bytes"), stages))
    return html


# --------------------------------------------------------------------------------------------------------- settings


def _flat(value: Any, name: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        return {
            k: v for key, part in value.items() for k, v in _flat(part, f"{name}.{key}" if name else str(key)).items()
        }
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return {k: v for i, part in enumerate(value) for k, v in _flat(part, f"{name}[{i}]").items()}
    if value is None or value == []:
        return {name: NONE}
    if name.endswith("fingerprint"):
        return {name: str(value)[:12]}  # enough to distinguish two; the whole digest is under Fingerprints
    if name == "memory" and isinstance(value, int):
        return {name: format_bytes(value)}
    return {name: f"{value:,}" if type(value) is int and abs(value) > 9999 else str(value)}


def _settings(record: RunDirectory) -> str:
    manifest = dict(record.manifest)
    versions = manifest.pop("versions", {})
    fingerprint = (manifest.get("train") or {}).get("fingerprint")
    found = {k: v for k, v in _solver_report(record).items() if k not in _SHOWN_ELSEWHERE}
    scalars = {name: v for name, v in found.items() if isinstance(v, int | float | str)}
    shown = {name: number_text(v) if isinstance(v, float) else str(v) for name, v in scalars.items()}
    result = record.result or {}
    prints = {"training data": fingerprint, "weights (SHA-256)": result.get("weights_sha256")}
    settings = _flat(manifest)
    left = [name for name, value in settings.items() if value == NONE]
    given = [[name, value] for name, value in settings.items() if value != NONE]
    pieces = [table("Settings", ("setting", "value"), given, "text")]
    if left:
        pieces.append(f'<p class="note">Not set: {escape(", ".join(left))}.</p>')
    if shown:
        pieces.append(table("Report of the solver", ("quantity", "value"), list(shown.items()), "text"))
    known = [[name, value] for name, value in prints.items() if value]
    if known:
        pieces.append(table("Fingerprints", ("of", "digest"), known, "text"))
    pieces.append(table("Versions", ("package", "version"), list(versions.items()), "text"))
    return "".join(pieces)


def _results(records: Sequence[RunDirectory], names: Sequence[str]) -> str:
    rows: list[list[str]] = [["state", *(record.state for record in records)]]
    results = [record.result or {} for record in records]
    for part in ("test", "train"):
        found = [record.metrics.get(part) for record in records]
        if any(found):
            rows.append([f"{part_word(part)} rows", *(NONE if m is None else metrics_in_words(m) for m in found)])
    for label, key, spell in (
        ("seconds", "seconds", lambda v: f"{v:.2f}"),
        ("rows a second", "samples_per_second", lambda v: f"{v:,.0f}"),
        ("waiting for data", "data_wait_fraction", lambda v: f"{v:.1%}"),
        ("memory at the peak", "peak_memory_bytes", format_bytes),
        ("centers", "n_centers", lambda v: f"{v:,}"),
        ("weights", "weights_sha256", lambda v: v[:12]),
    ):
        rows.append([label, *(NONE if result.get(key) is None else spell(result[key]) for result in results)])
    return table("Metrics and costs", ("", *names), rows)


def _differences(records: Sequence[RunDirectory], names: Sequence[str]) -> str:
    flat = [{k: v for k, v in _flat(record.manifest).items() if k != "run"} for record in records]  # its id
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = [[key, *(one.get(key, NONE) for one in flat)] for key in keys if len({one.get(key) for one in flat}) > 1]
    if not rows:
        return _empty_section("None: the runs have the same settings, data and versions.")
    return table("Settings that differ", ("setting", *names), rows, "text")


# --------------------------------------------------------------------------------------------------------- the page


def _empty_section(why: str, *records: RunDirectory) -> str:
    why = "Not there yet: the run is still running." if any(each.state == "running" for each in records) else why
    return f'<p class="note">{escape(why)}</p>'
