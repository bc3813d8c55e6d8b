"""Hyperparameters from a subsample: bandwidth and ridge in closed form, and the error of each number of centers."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamkern.centers import CenterSet, Uniform
from streamkern.costs.fit_shape import FitShape
from streamkern.costs.footprint import footprint, load_libraries
from streamkern.costs.machine_speed import Prices
from streamkern.data import from_arrays
from streamkern.data.class_weights import weighted_like
from streamkern.data.dataset import Dataset
from streamkern.data.subsample import read_rows
from streamkern.data.targets import Classes
from streamkern.defaults import (
    BANDWIDTHS,
    HELD_OUT_SHARE,
    MAX_ERROR_RATIO,
    MAX_TUNING_CENTERS,
    MIN_TUNING_CENTERS,
    TUNING_CENTERS,
    TUNING_RIDGES,
    TUNING_ROWS,
)
from streamkern.engine.ridge import RidgePath
from streamkern.errors import PlanRefusedError, StreamkernError, UsageError
from streamkern.evaluation.paired_errors import first_as_good
from streamkern.execute import open_resources
from streamkern.execute.base import Executor
from streamkern.fitting.memory_projection import likely_outputs, planned_rows
from streamkern.fitting.precision_checks import dtype_of, subtract_offsets
from streamkern.fitting.preparation import prepare
from streamkern.fitting.recipe import AUTO
from streamkern.fitting.solver_choice import resolve_solver
from streamkern.fitting.stage import Runner
from streamkern.fitting.stages import SOLVING
from streamkern.kernels import Kernel, named_kernel
from streamkern.kernels.radial import Radial
from streamkern.memory import format_bytes, resident_bytes
from streamkern.preprocessing.steps import AUTOMATIC, Step
from streamkern.progress import display_if_verbose
from streamkern.resources import Resources, given_resources
from streamkern.rng import Draw
from streamkern.runs.pipeline_definition import Pipeline, load_pipeline, parameters
from streamkern.runs.plan import measured_prices, plan
from streamkern.selection.kernel_search import (
    KernelChoice,
    Search,
    choose_kernel,
    default_kernel,
    needs_kernel_search,
    sample_search,
)
from streamkern.selection.learned_metric import HeldOut
from streamkern.selection.median_bandwidth import AUTO_KERNEL, median_distance, with_bandwidths
from streamkern.solvers import Direct, Problem
from streamkern.solvers.base import traits_of
from streamkern.solvers.ridge import ridge_path


@dataclass(frozen=True)
class Trial:
    """A model that was fitted to the subsample and scored on held-out rows.

    Attributes:
        kernel: the kernel.
        centers: number of centers.
        ridge: the ridge λ, for the number of rows that the model was fitted to.
        mse: mean squared error, over rows and outputs.
        score: accuracy, or R².
        seconds: prediction of ``plan`` for a run of the pipeline with this number of centers. None if it was not
            requested, or the run would exceed the memory.
    """

    kernel: Kernel
    centers: int
    ridge: float
    mse: float
    score: float
    seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The trial as JSON-serialisable data."""
        return vars(self) | {"kernel": self.kernel.to_json()}


@dataclass(frozen=True, eq=False)
class Tuning:
    """Results of ``tune``: the models that were tried, and the choice.

    Attributes:
        trials: every kernel with every ridge, at the largest number of centers.
        curve: the chosen kernel with the best ridge at each number of centers, ascending.
        choice: the chosen trial.
        pipeline: the pipeline with the chosen settings: ``sk.run(tuning.pipeline)``.
        medians: median distance between rows, by norm.
        rows: number of rows that trials were fitted to.
        held_out: number of rows that they were scored on.
        metric: name of ``score``: ``accuracy`` or ``r2``.
        seconds: duration of ``tune`` in seconds.
        reasons: reasons of the choice, one sentence each.
        search: the search among norms, bandwidths, metrics and ridges; ``trials`` use its metric. None if a kernel is
            given, or there are too few rows.
    """

    trials: tuple[Trial, ...]
    curve: tuple[Trial, ...]
    choice: Trial
    pipeline: Pipeline
    medians: Mapping[int, float]
    rows: int
    held_out: int
    metric: str
    seconds: float
    reasons: tuple[str, ...]
    search: KernelChoice | None = None

    @property
    def kernel(self) -> Kernel:
        """The chosen kernel."""
        return self.choice.kernel

    @property
    def median(self) -> float:
        """The median distance between rows, in the norm of the chosen kernel."""
        return self.medians[self.kernel.norm]

    @property
    def centers(self) -> Any:
        """The chosen number of centers."""
        return self.pipeline.centers

    @property
    def solver(self) -> Any:
        """The solver of the pipeline; if it has a ridge, with the chosen ridge for the number of training rows."""
        return self.pipeline.solver

    def best(self) -> tuple[Trial, ...]:
        """The trial with the best ridge for each kernel, sorted by the kernels' names and bandwidths."""
        found: dict[Kernel, Trial] = {}
        for trial in self.trials:
            if trial.kernel not in found or trial.mse < found[trial.kernel].mse:
                found[trial.kernel] = trial
        return tuple(sorted(found.values(), key=lambda t: (_family(t.kernel), _bandwidth(t.kernel) or 0.0)))

    def to_json(self) -> dict[str, Any]:
        """All of it but the pipeline, as JSON-serialisable data."""
        return vars(self) | {
            "median": self.median,
            "trials": [trial.to_json() for trial in self.trials],
            "curve": [trial.to_json() for trial in self.curve],
            "choice": self.choice.to_json(),
            "pipeline": {
                "name": self.pipeline.name,
                "kernel": self.kernel.to_json(),
                "centers": self.centers.to_json(),
                "solver": self.solver.to_json(),
            },
            "reasons": list(self.reasons),
            "search": None if self.search is None else self.search.summary(),
        }

    def text(self) -> str:
        """Return tables for a terminal."""
        lines = [
            *([] if self.search is None else [*self.search.lines(), ""]),
            f"{self.rows:,} rows to fit, {self.held_out:,} held out, {self.curve[-1].centers:,} centers; the median "
            f"distance of two rows is {self.median:.4g}",
            "",
            f"{'kernel':<22}{'bandwidth':>11}{'x median':>10}{'best ridge':>12}{self.metric:>10}{'mse':>11}",
        ]
        chosen = self.choice.kernel
        for trial in self.best():
            sigma, width = _bandwidth(trial.kernel), " " * 21
            if sigma is not None:
                width = f"{sigma:>11.4g}{sigma / self.medians[trial.kernel.norm]:>10.2f}"
            lines.append(
                f"{_family(trial.kernel)[:21]:<22}{width}{trial.ridge:>12.0e}{trial.score:>10.4f}{trial.mse:>11.4g}"
                + (" *" if trial.kernel == chosen else "")
            )
        lines += ["", f"{'centers':<22}{'run':>11}{'':>10}{'best ridge':>12}{self.metric:>10}{'mse':>11}"]
        for trial in self.curve:
            took = "" if trial.seconds is None else f"{trial.seconds:,.1f} s"
            lines.append(
                f"{trial.centers:<22,}{took:>11}{'':>10}{trial.ridge:>12.0e}{trial.score:>10.4f}{trial.mse:>11.4g}"
                + (" *" if trial.centers == self.choice.centers else "")
            )
        return "\n".join([*lines, "", *(f"- {reason}" for reason in self.reasons)])


def tune(
    data: Pipeline | Dataset,
    kernel: Kernel | str | Sequence[Kernel] | None = None,
    *,
    task: str = "classification",
    preprocess: Sequence[Step] | str | None = AUTOMATIC,
    scaling: str | None = AUTO,
    rows: int = TUNING_ROWS,
    centers: int | None = None,
    seed: int = 0,
    memory: str | int | None = None,
    threads: int | None = None,
    resources: Resources | None = None,
    seconds: bool = True,
    prices: Prices | None = None,
    on_trial: Callable[[Trial], None] | None = None,
    verbose: int = 0,
) -> Tuning:
    """Choose bandwidth, ridge and number of centers for a data set, by trials on a subsample.

    Centers are the rows that a model compares new rows with. Models are fitted to one part of the subsample, by normal
    equations, and scored on the other. Six bandwidths are tried, which are multiples of the median distance between
    rows. If the kernel has a number as its bandwidth, this number is tried, too. Then two bandwidths next to the best
    are tried. In general, the choice has the smallest squared error. If several bandwidths have at most 1% more error,
    the nearest to the median distance is chosen. If several numbers of centers have at most 1% more error, the smallest
    is chosen. Augmentations and sample weights are ignored.

    A ``Pipeline`` contains data, model and solver. If it has no kernel, or only the name of one, ``tune`` searches as
    ``run`` does, unless you give ``kernel``, or there are fewer than 40 rows. The attribute ``search`` of the returned
    ``Tuning`` has the result: a kernel, and maybe a metric (weights of the features in distances). Ridges and numbers
    of centers are then tried with these. Its ``pipeline`` still leaves the kernel open, so ``run`` searches again.

    Args:
        data: a ``Pipeline``, or a ``Dataset`` with training rows. From a ``Dataset``, ``tune`` creates a pipeline with
            random rows as centers, and ``solver="auto"``.
        kernel: the kernel, or several kernels to compare; by default, the kernel of the pipeline.
        task: ``classification`` or ``regression``. Only if ``data`` is a ``Dataset``.
        preprocess: as in ``Pipeline``. Only if ``data`` is a ``Dataset``.
        scaling: as in ``Pipeline``. Only if ``data`` is a ``Dataset``.
        rows: number of rows of the subsample; a third of them is held out.
        centers: largest number of centers of the trials. By default, the number of centers of the pipeline, up to
            2,000. For a ``Dataset``, 1,000.
        seed: seed of the subsample and its parts.
        memory: as for ``run``.
        threads: as for ``run``.
        resources: a ``Resources``, to compute on a Dask cluster or in worker processes.
        seconds: True predicts the time of a run with each number of centers.
        prices: speed of the machine, from which seconds are predicted. By default it is measured, as by ``plan``.
        on_trial: function called with the best trial of every kernel.
        verbose: 1 shows the trials on standard error; 0 shows nothing.

    Raises:
        UsageError: an argument is out of range; ``task``, ``preprocess`` or ``scaling`` is given with a pipeline; or
            the pipeline has a feature map.
        PlanRefusedError: the trials would exceed ``memory``.
        DataError: rows cannot be used, or there are too few.
        NumericalError: a kernel matrix is not positive definite.
    """
    begun = time.perf_counter()
    granted = given_resources(resources, memory, threads)
    budget, given = granted.budget, _pipeline(data, task, preprocess, scaling, centers)
    pipeline = replace(given, dtype=dtype_of(given))
    pipeline = resolve_solver(pipeline, budget)[0] if pipeline.centers is None else pipeline
    families = _families(pipeline, kernel)
    with open_resources(granted) as executor, display_if_verbose(verbose) as display:
        sample = _sample(pipeline.train, rows, seed, budget)
        invariant = all(family.translation_invariant for family in families)
        search = None
        if kernel in (None, "auto") and needs_kernel_search(pipeline):
            p = _count(pipeline, sample, centers)
            direct = pipeline.solver == AUTO or traits_of(pipeline.solver).one_pass
            rows_of_sample = planned_rows(replace(pipeline, train=sample))
            search = sample_search(rows_of_sample, p, seed, direct, pipeline.kernel, pipeline.metric)
        bench = _TrialData.of(pipeline, sample, centers, seed, budget, executor, invariant, search)
        dtype, found = bench.problem.dtype, bench.choice
        families = families if found is None else (found.kernel,)
        medians = {norm: median_distance(bench.fit, executor, dtype, norm) for norm in {f.norm for f in families}}
        listeners = [each for each in (on_trial, None if display is None else display.trial) if each is not None]
        flat = _bandwidth_trials(bench, families, medians, listeners)
        curve = bench.curve(_nearest(flat, medians).kernel)
    choice = first_as_good(curve)
    made, reasons = _chosen(pipeline, choice, curve, flat, len(bench.fit), budget, found)
    if seconds:
        curve = _timed(made, curve, budget, granted.slots, prices)
        choice = next(trial for trial in curve if trial.centers == choice.centers)
    made = replace(made, dtype=given.dtype)
    return Tuning(
        flat, curve, choice, made, medians, len(bench.fit), len(bench.held), bench.metric, time.perf_counter() - begun,
        reasons, found,
    )  # fmt: skip


def _bandwidth_trials(
    bench: _TrialData,
    families: Sequence[Kernel],
    medians: Mapping[int, float],
    listeners: Sequence[Callable[[Trial], object]],
) -> tuple[Trial, ...]:
    """Try each family at multiples of its median distance, at its own bandwidth, and on both sides of the best."""
    trials: dict[Kernel, list[Trial]] = {}

    def attempt(candidate: Kernel) -> None:
        if candidate not in trials:
            trials[candidate] = bench.trials(candidate)
            for listener in listeners:
                listener(_best_trial(trials[candidate]))

    for family in families:
        median = medians[family.norm]
        known = family.at_median(median)
        if bench.choice is not None or not isinstance(known, Radial):
            attempt(known)
            continue
        for candidate in with_bandwidths(known, median, BANDWIDTHS):
            attempt(candidate)
        if family == known:  # it has a bandwidth of its own
            attempt(known)
        own = [k for k in trials if _differ_in_bandwidth(k, known)]
        sigma = _bandwidth(_best_trial([t for k in own for t in trials[k]]).kernel)
        assert sigma is not None
        for candidate in with_bandwidths(known, sigma, (2**-0.5, 2**0.5)):
            attempt(candidate)
    return tuple(trial for found in trials.values() for trial in found)


def next_command(found: Tuning, file: str, settings: Mapping[str, str]) -> str:
    """Return the command to type next, or the lines to write into the file, if settings do not give the choice."""
    wanted = found.pipeline
    sigma = None if found.search is not None else _bandwidth(found.kernel)
    given = {"bandwidth": sigma, "centers": getattr(wanted.centers, "p", None)}
    given |= {"ridge": getattr(wanted.solver, "ridge", None)}
    known = parameters(file)
    more = {name: f"{value:g}" for name, value in given.items() if value is not None and name in known}
    with suppress(StreamkernError):
        made = load_pipeline(file, {**settings, **more})
        same = made.kernel == wanted.kernel and made.centers == wanted.centers
        if same and getattr(made.solver, "ridge", None) == getattr(wanted.solver, "ridge", None):
            words = [shlex.quote(f"{name}={value}") for name, value in {**settings, **more}.items()]
            return " ".join(["streamkern run", shlex.quote(file), *(["--set", *words] if words else [])])
    base = load_pipeline(file, settings)
    others = (name for name in ("kernel", "centers", "solver") if getattr(wanted, name) != getattr(base, name))
    parts = (f"{name}=sk.{getattr(wanted, name)!r}," for name in others)
    return "\n    ".join([f"in {file}:", *parts])


@dataclass(frozen=True, eq=False)
class _TrialData:
    """The two parts of the subsample, preprocessed, to fit and to score; ``choice`` is of an open kernel."""

    fit: Dataset
    held: Dataset
    problem: Problem
    choice: KernelChoice | None = None

    @classmethod
    def of(
        cls, pipeline: Pipeline, sample: Dataset, centers: int | None, seed: int, budget: int, executor: Executor,
        invariant: bool, search: Search | None,
    ) -> _TrialData:  # fmt: skip
        """Preprocess the subsample as the pipeline says, with statistics of the whole of it, and choose centers."""
        fit, held = sample.split(HELD_OUT_SHARE, seed)
        for part in (fit, held):
            part._require_rows()
        dtype, p = np.dtype(pipeline.dtype), _count(pipeline, fit, centers)
        shape = FitShape(
            fit, p, likely_outputs(fit), Direct(), budget=budget, baseline=load_libraries(), slots=executor.slots,
            lanes=pipeline.lanes, itemsize=dtype.itemsize, better=True,
        )  # fmt: skip
        footprint(shape, SOLVING)
        # The result has a numeric bandwidth, and a pipeline with one is only scaled if it requests that.
        scaling = None if search is None and pipeline.scaling == AUTO else pipeline.scaling
        recipe = replace(pipeline, train=sample, test=None, validation=None, scaling=scaling)
        scaled, facts = prepare(recipe, executor, Runner())
        scaled = subtract_offsets(scaled, facts, invariant, dtype)
        assert facts.encoding is not None
        choice = None
        if search is not None:
            nothing = CenterSet(np.empty((0, scaled.n_features), dtype=dtype), None)
            simple = default_kernel(facts, scaled, pipeline.kernel)
            problem = Problem(scaled, facts.encoding, simple, nothing, executor, dtype, lanes=pipeline.lanes)
            choice = choose_kernel(search, problem)
            scaled = choice.metric.applied(scaled)
        fit, held = (weighted_like(rows._prepared_like(scaled), scaled) for rows in (fit, held))
        chosen = Uniform(p, seed).choose(fit, executor, dtype)
        problem = Problem(fit, facts.encoding, AUTO_KERNEL, chosen, executor, dtype, lanes=pipeline.lanes)
        return cls(fit, held, problem, choice)

    @property
    def metric(self) -> str:
        return "accuracy" if isinstance(self.problem.encoding, Classes) else "r2"

    def trials(self, kernel: Kernel) -> list[Trial]:
        problem = replace(self.problem, kernel=kernel)
        return self._scored(problem, ridge_path(problem))

    def curve(self, kernel: Kernel) -> tuple[Trial, ...]:
        """The best ridge at each number of centers: the first of one draw, so each holds those before it."""
        problem = replace(self.problem, kernel=kernel)
        path, p, found = ridge_path(problem), len(problem.centers.Z), []
        Z, ids = problem.centers
        assert isinstance(Z, np.ndarray)
        while p >= min(MIN_TUNING_CENTERS, len(Z)):
            fewer = replace(problem, centers=CenterSet(Z[:p], None if ids is None else ids[:p]))
            found.append(_best_trial(self._scored(fewer, path.head(p))))
            p //= 2
        return tuple(reversed(found))

    def _scored(self, problem: Problem, path: RidgePath) -> list[Trial]:
        # Rows are centred by the mean of the centers; kernels that mind are evaluated at the same points either way.
        compared = HeldOut.of(problem, self.held).errors(problem, path.weights(TUNING_RIDGES))
        return [
            Trial(problem.kernel, len(path.gram), ridge, float(mse), float(score))
            for ridge, mse, score in zip(TUNING_RIDGES, compared.mse, compared.score, strict=True)
        ]  # fmt: skip


def _pipeline(
    data: Pipeline | Dataset,
    task: str,
    preprocess: Sequence[Step] | str | None,
    scaling: str | None,
    centers: int | None,
) -> Pipeline:
    if isinstance(data, Dataset):
        return Pipeline(
            data, AUTO, Uniform(centers or min(TUNING_CENTERS, max(1, data.base_rows // 2))), AUTO, task=task,
            preprocess=preprocess if isinstance(preprocess, str) else tuple(preprocess or ()), scaling=scaling,
        )  # fmt: skip
    if not isinstance(data, Pipeline):
        raise UsageError(
            f"The data is {data!r}.", where="tune(data)", expected="a Pipeline or a Dataset",
            remedy="sk.open_dataset(path, target=...) makes a Dataset",
        )  # fmt: skip
    if task != "classification" or preprocess != AUTOMATIC or scaling != AUTO:
        raise UsageError(
            "A pipeline is given together with parameters that belong to it.",
            where="tune(task=..., preprocess=..., scaling=...)",
            expected="these with a Dataset only",
            remedy="set them in the pipeline",
        )
    if data.features is not None:
        raise UsageError(
            "The pipeline has a feature map.",
            where="tune(data)",
            expected="kernel values at centers",
            remedy="tune a pipeline without features: its bandwidth serves random features too",
        )
    return data


def _families(pipeline: Pipeline, kernel: Kernel | str | Sequence[Kernel] | None) -> tuple[Kernel, ...]:
    if kernel is None or kernel == "auto":
        return (pipeline.kernel or AUTO_KERNEL,)
    given = (kernel,) if isinstance(kernel, Kernel | str) else tuple(kernel)
    kernels = tuple(named_kernel(each, "tune(kernel=...)") for each in given)
    if not kernels or None in kernels:
        raise UsageError(
            f"The kernel is {kernel!r}.",
            where="tune(kernel=...)",
            expected='a kernel such as sk.Laplace("median"), or its name; or several',
            remedy="leave it out for the pipeline's own",
        )
    return tuple(each for each in kernels if each is not None)


def _sample(train: Dataset, rows: int, seed: int, budget: int) -> Dataset:
    train._require_rows()
    if rows < 10:
        raise UsageError(
            f"{rows} rows are too few.", where="tune(rows=...)", expected="at least 10",
            remedy="take some thousands of rows: the scores of smaller samples are too noisy to compare",
        )  # fmt: skip
    plain = train.plain()
    rows = min(rows, plain.base_rows)
    # Twice while its pieces are joined, and once as preprocessed blocks.
    needed = resident_bytes() + 3 * rows * max(
        plain.source.n_features * plain.source.dtype.itemsize, 4 * plain.n_features
    )
    if needed > budget:
        raise PlanRefusedError(
            f"A subsample of {rows:,} rows needs {format_bytes(needed)} and may use {format_bytes(budget)}.",
            where="tune(rows=...)",
            expected=f"a budget of at least {format_bytes(needed)}",
            remedy="ask for fewer rows, or raise memory",
        )
    ids = np.sort(plain.draw(rows, Draw.TUNING, seed))
    found = read_rows(plain.source, ids)
    columns = plain.source.columns
    names = None if columns is None else list(columns)
    made = from_arrays(found.X, found.y, columns=names, schema=plain.source.schema)._prepared_like(plain)
    return replace(made, roles=None if plain.roles is None else plain.roles.taken(ids))


def _count(pipeline: Pipeline, fit: Dataset, centers: int | None) -> int:
    if centers is None:
        assert pipeline.centers is not None
        return min(pipeline.centers.count(pipeline.train), MAX_TUNING_CENTERS, fit.base_rows)
    if not 1 <= centers <= fit.base_rows:
        raise UsageError(
            f"{centers} centers are requested, and trials are fitted to {fit.base_rows:,} rows.",
            where="tune(centers=...)",
            expected=f"1 to {fit.base_rows:,}",
            remedy="ask for fewer, or for more rows",
        )
    return int(centers)


def _chosen(
    pipeline: Pipeline, choice: Trial, curve: Sequence[Trial], trials: Sequence[Trial], rows: int, budget: int,
    search: KernelChoice | None,
) -> tuple[Pipeline, tuple[str, ...]]:  # fmt: skip
    most, n = curve[-1], pipeline.train.base_rows
    ridge = float(f"{choice.ridge * min(1.0, rows / n):.2g}")  # the noise determines λ n
    reasons = [f"kernel and ridge: the least squared error of {len(trials):,} models of {most.centers:,} centers"]
    least = _best_trial(trials)
    if choice.kernel != least.kernel:
        reasons[0] += f", or {most.mse / least.mse - 1:.1%} more and nearer to the median distance"
    widths = sorted({_bandwidth(t.kernel) or 0.0 for t in trials if _differ_in_bandwidth(t.kernel, choice.kernel)})
    sigma = _bandwidth(choice.kernel)
    if search is not None:
        reasons = [search.reason(), "the pipeline still leaves the kernel open: a run searches again, on other rows"]
    elif sigma is not None and sigma in (widths[0], widths[-1]) and len(widths) > 1:
        reasons.append("the bandwidth is at the end of the range tried: look further out with another kernel=...")
    given = pipeline.centers
    count = 0 if given is None else given.count(pipeline.train)
    if isinstance(given, Uniform) and choice.centers < most.centers:
        pipeline = replace(pipeline, centers=replace(given, p=choice.centers))
        reasons.append(
            f"centers: the fewest whose squared error is within {1 - MAX_ERROR_RATIO:.0%} of that of {most.centers:,}"
        )
    elif isinstance(given, Uniform) and count <= most.centers:
        reasons.append(
            f"centers: {most.centers:,}, and half of them cost more than {1 - MAX_ERROR_RATIO:.0%} of the squared error"
        )
        pipeline = replace(pipeline, centers=replace(given, p=most.centers))
    else:
        reasons.append(f"centers: left as they are, {count:,}; trials had {most.centers:,}, drawn uniformly")
    pipeline, why = resolve_solver(pipeline if search is not None else replace(pipeline, kernel=choice.kernel), budget)
    if why:
        reasons.append(f"solver {why}")
    solver: Any = pipeline.solver
    if traits_of(solver).ridge:
        pipeline = replace(pipeline, solver=replace(solver, ridge=ridge))
        if ridge != choice.ridge:
            reasons.append(f"ridge: {choice.ridge:.0e} for {rows:,} rows is {ridge:.2g} for {n:,}: noise fixes λ n")
    else:
        name = solver.to_json()["name"]
        small = min((t for t in trials if t.kernel == choice.kernel), key=lambda t: t.ridge)
        reasons.append(
            f"ridge: {name} has no ridge, and stops early instead; with {most.centers:,} centers the squared error is "
            f"{most.mse:.4g} at the best ridge, {small.mse:.4g} at {small.ridge:.0e}"
        )
        reasons.append(f"q, batch and step: {name} measures them on the problem when it runs, which no subsample can")
    return pipeline, tuple(reasons)


def _timed(
    pipeline: Pipeline, curve: Sequence[Trial], budget: int, slots: int, prices: Prices | None
) -> tuple[Trial, ...]:
    if not isinstance(pipeline.centers, Uniform):
        return tuple(curve)
    prices = prices or measured_prices(pipeline, slots)
    made = []
    for trial in curve:
        try:
            at = replace(pipeline, centers=replace(pipeline.centers, p=trial.centers))
            seconds: float | None = plan(at, memory=budget, threads=slots, prices=prices).seconds
        except PlanRefusedError:
            seconds = None
        made.append(replace(trial, seconds=seconds))
    return tuple(made)


def _best_trial(trials: Sequence[Trial]) -> Trial:
    """The least squared error; of equals the largest ridge."""
    return min(trials, key=lambda trial: (trial.mse, -trial.ridge))


def _nearest(trials: Sequence[Trial], medians: Mapping[int, float]) -> Trial:
    """Among those like the best: far out on a plateau a kernel scores no better, and is worse conditioned."""
    least = _best_trial(trials)
    if not isinstance(least.kernel, Radial):
        return least
    near = [t for t in trials if _differ_in_bandwidth(t.kernel, least.kernel)]
    near.sort(key=lambda t: (abs(np.log((_bandwidth(t.kernel) or 1.0) / medians[t.kernel.norm])), t.mse))
    return first_as_good(near)


def _bandwidth(kernel: Kernel) -> float | None:
    return kernel.sigma if isinstance(kernel, Radial) else None


def _differ_in_bandwidth(kernel: Kernel, other: Kernel) -> bool:
    return (
        isinstance(kernel, Radial) and isinstance(other, Radial) and replace(kernel, bandwidth=other.bandwidth) == other
    )


def _family(kernel: Kernel) -> str:
    described = kernel.to_json()
    rest = ", ".join(
        f"{k}={v:g}" for k, v in described.items() if k not in ("name", "bandwidth") and type(v) in (int, float)
    )
    return f"{described['name']}({rest})" if rest else str(described["name"])
