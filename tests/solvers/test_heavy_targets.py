"""Targets of which a few are far larger than the rest: a batch that has one of them is not a step that diverges."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.centers import CenterSet
from streamkern.data import from_arrays
from streamkern.execute import ThreadsExecutor
from streamkern.execute.dask_executor import local_processes_executor
from streamkern.solvers.loop import train
from streamkern.testing.solver import small_problem


def heavy(n: int = 1500, seed: int = 2) -> tuple[Any, Any]:
    """Rows whose targets have the tails of Cauchy's distribution."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, X[:, 0] + rng.standard_cauchy(n)


SOLVERS: dict[str, Any] = {
    "exact": sk.EigenPro(epochs=3, batch=64, projection="exact"),
    "inexact": sk.EigenPro(epochs=3, batch=64, projection="inexact"),
    "delayed": sk.EigenPro(epochs=3, batch=64, projection="delayed"),
    "every row": sk.EigenPro2(epochs=3, batch=64),
    "features": sk.SGD(epochs=3, batch=64),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_large_targets_of_a_batch_are_no_divergence(name: str, weighted: bool):
    X, y = heavy()
    data = from_arrays(X, y, sample_weight=np.random.default_rng(0).uniform(0.5, 2.0, len(X)) if weighted else None)
    losses: list[float] = []
    with ThreadsExecutor(2) as executor:
        problem = small_problem(executor, X, y, data=data, kernel=sk.Laplace(2.0))
        if name == "features":
            problem = small_problem(executor, X, y, data=data, features=sk.RandomFourier(sk.Gaussian(2.0), 50))
        if name == "every row":
            problem = replace(problem, centers=CenterSet(X, np.arange(len(X))))
        outcome = train(problem, SOLVERS[name].setup(problem), on_step=lambda progress: losses.append(progress.loss))
    assert outcome.failure is None
    assert np.isfinite(outcome.weights).all()
    assert max(losses) > 2 * losses[0]  # there was something to be taken for a divergence


@pytest.mark.slow
def test_a_step_too_long_is_still_a_divergence_and_workers_see_the_same():
    X, y = heavy()
    found = []
    with ThreadsExecutor(2) as threads, local_processes_executor(2) as cluster:
        for executor in (threads, cluster):
            problem = small_problem(executor, X, y, kernel=sk.Laplace(2.0))
            too_long = sk.EigenPro(epochs=3, batch=64, step=1e6)
            failure = train(problem, too_long.setup(problem)).failure
            assert failure is not None
            assert failure.kind in ("diverged", "non-finite")
            found.append(train(problem, SOLVERS["exact"].setup(problem)).weights)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("seed", range(3))
def test_an_estimator_trains_on_them(seed: int):
    X, y = heavy(3000, seed)
    model = sk.KernelRegressor("laplace", centers=500, solver=sk.EigenPro(epochs=3), memory="4GiB").fit(X, y)
    assert np.isfinite(model.predict(X)).all()
