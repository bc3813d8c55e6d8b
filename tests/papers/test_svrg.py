"""SVRG, plain and preconditioned, against the closed form."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

import streamkern as sk
from streamkern.costs.dry_run import CostEstimate, ProblemSize
from streamkern.errors import UsageError
from streamkern.execute import ThreadsExecutor
from streamkern.papers.svrg import SVRG
from streamkern.solvers.direct import Direct
from streamkern.solvers.loop import train
from streamkern.testing.solver import small_problem

N, M, RIDGE = 1200, 60, 1e-6
SPECTRUM = np.concatenate([np.geomspace(1.0, 1e-3, 12), np.full(M - 12, 1e-6)])
"""Of the covariance. With the ridge, the condition number is 5e5, and 3 once the top 13 are out of the way."""


def rows(spectrum=SPECTRUM, n=N, outputs=1, seed=0):
    random = np.random.default_rng(seed)
    d = len(spectrum)
    U = np.linalg.qr(random.normal(size=(n, d)))[0]
    V = np.linalg.qr(random.normal(size=(d, d)))[0]
    X = U * np.sqrt(n * spectrum) @ V.T
    truth = V @ (random.normal(size=(d, outputs)) / np.sqrt(spectrum)[:, None])
    y = X @ truth + 0.5 * random.normal(size=(n, outputs))
    return X, y - y.mean(axis=0)


def problem(X, y, executor, dtype="float64", **options):
    given = {"centers": X[:0], "kernel": sk.Linear(), "features": sk.Identity()} | options
    return small_problem(executor, X, y, dtype=dtype, **given)


def fit(solver, X, y, *, threads=2, dtype="float64", **options):
    with ThreadsExecutor(threads) as executor:
        posed = problem(X, y, executor, dtype, **options)
        iteration = solver.setup(posed)
        return train(posed, iteration, patience=solver.patience), iteration.report


def closed_form(X, y, ridge=RIDGE):
    return np.linalg.solve(X.T @ X / len(X) + ridge * np.eye(X.shape[1]), X.T @ y / len(X))


def suboptimality(w, X, y, ridge=RIDGE):
    """L(w) − min L, without cancellation."""
    off = w - closed_form(X, y, ridge)
    return 0.5 * float(np.sum((X @ off) ** 2) / len(X) + ridge * np.sum(off**2))


@pytest.mark.slow
def test_preconditioned_reaches_the_closed_form_in_few_epochs_and_plain_does_not():
    X, y = rows()
    start = suboptimality(np.zeros((M, 1)), X, y)
    with_it, report = fit(SVRG(epochs=12, ridge=RIDGE, k=13), X, y)
    without, _ = fit(SVRG(epochs=12, ridge=RIDGE, preconditioner=None), X, y)
    assert with_it.failure is without.failure is None
    assert suboptimality(with_it.weights, X, y) < 1e-6 * start
    assert suboptimality(without.weights, X, y) > 1e-3 * start
    assert report["sweeps"] <= 4
    more, _ = fit(SVRG(epochs=40, ridge=RIDGE, k=13), X, y)
    np.testing.assert_allclose(more.weights, closed_form(X, y), rtol=1e-8, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["uniform", "importance"])
def test_the_residual_is_that_of_the_weights_and_a_large_one_is_said(sampling):
    X, y = rows(outputs=2)

    def gradient(w, ridge):
        return np.linalg.norm(X.T @ (X @ w - y) / len(X) + ridge * w, axis=0)

    for epochs, ridge in ((6, 0.1), (3, RIDGE), (1, RIDGE)):
        found, report = fit(SVRG(epochs=epochs, ridge=ridge, preconditioner=None, sampling=sampling), X, y)
        exact = np.max(gradient(found.weights, ridge) / gradient(np.zeros((M, 2)), ridge))
        assert report["residual"] == pytest.approx(exact, rel=0.5, abs=0.01)  # an estimate from half of the rows
        assert ("warnings" in report) == (report["residual"] > 0.05) == (exact > 0.05)
    assert "SVRG has not reached the exact solution" in report["warnings"][0]
    assert "more epochs" in report["warnings"][0]


@pytest.mark.parametrize("times", [8.0, 16.0])
def test_a_step_that_is_too_long_is_said_after_the_only_pass(times):
    """The gradient at the beginning of the last pass knew nothing of it."""
    X, y = rows()
    solver = SVRG(epochs=1, ridge=RIDGE, preconditioner=None)
    _, report = fit(solver, X, y)
    outcome, report = fit(replace(solver, step=times * report["step"]), X, y)
    told = [] if outcome.failure else report["warnings"]
    assert outcome.failure is not None or report["residual"] > 0.3
    assert all("step=None" in message for message in told)


@pytest.mark.slow
def test_plain_converges_where_the_condition_number_is_small():
    X, y = rows(np.linspace(1.0, 2.0, 20))
    plain, _ = fit(SVRG(epochs=15, ridge=0.1, preconditioner=None), X, y)
    np.testing.assert_allclose(plain.weights, closed_form(X, y, 0.1), rtol=1e-7, atol=1e-9)
    direct, _ = fit(Direct(ridge=0.1), X, y)  # to which the ridge means the same
    np.testing.assert_allclose(plain.weights, direct.weights, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_float32_comes_as_near_as_its_rounding():
    X, y = rows(np.geomspace(1.0, 1e-3, 40))
    start = suboptimality(np.zeros((40, 1)), X, y, 1e-4)
    single, _ = fit(SVRG(epochs=25, ridge=1e-4, k=20), X, y, dtype="float32")
    assert single.weights.dtype == np.float32
    assert suboptimality(single.weights, X, y, 1e-4) < 1e-11 * start


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["uniform", "importance"])
@pytest.mark.parametrize("preconditioner", ["lanczos", None])
def test_the_variance_reduced_gradient_is_unbiased(sampling, preconditioner):
    X, y = rows(n=480, outputs=2)
    X[:40] *= 4
    solver = SVRG(ridge=0.01, k=5, batch=24, sampling=sampling, preconditioner=preconditioner)
    passes = 1 if sampling == "uniform" else 100
    random = np.random.default_rng(1)
    snapshot, w = random.normal(size=(2, M, 2))
    with ThreadsExecutor(1) as executor:
        iteration = solver.setup(problem(X, y, executor))
        total, squares, steps = np.zeros((M, 2)), np.zeros((M, 2)), 0
        for pass_ in range(passes):
            for step in range(iteration.stream.steps):
                for lane in range(iteration.stream.lanes):
                    block = iteration.stream.block((pass_, lane, step))
                    product, _, n = iteration.contribution(block, (w - snapshot, w))
                    total += product / n
                    squares += (product / n) ** 2
                    steps += 1
    mean = total / steps
    exact = X.T @ (X @ (w - snapshot)) / len(X)
    if sampling == "uniform":
        np.testing.assert_allclose(mean, exact, rtol=1e-9, atol=1e-12)
    else:
        spread = np.sqrt((squares / steps - mean**2) / steps)
        assert np.abs((mean - exact) / spread).max() < 5  # of 120 entries
        assert np.abs(mean - exact).mean() < 0.1 * np.abs(exact).mean()


def test_a_row_is_drawn_as_often_as_its_weight_says():
    random = np.random.default_rng(0)
    X = random.normal(size=(200, 6)) * np.r_[np.full(20, 5.0), np.full(180, 0.5)][:, None]
    X[7] = 0
    y = np.zeros((200, 1))
    solver = SVRG(k=5, batch=50, ridge=0.1, sampling="importance", preconditioner=None)
    with ThreadsExecutor(1) as executor:
        iteration = solver.setup(problem(X, y, executor))
        stream, keys = iteration.stream, [(pass_, 0, step) for pass_ in range(200) for step in range(4)]
        ids = np.concatenate([stream.block(key).ids for key in keys])
        again = pickle.loads(pickle.dumps(stream)).block((3, 1, 2))
    share = np.sum(X**2, axis=1) / np.sum(X**2)
    expected = share * len(ids)
    counts = np.bincount(ids, minlength=200)
    assert counts[7] == 0
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected)).all()
    block = stream.block((3, 1, 2))
    np.testing.assert_array_equal(block.ids, again.ids)
    np.testing.assert_array_equal(block.X, X[block.ids])
    product, loss, n = iteration.contribution(block, (np.eye(6, 1), np.zeros((6, 1))))
    scale = np.mean(share[share > 0]) / share[block.ids]
    np.testing.assert_allclose(product, block.X.T @ (scale * block.X[:, 0])[:, None])
    assert loss == 0
    assert n == len(block.ids)


def test_copies_are_drawn_evenly_and_a_part_of_a_copy_is_refused():
    X, y = rows(n=100)
    solver = SVRG(k=5, sampling="importance")
    with ThreadsExecutor(1) as executor:
        posed = problem(X, y, executor)
        noisy = replace(posed, train=posed.train.augment(sk.augment.GaussianNoise(0.1), copies=3))
        stream = solver.setup(noisy).stream
        assert stream.rows == 300
        assert set(stream._rows(0, 0, 0, 60)[1]) == {0, 1, 2}
        with pytest.raises(UsageError, match="not a multiple of 100"):
            solver.prepare(replace(posed, train=posed.train.augment(sk.augment.GaussianNoise(0.1), rows=250)))


@pytest.mark.slow
def test_importance_sampling_needs_fewer_epochs_where_rows_are_of_unequal_weight():
    X, y = rows(np.geomspace(1.0, 0.05, 30))
    X[:30] *= 5
    uniform, importance = (
        suboptimality(fit(SVRG(epochs=8, ridge=0.01, k=10, sampling=s), X, y)[0].weights, X, y, 0.01)
        for s in ("uniform", "importance")
    )
    assert importance < 0.01 * uniform < 0.01 * suboptimality(np.zeros((30, 1)), X, y, 0.01)


def test_what_setup_found_out_is_reported():
    X, y = rows()
    outcome, report = fit(SVRG(epochs=2, ridge=RIDGE, k=13), X, y)
    np.testing.assert_allclose(report["eigenvalues"], SPECTRUM[:13], rtol=0.5)
    # The preconditioned covariance has its top at 1, or a little above where the sketch is rough.
    assert 0.9 < report["lambda"] < 2
    assert report["lambda"] <= report["beta"] <= report["peak"]
    assert report["batch"] >= 4
    assert report["features"] == M
    assert outcome.rows == 4 * N
    assert [entry["pass"] for entry in outcome.history] == [1, 2]
    _, plain = fit(SVRG(epochs=1, ridge=RIDGE, preconditioner=None), X, y)
    assert plain["lambda"] == pytest.approx(SPECTRUM[0], rel=0.1)
    assert "eigenvalues" not in plain


@pytest.mark.parametrize("solver", [SVRG(k=5), SVRG(preconditioner=None), SVRG(sampling="importance")])
def test_the_meter_bounds_what_is_held_and_swept(solver):
    X, y = rows()
    outcome, report = fit(replace(solver, epochs=1), X, y)
    size, once = ProblemSize(N, M, M, 1, itemsize=8, slots=2), replace(solver, epochs=1)
    takes, wider = CostEstimate(once, size), CostEstimate(once, replace(size, p=2 * M))
    assert report["batch"] <= takes.memory.batch
    assert takes.work_estimate.passes == outcome.passes
    assert report.get("sweeps", 0) * N <= takes.work_estimate.setup_rows
    assert takes.memory.setup >= N * M * 8
    assert wider.memory.setup > takes.memory.setup
    assert wider.work_estimate.training.values == 2 * takes.work_estimate.training.values
    assert wider.work_estimate.training.panel == pytest.approx(2 * takes.work_estimate.training.panel, rel=0.1)
