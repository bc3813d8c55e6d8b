"""Photographs the pages of docs/report.md in headless Chromium: docs/img/report*.png.

python docs/img/report.py [FOLDER OF RUNS]      # with the test extra, chromium and chromium-driver
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

import streamkern as sk

HERE = Path(__file__).parent
PIPELINES = HERE.parent.parent / "pipelines"
RUNS = {
    "fashion": "fashion_mnist.py --set rows=60_000 centers=1000 epochs=2 --memory 1GiB",
    "digits": "digits.py --set rows=100_000 centers=500 epochs=3 --memory 1GiB",
    "digits-200": "digits.py --set rows=100_000 centers=200 epochs=2 --memory 1GiB",
}
FLAGS = "headless no-sandbox disable-gpu no-first-run disable-background-networking hide-scrollbars"


def answers(folder: Path) -> None:
    """A run with probabilities: two classes that nobody can tell apart for sure, one of them in a fifth of the rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 5))
    chance = 1 / (1 + np.exp(4 - 2 * X[:, 0] - 2 * X[:, 1] ** 2))
    data = sk.from_arrays(X, np.where(rng.random(len(X)) < chance, "late", "in time"))
    train, test = data.split(0.5)
    sk.run(
        sk.Pipeline(
            train, sk.Gaussian(2.0), sk.Uniform(500), sk.Direct(ridge=1e-4), test=test, name="answers", dtype="float32"
        ),
        folder,
        memory="1GiB",
    )


def streamkern(*words: str | Path) -> None:
    """Run a command of streamkern."""
    subprocess.run([sys.executable, "-m", "streamkern", *map(str, words)], check=True)


def browser() -> webdriver.Chrome:
    """Headless Chromium with an empty profile."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in [*FLAGS.split(), f"user-data-dir={tempfile.mkdtemp()}"]:
        options.add_argument(f"--{flag}")
    return webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))


def photograph(driver: webdriver.Chrome, page: Path, width: int, first: str | None, last: str, name: str) -> None:
    """The page at a width, from the section ``first`` (its top, if None) to the end of the section ``last``."""

    def resize(height: int) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        time.sleep(1)

    resize(800)
    driver.get(page.resolve().as_uri())
    time.sleep(1)
    resize(driver.execute_script("return document.documentElement.scrollHeight"))
    box = "const box = document.getElementById(arguments[0]).getBoundingClientRect(); return box."
    top = 0 if first is None else driver.execute_script(box + "top", first)
    bottom = driver.execute_script(box + "bottom", last)
    image = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    image = image.crop((0, round(top), width, round(bottom))).quantize(256, dither=Image.Dither.NONE)
    image.save(HERE / f"{name}.png", optimize=True)
    print(f"{name}.png: {image.width} x {image.height}, {(HERE / f'{name}.png').stat().st_size >> 10} kB")


def main() -> None:
    """Make the runs, their pages and the pictures."""
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    for name, words in RUNS.items():
        file, *rest = words.split()
        streamkern("run", PIPELINES / file, *rest, "--run-dir", runs / name, "--quiet")
    answers(runs / "answers")
    streamkern("report", runs / "fashion")
    streamkern("report", runs / "answers")
    streamkern("report", runs / "digits", runs / "digits-200")
    driver = browser()
    one, two = runs / "fashion/report.html", runs / "digits/comparison.html"
    photograph(driver, one, 1000, None, "learning", "report")
    photograph(driver, one, 1000, "quality", "rows", "report-quality")
    photograph(driver, runs / "answers/report.html", 1000, "answers", "answers", "report-answers")
    photograph(driver, one, 390, None, "quality", "report-phone")
    photograph(driver, one, 390, "time", "memory", "report-phone-time")
    photograph(driver, two, 1000, "results", "learning", "report-comparison")
    driver.quit()


if __name__ == "__main__":
    main()
