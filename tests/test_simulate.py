"""The model of a step: exact where the answer is known, monotonic where only the direction is."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulate import (
    Costs,
    LeafCosts,
    Machines,
    ideal,
    simulate,
    simulate_leaves,
)

REAL = Costs(
    lane=0.02, warm=0.005, update=0.015, message=0.0005, answer=0.0005, fixed=0.001, latency=1e-4, size=2e5,
    bandwidth=1e9, add=1e-5, contention=1.05,
)  # fmt: skip


PARTS = Costs(
    lane=0.1, update=0.05, message=0.01, answer=0.02, fixed=0.03, latency=0.04, add=0.005, size=10, bandwidth=1000
)
SUM = 0.03 + (0.01 + 0.01 + 0.04) + 0.1 + 0.02 + (0.04 + 0.015 + 0.01) + 0.05


@given(workers=st.integers(1, 20), share=st.integers(1, 4), lane=st.floats(1e-3, 1.0))
def test_without_overhead_a_step_is_its_arithmetic(workers, share, lane):
    costs, layout = Costs(lane), Machines(workers, workers * share)
    assert simulate(costs, layout, 3).steps == pytest.approx([ideal(costs, layout)] * 3)


@pytest.mark.parametrize(
    ("costs", "layout", "expected"),
    [
        (PARTS, Machines(1, 1), SUM),
        (PARTS, Machines(1, 1, host_cores=2), SUM - 0.025),
        (Costs(lane=0.1, update=0.05, warm=0.03), Machines(2, 2), 0.15 - 0.03),
        (Costs(lane=0.1, update=0.05, warm=0.09), Machines(2, 2), 0.15 - 0.05),  # no longer than it waits
        (Costs(lane=0.1, contention=1.2), Machines(1, 2, cores=2), 0.2),
        (Costs(lane=0.1, contention=1.2), Machines(2, 2, cores=2), 0.12),  # all cores slow down when all compute
    ],
)
def test_parts_of_a_step_add_up(costs, layout, expected):
    assert simulate(costs, layout, 3).steps == pytest.approx([expected] * 3)


@pytest.mark.parametrize(
    "name", ["lane", "update", "message", "answer", "fixed", "latency", "size", "add", "contention"]
)
@pytest.mark.parametrize("layout", [Machines(2, 4, cores=2), Machines(8, 8), Machines(40, 40, roots=4)])
def test_more_of_any_cost_is_never_faster(name, layout):
    times = [simulate(replace(REAL, **{name: getattr(REAL, name) * k}), layout, 3).mean for k in (1, 1.5, 4)]
    assert times == sorted(times)
    assert name in ("latency", "contention") or times[0] < times[2]


def test_stragglers_cost_what_the_slowest_does():
    plain = simulate(Costs(0.1), Machines(50, 50), 40).mean
    assert simulate(Costs(0.1, straggle=0.1), Machines(1, 50), 40).mean / 50 == pytest.approx(plain, rel=0.02)
    assert simulate(Costs(0.1, straggle=0.1), Machines(50, 50), 40).mean == pytest.approx(0.125, rel=0.04)


def test_failures_repeat_steps_at_their_rate():
    costs = Costs(0.1, mtbf=100.0, recover=2.0)
    found = simulate(costs, Machines(100, 100), 300)  # 100 workers for 30 s: 30 failures of 0.1 s each
    assert 15 < found.retries < 50
    assert sum(found.steps) == pytest.approx(300 * 0.1 + found.retries * (0.1 + 2.0))


def test_a_tree_serves_many_workers_sooner_than_one_driver():
    few, many = Machines(4, 4), Machines(500, 500)
    assert simulate(REAL, replace(few, roots=8), 3).mean == simulate(REAL, replace(few, roots=None), 3).mean
    assert simulate(REAL, many, 3).mean < simulate(REAL, replace(many, roots=None), 3).mean / 3


def test_leaves_are_shared_out_evenly_until_the_driver_keeps_them_more_slowly_than_they_come():
    assert simulate_leaves(LeafCosts(2.0), 100, 10) == pytest.approx(20.0)
    assert simulate_leaves(LeafCosts(2.0), 101, 10) == pytest.approx(22.0)
    assert simulate_leaves(LeafCosts(2.0, keep=0.5), 101, 1) == pytest.approx(202.5)
    assert simulate_leaves(LeafCosts(2.0, keep=0.5), 100, 100) == pytest.approx(52.0)
    times = [simulate_leaves(LeafCosts(1.0, 0.01, straggle=0.3), 1000, workers) for workers in (1, 7, 60, 1000)]
    assert times == sorted(times, reverse=True)
    assert times[0] == pytest.approx(1000, rel=0.05)


def test_a_failure_costs_a_leaf():
    found = simulate_leaves(LeafCosts(10.0, mtbf=100.0), 2000, 20)
    assert 1000 * 1.02 < found < 1000 * 1.1  # one leaf in ten is lost, halfway through
