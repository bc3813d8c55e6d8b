"""Rows through a tree of cuts, compiled: which leaves predict them, and which are trained on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from streamkern.cpu.compiled import copy, loop, rows, vector
from streamkern.types import Array, IntArray


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
def _route(X: Any, directions: Any, cuts: Any, children: Any, width: Any, leaves: Any, weights: Any) -> None:
    """Write the leaves of each row and their weights, shape (n, 2); see ``route``."""
    for i in range(X.shape[0]):
        leaves[i, 0], leaves[i, 1] = 0, -1
        weights[i, 0], weights[i, 1] = 1.0, 0.0
        node = 0 if len(cuts) else -1
        other = -1  # right side of the cut that the row is near, where its second path begins
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
def _project(X: Any, at: Any, direction: Any, out: Any) -> None:
    """Project some rows on a direction, with the sums of ``routed``; see ``project``."""
    for i in range(at.shape[0]):
        t = 0.0
        for k in range(X.shape[1]):
            t += X[at[i], k] * direction[k]
        out[i] = t


@loop(
    lambda dtype: types.int64[::1](
        rows(dtype, readonly=True), vector(types.int64), _table(types.float64), _table(types.float64),
        _table(types.int64), types.Array(types.int64, 2, "C"),
    ),
    types.float32,
    types.float64,
)  # fmt: skip
def _assign(X: Any, at: Any, directions: Any, cuts: Any, children: Any, spans: Any) -> Any:
    """Return the rows of each leaf, in the order of the tree; see ``assign``.

    Cuts are processed one by one: loops without branches project a cut's rows and partition them.
    """
    n, m = at.shape[0], cuts.shape[0]
    # Stack of cuts, the next one last, and of their rows, which end where the next cut's rows begin.
    nodes, firsts, waiting = np.empty(m + 2, np.int64), np.empty(m + 2, np.int64), 1
    nodes[0], firsts[0], top = (0 if m else -1), 0, n
    held, t, left = np.empty(2 * n + 16, np.int64), np.empty(n), np.empty(n, np.int64)
    copy(at, held)
    out, done = np.empty(n + n // 4 + 16, np.int64), 0
    while waiting:
        waiting -= 1
        node, first = nodes[waiting], firsts[waiting]
        size = top - first
        if node < 0:
            if done + size > out.shape[0]:
                more = np.empty(2 * (done + size), np.int64)
                copy(out[:done], more)
                out = more
            copy(held[first:top], out[done:])
            spans[-1 - node, 0], spans[-1 - node, 1] = done, done + size
            done, top = done + size, first
            continue
        for i in range(size):
            row, total = held[first + i], 0.0
            for k in range(X.shape[1]):
                total += X[row, k] * directions[node, k]
            t[i] = total
        low, high = cuts[node, 0], cuts[node, 2]
        lefts = rights = 0
        for i in range(size):  # rows of the right side stay in front; rows of the left side follow
            row = held[first + i]
            left[lefts] = row
            lefts += 1 if t[i] < high else 0
            held[first + rights] = row
            rights += 1 if t[i] >= low else 0
        top = first + rights
        if top + lefts > held.shape[0]:
            more = np.empty(2 * (top + lefts), np.int64)
            copy(held[:top], more)
            held = more
        copy(left[:lefts], held[top:])
        nodes[waiting], firsts[waiting] = children[node, 1], first
        nodes[waiting + 1], firsts[waiting + 1] = children[node, 0], top
        top, waiting = top + lefts, waiting + 2
    return out[:done]


def route(X: Array, directions: Array, cuts: Array, children: IntArray, width: float) -> tuple[IntArray, Array]:
    """Return the leaves of a tree of cuts that predict each row, and their weights, both of shape (n, 2).

    A row's projection t on a cut's direction goes left below its threshold and right from it on. At the first cut
    where t is near the threshold, it goes both ways, with weights linear in t. A row's bits do not depend on other
    rows.

    Args:
        X: rows, shape (n, d).
        directions: directions of the cuts, the root first, shape (m, d), float64.
        cuts: low, threshold and high of each cut, shape (m, 3), float64.
        children: left and right side of each cut, shape (m, 2): the number of a cut, or -1 - leaf.
        width: width of the interval in which rows are near: from low to high for 1, empty for 0.

    Returns:
        Leaves, the second -1 if there is only one; and weights, which sum to 1.
    """
    leaves, weights = np.zeros((len(X), 2), dtype=np.int64), np.empty((len(X), 2))
    _route(_floats(X), directions, cuts, children, float(width), leaves, weights)
    return leaves, weights


def assign(X: Array, at: IntArray, directions: Array, cuts: Array, children: IntArray) -> tuple[IntArray, IntArray]:
    """Return the training rows of each leaf of a tree of cuts: projections below high go left, from low on right.

    Positions ``at`` (k,) ascend; X, directions, cuts and children are those of ``route``.

    Returns:
        Begin and end of each leaf's rows, shape (m + 1, 2); and the rows, leaf by leaf from left to right,
        ascending within a leaf. Projections equal those of ``project`` to the bit.
    """
    spans = np.empty((len(cuts) + 1, 2), dtype=np.int64)
    at = np.ascontiguousarray(at, dtype=np.int64)
    return spans, _assign(_floats(X), at, directions, cuts, children, spans)


def project(X: Array, direction: Array, rows: IntArray | None = None) -> Array:
    """Return X · direction in float64 for some rows or all; a row's bits do not depend on other rows.

    X is (n, d), the direction (d,) is float64, and ``rows`` (m,) are positions.
    """
    at = np.arange(len(X)) if rows is None else np.ascontiguousarray(rows, dtype=np.int64)
    out = np.empty(len(at))
    _project(_floats(X), at, np.ascontiguousarray(direction, dtype=np.float64), out)
    return out


def _floats(X: Array) -> Array:
    return X if X.dtype in (np.float32, np.float64) else X.astype(np.float64)
