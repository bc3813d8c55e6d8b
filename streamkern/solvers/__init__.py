"""Solvers: short files of host-side linear algebra around the sweep."""

from __future__ import annotations

from streamkern.solvers.base import Failure, Iteration, Outcome, Problem, Progress, Solver, train
from streamkern.solvers.eigenpro import EigenPro

__all__ = ["EigenPro", "Failure", "Iteration", "Outcome", "Problem", "Progress", "Solver", "train"]
