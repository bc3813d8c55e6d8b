"""The command line: ``streamkern COMMAND``."""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import math
import os
import shlex
import shutil
import signal
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from streamkern.backends import get_device
from streamkern.errors import StreamkernError, UsageError
from streamkern.events import Listener
from streamkern.execute import open_executor
from streamkern.execute.threads import default_threads
from streamkern.kernels import RADIAL
from streamkern.memory import share_heap
from streamkern.pipeline import load_pipeline, parameters, plan, resume, run, type_name
from streamkern.pipeline.checkpoints import INTERVAL
from streamkern.pipeline.doctor import doctor_text, examine
from streamkern.pipeline.results import RunResult
from streamkern.pipeline.tune import ROWS, next_command, tune
from streamkern.progress import Display
from streamkern.redaction import redacted
from streamkern.registry import Registry, retrain
from streamkern.registry.models import KEPT
from streamkern.registry.retrain import listing
from streamkern.report import read_run, status, status_text
from streamkern.report.inspect import inspect as inspect_data
from streamkern.report.status import metrics_in_words
from streamkern.serving.predict import evaluate, predict
from streamkern.storage.ingest import ingest
from streamkern.storage.schema import KINDS
from streamkern.storage.writer import read_json, write_json
from streamkern.user_code import in_words, users_place

_EXIT = "exit status: 0 done, 1 failed, 2 bad usage, no run or refused plan, 3 numerical failure, 75 directory busy"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: its words; those of the process by default.

    Returns:
        The exit status: 0 done, 1 failed, 2 bad usage, no run or refused plan, 3 numerical failure, 75 busy,
        130 interrupted.
    """
    share_heap()
    stop = _Stop()
    for number in (signal.SIGTERM, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as a shell leaves it for a command in the background
            signal.signal(number, stop)
    parser = make_parser()
    status = 0
    try:
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help(sys.stderr)
            return UsageError.exit_status
        args.command(args)
    except StreamkernError as error:
        _complain(f"error: {error}")
        status = error.exit_status
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        logging.getLogger("asyncio").disabled = True  # it would report writes of zarr's that end with the process
        _complain(f"stopped by {signal.Signals(number).name}")
        status = 128 + number
    except Exception as error:
        # A fault of the user's own function, solver or kernel is one line of his; a fault of ours is a traceback.
        place = users_place(error)
        _complain(f"error: {in_words(error)}\n  where: {place}" if place else traceback.format_exc())
        status = StreamkernError.exit_status
    _say("")
    return status


class _Stop:
    """SIGTERM ends a run as Ctrl-C does: the last checkpoint is written, the result says so, the lock is released.

    A wrapper may pass on the same Ctrl-C: what follows within a second does not stop the checkpoint.
    """

    def __init__(self) -> None:
        self._last = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before, self._last = self._last, time.monotonic()
        if self._last - before > 1.0:
            raise KeyboardInterrupt(number)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with a command without repeating the secrets in it."""

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(redacted(message), file)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(
        prog="streamkern", description="Train kernel machines on data that does not fit in memory.", epilog=_EXIT
    )
    parser.add_argument("--version", action="version", version=f"streamkern {version('streamkern')}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    machine = _Parser(add_help=False)
    machine.add_argument("--threads", type=_count, metavar="N", help="threads; the process's cores by default")
    machine.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where arithmetic runs (default: auto)"
    )

    pipeline = _Parser(add_help=False, parents=[machine])
    pipeline.add_argument("pipeline", nargs="?", metavar="PIPELINE", help="a Python file that defines pipeline()")
    pipeline.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", dest="settings",
        help="settings of the pipeline; may be repeated",
    )  # fmt: skip
    pipeline.add_argument(
        "--memory", metavar="BYTES", help='most memory, such as "4GiB"; half the machine\'s by default'
    )
    pipeline.add_argument(
        "-h", "--help", action="store_true", help="show this help; after PIPELINE, show its settings too"
    )

    command = commands.add_parser("run", parents=[pipeline], add_help=False, help="train a pipeline", epilog=_EXIT)
    command.add_argument("--run-dir", type=_path, metavar="DIR", help="where results are kept (default: runs/NAME)")
    command.add_argument(
        "--scheduler", default="threads", metavar="WHERE", help="threads, processes, processes:N or tcp://HOST:PORT"
    )
    command.add_argument(
        "--checkpoint-seconds", type=float, default=INTERVAL, metavar="S", help=f"between checkpoints ({INTERVAL:.0f})"
    )
    command.add_argument("--quiet", action="store_true", help="say nothing but errors")
    command.set_defaults(command=_with_settings(command, _run))

    command = commands.add_parser("resume", help="go on with an interrupted run", epilog=_EXIT)
    command.add_argument("run_dir", type=_path, metavar="RUN", help="the run directory")
    command.add_argument("--threads", type=_count, metavar="N", help="threads; as before by default")
    command.add_argument("--scheduler", metavar="WHERE", help="as for run; as before by default")
    command.add_argument("--quiet", action="store_true", help="say nothing but errors")
    command.set_defaults(command=_resume)

    command = commands.add_parser(
        "retrain", parents=[pipeline], add_help=False, help="train if there is something new, promote if it passes",
        epilog=f"{_EXIT}; the last line of stdout is one JSON object",
    )  # fmt: skip
    command.add_argument(
        "--registry", type=_path, metavar="DIR", help="where models are kept: a directory, or s3://BUCKET/NAME"
    )
    command.add_argument("--gate", metavar="EXPR", help='such as "accuracy >= champion - 0.002 and n_test >= 1000"')
    command.add_argument("--cold", action="store_true", help="begin at 0 rather than at the champion's weights")
    command.add_argument("--keep", type=_count, default=KEPT, metavar="N", help=f"versions that stay ({KEPT})")
    command.add_argument("--scheduler", default="threads", metavar="WHERE", help="as for run")
    command.add_argument("--quiet", action="store_true", help="say nothing but errors, and the last line")
    command.set_defaults(command=_with_settings(command, _retrain))

    command = commands.add_parser("models", help="the models that retraining keeps", epilog=_EXIT)
    command.add_argument("registry", metavar="DIR", help="where they are kept: a directory, or s3://BUCKET/NAME")
    command.add_argument("action", nargs="?", choices=("list", "show", "promote", "rollback", "prune"), default="list")
    command.add_argument("version", nargs="?", metavar="VERSION", help="for show (default: the champion) and promote")
    command.add_argument("--keep", type=_count, default=KEPT, metavar="N", help=f"versions that prune leaves ({KEPT})")
    command.set_defaults(command=_models)

    command = commands.add_parser("plan", parents=[pipeline], add_help=False, help="say what a run will cost")
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(command=_with_settings(command, _plan))

    command = commands.add_parser(
        "tune", parents=[pipeline], add_help=False, epilog=_EXIT,
        help="find bandwidth, ridge and number of centers on a subsample",
    )  # fmt: skip
    command.add_argument("--rows", type=_count, default=ROWS, metavar="N", help=f"rows of the subsample ({ROWS:,})")
    command.add_argument("--centers", type=_count, metavar="N", help="most centers; the pipeline's, up to 2,000")
    command.add_argument(
        "--kernel", action="append", choices=sorted(RADIAL), help="kernels to compare; may be repeated; the pipeline's"
    )
    command.add_argument("--run-dir", metavar="DIR", help="where tune.json and tune.html go (default: runs/NAME)")
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(command=_with_settings(command, _tune))

    command = commands.add_parser("status", help="show the state of a run: running, finished or dead")
    command.add_argument("run_dir", type=_path, metavar="RUN", help="the run directory")
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(command=_status)

    command = commands.add_parser("report", help="show a run, or several side by side, on a page")
    command.add_argument("run_dirs", nargs="+", metavar="RUN", help="run directories")
    command.add_argument("--out", metavar="FILE", help="the page (default: RUN/report.html; several: comparison.html)")
    command.add_argument(
        "--live", action="store_true", help="serve the page on this machine, and follow the run, until Ctrl-C"
    )
    command.add_argument("--port", type=_count, metavar="N", help="port of --live; a free one by default")
    command.add_argument(
        "--image-shape",
        type=_shape,
        metavar="HxW",
        help="rows are images, 28x28 or 32x32x3; a square is seen by itself",
    )
    command.set_defaults(command=_report)

    command = commands.add_parser("evaluate", parents=[machine], help="score a saved model on stored rows")
    command.add_argument("model", metavar="MODEL", help="a model.zarr, or where models are kept: the champion")
    command.add_argument("data", metavar="DATA", help="a table of any kind, or a glob")
    command.add_argument("--target", required=True, nargs="+", metavar="NAME", help="the target column, or columns")
    command.add_argument("--memory", metavar="BYTES", help="most memory; half the machine's by default")
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(command=_evaluate)

    command = commands.add_parser(
        "predict", parents=[machine], help="predict stored rows with a saved model", epilog=_EXIT
    )
    command.add_argument("model", metavar="MODEL", help="a model.zarr, or where models are kept: the champion")
    command.add_argument("data", metavar="DATA", help="a table of any kind, or a glob")
    command.add_argument("out", metavar="TARGET", help="the .parquet file or .zarr directory to make")
    command.add_argument("--id", metavar="COLUMN", help="a column of numbers or strings to copy")
    command.add_argument("--scores", action="store_true", help="write a score for each class, too")
    command.add_argument("--format", choices=("parquet", "zarr"), help="by the end of TARGET if not given")
    command.add_argument("--memory", metavar="BYTES", help="most memory; half the machine's by default")
    command.add_argument("--scheduler", default="threads", metavar="WHERE", help="as for run")
    command.add_argument("--overwrite", action="store_true", help="replace other predictions that are there")
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(command=_predict)

    command = commands.add_parser("ingest", help="write any table in the training layout, shuffled on request")
    command.add_argument("sources", nargs="+", metavar="SOURCE", help="tables of any kind, or globs")
    command.add_argument("path", metavar="TARGET", help="the local directory to make, or the URL of a store")
    command.add_argument("--target", action="append", metavar="NAME", help="the target column; may be repeated")
    command.add_argument("--weight", metavar="NAME", help="the column of sample weights")
    command.add_argument("--columns", type=lambda text: text.split(","), metavar="A,B,...", help="features to use")
    _add_schema(command)
    command.add_argument("--shuffle", action="store_true", help="put the rows in a uniformly random order")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="which order (default: 0)")
    command.add_argument("--format", choices=("zarr", "parquet"), help="by the end of TARGET if not given, else zarr")
    command.add_argument("--dtype", metavar="DTYPE", help="store features as float32, ...; as they are by default")
    command.add_argument("--shard", metavar="BYTES", help="join zarr chunks to shards of this size")
    command.add_argument("--memory", metavar="BYTES", help="most memory; half the machine's by default")
    command.add_argument("--threads", type=_count, metavar="N", help="threads; the process's cores by default")
    command.add_argument("--no-header", action="store_true", help="text tables have no names: f0, f1, ...")
    command.add_argument("--missing", choices=("error", "nan"), default="nan", help="missing features (default: nan)")
    command.add_argument("--overwrite", action="store_true", help="replace what ingest has made there")
    command.set_defaults(command=_ingest)

    command = commands.add_parser("inspect", help="look at every row of a data set: columns, classes, order")
    command.add_argument("data", metavar="DATA", help="a table of any kind, or a glob")
    command.add_argument("--target", action="append", metavar="NAME", help="the target column; may be repeated")
    command.add_argument("--columns", type=lambda text: text.split(","), metavar="A,B,...", help="columns to look at")
    _add_schema(command)
    command.add_argument("--threads", type=_count, metavar="N", help="threads; the process's cores by default")
    command.add_argument("--memory", metavar="BYTES", help="most memory; half the machine's by default")
    command.add_argument("--no-header", action="store_true", help="text tables have no names: f0, f1, ...")
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(command=_inspect)

    command = commands.add_parser("doctor", help="show what this machine offers, and what would make it faster")
    command.add_argument("--json", action="store_true", help="as JSON")
    command.set_defaults(command=_doctor)
    return parser


def _shape(text: str) -> tuple[int, ...]:
    sides = text.lower().split("x")
    if not all(side.isdecimal() and int(side) for side in sides) or not (
        len(sides) == 2 or sides[2:] in (["1"], ["3"])
    ):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 28x28 or 32x32x3")
    return tuple(int(side) for side in sides[: 3 if sides[2:] == ["3"] else 2])


def _path(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


# --------------------------------------------------------------------------------------------------------- commands


def _with_settings(
    parser: argparse.ArgumentParser, command: Callable[[argparse.Namespace, dict[str, str]], None]
) -> Callable[[argparse.Namespace], None]:
    """A command on a pipeline file: its words sorted out, and its help answered, before it begins."""

    def begin(args: argparse.Namespace) -> None:
        settings: dict[str, str] = {}
        for word in args.settings:
            name, equals, value = word.partition("=")
            if equals:
                settings[name.strip()] = value
            elif args.pipeline is None:
                args.pipeline = word  # "--set rows=10 digits.py": the option has taken the file's name with it
            else:
                raise UsageError(f"{word!r} is not a setting.", where="--set", expected="NAME=VALUE")
        if args.help:
            _say(parser.format_help() + ("" if args.pipeline is None else _settings_help(args.pipeline)))
            return
        if args.pipeline is None:
            raise UsageError(
                "No pipeline is given.",
                where="PIPELINE",
                expected="a Python file that defines pipeline()",
                remedy=f"{parser.prog} PIPELINE, such as pipelines/digits.py",
            )
        get_device(args.device)
        command(args, settings)

    return begin


def _settings_help(path: str) -> str:
    """Settings of a pipeline file: name, type, default, and what the docstring says."""
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


def _run(args: argparse.Namespace, settings: dict[str, str]) -> None:
    pipeline = load_pipeline(args.pipeline, settings)
    folder = Path(args.run_dir) if args.run_dir is not None else Path("runs") / pipeline.name

    def begin(listeners: tuple[Listener, ...]) -> RunResult:
        return run(
            pipeline, folder, memory=args.memory, threads=args.threads, scheduler=args.scheduler,
            checkpoint_seconds=args.checkpoint_seconds, listeners=listeners, device=args.device,
        )  # fmt: skip

    _watched(begin, folder, args.quiet)


def _resume(args: argparse.Namespace) -> None:
    folder = Path(args.run_dir)

    def begin(listeners: tuple[Listener, ...]) -> RunResult:
        return resume(folder, threads=args.threads, scheduler=args.scheduler, listeners=listeners)

    _watched(begin, folder, args.quiet)


def _watched(begin: Callable[[tuple[Listener, ...]], RunResult], folder: Path, quiet: bool) -> None:
    """A run, what it is doing, and what it has come to."""
    display = Display(sys.stderr)
    try:
        result = begin(() if quiet else (display,))
    except KeyboardInterrupt:
        if any((folder / "checkpoints").glob("*/[0-9]*")):
            display.close()
            _complain(f"the run can go on: streamkern resume {shlex.quote(str(folder))}")
        raise
    except StreamkernError:
        saved = read_json(folder / "result.json") or {}
        if "model" in saved and saved.get("status") != "done":
            display.close()
            model = shlex.quote(str(folder / saved["model"]))
            _complain(f"the model is trained and saved: streamkern evaluate {model} DATA --target NAME scores it")
        raise
    finally:
        display.close()
    if not quiet:
        _say(f"{result}\n")


def _retrain(args: argparse.Namespace, settings: dict[str, str]) -> None:
    display = Display(sys.stderr)
    reply: dict[str, Any] = {"status": "failed"}
    try:
        if args.registry is None:
            raise UsageError(
                "No registry is given.",
                where="--registry",
                expected="a directory",
                remedy="streamkern retrain PIPELINE --registry DIR",
            )
        reply = retrain(
            load_pipeline(args.pipeline, settings), args.registry, gate=args.gate, cold=args.cold, keep=args.keep,
            memory=args.memory, threads=args.threads, scheduler=args.scheduler, device=args.device,
            listeners=() if args.quiet else (display,), report=_page if find_spec("bokeh") else None,
        ) | {"exit_status": 0}  # fmt: skip
    except StreamkernError as error:
        reply |= {"exit_status": error.exit_status, "reasons": [str(error)]}
        raise
    except KeyboardInterrupt as error:
        reply = {"status": "interrupted", "exit_status": 128 + (error.args[0] if error.args else signal.SIGINT)}
        raise
    except Exception as error:
        reply |= {"exit_status": StreamkernError.exit_status, "reasons": [f"{type(error).__name__}: {error}"]}
        raise
    finally:
        display.close()
        _say(json.dumps(reply) + "\n")


def _page(folder: Path) -> Path:
    from streamkern.report.page import write_report

    return write_report([read_run(folder)])


def _models(args: argparse.Namespace) -> None:
    models = Registry(args.registry)
    if args.action == "list":
        _say(listing(models))
    elif args.action == "show":
        _say(json.dumps(models.record(args.version), indent=1) + "\n")
    elif args.action == "promote" and args.version is None:
        raise UsageError(
            "No version is given.",
            where="VERSION",
            expected="a number, such as 7",
            remedy="streamkern models DIR promote VERSION",
        )
    else:
        with models.lock():
            if args.action == "prune":
                _say(f"deleted {', '.join(map(str, models.prune(args.keep))) or 'nothing'}\n")
            else:
                number = models.promote(args.version) if args.action == "promote" else models.rollback()
                _say(f"the champion is version {number}\n")


def _plan(args: argparse.Namespace, settings: dict[str, str]) -> None:
    made = plan(load_pipeline(args.pipeline, settings), memory=args.memory, threads=args.threads, device=args.device)
    _say((json.dumps(made.to_json(), indent=1) if args.json else made.text()) + "\n")


def _tune(args: argparse.Namespace, settings: dict[str, str]) -> None:
    pipeline = load_pipeline(args.pipeline, settings)
    folder = Path(args.run_dir) if args.run_dir is not None else Path("runs") / pipeline.name
    display = Display(sys.stderr)
    try:
        found = tune(
            pipeline, args.kernel and [RADIAL[name] for name in args.kernel], rows=args.rows, centers=args.centers,
            memory=args.memory, threads=args.threads, on_trial=display.trial,
        )  # fmt: skip
    finally:
        display.close()
    facts, following = redacted(found.to_json()), redacted(next_command(found, args.pipeline, settings))
    write_json(folder / "tune.json", facts | {"next": following})
    lines = [found.text(), "", "next:", *(f"  {line}" for line in following.splitlines()), ""]
    try:
        from streamkern.report.tuning import write_tuning
    except ModuleNotFoundError as error:
        lines.append(f"{folder / 'tune.json'}; a page with plots needs {error.name}: pip install 'streamkern[report]'")
    else:
        write_tuning(facts, folder / "tune.html", pipeline.name, following)
        lines.append(f"{folder / 'tune.json'}, {folder / 'tune.html'}")
    _say(json.dumps(facts | {"next": following}) + "\n" if args.json else "\n".join(lines) + "\n")


def _status(args: argparse.Namespace) -> None:
    found = status(read_run(args.run_dir))
    _say(json.dumps(found, indent=1) + "\n" if args.json else status_text(found))


def _report(args: argparse.Namespace) -> None:
    records = [read_run(folder) for folder in args.run_dirs]
    try:
        from streamkern.report.live import LivePage
        from streamkern.report.page import write_report
    except ModuleNotFoundError as error:
        raise UsageError(
            f"The report needs {error.name}.",
            where="streamkern report",
            expected="the extra `report`",
            remedy="pip install 'streamkern[report]'",
        ) from error
    if args.live:
        try:
            live = LivePage(args.run_dirs, args.image_shape, args.port or 0)
        except OSError as error:
            raise UsageError(
                f"The page cannot be served: {error.strerror}.",
                where=f"--port {args.port}",
                expected="a port of 127.0.0.1 that is free",
            ) from error
        with live:
            _say(f"{live.url}  (Ctrl-C ends it)\n")
            live.serve()
        return
    _say(f"{write_report(records, args.out, args.image_shape)}\n")


def _add_schema(command: argparse.ArgumentParser) -> None:
    command.add_argument("--exclude", type=lambda text: text.split(","), metavar="A,B,...", help="columns to leave out")
    command.add_argument(
        "--schema",
        type=_schema,
        metavar="A=KIND,...",
        help=f"kinds, as zip=category: {', '.join(KINDS)}",
    )


def _schema(text: str) -> dict[str, str]:
    """Kinds by name, from ``zip=category,when=datetime``."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    if not all(name and kind in KINDS for name, _, kind in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list such as zip=category; kinds are {', '.join(KINDS)}")
    return {name: kind for name, _, kind in pairs}


def _evaluate(args: argparse.Namespace) -> None:
    get_device(args.device)
    target = args.target[0] if len(args.target) == 1 else args.target
    metrics = evaluate(args.model, args.data, target, memory=args.memory, threads=args.threads)
    _say((json.dumps(metrics) if args.json else metrics_in_words(metrics)) + "\n")


def _predict(args: argparse.Namespace) -> None:
    get_device(args.device)
    display = Display(sys.stderr)
    try:
        made = predict(
            args.model, args.data, args.out, id=args.id, scores=args.scores, format=args.format, memory=args.memory,
            threads=args.threads, scheduler=args.scheduler, overwrite=args.overwrite, on_progress=display.rows,
        )  # fmt: skip
    finally:
        display.close()
    _say((json.dumps(made.to_json()) if args.json else str(made)) + "\n")


def _ingest(args: argparse.Namespace) -> None:
    display = Display(sys.stderr)
    try:
        made = ingest(
            args.sources,
            args.path,
            target=args.target,
            weight=args.weight,
            columns=args.columns,
            shuffle=args.shuffle,
            seed=args.seed,
            format=args.format,
            dtype=args.dtype,
            shard=args.shard,
            memory=args.memory,
            threads=args.threads or default_threads(),
            header=not args.no_header,
            missing=args.missing,
            schema=args.schema,
            exclude=args.exclude or (),
            overwrite=args.overwrite,
            on_progress=display.rows,
        )
    finally:
        display.close()
    _say(f"{made}\n")


def _inspect(args: argparse.Namespace) -> None:
    with open_executor("threads", args.threads) as executor:
        found = inspect_data(
            args.data, args.target, columns=args.columns, schema=args.schema, exclude=args.exclude or (),
            executor=executor, header=not args.no_header, memory=args.memory,
        )  # fmt: skip
    _say((json.dumps(found.to_json()) if args.json else found.text()) + "\n")


def _doctor(args: argparse.Namespace) -> None:
    found = examine()
    _say(json.dumps(found, indent=1) + "\n" if args.json else doctor_text(found))


# ----------------------------------------------------------------------------------------------------------- output


def _say(text: str) -> None:
    """Write to stdout; a reader that has gone away (``| head``) is no failure."""
    try:
        sys.stdout.write(redacted(text))
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end


def _complain(text: str) -> None:
    try:
        sys.stderr.write(redacted(text).rstrip("\n") + "\n")
        sys.stderr.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
