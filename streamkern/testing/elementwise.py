"""Conformance tests of elementwise loops: subclass `LoopsSuite` to hold a new one to it."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from streamkern.engine.elementwise import RADIAL_KINDS, Loops
from streamkern.errors import UsageError
from streamkern.types import Array

_REFERENCE = Loops()
_PARAMS = {"bandwidth": 1.7, "exponent": 0.8}


def _stored(n: int = 60, d: int = 17) -> Array:
    return np.random.default_rng(1).integers(0, 256, (n, d)).astype(np.uint8)


class LoopsSuite:
    """Conformance tests of loops, against the reference `Loops` and closed forms.

    A subclass gives the fixture ``loops``.
    """

    def test_rows_are_gathered_converted_and_scaled(self, loops: Loops) -> None:
        """To the bit, in any order, with repetitions, by a number or a column's own."""
        raw, index = _stored(), np.array([5, 5, 59, 0, 31])
        for scale, offset in ((1 / 255, 0.0), (np.linspace(0.1, 2, 17), np.linspace(-1, 1, 17))):
            out, expected = np.empty((5, 17), np.float32), np.empty((5, 17), np.float32)
            loops.assemble(raw, index, out, scale=scale, offset=offset)
            _REFERENCE.assemble(raw, index, expected, scale=scale, offset=offset)
            np.testing.assert_array_equal(out, expected)

    @pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint32, np.int64, np.uint64])
    def test_wide_rows_are_shifted_before_they_are_rounded(self, loops: Loops, dtype: type) -> None:
        """Digits that float32 would round away at the offset are there, with noise and without."""
        near, index = _stored(), np.array([5, 5, 59, 0, 31])
        raw: Array = (near.astype(np.int64) + 1_700_000_000).astype(dtype)
        for scale in (np.float64(1.0), 1 / 3, np.linspace(0.1, 2, 17)):
            out, noisy = np.empty((5, 17), np.float32), np.empty((5, 17), np.float32)
            loops.assemble(raw, index, out, scale=scale, offset=-1.7e9 * scale)
            np.testing.assert_allclose(out, near[index] * scale, rtol=1e-6, atol=1e-6)
            ids = copies = np.arange(5, dtype=np.int64)
            loops.assemble_noisy(
                raw, index, noisy, scale=scale, offset=-1.7e9 * scale, row_ids=ids, copies=copies, seed=1, sigma=0.2
            )  # fmt: skip
            loops.add_noise(out, ids, copies=copies, seed=1, sigma=0.2)
            np.testing.assert_array_equal(noisy, out)

    def test_noise_belongs_to_the_row(self, loops: Loops) -> None:
        """A row's noise is the same whatever rows come with it, and near the reference's."""
        ids, copies = np.arange(40, dtype=np.int64) * 7, np.arange(40, dtype=np.int64) % 3
        whole, expected = np.zeros((40, 33), np.float32), np.zeros((40, 33), np.float32)
        loops.add_noise(whole, ids, copies=copies, seed=3, sigma=0.5)
        _REFERENCE.add_noise(expected, ids, copies=copies, seed=3, sigma=0.5)
        np.testing.assert_allclose(whole, expected, atol=2e-6)
        some = np.array([39, 2, 17])
        part = np.zeros((3, 33), np.float32)
        loops.add_noise(part, ids[some], copies=copies[some], seed=3, sigma=0.5)
        np.testing.assert_array_equal(part, whole[some])

    def test_rows_with_noise_are_rows_and_then_noise(self, loops: Loops) -> None:
        """To the bit, in one pass or two."""
        raw, index = _stored(), np.array([5, 5, 59, 0, 31])
        ids = np.array([5, 5, 59, 0, 31], dtype=np.int64)
        copies = np.array([0, 1, 0, 0, 4], dtype=np.int64)
        two, one = np.empty((5, 17), np.float32), np.empty((5, 17), np.float32)
        loops.assemble(raw, index, two, scale=0.1, offset=-1)
        loops.add_noise(two, ids, copies=copies, seed=1, sigma=0.2)
        loops.assemble_noisy(
            raw, index, one, scale=0.1, offset=-1, row_ids=ids, copies=copies, seed=1, sigma=0.2
        )  # fmt: skip
        np.testing.assert_array_equal(one, two)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_the_first_bad_row_is_found(self, loops: Loops, dtype: type) -> None:
        """NaN and both infinities; none is -1."""
        X: Array = np.ones((30, 9), dtype)
        assert loops.finite_rows(X) == -1
        for row, bad in ((21, np.nan), (12, np.inf), (3, -np.inf)):
            X[row, row % 9] = bad
            assert loops.finite_rows(X) == row

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_norms_are_summed_in_float64(self, loops: Loops, dtype: type) -> None:
        """And rounded once."""
        X: Array = np.random.default_rng(0).normal(size=(50, 1000)).astype(dtype)
        norms = loops.row_norms(X)
        assert norms.dtype == dtype
        exact = np.sum(np.square(X.astype(np.float64)), axis=1)
        assert (np.abs(norms - exact) <= exact * (0.5 * np.finfo(dtype).eps + 1e-13)).all()

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_l1_distances_and_their_kernels_are_the_reference_s(self, loops: Loops, dtype: type) -> None:
        """Of rows and centers that fill no tile; a row is at distance 0 from itself, and a NaN stays one."""
        rng = np.random.default_rng(2)
        X: Array = rng.normal(size=(9, 19)).astype(dtype)
        Z: Array = rng.normal(size=(37, 19)).astype(dtype)
        Z[5], X[8, 3] = X[2], np.nan
        S: Array = np.empty((9, 37), dtype)
        expected: Array = S.copy()
        loops.manhattan(X, Z, S)
        _REFERENCE.manhattan(X, Z, expected)
        np.testing.assert_allclose(S, expected, rtol=1e-5 if dtype == np.float32 else 1e-13)
        assert S[2, 5] == 0
        P: Array = rng.normal(size=(9, 37)).astype(dtype)
        sums: Array = np.empty((9, 19), dtype)
        wanted: Array = sums.copy()
        loops.signed_sums(P, X, Z, sums)
        _REFERENCE.signed_sums(P, X, Z, wanted)
        np.testing.assert_allclose(sums[:8], wanted[:8], atol=1e-5 if dtype == np.float32 else 1e-13)
        norms: tuple[Array, Array] = (np.zeros(9, dtype), np.zeros(37, dtype))
        for kind in ("laplace", "exponential_power"):
            K, values = S.copy(), expected.copy()
            loops.radial(K, *norms, kind, _PARAMS | {"norm": 1})
            _REFERENCE.radial(values, *norms, kind, _PARAMS | {"norm": 1})
            np.testing.assert_allclose(K, values, rtol=3e-5 if dtype == np.float32 else 1e-12)
        with pytest.raises(UsageError, match="of the norm 1"):
            loops.radial(S, *norms, "gaussian", _PARAMS | {"norm": 1})
        with pytest.raises(UsageError, match="do not fit"):
            loops.manhattan(X, Z, S[:3])

    @pytest.mark.parametrize("kind", RADIAL_KINDS)
    @pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 3e-6), (np.float64, 1e-12)])
    def test_kernel_values_are_the_reference_s(self, loops: Loops, kind: str, dtype: type, tolerance: float) -> None:
        """In place, in a tile of a larger buffer, and nowhere else."""
        rng = np.random.default_rng(2)
        X: Array = rng.normal(size=(37, 5)).astype(dtype)
        Z: Array = rng.normal(size=(53, 5)).astype(dtype) + 2
        x, z = _REFERENCE.row_norms(X), _REFERENCE.row_norms(Z)
        expected = X @ Z.T
        buffer: Array = np.full((40, 60), 9, dtype)
        tile = buffer[1:38, 3:56]
        tile[:] = expected
        _REFERENCE.radial(expected, x, z, kind, _PARAMS)
        loops.radial(tile, x, z, kind, _PARAMS)
        np.testing.assert_allclose(tile, expected, rtol=0, atol=tolerance)
        buffer[1:38, 3:56] = 9
        assert (buffer == 9).all()

    @pytest.mark.parametrize("kind", RADIAL_KINDS)
    def test_in_float64_a_row_that_is_a_center_is_at_distance_zero(self, loops: Loops, kind: str) -> None:
        """For any rounding error left in the inner product; and the next row is not."""
        rng = np.random.default_rng(3)
        X: Array = 10 * rng.normal(size=(64, 300))
        norms = loops.row_norms(X)
        S: Array = X @ X.T
        S[np.diag_indices(64)] = norms * (1 + rng.integers(-3, 4, 64) * np.finfo(np.float64).eps)
        S[0, 0] -= 1e-6  # of a row at a distance of √(2e-6)
        loops.radial(S, norms, norms, kind, _PARAMS)
        assert (S.diagonal()[1:] == 1).all()
        assert S[0, 0] < 1

    def test_a_kind_that_is_none_is_refused(self, loops: Loops) -> None:
        """By name."""
        with pytest.raises(UsageError, match="sigmoid"):
            loops.radial(np.ones((2, 2)), np.ones(2), np.ones(2), "sigmoid", _PARAMS)

    def test_threads_do_not_change_a_bit(self, loops: Loops) -> None:
        """Calls run side by side and keep no state."""

        def work(seed: int) -> Array:
            X = np.random.default_rng(seed).normal(size=(64, 8)).astype(np.float32)
            norms = loops.row_norms(X)
            S = X @ X.T
            loops.radial(S, norms, norms, "laplace", _PARAMS)
            return S

        alone = [work(seed) for seed in range(16)]
        with ThreadPoolExecutor(4) as pool:
            for together, expected in zip(pool.map(work, range(16)), alone, strict=True):
                np.testing.assert_array_equal(together, expected)

    def test_it_can_be_sent(self, loops: Loops) -> None:
        """To another process, under its name."""
        assert pickle.loads(pickle.dumps(loops)).name == loops.name
