"""Outputs on rows that are left out: in closed form they are those of fits without each row, or its group."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkern as sk
from streamkern.calibration.out_of_sample import equal_rows
from streamkern.centers import CenterSet
from streamkern.fitting.calibrate import on_validation
from streamkern.kernels import Expansion
from streamkern.solvers import train
from streamkern.solvers.ridge import leave_one_out
from tests.problems import drawn, posed


def _problem(executor, task="regression", weighted=False, n=60, p=12, features=None, **changes):
    X, y, w, encoding = drawn(task, weighted, n)
    centers = CenterSet(X[:p].copy(), None)
    return posed(
        executor, X, y, w, kernel=sk.Gaussian(1.5), centers=centers, encoding=encoding, features=features, **changes
    )


def _without(problem, ridge):
    """Each row's output by a fit without it, plain NumPy."""
    X, y, w = problem.full_rows(problem.draw(1000, 0x6C656674))
    basis = problem.basis()
    phi = basis.block(X).astype(np.float64)
    n, Y = len(X), y if y.ndim > 1 else np.eye(3)[y]
    w = np.ones(n) if w is None else w
    R = problem.engine.kernel_matrix(basis, basis.p) if problem.features is None else np.eye(phi.shape[1])
    found = []
    for i in range(n):
        rest = np.arange(n) != i
        A = (phi[rest].T * w[rest]) @ phi[rest] / n + ridge * R
        found.append(phi[i] @ np.linalg.solve(A, (phi[rest].T * w[rest]) @ Y[rest] / n))
    return np.array(found)


@pytest.mark.parametrize("features", [None, sk.ReLUFeatures(20, seed=1)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("task", ["regression", "classification"])
def test_they_are_those_of_fits_without_the_row(task, weighted, features, executor):
    problem = _problem(executor, task, weighted, features=features)
    solver = sk.Direct(ridge=1e-2)
    found = train(problem, solver.setup(problem)).out_of_sample
    assert found.source == "leave-one-out"
    np.testing.assert_allclose(found.outputs, _without(problem, 1e-2), rtol=1e-7, atol=1e-9)


def test_they_are_so_where_the_equations_are_ill_conditioned_too(executor):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 2))
    y = np.sin(X[:, :1]) + 0.1 * rng.standard_normal((200, 1))
    problem = posed(executor, X, y, kernel=sk.Gaussian(6.0), centers=CenterSet(X[:80].copy(), None))
    iteration = sk.Direct(ridge=1e-9).setup(problem)
    found = train(problem, iteration).out_of_sample
    assert iteration.report["sweeps"] == 2
    ids = problem.draw(1000, 0x6C656674)[:5]
    for place, row in enumerate(ids.tolist()):
        keep = np.arange(200) != row
        rest = posed(executor, X[keep], y[keep], kernel=problem.kernel, centers=problem.centers, held_out_rows=0)
        weights = train(rest, sk.Direct(ridge=1e-9 * 200 / 199).setup(rest)).weights
        basis = rest.basis()
        expected = basis.predict(X[row : row + 1] - rest.center, weights)
        assert found.outputs[place] == pytest.approx(expected[0], abs=1e-4)


def test_nothing_is_left_out_unasked_and_a_method_of_steps_has_no_closed_form(executor):
    problem = _problem(executor)
    assert train(problem, sk.EigenPro(epochs=1).setup(problem)).out_of_sample is None
    problem = _problem(executor, held_out_rows=0)
    assert train(problem, sk.Direct().setup(problem)).out_of_sample is None


def test_validation_rows_are_predicted(executor):
    problem = _problem(executor)
    held = _problem(executor, weighted=True, n=300).train
    problem = _problem(executor, validation=held)
    weights = np.random.default_rng(1).standard_normal((12, 2))
    found = on_validation(problem, weights)
    assert found.outputs.shape == (300, 2)
    assert found.w is not None
    assert len(found.w) == 300
    mean = np.abs(found.outputs - found.y).mean()
    F = problem.basis().predict(held.source.read(0).X - problem.center, weights)
    y = held.source.read(0).y - problem.encoding.mean
    assert mean == pytest.approx(np.abs(F - y).mean())


def test_leave_one_out_is_bounded_where_a_row_decides_its_own_output(executor):
    problem = _problem(executor, n=12, p=12)
    weights = np.zeros((12, 2))
    found = leave_one_out(problem, problem.basis(), weights, lambda phi: np.ones((len(phi), 1)), 12)
    assert np.isfinite(found.outputs).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_of_equal_rows_one_is_left_out_and_the_others_stay(weighted, executor):
    rng = np.random.default_rng(0)
    X = np.repeat(rng.standard_normal((20, 2)), 3, axis=0)
    w = rng.uniform(0.5, 2.0, 60) if weighted else None
    y, centers = rng.standard_normal((60, 2)), np.arange(0, 30, 3)
    problem = posed(executor, X, y, w, kernel=sk.Gaussian(1.5), centers=centers)
    found = train(problem, sk.Direct(ridge=1e-2).setup(problem)).out_of_sample
    np.testing.assert_allclose(found.outputs, _without(problem, 1e-2), rtol=1e-7, atol=1e-9)


def test_copies_of_few_rows_are_left_out_together(executor):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((40, 2)), rng.standard_normal((40, 1))
    w = rng.integers(1, 4, size=40)
    found = []
    for copies in (w, np.ones(40, dtype=int)):
        rows = np.repeat(X, copies, axis=0), np.repeat(y, copies, axis=0), None if copies is w else w.astype(float)
        problem = posed(executor, *rows, kernel=sk.Gaussian(1.5), centers=CenterSet(X[:9].copy(), None))
        out_of_sample = train(problem, sk.Direct(ridge=1e-2).setup(problem)).out_of_sample
        distinct = np.repeat(np.arange(40), copies)[out_of_sample.ids]
        outputs = np.full(40, np.nan)
        outputs[distinct] = out_of_sample.outputs[:, 0]
        found.append(outputs)
    np.testing.assert_allclose(*found, rtol=1e-9)


@pytest.mark.parametrize("p", [20, 50, 60])
def test_a_row_that_is_a_center_is_left_out_as_one_too(p, executor):
    problem = _problem(executor, p=p, weighted=True)
    problem = replace(problem, centers=CenterSet(problem.centers.Z[::-1].copy(), np.arange(p)[::-1].copy()))
    out_of_sample = train(problem, sk.Direct(ridge=1e-3).setup(problem)).out_of_sample
    X, y, w = problem.full_rows(np.arange(60))
    basis = problem.basis()
    phi, K = basis.block(X), problem.engine.kernel_matrix(basis, p)
    for place, row in enumerate(out_of_sample.ids[:30].tolist()):
        rest = np.arange(60) != row
        kept = np.arange(p)[::-1] != row
        some = phi[:, kept]
        A = (some[rest].T * w[rest]) @ some[rest] / 60 + 1e-3 * K[np.ix_(kept, kept)]
        expected = some[row] @ np.linalg.solve(A, (some[rest].T * w[rest]) @ y[rest] / 60)
        np.testing.assert_allclose(out_of_sample.outputs[place], expected, rtol=1e-6, atol=1e-8)


def _table(rng, weighted, copies, n=120, groups=9):
    group = rng.integers(0, groups, n)
    X = rng.standard_normal((groups, 3))[group] + rng.standard_normal((n, 3))
    if copies:  # equal features in one group and across two, with other targets
        X[1::7] = X[0::7][: len(X[1::7])]
    y = np.stack([np.sin(X).sum(axis=1), X[:, 0] * X[:, 1]], axis=1) + rng.standard_normal((groups, 2))[group]
    return X, y, rng.uniform(0.5, 2.0, n) if weighted else None, group


def _without_groups(problem, ridge, group, centers):
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
def test_rows_of_groups_are_those_of_fits_without_the_group(every_row, weighted, copies, executor):
    X, y, w, group = _table(np.random.default_rng(0), weighted, copies and every_row)
    centers = np.random.default_rng(1).permutation(len(X))[: len(X) if every_row else 40]
    problem = posed(
        executor, X, y, w, kernel=sk.Laplace(2.0), centers=centers, group=group, all_rows_are_centers=every_row
    )
    found = train(problem, sk.Direct(ridge=1e-3).setup(problem)).out_of_sample
    expected = _without_groups(problem, 1e-3, group, centers)
    assert found.source == "leave-group-out"
    assert sorted(found.ids) == list(range(len(X)))
    np.testing.assert_allclose(found.outputs, expected[found.ids], rtol=1e-5, atol=1e-7)
    for unit in np.unique(found.groups):  # units are the groups
        assert len(set(group[found.ids[found.groups == unit]])) == 1


def test_a_group_too_large_for_the_closed_form_is_not_left_out(monkeypatch, executor):
    monkeypatch.setattr("streamkern.solvers.ridge.MAX_LEFT_OUT_GROUP", 20)
    X, y, _, _ = _table(np.random.default_rng(0), False, False)
    group = np.where(np.arange(len(X)) < 100, 0, np.arange(len(X)))
    problem = posed(executor, X, y, kernel=sk.Laplace(2.0), centers=np.arange(40), group=group)
    found = train(problem, sk.Direct(ridge=1e-3).setup(problem)).out_of_sample
    assert sorted(found.ids) == list(range(100, 120))


# ---------------------------------------------------------- groups of equal rows, by sums along a direction first


def by_bytes(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    seen: dict[bytes, int] = {}
    codes = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in X], dtype=np.int64)
    return codes, np.array([np.flatnonzero(codes == k)[0] for k in range(len(seen))], dtype=np.int64)


@given(
    st.integers(0, 40),
    st.integers(0, 4),
    st.integers(1, 5),
    st.sampled_from(["float32", "float64"]),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_groups_are_those_of_the_bytes_numbered_by_their_first_rows(n: int, d: int, values: int, dtype: str, seed: int):
    X = np.random.default_rng(seed).integers(0, values, (n, d)).astype(dtype)
    codes, first = equal_rows(X)
    expected, firsts = by_bytes(X)
    np.testing.assert_array_equal(codes, expected)
    np.testing.assert_array_equal(first, firsts)


@pytest.mark.parametrize(
    "rows",
    [
        [[0.0, 1.0], [-0.0, 1.0], [0.0, 1.0]],  # equal sums, other bytes
        [[1e300, 1e-300], [1e300, 2e-300], [1e300, 1e-300]],  # a sum that rounds the difference away
        [[np.nan, 1.0], [np.nan, 2.0], [np.nan, 1.0]],
        [[np.inf, -np.inf], [np.inf, 3.0], [np.inf, 4.0]],
    ],
)
def test_rows_whose_sums_are_equal_and_that_differ_are_told_apart(rows: list[list[float]]):
    X = np.array(rows)
    np.testing.assert_array_equal(equal_rows(X)[0], by_bytes(X)[0])
