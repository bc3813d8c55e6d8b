"""Projections: positive matrices near K(Z, Z)⁻¹ − Q_s, eigenpairs of all centers, and the step that they allow."""

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.cpu import default_engine
from streamkern.defaults import JITTER, MEASURED_ROWS
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.kernels import Expansion, Gaussian, Laplace
from streamkern.precondition import center_projection
from streamkern.precondition.center_projection import (
    MeasuredRows,
    center_eigensystem,
    jitter_report,
    largest_eigenvalue,
    measure_unprojected,
    project_exactly,
    project_inexactly,
)
from streamkern.precondition.nystrom import NystromPreconditioner
from tests import references

P, Q = 220, 12
ENGINE = default_engine()
laplace = partial(references.laplace, bandwidth=3.0)


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([n, seed]).normal(size=(n, 5))


@pytest.fixture(scope="module")
def expansion() -> Expansion:
    return Expansion(Laplace(3.0), rows(P))


@pytest.fixture(scope="module")
def nystrom(expansion: Expansion) -> NystromPreconditioner:
    return NystromPreconditioner(center_eigensystem(expansion, P, Q, 0.0, ENGINE))


def preconditioned_inverse(nystrom: NystromPreconditioner) -> np.ndarray:
    K = laplace(rows(P), rows(P))
    return np.linalg.inv(K) - nystrom.correction(np.eye(P))


def dense(projection) -> np.ndarray:
    return projection.apply(np.eye(P))


@pytest.mark.parametrize("p", [1, 511, 513])
def test_a_kernel_matrix_is_symmetric_to_the_bit(p: int):
    Z = rows(p).astype(np.float32)
    K = ENGINE.kernel_matrix(Expansion(Laplace(3.0), Z), p)
    assert K.dtype == np.float64
    assert np.array_equal(K, K.T)
    assert (np.diag(K) == 1).all()
    np.testing.assert_allclose(K, laplace(Z.astype(float), Z.astype(float)), atol=1e-7)


def test_exact_projection_is_the_inverse_less_the_preconditioner(expansion: Expansion, nystrom: NystromPreconditioner):
    expected = preconditioned_inverse(nystrom)
    np.testing.assert_allclose(dense(project_exactly(expansion, nystrom, ENGINE)), expected, atol=1e-6)
    np.testing.assert_allclose(
        dense(project_exactly(expansion, None, ENGINE)), np.linalg.inv(laplace(rows(P), rows(P))), atol=1e-6
    )


@pytest.mark.parametrize("products", [0, 1, 2, 5, 60])
def test_inexact_projection_is_positive_and_closes_in(expansion, nystrom, products):
    """It is exact on the eigenvectors it knows, and the more products, the nearer on the rest."""
    M = dense(project_inexactly(expansion, nystrom, products, ENGINE))
    K, E = laplace(rows(P), rows(P)), nystrom.eigensystem.vectors
    np.testing.assert_allclose(M, M.T, atol=1e-9)
    assert np.linalg.eigvalsh(M)[0] > 0
    expected = preconditioned_inverse(nystrom)
    np.testing.assert_allclose(M @ E, expected @ E, atol=1e-10)
    # relative errors 1 − λ p(λ) on the rest: below 1 everywhere, below 0.65 on [b/4k², b]
    values = np.linalg.eigvalsh(K)[: P - Q]
    errors = np.linalg.eigvals(np.eye(P) - M @ K).real
    off = np.sort(np.abs(errors))[:-Q]  # without those of E, where M K = σ_{q+1}/σ_i
    k = products + 1
    if products:
        assert off.max() < 1
        bound = project_inexactly(expansion, nystrom, products, ENGINE).bound
        assert bound >= values[-1]
        if values[0] >= bound / (4 * k**2):
            assert off.max() <= 1 / np.cosh(1) + 0.01


@pytest.mark.slow
def test_panels_of_threads_side_by_side_do_not_share_their_room():
    X = np.random.default_rng(4).normal(size=(2000, 8))
    expansion = Expansion(Laplace(3.0), X, tile_bytes=1 << 18)
    V = np.random.default_rng(5).normal(size=(2000, 40))
    alone = ENGINE.kernel_product(expansion, V)
    with ThreadsExecutor(4) as executor:
        for _ in range(20):
            np.testing.assert_array_equal(ENGINE.bound(executor).kernel_product(expansion, V), alone)


@pytest.mark.parametrize(("s", "slack"), [(P, 1 + 1e-9), (P // 2, 1.15), (P // 4, 1.5)])
def test_eigenpairs_of_all_centers_from_some(expansion: Expansion, s: int, slack: float):
    K = laplace(rows(P), rows(P))
    values = np.linalg.eigvalsh(K)[::-1]
    found = center_eigensystem(expansion, s, Q, 0.0, ENGINE)
    U = found.vectors
    np.testing.assert_allclose(U.T @ U, np.eye(Q), atol=1e-9)
    assert (found.values <= values[:Q] * (1 + 1e-9)).all()
    assert (found.values >= values[:Q] / slack).all()
    assert values[Q] / slack <= found.tail <= found.values[-1]
    V = np.eye(P) - U @ U.T
    assert np.linalg.eigvalsh(V @ K @ V)[-1] <= slack * values[Q]
    # no more is taken off than there is
    root = U * np.sqrt(NystromPreconditioner(found).damping)
    assert np.linalg.eigvalsh(root.T @ K @ root)[-1] <= 1


def test_the_tail_is_known_where_the_start_has_fewer_pairs_than_asked_for(expansion, monkeypatch):
    """As in float32, which resolves the first of them only: what follows the last one is no smaller for that."""
    few = Q // 2
    start = center_projection.top_eigensystem
    monkeypatch.setattr(
        center_projection,
        "top_eigensystem",
        lambda K, q, engine, floor: NystromPreconditioner(start(K, q, engine, floor)).truncated(few).eigensystem,
    )
    values = np.linalg.eigvalsh(laplace(rows(P), rows(P)))[::-1]
    found = center_eigensystem(expansion, P // 2, Q, 1e-9, ENGINE)
    assert len(found.values) == few - 1
    assert values[few - 1] / 1.15 <= found.tail <= found.values[-1]


@pytest.mark.parametrize("s", [20, P])
def test_eigenpairs_stop_where_the_rank_does(s: int):
    expansion = Expansion(Gaussian(30.0), rows(P))  # falls by orders of magnitude from one degree to the next
    found = center_eigensystem(expansion, s, Q, 1e-5, ENGINE)
    assert len(found.values) < Q
    assert found.values[-1] > 1e-5 * found.values[0]
    assert found.tail >= 1e-5 * found.values[0]


@pytest.mark.parametrize("kind", ["unprojected", "exact", "inexact"])
def test_what_is_measured_is_the_iteration_s_own(expansion: Expansion, nystrom: NystromPreconditioner, kind: str):
    """β, λ and the largest value are those of the dense preconditioned kernel."""
    X = rows(300, 1)
    K = laplace(X, rows(P))
    if kind == "unprojected":
        size = measure_unprojected(expansion, nystrom, X, ENGINE)
        dense_kernel = laplace(X, X) - K @ nystrom.correction(K.T)
        centers = np.zeros(1)
    else:
        exact = kind == "exact"
        made = (
            project_exactly(expansion, nystrom, ENGINE) if exact else project_inexactly(expansion, nystrom, 1, ENGINE)
        )
        size = MeasuredRows.of(expansion, X).measure(made)
        M = preconditioned_inverse(nystrom) if exact else dense(made)
        dense_kernel = K @ M @ K.T
        centers = np.diag(laplace(rows(P), rows(P)) @ M @ laplace(rows(P), rows(P)))
    top = np.linalg.eigvalsh((dense_kernel + dense_kernel.T) / 2)[-1] / len(X)
    measured = np.diag(dense_kernel)[: len(X) if kind == "unprojected" else MEASURED_ROWS]
    assert size.beta == pytest.approx(measured.mean(), rel=1e-5)
    assert 0.98 * top <= size.top <= 1.051 * top
    assert size.peak == pytest.approx(max(measured.max(), centers.max()), rel=1e-5)


def test_an_inexact_projection_never_holds_a_p_by_p_matrix():
    p = 2400
    expansion = Expansion(Laplace(3.0), rows(p).astype(np.float32), tile_bytes=1 << 20)
    tracemalloc.start()
    try:
        nystrom = NystromPreconditioner(center_eigensystem(expansion, 100, 10, 1e-5, ENGINE))
        projection = project_inexactly(expansion, nystrom, 1, ENGINE)
        projection.apply(np.ones((p, 2), np.float32))
        MeasuredRows.of(expansion, expansion.Z[:32] + 0.1).measure(projection)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= p * p * 4 * 0.7


@pytest.mark.parametrize("refused", [0, 2, 3])
def test_a_jitter_that_had_to_be_raised_is_reported_and_said(refused, expansion, nystrom, monkeypatch):
    left, real = [refused], type(ENGINE).kernel_factor

    def factor(engine: Any, expansion: Expansion, shift: float, K: Any = None) -> Any:
        if left[0]:
            left[0] -= 1
            raise sk.errors.NumericalError("no factor")
        return real(engine, expansion, shift, K)

    monkeypatch.setattr(type(ENGINE), "kernel_factor", factor)
    report = jitter_report(project_exactly(expansion, nystrom, ENGINE).jitter, expansion.dtype)
    assert report["jitter"] == pytest.approx([1e-12, 1e-9, 1e-6, 1e-4][refused])
    told = report.get("warnings", [])
    assert len(told) == (refused == 3)
    assert all("only with 0.0001 of its largest eigenvalue" in message for message in told)


def test_clusters_far_from_their_mean_have_a_factor_in_float64():
    """Kernel values of rows at ±1e6 are uncertain by more than the jitter; Direct trained on them."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 3))
    y = np.sin(X[:, 0]) + X[:, 1]
    X += np.where(rng.random(600) < 0.5, -1e6, 1e6)[:, None]
    model = sk.KernelRegressor(
        kernel=sk.Gaussian(3.0), centers=100, solver=sk.EigenPro(epochs=5, projection="exact"), dtype="float64",
        memory="8GiB", threads=1, scaling=None,
    )  # fmt: skip
    with pytest.warns(UserWarning, match=r"a factor only with 0.0001 of its largest eigenvalue .*scaled features"):
        model.fit(X, y)
    assert model.score(X, y) > 0.9
    assert model.result_.report["jitter"] == pytest.approx(1e-4)


@pytest.mark.parametrize("kernel", [Gaussian(30.0), Laplace(3.0)])
@pytest.mark.parametrize("jitter", [1e-9, JITTER["float32"]])
def test_a_factor_in_float32_is_that_of_float64(kernel: Any, jitter: float):
    """If float32 has too few digits for the jitter, K(Z, Z) is factored in float64.

    Otherwise the factor is compared with K(Z, Z) in float32, whose distances of near rows have few digits.
    """
    Z = rows(600).astype(np.float32)
    Z[300:] = Z[:300] + np.float32(1e-3) * rows(300, 1).astype(np.float32)  # pairs of near rows
    expansion = Expansion(kernel, Z)
    shift = jitter * largest_eigenvalue(ENGINE.kernel_matrix(expansion, 600), 600, ENGINE)
    W = ENGINE.kernel_factor(expansion, shift)
    assert W.dtype == np.float32
    W, apart = W.astype(np.float64), []
    for dtype in (np.float32, np.float64):
        K = ENGINE.kernel_matrix(expansion, 600, dtype).astype(np.float64) + shift * np.eye(600)
        apart.append(np.linalg.norm(W @ K @ W.T - np.eye(600), 2))
    narrow, wide = apart
    assert (wide if jitter == 1e-9 else narrow) <= 0.1


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_preconditioner_beside_its_factor_is_the_same_on_one_thread(dtype: Any):
    """With several threads, K(Z, Z) is factored while the eigensystem of the sample is computed."""
    X = rows(900).astype(dtype)
    y = np.sin(X[:, :1])
    prepared = []
    for threads in (1, 3):
        model = sk.KernelRegressor(
            kernel=Laplace(3.0), centers=500, solver=sk.EigenPro(s=200, q=30, projection="exact", epochs=2),
            dtype=np.dtype(dtype).name, threads=threads,
        )  # fmt: skip
        prepared.append(model.fit(X, y[:, 0]).predict(X))
    np.testing.assert_array_equal(*prepared)
    assert np.corrcoef(prepared[0], y[:, 0])[0, 1] > 0.9


@pytest.mark.parametrize("away", [1e-24, 1e25])
def test_eigenpairs_of_float64_centers_need_no_distances_in_float32(away: float):
    near, far = (
        center_eigensystem(Expansion(Laplace(3.0 * by), by * rows(P)), 100, Q, 1e-9, ENGINE) for by in (1.0, away)
    )
    np.testing.assert_allclose(far.values, near.values, rtol=1e-4)
