"""Defaults and choices that the help of the command line names, without the modules that use them."""

from __future__ import annotations

CHECKPOINT_SECONDS = 30.0
"""Seconds between the checkpoints of a run."""

TUNING_ROWS = 12_000
"""Rows of the subsample on which ``tune`` compares settings."""

VERSIONS_KEPT = 10
"""Versions that a registry keeps in addition to the champion."""

COLUMN_KINDS = ("number", "category", "boolean", "datetime")
"""Kinds of columns that a schema may give."""

RADIAL_NAMES = ("cauchy", "gaussian", "laplace", "matern32", "matern52")
"""Names of the kernels that ``tune`` may compare."""
