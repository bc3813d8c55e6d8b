"""Ridge regression for every ridge, and with rows left out, equals as many fits."""

from types import SimpleNamespace

import numpy as np
import pytest

from streamkern.calibration.probabilities import calibrated_losses
from streamkern.cpu import default_engine
from streamkern.engine import Engine
from streamkern.engine.ridge import RidgePath, left_out_kernel_path, left_out_path, solve_ridge
from streamkern.errors import NumericalError
from streamkern.evaluation.paired_errors import ModelErrors, first_as_good

N, RIDGES = 60, (1e-6, 1e-2)
rng = np.random.default_rng(0)
X, Y = rng.normal(size=(N, 3)), rng.normal(size=(N, 2))


def laplace(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return np.exp(-np.linalg.norm(A[:, None] - B[None], axis=2) / 2.0)


@pytest.mark.parametrize("engine", [default_engine(), Engine()], ids=lambda engine: engine.name)
def test_a_path_is_a_fit_for_each_ridge_and_of_its_first_functions(engine: Engine):
    phi, R = laplace(X, X[:20]), laplace(X[:20], X[:20])
    G, m = phi.T @ phi / N, phi.T @ Y / N
    path = RidgePath.of_sums(G, m, R.copy(), engine)
    for p in (20, 7):
        expected = [np.linalg.solve(G[:p, :p] + ridge * R[:p, :p], m[:p]) for ridge in RIDGES]
        for found in (path.head(p).weights(RIDGES), path.head(p).solved(RIDGES)):
            np.testing.assert_allclose(found, np.concatenate(expected, axis=1), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(solve_ridge(engine, G, m, 0.1, R), np.linalg.solve(G + 0.1 * R, m), rtol=1e-8)
    with pytest.raises(NumericalError):
        solve_ridge(engine, -np.eye(3), np.ones((3, 1)), 0.1)


def test_rows_left_out_of_functions_are_fits_without_them():
    phi, R = laplace(X, X[:20]), laplace(X[:20], X[:20])
    path = left_out_path(default_engine(), phi, Y, R.copy(), RIDGES)
    for k, ridge in enumerate(RIDGES):
        A = phi.T @ phi / N + ridge * R
        expected = np.linalg.solve(A, phi.T @ Y / N)
        np.testing.assert_allclose(path.weights[:, 2 * k : 2 * k + 2], expected, rtol=1e-5, atol=1e-8)
        for row in range(0, N, 7):
            rest = A - np.outer(phi[row], phi[row]) / N
            without = np.linalg.solve(rest, (phi.T @ Y - np.outer(phi[row], Y[row])) / N)
            np.testing.assert_allclose(path.missed[row, k], Y[row] - phi[row] @ without, rtol=1e-5, atol=1e-8)


def test_rows_left_out_as_centers_too_are_fits_without_them():
    w, K = rng.uniform(0.2, 3, N), laplace(X, X)
    path = left_out_kernel_path(default_engine(), K.copy(), Y, np.sqrt(w)[:, None], w.sum(), RIDGES)
    for k, ridge in enumerate(RIDGES):
        A = K + ridge * w.sum() * np.diag(1 / w)
        np.testing.assert_allclose(path.weights[:, 2 * k : 2 * k + 2], np.linalg.solve(A, Y), rtol=1e-6)
        for row in range(0, N, 7):
            rest = np.arange(N) != row
            output = K[row, rest] @ np.linalg.solve(A[np.ix_(rest, rest)], Y[rest])
            np.testing.assert_allclose(path.missed[row, k], Y[row] - output, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("classify", [False, True])
def test_errors_of_models_side_by_side_are_those_of_each(classify: bool):
    n, k, c = 100_000, 3, 4  # in two pieces
    T = np.eye(c)[rng.integers(0, c, n)] if classify else rng.normal(size=(n, c))
    F, w = T[:, None] + rng.normal(size=(n, k, c)), rng.uniform(size=n)
    found = ModelErrors.of(lambda rows: F[rows], T, w, k, classify)
    for i in range(k):
        mse = np.average(np.square(F[:, i] - T).mean(axis=1), weights=w)
        assert found.mse[i] == pytest.approx(mse)
        errors = found.errors(i, default_engine())
        if classify:
            np.testing.assert_array_equal(errors.errors, calibrated_losses(F[:, i], T.argmax(1), w, default_engine()))
            assert found.score[i] == pytest.approx(np.average(F[:, i].argmax(1) == T.argmax(1), weights=w))
        else:
            assert errors.mean == pytest.approx(mse)
            apart = np.average(np.square(T - np.average(T, axis=0, weights=w)), axis=0, weights=w)
            assert found.score[i] == pytest.approx(
                np.mean(1 - np.average(np.square(F[:, i] - T), axis=0, weights=w) / apart)
            )


def test_the_first_model_that_is_as_good_is_taken():
    best, hardly, worse = (SimpleNamespace(mse=mse) for mse in (1.0, 1.005, 1.1))
    assert first_as_good([worse, hardly, best]) is hardly
    assert first_as_good([worse, best, hardly]) is best
