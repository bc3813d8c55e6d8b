"""The CUDA kernels in Numba's simulator, equal to the reference; the simulator has a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from streamkern.backends import ANGULAR_KINDS, RADIAL_KINDS, Backend, NumpyBackend
from streamkern.errors import UsageError
from streamkern.rng import normal_rows
from streamkern.testing.backend import BackendSuite
from tests.device import PlainLoops, SimulatedLoops

SIMULATED = os.environ.get("NUMBA_ENABLE_CUDASIM") == "1"
PARAMS = {"bandwidth": 1.7, "exponent": 0.8}

inside = pytest.mark.skipif(not SIMULATED, reason="run by test_the_kernels_are_simulated in a process of their own")


@pytest.mark.skipif(SIMULATED, reason="this is the simulator's process")
def test_the_kernels_are_simulated():
    """What is marked ``inside`` below, and nothing of it left out."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        env=os.environ | {"NUMBA_ENABLE_CUDASIM": "1"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 skipped" in done.stdout
    assert "failed" not in done.stdout


@pytest.fixture(scope="module", autouse=True)
def fast_switches():
    """The simulator gives every CUDA thread a thread, which take turns."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@inside
class TestSuite(BackendSuite):
    test_threads_do_not_change_a_bit = None  # the simulator launches one kernel at a time

    @pytest.fixture
    def backend(self) -> Backend:
        return SimulatedLoops()


@inside
def test_noise_is_the_reference_s_for_any_id_copy_seed_and_width():
    """Ids beyond 32 bits and below zero, copies beyond 31 bits, every remainder of the width by four."""
    ids = np.array([0, 1, 2**40 + 3, -1, 2**63 - 1], dtype=np.int64)
    for d, seed, copy in ((1, 0, 0), (2, -3, 1), (3, 2**70 + 5, 2**31), (9, 7, 2**32 - 1)):
        out: np.ndarray = np.zeros((5, d), np.float32)
        SimulatedLoops().add_noise(out, ids, copies=copy, seed=seed, sigma=1.0)
        np.testing.assert_allclose(out, normal_rows(seed, copy, ids, d), rtol=0, atol=1e-6)


@inside
def test_noise_is_right_in_every_part_of_a_turn():
    """A row a thousand columns wide has angles in all eighths, and one close to each of their bounds."""
    out: np.ndarray = np.zeros((1, 2000), np.float32)
    SimulatedLoops().add_noise(out, np.array([11]), copies=0, seed=1, sigma=1.0)
    np.testing.assert_allclose(out, normal_rows(1, 0, np.array([11]), 2000), rtol=0, atol=1e-6)


@inside
@pytest.mark.parametrize("kind", RADIAL_KINDS)
def test_the_narrow_product_is_the_kernel_s(kind):
    """Rows beyond a block, centers beyond a tile of shared memory, and sums cut into shares."""
    rng = np.random.default_rng(3)
    A, B = (rng.normal(size=(n, 3)).astype(np.float32) for n in (3, 70))
    W = rng.normal(size=(70, 2)).astype(np.float32)
    found = SimulatedLoops().narrow(A, B, W, kind, PARAMS)
    assert found.shape == (3, 2)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, PlainLoops().narrow(A, B, W, kind, PARAMS), rtol=0, atol=2e-5)


@inside
@pytest.mark.parametrize("kind", ["laplace", "exponential_power"])
def test_the_narrow_product_of_l1_distances_is_the_kernel_s(kind):
    rng = np.random.default_rng(3)
    A, B, W = (rng.normal(size=size).astype(np.float32) for size in ((3, 3), (70, 3), (70, 2)))
    found, expected = (loops.narrow(A, B, W, kind, PARAMS | {"norm": 1}) for loops in (SimulatedLoops(), PlainLoops()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5)
    two = PlainLoops().narrow(A, B, W, kind, PARAMS)
    assert np.abs(two - expected).max() > 0.1


@inside
@pytest.mark.parametrize(("m", "n"), [(0, 5), (1, 1), (2, 33)])
def test_the_narrow_product_has_any_number_of_rows(m, n):
    rng = np.random.default_rng(m)
    A, B, W = (rng.normal(size=size).astype(np.float32) for size in ((m, 5), (n, 5), (n, 1)))
    found = SimulatedLoops().narrow(A, B, W, "laplace", PARAMS)
    np.testing.assert_allclose(found, PlainLoops().narrow(A, B, W, "laplace", PARAMS), rtol=0, atol=2e-5)


@inside
def test_identical_rows_are_at_distance_zero_in_the_narrow_product():
    """Where the matrix product of float32 is off by the root of its rounding: k(x, x) is 1 to the bit."""
    A = np.full((1, 7), 1234.5, np.float32)
    assert SimulatedLoops().narrow(A, A, np.ones((1, 1), np.float32), "laplace", PARAMS)[0, 0] == 1.0


@inside
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("kind", ANGULAR_KINDS)
def test_angles_are_the_reference_s(kind, depth, dtype):
    rng = np.random.default_rng(4)
    X, Z = rng.normal(size=(5, 6)).astype(dtype) / 3, rng.normal(size=(7, 6)).astype(dtype) / 3
    X[2] = 0
    S = X @ Z.T
    expected = S.copy()
    x, z = NumpyBackend().row_norms(X), NumpyBackend().row_norms(Z)
    NumpyBackend().angular(expected, x, z, kind, depth)
    SimulatedLoops().angular(S, x, z, kind, depth)
    np.testing.assert_allclose(
        S, expected, atol=2e-6 if dtype == np.float32 else 1e-14, rtol=1e-6 if dtype == np.float32 else 1e-14
    )


@inside
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 2e-6), (np.float64, 1e-12)])
def test_waves_are_the_reference_s(dtype, tolerance):
    rng = np.random.default_rng(5)
    S = rng.uniform(-3, 3, (6, 9)).astype(dtype)
    phases, expected = rng.uniform(0, 1, 9).astype(dtype), S.copy()
    NumpyBackend().cosines(expected, phases, 0.3)
    SimulatedLoops().cosines(S, phases, 0.3)
    np.testing.assert_allclose(S, expected, rtol=0, atol=tolerance)


@inside
def test_a_user_s_profile_sees_squared_distances():
    X = np.random.default_rng(6).normal(size=(5, 4)).astype(np.float32)
    S, norms = X @ X.T, SimulatedLoops().row_norms(X)
    SimulatedLoops().radial(S, norms, norms, lambda s: s + 1, {})
    expected = np.square(X[:, None] - X).sum(axis=2) + 1
    np.testing.assert_allclose(S, expected, atol=1e-5)


@inside
def test_shapes_that_disagree_are_refused():
    loops, S = SimulatedLoops(), np.ones((3, 4), np.float32)
    for call in (
        lambda: loops.radial(S, np.ones(4), np.ones(4), "laplace", PARAMS),
        lambda: loops.angular(S, np.ones(3), np.ones(4), "ntk", 0),
        lambda: loops.cosines(S, np.ones(3), 1.0),
        lambda: loops.row_norms(np.ones((3, 4), np.int64)),
        lambda: loops.assemble(S, np.arange(3), np.empty((2, 4), np.float32), scale=1, offset=0),
        lambda: loops.add_noise(S, np.arange(2), copies=0, seed=0, sigma=1.0),
    ):
        with pytest.raises(UsageError):
            call()
