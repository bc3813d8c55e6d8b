"""Every constant that decides a model, its calibration, a choice or a projection, by stage.

The module imports nothing, so that each room may import it. Sizes of buffers, tiles and caches, which decide neither a
result nor a choice, stand where they are used.
"""

from __future__ import annotations

# ----------------------------------------------------------------------------------------------------------------- Runs

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
MAX_CHECKPOINT_WAIT_SHARE = 0.02
"""Share of a sweep's time that may be spent waiting for checkpoints to be written; beyond, they become rarer than
``CHECKPOINT_SECONDS``."""
KEPT_RESULTS, KEPT_CHECKPOINTS, KEPT_TRAININGS = 3, 2, 3
"""Results of each stage, checkpoints of a training, and unfinished trainings that a run directory keeps."""
EXAMPLE_ROWS, EXAMPLE_COPIES, MAX_EXAMPLE_FEATURES = 8, 3, 20_000
"""Training rows that a run shows, augmented copies of each, and the features up to which they are kept."""

# ----------------------------------------- Work, which stands for seconds where a choice must not depend on the machine

WORK_PER_SECOND = 5e10
"""Work, in multiply-adds at nominal prices, that two slow cores do in a second. The unit of every limit of work."""
LIKELY_CRITICAL_BATCH = 256.0
"""Critical batch, in rows, that seconds are predicted for. A larger one is measured only where batches are larger
too."""
MAX_CRITICAL_BATCH = 1e9
"""Critical batch that memory is projected for: with it a batch is as large as its other limits allow."""
LIKELY_LANCZOS_STEPS = 15
"""Lanczos steps that are counted for a largest eigenvalue, which takes 5 to 30."""
LOAD_SECONDS = 0.6
"""Seconds in which compiled code and libraries load on first use, and threads start."""
RANKING_WORK = 500.0
"""Sums of two numbers that take as long as ranking one score: 0.2 µs on one thread measured, against 0.4 ns."""
MEASUREMENT_SECONDS = 0.1
"""Seconds that each measurement of the machine takes, once it has run for the first time."""
SPEED_CENTERS, SPEED_ROWS = 8192, 256
"""Centers and rows that prices are measured with: beyond these, a value costs no more."""
REPORT_CENTERS, REPORT_OUTPUTS, REPORT_WIDTHS = 4096, 10, (18, 100, 784)
"""Centers (two tiles of them), outputs and widths of rows that ``doctor`` measures blocks of."""
LIKELY_CLASSES = 10
"""Outputs of a classifier that seconds are predicted for before the labels are known; memory assumes
``ASSUMED_OUTPUTS``."""

# ---------------------------------------------------------------------------------------- Projection of memory (ADR 17)

ASSUMED_THREADS = 16
"""Threads that memory is projected for, so that a choice does not depend on their number."""
USUAL_THREADS = 4
"""Threads, or leaves at a time, for which it is decided whether the budget has room for another way: a better solve,
leaves in place of one model."""
STEPS_AHEAD, MAX_STEPS_AHEAD, BYTES_AHEAD = 2, 32, 4 << 20
"""Steps whose blocks are read while one is computed: at least, at most, and the bytes up to which there are more."""
MIN_BATCH_DIVISOR = 64
"""A batch that does not fit the budget is made smaller down to this part of itself; then the next way is tried."""
LIBRARY_BYTES = 40 << 20
"""Compiled code that a fit loads beyond the engine, and slack of heaps: with a thread's share, 48 MiB measured for a
run of 200 rows."""
ENGINE_BYTES = 90 << 20
"""The engine's compiler in a process that has not loaded it: 57 MiB measured; 86 MiB where the system maps files by
large pages, which keep unread parts of libraries resident."""
COMPILING_BYTES = 140 << 20
"""Further bytes of a fit that compiles every loop, with the modules that compile: 138 MiB measured for EigenPro on
plain rows."""
MODULES_BYTES = 104 << 20
"""The library's modules, and Arrow, in a worker that has not imported them: 78 MiB measured, 102 with large pages."""
FRESH_BYTES = 192 << 20
"""Bytes of a process before a fit, where the actual ones must not decide."""
THREAD_BYTES = 16 << 20
"""A thread's stack, its buffers in BLAS and the codecs, and its share of the allocator's slack."""
CALIBRATION_VALUES_PER_OUTPUT, JOINT_CALIBRATION_VALUES_PER_OUTPUT = 14, 11
"""Numbers in float64 for each output of a held-out row while a model, or the leaves of a partition, are calibrated."""
ASSUMED_OUTPUTS = 16
"""Outputs assumed before the labels are known; they take little memory compared with the centers."""

# -------------------------------------------------------------------------------------- Columns and their steps (ADR 8)

MAX_INDICATORS = 255
"""Categories of a column that are encoded as indicators, at most. Of columns with more, the target's means encode them;
or, where there are too many classes for that, the most frequent categories are indicators."""
MAX_CATEGORIES = 10_000
"""Categories of a column, at most."""
MIN_ROWS_OF_ID = 5
"""Rows of a value of a column called an id, on average, from which on they are said to belong together."""
MAX_FOLDS_OF_BOTH = 10
"""Folds in time, and of groups, of rows that have both, at most: there are as many as their product."""
MAX_EXACT_TIMES = 1 << 26
"""Rows that are split by their times as they are, 8 bytes each, at most; more by times in 4 bytes."""
MAX_FOLDS = 100
"""Folds of target encoding, at most."""
MAX_CLASSES_OF_MEANS = 32
"""Classes, at most, whose shares encode a category: each adds a feature for every encoded column."""
MAX_UNSEEN_SHARE = 0.01
"""Share of rows with unseen categories of a column above which a warning is given."""
DATE_PART_FEATURES = {"time": 1, "year": 1, "month": 2, "day": 2, "yearday": 2, "weekday": 2, "hour": 2}
"""Features of each part of a date: a cyclic part has a sine and a cosine."""
MIN_PATTERN_SHARE = 0.9
"""Share of a column's texts that must match a pattern of numbers or dates, for the column to be of that kind."""
MAX_EXAMINED_TEXTS = 1_000
"""Texts of a column that are examined for numbers and dates."""
QUANTILE_KNOTS = 100
"""Quantiles in a map to normal quantiles."""
MIN_DISTINCT_VALUES = 10
"""Columns with no more distinct values than this get neither appended quantiles nor means by value."""
MAX_NUMBER_COLUMNS = 100
"""Columns of numbers up to which quantiles are appended for all; of more, only for those with heavy tails."""
MIN_HEAVY_TAIL_KURTOSIS = 10.0
"""Excess kurtosis from which tails count as heavy; an exponential distribution has 6."""
MIN_ROWS_PER_VALUE = 2
"""Sampled rows for each distinct value, at least, for means by value to be tried: rows of other folds tell whether they
explain more. With 20, and 255 values at most, tables of persons or schools (5 to 7 rows each) lose R²: .584 for .643,
.557 for .659."""
MIN_EXPLAINED_VARIANCE = 0.003
"""Share of the target's variance that means by value must explain beyond means of neighbouring values, and beyond two
standard errors. Set on the table adult (ADR 8)."""
NEIGHBOUR_COUNTS = (1, 2, 4, 8)
"""Neighbours on each side whose means the means by value are compared with."""
APPENDED_SAMPLE_ROWS, APPENDED_SAMPLE_BYTES = 20_000, 32 << 20
"""Rows, and bytes, at most, of the sample for medians, tails and quantiles; or of the first chunk, before the sweep."""
MEDIAN_BYTES = 32 << 20
"""Bytes of the rows that medians are taken of, at most."""
MIN_EFFECTIVE_SHARE = 0.25
"""Units differ, and features are standardised, if their effective number is below this share of the varying ones."""

# --------------------------------------------------------------------------- Rows, targets and labels (offsets: ADR 16)

MAX_OFFSET = 1024.0
"""Standard deviations from 0 beyond which a mean is an offset and subtracted: float32 rounds at 1/16,000 of one or
more."""
MAX_TARGET_OFFSET = 16.0
"""The same for a target, in float32 predictions: they would lose 4 bits to it."""
UNLIKE_SCALE_RATIO = 16.0
"""Ratio of the outputs' standard deviations from which their units count as unlike, and a warning is given."""
DOMINANT_VARIANCE_SHARE, DOMINANT_FEATURE_SHARE = 0.99, 0.2
"""Scales are unlike if the second share of the features, or less, has the first share of the variance."""
MAX_CLASSES = 10_000
"""Distinct values of a classifier's target, at most."""
MIN_HELD_OUT_PER_CLASS = 20
"""If a class would have fewer held-out rows than this in expectation, rows are held out class by class."""
MAX_COMPONENTS = 1 << 20
"""Columns of a random matrix, at most: no array of a saved model implies its size, so the limit is explicit."""
MAX_SHUFFLE_RATIO = 2.0
"""Times that the labels of stored batches may vary as much as those of random ones, before training warns."""
REFERENCE_BATCH, SHUFFLE_QUALITY_CHUNKS = 256, 64
"""Rows of a batch, and chunks, when the stored order is measured."""
MAX_WHOLE_NUMBER_CLASSES = 1000
"""Distinct whole numbers of a target that count as classes there, at most."""

# ---------------------------------------------------------------------------------- Precision of kernel values (ADR 16)

MAX_ROUNDING_SHARE = 1 / 256
"""Share of a kernel's variation over the rows that may be rounding; beyond it accuracy falls."""
MAX_LINEAR_ROUNDING_SHARE = 1 / 32
"""The same for ``Linear``, whose errors are as good as noise of the inputs."""
KERNEL_RESOLUTION = {"float32": 2.0**-23, "float64": 1e-11}
"""η: resolution of a kernel value by dtype. Coarser than the digits of float64: solvers shift spectra by 1e-12 and
more."""
MIN_KERNEL_VARIATION = 1e-3
"""Relative variation of a kernel below which the error names the bandwidth as the cause."""
CHECKED_CENTERS, CHECKED_PAIRS_PER_CENTER = 512, 8
"""Centers whose distances are looked at, and pairs of each of them with others."""
SCALE_POINTS = 400
"""Distances, evenly in their logarithm, among which the kernel's own scale is looked for."""
FACTOR_JITTER = 4.0
"""Jitter in units of rounding of tr K(Z, Z): with less, a rounded matrix may have no Cholesky factor."""
MIN_DERIVATIVE_DISTANCE = 1e-4
"""Distance up to which a kernel's derivative counts as 0: a Laplace kernel has none at r = 0."""
DERIVATIVE_STEP = 1e-5
"""Relative step of a difference: rounding and truncation errors are both about 1e-10 in float64."""

# ------------------------------------------------------------------------------- Centers and eigensystems (ADR 3 and 5)

KMEANS_ROWS_PER_CENTER, MIN_KMEANS_ROWS = 256, 1 << 16
"""Rows a center that an iteration of k-means sees by default, which makes means good to 1/16 of a spread; and rows in
all, at least."""
MIN_KMEANS_DECREASE = 5e-3
"""Relative fall of the squared distances below which another sweep of k-means is not worth its price."""
MAX_KMEANS_CANDIDATES = 256
"""Candidates of a round of seeding, at most: enough for the rate of a matrix product."""
SINGULAR_RESIDUAL = {"float32": 1e-5, "float64": 1e-12}
"""Share of k(x, x), by dtype, below which the residual of a row is rounding: it adds nothing as a center."""
SUBSAMPLE = 2000
"""Rows s of the preconditioner's subsample by default; its eigensystem costs s³."""
JITTER = {"float32": 1e-6, "float64": 1e-12}
"""ε of K(Z, Z) + ε I by dtype, as a share of the largest eigenvalue."""
JITTER_MULTIPLES = (1.0, 1e3, 1e6, 1e8)
"""Times ``JITTER``, until K(Z, Z) has a factor: rows far from their mean have kernel values that are uncertain by more
than the dtype's epsilon."""
EIGEN_FLOOR = 1e-5
"""Share of σ_1 below which EigenPro on centers preconditions no eigenpair, in either dtype (elsewhere ten times
``JITTER``). Without a factor of K(Z, Z), rounding errors of U in float64 count (σ_1/σ_{q+1})² times; and preconditioned
further, rows at the edge of the data have k_P so much above the others that a sample does not show how large it
gets."""
HELD_OUT = 2000
"""Rows, at most, that the spectrum of an iteration is measured on."""
MEASURED_ROWS, MEASURED_CENTERS = 128, 512
"""Held-out rows and centers that the preconditioned diagonal is taken over, p² operations for each: the mean of 128 is
within two hundredths of that of 2,000."""
POWER_STEPS, POWER_COLUMNS = 4, 8
"""Steps and columns of the power method for the largest eigenvalue outside the preconditioned ones."""
MIN_RESOLVED_EIGENVALUE = 10.0
"""Units of rounding of σ_1² below which an eigenvalue is noise."""
OVERSAMPLING, SVD_PRODUCTS = 20, 3
"""Random vectors in addition to the q + 1 requested eigenpairs, and products with H: two improve the range (Halko,
Martinsson & Tropp 2011, section 4.5), one gives Ritz values."""
MIN_RANDOMISED_ROWS = 1500
"""Rows of a matrix from which on its top eigenpairs come from random vectors; the whole of a smaller one takes LAPACK a
third of a second."""
LANCZOS_STEPS, LANCZOS_TOLERANCE, LANCZOS_PATIENCE = 60, 1e-3, 3
"""Most steps of the Lanczos method for a largest eigenvalue; the relative change of it, and the number of steps with no
greater one, at which the method ends."""

# --------------------------------------------------------------------------------- Choice of solver and device (ADR 22)

MAX_DEFAULT_PASSES = 8
"""Passes by default over more rows than ``PASSED_ROWS``, at most: as many as take no more than ``MAX_PASSES_WORK``, or
``PASSES_WORK_PER_SETUP`` times the set-up. One pass learns too little."""
MAX_PASSES_WORK = 120 * WORK_PER_SECOND
"""Work of passes over many rows, at most, where the set-up takes little: two minutes on two slow cores."""
PASSES_WORK_PER_SETUP = 2.0
"""Work of passes for that of the set-up, which is wasted where few passes follow."""
MAX_RIDGE_WORK_RATIO = 4.0
"""Work of a solver that takes a ridge, as a multiple of EigenPro's passes, up to which it is chosen where held-out rows
find a ridge. EigenPro takes none: on noisy targets its passes over few rows may be worse than the mean."""
PATIENCE = 3
"""Passes without improvement (``MIN_LOSS_DECREASE``) before training stops, where there are validation rows."""
MIN_DEVICE_TERMS = 2e11
"""Terms of a pass that a few cores compute in the seconds that it takes to open a card and to compile its loops."""
MAX_EPOCHS, PASSED_ROWS = 20, 500_000
"""Passes by default: enough to see ``PASSED_ROWS`` rows, from 1 to ``MAX_EPOCHS``."""

# ---------------------------------------------------------------------------------- Batches, steps and averages (ADR 3)

MIN_BLOCK_ROWS = 256
"""Rows of a block below which a matrix product is no longer near its rate."""
MAX_BLOCK_ROWS, MAX_DEVICE_BLOCK_ROWS = 1024, 16_384
"""Rows beyond which a block is no faster, and costs memory: on a processor, and on a card unless the batch is given."""
MIN_STEP_ROWS = 1024
"""Rows of a step below which few lanes spend more on steps than on their rows."""
MIN_STEPS_PER_PASS = 16
"""Steps of a pass, at least, where rows are few."""
MIX_BYTES = 64 << 20
"""Bytes of stored rows that lanes read concurrently where not every chunk stays in memory."""
MIX_CHUNKS = 256
"""Chunks shuffled among each other, at most: a window gathers its rows from that many places."""
AVERAGING = 5.0
"""η of the polynomial-decay average (Shamir & Zhang 2013, eq. 5): iterate t enters with weight about (t/T)^η."""
UPDATE_LANES = 4
"""Lanes of an update's sweep, whose sums have a fixed order; the sweep has no steps."""
MAX_HALVINGS = 3
"""Times that a step is halved before training is given up: rows of k_P(x, x) up to 16 times the largest measured one
are then stable where k(x, x) = 1, and that one is seldom below 1/16."""
MIN_LOSS_DECREASE = 1e-4
"""Part of the validation error by which it must fall for a pass to count as better: less is not worth a pass."""
MAX_LOSS_RATIO = 10.0
"""A loss this many times that of predicting zero is divergence, not noise."""
MAX_LOSS_RISE, MIN_LOSS_SHARE = 2.0, 0.01
"""A pass's loss this many times an earlier one's means a step too long, unless it is at most this part of the loss at
the start, where rounding may be seen."""
MIN_LOSS_ROWS = 64
"""Rows whose mean loss is known well enough for these rules; fewer may happen to fit, or to be far off."""

# ------------------------------------------------------------------------------------------- Solvers (ADR 3, 21 and 27)

MAX_EIGENPAIRS = 500
"""q of EigenPro by default, at most; half as many of more centers than s. A step costs 4 p q c for them, the set-up 14
p q²."""
DELAYED_PRODUCTS = 2
"""Products of delayed projection where it replaces an exact one, and has nearly its accuracy."""
MIN_LEAD_SHARE = 0.25
"""Share of the centers in the float32 lead with which a packed inverse factor is as good as a whole one (ADR 21)."""
MOMENTUM_BATCHES = 8.0
"""Critical batches m* beyond which the step saturates and momentum helps."""
SETTLED_EXPONENT = 10.0
"""The preconditioned directions must shrink to exp(−this) by the end of a run."""
STEPS_PER_RUN, STEPS_PER_RUN_BEYOND_P = 200, 2000
"""Steps of a run that momentum needs to cost no accuracy, up to p rows a step and beyond."""
MAX_LOST_SHARE, FALKON_PROBES = 0.03, 8
"""Share of a direction's outputs that may be rounding before Falkon computes in float64, and random directions that are
measured."""
MAX_WEIGHT_ROUNDING = 1e-6
"""Excess of the largest weight over 1 that is rounding of the mean weight, and nothing to a step."""
ROWS_PER_FUNCTION = 4
"""Rows drawn by weight for each function: their products are within (1 ± 1/2)² of the mean (Marchenko-Pastur)."""
LBFGS_PAIRS = 10
"""Pairs of steps and gradients of ``LBFGS``."""
ARMIJO_SHARE, SHORTER_STEP_SHARES = 1e-4, (0.1, 0.5)
"""Share of the predicted decrease that a step must have; a step that was too long is cut to between these shares of
it."""
PINBALL_SMOOTHING = 0.1
"""Scale of the logistic density that smooths the pinball loss, in errors: it moves a quantile of 5% by a fortieth."""
MIN_NEGATIVE_SHARE, NEGATIVE_MEANS = 0.05, 0.1
"""Share of rows predicted below 0, by so many means of the targets, and of targets that are 0, at least, of which a fit
to counts warns."""
MAX_LOG_RATE = 40.0
"""Logarithm of a rate, in mean rates, at most: a step that is far too long has a loss that is a number."""
MIN_ERROR_SHARE = 1e-3
"""Unit of quantiles at least, in quartile distances of the target, where the search has hardly an error."""
NORMAL_QUARTILES = 1.349
"""Distance of the quartiles of a normal distribution, in standard deviations."""
MAX_LOSS_DECREASE = 0.01
"""Decrease that another pass might have, as a share of the loss, above which a warning is given."""
MIN_SVRG_STEPS = 8
"""Steps of a pass of SVRG, at least: the last half is averaged."""

# ----------------------------------------------------------------------------------------------- Leaves (ADR 23 and 29)

TREES = 2
"""Trees whose predictions are averaged, where every row of a leaf is a center."""
OVERLAP, MAX_OVERLAP = 0.05, 0.5
"""Share of the rows at a cut that both sides are trained on by default; more, up to the second share, while leaves stay
within their rows and the work of one model."""
MAX_FILLED_SHARE = 0.9
"""Share of the rows that a leaf may have which a wide overlap may fill."""
FULL_OVERLAP_ROWS, FULL_OVERLAP_CUTS = 16_000, 4
"""Rows of a leaf up to which each of its cuts has the whole overlap: a border needs a number of rows, not a share. Cuts
above a larger leaf that have it; where there are more, they share that of so many."""
MAX_LEAVES = 1 << 17
"""Leaves of a model, at most."""
ROWS_PER_CENTER = 4
"""Rows of a leaf for each of the centers that are given, at most: cuts in two leave from half of that."""
MIN_LEAF_ROWS, MAX_LEAF_ROWS = 8_000, 50_000
"""Rows of a leaf for centers that are given, at least and at most."""
LEAF_CENTERS = 2_000
"""Centers of a leaf of more rows than can all be centers."""
MIN_FULL_KERNEL_ROWS = 2_000
"""Rows of a leaf where each of them is a center, as by default, at least; at most ``MAX_ROWS_AS_CENTERS``."""
MAX_FULL_KERNEL_WORK = 40 * WORK_PER_SECOND
"""Work of all leaves' factors up to which leaves have more than ``MIN_FULL_KERNEL_ROWS`` rows: n rows in leaves of r
take n r²/3, in each tree. More rows of a leaf are worth more where targets have noise; leaves of half as many take a
quarter."""
MAX_LEAVES_WORK = 1200 * WORK_PER_SECOND
"""Work of leaves by default, at most: twenty minutes on two slow cores."""
MIN_LEAF_METRIC_ROWS = 100
"""Rows of a leaf below which no metric is learned."""
GRADIENT_ROWS, MIN_GRADIENT_ROWS_OF_LEAF = 10_000, 100
"""Rows whose gradients give the weights of features, about; and rows of each leaf, at least."""
PROBED_PART, MIN_PROBED_LEAVES, MAX_PROBED_LEAVES = 16, 4, 16
"""One in so many leaves is fitted before all others, to learn the weights of features, but no more than the last
number; with fewer such leaves than the second number, none is."""
PROBED_TREES, PROBED_ROUNDS = 4, 2
"""Trees, at most, of which such leaves are fitted: each is cut with the weights that the one before has taught; and
rounds, at most, in which the leaves of a tree learn weights."""
PROBED_STEP = 2.0
"""Steps towards the weights of a round that are taken at once. On covtype the error of single steps falls by less than
is sure, long before weights stay as they are."""

# ------------------------------------------------------------------------------------------------- Calibration (ADR 20)

MIN_ROWS_TO_CALIBRATE, CALIBRATION_SHARE, MAX_CALIBRATION_ROWS = 20_000, 0.05, 5_000
"""Rows from which on some are held out for probabilities or intervals; their share, and how many at most."""
MAX_HELD_OUT_ROWS = 10_000
"""Held-out rows that a calibration is fitted to, at most: the error of a share of them is half a percent at most."""
MAX_LEFT_OUT_GROUP = 1000
"""Rows of a group that is left out in closed form, at most: it takes their cube."""
MIN_GROUPS_TO_PAIR = 10
"""Groups of test rows from which on two models are compared by group."""
TIME_CALIBRATION_SHARE, GROUP_CALIBRATION_SHARE, MIN_ROLES_ROWS = 0.1, 0.2, 1000
"""Share that is held out of rows with a time, and of groups, which are few; and the rows from which on."""
MAX_HELD_OUT_VALUES = 2_000_000
"""Outputs of them all, at most: with many classes there are fewer rows."""
MIN_HELD_OUT_ROWS = 100
"""Rows below which equal ones of equal targets count as one of their weight, as scikit-learn's checks require."""
MIN_HELD_OUT_ROWS_OF_LEAF = 500
"""Held-out rows of a leaf with numeric targets, at least: its scale is learned from half of them."""
LINK_SOFTNESS, WIDE_LINK_SOFTNESS = 0.02, 0.1
"""ε: how far below 0 an output counts as nearly impossible, and a larger ε: a link of one softness is too steep between
sure and unsure outputs, or too flat."""
MAX_CLASSES_WITH_OWN_PARAMETERS = 100
"""Classes up to which each has parameters a and c of its own."""
MAX_NEWTON_STEPS, MIN_NEWTON_DECREMENT = 50, 1e-10
"""Newton steps, at most; and the decrement, in units of log loss, below which no step gains."""
PARAMETER_PRIOR, BIAS_PRIOR = 1e-3, 1e-5
"""Precision of the prior of δ and of a − 1, c, a', c', and of b, by weight of the rows: that of a thousand rows is
1."""

# -------------------------------------------------------------------------------------------------------------- Metrics

MAX_TRAIN_SCORE_ROWS = 10_000
"""Training rows, at most, that the metrics of the training set are taken over."""
MAX_RANKED_CLASSES = 100
"""Classes, at most, whose rows are ranked for areas under curves."""
MAX_DISTINCT_SCORES = 1 << 16
"""Different scores, of all classes together, up to which their order is exact; beyond, near ones count as ties."""
SCORE_UNITS, SCORE_BITS = 2.0**40, 48
"""Units of a score of 1, of which less is a tie (1e-12), and bits of a score in units, above which stands its class."""
CALIBRATION_BINS = 15
"""Bins of equal width in which the calibration error compares probabilities."""
MAX_CONFUSION_CLASSES = 100
"""Classes, at most, that are counted against one another."""
MAX_SAMPLED_ROWS = 2000
"""Rows, at most, whose values are kept along with the metrics."""
MAX_CURVES = 6
"""Classes, at most, whose curves are kept: those with the least area under their ROC curve."""
CURVE_STEPS = 100
"""Neither rate changes by more than one part in so many between neighbouring points of a curve, where scores allow."""

# ------------------------------------------------------------------------------------------------- Retraining and drift

MAX_GROWTH = 1.5
"""Growth of the rows since the centers were drawn, above which centers are drawn again and training starts at 0."""
WARM_START_DIVISOR = 3
"""A warm start takes the cold start's rows divided by this."""
TAIL_BYTES = 64 << 20
"""Bytes of a last piece, at most, that is compared by content."""
MAX_STABLE_PSI = 0.25
"""Population stability index above which a warning is given."""
MIN_DRIFT_LEAF_ROWS = 200
"""Rows of a leaf, before and after, at least, to compare its targets: with fewer, chance dominates the index."""
DRIFT_SAMPLE_ROWS, DRIFT_SAMPLE_BYTES = 4096, 32 << 20
"""Rows and bytes of the sample for the edges of the bins, at most."""
DRIFT_EDGES = 11
"""Edges of a column's bins: the ends and deciles of the sample."""
DRIFT_BINS = DRIFT_EDGES + 2
"""Bins of a column: between the edges, below and above them all, and missing."""
MIN_DRIFT_SHARE = 1e-4
"""Share of an empty bin, so that logarithms are finite and a single row is not a change."""
MAX_KEPT_SCORES = 8192
"""Rows, at most, whose outputs are kept for the distribution of scores."""
MAX_EARLIER_CHAMPIONS = 20
"""Earlier champions that are kept for rollbacks, at most."""

# ------------------------------------------------------------------------------------------------------------ Search

RIDGES = tuple(10.0**-power for power in range(9, -1, -1))
"""Ridges λ of the loss 1/n Σ ‖f(x) − y‖² + λ ‖f‖², a decade apart, the least first; each use has a range."""
METRIC_RIDGES = RIDGES[:9]
"""Ridges of a round of a metric, up to 0.1: each takes a factorisation."""
SEARCH_RIDGES = RIDGES[1:8]
"""Ridges of a model of the search, 1e-8 to 0.01: each takes a factorisation. Of few rows all are compared, since one
decomposition gives them, and where targets are noise the best is large."""
TUNING_RIDGES = (*(float(f"{m}e-{e}") for e in range(9, 2, -1) for m in (1, 3)), 1e-2)
"""Ridges of a trial of ``tune``, two for each decade up to 0.01: one decomposition gives them all. By decades alone,
two of seven tables have more error, one by .003."""
RIDGE_MULTIPLES = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Ridges that are compared at last, in multiples of the best so far."""
MIN_LOGISTIC_RIDGE = 3e-7
"""Ridge of ``LBFGS`` at least, for the rows of the subsample: where squares want none, logits grow without bound
(covtype at 20,000 rows, ADR 27)."""
BANDWIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Bandwidths that are compared first, in typical distances of two rows: all of them in ``tune``, and where rows are few
and far from one another."""
SEARCH_BANDWIDTHS = BANDWIDTHS[1:5]
"""Bandwidths that the search compares on held-out rows, half to four times the median distance."""
NEAR_BANDWIDTHS = (0.36, 0.6, 1.0, 1.7)
"""Bandwidths that are compared at last, in multiples of the best so far, the smallest first. Of those through a metric,
which takes distances away, the first two are compared at once."""
LINEAR_WEIGHTS = (1.0, 30.0)
"""Weights of a linear part: its mean on the diagonal, where the kernel that it is added to is 1."""
LINEAR_STANDARD_ERRORS = 2.0
"""Standard errors by which a linear part has to be better, because it goes on without bound beyond the rows. With one,
14 of 68 fits were worse; with two 1 of 25 (ADR 22). Without it, 3 of 45 fits to 450, 1,000 or 3,000 rows of small
tables lose R²: .029 (loans), .011 and .004; none gains; at full size it is chosen in none of 24."""
MAX_ERROR_RATIO = 0.99
"""A model beats a simpler one where its error is less than this part of the other's, and by more than the standard
error of the difference on the same rows: in the search, and where leaves learn weights. In ``tune`` fewer
centers, or a bandwidth nearer to the median distance, may cost as much, whatever the standard error: with it, counts of
3,000 rows have .009 more error."""
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
"""Work of the search in seconds of two slow cores: at most; whatever the fit takes; and where every row is a
center."""
SEARCH_MEMORY_DIVISOR = 8
"""The search may hold this part of the budget."""
CONCURRENT_FITS = 2
"""Models of the search that are fitted at a time, which its memory allows for."""
MAX_RIDGES_SOLVED = 4
"""Ridges that a model with every row as a center is solved for, about."""
MAX_EXACT_ERROR = 1e-10
"""Squared error that may be float32 rounding alone: relative to the targets' variance, or absolute for classes."""
MIN_ROWS_PER_FEATURE = 20
"""Rows of the subsample for each feature of a metric of all directions, at least: what fewer say of many does not hold
for all rows (Fashion-MNIST). One of a weight for each feature is tried on fewer: with 647 rows of 170 columns, or 6,552
of 1,502, it is much better than none."""
MIN_METRIC_ROWS = 40
"""Rows below which nothing is learned about features, and no kernel is searched for."""
MAX_L1_FEATURES, MAX_FULL_FEATURES = 200, 1000
"""Features up to which the L1 norm is tried, whose distances cost up to twice a product; and up to which a full metric
is, whose square root takes d³ operations."""
MAX_ROWS_AS_CENTERS = 10_000
"""Rows up to which each of them is a center by default: n³/3 operations of a factor, mostly in float32, where normal
equations of half as many centers take n³/4 in float64."""
DEFAULT_CENTERS, MAX_CENTERS_BY_ROWS, MAX_CENTERS = 2_000, 5_000, 8_000
"""Centers by default where not every row is one: as many rows as a preconditioner looks at, and a set-up of a few
seconds; one for four rows, at most; and one for eight, at most."""
MAX_PASS_SECONDS = 30
"""Seconds of two slow cores for a pass over wide rows with more than ``DEFAULT_CENTERS``, at most."""
TUNING_CENTERS, MAX_TUNING_CENTERS, MIN_TUNING_CENTERS = 1000, 2000, 32
"""Centers of ``tune`` for plain rows; for a pipeline at most, because a trial takes p³; and the fewest of its curve."""
MEDIAN_ROWS = 1000
"""Rows whose median distance is a bandwidth: half a million pairs."""

# Search of the cuts of a partition

SAMPLE_BYTES = 64 << 20
"""Encoded rows of the sample that directions are taken from."""
MIN_SAMPLE_ROWS, SAMPLE_ROWS = 10_000, 200_000
"""Rows of the sample, at least, and at most where more are not needed for ``MIN_SAMPLE_ROWS_OF_LEAF`` cuts of a small
part of the rows."""
SAMPLE_PART = 16
"""Part of the rows up to which the sample is larger where leaves are many."""
VARIANCE_ROWS = 4_096
"""Rows, about, that the direction of a leaf's largest variance is taken from."""
LEAF_ROWS_SLACK = 0.1
"""Part of the most rows of a leaf that one may have more of, where the sample has cut it: it was sure by two standard
errors, and a cut more would read all rows again."""
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
MAX_EDGES = 1024
"""Quantiles of the sample between which rows are counted."""
MAX_VALUES = 10_000
"""Values of the column ``by``, at most."""

# Search of the scale of intervals

MIN_SCALE_GROUPS = 200
"""Groups below which it is so, too, where rows have one: a group's rows are wrong alike."""
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

# ---------------------------------------------------------------------------------- Exact solutions and their residuals

SOLVED_RESIDUAL = {"float32": 2e-3, "float64": 1e-4}
"""Relative residual above which a solution is refined: in float32 products with weights have errors of that size."""
MIN_PIVOT_ROUNDINGS = 128
"""Units of rounding of its diagonal element that a pivot in float32 has, at least: a factor errs by about a dozen
(``tests/benchmarks/factor.py``). Where rows are nearly equal, the rest of a pivot is rounding, which no residual
shows."""
MAX_REFINEMENTS, MAX_JITTERS = 3, 12
"""Refinements of a solution, and diagonals that are tried, each ten times the one before."""
NEAREST_SUMS_RIDGE, MAX_NEGATIVE_DIAGONAL = 1e-8, 1e-6
"""Ridge, in mean diagonals, of the sums that rows were taken from; and the part of the largest diagonal element below
minus which another shows that rows were never added."""
MAX_RESIDUAL = 0.05
"""Relative residual above which a better solve is tried, and a fit counts as inaccurate."""
MIN_RESIDUAL_ROWS, MAX_RESIDUAL_FUNCTIONS = 32, 500
"""Rows below which the residual is not measured, since a quarter of them says nothing; and functions it is measured
with: half as many as rows they are fitted to, so that a fit without noise is no interpolation of them."""
RESIDUAL_STANDARD_ERRORS = 2.0
"""Standard errors by which a better solution must be better for a fit to count as unfinished."""
