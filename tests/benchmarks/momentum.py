"""Where momentum pays: EigenPro with exact projection, without it and with several γ, on Fashion-MNIST.

    python tests/benchmarks/momentum.py [--centers 1000] [--epochs 3] [--batches 1 16 64] [--gammas 0.5 0.8 0.9]

All sides see the same batches. Prints accuracy and squared error on the test rows after each pass, for batches that are
multiples of the measured critical batch, and says which γ the solver would choose.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

import streamkern as sk
from streamkern.data.targets import Classes
from streamkern.execute import ThreadsExecutor
from streamkern.runs import load_pipeline
from streamkern.solvers import Problem, train

FASHION = Path(__file__).parents[2] / "pipelines/fashion_mnist.py"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--centers", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batches", type=float, nargs="+", default=[1, 16, 64])
    parser.add_argument("--gammas", type=float, nargs="+", default=[0.5, 0.8, 0.9])
    args = parser.parse_args()
    pipeline = load_pipeline(FASHION, {"rows": "60_000", "noise": "0", "centers": str(args.centers)})
    assert pipeline.kernel is not None
    assert pipeline.centers is not None
    with ThreadsExecutor() as executor:
        centers = pipeline.centers.choose(pipeline.train, executor, np.dtype(np.float32))
        problem = Problem(
            pipeline.train, Classes(np.arange(10)), pipeline.kernel, centers, executor, validation=pipeline.test,
            cache_bytes=256 << 20,
        )  # fmt: skip
        solver = sk.EigenPro(epochs=args.epochs, projection="exact")
        prepared = solver.prepare(problem)
        critical = prepared.size.critical_batch
        print(f"p = {args.centers:,}, critical batch {critical:,.0f}")
        for multiple in args.batches:
            batch = 4 * max(1, round(multiple * critical / 4))
            here = replace(prepared, batch=batch)
            chosen = solver.chosen_momentum(prepared.size, batch, args.centers)
            for gamma in sorted({0.0, chosen, *args.gammas}):
                outcome = train(problem, replace(solver, momentum=gamma).setup(problem, here))
                scores = [entry["validation"] for entry in outcome.history]
                line = "  ".join(f"{100 * s['accuracy']:.2f}% {s['mse']:.5f}" for s in scores)
                print(
                    f"batch {batch:6,} = {multiple:g} m*, gamma {gamma:.2f}: {line}"
                    f"{' (chosen)' if gamma == chosen else ''}{' DIVERGED' if outcome.failure else ''}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
