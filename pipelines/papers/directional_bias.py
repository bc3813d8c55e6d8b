"""Figure 1 of "The Directional Bias Helps SGD to Generalize in Kernel Regression" (Luo, Huo & Mei 2022).

Ten training points, the polynomial kernel (⟨x, z⟩ + 0.01)², and four schemes: SGD and gradient descent, each with small
steps throughout or moderate ones first (appendix H.1). Prints, over seeds, the Rayleigh quotient of α − α̂ at the end,
the training loss, and the error on five test points.

    python pipelines/papers/directional_bias.py [--seeds 20]
"""

from __future__ import annotations

import argparse

import numpy as np

import streamkern as sk
from streamkern.centers import CenterSet
from streamkern.data.targets import Continuous
from streamkern.execute import ThreadsExecutor
from streamkern.rng import generator
from streamkern.solvers import Problem, train
from streamkern.solvers.diagnostics import rayleigh_quotient

KERNEL = sk.Polynomial(degree=2, gamma=1.0, offset=0.01)

SCHEMES = {
    "SGD, moderate step": sk.SGD(batch=1, epochs=105, stages=((5, 0.1), (100, 0.01))),
    "SGD, small step": sk.SGD(batch=1, epochs=105, stages=((105, 0.01),)),
    "GD, moderate step": sk.SGD(batch=10, epochs=1050, stages=((50, 0.5), (1000, 0.05))),
    "GD, small step": sk.SGD(batch=10, epochs=1050, stages=((1050, 0.05),)),
}
"""Steps as in appendix H.1; a pass is ten steps of SGD and one of gradient descent."""


def points(n: int, seed: int, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows with squared norm in [0.49, 1], and targets Σ_j sin(x_j) + noise of variance 0.01."""
    rng = generator("directional bias", part, seed)
    X = rng.standard_normal((n, 100))
    X *= np.sqrt(rng.uniform(0.49, 1.0, n) / np.sum(X**2, axis=1))[:, None]
    return X, np.sin(X).sum(axis=1) + 0.1 * rng.standard_normal(n)


def run(seed: int) -> dict[str, tuple[float, float, float]]:
    """Each scheme's Rayleigh quotient, training loss and test error."""
    (X, y), (X_test, y_test) = points(10, seed, "train"), points(5, seed, "test")
    K = KERNEL(X)
    exact = np.linalg.solve(K, y)
    results = {}
    with ThreadsExecutor(1) as executor:
        for name, scheme in SCHEMES.items():
            problem = Problem(
                sk.from_arrays(X, y), Continuous(np.zeros(1)), KERNEL, CenterSet(X, np.arange(10)), executor,
                dtype=np.dtype(np.float64), seed=seed, lanes=1,
            )  # fmt: skip
            outcome = train(problem, scheme.setup(problem))
            alpha = outcome.weights[:, 0]
            results[name] = (
                rayleigh_quotient(K, alpha - exact),
                float(np.mean((K @ alpha - y) ** 2)) / 2,
                float(np.mean((KERNEL(X_test, X) @ alpha - y_test) ** 2)),
            )
    return results


def main() -> None:
    """Print medians over seeds, and how often SGD with a moderate step is ahead of gradient descent."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args()
    runs = [run(seed) for seed in range(options.seeds)]
    for name in SCHEMES:
        quotient, loss, error = (np.median([r[name][i] for r in runs]) for i in range(3))
        print(f"{name:<20} Rayleigh quotient {quotient:8.4f}   training loss {loss:9.2e}   test error {error:8.4f}")
    for other in ("GD, moderate step", "GD, small step"):
        ours = "SGD, moderate step"
        quotient = np.mean([r[ours][0] > r[other][0] for r in runs])
        error = np.mean([r[ours][2] < r[other][2] for r in runs])
        print(f"{ours} against {other}: larger quotient in {quotient:.0%} of seeds, lower test error in {error:.0%}")


if __name__ == "__main__":
    main()
