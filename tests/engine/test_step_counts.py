"""What a step costs on a card, counted on the stand-in for CuPy: launches, products, waits and bytes that are sent."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.centers import CenterSet
from streamkern.data.targets import Classes
from streamkern.execute import ThreadsExecutor
from streamkern.gpu.engine import DeviceEngine
from streamkern.solvers import Problem, train
from tests.cuda_host import needs_compiler
from tests.cupy_host import COUNTS, stand_in

pytestmark = needs_compiler

N, P, D, CLASSES, BATCH = 384, 70, 40, 4, 128


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
        data = data.augment(sk.augment.GaussianNoise(0.1), copies=2)
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


@pytest.mark.slow
def test_a_step_takes_eight_launches_and_products_one_wait_and_no_row_of_the_host(device: Any):
    """By a second epoch, so that what belongs to a training as a whole cancels out."""
    (_, one), (_, two) = (trained(device, 1 << 30, epochs) for epochs in (1, 2))
    steps, launches = 2 * N // BATCH, Counter(two["launches"]) - Counter(one["launches"])
    more = {name: two[name] - one[name] for name in ("products", "sent", "waits", "fetched")}
    assert (launches.total() + more["products"]) / steps <= 8, launches
    assert more["waits"] / steps <= 1
    assert more["sent"] / steps <= 24 * BATCH  # a row's id, its copy and its target
    assert more["fetched"] / steps <= 8 * BATCH  # losses, not residuals


def test_rows_that_do_not_fit_are_streamed_with_the_same_bits(device: Any):
    """Through two slots, whose bytes are those of the stored type."""
    for noise in (True, False):
        stays, kept = trained(device, 1 << 30, 1, noise)
        streams, sent = trained(device, 0, 1, noise)
        np.testing.assert_array_equal(streams.weights, stays.weights)
        rows = (2 if noise else 1) * N
        assert sent["sent"] >= kept["sent"] + rows * D - N * D
        assert sent["sent"] <= kept["sent"] + rows * D + N * D
