"""Tables, legends and small images of the page. All data of a run are escaped here."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import numpy as np

from streamkern.types import Array

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colours distinguishable for the colour-blind (Okabe and Ito, 2008)."""

PLOTTED_OUTPUTS = 3
"""Most outputs that have their own plots."""

LARGEST_TABLE = 20
"""Most classes that are listed individually, or in pairs."""

NONE = "–"
"""Cell of a missing value."""

DASHES = ((), (8, 4), (2, 3), (8, 3, 2, 3))
"""Line patterns, so that nothing depends on colour alone."""


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Any]], kind: str = "") -> str:
    """Return a table whose first column names the rows. It has keyboard focus, so that wide tables can be scrolled."""
    lines = [
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table class="{kind}"><caption><span>{escape(caption)}</span></caption>'
    ]
    if head:
        cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
        lines.append(f"<thead><tr>{cells}</tr></thead>")
    lines.append("<tbody>")
    for first, *rest in rows:
        cells = "".join(cell if isinstance(cell, Cell) else f"<td>{escape(str(cell))}</td>" for cell in rest)
        lines.append(f'<tr><th scope="row">{escape(str(first))}</th>{cells}</tr>')
    return "".join([*lines, "</tbody></table></div>"])


class Cell(str):
    """A cell that is already HTML."""

    __slots__ = ()


def bar(share: float, text: str, colour: int = 0) -> Cell:
    """Return a number with a bar for its share."""
    width, paint = 100 * min(1.0, max(0.0, share)), COLOURS[colour % len(COLOURS)]
    return Cell(
        f'<td><span class="bar"><i style="width:{width:.1f}%;background:{paint}"></i></span><b>{escape(text)}</b></td>'
    )


def confusion_table(counts: Array, names: Sequence[str], caption: str) -> str:
    """Return counts of (class, predicted class) as a table whose cells are shaded by their share of the row."""
    shares = counts / np.maximum(1, counts.sum(axis=1, keepdims=True))

    def cell(i: int, j: int) -> Cell:
        share = float(shares[i, j])
        # Correct predictions in blue and mistakes in vermillion, on a square root scale, so that few mistakes are
        # visible.
        red, green, blue = (0, 114, 178) if i == j else (213, 94, 0)
        strength = share**0.5
        r, g, b = (round(255 + (c - 255) * strength) for c in (red, green, blue))
        ink = "#fff" if 0.299 * r + 0.587 * g + 0.114 * b < 128 else "#111"
        text = f"{int(counts[i, j]):,}" if counts[i, j] else "·"
        return Cell(f'<td style="background:rgb({r},{g},{b});color:{ink}" title="{share:.1%}">{text}</td>')

    rows = [[name, *(cell(i, j) for j in range(len(names)))] for i, name in enumerate(names)]
    return table(caption, ("true \\ predicted", *names), rows, "heat")


MARKS = {
    "circle": '<circle cx="17" cy="6" r="4.5"/>',
    "square": '<rect x="13" y="2" width="8" height="8"/>',
    "diamond": '<path d="M17 0l4 6l-4 6l-4-6z"/>',
}


def legend(entries: Iterable[tuple[str, int, int | None, str]]) -> str:
    """Return a legend: text, numbers of colour and dash (None if points are not joined), and mark of each entry."""
    items = []
    for text, colour, dash, mark in entries:
        drawn = MARKS.get(mark, "")
        if dash is not None:
            pattern = " ".join(str(length) for length in DASHES[dash % len(DASHES)])
            drawn += f'<line x1="1" y1="6" x2="33" y2="6" stroke-width="3" stroke-dasharray="{pattern}"/>'
        paint = COLOURS[colour % len(COLOURS)]
        items.append(
            f'<li><svg width="34" height="12" aria-hidden="true" fill="{paint}" stroke="{paint}" stroke-width="0">'
            f"{drawn}</svg>{escape(text)}</li>"
        )
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def plot_placeholder(name: str) -> str:
    """Return the placeholder of a plot that the browser draws."""
    return f"<!--plot {name}-->"


def figure_with_legend(name: str, key: str, caption: str, numbers: str = "") -> str:
    """Return a plot with its legend above, its caption below, and its numbers as a table."""
    text = escape(caption[:1].upper() + caption[1:])
    drawn = f'<div class="plot" role="img" aria-label="{text}">{plot_placeholder(name)}</div>'
    return f"<figure>{key}{drawn}<figcaption>{text}</figcaption>{details(numbers) if numbers else ''}</figure>"


def side_by_side(*figures: str) -> str:
    """Return figures that are side by side in a wide window, else one below another."""
    return f'<div class="pair">{"".join(figures)}</div>'


def details(html: str, summary: str = "The numbers as a table") -> str:
    """Return content that is hidden until its summary is clicked."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"


def image(pixels: Array, low: float, high: float, text: str) -> str:
    """Return pixels, shape (h, w) or (h, w, 3), as an image; ``low`` is black and ``high`` white."""
    scaled = np.clip((pixels - low) / max(high - low, 1e-30), 0, 1)
    data = base64.b64encode(png(np.round(255 * scaled).astype(np.uint8))).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(text)}" width="{pixels.shape[1]}">'


def png(pixels: Array) -> bytes:
    """Return an array of bytes, shape (h, w) or (h, w, 3), as a PNG file."""
    height, width = pixels.shape[:2]
    # Each line begins with its filter type: none.
    lines = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(pixels))

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2 if pixels.ndim == 3 else 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
