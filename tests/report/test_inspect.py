"""What inspect says of a data set is what NumPy says of its rows."""

import json
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.formats import arrow_tables, csv
from streamkern.formats.parquet import write_parquet
from streamkern.inspection import inspect_dataset as inspection
from streamkern.inspection.inspect_dataset import inspect
from streamkern.sources import base as described
from streamkern.sources import format_rules


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(700, 4)) * [1, 10, 0, 1e3] + [0, 5, 3, 0]
    X[[5, 600], 1], X[3, 3] = np.nan, np.inf
    return X, np.array(["cat", "dog", "owl"], dtype=object)[np.sort(rng.integers(0, 3, 700))]


def test_sketches_classes_and_chunks_are_those_of_the_rows(tmp_path, rows, monkeypatch):
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 3200)
    X, y = rows
    write_parquet(tmp_path / "rows.parquet", X, y, target="animal", columns=["a", "b", "c", "d"])
    found = inspect(tmp_path / "rows.parquet", "animal").to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["rows"], found["n_features"], found["dtype"]) == (700, 4, "float64")
    assert found["chunks"] == {"count": 7, "min_rows": 100, "max_rows": 100, "max_bytes": 3200}
    assert found["bytes"] == {"decoded": 22400, "stored": (tmp_path / "rows.parquet").stat().st_size}
    assert found["target"] == {"name": "animal", "dtype": "object", "outputs": [], "missing": 0}
    assert dict(found["classes"]) == dict(zip(*map(list, np.unique(y, return_counts=True)), strict=True))
    assert found["order"]["ratio"] > 20
    for j, sketch in enumerate(found["columns"]):
        x = X[:, j][np.isfinite(X[:, j])]
        assert sketch["name"] == "abcd"[j]
        assert (sketch["missing"], sketch["infinite"]) == (int(np.isnan(X[:, j]).sum()), int(np.isinf(X[:, j]).sum()))
        np.testing.assert_allclose([sketch["mean"], sketch["std"]], [x.mean(), x.std()], rtol=1e-9, atol=1e-12)
        assert (sketch["min"], sketch["max"]) == (x.min(), x.max())
        if x.min() < x.max():
            np.testing.assert_array_equal(sketch["histogram"], np.histogram(x, bins=16)[0])
        assert sum(sketch["histogram"]) == len(x)
    advice = "\n".join(found["advice"])
    for words in ("never vary: c", "infinite ones are errors", "--shuffle", "standardise"):
        assert words in advice


def test_what_is_found_does_not_depend_on_chunks_or_threads(rows, monkeypatch):
    X, y = rows
    one = inspect((X, y)).to_json()
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 100)
    other = inspect((X, y), threads=3).to_json()
    assert one["classes"] == other["classes"]
    assert [c["histogram"] for c in one["columns"]] == [c["histogram"] for c in other["columns"]]
    np.testing.assert_allclose([c["mean"] for c in one["columns"]], [c["mean"] for c in other["columns"]])


def test_a_shuffled_set_says_so_and_has_no_advice(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 40_000)
    y = np.repeat(np.arange(4), 500)
    X = np.random.default_rng(0).normal(size=(2000, 30)).astype(np.float32)
    sk.ingest((X, y), tmp_path / "out.zarr", target="label", shuffle=True, memory="8GiB")
    assert main(["inspect", str(tmp_path / "out.zarr")]) == 0
    text = capsys.readouterr().out
    for words in ("2,000 of 30 features", "recorded: global shuffle", "classes   4: 0 25.0%", "and 6 more columns"):
        assert words in text
    assert "advice" not in text
    assert main(["inspect", str(tmp_path / "out.zarr"), "--json", "--threads", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["order"]["recorded"] == "global"
    assert 0.3 < found["order"]["ratio"] < 3
    assert found["ingested"]["sources"] == ["builtins.tuple"]


def test_targets_that_are_numbers_are_no_classes_and_columns_of_nothing_have_no_numbers():
    X = np.full((50, 1), np.nan)
    found = inspect((X, np.random.default_rng(0).normal(size=50))).to_json()
    assert found["classes"] is None
    assert found["columns"][0]["mean"] is None
    assert found["columns"][0]["min"] is None
    assert "no finite value" in inspect(X).text()
    with pytest.raises(sk.DataError, match="empty"):
        inspect(np.zeros((0, 2)))


def test_what_has_no_number_or_is_on_two_lines_is_shown_on_one(tmp_path):
    X = np.random.default_rng(0).normal(size=(30, 2))
    X[:, 1] = np.nan
    sk.write_zarr(tmp_path / "rows.zarr", X, np.array(["a\nb", "c"] * 15), target="label")
    text = inspect(tmp_path / "rows.zarr", "label").text()
    assert "2: 'a\\nb' 50.0%, c 50.0%" in text
    (line,) = [line for line in text.splitlines() if line.startswith("  f1 ")]
    assert line.split()[1:6] == ["-", "-", "-", "-", "30"]
    assert "inf" not in text.replace("infinite", "")
    assert "advice: 1 column(s) have no finite value: f1" in text


def table(n: int = 600) -> tuple[pa.Table, list[str | None]]:
    rng = np.random.default_rng(0)
    city = [None if i % 97 == 0 else ["Rome", "São Paulo", "x" * 100 + "a", "x" * 100 + "b"][i % 4] for i in range(n)]
    first = datetime(2020, 1, 1, tzinfo=UTC)
    columns = {
        "id": [f"r{i}" for i in range(n)],
        "city": city,
        "a": rng.normal(size=n),
        "when": pa.array([first + timedelta(hours=i) for i in range(n)], pa.timestamp("ns", "Europe/Rome")),
        "price": pa.array([Decimal(i) / 4 for i in range(n)], pa.decimal128(10, 2)),
        "kind": pa.array(["u", "v"] * (n // 2)).dictionary_encode(),
        "tags": [["p", "q"]] * n,
        "b": np.arange(n),
    }
    return pa.table(columns), city


@pytest.mark.parametrize("limit", [1000, 100])
def test_columns_that_are_no_features_are_described_beside_those_that_are(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(described, "MAX_DISTINCT_TEXTS", limit)
    monkeypatch.setattr(arrow_tables, "MAX_DISTINCT_TEXTS", limit)
    monkeypatch.setattr(inspection, "MAX_DISTINCT_TEXTS", limit)
    rows, city = table()
    pq.write_table(rows, tmp_path / "rows.parquet", row_group_size=90)
    pa.feather.write_feather(rows, tmp_path / "rows.feather", chunksize=70)
    found = inspect(tmp_path / "rows.parquet").to_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    for other in (inspect(tmp_path / "rows.feather"), inspect(rows), inspect(rows.to_pandas())):
        mine = {o["name"]: o for o in other.to_json()["others"]}
        assert all(mine[o["name"]]["frequent"] == o["frequent"] for o in found["others"] if o["name"] != "when")
    assert [c["name"] for c in found["columns"]] == ["a", "b"]
    by = {o["name"]: o for o in found["others"]}
    assert list(by) == ["id", "city", "when", "price", "kind", "tags"]
    assert (by["id"]["distinct"], by["id"]["more_than"]) == ((600, None) if limit == 1000 else (None, 100))
    assert (by["id"]["shortest"], by["id"]["longest"], len(by["id"]["frequent"])) == ("r0", "r599", 100 * (limit > 600))
    counts = Counter(value for value in city if value)
    assert by["city"]["missing"] == city.count(None)
    assert by["city"]["distinct"] == 4  # two of which begin alike
    assert [n for _, n in by["city"]["frequent"]] == sorted(counts.values(), reverse=True)
    assert dict(by["city"]["frequent"])["Rome"] == counts["Rome"]
    assert (by["city"]["shortest"], by["city"]["longest"]) == ("Rome", "x" * 60 + "...")
    assert (by["when"]["min"], by["when"]["max"][:13]) == ("2020-01-01 00:00:00.000000000", "2020-01-25 23")
    assert (by["price"]["min"], by["price"]["max"]) == ("0.00", "149.75")
    assert by["kind"] == {"name": "kind", "type": "string", "missing": 0, "distinct": 2, "more_than": None,
                          "frequent": [["u", 300], ["v", 300]], "shortest": "u", "longest": "v"}  # fmt: skip
    assert (by["tags"]["type"], by["tags"]["distinct"], by["tags"]["more_than"]) == (
        "list<element: string>",
        None,
        None,
    )
    ids = [text for text in found["advice"] if "leave ids out" in text]
    assert ids == (["more than 100 different values; leave ids out: --exclude id"] if limit == 100 else [])


def test_text_in_a_text_table_is_described_even_where_nothing_else_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(csv, "BLOCK_BYTES", 500)
    lines = [f"r{i},{'' if i % 50 == 0 else ['river', 'city'][i % 2]}" for i in range(200)]
    (tmp_path / "rows.csv").write_text("\n".join(["id,kind", *lines]))
    whole, parts = tmp_path / "rows.csv", tmp_path / "part-*.csv"
    (tmp_path / "part-0.csv").write_text("\n".join(["id,kind", *lines[:120]]))
    (tmp_path / "part-1.csv").write_text("\n".join(["id,kind", *lines[120:]]))
    one, other = inspect(whole).to_json(), inspect(parts).to_json()
    assert one["chunks"]["count"] > 2
    assert one["others"] == other["others"]
    assert one["columns"] == []
    assert one["others"][1]["missing"] == 4
    assert one["others"][1]["frequent"] == [["city", 100], ["river", 96]]
    assert main(["inspect", str(whole), "--target", "kind", "--threads", "2"]) == 0
    text = capsys.readouterr().out
    assert "200 of 0 features" in text
    assert "classes   2: city 51.0%" in text
    (line,) = [line for line in text.splitlines() if line.startswith("  id ")]
    assert line.split()[1:4] == ["string", "0", "200"]
    assert line.endswith("lengths 2 to 4, 'r0' to 'r199'")


def test_named_text_is_described_and_a_partition_is_when_it_is_named(tmp_path):
    rows, _ = table(60)
    pq.write_to_dataset(rows.select(["id", "a", "kind"]), tmp_path / "rows", partition_cols=["kind"])
    assert [o["name"] for o in inspect(tmp_path / "rows").to_json()["others"]] == ["id"]
    found = inspect(tmp_path / "rows", columns=["kind", "a"])
    assert found.to_json()["others"][0]["frequent"] == [["u", 30], ["v", 30]]
    assert "u 50.0%, v 50.0%; length 1, 'u' to 'v'" in found.text()


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 4, 8, 10, 12, 14, 16, 18, 24, 30, 32, 45, 160])
def test_whole_numbers_are_drawn_without_gaps_whatever_their_dtype(n, dtype):
    x = np.repeat(np.arange(5, 5 + n), 3).astype(dtype)
    beside = np.linspace(0, 1, len(x)).astype(dtype)  # in a table of floats, a column that is not whole
    found = inspect(np.stack([x, beside], axis=1))
    (line,) = [line for line in found.text().splitlines() if line.startswith("  f0 ")]
    each = -(-n // 16)
    assert n % each == 0
    assert line[-17:-1] == ("@" * (n // each)).ljust(16)
    sketch = found.to_json()["columns"][0]
    assert sketch["bin_width"] == each
    assert sketch["histogram"] == [3 * each] * (n // each)


def test_bins_of_whole_numbers_hold_what_they_say_with_values_missing_and_chunks_that_differ(monkeypatch):
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 2000)
    rng = np.random.default_rng(0)
    X = np.stack([rng.integers(-30, 71, 3000), rng.integers(0, 9, 3000), rng.normal(size=3000)], axis=1)
    X[-1, 1] = 2.5  # the only fraction, in the last chunk
    X[::7] = np.nan
    X[1, 0] = np.inf
    columns = inspect(X).to_json()["columns"]
    assert [column["bin_width"] for column in columns[:2]] == [7, 0.5]
    for column, x in zip(columns, X.T, strict=True):
        edges = column["min"] + column["bin_width"] * np.arange(len(column["histogram"]) + 1)
        np.testing.assert_array_equal(column["histogram"], np.histogram(x[np.isfinite(x)], edges)[0])
        assert edges[-2] <= column["max"] <= edges[-1]


def test_an_order_needs_labels_in_two_chunks(monkeypatch, tmp_path):
    X = np.arange(300.0)[:, None]
    assert "order     not known without the labels" in inspect(X).text()
    assert "order     not measured" in inspect((X, np.arange(len(X)) % 2)).text()
    monkeypatch.setattr(format_rules, "CHUNK_BYTES", 800)
    assert "order     labels of 256 rows of a chunk vary" in inspect((X, np.arange(len(X)) % 2)).text()
    y = np.where(np.arange(200) < 100, np.arange(200) % 2, np.nan)
    pq.write_table(
        pa.table({"a": np.arange(200.0), "y": pa.array(y, from_pandas=True)}), tmp_path / "half.parquet", 100
    )
    found = inspect(tmp_path / "half.parquet", "y")
    assert found.facts["chunks"]["count"] == 2
    assert found.facts["order"]["ratio"] is None
    assert "not measured: labels are in one chunk alone" in found.text()


@pytest.mark.parametrize("form", ["rows.parquet", "rows.feather", "memory"])
def test_missing_whole_numbers_are_counted(tmp_path, form):
    whole = pa.array([None if i % 50 == 0 else i % 7 for i in range(200)], pa.int64())
    rows = pa.table({"a": whole, "b": np.arange(200)})
    place: Any = rows if form == "memory" else tmp_path / form
    if form == "rows.parquet":
        pq.write_table(rows, place, row_group_size=30)
    elif form == "rows.feather":
        pa.feather.write_feather(rows, place, chunksize=30)
    found = inspect(place).to_json()
    assert [c["missing"] for c in found["columns"]] == [4, 0]
    assert [c["max"] for c in found["columns"]] == [6, 199]
    assert sum(found["columns"][0]["histogram"]) == 196


LABELS = {
    "text": [None if i % 50 < 3 else ["cat", "dog", "dog", "owl"][i % 4] for i in range(300)],
    "whole": [None if i % 50 < 3 else 2**60 + i % 3 for i in range(300)],
    "number": [None if i % 50 < 3 else i / 7 for i in range(300)],
    "flag": [None if i < 100 else i % 3 == 0 for i in range(300)],  # a whole chunk without one
}


FORMS = ["rows.parquet", "part-*.parquet", "rows.feather", "memory", "rows.csv", "part-*.csv"]
CASES = [(form, kind) for form in FORMS for kind in LABELS if kind != "text" or not form.endswith(".csv")]


@pytest.mark.parametrize(("form", "kind"), CASES)
def test_missing_labels_are_counted_and_the_classes_are_those_of_the_rest(tmp_path, form, kind, monkeypatch):
    monkeypatch.setattr(csv, "BLOCK_BYTES", 900)
    given = LABELS[kind]
    rows = pa.table({"a": np.random.default_rng(0).normal(size=300), "y": given})
    place: Any = rows if form == "memory" else tmp_path / form
    write = {
        "parquet": lambda rows, to: pq.write_table(rows, to, row_group_size=60),
        "feather": lambda rows, to: pa.feather.write_feather(rows, to, chunksize=60),
        "csv": pa.csv.write_csv,
        "memory": lambda rows, to: None,
    }[form.rpartition(".")[2]]
    parts = [rows.slice(0, 120), rows.slice(120)] if form.startswith("part") else [rows]
    for i, part in enumerate(parts):
        write(part, tmp_path / form.replace("*", str(i)))
    inspection = inspect(place, "y")
    found = json.loads(json.dumps(inspection.to_json(), allow_nan=False))
    assert (found["rows"], found["target"]["missing"]) == (300, given.count(None))
    rest = [label for label in given if label is not None]
    text = inspection.text()
    assert f", missing in {given.count(None)} rows\n" in text
    assert "rows without a label are errors in training" in text
    if kind == "number":
        assert found["classes"] is None
        assert (found["order"]["ratio"] is None) == (found["chunks"]["count"] == 1)
    else:
        assert {label: n for label, n in inspection.facts["classes"]} == Counter(rest)
        label, n = Counter(rest).most_common(1)[0]
        assert f" {label} {n / len(rest):.1%}" in text
    assert sum(found["columns"][0]["histogram"]) == 300  # features of rows without a label count
    with pytest.raises(sk.DataError, match="column 'y' is null") as error:
        sk.ingest(place, tmp_path / "out.zarr", target="y")
    assert "leave the column" not in str(error.value)
    if form.endswith(".parquet"):
        data = sk.open_dataset(place, target="y")
        task = "regression" if kind == "number" else "classification"
        with pytest.raises(sk.DataError, match="column 'y' is null"):
            sk.run(sk.Pipeline(data, sk.Laplace(1.0), sk.Uniform(5), task=task), tmp_path / "run", memory="4GiB")


def test_rows_without_any_label_or_with_part_of_their_targets_are_counted(tmp_path):
    rows = pa.table({
        "a": np.arange(100.0), "none": pa.nulls(100, pa.string()), "u": [None, *[1.0] * 99], "v": [*[2] * 98, None, 3],
    })  # fmt: skip
    pq.write_table(rows, tmp_path / "rows.parquet")
    text = inspect(tmp_path / "rows.parquet", "none", columns=["a"]).text()
    assert "none (object), missing in 100 rows" in text
    assert "classes" not in text
    found = inspect(tmp_path / "rows.parquet", ["u", "v"], columns=["a"]).to_json()
    assert found["target"] == {"name": "u,v", "dtype": "float64", "outputs": [2], "missing": 2}


def test_a_list_of_features_a_missing_partition_and_nan_may_lack_labels(tmp_path):
    lists = pa.table({"X": np.eye(4).tolist(), "y": ["p", None, "q", "q"]})
    pq.write_table(lists, tmp_path / "lists.parquet")
    assert inspect(tmp_path / "lists.parquet", "y").facts["classes"] == [["p", 1], ["q", 2]]
    for name in ("kind=u", "kind=__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / "parts" / name).mkdir(parents=True)
        pq.write_table(pa.table({"a": np.arange(30.0)}), tmp_path / "parts" / name / "rows.parquet")
    found = inspect(tmp_path / "parts", "kind").facts
    assert (found["target"]["missing"], found["classes"]) == (30, [["u", 30]])
    y = np.where(np.arange(50) % 10 == 0, np.nan, 1.0)
    assert inspect((np.ones((50, 1)), y)).facts["target"]["missing"] == 5


def test_empty_texts_are_a_class_as_they_are_in_training(tmp_path):
    labels = [["cat", "dog", ""][i % 3] for i in range(60)]
    pq.write_table(pa.table({"a": np.arange(60.0), "y": labels}), tmp_path / "rows.parquet")
    text = inspect(tmp_path / "rows.parquet", "y").text()
    assert "classes   3: '' 33.3%, cat 33.3%" in text
    assert "advice: 20 labels are empty texts, which training treats as a class" in text
    sk.ingest(tmp_path / "rows.parquet", tmp_path / "out.zarr", target="y")
    model = sk.KernelClassifier(centers=sk.Uniform(10)).fit(*sk.open_dataset(tmp_path / "out.zarr").source.read(0)[:2])
    assert list(model.classes_) == ["", "cat", "dog"]


def test_an_empty_field_of_a_text_table_is_a_missing_label_as_a_null_is(tmp_path):
    (tmp_path / "rows.csv").write_text("a,y\n" + "".join(f"{i},{['cat', 'dog', ''][i % 3]}\n" for i in range(60)))
    found = inspect(tmp_path / "rows.csv", "y")
    assert (found.facts["target"]["missing"], found.facts["classes"]) == (20, [["cat", 20], ["dog", 20]])
    assert "advice: rows without a label are errors in training" in found.text()
    for use in (
        lambda: sk.KernelClassifier(centers=10).fit(sk.open_dataset(tmp_path / "rows.csv", "y")),
        lambda: sk.ingest(tmp_path / "rows.csv", tmp_path / "out.zarr", target="y"),
    ):
        with pytest.raises(sk.DataError, match=r"(?s)column 'y' is null.*row 2.*table\['y'\]\.notna"):
            use()


def test_text_that_stands_for_numbers_or_dates_is_advised_on(tmp_path):
    n = 1200
    table = {
        "amount": [f"{i * 7919 % 10**6:,}.50" for i in range(n)],
        "share": [f"{i % 40}%" for i in range(n)],
        "when": [f"{1 + i % 28:02}/{1 + i % 12:02}/2024" for i in range(n)],
        "customer": [f"c-{i}" for i in range(n)],
        "zip": [f"{i % 50:05}" for i in range(n)],
    }
    pq.write_table(pa.table(table | {"y": np.arange(n) % 2}), tmp_path / "rows.parquet")
    advice = [line for line in inspect(tmp_path / "rows.parquet", "y").text().splitlines() if "advice" in line]
    for name, what in (("amount", "numbers"), ("share", "numbers"), ("when", "dates")):
        assert any(f"column {name} is text that looks like {what}" in line for line in advice), advice
    assert sum("looks like" in line for line in advice) == 3
    assert any(line.endswith("leave ids out: --exclude customer") for line in advice)


def test_columns_beside_a_list_of_features_are_described(tmp_path):
    X = np.random.default_rng(0).normal(size=(40, 3))
    rows = pa.table({"X": X.tolist(), "id": [str(i) for i in range(40)]})
    pq.write_table(rows, tmp_path / "rows.parquet")
    found = inspect(tmp_path / "rows.parquet").to_json()
    np.testing.assert_allclose([c["mean"] for c in found["columns"]], X.mean(axis=0))
    assert [(o["name"], o["distinct"]) for o in found["others"]] == [("id", 40)]


def test_numbers_that_stand_for_text_are_not_shown_as_numbers(tmp_path):
    rows, _ = table(60)
    sk.ingest(rows, tmp_path / "rows.zarr", columns=["a", "kind", "b"])
    found = inspect(tmp_path / "rows.zarr")
    text = found.text()
    assert found.to_json()["text"] == ["kind"]
    assert "  kind    text, stored as codes" in text
    assert "to 59\n" in text  # the range
    assert "scales" not in text


@pytest.mark.parametrize("order", [("numbers", "texts"), ("texts", "numbers")])
def test_a_column_of_numbers_in_one_table_and_of_texts_in_another_is_named(order: tuple[str, str], tmp_path: Path):
    for name, rows in (("numbers", "1,5,0\n2,6,1\n"), ("texts", "a,5,0\nb,6,1\n")):
        (tmp_path / f"{name}.csv").write_text(f"x,z,y\n{rows}")
    files = [str(tmp_path / f"{name}.csv") for name in order]
    with pytest.raises(sk.DataError, match=r"column 'x' holds (numbers and string|string and numbers)") as caught:
        sk.inspect(files, target="y")
    assert "exclude=['x']" in str(caught.value)
    assert sk.inspect(files, target="y", exclude=("x",)).to_json()["rows"] == 4
