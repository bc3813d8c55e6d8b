"""``python -m streamkern``."""

from __future__ import annotations

from streamkern.commands.parser import command

if __name__ == "__main__":
    command()
