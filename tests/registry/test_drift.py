"""Drift against its definitions in plain NumPy and SciPy, and what it says of rows that have or have not moved."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ks_2samp

from streamkern.data.row_order import RawRows
from streamkern.registry.drift import (
    DRIFT_METRICS,
    DataProfile,
    Drift,
    count,
    count_columns,
    count_leaves,
    edges_of,
    ks,
    label_psi,
    leaf_drift,
    leaf_profile,
    measure_drift,
    psi,
)

NONE = np.zeros((0, 11))
"""Edges of targets that are classes."""


def block(X: np.ndarray, y: np.ndarray | None = None) -> tuple[RawRows, str]:
    ids = np.arange(len(X))
    return RawRows(X, y, ids, ids * 0), "here"


def profile(X, y=None, scores=None, of_targets=NONE):
    edges = edges_of(X)
    n, counts, targets, labels = count_columns(edges, of_targets, block(X, y))
    made = DataProfile(n, edges, counts, of_targets, targets, dict(labels), columns=tuple("abc"))
    if scores is None:
        return made
    steps = edges_of(scores[:, None])
    return DataProfile(**{**vars(made), "score_edges": steps, "score_counts": count(scores[:, None], steps)})


def moved(before: DataProfile, X: np.ndarray, y: np.ndarray | None = None, scores: np.ndarray | None = None) -> Drift:
    return measure_drift(before, count_columns(before.edges, before.target_edges, block(X, y)), scores)


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, 3))


def test_the_index_is_its_formula():
    p, q = np.array([10, 20, 70]), np.array([30, 30, 40])
    a, b = p / 100, q / 100
    assert psi(p, q) == pytest.approx(sum((a - b) * np.log(a / b)))
    assert ks(p, q) == pytest.approx(0.3)


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=13), st.data())
def test_the_index_is_symmetric_nonnegative_and_zero_for_equal_shares(p: list[int], data: st.DataObject):
    q = data.draw(st.lists(st.integers(0, 1000), min_size=len(p), max_size=len(p)))
    a, b = np.array(p), np.array(q)
    assert psi(a, b) == pytest.approx(psi(b, a))
    assert psi(a, b) >= 0
    assert psi(a, 7 * a) == 0
    assert 0 <= ks(a, b) <= 1


@given(
    st.lists(st.one_of(st.floats(), st.sampled_from([0.0, 1.0, -np.finfo(float).max])), min_size=1, max_size=60),
    st.data(),
)
def test_every_value_is_counted_once_whatever_it_is(values: list[float], data: st.DataObject):
    other = data.draw(st.lists(st.floats(), max_size=60))
    edges = edges_of(np.array(values)[:, None])
    for found in (values, other):
        counts = count(np.array(found, dtype=float)[:, None], edges)
        assert counts.sum() == len(found)
        assert counts[0, -1] == sum(not np.isfinite(value) for value in found)
    inside = count(np.array(values)[:, None], edges)[0]
    assert inside[0] == 0 or not np.isfinite(edges[0, 0])
    assert inside[-2] == 0


def test_the_distance_is_that_of_kolmogorov_and_smirnov_to_the_width_of_a_bin():
    X, Y = rows(5000), rows(5000, 1) + 0.4
    before = profile(X)
    for column, found in enumerate(moved(before, Y).ks):
        exact = ks_2samp(X[:, column], Y[:, column]).statistic
        assert exact - 0.05 < found <= exact + 1e-12


def test_the_same_population_has_not_moved():
    drift = moved(profile(rows(5000), np.arange(5000) % 2), rows(4000, 1), np.arange(4000) % 2)
    assert drift.psi.max() < 0.02
    assert drift.warnings() == []
    assert set(drift.metrics()) == set(DRIFT_METRICS)


def test_a_column_that_moved_is_named_first():
    Y = rows(4000, 1)
    Y[:, 1] += 2
    drift = moved(profile(rows(5000)), Y)
    (said,) = drift.warnings()
    assert said.startswith("column b has shifted")
    assert drift.metrics()["drift.max_psi"] == drift.psi[1] > 1


def test_missing_values_and_a_constant_that_changes_are_drift():
    X = np.ones((1000, 3))
    Y = X.copy()
    Y[:, 0], Y[::2, 1] = 0.5, np.nan
    drift = moved(profile(X), Y)
    assert drift.psi[0] > 1
    assert drift.psi[1] > 1
    assert drift.psi[2] == 0


def test_classes_and_scores_are_compared():
    before = profile(rows(1000), np.arange(1000) % 2, scores=np.linspace(0, 1, 1000))
    drift = moved(before, rows(1000), np.arange(1000) % 3, scores=np.linspace(0.5, 1, 1000))
    assert drift.target_psi == label_psi({"0": 500, "1": 500}, {"0": 334, "1": 333, "2": 333}) > 0.25
    assert drift.score_psi > 0.25
    assert [said.split(" has")[0].split(" have")[0] for said in drift.warnings()] == [
        "the target", "the champion's outputs on test rows",
    ]  # fmt: skip


def test_targets_that_are_values_are_counted_like_a_column():
    y = np.random.default_rng(0).standard_normal(1000)
    before = profile(rows(1000), y, of_targets=edges_of(y[:, None]))
    assert moved(before, rows(1000), y + 1).target_psi > 0.5
    assert before.labels == {}


def test_many_shifted_columns_are_told_in_short():
    drift = Drift(tuple("abcdefgh"), np.full(8, 1.0), np.full(8, 0.5), 0.0)
    assert drift.warnings()[-1] == "3 more columns have shifted"


def test_a_profile_comes_back_as_it_was():
    before = profile(rows(100), np.arange(100) % 2, scores=np.arange(100.0))
    again = DataProfile.load(*before.dump())
    for name, value in vars(before).items():
        np.testing.assert_array_equal(getattr(again, name), value)


def test_leaves_are_counted_and_compared_one_by_one():
    labels, leaves = np.array(["a", "b"] * 500), np.repeat([0, 1], [600, 400])
    before = replace(profile(rows(10)), **leaf_profile(count_leaves(3, NONE, (labels, leaves))))
    kept = DataProfile.load(*before.dump())
    assert kept.leaf_counts.tolist() == [600, 400, 0]
    assert kept.leaf_labels == ({"a": 300, "b": 300}, {"a": 200, "b": 200}, {})
    now = np.where(leaves == 1, "a", labels)
    found = leaf_drift(kept, count_leaves(3, NONE, (now, leaves)))
    assert found.psi == 0
    assert found.target_psi.tolist() == [0, label_psi({"a": 1, "b": 1}, {"a": 1}), 0]
    assert found.summary()[0]["leaf"] == 1
    assert [word for word in found.warnings() if "leaf 1" in word]
    found = leaf_drift(kept, count_leaves(3, NONE, (labels, leaves[::-1] + 1)))
    assert found.psi == pytest.approx(psi(np.array([600, 400, 0]), np.array([0, 600, 400])))
    assert "moved" in found.warnings()[0]
    assert found.target_psi.tolist() == [0, 0, 0]


def test_targets_of_leaves_are_counted_in_their_bins():
    y, leaves = rows(3000)[:, :2], np.repeat([0, 1], 1500)
    edges = edges_of(y)
    before = replace(profile(rows(10)), **leaf_profile(count_leaves(2, edges, (y, leaves))))
    moved = y.copy()
    moved[1500:, 1] += 2
    found = leaf_drift(before, count_leaves(2, edges, (moved, leaves)))
    expected = psi(count(y[1500:, 1:], edges[1:]), count(moved[1500:, 1:], edges[1:]))[0]
    assert found.target_psi.tolist() == [0.0, pytest.approx(expected)]
