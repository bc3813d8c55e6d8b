"""The same arguments are the same fit, to the bit: of an estimator, and of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamkern as sk

random = np.random.default_rng(0)
X = random.normal(size=(240, 3)) * [1.0, 5.0, 0.2]
VALUES, CLASSES = np.sin(X[:, 0]) + X[:, 2], np.where(X[:, 0] + X[:, 2] > 0, "up", "down")
ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"kernel": "laplace"},
    {"kernel": sk.Gaussian(2.0), "centers": 30},
    {"kernel": "gaussian", "centers": sk.Uniform(25, seed=4), "solver": sk.Direct()},
    {"centers": 30, "solver": sk.EigenPro(epochs=3), "validation": 0.2},
    {"kernel": sk.Laplace(3.0), "solver": sk.Falkon(epochs=4), "validation": 0.3, "preprocess": None},
    {"kernel": sk.Laplace(3.0), "centers": 500, "solver": None},
    {"kernel": "laplace", "solver": "auto", "preprocess": (sk.Standardise(),), "lanes": 2},
    {"kernel": sk.Matern(2.0, 1.5), "centers": 40, "dtype": "float64"},
    {"kernel": sk.Laplace(2.0), "centers": 20, "partition": sk.Partition(leaves=3)},
    {"metric": sk.AGOP(), "centers": 40},
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("given", ARGUMENTS, ids=lambda given: ", ".join(given) or "defaults")
def test_an_estimator_and_a_pipeline_of_the_same_arguments(given: dict[str, Any], task: str, tmp_path: Path) -> None:
    data = sk.from_arrays(X, VALUES if task == "regression" else CLASSES)
    kind = sk.KernelRegressor if task == "regression" else sk.KernelClassifier
    fitted = kind(**given, random_state=5, memory="4GiB", threads=1).fit(data).model_
    sk.run(sk.Pipeline(data, task=task, seed=5, **given), tmp_path / "run", memory="4GiB", threads=1)
    made = sk.load_model(tmp_path / "run" / "model.zarr")
    rows = random.normal(size=(50, 3))
    np.testing.assert_array_equal(made.decision_function(rows), fitted.decision_function(rows))
    assert made.kernel == fitted.kernel


WRONG = {
    "solver": "newton", "centers": 0, "validation": 1.5, "lanes": 0, "metric": 3, "partition": "leaves",
    "dtype": "half", "threshold": "best", "preprocess": "none",
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [*WRONG.items(), ("centers", X[:9]), ("centers", [3]), ("solver", sk.SGD)])
def test_an_argument_that_neither_takes_is_the_same_error(name: str, value: Any) -> None:
    data, given = sk.from_arrays(X, CLASSES), {name: value}
    said = []
    for make, kind in (
        (lambda: sk.KernelClassifier(**given, memory="4GiB").fit(data), "KernelClassifier"),
        (lambda: sk.Pipeline(data, **given), "Pipeline"),
    ):
        with pytest.raises(sk.UsageError) as found:
            make()
        assert f"{kind}({name}=" in str(found.value)
        said.append(found.value.what)
    assert said[0] == said[1]
