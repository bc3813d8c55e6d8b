"""What a step costs on a card, counted on the stand-in for CuPy: launches, products, waits and bytes that are sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.centers import CenterSet
from streamkern.data.targets import Classes
from streamkern.engine.gpu.engine import DeviceEngine
from streamkern.execute import ThreadsExecutor
from streamkern.solvers import Problem, train
from tests.cuda_host import needs_compiler
from tests.cupy_host import COUNTS, stand_in

pytestmark = needs_compiler

N, P, D, CLASSES, BATCH = 2048, 120, 40, 10, 256


@pytest.fixture
def device() -> Iterator[Any]:
    with stand_in() as module:
        yield module.open_device()


def trained(device: Any, rest: int, epochs: int, noise: bool = True) -> tuple[Any, dict[str, Any]]:
    """Weights after some epochs, and what was counted from the first step to the last.

    Args:
        device: of the engine.
        rest: bytes of it for stored rows.
        epochs: passes over the rows.
        noise: whether rows are augmented.
    """
    made = np.random.default_rng(0)
    X, y = made.integers(0, 256, (N, D)).astype(np.uint8), made.integers(0, CLASSES, N)
    data = sk.from_arrays(X, y).scale(1 / 255)
    if noise:
        data = data.augment(sk.GaussianNoise(0.1), copies=2)
    ids = data.draw(P)
    Z = (X[ids] / 255).astype(np.float32)
    solver = sk.EigenPro(epochs=epochs, projection="exact", q=10, batch=BATCH)
    with ThreadsExecutor(1) as executor:
        posed = Problem(
            data, Classes(np.arange(CLASSES)), sk.Laplace(3.0), CenterSet(Z, ids), executor, lanes=1,
            engine=DeviceEngine(device), device_rest=rest,
        )  # fmt: skip
        iteration = solver.setup(posed, solver.prepare(posed))
        COUNTS.reset()
        outcome = train(posed, iteration)
        counts = {name: getattr(COUNTS, name) for name in ("products", "sent", "waits", "fetched")}
        counts["launches"] = list(COUNTS.launches)
    assert outcome.failure is None
    return outcome, counts


def of_more_steps(device: Any, rest: int) -> tuple[float, dict[str, float]]:
    """Rows of the steps of two further epochs, and what they take: what belongs to a training as a whole cancels out."""
    _, few = trained(device, rest, 2)
    _, many = trained(device, rest, 4)
    more = {name: many[name] - few[name] for name in ("products", "sent", "waits", "fetched")}
    more["launches"] = len(many["launches"]) - len(few["launches"])
    return 2 * 2 * N / BATCH, more


def test_a_step_takes_few_launches_one_wait_and_no_row_of_the_host(device: Any):
    """Rows are split, multiplied and summed up in 7 launches and products; ids, copies and targets are sent."""
    steps, more = of_more_steps(device, 1 << 30)
    assert (more["launches"] + more["products"]) / steps <= 8
    assert more["waits"] / steps <= 1 + 4 / steps  # and at the end of an epoch
    assert more["sent"] / (steps * BATCH) <= 24 + 8
    assert more["fetched"] / steps <= 4096  # the losses of a block, not its residuals


def test_rows_that_do_not_fit_are_streamed_with_the_same_bits(device: Any):
    """Through two slots, whose bytes are those of the stored type."""
    for noise in (True, False):
        stays, kept = trained(device, 1 << 30, 2, noise)
        streams, sent = trained(device, 0, 2, noise)
        np.testing.assert_array_equal(streams.weights, stays.weights)
        rows = 2 * (2 if noise else 1) * N
        assert sent["sent"] >= kept["sent"] + rows * D - N * D
        assert sent["sent"] <= kept["sent"] + rows * D + N * D
