"""``solver="auto"``: the least work that fits the memory, the same everywhere, said in plan, events and result."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkern as sk
from streamkern.costs.dry_run import CostEstimate, ProblemSize, sums_in_flight
from streamkern.costs.fit_shape import solver_memory
from streamkern.defaults import MAX_PASSES_WORK
from streamkern.fitting.solver_choice import choose_solver, default_passes, resolve_solver


def name(size: ProblemSize, **more: Any) -> str:
    return type(choose_solver(size, **more).solver).__name__


@pytest.mark.parametrize(
    ("size", "more", "expected"),
    [
        (ProblemSize(60_000, 1000, 784, 10), {"passes": 5}, "Direct"),  # wide rows: evaluating them once is what counts
        (ProblemSize(60_000, 1000, 784, 10), {"passes": 1}, "EigenPro"),
        (
            ProblemSize(1_000_000, 1000, 784, 10),
            {},
            "Direct",
        ),  # for the work of the three passes that two minutes allow
        (ProblemSize(1_000_000, 5000, 784, 10), {}, "EigenPro"),
        (ProblemSize(120_000_000, 10_000, 784, 10), {}, "EigenPro"),
        (ProblemSize(500_000, 2000, 18, 1), {}, "EigenPro"),  # narrow rows: the Gram matrix is dearer than many passes
        (ProblemSize(1500, 500, 64, 10), {}, "Direct"),
        (ProblemSize(100_000, 18, 18, 1), {"features": True}, "Direct"),
        (ProblemSize(1_000_000, 2000, 784, 10), {"features": True}, "EigenPro1"),
    ],
    ids=str,
)
def test_the_least_work_is_chosen(size: ProblemSize, more: dict[str, Any], expected: str):
    choice = choose_solver(size, **more)
    assert type(choice.solver).__name__ == expected
    assert choice.reason.startswith(expected)


sizes = st.builds(
    ProblemSize,
    n=st.integers(100, 10**8),
    p=st.integers(1, 20_000),
    d=st.integers(1, 2000),
    outputs=st.integers(1, 50),
    memory=st.integers(1 << 20, 1 << 36),
)


@pytest.mark.slow
@given(sizes, st.integers(1, 20), st.booleans(), st.integers(1, 64))
@settings(max_examples=200)
def test_what_is_chosen_fits_and_threads_do_not_matter(size: ProblemSize, passes: int, features: bool, slots: int):
    choice = choose_solver(size, passes=passes, features=features)
    assert choose_solver(replace(size, slots=slots), passes=passes, features=features) == choice
    if isinstance(choice.solver, sk.Direct):
        assert size.memory is not None
        assert sums_in_flight(16, size.scanned) * CostEstimate(choice.solver, size).memory.sums <= size.memory
        # More passes only make one pass of normal equations look better; less memory may rule it out.
        assert isinstance(choose_solver(size, passes=passes + 1, features=features).solver, sk.Direct)
    else:
        assert choice.solver.epochs == passes


def test_little_memory_rules_normal_equations_out():
    size = ProblemSize(60_000, 1000, 784, 10, memory=8 << 30)
    assert name(size, passes=5) == "Direct"
    little = choose_solver(replace(size, memory=100 << 20), passes=5)
    assert isinstance(little.solver, sk.EigenPro)
    assert "would hold" in little.reason


def test_a_ridge_is_worth_four_times_the_work():
    size = ProblemSize(20_000, 5000, 20, 2, memory=8 << 30)
    assert name(size) == "EigenPro"
    assert name(size, ridge=True) == "Direct"
    assert "which have no ridge" in choose_solver(size, ridge=True).reason
    many = choose_solver(replace(size, n=300_000), ridge=True, patience=3)
    assert isinstance(many.solver, sk.Falkon)
    assert (many.solver.patience, 8 <= many.solver.epochs <= 20) == (3, True)
    assert "takes the ridge" in many.reason
    assert name(replace(size, n=300_000)) == "EigenPro"
    assert name(replace(size, n=10_000_000), ridge=True) == "EigenPro"
    assert name(replace(size, memory=100 << 20), ridge=True) == "EigenPro"


def test_a_table_without_a_kernel_gets_normal_equations():
    X = np.random.default_rng(0).standard_normal((20_000, 6))
    job = sk.Pipeline(train=sk.from_arrays(X, X[:, 0]), solver="auto", task="regression", dtype="float32")
    wide = replace(job, train=sk.from_arrays(np.ones((20_000, 300), np.float32), X[:, 0]))
    passes = replace(job, kernel=sk.Laplace(2.0), centers=sk.Uniform(5000))
    assert [type(resolve_solver(each, 8 << 30)[0].solver).__name__ for each in (job, passes)] == ["Direct", "EigenPro"]
    assert resolve_solver(wide, 12 << 30)[0].centers == sk.Uniform(5000)


def test_many_rows_and_dear_passes_mean_fewer_of_them_and_a_long_set_up_more():
    by_rows = [default_passes(n) for n in (1, 1000, 60_000, 250_000, 10**6, 10**9)]
    assert by_rows == sorted(by_rows, reverse=True)
    assert by_rows[0] > by_rows[2] > by_rows[-1] == 1
    for n in (250_000, 10**7):
        affordable = [default_passes(n, MAX_PASSES_WORK / passes) for passes in (0.5, 3, 5, 50)]
        assert affordable[1:3] == [3, 5]
        assert affordable[0] <= 3 < 5 <= affordable[-1] < 50
    by_setup = [default_passes(10**7, MAX_PASSES_WORK, setup * MAX_PASSES_WORK) for setup in (0.4, 1, 3, 50)]
    assert by_setup == sorted(by_setup)
    assert by_setup[0] == 1 < by_setup[-1] < 50


def rows(n: int = 600) -> sk.Dataset:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n)
    return sk.from_arrays((rng.standard_normal((n, 5)) + 2.0 * y[:, None]).astype(np.float32), y)


@pytest.mark.parametrize(("copies", "expected"), [(1, "Direct"), (3000, "EigenPro")])
def test_plan_run_and_result_say_the_same(tmp_path: Path, copies: int, expected: str):
    train = rows()
    if copies > 1:
        train = train.augment(sk.augment.GaussianNoise(0.1), copies=copies)
    centers = sk.Uniform(50 if copies == 1 else 500)
    job = sk.Pipeline(
        train=train,
        test=rows(100),
        kernel=sk.Laplace(2.0),
        centers=centers,
        solver="auto",
        name="auto",
        dtype="float32",
    )
    chosen, reason = resolve_solver(job, 1 << 30)
    assert type(chosen.solver).__name__ == expected
    made = sk.plan(job, memory="4GiB", threads=1)
    assert made.solver == expected
    assert reason in made.choices
    if copies > 1:
        return
    seen: list[dict[str, Any]] = []
    result = sk.run(
        job, tmp_path / "run", memory="4GiB", listeners=(lambda k, f: seen.append(f) if k == "choice" else None,)
    )
    assert result["solver"] == expected
    assert [event["reason"] for event in seen] == [reason]
    assert json.loads((tmp_path / "run/manifest.json").read_text())["solver"] == "auto"
    # The stages are those of the chosen solver: naming it changes nothing.
    named = sk.run(replace(job, solver=chosen.solver), tmp_path / "run", memory="4GiB")
    assert named["weights_sha256"] == result["weights_sha256"]
    assert [stage["name"] for stage in named["stages"] if not stage["cached"]] == ["save"]


def test_a_recipe_with_a_solver_is_left_alone():
    job = sk.Pipeline(rows(), sk.Laplace(2.0), sk.Uniform(50), sk.EigenPro(), dtype="float32")
    assert resolve_solver(job, 1 << 30) == (job, "")


@pytest.mark.parametrize("centers", [sk.AllRows(), sk.Uniform(600)], ids=["stored", "drawn"])
def test_every_row_a_center_needs_no_projection_where_no_float32_factor_fits(centers: Any):
    job = sk.Pipeline(train=rows(), kernel=sk.Laplace(2.0), centers=centers, solver="auto", dtype="float32")
    chosen, reason = resolve_solver(job, 1 << 20)
    assert isinstance(chosen.solver, sk.EigenPro2)
    assert chosen.solver.epochs == default_passes(600)
    assert "every training row is a center" in reason
    if not centers.stored:  # normal equations, or a factor, while there is room
        assert not isinstance(resolve_solver(job, 1 << 30)[0].solver, sk.EigenPro2)
        p, budgets = 600, range(1 << 20, 12 << 20, 1 << 18)
        kinds = [sk.EigenPro().chosen_projection(p, solver_memory(budget, job.train, p, 4)) for budget in budgets]
        assert "packed" in kinds  # which would have to be set up, for what EigenPro 2 has without
        for budget, kind in zip(budgets, kinds, strict=True):
            assert isinstance(resolve_solver(job, budget)[0].solver, sk.EigenPro2) == (kind != "exact")
    twice = replace(job, train=rows().augment(sk.augment.GaussianNoise(0.1), copies=2), centers=sk.Uniform(600))
    assert not isinstance(resolve_solver(twice, 1 << 20)[0].solver, sk.EigenPro2)


def test_a_plan_is_of_the_factor_where_every_row_is_a_center():
    X = np.random.default_rng(0).normal(size=(3_000, 4)).astype(np.float32)
    job = sk.Pipeline(train=sk.from_arrays(X, X[:, 0]), task="regression", solver="auto")
    made = sk.plan(job, memory="4GiB", threads=1)
    assert made.footprint.cost_estimate.size.all_rows_are_centers
    assert made.footprint.cost_estimate.memory.training < 16 * 3_000**2  # bytes: normal equations take three times that
