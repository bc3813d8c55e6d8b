"""The display of work in progress: a bar on a terminal or in a notebook, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TextIO

from streamkern.memory import format_bytes

LINE_EVERY = 10.0
"""Seconds between two lines of progress where there is no bar."""

_BAR, _WIDE = 12, 80  # columns of a bar, on terminals that are at least so wide


def duration_text(seconds: float) -> str:
    """Seconds for people: ``4.2 s``, ``3:05``, ``1:02:03``."""
    if seconds < 59.95:
        return f"{max(0.0, seconds):.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def display_if_verbose(verbose: int) -> Iterator[Display | None]:
    """A display on standard error where ``verbose`` is not 0, closed at the end; else None."""
    if not verbose:
        yield None
        return
    with Display(sys.stderr) as display:
        yield display


def reporter(
    on_progress: Callable[[str, int, int], None] | None, display: Display | None
) -> Callable[[str, int, int], None]:
    """Return a function that reports the rows done to a user's function and to a display, each if given."""

    def report(what: str, rows: int, total: int) -> None:
        if on_progress is not None:
            on_progress(what, rows, total)
        if display is not None:
            display.rows(what, rows, total)

    return report


class Display:
    """Show the progress: a bar (of rich) on a terminal or in a notebook, or where ``live``; plain lines elsewhere.

    It is a listener of runs: ``sk.run(pipeline, listeners=(Display(sys.stderr),))`` is what ``verbose=1`` does. A
    closed stream is no reason to end a run.
    """

    def __init__(self, stream: TextIO, live: bool | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream: TextIO | None = stream
        self._live = _can_draw(stream) if live is None else live
        self._clock = clock
        self._bar: Any = None
        self._next = clock()

    def __call__(self, kind: str, fields: dict[str, Any]) -> None:
        match kind, fields.get("state"):
            case "run", "begin":
                self._line(f"{fields['name']} in {fields['run_dir']}")
            case "stage", "begin":
                self._next = self._clock() + (0.0 if self._live else LINE_EVERY)
                self._draw(fields["name"], f"{fields['name']} ...")
            case "stage", "end":
                how = "reused from an earlier run" if fields["cached"] else duration_text(fields["seconds"])
                self._line(f"{fields['name']}: {how}")
            case "memory", _:
                self._line(f"memory: {format_bytes(fields['projected'])} of {format_bytes(fields['budget'])} projected")
            case "solver", _:
                self._line(_solver(fields))
            case "cluster", _:
                self._line(f"cluster: {fields['slots']} threads, {fields['dashboard'] or 'no dashboard'}")
            case "resume", _:
                self._line(fields["message"])
            case "choice", _:
                self._line(fields["reason"])
            case "warning", _:
                self._line(f"warning: {fields['message']}")
            case "step", _:
                rows, total = fields["rows"], fields["total_rows"]
                if self._due(rows == total):
                    parts = _step(fields)
                    self._draw("train", "train: " + ", ".join(parts), parts, rows, total)

    def rows(self, what: str, rows: int, total: int) -> None:
        """Listen to the sweeps over all rows."""
        if self._due(False):
            texts = f"{rows / max(1, total):4.0%}", f"{rows:,} of {total:,} rows"
            self._draw(what, f"{what}: {texts[0]}  {texts[1]}", texts, rows, total)

    def trial(self, trial: Any) -> None:
        """Listen to a tuning."""
        texts = f"squared error {trial.mse:.4g} at ridge {trial.ridge:.0e}"
        self._draw(f"{trial.kernel}", f"{trial.kernel}: {texts}", (texts,))

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the terminal with a clean line."""
        bar, self._bar = self._bar, None
        if bar is not None:
            self._try(bar.stop)

    def _due(self, ends: bool) -> bool:
        """Return True if progress should be written now; without a bar, always at the end."""
        if self._clock() < self._next and not (ends and not self._live):
            return False
        refresh = 1 / 8  # seconds between two drawings of a bar
        self._next = self._clock() + (refresh if self._live else LINE_EVERY)
        return True

    def _draw(self, name: str, line: str, texts: tuple[str, ...] = (), done: int = 0, total: int | None = None) -> None:
        """Draw a bar over the previous one, or write ``line``; the last of ``texts`` go that do not fit the width."""
        if not self._live or self._stream is None:
            self._line(line)
            return
        if self._bar is None:
            self._try(self._begin)
        if self._bar is None:
            return
        columns = self._bar.console.width
        left = columns - 2 - (_BAR + 1 if columns >= _WIDE else 0)
        name = name[:left]
        text = ""
        for part in texts:
            if len(name) + len(text) + len(part) + 2 <= left:
                text += f"  {part}" if text else part
        bar, task = self._bar, self._bar.task_ids[0]
        self._try(lambda: bar.update(task, description=name, completed=done, total=total, texts=text, refresh=True))

    def _begin(self) -> None:
        # A tenth of a second that only a bar needs.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        wide = _columns(self._stream) >= _WIDE
        console = Console(file=self._stream, force_terminal=True, width=_columns(self._stream), highlight=False)
        bar = Progress(
            TextColumn("{task.description}", markup=False),
            *([BarColumn(_BAR)] if wide else []),
            TextColumn("{task.fields[texts]}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        bar.add_task("", total=None, texts="")
        bar.start()
        self._bar = bar

    def _line(self, text: str) -> None:
        self.close()
        if self._stream is not None:
            self._try(lambda: print(text, file=self._stream, flush=True))

    def _try(self, draw: Callable[[], Any]) -> None:
        try:
            draw()
        except (OSError, ValueError):
            self._stream = self._bar = None


def _can_draw(stream: TextIO) -> bool:
    if stream.isatty():
        return os.environ.get("TERM") != "dumb"
    # IPython's shell tells a notebook from a terminal; without ipywidgets rich cannot draw in a notebook.
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None else None
    if found is None or type(found).__name__ != "ZMQInteractiveShell":
        return False
    return find_spec("ipywidgets") is not None


def _solver(fields: dict[str, Any]) -> str:
    """In words; not every solver has a projection, or a batch."""
    words = [f"projection {fields['projection']}"] if "projection" in fields else []
    if "batch" in fields:
        words.append(f"batch {fields['batch']:,} rows (critical: {fields['critical_batch']:,.0f})")
    words += [f"{name} {fields[name]:.4g}" for name in ("step", "ridge") if name in fields]
    return ", ".join(words)


def _step(fields: dict[str, Any]) -> tuple[str, ...]:
    rows, total, seconds = fields["rows"], fields["total_rows"], max(1e-9, fields["seconds"])
    return (
        f"{rows / total:4.0%}",
        f"{rows:,} of {total:,} rows",
        f"{rows / seconds:,.0f} rows/s",
        f"loss {fields['loss']:.4g}",
        f"ETA {duration_text((total - rows) * seconds / max(1, rows))}",
        f"{fields['wait']:.0%} waiting for data",
        f"pass {fields['pass_'] + 1}",
    )


def _columns(stream: TextIO | None) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80 if stream is not None else 80
    except (OSError, ValueError):
        return 80
