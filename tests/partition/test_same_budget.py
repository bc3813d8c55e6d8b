"""The same budget decides the same, and more memory is never worse: over plans alone, without a fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.errors import PlanRefusedError
from streamkern.execute import open_executor
from streamkern.fitting.fit import project_memory
from streamkern.fitting.stage import Runner
from streamkern.partition import one_or_leaves as choice
from streamkern.partition.fit_partition import EVALUATE_LEAVES, stages_of_leaves
from streamkern.partition.leaf_settings import LeafSettings
from streamkern.partition.one_or_leaves import (
    default_partition,
    resolve_with_held_out,
    shape_before_rows,
    stages_of_fit,
    trial_footprint,
)
from streamkern.partition.partition_shape import PartitionShape

MIB = 1 << 20
FRESH = 250 * MIB  # of a process that has just loaded the engine


class Asked(Exception):
    """The recipe of an estimator, which is not fitted."""


def recipe_of(n: int, d: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe of a default fit."""

    def asked(self: Any, recipe: Any, reason: Any) -> Any:
        raise Asked(recipe)

    monkeypatch.setattr(sk.KernelRegressor, "_fitted", asked)
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    with pytest.raises(Asked) as found:
        sk.KernelRegressor().fit(X, X[:, 0])
    return found.value.args[0]


def fits(recipe: Any, budget: int, held: int) -> tuple[bool, bool]:
    """Whether leaves are tried, and whether a process that holds so many bytes goes on."""
    made, _ = resolve_with_held_out(recipe, budget)
    tried = made.partition is not None
    try:
        if tried:
            shape_before_rows(made, budget, 2, held).footprint((*stages_of_fit(made), EVALUATE_LEAVES))
        else:
            project_memory(made, budget, held, Runner.held_out_rows, slots=2)
    except PlanRefusedError:
        return tried, False
    return tried, True


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d", "step"), [(30_000, 5, 50), (200_000, 20, 300)])
def test_no_budget_is_refused_above_one_that_runs(n: int, d: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(n, d, monkeypatch)
    found = [fits(recipe, budget * MIB, FRESH) for budget in range(500, 4097, step)]
    for decided in zip(*found, strict=True):
        assert list(decided) == sorted(decided)
    assert found[-1] == (True, True)
    assert not found[0][0]


def test_what_the_process_holds_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(30_000, 5, monkeypatch)
    decided = []
    for held in (0, 3000 * MIB):
        monkeypatch.setattr(choice, "load_libraries", lambda held=held: held)
        decided.append([default_partition(recipe, budget * MIB) for budget in (700, 1500, 3000)])
    assert decided[0] == decided[1]
    assert decided[0][0] is None
    assert decided[0][2] is not None


def test_one_model_that_would_not_fit_is_refused_before_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = replace(recipe_of(60_000, 8, monkeypatch), partition=sk.Partition())
    made, budget, held = resolve_with_held_out(recipe, 3000 * MIB)[0], 3000 * MIB, 2400 * MIB
    read: list[int] = []
    monkeypatch.setattr("streamkern.fitting.preparation.statistics", lambda *rest: read.append(1))
    monkeypatch.setattr(choice, "load_libraries", lambda: held)
    least = trial_footprint(made, made.partition, budget, 2, held)[1]  # the trial and the leaves would fit
    on = LeafSettings.of(made).on
    leaves = PartitionShape.before_rows(made, on=on, budget=budget, slots=2, baseline=held, trial=least)
    leaves.footprint((*stages_of_leaves(made), EVALUATE_LEAVES))
    with open_executor("threads", 2) as executor, pytest.raises(PlanRefusedError, match="threads=2"):
        choice.fit_one_or_leaves(made, executor, budget)
    assert not read
    with pytest.raises(PlanRefusedError, match="threads=2"):
        shape_before_rows(made, budget, 2, held)


@pytest.mark.slow
def test_nothing_is_refused_for_what_the_trial_leaves_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that fits of the trial have freed may still be held by the process when the next one is projected."""
    X = np.random.default_rng(0).normal(size=(600, 3)).astype(np.float32)
    calls: list[int] = []

    def loaded() -> int:
        calls.append(1)
        return FRESH if len(calls) == 1 else 1 << 40

    for module in ("partition.one_or_leaves", "fitting.fit"):
        monkeypatch.setattr(f"streamkern.{module}.load_libraries", loaded)
    made = sk.KernelRegressor(sk.Laplace(3.0), memory=4096 * MIB, partition=sk.Partition(rows=100), threads=2)
    assert made.fit(X, X[:, 0]).result_.report["partition"]["reason"]
    assert calls
