"""Projection by a factor in 16 bits: a positive matrix, its spectrum, and what ``auto`` chooses with it."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

import streamkern as sk
from streamkern.cpu import default_engine
from streamkern.defaults import MEASURED_ROWS
from streamkern.engine.quantised_factor import PANEL, factor_bytes
from streamkern.execute import ThreadsExecutor
from streamkern.kernels import Expansion
from streamkern.precondition.center_projection import MeasuredRows, center_eigensystem
from streamkern.precondition.int16_projection import packed_lead, project_packed
from streamkern.precondition.nystrom import NystromPreconditioner
from streamkern.solvers.eigenpro import exact_bytes
from streamkern.testing.solver import small_problem, solve
from tests import references

ENGINE = default_engine()
P, Q = 2 * PANEL + 60, 15


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([n, seed]).normal(size=(n, 5))


@pytest.fixture(scope="module")
def expansion() -> Expansion:
    return Expansion(sk.Laplace(3.0), rows(P))


@pytest.fixture(scope="module")
def nystrom(expansion: Expansion) -> NystromPreconditioner:
    return NystromPreconditioner(center_eigensystem(expansion, P, Q, 0.0, ENGINE))


@pytest.mark.slow
@pytest.mark.parametrize("lead", [P, PANEL, 0])
def test_a_packed_projection_is_positive_and_a_whole_one_is_the_exact(lead, expansion, nystrom):
    M = project_packed(expansion, nystrom, lead, ENGINE).apply(np.eye(P))
    np.testing.assert_allclose(M, M.T, rtol=0, atol=1e-5 * np.abs(M).max())
    assert np.linalg.eigvalsh((M + M.T) / 2)[0] > 0
    # On the span of U it is σ_{q+1} Σ⁻² to rounding, as the exact one is.
    system = nystrom.eigensystem
    inside = system.vectors.T @ M @ system.vectors
    np.testing.assert_allclose(inside, np.diag(system.tail / system.values**2), atol=1e-9)
    if lead == P:
        exact = np.linalg.inv(references.laplace(rows(P), rows(P), 3.0)) - nystrom.correction(np.eye(P))
        # The jitter, float32 and 16 bits: most in directions whose eigenvalues are of the jitter's order.
        assert np.linalg.norm(M - exact) <= 0.02 * np.linalg.norm(exact)


@pytest.mark.slow
@pytest.mark.parametrize("lead", [P, PANEL])
def test_the_spectrum_is_that_of_the_iteration_s_kernel(lead, expansion, nystrom):
    X = rows(300, 1)
    measured = MeasuredRows.of(expansion, X)
    for q in (Q, Q // 2):
        fewer = nystrom.truncated(q)
        projection = project_packed(expansion, fewer, lead, ENGINE)
        both = np.concatenate([X, rows(P)[-512:]])
        K = references.laplace(both, rows(P), 3.0)
        whole = K @ projection.apply(K.T.copy())
        size = measured.measure(projection)
        assert size.beta == pytest.approx(np.mean(np.diag(whole)[:MEASURED_ROWS]), rel=1e-3)
        assert size.top == pytest.approx(np.linalg.eigvalsh(whole[:300, :300])[-1] / 300, rel=0.06)
        assert size.peak == pytest.approx(
            max(np.diag(whole)[:MEASURED_ROWS].max(), np.diag(whole)[300:].max()), rel=1e-2
        )


@pytest.mark.slow
def test_a_factor_with_a_lead_is_nearly_as_good_as_a_whole_one():
    """After two passes over 5,000 rows, where an inexact projection is behind."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(6000, 8)).astype(np.float32)
    y = np.sin(X[:, 0] + X[:, 1]) * np.cos(X[:, 2])
    rows, p, errors = slice(5000), 2200, {}
    with ThreadsExecutor(2) as executor:
        for projection in ("exact", "packed", "inexact"):
            posed = small_problem(executor, X[rows], y[rows], centers=X[:p], kernel=sk.Laplace(6.0), dtype=np.float32)
            posed = replace(posed, memory=factor_bytes(p, 2 * PANEL))
            outcome = solve(posed, sk.EigenPro(epochs=2, projection=projection))
            found = posed.expansion().predict(X[5000:] - posed.center, outcome.weights.astype(np.float32))
            errors[projection] = float(np.mean((found[:, 0] - y[5000:]) ** 2))
    assert packed_lead(p, factor_bytes(p, 2 * PANEL)) == 2 * PANEL
    assert packed_lead(p, None) == 3 * PANEL  # half of the centers, in whole panels
    assert packed_lead(2 * PANEL, None) == 2 * PANEL  # a small factor is whole
    assert errors["packed"] <= 1.05 * errors["exact"]
    assert errors["packed"] < errors["inexact"]


def test_auto_is_exact_then_packed_then_delayed():
    solver, p = sk.EigenPro(), 20 * PANEL
    kinds = [solver.chosen_projection(p, share * exact_bytes(p) // 32) for share in range(33)]
    assert [kind for kind, _ in itertools.groupby(kinds)] == ["delayed", "packed", "exact"]
    half = next(m for m in range(0, exact_bytes(p), 1 << 20) if solver.chosen_projection(p, m) == "packed")
    lead = packed_lead(p, half)
    assert p / 4 <= lead < 0.35 * p
    assert factor_bytes(p, lead) <= half
    assert solver.choices(p, half)[0] == f"packed {lead}"
    assert f"{lead:,} of {p:,} columns" in solver.choices(p, half)[1][0]
    # Where momentum is given, which delayed projection does not take.
    assert sk.EigenPro(momentum=0.5).chosen_projection(p, 0) == "inexact"
    assert solver.products("delayed") == 2
    assert sk.EigenPro(projection="delayed").products("delayed") == 1
    assert sk.EigenPro(projection="delayed").chosen_projection(1000, None) == "delayed"


def test_whether_the_kernel_matrix_is_held_is_part_of_the_fingerprint():
    """It changes weights by rounding; with no more centers than the sample it is always held."""
    words = [{sk.EigenPro().choices(p, share * exact_bytes(p))[0] for share in (1, 3)} for p in (1000, 3000)]
    assert [len(each) for each in words] == [1, 2]
