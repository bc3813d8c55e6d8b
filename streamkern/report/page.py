"""The report page of a run, or a comparison of several: a self-contained file that sends no requests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from streamkern.report import html_markup, sections
from streamkern.report.bokeh_plots import Plot, embed, scripts
from streamkern.report.result_sentences import next_steps, result_sentence
from streamkern.report.run_directory import RunDirectory
from streamkern.report.run_status import local_time, status, worker_in_words
from streamkern.storage.atomic_writes import write_text
from streamkern.storage.untrusted_files import given_path

# Nothing may be loaded from elsewhere, even if the content of the page asked for it.
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; font-src data:"

_STYLE = """
:root { color-scheme: light; --line: #d0d0d0; --soft: #f5f6f8; --ink: #1a1a1a; --dim: #505050; --link: #00558a; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
a { color: var(--link); }
header, main, footer { max-width: 62rem; margin: 0 auto; padding: 0 1rem; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: .5rem; background: #fff; padding: .5rem; z-index: 9; }
:focus-visible { outline: 3px solid #0072B2; outline-offset: 2px; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .4rem; padding-top: .6rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.2rem 0 .3rem; }
.state { display: inline-block; font-size: .95rem; font-weight: 600; vertical-align: .2em; margin-left: .5rem;
  padding: .05rem .6rem; border-radius: 1rem; border: 2px solid #7a4a00; color: #7a4a00; }
.state.done { border-color: #00694b; color: #00694b; }
.state.failed, .state.diverged, .state.dead, .state.refused { border-color: #a03a00; color: #a03a00; }
.verdict { font-size: 1.15rem; margin: .4rem 0 .8rem; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem; margin: 1rem 0; }
.cards div { background: var(--soft); border-radius: .5rem; padding: .5rem .8rem; }
.cards dt { color: var(--dim); font-size: .85rem; }
.cards dd { margin: 0; font-size: 1.25rem; font-weight: 600; font-variant-numeric: tabular-nums; }
.cards small { display: block; font-size: .8rem; font-weight: 400; color: var(--dim); }
nav ul, .legend { list-style: none; margin: .4rem 0; padding: 0; display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; }
.legend li { display: flex; align-items: center; gap: .4rem; font-size: .9rem; }
figure { margin: .6rem 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr)); gap: 0 1.4rem; }
.pair figure { min-width: 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
figcaption, .note { color: var(--dim); font-size: .92rem; margin: .3rem 0; max-width: 48rem; }
details { margin: .4rem 0; }
summary { cursor: pointer; color: var(--link); padding: .2rem 0; }
.scroll { overflow-x: auto; margin: .5rem 0; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .2rem 0; }
caption span { position: sticky; left: 0; display: inline-block; max-width: calc(100vw - 2rem); }
th, td { text-align: right; padding: .22rem .6rem; border-bottom: 1px solid #e6e6e6; vertical-align: top; }
th[scope=row], th:first-child { text-align: left; font-weight: 500; }
thead th { border-bottom: 2px solid var(--line); font-weight: 600; white-space: nowrap; }
.text th { text-align: left; }
.text td { text-align: left; overflow-wrap: anywhere; min-width: 7rem; }
.heat td { text-align: center; min-width: 2.6rem; border: 1px solid #fff; }
.heat th { white-space: nowrap; }
.bars { width: 100%; }
.bars th { white-space: nowrap; }
.bars td { width: 100%; white-space: nowrap; }
.bar { display: inline-block; width: calc(100% - 7.5rem); height: .8rem; background: #ececec; vertical-align: middle; }
.bar i { display: block; height: 100%; min-width: 1px; }
.bars b { display: inline-block; width: 7.4rem; font-weight: 500; padding-left: .4rem; white-space: nowrap; }
.samples { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: .8rem 1.4rem; }
.samples figure { margin: 0; }
.samples div { display: grid; grid-template-columns: repeat(4, 1fr); gap: .3rem; }
.samples img { width: 100%; image-rendering: pixelated; border: 1px solid var(--line); }
footer { color: var(--dim); font-size: .85rem; padding: 1.5rem 1rem; }
@media (max-width: 34rem) {
  .heat { font-size: .75rem; }
  .heat th, .heat td { padding: .2rem; min-width: 1.75rem; }
  .heat thead th:first-child { white-space: normal; line-height: 1.1; }
}
@media print { nav, .skip { display: none; } h2 { break-after: avoid; } }
"""


def write_report(
    records: Sequence[RunDirectory],
    path: str | os.PathLike[str] | None = None,
    image_shape: tuple[int, ...] | None = None,
) -> Path:
    """Write the page of a run, or of several: ``report.html``, or ``comparison.html``, in the (first) run's directory.

    ``image_shape`` is height and width, or height, width and 3, of rows that are images; by default it comes from an
    augmentation, or a square width of a row.
    """
    name = "report.html" if len(records) == 1 else "comparison.html"
    target = records[0].folder / name if path is None else Path(given_path(path))
    write_text(target, page(records, image_shape))
    return target


def page(records: Sequence[RunDirectory], image_shape: tuple[int, ...] | None = None, again: int | None = None) -> str:
    """Return the page as HTML; a browser reloads it ``again`` seconds later, or never."""
    plots: dict[str, Plot] = {}
    if len(records) == 1:
        record = records[0]
        title, made = record.name, sections.run_sections(record, plots, image_shape)
        head = _head(record)
    else:
        names = [record.folder.resolve().name for record in records]
        if len(set(names)) < len(names):
            names = [str(record.folder) for record in records]
        title, made = "Comparison of " + ", ".join(names), sections.comparison_sections(records, names, plots)
        head = "<h1>Comparison of runs</h1>" + "".join(
            f'<h3>{escape(name)}{_chip(record)}</h3><p class="verdict">{escape(result_sentence(record))}</p>'
            for name, record in zip(names, records, strict=True)
        )
    folders = ", ".join(str(record.folder) for record in records)
    return page_shell(title, head, made, plots, f"Made by streamkern from {folders}.", again)


def page_shell(
    title: str, head: str, made: Sequence[sections.Section], plots: dict[str, Plot], foot: str, again: int | None = None
) -> str:
    """Return a page that loads nothing: title and foot are text, head is HTML; plots replace their sections' places."""
    refresh = "" if again is None else f'\n<meta http-equiv="refresh" content="{again}">'
    script, places = embed(plots) if plots else ("", {})
    links = "".join(f'<li><a href="#{s.key}">{escape(s.title)}</a></li>' for s in made)
    body = "".join(
        f'<section id="{s.key}" aria-labelledby="{s.key}-h"><h2 id="{s.key}-h">{escape(s.title)}</h2>{s.html}</section>'
        for s in made
    )
    for name, place in places.items():
        body = body.replace(html_markup.plot_placeholder(name), place)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">{refresh}
<title>{escape(title)} · streamkern</title>
<link rel="icon" href="data:,">
<style>{_STYLE}</style>
{scripts() if plots else ""}
</head>
<body>
<a class="skip" href="#main">Skip to the content</a>
<header>{head}<nav aria-label="Sections"><ul>{links}</ul></nav></header>
<main id="main">{body}</main>
<footer>{escape(foot)}</footer>
{script}
</body>
</html>
"""


def _chip(record: RunDirectory) -> str:
    return f' <span class="state {record.state}">{record.state}</span>'


def _head(record: RunDirectory) -> str:
    lines = [
        f"<h1>{escape(record.name)}{_chip(record)}</h1>",
        f'<p class="verdict">{escape(result_sentence(record))}</p>',
    ]
    began = record.of("run", "begin")
    if began:
        lines.append(f'<p class="note">Began {escape(local_time(began[-1]["time"]))}.</p>')
    if numbers := sections.key_numbers(record):
        cards = "".join(
            f"<div><dt>{escape(label)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>"
            for label, value, note in numbers
        )
        lines.append(f'<dl class="cards">{cards}</dl>')
    steps = next_steps(record)
    if steps:
        lines.append("<h3>What to do</h3><ul>" + "".join(f"<li>{escape(step)}</li>" for step in steps) + "</ul>")
    if workers := status(record).get("workers"):
        items = "".join(f"<li>{escape(worker_in_words(worker))}</li>" for worker in workers)
        lines.append(f"<h3>Workers</h3><ul>{items}</ul>")
    warnings = [str(event.get("message", "")) for event in record.of("warning")]
    if warnings:
        lines.append("<h3>Warnings</h3><ul>" + "".join(f"<li>{escape(text)}</li>" for text in warnings) + "</ul>")
    return "".join(lines)
