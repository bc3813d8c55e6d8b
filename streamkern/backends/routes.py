"""Compiled routes of rows through a tree of cuts."""

from __future__ import annotations

from typing import Any

from numba.core import types

from streamkern.backends.compiled import loop, rows, vector


def _table(dtype: Any) -> types.Array:
    return types.Array(dtype, 2, "C", readonly=True)


@loop(
    lambda dtype: types.void(
        rows(dtype, readonly=True), _table(types.float64), _table(types.float64), _table(types.int64), types.float64,
        types.Array(types.int64, 2, "C"), types.Array(types.float64, 2, "C"),
    ),
    types.float32,
    types.float64,
)  # fmt: skip
def routed(X: Any, directions: Any, cuts: Any, children: Any, width: Any, leaves: Any, weights: Any) -> None:
    """The leaves of each row and their weights, shape (n, 2); see ``HostBackend.route``."""
    for i in range(X.shape[0]):
        leaves[i, 0], leaves[i, 1] = 0, -1
        weights[i, 0], weights[i, 1] = 1.0, 0.0
        node = 0 if len(cuts) else -1
        other = -1  # the right side of the cut that the row is near: its second way begins there
        for side in range(2):
            while node >= 0:
                t = 0.0
                for k in range(X.shape[1]):
                    t += X[i, k] * directions[node, k]
                low, threshold, high = cuts[node, 0], cuts[node, 1], cuts[node, 2]
                begin, end = threshold - width * (threshold - low), threshold + width * (high - threshold)
                share = -1.0
                if weights[i, 0] == 1.0 and begin < t and t < end:
                    share = (t - begin) / (end - begin)
                if share > 0.0 and share < 1.0:
                    weights[i, 0], weights[i, 1] = 1.0 - share, share
                    other, node = node, children[node, 0]
                else:
                    node = children[node, 1 if t >= threshold else 0]
            leaves[i, side] = -1 - node
            if other < 0:
                break
            node = children[other, 1]


@loop(
    lambda dtype: types.void(
        rows(dtype, readonly=True), vector(types.int64), vector(types.float64), types.Array(types.float64, 1, "C")
    ),
    types.float32,
    types.float64,
)
def projected(X: Any, at: Any, direction: Any, out: Any) -> None:
    """The projection of some rows on a direction, as ``routed`` sums it; see ``HostBackend.project``."""
    for i in range(at.shape[0]):
        t = 0.0
        for k in range(X.shape[1]):
            t += X[at[i], k] * direction[k]
        out[i] = t
