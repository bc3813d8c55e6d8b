"""Section of the page on probabilities, ROC curves and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamkern.report.bokeh_plots import UNIT, Level, Line, Plots, draw, draw_histogram, number_text, numbered
from streamkern.report.html_markup import LARGEST_TABLE, NONE, PLOTTED_OUTPUTS, details, side_by_side, table
from streamkern.report.result_sentences import part_word
from streamkern.report.run_directory import RunDirectory
from streamkern.types import Array


def calibration_section(record: RunDirectory, plots: Plots) -> tuple[str, str] | None:
    """Return title and HTML of the section; None if the run has neither probabilities, scores nor intervals."""
    if found := evaluated(record, "fifths"):
        return "Intervals", _coverage(*found, record, plots)
    html = ""
    if found := evaluated(record, "reliability"):
        html += _reliability(*found, record, plots)
    if found := evaluated(record, "curves"):
        html += _curves(*found, record, plots)
    title = (
        "Probabilities, ROC and precision-recall" if evaluated(record, "reliability") else "ROC and precision-recall"
    )
    return (title, html) if html else None


def evaluated(record: RunDirectory, kind: str) -> tuple[str, Array] | None:
    """Return the part of the rows, ``test`` or else ``train``, and an array saved by its evaluation."""
    arrays = record.evaluation[0]
    for part in ("test", "train"):
        if f"{part}_{kind}" in arrays:
            return part, arrays[f"{part}_{kind}"]
    return None


def by_label(record: RunDirectory) -> str:
    """Return a table of metrics by label for several labels a row; empty for other targets."""
    for part in ("test", "train") if record.label_names else ():
        if found := record.metrics.get(part):
            rows = [[name, *_numbers(of, ("support", "recall", "precision", "f1"))] for name, of in _listed(found)]
            head = ("label", "rows", "found (recall)", "trusted (precision)", "F1")
            return table(f"By label, of {part_word(part)} rows", head, rows)
    return ""


def _number(value: float | None) -> str:
    return NONE if value is None or not np.isfinite(value) else f"{value:.4f}"


def _numbers(of: dict[str, Any], names: Sequence[str]) -> list[str]:
    return [number_text(of[name]) if name == "support" and name in of else _number(of.get(name)) for name in names]


def _listed(metrics: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Of many classes or labels, list those with the least AUC."""
    found = list((metrics.get("by_class") or {}).items())
    if len(found) <= LARGEST_TABLE:
        return found
    return sorted(found, key=lambda pair: pair[1].get("auc", 2.0))[:LARGEST_TABLE]


def _reliability(part: str, bins: Array, record: RunDirectory, plots: Plots) -> str:
    weight, said, hit = bins.T
    several, called, metrics = record.label_names, record.class_labels, record.metrics.get(part, {})
    rows = "rows"
    if several:
        what, event, rows = "the probability of a label", "the share that has it", "rows and labels"
    elif len(called) == 2:
        what, event = f"the probability of {called[1]}", f"the share that is {called[1]}"
    else:
        what, event = "the largest probability of a row", "the share that is of that class"
    min_drawn_rows = 10  # minimum rows of a plotted bin, since shares of fewer rows are chance
    drawn = weight * metrics.get("n", 0) * max(1, len(several)) >= min_drawn_rows * weight.sum()
    diagonal = Line([0.0, 1.0], [0.0, 1.0], "perfect calibration", 6, 1)
    observed = Line(said[drawn].tolist(), hit[drawn].tolist(), "observed", 0, 0, "circle")
    edges = np.linspace(0.0, 1.0, len(bins) + 1)
    ece = "" if metrics.get("ece") is None else f" The calibration error is {metrics['ece']:.4f}."
    few = (
        ""
        if drawn.sum() == (weight > 0).sum()
        else f" Bins of fewer than {min_drawn_rows} {rows} are in the table alone."
    )
    caption = (
        f"Reliability: {what}, by bin, and {event}, of {part_word(part)} rows. On the dashed line, observed "
        f"frequencies equal the probabilities.{ece}{few}"
    )
    counted = [
        [f"{a:.2f}–{b:.2f}", number_text(float(f"{w:.6g}")), _number(p), _number(h)]
        for a, b, w, p, h in zip(edges, edges[1:], weight, said, hit, strict=False)
        if w > 0
    ]
    head = ("bin", rows, "predicted", "observed")
    unit: dict[str, Any] = {"x_span": UNIT, "y_span": UNIT}
    figures = side_by_side(
        draw(plots, "reliability", [observed, diagonal], "probability", "share observed", caption, **unit),
        draw_histogram(plots, "probabilities", edges, weight, "probability", f"{rows} by {what}.", rows, zero=False),
    )
    return figures + details(table("Observed by predicted probability", head, counted))


def _curves(part: str, points: Array, record: RunDirectory, plots: Plots) -> str:
    metrics, called = record.metrics.get(part, {}), record.label_names or record.class_labels
    _, decided = evaluated(record, "decided") or (part, np.zeros((0, 4)))
    roc, pr = list[Line](), list[Line]()
    drawn = np.unique(points[:, 0]).astype(int)
    for number, j in enumerate(drawn):
        rate, recall, precision = points[points[:, 0] == j].T[2:]
        name = called[j]
        roc.append(Line([0.0, *rate], [0.0, *recall], name, number, number))
        pr.append(Line(recall.tolist(), precision.tolist(), name, number, number))
        for _, false, true, right in decided[decided[:, 0] == j]:
            point = numbered(number, [false], [true], f"{name}, as predicted")._replace(listed=False)
            roc.append(point)
            pr.append(point._replace(x=[true], y=[right]))
    roc.append(Line([0.0, 1.0], [0.0, 1.0], "by chance", 6, 2, listed=False))
    left = "" if len(called) - (len(called) == 2) == len(drawn) else (
        f" Of {len(called)} classes those {len(drawn)} with the least area are drawn."
    )  # fmt: skip
    of = f" of {part_word(part)} rows; points are the predictions.{left}"
    summary = [
        [name, *_numbers(each, ("support", "auc", "average_precision", "recall", "precision"))]
        for name, each in _listed(metrics)
        if "auc" in each
    ]
    head = ("class", "rows", "area (AUC)", "average precision", "recall", "precision")
    one = len(drawn) == 1
    cut = table("By the least score that counts as it", ("score", "false positive rate", "recall", "precision"), [
        [number_text(float(f"{score:.4g}")), *(_number(value) for value in rest)]
        for score, *rest in _spread(points)[:, 1:]
    ]) if one else ""  # fmt: skip
    axes: dict[str, Any] = {"x_span": UNIT, "y_span": UNIT}
    said = f"ROC curve{'' if one else 's'}{of} Chance is on the diagonal."
    figures = side_by_side(
        draw(plots, "roc", roc, "false positive rate", "recall", said, **axes),
        draw(plots, "precision", pr, "recall", "precision", f"Precision and recall{of}", **axes),
    )
    return figures + details(table("Curves by class", head, summary) + cut)


def _spread(points: Array, most: int = 12) -> Array:
    """Keep points with about equal steps of the recall."""
    at = np.searchsorted(points[:, 3], np.linspace(points[0, 3], 1.0, most))
    return np.asarray(points[np.unique(np.minimum(at, len(points) - 1))])


def _coverage(part: str, fifths: Array, record: RunDirectory, plots: Plots) -> str:
    metrics = record.metrics.get(part, {})
    lines, widths, rows = list[Line](), list[Line](), list[list[str]]()
    for j, found in enumerate(fifths):
        name = f"output {j + 1}" if len(fifths) > 1 else "90% intervals"
        rows += [
            [f"{name}, {i + 1}" if len(fifths) > 1 else str(i + 1), number_text(round(float(n), 1)), f"{share:.1%}",
             f"{width:.4g}"] for i, (n, share, width) in enumerate(found)
        ]  # fmt: skip
        if j < PLOTTED_OUTPUTS:
            lines.append(numbered(j, range(1, 6), (100 * found[:, 1]).tolist(), name))
            widths.append(lines[-1]._replace(y=found[:, 2].tolist()))
    least = min(fifths[..., 1].min() * 100, 80.0)
    whole = metrics.get("coverage_90")
    said = "" if whole is None else f" In all {whole:.1%} are inside."
    caption = (
        f"Targets of {part_word(part)} rows inside their 90% intervals, from the fifth of the rows with the smallest "
        f"predicted errors to the fifth with the largest.{said}"
    )
    x_label, nominal = "fifth of the rows by predicted scale", [Level(90.0, "nominal coverage", 6, 1)]
    mean_width = "Mean width of the intervals, in the target's unit."
    figures = side_by_side(
        draw(plots, "fifths", lines, x_label, "targets inside, %", caption, levels=nominal, y_span=(least - 1, 101.0)),
        draw(plots, "widths", widths, x_label, "mean width", mean_width, zero=True),
    )
    head = ("fifth", "rows", "inside", "mean width")
    return figures + details(table("Coverage of 90% intervals by fifth of the predicted scale", head, rows))
