"""SGD's schedules, progress, and every solver through a run."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.execute.base import Executor
from streamkern.formats import ArraySource
from streamkern.precondition.nystrom import StepSize
from streamkern.solvers import Progress, train
from streamkern.testing.solver import small_problem


def rows(n: int = 1500, d: int = 4) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1) + 0.05 * rng.standard_normal((n, 2))


def test_schedules_give_the_steps_they_name():
    size = StepSize(1.0, 0.1, 1.0)
    constant, power = sk.SGD(step=0.5), sk.SGD(step=0.5, schedule="power", theta=0.5)
    pegasos, stages = sk.SGD(schedule="pegasos", ridge=0.1), sk.SGD(stages=((2, 0.5), (3, 0.05)))
    assert [constant.rate(size, 1, t, 0) for t in (1, 4)] == [0.5, 0.5]
    assert [power.rate(size, 1, t, 0) for t in (1, 4)] == [0.5, 0.25]
    assert [pegasos.rate(size, 1, t, 0) for t in (1, 100)] == [size.step(1), pytest.approx(0.1)]
    assert [stages.rate(size, 1, 1, pass_) for pass_ in (0, 1, 2, 4, 9)] == [0.5, 0.5, 0.05, 0.05, 0.05]


def test_the_regimes_of_corollary_1():
    regimes = [sk.corollary_1(i, 10_000) for i in (1, 2, 3, 4)]
    assert [r.batch for r in regimes] == [1, 1, 100, 10_000]
    assert [r.epochs for r in regimes] == [100, 1, 1, 100]
    assert regimes[0].step == pytest.approx(regimes[1].step / 100)
    assert sk.default_features(10_000) == round(100 * np.log(10_000))
    with pytest.raises(sk.UsageError, match="regime"):
        sk.corollary_1(5, 100)


@pytest.mark.slow
@pytest.mark.parametrize(
    "solver", [sk.SGD(epochs=3), sk.GradientDescent(epochs=3), sk.Direct(1e-6), sk.SVRG(epochs=2, ridge=1e-3)], ids=str
)
def test_progress_ends_at_the_rows_it_announced(solver: Any, executor: Executor):
    X, Y = rows()
    seen: list[Progress] = []
    problem = small_problem(executor, X, Y, data=sk.Dataset(ArraySource(X, Y, chunk_rows=333)), features=sk.Identity())
    train(problem, solver.setup(problem), on_step=seen.append)
    assert seen[-1].rows == seen[-1].total_rows
    assert all(a.rows <= b.rows for a, b in itertools.pairwise(seen))


@pytest.mark.slow
@pytest.mark.parametrize(
    "parts",
    [
        {"solver": sk.Direct(1e-6), "centers": sk.Uniform(60)},
        {"solver": sk.Falkon(), "centers": sk.RPCholesky(60, sk.Gaussian(2.0))},
        {"solver": sk.EigenPro(epochs=5), "centers": sk.KMeans(60)},
        {"solver": sk.EigenPro1(epochs=5, q=20), "features": sk.RandomFourier(sk.Gaussian(2.0), 80)},
        {"solver": sk.SGD(epochs=10), "features": sk.Nystrom(sk.Gaussian(2.0)), "centers": sk.Uniform(60)},
        {"solver": sk.SVRG(epochs=5, ridge=1e-4, k=10), "features": sk.ReLUFeatures(80)},
        {"solver": sk.GradientDescent(epochs=40), "features": sk.Identity()},
    ],
    ids=lambda parts: "-".join(type(part).__name__ for part in parts.values()),
)
def test_every_solver_runs_is_saved_and_predicts(parts: dict[str, Any], tmp_path: Path):
    X, Y = rows()
    train_set, test_set = sk.from_arrays(X, Y[:, 0] > 0).split(test=0.2)
    pipeline = sk.Pipeline(train=train_set, test=test_set, kernel=sk.Gaussian(2.0), **parts)
    result = sk.run(pipeline, tmp_path / "run")
    assert result["metrics"]["test"]["accuracy"] > 0.9
    model = sk.load_model(tmp_path / "run/model.zarr")
    assert model.weights_sha256 == result["weights_sha256"]
    assert model.score(test_set) == result["metrics"]["test"]
    again = sk.run(pipeline, tmp_path / "run")
    assert [stage["name"] for stage in again["stages"] if not stage["cached"]] == ["save"]
