"""Shapes behave as arrays do, and what the meter says of its own table is printed in the documentation."""

import json
from pathlib import Path

import numpy as np
import pytest

from streamkern.cpu import default_engine
from streamkern.engine import Engine
from streamkern.engine.abstract_array import AbstractArray, CostMeter
from streamkern.engine.cost_meter import MeterEngine
from tests.modules import module_at
from tests.processors import own_products

ROOT = Path(__file__).parents[2]


@pytest.fixture
def meter() -> CostMeter:
    return CostMeter()


CASES = {
    "slices": lambda A: A[3:7, ::2],
    "rows": lambda A: A[np.array([1, 2, 5])],
    "a new axis": lambda A: A[:, None, 1:],
    "transposed": lambda A: A.T @ A,
    "a vector": lambda A: A @ A[0],
    "broadcast": lambda A: A - A[:1] * 2 + np.arange(6.0),
    "a float32 number": lambda A: A * np.float32(2),
    "wider": lambda A: np.square(A, dtype=np.float64),
    "sums": lambda A: A.sum(axis=0),
    "norms": lambda A: np.linalg.norm(A, axis=1),
    "einsum": lambda A: np.einsum("ij,ij->i", A, A, dtype=np.float64),
    "side by side": lambda A: np.concatenate([A, A], axis=1),
    "orthogonal": lambda A: np.linalg.qr(A)[0],
    "inverse": lambda A: np.linalg.inv(A.T @ A + np.eye(6)),
    "comparison": lambda A: (A > 0) & np.isfinite(A),
    "where": lambda A: np.where(A > 0, A, 0.0),
    "diagonal": lambda A: np.diag(A.T @ A),
    "reshaped": lambda A: A.reshape(5, -1),
    "another type": lambda A: A.astype(np.float64)[:2],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", CASES)
def test_shapes_and_dtypes_are_numpy_s(name: str, dtype: type, meter: CostMeter):
    A = np.random.default_rng(0).normal(size=(10, 6)).astype(dtype)
    real, shaped = CASES[name](A), CASES[name](meter.array((10, 6), dtype))
    assert (shaped.shape, shaped.dtype) == (real.shape, real.dtype)


def test_memory_is_alive_while_something_refers_to_it(meter: CostMeter):
    A = meter.array((100, 10), np.float64)
    assert meter.alive == 8000
    view = A[50:].T
    B = A + 1.0
    assert meter.alive == 16_000
    del A
    assert meter.alive == 16_000  # the view holds it
    del view
    assert meter.alive == 8000
    B -= 1.0
    assert meter.alive == 8000
    del B
    assert (meter.alive, meter.peak) == (0, 16_000)


def test_what_has_no_rule_or_no_truth_says_so(meter: CostMeter):
    A = meter.array((3, 3), np.float64)
    with pytest.raises(TypeError, match=r"numpy\.kron"):
        np.kron(A, A)
    with pytest.raises(TypeError, match=r"Engine\.decide"):
        bool(A[0, 0] > 0)
    with pytest.raises(TypeError, match="no numbers"):
        np.asarray(A)
    assert MeterEngine(meter, default_engine()).decide(A[0, 0] > 0, bound=True)


def test_products_are_counted_by_shape_and_place(meter: CostMeter):
    A, v = meter.array((200, 100), np.float64), meter.array((100,), np.float64)
    _ = A @ v
    _ = A @ A.T
    with meter.scaled(3):
        _ = A @ meter.array((100, 5), np.float64)
    panel = AbstractArray(meter, (200, 100), np.dtype(np.float32), A.memory, "panel")
    _ = panel.T @ meter.array((200, 2), np.float32)
    found, _ = meter.taken()
    assert found.vector64 == 2 * 200 * 100
    assert found.serial64 == 2 * 200 * 100 * 200
    assert found.thin64 == 3 * 2 * 200 * 100 * 5
    assert found.panel == 2 * 200 * 100 * 2


@own_products  # which keep packed centers in memory
def test_the_documented_table_is_what_the_command_measures():
    costs = module_at(ROOT / "tests/benchmarks/costs.py")
    (run,) = (
        run
        for run in json.loads((ROOT / "docs/results/solvers.json").read_text(encoding="utf-8"))
        if run["values"][0]["table"] == "costs"
    )
    assert run["values"] == costs.costs(60_000, 5000, 784, 10, 3)


FORWARDED = {"imap", "multiplier", "manhattan", "slopes", "inverse_factor"}
"""Methods of an engine that only its own methods call."""

FREE = {"place", "place_projection", "project", "resident", "moved", "spd_solve"}
"""Methods whose arithmetic is that of the arrays of shapes or of other methods, or none."""


def test_every_method_of_an_engine_has_a_cost():
    methods = {name for name, value in vars(Engine).items() if callable(value) and not name.startswith("_")}
    assert methods - set(vars(MeterEngine)) == FORWARDED | FREE
