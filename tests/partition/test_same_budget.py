"""The same budget decides the same, and more memory is never worse: over plans alone, without a fit."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.costs.footprint import footprint
from streamkern.errors import PlanRefusedError
from streamkern.fitting.fit import planned_shape
from streamkern.fitting.stage import Runner
from streamkern.partition import fit_partition
from streamkern.partition.fit_partition import EVALUATE_LEAVES
from streamkern.partition.leaf_tasks import LeafSettings
from streamkern.partition.one_or_leaves import default_partition, resolve_with_held_out, stages_of_fit
from streamkern.partition.partition_shape import PartitionShape

MIB = 1 << 20
FRESH = 250 * MIB  # of a process that has just loaded the engine


class Asked(Exception):
    """The recipe of an estimator, which is not fitted."""


def recipe_of(n: int, d: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe of a default fit."""

    def asked(self: Any, recipe: Any) -> Any:
        raise Asked(recipe)

    monkeypatch.setattr(sk.KernelRegressor, "_fitted", asked)
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    with pytest.raises(Asked) as found:
        sk.KernelRegressor().fit(X, X[:, 0])
    return replace(found.value.args[0], dtype="float32")


def fits(recipe: Any, budget: int, held: int) -> tuple[bool, bool]:
    """Whether there are leaves, and whether a process that holds so many bytes goes on."""
    made, _ = resolve_with_held_out(recipe, budget)
    leaves = made.partition is not None
    try:
        if leaves:
            on = LeafSettings.of(made).on
            shape = PartitionShape.before_rows(made, on=on, budget=budget, slots=2, baseline=held)
            shape.footprint((*stages_of_fit(made), EVALUATE_LEAVES))
        else:
            footprint(*planned_shape(made, Runner.held_out_rows, budget=budget, baseline=held, slots=2))
    except PlanRefusedError:
        return leaves, False
    return leaves, True


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d", "step"), [(30_000, 5, 50), (200_000, 20, 300)])
def test_no_budget_is_refused_above_one_that_runs(n: int, d: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(n, d, monkeypatch)
    found = [fits(recipe, budget * MIB, FRESH) for budget in range(300, 4097, step)]
    for decided in zip(*found, strict=True):
        assert list(decided) == sorted(decided)
    assert found[-1] == (True, True)
    assert not found[0][0]


def test_what_the_process_holds_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(30_000, 5, monkeypatch)
    decided = []
    for held in (0, 3000 * MIB):
        monkeypatch.setattr(fit_partition, "load_libraries", lambda held=held: held)
        decided.append([default_partition(recipe, budget * MIB) for budget in (300, 1500, 3000)])
    assert decided[0] == decided[1]
    assert decided[0][0] is None
    assert decided[0][2] is not None


def test_less_memory_makes_smaller_leaves_before_it_makes_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = recipe_of(30_000, 5, monkeypatch)
    found = [default_partition(recipe, budget * MIB) for budget in range(300, 4000, 100)]
    rows = [0 if each is None else each.most for each in found]
    assert rows == sorted(rows)
    assert len(set(rows)) > 2
