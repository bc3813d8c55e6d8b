from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import strategies as st

from streamkern.errors import ModelFormatError
from streamkern.kernels import (
    Cauchy,
    ExponentialPower,
    Gaussian,
    Laplace,
    Matern,
    RadialProfile,
    kernel_from_json,
)


def multiquadric(squared: np.ndarray) -> np.ndarray:
    return 1 / np.sqrt(1 + squared)


bandwidths = st.floats(0.2, 20)
kernels = st.one_of(
    st.builds(Laplace, bandwidths),
    st.builds(Gaussian, bandwidths),
    st.builds(Matern, bandwidths, st.sampled_from([1.5, 2.5])),
    st.builds(Cauchy, bandwidths),
    st.builds(ExponentialPower, bandwidths, st.floats(0.1, 2)),
)


def test_the_norm_is_part_of_a_kernel_and_of_what_is_saved_only_where_it_is_1():
    assert Laplace(2.0).to_json() == {"name": "Laplace", "bandwidth": 2.0}
    kernel = ExponentialPower("median", 0.5, norm=1)
    assert kernel_from_json(json.loads(json.dumps(kernel.to_json()))) == kernel
    assert kernel.at_median(3.0) == ExponentialPower(3.0, 0.5, norm=1)
    assert Laplace(2.0) != Laplace(2.0, norm=1)
    assert (repr(Laplace(2.0)), repr(Laplace(2.0, norm=1))) == (
        "Laplace(bandwidth=2.0)",
        "Laplace(bandwidth=2.0, norm=1)",
    )


def rows(seed: int, n: int, d: int, dtype: type = np.float64) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d)).astype(dtype)


def test_the_exponential_powers_at_their_named_exponents():
    X, Z = rows(0, 20, 3), rows(1, 30, 3)
    assert np.allclose(ExponentialPower(3.0, 1.0)(X, Z), Laplace(3.0)(X, Z), rtol=1e-13)
    assert np.allclose(ExponentialPower(3.0, 2.0)(X, Z), Gaussian(3.0 / np.sqrt(2))(X, Z), rtol=1e-12)


def test_numbers_of_numpy_are_saved_as_numbers():
    kernel = Matern(np.float32(2), np.float64(1.5))  # type: ignore[arg-type]
    assert json.loads(json.dumps(kernel.to_json())) == {"name": "Matern", "bandwidth": 2.0, "nu": 1.5}


# -- a user's profile


def test_a_profile_is_evaluated_by_tiles_as_any_kernel_is():
    X, Z = rows(3, 300, 4), rows(4, 2100, 4)
    exact = multiquadric(((X[:, None] - Z[None]) ** 2).sum(-1))
    assert np.allclose(RadialProfile(multiquadric)(X, Z), exact, atol=1e-12)
    assert RadialProfile(multiquadric).diag(X.astype(np.float32)).dtype == np.float32
    assert pickle.loads(pickle.dumps(RadialProfile(multiquadric))) == RadialProfile(multiquadric)


def test_a_profile_is_saved_by_name_and_loading_does_not_import_it():
    saved = RadialProfile(json.dumps).to_json()  # any function that has a name
    assert saved == {"name": "RadialProfile", "function": "json:dumps"}
    with pytest.raises(ModelFormatError, match="'json:dumps', which loading does not import") as caught:
        kernel_from_json(saved)
    assert "give the kernel" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"name": None},
        {"name": ["Laplace"]},
        {"name": "Sinc"},
        {"name": "Laplace", "nu": 1},
        {"name": "Matern", "nu": 9},
    ],
)
def test_json_that_is_no_kernel_is_refused(data: dict):
    with pytest.raises(ModelFormatError):
        kernel_from_json(data)
