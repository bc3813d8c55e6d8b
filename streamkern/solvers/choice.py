"""The kernel of a fit without one: norm, bandwidth, metric and ridge, by the error on held-out rows of a subsample.

A search by halving. On few rows with few centers, for each norm, bandwidths are compared, and metrics of both kinds are
learned at the best of them. On all rows of the subsample the best norm and kind are learned again, and bandwidths about
theirs are compared with each other and with ``default_kernel``. What is more than ``default_kernel`` has to be
better than it by ``ENOUGH`` of the squared error.

The search takes at most half of the time of the fit that it is for, and at most two minutes. Work is counted on
arrays of shapes at fixed prices, never in seconds: what is chosen is the same on any machine, on threads and workers.
Where not even the smallest search is allowed, the kernel is ``default_kernel``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamkern.centers import Given, Uniform
from streamkern.data.dataset import Dataset
from streamkern.data.statistics import Statistics
from streamkern.engine.operations import Operations
from streamkern.errors import DataError
from streamkern.kernels import Kernel, Laplace, kernel_from_json
from streamkern.solvers.bandwidth import median_distance
from streamkern.solvers.base import Problem, Solver
from streamkern.solvers.direct import Direct
from streamkern.solvers.falkon import Falkon
from streamkern.solvers.logistic import Logistic
from streamkern.solvers.metered import THREADS, Bill, nominal, nominal_work
from streamkern.solvers.metric import AGOP, WIDEST, Metric, Round, Rounds, metric_bill, round_work
from streamkern.storage.serialize import serializable

SIZES = ((25_000, 2_000), (16_000, 1_400), (10_000, 1_000), (7_000, 700), (5_000, 500), (3_000, 300))
"""Rows of the subsample and centers of its models, the largest first: errors of fewer rows say too little."""

RIDGES = (1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
"""Ridges of a model: each takes a factorisation."""

SHARE = 0.2
"""Work of the search at nominal prices, at most, as a part of that of the fit.

Its matrices are small, and run at 0.4 to 0.5 of the rate of the fit's: this is half of the fit's processor time.
"""

MOST_WORK = 120 * 5e10
"""Work of the search at most: two minutes on two slow cores."""

MEMORY_SHARE = 8
"""The search may hold this part of the budget."""

MULTIPLES = (0.5, 1.0, 2.0, 4.0)
"""Bandwidths of the search, in median distances of two rows."""

ABOUT = (0.6, 1.7)
"""Bandwidths that are compared at last, in multiples of the best so far."""

ENOUGH = 0.01
"""Part of the squared error by which a choice has to be better than a simpler one."""

CENTERS, SOME_CENTERS, MOST_CENTERS = 2_000, 5_000, 8_000
"""Centers by default: as many rows as a preconditioner looks at, and a set-up of a few seconds; up to which narrow rows
get one for four of them; and at most, one for eight."""

TELLING = 20
"""Rows of the subsample for each feature, at least: what fewer say of many features does not hold for all rows."""

WIDEST_L1 = 200
"""Features up to which the L1 norm is tried: of wider rows its distances take several times what a product takes."""

_EQUATIONS = 190  # bytes of normal equations on ``THREADS`` threads for each p², which may be half of the budget
_ROUNDS = 3
_SLOTS = 4  # that memory is reckoned for: what is chosen must not depend on how many there are
_LAST = 2 + _ROUNDS + len(ABOUT)  # on all rows of the subsample


@dataclass(frozen=True)
class Search:
    """What is tried.

    Attributes:
        rows: rows of the subsample.
        centers: centers of its models.
        norms: norms of distances.
        kinds: kinds of metrics.
        seed: of the subsample.
    """

    rows: int
    centers: int
    norms: tuple[int, ...]
    kinds: tuple[str, ...]
    seed: int = 0

    @property
    def agop(self) -> AGOP:
        """The metric that is tried."""
        return AGOP(_ROUNDS, "auto" if len(self.kinds) > 1 else self.kinds[0], self.rows, self.centers, self.seed)

    @property
    def few(self) -> tuple[int, int]:
        """Rows that the first models are fitted to, and their centers."""
        return self.rows // 2, self.centers // 2

    @property
    def fits(self) -> int:
        """Models, at most."""
        return len(self.norms) * (len(MULTIPLES) + len(self.kinds) * _ROUNDS) + _LAST

    def work(self, size: Any) -> Operations:
        """Operations, on arrays of shapes."""
        full, total = "full" in self.kinds, Operations()
        some = len(MULTIPLES) + _ROUNDS * len(self.kinds)
        longer = (6.0 * size.d + 40) / (2.0 * size.d + 40)  # a value in the L1 norm
        for (rows, p), fits, norms in ((self.few, some, self.norms), ((self.rows, self.centers), _LAST, (1,))):
            fitted, gradients, _ = round_work(rows, p, full, size, RIDGES)
            for norm in norms:
                found = float(fits) * fitted + float(_ROUNDS * len(self.kinds)) * gradients
                total += replace(found, values=found.values * (longer if norm == 1 and 1 in self.norms else 1.0))
        return total

    def text(self) -> str:
        """What is tried, in a sentence."""
        norms = " and ".join(f"L{norm}" for norm in sorted(self.norms))
        return (
            f"kernel: Laplace in the {norms} norm, {len(MULTIPLES)} bandwidths, a metric ({', '.join(self.kinds)}) or "
            f"none, by the error on held-out rows of {self.rows:,}; models of {self.centers:,} centers"
        )


@serializable
@dataclass(frozen=True, eq=False)
class KernelChoice:
    """The kernel that was chosen, and why.

    Attributes:
        described: the kernel as JSON.
        ridge: the best λ, for ``rows`` rows.
        rows: rows that it was fitted to.
        metric: the metric; of kind ``none`` where none is better.
        trials: kernel, kind, round, rows, centers, ridge, squared error and score of every model, in order.
        simple: squared error of ``default_kernel`` on the same rows.
        best: that of the choice.
    """

    described: dict[str, Any]
    ridge: float
    rows: int
    metric: Metric
    trials: tuple[dict[str, Any], ...]
    simple: float
    best: float

    @property
    def kernel(self) -> Kernel:
        """The kernel."""
        return kernel_from_json(self.described)

    def reason(self) -> str:
        """What was chosen and why, in a sentence."""
        tried = f"of {len(self.trials)} models on {self.rows:,} rows"
        if self.best == self.simple:
            return f"kernel: {self.kernel!r}, the root mean square distance; nothing {tried} is {ENOUGH:.0%} better"
        metric = "no metric" if self.metric.kind == "none" else f"a {self.metric.kind} metric"
        return (
            f"kernel: {self.kernel!r} with {metric}: squared error {self.best:.4g} on held-out rows, the least "
            f"{tried}, and {self.simple:.4g} with the default bandwidth and no metric"
        )

    def summary(self) -> dict[str, Any]:
        """JSON-serialisable facts, for results."""
        return {
            "kernel": dict(self.described),
            "metric": self.metric.kind,
            "ridge": self.ridge,
            "rows": self.rows,
            "reason": self.reason(),
            "trials": [dict(each) for each in self.trials],
        }

    def solver(self, given: Solver, n: int) -> Solver:
        """The solver with the ridge for n rows, where it has one that is not its default: noise asks for λ n."""
        return with_ridge(given, self.ridge * min(1.0, self.rows / n))


def default_kernel(facts: Statistics, dataset: Dataset) -> Laplace:
    """Laplace with the root mean square distance of two rows as bandwidth: σ² = 2 Σ_j var(x_j), in scaled units.

    So a typical kernel value is near 1/e, whatever the width of the rows and their units.
    """
    spread = 2.0 * float(np.sum(facts.variance * np.square(dataset.factor)))
    return Laplace(float(np.sqrt(spread)) if spread > 0 else 1.0)


def with_ridge(given: Solver, ridge: float) -> Solver:
    """The solver with a ridge, where it has one that is its default; that of least squares for any loss."""
    if isinstance(given, Direct | Falkon | Logistic) and given.ridge == type(given)().ridge:
        return replace(given, ridge=float(f"{ridge:.2g}"))
    return given


def ridge_under_weights(given: Solver, rows: int) -> Solver:
    """The solver with the ridge 1/n, where it has one that is its default: for weights of classes.

    A model that passes through every row has the same outputs whatever rows weigh.

    Args:
        given: the solver.
        rows: training rows n.
    """
    return with_ridge(given, 1 / rows)


def default_centers(rows: int, d: int, budget: int, seed: int) -> Uniform:
    """The centers of a fit without: 2,000, or more where rows are up to ``WIDEST_L1`` wide.

    These get a quarter of their number, up to 5,000, or an eighth, up to 8,000: a table needs more centers than images
    do, and each takes less. There are fewer where p² numbers in float64, three times over, would take more than a
    quarter of the budget; and no quarter of the rows where normal equations would not fit, since passes without a ridge
    are worse with so many.

    Args:
        rows: training rows.
        d: features as they are stored.
        budget: bytes the process may hold.
        seed: which rows are drawn.
    """
    room = int((budget / (4 * 3 * 8)) ** 0.5)
    solved = int((budget / (2 * _EQUATIONS)) ** 0.5)
    more = min(max(min(rows // 4, SOME_CENTERS, solved), rows // 8), MOST_CENTERS, room) if d <= WIDEST_L1 else 0
    return Uniform(min(max(CENTERS, more), rows), seed)


def leaves_open(recipe: Any) -> bool:
    """Whether a recipe leaves the kernel to the rows: neither a kernel, a metric, features nor centers are given."""
    given = recipe.kernel is not None or recipe.features is not None or recipe.metric is not None
    return not (given or recipe.centers is None or isinstance(recipe.centers, Given) or recipe.train.augmentations)


def search_for(bill: Bill, rows: int, budget: int, seed: int = 0, share: float | None = None) -> Search | None:
    """The largest search that a fit allows; None where not even the smallest is.

    Args:
        bill: of the fit.
        rows: training rows.
        budget: bytes the process may hold.
        seed: of the subsample.
        share: work of the search at nominal prices, at most, as a part of that of the fit, of ``Logistic`` as a part of
            that of ``Direct``; ``SHARE`` by default.
    """
    d = bill.size.d
    possible = [(sample, p) for sample, p in SIZES if TELLING * d <= sample <= rows]
    if not possible:
        return None
    size = replace(bill.size, slots=THREADS, overlaps=True)
    # The search fits least squares. A logistic fit takes less, and a wrong kernel costs it more than the search.
    fit = Direct() if isinstance(bill.solver, Logistic) else bill.solver
    allowed = min(MOST_WORK, (SHARE if share is None else share) * nominal_work(fit, size))
    kinds = ("diagonal", "full") if 1 < d <= WIDEST else ("diagonal",)
    for sample, p in possible:
        search = Search(sample, p, (2, 1) if d <= WIDEST_L1 else (2,), kinds, seed)
        if metric_bill(search.agop, replace(size, slots=_SLOTS), rows).memory > budget // MEMORY_SHARE:
            continue
        if search.work(size).priced(nominal(d)) <= allowed:
            return search
    return None


def choose_kernel(search: Search, default: Kernel, problem: Problem) -> KernelChoice:
    """The kernel of training rows.

    Args:
        search: what is tried.
        default: ``default_kernel`` of the rows.
        problem: training rows, encoding, executor, lanes and engine; its kernel and centers are not looked at.

    Raises:
        NumericalError: the kernel matrix of the centers of a model is not positive definite.
    """
    rounds = replace(Rounds.of(search.agop, default, problem), ridges=RIDGES)
    few, trials = rounds.fewer(*search.few), _Trials()
    best: list[Round] = []
    for norm in search.norms:
        try:
            median = median_distance(few.train, problem.executor, problem.dtype, norm)
        except DataError:  # all rows that were looked at are the same
            continue
        plain = _least(trials.noted(few.on(_laplace(m * median, norm)).plain() for m in MULTIPLES))
        here = few.on(plain.problem.kernel)
        best += [plain, *(each for kind in search.kinds for each in trials.noted(here.learned(plain, kind)))]
    simple = rounds.plain()
    trials.noted([simple])
    found = simple
    if best:
        winner = _least(best)
        found = _preferred(simple, _fitted_again(rounds, winner, trials))
    metric = rounds.on(found.problem.kernel).metric(found, [simple, *([] if found is simple else [found])])
    kernel = found.problem.kernel
    return KernelChoice(
        kernel.to_json(), found.ridge, rounds.train.base_rows, metric, tuple(trials.made), simple.mse, found.mse
    )


def _fitted_again(rounds: Rounds, winner: Round, trials: _Trials) -> list[Round]:
    """Models of the winner's norm and kind on all rows: without a metric, and with it at several bandwidths."""
    kernel: Any = winner.problem.kernel
    here = rounds.on(kernel)
    plain = here.plain()
    made = trials.noted([plain])
    if winner.kind != "none":
        made += trials.noted(here.learned(plain, winner.kind))
    top = _least(made)
    for multiple in ABOUT:
        other = rounds.on(_laplace(multiple * kernel.sigma, kernel.norm))
        made += trials.noted([other.fit(top.kind, top.number, top.M, top.factor)])
    return made


def _preferred(simple: Round, made: Sequence[Round]) -> Round:
    """The least error, where it is better by ``ENOUGH`` than no metric; and that, than ``simple``."""
    found = simple
    for some in ([each for each in made if each.kind == "none"], made):
        least = _least([found, *some])
        if least.mse < (1 - ENOUGH) * found.mse:
            found = least
    return found


class _Trials:
    """Notes of models, in order."""

    def __init__(self) -> None:
        self.made: list[dict[str, Any]] = []

    def noted(self, rounds: Any) -> list[Round]:
        """The rounds, as a list."""
        found = []
        for each in rounds:
            rows, centers = each.problem.train.base_rows, len(each.problem.centers.Z)
            self.made.append({"kernel": each.problem.kernel.to_json(), "rows": rows, "centers": centers} | each.facts())
            found.append(each)
        return found


def _least(rounds: Sequence[Round]) -> Round:
    return min(rounds, key=lambda each: each.mse)


def _laplace(bandwidth: float, norm: int) -> Laplace:
    """Of a bandwidth of four digits, as a person would type it."""
    return Laplace(float(f"{bandwidth:.4g}"), norm=norm)
