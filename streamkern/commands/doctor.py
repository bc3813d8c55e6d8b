"""``streamkern doctor``."""

from __future__ import annotations

import json
from argparse import Namespace

from streamkern.commands.terminal import say
from streamkern.costs.hardware_report import doctor_text, measure_machine
from streamkern.cpu.compile_ahead import compile_here


def doctor_command(args: Namespace) -> None:
    """Print the hardware of this machine and the speed that the library reaches on it; or compile for it."""
    if args.compile:
        say(compile_here())
        return
    found = measure_machine()
    say(json.dumps(found, indent=1) + "\n" if args.json else doctor_text(found))
