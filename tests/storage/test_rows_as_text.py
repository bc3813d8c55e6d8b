"""What a text table says, a row of text says: rows are read by the model's schema, as files are."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import streamkern as sk

N = 24
ROW = {"t": "00:30:00", "x": "0.5", "flag": "true", "day": "2026-01-01", "word": "u", "code": "1"}
LIKE: dict[str, Any] = {"kernel": sk.Laplace(2.0), "centers": sk.Uniform(20), "solver": sk.Direct(1e-3)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> sk.KernelMachine:
    path = tmp_path_factory.mktemp("train") / "t.csv"
    pd.DataFrame(
        {
            "t": [f"{hour:02d}:30:00" for hour in range(N)],
            "x": np.arange(N) / 2,
            "flag": ["true", "false"] * 12,
            "day": [f"2026-01-{day + 1:02d}" for day in range(N)],
            "word": ["u", "NA"] * 12,
            "code": [1, 2, 3] * 8,
            "y": np.arange(N),
        }
    ).to_csv(path, index=False)
    return sk.KernelRegressor(**LIKE).fit(sk.open_dataset(path, "y", schema={"code": "category"})).model_


def from_file(model: sk.KernelMachine, folder: Path, row: dict[str, str]) -> float:
    path = folder / "row.csv"
    path.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
    return float(model.predict(path)[0])


CHANGES = [
    {},
    {"t": "23:30"},
    {"t": "12:00:00.5"},
    {"x": "0x10"},
    {"x": "-0XfF"},
    {"x": " 1e3 "},
    *({name: marker} for name in ROW for marker in ("NA", "NULL", "nan", "n/a", "#N/A", "")),
]


@pytest.mark.filterwarnings("ignore:.*training did not see")  # a text of such a word is a category in a column of texts
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_row_of_text_is_read_as_the_same_text_in_a_file(model, tmp_path: Path, change: dict[str, str]):
    row = ROW | change
    want = from_file(model, tmp_path, {"t": "00:30:00"} | row)
    predict = sk.Predictor(model)
    for given in (row, [row], {name: [value] for name, value in row.items()}, [[*row.values()]]):
        assert model.predict(given)[0] == pytest.approx(want, rel=1e-6), given
        assert predict(given).predictions[0] == pytest.approx(want, rel=1e-6), given
    assert model.predict(np.array([[*row.values()]], dtype=object))[0] == pytest.approx(want, rel=1e-6)


@pytest.mark.parametrize(
    "hour",
    [
        datetime.timedelta(hours=25), pd.Timedelta(hours=25), np.timedelta64(25, "h"),
        "1 days 01:00:00", "1 day, 1:00:00", "25:00", "25:00:00.0", "90000",
    ],
)  # fmt: skip
def test_durations_are_seconds_on_every_door(tmp_path: Path, hour: Any):
    frame = pd.DataFrame({"d": pd.to_timedelta(np.arange(N), "h"), "x": np.arange(N) * 3600.0})
    model = sk.KernelRegressor(**(LIKE | {"kernel": sk.Laplace(1e5)})).fit(frame, np.arange(N)).model_
    want = model.predict(pd.DataFrame({"d": [pd.Timedelta(hours=25)], "x": [3.0]}))
    np.testing.assert_array_equal(model.predict({"d": hour, "x": 3.0}), want)
    np.testing.assert_array_equal(sk.Predictor(model)({"d": hour, "x": 3.0}).predictions, want)
    if isinstance(hour, str):
        (tmp_path / "d.csv").write_text(f'd,x\n"{hour}",3.0\n')
        np.testing.assert_array_equal(model.predict(tmp_path / "d.csv"), want)


def test_rows_of_text_suit_a_model_of_numbers_alone():
    X = pd.DataFrame({"a": np.arange(N) * 1.0, "b": np.arange(N) % 5})
    model = sk.KernelRegressor(**LIKE).fit(X, np.arange(N)).model_
    want = model.predict(X[1:2])
    assert model.predict([["1.0", "1"]]) == sk.Predictor(model)([["1.0", "1"]]).predictions == want
    assert model.predict(np.array([["1.0", "1"]])) == want
    with pytest.raises(sk.DataError, match=r"The value 'one' of column 'b' is not a number"):
        sk.Predictor(model)([["1.0", "one"]])
