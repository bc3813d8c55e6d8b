"""Public calls on every core: the same bits for any number of threads, and a row is the same in any company."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_info

import streamkern as sk
from streamkern.cpu import default_engine
from streamkern.cpu.gemm import VECTORS
from streamkern.engine.parallel import row_parts
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.kernels import Expansion
from tests.processors import own_products

KERNELS = [sk.Laplace(3.0), sk.Gaussian(3.0), sk.Laplace(9.0, norm=1), sk.Polynomial(2), sk.NTK(), 2.0 * sk.Cauchy(2.0)]


def arrays(n: int, p: int, d: int, c: int, dtype: object, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return tuple(rng.standard_normal(shape).astype(dtype) for shape in ((n, d), (p, d), (p, c)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
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
    kernel=st.sampled_from(KERNELS), dtype=st.sampled_from([np.float32, np.float64]), p=st.integers(1, 300),
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
