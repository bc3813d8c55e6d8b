"""Whole runs on a device: the CPU's to tolerance, and refused before they begin where they would not fit."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import streamkern as sk
from streamkern.errors import PlanRefusedError, UsageError
from streamkern.fitting import device_placement
from streamkern.runs.pipeline_definition import Pipeline
from tests.cuda_host import needs_compiler
from tests.cupy_host import stand_in
from tests.device import HostDevice


def digits(solver: Any, kernel: Any = None, noise: bool = True, **more: Any) -> Pipeline:
    """A recipe whose steps are one block, as a device computes them."""
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.uint8)
    train, test = sk.from_arrays(X[:1200], y[:1200]), sk.from_arrays(X[1200:], y[1200:])
    if noise:
        train = train.augment(sk.augment.GaussianNoise(0.1), copies=2)
    more = {"kernel": kernel or sk.Laplace(8.0), "centers": sk.Uniform(150), "lanes": 1, "partition": None} | more
    return Pipeline(train=train, test=test, solver=solver, task="classification", name="digits", **more)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> HostDevice:
    made = HostDevice()
    monkeypatch.setattr(device_placement, "get_device", lambda name: None if name == "cpu" else made)
    return made


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The device of CuPy, on the stand-in: the loops of a card."""
    with stand_in() as module:
        made = module.open_device()
        monkeypatch.setattr(device_placement, "get_device", lambda name: None if name == "cpu" else made)
        yield made


SOLVERS = [
    sk.EigenPro(epochs=2, projection="exact", batch=256),
    sk.EigenPro(epochs=2, projection="packed", batch=256),
    sk.EigenPro(epochs=1, projection="inexact", batch=256),
    sk.EigenPro(epochs=1, projection="delayed", batch=64),
    sk.Falkon(epochs=5),
    sk.SGD(epochs=1),
]


def name_of(solver: Any) -> str:
    return str(getattr(solver, "projection", type(solver).__name__))


def check_alike(pipeline: Pipeline, tmp_path: Any, name: str) -> None:
    there = sk.run(pipeline, tmp_path / "there", threads=2, resources=sk.Resources(device="cuda"))
    here = sk.run(pipeline, tmp_path / "here", threads=2, resources=sk.Resources(device="cpu"))
    assert there["device"] == name
    assert here["device"] == "cpu"
    for part in ("train", "test"):
        assert there["metrics"][part]["accuracy"] == pytest.approx(here["metrics"][part]["accuracy"], abs=0.01)
        assert there["metrics"][part]["mse"] == pytest.approx(here["metrics"][part]["mse"], rel=0.02)


@pytest.mark.parametrize("solver", SOLVERS, ids=name_of)
def test_a_run_on_a_device_is_the_cpu_s(device: HostDevice, tmp_path: Any, solver: Any):
    check_alike(digits(solver), tmp_path, "host")


@pytest.mark.slow
@needs_compiler
@pytest.mark.parametrize("solver", SOLVERS, ids=name_of)
def test_a_run_with_the_loops_of_a_card_is_the_cpu_s(card: Any, tmp_path: Any, solver: Any):
    check_alike(digits(solver), tmp_path, "stand-in")


@pytest.mark.slow
@needs_compiler
def test_a_run_with_the_loops_of_a_card_has_the_same_bits_again(card: Any, tmp_path: Any):
    runs = [
        sk.run(digits(SOLVERS[0]), tmp_path / f"{k}", threads=threads, resources=sk.Resources(device="cuda"))
        for k, threads in enumerate((1, 2))
    ]
    assert len({run["weights_sha256"] for run in runs}) == 1


@pytest.mark.slow
def test_a_run_that_does_not_fit_a_device_is_refused_or_takes_another_projection(device, tmp_path, monkeypatch):
    """``auto`` does without K(Z, Z) there; what cannot be is refused before a row is read."""
    pipeline = digits(sk.EigenPro(projection="exact"))
    device.budget = 1 << 20
    with pytest.raises(PlanRefusedError, match="of the device") as refused:
        sk.run(pipeline, tmp_path, threads=1, resources=sk.Resources(device="cuda"))
    assert 'use projection="packed", or use projection="inexact"' in refused.value.remedy
    with pytest.raises(PlanRefusedError, match="of the device") as refused:
        sk.run(digits(sk.SGD(epochs=1)), tmp_path, threads=1, resources=sk.Resources(device="cuda"))
    assert refused.value.remedy.startswith("use fewer centers")
    needed, device_bytes = list[int](), device_placement.device_bytes
    monkeypatch.setattr(
        device_placement, "device_bytes", lambda *args: needed.append(device_bytes(*args)) or needed[-1]
    )
    for less, exact in ((0, True), (0, True), (1, False)):
        device.budget = needed[0] - less if needed else 1 << 30
        auto = digits(sk.EigenPro(batch=256), centers=sk.Uniform(600))
        result = sk.run(auto, tmp_path / f"{len(needed)}", threads=1, resources=sk.Resources(device="cuda"))
        assert (result["solver_report"]["projection"] == "exact") == exact


def rational(squared: Any) -> Any:
    return 1 / (1 + squared / 64)


def test_what_runs_on_the_cpu_only_says_so(device: HostDevice, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_placement, "MIN_DEVICE_TERMS", 0)
    features = digits(sk.SGD(epochs=1), features=sk.RandomFourier(sk.Gaussian(4.0), 20), kernel=None, centers=None)
    leaves = digits("auto", partition=sk.Partition(rows=500))
    function = sk.RadialProfile(rational)
    kernels = [digits(sk.SGD(epochs=1), kernel) for kernel in (function, 2.0 * function, function + sk.Linear())]
    for made in (features, leaves, *kernels):
        assert device_placement.device_for(made, "auto") is None
        with pytest.raises(UsageError, match="computed on the CPU only"):
            device_placement.device_for(made, "cuda")


def test_auto_takes_a_card_for_as_much_work_as_opening_it_is_worth(device: HostDevice, monkeypatch: pytest.MonkeyPatch):
    made = digits(sk.SGD(epochs=1))
    assert device_placement.device_for(made, "auto") is None
    assert device_placement.device_for(made, "cpu") is None
    terms = 2400 * 150 * 64
    monkeypatch.setattr(device_placement, "MIN_DEVICE_TERMS", terms)
    assert device_placement.device_for(made, "auto") is device
    monkeypatch.setattr(device_placement, "MIN_DEVICE_TERMS", terms + 1)
    assert device_placement.device_for(made, "auto") is None
    assert device_placement.device_for(made, "cuda") is device


def test_an_estimator_takes_a_device(device: HostDevice):
    X, y = load_digits(return_X_y=True)
    fitted, plain = (
        sk.KernelClassifier(sk.Laplace(30.0), 100, resources=sk.Resources(device=name), seed=1).fit(X[:600], y[:600])
        for name in ("cuda", "cpu")
    )
    assert np.mean(fitted.predict(X[600:]) == plain.predict(X[600:])) > 0.98


def test_no_device_is_the_cpu():
    assert device_placement.get_device("cpu") is None
    with pytest.raises(UsageError, match="Unknown device 'tpu'"):
        device_placement.get_device("tpu")
