"""Accuracy, seconds and peak memory against the number of centers, for each projection and budget, on Fashion-MNIST.

    python -m tests.benchmarks.large [--centers 5000 20000] [--memory 2GiB 8GiB] [--sides auto eigenpro2] [--passes 3]

Each line is a process of its own: Laplace kernel of bandwidth 20, centers drawn uniformly. Sides are ``auto`` (the
default solver settings, a line for each budget), ``exact``, ``packed``, ``inexact`` and ``delayed`` (with the largest
budget), ``falkon``, which is preconditioned conjugate gradients, and ``eigenpro2`` with every row a center. ``--rows``
takes the first rows of the training set. Seconds are those of the fit, by the clock, and
the processor's, of all threads and from the start; the peak is of the process's resident memory.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path("/usr/share/datasets/fashion-mnist")
PROJECTIONS = ("auto", "exact", "packed", "inexact", "delayed")
SIDES = (*PROJECTIONS, "falkon", "eigenpro2")


def images(name: str) -> tuple[Any, Any]:
    """Images of a set, and its labels."""
    with gzip.open(FOLDER / f"{name}-images-idx3-ubyte.gz") as pixels:
        X = np.frombuffer(pixels.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(FOLDER / f"{name}-labels-idx1-ubyte.gz") as labels:
        return X, np.frombuffer(labels.read(), np.uint8, offset=8)


def one(side: str, p: int, memory: str, rows: int, passes: int, seed: int) -> dict[str, Any]:
    """Fit and evaluate in this process."""
    import streamkern as sk
    from streamkern.memory import peak_resident

    (X, y), (T, t) = images("train"), images("t10k")
    X, y = X[:rows], y[:rows]
    solver: Any = sk.EigenPro(epochs=passes, projection=side) if side in PROJECTIONS else sk.EigenPro2(epochs=passes)
    if side == "falkon":
        solver = sk.Falkon(epochs=2 * passes, ridge=1e-7)
    centers: Any = sk.AllRows() if side == "eigenpro2" else sk.Uniform(p, seed=seed)
    model = sk.KernelClassifier(sk.Laplace(20.0 * 255.0), centers=centers, solver=solver, memory=memory)
    began = time.perf_counter()
    model.fit(X, y)
    seconds, training, processor = time.perf_counter() - began, model.outcome_.seconds, time.process_time()
    peak = peak_resident()
    report = model.report_
    how = " ".join(str(report[name]) for name in ("projection", "lead") if name in report)
    accuracy = 100 * float(np.mean(model.predict(T) == t))
    spent = {"setup": seconds - training, "training": training, "processor": processor}
    return {"how": how, "accuracy": accuracy, "peak": peak, **spent}


def main(arguments: list[str] | None = None) -> None:
    """Print a line for each side, number of centers and budget."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--centers", type=int, nargs="+", default=[1000, 5000, 10_000, 20_000])
    parser.add_argument("--memory", nargs="+", default=["1GiB", "2GiB", "8GiB"])
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    if args.one:
        found = one(args.sides[0], args.centers[0], args.memory[0], args.rows, args.passes, args.seed)
        print(json.dumps(found), flush=True)
        return
    print("  centers  side       memory   choice            accuracy   set-up  training  processor      peak")
    for side in args.sides:
        for p in args.centers if side != "eigenpro2" else [args.rows]:
            for memory in args.memory if side in ("auto", "eigenpro2") else args.memory[-1:]:
                command = [
                    sys.executable,
                    "-m",
                    "tests.benchmarks.large",
                    "--one",
                    "--sides",
                    side,
                    "--centers",
                    str(p),
                ]
                command += ["--memory", memory, "--rows", str(args.rows), "--passes", str(args.passes)]
                done = subprocess.run([*command, "--seed", str(args.seed)], capture_output=True, text=True, check=False)
                line = f"{p:9,}  {side:9}  {memory:7}"
                if done.returncode:
                    print(f"{line}  {done.stderr.strip().splitlines()[-1][:100]}", flush=True)
                    continue
                found = json.loads(done.stdout)
                print(
                    f"{line}  {found['how']:16}  {found['accuracy']:7.2f}%  {found['setup']:6.1f} s  "
                    f"{found['training']:6.1f} s   {found['processor']:6.1f} s  {found['peak'] / 2**30:4.2f} GiB",
                    flush=True,
                )


if __name__ == "__main__":
    main()
