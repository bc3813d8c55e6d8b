"""Figure 2 of Gonen, Orabona & Shalev-Shwartz 2016 on its synthetic matrices: epochs to a suboptimality.

    python pipelines/papers/svrg.py --n 20000 --d 5000 --decay 2

makes the paper's matrix (d features, n rows; singular vectors uniform, the q-th singular value q^−decay, rows
normalised; y = ⟨w, x⟩ + noise of variance 0.1) and runs SVRG without a preconditioner and with one of rank k, λ = 1e-8.
Suboptimality is L(w) − min L in float64. The paper tunes the step of each method; here it is the measured one times the
best of --factors.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

import streamkern as sk
from streamkern.centers import CenterSet
from streamkern.data.targets import Continuous
from streamkern.kernels import Identity, Linear
from streamkern.precondition.lanczos import speedup_ratio
from streamkern.solvers import Problem, train
from streamkern.solvers.svrg import SVRG

THRESHOLDS = (1e-1, 1e-2, 5e-3, 2e-3, 1e-3, 1e-4, 1e-6)


def synthetic(n: int, d: int, decay: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows, shape (n, d), float32, and targets, shape (n, 1), float64."""
    random = np.random.default_rng(seed)
    left = np.linalg.qr(random.standard_normal((n, min(n, d)), dtype=np.float32))[0]
    right = np.linalg.qr(random.standard_normal((d, min(n, d)), dtype=np.float32))[0]
    left *= np.arange(1, min(n, d) + 1, dtype=np.float32) ** np.float32(-decay)
    X = left @ right.T
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = X @ random.standard_normal((d, 1)).astype(np.float32) + np.sqrt(0.1) * random.standard_normal((n, 1))
    return X, np.asarray(y, dtype=np.float64)


def normal_equations(X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """XᵀX/n and Xᵀy/n in float64, shapes (d, d) and (d, 1)."""
    gram, moment = np.zeros((X.shape[1], X.shape[1])), np.zeros((X.shape[1], 1))
    for start in range(0, len(X), 2000):
        rows = slice(start, start + 2000)
        block = X[rows].astype(np.float64)
        gram += block.T @ block
        moment += block.T @ y[rows]
    return gram / len(X), moment / len(X)


def compare(
    n: int = 2000,
    d: int = 400,
    decay: float = 1.0,
    k: int = 30,
    ridge: float = 1e-8,
    epochs: int = 10,
    batch: int | None = None,
    dtype: str = "float32",
    factors: tuple[float, ...] = (1.0,),
    seed: int = 0,
) -> dict[str, object]:
    """Suboptimality after every epoch, of both methods, and the ratio of eq. 3.

    Args:
        n: rows.
        d: features.
        decay: of the singular values.
        k: rank of the preconditioner.
        ridge: λ.
        epochs: outer loops.
        batch: rows of a step; each method's own by default.
        dtype: of the streamed arithmetic.
        factors: multiples of the measured step to try.
        seed: of the matrix and of the order of rows.
    """
    X, y = synthetic(n, d, decay, seed)
    H, moment = normal_equations(X, y)
    ratio = speedup_ratio(np.linalg.eigvalsh(H), k)
    H[np.diag_indices(d)] += ridge
    best = np.linalg.solve(H, moment)
    result: dict[str, object] = {"n": n, "d": d, "decay": decay, "k": k, "ridge": ridge, "ratio": ratio}
    with sk.open_executor() as executor:
        problem = Problem(
            sk.from_arrays(X, y), Continuous(np.zeros(1)), Linear(), CenterSet(X[:0], None), executor,
            dtype=np.dtype(dtype), seed=seed, features=Identity(),
        )  # fmt: skip
        for name, preconditioner in (("plain", None), ("preconditioned", "lanczos")):
            result[name] = min(
                (
                    follow(problem, SVRG(epochs, ridge, k, batch, preconditioner=preconditioner), H, best, factor)
                    for factor in factors
                ),
                key=lambda run: run["suboptimality"][-1],
            )
    return result


def follow(problem: Problem, solver: SVRG, H: np.ndarray, best: np.ndarray, factor: float) -> dict[str, object]:
    """Suboptimality ½ (w − w*)ᵀ H (w − w*) before the first epoch and after each."""
    iteration = solver.setup(problem)
    step, seen = iteration.rate, []
    iteration.rate = lambda rows: factor * step(rows)

    def record(state: object) -> bool:
        off = iteration.weights(state).astype(np.float64) - best
        seen.append(0.5 * float(np.sum(off * (H @ off))))
        return False

    iteration.finished = record
    record(iteration.init())
    outcome = train(problem, iteration)
    if outcome.failure is not None:
        seen.append(float("inf"))
    keep = ("sweeps", "beta", "peak", "lambda", "batch", "step")
    report = {key: iteration.report[key] for key in keep if key in iteration.report}
    return {"suboptimality": seen, "seconds": outcome.seconds, "factor": factor, **report}


def epochs_to(suboptimality: list[float], threshold: float) -> int | None:
    """The first epoch at or below a threshold; None where none is."""
    return next((epoch for epoch, value in enumerate(suboptimality) if value <= threshold), None)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("n", 2000), ("d", 400), ("k", 30), ("epochs", 10), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--decay", type=float, default=1.0)
    parser.add_argument("--ridge", type=float, default=1e-8)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--factors", type=float, nargs="+", default=[1.0])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = vars(parser.parse_args(arguments))
    as_json = options.pop("json")
    result = compare(**options | {"factors": tuple(options["factors"])})
    if as_json:
        print(json.dumps(result))
        return
    print(f"ratio of eq. 3: {result['ratio']:.1f}")
    curves = [result[name]["suboptimality"] for name in ("plain", "preconditioned")]
    print(f"{'suboptimality':>14} {'plain':>8} {'k = ' + str(options['k']):>8}   (epochs)")
    for threshold in THRESHOLDS:
        reached = [epochs_to(curve, threshold) for curve in curves]
        print(f"{threshold:>14.0e} " + " ".join(f"{'-' if epoch is None else epoch:>8}" for epoch in reached))
    print(f"{'at the end':>14} " + " ".join(f"{curve[-1]:>8.1e}" for curve in curves))


if __name__ == "__main__":
    main()
