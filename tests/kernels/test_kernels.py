"""Kernels besides what the suite says of each: sums and products, users' functions, names, parameters, and JSON."""

import json
import pickle
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.centers import RPCholesky
from streamkern.errors import ModelFormatError, UsageError
from streamkern.kernels import (
    NTK,
    ArcCosine,
    Cauchy,
    DotProfile,
    ExponentialPower,
    Gaussian,
    Kernel,
    Laplace,
    Linear,
    Matern,
    Nystrom,
    Polynomial,
    Product,
    RadialProfile,
    RandomFourier,
    Scaled,
    Sum,
    kernel_from_json,
    named_kernel,
)

ATOMS = [Laplace(2.0), Gaussian(3.0), Cauchy(1.5), Linear(0.5), Polynomial(2, 0.1), NTK(2)]
combined = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, c: c * a, inner, st.floats(0.1, 10)),
    ),
    max_leaves=5,
)
of_inner_products = st.one_of(
    st.builds(Linear, st.floats(0, 3)),
    st.builds(Polynomial, st.integers(1, 7), st.floats(0.1, 2), st.floats(0, 3)),
    st.just(ArcCosine(0)),  # deeper, its entries near x = z are right to a few digits only
    st.builds(ArcCosine, st.integers(1, 2), st.integers(1, 3)),
    st.builds(NTK, st.integers(1, 6)),
)


def rows(seed: int, n: int, d: int, dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def value(kernel: Kernel, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """The kernel's matrix by its parts' own matrices."""
    match kernel:
        case Sum(parts):
            return reduce(np.add, [value(part, X, Z) for part in parts])
        case Product(parts):
            return reduce(np.multiply, [value(part, X, Z) for part in parts])
        case Scaled(part, scale):
            return scale * value(part, X, Z)
        case _:
            return kernel(X, Z)


@given(kernel=combined, n=st.integers(1, 70), p=st.integers(1, 40))
def test_values_are_sums_products_and_multiples_of_the_parts_values(kernel: Kernel, n: int, p: int):
    X, Z = rows(0, n, 3), rows(1, p, 3)
    assert np.allclose(kernel(X, Z), value(kernel, X, Z), rtol=1e-6, atol=1e-9)


@given(kernel=combined | of_inner_products, n=st.integers(1, 30), d=st.integers(1, 6), zeros=st.integers(0, 2))
def test_a_kernel_matrix_is_symmetric_positive_with_the_diagonal_that_diag_says(kernel, n, d, zeros):
    X = rows(9, n, d) / np.sqrt(d)
    X[:zeros] = 0
    K = kernel(X)
    assert np.array_equal(np.diag(K), kernel.diag(X))
    scale = max(1.0, np.abs(K).max())
    computed = kernel(X, X)  # the diagonal as tiles compute it: what diag stands for
    assert np.abs(np.diag(computed) - kernel.diag(X)).max() <= 1e-6 * scale
    assert np.abs(K - K.T).max() <= 1e-7 * scale  # an angle near 0 has half of the digits
    assert np.linalg.eigvalsh((K + K.T) / 2)[0] >= -1e-6 * n * scale
    if isinstance(kernel, Linear | Polynomial | ArcCosine | NTK):
        assert not kernel.translation_invariant


@given(kernel=combined)
def test_json_and_pickle_give_the_kernel_back(kernel: Kernel):
    again = kernel_from_json(json.loads(json.dumps(kernel.to_json())))
    assert again == kernel == pickle.loads(pickle.dumps(kernel))
    assert again.translation_invariant == kernel.translation_invariant


def test_it_is_invariant_where_all_parts_are():
    assert (Laplace() + 2 * Gaussian() * Cauchy()).translation_invariant
    assert not any(
        kernel.translation_invariant for kernel in (Laplace() + Linear(), Laplace() * Linear(), 2 * Linear())
    )


def test_operators_flatten_know_numbers_and_refuse_what_is_no_kernel():
    a, b, c = Laplace(), Gaussian(), Linear()
    assert a + b + c == Sum((a, b, c)) == Sum([a, b, c])  # type: ignore[arg-type]
    assert a * b * c == Product((a, b, c))
    assert a * (b + c) == Product((a, Sum((b, c))))
    for two in (2, 2.0, np.float64(2), np.float32(2), np.int64(2)):
        assert two * a == a * two == Scaled(a, 2.0)
    for wrong in (lambda: a + 1, lambda: a * "2", lambda: 1 + a, lambda: np.ones(3) * a):
        with pytest.raises(TypeError):
            wrong()


def test_parameters_have_names_and_are_set_in_a_new_kernel() -> None:
    kernel = 2.0 * Laplace(3.0) + Polynomial(2, 0.5)
    assert kernel.get_params(deep=False) == {"parts": kernel.parts}
    named = kernel.get_params()
    assert (named["parts__0__kernel__bandwidth"], named["parts__0__scale"], named["parts__1__degree"]) == (3.0, 2.0, 2)
    other = kernel.set_params(parts__0__kernel__bandwidth=5.0, parts__1__gamma=1)
    assert other == 2.0 * Laplace(5.0) + Polynomial(2, 1.0)
    assert kernel.parts[0].kernel == Laplace(3.0)
    assert Laplace(1.0).set_params() == Laplace(1.0)
    assert kernel.set_params(parts__1=Laplace(1.0)).parts[1] == Laplace(1.0)
    for wrong in ("width", "bandwidth__a", "parts__7__scale"):
        with pytest.raises(UsageError, match=f"no parameter '{wrong}'"):
            (kernel if "parts" in wrong else Laplace(1.0)).set_params(**{wrong: 1.0})
    with pytest.raises(UsageError, match="The bandwidth is -1"):
        Laplace(1.0).set_params(bandwidth=-1)


def test_a_kernel_is_named() -> None:
    assert named_kernel("RBF", "here") == named_kernel("gaussian", "here") == Gaussian("auto")
    assert named_kernel("laplace", "here") == Laplace("auto")
    assert named_kernel("auto", "here") is named_kernel(None, "here") is None
    with pytest.raises(UsageError, match=r"'laplase'; did you mean 'laplace'\?"):
        named_kernel("laplase", "Pipeline(kernel=...)")


@pytest.mark.parametrize(
    "build",
    [
        lambda: Laplace("auto") + Linear(),
        lambda: 2 * Gaussian("auto"),
        lambda: Product((Gaussian("auto"), Linear())),
        lambda: RandomFourier(Gaussian("auto"), 300),
        lambda: Nystrom(Gaussian("auto")),
        lambda: RPCholesky(100, Gaussian("auto")),
        lambda: Laplace("auto", norm=1),
    ],
)
def test_a_search_chooses_the_bandwidth_of_a_kernel_that_is_passed_alone(build: Callable[[], Any]):
    with pytest.raises(UsageError, match="search"):
        build()


def test_the_norm_is_part_of_a_kernel_and_of_what_is_saved_only_where_it_is_1():
    assert Laplace(2.0).to_json() == {"name": "Laplace", "bandwidth": 2.0}
    kernel = ExponentialPower("median", 0.5, norm=1)
    assert kernel_from_json(json.loads(json.dumps(kernel.to_json()))) == kernel
    assert kernel.at_median(3.0) == ExponentialPower(3.0, 0.5, norm=1)
    assert Laplace(2.0) != Laplace(2.0, norm=1)
    assert [repr(Laplace(2.0)), repr(Laplace(2.0, norm=1))] == [
        "Laplace(bandwidth=2.0)",
        "Laplace(bandwidth=2.0, norm=1)",
    ]


def test_numbers_of_numpy_are_saved_as_numbers():
    kernel = Matern(np.float32(2), np.float64(1.5))  # type: ignore[arg-type]
    assert json.loads(json.dumps(kernel.to_json())) == {"name": "Matern", "bandwidth": 2.0, "nu": 1.5}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"name": None},
        {"name": ["Laplace"]},
        {"name": "Sinc"},
        {"name": "Laplace", "nu": 1},
        {"name": "Matern", "nu": 9},
        {"name": "Sum", "parts": []},
        {"name": "Sum", "parts": [{"name": "Laplace"}, {"name": "Sinc"}]},
        {"name": "Sum", "parts": 3},
        {"name": "Scaled", "kernel": {"name": "Laplace"}},
        {"name": "Scaled", "kernel": 3, "scale": 1.0},
        (Laplace() + RadialProfile(json.dumps)).to_json(),
    ],
)
def test_json_that_is_no_kernel_is_refused(data: dict):
    with pytest.raises(ModelFormatError):
        kernel_from_json(data)


# ------------------------------------------------------------------------------------------- kernels of inner products


def test_polynomials_of_every_degree():
    X, Z = rows(0, 20, 4), rows(1, 30, 4)
    for degree in range(1, 9):
        expected = (0.3 * X @ Z.T + 0.7) ** degree
        assert np.allclose(Polynomial(degree, 0.3, 0.7)(X, Z), expected, rtol=1e-12, atol=1e-12)


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


# ---------------------------------------------------------------------------------------------------- users' functions


def multiquadric(squared: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(1 + squared)


@pytest.mark.parametrize("kind", [RadialProfile, DotProfile])
def test_a_user_s_function_is_evaluated_by_tiles_as_any_kernel_is(kind: Any):
    X, Z = rows(3, 300, 4), rows(4, 2100, 4)
    kernel = RadialProfile(multiquadric) if kind is RadialProfile else DotProfile(np.exp)
    exact = multiquadric(((X[:, None] - Z[None]) ** 2).sum(-1)) if kind is RadialProfile else np.exp(X @ Z.T)
    assert np.allclose(kernel(X, Z), exact, atol=1e-12)
    assert np.allclose(kernel.diag(X), np.diag(kernel(X, X.copy())), atol=1e-12)
    assert kernel.diag(X.astype(np.float32)).dtype == np.float32
    assert pickle.loads(pickle.dumps(kernel)) == kernel


@pytest.mark.parametrize("kind", [RadialProfile, DotProfile])
def test_a_user_s_function_is_saved_by_name_and_loading_does_not_import_it(kind: Any):
    saved = kind(json.dumps).to_json()  # any function that has a name
    assert saved == {"name": kind.__name__, "function": "json:dumps"}
    with pytest.raises(ModelFormatError, match="'json:dumps', which loading does not import") as caught:
        kernel_from_json(saved)
    assert "give the kernel" in str(caught.value)
    with pytest.raises(UsageError, match="cannot be found by name"):
        kind(lambda t: t).to_json()
