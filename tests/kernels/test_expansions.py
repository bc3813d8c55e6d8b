"""Functions of a basis: penalty, values, gradients, and the same bits on any number of threads and in any batch."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

import streamkern as sk
from streamkern.cpu import default_engine
from streamkern.cpu.gemm import VECTORS
from streamkern.engine import Engine
from streamkern.engine.parallel import row_parts
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.kernels import Basis, Expansion, Kernel
from tests.processors import own_products

ROWS = np.random.default_rng(0).normal(size=(40, 3))
BASES = {
    "kernel": Expansion(sk.Laplace(1.0), ROWS[:12]),
    "columns": sk.Identity().basis(3, ROWS.dtype),
    "waves": sk.RandomFourier(sk.Gaussian(1.0), 12).basis(3, ROWS.dtype),
}


@pytest.mark.parametrize("name", BASES)
def test_the_penalty_is_the_same_as_a_matrix_added_and_multiplied(name: str) -> None:
    basis: Basis = BASES[name]
    M = basis.width
    W = np.random.default_rng(1).normal(size=(M, 2))
    R = basis.penalty_matrix()
    assert (R is None) == basis.identity_penalty == (name != "kernel")
    if R is not None:
        np.testing.assert_allclose(R, sk.Laplace(1.0)(ROWS[:12]), rtol=1e-12)
    R = np.eye(M) if R is None else R
    A = np.zeros((M, M))
    basis.add_penalty(A, 0.5)
    np.testing.assert_allclose(np.tril(A), 0.5 * np.tril(R), rtol=1e-12)
    np.testing.assert_allclose(basis.penalise(W), R @ W, rtol=1e-12)


@pytest.mark.parametrize("name", BASES)
def test_values_of_some_functions_are_columns_of_those_of_all(name: str) -> None:
    basis: Basis = BASES[name]
    some = np.array([0, 2])
    np.testing.assert_allclose(basis.values_of(some, ROWS, default_engine()), basis.block(ROWS)[:, some], rtol=1e-12)


def multiquadric(squared: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(1 + squared)


def exponential(inner: np.ndarray) -> np.ndarray:
    return np.exp(inner / 4)


KERNELS = [
    sk.Laplace(2.0),
    sk.Laplace(3.0, norm=1),
    sk.Gaussian(1.5),
    sk.Cauchy(2.0),
    sk.Matern(2.0, 1.5),
    sk.Matern(2.0, 2.5),
    sk.ExponentialPower(2.0, 0.7),
    sk.ExponentialPower(2.0, 1.4),
    sk.ExponentialPower(2.0, 0.7, norm=1),
    sk.Linear(1.0),
    sk.Polynomial(3, 0.5, 1.0),
    sk.ArcCosine(0),
    sk.ArcCosine(1),
    sk.ArcCosine(2, 2),
    sk.NTK(2),
    sk.RadialProfile(multiquadric),
    sk.DotProfile(exponential),
    sk.Laplace(2.0) + 0.5 * sk.Polynomial(2),
    sk.Gaussian(2.0) * sk.NTK(1) * sk.Linear(1.0),
    sk.Laplace(3.0, norm=1) * sk.ExponentialPower(2.0, 0.7, norm=1),
]


@pytest.mark.parametrize("engine", [Engine(), default_engine()], ids=lambda engine: engine.name)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: repr(kernel)[:40])
def test_a_gradient_is_the_central_difference(kernel: Kernel, engine: Engine):
    rng = np.random.default_rng(0)
    Z, X, W = rng.normal(size=(40, 4)), rng.normal(size=(7, 4)), rng.normal(size=(40, 2))
    X[0] = Z[3] + 1e-3 * rng.normal(size=4)  # near a center, and not nearer than differences can see
    signs = np.where(rng.random((7, 2)) < 0.5, -1.0, 1.0)
    expansion = Expansion(kernel, Z, engine)
    found = expansion.engine.gradients(expansion, X, W, signs)
    step, expected = 1e-6, np.empty_like(X)
    for k in range(4):
        ahead, behind = (
            np.sum(signs * expansion.predict(X + sign * step * np.eye(4)[k], W), axis=1) for sign in (1, -1)
        )
        expected[:, k] = (ahead - behind) / (2 * step)
    np.testing.assert_allclose(found, expected, atol=2e-5 * np.abs(expected).max())
    alone = expansion.engine.gradients(expansion, X, W[:, :1])
    np.testing.assert_allclose(alone, expansion.engine.gradients(expansion, X, W[:, :1], np.ones((7, 1))), atol=1e-10)


def test_a_row_that_is_a_center_counts_for_nothing():
    """Where a Laplace kernel has no derivative: the other centers' terms are left."""
    Z = np.random.default_rng(1).normal(size=(5, 3))
    W = np.ones((5, 1))
    kernels = sk.Laplace(2.0), sk.Laplace(2.0, norm=1), sk.ExponentialPower(2.0, 0.5)
    for kernel, engine in itertools.product(kernels, (Engine(), default_engine())):
        whole, rest = Expansion(kernel, Z, engine), Expansion(kernel, Z[1:], engine)
        found = whole.engine.gradients(whole, Z[:1], W)
        np.testing.assert_allclose(found, rest.engine.gradients(rest, Z[:1], W[1:]), atol=1e-12)
        assert np.isfinite(found).all()


SOME = [sk.Laplace(3.0), sk.Gaussian(3.0), sk.Laplace(9.0, norm=1), sk.Polynomial(2), sk.NTK(), 2.0 * sk.Cauchy(2.0)]


def arrays(n: int, p: int, d: int, c: int, dtype: object, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in ((n, d), (p, d), (p, c)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", SOME, ids=repr)
def test_kernel_values_and_products_have_the_same_bits_for_any_number_of_threads(kernel: sk.Kernel, dtype: object):
    X, Z, W = arrays(700, 1100, 40, 3, dtype)
    assert len(row_parts(len(X), *Z.shape)) > 3
    values, products, whole = ([f(t) for t in (1, 2, 3)] for f in (
        lambda t: kernel(X, Z, threads=t), lambda t: kernel.matvec(X, Z, W, threads=t), lambda t: kernel(X, threads=t)
    ))  # fmt: skip
    for found in (values, products, whole):
        np.testing.assert_array_equal(found[1], found[0])
        np.testing.assert_array_equal(found[2], found[0])
    tolerance = 1e-4 if dtype == np.float32 else 1e-11
    np.testing.assert_allclose(
        products[0], values[0] @ W, rtol=tolerance, atol=tolerance * np.abs(values[0]).sum(1).max()
    )
    np.testing.assert_array_equal(np.diag(whole[0]), kernel.diag(X))


@pytest.mark.skipif(VECTORS != 2, reason="products of float64 are a library's without vectors of 512 bits")
@settings(max_examples=40, deadline=None)
@given(
    kernel=st.sampled_from(SOME), dtype=st.sampled_from([np.float32, np.float64]), p=st.integers(1, 300),
    d=st.integers(1, 40), c=st.integers(1, 20), first=st.integers(0, 60), count=st.integers(1, 60),
)  # fmt: skip
def test_a_row_is_a_row(kernel: sk.Kernel, dtype: object, p: int, d: int, c: int, first: int, count: int):
    """Outputs of a row are the same to the bit by itself, in any batch and at any place in it."""
    X, Z, W = arrays(61, p, d, c, dtype)
    basis = Expansion(kernel, Z)
    some = slice(first, first + count)
    np.testing.assert_array_equal(basis.predict(X[some], W), basis.predict(X, W)[some])


@own_products
def test_a_row_is_a_row_beyond_the_terms_of_one_sum():
    X, Z, W = arrays(20, 20_000, 2, 1, np.float64)
    basis = Expansion(sk.Laplace(3.0), Z)
    whole = basis.predict(X, W)
    np.testing.assert_allclose(whole, basis.block(X) @ W, rtol=1e-10, atol=1e-9)
    for i in (0, 7, 19):
        np.testing.assert_array_equal(basis.predict(X[i : i + 1], W), whole[i : i + 1])


def test_blas_has_its_threads_back():
    def threads() -> list[int]:
        return [info["num_threads"] for info in threadpool_info() if info["user_api"] == "blas"]

    before, inside = threads(), []

    class Looking(sk.Polynomial):
        def apply(self, *given: object) -> None:
            inside.extend(threads())
            super().apply(*given)

    X, Z, _ = arrays(700, 1100, 40, 1, np.float64)
    Looking(2)(X, Z, threads=2)
    assert set(inside) == {1}
    assert threads() == before


def test_a_contribution_may_call_a_threaded_verb_of_a_bound_engine():
    """Every thread of the pool waited for another, for ever."""
    A = np.random.default_rng(0).standard_normal((700, 300))
    with ThreadsExecutor(2) as executor:
        engine = default_engine().bound(executor)
        expected = engine.gram(A)
        for found in executor.imap(lambda _: engine.gram(A), range(4)):
            np.testing.assert_array_equal(found, expected)
        for found in executor.host_map(lambda _: list(executor.imap(abs, [-1, 2])), range(4)):
            assert found == [1, 2]
