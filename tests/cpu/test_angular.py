import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.cpu import loops
from streamkern.cpu.elementwise import CompiledLoops
from streamkern.engine.elementwise import ANGULAR_KINDS, Loops
from streamkern.errors import UsageError
from tests.processors import elementwise

FAST, REFERENCE = CompiledLoops(), Loops()
both = pytest.mark.parametrize("loops", [FAST, REFERENCE], ids=lambda b: b.name)
kinds = pytest.mark.parametrize("kind", ANGULAR_KINDS)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])
acos32 = elementwise(loops.acos32)
cosine32 = elementwise(loops._cosine32)


@pytest.mark.slow
def test_the_arc_cosine_is_within_three_ulps_on_its_whole_domain():
    bits = np.arange(0, int(np.float32(1).view(np.uint32)) + 1, 397, dtype=np.uint32)
    x = np.concatenate([bits.view(np.float32), -bits.view(np.float32), np.float32([1, -1, 0.5, -0.5])])
    out = acos32(x)
    exact = np.arccos(x.astype(np.float64))
    error = np.abs(out - exact) / np.spacing(np.maximum(exact, 1e-30).astype(np.float32))
    assert error[exact > 0].max() <= 3
    assert (out[exact == 0] == 0).all()


def test_the_cosine_of_turns_is_within_two_ulps_of_one_wherever_turns_have_a_fraction():
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-size, size, 300_000) for size in (1, 100, 2.0**20)]).astype(np.float32)
    out = cosine32(x)
    turns = x.astype(np.float64)
    exact = np.cos(2 * np.pi * (turns - np.rint(turns)))
    assert np.abs(out - exact).max() <= 2 * 2.0**-24
    assert np.abs(out).max() <= 1


def test_the_cosine_of_turns_at_the_ends():
    x = np.float32([0, 0.25, 0.5, 0.75, 1, -0.25, -0.5, 1 / 6, 1e9, 8e37, np.inf, np.nan])
    out = cosine32(x)
    assert out[:7].tolist() == [1, 0, -1, 0, 1, 0, -1]
    assert out[7] == pytest.approx(0.5, abs=1e-7)
    assert (np.abs(out[8:10]) <= 1).all()
    assert np.isnan(out[10:]).all()


def expected(kind: str, depth: int, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """The recursions on covariances of Cho & Saul 2009 and of Arora et al. 2019, as they write them."""
    order = {"arccos0": 0, "arccos1": 1, "arccos2": 2, "ntk": 1}[kind]
    J = [
        lambda t: np.pi - t,
        lambda t: np.sin(t) + (np.pi - t) * np.cos(t),
        lambda t: 3 * np.sin(t) * np.cos(t) + (np.pi - t) * (1 + 2 * np.cos(t) ** 2),
    ]
    k, kx, kz = X @ Z.T, (X * X).sum(1), (Z * Z).sum(1)
    theta = k
    for _ in range(depth):
        both = np.outer(kx, kz)
        angle = np.arccos(np.clip(k / np.sqrt(both), -1, 1))
        k = both ** (order / 2) * J[order](angle) / np.pi
        kx, kz = (J[order](0) / np.pi * q**order for q in (kx, kz))
        theta = k + theta * J[0](angle) / np.pi
    return theta if kind == "ntk" else k


@both
@kinds
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_formulas(loops: Loops, kind: str, depth: int):
    rng = np.random.default_rng(1)
    X, Z = rng.standard_normal((20, 5)), rng.standard_normal((30, 5))
    S = X @ Z.T
    loops.angular(S, loops.row_norms(X), loops.row_norms(Z), kind, depth)
    exact = expected(kind, depth, X, Z)
    assert np.allclose(S, exact, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("depth", [1, 4])
def test_float32_is_as_near_as_its_angles_allow(kind: str, depth: int):
    rng = np.random.default_rng(2)
    X, Z = (rng.standard_normal((n, 784)).astype(np.float32) / 28 for n in (40, 300))
    S = X @ Z.T
    FAST.angular(S, FAST.row_norms(X), FAST.row_norms(Z), kind, depth)
    exact = expected(kind, depth, X.astype(np.float64), Z.astype(np.float64))
    assert np.abs(S - exact).max() <= 1e-6 * np.abs(exact).max()


@both
@kinds
@dtypes
def test_the_ends_of_the_angle_are_guarded(loops: Loops, kind: str, dtype: type):
    # Rows along one line: rounding takes their cosines beyond 1 and -1, where there is no angle.
    x = np.random.default_rng(3).standard_normal(50).astype(dtype)
    X = np.outer(np.linspace(-3, 3, 31, dtype=dtype), x) / np.linalg.norm(x)
    norms, S = loops.row_norms(X), X @ X.T
    deep = S.copy()
    loops.angular(deep, norms, norms, kind, 9 if kind != "arccos2" else 2)
    assert np.isfinite(deep).all()
    loops.angular(S, norms, norms, kind, 1)
    size = np.sqrt(norms[16:])  # the rows that point the same way
    unit = {"arccos0": 1.0, "arccos1": np.outer(size, size), "ntk": 2 * np.outer(size, size)}
    exact = unit.get(kind, 3 * np.outer(size, size) ** 2)
    assert np.allclose(S[16:, 16:], exact, rtol=5e-4 if dtype == np.float32 else 1e-7)


@both
@kinds
def test_a_row_of_zeros_is_at_a_right_angle(loops: Loops, kind: str):
    S = np.zeros((1, 2))
    loops.angular(S, np.zeros(1), np.ones(2), kind, 1)
    assert S.tolist() == [[0.5, 0.5]] if kind == "arccos0" else [[0.0, 0.0]]


@both
@kinds
@dtypes
def test_a_nan_stays_a_nan(loops: Loops, kind: str, dtype: type):
    S = np.zeros((1, 40), dtype)
    S[0, 20] = np.nan
    loops.angular(S, np.ones(1, dtype), np.ones(40, dtype), kind, 2)
    assert np.flatnonzero(np.isnan(S)).tolist() == [20]


@kinds
@dtypes
@given(b=st.integers(0, 4), p=st.integers(0, 70), left=st.integers(0, 5), right=st.integers(0, 5))
def test_a_tile_of_a_larger_buffer_is_computed_alone_and_alike(kind, dtype, b, p, left, right):
    rng = np.random.default_rng(4)
    buffer = rng.random((b + 2, left + p + right)).astype(dtype)
    before = buffer.copy()
    x_norms, z_norms = rng.random(2 * b).astype(dtype)[::2] + 1, rng.random(p).astype(dtype) + 1
    tile, phases = buffer[1 : b + 1, left : left + p], z_norms
    for loop in (
        lambda S: FAST.angular(S, x_norms, z_norms, kind, 2),
        lambda S: FAST.cosines(S, phases, 0.5),
    ):
        alone = tile.copy()
        loop(tile)
        loop(alone)
        assert np.array_equal(tile, alone)
        tile[...] = before[1 : b + 1, left : left + p]
    assert np.array_equal(buffer, before)


@both
@dtypes
def test_cosines(loops: Loops, dtype: type):
    rng = np.random.default_rng(5)
    S, phases = (4 * rng.standard_normal((20, 300))).astype(dtype), rng.random(300).astype(dtype)
    exact = 0.3 * np.cos(2 * np.pi * (S.astype(np.float64) + phases))
    loops.cosines(S, phases, 0.3)
    assert np.abs(S - exact).max() <= (2e-6 if dtype == np.float32 else 1e-14)


@both
@pytest.mark.parametrize("S", [np.zeros((2, 4)), np.zeros((2, 3), np.int64), np.zeros((2, 6))[:, ::2]])
def test_a_tile_that_does_not_fit_is_refused(loops: Loops, S: np.ndarray):
    with pytest.raises(UsageError):
        loops.angular(S, np.ones(2), np.ones(3), "ntk", 1)
    with pytest.raises(UsageError):
        loops.cosines(S, np.ones(3), 1.0)
