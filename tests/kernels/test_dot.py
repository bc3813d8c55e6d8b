from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.errors import ModelFormatError, UsageError
from streamkern.kernels import NTK, ArcCosine, DotProfile, Kernel, Linear, Polynomial, kernel_from_json


def exponential(inner: np.ndarray) -> np.ndarray:
    return np.exp(inner)


kernels = st.one_of(
    st.builds(Linear, st.floats(0, 3)),
    st.builds(Polynomial, st.integers(1, 7), st.floats(0.1, 2), st.floats(0, 3)),
    st.just(ArcCosine(0)),  # deeper, its entries near x = z are right to a few digits only
    st.builds(ArcCosine, st.integers(1, 2), st.integers(1, 3)),
    st.builds(NTK, st.integers(1, 6)),
)


def rows(seed: int, n: int, d: int, dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def test_linear_and_polynomial_values():
    X, Z = rows(0, 20, 4), rows(1, 30, 4)
    inner = X @ Z.T
    assert np.allclose(Linear(0.5)(X, Z), inner + 0.5)
    for degree in range(1, 9):
        assert np.allclose(Polynomial(degree, 0.3, 0.7)(X, Z), (0.3 * inner + 0.7) ** degree, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_one_layer_of_the_arc_cosine_is_the_mean_of_random_units(order: int):
    X, Z = rows(2, 6, 3), rows(3, 6, 3)
    w = rows(4, 400_000, 3)
    a, b = ((w @ part.T > 0) * np.maximum(w @ part.T, 1e-300) ** order for part in (X, Z))
    mean, square = 2 * a.T @ b / len(w), 4 * (a**2).T @ (b**2) / len(w)
    error = np.sqrt((square - mean**2) / len(w))
    assert (np.abs(ArcCosine(order)(X, Z) - mean) <= 5 * error).all()


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, 2])
def test_the_tangent_kernel_is_that_of_a_wide_network(depth: int):
    # Gradients of f(x) = ⟨v, h_L⟩, h_l = √(2/m) max(0, W_l h_{l−1}), with respect to every weight, at its random start.
    m, d = 6000, 4
    X = rows(5, 5, d)
    h, gradients = [X], []
    weights = [rows(6 + layer, m, d if layer == 0 else m, np.float32).astype(np.float64) for layer in range(depth)]
    for W in weights:
        pre = h[-1] @ W.T
        h.append(np.sqrt(2 / m) * np.maximum(pre, 0))
    back = rows(20, 1, m).repeat(len(X), axis=0)
    theta = h[-1] @ h[-1].T  # of v
    for layer in reversed(range(depth)):
        gate = np.sqrt(2 / m) * back * (h[layer + 1] > 0)
        gradients.append((gate @ gate.T) * (h[layer] @ h[layer].T))
        back = gate @ weights[layer]
    theta = theta + sum(gradients)
    assert np.abs(NTK(depth)(X) - theta).max() <= 0.1 * np.abs(theta).max()
    assert np.abs(NTK(depth + 1)(X) - theta).max() > 0.2 * np.abs(theta).max()


@given(depth=st.integers(1, 5), a=st.floats(0.01, 100), b=st.floats(0.01, 100))
def test_the_tangent_kernel_is_homogeneous(depth: int, a: float, b: float):
    X, Z = rows(7, 5, 3), rows(8, 4, 3)
    assert np.allclose(NTK(depth)(a * X, b * Z), a * b * NTK(depth)(X, Z), rtol=1e-9, atol=1e-9 * a * b)


@given(kernel=kernels, n=st.integers(1, 30), d=st.integers(1, 6), zeros=st.integers(0, 2))
def test_a_kernel_matrix_is_symmetric_positive_with_the_diagonal_that_diag_says(
    kernel: Kernel, n: int, d: int, zeros: int
):
    X = rows(9, n, d) / np.sqrt(d)
    X[:zeros] = 0
    K = kernel(X)
    assert not kernel.translation_invariant
    assert np.array_equal(np.diag(K), kernel.diag(X))
    scale = max(1.0, np.abs(K).max())
    computed = kernel(X, X)  # the diagonal as tiles compute it: what diag stands for
    assert np.abs(np.diag(computed) - kernel.diag(X)).max() <= 1e-6 * scale
    assert np.abs(K - K.T).max() <= 1e-7 * scale  # an angle near 0 has half of the digits
    assert np.linalg.eigvalsh((K + K.T) / 2)[0] >= -1e-7 * n * scale


# -- a user's profile


def test_a_profile_of_inner_products():
    X, Z = rows(15, 20, 4), rows(16, 30, 4)
    kernel = DotProfile(exponential)
    assert np.allclose(kernel(X, Z), np.exp(X @ Z.T))
    assert np.allclose(kernel.diag(X), np.exp((X * X).sum(1)))
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    with pytest.raises(ModelFormatError, match="does not import"):
        kernel_from_json(DotProfile(json.dumps).to_json())
    with pytest.raises(UsageError, match="cannot be found by name"):
        DotProfile(lambda t: t).to_json()
