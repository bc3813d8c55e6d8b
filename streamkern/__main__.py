"""``python -m streamkern``."""

from __future__ import annotations

from streamkern.cli import command

if __name__ == "__main__":
    command()
