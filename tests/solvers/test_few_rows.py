"""The kernel and the ridge of few rows, by the errors of rows that are left out one at a time."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

import streamkern as sk
from streamkern.calibration.probabilities import calibrated_losses
from streamkern.costs.dry_run import CostEstimate, ProblemSize, nominal_prices
from streamkern.cpu import default_engine
from streamkern.selection.kernel_search import search_for
from streamkern.selection.learned_metric import AGOP, Rounds
from streamkern.solvers import train
from tests.problems import drawn, posed

N = 60


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_round_is_compared_by_what_direct_says_of_rows_left_out(task: str, weighted: bool, executor):
    """Weights of rows and equal rows, too: of equal rows one is left out."""
    X, y, w, encoding = drawn(task, weighted, N)
    X[-5:] = X[:5]
    given = {"kernel": sk.Laplace(2.0), "centers": np.random.default_rng(3).permutation(N), "encoding": encoding}
    problem = posed(executor, X, y, w, **given, all_rows_are_centers=True)
    rounds = Rounds.of(AGOP(rows=N, centers=N), problem.kernel, problem, 0.0, all_rows_are_centers=True)
    made = replace(rounds, ridges=(1e-3,)).plain()
    found = train(problem, sk.Direct(ridge=1e-3).setup(problem)).out_of_sample
    wide = problem.full_rows(np.arange(N))[0]
    truth = np.eye(3)[found.y] if task == "classification" else found.y
    mass = np.ones(N) if w is None else found.w
    expected = np.average(np.square(found.outputs - truth).mean(axis=1), weights=mass)
    assert made.mse == pytest.approx(expected, rel=1e-6)
    if task == "classification":
        losses = calibrated_losses(found.outputs, found.y, mass, default_engine())
        expected = np.average(losses, weights=mass)
    assert made.error == pytest.approx(expected, rel=1e-6)
    apart = np.abs(wide[:, None] - wide[None]).sum(axis=2)
    v = np.ones(N) if w is None else w
    assert rounds.span == pytest.approx(v @ apart @ v / v.sum() ** 2)


def test_rows_of_weight_0_are_no_rows_and_few_distinct_rows_are_learned():
    rng = np.random.default_rng(3)
    X, y, w = rng.normal(size=(80, 3)), rng.normal(size=80), rng.integers(0, 3, 80)
    y += 2 * X[:, 0]
    one, other = (
        sk.KernelRegressor(memory="4GiB").fit(X, values, sample_weight=w).predict(X)
        for values in (y, np.where(w > 0, y, 1.0))
    )
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    kinds = rng.integers(0, 6, 60)
    assert sk.KernelClassifier(memory="4GiB").fit(kinds[:, None] / 3.0, kinds).score(kinds[:, None] / 3.0, kinds) == 1


@pytest.mark.slow
def test_a_small_table_has_a_ridge_and_noise_a_large_one():
    X, y = load_diabetes(return_X_y=True)
    better = []
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(X))
        train, test = order[:300], order[300:]
        chosen = sk.KernelRegressor(memory="4GiB").fit(X[train], y[train])
        plain = sk.KernelRegressor(sk.Laplace(0.215), memory="4GiB").fit(X[train], y[train])
        better.append(chosen.score(X[test], y[test]) - plain.score(X[test], y[test]))
        assert chosen.result_.report["ridge"] >= 1e-5
    assert np.mean(better) > 0.05
    assert min(better) > 0
    assert set(np.argsort(chosen.feature_importances_)[-2:]) == {2, 8}
    assert "left out one at a time" in chosen.result_.report["kernel"]["reason"]
    rng = np.random.default_rng(0)
    noise = sk.KernelRegressor(memory="4GiB").fit(rng.normal(size=(300, 5)), rng.normal(size=300))
    assert noise.score(rng.normal(size=(1000, 5)), rng.normal(size=1000)) > -0.1
    assert noise.result_.report["ridge"] >= 0.01


@pytest.mark.slow
def test_any_threads_choose_the_same_and_a_given_kernel_stays():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 4))
    y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=200)
    one, three = (sk.KernelRegressor(memory="4GiB", threads=threads).fit(X, y) for threads in (1, 3))
    assert one.model_.weights_sha256 == three.model_.weights_sha256
    assert one.result_.report["kernel"] == three.result_.report["kernel"]
    assert {trial["kernel"].get("norm", 2) for trial in one.result_.report["kernel"]["trials"]} == {1, 2}
    assert "kernel" not in sk.KernelRegressor(sk.Laplace("median"), memory="4GiB").fit(X, y).result_.report
    assert sk.KernelRegressor(memory="4GiB", solver=sk.Direct(0.02)).fit(X, y).result_.report["ridge"] == 0.02


def test_the_plan_says_what_is_tried_and_bounds_its_memory():
    size = ProblemSize(300, 300, 8, 3, slots=2)
    search = search_for(CostEstimate(sk.Direct(), size), 300, 1 << 30)
    assert (search.leave_one_out, search.centers, search.fits, search.kinds) == (True, 300, 14, ())
    bill = search.cost_estimate(size, 300)
    assert bill.work.priced(nominal_prices(8)) > 0
    assert bill.memory > 3 * 8 * 300**2
    assert search_for(CostEstimate(sk.Direct(), size), 300, 16 << 20) is None  # no eighth of so small a budget
