"""The page in a real browser: it draws, asks the network for nothing, and fits a phone."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service

import streamkern as sk
from streamkern.report import read_run
from streamkern.report.page import write_report
from tests.report.test_live import served

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update "
    "disable-sync hide-scrollbars"
)
PHONE, DESK = 390, 1100

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None, reason="the Debian packages chromium and chromium-driver are not installed"
)

# Figures lie in shadow roots: what is inside them is found by walking down.
DRAWN = """
const inside = (node, name) => [...node.querySelectorAll('*')].flatMap(
  (e) => [...(e.matches(name) ? [e] : []), ...(e.shadowRoot ? inside(e.shadowRoot, name) : [])]);
return [...document.querySelectorAll('.plot')].map((plot) => {
  const canvas = inside(plot, 'canvas.bk-layer')[0], box = plot.getBoundingClientRect();
  if (!canvas) return [0, box.width, box.right];
  const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let i = 0; i < pixels.length; i += 4) if (pixels[i + 3] > 0) colours.add(pixels.slice(i, i + 3).join());
  return [colours.size, box.width, box.right];
});"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in FLAGS.split():
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.add_argument("about:blank")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


def show(browser: webdriver.Chrome, path: Path, width: int) -> list[list[float]]:
    """Open the page and wait for its plots: (colours, width, right edge) of each."""
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    for log in ("browser", "performance"):
        browser.get_log(log)
    browser.get(path.resolve().as_uri())
    deadline = time.monotonic() + 120
    while True:
        drawn: list[list[float]] = browser.execute_script(DRAWN)
        if (drawn and all(colours > 2 for colours, *_ in drawn)) or time.monotonic() > deadline:
            return drawn
        time.sleep(0.05)


def complaints(browser: webdriver.Chrome) -> list[Any]:
    """What the console was told, other than information, and every address that was asked for but the page's own."""
    said = [entry["message"] for entry in browser.get_log("browser") if entry["level"] not in ("INFO", "DEBUG")]
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert sum(url.startswith("file:") for url in asked) == 1, "the log of requests holds the page itself"
    own = ("file:", "data:", "chrome:")  # chrome: the browser's first tab, which may still be loading
    return said + [url for url in asked if not url.startswith(own)]


def drawn_well(browser: webdriver.Chrome, path: Path, width: int, colours: int = 2) -> list[float]:
    """The widths of the plots, each of which is drawn and fits; nothing was complained of or asked for."""
    drawn = show(browser, path, width)
    assert all(found > colours and right <= width for found, _, right in drawn)
    assert complaints(browser) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width  # nothing to the side
    return [w for _, w, _ in drawn]


@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_run_is_drawn_without_the_network_and_without_an_error(finished, width, browser, tmp_path):
    widths = drawn_well(browser, write_report([read_run(finished)], tmp_path / "report.html"), width)
    assert len(widths) >= 3  # learning curve, spectrum, memory; residuals
    assert widths[0] > 0.8 * min(width, 960)
    assert min(widths) > (0.8 if width == PHONE else 0.4) * min(width, 960)  # some are side by side
    metrics = json.loads((finished / "result.json").read_text())["metrics"]["test"]
    number = f"{metrics['accuracy']:.2%}" if "accuracy" in metrics else f"{metrics['mse'] ** 0.5:.4g}"
    assert number in browser.execute_script("return document.body.innerText")
    broken = "return [...document.images].filter((image) => !image.naturalWidth).length"
    assert browser.execute_script(broken) == 0


@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("name", ["answers", "labels", "intervals"])
def test_probabilities_and_intervals_are_drawn_side_by_side_where_there_is_room(
    answering: dict[str, Path], name: str, width: int, browser: webdriver.Chrome, tmp_path: Path
):
    drawn_well(browser, write_report([read_run(answering[name])], tmp_path / "report.html"), width)
    tops = browser.execute_script(
        "return [...document.querySelectorAll('#answers .plot')].map((e) => Math.round(e.getBoundingClientRect().top))"
    )
    assert len(tops) == (2 if name == "intervals" else 4)
    beside = [first == second for first, second in zip(tops[::2], tops[1::2], strict=True)]
    assert beside == [width == DESK] * len(beside)


@pytest.mark.slow
@pytest.mark.parametrize("width", [PHONE, DESK])
def test_the_seconds_of_a_killed_run_are_not_cut_off(runs, width, browser, tmp_path):
    record = read_run(runs["digits"])
    record.result = None
    begin = next(i for i, e in enumerate(record.events) if e["event"] == "stage" and e["name"] == "train")
    later = record.events[begin]["time"] + 12345
    record.events = [*record.events[: begin + 1], record.events[begin + 1] | {"time": later}]
    show(browser, write_report([record], tmp_path / "report.html"), width)
    words = "return [...document.querySelectorAll('.bars b')].map((b) => [b.innerText, b.scrollWidth - b.clientWidth])"
    told: list[list[Any]] = browser.execute_script(words)
    assert "≥ 12345.00 s" in [text for text, _ in told]
    assert [text for text, beyond in told if beyond > 0] == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_a_comparison_is_drawn(runs: dict[str, Path], browser: webdriver.Chrome, tmp_path: Path):
    path = write_report([read_run(runs["digits"]), read_run(runs["digits-short"])], tmp_path / "comparison.html")
    assert len(drawn_well(browser, path, PHONE, colours=3)) == 3


@pytest.mark.slow
def test_every_link_table_and_fold_is_reached_by_keyboard(runs, browser, tmp_path):
    show(browser, write_report([read_run(runs["digits"])], tmp_path / "report.html"), DESK)
    wanted = browser.execute_script(
        "return [...document.querySelectorAll('a, summary, .scroll')].filter((e) => e.checkVisibility()).length"
    )
    reached = set()
    for _ in range(wanted + 5):
        browser.switch_to.active_element.send_keys("\ue004")  # Tab
        name = browser.execute_script(
            "const all = [...document.querySelectorAll('a, summary, .scroll')];"
            "return all.indexOf(document.activeElement)"
        )
        reached.add(name)
    assert len(reached - {-1}) == wanted
    browser.execute_script("document.querySelector('summary').focus()")
    browser.switch_to.active_element.send_keys("\ue007")  # Enter
    assert browser.execute_script("return document.querySelector('details').open")
    missing = "return [...document.querySelectorAll('nav a')].filter((a) => !document.querySelector(a.hash)).length"
    assert browser.execute_script(missing) == 0


@pytest.mark.slow
def test_what_a_page_asks_for_is_refused_and_seen(browser: webdriver.Chrome, runs: dict[str, Path], tmp_path: Path):
    """The two tests above can fail: the policy of the page stops a request, and the console tells of it."""
    path = write_report([read_run(runs["digits"])], tmp_path / "report.html")
    html = path.read_text().replace("<body>", '<body><img src="http://127.0.0.1:9/pixel.png" alt="">')
    path.write_text(html)
    show(browser, path, DESK)
    assert any("Content Security Policy" in text for text in complaints(browser))


SLOW = """
import threading, time
import numpy as np
import streamkern as sk

go = threading.Event()
threading.Thread(target=lambda: (input(), go.set()), daemon=True).start()
X = np.random.default_rng(0).standard_normal((400, 3)).astype("float32")
data = sk.from_arrays(X, (X[:, 0] > 0).astype(int))
pipeline = sk.Pipeline(data, sk.Laplace(2.0), sk.Uniform(20), sk.EigenPro(epochs=40, batch=40), test=data, name="slow")

def wait(kind, fields):
    if kind == "step" and fields["pass_"] == 2:
        go.wait(60)

sk.run(pipeline, "run", listeners=(wait,))
"""


@pytest.mark.slow
def test_a_live_page_follows_a_run_to_its_end(browser: webdriver.Chrome, tmp_path: Path):
    env = {**os.environ, "PYTHONPATH": str(Path(sk.__file__).parents[1])}
    run = subprocess.Popen([sys.executable, "-c", SLOW], cwd=tmp_path, stdin=subprocess.PIPE, env=env)
    try:
        until(lambda: (tmp_path / "run" / "events.jsonl").exists() and len(read_run(tmp_path / "run").steps) > 1)
        with served(tmp_path / "run") as live:
            browser.get(live.url)
            words = "return document.querySelector('header').innerText"
            assert "Still running: EigenPro" in browser.execute_script(words)
            text = browser.execute_script("return document.body.innerText")
            assert "Not there yet: the run is still running." in text
            assert "the run ended" not in text
            assert "start to end" not in text
            run.stdin.write(b"\n")
            run.stdin.flush()
            until(lambda: "Done: EigenPro" in (browser.execute_script(words) or ""))  # without a word from here
            assert browser.execute_script("return document.querySelector('meta[http-equiv=refresh]')") is None
    finally:
        run.kill()
        run.communicate()


def until(true: Callable[[], bool], seconds: float = 200.0) -> None:
    """Wait until something is true; a run that has just begun, or a page that is being replaced, is not there yet."""
    deadline = time.monotonic() + seconds
    while True:
        with contextlib.suppress(sk.UsageError, WebDriverException):
            if true():
                return
        assert time.monotonic() < deadline
        time.sleep(0.1)
