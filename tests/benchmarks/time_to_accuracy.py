"""Seconds from a cold start to a test accuracy on Fashion-MNIST, against published methods and scikit-learn.

    python -m tests.benchmarks.time_to_accuracy [--centers 5000] [--accuracy 0.863 0.875] [--sides ...] [--repeats 1]

Each side is a process of its own that imports, reads the images, sets up and trains; evaluation on the test images is
not counted; the peak of its resident memory is. Methods of minibatches are looked at sixteen times a pass. Sides take
turns. The baselines are plain NumPy and SciPy, everything in memory: ``published`` is
``tests.references.eigenpro3``, inexact projection (Algorithm 2 of Abedsoltan et al. 2023) with the
settings of the released code (s = 5,000, q = 500, two projection epochs), ``tuned`` the same with the strongest
settings we found for it; ``eigenpro2`` is EigenPro 2 as published, with all rows as centers whatever ``--centers``
says; ``cg`` Falkon's preconditioned conjugate gradients (Rudi et al. 2017), kernel values computed block by block; all
with the Laplace kernel of bandwidth 20. ``nystroem`` is scikit-learn's Nystroem and Ridge, ``rbfsampler`` its
RBFSampler and SGDClassifier, both with a Gaussian kernel, against ``streamkern-gaussian``, whose solver is what
``solver="auto"`` stands for at that size and whose centers are those of ``nystroem``. ``--epochs`` are passes of the
baselines, twice as many of conjugate gradients; ``--passes`` those of EigenPro here. Every repeat draws other centers.
"""

from __future__ import annotations

import argparse
import compileall
import gzip
import importlib.util
import json
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

BASELINES: dict[str, dict[str, Any]] = {
    "published": {},
    "tuned": {"s": 2000, "q": 200, "projection_epochs": 8, "keep_kernel": True},
}
SIDES = (
    "streamkern", "streamkern-cg", *BASELINES, "eigenpro2", "cg", "streamkern-gaussian", "nystroem", "rbfsampler"
)  # fmt: skip
LOOKS = 16  # evaluations a pass: a quarter of a second apart here
GAMMA = 0.02  # of the Gaussian kernel exp(−γ ‖x − z‖²), on pixels in [0, 1]
RIDGE = 1e-7  # λ of the conjugate gradients, times n
FOLDER = Path("/usr/share/datasets/fashion-mnist")


def ours(side: str, centers: int, epochs: int, passes_here: int, seed: int, began: float) -> dict[str, Any]:
    """Passes of a solver of this library."""
    import numpy as np

    import streamkern as sk
    from streamkern.centers import CenterSet
    from streamkern.data.row_order import Assembly
    from streamkern.data.targets import Classes
    from streamkern.evaluation.score import score
    from streamkern.execute.threads_executor import ThreadsExecutor
    from streamkern.runs import load_pipeline
    from streamkern.solvers import Checkpoint, Problem, train
    from streamkern.sweep import gather

    settings = {"rows": "60000", "noise": "0", "centers": str(centers), "seed": str(seed)}
    job = load_pipeline("pipelines/fashion_mnist.py", settings)
    kernel = sk.Gaussian((2 * GAMMA) ** -0.5) if side == "streamkern-gaussian" else job.kernel
    solver: Any = sk.Falkon(epochs=2 * epochs) if side == "streamkern-cg" else sk.EigenPro(epochs=passes_here)
    if side == "streamkern-gaussian":
        from streamkern.costs.dry_run import ProblemSize
        from streamkern.fitting.solver_choice import choose_solver

        solver = choose_solver(ProblemSize(60_000, centers, 784, 10, 4, 4, 1, None)).solver
    passes: list[tuple[float, float]] = []
    with ThreadsExecutor() as executor:
        if side == "streamkern-gaussian":  # on the rows that scikit-learn draws
            drawn = np.random.RandomState(seed).permutation(60_000)[:centers]
            Z, _ = gather(executor, Assembly(job.train, dtype=np.dtype(np.float32)), drawn)
            chosen = CenterSet(Z, drawn)
        else:
            chosen = job.centers.choose(job.train, executor, np.dtype(np.float32))
        problem = Problem(job.train, Classes(np.arange(10)), kernel, chosen, executor, cache_bytes=256 << 20)
        iteration = solver.setup(problem)
        ready = time.time() - began
        steps = iteration.stream.steps if iteration.minibatches else 0
        looked = {steps * (k + 1) // LOOKS for k in range(LOOKS)}
        out = 0.0

        class Looks:
            """Evaluates where training stands, on a clock that stands still meanwhile."""

            shares = None

            def offer(self, checkpoint: Checkpoint, wait: bool = False, kept: Any = None) -> None:
                nonlocal out
                if checkpoint.position[1] not in looked or checkpoint.swept or (steps and not checkpoint.begun):
                    return
                begun = time.perf_counter()
                weights = iteration.weights(iteration.settle(checkpoint.state))
                found = score(executor, problem.assembly(job.test), problem.predictor(), weights)
                passes.append((found["accuracy"], ready + checkpoint.seconds - out))
                out += time.perf_counter() - begun

            def interrupted(self, checkpoint: Checkpoint) -> None:
                """Nothing is kept."""

        train(problem, iteration, keeper=Looks())
    return {"setup": ready, "passes": passes}


def images() -> tuple[Any, Any, Any, Any]:
    """Training rows in [0, 1] float32 and labels, test rows and labels."""
    import numpy as np

    def read(name: str, header: int) -> Any:
        return np.frombuffer(gzip.decompress((FOLDER / name).read_bytes()), np.uint8, offset=header)

    rows = [read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784) / np.float32(255) for part in ("train", "t10k")]
    labels = [read(f"{part}-labels-idx1-ubyte.gz", 8) for part in ("train", "t10k")]
    return rows[0], labels[0], rows[1], labels[1]


def baseline(side: str, centers: int, epochs: int, seed: int, began: float) -> dict[str, Any]:
    """Passes of a method in plain NumPy."""
    import numpy as np
    import scipy.linalg  # noqa: F401

    loaded = time.time()
    from tests.references import eigenpro2, eigenpro3, laplace

    began += time.time() - loaded  # plain functions, which need nothing else of this package
    X, labels, X_test, y_test = images()
    Y = np.eye(10, dtype=np.float32)[labels]
    Z = X if side == "eigenpro2" else X[np.random.default_rng(seed).choice(len(X), centers, replace=False)]
    kernel = partial(laplace, bandwidth=20.0)
    ready = time.time() - began
    passes = []

    def on_epoch(epoch: int, alpha: Any, seconds: float) -> None:
        right = sum(
            int(np.count_nonzero((kernel(X_test[a : a + 1000], Z) @ alpha).argmax(1) == y_test[a : a + 1000]))
            for a in range(0, len(X_test), 1000)
        )
        passes.append((right / len(X_test), ready + seconds))

    if side == "cg":
        conjugate_gradients(kernel, X, Y, Z, 2 * epochs, on_epoch)
    elif side == "eigenpro2":
        eigenpro2(kernel, X, Y, epochs=epochs, on_epoch=on_epoch)
    else:
        eigenpro3(kernel, X, Y, Z, epochs=epochs, on_epoch=on_epoch, looks=LOOKS, **BASELINES[side])
    return {"setup": ready, "passes": passes}


def conjugate_gradients(kernel: Any, X: Any, Y: Any, Z: Any, epochs: int, on_epoch: Any) -> None:
    """Falkon (Algorithm 1 of Rudi et al. 2017): a pass over the rows an iteration, kernel values by blocks of 1,000."""
    import numpy as np
    from scipy.linalg import cholesky, solve_triangular

    start, out, (n, p) = time.perf_counter(), 0.0, (len(X), len(Z))
    K = np.asarray(kernel(Z, Z), np.float64)
    K[np.diag_indices(p)] += p * np.finfo(np.float32).eps
    T = cholesky(K, overwrite_a=True, check_finite=False)
    S = T @ T.T / p
    S[np.diag_indices(p)] += RIDGE
    A = cholesky(S, overwrite_a=True, check_finite=False)

    def solve(R: Any, B: Any, **how: Any) -> Any:
        return solve_triangular(R, B, check_finite=False, **how)

    def products(v: Any, with_targets: bool) -> Any:
        """K_ZX (K_XZ v), or K_ZX Y."""
        total = np.zeros((p, Y.shape[1]))
        for a in range(0, n, 1000):
            block = kernel(X[a : a + 1000], Z)
            total += block.T @ (Y[a : a + 1000] if with_targets else block @ v)
        return total

    def apply(b: Any) -> Any:
        u = solve(A, b)
        v = solve(T, u)
        w = solve(T, products(v.astype(np.float32), False) / n, trans="T") + RIDGE * u
        return solve(A, w, trans="T")

    r = solve(A, solve(T, products(None, True) / n, trans="T"), trans="T")
    beta, direction, size = np.zeros_like(r), r.copy(), np.sum(r * r, axis=0)
    for epoch in range(1, epochs + 1):
        image = apply(direction)
        step = size / np.sum(direction * image, axis=0)
        beta += step * direction
        r -= step * image
        size, before = np.sum(r * r, axis=0), size
        direction = r + size / before * direction
        alpha = solve(T, solve(A, beta)).astype(np.float32)
        seconds = time.perf_counter() - start - out
        on_epoch(epoch + 1, alpha, seconds)  # a pass went into the right-hand side
        out = time.perf_counter() - start - seconds


def scikit(side: str, centers: int, seed: int, began: float) -> dict[str, Any]:
    """One fit of scikit-learn's."""
    from sklearn.kernel_approximation import Nystroem, RBFSampler
    from sklearn.linear_model import RidgeClassifier, SGDClassifier

    X, y, X_test, y_test = images()
    ready = time.time() - began
    features: Any = Nystroem(gamma=GAMMA, n_components=centers, random_state=seed)
    linear: Any = RidgeClassifier(alpha=1e-3)
    if side == "rbfsampler":
        features = RBFSampler(gamma=GAMMA, n_components=centers, random_state=seed)
        linear = SGDClassifier(random_state=seed, n_jobs=-1)
    linear.fit(features.fit_transform(X), y)
    spent = time.time() - began
    right = sum(
        int((linear.predict(features.transform(X_test[a : a + 1000])) == y_test[a : a + 1000]).sum())
        for a in range(0, len(X_test), 1000)
    )
    return {"setup": ready, "passes": [(right / len(X_test), spent)]}


def run_side(options: argparse.Namespace) -> None:
    """This process is one side: print what it took as JSON."""
    began = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + _process_start()
    if options.side.startswith("streamkern"):
        told = ours(options.side, options.centers, options.epochs, options.passes, options.seed, began)
    elif options.side in ("nystroem", "rbfsampler"):
        told = scikit(options.side, options.centers, options.seed, began)
    else:
        told = baseline(options.side, options.centers, options.epochs, options.seed, began)
    print(json.dumps(told | {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


def main() -> None:
    """Run the sides in fresh processes and print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--centers", type=int, default=5000)
    parser.add_argument("--accuracy", type=float, nargs="+", default=[0.863])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=["streamkern", *BASELINES])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--side")
    parser.add_argument("--results", type=Path, help="add this run to a file of docs/results")
    options = parser.parse_args()
    if options.side:
        run_side(options)
        return
    from tests.benchmarks.results import (
        add_run,
        spread,
    )  # not in the processes of sides, which start this file by its path

    package = importlib.util.find_spec("streamkern")
    assert package is not None
    compileall.compile_dir(Path(str(package.origin)).parent, quiet=1)  # as an installation does, and the next line
    subprocess.run([sys.executable, "-m", "streamkern", "doctor", "--compile"], check=True, stdout=subprocess.DEVNULL)
    reached: dict[str, dict[float, list[float]]] = {name: {a: [] for a in options.accuracy} for name in options.sides}
    ends: dict[str, list[float]] = {name: [] for name in options.sides}
    others: dict[str, list[dict[str, float]]] = {name: [] for name in options.sides}
    for repeat in range(options.repeats):
        for side in options.sides:
            command = [sys.executable, __file__, "--side", side, "--centers", str(options.centers)]
            command += [
                "--epochs",
                str(options.epochs),
                "--passes",
                str(options.passes),
                "--seed",
                str(options.seed + repeat),
            ]
            told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            ends[side].append(told["passes"][-1][0])
            others[side].append({"setup": told["setup"], "peak": told["peak"]})
            times = []
            for goal in options.accuracy:
                spent = next((spent for accuracy, spent in told["passes"] if accuracy >= goal), float("inf"))
                reached[side][goal].append(spent)
                times.append(f"{spent:6.1f} s to {goal:.1%}")
            passes = "  ".join(f"{accuracy:.2%} at {spent:.1f} s" for accuracy, spent in told["passes"])
            held = f"(ready {told['setup']:.1f} s, peak {told['peak']:,.0f} MiB)"
            print(f"{side:<19} {', '.join(times)}   {held}   {passes}", flush=True)
    for side, found in ends.items():
        print(f"{side:<19} ends at {statistics.mean(found):.2%} ({min(found):.2%} to {max(found):.2%})")
    beside: dict[str, dict[str, Any]] = {side: {} for side in options.sides}
    ours_first = next((side for side in options.sides if side.startswith("streamkern")), None)
    for name in options.sides:
        for goal in options.accuracy if ours_first and name != ours_first else ():
            pairs = zip(reached[ours_first][goal], reached[name][goal], strict=True)
            ratios = [b / a for a, b in pairs if a < float("inf")]
            if ratios:
                ends_of = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                print(f"{name} / {ours_first}, to {goal:.1%}: {ends_of}")
                beside[name][str(goal)] = spread(ratios)
    add_run(
        options.results, [values(side, reached[side], ends[side], others[side], beside[side]) for side in options.sides]
    )


def values(
    side: str,
    reached: dict[float, list[float]],
    ends: list[float],
    others: list[dict[str, float]],
    ratios: dict[str, Any],
) -> dict[str, Any]:
    """Return the results of a side; a goal that a draw did not reach is None."""
    seconds = {str(goal): [None if s == float("inf") else s for s in times] for goal, times in reached.items()}
    return {
        "side": side,
        "seconds": seconds,
        "before_training_seconds": [one["setup"] for one in others],
        "peak_mib": [round(one["peak"]) for one in others],
        "end_accuracy": ends,
        "ratio": ratios,
    }


def _process_start() -> float:
    """When this process began, in seconds since boot."""
    import os

    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
