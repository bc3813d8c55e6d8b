"""Figure 1 of "The Directional Bias Helps SGD to Generalize in Kernel Regression" (Luo, Huo & Mei 2022).

Ten training points, five test points, the polynomial kernel (⟨x, z⟩ + 0.01)², and the four schemes of appendix H.1: SGD
and gradient descent, each with moderate steps first or with small ones throughout.

    python pipelines/papers/directional_bias.py --draws 100

prints medians over draws, and paired differences of SGD from gradient descent with 95% intervals. Beyond the figure,
each draw has 2,000 more test points, gradient descent that stops at SGD's training loss, and SGD with the steps of
Theorem 1, which H.1's are far below: η_1 = 2/λ_1², the least that the theorem takes, then η_2 = 1/(2 λ_1²).
"""

from __future__ import annotations

import argparse
from typing import NamedTuple

import numpy as np

import streamkern as sk
from streamkern.centers import CenterSet
from streamkern.data.targets import Continuous
from streamkern.execute import ThreadsExecutor
from streamkern.fitting.stages import require_success
from streamkern.rng import generator
from streamkern.runs.solution_spectrum import rayleigh_quotient
from streamkern.solvers import Problem, train

KERNEL = sk.Polynomial(degree=2, gamma=1.0, offset=0.01)

SGD, SMALL_SGD, GD, SMALL_GD = "SGD, moderate step", "SGD, small step", "GD, moderate step", "GD, small step"
GD_SAME = "GD to the loss of SGD"
THEOREM, GD_THEOREM = "SGD, steps of Theorem 1", "GD to the loss of that"

SCHEMES = {
    SGD: sk.SGD(batch=1, epochs=105, stages=((5, 0.1), (100, 0.01)), replacement=True),
    SMALL_SGD: sk.SGD(batch=1, epochs=105, stages=((105, 0.01),), replacement=True),
    GD: sk.SGD(batch=10, epochs=1050, stages=((50, 0.5), (1000, 0.05))),
    SMALL_GD: sk.SGD(batch=10, epochs=1050, stages=((1050, 0.05),)),
}
"""Steps as in appendix H.1; a pass is ten steps of SGD and one of gradient descent."""


class Ending(NamedTuple):
    """Where a scheme ends, b being α − α̂.

    Attributes:
        quotient: ‖K b‖²/‖b‖².
        loss: ‖K b‖²/(2 n), the training loss.
        error: mean square error on five test points.
        expected_error: the same on 2,000.
        excess: bᵀ K b over the least at this training loss, ‖K b‖²/γ_1 (Theorem 4).
    """

    quotient: float
    loss: float
    error: float
    expected_error: float
    excess: float


def points(n: int, draw: int, part: str) -> tuple[np.ndarray, np.ndarray]:
    """Rows with squared norm in [0.49, 1], and targets Σ_j sin(x_j) + noise of variance 0.01."""
    rng = generator("directional bias", part, draw)
    X = rng.standard_normal((n, 100))
    X *= np.sqrt(rng.uniform(0.49, 1.0, n) / np.sum(X**2, axis=1))[:, None]
    return X, np.sin(X).sum(axis=1) + 0.1 * rng.standard_normal(n)


def run(draw: int) -> dict[str, Ending]:
    """Where each scheme ends on a draw of points, which also fixes the order of steps."""
    (X, y), (X_test, y_test), (X_more, y_more) = (
        points(n, draw, part) for n, part in ((10, "train"), (5, "test"), (2000, "more"))
    )
    K = KERNEL(X)
    exact = np.linalg.solve(K, y)
    found: dict[str, Ending] = {}
    with ThreadsExecutor(1) as executor:
        problem = Problem(
            sk.from_arrays(X, y), Continuous(np.zeros(1)), KERNEL, CenterSet(X, np.arange(10)), executor,
            dtype=np.dtype(np.float64), seed=draw, lanes=1,
        )  # fmt: skip

        def loss(alpha: np.ndarray) -> float:
            return float(np.mean((K @ alpha.reshape(-1) - y) ** 2)) / 2

        def follow(name: str, solver: sk.SGD | sk.GradientDescent, least: float = 0.0) -> None:
            iteration = solver.setup(problem)
            iteration.finished = lambda state: loss(iteration.weights(state)) <= least
            outcome = train(problem, iteration)
            require_success(outcome)
            alpha = outcome.weights[:, 0]
            b = alpha - exact
            error, more = (np.mean((KERNEL(Z, X) @ alpha - t) ** 2) for Z, t in ((X_test, y_test), (X_more, y_more)))
            excess = b @ K @ b * np.linalg.norm(K, 2) / np.sum((K @ b) ** 2)
            found[name] = Ending(rayleigh_quotient(K, b), loss(alpha), float(error), float(more), float(excess))

        for name, solver in SCHEMES.items():
            follow(name, solver)
        follow(GD_SAME, sk.GradientDescent(epochs=20_000, step=0.5), found[SGD].loss)
        # A step on row i alone multiplies its residual by 1 − η ‖K_i‖², and ‖K_i‖² is λ_i² where K is near diagonal.
        largest = float(np.max(np.sum(K**2, axis=0)))
        follow(THEOREM, sk.SGD(batch=1, epochs=45, stages=((40, 2 / largest), (5, 0.5 / largest)), replacement=True))
        follow(GD_THEOREM, sk.GradientDescent(epochs=20_000, step=5.0), found[THEOREM].loss)
    return found


def compare(runs: list[dict[str, Ending]], one: str, other: str) -> dict[str, tuple[float, float, float]]:
    """Paired differences of ``one`` from ``other``: mean, half a 95% interval, and share of draws above zero."""
    differences = np.array([np.subtract(found[one], found[other]) for found in runs])
    half = 1.96 * differences.std(axis=0, ddof=1) / np.sqrt(len(runs))
    share = np.mean(differences > 0, axis=0)
    return {
        name: (float(differences[:, i].mean()), float(half[i]), float(share[i]))
        for i, name in enumerate(Ending._fields)
    }


def main(arguments: list[str] | None = None) -> None:
    """Print medians over draws, and paired differences."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=100)
    options = parser.parse_args(arguments)
    runs = [run(draw) for draw in range(options.draws)]
    titles = ("quotient", "training loss", "test error, 5", "test error, 2,000", "Δ/Δ*")
    print(f"{'medians':<24}" + "".join(f"{title:>19}" for title in titles))
    for name in (*SCHEMES, GD_SAME, THEOREM, GD_THEOREM):
        medians = np.median([found[name] for found in runs], axis=0)
        print(f"{name:<24}" + "".join(f"{value:>19.4g}" for value in medians))
    for one, other in ((SGD, GD), (SGD, SMALL_GD), (SGD, GD_SAME), (THEOREM, GD_THEOREM)):
        print(f"\n{one} less {other}")
        for title, (mean, half, share) in zip(titles, compare(runs, one, other).values(), strict=True):
            print(f"  {title:<18} {mean:>9.4f} ± {half:.4f}   larger in {share:.0%} of draws")


if __name__ == "__main__":
    main()
