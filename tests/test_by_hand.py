"""By hand is never worse: an argument that is given alone leaves the rest to the same choices as none."""

from functools import cache
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.types import Array

TASKS, ROWS = ("regression", "classification"), (400, 1500)
TESTED = 4000
ARGUMENTS: dict[str, dict[str, Any]] = {
    "kernel": {"kernel": "laplace"},
    "metric": {"metric": sk.AGOP()},
    "diagonal metric": {"metric": sk.AGOP(kind="diagonal")},
    "centers": {"centers": 10**4},
    "partition": {"partition": sk.Partition()},
}


@cache
def table(task: str) -> tuple[Array, Array]:
    """Rows of eight columns, of which two matter most, two a little and four not at all."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(max(ROWS) + TESTED, 8))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.3 * X[:, 2] * X[:, 3] + 0.3 * rng.normal(size=len(X))
    return X, y > 0 if task == "classification" else y


def fitted(task: str, rows: int, **given: Any) -> Any:
    X, y = table(task)
    kind = sk.KernelRegressor if task == "regression" else sk.KernelClassifier
    return kind(memory="4GiB", threads=1, **given).fit(X[:rows], y[:rows])


def errors(task: str, model: Any) -> Array:
    """Of held-out rows: squared errors of values, mistakes of classes."""
    X, y = (part[-TESTED:] for part in table(task))
    missed = model.predict(X) != y if task == "classification" else model.predict(X) - y
    return np.square(missed.astype(np.float64))


@cache
def errors_of_defaults(task: str, rows: int) -> Array:
    return errors(task, fitted(task, rows))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:there are")  # fewer rows than centers
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument_alone_is_no_worse_than_none(argument: str, task: str, rows: int) -> None:
    worse = errors(task, fitted(task, rows, **ARGUMENTS[argument])) - errors_of_defaults(task, rows)
    assert worse.mean() <= 2 * worse.std() / np.sqrt(TESTED)


def test_a_metric_is_learned_as_asked_at_the_kernel_that_is_chosen() -> None:
    found = fitted("regression", 400, metric=sk.AGOP(kind="full", rounds=2)).result_.report["kernel"]
    assert {trial["kind"] for trial in found["trials"]} == {"none", "full"}
    assert {trial["kernel"].get("norm", 2) for trial in found["trials"]} == {1, 2}


def test_of_few_rows_a_metric_is_learned_with_the_kernel_of_the_search() -> None:
    report = fitted("regression", 300, metric=sk.AGOP()).result_.report
    assert report["metric"]["history"]
    assert len(report["kernel"]["trials"]) > 2
    assert report["metric"]["kind"] == "diagonal"
    kernel = report["kernel"]
    assert {trial["kind"] for trial in kernel["trials"]} == {"none"}
    assert "with no metric: squared error" in kernel["reason"]
    assert "; metric: diagonal, round" in kernel["reason"]


def test_of_few_rows_leaves_and_tune_learn_the_metric_of_one_model() -> None:
    one = fitted("regression", 300, metric=sk.AGOP())
    leaves = fitted("regression", 300, metric=sk.AGOP(), partition=sk.Partition(leaves=2))
    assert leaves.result_.report["metric"] == one.result_.report["metric"]
    assert leaves.result_.report["kernel"] == one.result_.report["kernel"]
    X, y = table("regression")
    rows = sk.from_arrays(X[:300], y[:300])
    found = sk.tune(sk.Pipeline(rows, task="regression", metric=sk.AGOP()), memory="4GiB", threads=1).search
    assert (found.metric.kind, len(found.trials)) == ("diagonal", 14)


def test_a_name_leaves_the_bandwidth_to_a_search_and_a_bandwidth_does_not() -> None:
    model = fitted("classification", 400, kernel="gaussian")
    trials = model.result_.report["kernel"]["trials"]
    assert {trial["kernel"]["name"] for trial in trials} == {"Gaussian"}
    assert len({trial["kernel"]["bandwidth"] for trial in trials}) > 2
    assert isinstance(model.model_.kernel, sk.Gaussian)
    for kernel in (sk.Gaussian("median"), sk.Gaussian(2.0)):
        assert "kernel" not in fitted("classification", 400, kernel=kernel).result_.report


@pytest.mark.slow
def test_leaves_share_one_kernel_of_the_family_and_one_metric_of_the_kind() -> None:
    given = {"kernel": "laplace", "metric": sk.AGOP(kind="diagonal"), "partition": sk.Partition(leaves=4)}
    model = fitted("regression", 1500, **given)
    kernel = model.result_.report["kernel"]
    assert {trial["kind"] for trial in kernel["trials"]} == {"none", "diagonal"}
    assert {leaf.kernel for leaf in model.model_.leaves.models} == {model.model_.kernel}
