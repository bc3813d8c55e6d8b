"""Normal equations as sums that are kept: rows are added, or taken away again, by a sweep over them alone.

Of rows x_i with targets y_i and weights w_i, in float64: Σ w φφᵀ (on the diagonal and below, packed), Σ w φ yᵀ, Σ w φ,
Σ w y and Σ w. A sum forgets a row when the row's contribution is subtracted, so that the solution is the one of never
having seen it, to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from streamkern.data.class_weights import class_factors
from streamkern.data.dataset import Dataset
from streamkern.data.targets import Continuous, Encoding
from streamkern.data.transforms import final
from streamkern.engine import Engine
from streamkern.engine.packed_triangle import cuts, packed_panels, packed_size, unpacked
from streamkern.errors import DataError, ModelFormatError
from streamkern.execute.base import Parts
from streamkern.kernels import Basis
from streamkern.solvers.contributions import NormalEquations
from streamkern.storage.artifact import Contents, load_artifact
from streamkern.storage.serialize import flatten, serializable, sound_array, sound_number, unflatten
from streamkern.types import Array, IntArray

if TYPE_CHECKING:
    from streamkern.solvers.base import Problem

KIND, MEMBER = "Sums", "sums"
"""Kind of the artifact, and its name inside a model's."""

FORMAT = 1

_NEAREST = 1e-8  # ridge, in mean diagonals
_NEVER_SEEN = 1e-6  # a diagonal below minus this part of the largest shows that rows were never added

Change = tuple[Array, Array]
"""(rows, V): functions ψ = Vᵀ φ[rows] in place of φ."""


@serializable
@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over rows, in a basis of M functions.

    Attributes:
        gram: Σ w φφᵀ, packed: see ``engine.triangle``; float64.
        moment: Σ w φ yᵀ, shape (M, c), with targets y as the model's encoding makes them.
        ones: Σ w φ, shape (M, 1).
        targets: Σ w y, shape (c, 1).
        mass: Σ w.
        rows: how many.
        unit: divisor of the weights of rows.
        ridge: λ of the solution.
        change: (rows, V) where the functions are ψ = Vᵀ φ[rows], or None.
        scale: mean diagonal of Σ w φφᵀ / Σ w where they are.
        bound: why no row can be taken away; empty where any can.
        factors: multipliers of row weights by class, see ``ClassWeightedSource``; None where it is 1.
    """

    gram: Array
    moment: Array
    ones: Array
    targets: Array
    mass: float
    rows: int
    unit: float
    ridge: float
    change: Change | None = None
    scale: float = 0.0
    bound: str = ""
    factors: Array | None = None

    @classmethod
    def of(cls, parts: Parts, unit: float, ridge: float, change: Change | None, scale: float) -> Sums:
        """Make sums from the contributions of ``normal_equations`` over the rows of a fit, of mean weight 1."""
        gram, moment, *totals, _, n = parts
        ones, targets = totals[:2] if totals else (moment[:, :0], moment[:0])
        return cls(gram, moment, ones, targets, n, n, unit, ridge, change, scale)

    @property
    def sound(self) -> bool:
        """True if shapes and dtypes fit one another."""
        if not isinstance(self.moment, np.ndarray) or self.moment.ndim != 2:
            return False
        M, c = self.moment.shape
        shapes = {"gram": (packed_size(M),), "moment": (M, c), "ones": (M, 1), "targets": (c, 1)}
        arrays = {name: getattr(self, name) for name in shapes}
        right = all(
            sound_array(arrays[name], shape) and arrays[name].dtype == np.float64 for name, shape in shapes.items()
        )
        right = right and (self.factors is None or sound_array(self.factors, (c,)) or sound_array(self.factors, (c, 2)))
        if self.change is not None:
            rows, V = self.change if isinstance(self.change, tuple) and len(self.change) == 2 else (None, None)
            right = right and sound_array(V, (M, M)) and sound_array(rows, (M,), "iu")
            right = right and bool(np.all((rows >= 0) & (rows < M)))
        numbers = (self.mass, self.rows, self.unit, self.ridge, self.scale)
        right = right and all(map(sound_number, numbers)) and isinstance(self.bound, str)
        return right and self.rows > 0 and self.mass > 0 and self.unit > 0 and self.ridge >= 0

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        arrays = (self.gram, self.moment, self.ones, self.targets, *(self.change or ()))
        return sum(array.nbytes for array in arrays)

    def plus(self, parts: Parts, sign: int, unit: float = 1.0) -> Sums:
        """The sums with those of other rows added, or for a sign of -1 subtracted; arrays of ``parts`` are overwritten.

        Args:
            parts: contributions of ``normal_equations``.
            sign: 1 or -1.
            unit: divisor that their weights still need.

        Raises:
            DataError: more is subtracted than there is.
        """
        *arrays, mass, _, n = parts
        factor = sign / unit
        arrays = [x if x.flags.writeable else x.copy() for x in arrays]  # workers' replies may be read-only
        for own, other in zip((self.gram, self.moment, self.ones, self.targets), arrays, strict=True):
            if factor != 1.0:
                other *= factor
            other += own
        made = replace(
            self, gram=arrays[0], moment=arrays[1], ones=arrays[2], targets=arrays[3],
            mass=self.mass + factor * mass, rows=self.rows + sign * n,
        )  # fmt: skip
        made.require_rows(n)
        return made

    def require_rows(self, forgotten: int) -> None:
        """Refuse sums of which more was subtracted than had been added.

        Raises:
            DataError: no row is left, or a sum of squares is negative.
        """
        p = len(self.moment)
        diagonal = np.concatenate([np.diagonal(panel) for _, panel in packed_panels(self.gram, p)])
        never = bool(diagonal.min() < -_NEVER_SEEN * np.abs(diagonal).max())
        if self.rows < 1 or self.mass <= 0 or never:
            seen = self.rows + forgotten
            raise DataError(
                f"{forgotten:,} rows are to be forgotten of {seen:,}"
                + (
                    ": some were never added, since a sum of squares is negative."
                    if never
                    else ", and none would stay."
                ),
                where="forget",
                expected="rows of the fit, each once, with the weights that they had; at least one row stays",
                remedy="give the rows as they were given to fit or partial_fit; to forget all rows, delete the model",
            )

    @property
    def sizes(self) -> Array:
        """The largest sum of squares of a function, and of each output's products with the functions: (1 + c,)."""
        diagonal = max(float(np.diagonal(panel).max()) for _, panel in packed_panels(self.gram, len(self.moment)))
        return np.concatenate([[diagonal], np.abs(self.moment).max(axis=0)])

    def centred(self, encoding: Encoding) -> tuple[Sums, Encoding]:
        """The sums about the mean of the targets that these rows have, and the encoding that subtracts it."""
        if type(encoding) is not Continuous:  # nothing is subtracted from classes and labels
            return self, encoding
        away = self.targets / self.mass
        moved = replace(encoding, mean=encoding.mean + away[:, 0] * encoding.unit)
        return replace(self, moment=self.moment - self.ones @ away.T, targets=self.targets * 0.0), moved

    def without(self, centers: IntArray, engine: Engine) -> Sums:
        """The sums of a model without some of its centers."""
        assert self.change is None
        kept = np.setdiff1d(np.arange(len(self.moment)), centers)
        A = engine.mirror(unpacked(self.gram, len(self.moment), engine))[np.ix_(kept, kept)]
        gram = np.concatenate([A[cols.start :, cols].reshape(-1) for cols in cuts(len(kept))])
        return replace(self, gram=gram, moment=self.moment[kept], ones=self.ones[kept])

    def nearest(self, weights: Array, centers: IntArray, engine: Engine) -> Array:
        """Weights without some of the centers, shape (M − k, c), of the function nearest to that of ``weights``.

        Least squares over the rows of the sums, with a ridge that rounding requires.

        Args:
            weights: of the first functions, shape (q, c).
            centers: those that go, shape (k,).
            engine: where it is computed.
        """
        assert self.change is None
        M = len(self.moment)
        whole = np.zeros((M, weights.shape[1]))
        whole[: len(weights)] = weights
        kept = np.setdiff1d(np.arange(M), centers)
        G = engine.mirror(unpacked(self.gram, M, engine))
        right = G[np.ix_(kept, centers)] @ whole[centers]
        A = G[np.ix_(kept, kept)]
        A[np.diag_indices(len(A))] += _NEAREST * float(np.trace(A)) / len(A)
        return np.asarray((whole[kept] + engine.spd_solve(A, right)).astype(weights.dtype))

    def contents(self, weights_sha256: str) -> Contents:
        """The saved contents of the sums of a model with such weights."""
        tree, arrays = flatten(self)
        return KIND, arrays, {"format": FORMAT, "sums": tree, "weights": weights_sha256}


@dataclass(frozen=True)
class StoredSums:
    """The sums of a saved model, read when rows are added or subtracted.

    Args:
        path: of the model.
        weights: digest of the model's weights.
        nbytes: their memory.
        rows: how many rows they are of.
        shape: of the model's weights.
    """

    path: Path
    weights: str
    nbytes: int
    rows: int
    shape: tuple[int, ...]

    def load(self) -> Sums:
        """Read and verify them.

        Raises:
            StorageError: they are not there.
            ModelFormatError: they are damaged, of a newer format, or of another model.
        """
        arrays, about = load_artifact(self.path / MEMBER, KIND, links=False)
        sums = None
        if about.get("format") == FORMAT and about.get("weights") == self.weights:
            sums = unflatten(about.get("sums"), arrays)
        if not isinstance(sums, Sums) or not sums.sound or sums.moment.shape != self.shape:
            raise ModelFormatError(
                "The sums are not those of the model, or of a newer format.",
                where=str(self.path / MEMBER),
                expected=f"sums of format {FORMAT}, saved with the model",
                remedy="restore the model from a copy; or delete this folder: the model predicts without",
            )
        return sums


def normal_equations(basis: Basis, problem: Problem, change: Change | None, totals: bool) -> NormalEquations:
    """The contribution of rows to the sums; without ``totals`` to those alone that a solution takes."""
    right = None if change is None else (change[0], problem.engine.right_factor(change[1].T.copy()))
    return NormalEquations(basis, problem.encoding.outputs, right, totals)


def kept_of(sums: Sums | None, train: Dataset) -> Sums | None:
    """The sums of a fit on these rows, with the facts that an update needs of them."""
    return None if sums is None else replace(sums, bound=bound_rows(train), factors=class_factors(train))


def bound_rows(train: Dataset) -> str:
    """Why rows of a fit cannot be subtracted: its features depended on more than the row; empty where any can."""
    if train.augmentations or len(train) != train.base_rows:
        return "the rows were augmented, or repeated"
    if any(then is not now for then, now in zip(train.transforms, final(train.transforms), strict=True)):
        return "categories were encoded by the targets of other rows"
    return ""
