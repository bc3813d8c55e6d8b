"""Memory and time a row from 1 to 100 million rows on disk, and 120 million augmented ones, under a budget of 2 GiB.

    python tests/benchmarks/scale.py [--rows 1000000 10000000 100000000] [--images 60000 120000000] [--repeat 3]
                                     [--runs runs/scale] [--plot docs/img/scale.svg]

Each number is that of a ``streamkern run`` in a process of its own, which this script starts where its run directory
has no result yet; the smaller ones are repeated, taking turns, because they are short. ``--images 60000`` is the plain
data set for 20 passes, any other number noisy copies of it. Prints one table for each pipeline,
and draws resident memory over time, as the event logs hold it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from results import add_results, add_run, spread

from streamkern.report.run_directory import read_run

PIPELINES = Path(__file__).parents[2] / "pipelines"
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9")
BUDGET = "2GiB"


def run(pipeline: str, settings: dict[str, Any], folder: Path) -> Path:
    """Run a pipeline, unless that is done."""
    if not (folder / "result.json").exists():
        sets = [f"{name}={value}" for name, value in settings.items()]
        command = [sys.executable, "-m", "streamkern", "run", str(PIPELINES / pipeline), "--set", *sets]
        subprocess.run([*command, "--memory", BUDGET, "--run-dir", str(folder)], check=True)
    return folder


def row(name: str, folders: list[Path]) -> tuple[str, float, float]:
    """A line of the table, and the medians of peak memory and of the time a row."""
    found = [json.loads((folder / "result.json").read_text()) for folder in folders]
    peak = statistics.median(r["peak_memory_bytes"] for r in found)
    speeds = [r["samples_per_second"] for r in found]
    seconds = [sum(stage["seconds"] for stage in r["stages"]) for r in found]
    first = found[0]
    text = (
        f"| {name} | {statistics.median(seconds) / 60:.1f} min | {1e6 / statistics.median(speeds):.2f} µs"
        f" ({1e6 / max(speeds):.2f} to {1e6 / min(speeds):.2f}) | {peak / 2**20:,.0f} MiB"
        f" | {first['projected_memory_bytes'] / 2**20:,.0f} MiB"
        f" | {100 * statistics.median(r['data_wait_fraction'] for r in found):.1f}%"
        f" | {100 * first['metrics']['test']['accuracy']:.2f}% |"
    )
    return text, peak, 1 / statistics.median(speeds)


def record(pipeline: str, folders: list[Path]) -> dict[str, Any]:
    """Return the values of a line of the table."""
    found = [json.loads((folder / "result.json").read_text()) for folder in folders]
    seconds = [sum(stage["seconds"] for stage in r["stages"]) for r in found]
    return {
        "pipeline": pipeline,
        "rows": int(folders[0].name.split("-")[1]),
        "minutes": statistics.median(seconds) / 60,
        "row_us": spread([1e6 / r["samples_per_second"] for r in found]),
        "peak_mib": round(statistics.median(r["peak_memory_bytes"] for r in found) / 2**20),
        "projected_mib": found[0]["projected_memory_bytes"] >> 20,
        "waiting": statistics.median(r["data_wait_fraction"] for r in found),
        "accuracy": found[0]["metrics"]["test"]["accuracy"],
    }


def table(rows: dict[str, list[Path]], first: str, last: str) -> None:
    """Print a table, and how its last row compares with its first."""
    print("| rows | whole run | training, a row | peak memory | projected | waiting for data | test accuracy |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    found = {}
    for name, folders in rows.items():
        text, *found[name] = row(name, folders)
        print(text)
    (peak, second), (peaks, seconds) = found[first], found[last]
    print(f"\n{last} against {first}: memory x {peaks / peak:.3f}, time a row x {seconds / second:.3f}\n", flush=True)


def curves(folders: dict[str, Path]) -> dict[str, list[tuple[float, float]]]:
    """(minutes since the run began, MiB resident) of each run."""
    found = {}
    for name, folder in folders.items():
        events = [e for e in read_run(folder).events if "resident_bytes" in e]
        start = events[0]["time"]
        found[name] = [((e["time"] - start) / 60, e["resident_bytes"] / 2**20) for e in events]
    return found


def plot(lines: dict[str, list[tuple[float, float]]], budget: float) -> str:
    """Resident memory over time as SVG; time is logarithmic, so that short runs are seen beside long ones."""
    width, height, left, bottom, top, right = 760, 380, 60, 44, 14, 16
    longest = max(t for line in lines.values() for t, _ in line)
    low, high = math.log10(1 / 60), math.log10(longest)

    def at(t: float, mib: float) -> tuple[float, float]:
        share = (math.log10(max(t, 1 / 60)) - low) / (high - low)
        return left + share * (width - left - right), height - bottom - mib / (1.05 * budget) * (height - bottom - top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="12">'
        f'<rect width="{width}" height="{height}" fill="white"/>'
    ]
    for mib in range(0, int(budget) + 1, 512):
        x, y = at(1 / 60, mib)
        parts.append(f'<path d="M{x} {y:.1f}H{width - right}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4:.1f}" text-anchor="end">{mib:,}</text>')
    x, y = at(1 / 60, budget)
    parts.append(f'<path d="M{x} {y:.1f}H{width - right}" stroke="#d55e00" stroke-dasharray="6 4"/>')
    parts.append(f'<text x="{x + 6}" y="{y + 14:.1f}" fill="#d55e00">budget</text>')
    for label, t in (("1 s", 1 / 60), ("10 s", 1 / 6), ("1 min", 1.0), ("10 min", 10.0), ("1 h", 60.0)):
        if t <= longest:
            x, y = at(t, 0)
            parts.append(f'<path d="M{x:.1f} {y}v5" stroke="black"/>')
            parts.append(f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{label}</text>')
    for number, (name, line) in enumerate(lines.items()):
        color = COLORS[number % len(COLORS)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in _thinned([at(*point) for point in line]))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
        parts.append(f'<text x="{left + 12}" y="{height - bottom - 104 - 18 * number}" fill="{color}">{name}</text>')
    parts.append(f'<text x="{left}" y="{height - 8}">time since the run began</text>')
    parts.append(
        f'<text x="12" y="{top + 4}" transform="rotate(-90 12 {top + 4})" text-anchor="end">MiB resident</text>'
    )
    return "".join(parts) + "</svg>\n"


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Lowest and highest point of each pixel column, in order: what a line of all of them shows."""
    columns: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        columns.setdefault(int(point[0]), []).append(point)
    kept = []
    for column in columns.values():
        ends = {min(column, key=lambda p: p[1]), max(column, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def main() -> None:
    """Run what is not done yet, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="*", default=[10**6, 10**7, 10**8])
    parser.add_argument("--images", type=int, nargs="*", default=[60_000, 120_000_000])
    parser.add_argument("--centers", type=int, default=1000)
    parser.add_argument("--repeat", type=int, default=3, help="times that runs of up to ten million rows are taken")
    parser.add_argument("--runs", type=Path, default=Path("runs/scale"))
    parser.add_argument("--plot", type=Path)
    add_results(parser)
    options = parser.parse_args()
    done: dict[str, dict[str, list[Path]]] = {"hundred_million.py": {}, "fashion_mnist.py": {}}
    for number in range(options.repeat):
        for pipeline, sizes in (("hundred_million.py", options.rows), ("fashion_mnist.py", options.images)):
            for rows in sizes:
                if number and rows > 10**7:
                    continue
                settings = {"rows": rows, "centers": options.centers}
                if pipeline == "fashion_mnist.py" and rows == 60_000:
                    settings |= {"noise": 0, "epochs": 20}
                folder = options.runs / f"{pipeline[:-3]}-{rows}-{number}"
                done[pipeline].setdefault(f"{rows:,}", []).append(run(pipeline, settings, folder))
    print(f"{os.cpu_count()} cores, --memory {BUDGET}, {options.centers:,} centers\n")
    for pipeline, found in done.items():
        if found:
            print(pipeline)
            table(found, next(iter(found)), list(found)[-1])
    values = [record(name[:-3], folders) for name, found in done.items() for folders in found.values()]
    add_run(options.results, values)
    if options.plot:
        shown = {f"{name} {kind}": folders[0] for kind, pipeline in (("rows on disk", "hundred_million.py"),
                 ("augmented rows", "fashion_mnist.py")) for name, folders in done[pipeline].items()}  # fmt: skip
        options.plot.write_text(plot(curves(shown), 2048), encoding="utf-8")


if __name__ == "__main__":
    main()
