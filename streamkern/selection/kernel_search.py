"""The kernel of a fit without one: norm, bandwidth, metric and ridge, by the error on held-out rows of a subsample.

A search in two parts. On few rows with few centers, for each norm, bandwidths are compared, and metrics of both kinds
are learned at the best of them. The best of each norm, and of the better norm the best with a metric and without, are
fitted to all rows of the subsample, where the best learns its metric further. They have every row that they are fitted
to as a center where the fit will have: few centers want other bandwidths and metrics, and larger ridges. A metric has
to be better than none by ``MIN_IMPROVEMENT`` of the squared error, a full one than a diagonal one, and anything than
``default_kernel``. Bandwidths about that of the best are compared last, at finer steps of the ridge.

The search takes at most half of the time of the fit that it is for, or three seconds (half a minute where every row is
a center), and at most two minutes. Work is counted on arrays of shapes at fixed prices of slow cores, never in seconds:
the choice is the same on any machine, on threads and workers. Where not even the smallest search is allowed, the kernel
is ``default_kernel``.

Of fewer rows than the smallest sample has, all are fitted, norms, bandwidths and ridges are compared by the errors of
rows left out one at a time, in closed form, and no metric is learned: a third of few rows held out says too little, and
leaves too few to fit. There the standard error counts, too. A row that equals others is left out alone: else a table of
few distinct rows would be judged by rows whose like was never seen (ADR 20).
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
from streamkern.costs.dry_run import ASSUMED_THREADS, WORK_PER_SECOND, CostEstimate, nominal_prices, nominal_work
from streamkern.costs.fit_shape import SearchCost
from streamkern.data.dataset import Dataset
from streamkern.data.statistics import Statistics
from streamkern.data.targets import Classes
from streamkern.engine.operation_counts import Operations
from streamkern.errors import DataError
from streamkern.kernels import Kernel, Laplace, Linear, kernel_from_json
from streamkern.selection.learned_metric import (
    AGOP,
    MAX_FULL_FEATURES,
    MIN_ROWS,
    Metric,
    Round,
    Rounds,
    round_work,
    sampled_bytes,
)
from streamkern.selection.median_bandwidth import median_distance
from streamkern.solvers.base import Problem, Solver, traits_of
from streamkern.solvers.direct import Direct
from streamkern.storage.serialize import serializable

SUBSAMPLE_SIZES = tuple(
    (rows, max(rows // 10, min(rows // 3, 500)))
    for rows in (
        *(25_000, 21_000, 18_000, 15_000, 12_500, 10_500, 9_000, 7_500, 6_300, 5_300, 4_400, 3_700, 3_000),
        *(2_500, 2_000, 1_600, 1_250, 1_000, 800, 600, 400),
    )
)
"""Rows of the subsample and centers of its models, the largest first."""

MIN_ROWS_TO_HOLD_OUT = SUBSAMPLE_SIZES[-1][0]
"""Rows of which a third is held out: a third of fewer says too little; they are left out one by one."""

HELD_OUT_SHARE = 1 / 3
"""Share of the subsample that models are compared on: an error takes less than a fit."""

FIRST_MODELS_DIVISOR = 3
"""The first models are fitted to the subsample's rows, and have its centers, divided by this."""

MAX_FINALISTS = 3
"""Models of the first part that are fitted to all rows of the subsample, at most."""

MAX_FURTHER_ROUNDS = 1
"""Rounds, at most, in which the best of these learns its metric further."""

RIDGES = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Ridges of a model: each takes a factorisation."""

MAX_WORK_SHARE = 0.5
"""Work of the search at nominal prices, at most, as a part of that of the fit."""

MAX_SEARCH_WORK = 120 * WORK_PER_SECOND
"""Work of the search at most: two minutes on two slow cores."""

MIN_SEARCH_WORK = 3 * WORK_PER_SECOND
"""Work that the search may take whatever the fit takes: three seconds on two slow cores; of a leaf a tenth of that."""

MIN_FULL_KERNEL_SEARCH_WORK = 32 * WORK_PER_SECOND
"""The same where every row is a center: half a minute on two slow cores, a few seconds on cores with wide vectors."""

MEMORY_DIVISOR = 8
"""The search may hold this part of the budget."""

CONCURRENT_FITS = 2
"""Models that are fitted at a time."""

BANDWIDTH_MULTIPLES = (0.5, 1.0, 2.0, 4.0)
"""Bandwidths of the search, in median distances of two rows."""

LOO_BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Bandwidths that are compared, in mean distances of two rows: few rows are far from one another."""

LOO_RIDGES = (1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
"""Ridges of a model of few rows: where targets are noise, a large one."""

SMALLER_BANDWIDTHS = (0.36, 0.6)
"""Bandwidths that are compared through a metric, which takes distances away, in multiples of its first round's."""

FINAL_BANDWIDTHS = (0.36, 0.6, 1.0, 1.7)
"""Bandwidths that are compared at last, in multiples of the best so far, the smallest first."""

BANDWIDTH_TIE = 0.002
"""Part of the squared error that a smaller bandwidth may add where no ridge helps: Laplace models that pass through
their rows hardly depend on the bandwidth, but more centers and rows want a smaller one, which takes fewer passes."""

MAX_INTERPOLATING_RIDGE = 1e-7
"""Ridges up to which a model is taken to pass through its rows."""

MIN_LOGISTIC_RIDGE = 3e-7
"""Ridge of ``Logistic`` at least, for the rows of the subsample: where squares want none, logits grow without bound."""

LINEAR_WEIGHTS = (1.0, 30.0)
"""Weights of a linear part: its mean on the diagonal, where the kernel that it is added to is 1."""

LINEAR_STANDARD_ERRORS = 2.0
"""Standard errors by which it has to be better: beyond the rows it goes on without bound."""

RIDGE_MULTIPLES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Ridges of these, in multiples of the best so far."""

MIN_IMPROVEMENT = 0.01
"""Part of the squared error by which a choice has to be better than a simpler one."""

MAX_ROWS_AS_CENTERS = 10_000
"""Rows up to which each of them is a center by default: n³/3 operations of a factor, mostly in float32, where normal
equations of half as many centers take n³/4 in float64."""

DEFAULT_CENTERS, MAX_CENTERS_BY_ROWS, MAX_CENTERS = 2_000, 5_000, 8_000
"""Centers by default where not every row is one: as many rows as a preconditioner looks at, and a set-up of a few
seconds; one for four rows, at most; and one for eight, at most."""

MAX_PASS_WORK = 30 * WORK_PER_SECOND
"""Work of a pass over wide rows with more than ``DEFAULT_CENTERS``, at most: half a minute on two slow cores."""

MIN_ROWS_PER_COLUMN = 20
"""Rows of the subsample for each number of a metric's diagonal, at least: what fewer say of many does not hold for all
rows. There are as many as columns, or, for metrics of all directions, as features."""

MAX_L1_FEATURES = 200
"""Features up to which the L1 norm is tried: of wider rows its distances cost several times a product."""

_EQUATION_BYTES = (
    190  # bytes of normal equations on ``ASSUMED_THREADS`` threads for each p², which may be half of the budget
)
_METRIC_ROUNDS = 3
_SLOTS = 4  # threads assumed for memory, so that the choice does not depend on their real number
_FINAL_FITS = 1 + MAX_FINALISTS + MAX_FURTHER_ROUNDS + len(FINAL_BANDWIDTHS)  # on all rows of the subsample


@dataclass(frozen=True)
class Search:
    """The trials of a search.

    With ``smaller`` a bandwidth may be smaller than the best, where least squares is as good: see ``BANDWIDTH_TIE``.
    With ``linear`` a linear part added to the kernel is tried, for values.
    """

    rows: int
    centers: int
    norms: tuple[int, ...]
    kinds: tuple[str, ...]
    seed: int = 0
    smaller: bool = True
    linear: bool = False

    @property
    def agop(self) -> AGOP:
        """The metric that is tried."""
        return AGOP(_METRIC_ROUNDS, "auto" if len(self.kinds) > 1 else "diagonal", self.rows, self.centers, self.seed)

    @property
    def few(self) -> tuple[int, int]:
        """Rows that the first models are fitted to, and their centers."""
        rows = self.rows // FIRST_MODELS_DIVISOR
        return rows, min(self.centers, rows) // FIRST_MODELS_DIVISOR

    @property
    def all_rows_are_centers(self) -> bool:
        """True if models of the last part have every row that they are fitted to as a center."""
        return self.centers >= _fitted_rows(self.rows)

    @property
    def leave_one_out(self) -> bool:
        """True if rows are left out one at a time, since they are few."""
        return self.rows < MIN_ROWS_TO_HOLD_OUT

    @property
    def fits(self) -> int:
        """Models, at most."""
        if self.leave_one_out:
            return len(self.norms) * len(LOO_BANDWIDTHS) + self._linear
        return len(self.norms) * self._some + _FINAL_FITS + self._linear

    @property
    def _linear(self) -> int:
        return len(LINEAR_WEIGHTS) if self.linear else 0

    @property
    def _some(self) -> int:
        return len(BANDWIDTH_MULTIPLES) + len(self.kinds) * (_METRIC_ROUNDS + len(SMALLER_BANDWIDTHS))

    def work(self, size: Any) -> Operations:
        """Operations, on arrays of shapes."""
        if self.leave_one_out:
            fitted, gradients, _ = self._left_out_work(size)
            return float(self.fits) * fitted + gradients
        full, total = "full" in self.kinds, Operations()
        metrics = _METRIC_ROUNDS * len(self.kinds)
        fitted_to = _fitted_rows(self.rows)
        longer = (6.0 * size.d + 40) / (2.0 * size.d + 40)  # a value in the L1 norm
        for (rows, p), fits, outer, norms in (
            (self.few, self._some, metrics, self.norms),
            ((fitted_to, self.centers), _FINAL_FITS + self._linear, (MAX_FURTHER_ROUNDS + 1) * bool(self.kinds), (1,)),
        ):
            fitted, gradients, _ = round_work(rows, p, full, size, RIDGES, self.rows - fitted_to, likely=True)
            for norm in norms:
                found = float(fits) * fitted + float(outer) * gradients
                total += replace(found, values=found.values * (longer if norm == 1 and 1 in self.norms else 1.0))
        return total

    def cost_estimate(self, size: Any, rows: int) -> SearchCost:
        found = self.agop.cost_estimate(size, rows)
        if self.leave_one_out:
            found = found._replace(rows=float(self.rows * (1 + self.fits)))
        memory = self.memory(size, rows, CONCURRENT_FITS)
        return found._replace(memory=memory, work=self.work(size), rounds=self.fits)

    def memory(self, size: Any, rows: int, together: int) -> int:
        """Return bytes at the peak, with the sample, where ``together`` models are fitted at once."""
        metric, one = self.agop.cost_estimate(size, rows).memory, replace(size, slots=1)
        if self.leave_one_out or self.all_rows_are_centers:
            own = sampled_bytes(self.rows, size) + self._peak(size)
            metric = own if self.leave_one_out else max(metric, own)
        return metric + ((together - 1) * self._peak(one) if size.overlapping else 0)

    def _peak(self, size: Any) -> int:
        if self.leave_one_out:
            return self._left_out_work(size)[2]
        return round_work(_fitted_rows(self.rows), self.centers, "full" in self.kinds, size, RIDGES)[2]

    def _left_out_work(self, size: Any) -> tuple[Operations, Operations, int]:
        return round_work(self.rows, self.rows, False, replace(size, overlaps=False), LOO_RIDGES, compared=0)

    def text(self) -> str:
        """The trials, in a sentence."""
        norms = " and ".join(f"L{norm}" for norm in sorted(self.norms))
        linear = "; for values also with a linear part" if self.linear else ""
        if self.leave_one_out:
            return (
                f"kernel: Laplace in the {norms} norm, {len(LOO_BANDWIDTHS)} bandwidths, by the errors of all "
                f"{self.rows:,} rows, each left out{linear}"
            )
        metric = f"a metric ({', '.join(self.kinds)}) or none" if self.kinds else "no metric"
        centers = (
            "every row that is not held out as a center" if self.all_rows_are_centers else f"{self.centers:,} centers"
        )
        return (
            f"kernel: Laplace in the {norms} norm, {len(BANDWIDTH_MULTIPLES)} bandwidths, {metric}, "
            f"by the error on held-out rows of {self.rows:,}; models with {centers}{linear}"
        )


@serializable
@dataclass(frozen=True, eq=False)
class KernelChoice:
    """The kernel that was chosen, as JSON, with its ridge for ``rows`` rows, and why.

    The metric is of kind ``none`` where none is better. ``trials`` have kernel, kind, round, rows, centers, ridge,
    squared error and score of every model, in order. ``simple`` is the squared error of ``default_kernel``, ``best`` of
    the choice.
    """

    described: dict[str, Any]
    ridge: float
    rows: int
    metric: Metric
    trials: tuple[dict[str, Any], ...]
    simple: float
    best: float

    @property
    def leave_one_out(self) -> bool:
        return self.rows < MIN_ROWS_TO_HOLD_OUT

    @property
    def kernel(self) -> Kernel:
        return kernel_from_json(self.described)

    def reason(self) -> str:
        """Return the choice and its reasons, in a sentence."""
        tried = f"of {len(self.trials)} models on {self.rows:,} rows"
        head = f"kernel: {self.kernel!r}, the root mean square distance; "
        if self.best == self.simple:
            if self.metric.begins_exact:
                return f"{head}its error is one of rounding"
            right = " and right as often" if self.metric.metric == "accuracy" else ""
            sure = "surely " if self.leave_one_out else ""
            return f"{head}nothing {tried} is {sure}{MIN_IMPROVEMENT:.0%} better{right}"
        metric = "no metric" if self.metric.kind == "none" else f"a {self.metric.kind} metric"
        radial, linear = radial_part(self.described)
        rows = "rows left out one at a time" if self.leave_one_out else "held-out rows"
        kernel = f"{kernel_from_json(radial)!r}{' and a linear part' if linear else ''}"
        return (
            f"kernel: {kernel} with {metric}: squared error {self.best:.4g} on {rows}, chosen {tried}, and "
            f"{self.simple:.4g} with the default bandwidth and no metric"
        )

    def chosen(self, trial: dict[str, Any]) -> bool:
        """Return True if a model of ``trials`` is the chosen one."""
        return bool(trial["kernel"] == self.described and trial["mse"] == self.best)

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
        head = ("norm", "bandwidth", "metric", "round", "rows", "centers", "ridge", "score", "mse")
        lines = ["".join(f"{name:>10}" for name in head)]
        for trial in self.trials:
            norm, sigma = norm_and_bandwidth(trial["kernel"])
            lines.append(
                f"{norm:>10}{sigma:>10.4g}{trial['kind']:>10}{trial['round']:>10}{trial['rows']:>10,}"
                f"{trial['centers']:>10,}{trial['ridge']:>10.0e}{trial['score']:>10.4f}{trial['mse']:>10.4g}"
                + (" *" if self.chosen(trial) else "")
            )
        return lines

    def solver(self, given: Solver, n: int) -> Solver:
        """Return the solver with the chosen ridge for n rows, if its ridge is the default: noise asks for λ n."""
        least = 0.0 if traits_of(given).least_squares else MIN_LOGISTIC_RIDGE
        return with_ridge(given, max(self.ridge, least) * min(1.0, self.rows / n))


def default_kernel(facts: Statistics, dataset: Dataset) -> Laplace:
    """Return Laplace with σ² = 2 Σ_j var(x_j), in scaled units, so that a typical kernel value is near 1/e."""
    spread = 2.0 * float(np.sum(facts.variance * np.square(dataset.factor)))
    return Laplace(float(np.sqrt(spread)) if spread > 0 else 1.0)


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


def ridge_under_weights(given: Solver, rows: int) -> Solver:
    """Return the solver with the ridge 1/n, if its own is the default, so that weights of classes count."""
    return with_ridge(given, 1 / rows)


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
    """Return True if a recipe leaves the kernel to the rows: no kernel, metric, features or centers are given."""
    given = recipe.kernel is not None or recipe.features is not None or recipe.metric is not None
    return not (given or recipe.centers is None or isinstance(recipe.centers, Given) or recipe.train.augmentations)


def search_for(
    cost_estimate: CostEstimate, rows: int, columns: int, budget: int, seed: int = 0, share: float | None = None
) -> Search | None:
    """Return the largest search that a fit allows; None where not even the smallest is.

    ``columns`` are those of the table: its categories have a weight of their metric each, whatever their levels.
    ``share`` bounds the work at nominal prices, as a part of that of the fit (of ``Logistic``, of that of ``Direct``),
    or a tenth of ``MIN_SEARCH_WORK`` where that is more; by default ``MAX_WORK_SHARE``, or ``MIN_SEARCH_WORK``, or
    ``MIN_FULL_KERNEL_SEARCH_WORK``.
    """
    d = cost_estimate.size.d
    size = replace(cost_estimate.size, slots=ASSUMED_THREADS, overlaps=True)
    solver, traits = cost_estimate.solver, traits_of(cost_estimate.solver)
    # The search fits least squares. A logistic fit takes less, and a wrong kernel costs it more than the search.
    fit = nominal_work(solver if traits.least_squares else Direct(), size)
    all_rows_are_centers = share is None and size.all_rows_are_centers
    least = (
        MIN_FULL_KERNEL_SEARCH_WORK
        if all_rows_are_centers
        else MIN_SEARCH_WORK
        if share is None
        else MIN_SEARCH_WORK / 10
    )
    allowed = min(MAX_SEARCH_WORK, max(least, (MAX_WORK_SHARE if share is None else share) * fit))
    few = ((rows, rows),) if MIN_ROWS <= rows < MIN_ROWS_TO_HOLD_OUT else ()
    sizes = (
        [(sample, _fitted_rows(sample)) for sample, _ in SUBSAMPLE_SIZES] if all_rows_are_centers else SUBSAMPLE_SIZES
    )
    # Passes of a solver that iterates would compute the sum's values over and over, and see its spectrum.
    linear, smaller = traits.one_pass, traits.least_squares
    searches = [
        replace(_search(sample, p, columns, d, seed, linear), smaller=smaller)
        for sample, p in (*sizes, *few)
        if sample <= rows
    ]

    def fits(search: Search) -> bool:
        if search.memory(replace(size, slots=_SLOTS), rows, 1) > budget // MEMORY_DIVISOR:
            return False
        return search.work(size).priced(nominal_prices(d)) <= allowed

    first = bisect_left(searches, True, key=fits)  # a smaller one takes less of both
    return searches[first] if first < len(searches) else None


def _fitted_rows(rows: int) -> int:
    return rows - round(HELD_OUT_SHARE * rows)


def sample_search(sample: Dataset, centers: int, seed: int, linear: bool) -> Search | None:
    """The search on all rows of a subsample; None where they are too few for it."""
    rows, d = sample.base_rows, sample.n_features
    return _search(rows, centers, sample.source.n_features, d, seed, linear) if rows >= MIN_ROWS else None


def _search(rows: int, centers: int, columns: int, d: int, seed: int, linear: bool) -> Search:
    kinds = [] if rows < max(MIN_ROWS_TO_HOLD_OUT, MIN_ROWS_PER_COLUMN * min(columns, d)) else ["diagonal"]
    if rows >= max(MIN_ROWS_TO_HOLD_OUT, MIN_ROWS_PER_COLUMN * d) and 1 < d <= MAX_FULL_FEATURES:
        kinds.append("full")
    return Search(rows, centers, (2, 1) if d <= MAX_L1_FEATURES else (2,), tuple(kinds), seed, linear=linear)


def choose_kernel(search: Search, default: Kernel, problem: Problem) -> KernelChoice:
    """Return the kernel of training rows; that of the problem, and its centers, are not looked at."""
    if search.leave_one_out:
        return _chosen_by_leave_one_out(search, default, problem)
    rounds = replace(
        Rounds.of(search.agop, default, problem, HELD_OUT_SHARE, search.all_rows_are_centers), ridges=RIDGES
    )
    few, trials = rounds.fewer(*search.few), _Trials(problem.engine.overlaps)
    first: list[list[Round]] = []
    for norm in search.norms:
        try:
            median = median_distance(few.train, problem.executor, problem.dtype, norm)
        except DataError:  # all rows that were looked at are the same
            continue
        plain = _least_error(trials.noted([few.on(_laplace(m * median, norm)).plain for m in BANDWIDTH_MULTIPLES]))
        here = few.on(plain.problem.kernel)
        kinds = trials.each([partial(here.learned, plain, kind) for kind in search.kinds])
        learned = [_least_error(each) for each in kinds if each]
        near = [_with_best_bandwidth(here, each, SMALLER_BANDWIDTHS, trials, search.smaller) for each in learned]
        first.append([plain, *near])
    finalists = _finalists(first) if first else []
    through = [partial(rounds.on(each.problem.kernel).through, each) for each in finalists]
    simple, *last = trials.noted([rounds.plain, *through])
    best = _simplest(simple, last)
    if best.kind != "none":
        (further,) = trials.each([partial(rounds.on(best.problem.kernel).learned, best, best.kind, MAX_FURTHER_ROUNDS)])
        best = _least_error([best, *further])
    found = (
        _with_best_bandwidth(rounds, best, FINAL_BANDWIDTHS, trials, search.smaller)
        if first and not best.exact
        else best
    )
    if best is simple:
        found = _preferred(simple, [found])
    found = _with_linear(rounds, found, [simple, *last], trials) if search.linear else found
    metric = rounds.on(found.problem.kernel).metric(found, [simple, *([] if found is simple else [found])])
    kernel = found.problem.kernel
    return KernelChoice(
        kernel.to_json(), found.ridge, rounds.train.base_rows, metric, tuple(trials.made), simple.mse, found.mse
    )


def _chosen_by_leave_one_out(search: Search, default: Kernel, problem: Problem) -> KernelChoice:
    rounds = replace(Rounds.of(search.agop, default, problem, 0.0, True), ridges=LOO_RIDGES)
    trials = _Trials(problem.engine.overlaps)
    own: Any = default  # in the L2 norm
    spans = {2: float(own.bandwidth), 1: rounds.span}
    others = [(m, norm) for norm in search.norms for m in LOO_BANDWIDTHS if spans[norm] > 0 and (m, norm) != (1.0, 2)]
    kernels = [default, *(_laplace(m * spans[norm], norm) for m, norm in others)]
    simple, *more = trials.noted([rounds.on(kernel).plain for kernel in kernels])
    best = _least_error([simple, *more])
    found = best if best.errors.beats(simple.errors) and not simple.exact else simple
    found = _with_linear(rounds, found, [simple, *more], trials) if search.linear else found
    metric = rounds.metric(found, [simple, *([] if found is simple else [found])])
    described, rows = found.problem.kernel.to_json(), rounds.train.base_rows
    return KernelChoice(described, found.ridge, rows, metric, tuple(trials.made), simple.mse, found.mse)


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
    """The best of each norm, and of the better norm the best with a metric and without: few rows cannot tell."""
    kept = [_simplest(each[0], each[1:]) for each in first]
    top = _least_error(kept)
    (others,) = (some for some in first if any(each is top for each in some))
    plain, *learned = others
    more = [plain] if top is not plain else [_simplest(learned[0], learned[1:])] if learned else []
    return [*kept, *more]


def _with_best_bandwidth(
    rounds: Rounds, best: Round, multiples: Sequence[float], trials: _Trials, smaller: bool
) -> Round:
    """The model at the best of the bandwidths near its own; or, where no ridge helps, the smallest that is as good."""
    ridges = (float(f"{multiple * best.ridge:.1g}") for multiple in RIDGE_MULTIPLES)
    finer = replace(rounds, ridges=tuple(ridge for ridge in ridges if ridge >= RIDGES[0]))
    kernel: Any = best.problem.kernel
    near = [_laplace(each * kernel.sigma, kernel.norm) for each in multiples]
    made = trials.noted([partial(finer.on(each).through, best) for each in near])
    least = _least_error([best, *made])
    if least.ridge > MAX_INTERPOLATING_RIDGE or not smaller:
        return least
    return next(each for each in [*made, best] if each.mse <= (1 + BANDWIDTH_TIE) * least.mse)


def _simplest(simple: Round, more: Sequence[Round]) -> Round:
    for kind in ("none", "diagonal", "full"):
        simple = _preferred(simple, [each for each in more if each.kind == kind])
    return simple


def _preferred(simpler: Round, more: Sequence[Round]) -> Round:
    """The least squared error of more, where it is better by ``MIN_IMPROVEMENT``, or else the simpler model.

    A metric may lower the squared error of classes and decide worse (ADR 22): models that are right less often than the
    simpler one, by more than the standard error, are left out.
    """
    least = _least_error([simpler, *(each for each in more if each.score >= simpler.score - simpler.standard_error)])
    return least if least.mse < (1 - MIN_IMPROVEMENT) * simpler.mse and not simpler.exact else simpler


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
    return min(rounds, key=lambda each: each.mse)


def _laplace(bandwidth: float, norm: int) -> Laplace:
    """A Laplace kernel whose bandwidth has four digits, as a person would type it."""
    return Laplace(float(f"{bandwidth:.4g}"), norm=norm)
