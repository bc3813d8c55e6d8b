"""What is computed on a device equals what the CPU computes, and uses nothing of a device but the array API."""

import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest

from streamkern import from_arrays
from streamkern.augment import GaussianNoise, HorizontalFlip
from streamkern.cpu import default_engine
from streamkern.data.device_assembly import DeviceAssembly
from streamkern.data.row_order import Assembly, Scan
from streamkern.data.targets import Classes
from streamkern.errors import NumericalError, StorageError, UsageError
from streamkern.gpu import device_operations as module
from streamkern.gpu import get_device
from streamkern.gpu.engine import DeviceEngine
from streamkern.kernels import (
    NTK,
    ArcCosine,
    Expansion,
    ExponentialPower,
    Gaussian,
    Laplace,
    Linear,
    Matern,
    Polynomial,
)
from streamkern.precondition.center_projection import project_exactly
from streamkern.solvers.contributions import Gradient, NormalProduct
from tests.cuda_host import needs_compiler
from tests.cupy_host import stand_in
from tests.device import HostDevice, StrictDevice

DEVICES = {"host": HostDevice, "strict": StrictDevice}


@pytest.fixture(params=sorted(DEVICES))
def device(request):
    return DEVICES[request.param]()


def problem(d, dtype=np.float32, p=40):
    rng = np.random.default_rng(d)
    X, Z, W = (rng.normal(size=size).astype(dtype) for size in ((30, d), (p, d), (p, 3)))
    return X, Z, W


@pytest.mark.parametrize(("d", "dtype"), [(5, np.float32), (80, np.float32), (5, np.float64)])
def test_values_predictions_and_gradients_are_the_cpu_s(device, d, dtype, monkeypatch):
    """In panels of 7 rows, narrow and wide, with rows of the host and of the device."""
    X, Z, W = problem(d, dtype)
    monkeypatch.setattr(module, "PANEL_BYTES", 7 * Z.nbytes // d)
    tolerance = 1e-4 if dtype == np.float32 else 1e-12
    here, there = Expansion(Laplace(3.0), Z), Expansion(Laplace(3.0), Z, DeviceEngine(device))
    K = here.block(X)
    for rows in (X, device.put(X)):
        np.testing.assert_allclose(there.block(rows), K, atol=tolerance)
        np.testing.assert_allclose(there.predict(rows, W), K @ W, atol=tolerance)
        pulled = there.engine.pull(there, rows, W, lambda F, part: F[:, :2] - X[part, :2], 2)
        np.testing.assert_allclose(pulled, K.T @ ((K @ W)[:, :2] - X[:, :2]), rtol=1e-4, atol=10 * tolerance)
    np.testing.assert_array_equal(
        np.concatenate([panel.copy() for _, panel in there.engine.panels(there, X)]), there.block(X)
    )


KERNELS = (
    Linear(1.0), Polynomial(3), ArcCosine(0), ArcCosine(2, 2), NTK(2), Matern(6.0), Laplace(20.0, norm=1),
    ExponentialPower(20.0, 0.7, norm=1), 2.0 * Laplace(20.0, norm=1), Laplace(20.0, norm=1) + Laplace(9.0, norm=1),
    Gaussian(6.0) * Laplace(7.0) + NTK(1),
)  # fmt: skip


def check_kernel(kernel, device):
    """Values, predictions of few and of many outputs, their sums and gradients, in float32 and float64."""
    for dtype in (np.float32, np.float64):
        X, Z, W = problem(12, dtype)
        here, there = Expansion(kernel, Z, default_engine()), Expansion(kernel, Z, DeviceEngine(device))
        close = dict(rtol=1e-3, atol=1e-4) if dtype == np.float32 else dict(rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(there.block(X), here.block(X), **close)
        for V in (W, np.tile(W, 7)):
            scale = np.abs(here.predict(X, V)).max()
            np.testing.assert_allclose(there.predict(X, V) / scale, here.predict(X, V) / scale, **close)
            pulled, expected = (each.engine.pull(each, X, V, lambda F, part: F, V.shape[1]) for each in (there, here))
            scale = np.abs(expected).max()
            np.testing.assert_allclose(pulled / scale, expected / scale, **close)
        signs = np.random.default_rng(1).choice([-1.0, 1.0], (len(X), 3)).astype(dtype)
        slopes, expected = (each.engine.gradients(each, X, W, signs) for each in (there, here))
        scale = np.abs(expected).max()
        np.testing.assert_allclose(slopes / scale, expected / scale, **close)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_every_kernel_is_the_cpu_s(kernel):
    check_kernel(kernel, HostDevice())


@pytest.mark.slow
@needs_compiler
def test_every_kernel_of_a_card_s_loops_is_the_cpu_s(card):
    for kernel in KERNELS:
        check_kernel(kernel, card)


def test_no_row_contributes_nothing(device):
    X, Z, W = problem(80)
    there = Expansion(Gaussian(3.0), Z, DeviceEngine(device))
    assert there.engine.pull(there, X[:0], W, lambda F, part: F, 3).tolist() == np.zeros((40, 3)).tolist()
    assert there.predict(X[:0], W).shape == (0, 3)


def test_the_same_state_is_sent_once():
    """The lanes of a step share it."""
    X, Z, W = problem(80)
    device = HostDevice()
    sent = []
    put = device.put
    device.put = lambda array, *more: sent.append(np.shape(array)) or put(array, *more)
    there = Expansion(Gaussian(3.0), Z, DeviceEngine(device))
    for _ in range(3):
        there.engine.pull(there, X, W, lambda F, part: F, 3)
    assert sent.count(W.shape) == 1
    there.engine.pull(there, X, W.copy(), lambda F, part: F, 3)
    assert sent.count(W.shape) == 2


@pytest.mark.parametrize("weighted", [False, True])
def test_contributions_are_the_cpu_s(device, weighted):
    """One evaluation gives the residual, its loss and its gradient; products of Falkon's system too."""
    X, Z, W = problem(80)
    y = np.arange(30) % 3
    weights = np.linspace(0.5, 2, 30) if weighted else None
    data = from_arrays(X, y, sample_weight=weights)
    encoding = Classes(np.arange(3))
    on_cpu = Scan(Assembly(data, encoding), 30).block((0,))
    on_device = Scan(DeviceAssembly(data, encoding, device=device), 30).block((0,))
    here, there = Expansion(Laplace(9.0), Z), Expansion(Laplace(9.0), Z, DeviceEngine(device))
    for kind, state in ((Gradient, W), (NormalProduct, (W[::-1].copy(), W))):
        expected, found = kind(here)(on_cpu, state), kind(there)(on_device, state)
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-4, atol=1e-4)
        assert found[1] == pytest.approx(expected[1], rel=1e-5)
        assert found[2] == expected[2]


@pytest.mark.parametrize("augmentations", [(), (GaussianNoise(0.1), GaussianNoise(0.2)), (HorizontalFlip((2, 3)),)])
def test_blocks_are_the_cpu_s(device, augmentations):
    """Noise made there, and what is made on the host and sent."""
    X = np.random.default_rng(0).integers(0, 256, (20, 6)).astype(np.uint8)
    data = from_arrays(X, np.arange(20) % 2).scale(1 / 255, -0.5)
    for augmentation in augmentations:
        data = data.augment(augmentation, copies=2)
    center = np.linspace(0, 1, 6, dtype=np.float32)
    here = Assembly(data, Classes(np.arange(2)), center)
    there = DeviceAssembly(data, Classes(np.arange(2)), center, device=device)
    there = replace(pickle.loads(pickle.dumps(replace(there, device=None))), device=device)
    for index in range(len(Scan(here, 8))):
        a, b = Scan(here, 8).block((index,)), Scan(there, 8).block((index,))
        np.testing.assert_allclose(device.take(b.X), a.X, atol=2e-6)
        np.testing.assert_array_equal(b.y, a.y)
        np.testing.assert_array_equal(b.ids, a.ids)


def test_exact_projection_is_the_cpu_s(device):
    _, Z, g = problem(80)
    here = project_exactly(Expansion(Laplace(9.0), Z), None, default_engine())
    engine = DeviceEngine(device)
    there = project_exactly(Expansion(Laplace(9.0), Z, engine), None, engine)
    np.testing.assert_allclose(there.W, here.W, atol=1e-5)
    np.testing.assert_allclose(there.apply(g), here.apply(g), rtol=1e-4, atol=1e-4)


@pytest.fixture
def card():
    """The device of CuPy, on the stand-in: the loops of a card, compiled for the host."""
    with stand_in() as module:
        yield module.open_device()


@needs_compiler
@pytest.mark.parametrize("rows", [1, 7, 20, 21, 50])
def test_a_large_array_is_copied_in_pieces(card, rows, monkeypatch):
    """There and back, by each number of pieces, the last one shorter; and the columns of a wider array."""
    monkeypatch.setattr(sys.modules[type(card).__module__], "_PIECE", 120)
    array = np.random.default_rng(0).normal(size=(rows, 5))
    there = card.put(array)
    np.testing.assert_array_equal(card.take(there), array)
    np.testing.assert_array_equal(card.take(there[:, 1:4]), array[:, 1:4])
    np.testing.assert_array_equal(card.take(card.put(array, np.float32)), array.astype(np.float32))


@needs_compiler
def test_a_card_says_what_it_cannot_do(card):
    with card.turn(), pytest.raises(NumericalError, match="not positive definite"):
        card.inverse_factor(card.put(-np.eye(3)), np.float64)
    error = sys.modules["cupy"].cuda.memory.OutOfMemoryError
    with pytest.raises(StorageError, match="no memory left: 7 bytes"), card.turn():
        raise error("7 bytes")


@needs_compiler
def test_a_card_that_cannot_be_used_is_refused_with_the_reason(card, monkeypatch):
    """No device, or a driver too old for the extra that is named otherwise."""
    runtime = sys.modules["cupy"].cuda.runtime
    monkeypatch.setattr(runtime, "getDeviceCount", lambda: 0)
    with pytest.raises(UsageError, match="there is no device") as refused:
        get_device("cuda")
    assert "streamkern[cuda13]" in refused.value.remedy
    monkeypatch.setattr(runtime, "driverGetVersion", lambda: 12080)
    with pytest.raises(UsageError) as refused:
        get_device("cuda")
    assert "streamkern[cuda12]" in refused.value.remedy


def test_without_cupy_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "streamkern.gpu.cupy", None)
    with pytest.raises(UsageError, match="CUDA is not available") as refused:
        get_device("cuda")
    assert "pip install" in refused.value.remedy
