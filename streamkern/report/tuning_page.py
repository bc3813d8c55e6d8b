"""The page of a tuning: trials, errors, and the recommended choice. Only reads ``tune.json``."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from streamkern.progress import duration_text
from streamkern.report.bokeh_plots import Level, Line, Plot, draw, number_text, numbered
from streamkern.report.html_markup import NONE, table
from streamkern.report.importance_section import search_table
from streamkern.report.page import page_shell
from streamkern.report.sections import Section
from streamkern.storage.atomic_writes import write_text

Trial = dict[str, Any]


def write_tuning(tuning: dict[str, Any], path: Path, name: str, command: str) -> None:
    """Write the page of a tuning."""
    plots: dict[str, Plot] = {}
    search = tuning["search"]
    made = [
        *([] if search is None else [Section("search", "Search for a kernel", _search(search, plots))]),
        Section("kernel", "Kernel and bandwidth", _kernels(tuning, plots)),
        Section("ridge", "Ridge", _ridges(tuning, plots)),
        Section("centers", "Centers", _centers(tuning, plots)),
        Section("why", "Reasons of the choice", _listed(tuning["reasons"])),
    ]
    head = (
        f'<h1>Tuning of {escape(name)}</h1><p class="verdict">{escape(_verdict(tuning))}</p>'
        '<h3>What to do</h3><div class="scroll" role="region" tabindex="0" aria-label="What to do">'
        f"<pre>{escape(command)}</pre></div>"
        f'<p class="note">{tuning["rows"]:,} rows to fit, {tuning["held_out"]:,} held out; {len(tuning["trials"]):,} '
        f"models in {escape(duration_text(tuning['seconds']))}.</p>"
    )
    write_text(path, page_shell(f"Tuning of {name}", head, made, plots, "Made by streamkern tune."))


def _verdict(tuning: dict[str, Any]) -> str:
    choice = tuning["choice"]
    sigma = choice["kernel"].get("bandwidth")
    width = "" if sigma is None else f" of bandwidth {sigma:.4g}, {sigma / tuning['median']:.2g} median distances"
    return (
        f"{_family(choice['kernel'])} kernel{width}, with {choice['centers']:,} centers and ridge "
        f"{number_text(choice['ridge'])}: {_metric(tuning)} {_score(tuning, choice)} on rows held out."
    )


def _metric(tuning: dict[str, Any]) -> str:
    return "accuracy" if tuning["metric"] == "accuracy" else "R²"


def _score(tuning: dict[str, Any], trial: Trial) -> str:
    return f"{trial['score']:.2%}" if tuning["metric"] == "accuracy" else f"{trial['score']:.4f}"


def _kernels(tuning: dict[str, Any], plots: dict[str, Plot]) -> str:
    best = _best(tuning)
    families = list(dict.fromkeys(_family(trial["kernel"]) for trial in best))
    scores, errors = list[Line](), list[Line]()
    for number, family in enumerate(families):
        if own := [t for t in best if _family(t["kernel"]) == family and "bandwidth" in t["kernel"]]:
            x = [t["kernel"]["bandwidth"] for t in own]
            scores.append(numbered(number, x, [_percent(tuning, t) for t in own], family))
            errors.append(numbered(number, x, [t["mse"] for t in own], family))
    rows = [
        (
            _family(trial["kernel"]) + (", chosen" if trial["kernel"] == tuning["choice"]["kernel"] else ""),
            number_text(trial["kernel"]["bandwidth"]) if "bandwidth" in trial["kernel"] else NONE,
            f"{trial['mse']:.4g}",
            _score(tuning, trial),
            number_text(trial["ridge"]),
        )
        for trial in best
    ]
    text = table(
        "Each kernel at its best ridge", ("kernel", "bandwidth", "squared error", _metric(tuning), "ridge"), rows
    )
    if not scores:
        return text
    sigma = tuning["choice"]["kernel"].get("bandwidth")
    levels = [Level(tuning["median"], "median distance of two rows", upright=True)]
    levels += [] if sigma is None else [Level(sigma, "chosen", 1, 2, True)]
    note = "Each point is the best ridge of a kernel at a bandwidth, on rows that it was not fitted to."
    said = f"{_metric(tuning)}: it goes up and down by chance where few rows are held out."
    score = draw(plots, "score", scores, "bandwidth", _label(tuning), said, levels=levels, log_x=True)
    said = "Squared error, which decides the choice."
    error = draw(plots, "error", errors, "bandwidth", "squared error", said, levels=levels, log_x=True)
    return f"<p>{note}</p>{score}{error}{text}"


def _search(search: dict[str, Any], plots: dict[str, Plot]) -> str:
    groups: dict[str, list[tuple[int, float]]] = {}
    for number, trial in enumerate(search["trials"], 1):
        kind = "no metric" if trial["kind"] == "none" else f"{trial['kind']} metric"
        groups.setdefault(f"L{trial['kernel'].get('norm', 2)}, {kind}", []).append((number, trial["mse"]))
    lines = [
        numbered(number, [x for x, _ in at], [y for _, y in at], name)
        for number, (name, at) in enumerate(groups.items())
    ]
    caption = "Squared error on held-out rows, in the order of the search: first on few rows, then the best on more."
    levels = [Level(search["best"], "chosen", 1, 2)]
    return draw(plots, "search", lines, "model", "squared error", caption, levels=levels) + search_table(search)


def _ridges(tuning: dict[str, Any], plots: dict[str, Plot]) -> str:
    kernel = tuning["choice"]["kernel"]
    like = [t["kernel"] for t in _best(tuning) if _family(t["kernel"]) == _family(kernel)]
    at = like.index(kernel)
    lines = []
    for number, shown in enumerate(like[max(0, at - 1) : at + 2]):
        own = sorted((t for t in tuning["trials"] if t["kernel"] == shown), key=lambda t: float(t["ridge"]))
        name = f"bandwidth {number_text(shown['bandwidth'])}" if "bandwidth" in shown else _family(shown)
        name += ", chosen" if shown == kernel else ""
        lines.append(numbered(number, [t["ridge"] for t in own], [t["mse"] for t in own], name))
    label, caption = f"ridge, for {tuning['rows']:,} rows", "Squared error on rows held out, by ridge."
    note = "One decomposition gives every ridge. Where the curve is flat to the left, none is needed."
    return f"<p>{note}</p>{draw(plots, 'ridge', lines, label, 'squared error', caption, log_x=True)}"


def _centers(tuning: dict[str, Any], plots: dict[str, Plot]) -> str:
    curve, chosen = tuning["curve"], tuning["choice"]["centers"]
    # If the pipeline has its own number, the score is for the largest number tried.
    kept = tuning["pipeline"]["centers"].get("p", chosen)
    word = "chosen" if kept == chosen else "of the score above"
    scores = numbered(0, [t["centers"] for t in curve], [_percent(tuning, t) for t in curve], "rows held out")
    figure = draw(
        plots, "centers", [scores], "centers", _label(tuning), f"{_metric(tuning)} by the number of centers.",
        levels=[Level(chosen, word, 1, 2, True)], log_x=True, words="rows",
    )  # fmt: skip
    rows = [
        (
            f"{trial['centers']:,}" + (", chosen" if trial["centers"] == chosen == kept else ""),
            f"{trial['mse']:.4g}",
            _score(tuning, trial),
            number_text(trial["ridge"]),
            NONE if trial["seconds"] is None else duration_text(trial["seconds"]),
        )
        for trial in curve
    ]
    text = table(
        "Error and time by number of centers",
        ("centers", "squared error", _metric(tuning), "ridge", "run, predicted"),
        rows,
    )
    note = "Each has the first centers of one draw. With more rows than the subsample's, more centers are worth it."
    more = "" if kept == chosen else f" The pipeline keeps its own {kept:,}."
    return f"<p>{note}{more}</p>{figure}{text}"


def _listed(reasons: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(reason)}</li>" for reason in reasons) + "</ul>"


def _best(tuning: dict[str, Any]) -> list[Trial]:
    found: list[Trial] = []
    for trial in sorted(tuning["trials"], key=lambda t: float(t["mse"])):
        if all(trial["kernel"] != other["kernel"] for other in found):
            found.append(trial)
    return sorted(found, key=lambda t: (_family(t["kernel"]), t["kernel"].get("bandwidth", 0.0)))


def _family(kernel: dict[str, Any]) -> str:
    rest = ", ".join(f"{k}={v:g}" for k, v in kernel.items() if k not in ("name", "bandwidth") and type(v) is float)
    return f"{kernel['name']}({rest})" if rest else str(kernel["name"])


def _percent(tuning: dict[str, Any], trial: Trial) -> float:
    return float(100 * trial["score"] if tuning["metric"] == "accuracy" else trial["score"])


def _label(tuning: dict[str, Any]) -> str:
    return "accuracy, %" if tuning["metric"] == "accuracy" else "R²"
