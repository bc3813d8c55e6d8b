"""Every door warns of the share of rows whose category training did not see."""

import copy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.serving.predict_files import evaluate, predict

N = 200


def table(strange: int) -> pd.DataFrame:
    """Return rows of which some have a town that training does not have."""
    random = np.random.default_rng(0)
    made = pd.DataFrame({"town": random.choice(["Oslo", "Rome"], N), "size": random.normal(size=N)})
    made.loc[: strange - 1, "town"] = "Lima"
    return made.assign(y=made["size"] + (made["town"] == "Oslo"))


@pytest.fixture(scope="module")
def model() -> sk.KernelRegressor:
    rows = table(0)
    solver = sk.Direct(keep_sums=True)
    return sk.KernelRegressor(solver=solver, centers=20, threads=1, memory="4GiB").fit(
        rows[["town", "size"]], rows["y"]
    )


WAYS: dict[str, Callable[[sk.KernelRegressor, pd.DataFrame, Path], Any]] = {
    "predict": lambda model, rows, path: model.predict(rows),
    "score": lambda model, rows, path: model.score(rows, rows["y"]),
    "score of a data set": lambda model, rows, path: model.score(sk.open_dataset(path, "y")),
    "interval": lambda model, rows, path: model.predict_interval(rows),
    "model": lambda model, rows, path: model.model_.predict(path),
    "Predictor": lambda model, rows, path: sk.Predictor(model.model_)(rows),
    "files": lambda model, rows, path: predict(model.model_, path, path.with_suffix(".out.parquet")),
    "partial_fit": lambda model, rows, path: copy.deepcopy(model).partial_fit(rows[["town", "size"]], rows["y"]),
    "evaluate": lambda model, rows, path: evaluate(model.model_, path, "y"),
}


@pytest.mark.parametrize("strange", [2, 50])
@pytest.mark.parametrize("way", WAYS)
def test_a_large_share_is_told(model: sk.KernelRegressor, tmp_path: Path, way: str, strange: int) -> None:
    rows = table(strange)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        WAYS[way](model, rows, tmp_path / "rows.csv")
    told = [str(each.message) for each in caught]
    said = "25.0% of the rows have a category of 'town' that training did not see"
    assert [said in each for each in told] == [True] * (strange == 50)
