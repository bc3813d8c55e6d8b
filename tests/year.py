"""A year of nights: ``python tests/year.py [NIGHTS] [--plot FILE.svg]`` retrains on rows that grow, drift and break.

Each night rows arrive whose clouds turn slowly; on some nights nothing arrives, labels are scrambled for a night, a
chunk is corrupt, or a feature is NaN; on some a ``kill -9`` ends the process at a random moment, and it is started
again. After every night it is checked that there is a champion, that it is whole and predicts, that it is the one the
decision names, that it changes only where the gate says so, with its reasons, and that no scrap is left.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import streamkern as sk

GATE = "accuracy >= champion - 0.002 and accuracy >= 0.8 and n_test >= 100"
KEEP = 5
WINDOW, TEST = 2000, 800
"""Rows, the last ones, that a night trains on, and that it scores on; nobody trains on these."""

PIPELINE = """
import streamkern as sk

def pipeline() -> sk.Pipeline:
    train, test = (sk.open_dataset(f"{part}.zarr", target="label") for part in ("train", "test"))
    return sk.Pipeline(train=train, test=test, kernel=sk.Laplace(3.0), centers=sk.Uniform(60))
"""


def arrivals(night: int, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Three clouds whose middles turn once in two years."""
    y = rng.integers(0, 3, n)
    angle = 2 * np.pi * (y / 3 + night / 730)
    X = rng.standard_normal((n, 5)).astype("float32")
    X[:, 0] += 2.2 * np.cos(angle)
    X[:, 1] += 2.2 * np.sin(angle)
    return X, y


class Year:
    """The nights, one after another, in a directory of their own."""

    def __init__(self, folder: Path, seed: int = 0, real_kills: int = 8, nights: int = 365) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows = {"train": arrivals(0, 1000, self.rng), "test": arrivals(0, 500, self.rng)}
        self.folder, self.nights = folder, nights
        self.kills = {int(n) for n in self.rng.choice(np.arange(1, nights), min(real_kills, nights - 1), replace=False)}
        self.told: list[dict[str, Any]] = []
        self.seconds = 4.0
        (folder / "nightly.py").write_text(PIPELINE)

    def write(self, event: str) -> None:
        """The last rows, as the night finds them."""
        for part, last in (("train", WINDOW), ("test", TEST)):
            X, y = (array[-last:].copy() for array in self.rows[part])
            if event == "scrambled":
                y = self.rng.permutation(y)  # nothing can be learnt from them
            if event == "nan":
                X[self.rng.integers(len(X)), 2] = np.nan
            place = self.folder / f"{part}.zarr"
            sk.write_zarr(place, X, y, target="label", chunk_rows=512, overwrite=True)
            if event == "corrupt":
                chunks = sorted(file for file in place.rglob("*") if "/c/" in str(file) and file.is_file())
                chunk = chunks[self.rng.integers(len(chunks))]
                chunk.write_bytes(chunk.read_bytes()[: chunk.stat().st_size // 2])

    def night(self, night: int) -> dict[str, Any]:
        """One night; what it came to."""
        event = self.rng.choice(
            ["grown", "quiet", "scrambled", "corrupt", "nan"],
            p=[0.72, 0.15, 0.05, 0.04, 0.04] if night else [1, 0, 0, 0, 0],
        )
        if event == "grown" and night:
            for part, n in (("train", self.rng.integers(20, 100)), ("test", self.rng.integers(10, 40))):
                new = arrivals(night, int(n), self.rng)
                self.rows[part] = tuple(np.concatenate(both) for both in zip(self.rows[part], new, strict=True))
        before = self.champion()
        if event != "quiet" or (self.told and self.told[-1]["event"] not in ("grown", "quiet")):
            self.write(str(event))
        killed = 0
        while night in self.kills and killed < 2:
            killed += self.killed()
            self.whole(before)
            if killed == 0:
                break
        line = self.retrain(night)
        told = {"night": night, "event": str(event), "killed": killed, "before": before, **line}
        self.check(told)
        self.told.append(told)
        return told

    def retrain(self, night: int) -> dict[str, Any]:
        """A night in this process, or in one of its own where one was killed before."""
        if night in self.kills:
            started = time.monotonic()
            done = subprocess.run(self.command, cwd=self.folder, capture_output=True, text=True, check=False)
            self.seconds = time.monotonic() - started
            line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            assert line["exit_status"] == done.returncode, done.stderr
            return line
        here = os.getcwd()
        os.chdir(self.folder)
        try:
            return sk.retrain(sk.load_pipeline("nightly.py"), "models", gate=GATE, keep=KEEP)
        except sk.StreamkernError as error:
            return {"status": "failed", "exit_status": error.exit_status, "reasons": [str(error)]}
        finally:
            os.chdir(here)

    @property
    def command(self) -> list[str]:
        """The nightly job."""
        words = ["retrain", "nightly.py", "--registry", "models", "--gate", GATE, "--keep", str(KEEP), "--quiet"]
        return [sys.executable, "-m", "streamkern", *words]

    def killed(self) -> int:
        """The nightly job, killed at a random moment of its life; 0 if it was through by then."""
        process = subprocess.Popen(self.command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(float(self.rng.uniform(0.3, 1.0)) * self.seconds)
        process.kill()
        return int(process.wait() == -signal.SIGKILL)

    def champion(self) -> int | None:
        """As a reader finds it."""
        return sk.Registry(self.folder / "models").champion if (self.folder / "models").exists() else None

    def whole(self, before: int | None) -> None:
        """There is a champion, and it predicts, whatever was killed."""
        if before is not None:
            model = sk.Registry(self.folder / "models").load()
            assert model.predict(self.rows["test"][0][:5]).shape == (5,)

    def check(self, told: dict[str, Any]) -> None:
        """What a night may do, and what it may not."""
        models = sk.Registry(self.folder / "models")
        now = models.champion
        assert now is not None, told
        self.whole(now)
        assert told["reasons"], told
        record = models.record(now)
        if now != told["before"]:
            assert record["status"] == "promoted", told
            found, against = record["decision"]["challenger"], record["decision"]["against"]
            assert against is None or found["accuracy"] >= against["accuracy"] - 0.002, told
        if told["status"] == "promoted":
            assert now == told["version"], told
        if told["status"] in ("failed", "rejected"):
            assert told["killed"] or now == told["before"], told
        if told["event"] in ("corrupt", "nan"):
            assert told["status"] == "failed", told
            assert told["exit_status"] == 1 if "exit_status" in told else True
        assert len(models.versions) <= KEEP + 2
        scraps = [name for name in os.listdir(self.folder / "models/versions") if name.startswith(".")]
        assert not scraps, told
        # The champion and all models on rows of tonight that nobody trained on, free of what was broken.
        X, y = arrivals(told["night"], 2000, np.random.default_rng(10_000 + told["night"]))
        told["accuracy"] = float(np.mean(models.load().predict(X) == y))
        told["champion"] = now

    def run(self) -> None:
        """All nights."""
        for night in range(self.nights):
            told = self.night(night)
            if night % 30 == 0 or night == self.nights - 1:
                print(
                    f"night {night}: {told['status']}, version {told['champion']}, {told['accuracy']:.3f}", flush=True
                )


def plot(told: list[dict[str, Any]], place: Path) -> None:
    """The champion's accuracy on clean fresh rows, as an SVG: a line, and a mark for what each night came to."""
    width, height, left, top = 900, 320, 60, 30
    values = [each["accuracy"] for each in told]
    low, high = np.floor(min(values) * 20) / 20, np.ceil(max(values) * 20) / 20
    x = [left + (width - left - 20) * i / max(1, len(told) - 1) for i in range(len(told))]

    def y(value: float) -> float:
        return float(top + (height - top - 70) * (high - value) / max(high - low, 1e-9))

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="18" fill="#333">accuracy of the champion on 2,000 fresh rows, night by night</text>',
    ]
    for value in np.arange(low, high + 1e-9, 0.05):
        lines.append(f'<path d="M{left} {y(value):.1f}H{width - 20}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 8}" y="{y(value) + 4:.1f}" text-anchor="end" fill="#666">{value:.2f}</text>')
    points = " ".join(f"{a:.1f},{y(b):.1f}" for a, b in zip(x, values, strict=True))
    lines.append(f'<polyline points="{points}" fill="none" stroke="#1f5fa8" stroke-width="1.5"/>')
    rows = {"promoted": "#2a8f4f", "rejected": "#d08a00", "failed": "#c0392b", "unchanged": "#bbbbbb"}
    base = height - 58
    for number, (status, colour) in enumerate(rows.items()):
        at = base + 12 * number
        lines.append(
            f'<text x="{left - 8}" y="{at + 4}" text-anchor="end" font-size="10" fill="{colour}">{status}</text>'
        )
        marks = "".join(f"M{a:.1f} {at - 4}v8" for a, each in zip(x, told, strict=True) if each["status"] == status)
        lines.append(f'<path d="{marks}" stroke="{colour}" stroke-width="1.5"/>')
    kills = "".join(f"M{a:.1f} {top}v{height - top - 70}" for a, each in zip(x, told, strict=True) if each["killed"])
    lines.append(f'<path d="{kills}" stroke="#c0392b" stroke-dasharray="2 3" opacity="0.6"/>')
    lines.append(f'<text x="{width - 20}" y="18" text-anchor="end" fill="#c0392b">dotted: kill -9</text></svg>')
    place.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    """The year, and what it came to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nights", nargs="?", type=int, default=365)
    parser.add_argument("--kills", type=int, default=8, help="nights with kill -9")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="year-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    started = time.monotonic()
    try:
        year = Year(folder, args.seed, args.kills, args.nights)
        year.run()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = year.told
    print("statuses", dict(Counter(each["status"] for each in told)))
    print("events", dict(Counter(f"{each['event']}: {each['status']}" for each in told)))
    print("starts", dict(Counter(each["start"] for each in told if each.get("start"))))
    print("killed", sum(each["killed"] for each in told), "times; champion missing: 0 nights")
    scores = [each["accuracy"] for each in told]
    print(
        f"champion's accuracy on fresh rows: {scores[0]:.3f} at first, {min(scores):.3f} at worst, "
        f"{scores[-1]:.3f} at last"
    )
    print(f"{time.monotonic() - started:.0f} s")
    if args.plot:
        plot(told, args.plot)


if __name__ == "__main__":
    main()
