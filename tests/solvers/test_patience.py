"""What a pass is judged by: gains that add up, in the units of the metrics."""

import numpy as np
import pytest

import streamkern as sk
from streamkern.defaults import MIN_LOSS_DECREASE
from streamkern.solvers.loop import stale

RNG = np.random.default_rng(0)
X = RNG.standard_normal((400, 3)).astype("float32")


def test_gains_that_are_nothing_are_none():
    assert stale([]) == 0
    assert stale([1.0, 0.9, 0.8]) == 0
    assert stale([1.0 - 1e-10 * i for i in range(50)]) == 49
    assert stale([1.0, 0.5, 0.6, 0.55]) == 2
    slow = [(1 - MIN_LOSS_DECREASE / 3) ** i for i in range(20)]  # small gains add up
    assert max(stale(slow[:n]) for n in range(1, 20)) == 3


@pytest.mark.parametrize("solver", [sk.EigenPro(epochs=1, batch=40, step=1e-9), sk.Direct()], ids=repr)
def test_loss_and_mse_are_in_one_unit(solver: object):
    """Of a model that is 0 while it is trained, the loss is the mean over rows and outputs of the squared targets."""
    y = np.arange(400) % 4
    model = sk.KernelClassifier(sk.Laplace(2.0), 20, solver).fit(sk.from_arrays(X, y))
    assert model.result_.outcome.history[0]["loss"] == pytest.approx(0.25, rel=1e-3)
    if isinstance(solver, sk.EigenPro):
        assert model.model_.score(X, y)["mse"] == pytest.approx(0.25, rel=1e-3)
