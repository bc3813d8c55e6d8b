"""The arguments that estimators and pipelines share: checked, and completed, in one way for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from streamkern.calibration.thresholds import require_threshold
from streamkern.centers import Uniform
from streamkern.data.class_weights import require_class_weight
from streamkern.data.dataset import Dataset
from streamkern.data.subsample import class_counts
from streamkern.defaults import MIN_HELD_OUT_PER_CLASS, PATIENCE
from streamkern.errors import UsageError, warn
from streamkern.fitting.recipe import AUTO
from streamkern.kernels import named_kernel
from streamkern.preprocessing.steps import STANDARD, require_steps
from streamkern.selection.learned_metric import AGOP
from streamkern.solvers.lbfgs import LBFGS, LOSSES, Pinball

DTYPES = (AUTO, "float32", "float64")

Where = Callable[[str], str]
"""The name of an argument in errors: ``KernelRegressor(lanes=...)``."""


def is_count(value: Any, least: int = 1) -> bool:
    """Return True if this is a whole number of at least ``least``."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least


def is_instance_with(part: Any, method: str) -> bool:
    """Return True if this is an object with a method, and not its class."""
    return hasattr(part, method) and not isinstance(part, type)


def completed(given: Any, train: Dataset, task: str, where: Where) -> dict[str, Any]:
    """The fields of a recipe, from checked arguments of an estimator or a pipeline; ``where`` names one in errors."""
    kernel = named_kernel(given.kernel, where("kernel"))
    train, validation = hold_out(train, given.validation, int(given.seed), task)
    centers = given.centers
    if isinstance(centers, int | np.integer):
        centers = drawn_centers(centers, int(given.seed), train)
    steps = given.preprocess if isinstance(given.preprocess, str) else tuple(given.preprocess or ())
    names = ("scaling", "dtype", "metric", "partition", "class_weight", "threshold", "loss")
    return {name: getattr(given, name) for name in names} | {
        "solver": solver_for(given, train, task, where),
        "train": train, "validation": validation, "kernel": kernel, "preprocess": steps, "task": task,
        "centers": centers, "seed": int(given.seed), "lanes": int(given.lanes),
    }  # fmt: skip


def solver_for(given: Any, train: Dataset, task: str, where: Where) -> Any:
    """The solver of a fit: the one that is given, with the given loss; ``LBFGS`` for a loss other than squares."""
    solver, loss = given.solver, given.loss
    if loss is None and not isinstance(solver, LBFGS):
        return solver
    if loss is not None and not isinstance(solver, LBFGS) and solver != AUTO:
        raise UsageError(
            f"loss is {loss!r}, and the solver is {solver!r}, which minimises squares.",
            where=where("loss"),
            expected='solver="auto" or sk.LBFGS()',
        )
    if solver == AUTO:
        solver = LBFGS(loss, patience=None if given.validation is None else PATIENCE)
    elif loss is not None:
        solver = replace(solver, loss=loss)
    several = train.target is not None and train.target.width > 1
    if several or (solver.loss == "logistic") != (task == "classification"):
        what = "have several columns" if several else f"are those of a {task}"
        raise UsageError(
            f"The loss is {solver.loss!r}, and the targets {what}.",
            where=where("loss"),
            expected='for one label a row "logistic", and for one value a row "poisson" or sk.Pinball()',
            remedy="leave loss and solver out, to minimise squares",
        )
    return solver


def require_arguments(given: Any, where: Where) -> None:
    """Check the arguments of a fit, of an estimator or a pipeline; ``where`` names an argument in errors."""
    require_threshold(given.threshold, where("threshold"))
    require_class_weight(given.class_weight, where("class_weight"))
    require_steps(given.preprocess or (), where("preprocess"))
    share = isinstance(given.validation, float | np.floating) and 0 < given.validation < 1
    centers, solver, cut, loss = given.centers, given.solver, given.partition, given.loss
    for name, right, expected in (
        ("solver", solver == AUTO if isinstance(solver, str) else is_instance_with(solver, "setup"),
         'a solver such as sk.EigenPro(...), or "auto"'),
        ("metric", isinstance(given.metric, AGOP | None), "sk.AGOP(), or None"),
        ("partition", cut in (None, AUTO) if isinstance(cut, str | None) else is_instance_with(cut, "settled"),
         'sk.Partition(), "auto" or None'),
        ("dtype", given.dtype in DTYPES, " or ".join(f'"{each}"' for each in DTYPES)),
        ("scaling", given.scaling is None or (isinstance(given.scaling, str) and given.scaling in (AUTO, STANDARD)),
         f'"{STANDARD}", "{AUTO}" or None'),
        ("loss", isinstance(loss, Pinball) or (isinstance(loss, str | None) and loss in (None, *LOSSES)),
         " or ".join(f'"{each}"' for each in LOSSES) + ", sk.Pinball(), or None"),
        ("seed", is_count(given.seed, 0), "an integer >= 0"),
        ("lanes", is_count(given.lanes), "a whole number, at least 1"),
        ("centers", centers is None or is_count(centers) or is_instance_with(centers, "setup_bytes"),
         "a number of rows to draw, at least 1, or a choice such as sk.Uniform(1000) or sk.Given(Z)"),
        ("validation", share or isinstance(given.validation, Dataset | None),
         "a fraction of the rows between 0 and 1, or a Dataset: sk.open_dataset(path, target=...); or None"),
    ):  # fmt: skip
        if not right:
            raise UsageError(f"{name} is {getattr(given, name)!r}.", where=where(name), expected=expected)


def hold_out(
    data: Dataset, validation: float | np.floating[Any] | Dataset | None, seed: int, task: str
) -> tuple[Dataset, Dataset | None]:
    """Return training and validation rows: of a share, those that a seed draws; of a ``Dataset``, it.

    Of rows in memory, the share is drawn from each class where one has few rows; this reads the labels.
    """
    if validation is None or isinstance(validation, Dataset):
        return data, validation
    share = float(validation)
    target = data.target
    by_class = (
        data.roles is None
        and data.source.from_memory
        and task == "classification"
        and target is not None
        and not target.outputs
    )
    rarest = min(class_counts(data.source, data.rules).values()) if by_class else 0
    data = with_all_labels(data, task)
    data, held = data.split(share, seed, stratify=by_class and rarest * share < MIN_HELD_OUT_PER_CLASS)
    return data, held.plain()


def with_all_labels(data: Dataset, task: str) -> Dataset:
    """Return rows that name the labels of all: where they are split by time or group, a side may lack some.

    Reads the labels of rows that have a time or a group.
    """
    one = data.target is not None and not data.target.outputs and data.labels is None
    if task != "classification" or data.roles is None or not one:
        return data
    return replace(data, labels=tuple(sorted(class_counts(data.source, data.rules))))


def drawn_centers(centers: Any, seed: int, data: Dataset) -> Any:
    """Return a choice of centers: of a number, so many rows drawn with a seed; at most as many as there are rows."""
    if isinstance(centers, int | np.integer):
        centers = Uniform(int(centers), seed)
    if isinstance(centers, Uniform) and centers.p > data.base_rows:
        warn(f"there are {data.base_rows:,} rows for {centers.p:,} centers: all rows are centers")
        centers = replace(centers, p=data.base_rows)
    return centers
