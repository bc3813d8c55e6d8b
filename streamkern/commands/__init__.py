"""What each command of the command line does; `streamkern.cli` imports the module of the command that is given."""

from __future__ import annotations
