"""``streamkern doctor``."""

from __future__ import annotations

import json
from argparse import Namespace

from streamkern.commands.output import say
from streamkern.costs.doctor import doctor_text, examine


def doctor_command(args: Namespace) -> None:
    """Print the hardware of this machine and the speed that the library reaches on it."""
    found = examine()
    say(json.dumps(found, indent=1) + "\n" if args.json else doctor_text(found))
