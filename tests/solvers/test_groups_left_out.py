"""Outputs on rows whose whole group is left out: in closed form they are those of fits without the group."""

import numpy as np
import pytest

import streamkern as sk
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.kernels import Expansion
from streamkern.solvers import train
from tests.problems import posed


def _table(rng, weighted, copies, n=120, groups=9):
    group = rng.integers(0, groups, n)
    X = rng.standard_normal((groups, 3))[group] + rng.standard_normal((n, 3))
    if copies:  # equal features in one group and across two, with other targets
        X[1::7] = X[0::7][: len(X[1::7])]
    y = np.stack([np.sin(X).sum(axis=1), X[:, 0] * X[:, 1]], axis=1) + rng.standard_normal((groups, 2))[group]
    return X, y, rng.uniform(0.5, 2.0, n) if weighted else None, group


def _without(problem, ridge, group, centers):
    """Outputs of each row by a fit without its group, and without its rows as centers: plain NumPy."""
    X, y, w = problem.full_rows(np.arange(len(group)))
    w = np.ones(len(X)) if w is None else w
    K = problem.engine.kernel_matrix(Expansion(problem.kernel, X, problem.engine), len(X))
    found = np.zeros(y.shape)
    for g in np.unique(group):
        out, rest = group == g, group != g
        Z = centers[rest[centers]]
        A = (K[np.ix_(rest, Z)].T * w[rest]) @ K[np.ix_(rest, Z)] / len(X) + ridge * K[np.ix_(Z, Z)]
        found[out] = K[np.ix_(out, Z)] @ np.linalg.lstsq(A, (K[np.ix_(rest, Z)].T * w[rest]) @ y[rest] / len(X))[0]
    return found


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("every_row", [False, True])
def test_they_are_those_of_fits_without_the_group(every_row, weighted, copies):
    X, y, w, group = _table(np.random.default_rng(0), weighted, copies and every_row)
    centers = np.random.default_rng(1).permutation(len(X))[: len(X) if every_row else 40]
    with ThreadsExecutor() as executor:
        problem = posed(
            executor, X, y, w, kernel=sk.Laplace(2.0), centers=centers, group=group, all_rows_are_centers=every_row
        )
        found = train(problem, sk.Direct(ridge=1e-3).setup(problem)).out_of_sample
        expected = _without(problem, 1e-3, group, centers)
    assert found is not None
    assert found.source == "leave-group-out"
    assert sorted(found.ids) == list(range(len(X)))
    np.testing.assert_allclose(found.outputs, expected[found.ids], rtol=1e-5, atol=1e-7)
    for unit in np.unique(found.groups):  # units are the groups
        assert len(set(group[found.ids[found.groups == unit]])) == 1


def test_a_group_too_large_for_the_closed_form_is_not_left_out(monkeypatch):
    monkeypatch.setattr("streamkern.solvers.groups_left_out.MAX_LEFT_OUT_GROUP", 20)
    X, y, _, _ = _table(np.random.default_rng(0), False, False)
    group = np.where(np.arange(len(X)) < 100, 0, np.arange(len(X)))
    with ThreadsExecutor() as executor:
        problem = posed(executor, X, y, kernel=sk.Laplace(2.0), centers=np.arange(40), group=group)
        found = train(problem, sk.Direct(ridge=1e-3).setup(problem)).out_of_sample
    assert sorted(found.ids) == list(range(100, 120))
