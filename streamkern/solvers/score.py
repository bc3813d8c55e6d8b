"""Error of a model over the rows of a scan: one sweep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamkern.data.stream import Assembly, Block, Scan
from streamkern.data.targets import Classes
from streamkern.execute.base import Executor, Parts
from streamkern.kernels import Basis
from streamkern.sweep import Work, sweep
from streamkern.types import Array


def residual(F: Array, y: Array) -> None:
    """F − y in place: y holds class codes (b,) for targets in {0, 1}, or values (b, c)."""
    if y.ndim == 1:
        F[np.arange(len(y)), y] -= 1
    else:
        F -= y


@dataclass(eq=False)
class SquaredError:
    """Contributes rows, Σ‖f(x) − y‖², rows whose largest output is the right class, Σ(y − c) and Σ(y − c)².

    Args:
        basis: the functions the model is linear in.
        classify: whether targets are class codes.
    """

    basis: Basis
    classify: bool

    def __call__(self, block: Block, state: Array) -> Parts:
        """Sums over the block under weights ``state``, shape (M, c)."""
        n = len(block.X)
        y = block.y
        assert y is not None
        F = self.basis.predict(block.X, state)
        correct = int(np.count_nonzero(F.argmax(axis=1) == y)) if self.classify else 0
        residual(F, y)
        error = np.sum(np.square(F, dtype=np.float64), axis=0)
        values = np.zeros((1, F.shape[1])) if self.classify else y
        return n, error, correct, values.sum(axis=0), np.square(values).sum(axis=0)


def score(
    executor: Executor, assembly: Assembly, basis: Basis, weights: Array, block_rows: int = 1024
) -> dict[str, Any]:
    """Metrics of f(x) = Σ_j w_j φ_j(x) on a dataset.

    Args:
        executor: where blocks run.
        assembly: the dataset, its encoding and the centre of the basis.
        basis: the functions φ_j.
        weights: w, shape (M, c).
        block_rows: most rows of a block.

    Returns:
        ``n``, ``mse`` (mean over rows of the mean squared error over outputs) and, for classes, ``accuracy``, else
        ``r2`` (mean over outputs).
    """
    classify = isinstance(assembly.encoding, Classes)
    work = Work(Scan(assembly, block_rows), SquaredError(basis, classify))
    n, error, correct, total, squares = sweep(executor, work, weights)
    metrics: dict[str, Any] = {"n": int(n), "mse": float(np.mean(error) / n)}
    if classify:
        metrics["accuracy"] = correct / n
    else:
        spread = squares - total**2 / n
        varies = spread > 0
        r2 = np.where(varies, 1 - error / np.where(varies, spread, 1.0), np.where(error > 0, 0.0, 1.0))
        metrics["r2"] = float(np.mean(r2))
    return metrics
