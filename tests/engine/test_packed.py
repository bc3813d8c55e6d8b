"""Inverse factors in 16 bits against plain NumPy, on every engine, to the same bits on any number of threads."""

import pickle
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.cpu import gemv
from streamkern.cpu.engine import HostEngine
from streamkern.engine import Engine
from streamkern.engine.quantised_factor import PANEL, PackedFactor, factor_bytes, fitting_lead, quantised
from streamkern.errors import NumericalError
from streamkern.execute import ThreadsExecutor
from streamkern.gpu.engine import DeviceEngine
from streamkern.kernels import Expansion
from streamkern.storage.serialize import load_value, save_value
from tests.device import HostDevice, StrictDevice

SHIFT = 0.02
SHAPES = [(300, 300), (PANEL + 150, PANEL + 150), (2 * PANEL + 70, PANEL), (PANEL + 33, 0)]
"""p and lead: within a panel, whole, with a lead, and of panels alone."""

ENGINES: dict[str, Any] = {
    "numpy": Engine,
    "host": HostEngine,
    "device": lambda: DeviceEngine(HostDevice()),
    "strict device": lambda: DeviceEngine(StrictDevice()),
}


def expansion(p: int, engine: Any, dtype: Any = np.float32) -> Expansion:
    return Expansion(sk.Laplace(3.0), np.random.default_rng(p).normal(size=(p, 6)).astype(dtype), engine)


def kernel_matrix(p: int, lead: int) -> np.ndarray:
    """K(Z, Z) + shift I, or its PITC approximation: exact in the lead, against it, and within panels."""
    engine = Engine()
    K = engine.kernel_matrix(expansion(p, engine), p) + SHIFT * np.eye(p)
    low = K[:, :lead] @ np.linalg.inv(K[:lead, :lead]) @ K[:lead]
    panels = np.arange(p) // PANEL
    same = (panels[:, None] == panels) | (np.minimum(*np.meshgrid(np.arange(p), np.arange(p))) < lead)
    return np.where(same, K, low)


@pytest.mark.parametrize(("p", "lead"), [*SHAPES, (4 * PANEL + 70, PANEL), (4 * PANEL + 70, 3 * PANEL)], ids=str)
@pytest.mark.parametrize("name", ENGINES)
def test_products_of_parts_of_a_factor_add_up_to_that_of_the_whole(name: str, p: int, lead: int):
    """Of two panels each: inside the lead, across its end, and beyond it."""
    engine = ENGINES[name]()
    W = engine.packed_factor(expansion(p, engine), SHIFT, lead)
    B = np.random.default_rng(1).normal(size=(p, 3)).astype(np.float32)
    total = np.zeros((p, 3))
    for start in range(0, p, 2 * PANEL):
        part = W.part(slice(start, min(start + 2 * PANEL, p)))
        own = slice(max(start, lead), max(start + len(part.scales), lead))
        assert part.p == lead + own.stop - own.start
        found = engine.packed_product(engine.place(part), np.concatenate([B[:lead], B[own]]))
        total[:lead] += found[:lead]
        total[own] += found[lead:]
    np.testing.assert_allclose(total, engine.packed_product(W, B), rtol=0, atol=1e-5 * np.abs(total).max())


@pytest.mark.parametrize(("p", "lead"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ENGINES)
def test_a_packed_factor_is_of_the_inverse(name: str, dtype: Any, p: int, lead: int):
    engine = ENGINES[name]()
    W = engine.packed_factor(expansion(p, engine, dtype), SHIFT, lead)
    B = np.random.default_rng(1).normal(size=(p, 3))
    expected = np.linalg.solve(kernel_matrix(p, lead), B)
    for factor in (W, engine.place(W)):
        found = engine.packed_product(factor, B)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize("columns", [1, 3, 32, 37])
@pytest.mark.parametrize(("p", "lead"), SHAPES, ids=str)
@pytest.mark.parametrize("name", ["host", "device", "strict device"])
def test_products_are_those_of_the_reference(name: str, p: int, lead: int, columns: int):
    engine, reference = ENGINES[name](), Engine()
    W = reference.packed_factor(expansion(p, reference), SHIFT, lead)
    B = np.random.default_rng(2).normal(size=(p, columns)).astype(np.float32)
    for found, expected in (
        (engine.packed_product(W, B), reference.packed_product(W, B)),
        (engine.packed_product(engine.place(W), B), reference.packed_product(W, B)),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=3e-6 * np.abs(expected).max())


@pytest.mark.parametrize(("p", "lead"), SHAPES, ids=str)
def test_threads_change_no_bit(p: int, lead: int):
    B, found = np.random.default_rng(3).normal(size=(p, 7)).astype(np.float32), []
    for threads in (1, 2, 3):
        with ThreadsExecutor(threads) as executor:
            engine = HostEngine().bound(executor)
            W = engine.packed_factor(expansion(p, engine), SHIFT, lead)
            found.append((*W.numbers, W.scales, engine.packed_product(W, B)))
    for other in found[1:]:
        for a, b in zip(other, found[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_library_multiplies_where_no_loop_is_compiled(monkeypatch: pytest.MonkeyPatch):
    engine = HostEngine()
    W = engine.packed_factor(expansion(300, engine), SHIFT, 300)
    B = np.random.default_rng(3).normal(size=(300, 7)).astype(np.float32)
    expected = engine.packed_product(W, B)
    monkeypatch.setattr(gemv, "VECTORS", 0)
    np.testing.assert_allclose(engine.packed_product(W, B), expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_rounding_is_of_the_row():
    rows = np.random.default_rng(0).normal(size=(5, 40)).astype(np.float32) * np.logspace(-8, 8, 5)[:, None]
    rows[2] = 0.0
    numbers, scales = quantised(rows.astype(np.float32))
    assert numbers.dtype == np.int16
    assert numbers.shape == (5, 48)
    assert not numbers[:, 40:].any()
    error = np.abs(numbers[:, :40] * scales[:, None] - rows)
    assert np.all(error <= 0.51 * scales[:, None])
    assert not numbers[2].any()


def test_bytes_and_the_lead_that_fits():
    p = 20 * PANEL
    assert factor_bytes(p, p) <= 2.1 * p * p
    W = Engine().packed_factor(expansion(300, Engine()), SHIFT, 300)
    assert W.nbytes == 300 * 304 * 2 + 300 * 4
    assert fitting_lead(p, None) == p
    assert fitting_lead(p, factor_bytes(p, p)) == p
    leads = [fitting_lead(p, share * factor_bytes(p, p) // 8) for share in range(9)]
    assert leads == sorted(leads)
    assert leads[0] == 0
    for lead in leads[2:]:
        assert factor_bytes(p, lead) <= factor_bytes(p, p)
        assert lead % PANEL == 0
    assert leads[4] >= p // 2 - 2 * PANEL  # it takes 2 p bytes a column


def test_it_is_saved_as_it_is(tmp_path: Any):
    W = HostEngine().packed_factor(expansion(2 * PANEL + 9, HostEngine()), SHIFT, PANEL)
    save_value(tmp_path / "factor", "test", W)
    for other in (load_value(tmp_path / "factor", "test"), pickle.loads(pickle.dumps(W))):
        assert isinstance(other, PackedFactor)
        assert (other.p, other.lead) == (W.p, W.lead)
        for a, b in zip((*other.numbers, other.scales), (*W.numbers, W.scales), strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype


@pytest.mark.parametrize("name", ["numpy", "host", "device"])
def test_what_is_not_positive_definite_is_refused(name: str):
    engine = ENGINES[name]()
    for p, lead in ((90, 90), (PANEL + 40, PANEL)):
        with pytest.raises(NumericalError, match="not positive definite"):
            engine.packed_factor(expansion(p, engine), -5.0, lead)
