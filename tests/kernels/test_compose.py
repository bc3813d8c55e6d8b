from __future__ import annotations

import json
import pickle
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.errors import ModelFormatError, UsageError
from streamkern.kernels import (
    NTK,
    Cauchy,
    Gaussian,
    Kernel,
    Laplace,
    Linear,
    Polynomial,
    Product,
    RadialProfile,
    Scaled,
    Sum,
    kernel_from_json,
    named_kernel,
)

atoms = st.sampled_from([Laplace(2.0), Gaussian(3.0), Cauchy(1.5), Linear(0.5), Polynomial(2, 0.1), NTK(2)])
kernels = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(lambda a, b: a + b, inner, inner),
        st.builds(lambda a, b: a * b, inner, inner),
        st.builds(lambda a, c: c * a, inner, st.floats(0.1, 10)),
    ),
    max_leaves=5,
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


@given(kernel=kernels, n=st.integers(1, 70), p=st.integers(1, 40))
def test_values_are_sums_products_and_multiples_of_the_parts_values(kernel: Kernel, n: int, p: int):
    X, Z = rows(0, n, 3), rows(1, p, 3)
    assert np.allclose(kernel(X, Z), value(kernel, X, Z), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@given(kernel=kernels, n=st.integers(1, 30))
def test_a_kernel_matrix_is_symmetric_positive_with_the_diagonal_that_diag_says(kernel: Kernel, n: int):
    X = rows(2, n, 3)
    K = kernel(X)
    scale = np.abs(K).max()
    assert np.array_equal(np.diag(K), kernel.diag(X))
    assert np.abs(np.diag(kernel(X, X)) - kernel.diag(X)).max() <= 1e-6 * scale
    assert np.abs(K - K.T).max() <= 1e-7 * scale
    assert np.linalg.eigvalsh((K + K.T) / 2)[0] >= -1e-6 * n * scale


@given(kernel=kernels)
def test_json_and_pickle_give_the_kernel_back(kernel: Kernel):
    assert kernel_from_json(json.loads(json.dumps(kernel.to_json()))) == kernel
    assert pickle.loads(pickle.dumps(kernel)) == kernel
    assert kernel_from_json(json.loads(json.dumps(kernel.to_json()))).translation_invariant == (
        kernel.translation_invariant
    )


@given(kernel=kernels)
def test_float32_stays_float32(kernel: Kernel):
    X, Z = rows(3, 40, 3), rows(4, 50, 3)
    K = kernel(X.astype(np.float32), Z.astype(np.float32))
    assert K.dtype == kernel.diag(X.astype(np.float32)).dtype == np.float32
    exact = kernel(X, Z)
    assert np.abs(K - exact).max() <= 1e-4 * np.abs(exact).max()


def test_it_is_invariant_where_all_parts_are():
    assert (Laplace() + 2 * Gaussian() * Cauchy()).translation_invariant
    assert not (Laplace() + Linear()).translation_invariant
    assert not (Laplace() * Linear()).translation_invariant
    assert not (2 * Linear()).translation_invariant


def test_operators_flatten_and_know_numbers():
    a, b, c = Laplace(), Gaussian(), Linear()
    assert a + b + c == Sum((a, b, c)) == Sum([a, b, c])  # type: ignore[arg-type]
    assert a * b * c == Product((a, b, c))
    assert a * (b + c) == Product((a, Sum((b, c))))
    for two in (2, 2.0, np.float64(2), np.float32(2), np.int64(2)):
        assert two * a == a * two == Scaled(a, 2.0)


@pytest.mark.parametrize(
    "wrong", [lambda: Laplace() + 1, lambda: Laplace() * "2", lambda: 1 + Laplace(), lambda: np.ones(3) * Laplace()]
)
def test_operators_refuse_what_is_no_kernel(wrong):
    with pytest.raises(TypeError):
        wrong()


@pytest.mark.parametrize(
    "data",
    [
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
    assert named_kernel("RBF", "here") == named_kernel("gaussian", "here") == Gaussian("median")
    assert named_kernel("laplace", "here") == Laplace("median")
    assert named_kernel("auto", "here") is named_kernel(None, "here") is None
    with pytest.raises(UsageError, match=r"'laplase'; did you mean 'laplace'\?"):
        named_kernel("laplase", "Pipeline(kernel=...)")
