"""A generated table with numbers, texts and missing values, and a pipeline that leaves everything to the defaults."""

from __future__ import annotations

import numpy as np
import pandas as pd

import streamkern as sk


def table(rows: int, seed: int) -> pd.DataFrame:
    """Return rows of Friedman's function with three levels of an offset, one value in twenty missing."""
    rng = np.random.default_rng(seed)
    X, level = rng.random((rows, 8)), rng.integers(0, 3, rows)
    y = 10 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20 * (X[:, 2] - 0.5) ** 2 + 10 * X[:, 3] + 3 * level
    y += rng.normal(size=rows)
    X[rng.random(X.shape) < 0.05] = np.nan
    named = {f"x{j}": X[:, j] for j in range(8)}
    return pd.DataFrame({**named, "level": np.array(["low", "middle", "high"])[level], "y": y})


def pipeline(rows: int = 8_000, seed: int = 0) -> sk.Pipeline:
    """Settings.

    Args:
        rows: training rows.
        seed: seed of the rows.
    """
    train, test = table(rows, seed), table(2_000, seed + 1)
    given = [sk.from_arrays(each.drop(columns="y"), each["y"].to_numpy()) for each in (train, test)]
    return sk.Pipeline(train=given[0], test=given[1], task="regression")
