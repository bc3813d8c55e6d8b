"""Top eigenpairs, the Nyström preconditioner, and the step it allows."""

from functools import partial

import numpy as np
import pytest

from streamkern.errors import NumericalError
from streamkern.precondition.eigensystem import top_eigensystem
from streamkern.precondition.nystrom import NystromPreconditioner, StepSize, measure
from tests import references

laplace = partial(references.laplace, bandwidth=2.0)


def rows(n: int, d: int = 4, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([n, seed]).normal(size=(n, d))


@pytest.mark.parametrize("q", [1, 7, 39])
def test_eigenpairs_are_the_top_ones(q: int):
    K = laplace(rows(40), rows(40))
    found = top_eigensystem(K, q)
    values = np.linalg.eigvalsh(K)[::-1]
    np.testing.assert_allclose(found.values, values[:q], rtol=1e-12)
    assert found.tail == pytest.approx(values[q], rel=1e-12)
    np.testing.assert_allclose(K @ found.vectors, found.vectors * found.values, atol=1e-12)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(q), atol=1e-12)


@pytest.mark.parametrize("q", [5, 9, 10, 25])
def test_repeated_rows_have_fewer_eigenpairs(q: int):
    """Ten distinct rows, three times each: what rounding leaves of the others is not preconditioned."""
    X = np.tile(rows(10), (3, 1))
    found = top_eigensystem(laplace(X, X), q)
    assert len(found.values) == min(q, 10)
    assert found.vectors.shape == (30, min(q, 10))
    assert 0 < found.tail <= found.values[-1] * (1 + 1e-12)
    assert (NystromPreconditioner(found).damping >= 0).all()


def test_the_floor_is_a_share_of_the_largest():
    K = np.diag([1.0, 0.5, 1e-3, 1e-4, 1e-9])
    found = top_eigensystem(K, 4, floor=1e-2)
    np.testing.assert_array_equal(found.values, [1.0, 0.5])
    assert found.tail == 1e-2
    assert top_eigensystem(K, 3, floor=1e-6).tail == 1e-4
    np.testing.assert_allclose(top_eigensystem(np.ones((20, 20)), 6).values, [20.0])


def test_its_matrix_is_that_of_equation_30():
    system = top_eigensystem(laplace(rows(30), rows(30)), 6)
    S, E = np.diag(system.values), system.vectors
    Q = E @ (np.eye(6) - system.tail * np.linalg.inv(S)) @ np.linalg.inv(S) @ E.T
    np.testing.assert_allclose(NystromPreconditioner(system).correction(np.eye(30)), Q, atol=1e-12)


@pytest.mark.parametrize("n", [3, 50, 300])
def test_what_is_measured(n: int):
    A = np.random.default_rng(n).normal(size=(n, n))
    K = A @ A.T
    size = measure(np.diag(K), lambda v: K @ v)
    top = np.linalg.eigvalsh(K)[-1] / n
    assert size.beta == pytest.approx(np.diag(K).mean())
    assert size.peak == np.diag(K).max()
    assert min(size.beta, 0.98 * top) <= size.top <= min(size.beta, 1.05 * top) * (1 + 1e-12)


def test_a_step_grows_with_the_batch_and_never_overshoots():
    size = StepSize(beta=0.4, top=0.01, peak=0.5)
    assert size.critical_batch == pytest.approx(40)
    steps = [size.step(m) for m in (1, 2, 10, 40, 1000, 10**6)]
    assert steps == sorted(steps)
    assert steps[0] == 1 / 0.5
    assert steps[-1] == pytest.approx(100, rel=1e-3)  # 1/λ
    for m in (1, 10, 40, 1000):
        assert size.step(m) / m * size.peak <= 1
        assert size.step(m) / m * (size.beta + (m - 1) * size.top) <= 1 + 1e-12


@pytest.mark.parametrize("K", [-np.eye(4), np.full((4, 4), np.nan), np.zeros((4, 4))])
def test_what_is_not_positive(K: np.ndarray):
    with pytest.raises(NumericalError, match="not positive"):
        measure(np.diag(K), lambda v: K @ v)
