"""Groups of equal rows, by sums along a direction first, are those of their bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamkern.calibration.out_of_sample import equal_rows


def by_bytes(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    seen: dict[bytes, int] = {}
    codes = np.array([seen.setdefault(row.tobytes(), len(seen)) for row in X], dtype=np.int64)
    return codes, np.array([np.flatnonzero(codes == k)[0] for k in range(len(seen))], dtype=np.int64)


@given(
    st.integers(0, 40),
    st.integers(0, 4),
    st.integers(1, 5),
    st.sampled_from(["float32", "float64"]),
    st.integers(0, 99),
)
@settings(max_examples=60, deadline=None)
def test_groups_are_those_of_the_bytes_numbered_by_their_first_rows(n: int, d: int, values: int, dtype: str, seed: int):
    X = np.random.default_rng(seed).integers(0, values, (n, d)).astype(dtype)
    codes, first = equal_rows(X)
    expected, firsts = by_bytes(X)
    np.testing.assert_array_equal(codes, expected)
    np.testing.assert_array_equal(first, firsts)


@pytest.mark.parametrize(
    "rows",
    [
        [[0.0, 1.0], [-0.0, 1.0], [0.0, 1.0]],  # equal sums, other bytes
        [[1e300, 1e-300], [1e300, 2e-300], [1e300, 1e-300]],  # a sum that rounds the difference away
        [[np.nan, 1.0], [np.nan, 2.0], [np.nan, 1.0]],
        [[np.inf, -np.inf], [np.inf, 3.0], [np.inf, 4.0]],
    ],
)
def test_rows_whose_sums_are_equal_and_that_differ_are_told_apart(rows: list[list[float]]):
    X = np.array(rows)
    np.testing.assert_array_equal(equal_rows(X)[0], by_bytes(X)[0])
