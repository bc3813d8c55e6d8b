"""Ridge regression by sketched preconditioned SVRG (Gonen, Orabona & Shalev-Shwartz 2016), as in its Figures 1 and 2.

    streamkern run pipelines/papers/svrg.py --set data=quadratic epochs=10
    python pipelines/papers/svrg.py --data quadratic --n 20000 --d 5000

The first trains one method. The second makes the figures: the ratio of eq. 3 for some ranks k, and the suboptimality
L(w) − min L after every epoch, in float64, of SVRG without a preconditioner and with one of rank k = 30, λ = 1e-8.

The data sets are the paper's synthetic matrices (n rows of d features; singular vectors uniform, the q-th singular
value 1/q or 1/q², rows normalised; y = ⟨w, x⟩ + noise of variance 0.1) and, in place of its digits 4 and 7 of MNIST,
classes 4 and 7 of Fashion-MNIST. The paper tunes the step of each method; here it is the measured one, times the best
of --factors.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import scipy.linalg
import scipy.sparse.linalg

import streamkern as sk
from streamkern.centers import CenterSet
from streamkern.data.targets import Continuous
from streamkern.kernels import Identity, Linear
from streamkern.papers.lanczos import speedup_ratio
from streamkern.papers.svrg import SAMPLINGS, SVRG
from streamkern.solvers import Problem, train

IMAGES = Path(__file__).parents[1] / "fashion_mnist.py"
DECAYS = {"linear": 1, "quadratic": 2}
THRESHOLDS = (1e-1, 1e-2, 5e-3, 2e-3, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
RANKS = (1, 10, 30, 100)


def pipeline(
    data: str = "linear",
    rows: int = 20_000,
    features: int = 5_000,
    k: int = 30,
    ridge: float = 1e-8,
    epochs: int = 10,
    batch: int | None = None,
    sampling: str = "importance",
    dtype: str = "float32",
    seed: int = 0,
) -> sk.Pipeline:
    """Settings.

    Args:
        data: linear, quadratic or fashion.
        rows: rows of a synthetic matrix.
        features: columns of a synthetic matrix.
        k: rank of the preconditioner; 0 for plain SVRG.
        ridge: weight of half the squared norm.
        epochs: outer loops.
        batch: rows of a step; what the measured spectrum asks for by default.
        sampling: importance, as the paper does; or uniform, for every row once a pass.
        dtype: of the streamed arithmetic.
        seed: seed of the matrix and of the order of rows.
    """
    if data not in (*DECAYS, "fashion"):
        raise sk.UsageError(f"The data are {data!r}.", where="data", expected=", ".join(DECAYS) + " or fashion")
    X, y = fashion() if data == "fashion" else synthetic(rows, features, DECAYS[data], seed)
    return sk.Pipeline(
        train=sk.from_arrays(X, y),
        features=Identity(),
        solver=SVRG(
            epochs, ridge, max(k, 1), batch, preconditioner="lanczos" if k else None, sampling=sampling
        ),
        task="regression",
        seed=seed,
        lanes=1,
        dtype=dtype,
    )  # fmt: skip


def synthetic(n: int, d: int, decay: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Rows, shape (n, d), n > d, float32, and targets, shape (n, 1), float64.

    The columns are those of the basis of right singular vectors. In another basis, drawn uniformly, every method here
    makes the same steps, and so do the normal numbers that it draws.
    """
    random = np.random.default_rng(seed)
    X = random.standard_normal((n, d), dtype=np.float32)
    # Orthonormal columns, uniformly distributed, by a Cholesky factor: the columns are far from dependent.
    triangle = np.linalg.cholesky((X.T @ X).astype(np.float64)).astype(np.float32)
    X = scipy.linalg.solve_triangular(triangle, X.T, lower=True, check_finite=False).T
    X *= np.arange(1, d + 1, dtype=np.float32) ** np.float32(-decay)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = X @ random.standard_normal((d, 1)).astype(np.float32) + np.sqrt(0.1) * random.standard_normal((n, 1))
    return X, np.asarray(y, dtype=np.float64)


def fashion() -> tuple[np.ndarray, np.ndarray]:
    """Images of classes 4 and 7, divided by their mean norm, and targets of -1 and 1."""
    X, y = stored(sk.load_pipeline(IMAGES, {"rows": "60_000", "noise": "0"}).train)
    keep = (y == 4) | (y == 7)
    X = X[keep].astype(np.float32)
    return X / np.linalg.norm(X, axis=1).mean(), np.where(y[keep] == 7, 1.0, -1.0)[:, None]


def stored(dataset: sk.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """All rows of a dataset's source, and their targets."""
    source = dataset.source
    chunks = [source.read(number) for number in range(len(source.bounds) - 1)]
    return np.concatenate([chunk.X for chunk in chunks]), np.concatenate([chunk.y for chunk in chunks])


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
    data: str = "linear",
    n: int = 2000,
    d: int = 400,
    k: int = 30,
    ridge: float = 1e-8,
    epochs: int = 10,
    batch: int | None = None,
    sampling: str = "importance",
    dtype: str = "float32",
    factors: tuple[float, ...] = (1.0,),
    seed: int = 0,
) -> dict[str, object]:
    """Suboptimality after every epoch of both methods, and the ratio of eq. 3 for some ranks.

    Args:
        data: linear, quadratic or fashion.
        n: rows of a synthetic matrix.
        d: columns of a synthetic matrix.
        k: rank of the preconditioner.
        ridge: λ.
        epochs: outer loops.
        batch: rows of a step; each method's own by default.
        sampling: importance or uniform.
        dtype: of the streamed arithmetic.
        factors: multiples of the measured step to try.
        seed: of the matrix and of the order of rows.
    """
    jobs = {
        name: pipeline(data, n, d, rank, ridge, epochs, batch, sampling, dtype, seed)
        for name, rank in (("plain", 0), ("preconditioned", k))
    }
    X, y = stored(jobs["plain"].train)  # both have the same
    H, moment = normal_equations(X, y)
    ranks = sorted(rank for rank in {*RANKS, k} if rank <= len(H) // 2)
    top = scipy.sparse.linalg.eigsh(H, ranks[-1], return_eigenvectors=False, v0=np.ones(len(H)))
    # Eq. 3 asks of the others for their sum alone.
    others = np.full(len(H) - len(top), (np.trace(H) - top.sum()) / (len(H) - len(top)))
    ratios = {rank: speedup_ratio(np.concatenate([top, others]), rank) for rank in ranks}
    H[np.diag_indices(len(H))] += ridge
    best = scipy.linalg.solve(H, moment, assume_a="pos")
    result: dict[str, object] = {"rows": len(X), "features": len(H), "k": k, "ratios": ratios}
    with sk.open_executor() as executor:
        for name, job in reversed(jobs.items()):
            problem = Problem(
                job.train, Continuous(np.zeros(1)), Linear(), CenterSet(X[:0], None), executor,
                dtype=np.dtype(dtype), seed=seed, lanes=job.lanes, features=job.features,
            )  # fmt: skip
            prepared = job.solver.prepare(problem)
            runs = [follow(name, problem, job.solver.setup(problem, prepared), H, best, factor) for factor in factors]
            result[name] = min(runs, key=lambda run: run["suboptimality"][-1])
    return result


def follow(
    name: str, problem: Problem, iteration: object, H: np.ndarray, best: np.ndarray, factor: float
) -> dict[str, object]:
    """Suboptimality ½ (w − w*)ᵀ H (w − w*) before the first epoch and after each; told as it goes."""
    step, seen = iteration.rate, []
    iteration.rate = lambda rows: factor * step(rows)

    def record(state: object) -> bool:
        off = iteration.weights(state).astype(np.float64) - best
        seen.append(0.5 * float(np.sum(off * (H @ off))))
        print(f"{name}, {factor:g} x step, epoch {len(seen) - 1}: {seen[-1]:.2e}", file=sys.stderr, flush=True)
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
    """Print the figures of one data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=(*DECAYS, "fashion"), default="linear")
    for name, default in (("n", 2000), ("d", 400), ("k", 30), ("epochs", 10), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--ridge", type=float, default=1e-8)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--sampling", choices=SAMPLINGS, default="importance")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float32")
    parser.add_argument("--factors", type=float, nargs="+", default=[1.0])
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    options = vars(parser.parse_args(arguments))
    as_json = options.pop("json")
    result = compare(**options | {"factors": tuple(options["factors"])})
    if as_json:
        print(json.dumps(result))
        return
    print(f"{result['rows']:,} x {result['features']:,}")
    print("ratio of eq. 3: " + ", ".join(f"{ratio:.4g} at k = {k}" for k, ratio in result["ratios"].items()))
    both = [result[name] for name in ("plain", "preconditioned")]
    for name, run in zip(("plain", f"k = {options['k']}"), both, strict=True):
        curve = " ".join(f"{value:.1e}" for value in run["suboptimality"])
        print(
            f"{name}: batch {run['batch']}, {run['factor']:g} x step {run['step']:.3g}, {run['seconds']:.0f} s: {curve}"
        )
    print(f"{'suboptimality':>14} {'plain':>8} {'k = ' + str(options['k']):>8}   (epochs)")
    for threshold in THRESHOLDS:
        reached = [epochs_to(run["suboptimality"], threshold) for run in both]
        print(f"{threshold:>14.0e} " + " ".join(f"{'-' if epoch is None else epoch:>8}" for epoch in reached))
    last = both[0]["suboptimality"][-1]
    print(f"{last:>14.1e} {options['epochs']:>8} {epochs_to(both[1]['suboptimality'], last) or '-':>8}")


if __name__ == "__main__":
    main()
