"""The command line: ``streamkern COMMAND``."""

from __future__ import annotations

import argparse
import atexit
import logging
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from types import FrameType
from typing import Any

from streamkern.commands.terminal import complain, say
from streamkern.defaults import CHECKPOINT_SECONDS, COLUMN_KINDS, RADIAL_NAMES, TUNING_ROWS, VERSIONS_KEPT
from streamkern.errors import StreamkernError, UsageError
from streamkern.memory import share_heap
from streamkern.redaction import redacted
from streamkern.startup import paused_collector
from streamkern.user_code_digest import exception_text, user_code_location
from streamkern.version import VERSION

_EXIT = (
    "exit status: 0 done, 1 failed, 2 bad usage, missing run or refused plan, 3 numerical failure, 75 directory busy"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command, by default the words of the process, and return its exit status: ``_EXIT``, 130 interrupted."""
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
        # A shell expands ~ at the beginning of a word only: not in --run-dir=~/x.
        for name, value in vars(args).items():
            if isinstance(value, str):
                setattr(args, name, os.path.expanduser(value))
        args.command(args)
    except StreamkernError as error:
        complain(f"error: {error}")
        status = error.exit_status
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        logging.getLogger("asyncio").disabled = True  # it would report writes of zarr's that end with the process
        complain(f"stopped by {signal.Signals(number).name}")
        status = 128 + number
    except Exception as error:
        # A fault of the user's own function, solver or kernel is one line of his; a fault of ours is a traceback.
        place = user_code_location(error)
        complain(f"error: {exception_text(error)}\n  where: {place}" if place else traceback.format_exc())
        status = StreamkernError.exit_status
    say("")
    return status


def command() -> None:
    """Run the words of the process and end it, without Python's own end.

    Threads of libraries may release memory after a command is done. A thread of Arrow's aborts the process where the
    interpreter is being taken down meanwhile, and a night that went well is reported as failed (apache/arrow, 34314).
    """
    status = main()
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # nobody reads it any more: Python says so in its own way
        sys.exit(status)
    os._exit(status)


class _Stop:
    """SIGTERM ends a run as Ctrl-C does: the last checkpoint is written, the result says so, the lock is released.

    A wrapper may pass on the same Ctrl-C: a second one within a second does not stop the checkpoint.
    """

    def __init__(self) -> None:
        self._last = -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        before, self._last = self._last, time.monotonic()
        if self._last - before > 1.0:
            raise KeyboardInterrupt(number)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors do not repeat the secrets in a command."""

    def _print_message(self, message: str, file: Any = None) -> None:
        super()._print_message(redacted(message), file)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = _Parser(
        prog="streamkern", description="Train kernel machines on data that does not fit in memory.", epilog=_EXIT
    )
    parser.add_argument("--version", action="version", version=f"streamkern {VERSION}")
    parser.set_defaults(command=None)
    commands, shared = parser.add_subparsers(title="commands", metavar="COMMAND"), _Shared()
    for add in (_add_training, _add_registry, _add_planning, _add_reports, _add_prediction, _add_data):
        add(commands, shared)
    return parser


class _Shared:
    """Arguments of several commands, as parents of their parsers."""

    def __init__(self) -> None:
        self.json = _argument("--json", action="store_true", help="print JSON")
        self.quiet = _argument("--quiet", action="store_true", help="print only errors")
        self.scheduler = _argument("--scheduler", default="threads", metavar="WHERE", help="as for run")
        self.where = _argument(
            "--where", metavar="CONDITION", help='use only rows that satisfy it, such as "price > 5"'
        )
        self.keep = _argument(
            "--keep", type=_count, default=VERSIONS_KEPT, metavar="N",
            help=f"number of versions to keep (default: {VERSIONS_KEPT})",
        )  # fmt: skip
        threads = _argument(
            "--threads", type=_count, metavar="N", help="number of threads; by default one for each core of the process"
        )
        device = _argument(
            "--device", choices=("auto", "cpu", "cuda"), default="auto", help="where arithmetic runs (default: auto)"
        )
        budget = _argument(
            "--memory", metavar="BYTES", help='memory limit, such as "4GiB"; half of the machine\'s by default'
        )
        text = _argument(
            "--read-options", nargs="+", action=_ReadOptions, metavar="NAME=VALUE",
            help="how text tables are read: delimiter=, decimal=, encoding=, missing=A,B and skip=",
        )  # fmt: skip

        self.model = _Parser(add_help=False, parents=[threads, device, budget, text, self.json])
        self.model.add_argument("model", metavar="MODEL", help="a model.zarr, or a registry, whose champion is used")
        self.model.add_argument("data", metavar="DATA", help="a table in any format, or a glob")

        self.table = table = _Parser(add_help=False, parents=[threads, budget, text])
        table.add_argument("--target", action="append", metavar="NAME", help="the target column; may be repeated")
        table.add_argument("--columns", type=_names, metavar="A,B,...", help="columns to use as features")
        table.add_argument("--exclude", type=_names, metavar="A,B,...", help="columns to drop")
        table.add_argument(
            "--schema", type=_schema, metavar="A=KIND,...",
            help=f"kinds of columns, as zip=category: {', '.join(COLUMN_KINDS)}",
        )  # fmt: skip
        table.add_argument(
            "--no-header", action="store_true", help="text tables have no header line; columns are f0, f1, ..."
        )

        self.pipeline = pipeline = _Parser(add_help=False, parents=[threads, device, budget])
        pipeline.add_argument("pipeline", nargs="?", metavar="PIPELINE", help="a Python file that defines pipeline()")
        pipeline.add_argument(
            "--set", nargs="+", action="extend", default=[], metavar="NAME=VALUE", dest="settings",
            help="settings of the pipeline; may be repeated",
        )  # fmt: skip
        pipeline.add_argument(
            "-h", "--help", action="store_true", help="show this help; after PIPELINE, show its settings too"
        )


def _argument(name: str, **options: Any) -> _Parser:
    parser = _Parser(add_help=False)
    parser.add_argument(name, **options)
    return parser


def _add(
    commands: Any, name: str, function: str, help: str, *parents: _Parser, pipeline: _Parser | None = None,
    **options: Any,
) -> _Parser:  # fmt: skip
    """Add the command that calls a function, given as MODULE.FUNCTION; with ``pipeline``, on a pipeline file."""
    if pipeline is None:
        command: _Parser = commands.add_parser(name, parents=parents, help=help, **options)
        command.set_defaults(command=_late(function))
    else:
        command = commands.add_parser(name, parents=[pipeline, *parents], add_help=False, help=help, **options)
        command.set_defaults(command=_with_settings(command, function))
    return command


def _add_training(commands: Any, shared: _Shared) -> None:
    command = _add(
        commands, "run", "pipelines.run_command", "train a pipeline",
        shared.quiet, pipeline=shared.pipeline, epilog=_EXIT,
    )  # fmt: skip
    command.add_argument("--run-dir", type=_path, metavar="DIR", help="directory of the results (default: runs/NAME)")
    command.add_argument(
        "--scheduler", default="threads", metavar="WHERE", help="threads, processes, processes:N or tcp://HOST:PORT"
    )
    command.add_argument(
        "--checkpoint-seconds", type=float, default=CHECKPOINT_SECONDS, metavar="S",
        help=f"seconds between checkpoints (default: {CHECKPOINT_SECONDS:.0f})",
    )  # fmt: skip

    command = _add(
        commands, "resume", "pipelines.resume_command", "resume an interrupted run", shared.quiet, epilog=_EXIT
    )
    command.add_argument("run_dir", type=_path, metavar="RUN", help="the run directory")
    command.add_argument(
        "--threads", type=_count, metavar="N", help="number of threads; by default as in the interrupted run"
    )
    command.add_argument("--scheduler", metavar="WHERE", help="as for run; by default as in the interrupted run")


def _add_registry(commands: Any, shared: _Shared) -> None:
    command = _add(
        commands, "retrain", "registry.retrain_command",
        "train a model if data or pipeline have changed, and promote it if it passes the gate",
        shared.keep, shared.scheduler, pipeline=shared.pipeline,
        epilog=f"{_EXIT}; the last line of stdout is one JSON object",
    )  # fmt: skip
    command.add_argument(
        "--registry", type=_path, metavar="DIR", help="the registry of models: a directory, or s3://BUCKET/NAME"
    )
    command.add_argument(
        "--gate", metavar="EXPR",
        help='condition for promotion, such as "accuracy >= champion - 0.002 and n_test >= 1000"',
    )  # fmt: skip
    command.add_argument("--cold", action="store_true", help="start training at weights of 0, not at the champion's")
    command.add_argument(
        "--forget", type=_path, metavar="ROWS",
        help="file of deleted rows, as it was, to subtract them from the champion",
    )  # fmt: skip
    command.add_argument("--quiet", action="store_true", help="print only errors and the last line")

    command = _add(
        commands, "models", "registry.models_command", "list, show, promote, roll back or prune models", shared.keep,
        epilog=_EXIT,
    )  # fmt: skip
    command.add_argument("registry", metavar="DIR", help="the registry: a directory, or s3://BUCKET/NAME")
    command.add_argument("action", nargs="?", choices=("list", "show", "promote", "rollback", "prune"), default="list")
    command.add_argument("version", nargs="?", metavar="VERSION", help="for show (default: the champion) and promote")


def _add_planning(commands: Any, shared: _Shared) -> None:
    command = _add(commands, "plan", "pipelines.plan_command", "print the costs of a run", pipeline=shared.pipeline)
    command.add_argument(
        "--worker-memory", metavar="BYTES",
        help='memory limit of each worker of a cluster, such as "64GiB"; plans that need more are refused',
    )  # fmt: skip
    command.add_argument(
        "--worker-threads", type=_count, default=1, metavar="N", help="threads of a worker (default: 1)"
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--beside", metavar="RUN_DIR", help="a finished run; show what its stages took beside the plan")
    form.add_argument("--json", action="store_true", help="print JSON")

    command = _add(
        commands, "tune", "pipelines.tune_command", "find bandwidth, ridge and number of centers on a subsample",
        shared.json, pipeline=shared.pipeline, epilog=_EXIT,
    )  # fmt: skip
    command.add_argument(
        "--rows", type=_count, default=TUNING_ROWS, metavar="N",
        help=f"rows of the subsample (default: {TUNING_ROWS:,})",
    )  # fmt: skip
    command.add_argument(
        "--centers", type=_count, metavar="N",
        help="largest number of centers to try (default: the pipeline's, up to 2,000)",
    )  # fmt: skip
    command.add_argument(
        "--kernel", action="append", choices=RADIAL_NAMES,
        help="a kernel to compare (default: the pipeline's); may be repeated",
    )  # fmt: skip
    command.add_argument("--run-dir", metavar="DIR", help="directory of tune.json (default: runs/NAME)")


def _add_reports(commands: Any, shared: _Shared) -> None:
    command = _add(
        commands, "status", "run_reports.status_command", "show the state of a run: running, finished or dead",
        shared.json,
    )  # fmt: skip
    command.add_argument("run_dir", type=_path, metavar="RUN", help="the run directory")

    command = _add(commands, "report", "run_reports.report_command", "show a run, or several side by side, on a page")
    command.add_argument("run_dirs", nargs="+", metavar="RUN", help="run directories")
    command.add_argument("--out", metavar="FILE", help="the page (default: RUN/report.html; several: comparison.html)")
    command.add_argument(
        "--live", action="store_true", help="serve the page on this machine and update it, until Ctrl-C"
    )
    command.add_argument("--port", type=_count, metavar="N", help="port of --live; a free one by default")
    command.add_argument(
        "--image-shape", type=_shape, metavar="HxW",
        help="shape of rows that are images, such as 32x32x3; square images are recognised",
    )  # fmt: skip


def _add_prediction(commands: Any, shared: _Shared) -> None:
    command = _add(
        commands, "evaluate", "data.evaluate_command", "score a saved model on stored rows",
        shared.model, shared.where,
    )  # fmt: skip
    command.add_argument("--target", required=True, nargs="+", metavar="NAME", help="the target column, or columns")

    command = _add(
        commands, "predict", "data.predict_command", "predict stored rows with a saved model",
        shared.model, shared.where, shared.scheduler, epilog=_EXIT,
    )  # fmt: skip
    command.add_argument("out", metavar="OUTPUT", help="the .parquet or .csv file or .zarr directory to create")
    command.add_argument("--id", metavar="COLUMN", help="a column of numbers or strings to copy to OUTPUT")
    command.add_argument("--scores", action="store_true", help="write a score for each class, too")
    command.add_argument(
        "--interval", type=float, metavar="SHARE", help="write intervals of this coverage, such as 0.9"
    )
    command.add_argument("--probabilities", action="store_true", help="write the probability of each class, too")
    command.add_argument(
        "--format", choices=("parquet", "csv", "zarr"), help="format of OUTPUT; its ending decides by default"
    )
    command.add_argument("--overwrite", action="store_true", help="replace existing predictions")

    command = _add(
        commands, "explain", "data.explain_command",
        "show the columns that a model depends on, and gradients of single rows", shared.json,
    )  # fmt: skip
    command.add_argument("model", metavar="RUN", help="the directory of a run, or a model.zarr")
    command.add_argument("data", metavar="DATA", nargs="?", help="rows to print gradients for: a table in any format")
    command.add_argument("--rows", type=int, default=20, metavar="N", help="use the first N rows (default: 20)")


def _add_data(commands: Any, shared: _Shared) -> None:
    command = _add(
        commands, "ingest", "data.ingest_command", "write any table in the training layout, shuffled on request",
        shared.table,
    )  # fmt: skip
    command.add_argument("sources", nargs="+", metavar="SOURCE", help="tables in any format, or globs")
    command.add_argument("path", metavar="OUTPUT", help="the local directory to create, or the URL of a store")
    command.add_argument("--weight", metavar="NAME", help="the column of sample weights")
    command.add_argument("--time", metavar="NAME", help="the column of the rows' time, which splits follow")
    command.add_argument("--group", metavar="NAME", help="the column whose values are groups, which no split separates")
    command.add_argument("--shuffle", action="store_true", help="put the rows in a uniformly random order")
    command.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the order (default: 0)")
    command.add_argument(
        "--format", choices=("zarr", "parquet"), help="by default the ending of OUTPUT decides, else zarr"
    )
    command.add_argument(
        "--dtype", metavar="DTYPE", help="dtype to store features in, such as float32; unchanged by default"
    )
    command.add_argument("--shard", metavar="BYTES", help="combine zarr chunks into shards of this size")
    command.add_argument(
        "--compression", choices=("fast", "small"), default="fast", help="compression of zarr (default: fast)"
    )
    command.add_argument("--keep-bits", type=_count, metavar="N", help="round floats to N bits, to save disk space")
    command.add_argument(
        "--missing", choices=("error", "nan"), default="nan",
        help="refuse missing features, or store NaN (default: nan)",
    )  # fmt: skip
    command.add_argument("--overwrite", action="store_true", help="replace an earlier result of ingest")

    command = _add(
        commands, "inspect", "data.inspect_command",
        "summarise all rows of a data set: columns, classes, order of the rows", shared.table, shared.json,
    )  # fmt: skip
    command.add_argument("data", metavar="DATA", help="a table in any format, or a glob")

    command = _add(
        commands, "doctor", "doctor.doctor_command", "show the speed of this machine, and ways to raise it", shared.json
    )
    command.add_argument(
        "--compile", action="store_true",
        help="compile the numerical loops for this processor, in advance of the first fit, and exit",
    )  # fmt: skip


def _shape(text: str) -> tuple[int, ...]:
    sides = text.lower().split("x")
    if not all(side.isdecimal() and int(side) for side in sides) or not (
        len(sides) == 2 or sides[2:] in (["1"], ["3"])
    ):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 28x28 or 32x32x3")
    return tuple(int(side) for side in sides[: 3 if sides[2:] == ["3"] else 2])


def _path(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty")
    return text


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


# --------------------------------------------------------------------------------------------------------- commands


def _late(name: str) -> Callable[..., Any]:
    """Help and usage errors import no command."""

    def call(*args: Any) -> Any:
        module, _, function = name.partition(".")
        with paused_collector():
            commands = import_module(f"streamkern.commands.{module}")
        return getattr(commands, function)(*args)

    return call


def _with_settings(parser: argparse.ArgumentParser, name: str) -> Callable[[argparse.Namespace], None]:
    """The words of a command on a pipeline file are sorted out, and help answered, before it begins."""

    def begin(args: argparse.Namespace) -> None:
        settings: dict[str, str] = {}
        for word in args.settings:
            key, equals, value = word.partition("=")
            if equals:
                settings[key.strip()] = value
            elif args.pipeline is None:
                args.pipeline = word  # "--set rows=10 digits.py": argparse gave the file's name to the option
            else:
                raise UsageError(f"{word!r} is not a setting.", where="--set", expected="NAME=VALUE")
        if args.help:
            known = "" if args.pipeline is None else _late("pipelines.settings_help")(args.pipeline)
            say(parser.format_help() + known)
            return
        if args.pipeline is None:
            raise UsageError(
                "No pipeline is given.",
                where="PIPELINE",
                expected="a Python file that defines pipeline()",
                remedy=f"{parser.prog} PIPELINE, such as pipelines/digits.py",
            )
        _late(name)(args, settings)

    return begin


def _names(text: str) -> list[str]:
    return text.split(",")


class _ReadOptions(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        given: dict[str, Any] = dict(value.partition("=")[::2] for value in values)
        if "missing" in given:
            given["missing"] = given["missing"].split(",")
        if "skip" in given:
            given["skip"] = int(given["skip"]) if given["skip"].isdecimal() else given["skip"]
        setattr(namespace, self.dest, (getattr(namespace, self.dest) or {}) | given)


def _schema(text: str) -> dict[str, str]:
    """Kinds by name, from ``zip=category,when=datetime``."""
    pairs = [part.rpartition("=") for part in text.split(",")]
    if not all(name and kind in COLUMN_KINDS for name, _, kind in pairs):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list such as zip=category; kinds are {', '.join(COLUMN_KINDS)}"
        )
    return {name: kind for name, _, kind in pairs}
