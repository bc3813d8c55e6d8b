"""Probabilities and intervals, learned from rows that the model was not fitted to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streamkern.calibration.intervals import Intervals, fit_intervals
from streamkern.calibration.out_of_sample import OutOfSample, held_out_count
from streamkern.calibration.probabilities import (
    LabelCalibration,
    ProbabilityCalibration,
    fit_label_probabilities,
    fit_probabilities,
)
from streamkern.calibration.serialization import Calibration
from streamkern.calibration.thresholds import best_threshold
from streamkern.centers import Uniform
from streamkern.data.class_weights import class_factors, row_factors
from streamkern.data.dataset import Dataset, EmptySideError
from streamkern.data.row_order import Block, Scan
from streamkern.data.targets import Classes, Continuous, Encoding, Indicators, as_values
from streamkern.defaults import (
    CALIBRATION_SHARE,
    GROUP_CALIBRATION_SHARE,
    MAX_CALIBRATION_ROWS,
    MAX_HELD_OUT_ROWS,
    MIN_HELD_OUT_ROWS,
    MIN_NEGATIVE_SHARE,
    MIN_ROLES_ROWS,
    MIN_ROWS_TO_CALIBRATE,
    NEGATIVE_MEANS,
    TIME_CALIBRATION_SHARE,
)
from streamkern.errors import UsageError
from streamkern.execute.base import Parts, Stack
from streamkern.fitting.arguments import with_all_labels
from streamkern.kernels import Basis
from streamkern.rng import HashFamily
from streamkern.solvers.base import Problem, Solver, traits_of
from streamkern.solvers.loop import Outcome
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array


def out_of_sample_source(solver: Solver, train: Dataset, validation: Dataset | None) -> str | None:
    """Source of outputs on rows that the model was not fitted to: ``validation`` rows, one of ``LEFT_OUT``, or None.

    Of rates and quantiles there is none: their loss says how targets are spread. Without validation rows ``Direct``
    has the outputs on training rows, each left out, in closed form; not on augmented rows, whose copies would stay.
    Rows leave with their group, where all rows are few; the past of a row cannot be had without its future.
    """
    if not traits_of(solver).calibrated:
        return None
    if validation is not None:
        return "validation"
    if not traits_of(solver).one_pass or train.augmentations or len(train) != train.base_rows:
        return None
    if train.roles is None:
        return "leave-one-out"
    return "leave-group-out" if train.roles.time is None and train.base_rows <= MAX_HELD_OUT_ROWS else None


def with_held_out(recipe: Any) -> tuple[Any, str]:
    """Return the recipe with rows held out for probabilities or intervals, and their description, "" without such rows.

    Where its solver needs some, and rows are many: by a hash of the row, so that no row is read. Of rows that have a
    time or a group, the latest, or those of some groups.
    """
    data, roles = recipe.train, recipe.train.roles
    n, least = data.base_rows, MIN_ROWS_TO_CALIBRATE if roles is None else MIN_ROLES_ROWS
    if recipe.validation is not None or n < least or data.augmentations or len(data) != n:
        return recipe, ""
    drawn = recipe.centers.p if isinstance(recipe.centers, Uniform) else 0
    # The rows of a leaf leave one by one, whatever their groups are.
    closed = recipe.partition is None and out_of_sample_source(recipe.solver, data, None) is not None
    if (drawn > 0.9 * n and roles is None) or closed:
        return recipe, ""
    share = min(CALIBRATION_SHARE, MAX_CALIBRATION_ROWS / n)
    if roles is not None:
        share = TIME_CALIBRATION_SHARE if roles.group is None else GROUP_CALIBRATION_SHARE
    what = "probabilities" if recipe.task == "classification" else "intervals"
    try:
        train, held = with_all_labels(data, recipe.task).split(share, recipe.seed)
    except EmptySideError:
        return recipe, f"no rows are held out for {what}: they have one time or one group"
    if roles is not None and train.base_rows < n // 2:
        return recipe, f"no rows are held out for {what}: {train.base_rows:,} of {n:,} would be left to fit"
    which = [] if roles is None else ["the latest"] * bool(roles.time) + ["of some groups"] * bool(roles.group)
    said = f", {' '.join(which)}" if which else ""
    why = f"{len(held):,} of {n:,} rows are held out for {what}{said} (a solver that is given takes all rows)"
    centers = replace(recipe.centers, p=min(drawn, train.base_rows)) if drawn else recipe.centers
    return replace(recipe, train=train, validation=held.plain(), centers=centers), why


def require_threshold_rows(source: str | None) -> None:
    """Check that there are rows to choose a threshold on."""
    if source is None:
        raise UsageError(
            "A threshold cannot be chosen without held-out rows.",
            where="threshold",
            expected="validation rows, or the solver Direct without augmentation",
            remedy="give validation=0.1 (Pipeline(validation=...)), or solver=sk.Direct()",
        )


def require_two_classes(encoding: Encoding | None) -> None:
    """Refuse a threshold where there are neither two classes nor several labels a row."""
    if not isinstance(encoding, Indicators) and (not isinstance(encoding, Classes) or encoding.outputs != 2):
        found = f"{encoding.outputs} classes" if isinstance(encoding, Classes) else "no classes"
        raise UsageError(
            f"threshold= needs two classes; this target has {found}.",
            where="threshold",
            expected="two classes, or several labels a row",
            remedy='leave threshold out; class_weight="balanced" finds more rows of rare classes',
        )


def fit_calibration(
    problem: Problem,
    outcome: Outcome,
    warn: Callable[[str], None],
    threshold: str | None = None,
    of_all_rows: Encoding | None = None,
) -> Calibration | None:
    """Probabilities or intervals of a solved problem; None if there are no rows to learn them from.

    The targets of a leaf come from the encoding ``of_all_rows``.
    """
    encoding = problem.encoding
    out_of_sample = outcome.out_of_sample if problem.validation is None else on_validation(problem, outcome.weights)
    if out_of_sample is None:
        if problem.held_out_rows:
            warn(
                "No probabilities or intervals: groups are left out as a whole, and every group is too large, or there "
                "is only one. Remedy: validation rows, such as validation=0.2"
                + (" (the threshold keeps its default)" if threshold else "")
            )
        return None
    for found in (no_better_than_mean(out_of_sample, encoding), below_zero(out_of_sample, encoding, of_all_rows)):
        if found:
            warn(found)
    if not isinstance(encoding, Classes | Indicators):
        X, _, _ = problem.full_rows(out_of_sample.ids, problem.validation)
        return fit_intervals(out_of_sample, X, problem.predictor(), problem.engine)
    return fit_class_calibration(out_of_sample, problem, warn, threshold)


def _outputs(basis: Basis, block: Block, weights: Array) -> Parts:
    if not len(block.ids):
        return (Stack(),)
    return (Stack(((basis.predict(block.X, weights).astype(np.float64), block.y, block.ids, block.w),)),)


def on_validation(problem: Problem, weights: Array, basis: Basis | None = None) -> OutOfSample:
    """Outputs under weights (p, c) on a sample of the validation rows, by default of the problem's basis: one sweep."""
    held: Dataset | None = problem.validation
    assert held is not None
    held = held.plain()
    held = held.sample(held_out_count(held.base_rows, problem.encoding.outputs))
    work = ScanWork(Scan(problem.assembly(held), 1024), partial(_outputs, basis or problem.predictor()))
    (pieces,) = sweep(problem.executor, work, weights)
    F, y, ids = (np.concatenate([piece[k] for piece in pieces]) for k in (0, 1, 2))
    w = None if pieces[0][3] is None else np.concatenate([piece[3] for piece in pieces])
    grouped = held.roles is not None and held.roles.group is not None
    groups = held.roles.of_rows(ids).hashes(HashFamily.FOLDS).view(np.int64) if held.roles and grouped else None
    return OutOfSample(F, y, w, "validation", ids, groups)


def no_better_than_mean(out_of_sample: OutOfSample, encoding: Encoding) -> str:
    """Say if a model is no better than the mean on rows that it was not fitted to; "" too where few rows can tell."""
    if len(out_of_sample.y) < MIN_HELD_OUT_ROWS or (out_of_sample.w is not None and not out_of_sample.w.any()):
        return ""
    F, than = out_of_sample.outputs, "the mean of the targets"
    if isinstance(encoding, Classes):
        F, than = encoding.comparable(F), "the shares of the classes"
    y = as_values(out_of_sample.y, F.shape[1])
    mean = np.average(y, axis=0, weights=out_of_sample.w)
    error, base = (float(np.average(np.square(E).mean(axis=1), weights=out_of_sample.w)) for E in (F - y, mean - y))
    if not 0 < base <= error:
        return ""
    return (
        f"The model is no better on held-out rows than {than}: squared error {error:.4g}, and {base:.4g} without any "
        "feature. Remedies: check the target and the scale of the features, or a larger ridge or bandwidth, or more "
        "rows."
    )


def below_zero(out_of_sample: OutOfSample, *encodings: Encoding | None) -> str:
    """Say if rows are predicted far below 0, some targets are 0 and none is below; "" where a small error explains it.

    The encodings are those from the outputs to stored values, one after another.
    """
    y, F, rounding = out_of_sample.y, out_of_sample.outputs, 0.0
    for encoding in filter(None, encodings):
        if type(encoding) is not Continuous or len(y) < MIN_HELD_OUT_ROWS:
            return ""
        y, F = (each * encoding.unit + encoding.mean for each in (y, F))
        rounding += 4 * float(np.finfo(np.float64).eps * np.abs(encoding.mean).max())
    far, zeros = -NEGATIVE_MEANS * y.mean(axis=0), np.abs(y) <= rounding
    negative, none = (float(np.mean(each.any(axis=1))) for each in (far > F, zeros))
    if y.min() < -rounding or min(negative, none) < MIN_NEGATIVE_SHARE:
        return ""
    return (
        f"{negative:.1%} of the rows are predicted below 0, by more than a tenth of the mean, and no target is. Remedy "
        'for counts and rates: loss="poisson", whose predictions are above 0.'
    )


def fit_class_calibration(
    out_of_sample: OutOfSample, problem: Problem, warn: Callable[[str], None], threshold: str | None = None
) -> ProbabilityCalibration | LabelCalibration:
    """Probabilities of classes, and a threshold between two; or of several labels a row, and one for each.

    They are those of the rows as they are, whatever classes weighed in the fit.
    """
    encoding, factors = problem.encoding, class_factors(problem.train)
    if factors is not None and out_of_sample.w is not None:
        weights = row_factors(np.where(factors > 0, factors, 1.0), out_of_sample.y)
        out_of_sample = replace(out_of_sample, w=out_of_sample.w / weights)
    if isinstance(encoding, Indicators):
        several = fit_label_probabilities(out_of_sample, problem.engine)
        return several if threshold is None else _with_thresholds(several, out_of_sample, threshold, encoding, warn)
    assert isinstance(encoding, Classes)
    made = fit_probabilities(out_of_sample, problem.engine, encoding.logits)
    if factors is not None:  # weights of classes are for decisions: probabilities are those of the rows as they are
        made = replace(made, decides=False)
    if threshold is not None:
        made = _with_threshold(made, out_of_sample, threshold, warn)
    missing = [str(encoding.values[code]) for code in made.facts["missing"]]
    if missing:
        shown = ", ".join(missing[:5]) + ", ..." * (len(missing) > 5)
        warn(
            f"{len(missing)} of {encoding.outputs} classes are not among the {made.facts['rows']:,} rows that "
            f"probabilities are fitted to ({shown}): they get the parameters shared by all classes"
        )
    return made


def _with_threshold(
    made: ProbabilityCalibration, out_of_sample: OutOfSample, metric: str, warn: Callable[[str], None]
) -> ProbabilityCalibration:
    F = out_of_sample.outputs
    cut = best_threshold(metric, F[:, 1] - F[:, 0], out_of_sample.y == 1, out_of_sample.w)
    if cut is None:
        warn(f"the {len(F):,} rows to choose the threshold on are all of one class: the threshold keeps its default")
        return made
    half = np.array([[-cut.value / 2, cut.value / 2]]) + (0.0 if made.logits else 0.5)
    found = {
        "metric": metric,
        "value": cut.value,
        "probability": float(made.probabilities(half)[0, 1]),
        "score": cut.best,
        "score_without": cut.plain,
    }
    return replace(made, cut=cut.value, decides=False, facts=made.facts | {"threshold": found})


def _with_thresholds(
    made: LabelCalibration, out_of_sample: OutOfSample, metric: str, encoding: Indicators, warn: Callable[[str], None]
) -> LabelCalibration:
    found = [
        best_threshold(metric, f - 0.5, y > 0.5, out_of_sample.w)
        for f, y in zip(out_of_sample.outputs.T, out_of_sample.y.T, strict=True)
    ]
    missing = [name for name, cut in zip(encoding.names, found, strict=True) if cut is None]
    if missing:
        shown = ", ".join(missing[:5]) + ", ..." * (len(missing) > 5)
        warn(
            f"of the {len(out_of_sample.y):,} rows to choose thresholds on, all or none have the label(s) "
            f"{shown}: their thresholds keep the default"
        )
    values = np.array([0.5 if cut is None else 0.5 + cut.value for cut in found])
    facts = {
        "metric": metric,
        "labels": list(encoding.names),
        "value": values.tolist(),
        "probability": made.probabilities(values[None, :])[0].tolist(),
        "score": [None if cut is None else cut.best for cut in found],
        "score_without": [None if cut is None else cut.plain for cut in found],
    }
    return replace(made, cuts=values, facts=made.facts | {"threshold": facts})


def with_decision_rule(encoding: Encoding, calibration: Calibration | None) -> Encoding:
    """The encoding, which predicts classes by the probabilities of the answers or by a chosen threshold."""
    if isinstance(encoding, Classes):
        own = calibration if isinstance(calibration, ProbabilityCalibration) else None
        return replace(encoding, cut=own.cut if own else 0.0, probabilities=own if own and own.decides else None)
    if isinstance(encoding, Indicators):
        cuts = calibration.cuts if isinstance(calibration, LabelCalibration) else None
        return replace(encoding, cuts=() if cuts is None else tuple(cuts.tolist()))
    return encoding


def calibration_note(task: str, source: str | None, train: Dataset, validation: Dataset | None, outputs: int) -> str:
    """A plan's note on probabilities, or intervals, in a sentence."""
    what = "probabilities" if task == "classification" else "intervals"
    if source is None:
        return f"no {what}: they need validation rows, or the solver Direct without augmentation"
    rows = held_out_count((train if validation is None else validation).base_rows, outputs)
    left = "each group" if source == "leave-group-out" else "each"
    where = "validation rows" if source == "validation" else f"training rows, {left} left out of the fit in closed form"
    return f"{what}: fitted to the outputs on {rows:,} {where}"


def calibration_facts(calibration: Calibration | None) -> dict[str, Any]:
    """JSON-serialisable facts, for results."""
    if calibration is None:
        return {}
    return {"intervals" if isinstance(calibration, Intervals) else "probabilities": calibration.facts}
