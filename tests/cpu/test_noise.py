import hashlib
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.cpu.elementwise import CompiledLoops
from streamkern.engine.elementwise import Loops
from streamkern.errors import UsageError
from streamkern.rng import normal_rows

FAST, REFERENCE = CompiledLoops(), Loops()
# Widths around the counter (4 columns), the vector (16) and the batch of counters (512, that is 2,048 columns).
WIDTHS = [1, 2, 3, 4, 5, 15, 16, 17, 20, 63, 784, 2047, 2049]


def noise(loops: Loops, seed: int, copies: object, ids: np.ndarray, d: int) -> np.ndarray:
    out = np.zeros((len(ids), d), np.float32)
    loops.add_noise(out, ids, copies=copies, seed=seed, sigma=1.0)  # type: ignore[arg-type]
    return out


@pytest.mark.parametrize("d", WIDTHS)
def test_fast_noise_equals_the_reference(d: int):
    ids = np.concatenate([np.arange(40), 2**33 + np.arange(5), [-1, 2**63 - 1]])
    assert np.abs(noise(FAST, 2**40 + 5, 9, ids, d) - normal_rows(2**40 + 5, 9, ids, d)).max() <= 1e-6


def test_fast_noise_equals_the_reference_on_a_million_normals():
    ids = np.arange(250_000)
    fast, exact = noise(FAST, 1, 0, ids, 4), normal_rows(1, 0, ids, 4)
    assert np.abs(exact).max() > 4.5  # the tail is in it
    assert np.abs(fast - exact).max() <= 1e-6


@given(
    seed=st.integers(-(2**64), 2**64),
    rows=st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**32 - 1)), min_size=1, max_size=40),
    d=st.sampled_from(WIDTHS[:-3]),
    data=st.data(),
)
def test_noise_is_the_same_however_rows_are_grouped(seed, rows, d, data):
    ids, copies = np.array([r for r, _ in rows]), np.array([c for _, c in rows])
    whole = noise(FAST, seed, copies, ids, d)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    parts = np.split(np.arange(len(rows)), cuts)
    assert np.array_equal(np.concatenate([noise(FAST, seed, copies[p], ids[p], d) for p in parts]), whole)
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    assert np.array_equal(noise(FAST, seed, copies[order], ids[order], d), whole[order])


@pytest.mark.parametrize("loops", [FAST, REFERENCE], ids=lambda b: b.name)
@pytest.mark.parametrize("dtype", ["u1", "?", "i1", "u2", "i8", "f2", "f4", "f8", ">f4"])
@pytest.mark.parametrize("d", [3, 20, 130])
def test_fused_noise_is_assemble_then_noise_to_the_bit(loops: Loops, dtype: str, d: int):
    rng = np.random.default_rng(0)
    raw = (rng.random((50, d)) * 100).astype(dtype)
    index = rng.integers(0, 50, 77)
    kwargs = {"scale": rng.random(d), "offset": -0.5}
    keys = {"copies": rng.integers(0, 9, 77), "seed": 11, "sigma": 0.3}
    ids = rng.integers(0, 2**50, 77)
    fused, staged = np.empty((77, d), np.float32), np.empty((77, d), np.float32)
    loops.assemble_noisy(raw, index, fused, **kwargs, row_ids=ids, **keys)
    loops.assemble(raw, index, staged, **kwargs)
    loops.add_noise(staged, ids, **keys)
    assert np.array_equal(fused, staged)
    assert not np.array_equal(fused, np.zeros_like(fused))


def test_noise_goes_into_a_tile_of_a_larger_buffer_and_nowhere_else():
    buffer = np.full((30, 100), 7, np.float32)
    FAST.add_noise(buffer[3:23, 10:30], np.arange(20), copies=0, seed=1, sigma=2.0)
    inside = buffer[3:23, 10:30].copy()
    assert np.abs(inside - (7 + 2 * normal_rows(1, 0, np.arange(20), 20))).max() <= 4e-6
    buffer[3:23, 10:30] = 7
    assert (buffer == 7).all()


def test_no_rows_and_no_columns_are_no_work():
    for shape in ((0, 5), (5, 0)):
        FAST.add_noise(np.empty(shape, np.float32), np.arange(shape[0]), copies=0, seed=1, sigma=1.0)


@pytest.mark.parametrize("loops", [FAST, REFERENCE], ids=lambda b: b.name)
def test_row_ids_that_do_not_fit_are_refused(loops: Loops):
    with pytest.raises(UsageError, match="3 row ids do not fit 4 rows"):
        loops.add_noise(np.empty((4, 2), np.float32), np.arange(3), copies=0, seed=1, sigma=1.0)


def fingerprint(kernels: bool = True) -> str:
    """A hash of what vectorised loops compute: rows with their noise, and kernel values."""
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (300, 53), dtype=np.uint8)
    out = np.empty((300, 53), np.float32)
    scale = {"scale": 1 / 255, "offset": -0.3}
    FAST.assemble_noisy(raw, np.arange(300), out, **scale, row_ids=np.arange(300), copies=2, seed=5, sigma=0.1)
    digest = hashlib.sha256(out)
    norms = FAST.row_norms(out)
    digest.update(norms)
    if not kernels:
        return digest.hexdigest()
    # Inner products from exact integers: the matrix product itself may differ between machines.
    inner = (raw.astype(np.int64) @ raw.T.astype(np.int64) / 2.0**16).astype(np.float32)
    for kind in ("laplace", "matern52", "gaussian", "cauchy", "exponential_power"):
        S = inner.copy()
        FAST.radial(S, np.diagonal(inner), np.diagonal(inner), kind, {"bandwidth": 3.0, "exponent": 0.7})
        digest.update(S)
    return digest.hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("fused", [True, False])
def test_bits_do_not_depend_on_the_vector_instructions(fused: bool, tmp_path: Path):
    """Nor does noise on whether there is a fused multiply-add; kernel values round once less where there is one."""
    if fused and platform.machine() not in ("x86_64", "AMD64"):
        pytest.skip("every other processor has one width of vectors, and a fused multiply-add")
    program = (
        "import importlib.util as u, sys; s = u.spec_from_file_location('m', sys.argv[1]); m = u.module_from_spec(s)"
    )
    program += "; s.loader.exec_module(m); print(m.fingerprint(sys.argv[2] == 'True'))"
    # LLVM's plain x86-64 or AArch64: on the former, 128-bit vectors and no fused multiply-add.
    features = "+avx,+avx2,+fma" if fused else ""
    generic = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    out = subprocess.run(
        [sys.executable, "-c", program, __file__, str(fused)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **generic},
    )
    assert out.stdout.strip() == fingerprint(fused)
