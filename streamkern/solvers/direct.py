"""Normal equations in one sweep: exact ridge regression while M² numbers fit the memory.

minimise 1/n Σ ‖φ(x_i)ᵀ w − y_i‖² + λ tr wᵀ R w, with R = K(Z, Z) for kernel values at centers (the RKHS norm of f) and
R = I for features:  (ΦᵀΦ/n + λ R) w = Φᵀ y/n.

The sums may be kept: rows are then added, or taken away again, by a sweep over them alone. Of rows x_i with targets y_i
and weights w_i they are, in float64: Σ w φφᵀ (on the diagonal and below, packed), Σ w φ yᵀ, Σ w φ, Σ w y and Σ w. A sum
forgets a row when the row's contribution is subtracted, so that the solution is the one of never having seen it, to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from streamkern.calibration.out_of_sample import OutOfSample
from streamkern.data.class_weights import class_factors
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Stream
from streamkern.data.targets import Continuous, Encoding
from streamkern.data.transforms import transforms_for_prediction
from streamkern.defaults import MAX_NEGATIVE_DIAGONAL, MAX_RESIDUAL, NEAREST_SUMS_RIDGE
from streamkern.engine import Engine
from streamkern.engine.packed_triangle import cuts, packed_panels, packed_size, unpacked
from streamkern.errors import DataError, ModelFormatError, NumericalError, UsageError, require_ridge
from streamkern.execute.base import Parts
from streamkern.kernels import Basis, Expansion
from streamkern.memory import format_bytes
from streamkern.solvers.base import FullPassIteration, Problem, Solver, Sweep, Traits
from streamkern.solvers.contributions import NormalEquations
from streamkern.solvers.ridge import leave_one_out, solve_every_row, squared_targets
from streamkern.solvers.solution_residual import relative_residual, report_residual
from streamkern.storage.artifact import Contents, load_artifact
from streamkern.storage.serialize import flatten, is_valid_array, is_valid_number, serializable, unflatten
from streamkern.types import Array, IntArray

KIND, MEMBER = "Sums", "sums"
"""Kind of the artifact, and its name inside a model's."""

FORMAT = 1


Change = tuple[Array, Array]
"""(rows, V): functions ψ = Vᵀ φ[rows] in place of φ."""

Half = Callable[[Array], Array]
"""A linear map of rows φ, shape (t, M) to (t, r), whose products are those of G⁻¹, with G = ΦᵀΦ/n + λR."""


@serializable
class Solved(NamedTuple):
    """The solution (M, c), leave-one-out outputs on training rows or None, and the normal equations, if kept."""

    weights: Array
    out_of_sample: OutOfSample | None = None
    sums: Sums | None = None


@dataclass(frozen=True)
class Direct(Solver):
    """Normal equations: one pass over the rows for ΦᵀΦ and Φᵀy in float64, then a Cholesky factorisation.

    Row i of Φ has the kernel values k(x_i, z_j) at p centers z_j, or p features of a feature map at x_i. If float64 is
    too inaccurate for the equations, and memory allows it, a second pass solves them in a basis of orthonormal
    functions. The fit reports the relative residual and an estimate of the condition number. It warns if the residual
    is too large.

    Args:
        ridge: λ >= 0.
        keep_sums: whether the model keeps the sums ΦᵀΦ and Φᵀy, 4 p² bytes. Single rows can then be added or subtracted
            (``update_model``, ``partial_fit``, ``retrain``).

    Raises:
        UsageError: the ridge is negative, or ``keep_sums`` is not a boolean.
    """

    ridge: float = 1e-9
    keep_sums: bool = False

    epochs = 1
    patience = None

    @property
    def traits(self) -> Traits:
        """Properties of the method: it takes one pass, and has a ridge."""
        return Traits(one_pass=True, ridge=True, keeps_sums=self.keep_sums)

    def __post_init__(self) -> None:
        require_ridge(self)
        if not isinstance(self.keep_sums, bool):
            raise UsageError(
                f"keep_sums is {self.keep_sums!r}.", where="Direct(keep_sums=...)", expected="True or False"
            )

    def to_json(self) -> dict[str, Any]:
        """Return name and parameters. If False, ``keep_sums`` is left out: a run keeps its hash of earlier releases."""
        return {name: value for name, value in super().to_json().items() if name != "keep_sums" or value}

    def prepare(self, problem: Problem) -> None:
        """Return None: nothing is computed before the pass over the rows."""

    def setup(self, problem: Problem, prepared: Any = None) -> DirectIteration:
        return DirectIteration(self, problem.stream(problem.lanes), problem.basis(), problem)


def _unusable() -> NumericalError:
    return NumericalError(
        "The normal equations are zero or not finite.",
        where="Direct",
        expected="finite features and sample weights, not all 0",
        remedy="check the scale of the features and the bandwidth of the kernel",
    )


@dataclass(eq=False)
class DirectIteration(FullPassIteration):
    """One pass, no steps; the state is the solution, shape (M, c)."""

    solver: Direct
    stream: Stream
    basis: Basis
    problem: Problem
    given: Sums | None = None
    """Sums to solve for, in place of those of a sweep."""

    epochs = 1
    prepared = None

    def __post_init__(self) -> None:
        self.contribution = normal_equations(self.basis, self.problem, None, self.solver.keep_sums)
        self.report: dict[str, Any] = {"ridge": self.solver.ridge}

    def init(self) -> Solved:
        return Solved(self.basis.engine.zeros((self.basis.width, self.problem.encoding.outputs), self.basis.dtype))

    def begin(self, state: Solved, pass_: int, sweep: Sweep) -> Solved:
        """Sum and solve, in a better basis if rounding spoils that; if all rows are centers, factor their matrix."""
        if self.problem.all_rows_are_centers and self.given is None and not self.solver.keep_sums:
            return self._of_every_row(sweep)
        sums = self.given or self._summed(sweep, None, 0.0)
        if sums.change is not None:
            return self._in_better_basis(sums)
        engine = self.problem.engine
        A = self._equations(sums.gram, sums.mass)
        scale = float(np.trace(A)) / self.basis.width
        found = self._factored(A, sums.moment / sums.mass)
        enough = found is not None and self.report["rounding"] <= MAX_RESIDUAL
        if engine.decide(enough, bound=False, likely=True) and found is not None:
            kept, n = self._kept(sums), sums.mass
            del A, sums
            return self._solved(*found, n, kept)
        if self.problem.better_budget or self.given is not None:
            del A
            found = self._with_jitter(sums, scale) if found is None else found
            return self._solved(*found, sums.mass, self._kept(sums))
        del A, found
        # The first sums are kept: a checkpoint holds them for as long as the pass lasts.
        return self._orthonormalised(sums, scale, sweep)

    def _of_every_row(self, sweep: Sweep) -> Solved:
        basis, problem = cast(Expansion, self.basis), self.problem  # features have no rows as centers
        sweep(partial(squared_targets, problem.encoding.outputs, problem.engine), None)
        wide, out_of_sample, facts = solve_every_row(problem, basis, self.solver.ridge)
        self.report |= facts
        return Solved(wide.astype(basis.dtype), out_of_sample)

    def _summed(self, sweep: Sweep, change: Change | None, scale: float) -> Sums:
        parts = sweep(normal_equations(self.basis, self.problem, change, self.solver.keep_sums), None)
        return Sums.of(parts, self.problem.mean_weight, self.solver.ridge, change, scale)

    def _kept(self, sums: Sums) -> Sums | None:
        return sums if self.solver.keep_sums else None

    def _equations(self, gram: Array, n: float) -> Array:
        """ΦᵀΦ/n + λ R, on its diagonal and below."""
        A = unpacked(gram, self.basis.width, self.problem.engine)
        for rows in cuts(len(A)):
            A[rows, : rows.stop] /= n
        self.basis.add_penalty(A, self.solver.ridge)
        return A

    def _solved(self, w: Array, wide: Array, half: Half, n: float, kept: Sums | None) -> Solved:
        if not self.problem.held_out_rows:
            return Solved(w, None, kept)
        return Solved(w, leave_one_out(self.problem, self.basis, wide, half, n), kept)

    def _with_jitter(self, sums: Sums, scale: float) -> tuple[Array, Array, Half]:
        """Solve with the least diagonal that gives a Cholesky factor; memory allows no second sweep."""
        for power in range(16):
            jitter = scale * float(np.finfo(np.float64).eps) * 10.0**power
            A = self._equations(sums.gram, sums.mass)
            A[np.diag_indices(len(A))] += jitter
            found = self._factored(A, sums.moment / sums.mass, jitter)
            del A
            if found is not None:
                return found
        raise _unusable()

    def _factored(self, A: Array, b: Array, added: float = 0.0) -> tuple[Array, Array, Half] | None:
        """Solve by a Cholesky factor, which overwrites A, in both dtypes; return None if A is not positive definite.

        ``added`` is the jitter on A's diagonal, which stands for no ridge.
        """
        engine, eps = self.problem.engine, float(np.finfo(np.float64).eps)
        L = engine.zeros(A.shape)
        for rows in cuts(len(A)):
            L[rows, : rows.stop] = A[rows, : rows.stop]
        try:
            L = engine.cholesky(L)
        except NumericalError:
            return None
        half = engine.triangular_solve(L, b, lower=True)
        wide = engine.triangular_solve(L, half, lower=True, transposed=True)
        w = wide.astype(self.basis.dtype)
        A = engine.mirror(A)
        norm = float(np.max(np.sum(np.abs(A), axis=0)))
        residual = engine.triangular_solve(L, b - engine.product(A, w.astype(np.float64)), lower=True)
        condition = engine.condition(L, norm)
        # A was summed with errors of ε ‖A‖; their effect is largest along its least eigenvalue, ‖A‖/condition.
        rounding = eps * np.sqrt(norm * condition) * relative_residual(wide, half)
        self.report["rounding"] = float(rounding)
        jitter = 0.0
        if added and self.solver.ridge:
            penalty = np.sum(wide * self.basis.penalise(wide))
            jitter = added * float(np.sum(np.square(wide)) / penalty) / self.solver.ridge
        self._reached(relative_residual(residual, half), condition, jitter)

        def whitened(phi: Array) -> Array:
            return engine.triangular_solve(L, phi.T.copy(), lower=True).T

        return w, wide, whitened

    def _orthonormalised(self, sums: Sums, scale: float, sweep: Sweep) -> Solved:
        """Sweep a second time, over functions ψ = Vᵀ φ that are orthonormal in the norm of the ridge, and solve.

        Products of nearly dependent functions lose half of the functions' digits. In a basis of orthonormal ones the
        equations have a condition of about 1/λ, and no jitter is needed.
        """
        R = self.basis.penalty_matrix()
        if R is None:  # φ are orthonormal in this norm already, and may still be nearly dependent on the rows
            R = self.problem.engine.mirror(self._equations(sums.gram, sums.mass))
        eps = float(np.finfo(np.float64).eps)
        change = self._independent(R, eps * len(R) * float(np.max(np.diag(R))))
        del R
        return self._in_better_basis(self._summed(sweep, change, scale))

    def _in_better_basis(self, sums: Sums) -> Solved:
        assert sums.change is not None
        engine, basis, ridge, dtype = self.problem.engine, self.basis, self.solver.ridge, self.basis.dtype
        eps = float(np.finfo(np.float64).eps)
        (rows, V), n, scale = sums.change, sums.mass, sums.scale
        G = engine.mirror(unpacked(sums.gram, len(rows), engine) / n)
        b = sums.moment / n
        # Weights and values in the model's dtype are uncertain by ε, which acts on predictions as this ridge on w does.
        noise = scale * float(np.finfo(dtype).eps) ** 2
        if basis.identity_penalty:
            VV = engine.product_t(V, V)
            solved = G + (ridge + noise) * VV
            G += ridge * VV
        else:  # ψ are orthonormal in the norm of the ridge: Vᵀ R V is the identity
            G[np.diag_indices(len(G))] += ridge
            solved = G + noise * engine.product_t(V, V)
        norm = float(np.max(np.sum(np.abs(G), axis=0)))
        kept, U = self._independent(solved, eps * len(G) * float(np.max(np.diag(solved))))
        del solved
        half = engine.product(U.T, b[kept])
        inner = engine.zeros(b.shape)
        inner[kept] = engine.product(U, half)
        wide = engine.zeros((basis.width, b.shape[1]))
        wide[rows] = engine.product(V, inner)
        w = wide.astype(dtype)
        reached = engine.triangular_solve(V, w[rows].astype(np.float64), lower=False)
        residual = engine.product(U.T, (b - engine.product(G, reached))[kept])
        size = float(np.sum(np.square(w.astype(np.float64))))
        penalty = ridge * (size if basis.identity_penalty else float(np.sum(np.square(inner))))
        jitter = noise * size / penalty if penalty > 0 else 0.0  # without a ridge it has no unit
        self.report["sweeps"] = 2
        condition = norm * float(np.max(np.sum(np.square(U), axis=0)))
        self.report.pop("rounding", None)
        self._reached(relative_residual(residual, half), condition, jitter)
        right = engine.right_factor(V.T.copy())

        def whitened(phi: Array) -> Array:
            return engine.product(right.times(phi[:, rows])[:, kept], U)

        return self._solved(w, wide, whitened, n, self._kept(sums))

    def _independent(self, A: Array, floor: float) -> tuple[Array, Array]:
        try:
            return self.problem.engine.orthonormal(A, floor)
        except NumericalError:
            raise _unusable() from None

    def _reached(self, residual: float, condition: float, jitter: float) -> None:
        """The jitter is in units of the ridge."""
        self.report |= {"condition": condition, "jitter_per_ridge": jitter}
        narrow, rounding = self.basis.dtype == np.float32, self.report.get("rounding", 0.0)
        causes = [f"condition number about {condition:.1g}"]
        if rounding > MAX_RESIDUAL:
            causes.append(f"rounding of the normal equations may change predictions by {rounding:.2g} of their size")
        if narrow:
            causes.append("weights and kernel values are rounded to float32")
        if jitter > 1:
            causes.append(f"rounding acts as a ridge of {jitter:.2g} times the one given")
        remedies = [*(['dtype="float64"'] if narrow else []), "a larger ridge", "a smaller bandwidth", "fewer centers"]
        if self.given is not None and "sweeps" not in self.report:
            remedies.insert(0, "a fit on all rows, which may sweep a second time")
        elif self.problem.better_budget and "sweeps" not in self.report:
            needed = format_bytes(self.problem.better_budget)
            remedies.insert(0, f"memory={needed!r}, which allows a second sweep that rounding spoils less")
        report_residual(
            self.report, "Direct", residual, causes, remedies, far=max(residual, rounding) > MAX_RESIDUAL or jitter > 1
        )

    def weights(self, state: Solved) -> Array:
        return state.weights

    def out_of_sample(self, state: Solved) -> OutOfSample | None:
        return state.out_of_sample

    def sums(self, state: Solved) -> Sums | None:
        return state.sums


@serializable
@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over rows, in a basis of M functions.

    Attributes:
        gram: Σ w φφᵀ, packed: see ``engine.packed_triangle``; float64.
        moment: Σ w φ yᵀ, shape (M, c), with targets y as the model's encoding makes them.
        ones: Σ w φ, shape (M, 1); ``targets`` are Σ w y, shape (c, 1), and ``mass`` is Σ w.
        unit: divisor of the weights of rows.
        ridge: λ of the solution.
        change: (rows, V) if the functions are ψ = Vᵀ φ[rows], or None.
        scale: mean diagonal of the equations of φ, before the change.
        bound: why no row can be subtracted; empty if any can.
        factors: multipliers of row weights by class, see ``ClassWeightedSource``; None if all are 1.
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
        """Take the contributions of ``normal_equations`` over the rows of a fit, of mean weight 1."""
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
            is_valid_array(arrays[name], shape) and arrays[name].dtype == np.float64 for name, shape in shapes.items()
        )
        right = right and (
            self.factors is None or is_valid_array(self.factors, (c,)) or is_valid_array(self.factors, (c, 2))
        )
        if self.change is not None:
            rows, V = self.change if isinstance(self.change, tuple) and len(self.change) == 2 else (None, None)
            right = right and is_valid_array(V, (M, M)) and is_valid_array(rows, (M,), "iu")
            right = right and bool(np.all((rows >= 0) & (rows < M)))
        numbers = (self.mass, self.rows, self.unit, self.ridge, self.scale)
        right = right and all(map(is_valid_number, numbers)) and isinstance(self.bound, str)
        return right and self.rows > 0 and self.mass > 0 and self.unit > 0 and self.ridge >= 0

    @property
    def nbytes(self) -> int:
        arrays = (self.gram, self.moment, self.ones, self.targets, *(self.change or ()))
        return sum(array.nbytes for array in arrays)

    def plus(self, parts: Parts, sign: int, unit: float = 1.0) -> Sums:
        """Return the sums with those of other rows added or subtracted (``sign`` -1), whose arrays are overwritten.

        ``parts`` are contributions of ``normal_equations``; ``unit`` is the divisor that their weights still need.
        ``DataError`` if more is subtracted than there is.
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
        """Check that no more was subtracted than had been added."""
        p = len(self.moment)
        diagonal = np.concatenate([np.diagonal(panel) for _, panel in packed_panels(self.gram, p)])
        never = bool(diagonal.min() < -MAX_NEGATIVE_DIAGONAL * np.abs(diagonal).max())
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
        """The largest sum of squares of a function, and the largest moment of each output: shape (1 + c,)."""
        diagonal = max(float(np.diagonal(panel).max()) for _, panel in packed_panels(self.gram, len(self.moment)))
        return np.concatenate([[diagonal], np.abs(self.moment).max(axis=0)])

    def centred(self, encoding: Encoding) -> tuple[Sums, Encoding]:
        """Return the sums about the mean of these rows' targets, and the encoding that subtracts it."""
        if type(encoding) is not Continuous:  # nothing is subtracted from classes and labels
            return self, encoding
        away = self.targets / self.mass
        moved = replace(encoding, mean=encoding.mean + away[:, 0] * encoding.unit)
        return replace(self, moment=self.moment - self.ones @ away.T, targets=self.targets * 0.0), moved

    def without(self, centers: IntArray, engine: Engine) -> Sums:
        """Return the sums of a model without some of its centers."""
        assert self.change is None
        kept = np.setdiff1d(np.arange(len(self.moment)), centers)
        A = engine.mirror(unpacked(self.gram, len(self.moment), engine))[np.ix_(kept, kept)]
        gram = np.concatenate([A[cols.start :, cols].reshape(-1) for cols in cuts(len(kept))])
        return replace(self, gram=gram, moment=self.moment[kept], ones=self.ones[kept])

    def nearest(self, weights: Array, centers: IntArray, engine: Engine) -> Array:
        """Return weights without some of the centers, shape (M − k, c), of the function nearest to that of ``weights``.

        This is least squares over the rows of the sums, with a ridge that rounding requires. ``weights`` (q, c) are
        those of the first functions, and ``centers`` (k,) those to remove.
        """
        assert self.change is None
        M = len(self.moment)
        whole = np.zeros((M, weights.shape[1]))
        whole[: len(weights)] = weights
        kept = np.setdiff1d(np.arange(M), centers)
        G = engine.mirror(unpacked(self.gram, M, engine))
        right = G[np.ix_(kept, centers)] @ whole[centers]
        A = G[np.ix_(kept, kept)]
        A[np.diag_indices(len(A))] += NEAREST_SUMS_RIDGE * float(np.trace(A)) / len(A)
        return np.asarray((whole[kept] + engine.spd_solve(A, right)).astype(weights.dtype))

    def contents(self, weights_sha256: str) -> Contents:
        """Return what is saved of the sums of a model with these weights."""
        tree, arrays = flatten(self)
        return KIND, arrays, {"format": FORMAT, "sums": tree, "weights": weights_sha256}


@dataclass(frozen=True)
class StoredSums:
    """The sums of a saved model, read when rows are added or subtracted; ``weights`` is the digest of the model's.

    ``bound`` is as of ``Sums``: a model that cannot forget is refused before its sums are read.
    """

    path: Path
    weights: str
    nbytes: int
    rows: int
    bound: str
    shape: tuple[int, ...]

    def load(self) -> Sums:
        """Read the sums; ``StorageError`` if they are missing, ``ModelFormatError`` if damaged or another model's."""
        arrays, about = load_artifact(self.path / MEMBER, KIND, links=False)
        sums = None
        if about.get("format") == FORMAT and about.get("weights") == self.weights:
            sums = unflatten(about.get("sums"), arrays)
        if not isinstance(sums, Sums) or not sums.sound or (sums.moment.shape, sums.bound) != (self.shape, self.bound):
            raise ModelFormatError(
                "The sums are not those of the model, or of a newer format.",
                where=str(self.path / MEMBER),
                expected=f"sums of format {FORMAT}, saved with the model",
                remedy="restore the model from a copy; or delete this folder: the model predicts without",
            )
        return sums


def normal_equations(basis: Basis, problem: Problem, change: Change | None, totals: bool) -> NormalEquations:
    """Return the contribution of rows to the sums; without ``totals``, only to those that a solution needs."""
    right = None if change is None else (change[0], problem.engine.right_factor(change[1].T.copy()))
    return NormalEquations(basis, problem.encoding.outputs, right, totals)


def kept_of(sums: Sums | None, train: Dataset) -> Sums | None:
    """Return the sums of a fit on these rows, with the facts about the rows that an update needs."""
    if sums is None:
        return None
    later, bound = transforms_for_prediction(train.transforms), ""
    if train.augmentations or len(train) != train.base_rows:
        bound = "the rows were augmented, or repeated"
    elif any(then is not now for then, now in zip(train.transforms, later, strict=True)):
        bound = "categories were encoded by the targets of other rows"
    return replace(sums, bound=bound, factors=class_factors(train))
