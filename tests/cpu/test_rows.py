import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.cpu.elementwise import CompiledLoops
from streamkern.engine.elementwise import Loops
from streamkern.errors import UsageError
from streamkern.testing.elementwise import LoopsSuite

FAST, REFERENCE = CompiledLoops(), Loops()
DTYPES = ["?", "u1", "i1", "u2", "i2", "i4", "i8", "f2", "f4", "f8", ">f4", ">i2"]
both = pytest.mark.parametrize("loops", [FAST, REFERENCE], ids=lambda b: b.name)


@both
class TestLoops(LoopsSuite):
    """Loops, held to their suite."""


def stored(dtype: str, n: int = 40, d: int = 17) -> np.ndarray:
    return (np.random.default_rng(1).random((n, d)) * 120).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("per_column", [False, True])
def test_assemble_equals_the_reference_to_the_bit(dtype: str, per_column: bool):
    raw, index = stored(dtype), np.array([3, 3, 39, 0, 12])
    rng = np.random.default_rng(2)
    scale, offset = (rng.random(17), rng.random(17)) if per_column else (0.25, -3.0)
    fast, exact = np.empty((5, 17), np.float32), np.empty((5, 17), np.float32)
    FAST.assemble(raw, index, fast, scale=scale, offset=offset)
    REFERENCE.assemble(raw, index, exact, scale=scale, offset=offset)
    assert np.array_equal(fast, exact)
    expected = raw[index].astype(np.float64) * scale + offset
    assert np.allclose(fast, expected, rtol=1e-6, atol=1e-6)


@both
def test_assemble_reads_views_and_read_only_rows(loops: Loops):
    wide = stored("u1", 40, 60)
    wide.flags.writeable = False
    index = np.arange(40)[::-3]  # not contiguous
    for raw in (wide[:, 5:30], wide[::2][:, 5:30], wide[:, ::2], np.asfortranarray(wide)):
        here = index[index < len(raw)]
        buffer = np.full((len(here), raw.shape[1] + 9), 7, np.float32)
        loops.assemble(raw, here, buffer[:, 4:-5], scale=2, offset=1)
        assert np.array_equal(buffer[:, 4:-5], raw[here] * np.float32(2) + np.float32(1))
        assert (buffer[:, :4] == 7).all()
        assert (buffer[:, -5:] == 7).all()


@both
@pytest.mark.parametrize("index", [[0, 40], [-1], [2**40]])
def test_an_index_out_of_range_is_refused(loops: Loops, index: list[int]):
    with pytest.raises(UsageError, match="there are 40 rows"):
        loops.assemble(stored("u1"), np.array(index), np.empty((len(index), 17), np.float32), scale=1, offset=0)


@both
@pytest.mark.parametrize(
    "out",
    [np.empty((3, 16), np.float32), np.empty((2, 17), np.float32), np.empty((3, 17)), np.empty((3, 34), "f4")[:, ::2]],
)
def test_an_output_that_does_not_fit_is_refused(loops: Loops, out: np.ndarray):
    with pytest.raises(UsageError):
        loops.assemble(stored("u1"), np.arange(3), out, scale=1, offset=0)


@both
def test_what_float32_cannot_hold_becomes_infinite_and_is_found(loops: Loops):
    out = np.empty((2, 2), np.float32)
    loops.assemble(np.array([[1.0, 2.0], [1e300, 0.0]]), np.arange(2), out, scale=1, offset=0)
    assert loops.finite_rows(out) == 1


@both
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@given(data=st.data())
def test_the_first_bad_row_is_found(loops: Loops, dtype: str, bad: float, data: st.DataObject):
    n, d = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 40))
    X = np.full((n, d + 3), np.finfo(dtype).max, dtype)[:, 1:-2]  # a view whose neighbours do not count
    X.base[:, [0, -1]] = np.nan
    assert loops.finite_rows(X) == -1
    cells = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, d - 1)), min_size=1, max_size=3))
    for cell in cells:
        X[cell] = bad
    assert loops.finite_rows(X) == min(cells)[0]


@both
def test_integers_and_nothing_are_finite(loops: Loops):
    assert loops.finite_rows(stored("i8")) == -1
    assert loops.finite_rows(np.empty((0, 4), np.float32)) == -1
    assert loops.finite_rows(np.empty((4, 0), np.float32)) == -1


@both
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i8", "f2", "f4", ">f4", "f8"])
@pytest.mark.parametrize("d", [0, 1, 7, 300])
def test_moments_are_those_of_columns(loops: Loops, kind: str, d: int, weighted: bool):
    rng = np.random.default_rng(d)
    X = (rng.normal(size=(50, 2 * d + 1)) * 30 + 100).astype(kind)[:, 1::2]
    w = rng.uniform(size=50) if weighted else None
    low, high, first, second = loops.moments(X, w, X[0].astype(float))
    wide, mass = X.astype(np.longdouble), np.ones((50, 1)) if w is None else w[:, None]
    np.testing.assert_array_equal([low, high], [wide.min(axis=0), wide.max(axis=0)])
    np.testing.assert_allclose(first, (mass * (wide - wide[0])).sum(axis=0).astype(float), rtol=1e-12, atol=1e-10)
    np.testing.assert_allclose(second, (mass * (wide - wide[0]) ** 2).sum(axis=0).astype(float), rtol=1e-12)
    assert {each.dtype for each in (low, high, first, second)} == {np.dtype(float)}


@both
def test_moments_of_no_row_and_of_large_values(loops: Loops):
    low, high, first, second = loops.moments(np.empty((0, 2)), None, np.zeros(2))
    assert (low.tolist(), high.tolist()) == ([np.inf] * 2, [-np.inf] * 2)
    assert not first.any()
    assert not second.any()
    *_, second = loops.moments(np.array([[1e200], [-1e200]]), None, np.zeros(1))
    assert second.tolist() == [np.inf]  # which a caller refuses by the range


@both
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("d", [0, 1, 2, 63, 64, 65, 127, 128, 784, 5000])
def test_row_norms_are_correctly_rounded(loops: Loops, dtype: type, d: int):
    X = np.random.default_rng(d).standard_normal((9, d + 2)).astype(dtype)[:, 1 : d + 1]
    norms = loops.row_norms(X)
    exact = (X.astype(np.longdouble) ** 2).sum(axis=1)
    assert norms.dtype == dtype
    # Half a unit in the last place, and what a float64 sum may lose.
    assert (np.abs(norms - exact) <= exact * (0.5 * np.finfo(dtype).eps + 1e-14)).all()


@both
def test_row_norms_of_strided_columns(loops: Loops):
    X = stored("f4", 10, 40)
    assert np.array_equal(loops.row_norms(X[:, ::2]), loops.row_norms(X[:, ::2].copy()))


@both
def test_row_norms_want_floats(loops: Loops):
    with pytest.raises(UsageError, match="int64"):
        loops.row_norms(stored("i8"))
