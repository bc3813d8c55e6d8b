"""Digests of weights, to compare two versions of the library on one machine: a change of code is to change none.

    python tests/benchmarks/bits.py before.json          # on one version
    python tests/benchmarks/bits.py after.json before.json   # on the other: prints what differs, status 1 if anything

The pipelines digits, regression and (where its images are installed) fashion_mnist with 1,000 centers, every row of the
solvers' conformance table in both dtypes, weighted rows, and what only large problems reach: eigenpairs from random
vectors, inexact and delayed projection of many centers, importance sampling, Nyström features, sums and products of
kernels.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import streamkern as sk  # noqa: E402
from streamkern.execute import ThreadsExecutor  # noqa: E402
from streamkern.kernels import Nystrom, RandomFourier  # noqa: E402
from tests.solvers.test_conformance import CASES, posed, solve, weighed  # noqa: E402


def digest(weights: Any) -> str:
    """SHA-256 of an array's dtype, shape and bytes."""
    array = np.ascontiguousarray(weights)
    return hashlib.sha256(f"{array.dtype} {array.shape}".encode() + array.tobytes()).hexdigest()[:16]


def conformance() -> dict[str, str]:
    """Weights of each row of the conformance table."""
    found = {}
    with ThreadsExecutor(2) as executor:
        for name, case in CASES.items():
            solver = case.solver if case.step is None else replace(case.solver, epochs=3)  # type: ignore[type-var]
            for dtype in (np.float32, np.float64):
                problem = posed(case, executor, n=300, chunk=70, dtype=dtype)
                found[f"{name}, {dtype.__name__}"] = digest(solve(problem, solver).weights)
                w = np.linspace(0.5, 2.0, 300)
                found[f"{name}, weighted, {dtype.__name__}"] = digest(solve(weighed(problem, w), solver).weights)
    return found


def larger() -> dict[str, str]:
    """Weights of estimators on rows enough for a preconditioner of a subsample."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((6000, 18)).astype(np.float32)
    y = np.sin(X[:, :3]) @ rng.standard_normal((3, 2)) + 0.1 * rng.standard_normal((6000, 2))
    kernel = sk.Laplace(6.0)
    cases: dict[str, dict[str, Any]] = {
        "exact, p = 2500": {"centers": sk.Uniform(2500), "solver": sk.EigenPro(epochs=2)},
        "inexact": {"centers": sk.Uniform(2500), "solver": sk.EigenPro(epochs=2, projection="inexact")},
        "inexact, products": {
            "centers": sk.Uniform(700),
            "solver": sk.EigenPro(projection="inexact", projection_products=2),
        },
        "delayed": {"centers": sk.Uniform(2500), "solver": sk.EigenPro(epochs=2, projection="delayed")},
        "EigenPro2": {"centers": sk.AllRows(), "solver": sk.EigenPro2(epochs=1)},
        "EigenPro1, waves": {"features": RandomFourier(sk.Gaussian(4.0), 600), "solver": sk.EigenPro1(epochs=2)},
        "SVRG, importance": {"centers": sk.Uniform(300), "solver": sk.SVRG(epochs=1, sampling="importance")},
        "SGD, Nystrom": {"features": Nystrom(kernel), "centers": sk.Uniform(300), "solver": sk.SGD(epochs=2)},
        "Direct": {"centers": sk.Uniform(900), "solver": sk.Direct(1e-6)},
        "Falkon": {"centers": sk.Uniform(900), "solver": sk.Falkon(epochs=6)},
        "RPCholesky": {"centers": sk.RPCholesky(300, kernel), "solver": sk.Falkon(epochs=3)},
        "KMeans": {"centers": sk.KMeans(100), "solver": sk.Direct()},
        "sum of kernels": {
            "kernel": kernel + 0.5 * sk.Gaussian(3.0) * sk.Polynomial(2),
            "centers": sk.Uniform(400),
            "solver": sk.Direct(1e-4),
        },
        "auto": {"centers": sk.Uniform(500)},
    }
    found = {}
    for name, case in cases.items():
        if "features" not in case:
            case.setdefault("kernel", kernel)
        for dtype in ("float32", "float64"):
            if name == "EigenPro2" and dtype == "float64":
                continue
            made = sk.Pipeline(sk.from_arrays(X, y), task="regression", dtype=dtype, **case)
            found[f"larger: {name}, {dtype}"] = ran(made)
    return found


def ran(made: sk.Pipeline) -> str:
    """``weights_sha256`` of a run."""
    with tempfile.TemporaryDirectory() as folder:
        sk.run(made, run_dir=Path(folder) / "run", memory="4GiB", threads=2)
        return str(json.loads((Path(folder) / "run/result.json").read_text())["weights_sha256"])[:16]


def pipelines() -> dict[str, str]:
    """``weights_sha256`` of the pipelines."""
    found = {}
    cases: dict[str, dict[str, str]] = {"digits": {}, "regression": {}}
    if Path("/usr/share/datasets/fashion-mnist").exists():
        cases["fashion_mnist"] = {"centers": "1000", "rows": "60000"}
    for name, settings in cases.items():
        found[name] = ran(sk.load_pipeline(ROOT / f"pipelines/{name}.py", settings))
    return found


def main() -> int:
    """Write digests, and compare them with those of a file."""
    found = {**pipelines(), **conformance(), **larger()}
    Path(sys.argv[1]).write_text(json.dumps(found, indent=1), encoding="utf-8")
    if len(sys.argv) < 3:
        return 0
    before = json.loads(Path(sys.argv[2]).read_text(encoding="utf-8"))
    differing = [name for name in before if found.get(name) != before[name]]
    print(f"{len(before)} digests, {len(differing)} differ", *differing, sep="\n")
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main())
