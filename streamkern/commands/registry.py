"""``streamkern retrain`` and ``streamkern models``."""

from __future__ import annotations

import json
import signal
import sys
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from streamkern.commands.resources import resources_of
from streamkern.commands.terminal import say
from streamkern.data import Dataset, open_dataset
from streamkern.errors import StreamkernError, UsageError
from streamkern.progress import Display
from streamkern.registry import Registry, retrain
from streamkern.registry.retrain import version_table
from streamkern.report import read_run
from streamkern.runs import Pipeline, load_pipeline


def retrain_command(args: Namespace, settings: dict[str, str]) -> None:
    """Train if there is new data, and promote a model that passes the gate; the last line of stdout is JSON."""
    resources = resources_of(args)
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
        pipeline = load_pipeline(args.pipeline, settings)
        reply = retrain(
            pipeline, args.registry, forget=_forgotten(args.forget, pipeline), gate=args.gate, cold=args.cold,
            keep=args.keep, resources=resources,
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
        say(json.dumps(reply) + "\n")


def _forgotten(path: str | None, pipeline: Pipeline) -> Dataset | None:
    source = pipeline.train.source
    if path is None or source.target is None:
        return None
    columns = None if path.rstrip("/").endswith(".zarr") else source.columns
    return open_dataset(path, source.target.name, columns=columns, weight=source.weight)


def _page(folder: Path) -> Path:
    from streamkern.report.page import write_report

    return write_report([read_run(folder)])


def models_command(args: Namespace) -> None:
    """List, show, promote, roll back or prune the versions of a registry."""
    models = Registry(args.registry)
    if args.action == "list":
        say(version_table(models))
    elif args.action == "show":
        say(json.dumps(models.record(args.version), indent=1) + "\n")
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
                say(f"deleted {', '.join(map(str, models.prune(args.keep))) or 'nothing'}\n")
            else:
                number = models.promote(args.version) if args.action == "promote" else models.rollback()
                say(f"the champion is version {number}\n")
