"""A row of weight 0 is absent: whatever it holds, a model is that of the other rows, from memory and from files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import streamkern as sk

N = 120
SETTINGS: dict[str, Any] = {"solver": sk.Direct(), "centers": 30, "partition": None, "memory": "4GiB", "threads": 1}
EVERY_ROW: dict[str, Any] = {"kernel": sk.Laplace(3.0), "centers": N, "dtype": "float64"}  # nothing is drawn
EDITIONS = ["csv", "parquet", "zarr", "frame"]


def tables(seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return rows of positive weight, and the same rows among others of weight 0 with junk in every column."""
    random = np.random.default_rng(seed)
    rows = pd.DataFrame({
        "size": np.where(random.random(N) < 0.1, np.nan, random.normal(size=N)),
        "town": random.choice(["Oslo", "Rome", "Lima"], N),
        "flat": np.where(random.random(N) < 0.5, 1.0, 2.0),
        "w": random.choice([1.0, 2.0, 3.0], N),
    })  # fmt: skip
    rows["y"] = rows["size"].fillna(0) + 2 * (rows["town"] == "Oslo") + rows["flat"]
    junk = pd.DataFrame({
        "size": random.normal(1e3, 1e3, N),
        "town": [f"junk {i}" for i in range(N)],
        "flat": random.normal(-50, 9, N),
        "w": 0.0,
        "y": random.normal(1e6, 1e6, N),
    })  # fmt: skip
    return rows, pd.concat([rows, junk]).sample(frac=1, random_state=seed, ignore_index=True)


def opened(table: pd.DataFrame, edition: str, path: Path, target: str = "y") -> sk.Dataset:
    path.mkdir(exist_ok=True)
    if edition == "frame":
        return sk.from_arrays(table.drop(columns=["w", "y"]), table[target], sample_weight=table["w"])
    if edition == "csv":
        table.to_csv(path / "rows.csv", index=False)
        return sk.open_dataset(path / "rows.csv", target, weight="w")
    table.to_parquet(path / "rows.parquet", row_group_size=50, index=False)
    if edition == "zarr":
        sk.ingest([path / "rows.parquet"], path / "rows.zarr", target=target, weight="w")
        return sk.open_dataset(path / "rows.zarr")
    return sk.open_dataset(path / "rows.parquet", target, weight="w")


@pytest.mark.parametrize("edition", EDITIONS)
def test_a_model_is_that_of_the_other_rows(tmp_path: Path, edition: str) -> None:
    rows, both = tables()
    expected = sk.KernelRegressor(**SETTINGS | EVERY_ROW).fit(opened(rows, edition, tmp_path / "rows"))
    data = opened(both, edition, tmp_path / "both")
    assert len(data) == N
    found = sk.KernelRegressor(**SETTINGS | EVERY_ROW).fit(data)
    assert [line for line in found.result_.report["preprocess"] if "left out" in line] == []
    assert found.result_.report["preprocess"] == expected.result_.report["preprocess"]
    features = rows[["size", "town", "flat"]]
    assert_allclose(found.predict(features), expected.predict(features), rtol=0, atol=1e-6)
    assert expected.score(features, rows["y"]) > 0.95


@pytest.mark.parametrize("edition", ["csv", "parquet"])
def test_classes_splits_and_scores_do_not_count_them(tmp_path: Path, edition: str) -> None:
    _, both = tables()
    both["y"] = np.where(both["w"] == 0, "junk", np.where(both["y"] > 1.5, "high", "low"))
    data = opened(both, edition, tmp_path)
    model = sk.KernelClassifier(**SETTINGS).fit(data)
    assert model.classes_.tolist() == ["high", "low"]
    assert model.score(data) > 0.8
    rest, test = data.split(0.25, stratify=True)
    assert len(rest) + len(test) == N
    assert data.sample(N).base_rows == N


def test_a_default_fit_of_a_file_with_half_of_its_weights_0(tmp_path: Path) -> None:
    _, both = tables()
    model = sk.KernelRegressor(memory="4GiB", threads=1).fit(opened(both, "parquet", tmp_path))
    rows = both[both["w"] > 0]
    assert model.score(rows[["size", "town", "flat"]], rows["y"]) > 0.9


def test_nothing_is_left(tmp_path: Path) -> None:
    rows, _ = tables()
    with pytest.raises(sk.DataError, match="Every sample weight is 0"):
        opened(rows.assign(w=0.0), "parquet", tmp_path)


@pytest.mark.parametrize("target", ["y", "label"])
@pytest.mark.parametrize("edition", [*EDITIONS, "records", "polars", "lazy"])
def test_their_targets_may_be_missing(tmp_path: Path, edition: str, target: str) -> None:
    import polars

    rows, both = tables()
    for table in (rows, both):
        table["label"] = np.where(table["y"] > 1.5, "high", "low")
    both.loc[both["w"] == 0, ["y", "size", "label"]] = [np.nan, np.inf, None]
    columns = ["size", "town", "flat"]
    model = sk.KernelRegressor(**SETTINGS) if target == "y" else sk.KernelClassifier(**SETTINGS)
    if edition in EDITIONS:
        both = both[[*columns, "w", target]].set_axis([*columns, "w", "y"], axis=1)
        model.fit(opened(both, edition, tmp_path))
    else:
        X: Any = both[columns].to_dict("records") if edition == "records" else polars.from_pandas(both[columns])
        X, y = X.lazy() if edition == "lazy" else X, both[target]
        model.fit(X, y.tolist() if edition == "records" else polars.from_pandas(y), sample_weight=both["w"])
    assert model.score(rows[columns], rows[target]) > 0.9
    if target == "label":
        assert model.classes_.tolist() == ["high", "low"]


@pytest.mark.parametrize("edition", ["csv", "parquet", "frame"])
def test_a_missing_target_of_another_row_is_still_refused(tmp_path: Path, edition: str) -> None:
    _, both = tables()
    both.loc[both.index[both["w"] > 0][4], "y"] = np.nan
    with pytest.raises(sk.DataError, match=r"null|missing|NaN"):
        sk.KernelRegressor(**SETTINGS).fit(opened(both, edition, tmp_path))
