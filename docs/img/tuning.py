"""Photographs the page of docs/tuning.md in headless Chromium: docs/img/tuning.png.

python docs/img/tuning.py      # with the test extra, chromium and chromium-driver
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from report import PIPELINES, browser, photograph

DIGITS = "--set rows=1400 noise=0 centers=300 --kernel laplace --kernel gaussian --kernel matern32"


def main() -> None:
    """Tune the digits and photograph the first plots."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["tune", str(PIPELINES / "digits.py"), *DIGITS.split(), "--run-dir", folder]
        subprocess.run([sys.executable, "-m", "streamkern", *words], check=True)
        driver = browser()
        try:
            photograph(driver, Path(folder, "tune.html"), 900, "kernel", "kernel", "tuning")
        finally:
            driver.quit()


if __name__ == "__main__":
    main()
