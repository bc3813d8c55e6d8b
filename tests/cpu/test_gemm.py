"""Products of a kernel block's shapes, against float64, and to the bit however the rows are cut."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.cpu import gemm
from streamkern.cpu.alignment import aligned_rows
from streamkern.cpu.gemm import WIDTH, Factor, inner, pack
from streamkern.cpu.gemv import add_transposed, laid_out, room, times

EPS = np.finfo(np.float32).eps


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def packed_of(Z: np.ndarray) -> np.ndarray:
    packed = pack(Z)
    if packed is None:
        pytest.skip("this processor has no fused multiply-add")
    return packed


def within(got: np.ndarray, A: np.ndarray, B: np.ndarray) -> None:
    """Within the bound of a sum of k products: (k + chains) half units of Σ|a b| (Higham 2002, section 3.1)."""
    exact, size = A.astype(np.float64) @ B, np.abs(A).astype(np.float64) @ np.abs(B)
    k = A.shape[1]
    assert (np.abs(got - exact) <= 0.5 * EPS * (min(k, gemm.DEPTH) + k / gemm.DEPTH + 2) * size).all()
    # Roundings are as often up as down: the usual error is that of their root.
    assert np.median(np.abs(got - exact)) <= EPS * max(1.0, np.sqrt(k) / 8) * np.median(size)


@pytest.mark.slow
@pytest.mark.parametrize("d", [1, 2, 17, 64])
@pytest.mark.parametrize(("n", "p"), [(1, 1), (7, 31), (8, 32), (13, 65), (12, 96), (21, 97), (256, 2050)])
def test_inner_products_are_those_of_float64(n: int, p: int, d: int):
    X, Z = normal(0, n, d), normal(1, p, d)
    out = np.full((n, p), np.nan, np.float32)
    inner(X, packed_of(Z), slice(0, p), out)
    within(out, X, Z.T)


def test_wide_rows_are_summed_in_chains():
    if gemm.VECTORS < 2:
        pytest.skip("wide rows are BLAS's here")
    X, Z = normal(0, 9, 3072), normal(1, 40, 3072)
    out = np.empty((9, 40), np.float32)
    inner(X, packed_of(Z), slice(0, 40), out)
    within(out, X, Z.T)


@pytest.mark.parametrize(("p", "d"), [(1, 1), (40, 3), (500, 784)])
def test_no_vector_of_a_packed_panel_spans_two_cache_lines(p: int, d: int):
    assert not packed_of(normal(4, p, d)).ctypes.data % 64


@pytest.mark.parametrize("m", [1, 16, 100, 1024, 8192])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_a_panel_begin_at_cache_lines_an_odd_number_apart(m: int, dtype: type):
    rows = aligned_rows(3, m, dtype)
    assert (rows.shape, rows.dtype) == ((3, m), dtype)
    assert not rows.ctypes.data % 64
    assert rows.strides[0] % 128 == 64


@given(rows=st.integers(1, 40), cut=st.integers(0, 40), first=st.integers(0, 2), columns=st.integers(1, 140))
def test_a_value_depends_on_its_row_and_its_center_alone(rows: int, cut: int, first: int, columns: int):
    X, Z = normal(2, rows, 18), normal(3, 3 * WIDTH, 18)
    packed = packed_of(Z)
    whole = np.empty((rows, len(Z)), np.float32)
    inner(X, packed, slice(0, len(Z)), whole)
    columns = min(columns, len(Z) - first * WIDTH)
    buffer = np.full((rows, len(Z) + 3), 7, np.float32)
    cols = slice(first * WIDTH, first * WIDTH + columns)
    for part in (slice(0, min(cut, rows)), slice(min(cut, rows), rows)):
        if part.stop > part.start:
            inner(X[part], packed, cols, buffer[part, 2 : 2 + columns])
    assert np.array_equal(buffer[:, 2 : 2 + columns], whole[:, cols])
    assert (buffer[:, :2] == 7).all()
    assert (buffer[:, 2 + columns :] == 7).all()


def test_rows_in_any_order_of_memory_give_the_same_bits():
    X, Z = normal(4, 30, 24), normal(5, 50, 24)
    plain, other = (np.empty((30, 50), np.float32) for _ in range(2))
    inner(X, packed_of(Z), slice(0, 50), plain)
    inner(np.asfortranarray(X), packed_of(np.asfortranarray(Z)), slice(0, 50), other)
    assert np.array_equal(plain, other)


@pytest.mark.slow
@pytest.mark.parametrize("c", [1, 2, 10, 16, 17, 40])
@pytest.mark.parametrize(("n", "p"), [(1, 3), (13, 700), (64, 1500)])
def test_products_with_few_columns_are_those_of_float64(n: int, p: int, c: int):
    A, W = normal(6, n, p), normal(7, p, c)
    right = laid_out(W)
    F = times(A, right)
    within(F[:, :c], A, W)
    assert not F[:, c:].any()
    R, g = F[:, :c], room(*W.shape, W.dtype)
    add_transposed(A, R, g)
    add_transposed(A, R, g)
    within(g / 2, A.T, R)


@given(cut=st.integers(0, 37), c=st.sampled_from([2, 10, 20]))
def test_a_prediction_depends_on_its_row_alone(cut: int, c: int):
    buffer = normal(8, 37, 620)
    A, right = buffer[:, 5:605], laid_out(normal(9, 600, c))
    parts = [times(part, right) for part in (A[:cut], A[cut:]) if len(part)]
    if gemm.VECTORS:
        assert np.array_equal(np.concatenate(parts), times(A, right))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (9, 31, 20), (21, 97, 1300), (256, 260, 64)])
def test_a_factor_multiplies_adds_and_travels(dtype: type, n: int, m: int, d: int):
    A, B = normal(12, n, d).astype(dtype), normal(13, m, d).astype(dtype)
    factor = Factor(B)
    assert np.array_equal(factor.B, B)
    buffer = np.full((n, m + 2), 7, dtype)
    out = buffer[:, 1:-1]
    factor.product(A, out)
    exact = A.astype(np.float64) @ B.T.astype(np.float64)
    bound = np.finfo(dtype).eps * (d + 2) * (np.abs(A).astype(np.float64) @ np.abs(B).T)
    assert (np.abs(out - exact) <= bound).all()
    once = out.copy()
    pickle.loads(pickle.dumps(factor)).product(A, out, add=True)
    assert (np.abs(out - 2 * exact) <= 2 * bound).all()
    assert (buffer[:, [0, -1]] == 7).all()
    parts = np.empty_like(once)
    for rows in (slice(0, n // 3), slice(n // 3, n)):
        if rows.stop > rows.start:
            factor.product(np.asfortranarray(A[rows]), parts[rows])
    assert np.array_equal(parts, once) or pack(B) is None  # then BLAS multiplies, by the shape


def test_few_columns_of_float64_are_multiplied_row_by_row():
    A, W = normal(10, 9, 20).astype(np.float64), normal(11, 20, 3).astype(np.float64)
    assert (pack(A) is None) == (gemm.VECTORS < 2)
    assert laid_out(W) is W
    assert np.allclose(times(A, W), A @ W, rtol=1e-13)
    assert np.array_equal(times(A[4:5], W), times(A, W)[4:5])
    wide = normal(12, 9, 5000).astype(np.float64), normal(13, 5000, 3).astype(np.float64)
    assert np.array_equal(times(*wide), times(wide[0], np.asfortranarray(wide[1])))
    g = np.ones((20, 3))
    add_transposed(A, A @ W, g)
    assert np.allclose(g, 1 + A.T @ (A @ W), rtol=1e-13)


PROGRAM = """
import hashlib, sys, numpy as np
import streamkern as sk
from streamkern.cpu import gemm, gemv
from streamkern.kernels import Expansion
rng = np.random.default_rng(0)
X, Z, W = (rng.standard_normal(s, dtype=np.float32) for s in ((21, 40), (70, 40), (70, 10)))
packed = gemm.pack(Z)
S = np.empty((21, 70), np.float32)
gemm.inner(X, packed, slice(0, 70), S)
F = gemv.times(S, gemv.laid_out(W))
g = gemv.room(*W.shape, W.dtype)
gemv.add_transposed(S, F, g)
X, Z, W = (rng.standard_normal(s, dtype=np.float32) for s in ((300, 40), (1100, 40), (1100, 10)))
outputs = Expansion(sk.Laplace(9.0), Z).predict(X, W)
print(gemm.VECTORS, hashlib.sha256(b"".join(A.tobytes() for A in (S, F, g, outputs))).hexdigest())
"""


@pytest.mark.slow  # compiles for another processor
def test_narrower_vectors_give_the_same_bits(tmp_path: Path):
    if gemm.VECTORS < 2:
        pytest.skip("this processor has no wider vectors to compare with")
    narrow = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma", "NUMBA_CACHE_DIR": str(tmp_path)}
    told = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env=os.environ | more, capture_output=True, text=True, check=True
        ).stdout.split()
        for more in ({}, narrow)
    ]
    assert [vectors for vectors, _ in told] == ["2", "1"]
    assert told[0][1] == told[1][1]
