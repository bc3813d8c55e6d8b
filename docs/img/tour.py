"""Takes the pictures of docs/tour.md: what the commands print, and the report, of pipelines/regression.py.

python docs/img/tour.py      # with the test extra, chromium and chromium-driver
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import PIPELINES, browser, photograph

TERMINAL = (
    '<meta charset="utf-8"><body style="margin:0;background:#fff"><pre id="out" style="margin:0;padding:12px;'
    'font:13px/1.35 DejaVu Sans Mono,monospace;color:#222;background:#f6f6f6">{}</pre>'
)
PRINTED = {
    "tour-inspect": "inspect data/regression.zarr --target y",
    "tour-plan": "plan pipelines/regression.py --memory 1GiB",
    "tour-refused": "plan pipelines/regression.py --memory 600MiB --set centers=20_000",
    "tour-run": "run pipelines/regression.py --memory 1GiB",
    "tour-status": "status runs/regression",
    "tour-predict": "predict runs/regression/model.zarr data/regression.zarr answers.parquet",
}


def main() -> None:
    """The run in an empty folder, and its pictures."""
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    (folder / "pipelines").symlink_to(PIPELINES)
    # The table is written, and the machine is timed, before any picture is taken.
    subprocess.run([sys.executable, "-m", "streamkern", "plan", "pipelines/regression.py"], check=True)
    driver = browser()
    for name, words in PRINTED.items():
        command = [sys.executable, "-m", "streamkern", *words.split()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        progress = [line for line in done.stderr.splitlines() if "%" not in line or "100%" in line]
        text = f"$ streamkern {words}\n" + "\n".join(progress) + "\n" * bool(progress) + done.stdout
        page = folder / f"{name}.html"
        page.write_text(TERMINAL.format(html.escape(text.strip())), encoding="utf-8")
        photograph(driver, page, 1000, None, "out", name)
    subprocess.run([sys.executable, "-m", "streamkern", "report", "runs/regression"], check=True)
    report = folder / "runs/regression/report.html"
    photograph(driver, report, 1000, None, "learning", "tour-report")
    photograph(driver, report, 1000, "quality", "spectrum", "tour-quality")
    photograph(driver, report, 1000, "time", "memory", "tour-memory")
    driver.quit()


if __name__ == "__main__":
    main()
