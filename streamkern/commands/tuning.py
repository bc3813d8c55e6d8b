"""``streamkern tune``."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

from streamkern.commands.resources import resources_of
from streamkern.commands.terminal import say
from streamkern.kernels import RADIAL_KERNELS
from streamkern.progress import Display
from streamkern.redaction import redacted
from streamkern.runs import load_pipeline
from streamkern.runs.tune import next_command, tune
from streamkern.storage.atomic_writes import write_json


def tune_command(args: Namespace, settings: dict[str, str]) -> None:
    """Compare settings on a subsample and write tune.json, with a page where Bokeh is installed."""
    resources = resources_of(args)
    pipeline = load_pipeline(args.pipeline, settings)
    folder = Path(args.run_dir) if args.run_dir is not None else Path("runs") / pipeline.name
    with Display(sys.stderr) as display:
        found = tune(
            pipeline, args.kernel and [RADIAL_KERNELS[name] for name in args.kernel], rows=args.rows,
            centers=args.centers,
            resources=resources, on_trial=display.trial,
        )  # fmt: skip
    facts, following = redacted(found.to_json()), redacted(next_command(found, args.pipeline, settings))
    write_json(folder / "tune.json", facts | {"next": following})
    lines = [found.text(), "", "next:", *(f"  {line}" for line in following.splitlines()), ""]
    try:
        from streamkern.report.tuning_page import write_tuning
    except ModuleNotFoundError as error:
        lines.append(f"{folder / 'tune.json'}; a page with plots needs {error.name}: pip install 'streamkern[report]'")
    else:
        write_tuning(facts, folder / "tune.html", pipeline.name, following)
        lines.append(f"{folder / 'tune.json'}, {folder / 'tune.html'}")
    say(json.dumps(facts | {"next": following}) + "\n" if args.json else "\n".join(lines) + "\n")
