"""A stage, and how stages are carried out. A fit is a list of stages: nothing else knows their order."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from streamkern.costs.stage_work import StageWork
from streamkern.data.targets import Encoding
from streamkern.defaults import MAX_HELD_OUT_ROWS
from streamkern.errors import warn
from streamkern.solvers.base import Iteration
from streamkern.solvers.loop import Progress

T = TypeVar("T")

Key = Callable[[], tuple[Any, ...] | None]
"""All that a stage's result depends on, None if it is not kept: called only where results are kept, since it may read
all rows in memory."""


@dataclass(frozen=True, eq=False)
class Stage:
    """A stage of a fit: what ``run`` returns, kept by ``key``, and given to the fit.

    Attributes:
        name: as progress, status, report and result have it; "" for a step that takes no time, which nothing shows.
        into: the attribute of the fit that has the result; "" for none.
        take: makes more of the result; returns stages that it asks for, which come next.
        key: all that the result depends on; None if it is not kept.
        when: whether it is a stage of this fit, as far as it is known; or of this shape.
        until: the stage that alone needs the result: it is kept with the checkpoints of that stage, until that ends.
        checkpoints: whether an interrupted run goes on within the stage.
        parts: whether it is kept and shown part by part (``Runner.keep``), as a level or a leaf, and not as a whole.
        memory: bytes that it adds at its peak to a fit of a shape; None, as ``work``, where only some data ask for it.
        why: what it will do on such a shape, and why, in a sentence or several.
    """

    name: str
    run: Callable[[Any], Any]
    into: str = ""
    take: Callable[[Any, Any], Iterable[Stage] | None] = lambda fit, result: None
    key: Callable[[Any], tuple[Any, ...] | None] | None = None
    when: Callable[[Any], bool] = lambda fit: True
    until: str = ""
    checkpoints: bool = False
    parts: bool = False
    memory: Callable[[Any], int] | None = None
    work: Callable[[Any], StageWork] | None = None
    why: Callable[[Any], tuple[str, ...]] | None = None

    def memory_of(self, shape: Any) -> int | None:
        """Bytes that it adds at its peak to a fit of this shape; None where it is no part of it."""
        return self.memory(shape) if self.memory is not None and self.when(shape) else None


def step(run: Callable[[Any], Any], when: Callable[[Any], bool] = lambda fit: True) -> Stage:
    """A step between two stages: it takes no time, and nothing shows it."""
    return Stage("", run, when=when)


def works(stages: Iterable[Stage], shape: Any) -> dict[str, StageWork]:
    """The work of the stages of a shape, by name: one that is listed twice runs once, with what comes to be known."""
    listed = {stage.name: stage.work for stage in stages if stage.work is not None and stage.when(shape)}
    return {name: work(shape) for name, work in listed.items()}


def reasons(stages: Iterable[Stage], shape: Any) -> dict[str, tuple[str, ...]]:
    """What the stages of a shape will do, and why, by name."""
    return {stage.name: stage.why(shape) for stage in stages if stage.why is not None and stage.when(shape)}


class Runner:
    """Carries out the stages of a fit: here each is computed, and nothing is kept."""

    held_out_rows = MAX_HELD_OUT_ROWS
    """Rows, at most, that probabilities or intervals are learned from; 0 for none."""

    searches = True
    """Whether a kernel is searched for where none is given."""

    calibrates_classes = True
    """Whether probabilities are learned for this fit, and not for several at a time."""

    encoding: Encoding | None = None
    """Of a leaf, the encoding that its targets come from: that of all rows."""

    stage: Stage | None = None
    """The stage that is carried out."""

    start: Any = None
    """The checkpoint that training goes on from, or None."""

    checkpoints: Any = None
    """What keeps the state of training, or None."""

    def __init__(self, on_step: Callable[[Progress], None] = lambda progress: None) -> None:
        self.on_step = on_step

    def carry_out(self, stages: Iterable[Stage], fit: Any) -> None:
        """Compute the stages of a fit in order, and those that their results ask for."""
        waiting = list(stages)
        while waiting:
            self.stage = stage = waiting.pop(0)
            if not stage.when(fit):
                continue
            found = self.result(stage, fit) if stage.name else stage.run(fit)
            if stage.into:
                setattr(fit, stage.into, found)
            waiting[:0] = stage.take(fit, found) or ()

    def result(self, stage: Stage, fit: Any) -> Any:
        """Return the result of a stage."""
        key = stage.key
        if stage.parts:
            return stage.run(fit)
        return self.keep(stage.name, None if key is None else lambda: key(fit), lambda: stage.run(fit))

    def keep(self, name: str, key: Key | None, compute: Callable[[], T]) -> T:
        """Return the result of a part of a stage; its key covers all that it depends on, None if it is not kept."""
        return compute()

    def kept(self, name: str, key: Key) -> Any:
        """Return the result of a part that an earlier run has kept, or None; nothing is computed."""
        return None

    def stepped(self, progress: Progress) -> None:
        """Report how far training is."""
        self.on_step(progress)

    def choice(self, reason: str, **facts: Any) -> None:
        """Report a choice that the rows have made."""

    def warn(self, message: str) -> None:
        """Report rows that are probably not as the user means them."""
        warn(message)

    def training(self, fit: Any) -> None:
        """Report that training begins."""

    def trained_anew(self, again: Iteration, message: str) -> None:
        """Report that training begins again, with another step."""
        self.warn(message)
