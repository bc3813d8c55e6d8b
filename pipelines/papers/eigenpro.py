"""Table 3 of "Diving into the Shallows" (Ma & Belkin 2017) on Fashion-MNIST: epochs to the exact solution's error.

    streamkern run pipelines/papers/eigenpro.py --set method=eigenpro basis=kernel
    python pipelines/papers/eigenpro.py --basis kernel

The first trains one method; the second trains all of a basis and prints, for each, the first epoch whose error on the
test images is at or below that of kernel ridge regression. As in the paper: Gaussian kernel, pixels in [0, 1], batches
of 256 for every iterative method, a preconditioner of 160 eigenpairs from 4,800 rows.
"""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path
from typing import Any

import streamkern as sk
from streamkern.solvers import Solver

METHODS = {
    "sgd": "SGD, last iterate",
    "sgd-average": "SGD, averaged iterates",
    "eigenpro-last": "EigenPro, last iterate",
    "eigenpro": "EigenPro, averaged iterates",
}
RIDGES = {"kernel": (1e-6, 1e-5), "fourier": (3e-5, 1e-4)}
"""Of the exact solution: on 10,000 images the lowest test error is at one of them."""


def pipeline(
    method: str = "eigenpro",
    basis: str = "kernel",
    rows: int = 10_000,
    features: int = 5000,
    bandwidth: float = 5.0,
    epochs: int = 10,
    batch: int = 256,
    q: int = 160,
    subsample: int = 4800,
    tau: float = 1.0,
    ridge: float = 1e-5,
    penalty: float = 0.0,
    test_rows: int = 10_000,
    seed: int = 0,
    source: str | None = None,
) -> sk.Pipeline:
    """One method on one basis; the error on the test images after every epoch is in the history of result.json.

    Args:
        method: exact, sgd, sgd-average, eigenpro-last or eigenpro; all but the last average nothing.
        basis: kernel, functions in the RKHS with every training row a center; or fourier, random features.
        rows: training images n.
        features: random Fourier features M of the basis fourier.
        bandwidth: bandwidth of the Gaussian kernel, in units of the pixels' range.
        epochs: passes.
        batch: rows of a step m.
        q: eigenpairs of the preconditioner, the paper's k.
        subsample: rows that they come from, the paper's M.
        tau: damping of EigenPro on features, the paper's 1/4 for random features.
        ridge: of the exact solution, in units of the mean squared error.
        penalty: ridge of the other methods, on random features; 0, as in the paper, leaves regularisation to stopping.
        test_rows: test images.
        seed: seed of sample, centers, features and order.
        source: folder with the four files of the data set; looked for by default.
    """
    if basis not in ("kernel", "fourier"):
        raise sk.UsageError(f"The basis is {basis!r}.", where="--set basis=...", expected="kernel or fourier")
    if penalty and basis == "kernel":
        raise sk.UsageError("EigenPro in the RKHS has no ridge.", where="--set penalty=...", expected="basis=fourier")
    folder = runpy.run_path(str(Path(__file__).parents[1] / "fashion_mnist.py"))["store"](source)
    kernel = sk.Gaussian(bandwidth)
    test = sk.open_dataset(folder / "test.zarr", target="label").scale(1 / 255).sample(test_rows)
    return sk.Pipeline(
        train=sk.open_dataset(folder / "train.zarr", target="label").scale(1 / 255).sample(rows, seed=seed),
        test=test,
        validation=test,  # only to have its error after every epoch: nothing stops on it
        kernel=kernel,
        centers=sk.Uniform(rows, seed=seed) if basis == "kernel" else None,
        features=None if basis == "kernel" else sk.RandomFourier(kernel, features, seed=seed),
        solver=solver(method, basis, epochs, batch, q, subsample, tau, ridge, penalty),
        lanes=2,  # blocks of 128 rows
        seed=seed,
        name=f"eigenpro-{basis}-{method}",
    )


def solver(
    method: str, basis: str, epochs: int, batch: int, q: int, subsample: int, tau: float, ridge: float, penalty: float
) -> Solver:
    """The solver that a method is on a basis; its step is measured in every case."""
    average = not method.endswith("last") and method != "sgd"
    if method == "exact":
        return sk.Falkon(epochs, ridge) if basis == "kernel" else sk.Direct(ridge)
    if method not in METHODS:
        raise sk.UsageError(
            f"The method is {method!r}.", where="--set method=...", expected=", ".join(("exact", *METHODS))
        )
    if basis == "kernel":
        return sk.EigenPro2(epochs, s=subsample, q=0 if method.startswith("sgd") else q, batch=batch, average=average)
    if method.startswith("sgd"):
        return sk.SGD(epochs, batch, ridge=penalty, average=average)
    return sk.EigenPro1(epochs, q, subsample, batch, tau=tau, ridge=penalty, average=average)


def main(arguments: list[str] | None = None) -> None:
    """Train every method of a basis, each in a run directory of its own, and print the epochs that they take."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--basis", choices=("kernel", "fourier"), default="kernel")
    for name, default in (("rows", 10_000), ("features", 5000), ("test-rows", 10_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--epochs", type=int, default=15, help="of EigenPro")
    parser.add_argument("--sgd-epochs", type=int, default=40)
    parser.add_argument("--iterations", type=int, default=6, help="of the conjugate gradients of the exact solution")
    parser.add_argument("--ridges", type=float, nargs="+", help="of the exact solution")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="further settings of the pipeline")
    parser.add_argument("--runs", type=Path, default=Path("runs/eigenpro"))
    parser.add_argument("--memory", default="8GiB")
    options = parser.parse_args(arguments)
    shared: dict[str, Any] = dict(pair.split("=", 1) for pair in options.set)
    shared |= {name: getattr(options, name) for name in ("basis", "rows", "features", "test_rows")}

    def train(name: str, **settings: Any) -> dict[str, Any]:
        job = sk.load_pipeline(__file__, {key: str(value) for key, value in (shared | settings).items()})
        return sk.run(job, options.runs / f"{options.basis}-{name}", memory=options.memory)

    exact = {
        ridge: train(f"exact-{ridge:g}", method="exact", ridge=ridge, epochs=options.iterations)["metrics"]["test"]
        for ridge in options.ridges or RIDGES[options.basis]
    }
    curves = {}
    for method in METHODS:
        epochs = options.sgd_epochs if method.startswith("sgd") else options.epochs
        result = train(method, method=method, epochs=epochs)
        curves[method] = [entry["validation"] for entry in result["history"]]
    print(f"{'':<28} {'lowest error':>14} " + " ".join(f"{f'ridge {ridge:g}':>16}" for ridge in exact))
    print(f"{'exact':<43} " + " ".join(f"{1 - found['accuracy']:>16.2%}" for found in exact.values()))
    for method, text in METHODS.items():
        errors = [1 - entry["accuracy"] for entry in curves[method]]
        reached = [epochs_to(curves[method], found) for found in exact.values()]
        lowest = f"{min(errors):.2%} ({errors.index(min(errors)) + 1})"
        print(f"{text:<28} {lowest:>14} " + " ".join(f"{told(*found, len(errors)):>16}" for found in reached))
    print("epochs to the exact error (to its squared error); lowest error over epochs, and when")


def epochs_to(curve: list[dict[str, float]], exact: dict[str, float]) -> tuple[int | None, int | None]:
    """The first epoch with the exact classification error, and with the exact squared error; None where none is."""
    return (
        next((i for i, entry in enumerate(curve, 1) if entry["accuracy"] >= exact["accuracy"]), None),
        next((i for i, entry in enumerate(curve, 1) if entry["mse"] <= exact["mse"]), None),
    )


def told(error: int | None, mse: int | None, epochs: int) -> str:
    """Both counts as text."""
    more = f">{epochs}"
    return f"{error or more} ({mse or more})"


if __name__ == "__main__":
    main()
