"""What only a card can show: its arithmetic, its memory, its speed. Without one the same tests run, on the stand-in."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import streamkern as sk
from streamkern.costs.dry_run import CostEstimate, ProblemSize
from streamkern.data.device_assembly import DeviceAssembly, assembly_on_device
from streamkern.data.row_order import Assembly, Stream
from streamkern.data.targets import Classes
from streamkern.engine.elementwise import Loops
from streamkern.engine.residuals import SquaredLoss
from streamkern.gpu.engine import DeviceEngine
from streamkern.kernels import Expansion
from streamkern.testing.elementwise import LoopsSuite
from tests.device import HostDevice

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


class Through:
    """The card's loops on arrays of the host: there, and back into what was given."""

    name = "cuda"

    def __init__(self, device: Any) -> None:
        self.device = device

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__") or method == "device":
            raise AttributeError(method)

        # Indices and ids of rows stay on the host, whatever their type is; all else is sent.
        stay = {"assemble": {1}, "add_noise": {1}, "assemble_noisy": {1}}.get(method, set())

        def call(*args: Any, **named: Any) -> Any:
            with self.device.turn():
                sent = [
                    self.device.put(a) if isinstance(a, np.ndarray) and k not in stay else a for k, a in enumerate(args)
                ]
                result = getattr(self.device.loops, method)(*sent, **named)
                for host, there in zip(args, sent, strict=True):
                    if there is not host:
                        host[...] = self.device.take(there)
                return self.device.take(result) if hasattr(result, "shape") else result

        return call


class TestLoops(LoopsSuite):
    """To rounding where the CPU's suite asks for the same bits: a card multiplies and adds in one instruction."""

    @pytest.fixture
    def loops(self, gpu: Any) -> Loops:
        through: Any = Through(gpu)
        made: Loops = through
        return made

    def test_rows_are_gathered_converted_and_scaled(self, loops: Loops) -> None:
        raw, index = np.arange(60 * 17, dtype=np.uint8).reshape(60, 17), np.array([5, 5, 59, 0, 31])
        out, expected = np.empty((5, 17), np.float32), np.empty((5, 17), np.float32)
        how = {"scale": np.linspace(0.1, 2, 17), "offset": np.linspace(-1, 1, 17)}
        loops.assemble(raw, index, out, **how)
        Loops().assemble(raw, index, expected, **how)
        np.testing.assert_allclose(out, expected, rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("d", [18, 784])
def test_a_block_is_float64_s_to_a_bound(gpu: Any, d: int, split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """float32 products: a few 1e-7 of the squared norms in a squared distance, and so about 1e-5 in a value."""
    rng = np.random.default_rng(0)
    X, Z, W = (rng.normal(size=size).astype(np.float32) for size in ((600, d), (900, d), (900, 10)))
    kernel = sk.Laplace(float(np.sqrt(2 * d)))
    exact = Expansion(kernel, Z.astype(np.float64)).block(X.astype(np.float64))
    monkeypatch.setattr(gpu, "splits", split)
    there = Expansion(kernel, Z, DeviceEngine(gpu))
    np.testing.assert_allclose(there.block(X), exact, rtol=0, atol=2e-5)
    np.testing.assert_allclose(there.predict(X, W), exact @ W, rtol=0, atol=2e-5 * np.abs(W).sum(axis=0).max())
    g = there.engine.pull(there, gpu.put(X), W, lambda F, rows: F, 10)
    np.testing.assert_allclose(g, exact.T @ (exact @ W), rtol=1e-3, atol=1e-2)


def test_rows_and_noise_are_the_cpu_s(gpu: Any) -> None:
    raw = np.random.default_rng(1).integers(0, 256, (500, 77)).astype(np.uint8)
    index, ids, copies = np.arange(499, -1, -1), np.arange(500) << 30, np.arange(500) % 7
    how: dict[str, Any] = {"scale": 1 / 255, "offset": -0.5, "ids": ids, "copies": copies, "noise": (3, 0.1)}
    expected = HostDevice().rows(raw, index, **how)
    np.testing.assert_allclose(gpu.take(gpu.rows(raw, index, **how)), expected, rtol=0, atol=4e-6)


def test_augmented_images_are_the_cpu_s(gpu: Any) -> None:
    """Noise, crops, flips and mixing, of rows that stay on the card and of rows that are sent."""
    rng = np.random.default_rng(5)
    X, y = rng.integers(0, 256, (300, 6 * 8 * 3)).astype(np.uint8), rng.integers(0, 4, 300)
    shape = (6, 8, 3)
    changes = (
        sk.augment.GaussianNoise(0.1),
        sk.augment.RandomCrop(shape, 2, 0.5),
        sk.augment.HorizontalFlip(shape),
        sk.augment.MixUp(0.4, bank=64),
    )
    data = sk.from_arrays(X, y).scale(1 / 255).augment(*changes, copies=3)
    here = Assembly(data, Classes(np.arange(4)), 0.3)
    for rest in (0, 1 << 20):
        there = assembly_on_device(here, gpu, rest, 1 << 20)
        assert isinstance(there, DeviceAssembly)
        assert there.stays == (rest > 0)
        streams = [Stream(each, lanes=1, block_rows=128) for each in (here, there)]
        for step in range(streams[0].steps):
            expected, found = (stream.block((0, 0, step)) for stream in streams)
            np.testing.assert_allclose(gpu.take(found.X), expected.X, rtol=0, atol=4e-6)
            np.testing.assert_array_equal(found.y, expected.y)


def test_many_outputs_and_regression_are_the_cpu_s(gpu: Any) -> None:
    """Residuals of over sixteen outputs, of values and with weights, are taken on the card."""
    rng = np.random.default_rng(6)
    X, Z = (rng.normal(size=size).astype(np.float32) for size in ((700, 40), (500, 40)))
    for c, y in ((40, rng.integers(0, 40, 700)), (3, rng.normal(size=(700, 3))), (20, rng.normal(size=(700, 20)))):
        W, w = 0.1 * rng.normal(size=(500, c)).astype(np.float32), rng.random(700)
        here, there = Expansion(sk.Gaussian(6.0), Z), Expansion(sk.Gaussian(6.0), Z, DeviceEngine(gpu))
        losses = [SquaredLoss(y, w) for _ in range(2)]
        expected = here.engine.pull(here, X, W, losses[0], c)
        found = there.engine.pull(there, X, W, losses[1], c)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
        assert losses[1].loss == pytest.approx(losses[0].loss, rel=1e-5)


def test_a_pipeline_with_nothing_set_runs_on_the_card(gpu: Any, on_card: bool, tmp_path: Path) -> None:
    """The search for a kernel, and a projection that the card's memory chooses."""
    X, y = load_digits(return_X_y=True)
    n = 1400 if on_card else 500
    pipeline = sk.Pipeline(train=sk.from_arrays(X[:n], y[:n]), test=sk.from_arrays(X[1400:], y[1400:]))
    there, here = (
        sk.run(pipeline, tmp_path / device, resources=sk.Resources(device=device)) for device in ("cuda", "cpu")
    )
    assert there["device"] == gpu.name
    assert there["metrics"]["test"]["accuracy"] >= here["metrics"]["test"]["accuracy"] - 0.01


def test_the_inverse_of_a_factor_is_lapack_s(gpu: Any) -> None:
    A = np.random.default_rng(2).normal(size=(1500, 1500))  # more columns than are solved at once
    A = A @ A.T + 1500 * np.eye(1500)
    with gpu.turn():
        W = gpu.take(gpu.inverse_factor(gpu.put(A), np.float64))
    np.testing.assert_allclose(W, HostDevice().inverse_factor(A, np.float64), rtol=0, atol=1e-12)


def test_the_device_of_another_process_is_its_own(gpu: Any) -> None:
    assert pickle.loads(pickle.dumps(gpu)) is gpu


@pytest.mark.parametrize("projection", ["exact", "inexact", "delayed"])
def test_a_run_of_the_digits_is_the_cpu_s(gpu: Any, on_card: bool, tmp_path: Path, projection: str) -> None:
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.uint8)
    n, p, copies, batch = (1400, 400, 5, 256) if on_card else (300, 60, 2, 128)
    pipeline = sk.Pipeline(
        train=sk.from_arrays(X[:n], y[:n]).augment(sk.augment.GaussianNoise(0.1), copies=copies),
        test=sk.from_arrays(X[1400:], y[1400:]),
        kernel=sk.Laplace(8.0),
        centers=sk.Uniform(p),
        solver=sk.EigenPro(epochs=2, projection=projection, batch=batch),
        task="classification",
        name="digits",
        lanes=1,  # as a device computes a step
    )
    there, here = (
        sk.run(pipeline, tmp_path / device, resources=sk.Resources(device=device)) for device in ("cuda", "cpu")
    )
    assert there["device"] == gpu.name
    assert there["metrics"]["test"]["accuracy"] == pytest.approx(here["metrics"]["test"]["accuracy"], abs=0.01)
    assert there["metrics"]["test"]["mse"] == pytest.approx(here["metrics"]["test"]["mse"], rel=0.02)
    again = sk.run(pipeline, tmp_path / "again", resources=sk.Resources(device="cuda"))
    assert again["weights_sha256"] == there["weights_sha256"]


@contextmanager
def peak_bytes() -> Iterator[Callable[[], int]]:
    """The most memory that CuPy's arrays hold at once meanwhile, less what they held before."""
    import cupy

    pool = cupy.get_default_memory_pool()
    before, held, peak = pool.used_bytes(), 0, 0

    class Watch(cupy.cuda.MemoryHook):  # type: ignore[misc]
        name = "streamkern peak"

        def malloc_postprocess(self, **event: Any) -> None:
            nonlocal held, peak
            held = pool.used_bytes() - before
            peak = max(peak, held)

    with Watch():
        yield lambda: peak


def test_memory_stays_within_what_was_projected(gpu: Any, on_card: bool) -> None:
    p, d, b, c = (20_000, 300, 4096, 10) if on_card else (300, 30, 200, 10)
    rng = np.random.default_rng(3)
    X, Z, W = (rng.normal(size=size).astype(np.float32) for size in ((b, d), (p, d), (p, c)))
    there = Expansion(sk.Laplace(20.0), Z, DeviceEngine(gpu))
    with peak_bytes() as peak:
        there.engine.pull(there, gpu.put(X), W, lambda F, rows: F, c)
    assert 0 < peak() <= CostEstimate(sk.SGD(batch=b), ProblemSize(b, p, d, c, lanes=1)).on_device + b * d * 4


@pytest.mark.parametrize("split", [False, True])
def test_a_wide_block_runs_near_the_card_s_product_rate(
    gpu: Any, on_card: bool, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At least 70% of the measured float32 rate; with products of halves at least 1.6 times it."""
    if split and not gpu.splits:
        pytest.skip("products of halves are not used on this card")
    monkeypatch.setattr(gpu, "splits", split)
    p, d, b, c, square = (20_000, 784, 8192, 10, 8192) if on_card else (80, 40, 50, 10, 64)
    rng = np.random.default_rng(4)
    X, Z, W = (rng.normal(size=size).astype(np.float32) for size in ((b, d), (p, d), (p, c)))
    there, rows = Expansion(sk.Laplace(20.0), Z, DeviceEngine(gpu)), gpu.put(X)
    best = np.inf
    for _ in range(6):
        start = time.perf_counter()
        there.engine.pull(there, rows, W, SquaredLoss(np.zeros(b, np.int64), None), c)
        best = min(best, time.perf_counter() - start)
    rate, expected = 2.0 * b * p * d / best, (1.6 if split else 0.7) * gpu.gemm_rate(square)
    assert rate >= expected or not on_card
