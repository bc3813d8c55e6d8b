"""Outputs computed tile by tile: to the bit those of a whole panel, and near those of float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkern as sk
from streamkern.cpu import fused_predict
from streamkern.cpu.gemv import MOST, prepared, times
from streamkern.errors import UsageError
from streamkern.kernels import Expansion
from streamkern.kernels.base import Kernel

KERNELS = [sk.Laplace(3.0), sk.Gaussian(3.0), sk.Cauchy(2.0), sk.ExponentialPower(3.0, 0.7), sk.Matern(3.0, 1.5)]


def case(kernel: Kernel, n: int, p: int, d: int, c: int) -> tuple[Expansion, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n + p + d + c)
    X, Z, W = (rng.standard_normal(shape, dtype=np.float32) for shape in ((n, d), (p, d), (p, c)))
    Z[: min(n, p) // 2] = X[: min(n, p) // 2]  # distances of 0, too
    return Expansion(kernel, Z), X, W


@given(
    st.sampled_from(KERNELS),
    st.integers(1, 2 * fused_predict.ROWS + 9),
    st.integers(1, 3 * fused_predict.COLUMNS),
    st.sampled_from([1, 2, 18, 64, 300, 1500]),
    st.sampled_from([1, 3, 5, 10, MOST]),
    st.sampled_from([lambda X: X, lambda X: X[::2], np.asfortranarray]),
    st.booleans(),
)
@settings(deadline=None, max_examples=80)
def test_outputs_are_to_the_bit_those_of_a_panel(kernel, n, p, d, c, laid, head):
    basis, X, W = case(kernel, n, p, d, c)
    X = laid(X)
    if head and p > 1:
        basis, W = basis.head(p // 2), W[: p // 2]
    if basis.resident[1] is None:
        pytest.skip("BLAS multiplies here, whose bits depend on the number of rows")
    np.testing.assert_array_equal(basis.predict(X, W), times(basis.block(X), prepared(W)))


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_outputs_are_those_of_float64(kernel: Kernel):
    basis, X, W = case(kernel, 300, 1100, 18, 7)
    X += np.float32(0.1)  # near a distance of 0 its root is rounded by far more than its square
    exact = kernel(X.astype(np.float64), basis.Z.astype(np.float64)) @ W
    size = kernel(X.astype(np.float64), basis.Z.astype(np.float64)) @ np.abs(W)
    assert (np.abs(basis.predict(X, W) - exact) <= 3e-6 * size).all()


def test_one_compiled_call_computes_outputs_of_radial_kernels(monkeypatch: pytest.MonkeyPatch):
    basis, X, W = case(sk.Laplace(3.0), 40, 70, 18, 2)
    if basis.resident[1] is None:
        pytest.skip("this processor has no fused multiply-add")
    monkeypatch.setattr(type(basis.engine), "panels", None)
    assert basis.predict(X, W).shape == (40, 2)


def test_no_rows_no_centers_and_no_outputs():
    basis, X, W = case(sk.Laplace(3.0), 40, 70, 18, 2)
    assert not Expansion(basis.kernel, basis.Z[:0]).predict(X, W[:0]).any()
    assert basis.predict(X[:0], W).shape == (0, 2)
    assert basis.predict(X, W[:, :0]).shape == (40, 0)


@pytest.mark.parametrize("wrong", ["weights", "width", "norms"])
def test_shapes_that_do_not_fit_are_refused(wrong: str):
    basis, X, W = case(sk.Laplace(3.0), 40, 70, 18, 2)
    z_norms, packed = basis.resident
    if packed is None:
        pytest.skip("this processor has no fused multiply-add")
    x_norms = basis.engine.loops.row_norms(X)
    given = {
        "weights": (X, packed, W[:-1], x_norms, z_norms),
        "width": (np.hstack([X, X]), packed, W, x_norms, z_norms),
        "norms": (X, packed, W, x_norms[:-1], z_norms),
    }[wrong]
    with pytest.raises(UsageError, match="a row of weights for each center"):
        basis.engine.loops.radial_outputs(*given, *basis.kernel.profile)


def test_a_row_that_is_not_finite_spoils_only_its_own_outputs():
    basis, X, W = case(sk.Laplace(3.0), 300, 600, 18, 2)
    whole = basis.predict(X, W)
    X[7, 3] = np.nan
    found = basis.predict(X, W)
    assert np.isnan(found[7]).all()
    np.testing.assert_array_equal(np.delete(found, 7, axis=0), np.delete(whole, 7, axis=0))
