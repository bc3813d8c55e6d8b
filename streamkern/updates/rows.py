"""Add rows to a model, or subtract them, by a sweep over these rows alone.

The model keeps the sums of its normal equations (``Direct(keep_sums=True)``, see ``solvers.sums``). What turns a row
into numbers stays what the fit made it: preprocessing, kernel, centers, metric, classes and ridge; weights, and the
mean of the targets, become those of a fit on the rows as they are now.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamkern.centers import CenterSet
from streamkern.data.class_weights import weighted_by
from streamkern.data.dataset import Dataset, unchanging
from streamkern.data.split import Listed
from streamkern.data.stream import Assembly, Block, Scan
from streamkern.errors import UsageError
from streamkern.execute import Scheduler, open_executor
from streamkern.execute.base import Executor, Parts, Stack
from streamkern.memory import default_budget, limited, parse_bytes
from streamkern.model import KernelMachine
from streamkern.partition.model import PartitionedMachine
from streamkern.solvers.answers import AnswersFrom, decided_by, make_answers
from streamkern.solvers.base import Problem
from streamkern.solvers.direct import Direct, DirectIteration, Solved
from streamkern.solvers.footprint import Footprint, footprint, loaded
from streamkern.solvers.intervals import Intervals
from streamkern.solvers.left_out import ROWS, row_digests
from streamkern.solvers.loop import Outcome
from streamkern.solvers.metered import SCAN_ROWS
from streamkern.solvers.saved import Answers
from streamkern.solvers.sums import StoredSums, Sums, normal_equations
from streamkern.solvers.warm import UnlikeChampionError
from streamkern.storage.weighted import WeightedSource
from streamkern.sweep import ScanWork, sweep
from streamkern.types import IntArray

LANES = 4  # of the projection: a sweep over all rows has none

_KEPT = "kept from an earlier fit"


def update_model(
    model: KernelMachine,
    add: Any = None,
    forget: Any = None,
    *,
    validation: Any = None,
    drop_centers: bool = False,
    memory: str | int | None = None,
    threads: int | None = None,
    scheduler: Scheduler = "threads",
) -> KernelMachine:
    """Return the model with rows added, or with rows subtracted as if it had never seen them.

    A sweep over these rows alone, and a solve. Weights are those of a fit on all rows that are then in the model, with
    its preprocessing, kernel, centers and ridge, to rounding; the bits do not depend on threads or workers.
    Probabilities and intervals are made anew from ``validation``, or from added rows where they are at least as many as
    the model had; else they stay.

    Args:
        model: one that was fitted by ``Direct(keep_sums=True)``, or loaded from where it was saved.
        add: new rows: a ``Dataset`` with a target; or (X, y), or (X, y, sample_weight), with X as in ``predict``.
        forget: rows that the model was fitted to, with their targets and weights, in the same forms. That they were
            among its rows cannot be verified.
        validation: rows to make probabilities or intervals from, in the same forms.
        drop_centers: whether centers that are equal to a forgotten row go as well: a center holds a row's features.
            Otherwise they stay, with a warning.
        memory: bytes the process may hold, or a size such as ``"8GiB"``; half of the machine's by default.
        threads: threads of this process; its cores by default.
        scheduler: where blocks run: as for ``run``.

    Returns:
        A new model, with the sums of its rows; the one that was given is as it was.

    Raises:
        UsageError: the model keeps no sums, no rows are given, or rows cannot be taken away from it.
        PlanRefusedError: it would not fit the memory; said before a row is read.
        DataError: rows that cannot be used: other columns, a label that is not among the model's classes, or more rows
            to be forgotten than there are.
        NumericalError: the equations cannot be solved.
    """
    budget = default_budget() if memory is None else parse_bytes(memory)
    given = {name: rows_for(model, rows) for name, rows in (("add", add), ("forget", forget), ("v", validation))}
    with limited(budget), open_executor(scheduler, threads) as executor, unchanging(*given.values()):
        return updated(model, given["add"], given["forget"], given["v"], drop_centers, executor, budget)


def rows_for(model: KernelMachine, rows: Any) -> Dataset | None:
    """Rows with targets in any form, prepared as the model prepares them."""
    if rows is None:
        return None
    if isinstance(rows, Dataset | str | os.PathLike):
        data = model.dataset(rows)
    else:
        X, y, w = (*rows, None, None)[:3]
        data = model.dataset(X, y)
        if w is not None:
            data = replace(data, source=WeightedSource(data.source, w))
            if not (taken := np.asarray(w) != 0).all():
                data = replace(data, rules=(Listed(np.flatnonzero(taken)),))
    data.require_rows()
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


def require_sums(model: KernelMachine, forget: bool) -> Sums | StoredSums:
    """The sums of a model.

    Raises:
        UsageError: it has none, or rows cannot be taken away.
    """
    if isinstance(model, PartitionedMachine) or model.sums is None:
        leaves = isinstance(model, PartitionedMachine)
        raise UsageError(
            "The model is one of leaves, which keep no sums." if leaves else "The model keeps no sums.",
            where="update_model",
            expected="a model fitted by sk.Direct(keep_sums=True), without partition=",
            remedy="fit once more on all rows with solver=sk.Direct(keep_sums=True); or begin with partial_fit",
        )
    if forget and isinstance(model.sums, Sums):
        require_forgetting(model.sums)
    return model.sums


def require_forgetting(sums: Sums) -> None:
    """Raise UsageError for taking rows away where a row's contribution is not known.

    Raises:
        UsageError: the features of rows depended on more than the row.
    """
    if sums.bound:
        raise UnlikeChampionError(
            f"Rows cannot be subtracted from this model: {sums.bound}.",
            where="forget",
            expected="rows that add the same whatever their number",
            remedy="fit again without these rows; or fit without target encoding and augmentation",
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
    """As ``update_model``, for rows that are prepared, in a budget that is in force."""
    rows = [data for data in (added, forgotten) if data is not None]
    if not rows:
        raise UsageError("There are no rows.", where="update_model", expected="rows to add, or rows to forget")
    stored = require_sums(model, forgotten is not None)
    many = added is not None and forgotten is None and added.base_rows >= stored.rows
    wanted = "validation" if validation is not None else "leave-one-out" if many else ""
    projected = _projected(model, stored, rows, wanted, executor, budget)
    executor.allowed = projected.allowance()
    sums = stored.load() if isinstance(stored, StoredSums) else stored
    if forgotten is not None:
        require_forgetting(sums)
    added, forgotten, validation = (
        None if data is None else weighted_by(data, model.encoding, sums.factors)
        for data in (added, forgotten, validation)
    )
    rows = [data for data in (added, forgotten) if data is not None]
    problem, before = _problem(model, sums, rows[0], executor, projected), model.answers
    for data, sign in ((added, 1), (forgotten, -1)):
        if data is not None:
            # Without weights a row counts as one of weight 1 would.
            parts = _swept(problem, data, sums)
            sums = sums.plus(parts, sign, 1.0 if data.weighted else sums.unit)
            del parts
    if forgotten is not None:
        gone = _centers_among(problem, forgotten)
        gone -= _centers_among(problem, added) if added is not None and gone else set()
        centers = np.array(sorted(gone), dtype=np.int64)
        problem, sums, before = _without_centers(problem, sums, before, centers, drop_centers)
    sums, encoding = sums.centred(problem.encoding)
    if wanted == "leave-one-out" and rows[0].weighted != (sums.unit != 1):
        wanted = ""  # their weights are in another unit than those of the sums
    left_out = ROWS if wanted == "leave-one-out" else 0
    problem = replace(problem, encoding=encoding, validation=validation, leave_out=left_out)
    solved, report = _solved(problem, sums)
    answers, source, said = _answers(problem, solved, before) if wanted else (before, "", [])
    encoding = decided_by(encoding, answers)
    for message in (*report.get("warnings", ()), *said):
        warnings.warn(message, UserWarning, stacklevel=3)
    counts = {"added": 0 if added is None else added.base_rows, "forgotten": forgotten.base_rows if forgotten else 0}
    facts = model.metadata.get("updates", {})
    facts = {name: facts.get(name, 0) + n for name, n in (counts | {"times": 1}).items()}
    metadata = model.metadata | {
        "rows": sums.rows,
        "updates": facts | ({} if answers is None else {"answers": source or _KEPT}),
    }
    assert solved.sums is not None
    return replace(
        model, Z=problem.centers.Z, weights=solved.weights, encoding=encoding, answers=answers, sums=solved.sums,
        metadata=metadata,
    )  # fmt: skip


def _projected(
    model: KernelMachine,
    stored: Sums | StoredSums,
    rows: list[Dataset],
    wanted: str,
    executor: Executor,
    budget: int,
) -> Footprint:
    """The memory of an update: of a fit on these rows, with the sums of all that were before."""
    largest = max(rows, key=lambda data: data.base_rows)
    held = loaded() + (stored.nbytes if isinstance(stored, StoredSums) else 0)
    return footprint(
        largest, len(model.weights), model.encoding.outputs, Direct(keep_sums=True), budget=budget, baseline=held,
        slots=executor.slots, lanes=LANES, itemsize=model.Z.dtype.itemsize, features=model.features,
        overlaps=executor.overlaps, answers=AnswersFrom(wanted, model.encoding.kind) if wanted else None,
    )  # fmt: skip


def _problem(model: KernelMachine, sums: Sums, rows: Dataset, executor: Executor, projected: Footprint) -> Problem:
    """The problem that the model solves, of these rows."""
    assert isinstance(model.Z, np.ndarray)  # Direct holds its centers
    return Problem(
        rows, model.encoding, model.kernel, CenterSet(model.Z, None), executor, dtype=model.Z.dtype, lanes=LANES,
        memory=projected.solver_bytes, cache_bytes=projected.cache_bytes, features=model.features,
        mean_weight=sums.unit,
    )  # fmt: skip


def _swept(problem: Problem, data: Dataset, sums: Sums) -> Parts:
    """Contributions of rows to the sums."""
    contribution = normal_equations(problem.basis(), problem, sums.change, True)
    return sweep(problem.executor, ScanWork(Scan(problem.assembly(data), SCAN_ROWS), contribution))


def _solved(problem: Problem, sums: Sums) -> tuple[Solved, dict[str, Any]]:
    """The solution of the sums, and the solver's report."""
    solver = Direct(sums.ridge, keep_sums=True)
    iteration = DirectIteration(solver, problem.stream(problem.lanes), problem.basis(), problem, sums)
    return iteration.begin(iteration.init(), 0, problem.sweep), iteration.report


def _answers(problem: Problem, solved: Solved, before: Answers | None) -> tuple[Answers | None, str, list[str]]:
    """Probabilities or intervals of the solution, where they are from, and warnings; those before if classes lack."""
    outcome, said = Outcome(solved.weights, 1, len(problem.train), 0.0, 0.0, [], None, solved.left_out), list[str]()
    threshold = None if before is None else before.facts.get("threshold", {}).get("metric")
    made = make_answers(problem, outcome, said.append, threshold)
    if problem.validation is not None:
        return made, "validation rows", said
    if _missing(made) and len(_missing(made)) >= len(_missing(before)):
        return before, "", []
    return made, "added rows", said


def _missing(answers: Answers | None) -> Any:
    """Classes of which no row was among those that probabilities were made from."""
    return answers.facts.get("missing", ()) if answers is not None else ()


# ------------------------------------------------------------------------------------ centers that are forgotten rows


def _centers_among(problem: Problem, rows: Dataset) -> set[int]:
    """Numbers of the centers that are equal to one of the rows."""
    Z = problem.centers.Z
    if problem.features is not None or not len(Z):
        return set()
    known = list(row_digests(np.asarray(Z)))
    scan = Scan(Assembly(rows, dtype=problem.dtype), SCAN_ROWS)
    (found,) = sweep(problem.executor, ScanWork(scan, _Equal(frozenset(known))))
    found = frozenset(found)
    return {i for i, each in enumerate(known) if each in found}


def _without_centers(
    problem: Problem, sums: Sums, answers: Answers | None, centers: IntArray, drop: bool
) -> tuple[Problem, Sums, Answers | None]:
    """The problem without centers that are forgotten rows, if they are to go; else a warning where there are some."""
    Z = problem.centers.Z
    if not len(centers):
        return problem, sums, answers
    if not drop:
        warnings.warn(
            f"{len(centers)} of {len(Z)} centers are forgotten rows: no weight knows their targets, and their features "
            "stay in the model; drop_centers=True removes them",
            UserWarning,
            stacklevel=4,
        )
        return problem, sums, answers
    if sums.change is not None or len(centers) == len(Z):
        raise UnlikeChampionError(
            "No center would be left."
            if len(centers) == len(Z)
            else "The centers cannot be removed from these sums: the equations were solved in another basis.",
            where="drop_centers=True",
            expected="a model that keeps some of its centers, and whose equations float64 can solve as they are",
            remedy="fit again without these rows",
        )
    rest = np.delete(np.asarray(Z), centers, axis=0)
    if isinstance(answers, Intervals):  # scales are made of functions of the basis
        answers = replace(answers, weights=sums.nearest(answers.weights, centers, problem.engine))
    return replace(problem, centers=CenterSet(rest, None)), sums.without(centers, problem.engine), answers


@dataclass(eq=False)
class _Equal:
    """Contributes the digests of rows that are among given ones."""

    wanted: frozenset[bytes]

    def __call__(self, block: Block, state: Any) -> Parts:
        return (Stack(each for each in row_digests(block.X) if each in self.wanted),)
