"""Accuracy, seconds and peak memory against the number of centers, for each projection and budget, on Fashion-MNIST.

    python -m tests.benchmarks.large [--centers 5000 20000] [--memory 2GiB 8GiB] [--sides auto eigenpro2] [--passes 3]
    python -m tests.benchmarks.large --sides auto            # the table of docs: hours on two cores
    python -m tests.benchmarks.large --plan 1_000_000        # what so many centers would take on a cluster

Each line is a process of its own: Laplace kernel of bandwidth 20, centers drawn uniformly. Sides are ``auto`` (the
default solver settings; where every row is a center EigenPro 2, as ``solver="auto"`` takes it), ``packed``,
``eigenpro2`` with every row a center, each with a line for every budget; ``exact``, ``inexact`` and ``delayed`` with
the largest budget; ``falkon``, which is preconditioned conjugate gradients; and ``published``, EigenPro 2 with every
row a center as its authors published it, in plain NumPy; ``pytorch`` the same with kernel values by PyTorch, where it
is installed. ``--rows`` takes the first rows of the training set. Seconds
are those of the fit, by the clock, and the processor's, of all threads and from the start to the trained model; the
peak is of the process's resident memory. The last line is promise 9: by how much a line of ``auto`` is below one with
no more centers and no more memory. ``--results`` adds the lines of ``auto`` and ``eigenpro2``, one for each number of
centers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.results import add_results, add_run

FOLDER = Path("/usr/share/datasets/fashion-mnist")
PROJECTIONS = ("auto", "exact", "packed", "inexact", "delayed")
EVERY_ROW = ("eigenpro2", "published", "pytorch")
EVERY_BUDGET = ("auto", "packed", "eigenpro2")
RECORDED = ("auto", "eigenpro2")
BUDGETS = ("1GiB", "2GiB", "4GiB", "8GiB")
SIDES = (*PROJECTIONS, "falkon", *EVERY_ROW)


def images(name: str) -> tuple[Any, Any]:
    """Images of a set, and its labels."""
    with gzip.open(FOLDER / f"{name}-images-idx3-ubyte.gz") as pixels:
        X = np.frombuffer(pixels.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(FOLDER / f"{name}-labels-idx1-ubyte.gz") as labels:
        return X, np.frombuffer(labels.read(), np.uint8, offset=8)


def one(side: str, p: int, memory: str, rows: int, passes: int, seed: int) -> dict[str, Any]:
    """Fit and evaluate in this process."""
    import streamkern as sk
    from streamkern.memory import peak_resident_bytes

    (X, y), (T, t) = images("train"), images("t10k")
    X, y = X[:rows], y[:rows]
    if side in ("published", "pytorch"):
        return published(X, y, T, t, passes, side)
    every = side == "eigenpro2" or (side == "auto" and p >= len(X))
    solver: Any = sk.EigenPro2(epochs=passes) if every else sk.EigenPro(epochs=passes, projection=side)
    if side == "falkon":
        solver = sk.Falkon(epochs=2 * passes, ridge=1e-7)
    centers: Any = sk.AllRows() if side == "eigenpro2" else sk.Uniform(p, seed=seed)
    model = sk.KernelClassifier(sk.Laplace(20.0 * 255.0), centers=centers, solver=solver, memory=memory)
    began = time.perf_counter()
    model.fit(X, y)
    seconds, training, processor = time.perf_counter() - began, model.result_.outcome.seconds, time.process_time()
    peak = peak_resident_bytes()
    report = model.result_.report
    how = " ".join(str(report[name]) for name in ("projection", "lead") if name in report)
    accuracy = 100 * float(np.mean(model.predict(T) == t))
    spent = {"setup": seconds - training, "training": training, "processor": processor}
    return {"how": how or type(solver).__name__, "accuracy": accuracy, "peak": peak, **spent}


def by_pytorch(A: Any, B: Any) -> Any:
    """Kernel values."""
    import torch

    a, b = torch.from_numpy(A), torch.from_numpy(B)
    return torch.cdist(a, b).mul_(-1.0 / 20.0).exp_().numpy()


def published(X: Any, y: Any, T: Any, t: Any, passes: int, side: str) -> dict[str, Any]:
    """EigenPro 2 in plain NumPy, or with kernel values by PyTorch."""
    from streamkern.memory import peak_resident_bytes
    from tests.references import eigenpro2, laplace

    X, T = (rows.astype(np.float32) / 255 for rows in (X, T))
    kernel = by_pytorch if side == "pytorch" else partial(laplace, bandwidth=20.0)
    began = time.perf_counter()
    alpha = eigenpro2(kernel, X, np.eye(10, dtype=np.float32)[y], epochs=passes)
    training, processor, peak = time.perf_counter() - began, time.process_time(), peak_resident_bytes()
    parts = [(kernel(T[a : a + 500], X) @ alpha).argmax(axis=1) for a in range(0, len(T), 500)]
    accuracy = 100 * float(np.mean(np.concatenate(parts) == t))
    spent = {"setup": 0.0, "training": training, "processor": processor}
    how = "PyTorch" if side == "pytorch" else "NumPy"
    return {"how": how, "accuracy": accuracy, "peak": peak, **spent}


def planned(p: int, rows: int, columns: int) -> None:
    """Print the plan of rows that are nowhere, and what a smaller worker is refused for."""
    import zarr

    import streamkern as sk

    with tempfile.TemporaryDirectory() as folder:
        group = zarr.open_group(folder, mode="w")
        attributes = {"streamkern": {"sparse": True}}
        group.create_array("X", shape=(rows, columns), chunks=(8192, columns), dtype="f4", attributes=attributes)
        group.create_array("y", shape=(rows,), chunks=(1 << 16,), dtype="i8", attributes=attributes)
        pipeline = sk.Pipeline(
            train=sk.open_dataset(folder, target="y"), kernel=sk.Laplace(20.0), centers=sk.Uniform(p),
            solver=sk.EigenPro(), preprocess=(),
        )  # fmt: skip
        less, given = "16GiB", sk.Resources("64GiB", worker_memory="64GiB", worker_threads=4)
        print(sk.plan(pipeline, resources=given).text())
        try:
            sk.plan(pipeline, resources=replace(given, worker_memory=less))
        except sk.errors.PlanRefusedError as error:
            print(f"\nworkers of {less}:\n{error}")


def below(lines: list[tuple[int, str, float]]) -> str:
    """By how much an accuracy is below that of no more centers and no more memory, at most."""
    from streamkern.memory import parse_bytes

    worst = (0.0, "")
    for p, memory, accuracy in lines:
        for fewer, less, other in lines:
            if fewer <= p and parse_bytes(less) <= parse_bytes(memory) and other - accuracy > worst[0]:
                worst = other - accuracy, f": {p:,} centers in {memory} and {fewer:,} in {less}"
    return f"at most {worst[0]:.2f} points below fewer centers or less memory{worst[1]}"


def line(side: str, p: int, memory: str, args: argparse.Namespace) -> dict[str, Any] | None:
    """Run a side in a process, print and return what it found: {} where it does not fit, None where it fails."""
    command = [sys.executable, "-m", "tests.benchmarks.large", "--one", "--sides", side, "--centers", str(p)]
    command += ["--memory", memory, "--rows", str(args.rows), "--passes", str(args.passes), "--seed", str(args.seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    head = f"{p:9,}  {side:9}  {memory:7}"
    if done.returncode:
        print(f"{head}  {done.stderr.strip().splitlines()[-1].strip()[:100]}", flush=True)
        return {} if "RefusedError" in done.stderr else None
    found: dict[str, Any] = json.loads(done.stdout)
    print(
        f"{head}  {found['how']:16}  {found['accuracy']:7.2f}%  {found['setup']:6.1f} s  "
        f"{found['training']:6.1f} s   {found['processor']:6.1f} s  {found['peak'] / 2**30:4.2f} GiB",
        flush=True,
    )
    return found


def recorded(p: int | str, cells: dict[str, dict[str, Any] | None]) -> dict[str, Any]:
    """Return a line of docs/results: accuracy and choice by budget, or which smaller budget has the same."""
    from streamkern.precondition.int16_projection import packed_lead

    line: dict[str, Any] = {"table": "budgets", "p": p} | {named(memory): None for memory in BUDGETS}
    first: dict[str, str] = {}
    for memory, found in cells.items():
        if found is None:
            continue
        text = "refused"
        if found:
            how, *lead = found["how"].split()
            text = f"{found['accuracy']:.2f}% {how}"
            if lead and isinstance(p, int) and int(lead[0]) < packed_lead(p, None):
                text += f", l = {int(lead[0]):,}"
        same = first.setdefault(text, memory)
        line[named(memory)] = text if not found or same == memory else f"same as with {named(same)}"
    return line


def named(memory: str) -> str:
    """Return a budget as docs/results has it."""
    return memory.replace("GiB", " GiB")


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each side, number of centers and budget."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--centers", type=int, nargs="+", default=[1000, 5000, 10_000, 15_000, 20_000, 30_000, 40_000, 60_000]
    )
    parser.add_argument("--memory", nargs="+", default=list(BUDGETS))
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--plan", type=int, metavar="P", help="print a plan of so many centers, of 5,000,000 rows of 512"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    add_results(parser)
    args = parser.parse_args(arguments)
    if args.plan:
        planned(args.plan, 5_000_000, 512)
        return
    if args.one:
        found = one(args.sides[0], args.centers[0], args.memory[0], args.rows, args.passes, args.seed)
        print(json.dumps(found), flush=True)
        return
    print("  centers  side       memory   choice            accuracy   set-up  training  processor      peak")
    automatic, lines = [], []
    for side in args.sides:
        for p in [args.rows] if side in EVERY_ROW else args.centers:
            cells = {}
            for memory in args.memory if side in EVERY_BUDGET else args.memory[-1:]:
                cells[memory] = found = line(side, p, memory, args)
                if side == "auto" and found:
                    automatic.append((p, memory, float(found["accuracy"])))
            every = f"{p:,} (every row), {args.passes} passes"
            if side in RECORDED:
                lines.append(recorded(every if side in EVERY_ROW else p, cells))
    if automatic:
        print(below(automatic))
    if lines:
        add_run(args.results, lines, ["numba"])


if __name__ == "__main__":
    main()
