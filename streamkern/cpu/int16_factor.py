"""Packed inverse factors by tiles in threads, with the same bits for any number of threads.

The method is bordering: given W of the earlier rows, V = K_i Wᵀ is the panel's part of the Cholesky factor, its
diagonal tile is L = chol(K_ii + shift I − V Vᵀ), and its rows of W are [−L⁻¹ V W, L⁻¹]. So only W and a panel are in
memory. Panels beyond the lead are computed in the same way.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from streamkern.cpu.gemm import Factor
from streamkern.cpu.gemv import add_transposed, laid_out, room, times
from streamkern.cpu.linear_algebra import inverse_lower, lower_factor
from streamkern.engine.base import SLAB, SUMS, Centered, Map
from streamkern.engine.packed_triangle import cuts
from streamkern.engine.quantised_factor import PANEL, PackedFactor, padded, quantised
from streamkern.engine.reference import not_positive
from streamkern.types import Array


def packed_factor(engine: Any, expansion: Centered, shift: float, lead: int) -> PackedFactor:
    """Return the inverse factor of K(Z, Z) + shift I in 16 bits; see ``Engine.packed_factor``."""
    p, parallel = expansion.p, engine.parallel
    # The lead is float32, because with rounding to 16 bits S could become indefinite. It is one array, because growing
    # panels would fragment the heap.
    inside = cuts(lead, PANEL)
    store = np.empty(sum((rows.stop - rows.start) * rows.stop for rows in inside) + PANEL * PANEL, np.float32)
    W, end = list[Array](), 0
    beyond: list[tuple[Array, Array]] = []
    for rows in cuts(p, PANEL):
        n, Z = min(rows.start, lead), expansion.Z[rows]
        S = np.asarray(expansion.at(Z).block(Z), dtype=np.float64)
        np.fill_diagonal(S, engine.diagonal(expansion, Z))
        S[np.diag_indices(len(S))] += shift
        V = np.empty((len(S), n), np.float32)
        if n:
            _border(engine.kernel_values(expansion.head(n), Z).astype(np.float32, copy=False), W, V, parallel)
            S -= engine.gram(V)
        own = _inverse_lower(S)
        shape = len(S), n + len(S)
        if rows.stop <= lead:
            panel = store[end : end + shape[0] * shape[1]].reshape(shape)
            end += panel.size
        else:
            panel = np.empty(shape, np.float32)
        panel[:, n:] = own
        if n:
            _times_lead(V, W, own, panel, parallel)
        del V, S
        if rows.stop <= lead:
            W.append(panel)
        else:
            beyond.append(quantised(panel))
    del panel
    numbers, scales = _in_place(store, W)
    return PackedFactor(
        p, lead, np.concatenate([*scales, *(each for _, each in beyond)]), (*numbers, *(each for each, _ in beyond))
    )


def _in_place(store: Array, W: list[Array]) -> tuple[list[Array], list[Array]]:
    """Write integers of each panel to ``store``, of which W are views; return them, and scales."""
    integers, ends, shapes, scales = store.view(np.int16), [0], [], list[Array]()
    for panel in W:
        numbers, scale = quantised(panel)
        ends.append(ends[-1] + numbers.size)
        integers[ends[-2] : ends[-1]] = numbers.ravel()  # never reaches a panel still to be read
        shapes.append(numbers.shape)
        scales.append(scale)
    del integers
    W.clear()
    store.resize(-(-ends[-1] // 2), refcheck=False)  # release the rest of the memory
    places = zip(pairwise(ends), shapes, strict=True)
    return [store.view(np.int16)[a:b].reshape(shape) for (a, b), shape in places], scales


def _inverse_lower(S: Array) -> Array:
    inverse = inverse_lower(lower_factor(S)).astype(np.float32)
    if not np.isfinite(inverse).all():
        raise not_positive()
    return inverse


def _border(left: Array, W: list[Array], V: Array, parallel: Map) -> None:
    """Write V = left Wᵀ for the lead's panels W, each with the columns up to its own."""
    columns = cuts(left.shape[1], PANEL)
    rights = parallel(lambda part: Factor(left[:, part]), columns)

    def tile(j: int) -> None:
        total = np.zeros((len(W[j]), len(left)), np.float32)
        for part, right in zip(columns[: j + 1], rights, strict=False):
            right.product(W[j][:, part], total, add=True)
        V[:, columns[j]] = total.T

    parallel(tile, range(len(columns)))


def _times_lead(V: Array, W: list[Array], own: Array, panel: Array, parallel: Map) -> None:
    """Write −own V W to the panel's first columns."""
    columns, negative = cuts(V.shape[1], PANEL), -own

    def tile(j: int) -> None:
        total = np.zeros((len(V), columns[j].stop - columns[j].start), np.float32)
        for part, there in zip(columns[j:], W[j:], strict=False):
            Factor(there[:, columns[j]].T).product(V[:, part], total, add=True)
        Factor(total.T).product(negative, panel[:, columns[j]])

    parallel(tile, range(len(columns)))


def packed_product(W: PackedFactor, B: Array, parallel: Map) -> Array:
    """Return Wᵀ W B by slabs of B, reading W from memory once; each task has one of a fixed number of sums."""
    tile = 32  # rows of a packed panel that are used twice while in cache
    tiles = [
        (scales[part], rows.start, lead, numbers[part])
        for rows, lead, numbers, scales in W.panels()
        for part in cuts(rows.stop - rows.start, tile)
    ]
    out = np.empty(B.shape, np.float32)
    wide = padded(W.p)
    for columns in cuts(B.shape[1], SLAB):
        B_part = room(wide, columns.stop - columns.start, np.float32)
        B_part[: W.p] = B[:, columns]
        right = laid_out(B_part)

        def total(part: list[Any], right: Array = right) -> Array:
            sums = room(wide, right.shape[1], np.float32)
            for scales, first, lead, numbers in part:
                own = slice(first, first + numbers.shape[1] - lead)
                T = times(numbers[:, lead:], right[own])
                if lead:
                    T += times(numbers[:, :lead], right[:lead])
                T *= np.square(scales)[:, None]
                if lead:
                    add_transposed(numbers[:, :lead], T, sums[:lead])
                add_transposed(numbers[:, lead:], T, sums[own])
            return sums

        first, *rest = parallel(total, [tiles[i::SUMS] for i in range(min(SUMS, len(tiles)))])
        for sums in rest:
            first += sums
        out[:, columns] = first[: W.p]
    return out
