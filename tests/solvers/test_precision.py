"""What float32 cannot represent is refused before training, or computed in float64, with the reason."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import r2_score

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.defaults import MAX_ROUNDING_SHARE
from streamkern.fitting.precision_checks import kernel_rounding, typical_sizes
from streamkern.kernels import Kernel
from streamkern.solvers import Direct

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
U = np.random.default_rng(0).normal(size=(600, 3))
Y = np.sin(U[:, 0]) + U[:, 1]
SIDES = np.where(np.arange(len(U)) % 2, -1.0, 1.0)[:, None]

CLUSTERS = U + 1e6 * SIDES
PRODUCT = sk.Gaussian(3.0) * sk.Polynomial(1)


def wendland(squared: np.ndarray) -> np.ndarray:
    r = np.minimum(np.sqrt(squared) / 6, 1)
    return (1 - r) ** 4 * (4 * r + 1)


LOST: dict[str, tuple[Kernel, np.ndarray, str, bool]] = {
    "clusters": (sk.Laplace(1.0), CLUSTERS, "distances of these rows are uncertain", True),
    "clusters, gaussian": (sk.Gaussian(1.0), CLUSTERS, "distances of these rows are uncertain", True),
    "clusters, profile": (sk.RadialProfile(wendland), CLUSTERS, "distances of these rows are uncertain", True),
    "product": (PRODUCT, U + 1e4, "the mean cannot be subtracted", True),
    "sum": (sk.Laplace(1.0) + 1e-8 * sk.Linear(), U + 1e4, "the mean cannot be subtracted", True),
    "polynomial": (sk.Polynomial(3), U + 1e4, "the mean cannot be subtracted", True),
    "linear": (sk.Linear(), U + 1e3, "the mean cannot be subtracted", True),
    "bandwidth": (sk.Gaussian(1e7), U, "so large that kernel values", False),
    "bandwidth, laplace": (sk.Laplace(1e9), U, "so large that kernel values", False),
    "bandwidth, scaled": (5.0 * sk.Matern(1e7, 2.5), U, "so large that kernel values", False),
}


def fit(kernel: Kernel, X: np.ndarray, dtype: str) -> sk.KernelRegressor:
    return sk.KernelRegressor(kernel, 100, Direct(), dtype=dtype, threads=1).fit(X, Y)


@pytest.mark.parametrize("name", LOST)
def test_what_float32_cannot_represent_is_refused_in_words(name: str):
    kernel, X, message, in_float64 = LOST[name]
    with pytest.raises(sk.errors.PrecisionError, match=message) as caught:
        fit(kernel, X, "float32")
    assert ('dtype="float64"' in str(caught.value.remedy)) == in_float64
    assert "float32" in str(caught.value.where)


@pytest.mark.parametrize("name", ["clusters", "product", "bandwidth"])
def test_auto_computes_in_float64_where_that_is_enough_and_says_why(name: str, tmp_path: Path):
    kernel, X, message, in_float64 = LOST[name]
    sk.write_zarr(tmp_path / "rows.zarr", X, Y, target="y")
    data = sk.open_dataset(tmp_path / "rows.zarr", "y")  # stored rows are computed in float32
    if not in_float64:
        with pytest.raises(sk.errors.PrecisionError, match=message):
            sk.KernelRegressor(kernel, 100, Direct(), threads=1).fit(data)
        return
    model = sk.KernelRegressor(kernel, 100, Direct(), threads=1).fit(data)
    assert model.model_.Z.dtype == F64
    assert message in model.result_.report["arithmetic"]
    assert message in model.model_.metadata["arithmetic"]
    assert r2_score(Y, model.predict(X)) == pytest.approx(r2_score(Y, fit(kernel, X, "float64").predict(X)), abs=1e-9)


HELD: dict[str, tuple[Kernel, np.ndarray]] = {
    "plain": (sk.Laplace(3.0), U),
    "small bandwidth": (sk.Gaussian(0.01), U),
    "large bandwidth": (sk.Laplace(1e3), U),
    "tails": (sk.Laplace(1.0), np.vstack([np.repeat(U, 10, axis=0), np.full((1, 3), 1e5)])),
    "rough": (sk.ExponentialPower(1.0, 0.3), U),
    "pixels": (sk.Laplace(20.0), np.random.default_rng(0).integers(0, 256, (300, 784)) / 255.0),
    "raw pixels": (sk.Polynomial(2), np.random.default_rng(0).integers(0, 256, (300, 784)).astype(float)),
    "step": (sk.ArcCosine(0), U),
    "tangent": (sk.NTK(3), U + 10.0),
    "offset": (sk.Laplace(3.0), U + 1.7e9),
    "one row": (sk.Gaussian(1.0), U[:1]),
}


@pytest.mark.parametrize("name", HELD)
def test_what_float32_holds_is_trained(name: str):
    kernel, X = HELD[name]
    assert kernel_rounding(kernel, typical_sizes(X, kernel.translation_invariant), F32).share <= MAX_ROUNDING_SHARE


@pytest.mark.parametrize("dtype", [F32, F64])
def test_the_share_is_that_of_kernel_values(dtype: np.dtype[Any]):
    """Against the kernel matrix itself: where the rule says little is lost, little is; where all, much is."""
    eps = np.finfo(dtype).eps
    for spread in (10.0, 1e3, 0.05 / eps**0.5, 20 / eps**0.5):
        X = U + spread * SIDES
        exact = np.exp(-np.square(U[:, None] - U[None]).sum(axis=2) / 18)  # within a cluster, by differences
        near = SIDES[:, 0] == 1
        X = np.asarray(X - X.mean(axis=0), dtype)
        error = np.abs(sk.Gaussian(3.0)(X) - exact)[np.ix_(near, near)].mean()
        share = kernel_rounding(sk.Gaussian(3.0), typical_sizes(X, True), dtype).share
        if share <= MAX_ROUNDING_SHARE:
            assert error < 4 * MAX_ROUNDING_SHARE
        if error > 0.1:
            assert share > MAX_ROUNDING_SHARE


def test_a_run_is_refused_with_the_status_of_a_plan(tmp_path: Path):
    place = tmp_path / "rows.zarr"
    sk.write_zarr(place, CLUSTERS, Y, target="y")
    (tmp_path / "pipeline.py").write_text(
        "import streamkern as sk\n"
        "def pipeline(dtype: str = 'float32'):\n"
        f"    data = sk.open_dataset({str(place)!r}, target='y')\n"
        "    return sk.Pipeline(data, kernel=sk.Laplace(1.0), centers=sk.Uniform(50), solver=sk.Direct(),\n"
        "                       task='regression', dtype=dtype)\n"
    )
    given = ["run", str(tmp_path / "pipeline.py"), "--run-dir", str(tmp_path / "run"), "--quiet"]
    assert main(given) == 2
    result = (tmp_path / "run" / "result.json").read_text()
    assert '"refused"' in result
    assert "uncertain" in result
    assert main([*given, "--set", "dtype=float64"]) == 0


def test_features_that_are_linear_in_rows_far_from_0_are_refused(tmp_path: Path):
    for features in (sk.Identity(), sk.ReLUFeatures(50)):
        pipeline = sk.Pipeline(sk.from_arrays(U + 1.7e9, Y), features=features, solver=Direct(), task="regression")
        with pytest.raises(sk.errors.PrecisionError, match="inner products"):
            sk.run(pipeline, tmp_path / type(features).__name__)


@pytest.mark.filterwarnings("ignore:Direct has not reached")  # three features: K(Z, Z) has rank 3
def test_a_linear_kernel_is_not_refused_where_float32_loses_nothing():
    far = U.astype(np.float64) + 300.0
    target = far @ np.arange(1.0, far.shape[1] + 1)
    scores = [
        sk.KernelRegressor(
            kernel=sk.Linear(), centers=50, solver=sk.Direct(1e-9), dtype=dtype, memory="8GiB", threads=1
        )
        .fit(far.astype(np.float32).astype(dtype), target)
        .score(far.astype(np.float32).astype(dtype), target)
        for dtype in ("float32", "float64")
    ]
    assert abs(scores[0] - scores[1]) < 1e-3


def test_a_kernel_of_the_l1_norm_is_held_to_the_rounding_of_its_distances():
    """Nothing cancels in them but what rows are rounded by: they stand offsets that inner products do not."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 5)) + np.where(rng.random(400) < 0.5, -1.0, 1.0)[:, None] * 1e3
    shares = {
        (norm, far): kernel_rounding(
            sk.Laplace(3.0, norm=norm), typical_sizes(far * X, True, norm), np.dtype(np.float32)
        ).share
        for norm in (1, 2)
        for far in (1.0, 1e4)
    }
    assert shares[1, 1.0] <= MAX_ROUNDING_SHARE < shares[2, 1.0]
    assert shares[1, 1e4] > MAX_ROUNDING_SHARE
