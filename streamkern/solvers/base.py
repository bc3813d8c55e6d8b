"""What every solver shares: the problem, the loop over steps, and failure as a value with a remedy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from streamkern.centers import CenterSet
from streamkern.data.dataset import Dataset
from streamkern.data.stream import Assembly, Scan, Stream
from streamkern.data.targets import Encoding
from streamkern.execute.base import Executor, Parts, Position
from streamkern.kernels import Basis, Expansion, FeatureMap, Kernel
from streamkern.kernels.base import ROW_TILE, TILE_BYTES
from streamkern.memory import release
from streamkern.solvers.score import score
from streamkern.sweep import Contribution, Work, sweep
from streamkern.types import Array

STEPS_AHEAD = 2
"""Steps whose blocks are read while one is computed."""

MIX_BYTES = 64 << 20
"""Stored rows that lanes read side by side where not every chunk stays in memory."""

MIX_CHUNKS = 256
"""Chunks shuffled among each other at most: a window gathers its rows from that many places."""

SCAN_ROWS = 4096
"""Rows of a block of a whole-data sweep."""

_BLOW_UP = 10.0  # a loss this many times that of predicting zero is no longer noise


@dataclass(frozen=True, eq=False)
class Problem:
    """Everything a solver needs to know.

    Attributes:
        train: rows to fit.
        encoding: how targets become numbers.
        kernel: the kernel.
        centers: Z.
        executor: where blocks run.
        dtype: of the streaming arithmetic.
        seed: of the order of rows.
        lanes: blocks of a step.
        memory: bytes the solver may use for its own matrices; None for no bound.
        cache_bytes: bytes of stored chunks that stay in memory.
        validation: rows to stop early on, or None.
        features: the feature map; None for kernel values at centers.
    """

    train: Dataset
    encoding: Encoding
    kernel: Kernel
    centers: CenterSet
    executor: Executor
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.float32))
    seed: int = 0
    lanes: int = 4
    memory: int | None = None
    cache_bytes: int = 64 << 20
    validation: Dataset | None = None
    features: FeatureMap | None = None

    @property
    def center(self) -> Array:
        """What rows and centers are centred by, shape (d,): the mean of Z where the basis does not mind, else 0."""
        Z = self.centers.Z
        if not (self.features or self.kernel).translation_invariant or not len(Z):
            return np.zeros(Z.shape[1], dtype=self.dtype)
        return np.asarray(Z.mean(axis=0, dtype=np.float64), dtype=self.dtype)

    def expansion(self) -> Expansion:
        """The kernel against the centred centers."""
        return Expansion(self.kernel, np.asarray(self.centers.Z, dtype=self.dtype) - self.center)

    def basis(self) -> Basis:
        """The functions that the model is linear in: features, or kernel values at centers."""
        if self.features is None:
            return self.expansion()
        Z = np.asarray(self.centers.Z, dtype=self.dtype)
        return self.features.basis(Z.shape[1], self.dtype, Z if self.features.needs_centers else None, self.center)

    def assembly(self, dataset: Dataset) -> Assembly:
        """Rows of a dataset as the expansion wants them."""
        return Assembly(dataset, self.encoding, self.center, self.dtype)

    def stream(self, batch: int) -> Stream:
        """The order of the training rows, in steps of ``batch`` rows."""
        return Stream(
            self.assembly(self.train),
            lanes=self.lanes,
            block_rows=max(1, batch // self.lanes),
            run_rows=1,
            mix_chunks=self.mix_chunks,
            seed=self.seed,
            cache_bytes=self.cache_bytes,
        )

    @property
    def mix_chunks(self) -> int:
        """How many chunks' rows are shuffled among each other: all, while the budget keeps every chunk in memory.

        Elsewhere a lane reads that many side by side, so their number is what ``MIX_BYTES`` holds for all lanes.
        """
        sizes = np.diff(self.train.source.bounds)
        row = self.train.n_features * self.train.source.dtype.itemsize
        if int(sizes.sum()) * row <= self.cache_bytes:
            return int(np.clip(len(sizes), 1, MIX_CHUNKS))
        return max(1, MIX_BYTES // ((self.lanes + 1) * int(sizes.max()) * row))


@dataclass(frozen=True)
class Failure:
    """Why an iteration ended without a solution, and what to do.

    Attributes:
        kind: ``diverged``, ``non-finite`` or ``stagnated``.
        message: what was seen.
        remedy: what to change.
    """

    kind: str
    message: str
    remedy: str


Sweep = Callable[[Contribution, Any], Parts]
"""Sums a contribution over all training rows of a pass, under a state."""


class Iteration(Protocol):
    """A solver set up for a problem. States are frozen: a step makes a new one.

    A pass is one call of ``begin``, which may sweep over all rows, and then the steps of the stream. A method of whole
    passes has no steps (``minibatches`` is False); one of minibatches alone leaves ``begin`` as it is.
    """

    @property
    def stream(self) -> Stream:
        """The order of the training rows."""
        ...

    @property
    def contribution(self) -> Contribution:
        """What a block of a step contributes."""
        ...

    @property
    def epochs(self) -> int:
        """Passes, at most."""
        ...

    @property
    def report(self) -> dict[str, Any]:
        """What the setup found out, JSON-serialisable."""
        ...

    @property
    def minibatches(self) -> bool:
        """Whether a pass has steps."""
        ...

    @property
    def sweeps(self) -> int:
        """Times that ``begin`` goes over all rows in a pass."""
        ...

    def init(self) -> Any:
        """The state before the first step."""
        ...

    def begin(self, state: Any, pass_: int, sweep: Sweep) -> Any:
        """The state before the steps of a pass; what is swept for ends with (Σ loss, rows)."""
        ...

    def finished(self, state: Any) -> Failure | bool:
        """Whether the solution is there before all passes are done; or why it never will be."""
        ...

    def broadcast(self, state: Any) -> Any:
        """What the lanes need of a state."""
        ...

    def update(self, state: Any, parts: Parts, position: Position) -> Any:
        """The state after a step whose lanes contributed ``parts``; parts end with (Σ loss, rows)."""
        ...

    def settle(self, state: Any) -> Any:
        """The state with nothing pending, as at the end of training."""
        ...

    def weights(self, state: Any) -> Array:
        """The solution that a state stands for, shape (p, c)."""
        ...


class OneByOne:
    """What a method of minibatches alone leaves as it is."""

    minibatches = True
    sweeps = 0

    def begin(self, state: Any, pass_: int, sweep: Sweep) -> Any:
        """Nothing precedes the steps of a pass."""
        return state

    def finished(self, state: Any) -> Failure | bool:
        """Runs all its passes."""
        return False

    def settle(self, state: Any) -> Any:
        """Nothing is ever pending."""
        return state


class WholePasses(OneByOne):
    """What a method of whole passes leaves as it is: it has no steps."""

    minibatches = False
    sweeps = 1

    def broadcast(self, state: Any) -> Any:
        """Never asked for."""
        return state

    def update(self, state: Any, parts: Parts, position: Position) -> Any:
        """Never asked for."""
        return state


@dataclass(frozen=True)
class Size:
    """How large a problem is: what a solver's cost is a function of.

    Attributes:
        n: rows of a pass.
        p: functions of the basis: centers, or features.
        d: features of a row.
        outputs: outputs c.
        itemsize: bytes of a number.
        lanes: blocks of a step.
        slots: blocks at a time.
        memory: bytes the solver may use for its own matrices.
    """

    n: int
    p: int
    d: int
    outputs: int
    itemsize: int = 4
    lanes: int = 4
    slots: int = 1
    memory: int | None = None

    @property
    def entry(self) -> int:
        """Operations for one value of the basis: an inner product and about ten more."""
        return 2 * self.d + 10

    @property
    def panel(self) -> int:
        """Bytes of the panel that one thread evaluates."""
        return min(TILE_BYTES, ROW_TILE * self.p * self.itemsize)


@dataclass(frozen=True)
class Cost:
    """What a solver will take, beyond the rows themselves.

    Attributes:
        setup_bytes: held at the peak of the setup.
        resident_bytes: held while training.
        setup_flops: operations of the setup.
        row_flops: operations a row and pass.
        step_flops: operations on the host a step, or a pass of a method of whole passes.
        batch: rows of a step at most; 0 for a method of whole passes.
        passes: over the training rows, at most.
        choice: what was chosen, in a word that results depend on.
        reasons: what was chosen and why, one sentence each.
    """

    setup_bytes: int
    resident_bytes: int
    setup_flops: float
    row_flops: float
    step_flops: float
    batch: int
    passes: int
    choice: str = ""
    reasons: tuple[str, ...] = ()


class Solver(Protocol):
    """Hyperparameters of a method; ``setup`` does the work that precedes the first step."""

    @property
    def patience(self) -> int | None:
        """Passes without improvement on validation rows before training stops; None runs all."""
        ...

    def cost(self, size: Size) -> Cost:
        """What the method takes on a problem of this size."""
        ...

    def setup(self, problem: Problem) -> Iteration:
        """Prepare the iteration.

        Raises:
            NumericalError: the preparation is impossible for this kernel and data.
        """
        ...

    def to_json(self) -> dict[str, Any]:
        """Name and parameters, for fingerprints and reports."""
        ...


@dataclass(frozen=True)
class Progress:
    """What is known after a step.

    Attributes:
        pass_: passes completed before this one.
        step: steps of this pass completed.
        steps: steps of a pass.
        rows: rows seen in all.
        total_rows: rows of all passes.
        loss: mean squared residual a row, smoothed.
        seconds: since training began.
        wait: share of the slots' time spent waiting for rows.
    """

    pass_: int
    step: int
    steps: int
    rows: int
    total_rows: int
    loss: float
    seconds: float
    wait: float


@dataclass(eq=False)
class Outcome:
    """How training ended.

    Attributes:
        weights: shape (p, c).
        passes: passes completed.
        rows: rows seen.
        seconds: time in the loop.
        wait: share of the slots' time spent waiting for rows.
        history: one entry a pass: loss and, with a validation set, its metrics.
        failure: None, or why the weights are not a solution.
    """

    weights: Array
    passes: int
    rows: int
    seconds: float
    wait: float
    history: list[dict[str, Any]]
    failure: Failure | None = None


def train(
    problem: Problem,
    iteration: Iteration,
    *,
    patience: int | None = None,
    on_step: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Run an iteration to its end.

    Args:
        problem: the problem it was set up for.
        iteration: what ``Solver.setup`` returned.
        patience: stop after this many passes without a better score on the validation set; None to run all passes.
        on_step: told after every step.
    """
    release()
    stream, executor = iteration.stream, problem.executor
    state = iteration.init()
    rows, waited, computed = 0, 0.0, 0.0
    total_rows = iteration.epochs * stream.rows * (iteration.minibatches + iteration.sweeps)
    loss, scale = 0.0, 0.0
    history: list[dict[str, Any]] = []
    best: tuple[float, Array] | None = None
    failure: Failure | None = None
    start = time.perf_counter()
    steps = stream.steps if iteration.minibatches else 0
    placement = executor.place(Work(stream, iteration.contribution), stream.lanes) if steps else None
    scan = Scan(stream.assembly, SCAN_ROWS)
    passes, stale, scoring = 0, 0, 0.0
    try:
        for pass_ in range(iteration.epochs):
            pass_loss, pass_rows = 0.0, 0

            def whole(contribution: Contribution, shared: Any) -> Parts:
                nonlocal pass_loss, pass_rows
                parts = sweep(executor, Work(scan, contribution), shared)
                pass_loss, pass_rows = pass_loss + float(parts[-2]), pass_rows + int(parts[-1])
                return parts

            state = iteration.begin(state, pass_, whole)
            if pass_rows:
                mean = pass_loss / pass_rows
                loss, scale, rows = mean, scale or mean, rows + pass_rows
                failure = _failed(mean, scale, (pass_, 0))
                on_step(
                    Progress(pass_, 0, steps, rows, total_rows, loss, time.perf_counter() - start,
                             waited / max(1e-9, waited + computed))
                )  # fmt: skip
            for step in range(0 if failure else steps):
                assert placement is not None
                ahead = _ahead((pass_, step), steps, iteration.epochs)
                result = placement.step((pass_, step), iteration.broadcast(state), ahead)
                step_loss, step_rows = float(result.parts[-2]), int(result.parts[-1])
                mean = step_loss / max(1, step_rows)
                scale = scale or mean
                failure = _failed(mean, scale, (pass_, step))
                if failure:
                    break
                state = iteration.update(state, result.parts, (pass_, step))
                loss = mean if rows == 0 else 0.9 * loss + 0.1 * mean
                rows, pass_loss, pass_rows = rows + step_rows, pass_loss + step_loss, pass_rows + step_rows
                waited, computed = waited + result.wait, computed + result.compute
                on_step(
                    Progress(pass_, step + 1, steps, rows, total_rows, loss, time.perf_counter() - start,
                             waited / max(1e-9, waited + computed))
                )  # fmt: skip
            if failure:
                break
            passes += 1
            entry: dict[str, Any] = {"pass": passes, "loss": pass_loss / max(1, pass_rows), "rows": rows}
            if problem.validation is not None:
                state = iteration.settle(state)
                weights = iteration.weights(state)
                before = time.perf_counter()
                metrics = score(executor, problem.assembly(problem.validation), problem.basis(), weights)
                scoring += time.perf_counter() - before
                entry["validation"], entry["scoring_seconds"] = metrics, scoring
                merit = -metrics["mse"]
                if best is None or merit > best[0]:
                    best, stale = (merit, weights), 0
                else:
                    stale += 1
            entry["seconds"] = time.perf_counter() - start
            history.append(entry)
            end = iteration.finished(state)
            if end:
                failure = end if isinstance(end, Failure) else None
                break
            if patience is not None and best is not None and stale >= patience:
                break
    finally:
        if placement is not None:
            placement.close()
    state = iteration.settle(state)
    weights = best[1] if best is not None and patience is not None else iteration.weights(state)
    if failure is None and not np.isfinite(weights).all():
        failure = Failure("non-finite", "The weights are not finite.", "compute in float64, or check the data's scale")
    return Outcome(
        weights, passes, rows, time.perf_counter() - start, waited / max(1e-9, waited + computed), history, failure
    )


def _ahead(position: Position, steps: int, epochs: int) -> list[Position]:
    pass_, step = position
    numbers = (pass_ * steps + step + 1 + i for i in range(STEPS_AHEAD))
    return [divmod(number, steps) for number in numbers if number < epochs * steps]


def _failed(mean: float, scale: float, position: Position) -> Failure | None:
    where = f"pass {position[0] + 1}, step {position[1] + 1}"
    if not np.isfinite(mean):
        return Failure(
            "non-finite",
            f"The loss is not finite at {where}.",
            "leave the step to the solver (step=None), or compute in float64",
        )
    if mean > _BLOW_UP * scale:
        return Failure(
            "diverged",
            f"The loss at {where} is {mean:.3g}, {mean / scale:.3g} times that of the first step.",
            "leave step and batch to the solver (step=None, batch=None), or lower q",
        )
    return None
