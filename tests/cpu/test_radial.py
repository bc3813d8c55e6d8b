import math

import numpy as np
import pytest

import streamkern as sk
from streamkern.cpu import loops
from streamkern.cpu.elementwise import CompiledLoops
from streamkern.cpu.gemm import pack
from streamkern.engine.elementwise import RADIAL_KINDS, Loops
from streamkern.kernels import Expansion
from tests.processors import elementwise

FAST, REFERENCE = CompiledLoops(), Loops()
both = pytest.mark.parametrize("loops", [FAST, REFERENCE], ids=lambda b: b.name)
kinds = pytest.mark.parametrize("kind", RADIAL_KINDS)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
exp32 = elementwise(loops.exp32)
halvings32 = elementwise(loops.halvings32)
log32 = elementwise(loops.log32)
sqrt32 = elementwise(math.sqrt)
exp64 = elementwise(loops.exp64)


def ulps(got: np.ndarray, exact: np.ndarray) -> float:
    return float((np.abs(got - exact) / np.spacing(exact.astype(np.float32))).max())


def every_float(low: float, high: float, stride: int) -> np.ndarray:
    """Every ``stride``-th float32 of a positive interval, in order."""
    first, last = (int(np.float32(x).view(np.uint32)) for x in (low, high))
    return np.arange(first, last, stride, dtype=np.uint32).view(np.float32)


@pytest.mark.slow
def test_the_exponential_is_within_an_ulp_and_a_half_on_its_whole_domain():
    x = -np.concatenate([every_float(1e-38, 87.3365, 101), every_float(1e-3, 87.3365, 23)])
    out = exp32(x)
    assert ulps(out, np.exp(x.astype(np.float64))) <= 1.5
    order = np.argsort(x, kind="stable")
    assert (np.diff(out[order]) >= -2 * np.spacing(out[order][1:])).all()


def test_the_exponential_at_the_ends():
    tiny = np.finfo(np.float32).tiny
    x = np.array([0, -0.0, -1e-45, -87.33654, -87.33655, -100, -1e30, -np.inf, np.nan], np.float32)
    out = exp32(x)
    assert out[:3].tolist() == [1, 1, 1]
    assert tiny <= out[3] < 1.001 * tiny
    assert out[4:8].tolist() == [0, 0, 0, 0]  # no subnormal on the way to 0
    assert np.isnan(out[8])


@pytest.mark.slow
def test_powers_of_one_half_are_within_an_ulp_on_their_whole_domain():
    t = np.concatenate([every_float(1e-38, 126, 101), every_float(1e-3, 126, 23)])
    out = halvings32(t)
    assert ulps(out, np.exp2(-t.astype(np.float64))) <= 1.1
    order = np.argsort(t, kind="stable")
    assert (np.diff(out[order]) <= np.spacing(out[order][1:])).all()


def test_powers_of_one_half_at_the_ends():
    t = np.array([0, 1e-45, 1, 126, 126.0001, 1000, 1e30, np.inf, np.nan], np.float32)
    out = halvings32(t)
    assert out[:8].tolist() == [1, 1, 0.5, np.finfo(np.float32).tiny, 0, 0, 0, 0]  # no subnormal on the way to 0
    assert np.isnan(out[8])


def test_the_exponential_of_float64_is_within_an_ulp_and_a_quarter_and_ends_as_that_of_float32_does():
    x = -np.concatenate(
        [np.linspace(0, 2, 100_001), np.linspace(2, 708.3964, 400_001), np.geomspace(1e-300, 1, 100_001)]
    )
    out = exp64(x)
    exact = np.exp(x.astype(np.longdouble))
    if np.finfo(np.longdouble).nmant > 60:
        assert float((np.abs(out - exact) / np.spacing(exact.astype(np.float64))).max()) <= 1.25
    np.testing.assert_allclose(out, np.exp(x), rtol=5e-16)
    ends = np.array([0, -0.0, -5e-324, -708.3965, -745, -1e300, -np.inf, np.nan])
    out = exp64(ends)
    np.testing.assert_array_equal(out, [1, 1, 1, 0, 0, 0, 0, np.nan])


@pytest.mark.slow
def test_the_logarithm_is_within_an_ulp_and_a_half():
    x = np.concatenate([every_float(np.finfo(np.float32).tiny, 3e38, 101), every_float(0.5, 2, 7)])
    out = log32(x)
    exact = np.log(x.astype(np.float64))
    assert ulps(out[exact != 0], exact[exact != 0]) <= 1.5
    assert (out[exact == 0] == 0).all()


def test_the_root_is_correctly_rounded():
    x = every_float(np.finfo(np.float32).tiny, 3e38, 101)
    out = sqrt32(x)
    assert np.array_equal(out, np.sqrt(x.astype(np.float64)).astype(np.float32))  # half a unit, as IEEE 754 has it


# Bounds on the absolute error of k, given float32 inner products and norms: from the exponential's ulp, and from the
# rounding of t = r/σ, which t exp(−t) <= 1/e turns into at most a few units of 6e-8.
BOUND = {np.float32: 4e-7, np.float64: 2e-15}


@kinds
@dtypes
def test_every_kind_equals_the_reference_in_float64(kind: str, dtype: type):
    rng = np.random.default_rng(0)
    x_norms, z_norms = (rng.random(n).astype(dtype) * 50 + 20 for n in (33, 200))
    S = (rng.random((33, 200)).astype(dtype) - 0.7) * 40
    # The distances as float32 rounds them: what is tested is the profile; cancellation has its own test.
    squared = np.maximum((x_norms[:, None] + z_norms) - (S + S), 0)
    for bandwidth in (0.05, 1.0, 7.0, 1e4):
        for exponent in (0.3, 1.0, 2.0) if kind == "exponential_power" else (1.0,):
            params = {"bandwidth": bandwidth, "exponent": exponent}
            fast, exact = S.copy(), -0.5 * squared.astype(np.float64)
            FAST.radial(fast, x_norms, z_norms, kind, params)
            REFERENCE.radial(exact, np.zeros(33), np.zeros(200), kind, params)
            assert np.abs(fast - exact).max() <= BOUND[dtype]
            assert fast.min() >= 0
            assert fast.max() <= 1 + BOUND[dtype]
            positive = np.abs(fast)[fast != 0]
            assert (positive >= np.finfo(dtype).tiny).all()


@kinds
@dtypes
def test_a_point_is_as_near_to_itself_as_rounding_allows(kind: str, dtype: type):
    # Centred data of 784 features: norms near 784, so r² carries an error of some 1e-4 in float32, r one of 1e-2.
    X = np.random.default_rng(3).standard_normal((64, 784)).astype(dtype)
    norms = FAST.row_norms(X)
    S = X @ X.T
    FAST.radial(S, norms, norms, kind, {"bandwidth": 20.0, "exponent": 1.0})
    assert not np.isnan(S).any()
    assert S.max() <= 1
    assert np.diagonal(S).min() > 1 - (2e-3 if dtype == np.float32 else 1e-7)


@kinds
def test_a_distance_that_rounding_made_negative_is_zero(kind: str):
    S = np.array([[1.0000001, 1.0]], np.float32)
    FAST.radial(S, np.ones(1, np.float32), np.ones(2, np.float32), kind, {"bandwidth": 1.0, "exponent": 0.5})
    assert S.tolist() == [[1.0, 1.0]]


@both
@kinds
@dtypes
def test_a_nan_stays_a_nan(loops: Loops, kind: str, dtype: type):
    S = np.zeros((1, 40), dtype)
    S[0, 20] = np.nan
    loops.radial(S, np.ones(1, dtype), np.ones(40, dtype), kind, {"bandwidth": 1.0, "exponent": 0.5})
    assert np.flatnonzero(np.isnan(S)).tolist() == [20]


@both
@dtypes
def test_a_user_profile_is_applied_to_squared_distances(loops: Loops, dtype: type):
    X = np.random.default_rng(5).standard_normal((7, 3)).astype(dtype)
    norms, S = loops.row_norms(X), X @ X.T
    loops.radial(S, norms, norms, lambda s: 1 / np.sqrt(1 + s), {})
    exact = 1 / np.sqrt(1 + ((X[:, None] - X[None]).astype(np.float64) ** 2).sum(-1))
    assert np.allclose(S, exact, atol=1e-6)


@dtypes
@pytest.mark.parametrize(
    "kernel", [sk.Laplace(2.0), sk.Gaussian(2.0), sk.Cauchy(2.0), sk.Matern(2.0, 2.5), sk.ExponentialPower(2.0, 0.7)]
)
@pytest.mark.parametrize(("n", "p", "d"), [(1, 1, 1), (65, 513, 18), (300, 600, 257), (130, 2049, 5)])
def test_values_of_a_block_are_those_of_products_and_profiles_in_turn(kernel, n, p, d, dtype):
    rng = np.random.default_rng(n)
    X, Z = rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(p, d)).astype(dtype)
    if pack(Z) is None:
        pytest.skip("a library multiplies rows of this width on this processor")

    class InTurns(type(kernel)):
        profile = None

    turns, whole = Expansion(InTurns(**vars(kernel)), Z), np.full((n, p + 3), np.nan, dtype)
    InTurns.apply = lambda self, *tile: kernel.apply(*tile)
    turns = turns.block(X)
    Expansion(kernel, Z).block(X[::-1][::-1], whole[:, :p])
    np.testing.assert_array_equal(whole[:, :p], turns)
    assert np.isnan(whole[:, p:]).all()
    np.testing.assert_allclose(turns, kernel(X.astype(np.float64), Z.astype(np.float64)), atol=1e-4)
