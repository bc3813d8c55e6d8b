"""Add rows to a model, or remove them, by reading these rows alone.

The model keeps the sums of its normal equations (``Direct(keep_sums=True)``, see ``solvers.direct``).
Preprocessing, kernel, centers, metric, classes and ridge of the fit do not change; the weights and the mean of the
targets become those of a fit on the present rows.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streamkern.calibration.intervals import Intervals
from streamkern.calibration.out_of_sample import row_digests
from streamkern.calibration.serialization import Calibration
from streamkern.centers import CenterSet
from streamkern.costs.fit_shape import CalibrationSource, FitShape
from streamkern.costs.footprint import Footprint, footprint, load_libraries
from streamkern.data import drop_zero_weight_rows
from streamkern.data.class_weights import weighted_by
from streamkern.data.dataset import Dataset, unchanging
from streamkern.data.encoders import warn_unseen
from streamkern.data.row_order import SCAN_ROWS, Assembly, Block, Scan
from streamkern.data.targets import Continuous, Encoding
from streamkern.defaults import MAX_HELD_OUT_ROWS, UPDATE_LANES
from streamkern.errors import UnlikeChampionError, UsageError, warn
from streamkern.execute import open_resources
from streamkern.execute.base import Executor, Parts, Stack
from streamkern.fitting.calibrate import fit_calibration, with_decision_rule
from streamkern.fitting.evaluation_checks import unseen_categories
from streamkern.fitting.stages import SOLVING
from streamkern.models.kernel_machine import KernelMachine
from streamkern.models.partitioned_machine import PartitionedMachine
from streamkern.resources import Resources, given_resources
from streamkern.solvers.base import Problem
from streamkern.solvers.direct import Direct, DirectIteration, Solved, StoredSums, Sums, normal_equations
from streamkern.solvers.loop import Outcome
from streamkern.sources.array_source import WeightedSource
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array, IntArray

_KEPT_SOURCE = "kept from an earlier fit"


def update_model(
    model: KernelMachine,
    add: Any = None,
    forget: Any = None,
    *,
    validation: Any = None,
    drop_centers: bool = False,
    memory: str | int | None = None,
    threads: int | None = None,
    resources: Resources | None = None,
) -> KernelMachine:
    """Return a model to which rows are added, or from which the effect of rows is removed.

    The call reads only these rows, and solves the normal equations once. Up to rounding, the weights equal those of a
    new fit to the old and added rows, without the removed rows. This fit has the same preprocessing, kernel, centers
    and ridge. The result is bitwise the same for any number of threads or workers.

    Probabilities and intervals are refitted to ``validation``. Without it, they are refitted to the added rows, if
    there are at least as many of these as earlier training rows. Otherwise they do not change.

    Args:
        model: a model fitted by the solver ``Direct(keep_sums=True)``, which stores the sums of the normal equations
            in the model.
        add: new rows: a ``Dataset`` with a target; or (X, y), or (X, y, sample_weight), with X as for
            ``KernelMachine.predict``.
        forget: rows to remove, with their targets and weights, in the same forms. The call cannot verify that the model
            had these rows.
        validation: rows to fit probabilities or intervals to, in the same forms.
        drop_centers: remove centers that equal a forgotten row. By default they stay, with a warning: the model then
            still contains the features of this row.
        memory: memory limit of the process in bytes, or a size such as ``"8GiB"``; by default, half of the machine's
            memory.
        threads: threads of this process; by default, its number of cores.
        resources: a ``Resources``, to compute on a Dask cluster or in worker processes.

    Returns:
        A new model, which can be updated again; ``model`` is unchanged.

    Raises:
        UsageError: the model has no stored sums, no rows are given, or rows cannot be removed from the model.
        PlanRefusedError: the update would exceed ``memory``; raised before a row is read.
        DataError: rows have other columns or a new label, or there are more rows to forget than the model has.
        NumericalError: the equations cannot be solved.
    """
    if not isinstance(model, KernelMachine):
        raise UsageError(
            f"{type(model).__name__} is not a trained model.",
            where="update_model",
            expected="a KernelMachine that was fitted by Direct(keep_sums=True)",
            remedy="give estimator.model_, or call its partial_fit; a saved model is loaded by sk.load_model(path)",
        )
    resources = given_resources(resources, memory, threads)
    given = {name: rows_for(model, rows) for name, rows in (("add", add), ("forget", forget), ("v", validation))}
    with open_resources(resources) as executor, unchanging(*given.values()):
        return updated(model, given["add"], given["forget"], given["v"], drop_centers, executor, resources.budget)


def rows_for(model: KernelMachine, rows: Any) -> Dataset | None:
    """Return rows with targets, given in any form, as a dataset with the model's preprocessing."""
    if rows is None:
        return None
    if isinstance(rows, Dataset | str | os.PathLike):
        data = model.dataset(rows)
    else:
        if not isinstance(rows, tuple | list) or not 1 <= len(rows) <= 3:
            raise UsageError(
                f"{type(rows).__name__} cannot be read as rows with a target.",
                where="update_model",
                expected="a Dataset, a path, (X, y), or (X, y, sample_weight)",
            )
        X, y, w = (*rows, None, None)[:3]
        data = model.dataset(X, y)
        if w is not None:
            data = drop_zero_weight_rows(replace(data, source=WeightedSource(data.source, w)))
    data._require_rows()
    if data.target is None:
        raise UsageError(
            "The rows have no target.",
            where="update_model",
            expected="rows with the target of the fit: a Dataset, or (X, y), or (X, y, sample_weight)",
            remedy='name the target: sk.open_dataset(path, target="NAME")',
        )
    if data.augmentations or data.virtual_rows is not None:
        raise UsageError(
            "The rows are augmented, or repeated.",
            where="update_model",
            expected="rows as they are stored, each once",
            remedy="leave .augment(...) out: data.plain()",
        )
    return data


def _require_sums(model: KernelMachine, forgets: bool) -> Sums | StoredSums:
    """Return the sums; UsageError if there are none, or rows are to be removed whose features depended on others."""
    if isinstance(model, PartitionedMachine) or model.sums is None:
        leaves = isinstance(model, PartitionedMachine)
        raise UsageError(
            "The model is partitioned into leaves, which keep no sums." if leaves else "The model keeps no sums.",
            where="update_model",
            expected="a model fitted by sk.Direct(keep_sums=True), without partition=",
            remedy="fit once more on all rows with solver=sk.Direct(keep_sums=True); or begin with partial_fit",
        )
    if forgets and model.sums.bound:
        raise UsageError(
            f"Rows cannot be subtracted from this model: {model.sums.bound}.",
            where="forget",
            expected="rows whose features depend on the row alone",
            remedy="fit again without these rows; or fit without target encoding and augmentation",
        )
    return model.sums


def _require_digits(before: Array, sums: Sums, encoding: Encoding) -> None:
    """Refuse sums that have lost half of their digits, because far larger ones were subtracted: UnlikeChampionError.

    ``before`` are ``Sums.sizes`` before it; ``sums`` are those of the rows that stay, about their targets' mean.
    """
    after = sums.sizes
    if type(encoding) is Continuous:  # each output has its own size; targets may be as good as constant
        after[1:] = np.maximum(after[1:], np.abs(sums.ones).max() * np.abs(encoding.mean / encoding.unit))
    else:
        before, after = (np.array([each[0], each[1:].max()]) for each in (before, after))
    eps = float(np.finfo(np.float64).eps)
    lost = eps * before > np.sqrt(eps) * after
    if lost.any():
        what = "weights" if lost[0] else "targets"
        raise UnlikeChampionError(
            f"The forgotten rows had {what} so large that the sums of the other rows have lost half of their digits.",
            where="forget",
            expected="rows whose sums are less than 70 million times those of the rows that stay",
            remedy="fit again without these rows",
        )


def updated(
    model: KernelMachine,
    added: Dataset | None,
    forgotten: Dataset | None,
    validation: Dataset | None,
    drop_centers: bool,
    executor: Executor,
    budget: int,
) -> KernelMachine:
    """Update as ``update_model`` does, with prepared rows and within the current memory limit."""
    rows = [data for data in (added, forgotten) if data is not None]
    if not rows:
        raise UsageError("There are no rows.", where="update_model", expected="rows to add, or rows to forget")
    stored = _require_sums(model, forgotten is not None)
    many = added is not None and forgotten is None and added.base_rows >= stored.rows and added.roles is None
    wanted = "validation" if validation is not None else "leave-one-out" if many else ""
    projected = _projected(model, stored, rows, wanted, executor, budget)
    executor.allowed = projected.allowance()
    sums = stored.load() if isinstance(stored, StoredSums) else stored
    added, forgotten, validation = (
        None if data is None else weighted_by(data, model.encoding, sums.factors)
        for data in (added, forgotten, validation)
    )
    rows = [data for data in (added, forgotten) if data is not None]
    problem, before = _problem(model, sums, rows[0], executor, projected), model.calibration
    sizes = sums.sizes if forgotten is not None else None
    for data, sign in ((added, 1), (forgotten, -1)):
        if data is not None:
            # Without weights, rows have weight 1.
            contribution = normal_equations(problem.basis(), problem, sums.change, True)
            parts = sweep(executor, ScanWork(Scan(problem.assembly(data), SCAN_ROWS), contribution))
            sums = sums.plus(parts, sign, 1.0 if data.weighted else sums.unit)
            del parts
    if forgotten is not None:
        centers = _forgotten_centers(problem, forgotten, added)
        problem, sums, before = _without_centers(problem, sums, before, centers, drop_centers)
    sums, encoding = sums.centred(problem.encoding)
    if sizes is not None:
        _require_digits(sizes, sums, encoding)
    if wanted == "leave-one-out" and rows[0].weighted != (sums.unit != 1):
        wanted = ""  # their weights are not in the unit of the sums' weights
    held_out_rows = MAX_HELD_OUT_ROWS if wanted == "leave-one-out" else 0
    problem = replace(problem, encoding=encoding, validation=validation, held_out_rows=held_out_rows)
    solved, report = _solved(problem, sums)
    calibration, source, said = _fit_calibration(problem, solved, before) if wanted else (before, "", [])
    encoding = with_decision_rule(encoding, calibration)
    for message in (*report.get("warnings", ()), *said):
        warn(message)
    if added is not None:
        warn_unseen(unseen_categories(added, executor), added.base_rows)
    updates = _update_counts(model, added, forgotten)
    if calibration is not None:
        updates["answers"] = source or _KEPT_SOURCE
    assert solved.sums is not None
    return replace(
        model, Z=problem.centers.Z, weights=solved.weights, encoding=encoding, calibration=calibration,
        sums=solved.sums, metadata=model.metadata | {"rows": sums.rows, "updates": updates},
    )  # fmt: skip


def _update_counts(model: KernelMachine, added: Dataset | None, forgotten: Dataset | None) -> dict[str, Any]:
    before = model.metadata.get("updates", {})
    counts = {"added": 0 if added is None else added.base_rows, "forgotten": forgotten.base_rows if forgotten else 0}
    return {name: before.get(name, 0) + n for name, n in (counts | {"times": 1}).items()}


def _projected(
    model: KernelMachine, stored: Sums | StoredSums, rows: list[Dataset], wanted: str, executor: Executor, budget: int
) -> Footprint:
    largest = max(rows, key=lambda data: data.base_rows)
    held = load_libraries() + (stored.nbytes if isinstance(stored, StoredSums) else 0)
    shape = FitShape(
        largest, len(model.weights), model.encoding.outputs, Direct(keep_sums=True), budget=budget, baseline=held,
        slots=executor.slots, lanes=UPDATE_LANES, itemsize=model.Z.dtype.itemsize, features=model.features,
        overlaps=executor.overlaps, calibration=CalibrationSource(wanted, model.encoding.kind) if wanted else None,
    )  # fmt: skip
    return footprint(shape, SOLVING)


def _problem(model: KernelMachine, sums: Sums, rows: Dataset, executor: Executor, projected: Footprint) -> Problem:
    assert isinstance(model.Z, np.ndarray)  # Direct keeps its centers in memory
    return Problem(
        rows, model.encoding, model.kernel, CenterSet(model.Z, None), executor, dtype=model.Z.dtype, lanes=UPDATE_LANES,
        memory=projected.solver_bytes, cache_bytes=projected.cache_bytes, features=model.features,
        mean_weight=sums.unit,
    )  # fmt: skip


def _solved(problem: Problem, sums: Sums) -> tuple[Solved, dict[str, Any]]:
    solver = Direct(sums.ridge, keep_sums=True)
    iteration = DirectIteration(solver, problem.stream(problem.lanes), problem.basis(), problem, sums)
    return iteration.begin(iteration.init(), 0, problem.sweep), iteration.report


def _fit_calibration(
    problem: Problem, solved: Solved, before: Calibration | None
) -> tuple[Calibration | None, str, list[str]]:
    """Probabilities or intervals, their origin, and warnings; the earlier ones if a class has no rows."""
    outcome = Outcome(solved.weights, 1, len(problem.train), 0.0, 0.0, [], None, solved.out_of_sample)
    said: list[str] = []
    threshold = None if before is None else before.facts.get("threshold", {}).get("metric")
    made = fit_calibration(problem, outcome, said.append, threshold)
    if problem.validation is not None:
        return made, "validation rows", said
    now, then = (() if each is None else each.facts.get("missing", ()) for each in (made, before))
    if now and len(now) >= len(then):
        return before, "", []
    return made, "added rows", said


# ------------------------------------------------------------------------------------ centers that are forgotten rows


def _centers_among(problem: Problem, rows: Dataset) -> set[int]:
    Z = problem.centers.Z
    if problem.features is not None or not len(Z):
        return set()
    known = list(row_digests(np.asarray(Z)))
    scan = Scan(Assembly(rows, dtype=problem.dtype), SCAN_ROWS)
    (found,) = sweep(problem.executor, ScanWork(scan, partial(_equal_rows, frozenset(known))))
    found = frozenset(found)
    return {i for i, each in enumerate(known) if each in found}


def _forgotten_centers(problem: Problem, forgotten: Dataset, added: Dataset | None) -> IntArray:
    """Centers equal to a forgotten row and to no added one, ascending."""
    gone = _centers_among(problem, forgotten)
    gone -= _centers_among(problem, added) if added is not None and gone else set()
    return np.array(sorted(gone), dtype=np.int64)


def _without_centers(
    problem: Problem, sums: Sums, calibration: Calibration | None, centers: IntArray, drop: bool
) -> tuple[Problem, Sums, Calibration | None]:
    """Drop the centers that are forgotten rows, if requested; else warn about them."""
    Z = problem.centers.Z
    if len(centers) and not drop:
        warn(
            f"{len(centers)} of {len(Z)} centers are forgotten rows: weights do not depend on their targets, but "
            "their features stay in the model; drop_centers=True removes them"
        )
    if not len(centers) or not drop:
        return problem, sums, calibration
    if sums.change is not None or len(centers) == len(Z):
        raise UnlikeChampionError(
            "No center would be left."
            if len(centers) == len(Z)
            else "The centers cannot be removed from these sums: the equations were solved in another basis.",
            where="drop_centers=True",
            expected="a model that keeps some of its centers, and was solved without a change of basis",
            remedy="fit again without these rows",
        )
    rest = np.delete(np.asarray(Z), centers, axis=0)
    if isinstance(calibration, Intervals):  # interval scales use the basis functions
        calibration = replace(calibration, weights=sums.nearest(calibration.weights, centers, problem.engine))
    return replace(problem, centers=CenterSet(rest, None)), sums.without(centers, problem.engine), calibration


def _equal_rows(wanted: frozenset[bytes], block: Block, state: Any) -> Parts:
    return (Stack(each for each in row_digests(block.X) if each in wanted),)
