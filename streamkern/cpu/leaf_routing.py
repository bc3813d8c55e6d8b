"""Rows through a tree of cuts, compiled: which leaves predict them, and which are trained on them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from streamkern.cpu.compiled import copy, loop, rows, vector


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
def route(X: Any, directions: Any, cuts: Any, children: Any, width: Any, leaves: Any, weights: Any) -> None:
    """Write the leaves of each row and their weights, shape (n, 2); see ``Loops.route``."""
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
def project(X: Any, at: Any, direction: Any, out: Any) -> None:
    """Project some rows on a direction, with the sums of ``route``; see ``Loops.project``."""
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
def assign(X: Any, at: Any, directions: Any, cuts: Any, children: Any, spans: Any) -> Any:
    """Return the rows of each leaf, cut by cut: loops without branches project a cut's rows and partition them."""
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
