"""A linear part beside the kernel, where errors on rows that models are not fitted to say so."""

from pathlib import Path

import numpy as np
import pytest

import streamkern as sk
from streamkern.evaluation.paired_errors import Errors
from streamkern.kernels import kernel_from_json
from streamkern.report import read_run
from streamkern.runs.tune import tune
from streamkern.selection.kernel_search import radial_part


def _linear(n: int, seed: int = 7) -> tuple[np.ndarray, np.ndarray]:
    """Heavy tails: beyond the rows a kernel goes back to the mean, and a linear function goes on."""
    rng = np.random.default_rng(0)
    w, rng = rng.normal(size=12), np.random.default_rng(seed)
    X = rng.standard_t(3, size=(n, 12)) + 100.0
    return X, (X - 100.0) @ w + 0.3 * rng.normal(size=n)


@pytest.mark.slow
@pytest.mark.parametrize("n", [250, 600])
def test_a_linear_target_of_heavy_tails_has_one(n: int, tmp_path: Path):
    """Rows far from 0, too: the linear part is of rows less the mean of the centers."""
    X, y = _linear(n)
    more, truth = _linear(3000, 8)
    model = sk.KernelRegressor(memory="4GiB").fit(X, y)
    found = model.result_.report["kernel"]
    radial, linear = radial_part(found["kernel"])
    assert linear
    assert "and a linear part" in found["reason"]
    plain = sk.KernelRegressor(kernel_from_json(radial), solver=sk.Direct(found["ridge"]), memory="4GiB")
    assert 1 - model.score(more, truth) < 0.7 * (1 - plain.fit(X, y).score(more, truth))
    inside = model.predict_interval(more)
    assert 0.85 < np.mean((inside[:, 0] <= truth) & (truth <= inside[:, 1])) < 0.95
    loaded = sk.load_model(model.save(tmp_path / "model.zarr"))
    np.testing.assert_array_equal(loaded.predict(more), model.predict(more))
    np.testing.assert_allclose(sk.Predictor(loaded)(more[:50]).predictions, model.predict(more[:50]), rtol=1e-4)
    one = sk.KernelRegressor(memory="4GiB", threads=1).fit(X, y)
    assert one.model_.weights_sha256 == model.model_.weights_sha256
    gradients = sk.explain(loaded, more[:3])
    assert gradients is not None


@pytest.mark.slow
@pytest.mark.parametrize("n", [250, 1500])
def test_a_target_that_is_not_linear_and_noise_have_none(n: int):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, 3))
    for y in (np.sin(3 * X[:, 0]) + X[:, 1] ** 2, rng.normal(size=n)):
        model = sk.KernelRegressor(memory="4GiB").fit(X, y)
        kernels = [trial["kernel"] for trial in model.result_.report["kernel"]["trials"]]
        assert sum(radial_part(kernel)[1] for kernel in kernels) == 2
        assert isinstance(model.model_.kernel, sk.Laplace)
    classes = sk.KernelClassifier(memory="4GiB").fit(X, X[:, 0] > 0)
    assert not any("parts" in trial["kernel"] for trial in classes.result_.report["kernel"]["trials"])
    passes = sk.KernelRegressor(memory="4GiB", solver=sk.EigenPro(epochs=2)).fit(X, X[:, 0])
    assert not any("parts" in trial["kernel"] for trial in passes.result_.report["kernel"]["trials"])


def test_it_has_to_be_better_by_two_standard_errors():
    rng = np.random.default_rng(0)
    one = Errors(np.square(rng.normal(size=500)) + 1, np.ones(500))
    apart = rng.normal(size=500)
    other = Errors(one.errors - apart + apart.mean() - 1.5 * apart.std() / 500**0.5, one.weights)
    assert other.mean < 0.99 * one.mean
    assert other.beats(one)
    assert not other.beats(one, 2.0)


@pytest.mark.slow
def test_tune_and_the_report_show_it(tmp_path: Path):
    X, y = _linear(500)
    pipeline = sk.Pipeline(sk.from_arrays(X, y), solver=sk.Direct(), task="regression")
    found = tune(pipeline, seconds=False, memory="4GiB")
    assert any("L2+linear" in line for line in found.search.lines())
    sk.run(pipeline, tmp_path / "run", memory="4GiB")
    html = pytest.importorskip("streamkern.report.page").page([read_run(tmp_path / "run")])
    assert "L2+linear" in html
    assert "with a linear part" in str(sk.plan(pipeline, memory="4GiB"))


def test_a_centred_linear_kernel_does_not_see_what_is_added_to_all_rows():
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(20, 3)), rng.normal(size=(10, 3))
    kernel = sk.Linear(centred=True)
    np.testing.assert_allclose(kernel(X, Z), (X - Z.mean(axis=0)) @ (Z - Z.mean(axis=0)).T)
    np.testing.assert_allclose(kernel(X + 5, Z + 5), kernel(X, Z))
    assert kernel_from_json(kernel.to_json()) == kernel
    assert "centred" not in sk.Linear().to_json()
    with pytest.raises(sk.UsageError, match="centred is 'yes'"):
        sk.Linear(centred="yes")
