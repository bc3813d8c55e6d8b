"""The chosen kernel, and the share of each column in the model's gradient."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np

from streamkern.report.bokeh_plots import number_text
from streamkern.report.html_markup import bar, details, table
from streamkern.report.run_directory import RunDirectory
from streamkern.selection.kernel_search import norm_and_bandwidth
from streamkern.selection.learned_metric import compared_error


def importance_section(record: RunDirectory) -> str:
    """Return the section as HTML; empty if no metric was learned and no kernel chosen."""
    result = record.result or {}
    parts = [search_table(result["kernel_choice"])] if "kernel_choice" in result else []
    return "".join([*parts, _shares(result["metric"])]) if "metric" in result else "".join(parts)


def search_table(choice: dict[str, Any]) -> str:
    """Return HTML of the search for a kernel: a table of all models tried, and the reason for the choice."""
    rows = [
        (
            "{}, {:.4g}".format(*norm_and_bandwidth(trial["kernel"])),
            trial["kind"],
            trial["round"],
            f"{trial['rows']:,}",
            f"{trial['centers']:,}",
            number_text(trial["ridge"]),
            number_text(compared_error(trial)),
        )
        for trial in choice["trials"]
    ]
    error = "log loss" if "log_loss" in choice["trials"][0] else "squared error"
    head = ("norm, bandwidth", "metric", "round", "rows", "centers", "ridge", error)
    return (
        f'<p class="note">{escape(choice["reason"])}.</p>'
        f"{details(table('Models of the search', head, rows), f'All {len(rows)} models')}"
    )


def _shares(metric: dict[str, Any]) -> str:
    shares = np.array(metric.get("by_column", metric["importances"]))
    names = metric.get("stored") or [f"column {j}" for j in range(len(shares))]
    drawn = [_bars("Share of each column in the squared gradient", names, shares)]
    features = metric["columns"]
    if features is not None and len(features) != len(shares):
        drawn.append(details(_bars("Share of each feature", features, np.array(metric["importances"])), "By feature"))
    note = (
        "Changes of predictions with columns, in units of standard deviations. They do not show causes; correlated "
        "columns divide their share."
    )
    return "".join([*drawn, f'<p class="note">{note}</p>'])


def _bars(caption: str, names: list[str], shares: np.ndarray) -> str:
    max_shown_columns = 30  # number of columns and features shown, the largest shares first
    order = np.argsort(-shares, kind="stable")[:max_shown_columns]
    rows = [(str(names[j]), bar(float(shares[j]), f"{shares[j]:.1%}")) for j in order]
    left = "" if len(shares) <= max_shown_columns else f" (the largest {max_shown_columns} of {len(shares):,})"
    return table(caption + left, (), rows, "bars")
