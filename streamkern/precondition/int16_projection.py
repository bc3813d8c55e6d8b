"""Projection by an inverse factor in 16 bits: exact where the factor is whole, and nearly so where it keeps a lead.

With W of ``engine.quantised_factor``, U, Σ the top q eigenpairs of K(Z, Z) and Π = I − U Uᵀ,

    M = Π WᵀW Π + U σ_{q+1} Σ⁻² Uᵀ

is positive whatever the rounding of W, which K(Z, Z)⁻¹ − Q_s is not. With W exact the two are one and the same.

M is applied tile by tile of centers, and sums over tiles are those of a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from streamkern.engine import Engine
from streamkern.engine.base import CENTER_TILE
from streamkern.engine.packed_triangle import cuts
from streamkern.engine.quantised_factor import PANEL, PackedFactor, fitting_lead
from streamkern.execute.base import Tree
from streamkern.kernels import Expansion
from streamkern.precondition.center_projection import Projection, jittered_factor
from streamkern.precondition.nystrom import NystromPreconditioner
from streamkern.types import Array


class PackedTile(NamedTuple):
    """A tile of centers: its rows of the lead, which are its first, of U (t, q), and W as ``Engine.place`` gives it."""

    place: slice
    U: Array
    W: Any


@dataclass(frozen=True, eq=False)
class PackedProjection(Projection):
    """M = Π WᵀW Π + U σ_{q+1} Σ⁻² Uᵀ; ``jitter`` is ε as a share of the largest eigenvalue of K(Z, Z)."""

    W: PackedFactor
    nystrom: NystromPreconditioner
    engine: Engine
    jitter: float = 0.0

    def apply(self, g: Array) -> Array:
        """M g, shape (p, c). Products with U are in float64, as the projected part of g is small."""
        engine, system, tiles = self.engine, self.nystrom.eigensystem, self.tiles
        wide = [g[rows].astype(np.float64) for rows in self.rows]
        inside = _total(tiles, lambda tile, v: engine.product_t(tile.U, v), wide)
        r = [(v - engine.product(tile.U, inside)).astype(np.float32) for tile, v in zip(tiles, wide, strict=True)]
        del wide
        cut = [tile.place.stop - tile.place.start for tile in tiles]
        lead = np.concatenate([v[:n] for v, n in zip(r, cut, strict=True)])
        x = [
            engine.packed_product(tile.W, np.concatenate([lead, v[n:]]))
            for tile, v, n in zip(tiles, r, cut, strict=True)
        ]
        del r
        of_lead = _total(tiles, lambda tile, v: v[: len(lead)], x)
        x = [
            np.concatenate([of_lead[tile.place], v[len(lead) :]]).astype(np.float64)
            for tile, v in zip(tiles, x, strict=True)
        ]
        outside = _total(tiles, lambda tile, v: engine.product_t(tile.U, v), x)
        change = (system.tail / np.square(system.values))[:, None] * inside - outside
        found = [(v + engine.product(tile.U, change)).astype(g.dtype) for tile, v in zip(tiles, x, strict=True)]
        return np.concatenate(found)

    @cached_property
    def rows(self) -> list[slice]:
        """Tiles of centers. On a device all are one: there the factor is read at once."""
        return cuts(self.W.p, CENTER_TILE) if self.engine.device is None else [slice(0, self.W.p)]

    @cached_property
    def tiles(self) -> list[PackedTile]:
        U, lead = self.nystrom.eigensystem.vectors, self.W.lead
        return [
            PackedTile(
                slice(min(rows.start, lead), min(rows.stop, lead)), U[rows], self.engine.place(self.W.part(rows))
            )
            for rows in self.rows
        ]


def _total(tiles: Sequence[PackedTile], addend: Callable[[PackedTile, Array], Array], values: list[Array]) -> Array:
    tree = Tree(len(tiles))
    for i, each in enumerate(zip(tiles, values, strict=True)):
        tree.put(0, i, (addend(*each),))
    (total,) = tree.total()
    return cast(Array, total)


def packed_lead(p: int, memory: int | None) -> int:
    """Return the lead of a factor of p centers: half of them, or as many as so much memory has room for.

    Beyond half of them a lead gains no accuracy, and the work of the set-up grows with its square (ADR 21). A small
    factor is whole.
    """
    least = 2 * PANEL  # rows of a lead for any budget: about the memory of the eigenpairs
    if p <= least:
        return p
    half = -(-p // (2 * PANEL)) * PANEL
    return min(half, max(least, fitting_lead(p, memory)))


def project_packed(expansion: Expansion, nystrom: NystromPreconditioner, lead: int, engine: Engine) -> PackedProjection:
    """Factor K(Z, Z) + ε I, ε that of float32 whatever the dtype."""
    W, jitter = jittered_factor(
        expansion, nystrom, engine, np.dtype(np.float32), lambda shift: engine.packed_factor(expansion, shift, lead)
    )
    return PackedProjection(W, nystrom, engine, jitter)
