"""Figures 1 and 2 and Corollary 1 of "Learning with SGD and Random Features" (Carratino, Rudi & Rosasco 2018).

    streamkern run pipelines/papers/random_features.py --set rows=4096 features=512
    python pipelines/papers/random_features.py features --data synthetic
    python pipelines/papers/random_features.py batch --data synthetic
    python pipelines/papers/random_features.py regimes

The first trains once. The others print the error as the number of features varies; the lowest error over step sizes as
batch and passes vary; and the error of the four regimes of Corollary 1. All are means over seeds.

The paper's data sets, SUSY and HIGGS, are not needed: ``fashion`` is Fashion-MNIST, and ``synthetic`` a problem whose
regularity is known: rows uniform on [−1, 1]³ and a sum of 20 functions of the Laplace kernel as target. So the target
lies in the RKHS, as Corollary 1 assumes, which is the Sobolev space of smoothness s = 2, with α = D/2s = 3/4 in
Assumption 5. Test targets have no noise: the error on them is the excess risk itself.
"""

from __future__ import annotations

import argparse
import runpy
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import streamkern as sk
from streamkern.rng import generator

DIMENSION = 3
BANDWIDTH = 2.0


def pipeline(
    data: str = "synthetic",
    rows: int = 4096,
    features: int | None = None,
    batch: int | None = None,
    step: float = 0.5,
    passes: int = 1,
    regime: int = 0,
    noise: float = 0.5,
    bandwidth: float | None = None,
    test_rows: int = 10_000,
    seed: int = 0,
    source: str | None = None,
) -> sk.Pipeline:
    """SGD on random Fourier features; the error on the test rows after every pass is in the history of result.json.

    Args:
        data: synthetic or fashion.
        rows: training rows n.
        features: number of features M; √n log n by default.
        batch: rows of a step b; √n by default.
        step: step size γ, constant. Features here are √(2/M) cos, the paper's M^{−1/2} cos: 1/2 is the paper's 1.
        passes: passes over the rows.
        regime: 1 to 4: batch, step and passes of this regime of Corollary 1; 0: as they are given.
        noise: standard deviation of the noise on the targets of the synthetic rows, whose signal has variance 1.
        bandwidth: of the kernel: Laplace on synthetic rows (2 by default), Gaussian on images (5 by default).
        test_rows: test rows.
        seed: seed of rows, noise, features and order.
        source: folder with the four files of Fashion-MNIST; looked for by default.
    """
    if data == "fashion":
        folder = runpy.run_path(str(Path(__file__).parents[1] / "fashion_mnist.py"))["store"](source)
        train, test = (sk.open_dataset(folder / f"{part}.zarr", target="label") for part in ("train", "test"))
        train, test = train.scale(1 / 255).sample(rows, seed), test.scale(1 / 255).sample(test_rows)
        kernel: sk.Kernel = sk.Gaussian(bandwidth or 5.0)
    elif data == "synthetic":
        train = sk.from_arrays(*points(rows, noise, "train", seed))
        test = sk.from_arrays(*points(test_rows, 0.0, "test", 0))
        kernel = sk.Laplace(bandwidth or BANDWIDTH)
    else:
        raise sk.UsageError(f"The data are {data!r}.", where="--set data=...", expected="synthetic or fashion")
    size = batch or max(1, round(rows**0.5))
    solver = sk.corollary_1(regime, rows) if regime else sk.SGD(passes, size, step)
    return sk.Pipeline(
        train=train,
        test=test,
        validation=test,  # only to have its error after every pass: nothing stops on it
        kernel=kernel,
        features=sk.RandomFourier(kernel, features or sk.default_features(rows), seed=seed),
        solver=solver,
        task="classification" if data == "fashion" else "regression",
        lanes=min(4, solver.batch or 4),
        seed=seed,
    )


def points(n: int, noise: float, part: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, shape (n, 3), and their targets; the function is the same for every seed and has variance 1."""
    rng = generator("random features", "function")
    centers, weights = rng.uniform(-1, 1, (20, DIMENSION)), rng.standard_normal(20)
    kernel = sk.Laplace(BANDWIDTH)
    values = kernel(rng.uniform(-1, 1, (10_000, DIMENSION)), centers) @ weights
    rng = generator("random features", part, seed)
    X = rng.uniform(-1, 1, (n, DIMENSION))
    y = (kernel(X, centers) @ weights - values.mean()) / values.std()
    return X, y + noise * rng.standard_normal(n)


def errors(seeds: int, **settings: Any) -> np.ndarray:
    """Error on the test rows after every pass, shape (seeds, passes); infinite where the step was too large."""
    found = []
    for seed in range(seeds):
        job = sk.load_pipeline(__file__, {name: str(value) for name, value in (settings | {"seed": seed}).items()})
        with tempfile.TemporaryDirectory() as folder:
            try:
                scores = [entry["validation"] for entry in sk.run(job, folder)["history"]]
            except sk.errors.NumericalError:
                found.append(np.full(job.solver.epochs, np.inf))
                continue
        found.append(np.array([1 - score["accuracy"] if "accuracy" in score else score["mse"] for score in scores]))
    return np.stack(found)


def vary_features(options: argparse.Namespace) -> None:
    """Figure 1: the error after so many passes as M grows, batch √n."""
    print(f"{'M/√n':>8} " + " ".join(f"{f'n = {n:,}':>20}" for n in options.rows))
    for ratio in options.ratios:
        cells = []
        for n in options.rows:
            M = max(1, round(ratio * n**0.5))
            last = errors(options.seeds, data=options.data, rows=n, features=M, passes=options.passes)[:, -1]
            cells.append(f"{last.mean():.4f} ± {last.std():.4f}")
        print(f"{ratio:>8g} " + " ".join(f"{cell:>20}" for cell in cells), flush=True)
    print("√n log n is M/√n = " + ", ".join(f"{np.log(n):.1f}" for n in options.rows))


def vary_batch(options: argparse.Namespace) -> None:
    """Figure 2: the lowest error over steps, as batch and passes vary; M = √n as in the paper, or as asked."""
    for n in options.rows:
        counts = [2**i for i in range(options.passes.bit_length())]
        print(f"n = {n:,}\n{'b/√n':>8} " + " ".join(f"{f'{count} pass' + 'es' * (count > 1):>20}" for count in counts))
        for ratio in options.ratios:
            batch = min(n, max(1, round(ratio * n**0.5)))
            M = round(options.features * n**0.5)
            curves = {
                step: errors(
                    options.seeds, data=options.data, rows=n, features=M, batch=batch, step=step, passes=counts[-1]
                ).mean(axis=0)
                for step in options.steps
            }
            best = [min((curve[count - 1], step) for step, curve in curves.items()) for count in counts]
            cells = " ".join(f"{f'{error:.4f} (γ = {step:g})':>20}" for error, step in best)
            print(f"{batch / n**0.5:>8.3g} {cells}", flush=True)


def regimes(options: argparse.Namespace) -> None:
    """Corollary 1: the error of the four regimes, M = √n log n, and its rate in n."""
    print(f"{'':>10} " + " ".join(f"{f'n = {n:,}':>20}" for n in options.rows) + f" {'rate':>8}")
    for regime in (1, 2, 3, 4):
        found = {
            n: errors(options.seeds, data=options.data, rows=n, regime=regime)[:, -1]
            for n in options.rows
            if regime != 1 or n <= options.longest
        }
        cells = [f"{found[n].mean():.4f} ± {found[n].std():.4f}" if n in found else "-" for n in options.rows]
        rate = ""
        if len(found) > 1:
            first, last = min(found), max(found)
            rate = f"n^{np.log(found[last].mean() / found[first].mean()) / np.log(last / first):.2f}"
        print(f"{f'c1.{regime}':>10} " + " ".join(f"{cell:>20}" for cell in cells) + f" {rate:>8}", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = parser.add_subparsers(dest="table", required=True)
    for name, table, passes, ratios in (
        ("features", vary_features, 5, (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)),
        ("batch", vary_batch, 8, (0.25, 1.0, 4.0, 16.0, 64.0)),
        ("regimes", regimes, 1, ()),
    ):
        sub = tables.add_parser(name, help=table.__doc__)
        sub.set_defaults(make=table)
        sub.add_argument("--data", choices=("synthetic", "fashion"), default="synthetic")
        sub.add_argument("--rows", type=int, nargs="+", default=[256, 1024, 4096])
        sub.add_argument("--seeds", type=int, default=5)
        sub.add_argument("--passes", type=int, default=passes)
        sub.add_argument("--ratios", type=float, nargs="+", default=ratios, help="of M, or of b, to √n")
        if name == "batch":
            sub.add_argument("--features", type=float, default=1.0, help="M/√n")
            sub.add_argument("--steps", type=float, nargs="+", default=[2.0**i for i in range(-4, 5)])
        if name == "regimes":
            sub.add_argument("--longest", type=int, default=1024, help="most rows for c1.1, which takes n√n steps")
    options = parser.parse_args(arguments)
    options.make(options)


if __name__ == "__main__":
    main()
