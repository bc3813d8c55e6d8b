"""Text tables that are damaged: no row is lost and no number changed in silence, and none makes memory explode."""

from __future__ import annotations

import csv as python_csv
import io
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.errors import DataError, PlanRefusedError
from streamkern.formats import csv
from streamkern.formats.csv_records import first_record_end, last_record_end, record_blocks
from streamkern.formats.open_tables import open_tables

UNCLOSED = "the quote that opens here is not closed before the end of the file"
CLOSED = "the quote that opens here is closed in the middle of text"
HEAD = "name,a\nx,1\ny,2\n"


@pytest.mark.parametrize(
    ("text", "message", "where"),
    [
        (HEAD + 'z,"3\nu,4\nv,5\n', UNCLOSED, "line 4"),
        (HEAD + '"z,3\nu,4\nv,5\n', UNCLOSED, "line 4"),
        (HEAD + 'z,3\nu,"4\n"v",5\n', f"{CLOSED}, in line 6", "line 5"),
        (HEAD + '"5" pipe",3\n', CLOSED, "line 4"),
        (HEAD + 'z,"3" \n', CLOSED, "line 4"),
        ('name,"a\nx,1\ny,2\n', UNCLOSED, "line 1"),
        (HEAD + "z\nu,4\n", "1 fields instead of 2", "line 4"),
        (HEAD + "z,3\nu,4,5\n", "3 fields instead of 2", "line 5"),
        (HEAD + '"z\nz",3\nu,4,5\n', "3 fields instead of 2", "line 6"),
        (HEAD + "z,3\nu\0,4\n", "NUL byte", "line 5"),
        (HEAD + "z,1e400\nu,4\n", r"column 'a', row 2: .* '1e400'", "t.csv"),
        (HEAD + "z,3\nu,-1E+999\n", r"column 'a', row 3: .* '-1E\+999'", "t.csv"),
        (HEAD + f"z,{'9' * 400}\n", "column 'a', row 2: .* '9999", "t.csv"),
    ],
)
def test_a_damaged_table_is_an_error_that_names_the_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str, where: str
):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(DataError, match=message) as error:
        open_tables([tmp_path / "t.csv"], columns=["a"])
    assert str(error.value.where).startswith(str(tmp_path / "t.csv"))
    assert str(error.value.where).endswith(where)
    assert main(["inspect", str(tmp_path / "t.csv")]) == 1
    assert capsys.readouterr().err.count("error:") == 1


def test_the_place_is_right_in_later_blocks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(csv, "BLOCK_BYTES", 32)
    rows = [f"{i},{2 * i}" for i in range(100)]
    for bad, message in (("1e400,1", "column 'a', row 100"), ("1", "1 fields"), ('1,"2', "not closed within")):
        text = "\n".join(["a,b", *rows, bad, *rows])
        (tmp_path / "t.csv").write_text(text + "\n")
        with pytest.raises(DataError, match=message) as error:
            open_tables([tmp_path / "t.csv"])
        if "row" not in message:
            assert str(error.value.where).endswith("line 102")


def test_numbers_that_float64_holds_and_infinity_by_its_name_stay(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a,b\n1.5,1e308\n-inf,Infinity\n2,1e-400\n")
    X = open_tables([tmp_path / "t.csv"]).read(0).X
    np.testing.assert_array_equal(X, [[1.5, 1e308], [-np.inf, np.inf], [2, 0]])


def test_a_number_beyond_float64_is_text_in_a_column_of_text(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a,b\n1,1e400\n2,word\n")
    assert open_tables([tmp_path / "t.csv"], columns=["a"]).read(0).X.tolist() == [[1], [2]]


def test_an_id_that_float64_would_round_is_refused(tmp_path: Path):
    for value in ("12345678901234567891", "9007199254740993"):
        (tmp_path / "t.csv").write_text(f"a,id\n1,{value}\n2,0.5\n")
        with pytest.raises(DataError, match=f"column 'id', row 0: .* '{value}'"):
            open_tables([tmp_path / "t.csv"], target="id")
        assert open_tables([tmp_path / "t.csv"], columns=["a"]).read(0).X.tolist() == [[1], [2]]
    (tmp_path / "t.csv").write_text("a,id\n1,9007199254740993\n2,7\n")  # a column of whole numbers stays whole
    labels = open_tables([tmp_path / "t.csv"], target="id").read(0).y
    assert labels is not None
    assert labels.tolist() == [9007199254740993, 7]


def test_an_inch_mark_in_a_field_leaves_blocks_as_small_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(csv, "BLOCK_BYTES", 1 << 12)
    rows = "".join(f'pipe {i},{i},"a ""b"", c"\n' for i in range(5000))
    (tmp_path / "t.csv").write_text('name,a,b\n5" pipe,0,x\n' + rows + '6" pipe,1,5" x\n')
    source = open_tables([tmp_path / "t.csv"], columns=["a"])
    assert source.bounds[-1] == 5002
    assert max(np.diff(source.bounds)) < 300
    values = np.concatenate([source.read(i).X[:, 0] for i in range(len(source.bounds) - 1)])
    assert values.tolist() == [0, *range(5000), 1]


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_field_without_end_is_refused_before_it_is_held(tmp_path: Path, quote: str):
    with (tmp_path / "t.csv").open("w") as file:
        file.write(f"a,b\n1,2\n1,{quote}")
        for _ in range(40):
            file.write("x" * (1 << 20))
        file.write(f"{quote}\n")
    tracemalloc.start()
    with pytest.raises(DataError, match=r"longer than|not closed within") as error:
        open_tables([tmp_path / "t.csv"], memory=64 << 20)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(error.value.where).endswith("line 3")
    assert peak < 32 << 20


def test_more_columns_than_the_memory_takes_are_refused_before_they_are_parsed(tmp_path: Path):
    columns = 100_000
    line = ",".join(map(str, range(columns)))
    (tmp_path / "t.csv").write_text(f"{line}\n{line}\n")
    with pytest.raises(PlanRefusedError, match="100,000 columns"):
        sk.ingest(tmp_path / "t.csv", tmp_path / "t.zarr", memory="256MiB")
    assert not (tmp_path / "t.zarr").exists()


texts = st.text(st.sampled_from('ab1 ",\n'), max_size=6)


@given(rows=st.lists(st.lists(texts, min_size=2, max_size=3), min_size=1, max_size=12), size=st.integers(1, 40))
def test_blocks_end_where_records_of_a_proper_table_end(rows: list[list[str]], size: int):
    made = io.StringIO()
    python_csv.writer(made, lineterminator="\n", quoting=python_csv.QUOTE_ALL).writerows(rows)
    text = made.getvalue().encode()
    found = list(record_blocks(io.BytesIO(text), 0, 1, b",", 1000 + size, "t"))
    assert b"".join(part for _, _, part in found) == text
    for cut in range(len(text) + 1):
        end, _ = last_record_end(text[:cut], b",", 1, "t")
        ends = [0]
        for row in rows:
            made = io.StringIO()
            python_csv.writer(made, lineterminator="\n", quoting=python_csv.QUOTE_ALL).writerow(row)
            ends.append(ends[-1] + len(made.getvalue().encode()))
        assert end == max(e for e in ends if e <= cut)
    assert first_record_end(text, b",", "t") == ends[1]
