"""The stages of a run: those of its fit; then the model is saved, and measured on training and test rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streamkern.calibration.serialization import calibration_digests
from streamkern.costs.fit_shape import FitShape
from streamkern.costs.footprint import projection
from streamkern.costs.stage_work import StageWork
from streamkern.data.class_weights import without_class_weights
from streamkern.data.dataset import Dataset, require_unchanged, unchanging
from streamkern.data.device_assembly import stored_bytes
from streamkern.data.encoders import unseen_notes
from streamkern.data.row_order import Assembly, RawRows, Scan
from streamkern.data.statistics import RawScan
from streamkern.data.targets import Encoding, encoding_to_json
from streamkern.defaults import EXAMPLE_COPIES, EXAMPLE_ROWS, MAX_EXAMPLE_FEATURES, MAX_TRAIN_SCORE_ROWS
from streamkern.engine.device import Device
from streamkern.engine.operation_counts import Operations, eigh
from streamkern.execute.base import Executor, Parts, Stack
from streamkern.fitting.calibrate import calibration_facts
from streamkern.fitting.evaluation_checks import unseen_categories
from streamkern.fitting.fitted import Fitted
from streamkern.fitting.memory_projection import preprocessing_steps
from streamkern.fitting.recipe import AUTO, Recipe
from streamkern.fitting.stage import Stage, step
from streamkern.fitting.stages import SOLVING, centers_key, training_work
from streamkern.kernels import is_open
from streamkern.memory import peak_resident_bytes
from streamkern.models.kernel_machine import KernelMachine
from streamkern.partition.fit_partition import model_of
from streamkern.partition.one_or_leaves import evaluation_of, stages_of_fit
from streamkern.rng import Draw
from streamkern.runs.caching_runner import CachingRunner
from streamkern.runs.solution_spectrum import diagnose
from streamkern.solvers.base import Problem
from streamkern.solvers.direct import Direct
from streamkern.sweep import ScanWork, sweep
from streamkern.types import Array
from streamkern.user_code_digest import described


def stages(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages of a run, in order."""
    return (*stages_of_fit(recipe), *after_fit(recipe))


def after_fit(recipe: Recipe) -> tuple[Stage, ...]:
    """The stages of a run that follow the fit of a recipe."""
    measured = [
        replace(each, run=_evaluate, take=_take_evaluation, key=_evaluation_key, when=lambda fit: True)
        for each in evaluation_of(recipe)
    ]
    # Data that changed in training are refused before their model takes the place of an earlier one.
    unchanged = step(lambda fit: require_unchanged(fit.recipe.train, fit.recipe.validation))
    return (unchanged, SAVE, *measured, *([DIAGNOSE] if recipe.diagnose else []))


# -------------------------------------------------------------------------------------------------------------- save


def _save(fit: Any) -> None:
    fitted, runner = fit.fitted, fit.runner
    median = {} if fitted.median is None else {"median_distance": fitted.median}
    runner.model = model = model_of(fitted, pipeline=runner.pipeline.name, **median, **runner.arithmetic)
    for each in runner.arithmetic.values():
        runner.choice(f"arithmetic: {each}")
    for each in fitted.report.get("preprocess", []):
        runner.choice(f"preprocessing: {each}")
    model.save(runner.folder / "model.zarr")
    runner.trained |= _trained_fields(runner, fit, fitted, model, median)


def _trained_fields(
    runner: CachingRunner, fit: Any, fitted: Fitted, model: KernelMachine, median: dict[str, float]
) -> dict[str, Any]:
    problem, outcome, report, recipe, executor = fitted.problem, fitted.outcome, fitted.report, fit.recipe, fit.executor
    held_out = runner.pipeline.validation is None and problem.validation is not None
    return {
        "name": runner.pipeline.name,
        "model": "model.zarr",
        "samples_per_second": outcome.rows / max(outcome.seconds, 1e-9),
        "data_wait_fraction": outcome.wait,
        "peak_memory_bytes": peak_resident_bytes(),
        "projected_memory_bytes": fitted.footprint.peak,
        "memory_budget_bytes": runner.budget,
        "weights_sha256": model.weights_sha256,
        "n_rows": len(problem.train),
        "resumed_rows": runner.resumed_rows,
        "n_centers": model.n_centers,
        "kernel": problem.kernel.to_json() if problem.features is None else None,
        **median,
        **({"metric": model.metadata["metric"]} if "metric" in model.metadata else {}),
        **({} if fitted.choice is None else {"kernel_choice": fitted.choice.summary()}),
        **({"held_out": len(problem.validation)} if held_out and problem.validation is not None else {}),
        **({"class_weight": model.metadata["class_weight"]} if "class_weight" in model.metadata else {}),
        **calibration_facts(fitted.calibration),
        "solver": AUTO if recipe.solver == AUTO else recipe.solver.to_json()["name"],
        "dtype": recipe.dtype,
        **runner.arithmetic,
        "solver_report": {name: value for name, value in report.items() if name != "preprocess"},
        "preprocess": report.get("preprocess", []),
        "history": outcome.history,
        "seed": recipe.seed,
        "executor": executor.name,
        **({"workers": workers} if (workers := executor.members.to_json()) else {}),
        "device": "cpu" if runner.device is None else runner.device.name,
        **({} if runner.device is None else _device_memory(runner.device, problem)),
    }


def _device_memory(device: Device, problem: Problem) -> dict[str, int]:
    """The most that arrays held, and what was projected, with the rows that stay there."""
    stored = stored_bytes(problem.train)
    projected = device.budget - problem.device_rest + (stored if stored <= problem.device_rest else 0)
    return {"device_peak_bytes": device.peak_bytes, "device_projected_bytes": projected}


SAVE = Stage("save", _save)


# ---------------------------------------------------------------------------------------------------------- evaluate


def _test_rows(fit: Any) -> Dataset | None:
    test, recipe = fit.recipe.test, fit.runner.pipeline
    learned = fit.recipe.metric is not None or is_open(recipe.kernel)
    if test is not None and (learned or preprocessing_steps(fit.recipe)):
        test = test._prepared_like(fit.problem.train)._final()
    return test  # type: ignore[no-any-return]


def _model_key(fit: Any) -> tuple[Any, ...]:
    model, train = fit.runner.model, fit.problem.train
    calibration = [] if model.calibration is None else calibration_digests(model.calibration)
    return model.weights_sha256, described(model.kernel), centers_key(fit.recipe, train), *calibration


def _evaluation_key(fit: Any) -> tuple[Any, ...]:
    test = _test_rows(fit)
    return (*_model_key(fit), fit.problem.train.fingerprint, None if test is None else test.fingerprint)


def _evaluate(fit: Any) -> dict[str, Any]:
    """Metrics of the model on a sample of the training rows, and on the test rows.

    Kept with them for reports: confusion counts or a sample of predictions, and a few rows as training saw them.
    """
    model, train, test, executor = fit.runner.model, fit.problem.train, _test_rows(fit), fit.executor
    with unchanging(fit.recipe.train, fit.recipe.test):
        plain = without_class_weights(train.plain())
        few = plain if plain.base_rows <= MAX_TRAIN_SCORE_ROWS else plain.sample(MAX_TRAIN_SCORE_ROWS)
        scored = {"train": model._score_in_detail(few, executor)}
        if test is not None:
            scored["test"] = model._score_in_detail(test, executor)
        shown = examples(train, model.encoding, executor)
        unseen = {} if test is None else unseen_categories(test, executor)
    arrays = {f"examples_{name}": array for name, array in shown.items()}
    for part, found in scored.items():
        arrays |= {f"{part}_{name}": array for name, array in found.details.items()}
    metrics = {part: found.metrics for part, found in scored.items()}
    return {"arrays": arrays, "metrics": metrics, "encoding": encoding_to_json(model.encoding), "unseen": unseen}


def examples(dataset: Dataset, encoding: Encoding, executor: Executor) -> dict[str, Array]:
    """Draw training rows for a report, always the same, scaled, and their first copies.

    ``rows``, shape (k, 1 + copies, d), float32: first as stored, then augmented if the dataset is; ``targets``,
    encoded, (k,) or (k, c); ``ids`` (k,). Nothing where rows are wider than ``MAX_EXAMPLE_FEATURES``.
    """
    if dataset.n_features > MAX_EXAMPLE_FEATURES:
        return {}
    dataset = dataset._relative_to(0.0)  # in the units that the user knows
    ids = np.sort(dataset.draw(min(EXAMPLE_ROWS, dataset.base_rows), Draw.EXAMPLES))
    varied = Assembly(dataset) if dataset.augmentations else None
    show = partial(_shown_examples, Assembly(dataset.plain(), encoding), varied)
    (pieces,) = sweep(executor, ScanWork(RawScan(Scan(Assembly(dataset), only=ids)), show))
    found, rows, targets = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return {"ids": found, "rows": rows, "targets": targets}


def _shown_examples(plain: Assembly, varied: Assembly | None, found: tuple[RawRows, str], state: Any) -> Parts:
    raw, where = found
    every = np.arange(len(raw.ids), dtype=np.int64)
    block = plain.build(raw, every, (), where)
    versions = [block.X]
    if varied is not None:
        for copy in range(EXAMPLE_COPIES):
            versions.append(varied.build(raw._replace(copies=np.full_like(every, copy)), every, (), where).X)
    return (Stack(((raw.ids, np.stack(versions, axis=1), block.y),)),)


def _take_evaluation(fit: Any, found: dict[str, Any]) -> None:
    test = fit.recipe.test
    for note in unseen_notes(found["unseen"], 0 if test is None else test.base_rows, "test rows"):
        fit.runner.warn(note)
    fit.runner.measured |= {"metrics": found["metrics"], "unseen_categories": found["unseen"]}


# ---------------------------------------------------------------------------------------------------------- diagnose


def _take_diagnosis(fit: Any, found: dict[str, Any]) -> None:
    fit.runner.measured["diagnostics"] = found


def _normal_equations(shape: FitShape) -> FitShape:
    return FitShape(
        shape.dataset, shape.p, shape.outputs, Direct(), shape.budget, shape.baseline, shape.slots, shape.lanes,
        shape.itemsize, better=True,
    )  # fmt: skip


def _diagnosis_work(shape: FitShape) -> StageWork:
    found = training_work(_normal_equations(shape))
    return replace(found, operations=found.operations + Operations(eigen=eigh(shape.p)))


DIAGNOSE = Stage(
    "diagnostics", lambda fit: diagnose(fit.problem, fit.runner.model.weights), take=_take_diagnosis,
    key=lambda fit: (*_model_key(fit), fit.problem.train.fingerprint),
    memory=lambda shape: max(projection(_normal_equations(shape), SOLVING).stages.values()),
    work=_diagnosis_work,
)  # fmt: skip
"""It needs as much as normal equations."""
