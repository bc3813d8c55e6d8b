"""Work grows with the number of columns, not with its square: operations are counted, which no other load changes."""

import cProfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.serving.predict_files import evaluate
from streamkern.serving.predictor import Predictor

SIZES = (400, 800, 1600)
ROWS = 12


def operations(work: Callable[[], Any]) -> int:
    """Return the calls of functions, in Python and in C, on all threads."""
    in_threads = 0

    def counted(frame: Any, event: str, arg: Any) -> None:
        nonlocal in_threads
        in_threads += event in ("call", "c_call")

    here = cProfile.Profile()
    threading.setprofile(counted)
    try:
        here.runcall(work)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    return in_threads + sum(entry.callcount for entry in here.getstats())


def table(columns: int) -> pd.DataFrame:
    """Numbers with gaps, texts, booleans and dates in turn."""
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 900, ROWS), "D")
    gaps = np.where(np.arange(ROWS) % 5 == 1, np.nan, rng.normal(size=ROWS))
    texts, flags = rng.choice(["x", "y", "z"], ROWS), rng.integers(0, 2, ROWS).astype(bool)
    columns_of = {f"c{j}": (gaps, texts, flags, days)[j % 4] for j in range(columns)}
    return pd.DataFrame(columns_of | {"y": np.arange(ROWS) / ROWS})


def doors(columns: int, folder: Path) -> dict[str, Callable[[], Any]]:
    """Ways in for a table, in an order in which each finds what it needs."""
    frame = table(columns)
    X = frame.drop(columns="y")
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_parquet(folder / "t.parquet", index=False)
    frame.to_feather(folder / "t.feather")
    like = {"kernel": sk.Laplace(10.0), "centers": sk.Uniform(6), "solver": sk.Direct(1e-3), "partition": None}
    model = sk.KernelRegressor(**like)
    row = X.iloc[0].to_dict()

    def predicted(name: str) -> Callable[[], Any]:
        return lambda: sk.predict(model.model_, folder / name, folder / "out.parquet", overwrite=True)

    return {
        "fit of a frame": lambda: model.fit(X, frame.y),
        "predict of a frame": lambda: model.predict(X),
        "predict of a dict": lambda: model.predict(row),
        "predict of dicts": lambda: model.predict([row, row]),
        "Predictor": lambda: Predictor(model.model_)(row),
        "evaluate": lambda: evaluate(model.model_, folder / "t.parquet", "y"),
        "save": lambda: model.save(folder / "model.zarr"),
        "load": lambda: sk.load_model(folder / "model.zarr"),
        "ingest": lambda: sk.ingest(folder / "t.parquet", folder / "t.zarr", target="y"),
        **{f"predict of {end}": predicted(f"t.{end}") for end in ("csv", "parquet", "feather", "zarr")},
        **{
            f"opening of {end}": lambda end=end: sk.open_dataset(folder / f"t.{end}", "y")
            for end in ("csv", "parquet", "feather", "zarr")
        },
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_operations_grow_with_the_columns_on_every_door(tmp_path: Path):
    counts: dict[str, list[int]] = {}
    for columns in (20, *SIZES):  # the first imports modules
        folder = tmp_path / str(columns)
        folder.mkdir()
        for name, work in doors(columns, folder).items():
            counts.setdefault(name, []).append(operations(work))
    for name, (_, *found) in counts.items():
        growth = np.divide(found[1:], found[:-1])
        assert (growth < 2.2).all(), (name, found)
