"""Draws numbers of pages from docs/results: ``python docs/measurements.py`` rewrites the marked blocks of all pages.

A file of results is a list of runs, as ``tests/benchmarks/results.py`` writes them: command, date, machine, load,
versions, commit and values. The commit is the one that was measured; for runs before 28 November 2026, the one that
entered their numbers, or null if the history does not tell. A value is a number, a list (one of each repetition), or an
object with median, low and high, or mean and sd; null was not measured. A block of a page begins with
``<!--results:NAME-->`` and ends with ``<!--end-->``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS / "results"
PAGES = (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")), *sorted(DOCS.glob("*/*.md")))
BLOCK = re.compile(r"(<!--results:([\w-]+)-->\n).*?(<!--end-->)", re.DOTALL)
OURS = "streamkern"
Record = dict[str, Any]


class Value:
    """Format a measured value, a spread as ``median (low to high)``, repetitions one after another."""

    def __init__(self, found: Any) -> None:
        self.found = found

    def __getitem__(self, name: str) -> Value:
        return Value(self.found[name])

    def __format__(self, spec: str) -> str:
        found = self.found
        if found is None:
            return "not measured"
        if isinstance(found, list):
            texts = ["not reached" if one is None else format(one, spec) for one in found]
            return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))
        if isinstance(found, dict):
            if "sd" in found:
                return f"{found['mean']:{spec}} ± {found['sd']:{spec}}"
            low, high = (format(found[end], spec) for end in ("low", "high"))
            return f"{found['median']:{spec}} ({low} to {high})" if "median" in found else f"{low} to {high}"
        return format(found, "" if isinstance(found, str) else spec)


def runs(file: str) -> list[Record]:
    """Return the runs of a file of results."""
    found: list[Record] = json.loads((RESULTS / f"{file}.json").read_text(encoding="utf-8"))
    return found


def records(file: str, **where: Any) -> list[Record]:
    """Return the values of all runs, each with the processor and the date of its run."""
    return [
        {"processor": processor(run["machine"]), "date": run["date"]} | record
        for run in runs(file)
        for record in run["values"]
        if where.items() <= record.items()
    ]


def processor(machine: str) -> str:
    """Return the short name that the pages use for a machine."""
    found = re.search(r"\((?:family \d+, model )?(.*?)\)", machine)
    return machine if found is None else f"Xeon {found[1]}" if found[1].isdigit() else found[1]


def filled(template: str, record: Record) -> str:
    """Fill a template with a record's values."""
    return template.format_map({name: Value(value) for name, value in record.items()})


def grid(headings: list[str], rows: list[list[str]]) -> str:
    """Return a table in Markdown: words to the left, numbers to the right."""
    numeric = [all(re.match(r"\*{0,2}[-+−]?\d|$|not measured", row[i]) for row in rows) for i in range(len(headings))]
    rule = ["---:" if right else "---" for right in numeric]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [headings, rule, *rows])


def source(*files: str, **where: Any) -> str:
    """Return where numbers come from: the files, which have the commands, processors, days and other work."""
    used = [run for file in files for run in runs(file) if any(where.items() <= each.items() for each in run["values"])]
    loads: dict[str, dict[str, None]] = {}
    for run in used:
        loads.setdefault(f"{processor(run['machine'])}, {run['date']}", {})[run["load"] or ""] = None
    places = [", ".join(filter(None, (place, several(list(found))))) for place, found in loads.items()]
    return f"{', '.join(f'[{file}.json](results/{file}.json)' for file in files)}: {'; '.join(places)}."


def several(loads: list[str]) -> str:
    """Return the load of runs, or the different loads of several runs."""
    if len(loads) == 1:
        return loads[0]
    parts = dict.fromkeys(part for load in loads for part in load.split(", ") if part not in ("", "idle"))
    return f"{'some runs idle, others' if 'idle' in loads else 'some runs'} with {' and '.join(parts)}"


@dataclass(frozen=True)
class Table:
    """A table with a line for each record.

    Args:
        file: of results.
        columns: heading and template of each column.
        where: values that a record must have.
    """

    file: str
    columns: dict[str, str]
    where: Record = field(default_factory=dict)

    def __call__(self) -> str:
        rows = [[filled(each, record) for each in self.columns.values()] for record in records(self.file, **self.where)]
        return f"{grid([*self.columns], rows)}\n\n{source(self.file, **self.where)}"


@dataclass(frozen=True)
class Sentence:
    """A sentence with a part for each record.

    Args:
        file: of results.
        template: of a part.
        where: values that a record must have.
        head: words before the parts.
    """

    file: str
    template: str
    where: Record = field(default_factory=dict)
    head: str = ""

    def __call__(self) -> str:
        parts = "; ".join(filled(self.template, record) for record in records(self.file, **self.where))
        return f"{self.head}{parts}. {source(self.file, **self.where)}"


@dataclass(frozen=True)
class Recorded:
    """A table whose headings are the names of its records' values, in their order.

    Args:
        file: of results.
        table: its records' value of that name.
    """

    file: str
    table: str

    def __call__(self) -> str:
        found = [each for run in runs(self.file) for each in run["values"] if each["table"] == self.table]
        if all(isinstance(each.get("rows"), int) for each in found):
            found.sort(key=lambda each: each["rows"])
        columns = {name: [each[name] for each in found] for name in found[0] if name != "table"}
        spec = {name: alike(values) if i else "g" for i, (name, values) in enumerate(columns.items())}
        rows = [
            [f"{Value(each[name]):{',' if isinstance(each[name], int) else spec[name]}}" for name in columns]
            for each in found
        ]
        return f"{grid([*columns], rows)}\n\n{source(self.file, table=self.table)}".replace("e-0", "e-")


def alike(values: list[Any]) -> str:
    """Return a format with the decimals of the column's longest number, unless a number is tiny."""
    parts = (one.values() if isinstance(one, dict) else one if isinstance(one, list) else [one] for one in values)
    flat = [each for part in parts for each in part]
    texts = [repr(each) for each in flat if isinstance(each, float)]
    decimals = max((len(text.partition(".")[2]) for text in texts), default=0)
    return "g" if decimals > 4 or any("e" in text for text in texts) else f",.{decimals}f"


# ------------------------------------------------------------------------------------------------------------ tables

PREDICTED = {
    "housing": "median house price of a district in California",
    "casp": "distance between a predicted protein structure and the true structure",
    "adult": "whether a person earns more than 50,000 dollars a year",
    "diamonds": "logarithm of the price of a diamond",
    "fars": "severity of injury in a fatal accident: eight classes",
    "proteins": "whether two proteins are related: true for one row in a hundred",
    "flights": "delay of a flight on arrival, in minutes",
    "covtype": "kind of forest: seven classes",
}
TREES = ("LightGBM", "LightGBM, 3,000 trees", "LightGBM, 45 large trees", "XGBoost", "HistGradientBoosting", "CatBoost")
DEFAULTS = (OURS, "LightGBM", "XGBoost", "HistGradientBoosting", "CatBoost", "ChimeraBoost")
SLOWER = ("xRFM",)
SHORT = {"HistGradientBoosting": "scikit-learn", "LightGBM, 3,000 trees": "LightGBM, larger"} | {
    "LightGBM, 45 large trees": "LightGBM, larger"
}


@dataclass(frozen=True)
class Scored:
    """The records of a model on a table, by the number of the split."""

    model: str
    splits: dict[int, Record]

    @property
    def score(self) -> float:
        """The mean score of the splits."""
        return fmean(self.values("score"))

    def values(self, name: str) -> list[float]:
        """Return a value of each split that has it."""
        return [record[name] for record in self.splits.values() if name in record]

    def mean(self, *names: str) -> str:
        """Return the mean over splits of the first of these values that was measured."""
        found = next((values for name in names if (values := self.values(name))), None)
        return "not measured" if found is None else f"{fmean(found):,.0f}"


@dataclass(frozen=True)
class Compared:
    """One table: the scores of this library, and those of boosted trees by their names."""

    name: str
    ours: Scored
    trees: dict[str, Scored]

    @property
    def first(self) -> Record:
        """A record of this library, for what all splits have alike."""
        return next(iter(self.ours.splits.values()))

    @property
    def places(self) -> set[tuple[str, str]]:
        """Days and processors of the records."""
        return {
            (record["date"], record["processor"])
            for scored in (self.ours, *self.trees.values())
            for record in scored.splits.values()
        }

    @property
    def strongest(self) -> Scored:
        """The boosted trees with the best mean score."""
        return max(self.trees.values(), key=lambda scored: scored.score)

    @property
    def decimals(self) -> int:
        """Decimals of scores: five where they differ in the fifth."""
        return 5 if self.name == "proteins" else 4

    @property
    def differences(self) -> list[float]:
        """This library's score minus that of the strongest trees, on each split that both have."""
        ours, theirs = self.ours.splits, self.strongest.splits
        return [ours[split]["score"] - theirs[split]["score"] for split in ours if split in theirs]

    @property
    def lead(self) -> float:
        """The mean of the differences."""
        return fmean(self.differences)

    @property
    def error(self) -> float | None:
        """The standard error of the mean difference, or None of a single split."""
        found = self.differences
        return None if len(found) < 2 else stdev(found) / len(found) ** 0.5

    @property
    def won(self) -> bool:
        """Whether this library has the better mean score."""
        return self.lead > 0

    @property
    def clear(self) -> bool:
        """Whether the difference is more than two standard errors; one of a single split never is."""
        return self.error is not None and abs(self.lead) > 2 * self.error

    def score(self, scored: Scored | None) -> str:
        """Return a mean score with the spread over splits, bold if it is the best."""
        if scored is None:
            return "not measured"
        text = spread(scored.values("score"), self.decimals)
        return f"**{text}**" if scored is (self.ours if self.won else self.strongest) else text

    def difference(self) -> str:
        """Return the mean difference and its standard error."""
        error = "" if self.error is None else f"±{self.error:.{self.decimals}f}"
        return f"{self.lead:+.{self.decimals}f}{error}".replace("-", "−")


def spread(values: list[float], decimals: int) -> str:
    """Return the mean of splits with their standard deviation, which a single split does not have."""
    deviation = "" if len(values) < 2 else f"±{stdev(values):.{decimals}f}"
    return f"{fmean(values):.{decimals}f}{deviation}"


def compared() -> list[Compared]:
    """Return the tables in the order of their rows; models of a table have the same splits."""
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for record in sorted(records("tables"), key=lambda record: (record["rows"], record["table"])):
        splits = found.setdefault(record["table"], {}).setdefault(record["model"], {})
        splits[record.get("split", 0)] = record
    return [
        Compared(
            name,
            Scored(OURS, models[OURS]),
            {title: Scored(title, models[title]) for title in TREES if title in models},
        )
        for name, models in found.items()
    ]


def others(each: Compared) -> list[Scored | None]:
    """Return the trees of a table, with one of the larger settings of LightGBM."""
    larger = each.trees.get("LightGBM, 3,000 trees") or each.trees.get("LightGBM, 45 large trees")
    return [
        each.trees.get("LightGBM"),
        larger,
        *(each.trees.get(name) for name in ("XGBoost", "HistGradientBoosting", "CatBoost")),
    ]


MODELS = [OURS, "LightGBM", "larger LightGBM", "XGBoost", "scikit-learn", "CatBoost"]


def tables() -> str:
    """Return mean scores with their spread, those of the strongest trees, and the paired difference."""
    rows = [
        [
            f"{each.name}, {each.first['metric']}",
            f"{len(each.ours.splits)}",
            each.score(each.ours),
            f"{each.score(each.strongest)} {SHORT.get(each.strongest.model, each.strongest.model)}",
            each.difference(),
        ]
        for each in compared()
    ]
    headings = ["table, score", "splits", OURS, "strongest trees", "difference"]
    return f"{grid(headings, rows)}\n\n{source('tables')}"


def tables_models() -> str:
    """Return the mean scores of all models."""
    rows = [
        [each.name, *(each.score(scored).split("±")[0].strip("*") for scored in (each.ours, *others(each)))]
        for each in compared()
    ]
    return grid(["mean score", *MODELS], rows)


def tables_seconds() -> str:
    """Return the mean seconds of the processor of all models."""
    rows = []
    for each in compared():
        found = [each.ours, *others(each)]
        names = ("processor_seconds", "clock_seconds")
        rows.append([each.name, *("not measured" if one is None else one.mean(*names) for one in found)])
    several = listed([each.name for each in compared() if len(each.places) > 1])
    note = f"Models of {several} were measured on several days and processors, and larger LightGBM there by the clock."
    return "\n\n".join([grid(["seconds", *MODELS], rows), *([note] if several else [])])


def tables_described() -> str:
    """Return what a table predicts, its size and that of this library's model on the first split."""
    names = ("rows", "columns", "leaves", "centers", "memory_mib")
    rows = [[each.name, PREDICTED[each.name], *(f"{each.first[name]:,}" for name in names)] for each in compared()]
    return grid(["table", "predicted", "rows", "columns", "leaves", "centers", "MiB"], rows)


def tables_summary() -> str:
    """Return how many of the tables this library wins, and what it costs."""
    found = compared()
    won = [each for each in found if each.won]
    lost = listed([each.name for each in found if not each.won])
    close = listed([each.name for each in found if each.error is not None and not each.clear])
    single = listed([each.name for each in found if each.error is None])
    notes = [
        f" On {close} the mean difference is below two standard errors, and may be chance." if close else "",
        f" The tables {single} were split only once." if single else "",
    ]
    noted = "".join(notes)
    ours = [fmean(each.ours.values("processor_seconds")) for each in found]
    light = [fmean(each.trees["LightGBM"].values("processor_seconds")) for each in found]
    return (
        f"With its defaults streamkern beats the strongest trees on {len(won)} of {len(found)} tables. It loses on "
        f"{lost}.{noted} A fit of streamkern takes {min(ours):.0f} to {max(ours):.0f} s of CPU time. A fit of LightGBM "
        f"with its defaults takes {min(light):.0f} to {max(light):.0f} s."
    )


def listed(names: list[str]) -> str:
    """Return names with an "and" before the last."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def tables_short() -> str:
    """Return each table's score, that of the strongest trees, and the difference."""
    rows = []
    for each in compared():
        trees = SHORT.get(each.strongest.model, each.strongest.model).split(",")[0]
        score = f"{each.first['metric']} {each.score(each.ours)}"
        rows.append([each.name, f"{each.first['rows']:,}", score, f"{each.score(each.strongest)} {trees}"])
    return grid(["table", "rows", OURS, "strongest trees"], rows)


def forty() -> str:
    """Return how default settings compare: those that were measured on most tables, then with each of the others."""
    found: dict[str, dict[str, dict[int, Record]]] = {}
    for record in records("forty"):
        splits = found.setdefault(record["table"], {}).setdefault(record["model"], {})
        splits |= {} if record["score"] is None else {record["split"]: record}
    lists = [default_ranks(found, titles) for titles in (DEFAULTS, *((*DEFAULTS, title) for title in SLOWER))]
    behind = {}
    for name, models in found.items():
        if means := mean_errors(models, mistake, DEFAULTS):
            behind[name] = means[OURS] / min(means.values())
    worst = max(behind, key=lambda name: behind[name])
    shape = next(record for record in records("forty", table=worst))
    rows = [record["rows"] for record in records("forty")]
    said = (
        f"The tables have {min(rows):,} to {max(rows):,} rows for training. In the first list streamkern is furthest "
        f"behind on {worst}, with {shape['rows']:,} rows and {shape['columns']:,} columns: its error is "
        f"{behind[worst]:.1f} times the least."
    )
    return "\n\n".join([*lists, said, f"{unmeasured(found)} {source('forty')}"])


def default_ranks(found: dict[str, dict[str, dict[int, Record]]], titles: Sequence[str]) -> str:
    """Return mean ranks of models, and their errors and log losses relative to the best of each table.

    An error is the error rate, or the root mean squared error, in the mean of the splits that all models have.
    """
    sealed = {record["table"] for record in records("forty", sealed=True)}
    headings, columns = ["defaults"], [[SHORT.get(title, title) for title in titles]]
    for part, names in (("developed with", found.keys() - sealed), ("sealed", sealed)):
        for kind, measure in (("error", mistake), ("log loss", itself)):
            tables = [means for name in sorted(names) if (means := mean_errors(found[name], measure, titles))]
            if not tables:
                continue
            ranks = [[1 + sum(each < means[title] for each in means.values()) for means in tables] for title in titles]
            ratios = [[means[title] / min(means.values()) for means in tables] for title in titles]
            headings += [f"{len(tables)} {part}: rank by {kind}", f"{kind} / least"]
            columns += [[f"{fmean(each):.2f}" for each in ranks], [f"{fmean(each):.3f}" for each in ratios]]
    return grid(headings, list(map(list, zip(*columns, strict=True))))


def unmeasured(found: dict[str, dict[str, dict[int, Record]]]) -> str:
    """Return which models have no score on which tables, those marked on which a fit was stopped."""
    stopped = {(each["table"], each["model"]): each["clock_seconds"] for each in records("forty", score=None)}
    parts = []
    for title in DEFAULTS:
        names = [name for name, models in found.items() if not models.get(title)]
        marked = [f"{name}\\*" if (name, title) in stopped else name for name in names]
        parts += [f"{SHORT.get(title, title)} on {listed(marked)}"] if names else []
    limits = sorted({f"{each:,.0f}" for each in stopped.values()})
    return f"Not measured: {'; '.join(parts)} (\\* stopped after {listed(limits)} s)."


def mistake(record: Record) -> float:
    """Return the error rate of a record, or the root mean squared error in standard deviations of the target."""
    error: float = (1 - record["score"]) ** (1.0 if record["metric"] == "accuracy" else 0.5)
    return error


def itself(record: Record) -> float | None:
    """Return the log loss of a record, None for a value."""
    return record.get("log_loss")


def mean_errors(
    models: dict[str, dict[int, Record]], measure: Callable[[Record], float | None], titles: Sequence[str]
) -> dict[str, float]:
    """Return the mean error of each model on the splits that all have; nothing if there is no such error."""
    splits = set.intersection(*(set(models.get(title, ())) for title in titles))
    errors = {title: [measure(models[title][split]) for split in sorted(splits)] for title in titles}
    known = {title: [each for each in found if each is not None] for title, found in errors.items()}
    return {title: fmean(found) for title, found in known.items()} if all(known.values()) else {}


def small_summary() -> str:
    """Return on how many small tables this library is at least as good as LightGBM with its defaults."""
    found = records("small_tables", further_test_rows=0)
    counts, sizes = ([each[name] for each in found] for name in ("at_least", "rows"))
    return (
        f"Each of {found[0]['tables']} other tables was cut to {len(sizes)} sizes, from {min(sizes):,} to "
        f"{max(sizes):,} rows. At each size, streamkern is at least as good as LightGBM on {min(counts)} to "
        f"{max(counts)} tables, with defaults on both sides."
    )


def preprocessing() -> str:
    """Return what the automatic preprocessing, and numbers as they are, lose at most."""
    found = records("preprocessing")
    mean = max(each["points_lost"] for each in found)
    single = max(lost for each in found for lost in each["points_lost_by_split"])
    worst = max(found, key=lambda each: each["standardised"] - each["unchanged"])
    return (
        f"On {len(found)} tables it loses at most {mean:.1f} points to the better of the two in the mean of three "
        f"splits, and {single:.1f} in one split; unchanged numbers lose up to "
        f"{100 * (worst['automatic'] - worst['unchanged']):.1f} points ({worst['table']}). {source('preprocessing')}"
    )


def streaming() -> str:
    """Return the ratios of each kind of rows and processor: medians of all runs, and the range of their pairs."""
    found: dict[tuple[str, str], list[Record]] = {}
    for record in records("streaming", side="disk"):
        found.setdefault((record["dtype"], record["processor"]), []).append(record)
    rows = []
    for (dtype, name), each in found.items():
        medians = Value([record["ratio"]["median"] for record in each])
        low, high = min(r["ratio"]["low"] for r in each), max(r["ratio"]["high"] for r in each)
        waits = Value([record["waiting"] for record in each])
        rows.append([dtype, name, f"{medians:.2f} ({low:.2f} to {high:.2f})", f"{waits:.1%}"])
    return f"{grid(['stored as', 'processor', 'disk / memory', 'waiting'], rows)}\n\n{source('streaming')}"


def factor() -> str:
    """Return one line for each size, with precisions and processors beside one another."""
    found = {(each["n"], each["processor"], each["dtype"]): each for each in records("factor")}
    kinds = list(dict.fromkeys((place, dtype) for _, place, dtype in found))
    template = "{ms:,.0f} ({lapack_ratio:.2f})"
    rows = [
        [f"{n:,}", *(filled(template, found[n, *kind]) for kind in kinds)]
        for n in dict.fromkeys(key[0] for key in found)
    ]
    return f"{grid(['n', *(', '.join(kind) for kind in kinds)], rows)}\n\n{source('factor')}"


def around() -> str:
    """Return scores just below and above the rows of one model."""
    names = ["housing", "CASP", "adult", "flights", "covtype"]
    rows = [[f"{r['rows']:,}", *(f"{r[name]:.3f}" for name in names)] for r in records("around_10000")]
    return f"{grid(['rows to fit', *names], rows)}\n\n{source('around_10000')}"


def leaves_before() -> str:
    """Return the scores of both defaults on each table."""
    names = ["housing", "CASP", "adult", "diamonds", "fars", "proteins", "flights", "covtype"]
    rows = [[r["default"], *(f"{r[name]['score']:.4f}" for name in names)] for r in records("leaves_before")]
    return f"{grid(['default', *names], rows)}\n\n{source('leaves_before')}"


SIDES = {
    "streamkern": "`EigenPro`, Laplace kernel",
    "published": "EigenPro 3 as published",
    "cg": "conjugate gradients (Falkon)",
    "streamkern-gaussian": "`Direct`, Gaussian kernel",
    "nystroem": "scikit-learn's Nystroem and Ridge, the same centers",
}


def time_to_accuracy() -> str:
    """Return the seconds of each side to two accuracies."""
    rows = []
    for each in records("time_to_accuracy"):
        seconds = (each["seconds"].get(goal) for goal in ("0.863", "0.875"))
        reached = ("" if found is None else f"{Value(found):.1f}" for found in seconds)
        rows.append([SIDES[each["side"]], *reached, filled("{peak_mib:,}", each), filled("{end_accuracy:.2%}", each)])
    headings = ["model", "s to 86.3%", "s to 87.5%", "peak, MiB", "at its end"]
    return f"{grid(headings, rows)}\n\n{source('time_to_accuracy')}"


def time_to_published() -> str:
    """Return one line for each run of this library beside EigenPro 3 as published."""
    headings = ["processor", "streamkern, s", "of which before training", "EigenPro 3 as published, s", "ratio"]
    rows = []
    for run in runs("time_to_published"):
        ours, theirs = ({name: Value(each) for name, each in record.items()} for record in run["values"])
        times = [f"{each['seconds']['0.863']:.1f}" for each in (ours, theirs)]
        before, ratio = f"{ours['before_training_seconds']:.1f}", f"{theirs['ratio']['0.863']:.1f}"
        rows.append([processor(run["machine"]), times[0], before, times[1], ratio])
    return f"{grid(headings, rows)}\n\n{source('time_to_published')}"


def workers() -> str:
    """Return one line for each quantity, one column for each run."""
    names = {
        "a step beyond its arithmetic, ms": "step_ms",
        "one worker against one thread": "one_worker",
        "two workers against one": "two_workers",
        "two threads against one": "two_threads",
        "two plain processes against one": "two_processes",
    }
    found = records("workers")
    spec = {"step_ms": ".1f"}
    rows = [[title, *(f"{Value(r[key]):{spec.get(key, '.2f')}}" for r in found)] for title, key in names.items()]
    return f"{grid(['', *(r['processor'] for r in found)], rows)}\n\n{source('workers')}"


# ------------------------------------------------------------------------------------------------------------ blocks

PEAK = {"peak memory": "{peak_mib:,.0f} MiB", "projected": "{projected_mib:,.0f} MiB"}
SCALE = {
    "pipeline": "`{pipeline}`",
    "rows": "{rows:,}",
    "minutes": "{minutes:.1f}",
    "µs a row": "{row_us:.2f}",
    "peak, MiB": "{peak_mib}",
    "projected": "{projected_mib}",
    "waiting for data": "{waiting:.1%}",
    "test accuracy": "{accuracy:.2%}",
}
RECORDED = {
    "papers": "eigenpro overhead table-2 figure-2 figure-4 features batch regimes quadratic linear quarter bias",
    "solvers": "costs accuracy passes",
    "plans": "totals",
    "gpu": "runs blocks errors counts step",
    "large": "budgets",
    "answers": "logistic small-models defaults intervals memory",
    "imbalance": "weights",
    "storage": "sizes",
    "warm_start": "starts",
    "tune": "choices bandwidths",
    "updates": "costs",
    "checkpoints": "cost",
    "related_rows": "calibration optimism year splits",
    "soak": "faults",
}
"""Tables of files whose records' names are headings."""
BLOCKS: dict[str, Callable[[], str]] = {
    "tables": tables,
    "tables-models": tables_models,
    "tables-summary": tables_summary,
    "tables-short": tables_short,
    "tables-seconds": tables_seconds,
    "tables-described": tables_described,
    "forty": forty,
    "small-summary": small_summary,
    "preprocessing": preprocessing,
    "streaming": streaming,
    "leaves-before": leaves_before,
    "around-10000": around,
    "workers": workers,
    "time-to-accuracy": time_to_accuracy,
    "time-to-published": time_to_published,
    "ceiling": Table(
        "ceiling",
        {
            "d": "{d:,}",
            "processor": "{processor}",
            "block, ms": "{block_ms:.0f}",
            "of the product's rate": "{gemm_ratio:.2f}",
            "of the floor": "{floor_ratio:.2f}",
            "NumPy / block": "{numpy_ratio:.1f}",
            "best tiled PyTorch / block": "{torch_tiled_ratio:.1f}",
        },
        {"c": 10},
    ),
    "factor": factor,
    "fashion": Table(
        "fashion",
        {
            "centers": "{centers:,}",
            "accuracy": "{accuracy:.2%}",
            "EigenPro 3's paper": "{paper_accuracy:.2%}",
            "setup, s": "{setup_seconds:.1f}",
            "training, s": "{training_seconds:.1f}",
            **PEAK,
        },
    ),
    "nystroem": Table(
        "nystroem", {"centers": "{centers:,}", "streamkern": "{ours:.2%}", "Nystroem and Ridge": "{sklearn:.2%}"}
    ),
    "scale": Table("scale", SCALE),
    "small-tables": Table(
        "small_tables",
        {
            "rows": "{rows:,}",
            "further test rows": "{further_test_rows:,}",
            "at least LightGBM's score": "{at_least} of {tables}",
            "at most 0.005 below LightGBM's score": "{within} of {tables}",
            "mean lead in score": "{mean_beyond:.3f}",
            "CPU s": "{processor_seconds}",
        },
    ),
    "small-tables-furthest": Table(
        "small_tables_furthest", {"table": "{table}", "streamkern": "{ours:.3f}", "LightGBM": "{lightgbm:.3f}"}
    ),
    "table-stream": Sentence(
        "table_stream",
        "{rows:,} rows take {minutes:.1f} minutes and {peak_mib} MiB at the peak, {projected_mib} projected: "
        "{target_means_seconds} s for mean targets, {statistics_seconds} s for each of three sweeps for statistics, "
        "{kernel_seconds} s for the kernel, {training_seconds} s for training, {scoring_seconds} s for scoring",
    ),
    "metric-stream": Table(
        "metric_stream",
        {
            "rows": "{rows:,}",
            "kernel": "{kernel}",
            "processor s": "{processor_seconds:.1f}",
            "MiB": "{peak_mib}",
            "R²": "{r2:.3f}",
        },
    ),
    "noise": Sentence(
        "noise",
        "To gather and scale {rows:,} rows of {columns} bytes and add noise takes {ours_ms:.1f} ms of one core; "
        "NumPy's generator alone takes {numpy_ms} ms",
    ),
    "fuzz-artifacts": Sentence(
        "fuzz",
        "Of {changes:,} changes, {errors:,} were reported as an error, {loaded:,} loaded the saved model, and "
        "{another} loaded another complete model",
        {"kind": "artifacts"},
    ),
    "fuzz-data": Sentence(
        "fuzz",
        "Of {changes:,} changes, {errors:,} ended in an error message and {rows:,} in rows",
        {"kind": "data"},
    ),
    "ingest": Table(
        "ingest",
        {
            "to": "{to}",
            "as it was, MB/s": "{plain} ({plain_clock})",
            "shuffled, MB/s": "{shuffled} ({shuffled_clock})",
        },
    ),
    "predict": Table(
        "predict",
        {
            "centers": "{centers:,}",
            "rows a second": "{rows_per_second:,}",
            "of the engine's rate": "{ratio:.2f}",
            "by processor time": "{cpu_ratio:.2f}",
            "peak memory": "{peak_mib} MiB",
        },
    ),
    "partition": Table(
        "partition",
        {
            "table": "{table}",
            "rows": "{rows:,}",
            "error, one model": "{error_one:.3f}",
            "error, leaves": "{error_leaves:.3f} ({leaves})",
            "processor s": "{processor_one:.1f}, {processor_leaves:.1f}",
            "µs a row": "{row_us_one:.1f}, {row_us_leaves:.1f}",
        },
    ),
    "partition-questions": Sentence(
        "partition_questions",
        "{ratio:.1f} for rows: {rows}",
        head="A call of `Predictor` with 32 leaves, relative to one model: ",
    ),
    "hundred-million": Table(
        "hundred_million",
        {
            "model": "{model}",
            "processor": "{processor}",
            "accuracy": "{accuracy:.1%}",
            "s": "{seconds}",
            "processor s": "{processor_seconds}",
            "peak memory": "{peak_mib} MiB",
        },
    ),
    "slopes": Sentence("slopes", "{size} {all:.2f} and {last:.2f}", head="Over all sizes and the last two: "),
    "first-run": Table(
        "first_run",
        {
            "compiled": "{loops}",
            "installed by": "{installer}",
            "install": "{install:.1f} s",
            "first run": "{first:.1f} s",
            "second run": "{second:.1f} s",
            "peak": "{peak_mib} MiB",
        },
    ),
    "startup": Sentence(
        "startup", "{what} {seconds:.2f}", head="Seconds of a new process, by the clock, one number for each run: "
    ),
    "calls": Sentence("calls", "`{call}` {d18:.2f} at d = 18, {d784:.2f} at 784", head="Two threads against one: "),
    "decoding": Table(
        "decoding",
        {
            "chunks are decoded": "{way}",
            "GB/s of a core": "{gb_per_second:.2f}",
            "training speed, relative to memory": "{ratio:.2f}",
            "waiting for data": "{waiting:.0%}",
        },
    ),
    "scaling-constants": Sentence("scaling", "{what} {ms:.2f}", {"kind": "constant"}, "Processor ms: "),
    "scaling-predicted": Sentence(
        "scaling",
        "{workers}: {predicted_ms:.1f} and {measured_ms:.1f}",
        {"kind": "predicted"},
        "Milliseconds of a step by number of workers, predicted and measured: ",
    ),
    "scaling-simulated": Table(
        "scaling",
        {
            "centers": "{centers:,}",
            "workers": "{workers:,}",
            "ms a step": "{tree_ms:,}",
            "of ideal": "{tree_share:.0%}",
            "star": "{star_share:.0%}",
            "hours a pass": "{tree_hours:.1f}",
        },
        {"kind": "simulated"},
    ),
    "leaf-workers": Sentence(
        "leaf_workers",
        "{rows:,} rows in {leaves} leaves: {one_worker:.1f} s with one worker ({one_predicted:.1f} predicted), "
        "{two_workers:.1f} s with two ({two_predicted:.1f}); a leaf takes {leaf_seconds:.2f} s, and {driver_ms} ms of "
        "the driver",
        {"kind": "measured"},
    ),
    "leaf-runs": Table(
        "leaf_workers",
        {
            "processor": "{processor}",
            "one worker, s": "{one_worker:.1f}",
            "two workers, s": "{two_workers:.1f}",
            "ratio": "{ratio:.2f}",
        },
        {"kind": "run"},
    ),
    "leaf-simulated": Sentence(
        "leaf_workers",
        "{workers:,}: {seconds:,} s, {share:.0%}",
        {"kind": "simulated"},
        "Seconds by number of workers, and the part of the ideal speed: ",
    ),
}

BLOCKS |= {f"{file}-{table}": Recorded(file, table) for file, tables in RECORDED.items() for table in tables.split()}


def drawn(page: Path) -> str:
    """Return a page with its blocks drawn anew."""
    results = f"]({os.path.relpath(RESULTS, page.parent)}/"
    text = page.read_text(encoding="utf-8")
    return BLOCK.sub(lambda at: f"{at[1]}\n{BLOCKS[at[2]]().replace('](results/', results)}\n\n{at[3]}", text)


def main() -> None:
    """Rewrite the pages whose blocks are not current."""
    for page in PAGES:
        if (now := drawn(page)) != page.read_text(encoding="utf-8"):
            page.write_text(now, encoding="utf-8")
            sys.stdout.write(f"{page.relative_to(DOCS.parent)}\n")


if __name__ == "__main__":
    main()
