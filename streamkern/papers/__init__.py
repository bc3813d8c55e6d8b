"""Methods of papers, to compare with: each is built on the contract of solvers alone."""

from __future__ import annotations

from streamkern.papers.sgd import SGD, GradientDescent, corollary_1, default_features
from streamkern.papers.svrg import SVRG

__all__ = ["SGD", "SVRG", "GradientDescent", "corollary_1", "default_features"]
