"""The one rule by which candidates for a fit are compared before a row is read: take the first that can be paid for.

Candidates stand in the order of the error that is expected of them, the least first. What each takes is counted on
shapes and at fixed prices, never measured here, so that a recipe has the same model on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """A solver, projection, partition or recipe, with bytes and operations at nominal prices, and their limits."""

    choice: T
    memory: float = 0.0
    work: float = 0.0
    memory_limit: float = inf
    work_limit: float = inf


def first_affordable(candidates: Iterable[Candidate[T]]) -> T:
    """Return the first candidate that keeps within its limits; if no candidate does, the last."""
    each = None
    for each in candidates:
        if each.memory <= each.memory_limit and each.work <= each.work_limit:
            break
    assert each is not None, "there are no candidates"
    return each.choice
