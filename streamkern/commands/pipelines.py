"""Commands that take a pipeline file, and ``resume``."""

from __future__ import annotations

import inspect
import json
import shlex
import shutil
import sys
import textwrap
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from streamkern.commands.resources import resources_of
from streamkern.commands.terminal import complain, say
from streamkern.errors import StreamkernError, UsageError
from streamkern.kernels import RADIAL_KERNELS
from streamkern.progress import Display
from streamkern.redaction import redacted
from streamkern.runs import Pipeline, load_pipeline, parameters, plan, resume, run, type_name
from streamkern.runs.results import RunResult
from streamkern.runs.tune import next_command, tune
from streamkern.storage.atomic_writes import read_json, write_json


def settings_help(path: str) -> str:
    """Settings of a pipeline file: name, type, default, and the text of the docstring."""
    known = parameters(path)
    rows = [(name, type_name(p.kind), _default(name, p.default), p.text) for name, p in known.items()]
    if not rows:
        return f"\n{path} has no settings.\n"
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    indent = sum(widths) + 8
    lines = [f"\nsettings of {path} (--set NAME=VALUE):"]
    for row in rows:
        head = "  ".join(["", *(text.ljust(width) for text, width in zip(row[:3], widths, strict=True)), ""])
        text = textwrap.wrap(row[3], max(30, shutil.get_terminal_size().columns - indent)) or [""]
        lines += [(head + text[0]).rstrip(), *(" " * indent + more for more in text[1:])]
    return "\n".join(lines) + "\n"


def _default(name: str, value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, str):
        return str(redacted({"settings": {name: value}})["settings"][name])
    return f"{value:_}" if type(value) is int else str(value)


def run_command(args: Namespace, settings: dict[str, str]) -> None:
    """Train a pipeline."""
    resources, pipeline = resources_of(args), load_pipeline(args.pipeline, settings)
    folder = _folder(args, pipeline)

    begin = partial(run, pipeline, folder, resources=resources, checkpoint_seconds=args.checkpoint_seconds)
    _watched(begin, folder, args.quiet)


def resume_command(args: Namespace) -> None:
    """Continue an interrupted run."""
    folder, resources = Path(args.run_dir), None if args.scheduler is None else resources_of(args)
    _watched(partial(resume, folder, threads=args.threads, resources=resources), folder, args.quiet)


def _watched(begin: Callable[..., RunResult], folder: Path, quiet: bool) -> None:
    display = Display(sys.stderr)
    try:
        result = begin(listeners=() if quiet else (display,))
    except KeyboardInterrupt:
        if any((folder / "checkpoints").glob("*/[0-9]*")):
            display.close()
            complain(f"to continue the run: streamkern resume {shlex.quote(str(folder))}")
        raise
    except StreamkernError:
        saved = read_json(folder / "result.json") or {}
        if "model" in saved and saved.get("status") != "done":
            display.close()
            model = shlex.quote(str(folder / saved["model"]))
            complain(f"the model is trained and saved: streamkern evaluate {model} DATA --target NAME scores it")
        raise
    finally:
        display.close()
    if not quiet:
        say(f"{result}\n")


def _folder(args: Namespace, pipeline: Pipeline) -> Path:
    return Path(args.run_dir) if args.run_dir is not None else Path("runs") / pipeline.name


def tune_command(args: Namespace, settings: dict[str, str]) -> None:
    """Compare settings on a subsample, print them and write tune.json."""
    resources, pipeline = resources_of(args), load_pipeline(args.pipeline, settings)
    with Display(sys.stderr) as display:
        found = tune(
            pipeline, args.kernel and [RADIAL_KERNELS[name] for name in args.kernel], rows=args.rows,
            centers=args.centers, resources=resources, on_trial=display.trial,
        )  # fmt: skip
    following, place = redacted(next_command(found, args.pipeline, settings)), _folder(args, pipeline) / "tune.json"
    facts = redacted(found.to_json()) | {"next": following}
    write_json(place, facts)
    lines = [found.text(), "", "next:", *(f"  {line}" for line in following.splitlines()), "", f"{place}"]
    say(json.dumps(facts) + "\n" if args.json else "\n".join(lines) + "\n")


def plan_command(args: Namespace, settings: dict[str, str]) -> None:
    """Print the time and memory that a run will need."""
    resources = resources_of(args)
    result = None if args.beside is None else _ended(Path(args.beside))
    made = plan(load_pipeline(args.pipeline, settings), resources=resources)
    say((json.dumps(made.to_json(), indent=1) if args.json else made.text(result)) + "\n")


def _ended(folder: Path) -> dict[str, Any]:
    found = read_json(folder / "result.json") or {}
    if found.get("status") != "done":
        raise UsageError(
            "There is no run here that is done.",
            where=f"--beside {folder}",
            expected="the directory of a run whose status is done",
            remedy=f"streamkern status {shlex.quote(str(folder))} shows its state",
        )
    return found
