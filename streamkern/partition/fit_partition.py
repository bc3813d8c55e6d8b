"""Training a partition: preprocessing of all rows, the tree, and a whole fit in every leaf.

Leaves are tasks of the executor, the largest first: each reads its encoded rows and goes through ``fitting.fit`` in one
thread, so that its bits depend on its rows alone. A leaf that is done is a stage that is kept; after an interruption
only leaves that were running begin anew.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from streamkern.calibration.serialization import Calibration
from streamkern.centers import CenterSet, Given
from streamkern.costs.footprint import Footprint
from streamkern.data import from_arrays
from streamkern.data.class_weights import weighted_like
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly
from streamkern.data.statistics import Statistics, require_range
from streamkern.data.targets import Classes, Indicators, encoding_to_json
from streamkern.errors import NumericalError, StreamkernError, UnlikeChampionError, UsageError
from streamkern.evaluation.score import score
from streamkern.execute.base import Executor
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.fitting.calibrate import require_two_classes
from streamkern.fitting.evaluation_checks import require_measurable
from streamkern.fitting.fit import Fitted, Stages, check_rows_like_training, fit, prepare, rows_key, statistics_stage
from streamkern.fitting.leaf_fit import fit_encoded
from streamkern.fitting.memory_projection import preprocessing_steps
from streamkern.fitting.precision_checks import subtract_offsets
from streamkern.fitting.recipe import AUTO, Recipe
from streamkern.fitting.solver_choice import resolve_solver
from streamkern.kernels import Kernel, Laplace, kernel_from_json
from streamkern.memory import keep_free_memory, release_free_memory
from streamkern.models.cut_tree import CutTree, Partition
from streamkern.models.kernel_machine import KernelMachine, from_artifact
from streamkern.models.partitioned_machine import LeafBasis, Leaves, PartitionedMachine, leaves_in_memory
from streamkern.partition.champion_cuts import champion_of, rows_as_champion, settings_digest
from streamkern.partition.grow_tree import GrownTree, TreeBuilder
from streamkern.partition.joint_calibration import (
    fit_joint_intervals,
    fit_joint_probabilities,
    out_of_sample_of_constant,
    out_of_sample_of_leaf,
)
from streamkern.partition.leaf_rows import LeafFingerprints, LeafRows
from streamkern.partition.leaf_settings import LeafSettings, LeafStages
from streamkern.partition.leaf_shuffle import RowsOfLeaves
from streamkern.partition.partition_memory import PartitionMemory
from streamkern.preprocessing.automatic_steps import data_warnings, preprocessing_notes
from streamkern.preprocessing.feature_origins import Features, features_of
from streamkern.selection.kernel_search import KernelChoice
from streamkern.selection.learned_metric import Metric
from streamkern.solvers.base import Problem, Solver
from streamkern.solvers.direct import Direct
from streamkern.solvers.logistic import Logistic
from streamkern.solvers.loop import Outcome, Progress
from streamkern.storage.value_digest import digest
from streamkern.types import Array, IntArray
from streamkern.user_code_digest import described

T = TypeVar("T")

_NUMBERS = re.compile(r"\d[\d.,e+-]*")

BLENDS = (1.0, 0.5, 0.0)
"""Widths of the blending at borders that validation rows choose among, in parts of the overlap."""


class FittedPartition(NamedTuple):
    """Result of a fit in leaves: the attributes of ``Fitted``, and the model.

    Attributes:
        problem: training rows as the leaves saw them; without centers.
        outcome: passes and rows of all leaves; its weights are empty.
        report: findings, with ``partition``: leaves, their rows, seconds and solvers.
    """

    problem: Problem
    outcome: Outcome
    report: dict[str, Any]
    footprint: Footprint
    median: float | None
    metric: Metric | None
    columns: Features
    choice: KernelChoice | None
    calibration: Calibration | None
    model: PartitionedMachine


def model_of(fitted: Fitted | FittedPartition, **metadata: Any) -> KernelMachine:
    """The model that a fit left; ``metadata`` joins the facts about the training."""
    if isinstance(fitted, Fitted):
        return KernelMachine.of(fitted, **metadata)
    return replace(fitted.model, metadata=fitted.model.metadata | metadata)


def require_partition(recipe: Recipe) -> None:
    """Raise UsageError, with the remedy, where a setting cannot be combined with a partition."""
    centers = recipe.centers
    for wrong, what, remedy in (
        (recipe.train.augmentations or len(recipe.train) != recipe.train.base_rows, "augmented or repeated rows",
         "leave the augmentation out"),
        (recipe.features is not None, "a feature map", "use kernel values at centers"),
        (isinstance(centers, Given), "given centers", "draw centers, such as sk.Uniform(1000): each leaf has its own"),
        (centers is not None and centers.stored, "all rows as centers", "draw centers, such as sk.Uniform(1000)"),
        (isinstance(recipe.solver, Direct) and recipe.solver.keep_sums, "a solver that keeps its sums",
         "leave keep_sums out"),
        (isinstance(recipe.solver, Logistic), "the logistic loss, whose outputs cannot be blended",
         "use least squares, such as sk.Direct()"),
        (getattr(recipe.solver, "patience", None) is not None, "a solver with a patience",
         "leave patience out: validation rows choose how wide leaves blend"),
        (getattr(recipe, "diagnose", False), "diagnose=True", "leave diagnose out"),
        (_users_function(recipe.kernel), "a kernel that is a user's function", "use a kernel of this library"),
    ):  # fmt: skip
        if wrong:
            raise partition_error(what, remedy)


def _users_function(kernel: Kernel | None) -> bool:
    """Return True if a kernel cannot be read back from its description."""
    try:
        return kernel is not None and kernel_from_json(kernel.to_json()) is None
    except StreamkernError:
        return True


def partition_error(what: str, remedy: str) -> UsageError:
    """The error for a setting that cannot be combined with a partition, with its remedy."""
    return UsageError(
        f"There is a partition, and {what}.",
        where="partition=Partition(...)",
        expected="a kernel at centers that each leaf draws from its rows",
        remedy=f"{remedy}; or leave the partition out",
    )


def fit_partition(
    recipe: Recipe,
    executor: Executor,
    budget: int,
    stages: Stages,
    on_plan: Callable[[Footprint], None],
    folder: Path | None,
    trial: int = 0,
    ready: tuple[Dataset, Statistics] | None = None,
    choice: KernelChoice | None = None,
    baseline: int | None = None,
    ridge: tuple[float, int] | None = None,
) -> FittedPartition:
    """Cut the rows and fit every leaf; for most arguments see ``one_or_leaves.fit_one_or_leaves``.

    ``trial`` has the bytes of the trial before it, and ``baseline`` those that projections start from, by default those
    that the process holds now. ``ready`` has prepared rows and their statistics, where they are known. ``choice`` is
    the kernel of all leaves, which see rows through its metric; it is None where each chooses its own. ``ridge`` is
    that of all leaves, and the rows that it was found on.
    """
    partition = recipe.partition
    assert partition is not None
    recipe.train._require_rows()
    for name, rows in (("validation", recipe.validation), ("test", recipe.test)):
        require_measurable(rows, name)
    leaf_settings = LeafSettings.of(recipe, ridge)
    project = PartitionMemory(
        recipe, partition, leaf_settings.on, budget, executor.slots, executor.name == "threads", trial, baseline
    )
    footprint, _ = project.first()
    executor.allowed = footprint.allowance()
    on_plan(footprint)
    champion = champion_of(partition)
    if champion is not None:
        data, facts = rows_as_champion(recipe, champion, executor, stages)
    else:
        data, facts = ready or prepare(recipe, executor, stages)
    done = preprocessing_notes(data, preprocessing_steps(recipe), facts)
    for message in data_warnings(data, preprocessing_steps(recipe), facts):
        stages.warn(message)
    if recipe.threshold is not None:
        require_two_classes(facts.encoding)
    columns = features_of(data)
    if champion is not None:
        leaf_settings = with_champion_kernel(leaf_settings, champion)
    else:
        leaf_settings = leaf_settings.chosen(choice)
        if choice is not None:
            data = choice.metric.applied(data)
            if choice.metric.kind == "full":  # a turn makes other features
                facts = statistics_stage(data, recipe, executor, stages)
    data = _checked(recipe, data, facts, executor, stages)
    assembly = Assembly(data.plain(), facts.encoding, 0.0, np.dtype(recipe.dtype))
    with RowsOfLeaves(assembly, executor, stages, folder, budget) as leaf_rows:
        if champion is None:
            grown = _grow_tree(recipe, partition, leaf_rows, stages)
        else:
            grown = _champion_tree(champion.tree, leaf_rows, stages)
        release_free_memory()
        footprint, at_once = project.then(data, grown)
        executor.allowed = footprint.allowance()
        on_plan(footprint)
        began = time.perf_counter()
        assert facts.encoding is not None
        projected, largest = project.leaf(data, int(grown.counts.max()), project.baseline)
        every = leaf_settings.recipe.centers is None and largest.train.base_rows <= leaf_settings.full_kernel_limit
        if every and isinstance(largest.solver, Direct):
            # Smaller leaves would choose the same solver, and take no more, each after a look at its own size.
            leaf_settings = leaf_settings.like(largest.solver, projected)
        leaf_settings = leaf_settings.with_calibration(
            recipe, grown.tree.leaves, facts.encoding, stages.held_out_rows > 0
        )
        training = _Training(leaf_settings, budget, leaf_rows, grown, executor, stages, at_once)
        found = training.leaves()
    return _finished(
        recipe, data, facts, grown, found, footprint, executor, stages, done, began, choice, columns, leaf_settings
    )


def with_champion_kernel(settings: LeafSettings, champion: PartitionedMachine) -> LeafSettings:
    """The settings with the champion's kernel and ridge, where they were chosen: its metric is among its transforms."""
    ridge = champion.metadata["partition"].get("ridge")
    return settings if ridge is None else replace(settings.changed(kernel=champion.kernel), ridge=(ridge[0], ridge[1]))


def _checked(recipe: Recipe, data: Dataset, facts: Statistics, executor: Executor, stages: Stages) -> Dataset:
    """Prepared rows less offsets that float32 rounds too coarsely; validation and test rows are checked like them."""
    dtype, invariant = np.dtype(recipe.dtype), recipe.kernel is None or recipe.kernel.translation_invariant
    if recipe.partition is None or champion_of(recipe.partition) is None:  # the champion's origin stays
        data = subtract_offsets(data, facts, invariant, dtype)
    require_range(data, facts, dtype, centred=invariant)
    assert facts.encoding is not None
    for name, rows in (("validation", recipe.validation), ("test", recipe.test)):
        if rows is not None:
            check_rows_like_training(rows, name, recipe, data, facts.encoding, executor, stages)
    release_free_memory()
    return data


def _grow_tree(recipe: Recipe, partition: Partition, leaf_rows: RowsOfLeaves, stages: Stages) -> GrownTree:
    """The tree, level by level; each is a stage."""
    assembly, executor = leaf_rows.assembly, leaf_rows.executor
    data = assembly.dataset

    def keep(name: str, tree: CutTree, compute: Callable[[], GrownTree]) -> GrownTree:
        def key() -> tuple[Any, ...]:
            return (
                rows_key(data), described(partition), tree.fingerprint, encoding_to_json(assembly.encoding),
                described(recipe.kernel), recipe.seed, recipe.dtype, platform.machine(),
            )  # fmt: skip

        return stages.keep(name, key, lambda: _after_release(compute()))

    kernel = recipe.kernel or Laplace("median")

    def count(tree: CutTree) -> IntArray:
        return leaf_rows.scatter(tree).counts

    grown = TreeBuilder(partition, assembly, kernel, executor, recipe.seed, count if leaf_rows.stored else None).grow(
        keep
    )
    if leaf_rows.stored:  # known already, unless the last cuts are not those of the sample
        grown = replace(grown, counts=count(grown.tree))
    least, most = int(grown.counts.min()), int(grown.counts.max())
    doubled = max(0.0, int(grown.counts.sum()) / data.base_rows - 1)  # some rows may have no weight
    stages.choice(
        f"partition: {grown.tree.leaves:,} leaves of {least:,} to {most:,} rows; "
        f"{doubled:.1%} of the rows lie at a border and are trained on both sides",
        leaves=grown.tree.leaves,
    )
    return grown


def _after_release(found: T) -> T:
    """Return a stage's value after freed memory is returned to the system, which leaves need."""
    release_free_memory()
    return found


def _champion_tree(tree: CutTree, leaf_rows: RowsOfLeaves, stages: Stages) -> GrownTree:
    """The champion's tree, with these rows in its leaves; a leaf without rows raises UnlikeChampionError."""
    counts = leaf_rows.fingerprints(tree).counts
    if not counts.all():
        raise UnlikeChampionError(
            f"{np.count_nonzero(counts == 0):,} of the champion's {tree.leaves:,} leaves have no rows.",
            where="the training rows",
            expected="rows in every leaf",
            remedy="train from the start: --cold",
        )
    stages.choice(f"partition: the champion's {tree.leaves:,} leaves, of {counts.min():,} to {counts.max():,} rows")
    return GrownTree(tree, counts, np.ones(tree.leaves, dtype=bool))


@dataclass(eq=False)
class _Training:
    """The leaves of a tree, carried out; ``at_once`` leaves at a time, as memory allows."""

    settings: LeafSettings
    budget: int
    leaf_rows: RowsOfLeaves
    grown: GrownTree
    executor: Executor
    stages: Stages
    at_once: int

    def leaves(self) -> list[dict[str, Any]]:
        """Results of ``fit_leaf``, by leaf: those that an earlier run has kept are not trained again."""
        began, counts = time.perf_counter(), self.grown.counts
        order = np.argsort(-counts, kind="stable").tolist()
        found: dict[int, dict[str, Any]] = {}
        for leaf in order:
            value = self.stages.kept(f"leaf-{leaf}", partial(self._key, leaf))
            if value is not None:
                found[leaf] = value
        pending = [leaf for leaf in order if leaf not in found]
        done, rows = len(found), int(counts[list(found)].sum())
        if done:
            self.stages.choice(f"partition: {done:,} of {len(counts):,} leaves are kept: their rows have not changed")
        for leaf, value in zip(pending, self._fitted(pending) if pending else (), strict=True):
            found[leaf] = self.stages.keep(f"leaf-{leaf}", partial(self._key, leaf), partial(_same, value))
            done, rows = done + 1, rows + int(counts[leaf])
            seconds = time.perf_counter() - began
            progress = Progress(0, done, len(counts), rows, int(counts.sum()), value["loss"], seconds, 0.0)
            self.stages.stepped(progress)
        return [found[leaf] for leaf in range(len(counts))]

    def _key(self, leaf: int) -> tuple[Any, ...]:
        every = bool(self.grown.counts[leaf] <= self.settings.full_kernel_limit)  # whether all its rows are centers
        return self.common, leaf, self.fingerprints.digests[leaf], every

    @cached_property
    def fingerprints(self) -> LeafFingerprints:
        """Fingerprints of each leaf's rows, made on demand, as all keys are: only results that are kept have one."""
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
        """``fit_leaf`` of leaves, in their order."""
        rows = self.leaf_rows.rows(self.grown.tree)
        shared = (rows, self.settings, self.grown.tree, self.budget)
        size = len(pending) if self.at_once >= self.executor.slots else self.at_once
        for first in range(0, len(pending), size):
            yield from self.executor.imap(fit_leaf, pending[first : first + size], shared)


def _same(value: T) -> T:
    return value


def fit_leaf(leaf: int, rows: LeafRows, settings: LeafSettings, tree: CutTree, budget: int) -> dict[str, Any]:
    """Fit one leaf in one thread: a task.

    Returns:
        ``rows``, ``mass`` (their weight), ``seconds``, ``solver``, ``loss``, ``passes``, ``seen`` (rows of all passes),
        ``warnings``, ``held_out_rows`` (outputs on rows left out), and either ``constant``, outputs (c,) where all rows
        have one target or the same features, or the model: ``arrays`` and ``metadata`` of ``KernelMachine._artifact``.
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
    stages = LeafStages(settings.held_out_rows)
    try:
        with ThreadsExecutor(1) as executor, keep_free_memory():
            fitted, solver = (_fit_given if settings.given else _fit_open)(
                (X, y, w), settings, executor, budget, stages
            )
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
        "warnings": stages.messages, "seconds": time.perf_counter() - began,
    }  # fmt: skip


def _fit_given(
    rows: tuple[Array, Array, Array | None], settings: LeafSettings, executor: Executor, budget: int, stages: LeafStages
) -> tuple[Fitted, Solver]:
    """A leaf of which nothing is open, and its solver."""
    recipe = settings.recipe
    assert settings.encoding is not None
    assert settings.projected is not None
    solver = settings.with_ridge(recipe.solver, len(rows[0]))
    assert isinstance(solver, Direct)
    fitted = fit_encoded(
        rows, recipe.kernel, solver.ridge, settings.encoding, executor, settings.projected, recipe.seed,
        settings.held_out_rows, stages.warn,
    )  # fmt: skip
    return fitted, solver


def _fit_open(
    rows: tuple[Array, Array, Array | None], settings: LeafSettings, executor: Executor, budget: int, stages: LeafStages
) -> tuple[Fitted, Solver]:
    """A leaf as a fit like any other, and its solver."""
    X, y, w = rows
    chosen, _ = resolve_solver(settings.on(from_arrays(X, y, sample_weight=w)), budget, 1, settings.ridge is not None)
    chosen = replace(chosen, solver=settings.with_ridge(chosen.solver, len(X)))
    try:
        # All leaves at a time were projected before: see ``PartitionMemory.then``.
        return fit(chosen, executor, budget, stages, known_projection=settings.projected, baseline=0), chosen.solver
    except NumericalError as error:
        if settings.recipe.solver != AUTO or isinstance(chosen.solver, Direct):
            raise
        name = chosen.solver.to_json()["name"]
        chosen = replace(chosen, solver=settings.with_ridge(Direct(), len(X)))
        fitted = fit(chosen, executor, budget, stages, baseline=0)
        stages.messages.append(f"{name} failed ({error.where}): Direct instead")
        return fitted, chosen.solver


def _constant_output(X: Array, y: Array, w: Array | None) -> Array | None:
    """The mean target of rows that have one target, or the same features, alone: a class code (1,), or values (c,)."""
    if (y == y[0]).all() or (X[0] == X).all():
        if y.ndim > 1:
            return np.asarray(np.average(y, axis=0, weights=w))
        return np.array([np.argmax(np.bincount(y, weights=w))])
    return None


def _finished(
    recipe: Recipe,
    data: Dataset,
    facts: Statistics,
    grown: GrownTree,
    found: list[dict[str, Any]],
    footprint: Footprint,
    executor: Executor,
    stages: Stages,
    done: list[str],
    began: float,
    choice: KernelChoice | None,
    columns: Features,
    leaf_settings: LeafSettings,
) -> FittedPartition:
    """The model of fitted leaves, and its details for reports."""
    encoding, dtype = facts.encoding, np.dtype(recipe.dtype)
    assert encoding is not None
    c = encoding.outputs
    constants = np.full((len(found), c), np.nan)
    models: list[KernelMachine | None] = []
    for leaf, each in enumerate(found):
        models.append(None)
        if each["constant"] is None:
            models[leaf] = from_artifact(each["arrays"], each["metadata"], f"leaf {leaf}")
        elif isinstance(encoding, Classes):
            constants[leaf] = np.arange(c) == each["constant"]
        else:
            constants[leaf] = each["constant"]
    rows = np.array([each["rows"] for each in found], dtype=np.float64)
    loss, seconds = float(rows @ [each["loss"] for each in found] / rows.sum()), time.perf_counter() - began
    outcome = Outcome(
        np.empty((0, c), dtype=dtype), max(each["passes"] for each in found), sum(each["seen"] for each in found),
        seconds, 0.0, [{"pass": 1, "loss": loss, "rows": int(rows.sum()), "seconds": seconds}],
    )  # fmt: skip
    for message, count in _count_warnings(found):
        stages.warn(f"{message} (in {count} of {len(found)} leaves)")
    nothing = CenterSet(np.empty((0, data.n_features), dtype=dtype), None)
    largest = next((model for model in models if model is not None), None)
    kernel = recipe.kernel or Laplace("median") if largest is None else largest.kernel
    validation = recipe.validation
    if validation is not None:
        validation = weighted_like(validation._prepared_like(data)._final(), data)
    problem = Problem(
        data, encoding, kernel, nothing, executor, dtype, recipe.seed, recipe.lanes, validation=validation
    )  # fmt: skip
    sizes, blend, tried = [each["rows"] for each in found], 1.0, dict[str, float]()

    def functions(models: list[KernelMachine | None], width: float | None = None) -> LeafBasis:
        # Without fingerprints, for which every center is hashed.
        return LeafBasis(grown.tree, Leaves(models, constants, ()), blend if width is None else width, dtype)

    if validation is not None and recipe.partition is not None and recipe.partition.overlap:
        held, one = Assembly(validation, encoding, 0.0, dtype), functions(models)
        tried = {
            str(width): float(score(executor, held, replace(one, blend=width), outcome.weights)["mse"])
            for width in BLENDS
        }
        blend = min(BLENDS, key=lambda width: tried[str(width)])
        stages.choice(f"leaves blend over {blend:g} of the overlap: least error on the validation rows", blend=blend)
    calibration, models = _fit_calibration(found, models, problem, functions, stages, recipe.threshold)
    leaves = leaves_in_memory(models, constants, sizes)
    summary = {
        "leaves": len(found),
        "depth": grown.tree.depth,
        "constant": int((~np.isnan(constants).any(axis=1)).sum()),
        "rows_trained": int(rows.sum()),
        "blend": blend,
        **({"blends": tried} if tried else {}),
        "by_leaf": [{name: each[name] for name in ("rows", "seconds", "solver", "passes")} for each in found],
    }
    report = {"partition": summary, **({"preprocess": done} if done else {})}
    metric = None if choice is None else choice.metric
    base = KernelMachine.of(Fitted(problem, outcome, report, footprint, None, metric, columns, choice, calibration))
    given = {each.name: getattr(base, each.name) for each in fields(KernelMachine)}
    described_cuts: dict[str, Any] = {name: summary[name] for name in ("leaves", "depth", "blend")}
    assert recipe.partition is not None
    described_cuts["request"] = settings_digest(recipe, recipe.partition)
    if leaf_settings.ridge is not None:
        described_cuts["ridge"] = list(leaf_settings.ridge)
    metadata = base.metadata | {"partition": described_cuts}
    if any(model is not None and "metric" in model.metadata for model in models):
        metadata |= {"metric": _importances(models, rows, columns, data.n_features)}
    model = PartitionedMachine(**given | {"metadata": metadata}, tree=grown.tree, leaves=leaves, blend=blend)
    return FittedPartition(problem, outcome, report, footprint, None, metric, columns, choice, calibration, model)


def _fit_calibration(
    found: list[dict[str, Any]],
    models: list[KernelMachine | None],
    problem: Problem,
    functions: Callable[[list[KernelMachine | None]], LeafBasis],
    stages: Stages,
    threshold: str | None,
) -> tuple[Calibration | None, list[KernelMachine | None]]:
    """The calibration from outputs of all leaves to probabilities or intervals, and the models that go with it."""
    if not stages.held_out_rows:
        return None, models
    out_of_sample, mass = [each["left_out"] for each in found], np.array([each["mass"] for each in found])
    if isinstance(problem.encoding, Classes | Indicators):
        return fit_joint_probabilities(out_of_sample, mass, problem, functions(models), stages.warn, threshold), models
    constant = [rows if model is None else None for rows, model in zip(out_of_sample, models, strict=True)]
    return fit_joint_intervals(models, constant, mass, problem, functions)


def _count_warnings(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Warnings of leaves, and how many leaves have each, or one like it but for its numbers."""
    alike: dict[str, list[str]] = {}
    for each in found:
        for words, message in {_NUMBERS.sub("", message): message for message in each["warnings"]}.items():
            alike.setdefault(words, []).append(message)
    return [(messages[0], len(messages)) for _, messages in sorted(alike.items())]


def _importances(models: list[KernelMachine | None], rows: Array, features: Features, d: int) -> dict[str, Any]:
    """The importances of features in all leaves, weighted by their rows; as ``Metric.summary`` has them."""
    total, mass = np.zeros(d), 0.0
    for model, n in zip(models, rows, strict=True):
        if model is not None and "metric" in model.metadata:
            total += n * np.array(model.metadata["metric"]["importances"])
            mass += n
    share = total / mass if mass else np.full(d, 1.0 / d)
    return {
        "kind": "by leaf", "round": 0, "history": [], "importances": share.tolist(),
        "columns": None if features.names is None else list(features.names),
        "stored": None if features.stored_names is None else list(features.stored_names),
        "by_column": features.by_column(share).tolist(),
    }  # fmt: skip
