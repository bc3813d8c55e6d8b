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

# ------------------------------------------------------------------------------------------------------------ Search

RIDGES = tuple(10.0**-power for power in range(9, -1, -1))
"""Ridges λ of the loss 1/n Σ ‖f(x) − y‖² + λ ‖f‖², a decade apart, the least first; each use has a range."""

METRIC_RIDGES = RIDGES[:9]
"""Ridges of a round of a metric, up to 0.1: each takes a factorisation."""

SEARCH_RIDGES = RIDGES[1:8]
"""Ridges of a model of the search, 1e-8 to 0.01: each takes a factorisation. Of few rows all are compared, since one
decomposition gives them, and where targets are noise the best is large.
"""

TUNING_RIDGES = (*(float(f"{m}e-{e}") for e in range(9, 2, -1) for m in (1, 3)), 1e-2)
"""Ridges of a trial of ``tune``, two for each decade up to 0.01: one decomposition gives them all. By decades alone,
two of seven tables have more error, one by .003.
"""

DIRECTION_RIDGES = RIDGES[3:8:2]
"""Ridges of the model that the direction of a cut is taken from: 1e-6, 1e-4 and 0.01."""

RIDGE_MULTIPLES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Ridges that are compared at last, in multiples of the best so far."""

MIN_LOGISTIC_RIDGE = 3e-7
"""Ridge of ``Logistic`` at least, for the rows of the subsample: where squares want none, logits grow without bound
(covtype at 20,000 rows, ADR 27).
"""

BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Bandwidths that are compared first, in typical distances of two rows: all of them in ``tune``, and where rows are few
and far from one another.
"""

SEARCH_BANDWIDTHS = BANDWIDTHS[1:5]
"""Bandwidths that the search compares on held-out rows, half to four times the median distance."""

NEAR_BANDWIDTHS = (0.36, 0.6, 1.0, 1.7)
"""Bandwidths that are compared at last, in multiples of the best so far, the smallest first. Of those through a metric,
which takes distances away, the first two are compared at once.
"""

BANDWIDTH_TIE = 0.002
"""Part of the squared error that a smaller bandwidth may add where no ridge helps: Laplace models that pass through
their rows hardly depend on the bandwidth, but more centers and rows want a smaller one, which takes fewer passes (CASP,
covtype). By ``MAX_ERROR_RATIO`` in its place, digits and four classes of clusters have up to .001 more errors.
"""

MAX_INTERPOLATING_RIDGE = 1e-7
"""Ridges up to which a model is taken to pass through its rows."""

LINEAR_WEIGHTS = (1.0, 30.0)
"""Weights of a linear part: its mean on the diagonal, where the kernel that it is added to is 1."""

LINEAR_STANDARD_ERRORS = 2.0
"""Standard errors by which a linear part has to be better, because it goes on without bound beyond the rows. With one,
14 of 68 fits were worse; with two 1 of 25 (ADR 22).
"""

MAX_ERROR_RATIO = 0.99
"""A model beats a simpler one where its squared error is less than this part of the other's, and by more than the
standard error of the difference on the same rows: in the search, and where a trial chooses leaves. In ``tune`` fewer
centers, or a bandwidth nearer to the median distance, may cost as much, whatever the standard error: with it, counts of
3,000 rows have .009 more error.
"""

SUBSAMPLE_SIZES = tuple(
    (rows, max(rows // 10, min(rows // 3, 500)))
    for rows in (
        *(25_000, 21_000, 18_000, 15_000, 12_500, 10_500, 9_000, 7_500, 6_300, 5_300, 4_400, 3_700, 3_000),
        *(2_500, 2_000, 1_600, 1_250, 1_000, 800, 600, 400),
    )
)
"""Rows of the search's subsample and centers of its models, the largest first."""

MIN_ROWS_TO_HOLD_OUT = SUBSAMPLE_SIZES[-1][0]
"""Rows of which a third is held out. Fewer are left out one by one: with 120 rows the mean R² was .591 for .561."""

HELD_OUT_SHARE = 1 / 3
"""Share of the subsample that models of the search and of ``tune`` are compared on: an error takes less than a fit."""

METRIC_HELD_OUT_SHARE = 0.2
"""Share of the sample that rounds of a metric are compared on, and of a leaf's rows that a ridge is."""

FIRST_MODELS_DIVISOR = 3
"""The first models are fitted to the subsample's rows, and have its centers, divided by this."""

MAX_FINALISTS = 3
"""Models of the first part that are fitted to all rows of the subsample, at most."""

METRIC_ROUNDS, MAX_FURTHER_ROUNDS = 3, 1
"""Rounds, at most, in which a metric is learned on the first models, and then on those of all rows."""

MAX_SEARCH_SHARE = 0.5
"""Work of the search at nominal prices, at most, as a part of that of the fit."""

MAX_SEARCH_SECONDS, MIN_SEARCH_SECONDS, MIN_FULL_KERNEL_SEARCH_SECONDS = 120, 3, 32
"""Work of the search in seconds of two slow cores: at most; whatever the fit takes (of a leaf a tenth of it); and where
every row is a center.
"""

SEARCH_MEMORY_DIVISOR = 8
"""The search may hold this part of the budget."""

MIN_ROWS_PER_COLUMN = 20
"""Rows of the subsample for each number of a metric's diagonal, at least: what fewer say of many does not hold for all
rows (Fashion-MNIST). There are as many as columns, or, for metrics of all directions, as features.
"""

MIN_METRIC_ROWS = 40
"""Rows below which nothing is learned about features, and no kernel is searched for."""

MAX_L1_FEATURES, MAX_FULL_FEATURES = 200, 1000
"""Features up to which the L1 norm is tried, whose distances cost several times a product in wider rows; and up to
which a full metric is, whose square root takes d³ operations.
"""

MAX_ROWS_AS_CENTERS = 10_000
"""Rows up to which each of them is a center by default: n³/3 operations of a factor, mostly in float32, where normal
equations of half as many centers take n³/4 in float64.
"""

DEFAULT_CENTERS, MAX_CENTERS_BY_ROWS, MAX_CENTERS = 2_000, 5_000, 8_000
"""Centers by default where not every row is one: as many rows as a preconditioner looks at, and a set-up of a few
seconds; one for four rows, at most; and one for eight, at most.
"""

MAX_PASS_SECONDS = 30
"""Seconds of two slow cores for a pass over wide rows with more than ``DEFAULT_CENTERS``, at most."""

TUNING_CENTERS, MAX_TUNING_CENTERS, MIN_TUNING_CENTERS = 1000, 2000, 32
"""Centers of ``tune`` for plain rows; for a pipeline at most, because a trial takes p³; and the fewest of its curve."""

DIRECTION_ROWS, DIRECTION_CENTERS = 1_000, 125
"""Rows and centers for the direction of a cut, at most. Five times the rows and four times the centers gain nothing
(ADR 23).
"""

MEDIAN_ROWS, DIRECTION_MEDIAN_ROWS = 1000, 128
"""Rows whose median distance is a bandwidth: half a million pairs. Of a leaf's direction: to about three percent."""

# Search of the cuts of a partition

SAMPLE_BYTES = 64 << 20
"""Encoded rows of the sample that directions are taken from."""

MIN_SAMPLE_ROWS, SAMPLE_ROWS = 10_000, 200_000
"""Rows of the sample, at least, and at most where more are not needed for ``MIN_SAMPLE_ROWS_OF_LEAF`` cuts of a small
part of the rows."""

SAMPLE_PART = 16
"""Part of the rows up to which the sample is larger where leaves are many."""

STANDARD_DEVIATION_ROWS = 4_096
"""Rows, about, that standard deviations of features are taken from, in whose units a direction is found."""

MIN_DIRECTION_ROWS = 200
"""Rows of the sample below which a direction is that of the largest variance."""

LEAF_ROWS_SLACK = 0.1
"""Part of the most rows of a leaf that one may have more of, where the sample has cut it: it was sure by two standard
errors, and a cut more would read all rows again.
"""

MIN_SAMPLE_ROWS_OF_LEAF = 1_000
"""Rows of the sample in a leaf from which on it is cut at their median: that of all rows to two percent or three."""

MAX_EIGENVECTORS = 8
"""Eigenvectors that are looked at for one that cuts the rows near their middle."""

MIN_BALANCE = 0.3
"""Share of the sample's rows on the smaller side of a cut from which on no further eigenvector is looked at."""

MIN_SIDE_SHARE = 0.05
"""Share of a leaf's rows below which a side is not cut off."""

MIN_CUT_ROWS = 100
"""Rows of a leaf, at least."""

MIN_ROWS_OF_VALUE = 500
"""Rows of a value of the column ``by``, at least, for a part of its own."""

MAX_LLOYD_STEPS = 30
"""Steps of Lloyd's method between two means, at most."""

MAX_EDGES = 1024
"""Quantiles of the sample between which rows are counted."""

MAX_VALUES = 10_000
"""Values of the column ``by``, at most."""

# Search of the scale of intervals

MIN_SCALE_ROWS = 100
"""Rows below which the scale is a constant, and all of them tell the quantile; rows of a fifth, at least."""

SCALE_GROUPS = 5
"""Parts of the predicted scale that have a quantile each."""

MAX_SCALE_ROWS = 2000
"""Rows, at most, that the scale is learned from."""

MAX_SCALE_FUNCTIONS = 300
"""Functions of the basis, at most, that the scale is made of."""

MIN_RELATIVE_SCALE = 0.1
"""Least scale, as a share of the mean one."""

SCORED_COVERAGE = 0.9
"""Coverage that metrics are of."""
