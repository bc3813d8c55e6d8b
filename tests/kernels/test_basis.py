"""The penalty of a basis, and values of some of its functions: those of a kernel at centers, and those of features."""

import numpy as np
import pytest

import streamkern as sk
from streamkern.cpu import default_engine
from streamkern.kernels import Basis, Expansion

X = np.random.default_rng(0).normal(size=(40, 3))
BASES = {
    "kernel": Expansion(sk.Laplace(1.0), X[:12]),
    "columns": sk.Identity().basis(3, X.dtype),
    "waves": sk.RandomFourier(sk.Gaussian(1.0), 12).basis(3, X.dtype),
}


@pytest.mark.parametrize("name", BASES)
def test_the_penalty_is_the_same_as_a_matrix_added_and_multiplied(name: str) -> None:
    basis: Basis = BASES[name]
    M = basis.width
    W = np.random.default_rng(1).normal(size=(M, 2))
    R = basis.penalty_matrix()
    assert (R is None) == basis.identity_penalty == (name != "kernel")
    if R is not None:
        np.testing.assert_allclose(R, sk.Laplace(1.0)(X[:12]), rtol=1e-12)
    R = np.eye(M) if R is None else R
    A = np.zeros((M, M))
    basis.add_penalty(A, 0.5)
    np.testing.assert_allclose(np.tril(A), 0.5 * np.tril(R), rtol=1e-12)
    np.testing.assert_allclose(basis.penalise(W), R @ W, rtol=1e-12)


@pytest.mark.parametrize("name", BASES)
def test_values_of_some_functions_are_columns_of_those_of_all(name: str) -> None:
    basis: Basis = BASES[name]
    some = np.array([0, 2])
    np.testing.assert_allclose(basis.values_of(some, X, default_engine()), basis.block(X)[:, some], rtol=1e-12)
