"""What leaves share, and leaves as tasks of an executor, the largest first, each a whole fit in one thread.

A leaf's bits depend on its rows, and on the weights of features, alone. After an interruption only leaves that were
running begin anew.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Any

import numpy as np

from streamkern.centers import Uniform
from streamkern.data import from_arrays
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Scan
from streamkern.data.targets import Encoding, as_values, encoding_to_json
from streamkern.defaults import GRADIENT_ROWS, MIN_GRADIENT_ROWS_OF_LEAF, MIN_LEAF_METRIC_ROWS
from streamkern.errors import NumericalError, StreamkernError
from streamkern.execute.base import Executor
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.fitting.fit import fit
from streamkern.fitting.fitted import Fitted
from streamkern.fitting.recipe import AUTO, Recipe
from streamkern.fitting.solver_choice import resolve_solver
from streamkern.fitting.stage import Runner
from streamkern.kernels import Kernel
from streamkern.memory import keep_free_memory
from streamkern.models.cut_tree import CutTree, leaf_centers, max_full_kernel_rows
from streamkern.models.kernel_machine import KernelMachine
from streamkern.partition.grow_tree import GrownTree
from streamkern.partition.joint_calibration import (
    held_out_rows_of_leaf,
    out_of_sample_of_constant,
    out_of_sample_of_leaf,
)
from streamkern.partition.leaf_rows import LeafFingerprints, LeafRows, RowsOfLeaves
from streamkern.rng import Draw
from streamkern.selection.kernel_search import with_ridge
from streamkern.selection.learned_metric import GradientOuter, distance_ratio
from streamkern.solvers.base import Solver, traits_of
from streamkern.solvers.direct import Direct
from streamkern.solvers.loop import Progress
from streamkern.storage.value_digest import digest
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array
from streamkern.user_code_digest import described

_GRADIENT_BLOCK = 256  # rows whose kernel values, and slopes, are in memory at a time, about


@dataclass(frozen=True, eq=False)
class LeafSettings:
    """What all leaves share.

    Attributes:
        recipe: of a leaf, without rows. One thread computes it, in one lane.
        held_out_rows: rows that each leaf leaves out for the whole model's probabilities or intervals, at most.
        ridge: λ that was chosen for all leaves, and the rows that it was found on; or None.
        full_kernel_limit: rows of a leaf up to which all of them are centers, where none are given.
        gradient_rows: rows of each leaf whose mean squared gradient is taken; 0 for none.
        weights: of the features in distances, (d,), by which they are multiplied; None for ones.
        blocks: features of each category, which have one weight.
    """

    recipe: Recipe
    held_out_rows: int = 0
    encoding: Encoding | None = None
    full_kernel_limit: int = 0
    ridge: tuple[float, int] | None = None
    gradient_rows: int = 0
    weights: Array | None = None
    blocks: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, recipe: Recipe) -> LeafSettings:
        """Take kernel, centers, solver and metric, without rows; these have the weights of classes."""
        leaf = Recipe(
            from_arrays(np.empty((0, 1))), recipe.kernel, recipe.centers, recipe.solver, task=recipe.task,
            preprocess=(), scaling=None, seed=recipe.seed, lanes=1, dtype=recipe.dtype, metric=recipe.metric,
            partition=None,
        )  # fmt: skip
        # Leaves that a sample of the rows cuts may have a tenth more.
        return cls(leaf, full_kernel_limit=11 * max_full_kernel_rows(recipe.train.base_rows) // 10)

    def with_calibration(self, whole: Recipe, leaves: int, encoding: Encoding, wanted: bool) -> LeafSettings:
        """Leave rows out of each leaf, where the whole is to have probabilities or intervals."""
        calibrated = whole.validation is not None and whole.task == "classification"
        rows = 0 if calibrated or not wanted else held_out_rows_of_leaf(whole.task, leaves, encoding.outputs)
        return replace(self, held_out_rows=rows, encoding=encoding)

    @property
    def identity(self) -> tuple[Any, ...]:
        """All that a leaf depends on besides its rows."""
        recipe, weights = self.recipe, self.weights
        return (
            described(recipe.kernel), described(recipe.centers), described(recipe.metric), recipe.seed, recipe.lanes,
            AUTO if recipe.solver == AUTO else described(recipe.solver), recipe.dtype, self.held_out_rows, self.ridge,
            self.gradient_rows, None if weights is None else weights.tolist(), platform.machine(),
        )  # fmt: skip

    def chosen(self, kernel: Kernel, ridge: float, rows: int) -> LeafSettings:
        """Return settings with a kernel, a metric and a ridge chosen for all, on so many rows."""
        return replace(self, recipe=replace(self.recipe, kernel=kernel, metric=None), ridge=(ridge, rows))

    def learned_weights(self, leaves: Sequence[dict[str, Any]], step: float = 1.0) -> Array | None:
        """Return these weights times M^½, for the mean squared gradients M (d,) of leaves that were fitted with them.

        M is the diagonal of the average gradient outer product (Radhakrishnan et al. 2024), of rows in many leaves
        where the search saw a sample of all rows. A ``step`` above 1 goes further, to M to the power of ½ ``step``.
        Distances keep their mean.
        """
        found = [each for each in leaves if each.get("gradient") is not None]
        M = sum((each["mass"] * each["gradient"] for each in found), np.zeros(1))
        if not (np.isfinite(M).all() and M.max() > 0):
            return self.weights
        before = np.ones(len(M)) if self.weights is None else self.weights
        variance = sum(each["mass"] * each["variance"] for each in found)
        M[variance == 0] = M[variance > 0].mean()  # nothing is known of features that do not vary in these leaves
        M = M * (M / M.max()) ** (step - 1) * np.square(before)
        for block in self.blocks:
            M[list(block)] = M[list(block)].mean()
        M /= M.max()
        variance = np.divide(variance, np.square(before), out=np.zeros(len(M)), where=before > 0)
        assert self.recipe.kernel is not None
        size = distance_ratio(np.square(before) * variance, M * variance, self.recipe.kernel.norm)
        return np.asarray(np.sqrt(M) * size)

    def with_ridge(self, solver: Solver, n: int) -> Solver:
        """Return a solver for n rows with the chosen ridge, where its own is left open: noise asks for λ n."""
        if self.ridge is None:
            return solver
        ridge, rows = self.ridge
        return with_ridge(solver, ridge * min(1.0, rows / n))

    def on(self, train: Dataset) -> Recipe:
        """Return the recipe on a leaf's rows; where there are fewer of them than centers, each is a center."""
        n, recipe = train.base_rows, self.recipe
        centers = recipe.centers or leaf_centers(n, self.full_kernel_limit, recipe.seed)
        if isinstance(centers, Uniform):
            centers = replace(centers, p=min(centers.p, n))
        metric = recipe.metric if n >= MIN_LEAF_METRIC_ROWS else None
        return replace(recipe, train=train, centers=centers, metric=metric)


def gradient_rows(leaves: int) -> int:
    """Return the rows of each of so many leaves whose gradients are taken."""
    return max(MIN_GRADIENT_ROWS_OF_LEAF, GRADIENT_ROWS // leaves)


class LeafRunner(Runner):
    """Carries out the stages of a leaf, keeping its solver's warnings: rows were looked at with all others."""

    searches = False  # one kernel was chosen for all leaves
    calibrates_classes = False  # one calibration of probabilities is made of all leaves' rows

    def __init__(self, held_out_rows: int = 0, encoding: Encoding | None = None) -> None:
        super().__init__()
        self.held_out_rows, self.encoding = held_out_rows, encoding
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)

    def training(self, fit: Any) -> None:
        self.messages.clear()


@dataclass(eq=False)
class LeafTraining:
    """The leaves of the trees, carried out; ``at_once`` leaves at a time, as memory allows.

    ``weights`` are those of features in each tree, as far as they are known; with ``learns`` the first tree teaches
    those of the second.
    """

    settings: LeafSettings
    budget: int
    leaf_rows: RowsOfLeaves
    grown: GrownTree
    executor: Executor
    runner: Runner
    at_once: int
    weights: list[Array | None]
    learns: bool

    def leaves(self) -> list[dict[str, Any]]:
        """Return results of ``fit_leaf``, by leaf: those that an earlier run has kept are not trained again."""
        began, counts, tree = time.perf_counter(), self.grown.counts, self.grown.tree
        settings, found, kept, rows = self.settings, dict[int, dict[str, Any]](), 0, 0
        for number in range(tree.trees):
            if self.learns and number:
                self.weights[number] = settings.learned_weights([found[leaf] for leaf in sorted(found)])
            settings = replace(self.settings, weights=self.weights[number])
            if number == 0 and (self.learns or self.weights[-1] is not None):  # after a warm start, too: its key stays
                settings = replace(settings, gradient_rows=gradient_rows(len(counts) // tree.trees))
            key, order = self._key(settings), np.argsort(-counts, kind="stable")
            order = order[tree.tree_of_leaves[order] == number].tolist()
            for leaf in order:
                value = self.runner.kept(f"leaf-{leaf}", partial(key, leaf))
                if value is not None:
                    found[leaf], kept, rows = value, kept + 1, rows + int(counts[leaf])
            pending = [leaf for leaf in order if leaf not in found]
            if not pending:
                continue  # and no row is read
            fitted = fitted_leaves(pending, (self.rows, settings, tree, self.budget), self.executor, self.at_once)
            for leaf in pending:  # the wait for a leaf is the time of its stage
                value = found[leaf] = self.runner.keep(f"leaf-{leaf}", partial(key, leaf), partial(next, fitted))
                rows, seconds = rows + int(counts[leaf]), time.perf_counter() - began
                progress = Progress(0, len(found), len(counts), rows, int(counts.sum()), value["loss"], seconds, 0.0)
                self.runner.stepped(progress)
        if kept:
            self.runner.choice(f"partition: {kept:,} of {len(counts):,} leaves are kept: their rows have not changed")
        return [found[leaf] for leaf in range(len(counts))]

    def _key(self, settings: LeafSettings) -> Callable[[int], tuple[Any, ...]]:
        """A function from a leaf's number to all that the leaf depends on; made on demand, as its digests are."""

        @cache
        def common() -> str:
            encoding = encoding_to_json(self.leaf_rows.assembly.encoding)
            return digest(self.grown.tree.fingerprint, encoding, *settings.identity)

        def key(leaf: int) -> tuple[Any, ...]:
            every = bool(self.grown.counts[leaf] <= settings.full_kernel_limit)  # whether all its rows are centers
            return common(), leaf, self.fingerprints.digests[leaf], every

        return key

    @cached_property
    def fingerprints(self) -> LeafFingerprints:
        """Of each leaf's rows, made on demand: only results that are kept have a key."""
        return self.leaf_rows.fingerprints(self.grown.tree)

    @cached_property
    def rows(self) -> LeafRows:
        """The rows of leaves, which both trees read."""
        return self.leaf_rows.rows(self.grown.tree)


def fitted_leaves(
    pending: Sequence[int], shared: tuple[Any, ...], executor: Executor, at_once: int
) -> Iterator[dict[str, Any]]:
    """Yield the results of ``fit_leaf`` in order, with its further arguments; ``at_once`` leaves at a time."""
    size = len(pending) if at_once >= executor.slots else at_once
    for first in range(0, len(pending), max(1, size)):
        yield from executor.imap(fit_leaf, pending[first : first + size], shared)


def fit_leaf(leaf: int, rows: LeafRows, settings: LeafSettings, tree: CutTree, budget: int) -> dict[str, Any]:
    """Fit one leaf in one thread: a task.

    ``mass`` is the weight of its rows, ``seen`` the rows of all passes, ``left_out`` its outputs on rows left out,
    ``gradient`` (d,) the mean squared gradient of its outputs, ``variance`` (d,) that of its rows, and
    ``left_out_error`` the mean squared error on rows left out.
    Either ``constant`` has outputs (c,), where all rows have one target or the same features, or ``arrays`` and
    ``metadata`` of ``KernelMachine._artifact`` have the model.
    """
    began = time.perf_counter()
    X, y, w = rows.read(leaf)
    mass = float(len(X) if w is None else w.sum())
    facts: dict[str, Any] = {
        "rows": len(X), "mass": mass, "solver": "", "loss": 0.0, "passes": 0, "seen": 0, "warnings": []
    }  # fmt: skip
    constant = _constant_output(X, y, w)
    if constant is not None:
        out_of_sample = (
            out_of_sample_of_constant(constant, y, w, settings.encoding, settings.held_out_rows)
            if settings.held_out_rows
            else None
        )
        return facts | {"constant": constant, "left_out": out_of_sample, "seconds": time.perf_counter() - began}
    runner = LeafRunner(settings.held_out_rows, settings.encoding)
    try:
        with ThreadsExecutor(1) as executor, keep_free_memory():
            fitted, solver = _fit((X, y, w), settings, executor, budget, runner)
            learned = _gradient(fitted, settings.gradient_rows, executor) if settings.gradient_rows else {}
    except StreamkernError as error:
        error.where = f"leaf {leaf} of {len(X):,} rows, {error.where}"
        raise
    arrays, metadata = KernelMachine.of(fitted)._artifact()
    outcome = fitted.outcome
    out_of_sample = out_of_sample_of_leaf(
        outcome, fitted.problem, settings.encoding, lambda at: tree.in_leaf(X[at], leaf)
    )
    return facts | {
        "constant": None, "left_out": out_of_sample, "arrays": arrays, "metadata": metadata,
        "solver": solver.to_json()["name"], "loss": float(outcome.history[-1]["loss"]), "passes": outcome.passes,
        "seen": outcome.rows, **learned, "warnings": runner.messages, "seconds": time.perf_counter() - began,
    }  # fmt: skip


def _fit(
    rows: tuple[Array, Array, Array | None], settings: LeafSettings, executor: Executor, budget: int, runner: LeafRunner
) -> tuple[Fitted, Solver]:
    X, y, w = rows
    train = from_arrays(X, y, sample_weight=w)
    train = train if settings.weights is None else train.scale(settings.weights)
    chosen, _ = resolve_solver(settings.on(train), budget, 1, settings.ridge is not None)
    chosen = replace(chosen, solver=settings.with_ridge(chosen.solver, len(X)))
    try:
        # All leaves at a time were projected before: see ``PartitionShape``.
        return fit(chosen, executor, budget, runner, baseline=0), chosen.solver
    except NumericalError as error:
        if settings.recipe.solver != AUTO or traits_of(chosen.solver).one_pass:
            raise
        name = chosen.solver.to_json()["name"]
        chosen = replace(chosen, solver=settings.with_ridge(Direct(), len(X)))
        fitted = fit(chosen, executor, budget, runner, baseline=0)
        runner.messages.append(f"{name} failed ({error.where}): Direct instead")
        return fitted, chosen.solver


def _gradient(fitted: Fitted, rows: int, executor: Executor) -> dict[str, Any]:
    """``gradient`` and ``variance`` over some of a leaf's rows, and ``left_out_error``, as ``fit_leaf`` has them."""
    problem, outcome = fitted.problem, fitted.outcome
    c, unit = problem.encoding.outputs, np.asarray(getattr(problem.encoding, "unit", 1.0))
    n = problem.train.base_rows
    only = np.sort(problem.train.draw(min(rows, n), Draw.METRIC, problem.seed))
    weights = (outcome.weights * unit).astype(outcome.weights.dtype)
    scan = Scan(problem.assembly(problem.train), _GRADIENT_BLOCK * max(1, n // rows), only)
    outer = GradientOuter(problem.expansion(), c, False, problem.seed)
    total, mass = sweep(executor, ScanWork(scan, outer), weights)
    found, error = outcome.out_of_sample, np.nan
    if found is not None:
        missed = np.square((found.outputs - as_values(found.y, c)) * unit).sum(axis=1)
        error = float(np.average(missed, weights=found.w))
    variance = problem.full_rows(only)[0].var(axis=0, dtype=np.float64)
    return {"gradient": np.asarray(total / mass), "variance": variance, "left_out_error": error}


def _constant_output(X: Array, y: Array, w: Array | None) -> Array | None:
    """The mean target of rows that have one target, or the same features: a class code (1,), or values (c,)."""
    if (y == y[0]).all() or (X[0] == X).all():
        if y.ndim > 1:
            return np.asarray(np.average(y, axis=0, weights=w))
        return np.array([np.argmax(np.bincount(y, weights=w))])
    return None
