"""What a model says besides its outputs, from rows that it was not fitted to: probabilities, or intervals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from streamkern.data.dataset import Dataset
from streamkern.data.targets import Classes
from streamkern.solvers.base import Problem, Solver
from streamkern.solvers.direct import Direct
from streamkern.solvers.intervals import FUNCTIONS, LEARNED, Intervals, made_intervals
from streamkern.solvers.left_out import ROWS, on_validation, rows_left_out
from streamkern.solvers.loop import Outcome
from streamkern.solvers.probabilities import ProbabilityCalibration, calibrated
from streamkern.solvers.saved import Answers

VALUES_HELD = 12
"""Numbers in float64 for each output of a row that is left out, while answers are made from them."""


class AnswersFrom(NamedTuple):
    """Outputs that answers are made from.

    Attributes:
        source: see ``source_of``.
        task: ``classification`` or ``regression``.
        rows: that are left out, at most.
    """

    source: str
    task: str
    rows: int = ROWS


def source_of(solver: Solver, train: Dataset, validation: Dataset | None) -> str | None:
    """Where outputs on rows that the model was not fitted to come from: ``validation``, ``leave-one-out``, or None.

    Validation rows where there are some. Else ``Direct`` has the outputs on training rows, each left out, in closed
    form; not on augmented rows, whose copies would stay.
    """
    if validation is not None:
        return "validation"
    whole = not train.augmentations and len(train) == train.base_rows
    return "leave-one-out" if isinstance(solver, Direct) and whole else None


def answers_bytes(task: str, rows: int, outputs: int, row: int) -> int:
    """Bytes that making answers takes, of so many rows and outputs, and bytes of a row."""
    count, parameters = rows_left_out(rows, outputs), 3 * outputs + 2
    if task == "classification":
        return 8 * (VALUES_HELD * count * outputs + 3 * count * parameters + 3 * parameters**2)
    functions, learned = min(FUNCTIONS, count), min(LEARNED, count)
    return count * (3 * row + 8 * VALUES_HELD * outputs) + 8 * functions * (6 * learned + 8 * functions)


def make_answers(problem: Problem, outcome: Outcome, warn: Callable[[str], None]) -> Answers | None:
    """What the model says besides its outputs; None where there are no rows to learn it from.

    Args:
        problem: as it was solved.
        outcome: the weights, and outputs on rows that were left out.
        warn: called with a message about classes that those rows lack.
    """
    encoding = problem.encoding
    left_out = outcome.left_out if problem.validation is None else on_validation(problem, outcome.weights)
    if left_out is None:
        return None
    if not isinstance(encoding, Classes):
        X, _, _ = problem.full_rows(left_out.ids, problem.validation)
        return made_intervals(left_out, X, problem.predictor(), problem.engine)
    made = calibrated(left_out, problem.engine)
    warned_of_missing(made, encoding, warn)
    return made


def warned_of_missing(made: ProbabilityCalibration, encoding: Classes, warn: Callable[[str], None]) -> None:
    """Report classes that were not among the rows of a calibration."""
    missing = [str(encoding.values[code]) for code in made.facts["missing"]]
    if missing:
        shown = ", ".join(missing[:5]) + ", ..." * (len(missing) > 5)
        warn(
            f"{len(missing)} of {encoding.outputs} classes are not among the {made.facts['rows']:,} rows that "
            f"probabilities are fitted to ({shown}): they have the parameters that all classes share"
        )


def planned_answers(task: str, source: str | None, train: Dataset, validation: Dataset | None, outputs: int) -> str:
    """What a plan says of probabilities, or intervals, in a sentence."""
    what = "probabilities" if task == "classification" else "intervals"
    if source is None:
        return f"no {what}: they take validation rows, or the solver Direct without augmentation"
    rows = rows_left_out((train if validation is None else validation).base_rows, outputs)
    where = "validation rows" if source == "validation" else "training rows, each left out of the fit in closed form"
    return f"{what}: fitted to the outputs on {rows:,} {where}"


def described_answers(answers: Answers | None) -> dict[str, Any]:
    """JSON-serialisable facts, for results."""
    if answers is None:
        return {}
    return {"intervals" if isinstance(answers, Intervals) else "probabilities": answers.facts}
