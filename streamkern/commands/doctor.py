"""``streamkern doctor``."""

from __future__ import annotations

import json
from argparse import Namespace

from streamkern.commands.terminal import say
from streamkern.costs.hardware_report import doctor_text, measure_machine


def doctor_command(args: Namespace) -> None:
    """Print the hardware of this machine and the speed that the library reaches on it."""
    found = measure_machine()
    say(json.dumps(found, indent=1) + "\n" if args.json else doctor_text(found))
