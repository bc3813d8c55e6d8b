"""``python -m streamkern``."""

from __future__ import annotations

import sys

from streamkern.cli import main

if __name__ == "__main__":
    sys.exit(main())
