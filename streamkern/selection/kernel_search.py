"""The kernel of a fit without a given one: norm, bandwidth, metric, ridge, by the error on held-out rows of a sample.

A search in two parts. On few rows with few centers, for each norm, bandwidths are compared, and metrics of both kinds
are learned at the best of them. The best of each norm, and of the better norm the best with another metric, or none,
are fitted to all rows of the subsample, where the best learns its metric further. They have every row that they are
fitted to as a center where the fit is one model that has (for leaves a sample of more rows with few centers tells
more): few centers want other bandwidths and metrics, and larger ridges. A metric has to beat none, a full one a
diagonal one, and anything ``default_kernel``: by 1% of the error, and by more than the standard error of the
difference. Errors are squares, or log losses of classes; a model's ridge is that of its least squares. Bandwidths about
that of the best are compared last, and the ridge in finer steps; where each takes a factor, only for the best of them.
Kernels are Laplace, or those of the name that is given; metrics are of the kinds that a given ``AGOP`` has, in as many
rounds.

The search takes at most half of the time of the fit that it is for (of leaves, of all their fits), or three
seconds (half a minute where every row is a center), and at most two minutes. Work is counted on arrays of shapes at
fixed prices of slow cores, never in seconds: the choice is the same on any machine, on threads and workers. Where not
even the smallest search is allowed, the kernel is ``default_kernel``.

Of fewer rows than the smallest sample has, all are fitted, norms, bandwidths and ridges are compared by the errors of
rows left out one at a time, in closed form, and no metric is tried: a third of few rows held out says too little, and
leaves too few to fit. One that is asked for is learned at the kernel that is chosen. A row that equals others is left
out alone: else a table of few distinct rows would be judged by rows whose like was never seen (ADR 20).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np

from streamkern.centers import Given, Uniform
from streamkern.costs.dry_run import CostEstimate, nominal_prices, nominal_work
from streamkern.costs.fit_shape import SearchCost
from streamkern.data.dataset import Dataset
from streamkern.data.statistics import Statistics
from streamkern.data.targets import Classes
from streamkern.defaults import (
    ASSUMED_THREADS,
    BANDWIDTHS,
    CONCURRENT_FITS,
    DEFAULT_CENTERS,
    FIRST_MODELS_DIVISOR,
    HELD_OUT_SHARE,
    LINEAR_STANDARD_ERRORS,
    LINEAR_WEIGHTS,
    MAX_CENTERS,
    MAX_CENTERS_BY_ROWS,
    MAX_ERROR_RATIO,
    MAX_FINALISTS,
    MAX_FULL_FEATURES,
    MAX_FURTHER_ROUNDS,
    MAX_L1_FEATURES,
    MAX_PASS_SECONDS,
    MAX_ROWS_AS_CENTERS,
    MAX_SEARCH_SECONDS,
    MAX_SEARCH_SHARE,
    METRIC_ROUNDS,
    MIN_FULL_KERNEL_SEARCH_SECONDS,
    MIN_LOGISTIC_RIDGE,
    MIN_METRIC_ROWS,
    MIN_ROWS_PER_FEATURE,
    MIN_ROWS_TO_HOLD_OUT,
    MIN_SEARCH_SECONDS,
    NEAR_BANDWIDTHS,
    RIDGE_MULTIPLES,
    RIDGES,
    SEARCH_BANDWIDTHS,
    SEARCH_MEMORY_DIVISOR,
    SEARCH_RIDGES,
    SUBSAMPLE_SIZES,
    USUAL_THREADS,
    WORK_PER_SECOND,
)
from streamkern.engine.operation_counts import Operations
from streamkern.errors import DataError
from streamkern.kernels import Kernel, Laplace, Linear, is_open, kernel_from_json
from streamkern.selection.learned_metric import (
    AGOP,
    Metric,
    Round,
    Rounds,
    compared_error,
    learn_metric,
    round_work,
    sampled_bytes,
)
from streamkern.selection.median_bandwidth import median_distance, with_bandwidths
from streamkern.solvers.base import Problem, Solver, traits_of
from streamkern.solvers.direct import Direct
from streamkern.storage.serialize import serializable

MAX_SEARCH_WORK = MAX_SEARCH_SECONDS * WORK_PER_SECOND
MIN_SEARCH_WORK = MIN_SEARCH_SECONDS * WORK_PER_SECOND
MIN_FULL_KERNEL_SEARCH_WORK = MIN_FULL_KERNEL_SEARCH_SECONDS * WORK_PER_SECOND
MAX_PASS_WORK = MAX_PASS_SECONDS * WORK_PER_SECOND

_EQUATION_BYTES = 190
"""Bytes of normal equations on ``ASSUMED_THREADS`` threads for each p², which may be half of the budget."""


@dataclass(frozen=True)
class Search:
    """The trials of a search.

    With ``linear`` a linear part added to the kernel is tried, for values. With ``apart``, rows have a time or a group,
    and some are held out even if they are few. ``metric`` is one that was asked for, None for one that is tried.
    """

    rows: int
    centers: int
    norms: tuple[int, ...]
    kinds: tuple[str, ...]
    seed: int = 0
    linear: bool = False
    apart: bool = False
    family: str = "Laplace"
    metric: AGOP | None = None

    @property
    def rounds(self) -> int:
        """Rounds of a metric on the first models, at most."""
        return METRIC_ROUNDS if self.metric is None else self.metric.rounds

    @property
    def agop(self) -> AGOP:
        """The metric that is tried."""
        kind = "auto" if len(self.kinds) > 1 else (*self.kinds, "diagonal")[0]
        return AGOP(self.rounds, kind, self.rows, self.centers, self.seed)

    @property
    def few(self) -> tuple[int, int]:
        """Rows that the first models are fitted to, and their centers."""
        rows = self.rows // FIRST_MODELS_DIVISOR
        return rows, min(self.centers, rows) // FIRST_MODELS_DIVISOR

    @property
    def leave_one_out(self) -> bool:
        """True if rows are left out one at a time, since they are few."""
        return self.rows < MIN_ROWS_TO_HOLD_OUT

    @property
    def metric_of_few(self) -> AGOP | None:
        """The metric that is asked for, where it is learned at the chosen kernel, as rows are too few to compare by."""
        return self.metric if self.leave_one_out else None

    @property
    def fitted_rows(self) -> int:
        """Rows that models of the last part are fitted to."""
        return self.rows - (0 if self.leave_one_out else round(HELD_OUT_SHARE * self.rows))

    @property
    def all_rows_are_centers(self) -> bool:
        """True if models of the last part have every row that they are fitted to as a center."""
        return self.centers >= self.fitted_rows

    @property
    def ridges(self) -> tuple[float, ...]:
        """Ridges of a model."""
        return RIDGES if self.leave_one_out else SEARCH_RIDGES

    @property
    def fits(self) -> int:
        """Models, at most."""
        return len(self.norms) * self._first_fits + self._last_fits

    @property
    def _first_fits(self) -> int:
        if self.leave_one_out:
            return 0
        return len(SEARCH_BANDWIDTHS) + len(self.kinds) * (self.rounds + len(NEAR_BANDWIDTHS[:2]))

    @property
    def _last_fits(self) -> int:
        if self.leave_one_out:
            found = len(self.norms) * len(BANDWIDTHS)
        else:
            found = 1 + MAX_FINALISTS + MAX_FURTHER_ROUNDS + len(NEAR_BANDWIDTHS)
        return found + (len(LINEAR_WEIGHTS) if self.linear else 0)

    def work(self, size: Any) -> Operations:
        """Operations, on arrays of shapes: in float32, whatever the fit computes in, so that its search is the same."""
        total, kinds, size = Operations(), len(self.kinds), replace(size, itemsize=4)
        longer = (6.0 * size.d + 40) / (2.0 * size.d + 40)  # a value in the L1 norm
        for (rows, p), fits, outer, norms in (
            (self.few, self._first_fits, self.rounds * kinds, self.norms),
            ((self.fitted_rows, self.centers), self._last_fits, (MAX_FURTHER_ROUNDS + 1) * bool(kinds), (1,)),
        ):
            if fits:
                fitted, gradients, _ = self._round(size, rows, p, likely=True)
                for norm in norms:
                    found = float(fits) * fitted + float(outer) * gradients
                    total += replace(found, values=found.values * (longer if norm == 1 and 1 in self.norms else 1.0))
        return total

    def cost_estimate(self, size: Any, rows: int) -> SearchCost:
        found, memory = self.agop.cost_estimate(size, rows), self.memory(size, rows, CONCURRENT_FITS)
        found = found._replace(memory=memory, work=self.work(size), rounds=self.fits)
        if self.metric_of_few is None:
            return found
        last = self.metric_of_few.cost_estimate(size, rows)
        memory, rounds = max(memory, last.memory), found.rounds + last.rounds
        return found._replace(memory=memory, work=found.work + last.work, rows=found.rows + last.rows, rounds=rounds)

    def memory(self, size: Any, rows: int, together: int) -> int:
        """Return bytes at the peak, with the sample, where ``together`` models are fitted at once."""

        def peak(size: Any) -> int:
            return self._round(size, self.fitted_rows, self.centers)[2]

        most = self.agop.cost_estimate(size, rows).memory
        if self.all_rows_are_centers:
            most = max(most, sampled_bytes(self.rows, size) + peak(size))
        return most + ((together - 1) * peak(replace(size, slots=1)) if size.overlapping else 0)

    def _round(self, size: Any, rows: int, p: int, likely: bool = False) -> tuple[Operations, Operations, int]:
        return round_work(rows, p, "full" in self.kinds, size, self.ridges, self.rows - self.fitted_rows, likely)

    def text(self) -> str:
        """The trials, in a sentence."""
        norms = " and ".join(f"L{norm}" for norm in sorted(self.norms))
        linear = "; for values also with a linear part" if self.linear else ""
        if self.leave_one_out:
            rows = f"held-out rows of {self.rows:,}" if self.apart else f"all {self.rows:,} rows, each left out"
            return (
                f"kernel: {self.family} in the {norms} norm, {len(BANDWIDTHS)} bandwidths, by the errors of "
                f"{rows}{linear}{'' if self.metric is None else '; then a metric with the best of them'}"
            )
        centers = (
            "every row that is not held out as a center" if self.all_rows_are_centers else f"{self.centers:,} centers"
        )
        return (
            f"kernel: {self.family} in the {norms} norm, {len(SEARCH_BANDWIDTHS)} bandwidths, "
            f"a metric ({', '.join(self.kinds)}) or none, "
            f"by the error on held-out rows of {self.rows:,}; models with {centers}{linear}"
        )


@serializable
@dataclass(frozen=True, eq=False)
class KernelChoice:
    """The kernel that was chosen, as JSON, with its ridge for ``rows`` rows, and why.

    The metric is of kind ``none`` where none is better. ``trials`` have kernel, kind, round, rows, centers, ridge,
    squared error, log loss of classes and score of every model, in order. ``simple`` is the error of
    ``default_kernel``, ``best`` of the choice, on ``held_out`` rows or on all rows, each left out.
    """

    described: dict[str, Any]
    ridge: float
    rows: int
    metric: Metric
    trials: tuple[dict[str, Any], ...]
    simple: float
    best: float
    held_out: bool = False

    @property
    def kernel(self) -> Kernel:
        return kernel_from_json(self.described)

    def reason(self) -> str:
        """Return the choice and its reasons, in a sentence."""
        if self.metric.kind not in {"none", *(trial["kind"] for trial in self.trials)}:  # learned at the chosen kernel
            return f"{replace(self, metric=replace(self.metric, kind='none')).reason()}; {self.metric.reason()}"
        tried = f"of {len(self.trials)} models on {self.rows:,} rows"
        head = f"kernel: {self.kernel!r}, the root mean square distance; "
        if self.best == self.simple:
            if self.metric.begins_exact:
                return f"{head}its error is one of rounding"
            return f"{head}none {tried} is clearly {1 - MAX_ERROR_RATIO:.0%} better"
        metric = "no metric" if self.metric.kind == "none" else f"a {self.metric.kind} metric"
        radial, linear = radial_part(self.described)
        rows = "held-out rows" if self.held_out else "rows left out one at a time"
        kernel = f"{kernel_from_json(radial)!r}{' and a linear part' if linear else ''}"
        return (
            f"kernel: {kernel} with {metric}: {self.error_name} {self.best:.4g} on {rows}, chosen {tried}, and "
            f"{self.simple:.4g} with the default bandwidth and no metric"
        )

    @property
    def error_name(self) -> str:
        """What models were compared by."""
        return "log loss" if self.metric.metric == "accuracy" else "squared error"

    def chosen(self, trial: dict[str, Any]) -> bool:
        """Return True if a model of ``trials`` is the chosen one."""
        return bool(trial["kernel"] == self.described and compared_error(trial) == self.best)

    def summary(self) -> dict[str, Any]:
        """Return JSON-serialisable facts, for results."""
        return {
            "best": self.best,
            "kernel": dict(self.described),
            "metric": self.metric.kind,
            "ridge": self.ridge,
            "rows": self.rows,
            "reason": self.reason(),
            "trials": [dict(each) for each in self.trials],
        }

    def lines(self) -> list[str]:
        """Return a table of the models, in order."""
        error = self.error_name.replace("squared error", "mse")
        head = ("norm", "bandwidth", "metric", "round", "rows", "centers", "ridge", "score", error)
        lines = ["".join(f"{name:>10}" for name in head)]
        for trial in self.trials:
            norm, sigma = norm_and_bandwidth(trial["kernel"])
            lines.append(
                f"{norm:>10}{sigma:>10.4g}{trial['kind']:>10}{trial['round']:>10}{trial['rows']:>10,}"
                f"{trial['centers']:>10,}{trial['ridge']:>10.0e}{trial['score']:>10.4f}{compared_error(trial):>10.4g}"
                + (" *" if self.chosen(trial) else "")
            )
        return lines

    def solver(self, given: Solver, n: int) -> Solver:
        """Return the solver with the chosen ridge for n rows, if its ridge is the default: noise asks for λ n."""
        least = 0.0 if traits_of(given).least_squares else MIN_LOGISTIC_RIDGE
        return with_ridge(given, max(self.ridge, least) * min(1.0, self.rows / n))


def default_kernel(facts: Statistics, dataset: Dataset, given: Kernel | None = None) -> Kernel:
    """Return a given kernel; where it is open, with σ² = 2 Σ_j var(x_j), in scaled units: Laplace values near 1/e."""
    if given is not None and not is_open(given):
        return given
    spread = 2.0 * float(np.sum(facts.variance * np.square(dataset.factor)))
    family: Any = Laplace() if given is None else given
    return replace(family, bandwidth=float(np.sqrt(spread)) if spread > 0 else 1.0)  # type: ignore[no-any-return]


def radial_part(described: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """A kernel of the search as JSON without its linear part, and whether it has one."""
    return (described["parts"][0], True) if "parts" in described else (described, False)


def norm_and_bandwidth(described: dict[str, Any]) -> tuple[str, float]:
    """Norm, such as ``L1`` or ``L2+linear``, and bandwidth of a kernel of the search as JSON, for tables."""
    radial, linear = radial_part(described)
    return f"L{radial.get('norm', 2)}{'+linear' if linear else ''}", float(radial["bandwidth"])


def with_ridge(given: Solver, ridge: float) -> Solver:
    """The solver with a ridge, where it has one that is its default; that of least squares for any loss."""
    solver: Any = given  # a dataclass
    if traits_of(given).ridge and solver.ridge == type(solver)().ridge:
        return cast(Solver, replace(solver, ridge=float(f"{ridge:.2g}")))
    return given


def max_rows_as_centers(rows: int, d: int, budget: int) -> int:
    """Return the rows that are all centers by default, at most."""
    return min(MAX_ROWS_AS_CENTERS, _center_limit(rows, d, budget))


def _center_limit(rows: int, d: int, budget: int) -> int:
    room = int((budget / (4 * 3 * 8)) ** 0.5)
    return (
        room
        if d <= MAX_L1_FEATURES
        else min(room, budget // (16 * 4 * d), int(MAX_PASS_WORK / (rows * nominal_prices(d).values)))
    )


def default_centers(rows: int, d: int, budget: int, seed: int) -> Uniform:
    """Return 2,000 centers, or a quarter of the rows, up to 5,000, or an eighth, up to 8,000: where not all rows are.

    There are fewer where p² numbers in float64, three times over, would take more than a quarter of the budget, or the
    centers of wide rows a sixteenth, or a pass over many wide rows more than ``MAX_PASS_WORK``; and no quarter of the
    rows where normal equations would not fit, since passes without a ridge are worse with so many.
    """
    solved = int((budget / (2 * _EQUATION_BYTES)) ** 0.5)
    more = min(max(min(rows // 4, MAX_CENTERS_BY_ROWS, solved), rows // 8), MAX_CENTERS, _center_limit(rows, d, budget))
    return Uniform(min(max(DEFAULT_CENTERS, more), rows), seed)


def needs_kernel_search(recipe: Any) -> bool:
    """Return True if a recipe leaves the kernel to the rows: none, or its name, and no features or centers in Z."""
    given = not is_open(recipe.kernel) or recipe.features is not None
    return not (given or recipe.centers is None or isinstance(recipe.centers, Given) or recipe.train.augmentations)


def search_for(
    cost_estimate: CostEstimate, rows: int, budget: int, seed: int = 0, leaves: int = 1,
    kernel: Kernel | None = None, metric: AGOP | None = None,
) -> Search | None:  # fmt: skip
    """Return the largest search that a fit allows; None where not even the smallest is.

    The work at nominal prices is at most ``MAX_SEARCH_SHARE`` of that of the fit (of ``LBFGS``, of that of
    ``Direct``), times its ``leaves``; or, where that is more, ``MIN_SEARCH_WORK``, or the fit's part of the rows times
    ``MIN_FULL_KERNEL_SEARCH_WORK`` where every row is a center. Those of models of the search are centers then, too;
    for several leaves they have few centers, and the sample more rows. ``kernel`` and ``metric`` are the recipe's.
    """
    d = cost_estimate.size.d
    size = replace(cost_estimate.size, slots=ASSUMED_THREADS, overlaps=True)
    solver, traits = cost_estimate.solver, traits_of(cost_estimate.solver)
    # The search fits least squares. A logistic fit takes less, and a wrong kernel costs it more than the search.
    fit = nominal_work(solver if traits.least_squares else Direct(), size)
    whole = MIN_FULL_KERNEL_SEARCH_WORK * min(1.0, size.n / rows) if size.all_rows_are_centers else 0.0
    allowed = min(MAX_SEARCH_WORK, max(MIN_SEARCH_WORK, whole, MAX_SEARCH_SHARE * leaves * fit))
    all_rows_are_centers = leaves == 1 and size.all_rows_are_centers
    few = ((rows, rows),) if MIN_METRIC_ROWS <= rows < MIN_ROWS_TO_HOLD_OUT else ()
    # Passes of a solver that iterates would compute the sum's values over and over, and see its spectrum.
    searches = [
        _search(sample, sample if all_rows_are_centers else p, d, seed, traits.one_pass, kernel, metric)
        for sample, p in (*SUBSAMPLE_SIZES, *few)
        if sample <= rows
    ]

    def fits(search: Search) -> bool:
        if search.memory(replace(size, slots=USUAL_THREADS), rows, 1) > budget // SEARCH_MEMORY_DIVISOR:
            return False
        return search.work(size).priced(nominal_prices(d)) <= allowed

    first = bisect_left(searches, True, key=fits)  # a smaller one takes less of both
    return searches[first] if first < len(searches) else None


def sample_search(
    sample: Dataset, centers: int, seed: int, linear: bool, kernel: Kernel | None, metric: AGOP | None
) -> Search | None:
    """The search on all rows of a subsample; None where they are too few for it."""
    rows, d = sample.base_rows, sample.n_features
    return _search(rows, centers, d, seed, linear, kernel, metric) if rows >= MIN_METRIC_ROWS else None


def _search(
    rows: int, centers: int, d: int, seed: int, linear: bool, kernel: Kernel | None, metric: AGOP | None
) -> Search:
    kinds = [] if rows < MIN_ROWS_TO_HOLD_OUT else ["diagonal"]
    if rows >= max(MIN_ROWS_TO_HOLD_OUT, MIN_ROWS_PER_FEATURE * d) and 1 < d <= MAX_FULL_FEATURES:
        kinds.append("full")
    if metric is not None:
        kinds = [] if rows < MIN_ROWS_TO_HOLD_OUT else list(metric.kinds(d))
    family = Laplace() if kernel is None else kernel
    norms = (2, 1) if d <= MAX_L1_FEATURES and isinstance(family, Laplace) else (2,)
    found = Search(
        rows, rows, norms, tuple(kinds), seed, linear and kernel is None, family=type(family).__name__, metric=metric
    )
    return replace(found, centers=found.fitted_rows if found.leave_one_out else min(centers, found.fitted_rows))


def choose_kernel(search: Search, problem: Problem) -> KernelChoice:
    """Return the kernel of training rows, as good as that of the problem at least; its centers are not looked at."""
    share = 0.0 if search.leave_one_out else HELD_OUT_SHARE
    rounds = Rounds.of(search.agop, problem.kernel, problem, share, search.all_rows_are_centers)
    rounds, trials = replace(rounds, ridges=search.ridges), _Trials(problem.engine.overlaps)
    choose = _chosen_by_leave_one_out if search.leave_one_out else _chosen_on_held_out
    found, simple, others = choose(search, rounds, trials)
    found = _with_linear(rounds, found, [simple, *others], trials) if search.linear else found
    if search.metric_of_few is None:
        metric = rounds.on(found.problem.kernel).metric(found, [simple, *([] if found is simple else [found])])
    else:
        metric = learn_metric(search.metric_of_few, found.problem.kernel, problem)
    described, rows = found.problem.kernel.to_json(), rounds.train.base_rows
    return KernelChoice(
        described, found.ridge, rows, metric, tuple(trials.made), simple.error, found.error, rounds.held is not None
    )


def _chosen_by_leave_one_out(search: Search, rounds: Rounds, trials: _Trials) -> tuple[Round, Round, list[Round]]:
    own: Any = rounds.kernel  # in the L2 norm
    spans = {2: float(own.bandwidth), 1: rounds.span}
    kernels = [own]
    for norm in (norm for norm in search.norms if spans[norm] > 0):
        multiples = [m for m in BANDWIDTHS if (m, norm) != (1.0, 2)]
        kernels += with_bandwidths(_in_norm(own, norm), spans[norm], multiples)
    simple, *more = trials.noted([rounds.on(kernel).plain for kernel in kernels])
    return _preferred(simple, more), simple, more


def _chosen_on_held_out(search: Search, rounds: Rounds, trials: _Trials) -> tuple[Round, Round, list[Round]]:
    problem, few = rounds.like, rounds.fewer(*search.few)
    first: list[list[Round]] = []
    for norm in search.norms:
        try:
            median = median_distance(few.train, problem.executor, problem.dtype, norm)
        except DataError:  # all rows that were looked at are the same
            continue
        kernels = with_bandwidths(_in_norm(rounds.kernel, norm), median, SEARCH_BANDWIDTHS)
        plain = _least_error(trials.noted([few.on(kernel).plain for kernel in kernels]))
        here = few.on(plain.problem.kernel)
        kinds = trials.each([partial(here.learned, plain, kind) for kind in search.kinds])
        learned = [_least_error(each) for each in kinds if each]
        near = [_with_best_bandwidth(here, each, NEAR_BANDWIDTHS[:2], trials) for each in learned]
        first.append([plain, *near])
    finalists = _finalists(first) if first else []
    (simple,) = trials.noted([rounds.plain])
    # A ridge for few centers is far from that of many: the search for it begins at that of the first.
    ridge = simple.ridge if rounds.factors_each else None
    last = trials.noted([partial(rounds.on(each.problem.kernel).through, each, ridge) for each in finalists])
    best = _simplest(simple, last)
    if best.kind != "none":
        (further,) = trials.each([partial(rounds.on(best.problem.kernel).learned, best, best.kind, MAX_FURTHER_ROUNDS)])
        best = _least_error([best, *further])
    found = best
    if first and not best.exact:
        found = _with_best_bandwidth(rounds, best, NEAR_BANDWIDTHS, trials)
    return (_preferred(simple, [found]) if best is simple else found), simple, last


def _in_norm(kernel: Any, norm: int) -> Any:
    return kernel if kernel.norm == norm else replace(kernel, norm=norm)


def _with_linear(rounds: Rounds, best: Round, others: Sequence[Round], trials: _Trials) -> Round:
    """The best, or one with a linear part where that is surely better; the L1 norm has no products to add."""
    square = float(rounds.variance.sum())
    if isinstance(rounds.encoding, Classes) or not square > 0 or best.exact:
        return best
    base = _least_error([each for each in [best, *others] if each.problem.kernel.norm == 2])
    kernels = [
        base.problem.kernel + float(f"{weight / square:.3g}") * Linear(centred=True) for weight in LINEAR_WEIGHTS
    ]
    found = _least_error(trials.noted([partial(rounds.on(kernel).through, base) for kernel in kernels]))
    return found if found.errors.beats(best.errors, LINEAR_STANDARD_ERRORS) else best


def _finalists(first: Sequence[Sequence[Round]]) -> list[Round]:
    """The best of each norm, and of the better norm the best with another metric, or none: few rows cannot tell."""
    kept = [_simplest(each[0], each[1:]) for each in first]
    top = _least_error(kept)
    others = [each for some in first for each in some if any(top is one for one in some) and each.kind != top.kind]
    return [*kept, *([_least_error(others)] if others else [])]


def _with_best_bandwidth(rounds: Rounds, best: Round, multiples: Sequence[float], trials: _Trials) -> Round:
    """The best of other bandwidths, each at finer steps of the ridge; or, where a ridge takes a factor, at last."""
    ridges = (float(f"{multiple * best.ridge:.1g}") for multiple in RIDGE_MULTIPLES)
    finer = replace(rounds, ridges=tuple(ridge for ridge in ridges if ridge >= SEARCH_RIDGES[0]))
    kernel: Any = best.problem.kernel
    tried = replace(rounds, ridges=(best.ridge,)) if rounds.factors_each else finer
    near = with_bandwidths(kernel, kernel.sigma, [m for m in multiples if m != 1.0 or not rounds.factors_each])
    found = _least_error([best, *trials.noted([partial(tried.on(each).through, best) for each in near])])
    if rounds.factors_each:
        found = _least_error([found, *trials.noted([partial(finer.on(found.problem.kernel).through, found)])])
    return found


def _simplest(simple: Round, more: Sequence[Round]) -> Round:
    for kind in ("none", "diagonal", "full"):
        simple = _preferred(simple, [each for each in more if each.kind == kind])
    return simple


def _preferred(simpler: Round, more: Sequence[Round]) -> Round:
    """The least error of more, where it beats that of the simpler model, or else the simpler model."""
    least = _least_error([simpler, *more])
    return least if least.errors.beats(simpler.errors) and not simpler.exact else simpler


class _Trials:
    """Fits and notes models; with ``overlaps`` two at a time, as one may hold Python's lock or have few blocks."""

    def __init__(self, overlaps: bool) -> None:
        self.made: list[dict[str, Any]] = []
        self.overlaps = overlaps

    def each(self, calls: Sequence[Callable[[], list[Round]]]) -> list[list[Round]]:
        if self.overlaps and len(calls) > 1:
            with ThreadPoolExecutor(CONCURRENT_FITS, "streamkern-search") as pool:
                found = list(pool.map(lambda call: call(), calls))
        else:
            found = [call() for call in calls]
        for made in (each for rounds in found for each in rounds):
            rows, centers = made.problem.train.base_rows, len(made.problem.centers.Z)
            self.made.append({"kernel": made.problem.kernel.to_json(), "rows": rows, "centers": centers} | made.facts())
        return found

    def noted(self, fits: Sequence[Callable[[], Round]]) -> list[Round]:
        return [made for (made,) in self.each([lambda fit=fit: [fit()] for fit in fits])]  # type: ignore[misc]


def _least_error(rounds: Sequence[Round]) -> Round:
    return min(rounds, key=lambda each: each.error)
