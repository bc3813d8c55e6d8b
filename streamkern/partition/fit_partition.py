"""The stages of a partition: rows of training, the tree, a whole fit in every leaf, and what joins them."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from streamkern.calibration.serialization import Calibration
from streamkern.centers import CenterSet, Given
from streamkern.costs.footprint import Footprint, load_libraries
from streamkern.costs.stage_work import StageWork
from streamkern.data.class_weights import weighted_like
from streamkern.data.row_order import Assembly
from streamkern.data.statistics import require_range
from streamkern.data.targets import Classes, Indicators, encoding_to_json
from streamkern.defaults import PROBED_ROUNDS, PROBED_TREES, TREES, VARIANCE_ROWS
from streamkern.engine.operation_counts import Operations
from streamkern.errors import StreamkernError, UnlikeChampionError, UsageError
from streamkern.execute.base import Executor
from streamkern.fitting.calibrate import require_two_classes
from streamkern.fitting.evaluation_checks import require_fit_rows
from streamkern.fitting.fitted import Fitted
from streamkern.fitting.precision_checks import subtract_offsets
from streamkern.fitting.preparation import STATISTICS, TrainingRows, preparation, rows_key
from streamkern.fitting.recipe import Recipe
from streamkern.fitting.stage import Runner, Stage, step, works
from streamkern.fitting.stages import (
    CHECKS,
    EVALUATE,
    KERNEL,
    evaluation_memory,
    evaluation_work,
    note_rows,
    search_work,
    stages_of_model,
)
from streamkern.kernels import Kernel, Laplace, is_open, kernel_from_json
from streamkern.memory import release_free_memory
from streamkern.models.cut_tree import CutTree
from streamkern.models.kernel_machine import KernelMachine, from_artifact
from streamkern.models.partitioned_machine import LeafBasis, Leaves, PartitionedMachine, leaves_in_memory
from streamkern.partition.champion_cuts import champion_encoding, champion_of, settings_digest
from streamkern.partition.grow_tree import GrownTree, TreeBuilder, counting_sweeps, direction_work
from streamkern.partition.joint_calibration import (
    fit_joint_intervals,
    fit_joint_probabilities,
    held_out_rows_of_leaf,
    joint_calibration_bytes,
)
from streamkern.partition.leaf_rows import BLOCK_BYTES, RowsOfLeaves
from streamkern.partition.leaf_tasks import LeafSettings, LeafTraining
from streamkern.partition.partition_shape import PartitionShape
from streamkern.partition.probed_weights import Probe
from streamkern.preprocessing.feature_origins import Features, features_of
from streamkern.selection.kernel_search import KernelChoice, Search
from streamkern.solvers.base import Problem, traits_of
from streamkern.solvers.loop import Outcome
from streamkern.types import Array, IntArray
from streamkern.user_code_digest import described

T = TypeVar("T")
_NUMBERS = re.compile(r"\d[\d.,e+-]*")


@dataclass(eq=False)
class PartitionFit(TrainingRows):
    """A fit in leaves: what its stages take, and what they have found so far.

    Attributes:
        shape: of all rows and of the largest leaf, as far as they are known.
        settings: what all leaves share.
        allow: hears of the projected memory.
        listed: its stages.
        folder: where rows are scattered; None for a temporary directory.
        choice: the kernel of all leaves, which see rows through its metric; None if it is given.
        weights: of the features in distances, in each tree; None for ones.
    """

    shape: PartitionShape
    settings: LeafSettings
    allow: Callable[[Footprint], None]
    listed: tuple[Stage, ...]
    folder: Path | None = None
    device: None = None
    choice: KernelChoice | None = None
    weights: list[Array | None] = field(default_factory=lambda: [None] * TREES)
    notes: list[str] = field(default_factory=list)
    columns: Features = field(init=False)
    projected: Footprint = field(init=False)
    began: float = 0.0
    held: ExitStack = field(default_factory=ExitStack)
    rows_of_leaves: RowsOfLeaves = field(init=False)
    grown: GrownTree = field(init=False)
    leaves: list[dict[str, Any]] = field(default_factory=list)
    models: list[KernelMachine | None] = field(default_factory=list)
    constants: Array = field(init=False)
    problem: Problem = field(init=False)
    outcome: Outcome = field(init=False)
    calibration: Calibration | None = None

    @property
    def search(self) -> Search | None:
        """The trials for one kernel of all leaves, or None."""
        return self.shape.shared_search

    def functions(self, models: list[KernelMachine | None]) -> LeafBasis:
        """The functions of all leaves, without fingerprints, for which every center is hashed."""
        return LeafBasis(self.grown.tree, Leaves(models, self.constants, ()), 1.0, self.dtype)

    @cached_property
    def fitted(self) -> Fitted:
        """The result, once the stages have run, with its model."""
        sizes = [each["rows"] for each in self.leaves]
        cuts: dict[str, Any] = {"leaves": len(sizes), "depth": self.grown.tree.depth}
        constant = int((~np.isnan(self.constants).any(axis=1)).sum())
        summary = cuts | {"constant": constant, "rows_trained": sum(sizes), "by_leaf": self.leaves}
        report = {"partition": summary, **({"preprocess": self.notes} if self.notes else {})}
        metric = None if self.choice is None else self.choice.metric
        found = Fitted(
            self.problem, self.outcome, report, self.projected, None, metric, self.columns, self.choice,
            self.calibration,
        )  # fmt: skip
        model = PartitionedMachine.of(found)
        cuts["request"] = settings_digest(self.recipe, self.recipe.partition)
        if self.settings.ridge is not None:
            cuts["ridge"] = list(self.settings.ridge)
        if any(each is not None for each in self.weights):
            cuts["weights"] = [None if each is None else each.tolist() for each in self.weights]
        metadata = model.metadata | {"partition": cuts}
        if any(model is not None and "metric" in model.metadata for model in self.models):
            metadata |= {"metric": _importances(self.models, sizes, self.columns, self.data.n_features)}
        leaves = leaves_in_memory(self.models, self.constants, sizes)
        return found._replace(model=replace(model, metadata=metadata, tree=self.grown.tree, leaves=leaves))

    def project(self, shape: PartitionShape) -> None:
        """Refuse what would not fit, and tell what the stages of leaves take."""
        self.shape, self.projected = shape, shape.footprint(self.listed)
        self.executor.allowed = self.projected.allowance()
        self.allow(self.projected)


def model_of(fitted: Fitted, **metadata: Any) -> KernelMachine:
    """The model that a fit left; ``metadata`` joins the facts about the training."""
    model: KernelMachine | None = fitted.model
    return KernelMachine.of(fitted, **metadata) if model is None else replace(model, metadata=model.metadata | metadata)


def require_partition(recipe: Recipe) -> None:
    """Raise UsageError, with the remedy, where a setting cannot be combined with a partition."""
    centers = recipe.centers
    for wrong, what, remedy in (
        (recipe.train.augmentations or len(recipe.train) != recipe.train.base_rows, "augmented or repeated rows",
         "leave the augmentation out"),
        (recipe.features is not None, "a feature map", "use kernel values at centers"),
        (isinstance(centers, Given), "given centers", "draw centers, such as sk.Uniform(1000): each leaf has its own"),
        (centers is not None and centers.stored, "all rows as centers", "draw centers, such as sk.Uniform(1000)"),
        (traits_of(recipe.solver).keeps_sums, "a solver that keeps its sums",
         "leave keep_sums out"),
        (not traits_of(recipe.solver).least_squares, "a loss other than squares, whose outputs cannot be blended",
         "use least squares, such as sk.Direct()"),
        (getattr(recipe.solver, "patience", None) is not None, "a solver with a patience",
         "leave patience out: a leaf has no validation rows"),
        (recipe.diagnose, "diagnose=True", "leave diagnose out"),
        (recipe.metric is not None and not is_open(recipe.kernel) and recipe.train.roles is not None,
         "a metric, with rows whose time or group a leaf does not know", "leave the metric out"),
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
        f"partition= cannot be combined with {what}.",
        where="partition=Partition(...)",
        expected="a kernel at centers that each leaf draws from its rows",
        remedy=f"{remedy}; or leave the partition out",
    )


def fit_leaves(
    recipe: Recipe,
    executor: Executor,
    budget: int,
    runner: Runner,
    on_plan: Callable[[Footprint], None],
    folder: Path | None,
    after: tuple[Stage, ...],
) -> Fitted:
    """A model in every leaf of a recipe with a partition: the stages of leaves, and those that come ``after``.

    Arguments and errors as of ``fit_one_or_leaves``.
    """
    require_fit_rows(recipe)
    settings, listed = LeafSettings.of(recipe), (*stages_of_leaves(recipe), *after)
    # What fits now is not refused later, for what the stages in between have left behind.
    shape = PartitionShape.before_rows(
        recipe, on=settings.on, budget=budget, slots=executor.slots, here=executor.in_process, baseline=load_libraries()
    )
    made = PartitionFit(recipe, executor, runner, shape, settings, on_plan, listed, folder)
    made.project(shape)
    with made.held:
        runner.carry_out(listed, made)
    return made.fitted


def stages_of_leaves(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages of a fit in leaves, in order."""
    champion = champion_of(recipe.partition)
    if champion is None:
        return (*preparation(recipe), KERNEL_OF_LEAVES, *LEAF_STAGES)
    like = step(lambda fit: setattr(fit, "data", champion.dataset(recipe.train)))  # with its preprocessing
    known = step(lambda fit: setattr(fit, "facts", champion_encoding(fit.known, champion)))
    return (like, STATISTICS, known, *LEAF_STAGES)


# ------------------------------------------------------------------------------------------------- rows of training


KERNEL_OF_LEAVES = replace(
    KERNEL,
    take=lambda fit, chosen: fit.runner.choice(chosen.reason(), kernel=chosen.described),
    when=lambda fit: (fit.shared_search if isinstance(fit, PartitionShape) else fit.search) is not None,
    memory=lambda shape: (
        shape.sweeping + shape.shared_search.cost_estimate(shape.largest[0].size, shape.dataset.base_rows).memory
    ),
    work=lambda shape: search_work(
        shape, shape.shared_search, replace(shape.leaf.size, n=len(shape.dataset), held_out_rows=0)
    ),
    why=lambda shape: (f"{shape.shared_search.text()}; for all leaves",),
)


def _look_at_rows(fit: PartitionFit) -> None:
    note_rows(fit)
    champion, choice = champion_of(fit.recipe.partition), fit.choice
    if fit.recipe.train.roles is not None:  # a leaf, which would hold rows out at random, does not know them
        fit.settings = replace(fit.settings, recipe=replace(fit.settings.recipe, metric=None))
    if fit.recipe.threshold is not None:
        require_two_classes(fit.encoding)
    if champion is not None and (ridge := champion.metadata["partition"].get("ridge")):
        fit.settings = fit.settings.chosen(champion.kernel, *ridge)  # its metric is among its transforms
        known = champion.metadata["partition"].get("weights", fit.weights)
        fit.weights = [None if each is None else np.array(each) for each in known]
    if choice is not None:
        fit.settings = fit.settings.chosen(choice.kernel, choice.ridge, choice.rows)
        fit.data = choice.metric.applied(fit.data)
        if choice.metric.kind != "full":
            fit.settings = replace(fit.settings, blocks=tuple(map(tuple, features_of(fit.data).categories)))
        if choice.metric.kind == "full":  # a turn makes other features
            fit.facts = None


def _center_rows(fit: PartitionFit) -> None:
    invariant = fit.recipe.kernel is None or fit.recipe.kernel.translation_invariant
    if champion_of(fit.recipe.partition) is None:  # the champion's origin stays
        fit.data = subtract_offsets(fit.data, fit.known, invariant, fit.dtype)
    require_range(fit.data, fit.known, fit.dtype, centred=invariant)


# ---------------------------------------------------------------------------------------------------------- the tree


def _open_rows(fit: PartitionFit) -> None:
    release_free_memory()
    assembly = Assembly(fit.data.plain(), fit.encoding, 0.0, fit.dtype)
    fit.rows_of_leaves = RowsOfLeaves(assembly, fit.executor, fit.runner, fit.folder)
    fit.held.push(fit.rows_of_leaves.close)


def _grow(fit: PartitionFit) -> GrownTree:
    champion = champion_of(fit.recipe.partition)
    return _after_release(_grow_tree(fit) if champion is None else _champion_tree(champion.tree, fit))


def _grow_tree(fit: PartitionFit) -> GrownTree:
    recipe, leaf_rows, runner, weights = fit.recipe, fit.rows_of_leaves, fit.runner, fit.weights[0]
    assembly, data = leaf_rows.assembly, leaf_rows.assembly.dataset

    def keep(name: str, tree: CutTree, compute: Callable[[], GrownTree]) -> GrownTree:
        def key() -> tuple[Any, ...]:
            return (
                rows_key(data), described(recipe.partition), tree.fingerprint, encoding_to_json(assembly.encoding),
                recipe.seed, recipe.dtype, None if weights is None else weights.tolist(), platform.machine(),
            )  # fmt: skip

        return runner.keep(name, key, lambda: _after_release(compute()))

    def count(tree: CutTree) -> IntArray:
        return leaf_rows.scatter(tree).counts

    counting = count if leaf_rows.stored else None
    grown = TreeBuilder(recipe.partition, assembly, fit.executor, recipe.seed, counting, weights).grow(keep)
    if leaf_rows.stored:  # known already, unless the last cuts are not those of the sample
        grown = replace(grown, counts=count(grown.tree))
    least, most, trees = int(grown.counts.min()), int(grown.counts.max()), grown.tree.trees
    doubled = max(0.0, int(grown.counts.sum()) / trees / data.base_rows - 1)  # some rows may have no weight
    in_trees = f" in {trees} trees, whose outputs are averaged" if trees > 1 else ""
    runner.choice(
        f"partition: {grown.tree.leaves:,} leaves of {least:,} to {most:,} rows{in_trees}; "
        f"{doubled:.1%} of the rows lie at a border and are trained on both sides",
        leaves=grown.tree.leaves,
    )
    return grown


def _after_release(found: T) -> T:
    """A stage's value after freed memory is returned to the system, which leaves need."""
    release_free_memory()
    return found


def _champion_tree(tree: CutTree, fit: PartitionFit) -> GrownTree:
    """The champion's tree, with these rows in its leaves; a leaf without rows raises UnlikeChampionError."""
    counts = fit.rows_of_leaves.fingerprints(tree).counts
    if not counts.all():
        raise UnlikeChampionError(
            f"{np.count_nonzero(counts == 0):,} of the champion's {tree.leaves:,} leaves have no rows.",
            where="the training rows",
            expected="rows in every leaf",
            remedy="train from the start: --cold",
        )
    fit.runner.choice(f"partition: the champion's {tree.leaves:,} leaves, of {counts.min():,} to {counts.max():,} rows")
    return GrownTree(tree, counts, np.ones(tree.leaves, dtype=bool))


def _take_tree(fit: PartitionFit, grown: GrownTree) -> None:
    largest = int(grown.counts.max())
    fit.project(replace(fit.shape, dataset=fit.data, leaves=len(grown.counts), leaf_rows=largest))
    fit.began = time.perf_counter()
    # A leaf would leave rows out one by one, which their times and groups do not allow.
    wanted = fit.runner.held_out_rows > 0 and fit.recipe.train.roles is None
    fit.settings = fit.settings.with_calibration(fit.recipe, grown.tree.leaves, fit.encoding, wanted)


def _levels_memory(shape: PartitionShape) -> int:
    sample = 3 * shape.sample_rows * shape.row
    copies = 2  # times the rows of a block are held that is routed to leaves
    centred = 3 * 8 * VARIANCE_ROWS * shape.dataset.n_features
    # Or of the fingerprints of rows by leaf.
    return max(shape.sweeping + sample + shape.slots * max(copies * BLOCK_BYTES, centred), shape.runs)


def _levels_work(shape: PartitionShape) -> StageWork:
    rows, stored = shape.dataset.base_rows, not shape.dataset.source.in_memory
    sweeps = 1 + counting_sweeps(rows, shape.sample_rows, shape.leaves // shape.trees, stored)
    found = (shape.leaves - 1) * direction_work(shape.leaf.size, shape.leaf_rows)
    return StageWork(
        sweeps * shape.stored_rows, sweeps, sweeps * shape.stored_bytes, found, scanned=sweeps * shape.stored_rows
    )


# ------------------------------------------------------------------------------------------------ weights of features


def _probes(fit: PartitionFit | PartitionShape) -> bool:
    """Are weights of features learned in some leaves, before the rows are cut?"""
    return fit.probed > 0 if isinstance(fit, PartitionShape) else fit.choice is not None and fit.shape.probed > 0


def _learn_weights(fit: PartitionFit) -> Array:
    assembly, seed = fit.rows_of_leaves.assembly, fit.recipe.seed
    one_tree = replace(fit.recipe.partition, trees=1)
    # The cuts that a sample finds will do: no row is counted.
    builder = TreeBuilder(one_tree, assembly, fit.executor, seed, lambda tree: np.zeros(tree.leaves, dtype=np.int64))

    def grow(weights: Array | None) -> CutTree:
        builder.weights = weights
        return builder.grow(lambda name, tree, compute: compute()).tree

    settings, shape = replace(fit.settings, encoding=fit.encoding), fit.shape
    probe = Probe(settings, assembly, grow, fit.executor, shape.probed_at_once, shape.budget)
    return _after_release(probe.weights())


def _weights_key(fit: PartitionFit) -> tuple[Any, ...]:
    assembly = fit.rows_of_leaves.assembly
    cut = described(fit.recipe.partition)
    return rows_key(assembly.dataset), cut, encoding_to_json(assembly.encoding), *fit.settings.identity


def _take_weights(fit: PartitionFit, weights: Array) -> None:
    if len(weights):
        fit.weights[0] = weights
        fit.runner.choice(f"metric: weights of the features are learned in leaves, {fit.shape.probed} of a tree")


def _probe_work(shape: PartitionShape) -> StageWork:
    sweeps = 2 * PROBED_TREES  # of each tree a sample is read, and then the rows of its leaves
    fits = _work_of_leaves(shape, PROBED_TREES * (PROBED_ROUNDS + 1) * shape.probed)
    return replace(fits, rows=sweeps * shape.stored_rows, passes=sweeps, read=sweeps * shape.stored_bytes)


# -------------------------------------------------------------------------------------------------------- the leaves


def _train_leaves(fit: PartitionFit) -> list[dict[str, Any]]:
    training = LeafTraining(
        fit.settings, fit.shape.budget, fit.rows_of_leaves, fit.grown, fit.executor, fit.runner, fit.shape.at_once,
        fit.weights, fit.choice is not None and fit.grown.tree.trees > 1,
    )  # fmt: skip
    return training.leaves()


def _work_of_leaves(shape: PartitionShape, leaves: int) -> StageWork:
    one, n = shape.leaf, leaves * shape.leaf_rows
    return StageWork(
        n, 1, n * one.size.d * 4, parts=tuple(works(stages_of_model(one.recipe), one).values()), times=leaves
    )


def _join(fit: PartitionFit) -> None:
    """The models of fitted leaves, and the problem and outcome of them all."""
    encoding, found, c = fit.encoding, fit.leaves, fit.encoding.outputs
    fit.constants = np.full((len(found), c), np.nan)
    for leaf, each in enumerate(found):
        fit.models.append(None)
        if each["constant"] is None:
            fit.models[leaf] = from_artifact(each["arrays"], each["metadata"], f"leaf {leaf}")
        elif isinstance(encoding, Classes):
            fit.constants[leaf] = np.arange(c) == each["constant"]
        else:
            fit.constants[leaf] = each["constant"]
    rows = np.array([each["rows"] for each in found], dtype=np.float64)
    loss, seconds = float(rows @ [each["loss"] for each in found] / rows.sum()), time.perf_counter() - fit.began
    fit.outcome = Outcome(
        np.empty((0, c), dtype=fit.dtype), max(each["passes"] for each in found), sum(each["seen"] for each in found),
        seconds, 0.0, [{"pass": 1, "loss": loss, "rows": int(rows.sum()), "seconds": seconds}],
    )  # fmt: skip
    for message, count in _count_warnings(found):
        fit.runner.warn(f"{message} (in {count} of {len(found)} leaves)")
    recipe, nothing = fit.recipe, CenterSet(np.empty((0, fit.data.n_features), dtype=fit.dtype), None)
    largest = next((model for model in fit.models if model is not None), None)
    kernel = recipe.kernel or Laplace("median") if largest is None else largest.kernel
    validation = recipe.validation
    if validation is not None:
        validation = weighted_like(validation._prepared_like(fit.data)._final(), fit.data)
    fit.problem = Problem(
        fit.data, encoding, kernel, nothing, fit.executor, fit.dtype, recipe.seed, recipe.lanes, validation=validation
    )


def _calibrate(fit: PartitionFit) -> None:
    found, models = fit.leaves, fit.models
    out_of_sample, mass = [each["left_out"] for each in found], np.array([each["mass"] for each in found])
    if isinstance(fit.encoding, Classes | Indicators):
        fit.calibration = fit_joint_probabilities(
            out_of_sample, mass, fit.problem, fit.functions(models), fit.runner.warn, fit.recipe.threshold
        )
        return
    constant = [rows if model is None else None for rows, model in zip(out_of_sample, models, strict=True)]
    fit.calibration, fit.models = fit_joint_intervals(models, constant, mass, fit.problem, fit.functions)


def _forget_outputs(fit: PartitionFit) -> None:
    """Of the leaves, what reports show: the outputs that answers were made from, and their arrays, are let go."""
    fit.leaves = [{name: each[name] for name in ("rows", "seconds", "solver", "passes")} for each in fit.leaves]
    release_free_memory()


def _calibration_work(shape: PartitionShape) -> StageWork:
    one = shape.largest[0]
    rows = shape.leaves * held_out_rows_of_leaf(one.recipe.task, shape.leaves, shape.outputs)
    return StageWork(rows, 1, 0, Operations(numbers=20.0 * rows * (3 * shape.outputs + 2) ** 2))


LEAF_STAGES: tuple[Stage, ...] = (
    step(_look_at_rows),
    STATISTICS,
    step(_center_rows),
    *CHECKS,
    step(_open_rows),
    Stage(
        "weights", _learn_weights, take=_take_weights, key=_weights_key, when=_probes,
        memory=lambda shape: max(
            _levels_memory(shape), shape.probing + (shape.probed_at_once * shape.each if shape.here else 0)
        ),
        work=_probe_work,
        why=lambda shape: (f"weights of the features are learned in {shape.probed} leaves first",),
    ),
    Stage(
        "levels", _grow, "grown", _take_tree, parts=True, memory=_levels_memory, work=_levels_work,
        why=lambda shape: (
            f"partition: about {shape.leaves:,} leaves of up to {shape.leaf_rows:,} rows, "
            f"{min(shape.at_once, shape.slots)} at a time",
        ),
    ),
    Stage(
        "scatter", lambda fit: None, when=lambda fit: isinstance(fit, PartitionShape),  # as rows are counted, or read
        memory=lambda shape: shape.in_order or shape.runs,
        work=lambda shape: StageWork(shape.stored_rows, 1, shape.stored_bytes, scanned=shape.stored_rows),
    ),
    Stage(
        "leaves", _train_leaves, "leaves", lambda fit, found: fit.held.close(), parts=True,
        work=lambda shape: _work_of_leaves(shape, shape.leaves),
        why=lambda shape: (
            f"solver of a leaf: {shape.leaf.solver.to_json()['name']}, "
            f"{shape.leaf.cost_estimate.work_estimate.passes} pass(es) at most",
        ),
        memory=lambda shape: shape.models + shape.in_order + (shape.at_once * shape.each if shape.here else 0),
    ),
    step(_join),
    Stage(
        "calibrate", _calibrate, work=_calibration_work,
        when=lambda fit: isinstance(fit, PartitionShape) or fit.runner.held_out_rows > 0,
        memory=lambda shape: shape.models + joint_calibration_bytes(
            shape.recipe.task, shape.leaves, shape.outputs, shape.row
        ),
    ),
    step(_forget_outputs),
)  # fmt: skip

EVALUATE_LEAVES = replace(
    EVALUATE,
    memory=lambda shape: evaluation_memory(shape) + 3 * shape.models,
    work=lambda shape: evaluation_work(replace(shape, p=shape.leaf.p)),
)


# -------------------------------------------------------------------------------- warnings and importances of leaves


def _count_warnings(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    """Warnings of leaves, and how many leaves have each, or one like it but for its numbers."""
    alike: dict[str, list[str]] = {}
    for each in found:
        for words, message in {_NUMBERS.sub("", message): message for message in each["warnings"]}.items():
            alike.setdefault(words, []).append(message)
    return [(messages[0], len(messages)) for _, messages in sorted(alike.items())]


def _importances(models: list[KernelMachine | None], rows: list[int], features: Features, d: int) -> dict[str, Any]:
    total, mass = np.zeros(d), 0.0
    for model, n in zip(models, rows, strict=True):
        if model is not None and "metric" in model.metadata:
            total += n * np.array(model.metadata["metric"]["importances"])
            mass += n
    share = total / mass if mass else np.full(d, 1.0 / d)
    return {"kind": "by leaf", "round": 0, "history": [], **features.summary(share)}
