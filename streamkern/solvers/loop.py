"""The loop over passes and steps, which can stop and resume at any step."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from streamkern.calibration.out_of_sample import OutOfSample
from streamkern.data.row_order import SCAN_ROWS, Scan, Stream
from streamkern.data.targets import Continuous, Encoding
from streamkern.defaults import MAX_LOSS_RATIO, MAX_LOSS_RISE, MIN_LOSS_DECREASE, MIN_LOSS_ROWS, MIN_LOSS_SHARE
from streamkern.engine.residuals import residual, weigh
from streamkern.evaluation.score import score
from streamkern.execute.base import Parts, Placement, Position
from streamkern.memory import release_free_memory
from streamkern.solvers.base import Failure, Iteration, Problem, Solver, row_bytes, steps_ahead
from streamkern.solvers.direct import Sums
from streamkern.solvers.solution_residual import report_unlearned
from streamkern.storage.serialize import serializable
from streamkern.sweep import Contribute, Partial, ScanWork, StepWork, sweep
from streamkern.types import Array


@dataclass(frozen=True)
class Progress:
    """Progress of training after ``step`` of the ``steps`` of a pass, and ``pass_`` passes before it.

    Attributes:
        loss: mean over rows of the mean squared residual over outputs, as ``mse`` is, smoothed; in the targets'
            encoded units.
        wait: share of the slots' time spent waiting for rows.
        timeline: seconds of each part of this step, as in ``StepResult.timeline``, and of the update on the host; empty
            after a sweep over all rows.
    """

    pass_: int
    step: int
    steps: int
    rows: int
    total_rows: int
    loss: float
    seconds: float
    wait: float
    timeline: dict[str, Any] = field(default_factory=dict)


@serializable
@dataclass(eq=False)
class Outcome:
    """The outcome of training: weights, shape (p, c), and how they were reached.

    ``wait`` is the share of the slots' time spent waiting for rows. ``history`` has an entry for each pass: its loss
    and, with a validation set, its metrics. ``out_of_sample`` and ``sums`` are those of ``Iteration``.
    """

    weights: Array
    passes: int
    rows: int
    seconds: float
    wait: float
    history: list[dict[str, Any]]
    failure: Failure | None = None
    out_of_sample: OutOfSample | None = None
    sums: Sums | None = None


@serializable
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The state of training between two steps: everything that resuming it needs.

    Attributes:
        position: the (pass, step) that comes next.
        begun: whether ``begin`` of the pass is done.
        swept: the progress of its sweeps over all rows, in their order, until it is done.
        scale: loss of the first step; if it had few rows, the largest of the first steps; and that of predicting zero
            on the rows of a later step, if their targets are far larger.
        pass_loss: sum of the loss over the ``pass_rows`` of this pass.
        best: weights and error of the best pass on the validation rows, or None.
        scoring: the part of ``seconds`` that was spent on validation rows.
        waited: seconds that the slots waited for rows; they computed for ``computed`` seconds.
        halvings: number of times that the step was halved before this training began, see ``train_stably``.
    """

    state: Any
    position: Position = (0, 0)
    begun: bool = False
    swept: tuple[Partial, ...] = ()
    rows: int = 0
    loss: float = 0.0
    scale: float = 0.0
    pass_loss: float = 0.0
    pass_rows: int = 0
    history: tuple[dict[str, Any], ...] = ()
    best: tuple[Array, float] | None = None
    seconds: float = 0.0
    scoring: float = 0.0
    waited: float = 0.0
    computed: float = 0.0
    halvings: int = 0

    @property
    def wait(self) -> float:
        """Share of the slots' time spent waiting for rows."""
        return self.waited / max(1e-9, self.waited + self.computed)


class Keeper(Protocol):
    """Saves checkpoints."""

    def offer(self, checkpoint: Checkpoint, wait: bool = False, kept: Callable[[Any], Any] | None = None) -> None:
        """Save a checkpoint if one is due; called after each step and part of a sweep.

        With ``wait`` it returns only when that is done, because sums of a sweep may be large, and should be in memory
        once. ``kept`` maps the checkpoint's state to the one to save, and is called if a checkpoint is due.
        """

    def interrupted(self, checkpoint: Checkpoint) -> None:
        """Save the checkpoint of a training that ends early, before returning."""


def train(
    problem: Problem,
    iteration: Iteration,
    *,
    patience: int | None = None,
    on_step: Callable[[Progress], None] = lambda progress: None,
    start: Checkpoint | None = None,
    keeper: Keeper | None = None,
) -> Outcome:
    """Run an iteration to its end.

    After ``patience`` passes in which the error on the validation set did not fall by ``MIN_LOSS_DECREASE`` of itself,
    it stops; None runs all passes. ``start`` is the checkpoint to resume from, with the same steps as without the
    interruption.
    """
    release_free_memory()
    loop = _Loop(problem, iteration, patience, on_step, start, keeper)
    try:
        failure = loop.run()
        weights = loop.weights()
    except BaseException:
        if keeper is not None:
            keeper.interrupted(replace(loop.now, state=iteration.kept(loop.now.state)))
        raise
    finally:
        loop.close()
    now = loop.now
    state = iteration.settle(now.state)
    if failure is None and not np.isfinite(weights).all():
        failure = Failure("non-finite", "The weights are not finite.", "compute in float64, or check the data's scale")
    out_of_sample, sums, history = iteration.out_of_sample(state), iteration.sums(state), list(now.history)
    return Outcome(weights, len(history), now.rows, loop.seconds, now.wait, history, failure, out_of_sample, sums)


def train_stably(
    problem: Problem, solver: Solver, iteration: Iteration, anew: Callable[[Iteration, str], None], **how: Any
) -> tuple[Outcome, Iteration]:
    """Train; if that diverges with a step that the solver chose, restart with half of the step.

    ``anew`` is called with the next iteration, and the reason, before it starts; ``how`` are further arguments of
    ``train``. Return the outcome, and the iteration that led to it.
    """
    while True:
        outcome = train(problem, iteration, patience=solver.patience, **how)
        failure = outcome.failure
        if failure is None:
            _report(problem, solver, iteration, outcome)
        if failure is None or failure.kind not in ("diverged", "non-finite"):
            return outcome, iteration
        prepared = iteration.with_halved_step()
        if prepared is None:
            if "halvings" in iteration.report:
                outcome.failure = replace(failure, remedy=_HALVED)
            return outcome, iteration
        iteration, how["start"] = solver.setup(problem, prepared), None
        anew(iteration, f"{failure.message} Training begins anew with half the step, {iteration.report['step']:.4g}.")


def _report(problem: Problem, solver: Solver, iteration: Iteration, outcome: Outcome) -> None:
    """Report the pass whose weights are the model, and how far these are from the solution."""
    release_free_memory()  # of the steps
    errors = [_error(each["validation"], problem.encoding) for each in outcome.history if "validation" in each]
    best = int(np.argmin(errors)) + 1 if errors else outcome.passes
    if errors:
        iteration.report["best_pass"] = best
    passes = f"{best} pass{'es' if best > 1 else ''}"
    report_unlearned(problem, iteration.report, type(solver).__name__, outcome.weights, passes, best < outcome.passes)


@dataclass(eq=False)
class _Loop:
    """The loop over passes and steps; training can resume from ``now`` at any moment, because it is replaced whole."""

    problem: Problem
    iteration: Iteration
    patience: int | None
    on_step: Callable[[Progress], None]
    start: InitVar[Checkpoint | None]
    keeper: Keeper | None

    def __post_init__(self, start: Checkpoint | None) -> None:
        problem, iteration = self.problem, self.iteration
        self.outputs = problem.encoding.outputs
        self.steps = iteration.stream.steps if iteration.minibatches else 0
        target = problem.train.target
        width = row_bytes(problem.train.n_features, problem.dtype.itemsize, 1 if target is None else target.width)
        self.ahead = steps_ahead(iteration.stream.batch_rows, width)
        self.total_rows = iteration.epochs * iteration.stream.rows * (iteration.minibatches + iteration.sweeps)
        self.scan = Scan(iteration.stream.assembly, SCAN_ROWS)
        self.lanes: Placement | None = None
        if self.steps:
            work = StepWork(iteration.stream, iteration.contribution, iteration.extra_blocks)
            self.lanes = problem.executor.place(work, iteration.stream.lanes)
        self.now = start or Checkpoint(iteration.init(), halvings=iteration.report.get("halvings", 0))
        self.started = time.perf_counter() - self.now.seconds

    def weights(self) -> Array:
        """Return the weights of the best pass on the validation rows, or of the last state."""
        now = self.now
        return now.best[0] if now.best is not None else self.iteration.weights(self.iteration.settle(now.state))

    @property
    def seconds(self) -> float:
        """Seconds in the loop, including those before training was resumed."""
        return time.perf_counter() - self.started

    def run(self) -> Failure | None:
        """Train to the end, or to a failure."""
        while not (over := self.over()):
            failure = None if self.now.begun else self.begin()
            while not failure and self.now.position[1] < self.steps:
                failure = self.step()
            if failure:
                return failure
            self.end()
        return over if isinstance(over, Failure) else None

    def over(self) -> Failure | bool:
        """Return True if training is complete, or the reason why the solution will never be reached."""
        now = self.now
        if now.begun or not now.position[0]:
            return False
        rising = _rising(now)
        if rising and self.iteration.with_halved_step() is not None:
            return rising
        errors = [_error(each["validation"], self.problem.encoding) for each in now.history if "validation" in each]
        patience = self.patience is not None and stale(errors) >= self.patience
        return self.iteration.finished(now.state) or patience or now.position[0] >= self.iteration.epochs

    def begin(self) -> Failure | None:
        unfinished = list(self.now.swept)
        now = replace(self.now, swept=(), rows=self.now.rows - int(sum(partial.total(-1) for partial in unfinished)))
        position = now.position
        loss, seen, swept = 0.0, 0, list[Partial]()

        def whole(contribution: Contribute, shared: Any) -> Parts:
            nonlocal loss, seen
            last = unfinished.pop(0) if unfinished else None

            def on_part(partial: Partial) -> None:
                nonlocal last
                last = partial
                rows = seen + int(partial.total(-1))
                mean = (loss + float(partial.total(-2)) / self.outputs) / max(1, rows)
                there = (*swept, partial)
                self._advance(replace(now, swept=there, rows=now.rows + rows, loss=mean, seconds=self.seconds))

            parts = sweep(self.problem.executor, ScanWork(self.scan, contribution), shared, last, on_part)
            assert last is not None
            swept.append(last)
            loss, seen = loss + float(parts[-2]) / self.outputs, seen + int(parts[-1])
            return parts

        state = self.iteration.begin(now.state, position[0], whole)
        if not seen:
            self.now = replace(now, state=state, begun=True)
            return None
        mean = loss / seen
        scale = now.scale or mean
        self._advance(
            replace(
                now, state=state, begun=True, rows=now.rows + seen, loss=mean, scale=scale,
                pass_loss=loss, pass_rows=seen, seconds=self.seconds,
            )
        )  # fmt: skip
        return None if self.iteration.takes_back else _failed(mean, seen, scale, position)

    def step(self) -> Failure | None:
        now, iteration = self.now, self.iteration
        position = now.position
        ahead = _ahead(position, self.ahead, self.steps, iteration.epochs)
        assert self.lanes is not None
        result = self.lanes.step(position, iteration.broadcast(now.state), ahead)
        loss, rows = float(result.parts[-2]) / self.outputs, int(result.parts[-1])
        mean = loss / max(1, rows)
        scale = max(now.scale, mean) if now.rows < MIN_LOSS_ROWS else now.scale
        failure = _failed(mean, rows, scale, position)
        if failure and failure.kind == "diverged":  # or the targets of these rows are far larger than those before
            scale = max(scale, self.zero_loss(position))
            failure = _failed(mean, rows, scale, position)
        if failure:
            return failure
        started = time.perf_counter()
        state = iteration.update(now.state, result.parts, position)
        timeline = result.timeline() | {"update": time.perf_counter() - started}
        self._advance(
            replace(
                now,
                state=state,
                position=(position[0], position[1] + 1),
                rows=now.rows + rows,
                loss=mean if now.rows == 0 else 0.9 * now.loss + 0.1 * mean,
                scale=scale,
                pass_loss=now.pass_loss + loss,
                pass_rows=now.pass_rows + rows,
                seconds=self.seconds,
                waited=now.waited + result.wait,
                computed=now.computed + result.compute,
            ),
            timeline,
        )
        return None

    def zero_loss(self, position: Position) -> float:
        """Return the mean loss of predicting zero on a step's rows."""
        stream = self.iteration.stream
        keys = [(position[0], lane, position[1]) for lane in range(stream.lanes)]
        found = list(self.problem.executor.imap(_zero_loss, keys, (stream, self.outputs)))
        return sum(loss for loss, _ in found) / (self.outputs * max(1, sum(rows for _, rows in found)))

    def end(self) -> None:
        """Close a pass: evaluate it, and add it to the history."""
        now, problem, iteration = self.now, self.problem, self.iteration
        pass_ = now.position[0] + 1
        state, best, scoring = now.state, now.best, now.scoring
        entry: dict[str, Any] = {"pass": pass_, "loss": now.pass_loss / max(1, now.pass_rows), "rows": now.rows}
        if problem.validation is not None:
            state = iteration.settle(state)
            weights = iteration.weights(state)
            before = time.perf_counter()
            metrics = score(problem.executor, problem.assembly(problem.validation), problem.predictor(), weights)
            scoring += time.perf_counter() - before
            entry["validation"], entry["scoring_seconds"] = metrics, scoring
            error = _error(metrics, problem.encoding)
            if best is None or error < best[1]:
                best = weights, error
        entry["seconds"] = self.seconds
        self.now = replace(
            now, state=state, position=(pass_, 0), begun=False, pass_loss=0.0, pass_rows=0,
            history=(*now.history, entry), best=best, scoring=scoring, seconds=entry["seconds"],
        )  # fmt: skip
        if self.keeper is not None:
            self.keeper.offer(self.now, kept=iteration.kept)

    def _advance(self, now: Checkpoint, timeline: dict[str, Any] | None = None) -> None:
        self.now = now
        pass_, step = now.position
        self.on_step(
            Progress(
                pass_, step, self.steps, now.rows, self.total_rows, now.loss, now.seconds, now.wait, timeline or {}
            )
        )
        if self.keeper is not None:
            self.keeper.offer(now, bool(now.swept), self.iteration.kept)

    def close(self) -> None:
        """Release resident state on the workers."""
        if self.lanes is not None:
            self.lanes.close()


def _zero_loss(key: tuple[int, int, int], stream: Stream, outputs: int) -> tuple[float, int]:
    """Return Σ w‖y‖² of a block, and its rows."""
    block = stream.block(key)
    F = np.zeros((len(block.X), outputs))
    assert block.y is not None
    residual(F, block.y)
    return weigh(F, block.w), len(block.X)


def stale(errors: Sequence[float]) -> int:
    """Return the number of last passes in which the validation error did not fall by ``MIN_LOSS_DECREASE``."""
    reference, passes = np.inf, 0
    for error in errors:
        reference, passes = (error, 0) if error < (1 - MIN_LOSS_DECREASE) * reference else (reference, passes + 1)
    return passes


def _error(metrics: dict[str, Any], encoding: Encoding) -> float:
    """Return the error that judges a pass: of the loss, or of squares, with outputs of unlike units each in its own."""
    if isinstance(encoding, Continuous) and not encoding.least_squares:
        return float(metrics[encoding.judged_by])
    unlike = isinstance(encoding, Continuous) and encoding.scale is not None
    return 1.0 - metrics["r2"] if unlike else float(metrics["mse"])


def _ahead(position: Position, count: int, steps: int, epochs: int) -> list[Position]:
    pass_, step = position
    numbers = (pass_ * steps + step + 1 + i for i in range(count))
    return [divmod(number, steps) for number in numbers if number < epochs * steps]


def _rising(now: Checkpoint) -> Failure | None:
    """Return a failure if a pass's loss rose: outliers can diverge for many passes before the mean loss shows it."""
    last = now.history[-1]["loss"]
    least = min((entry["loss"] for entry in now.history[:-1]), default=last)
    if last <= max(MAX_LOSS_RISE * least, MIN_LOSS_SHARE * now.scale):
        return None
    message = f"The loss of pass {len(now.history)} is {last / least:.3g} times that of an earlier one."
    return Failure("diverged", message, _HALVED)


_HALVED = (
    "the step was halved several times already: look for rows far from all others with streamkern inspect, scale the"
    " features, or use Direct() or Falkon(), which take no steps"
)


def _failed(mean: float, rows: int, scale: float, position: Position) -> Failure | None:
    where = f"pass {position[0] + 1}, step {position[1] + 1}"
    if not np.isfinite(mean):
        return Failure(
            "non-finite",
            f"The loss is not finite at {where}.",
            "leave the step to the solver (step=None), or compute in float64",
        )
    if mean * min(1.0, rows / MIN_LOSS_ROWS) > MAX_LOSS_RATIO * scale:
        return Failure(
            "diverged",
            f"The loss at {where} is {mean:.3g}, {mean / scale:.3g} times that at the start.",
            "leave step and batch to the solver (step=None, batch=None), or lower q",
        )
    return None
