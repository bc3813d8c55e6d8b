"""A partition of rows on disk, killed at five moments: ``python tests/soak/leaves.py --rows 10000000``.

The pipeline of a hundred million rows, with fewer of them, is run once without a fault. Then it is killed (SIGKILL)
after its cuts are made, while rows are scattered, while leaves are trained, and while the model is saved, and gone on
with by ``streamkern resume``; and so is ``streamkern predict`` killed and called again. Weights and predictions must be
those of the undisturbed run, bit for bit, and what was done must not be done again. Anything else is status 1.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PIPELINE = Path(__file__).parents[2] / "pipelines" / "hundred_million.py"
POLL = 0.005
PATIENCE = 1200.0


def stages(run: Path) -> dict[str, bool]:
    """Stages that have ended, and whether an earlier run had kept them."""
    found = dict[str, bool]()
    for line in (run / "events.jsonl").read_text().splitlines() if (run / "events.jsonl").exists() else ():
        event = json.loads(line) if line.endswith("}") else {}
        if event.get("event") == "stage" and event["state"] == "end":
            found[event["name"]] = event["cached"]
    return found


def after_cuts(run: Path) -> bool:
    """The tree is cut, and rows are not scattered yet."""
    return "level-sample" in stages(run)


def in_scatter(run: Path) -> bool:
    """Some runs of rows are written."""
    return len(list(run.glob("scattered/*/run-*"))) >= 3


def in_leaves(run: Path) -> bool:
    """Some leaves are trained."""
    return sum(name.startswith("leaf-") for name in stages(run)) >= 5


def in_saving(run: Path) -> bool:
    """Some leaves of the model are written."""
    return any(len(list(staging.glob("*"))) >= 5 for staging in run.glob(".model.zarr*"))


MOMENTS = {"after cuts": after_cuts, "scatter": in_scatter, "leaves": in_leaves, "saving": in_saving}


def command(*words: object) -> list[str]:
    """A command line of streamkern."""
    return [sys.executable, "-m", "streamkern", *map(str, words)]


def killed(words: list[str], moment: Callable[[], bool]) -> None:
    """Run a command, and kill it at a moment."""
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    until = time.monotonic() + PATIENCE
    while not moment():
        if process.poll() is not None or time.monotonic() > until:
            process.kill()
            raise SystemExit(f"the moment did not come: {' '.join(words)}")
        time.sleep(POLL)
    process.send_signal(signal.SIGKILL)
    process.wait()


def result(run: Path) -> dict[str, object]:
    """What a run came to."""
    found: dict[str, object] = json.loads((run / "result.json").read_text())
    return found


def parts_done(plan: Path) -> int:
    """Parts of predictions that are written."""
    with suppress(OSError, ValueError):  # it is replaced, and in the end removed
        return int(json.loads(plan.read_text())["done"])
    return 0


def files(folder: Path) -> dict[str, bytes]:
    """The chunks of predictions."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("c/*"))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--leaf-rows", type=int, default=250_000)
    parser.add_argument("--centers", type=int, default=500)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--moments", nargs="+", choices=list(MOMENTS), default=list(MOMENTS))
    args = parser.parse_args()
    settings = ("--set", f"rows={args.rows}", f"leaf_rows={args.leaf_rows}", f"centers={args.centers}")
    with tempfile.TemporaryDirectory(prefix="leaves-", dir=".") as name:
        folder = Path(name)

        def run(place: Path) -> list[str]:
            return command("run", PIPELINE, *settings, "--memory", args.memory, "--run-dir", place, "--quiet")

        whole = folder / "whole"
        subprocess.run(run(whole), check=True)
        expected, wrong = result(whole)["weights_sha256"], 0
        print(f"undisturbed: {expected}", flush=True)
        for moment in args.moments:
            reached = MOMENTS[moment]
            place = folder / moment.replace(" ", "-")
            killed(run(place), lambda reached=reached, place=place: reached(place))  # type: ignore[misc]
            before = stages(place)
            subprocess.run(command("resume", place, "--quiet"), check=True)
            kept = {str(s["name"]) for s in result(place)["stages"] if s["cached"]}  # type: ignore[attr-defined]
            # A stage that ended as the process died may have been kept or not.
            lost, same = len(set(before) - kept), result(place)["weights_sha256"] == expected
            print(f"{moment}: {len(before)} stages before, {lost} done again, same weights: {same}", flush=True)
            wrong += not same or lost > 1 or (place / "scattered").exists()
            shutil.rmtree(place)
        # Predictions of the training rows.
        data = Path("data/hundred_million") / f"train-{args.rows}.zarr"
        first, second = folder / "first.zarr", folder / "second.zarr"
        model = whole / "model.zarr"
        subprocess.run(command("predict", model, data, first, "--memory", args.memory), check=True)
        killed(
            command("predict", model, data, second, "--memory", args.memory),
            lambda: any(parts_done(plan) >= 1 for plan in folder.glob("*second*/plan.json")),
        )
        subprocess.run(command("predict", model, data, second, "--memory", args.memory), check=True)
        same = files(first) == files(second) and len(files(first)) > 0
        print(f"prediction: same bytes: {same}", flush=True)
        return int(wrong > 0 or not same)


if __name__ == "__main__":
    sys.exit(main())
