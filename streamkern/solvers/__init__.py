"""Solvers: short files of host-side linear algebra around the sweep."""

from __future__ import annotations

from streamkern.solvers.base import Failure, Iteration, Problem, Solver
from streamkern.solvers.direct import Direct
from streamkern.solvers.eigenpro import EigenPro
from streamkern.solvers.eigenpro1 import EigenPro1
from streamkern.solvers.eigenpro2 import EigenPro2
from streamkern.solvers.falkon import Falkon
from streamkern.solvers.lbfgs import LBFGS, Pinball
from streamkern.solvers.loop import Checkpoint, Keeper, Outcome, Progress, train

__all__ = [
    "LBFGS",
    "Checkpoint",
    "Direct",
    "EigenPro",
    "EigenPro1",
    "EigenPro2",
    "Failure",
    "Falkon",
    "Iteration",
    "Keeper",
    "Outcome",
    "Pinball",
    "Problem",
    "Progress",
    "Solver",
    "train",
]
