"""``solver="auto"``: the choice of a solver by the size of the problem, with the reason.

The choice depends on operations, passes and memory at the fixed prices below, never on measurements of this machine,
its threads or the memory in use, so that a pipeline has the same solver, and weights, everywhere. Among solvers that
fit the memory, the one with the least work is chosen: one pass of normal equations gives the solution that the others
converge to, and an iterative method takes the given passes. If the kernel of a table is not given, a search also finds
a ridge, and a solver that takes it, ``Direct`` or else ``Falkon``, may take ``MAX_RIDGE_WORK_RATIO`` times as much.
Features that the user did not ask for are never chosen: they change the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from streamkern.candidates import Candidate, first_affordable
from streamkern.centers import Uniform
from streamkern.costs.dry_run import CostEstimate, ProblemSize, nominal_work, sums_in_flight
from streamkern.costs.fit_shape import solver_memory
from streamkern.defaults import (
    ASSUMED_OUTPUTS,
    ASSUMED_THREADS,
    MAX_CENTERS_BY_ROWS,
    MAX_DEFAULT_PASSES,
    MAX_EPOCHS,
    MAX_L1_FEATURES,
    MAX_PASSES_WORK,
    MAX_RIDGE_WORK_RATIO,
    PASSES_WORK_PER_SETUP,
    PATIENCE,
)
from streamkern.errors import UsageError
from streamkern.fitting.memory_projection import all_rows_are_centers, basis_width, planned_rows
from streamkern.fitting.recipe import AUTO
from streamkern.memory import format_bytes
from streamkern.selection.kernel_search import default_centers, max_rows_as_centers, needs_kernel_search
from streamkern.solvers.base import Solver, traits_of
from streamkern.solvers.batch_size import passes_of
from streamkern.solvers.direct import Direct
from streamkern.solvers.eigenpro import EigenPro
from streamkern.solvers.eigenpro1 import EigenPro1
from streamkern.solvers.eigenpro2 import EigenPro2
from streamkern.solvers.falkon import Falkon


class SolverChoice(NamedTuple):
    """A solver, and why it was chosen, in a sentence."""

    solver: Solver
    reason: str


def default_passes(n: int, work: float = MAX_PASSES_WORK, setup: float = 0.0) -> int:
    """Passes that an iterative method is given, of ``work`` at nominal prices each, after that of ``setup``."""
    most = max(MAX_PASSES_WORK, PASSES_WORK_PER_SETUP * setup)
    return int(max(passes_of(n), min(most // work, MAX_DEFAULT_PASSES)))


def choose_solver(
    size: ProblemSize,
    *,
    passes: int | None = None,
    features: bool = False,
    patience: int | None = None,
    ridge: bool = False,
    threads: int = ASSUMED_THREADS,
) -> SolverChoice:
    """The solver for a problem; ``features`` says that the model is linear in features.

    ``passes`` and ``patience`` are for an iterative method; with ``ridge``, held-out rows will choose one. Sums of
    normal equations are reckoned for ``threads``: more than there are, unless their number is known.
    """
    size = replace(size, slots=ASSUMED_THREADS, overlaps=True)
    made = EigenPro1 if features else EigenPro
    passes = passes or default_passes(size.n, *_pass_work(made, size))
    return first_affordable(_solvers(size, made(epochs=passes, patience=patience), ridge, threads))


def _solvers(
    size: ProblemSize, iterative: EigenPro | EigenPro1, ridge: bool, threads: int
) -> Iterator[Candidate[SolverChoice]]:
    """Solvers, the one of the least error first: normal equations, ``Falkon`` with a ridge, an iterative method."""
    name, passes = type(iterative).__name__, iterative.epochs
    direct, limit = Direct(), inf if size.memory is None else size.memory
    takes = CostEstimate(direct, size).memory
    # Where every row is a center there are no sums, and one matrix.
    held = takes.training if size.all_rows_are_centers else sums_in_flight(threads, size.scanned) * takes.sums
    if held > limit:
        why = (
            f"{name}: the normal equations of {size.p:,} functions would hold {format_bytes(held)} on {threads} "
            f"thread(s), and {format_bytes(limit)} are there for matrices"
        )
    else:
        try:
            once, more = (nominal_work(solver, size) for solver in (direct, iterative))
        except UsageError as error:  # as a run of the iterative method would be refused
            yield Candidate(SolverChoice(direct, f"Direct: {name} cannot be used. {error.what}"))
            return
        why = (
            f"Direct: one pass of normal equations is {once / more:.2g} of the work of {passes} pass(es) of {name} and "
            "gives the solution that they converge to"
            if once <= more
            else f"Direct: normal equations take the ridge that held-out rows choose, for {once / more:.2g} times the "
            f"work of {passes} pass(es) of {name}, which have no ridge"
        )
        allowed = more * (MAX_RIDGE_WORK_RATIO if ridge else 1.0)
        yield Candidate(SolverChoice(direct, why), held, once, limit, allowed)
        why = f"{name}: {passes} pass(es) are {more / once:.2g} of the work of one pass of normal equations"
    if ridge and isinstance(iterative, EigenPro):
        takes = CostEstimate(Falkon(), size).memory
        held = max(takes.setup, takes.training)
        few, many = (nominal_work(Falkon(epochs=epochs), size) for epochs in (MAX_DEFAULT_PASSES, MAX_EPOCHS))
        allowed = max(MAX_PASSES_WORK, MAX_RIDGE_WORK_RATIO * nominal_work(iterative, size))
        a_pass = (many - few) / (MAX_EPOCHS - MAX_DEFAULT_PASSES)
        most = int(np.clip(MAX_DEFAULT_PASSES + (allowed - few) // a_pass, MAX_DEFAULT_PASSES, MAX_EPOCHS))
        falkon = SolverChoice(
            Falkon(epochs=most, patience=iterative.patience),
            f"Falkon: it takes the ridge that held-out rows choose, and at most {most} pass(es); {name} has no ridge",
        )
        yield Candidate(falkon, held, few, limit, allowed)
    yield Candidate(SolverChoice(iterative, why))


def _pass_work(made: type[EigenPro | EigenPro1], size: ProblemSize) -> tuple[float, float]:
    """Work of one pass, and of the set-up; the most there is, where the method is refused."""
    try:
        one, two = (nominal_work(made(epochs=epochs), size) for epochs in (1, 2))
    except UsageError:
        return MAX_PASSES_WORK, 0.0
    return two - one, 2 * one - two


def resolve_solver(recipe: Any, budget: int, threads: int = ASSUMED_THREADS, ridge: bool = False) -> tuple[Any, str]:
    """A recipe whose centers and solver are there, and why the solver was chosen; "" where it had one.

    Centers of the recipe, a frozen dataclass, may be None, and its solver ``"auto"``; ``ridge`` says that held-out rows
    have chosen one already.
    """
    if recipe.centers is None and recipe.features is None:
        recipe.train._require_rows()
        recipe = first_affordable(_with_centers(recipe, budget))
    if recipe.solver != AUTO:
        return recipe, ""
    recipe.train._require_rows()
    data, itemsize = planned_rows(recipe), np.dtype(recipe.dtype).itemsize
    p, d, target = basis_width(recipe), data.n_features, data.target
    outputs = ASSUMED_OUTPUTS
    if recipe.task == "regression" and target is not None:
        outputs = max(1, int(np.prod(target.outputs)))
    memory = solver_memory(budget, data, p, itemsize)
    patience = None if recipe.validation is None else PATIENCE
    if all_rows_are_centers(recipe, recipe.train, anywhere=True) and (
        recipe.centers.stored or EigenPro().chosen_projection(p, memory) != "exact"
    ):
        why = "EigenPro2: every training row is a center, so no step is projected"
        return replace(recipe, solver=EigenPro2(epochs=default_passes(len(data)), patience=patience)), why
    choice = choose_solver(
        ProblemSize(
            len(data), p, d, outputs, itemsize, recipe.lanes, ASSUMED_THREADS, memory, features=recipe.features,
            all_rows_are_centers=all_rows_are_centers(recipe, data), weighted=data.weighted,
        ),
        features=recipe.features is not None,
        patience=patience,
        ridge=d <= MAX_L1_FEATURES and (ridge or needs_kernel_search(recipe)),
        threads=threads,
    )  # fmt: skip
    return replace(recipe, solver=choice.solver), choice.reason


def _with_centers(given: Any, budget: int) -> Iterator[Candidate[Any]]:
    """A recipe with all rows as centers, where their matrix has a factor; then with fewer."""
    rows, d, solver = given.train.base_rows, given.train.n_features, given.solver
    every = replace(given, centers=Uniform(rows, given.seed))
    direct = solver == AUTO or (traits_of(solver).one_pass and not traits_of(solver).keeps_sums)
    if direct and all_rows_are_centers(every, given.train):
        yield Candidate(every, memory=rows, memory_limit=max_rows_as_centers(rows, d, budget))
    found = default_centers(rows, d, budget, given.seed)
    if not traits_of(solver).least_squares:  # their factors take most of the time
        found = replace(found, p=min(found.p, MAX_CENTERS_BY_ROWS))
    yield Candidate(replace(given, centers=found))
