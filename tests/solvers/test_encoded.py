"""A fit to encoded rows in memory is the fit that reads, checks and draws: the same function and answers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.data import from_arrays
from streamkern.data.targets import Classes, Continuous, Encoding, Indicators
from streamkern.errors import PrecisionError
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.fitting.fit import fit
from streamkern.fitting.leaf_fit import fit_encoded
from streamkern.fitting.recipe import Recipe
from streamkern.fitting.stage import Runner
from streamkern.models.kernel_machine import KernelMachine
from streamkern.solvers.direct import Direct

N, RIDGE = 300, 1e-4
rng = np.random.default_rng(0)
X = rng.normal(size=(N, 4)).astype(np.float32)
VALUES = np.stack([np.sin(X[:, 0]) + 30.0, X[:, 1] ** 2], axis=1).astype(np.float64)
WEIGHTS = rng.integers(1, 5, N).astype(np.float64)
TARGETS: dict[str, tuple[np.ndarray, Encoding]] = {
    "classes, one of which is missing": (
        np.where(X[:, 0] > 0.3, 3, np.where(X[:, 1] > 0, 1, 0)),
        Classes(np.arange(4)),
    ),
    "values": (VALUES, Continuous(np.zeros(2), flat=False)),
    "labels": ((VALUES.mean(axis=0) < VALUES).astype(np.float64), Indicators(np.zeros(2), names=("a", "b"))),
}


def both(kind: str, w: np.ndarray | None, held_out_rows: int = 0) -> tuple[Any, Any]:
    """The fit of ``fit``, whose centers are the same rows in another order, and that of ``fit_encoded``."""
    y, encoding = TARGETS[kind]
    task = "regression" if kind == "values" else "classification"
    rows = from_arrays(X, y, sample_weight=w)
    recipe = Recipe(
        rows, sk.Laplace(2.0), sk.Uniform(N), Direct(RIDGE), task=task, preprocess=(), scaling=None, lanes=1,
        dtype="float32", partition=None,
    )  # fmt: skip
    runner = Runner()
    runner.held_out_rows = held_out_rows
    with ThreadsExecutor(1) as executor:
        whole = fit(recipe, executor, 8 << 30, runner)
        lean = fit_encoded(
            (X, y, w), sk.Laplace(2.0), RIDGE, encoding, executor, whole.footprint, held_out_rows=held_out_rows
        )
    return whole, lean


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("w", [None, WEIGHTS], ids=["", "weighted"])
def test_it_is_the_fit_that_reads_the_rows(kind: str, w: np.ndarray | None) -> None:
    whole, lean = both(kind, w)
    new = rng.normal(size=(50, 4)).astype(np.float32)
    expected, found = (KernelMachine.of(each).decision_function(new) for each in (whole, lean))
    np.testing.assert_allclose(found, expected, atol=2e-3)
    assert lean.outcome.history[-1]["loss"] == pytest.approx(whole.outcome.history[-1]["loss"])
    assert (lean.outcome.passes, lean.outcome.rows) == (1, N)
    assert type(lean.problem.encoding) is type(whole.problem.encoding)


@pytest.mark.parametrize("kind", TARGETS)
def test_rows_that_are_left_out_have_the_outputs_of_the_fit(kind: str) -> None:
    whole, lean = both(kind, None, held_out_rows=40)
    ids = lean.outcome.out_of_sample.ids
    np.testing.assert_array_equal(ids, whole.outcome.out_of_sample.ids)
    np.testing.assert_allclose(lean.outcome.out_of_sample.outputs, whole.outcome.out_of_sample.outputs, atol=5e-3)
    assert (lean.calibration is not None) == (kind == "values")  # those of classes are learned for all leaves together


def test_rows_that_float32_cannot_tell_apart_are_refused() -> None:
    y, encoding = TARGETS["values"]
    whole, _ = both("values", None)
    with ThreadsExecutor(1) as executor, pytest.raises(PrecisionError, match="bandwidth"):
        fit_encoded((X, y, None), replace(sk.Laplace(2.0), bandwidth=1e9), RIDGE, encoding, executor, whole.footprint)
