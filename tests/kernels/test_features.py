import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.errors import ModelFormatError, NumericalError, UsageError
from streamkern.kernels import (
    NTK,
    ArcCosine,
    Basis,
    Cauchy,
    DotProfile,
    FeatureMap,
    Gaussian,
    Identity,
    Kernel,
    KernelFeatures,
    Laplace,
    Linear,
    Matern,
    Nystrom,
    RandomFourier,
    ReLUFeatures,
    feature_map_from_json,
)

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
SPECTRAL = [Gaussian(2.0), Laplace(4.0), Matern(3.0), Matern(3.0, nu=2.5)]
MAPS = [
    Identity(),
    *(RandomFourier(kernel, 70, seed=3) for kernel in SPECTRAL),
    RandomFourier(Gaussian(2.0), 70, seed=3, orthogonal=True),
    ReLUFeatures(70, seed=3),
    KernelFeatures(Laplace(4.0)),
    KernelFeatures(NTK(2)),
    Nystrom(Laplace(4.0)),
    Nystrom(Linear(1.0) + Gaussian(2.0)),
]
maps = pytest.mark.parametrize("made", MAPS, ids=str)


def rows(seed: int, n: int, d: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def basis(made: FeatureMap, d: int, dtype: np.dtype = F64, center: float = 0.0) -> Basis:
    return made.basis(d, dtype, Z=rows(100, 60, d) if made.needs_centers else None, center=center)


def gram(made: FeatureMap, X: np.ndarray) -> np.ndarray:
    phi = made.basis(X.shape[1], F64).block(X)
    return phi @ phi.T


def maps_to(kernel: Kernel, M: int, seed: int, orthogonal: bool = False) -> FeatureMap:
    return ReLUFeatures(M, seed) if isinstance(kernel, ArcCosine) else RandomFourier(kernel, M, seed, orthogonal)


# -- towards the kernel


@pytest.mark.parametrize("kernel", [*SPECTRAL, ArcCosine(1)], ids=str)
@pytest.mark.parametrize("orthogonal", [False, True])
def test_the_error_decays_as_one_over_the_root_of_the_number_of_features(kernel: Kernel, orthogonal: bool):
    X = rows(0, 40, 6)
    exact = kernel(X)
    errors = {}
    for M in (48, 480, 4800):  # whole blocks of 6
        parts = [(gram(maps_to(kernel, M, seed, orthogonal), X) - exact) ** 2 for seed in range(4)]
        errors[M] = np.sqrt(np.mean(parts))
    for few, many in ((48, 480), (480, 4800)):
        assert 2.2 <= errors[few] / errors[many] <= 4.5  # √10
    assert errors[4800] <= 0.02 * exact.max()


def test_orthogonal_frequencies_have_a_smaller_variance():
    X = rows(2, 30, 24) / np.sqrt(24)
    exact = Gaussian(1.0)(X)
    off = ~np.eye(30, dtype=bool)

    def error(orthogonal: bool) -> float:
        parts = [gram(RandomFourier(Gaussian(1.0), 48, seed, orthogonal), X) - exact for seed in range(150)]
        return float(np.mean(np.square(parts)[:, off]))

    assert error(True) <= 0.85 * error(False)


def test_orthogonal_frequencies_are_orthogonal_by_blocks_of_d_and_as_long_as_before():
    plain, made = (RandomFourier(Gaussian(2.0), 23, 5, orthogonal) for orthogonal in (False, True))
    for d in (1, 8, 40):
        omega = made.frequencies(d)
        assert np.allclose(np.linalg.norm(omega, axis=1), np.linalg.norm(plain.frequencies(d), axis=1))
        for start in range(0, 23, d):
            block = omega[start : start + d]
            products = block @ block.T
            assert np.allclose(products, np.diag(np.diag(products)), atol=1e-10)


def test_fewer_features_are_the_first_of_more_and_seeds_differ():
    for orthogonal in (False, True):
        many = RandomFourier(Laplace(2.0), 64, 1, orthogonal).frequencies(5)
        few = RandomFourier(Laplace(2.0), 23, 1, orthogonal).frequencies(5)
        assert np.allclose(many[:23], few, rtol=1e-10)
        assert not np.allclose(many, RandomFourier(Laplace(2.0), 64, 2, orthogonal).frequencies(5))


def test_frequencies_of_laplace_end_where_floats_do():
    omega = RandomFourier(Laplace(1.0), 200_000, 0).frequencies(1)
    assert np.isfinite(omega).all()
    assert 1e4 < np.abs(omega).max() < 6e6
    assert np.median(np.abs(omega)) == pytest.approx(1.0, abs=0.02)  # the Cauchy distribution's


# -- Nystrom and kernel features


@pytest.mark.parametrize("kernel", [Laplace(4.0), Matern(2.0), Gaussian(1.0), ArcCosine(1), Linear(1.0)], ids=str)
@pytest.mark.parametrize(("dtype", "bound"), [(F64, 1e-7), (F32, 2e-3)])
def test_with_all_rows_as_centers_nystrom_is_the_kernel(kernel: Kernel, dtype: np.dtype, bound: float):
    X = rows(3, 700, 5)
    shift = X.mean(axis=0) if kernel.translation_invariant else 0.0
    phi = Nystrom(kernel).basis(5, dtype, X, shift).block((X - shift).astype(dtype)).astype(np.float64)
    exact = kernel(X)
    assert np.abs(phi @ phi.T - exact).max() <= bound * np.abs(exact).max()


def test_repeated_centers_are_no_obstacle():
    Z = np.repeat(rows(6, 10, 3), 3, axis=0)
    for dtype in (F32, F64):
        phi = Nystrom(Gaussian(1.0)).basis(3, dtype, Z).block(Z.astype(dtype))
        assert np.allclose(phi @ phi.T, Gaussian(1.0)(Z), atol=1e-3)


def cosine(inner: np.ndarray) -> np.ndarray:
    return np.cos(3 * inner)


def test_a_kernel_that_is_not_positive_definite_is_named():
    with pytest.raises(NumericalError, match="not positive definite") as caught:
        Nystrom(DotProfile(cosine)).basis(3, F64, rows(7, 20, 3))
    assert "DotProfile" in str(caught.value)


def test_kernel_features_are_kernel_values_and_the_identity_is_the_rows():
    X, Z = rows(8, 20, 3), rows(9, 15, 3)
    for kernel in (Cauchy(2.0), NTK(1)):
        assert np.allclose(KernelFeatures(kernel).basis(3, F64, Z).block(X), kernel(X, Z), atol=1e-12)
    assert np.array_equal(Identity().basis(3, F64).block(X), X)


# -- what every map promises


@maps
def test_width_dtype_and_bytes_are_as_said(made: FeatureMap):
    for dtype in (F32, F64):
        features = basis(made, 7, dtype)
        assert features.width == made.width(7, 60)
        phi = features.block(rows(11, 9, 7).astype(dtype))
        assert phi.shape == (9, features.width)
        assert phi.dtype == features.dtype == dtype

        def held(value: object) -> int:
            if isinstance(value, np.ndarray):
                return value.nbytes
            if isinstance(value, tuple):
                return sum(map(held, value))
            return sum(map(held, vars(value).values())) if isinstance(value, Basis) else 0

        assert held(features) == made.resident_bytes(7, dtype, 60)


@maps
def test_float32_is_float64_rounded(made: FeatureMap):
    X = rows(12, 200, 7)
    exact = basis(made, 7).block(X)
    phi = basis(made, 7, F32).block(X.astype(np.float32))
    # Fast waves and inverse factors magnify the rounding of rows: by ‖ω‖ and by the root of the condition number.
    tolerance = 2e-3 if isinstance(made, Nystrom | RandomFourier) else 2e-5
    assert np.abs(phi - exact).max() <= tolerance * np.abs(exact).max()


@maps
def test_the_features_of_a_row_do_not_depend_on_centring(made: FeatureMap):
    X, center = rows(13, 30, 4) + 3.0, 2.5
    if made.needs_centers and not made.translation_invariant:
        with pytest.raises(UsageError, match="changes when rows are centred"):
            basis(made, 4, center=center)
        return
    assert np.allclose(basis(made, 4, center=center).block(X - center), basis(made, 4).block(X), atol=1e-8)


@given(made=st.sampled_from(MAPS), n=st.integers(0, 30), tile=st.sampled_from([1, 5000, 1 << 20]))
def test_tiles_and_panels_do_not_matter(made: FeatureMap, n: int, tile: int):
    X = rows(14, n, 4)
    whole = basis(made, 4).block(X)
    features = basis(made, 4)
    features.tile_bytes = tile
    panels = [panel.copy() for _, panel in features.engine.panels(features, X)]
    assert np.allclose(np.concatenate([np.empty((0, features.width)), *panels]), whole, atol=1e-10)
    W = rows(15, features.width, 3)
    assert np.allclose(features.predict(X, W), whole @ W, atol=1e-9)
    buffer = np.full((n, features.width + 7), np.nan)
    features.block(X, out=buffer[:, 3:-4])
    assert np.allclose(buffer[:, 3:-4], whole, atol=1e-10)
    assert np.isnan(buffer[:, :3]).all()
    assert np.isnan(buffer[:, -4:]).all()


def test_more_rows_and_features_than_a_tile():
    X = rows(16, 600, 3)
    for made in (RandomFourier(Gaussian(2.0), 2100), ReLUFeatures(2100)):
        features = made.basis(3, F64)
        whole = features.block(X)
        assert np.allclose(features.block(X[510:515]), whole[510:515], atol=1e-12)
        assert np.linalg.matrix_rank(whole[:, 2000:2100]) == 100 if isinstance(made, RandomFourier) else True
    Z = rows(17, 1300, 3)  # several blocks of the triangular product
    phi = Nystrom(Laplace(1.0)).basis(3, F64, Z).block(X)
    K = Laplace(1.0)(Z)
    assert np.allclose(phi @ phi.T, Laplace(1.0)(X, Z) @ np.linalg.solve(K, Laplace(1.0)(Z, X)), atol=1e-8)


@maps
def test_pickling_and_json_keep_the_map_and_the_basis(made: FeatureMap):
    X = rows(18, 10, 4)
    features = basis(made, 4)
    expected = features.block(X)
    list(features.engine.panels(features, X))  # the scratch of a thread stays behind
    assert pickle.loads(pickle.dumps(made)) == made
    assert np.array_equal(pickle.loads(pickle.dumps(features)).block(X), expected)
    assert np.array_equal(basis(pickle.loads(pickle.dumps(made)), 4).block(X), expected)
    assert feature_map_from_json(json.loads(json.dumps(made.to_json()))) == made


def test_the_first_numbers_of_a_seed_are_what_they_were():
    # Weights are regenerated and not saved: a model saved yesterday needs yesterday's features.
    made = RandomFourier(Laplace(1.0), 4, seed=12345)
    assert made.frequencies(2).ravel() == pytest.approx(FIRST_FREQUENCIES, rel=1e-5)
    assert made.basis(2, F64).block(np.zeros((1, 2))).ravel() == pytest.approx(FIRST_FEATURES, rel=1e-5)


FIRST_FREQUENCIES = [-6.689424, -3.7469327, 0.13250857, -0.58182614, -0.15943145, 1.0344237, -0.2032337, 0.84859875]
FIRST_FEATURES = [0.58162869, 0.34093777, -0.24188722, 0.7007325]


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"name": "Fourier"},
        {"name": "Identity", "M": 3},
        {"name": "RandomFourier", "M": 3},
        {"name": "RandomFourier", "M": 3, "kernel": "Laplace"},
        {"name": "RandomFourier", "M": 3, "kernel": {"name": "Cauchy"}},
        {"name": "Nystrom", "kernel": {"name": "Sinc"}},
        {"name": "ReLUFeatures", "M": 0},
    ],
)
def test_json_that_is_no_map_is_refused(data: dict):
    with pytest.raises(ModelFormatError):
        feature_map_from_json(data)
