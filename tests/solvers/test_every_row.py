"""``Direct`` where every training row is a center: one factor of the kernel matrix."""

import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.costs.dry_run import CostEstimate, ProblemSize
from streamkern.data.targets import Continuous
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.solvers import ridge, train
from tests.problems import drawn, posed

N = 70


def _problem(executor, task="regression", weighted=False, dtype=np.float64, repeated=0, n=N, kernel=None):
    X, y, w, encoding = drawn(task, weighted, n)
    X = X.astype(dtype)
    if repeated:
        X[-repeated:] = X[:repeated]
        X[1] = X[0]
    return _of_rows(executor, X, y, w, kernel or sk.Laplace(2.0), dtype, encoding)


def _of_rows(executor, X, y, w, kernel, dtype, encoding=None):
    centers = np.random.default_rng(3).permutation(len(X))
    return posed(
        executor, X, y, w, kernel=kernel, centers=centers, encoding=encoding, dtype=dtype, all_rows_are_centers=True
    )


def _rows(problem):
    """Rows in the order of the centers, their targets and weights, in float64."""
    X, y, w = problem.full_rows(problem.centers.ids)
    return X.astype(np.float64), y if y.ndim > 1 else np.eye(3)[y], np.ones(len(X)) if w is None else w


def _kernel(problem, X, Z):
    return np.exp(-np.linalg.norm(X[:, None] - Z[None], axis=2) / problem.kernel.sigma)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_the_weights_are_those_of_ridge_regression(task, weighted, executor):
    problem = _problem(executor, task, weighted)
    iteration = sk.Direct(ridge=1e-3).setup(problem)
    outcome = train(problem, iteration)
    X, Y, w = _rows(problem)
    K = _kernel(problem, X, X)
    expected = np.linalg.solve(K + 1e-3 * N * np.diag(1 / w), Y)
    np.testing.assert_allclose(outcome.weights, expected, rtol=1e-8, atol=1e-10)
    assert iteration.report["factor"] == "float64"
    assert iteration.report["residual"] < 1e-10
    assert outcome.history[0]["rows"] == N
    sums = train(problem, sk.Direct(ridge=1e-3, keep_sums=True).setup(problem)).weights
    np.testing.assert_allclose(outcome.weights, sums, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("repeated", [0, 5])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_rows_are_left_out_as_rows_and_as_centers_their_equals_stay(task, weighted, repeated, monkeypatch, executor):
    monkeypatch.setattr(ridge, "_INVERSE_COLUMNS", 16)  # several blocks, which begin at rows of their own
    problem = _problem(executor, task, weighted, repeated=repeated)
    found = train(problem, sk.Direct(ridge=1e-3).setup(problem)).out_of_sample
    X, Y, w = _rows(problem)
    order = {row: place for place, row in enumerate(problem.centers.ids.tolist())}
    assert sorted(found.ids.tolist()) == list(range(N))
    for row, output in zip(found.ids.tolist(), found.outputs, strict=True):
        x = X[order[row]]
        rest = np.arange(N) != order[row]
        A = _kernel(problem, X[rest], X[rest]) + 1e-3 * N * np.diag(1 / w[rest])
        expected = _kernel(problem, x[None], X[rest]) @ np.linalg.solve(A, Y[rest])
        np.testing.assert_allclose(output, expected[0], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("ridge", [1e-6, 1e-8])
def test_many_equal_rows_of_unlike_targets_lose_no_digits_in_float32(ridge, executor):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1200, 3)).astype(np.float32)
    X[:500] = X[0]
    y = np.sin(X[:, 0]) + 0.3 * rng.standard_normal(1200)
    problem = _of_rows(executor, X, y, None, sk.Laplace(2.0), np.float32, Continuous(np.array([y.mean()])))
    iteration = sk.Direct(ridge=ridge).setup(problem)
    outcome = train(problem, iteration)
    assert "jitter" not in iteration.report
    Z, t = X.astype(np.float64), y - y.mean()
    K = _kernel(problem, Z, Z)
    A = K + ridge * 1200 * np.eye(1200)
    outputs = K[:, problem.centers.ids] @ outcome.weights[:, 0]
    np.testing.assert_allclose(outputs, K @ np.linalg.solve(A, t), atol=2e-3)
    inverse = np.linalg.inv(A)
    expected = t - inverse @ t / np.diag(inverse)
    out_of_sample = outcome.out_of_sample
    np.testing.assert_allclose(out_of_sample.outputs[:, 0], expected[out_of_sample.ids], atol=2e-3)


@pytest.mark.filterwarnings("error")
def test_stored_rows_of_weight_0_are_not_left_out(tmp_path):
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.standard_normal((300, 3)), columns=list("abc")).assign(w=np.arange(300) % 3)
    rows.assign(y=rows.a + rows.b**2).to_parquet(tmp_path / "rows.parquet")
    data = sk.open_dataset(tmp_path / "rows.parquet", target="y", weight="w")
    model = sk.KernelRegressor(sk.Laplace("median")).fit(data)
    assert model.model_.calibration.facts["rows"] < 150  # half of the 200 rows of some weight
    assert np.isfinite(model.predict_interval(rows[["a", "b", "c"]])).all()


def test_a_factor_in_float32_gives_the_same_predictions(executor):
    outputs = {}
    for dtype in (np.float32, np.float64):
        problem = _problem(executor, dtype=dtype, n=900)
        iteration = sk.Direct(ridge=1e-7).setup(problem)
        outcome = train(problem, iteration)
        assert iteration.report["factor"] == np.dtype(dtype).name
        X = np.random.default_rng(1).standard_normal((200, 3))
        Z = problem.centers.Z.astype(np.float64)
        outputs[dtype] = _kernel(problem, X, Z) @ outcome.weights, outcome.out_of_sample.outputs
    for narrow, wide in zip(*outputs.values(), strict=True):
        assert np.abs(narrow - wide).max() < 2e-3 * np.abs(wide).max()


def test_rows_that_are_near_are_not_told_apart_by_rounding(executor):
    """Pivots of a few units of rounding: factored in float32 the weights were two hundred times too large."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(200, 1)), rng.integers(1, 5, 200) / 4
    y, found = np.trunc(1000 * x) / 4, []
    for dtype in (np.float32, np.float64):
        problem = _of_rows(executor, x.astype(dtype), y, w, sk.Laplace(10.75), dtype)
        found.append(ridge.solve_every_row(problem, problem.expansion(), 1e-9))
    (weights, out_of_sample, facts), (exact, exactly_left_out, _) = found
    assert facts["factor"] == "float64"
    assert np.abs(weights).max() < 2 * np.abs(exact).max()
    assert np.abs(out_of_sample.outputs - exactly_left_out.outputs).max() < 1e-3 * np.abs(y).max()


@pytest.mark.parametrize("bandwidth", [6.0, 30.0])
def test_a_matrix_far_from_positive_is_factored_few_times(monkeypatch: pytest.MonkeyPatch, bandwidth: float, executor):
    """The residual tells how much is missing on the diagonal: not each power of ten up to there is tried."""
    factors: list[float] = []
    factor = ridge._factor

    def counted(engine, basis, shift, root, dtype):
        factors.append(shift)
        return factor(engine, basis, shift, root, dtype)

    monkeypatch.setattr(ridge, "_factor", counted)
    problem = _problem(executor, dtype=np.float32, n=400, kernel=sk.Gaussian(bandwidth))
    iteration = sk.Direct(ridge=1e-12).setup(problem)
    train(problem, iteration)
    assert iteration.report["jitter"] == pytest.approx(1e11 * 400 * np.finfo(np.float64).eps)
    assert len(factors) <= 4


def test_equal_rows_without_a_ridge_have_the_mean_of_their_targets(executor):
    problem = _problem(executor, repeated=5)
    iteration = sk.Direct(ridge=0.0).setup(problem)
    weights = train(problem, iteration).weights
    assert iteration.report["jitter"] > 0
    X, Y, _ = _rows(problem)
    outputs = _kernel(problem, X, X) @ weights
    for x in X:
        same = (x == X).all(axis=1)
        np.testing.assert_allclose(outputs[same], np.tile(Y[same].mean(axis=0), (same.sum(), 1)), atol=1e-4)


def test_the_weights_are_the_same_bits_on_any_number_of_threads():
    found = []
    for threads in (1, 3):
        with ThreadsExecutor(threads) as executor:
            problem = _problem(executor, dtype=np.float32, n=1500)
            outcome = train(problem, sk.Direct(ridge=1e-7).setup(problem))
            found.append((outcome.weights.tobytes(), outcome.out_of_sample.outputs.tobytes()))
    assert found[0] == found[1]


def test_it_takes_a_third_of_a_cube_and_one_matrix():
    every, half = (
        CostEstimate(sk.Direct(), ProblemSize(3000, 3000, 10, 1, all_rows_are_centers=each)) for each in (True, False)
    )
    assert every.work_estimate.training.gemm == pytest.approx(3000**3 / 3)
    assert half.work_estimate.training.gemm64 > 3 * 3000**3 / 3
    assert 4 * 3000**2 < every.memory.training < half.memory.training
