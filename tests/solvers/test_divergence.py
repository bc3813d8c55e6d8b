"""A step of the solver's own choice that diverges is halved, and a few far larger targets are no divergence."""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.centers import CenterSet
from streamkern.defaults import MAX_HALVINGS
from streamkern.errors import NumericalError
from streamkern.execute import ThreadsExecutor
from streamkern.execute.dask_executor import local_processes_executor
from streamkern.precondition.nystrom import StepSize
from streamkern.runs import load_pipeline, run
from streamkern.solvers.loop import train, train_stably
from streamkern.testing.solver import small_data, small_problem
from tests.slow_solver import SLOW


def too_long(solver: Any, times: float) -> Any:
    """The same solver, whose measurement of the step is off by a factor."""

    class TooLong(type(solver)):
        def prepare(self, problem: Any) -> Any:
            found = super().prepare(problem)
            beta, top, peak = found.size.beta / times, found.size.top / times, found.size.peak / times
            return replace(found, size=StepSize(beta, top, peak))

    return TooLong(**vars(solver))


SOLVERS: dict[str, Any] = {
    "exact": sk.EigenPro(epochs=8, batch=100, projection="exact"),
    "inexact": sk.EigenPro(epochs=8, batch=100, projection="inexact"),
    "delayed": sk.EigenPro(epochs=8, batch=16, projection="delayed"),
    "every row": sk.EigenPro2(epochs=8, batch=100),
    "features": sk.EigenPro1(epochs=8, q=10, batch=100),
}


def posed(name: str, executor: Any, X: Any, y: Any, **given: Any) -> Any:
    """The problem of a solver of ``SOLVERS``."""
    problem = small_problem(executor, X, y, **given)
    if name == "features":
        return replace(problem, features=sk.RandomFourier(sk.Gaussian(2.0), 50))
    return replace(problem, centers=CenterSet(X, np.arange(len(X)))) if name == "every row" else problem


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_step_is_halved_until_training_is_stable(name: str, threads: int):
    plain = SOLVERS[name]
    solver = too_long(plain, 6.0)
    with ThreadsExecutor(threads) as executor:
        problem = posed(name, executor, *small_data())
        said: list[str] = []
        first = solver.setup(problem)
        outcome, last = train_stably(problem, solver, first, lambda _, message: said.append(message))
        assert outcome.failure is None
        halvings = last.report["halvings"]
        assert 1 <= halvings <= MAX_HALVINGS
        assert len(said) == halvings
        assert "begins anew with half the step" in said[-1]
        assert last.report["step"] == first.report["step"] / 2**halvings
        # From the start, with that step: the same weights as if it had been asked for.
        size = first.prepared.size
        asked = replace(first.prepared, size=replace(size, halvings=halvings))
        direct = train(problem, solver.setup(problem, asked))
        np.testing.assert_array_equal(outcome.weights, direct.weights)
        # Not far from what the step that is measured rightly leads to, in as many passes.
        right = train(problem, plain.setup(problem))
        assert outcome.history[-1]["loss"] <= 2.0 * right.history[-1]["loss"]


def test_a_step_that_was_asked_for_is_left_alone(executor):
    problem = small_problem(executor)
    step = sk.EigenPro().setup(problem).report["step"]
    solver = sk.EigenPro(step=50 * step, epochs=50)
    outcome, _ = train_stably(problem, solver, solver.setup(problem), lambda *_: pytest.fail("began anew"))
    assert "step=None" in outcome.failure.remedy


def test_after_the_last_halving_the_error_says_what_was_tried():
    X, y = small_data()
    solver = too_long(sk.EigenPro(epochs=5), 1e4)
    model = sk.KernelRegressor(kernel=sk.Laplace(3.0), centers=60, solver=solver)
    with pytest.warns(UserWarning, match="half the step"), pytest.raises(NumericalError, match="halved") as raised:
        model.fit(X, y)
    assert "Direct()" in str(raised.value)


@pytest.mark.slow
def test_a_few_rows_far_from_a_dense_rest():
    """None of them is among the rows that are measured, and each is a center: k_P(x, x) is 1 there, 0.25 elsewhere."""
    rng = np.random.default_rng(0)
    n, d = 12_000, 10
    X = rng.normal(size=(n, d)).astype(np.float32) * 0.15
    far = rng.choice(n, 4, replace=False)
    X[far] = rng.normal(size=(4, d)) * 30
    y = np.sin(5 * X[:, 0]) + 0.1 * rng.normal(size=n)
    y[far] += 3
    model = sk.KernelRegressor(
        kernel=sk.Laplace(2.0), centers=sk.AllRows(), solver=sk.EigenPro2(epochs=5), preprocess=None, seed=0
    )
    with pytest.warns(UserWarning, match="half the step"):
        model.fit(X, y)
    assert model.result_.report["peak"] < 0.5
    assert model.result_.report["halvings"] == 1
    np.testing.assert_allclose(model.predict(X[far]), y[far], atol=1.5)  # 20 off before, and growing


PIPELINE = """
from dataclasses import replace


class TooLong(Slow):
    def prepare(self, problem):
        found = super().prepare(problem)
        size = found.size
        return replace(found, size=replace(size, beta=size.beta / 4, top=size.top / 4, peak=size.peak / 4))


def pipeline() -> sk.Pipeline:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 6)).astype(np.float32)
    data = sk.from_arrays(X, np.sin(X[:, 0]) + X[:, 1])
    return sk.Pipeline(data, sk.Laplace(3.0), sk.Uniform(100), TooLong(epochs=6, batch=40), task="regression")
"""


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True], ids=["", "what was prepared is lost"])
def test_kill_9_after_a_halving(tmp_path: Path, command: Callable[..., Any], lost: bool):
    file = tmp_path / "long.py"
    file.write_text(SLOW + PIPELINE)
    expected = run(load_pipeline(file), tmp_path / "whole")
    folder = tmp_path / "run"
    log = folder / "events.jsonl"
    process = command("run", file, "--run-dir", folder, "--checkpoint-seconds", "0", PAUSE="0.05")
    # The first of these may be one that was being written when the step was halved.
    while (log.read_text() if log.exists() else "").partition('"halvings"')[2].count('"checkpoint"') < 2:
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(0.2)
    process.kill()
    process.communicate()
    assert not (folder / "result.json").exists() or json.loads((folder / "result.json").read_text())["status"] != "done"
    if lost:
        (prepared,) = folder.glob("checkpoints/*/prepared")
        for part in sorted(prepared.rglob("*"), reverse=True):
            part.unlink() if part.is_file() else part.rmdir()
    result = run(load_pipeline(file), folder)
    assert result["resumed_rows"] > 0
    assert result["weights_sha256"] == expected["weights_sha256"]
    warned = [json.loads(line) for line in log.read_text().splitlines() if '"warning"' in line]
    assert any("half the step" in event["message"] for event in warned)


# ----------------------------------------------------------------- targets of which a few are far larger than the rest


def heavy(n: int = 1500, seed: int = 2) -> tuple[Any, Any]:
    """Rows whose targets have the tails of Cauchy's distribution."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 4))
    return X, X[:, 0] + rng.standard_cauchy(n)


def short(name: str) -> Any:
    return replace(SOLVERS[name], epochs=3, batch=64)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_large_targets_of_a_batch_are_no_divergence(name: str, weighted: bool, executor):
    X, y = heavy()
    data = sk.from_arrays(X, y, sample_weight=np.random.default_rng(0).uniform(0.5, 2.0, len(X)) if weighted else None)
    losses: list[float] = []
    problem = posed(name, executor, X, y, data=data, kernel=sk.Laplace(2.0))
    iteration = (sk.SGD(epochs=3, batch=64) if name == "features" else short(name)).setup(problem)
    outcome = train(problem, iteration, on_step=lambda progress: losses.append(progress.loss))
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
            assert failure.kind in ("diverged", "non-finite")
            found.append(train(problem, short("exact").setup(problem)).weights)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("seed", range(3))
def test_an_estimator_trains_on_them(seed: int):
    X, y = heavy(3000, seed)
    model = sk.KernelRegressor(sk.Laplace("median"), centers=500, solver=sk.EigenPro(epochs=3), memory="4GiB").fit(X, y)
    assert np.isfinite(model.predict(X)).all()
