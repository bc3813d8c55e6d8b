"""The learned metric: features count by how much the model's outputs change along them (recursive feature machines).

With M = I: fit, take the average gradient outer product G = 1/n Σ_i Σ_l ∇f_l(x_i) ∇f_l(x_i)ᵀ, set M = G / max G, fit
again on rows x ↦ M^½ x, and so on (Radhakrishnan, Beaglehole, Pandit, Belkin, Science 2024). G is one sum over blocks
of rows. The round with the least error on held-out rows is kept, and round 0, no metric, is one of them.

Rounds run on a sample of the rows in memory: each is a ridge regression over centers, some of the rows or every one, at
the best of several ridges on the held-out rows. The result is a linear transform of rows, so that kernels, solvers,
devices and predictions are the same as without it. Rows are scaled such that their mean distance stays as it was,
because a bandwidth is in the units of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from streamkern.centers import CenterSet, Uniform
from streamkern.costs.dry_run import ProblemSize, ShapeProblem
from streamkern.costs.fit_shape import SearchCost
from streamkern.cpu import default_engine
from streamkern.data import from_arrays
from streamkern.data.dataset import Dataset, EmptySideError
from streamkern.data.row_order import Assembly, Block, Scan
from streamkern.data.targets import Classes, Continuous, Encoding, as_values
from streamkern.data.transforms import LinearMap
from streamkern.defaults import (
    HELD_OUT_SHARE,
    MAX_EXACT_ERROR,
    MAX_FULL_FEATURES,
    MAX_RIDGES_SOLVED,
    METRIC_HELD_OUT_SHARE,
    METRIC_RIDGES,
    MIN_METRIC_ROWS,
)
from streamkern.engine.abstract_array import CostMeter
from streamkern.engine.cost_meter import MeterEngine
from streamkern.engine.operation_counts import Operations
from streamkern.engine.ridge import left_out_kernel_path
from streamkern.errors import UsageError
from streamkern.evaluation.paired_errors import Errors, ModelErrors
from streamkern.execute.base import Parts
from streamkern.kernels import Expansion, Kernel
from streamkern.kernels.base import set_integer
from streamkern.preprocessing.feature_origins import Features, features_of
from streamkern.rng import Draw, uniform_rows
from streamkern.selection.median_bandwidth import median_distance
from streamkern.solvers.base import Problem
from streamkern.solvers.ridge import ridge_path, solve_every_row
from streamkern.storage.serialize import serializable
from streamkern.sweep import Contribution, ScanWork, gather_weighted, sweep
from streamkern.types import Array

KINDS = ("auto", "diagonal", "full")

_BLOCK_ROWS = 1024


@dataclass(frozen=True)
class AGOP:
    """Learn a metric for the distances in the kernel, by the method of the average gradient outer product.

    A metric weighs or rotates the features. It is learned in rounds. A round fits a model to a sample of the rows, and
    computes the metric as the mean of g gᵀ over gradients g of the model's outputs at these rows. The final model is
    f(x) = Σ_j α_j k(x, z_j). Its centers z_j are chosen after the last round.

    If a search chooses the kernel (see ``KernelRegressor``), it learns this metric. Of 400 rows or more, it then has a
    sample, centers and a seed of its own, and takes only ``rounds`` and ``kind`` from here.

    Args:
        rounds: largest number of rounds. No further round is made when the error on held-out rows grows. A search for
            the kernel makes at most one more, on more rows.
        kind: ``"diagonal"`` learns a weight for each of d features. ``"full"`` learns a matrix of shape (d, d), which
            also rotates them. ``"auto"`` tries both and keeps the metric with the smaller error on held-out rows. With
            more than 1,000 features, it tries only the diagonal.
        rows: number of rows of the sample, which is kept in memory. A fifth of it is held out to compare rounds.
        centers: number of centers of a round, at most a quarter of the sample.
        seed: seed of the random choices.

    Raises:
        UsageError: a number is below 1, or the kind is unknown.
    """

    rounds: int = 3
    kind: str = "auto"
    rows: int = 25_000
    centers: int = 2_000
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rounds", "rows", "centers"):
            set_integer(self, name, 1)
        set_integer(self, "seed", 0)
        if self.kind not in KINDS:
            raise UsageError(f"The kind is {self.kind!r}.", where="AGOP(kind=...)", expected=" or ".join(KINDS))

    def to_json(self) -> dict[str, Any]:
        """Name and parameters."""
        return {"name": "AGOP", **asdict(self)}

    def kinds(self, d: int) -> tuple[str, ...]:
        """Return the kinds that are tried on rows with d features."""
        if self.kind != "auto":
            return (self.kind,)
        return ("diagonal", "full") if 1 < d <= MAX_FULL_FEATURES else ("diagonal",)

    def sizes(self, rows: int) -> tuple[int, int]:
        """Return the number of rows of the sample and the number of centers of a round, for ``rows`` training rows."""
        sample = min(self.rows, rows)
        return sample, max(1, min(self.centers, sample // 4))

    def cost_estimate(self, size: ProblemSize, rows: int) -> SearchCost:
        """Return the cost of the rounds, without running them.

        Args:
            size: numbers of rows, centers, features and outputs of the final fit. The call replaces the numbers of rows
                and centers by those of a round.
            rows: number of training rows.
        """
        sample, p = self.sizes(rows)
        kinds = self.kinds(size.d)
        fitted, gradients, peak = round_work(sample, p, "full" in kinds, size)
        square = 8 * size.d * size.d * 8 if "full" in kinds else 0
        fits = 1 + self.rounds * len(kinds)
        work = float(fits) * (fitted + gradients)
        return SearchCost(work, fits * (2.0 * sample), peak + sampled_bytes(sample, size) + square, sample, fits)


def is_exact(mse: float, score: float, classify: bool) -> bool:
    """Return True if an error may be rounding alone, so that models cannot be compared by it."""
    return (mse if classify else 1.0 - score) <= MAX_EXACT_ERROR


@serializable
@dataclass(frozen=True, eq=False)
class Metric:
    """A metric learned by ``AGOP``.

    Attributes:
        kind: ``diagonal``, ``full``, or ``none`` where no round was better than the rows as they are.
        M: the metric, in the units of the rows after preprocessing, its largest entry 1: shape (d,) or (d, d).
        factor: of rows: M^½ times a number that keeps their mean distance; shape (d,) or (d, d).
        importances: share of each feature in the squared gradient of the kept round's model, features in units of their
            standard deviation: shape (d,), sum 1.
        history: kind, round, ridge, squared error, log loss of classes and score on held-out rows of every round.
        metric: name of scores: ``accuracy`` or ``r2``.
    """

    kind: str
    round: int
    M: Array
    factor: Array
    importances: Array
    history: tuple[dict[str, Any], ...] = field(default=())
    metric: str = "r2"

    def applied(self, dataset: Dataset) -> Dataset:
        """Return rows of a dataset through the metric, after preprocessing."""
        if self.kind == "none":
            return dataset
        if self.kind == "diagonal":
            return dataset.scale(self.factor)
        return dataset.transform(LinearMap(self.factor))

    @property
    def begins_exact(self) -> bool:
        """See ``is_exact``: of the first model, without a metric."""
        first = self.history[0]
        return is_exact(first["mse"], first["score"], self.metric == "accuracy")

    def summary(self, features: Features) -> dict[str, Any]:
        """JSON-serialisable facts, for results and models."""
        return {
            "kind": self.kind,
            "round": self.round,
            "score": self.metric,
            "history": [dict(each) for each in self.history],
            **features.summary(self.importances),
        }

    def reason(self) -> str:
        """The choice and its reasons, in a sentence."""
        best = min(self.history, key=compared_error)
        plain = self.history[0]
        if self.kind == "none":
            return f"metric: none, since no round of {len(self.history) - 1} is better on held-out rows"
        return (
            f"metric: {self.kind}, round {self.round}: {self.metric} {best['score']:.4g} on held-out rows, "
            f"{plain['score']:.4g} without a metric"
        )


@dataclass(eq=False)
class GradientOuter(Contribution):
    """Contributes Σ w g gᵀ of gradients g in float64, or its diagonal unless ``full``, and Σ w.

    With several outputs g is Σ_l s_l ∇f_l(x) with random signs s of the row: the mean of g gᵀ over signs is Σ_l ∇f_l
    ∇f_lᵀ, and one product does for all outputs.
    """

    expansion: Expansion
    outputs: int
    full: bool
    seed: int

    def __call__(self, block: Block, state: Any, prepared: Any = None, extra_blocks: Iterable[Any] = ()) -> Parts:
        engine = self.expansion.engine
        g = engine.gradients(self.expansion, block.X, state, self._signs(block)).astype(np.float64)
        mass = float(len(block.ids))
        if block.w is not None:
            g = g * np.sqrt(block.w)[:, None]
            mass = float(block.w.sum())
        if not self.full:
            return np.square(g).sum(axis=0), mass
        columns = g.T.copy()
        # On this thread: a verb that runs in threads would wait for the very task that called it.
        return engine.right_factor(columns).times(columns), mass

    def _signs(self, block: Block) -> Array | None:
        if self.outputs == 1:
            return None
        u = uniform_rows(self.seed, Draw.SIGNS, block.ids, self.outputs)
        return np.where(u < 0.5, -1.0, 1.0)


class Round(NamedTuple):
    """A model on rows through a metric: weights (p, c), and errors on rows that it was not fitted to.

    ``errors``, by which models are compared, are those of ``ModelErrors``; ``mse`` is the mean square of outputs.
    """

    kind: str
    number: int
    M: Array
    factor: Array
    problem: Problem
    weights: Array
    ridge: float
    mse: float
    score: float
    errors: Errors

    @property
    def error(self) -> float:
        """The log loss of classes, or the mean squared error."""
        return self.errors.mean if isinstance(self.problem.encoding, Classes) else self.mse

    @property
    def exact(self) -> bool:
        """See ``is_exact``."""
        return is_exact(self.mse, self.score, isinstance(self.problem.encoding, Classes))

    def facts(self) -> dict[str, Any]:
        """The fields of the round in the history."""
        facts = {"kind": self.kind, "round": self.number, "ridge": self.ridge, "mse": self.mse, "score": self.score}
        return facts | ({"log_loss": self.error} if isinstance(self.problem.encoding, Classes) else {})


def compared_error(facts: dict[str, Any]) -> float:
    """The error of a round in a history, by which it is compared: the log loss of classes."""
    return float(facts.get("log_loss", facts["mse"]))


def learn_metric(agop: AGOP, kernel: Kernel, problem: Problem) -> Metric:
    """Learn the metric of training rows; a median bandwidth is of each round's rows, kernel and centers unused."""
    rounds = Rounds.of(agop, kernel, problem)
    plain = rounds.plain()
    made = [plain]
    for kind in agop.kinds(rounds.d):
        made += rounds.learned(plain, kind)
    return rounds.metric(min(made, key=lambda each: each.error), made)


@dataclass(eq=False)
class Rounds:
    """The data of rounds: the sample in memory, in two parts, and centers among the first.

    Rounds are compared on the rows ``held``, or where it is None on all rows, each left out; ``like`` has executor,
    lanes and engine. ``variance`` (d,) and ``covariance`` (d, d), or None where no full matrix is tried, are of the
    features; ``blocks`` are features that indicate one category, which a diagonal metric weighs alike. ``span`` is the
    mean L1 distance of two rows where there are few.
    """

    agop: AGOP
    kernel: Kernel
    train: Dataset
    held: Dataset | None
    like: Problem
    encoding: Encoding
    dtype: np.dtype[Any]
    p: int
    variance: Array
    covariance: Array | None
    ridges: tuple[float, ...] = METRIC_RIDGES
    blocks: tuple[tuple[int, ...], ...] = ()
    span: float = 0.0

    @classmethod
    def of(
        cls,
        agop: AGOP,
        kernel: Kernel,
        problem: Problem,
        held_out: float = METRIC_HELD_OUT_SHARE,
        all_rows_are_centers: bool = False,
    ) -> Rounds:
        """Read the sample; ``held_out`` of it is compared on, or 0 to leave each row out. Centers are of the rest.

        Rows with a time or a group are always held out, the latest or those of some groups.
        """
        data, c = problem.train.plain(), problem.encoding.outputs
        rows, p = agop.sizes(data.base_rows)
        ids = np.sort(data.draw(rows, Draw.METRIC, agop.seed))
        X, y, w = gather_weighted(problem.executor, Assembly(data, problem.encoding, 0.0, problem.dtype), ids)
        assert y is not None
        classify = isinstance(problem.encoding, Classes)
        encoding: Encoding = Classes(np.arange(c)) if classify else Continuous(np.zeros(c), flat=False)
        # Of mean 1: only the ratios of weights matter, and a ridge is added to sums that are divided by rows.
        w = None if w is None or not w.any() else w / w.mean()
        base = replace(from_arrays(X, y, sample_weight=w), roles=data.roles and data.roles.taken(ids))
        each, held_out = not held_out, held_out or (HELD_OUT_SHARE if base.roles is not None else 0.0)
        try:
            train, held = base.split(held_out, agop.seed) if held_out else (base, None)
        except EmptySideError:  # all rows have one time or one group: only such rows can be held out
            train, held = replace(base, roles=None).split(held_out, agop.seed)
        p = p if base.roles is None else min(p, train.base_rows)  # a share of groups is seldom that of their rows
        if rows < MIN_METRIC_ROWS or (held is not None and held.base_rows < 2) or train.base_rows < p:
            raise UsageError(
                f"A metric is learned from {rows:,} rows here.",
                where="metric=AGOP(...)",
                expected=f"at least {MIN_METRIC_ROWS} rows",
                remedy="leave the metric out",
            )
        mass = np.asarray(w, dtype=np.float64) if each and w is not None else np.ones(rows)
        wide = X.astype(np.float64)
        wide -= np.average(wide, axis=0, weights=mass)
        full = held is not None and "full" in agop.kinds(X.shape[1])
        return cls(
            agop, kernel, train, held, problem, encoding, problem.dtype,
            train.base_rows if all_rows_are_centers else p, np.average(np.square(wide), axis=0, weights=mass),
            problem.engine.gram(wide.T.copy()) / rows if full else None,
            blocks=features_of(problem.train).categories,
            span=_mean_distance(wide, mass) if each else 0.0,
        )  # fmt: skip

    @property
    def d(self) -> int:
        """Features of a row."""
        return len(self.variance)

    @property
    def factors_each(self) -> bool:
        """True if each ridge of a model takes a factor: every row is a center. Else one decomposition gives all."""
        return self.held is not None and self.p >= self.train.base_rows

    def on(self, kernel: Kernel) -> Rounds:
        return replace(self, kernel=kernel)

    def fewer(self, rows: int, p: int) -> Rounds:
        """Return rounds of fewer rows with fewer centers, compared on the same rows."""
        rows = min(rows, self.train.base_rows)  # rows of large groups may be held out
        return replace(self, train=self.train.sample(rows, self.agop.seed), p=min(p, rows))

    def plain(self) -> Round:
        """Fit round 0: no metric."""
        return self.fit("none", 0, np.ones(self.d), np.ones(self.d))

    def through(self, made: Round, near: float | None = None) -> Round:
        """Fit a model through the metric of another, with a ridge near to a given one, or to that of the other."""
        return self.fit(made.kind, made.number, made.M, made.factor, made.ridge if near is None else near)

    def learned(self, first: Round, kind: str, rounds: int | None = None) -> list[Round]:
        """Fit rounds of one kind that follow another: while the error falls, and the first with which it does not."""
        current, made = first, []
        for number in range(first.number + 1, first.number + 1 + (self.agop.rounds if rounds is None else rounds)):
            M = self.outer(current, kind == "full")
            if not M.max() > 0:  # a constant model
                break
            for block in self.blocks if kind == "diagonal" else ():
                M[list(block)] = M[list(block)].mean()
            M = M / M.max()
            made.append(self.fit(kind, number, M, self.factor(M), current.ridge))
            if not made[-1].error < current.error:
                break
            current = made[-1]
        return made

    def metric(self, best: Round, made: Iterable[Round]) -> Metric:
        """Return the metric that a round has learned, with the history of all that were made."""
        share = self.outer(best, False) * self.variance
        share = share if share.sum() > 0 else np.ones(self.d)
        history = tuple(each.facts() for each in made)
        score = "accuracy" if isinstance(self.encoding, Classes) else "r2"
        return Metric(best.kind, best.number, best.M, best.factor, share / share.sum(), history, score)

    def factor(self, M: Array) -> Array:
        """Return M^½ times what keeps the mean distance of rows: the mean square, or the mean in the L1 norm."""
        if M.ndim == 1:
            root, after = np.sqrt(M), M * self.variance
        else:
            assert self.covariance is not None
            values, vectors = self.like.engine.here().eigh(M)
            root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
            root = (root + root.T) / 2
            after = np.einsum("ij,jk,ki->i", root, self.covariance, root, optimize=True)
        return np.asarray(root * distance_ratio(self.variance, np.maximum(after, 0.0), self.kernel.norm))

    def fit(self, kind: str, number: int, M: Array, factor: Array, near: float | None = None) -> Round:
        """Fit the round's model, at the best ridge; ``near`` is one that is best for a similar model."""
        problem, ridges = self.problem_through(kind, number, M, factor), self.ridges
        if self.held is None:
            weights, compared = left_out_solutions(problem, ridges)
        else:
            held = HeldOut.of(problem, Metric(kind, number, M, factor, M).applied(self.held))
            if self.factors_each:
                weights, compared, ridges = _best_full_kernel(problem, held, ridges, near)
            else:
                weights = ridge_path(problem).solved(ridges)
                compared = held.errors(problem, weights)
        mse, c = compared.mse, self.encoding.outputs
        best = int(np.argmin(mse))
        kept = np.ascontiguousarray(weights[:, best * c : (best + 1) * c], dtype=self.dtype)
        return Round(
            kind, number, M, factor, problem, kept, ridges[best], float(mse[best]), float(compared.score[best]),
            compared.errors(best, problem.engine),
        )  # fmt: skip

    def problem_through(self, kind: str, number: int, M: Array, factor: Array) -> Problem:
        """The problem of a round: the rows through its metric, and centers among them."""
        train, like, kernel = Metric(kind, number, M, factor, M).applied(self.train), self.like, self.kernel
        if kernel.needs_median:
            kernel = kernel.at_median(median_distance(train, like.executor, self.dtype, kernel.norm))
        centers: CenterSet = Uniform(self.p, self.agop.seed).choose(train, like.executor, self.dtype)
        return replace(
            like, train=train, encoding=self.encoding, kernel=kernel, centers=centers, dtype=self.dtype,
            validation=None, features=None, mean_weight=1.0, largest_weight=1.0,
        )  # fmt: skip

    def outer(self, made: Round, full: bool) -> Array:
        """Return G of a round's model, in the units of the rows before the metric: (d, d), or its diagonal (d,)."""
        problem, factor = made.problem, made.factor
        turned = factor.ndim == 2
        work = ScanWork(
            Scan(problem.assembly(problem.train), _BLOCK_ROWS),
            GradientOuter(problem.expansion(), self.encoding.outputs, full or turned, self.agop.seed),
        )
        total, mass = sweep(problem.executor, work, made.weights)
        G = np.asarray(total) / mass
        if turned:
            G = factor @ G @ factor
            return G if full else np.diag(G).copy()
        return np.asarray(factor[:, None] * G * factor if full else factor * G * factor)


def distance_ratio(before: Array, after: Array, norm: int) -> float:
    """What the mean distance of rows is divided by, whose features' variances (d,) become others."""
    if norm == 1:
        return float(np.sqrt(before).sum() / np.sqrt(after).sum())
    return float(np.sqrt(before.sum() / after.sum()))


class HeldOut(NamedTuple):
    """Rows that models are compared on, as a problem's basis takes them, with encoded targets and weights."""

    X: Array
    y: Array
    w: Array | None

    @classmethod
    def of(cls, problem: Problem, data: Dataset) -> HeldOut:
        """Read the rows of a data set."""
        return cls(*problem.full_rows(np.sort(data.draw(data.base_rows)), data))

    def errors(self, problem: Problem, weights: Array) -> ModelErrors:
        """Compare the models of weights (p, k c), side by side."""
        basis, c = problem.expansion(), problem.encoding.outputs
        W, k = weights.astype(basis.dtype), weights.shape[1] // c

        def outputs(rows: slice) -> Array:
            return problem.engine.values(basis, self.X[rows], lambda phi: phi @ W).reshape(-1, k, c)

        return ModelErrors.of(outputs, as_values(self.y, c), self.w, k, isinstance(problem.encoding, Classes))


def left_out_solutions(problem: Problem, ridges: Sequence[float]) -> tuple[Array, ModelErrors]:
    """Return weights (p, k c) with every row as a center, and errors of rows of positive weight, each left out."""
    engine, c, ids = problem.engine.here(), problem.encoding.outputs, problem.centers.ids
    assert ids is not None
    X, y, w = problem.full_rows(ids)
    mass = np.ones(len(X)) if w is None else np.asarray(w, dtype=np.float64)
    rows = np.flatnonzero(mass > 0)  # a row of weight 0 has no equation to leave out
    targets, mass = as_values(y, c)[rows], mass[rows]
    K = engine.kernel_matrix(problem.expansion(), len(X))[np.ix_(rows, rows)]
    path = left_out_kernel_path(engine, K, targets, np.sqrt(mass)[:, None], mass.sum(), ridges)
    weights = np.zeros((len(X), len(ridges) * c))
    weights[rows] = path.weights
    classify = isinstance(problem.encoding, Classes)
    outputs = lambda part: targets[part, None] - path.missed[part]  # noqa: E731
    return weights, ModelErrors.of(outputs, targets, mass, len(ridges), classify)


def _best_full_kernel(
    problem: Problem, held: HeldOut, ridges: Sequence[float], near: float | None
) -> tuple[Array, ModelErrors, tuple[float]]:
    """Weights with every row as a center at the best ridge, their errors on held-out rows, and it.

    Each ridge takes a factor. So the search begins near a given one, and goes on while the error falls.
    """
    ladder, ids = sorted(ridges), problem.centers.ids
    assert ids is not None
    rows, basis = problem.full_rows(ids), problem.expansion()

    def at(i: int) -> tuple[Array, ModelErrors, tuple[float]]:
        weights, _, _ = solve_every_row(problem, basis, ladder[i], rows)
        return weights, held.errors(problem, weights), (ladder[i],)

    begin = len(ladder) // 2 if near is None else int(np.argmin(np.abs(np.log(ladder) - np.log(near))))
    best = first = at(begin)
    for places in (range(begin - 1, -1, -1), range(begin + 1, len(ladder))):
        if best is not first:  # a smaller ridge is better
            break
        for i in places:
            further = at(i)
            if not further[1].mse[0] < best[1].mse[0]:
                break
            best = further
    return best


def _mean_distance(X: Array, mass: Array) -> float:
    """Of two rows, each drawn by its weight, in the L1 norm: Σ_j ∫ 2 F_j (1 − F_j)."""
    order = np.argsort(X, axis=0, kind="stable")
    below = np.cumsum(mass[order], axis=0)[:-1] / mass.sum()
    return float(np.sum(2 * below * (1 - below) * np.diff(np.take_along_axis(X, order, axis=0), axis=0)))


def sampled_bytes(rows: int, size: ProblemSize) -> int:
    """Return bytes of a sample in memory, and of its copies while it is made."""
    return rows * (size.d * (2 * size.itemsize + 16) + 8 * size.outputs + 64)


def round_work(
    sample: int,
    p: int,
    full: bool,
    size: ProblemSize,
    ridges: tuple[float, ...] = METRIC_RIDGES,
    compared: int | None = None,
    likely: bool = False,
) -> tuple[Operations, Operations, int]:
    """Return operations of a round's fit with its errors and of its gradients, and bytes at the peak, on shapes.

    ``full`` sums a matrix; errors are taken on ``compared`` rows, by default those of a metric's rounds, or on each
    row left out if 0. With ``likely`` a factor is taken to be accurate in the arithmetic's dtype, which bytes at
    the peak are not.
    """
    size = replace(
        size, n=sample, p=p, features=None, stored=False, blocks=None, held_out_rows=0, memory=None, better=False,
        all_rows_are_centers=p >= sample,
    )  # fmt: skip
    rows = max(1, round(METRIC_HELD_OUT_SHARE * sample)) if compared is None else compared
    return _round_work(size, full, ridges, rows, likely)


@lru_cache(maxsize=1024)  # plans, and fits in leaves, ask for the same ones again and again
def _round_work(
    size: ProblemSize, full: bool, ridges: tuple[float, ...], compared: int, likely: bool
) -> tuple[Operations, Operations, int]:
    meter, c = CostMeter(), size.outputs
    engine = MeterEngine(meter, default_engine(), size.slots, size.overlapping, likely=likely)
    problem: Any = ShapeProblem.of(size, engine, SimpleNamespace(sums=0))
    kept = engine.zeros((size.p, c), size.dtype)
    if not compared:
        K = engine.kernel_matrix(problem.expansion(), size.p)
        weights, _ = left_out_kernel_path(
            engine, K, engine.zeros((size.p, c)), engine.zeros((size.p, 1)), float(size.p), ridges
        )
    elif size.all_rows_are_centers:
        weights = solve_every_row(problem, problem.expansion(), 1.0)[0]
    else:
        weights = ridge_path(problem).solved(ridges)
    if compared:
        W, X = weights.astype(size.dtype), engine.empty((compared, size.d), size.dtype)
        engine.values(problem.expansion(), X, lambda phi: phi @ W)
        del W, X
    del weights
    fitted, _ = meter.taken()
    if compared and size.all_rows_are_centers:
        fitted = float(MAX_RIDGES_SOLVED) * fitted
    problem.sweep(GradientOuter(problem.expansion(), c, full, 0), kept)
    gradients, _ = meter.taken()
    return fitted, gradients, meter.peak
