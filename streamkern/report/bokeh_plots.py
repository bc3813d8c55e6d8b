"""Plots of the page, made with Bokeh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from bokeh.embed import components
from bokeh.model import Model
from bokeh.models import AdaptiveTicker, ColumnDataSource, HoverTool, NumeralTickFormatter, Range1d
from bokeh.models.annotations import Span
from bokeh.plotting import figure
from bokeh.resources import Resources

from streamkern.report.html_markup import COLOURS, DASHES, MARKS, figure_with_legend, legend
from streamkern.types import Array

Plot: TypeAlias = figure
Plots: TypeAlias = dict[str, Plot]

_HEIGHT = 320


UNIT = -0.02, 1.02
"""Range of an axis from 0 to 1, with margins so that lines at the ends are fully visible."""


class Line(NamedTuple):
    """A line, or markers, of a plot: x and y have shape (k,); colour and dash are numbers.

    ``mark`` is a marker at each point, such as ``circle``; a line with ``listed`` is in the legend.
    """

    x: Sequence[float]
    y: Sequence[float]
    name: str
    colour: int = 0
    dash: int = 0
    mark: str = ""
    joined: bool = True
    listed: bool = True


def numbered(number: int, x: Sequence[float], y: Sequence[float], name: str) -> Line:
    """Return a line that differs from those of other numbers in colour, dash and mark."""
    return Line(x, y, name, number, number, [*MARKS][number % len(MARKS)])


class Level(NamedTuple):
    """A horizontal or vertical line across a plot; in the legend, if it has a name."""

    value: float
    name: str = ""
    colour: int = 6
    dash: int = 1
    upright: bool = False


def scripts() -> str:
    """Return Bokeh's scripts, to be embedded so that the page loads nothing."""
    return Resources(mode="inline", components=["bokeh"]).render()


def embed(plots: Mapping[str, Model]) -> tuple[str, dict[str, str]]:
    """Return a script that draws the plots, and the HTML element of each plot by name."""
    script, places = components(dict(plots))
    return script, dict(places)


def draw(
    plots: Plots,
    key: str,
    lines: Sequence[Line],
    x_label: str,
    y_label: str,
    caption: str,
    numbers: str = "",
    *,
    log_x: bool = False,
    log_y: bool = False,
    levels: Sequence[Level] = (),
    words: str = "",
    zero: bool = False,
    x_span: tuple[float, float] | None = None,
    y_span: tuple[float, float] | None = None,
) -> str:
    """Add a plot of lines over x to ``plots``; return its place, with a legend, a caption, and its numbers as a table.

    Points that a logarithmic axis cannot show are left out. ``levels`` are straight lines across; ``words`` is the
    format of ticks: ``bytes`` on y, or ``rows`` on x; ``zero`` lets y begin at zero; spans are by default the range of
    the points.
    """
    drawn = [shown for line in lines if (shown := _shown(line, log_x, log_y)) is not None]
    xs = [float(x) for line in drawn for x in line.x] + [level.value for level in levels if level.upright]
    ys = [float(y) for line in drawn for y in line.y] + [level.value for level in levels if not level.upright]
    p = plots[key] = _empty(x_span or _span(xs, log_x), y_span or _span(ys, log_y, zero), log_x, log_y)
    for line in drawn:
        _draw(p, line)
    for level in levels:
        _add_level(p, level)
    # Bokeh's numeral format would write 1e-9 as 0.
    tiny: dict[str, Any] = {"@x": "printf"} if log_x and min(xs, default=1.0) < 1e-3 else {}
    at = "@x{%.3g}" if tiny else "@x{0,0.[0000]}"
    p.add_tools(HoverTool(tooltips=[("", "@name"), (x_label, at), (y_label, "@y{0,0.[000000]}")], formatters=tiny))
    _dress(p, x_label, y_label, words)
    entries: list[tuple[str, int, int | None, str]] = []
    for line in lines:
        points = not line.joined or len(line.x) == 1
        if line.listed:
            entries.append((line.name, line.colour, None if points else line.dash, line.mark or "circle" * points))
    entries += [(level.name, level.colour, level.dash, "") for level in levels if level.name]
    return figure_with_legend(key, legend(entries), caption, numbers)


def _draw(p: Plot, line: Line) -> None:
    colour = COLOURS[line.colour % len(COLOURS)]
    data: Any = {"x": list(line.x), "y": list(line.y), "name": [line.name] * len(line.x)}
    if line.joined and len(line.x) > 1:
        style: dict[str, Any] = {
            "line_color": colour, "line_width": 2.5, "line_dash": list(DASHES[line.dash % len(DASHES)]),
        }  # fmt: skip
        p.line("x", "y", source=ColumnDataSource(data), **style)
    if line.mark or len(line.x) == 1 or not line.joined:
        size, alpha = (9, 1.0) if line.joined else (5, 0.5)
        p.scatter(
            "x", "y", source=ColumnDataSource(data), marker=line.mark or "circle", size=size, color=colour, alpha=alpha
        )


def draw_histogram(
    plots: Plots, key: str, edges: Array, counts: Array, x_label: str, caption: str, y_label: str = "rows",
    numbers: str = "", *, zero: bool = True,
) -> str:  # fmt: skip
    """Add a plot of counts between edges to ``plots``, and return its figure; ``zero`` draws a line at x = 0."""
    p = _empty((float(edges[0]), float(edges[-1])), (0.0, 1.05 * max(1, int(counts.max()))))
    data = {"left": edges[:-1].tolist(), "right": edges[1:].tolist(), "top": counts.tolist()}
    p.quad(
        left="left", right="right", top="top", bottom=0, source=ColumnDataSource(data),
        fill_color=COLOURS[0], fill_alpha=0.75, line_color="white",
    )  # fmt: skip
    if zero:
        _add_level(p, Level(0.0, upright=True))
    p.add_tools(HoverTool(tooltips=[("from", "@left{0.0000}"), ("to", "@right{0.0000}"), (y_label, "@top{0,0}")]))
    _dress(p, x_label, y_label)
    plots[key] = p
    return figure_with_legend(key, legend([(y_label, 0, 0, "")]), caption, numbers)


def _empty(
    x_range: tuple[float, float], y_range: tuple[float, float], log_x: bool = False, log_y: bool = False
) -> Plot:
    return figure(
        height=_HEIGHT, sizing_mode="stretch_width", toolbar_location=None, tools="",
        x_axis_type="log" if log_x else "linear", y_axis_type="log" if log_y else "linear",
        x_range=Range1d(start=x_range[0], end=x_range[1]), y_range=Range1d(start=y_range[0], end=y_range[1]),
        min_border_right=18,
    )  # fmt: skip


def _add_level(p: Plot, level: Level) -> None:
    style: dict[str, Any] = {
        "line_color": COLOURS[level.colour % len(COLOURS)],
        "line_dash": list(DASHES[level.dash % len(DASHES)]),
        "line_width": 2,
    }
    p.add_layout(Span(location=level.value, dimension="height" if level.upright else "width", **style))


def _shown(line: Line, log_x: bool, log_y: bool) -> Line | None:
    points = [
        (float(x), float(y))
        for x, y in zip(line.x, line.y, strict=True)
        if math.isfinite(x) and math.isfinite(y) and (x > 0 or not log_x) and (y > 0 or not log_y)
    ]
    if not points:
        return None
    max_points = 1500  # most points of a line; more would not be visible
    every = -(-len(points) // max_points)
    kept = points[::every] + (points[-1:] if (len(points) - 1) % every else [])
    return line._replace(x=[x for x, _ in kept], y=[y for _, y in kept])


def _span(values: list[float], log: bool, zero: bool = False) -> tuple[float, float]:
    if not values:
        return (0.1, 1.0)
    low, high = min(values), max(values)
    if log:
        edge = max(1.08, (high / low) ** 0.04)
        return low / edge, high * edge
    edge = 0.04 * (high - low) or 0.5 * abs(high) or 0.5
    return (0.0 if zero else low - edge), high + edge


def _dress(p: Plot, x_label: str, y_label: str, words: str = "") -> None:
    if words == "rows":
        p.xaxis.formatter = NumeralTickFormatter(format="0.[0]a")
    elif words == "bytes":
        p.yaxis.formatter = NumeralTickFormatter(format="0.[0]ib")
        p.yaxis.ticker = AdaptiveTicker(base=1024, mantissas=[2**power for power in range(10)])
    for axis, label in ((p.xaxis, x_label), (p.yaxis, y_label)):
        axis.axis_label = label
        axis.axis_label_text_font_size = "14px"
        axis.axis_label_text_font_style = "normal"
        axis.axis_label_text_color = axis.major_label_text_color = "#222"
        axis.major_label_text_font_size = "13px"
        axis.axis_line_color = axis.major_tick_line_color = "#777"
        axis.minor_tick_line_color = None
    p.grid.grid_line_color = "#e4e4e4"
    p.outline_line_color = None


def number_text(value: float) -> str:
    """Format a number for reading."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        return f"{value:,.6g}" if abs(value) < 1000 else f"{value:,.0f}"
    mantissa, _, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def bins(values: Array) -> tuple[Array, Array]:
    """Count values in 40 equal bins from their 0.5% to their 99.5% quantile; the end bins include the rest."""
    low, high = (float(np.quantile(values, q)) for q in (0.005, 0.995))
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, 41)
    counts, _ = np.histogram(np.clip(values, low, high), edges)
    return edges, counts
