"""What leaves share, and leaves as tasks of an executor, the largest first, each a whole fit in one thread.

A leaf's bits depend on its rows alone. After an interruption only leaves that were running begin anew.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from streamkern.centers import Uniform
from streamkern.data import from_arrays
from streamkern.data.dataset import Dataset
from streamkern.data.targets import Encoding, encoding_to_json
from streamkern.defaults import MIN_LEAF_METRIC_ROWS
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
from streamkern.selection.kernel_search import with_ridge
from streamkern.solvers.base import Solver, traits_of
from streamkern.solvers.direct import Direct
from streamkern.solvers.loop import Progress
from streamkern.storage.value_digest import digest
from streamkern.types import Array
from streamkern.user_code_digest import described


@dataclass(frozen=True, eq=False)
class LeafSettings:
    """What all leaves share.

    Attributes:
        recipe: of a leaf, without rows. One thread computes it, in one lane.
        held_out_rows: rows that each leaf leaves out for the whole model's probabilities or intervals, at most.
        ridge: λ that was chosen for all leaves, and the rows that it was found on; or None.
        full_kernel_limit: rows of a leaf up to which all of them are centers, where none are given.
    """

    recipe: Recipe
    held_out_rows: int = 0
    encoding: Encoding | None = None
    full_kernel_limit: int = 0
    ridge: tuple[float, int] | None = None

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

    def chosen(self, kernel: Kernel, ridge: float, rows: int) -> LeafSettings:
        """Return settings with a kernel and a ridge that were chosen for all leaves, on so many rows."""
        return replace(self, recipe=replace(self.recipe, kernel=kernel), ridge=(ridge, rows))

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


class LeafRunner(Runner):
    """Carries out the stages of a leaf, keeping its solver's warnings: rows were looked at with all others."""

    searches = False  # one kernel was chosen for all leaves
    calibrates_classes = False  # one calibration of probabilities is made of all leaves' rows

    def __init__(self, held_out_rows: int = 0) -> None:
        super().__init__()
        self.held_out_rows = held_out_rows
        self.messages: list[str] = []

    def warn(self, message: str) -> None:
        self.messages.append(message)

    def training(self, fit: Any) -> None:
        self.messages.clear()


@dataclass(eq=False)
class LeafTraining:
    """The leaves of a tree, carried out; ``at_once`` leaves at a time, as memory allows."""

    settings: LeafSettings
    budget: int
    leaf_rows: RowsOfLeaves
    grown: GrownTree
    executor: Executor
    runner: Runner
    at_once: int

    def leaves(self) -> list[dict[str, Any]]:
        """Return results of ``fit_leaf``, by leaf: those that an earlier run has kept are not trained again."""
        began, counts = time.perf_counter(), self.grown.counts
        order = np.argsort(-counts, kind="stable").tolist()
        found: dict[int, dict[str, Any]] = {}
        for leaf in order:
            value = self.runner.kept(f"leaf-{leaf}", partial(self._key, leaf))
            if value is not None:
                found[leaf] = value
        pending = [leaf for leaf in order if leaf not in found]
        done, rows = len(found), int(counts[list(found)].sum())
        if done:
            self.runner.choice(f"partition: {done:,} of {len(counts):,} leaves are kept: their rows have not changed")
        fitted = self._fitted(pending)
        for leaf in pending:  # the wait for a leaf is the time of its stage
            value = found[leaf] = self.runner.keep(f"leaf-{leaf}", partial(self._key, leaf), partial(next, fitted))
            done, rows = done + 1, rows + int(counts[leaf])
            seconds = time.perf_counter() - began
            progress = Progress(0, done, len(counts), rows, int(counts.sum()), value["loss"], seconds, 0.0)
            self.runner.stepped(progress)
        return [found[leaf] for leaf in range(len(counts))]

    def _key(self, leaf: int) -> tuple[Any, ...]:
        every = bool(self.grown.counts[leaf] <= self.settings.full_kernel_limit)  # whether all its rows are centers
        return self.common, leaf, self.fingerprints.digests[leaf], every

    @cached_property
    def fingerprints(self) -> LeafFingerprints:
        """Of each leaf's rows, made on demand: only results that are kept have a key."""
        return self.leaf_rows.fingerprints(self.grown.tree)

    @cached_property
    def common(self) -> str:
        """Digest of everything that all leaves depend on besides their rows."""
        settings, recipe = self.settings, self.settings.recipe
        return digest(
            self.grown.tree.fingerprint, encoding_to_json(self.leaf_rows.assembly.encoding),
            described(recipe.kernel), described(recipe.centers), described(recipe.metric), recipe.seed, recipe.lanes,
            AUTO if recipe.solver == AUTO else described(recipe.solver), recipe.dtype, settings.held_out_rows,
            settings.ridge, platform.machine(),
        )  # fmt: skip

    def _fitted(self, pending: Sequence[int]) -> Iterator[dict[str, Any]]:
        rows = self.leaf_rows.rows(self.grown.tree)
        shared = (rows, self.settings, self.grown.tree, self.budget)
        size = len(pending) if self.at_once >= self.executor.slots else self.at_once
        for first in range(0, len(pending), size):
            yield from self.executor.imap(fit_leaf, pending[first : first + size], shared)


def fit_leaf(leaf: int, rows: LeafRows, settings: LeafSettings, tree: CutTree, budget: int) -> dict[str, Any]:
    """Fit one leaf in one thread: a task.

    ``mass`` is the weight of its rows, ``seen`` the rows of all passes, ``left_out`` its outputs on rows left out.
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
    runner = LeafRunner(settings.held_out_rows)
    try:
        with ThreadsExecutor(1) as executor, keep_free_memory():
            fitted, solver = _fit((X, y, w), settings, executor, budget, runner)
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
        "seen": outcome.rows,
        "warnings": runner.messages, "seconds": time.perf_counter() - began,
    }  # fmt: skip


def _fit(
    rows: tuple[Array, Array, Array | None], settings: LeafSettings, executor: Executor, budget: int, runner: LeafRunner
) -> tuple[Fitted, Solver]:
    X, y, w = rows
    chosen, _ = resolve_solver(settings.on(from_arrays(X, y, sample_weight=w)), budget, 1, settings.ridge is not None)
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


def _constant_output(X: Array, y: Array, w: Array | None) -> Array | None:
    """The mean target of rows that have one target, or the same features: a class code (1,), or values (c,)."""
    if (y == y[0]).all() or (X[0] == X).all():
        if y.ndim > 1:
            return np.asarray(np.average(y, axis=0, weights=w))
        return np.array([np.argmax(np.bincount(y, weights=w))])
    return None
