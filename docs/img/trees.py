"""Draws docs/img/trees.svg, streamkern beside boosted trees, from docs/results: python docs/img/trees.py [FILE]."""

from __future__ import annotations

import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from measurements import Compared, compared

WIDTH, LEFT, RIGHT, TOP, LINE = 760, 110, 120, 58, 34
FOUND = compared()
LOW = 0.7
HIGH = 1.1 * max((1 - each.score) / (1 - table.strongest.score) for table in FOUND for each in table.trees.values())
TICKS = (0.75, 1, 1.5, 2, 3, 4, 5)
WON, LOST, TREES = "#0072b2", "#d55e00", "#999999"


def at(ratio: float) -> float:
    """Return where an error lies, relative to that of the strongest trees, on a logarithmic axis."""
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(ratio / LOW) / math.log(HIGH / LOW)


def line(each: Compared, y: float) -> list[str]:
    """Return the marks of a table: grey for trees, in colour for this library."""
    least = 1 - each.strongest.score
    ratio = (1 - each.ours.score) / least
    color = WON if each.won else LOST
    parts = [f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#eee"/>']
    parts.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{each.name}</text>')
    for scored in each.trees.values():
        x = at((1 - scored.score) / least)
        parts.append(f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="none" stroke="{TREES}" stroke-width="1.5"/>')
    parts.append(f'<path d="M{at(1):.1f} {y}H{at(ratio):.1f}" stroke="{color}" stroke-width="3"/>')
    parts.append(f'<circle cx="{at(ratio):.1f}" cy="{y}" r="6" fill="{color}"/>')
    points = abs(100 * (ratio - 1))
    words = f"{points:.{0 if points >= 1 else 1}f}% {'less' if each.won else 'more'} error"
    parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{y + 4}" fill="{color}">{words}</text>')
    return parts


def picture() -> str:
    """Return the SVG: a line a table, from the largest win to the largest loss."""
    found = sorted(FOUND, key=lambda each: (1 - each.ours.score) / (1 - each.strongest.score))
    height = TOP + LINE * len(found) + 40
    bottom = TOP + LINE * len(found) - 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="13"><title>Errors of streamkern and of boosted trees on {len(found)} tables</title>'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<circle cx="{LEFT + 6}" cy="18" r="6" fill="{WON}"/><circle cx="{LEFT + 24}" cy="18" r="6" fill="{LOST}"/>',
        f'<text x="{LEFT + 36}" y="22">streamkern: better, worse than the strongest trees</text>',
        f'<circle cx="{LEFT + 386}" cy="18" r="5" fill="none" stroke="{TREES}" stroke-width="1.5"/>',
        f'<text x="{LEFT + 398}" y="22">boosted trees</text>',
    ]
    for tick in TICKS:
        x = at(tick)
        dark = "#666" if tick == 1 else "#ddd"
        parts.append(f'<path d="M{x:.1f} {TOP - 18}V{bottom}" stroke="{dark}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    for i, each in enumerate(found):
        parts += line(each, TOP + LINE * i)
    parts.append(f'<text x="{at(1):.1f}" y="{bottom + 38}">error, relative to the strongest trees</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".svg")
    target.write_text(picture(), encoding="utf-8")
