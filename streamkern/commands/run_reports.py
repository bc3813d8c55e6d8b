"""``streamkern status`` and ``streamkern report``."""

from __future__ import annotations

import json
from argparse import Namespace

from streamkern.commands.terminal import say
from streamkern.errors import UsageError
from streamkern.report import read_run, status, status_text


def status_command(args: Namespace) -> None:
    """Print how a run stands."""
    found = status(read_run(args.run_dir))
    say(json.dumps(found, indent=1) + "\n" if args.json else status_text(found))


def report_command(args: Namespace) -> None:
    """Write or serve the page of one run or of several."""
    try:
        from streamkern.report.live_page import LivePage
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
            say(f"{live.url}  (Ctrl-C ends it)\n")
            live.serve()
        return
    records = [read_run(folder) for folder in args.run_dirs]
    say(f"{write_report(records, args.out, args.image_shape)}\n")
