"""The GPU's loops, compiled for the host, against NumPy in float64: rows, kernel values and the sums of a step."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkern import rng
from streamkern.engine.elementwise import ANGULAR_KINDS, RADIAL_KINDS, Loops
from streamkern.errors import UsageError
from streamkern.gpu import cuda_source
from streamkern.gpu.loops import BlockTarget, Sides, pulled_splits
from streamkern.testing.elementwise import LoopsSuite
from tests.cuda_host import HostLoops, needs_compiler

pytestmark = needs_compiler

LOOPS, REFERENCE = HostLoops(), Loops()
PARAMS = {"bandwidth": 2.5, "exponent": 0.7}
LAPLACE = ("laplace", PARAMS)
few = settings(max_examples=12)
"""A shape takes milliseconds and a variant of the loops seconds to compile: tests draw shapes and name variants."""

rows = st.integers(1, 150)
columns = st.one_of(st.integers(1, 300), st.sampled_from([64, 65, 127, 128, 129]))
seeds = st.integers(0, 2**32 - 1)


class TestSuite(LoopsSuite):
    @pytest.fixture
    def loops(self) -> Loops:
        return LOOPS


# -------------------------------------------------------------------------------------------------------------- rows


def test_noise_is_the_reference_s_for_any_id_copy_seed_and_width():
    """Ids beyond 32 bits and below zero, copies beyond 31 bits, every remainder of the width by four.

    A row two thousand columns wide has angles in all eighths of a turn, and one close to each of their bounds.
    """
    ids = np.array([0, 1, 2**40 + 3, -1, 2**63 - 1], dtype=np.int64)
    for d, seed, copy in ((1, 0, 0), (2, -3, 1), (3, 2**70 + 5, 2**31), (9, 7, 2**32 - 1), (2000, 1, 0)):
        out: Any = np.zeros((5, d), np.float32)
        LOOPS.add_noise(out, ids, copies=copy, seed=seed, sigma=1.0)
        np.testing.assert_allclose(out, rng.normal_rows(seed, copy, ids, d), rtol=0, atol=1e-6)


@pytest.mark.parametrize("stored", cuda_source.STORED)
def test_rows_of_every_stored_type_are_gathered_and_scaled(stored: str):
    raw = (np.arange(35).reshape(5, 7) - (0 if stored.startswith("u") else 17)).astype(stored)
    out, expected = np.empty((3, 7), np.float32), np.empty((3, 7), np.float32)
    for loops, into in ((LOOPS, out), (REFERENCE, expected)):
        loops.assemble(raw, np.array([4, 0, 4]), into, scale=0.1, offset=np.linspace(-1, 1, 7))
    np.testing.assert_allclose(out, expected, rtol=3e-7, atol=3e-7)


@few
@given(n=rows, d=st.integers(1, 70), power=st.integers(-60, 100), seed=seeds)
def test_split_rows_are_sums_of_two_halves(n: int, d: int, power: int, seed: int):
    """To 2^-22 of each number; rows and centers are in the order in which their product has the low terms first."""
    X = (np.random.default_rng(seed).normal(size=(n, d)) * 2.0**power).astype(np.float32)
    X[0] = 0.0
    of_rows, of_centers = LOOPS.split_halves(X, False), LOOPS.split_halves(X, True)
    width = -(-d // 8) * 8
    high, low, again = np.split(of_rows.numbers.view(np.float16).astype(np.float64), 3, axis=1)
    assert high.shape == (n, width)
    assert not high[:, d:].any()
    assert not low[:, d:].any()
    np.testing.assert_array_equal(again, high)
    expected = np.hstack([low, high, high]).astype(np.float16)
    np.testing.assert_array_equal(of_centers.numbers.view(np.float16), expected)
    scale = of_rows.factors.astype(np.float64)
    np.testing.assert_array_equal(np.frexp(scale)[0], 0.5)  # powers of two
    error = np.abs((high + low)[:, :d] * scale[:, None] - X)
    assert (error <= 2.0**-22 * np.abs(X) + 2.0**-25 * scale[:, None]).all()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(of_rows.norms, REFERENCE.row_norms(X))
    for a, b in ((of_rows.norms, of_centers.norms), (of_rows.factors, of_centers.factors)):
        np.testing.assert_array_equal(a, b)


def tensor_product(A: Any, B: Any) -> Any:
    """A Bᵀ as a tensor core sums it: exactly over 16 products, then cut off to float32, not rounded."""
    total = np.zeros((len(A), len(B)), np.float32)
    for start in range(0, A.shape[1], 16):
        exact = total + A[:, start : start + 16].astype(np.float64) @ B[:, start : start + 16].astype(np.float64).T
        total = exact.astype(np.float32)
        over = np.abs(total) > np.abs(exact)
        total[over] = np.nextafter(total[over], np.float32(0))
    return total


def laplace_errors(X: Any, Z: Any, bandwidth: float) -> tuple[float, float]:
    """The largest error of a value from products of halves, and from float32's product."""
    profile = ("laplace", {"bandwidth": bandwidth})
    wide_x, wide_z = X.astype(np.float64), Z.astype(np.float64)
    exact = wide_x @ wide_z.T
    REFERENCE.radial(exact, REFERENCE.row_norms(wide_x), REFERENCE.row_norms(wide_z), *profile)
    x, z = LOOPS.split_halves(X, False), LOOPS.split_halves(Z, True)
    halves = tensor_product(x.numbers.view(np.float16), z.numbers.view(np.float16))
    LOOPS.values(halves, Sides(x.norms, z.norms, x.factors, z.factors, profile))
    plain = X @ Z.T
    LOOPS.values(plain, Sides(x.norms, z.norms, profile=profile))
    return float(np.abs(halves - exact).max()), float(np.abs(plain - exact).max())


def pictures(n: int, seed: int) -> Any:
    """Rows like the images of Fashion-MNIST in [0, 1]: half of the pixels are black, the others bright, and alike."""
    made = np.random.default_rng(seed)
    shapes = made.random((10, 784)) < 0.5
    bright = made.uniform(0.3, 1.0, (10, 784))
    which = made.integers(0, 10, n)
    return np.clip(shapes[which] * bright[which] + 0.05 * made.normal(size=(n, 784)), 0, 1).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["noisy images, centred", "positive rows"])
def test_products_of_halves_are_nearly_as_accurate_as_float32_s(kind: str):
    """A tensor core cuts sums off, most where all products are positive; low terms first lose little.

    A third of the rows are copies of centers but for their noise, where the root makes most of an error of a distance.
    """
    made = np.random.default_rng(3)
    if kind == "positive rows":
        Z, X = made.random((250, 784)), made.random((160, 784))
    else:
        Z, X = pictures(250, 1), pictures(160, 2)
    X[:60] = Z[:60]
    X, Z = X + 0.1 * made.normal(size=X.shape), Z + 0.1 * made.normal(size=Z.shape)
    center = 0 if kind == "positive rows" else Z.mean(axis=0)
    halves, plain = laplace_errors((X - center).astype(np.float32), (Z - center).astype(np.float32), 20.0)
    assert plain <= (2e-6 if kind == "positive rows" else 1e-6)  # BLAS adds in an order of each processor's own
    assert halves <= (4e-6 if kind == "positive rows" else 2e-6)


# -------------------------------------------------------------------------------------------------------- kernel values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("kind", ANGULAR_KINDS)
def test_angles_are_the_reference_s(kind: str, depth: int, dtype: Any):
    made = np.random.default_rng(4)
    X, Z = made.normal(size=(5, 6)).astype(dtype) / 3, made.normal(size=(7, 6)).astype(dtype) / 3
    X[2] = 0
    S = X @ Z.T
    expected = S.copy()
    x, z = REFERENCE.row_norms(X), REFERENCE.row_norms(Z)
    REFERENCE.angular(expected, x, z, kind, depth)
    LOOPS.angular(S, x, z, kind, depth)
    near = 2e-6 if dtype == np.float32 else 1e-14
    np.testing.assert_allclose(S, expected, atol=near, rtol=near)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-12)])
def test_waves_are_the_reference_s(dtype: Any, tolerance: float):
    made = np.random.default_rng(5)
    S = made.uniform(-3, 3, (6, 9)).astype(dtype)
    phases, expected = made.uniform(0, 1, 9).astype(dtype), S.copy()
    REFERENCE.cosines(expected, phases, 0.3)
    LOOPS.cosines(S, phases, 0.3)
    np.testing.assert_allclose(S, expected, rtol=0, atol=tolerance)


@pytest.mark.slow
def test_a_user_s_profile_sees_squared_distances():
    X = np.random.default_rng(6).normal(size=(5, 4)).astype(np.float32)
    S, norms = X @ X.T, LOOPS.row_norms(X)
    LOOPS.radial(S, norms, norms, lambda s: s + 1, {})
    np.testing.assert_allclose(S, np.square(X[:, None] - X).sum(axis=2) + 1, atol=1e-5)


def test_shapes_that_disagree_are_refused():
    S = np.ones((3, 4), np.float32)
    for call in (
        lambda: LOOPS.radial(S, np.ones(4), np.ones(4), "laplace", PARAMS),
        lambda: LOOPS.angular(S, np.ones(3), np.ones(4), "ntk", 0),
        lambda: LOOPS.cosines(S, np.ones(3), 1.0),
        lambda: LOOPS.row_norms(np.ones((3, 4), np.int64)),
        lambda: LOOPS.assemble(S, np.arange(3), np.empty((2, 4), np.float32), scale=1, offset=0),
        lambda: LOOPS.add_noise(S, np.arange(2), copies=0, seed=0, sigma=1.0),
    ):
        with pytest.raises(UsageError):
            call()


# ------------------------------------------------------------------------------------------------------- sums of a step


class Block:
    """Inner products of random rows, what belongs to them, and their kernel values in float64.

    Args:
        profile: kind and parameters; None for values that S holds.
    """

    def __init__(self, n: int, p: int, seed: int, dtype: Any = np.float32, profile: Any = LAPLACE) -> None:
        self.random = np.random.default_rng(seed)
        X, Z = self.random.normal(size=(n, 6)).astype(dtype), self.random.normal(size=(p, 6)).astype(dtype)
        self.S, self.K = X @ Z.T, X.astype(np.float64) @ Z.astype(np.float64).T
        self.sides, self.dtype = Sides(), dtype
        if profile is not None:
            self.sides = Sides(LOOPS.row_norms(X), LOOPS.row_norms(Z), profile=profile)
            wide = (REFERENCE.row_norms(a.astype(np.float64)) for a in (X, Z))
            REFERENCE.radial(self.K, *wide, *profile)
        # Of a value: its rounding in float32, and of the distance near 0, where a root makes much of it.
        self.error = (4e-6 if profile is not None else 4e-7) if dtype == np.float32 else 1e-13

    def normal(self, *shape: int) -> Any:
        return self.random.normal(size=shape).astype(self.dtype)

    def check(self, found: Any, exact: Any, K: Any, V: Any, *, more: Any = 0.0) -> None:
        """The error of a sum is that of its values, and of additions: the root of their number times a rounding."""
        assert found.dtype == self.dtype
        assert found.shape == exact.shape
        eps = float(np.finfo(self.dtype).eps)
        terms = np.abs(K) @ np.abs(V)
        bound = (
            self.error * np.abs(V).sum(axis=0) + 2 * eps * np.sqrt(len(V)) * terms + 4 * eps * np.abs(more) + 4 * eps
        )
        assert (np.abs(found - exact) <= bound).all(), float((np.abs(found - exact) / bound).max())


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [1, 10, 11, 12, 13, 16])
def test_products_with_few_columns_are_numpy_s(outputs: int):
    """Either side of 10 outputs, from which a warp has fewer rows, and of 12, from which tiles are lower."""

    @few
    @given(n=rows, p=columns, seed=seeds)
    def check(n: int, p: int, seed: int) -> None:
        block = Block(n, p, seed, profile=None)
        W, r, into = block.normal(p, outputs), block.normal(n, outputs), block.normal(p, outputs)
        F, losses = LOOPS.outputs(block.S, Sides(), W)
        assert losses is None
        block.check(F, block.K @ W, block.K, W)
        block.check(LOOPS.pulled(block.S, Sides(), r), block.K.T @ r, block.K.T, r)
        found = LOOPS.pulled(block.S, Sides(), r, into.copy())
        block.check(found, into + block.K.T @ r, block.K.T, r, more=into)

    check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", RADIAL_KINDS)
def test_sums_of_every_kernel_are_numpy_s(kind):
    @settings(max_examples=4)
    @given(n=rows, p=columns, seed=seeds)
    def check(n: int, p: int, seed: int) -> None:
        block = Block(n, p, seed, profile=(kind, PARAMS))
        W, r = block.normal(p, 3), block.normal(n, 3)
        block.check(LOOPS.outputs(block.S, block.sides, W)[0], block.K @ W, block.K, W)
        block.check(LOOPS.pulled(block.S, block.sides, r), block.K.T @ r, block.K.T, r)

    check()


@pytest.mark.slow
@few
@given(n=rows, p=columns, seed=seeds)
def test_sums_in_double_are_numpy_s(n: int, p: int, seed: int):
    block = Block(n, p, seed, np.float64)
    W, r = block.normal(p, 10), block.normal(n, 10)
    block.check(LOOPS.outputs(block.S, block.sides, W)[0], block.K @ W, block.K, W)
    block.check(LOOPS.pulled(block.S, block.sides, r), block.K.T @ r, block.K.T, r)


def test_sums_over_many_rows_are_cut_into_parts():
    """Of 700 rows and one column of blocks there are several parts, which the last block adds up."""
    block = Block(700, 70, 0)
    assert pulled_splits(700, 70) > 5
    r = block.normal(700, 3)
    block.check(LOOPS.pulled(block.S, block.sides, r), block.K.T @ r, block.K.T, r)


def test_a_tile_of_a_larger_array_is_read_by_its_stride():
    block = Block(40, 70, 1, profile=None)
    larger = np.full((50, 90), np.nan, np.float32)
    larger[3:43, 7:77] = block.S
    W, r = block.normal(70, 4), block.normal(40, 4)
    for call in (
        lambda S: LOOPS.outputs(S, Sides(), W)[0],
        lambda S: LOOPS.pulled(S, Sides(), r),
    ):
        np.testing.assert_array_equal(call(larger[3:43, 7:77]), call(block.S))


def test_no_row_has_no_sums():
    S: Any = np.empty((0, 30), np.float32)
    assert LOOPS.outputs(S, Sides(), np.ones((30, 2), np.float32))[0].shape == (0, 2)
    assert not LOOPS.pulled(S, Sides(), np.ones((0, 2), np.float32)).any()
    into = np.ones((30, 2), np.float32)
    np.testing.assert_array_equal(LOOPS.pulled(S, Sides(), np.ones((0, 2), np.float32), into), 1)


def residual_of(F: Any, target: BlockTarget) -> tuple[Any, float]:
    """F − y in float64, times the weights, and its loss, by their definitions."""
    y, w = target
    found = F - (np.eye(F.shape[1])[y] if y.ndim == 1 else y)
    weights = np.ones(len(F)) if w is None else w
    return found * weights[:, None], float((weights * np.square(found).sum(axis=1)).sum())


def target_of(block: Block, n: int, c: int, codes: bool, weighted: bool) -> BlockTarget:
    y = block.random.integers(0, c, n) if codes else block.random.normal(size=(n, c))
    return BlockTarget(y, block.random.uniform(0.5, 2.0, n) if weighted else None)


@pytest.mark.parametrize("codes", [True, False])
def test_residuals_and_their_loss_are_numpy_s(codes):
    @few
    @given(n=rows, p=columns, seed=seeds, weighted=st.booleans())
    def check(n: int, p: int, seed: int, weighted: bool) -> None:
        block = Block(n, p, seed)
        W, target = block.normal(p, 3), target_of(block, n, 3, codes, weighted)
        r, losses = LOOPS.outputs(block.S, block.sides, W, target)
        exact, loss = residual_of(block.K @ W, target)
        block.check(r, exact, block.K * (1 if target.w is None else target.w[:, None]), 2 * W, more=exact)
        assert losses.dtype == np.float64
        error = np.abs(r.astype(np.float64) - exact).max()
        assert abs(losses.sum() - loss) <= 2 * 2 * error * np.abs(exact).sum() + 1e-6 * loss + 1e-9

    check()


@few
@given(n=rows, c=st.integers(1, 70), seed=seeds, codes=st.booleans(), weighted=st.booleans())
def test_residuals_of_many_outputs_are_numpy_s(n: int, c: int, seed: int, codes: bool, weighted: bool):
    block = Block(n, 1, seed)
    F, target = block.normal(n, c), target_of(block, n, c, codes, weighted)
    exact, loss = residual_of(F.astype(np.float64), target)
    losses = LOOPS.residual(F, target)
    np.testing.assert_allclose(F, exact, rtol=1e-6, atol=1e-6)
    assert losses.sum() == pytest.approx(loss, rel=1e-5)


def test_a_nan_stays_a_nan_where_it_belongs_and_nowhere_else():
    block = Block(70, 150, 2)
    W, r = block.normal(150, 3), block.normal(70, 3)
    for row, column in ((0, 0), (69, 149), (31, 64)):
        S = block.S.copy()
        S[row, column] = np.nan
        F, _ = LOOPS.outputs(S, block.sides, W)
        g = LOOPS.pulled(S, block.sides, r)
        assert np.flatnonzero(np.isnan(F).any(axis=1)).tolist() == [row]
        assert np.flatnonzero(np.isnan(g).any(axis=1)).tolist() == [column]
        lost, losses = LOOPS.outputs(S, block.sides, W, BlockTarget(np.zeros(70, np.int64)))
        assert np.isnan(lost[row]).all()
        assert np.isnan(losses.sum())
        bad = W.copy()
        bad[column, 1] = np.nan
        assert np.isnan(LOOPS.outputs(block.S, block.sides, bad)[0]).any(axis=0).tolist() == [False, True, False]


@pytest.mark.slow
def test_the_order_of_sums_depends_on_shapes_alone():
    """Equal bits when called again, and of a block whose rows are those of a larger one, by row."""
    block = Block(200, 300, 3)
    W, r = block.normal(300, 10), block.normal(200, 10)
    F, g = LOOPS.outputs(block.S, block.sides, W)[0], LOOPS.pulled(block.S, block.sides, r)
    np.testing.assert_array_equal(LOOPS.outputs(block.S, block.sides, W)[0], F)
    np.testing.assert_array_equal(LOOPS.pulled(block.S, block.sides, r), g)
    np.testing.assert_array_equal(LOOPS.outputs(block.S, block.sides, W, BlockTarget(np.zeros((200, 10))))[0], F)
    sides = block.sides._replace(x_norms=block.sides.x_norms[37:])
    np.testing.assert_array_equal(LOOPS.outputs(block.S[37:], sides, W)[0], F[37:])


@pytest.mark.slow
@pytest.mark.parametrize("outputs", [1, 10])
def test_a_projection_is_the_product_with_its_factors(outputs: int):
    """LᵀL g − FᵀF g: nothing above the diagonal is needed, nor a column of F from the tail on."""

    @few
    @given(p=columns, q=st.integers(0, 60), tail=st.integers(1, 300), seed=seeds)
    def check(p: int, q: int, tail: int, seed: int) -> None:
        made, tail = np.random.default_rng(seed), min(tail, p)
        W: Any = np.zeros((p + q, p), np.float32)
        W[:p] = np.tril(made.normal(size=(p, p)))
        W[p:, :tail] = made.normal(size=(q, tail))
        g = made.normal(size=(p, outputs)).astype(np.float32)
        found = LOOPS.project(W, p, tail, g)
        wide, sign = W.astype(np.float64), np.where(np.arange(p + q) < p, 1.0, -1.0)[:, None]
        exact = wide.T @ (sign * (wide @ g))
        bound = np.abs(wide).T @ (np.abs(wide) @ np.abs(g))
        assert (np.abs(found - exact) <= 1e-6 * np.sqrt(p + q) * bound + 1e-6).all()

    check()


@few
@given(p=st.integers(1, 700), c=st.integers(1, 5), gamma=st.sampled_from([0.0, 0.9]), seed=seeds)
def test_a_step_with_momentum_is_its_formula(p: int, c: int, gamma: float, seed: int):
    made = np.random.default_rng(seed)
    ahead, before, g = (made.normal(size=(p, c)).astype(np.float32) for _ in range(3))
    mean = made.normal(size=(p, c))
    rate, second, share = np.float32(0.3), np.float32(0.4), 0.25
    alpha, there, average = LOOPS.moved(ahead, before, mean, g, 0.3, gamma, 0.4, share)
    np.testing.assert_array_equal(alpha, ahead - rate * g)
    np.testing.assert_array_equal(there, alpha + np.float32(gamma) * (alpha - before) + second * (rate * g))
    np.testing.assert_array_equal(average, mean + share * (alpha.astype(np.float64) - mean))
