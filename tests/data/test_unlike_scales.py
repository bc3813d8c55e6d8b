"""Features in unlike units are warned of, wherever training begins; images and codes are not."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine

import streamkern as sk
from streamkern.data.statistics import scale_warning

RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 6)) * [1, 1, 1, 1, 1, 1e6]
Y = (X[:, 0] > 0).astype(int)
NAMES = ["a", "b", "c", "d", "e", "income"]
TOLD = r"1 of 6 features \('income'\) make up 99% of the variance"


@pytest.mark.parametrize(("load", "told"), [(load_wine, True), (load_breast_cancer, True), (load_digits, False),
                                            (load_diabetes, False), (load_iris, False)])  # fmt: skip
def test_tables_in_several_units_are_told_and_images_are_not(load: object, told: bool):
    variance = load(return_X_y=True)[0].var(axis=0)  # type: ignore[operator]
    assert (scale_warning(variance) is not None) == told


@pytest.mark.parametrize(
    ("variance", "told"),
    [([1.0, 1.0], False), ([1.0, 50.0], False), ([1.0, 200.0], True), ([0.0, 1e9], False), ([1.0] * 9 + [1e4], True),
     (RNG.geometric(0.1, 50) / 50, False), ([1e-12] * 784 + [1.0] * 300, False)],
)  # fmt: skip
def test_a_few_features_that_make_up_all_of_the_variance(variance: list[float], told: bool):
    assert (scale_warning(np.array(variance)) is not None) == told


@pytest.mark.slow
def test_fit_plan_and_run_tell_of_it(tmp_path: Path):
    data = sk.from_arrays(X, Y, columns=NAMES)
    with pytest.warns(UserWarning, match=TOLD):
        sk.KernelClassifier(centers=20, preprocess=None).fit(data)
    pipeline = sk.Pipeline(data, centers=sk.Uniform(20), solver=sk.Direct(), preprocess=None)
    plan = sk.plan(pipeline, threads=1)
    assert "warning: 1 of 6 features ('income')" in plan.text()
    told: list[str] = []
    sk.run(pipeline, tmp_path / "run", listeners=(lambda k, f: told.append(str(f.get("message"))),))
    assert sum("1 of 6 features ('income')" in each for each in told) == 1


def test_standardised_rows_are_not_told_of(tmp_path: Path):
    data = sk.from_arrays(X, Y, columns=NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sk.KernelClassifier(centers=20, scaling="standard").fit(data)
    pipeline = sk.Pipeline(data, centers=sk.Uniform(20), solver=sk.Direct(), scaling="standard")
    assert "warning" not in sk.plan(pipeline, threads=1).text()
