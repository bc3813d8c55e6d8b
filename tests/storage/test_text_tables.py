"""Text tables as people have them, the options for those that do not say how they are written, and damaged ones."""

import bz2
import csv as python_csv
import gzip
import io
import lzma
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.errors import DataError, PlanRefusedError
from streamkern.formats import csv
from streamkern.formats.csv_records import first_record_end, last_record_end, record_blocks
from streamkern.formats.open_tables import open_tables
from streamkern.serving.predict_files import evaluate
from streamkern.testing.source import read_all

PLAIN = b"a,b,c\n1,2.5,x\n3,4.5,y\n5,6.5,x\n"


def zstandard(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def opened(folder: Path, text: bytes, ending: str = ".csv", **options: Any) -> sk.Dataset:
    path = folder / f"t{ending}"
    path.write_bytes(text)
    return sk.open_dataset(path, read_options=sk.read_options(**options) if options else None)


def rows(data: sk.Dataset) -> list[list[float]]:
    return read_all(data.source).X.tolist()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (b'"a,1",b;c\n1,2\n', ("a,1", "b;c")),
        (b'"a;1;2;3",b\n1,2\n', ("a;1;2;3", "b")),
        (b'"a,b,c";d\n1;2\n', ("a,b,c", "d")),
        (b'"a\nb",c\n1,2\n', ("a\nb", "c")),
        (b'"a ""q"" b"\tc\n1\t2\n', ('a "q" b', "c")),
        (b"\xef\xbb\xbf\n\na,c\n1,2\n", ("a", "c")),
        (b"#a,c\n1,2\n", ("#a", "c")),
        (b"# made by x, on a day\n#\n\n  \na,c\n1,2\n", ("a", "c")),
        (b"#;;;;;\na,c\n1,2\n", ("a", "c")),
    ],
)
def test_names_are_found_whatever_is_in_them_and_before_them(tmp_path, text, names):
    data = opened(tmp_path, text)
    assert data.columns == names
    assert rows(data) == [[1, 2]]


@pytest.mark.parametrize(
    ("text", "ending"),
    [
        (PLAIN.replace(b"\n", b"\r"), ".csv"),
        (PLAIN.replace(b"\n", b"\r\n"), ".csv"),
        (PLAIN.decode().encode("utf-16"), ".csv"),
        (PLAIN.replace(b"\n", b"\r\n").decode().encode("utf-16"), ".txt"),
        (b"\xfe\xff" + PLAIN.decode().encode("utf-16-be"), ".tsv"),
        (b"\xef\xbb\xbf" + PLAIN, ".csv"),
        (gzip.compress(PLAIN), ".csv.gz"),
        (bz2.compress(PLAIN), ".csv.bz2"),
        (lzma.compress(PLAIN), ".csv.xz"),
        (zstandard(PLAIN), ".csv.zst"),
        (zstandard(PLAIN.replace(b"\n", b"\r").decode().encode("utf-16")), ".CSV.ZST"),
    ],
    ids=["cr", "crlf", "utf-16", "utf-16 crlf", "utf-16-be", "utf-8 mark", "gz", "bz2", "xz", "zst", "zst utf-16"],
)
def test_ends_of_lines_encodings_and_compression_change_nothing(tmp_path, text, ending):
    (tmp_path / "plain.csv").write_bytes(PLAIN)
    assert rows(opened(tmp_path, text, ending)) == rows(sk.open_dataset(tmp_path / "plain.csv"))


@pytest.mark.parametrize("ending", [".csv", ".csv.xz", ".csv.zst"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
def test_tables_of_many_chunks_are_read_in_any_order(tmp_path, monkeypatch, ending, encoding):
    monkeypatch.setattr("streamkern.formats.csv.BLOCK_BYTES", 1 << 10)
    text = "a,ü\n" + "".join(f"{i},{i / 4}\n" for i in range(1000))
    packed = {"": bytes, ".xz": lzma.compress, ".zst": zstandard}[ending.removeprefix(".csv")](text.encode(encoding))
    data = opened(tmp_path, packed, ending, encoding=encoding)
    assert data.columns == ("a", "ü")
    chunks = range(len(data.source.bounds) - 1)
    assert len(chunks) > 4
    backwards = [data.source.read(chunk).X for chunk in reversed(chunks)]
    np.testing.assert_array_equal(np.concatenate(backwards[::-1])[:, 0], np.arange(1000))


def test_options_are_taken_by_every_door(tmp_path):
    text = "Export of a day\nby a person;with; many ; fields\ngröße;b;c\n1;2,5;Zürich\n-999;4,25;k. A.\n5;6,0;Genf\n"
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    given = {"delimiter": ";", "decimal": ",", "encoding": "latin-1", "missing": ["-999", "k. A."], "skip": 2}
    options = sk.read_options(**given)
    data = sk.open_dataset(tmp_path / "t.csv", read_options=options)
    assert data.columns == ("größe", "b", "c")
    assert [column.kind for column in data.source.schema.columns] == ["number", "number", "category"]
    X = rows(data)
    np.testing.assert_array_equal([row[:2] for row in X], [[1, 2.5], [np.nan, 4.25], [5, 6]])
    assert np.isnan(X[1][2])
    assert set(data.source.words(2).values()) == {"Zürich", "Genf"}
    sk.ingest(tmp_path / "t.csv", tmp_path / "t.zarr", read_options=given)
    np.testing.assert_array_equal(rows(sk.open_dataset(tmp_path / "t.zarr")), X)
    frame = pd.read_csv(
        tmp_path / "t.csv", sep=";", decimal=",", encoding="latin-1", na_values=given["missing"], skiprows=2
    )
    model = sk.KernelRegressor(kernel=sk.Laplace(1.0), centers=3, solver=sk.Direct(1e-3)).fit(
        frame[["größe", "c"]], frame.b
    )
    sk.predict(model.model_, tmp_path / "t.csv", tmp_path / "out.parquet", read_options=options)
    np.testing.assert_allclose(
        pd.read_parquet(tmp_path / "out.parquet").prediction, model.predict(frame[["größe", "c"]]), rtol=1e-12
    )
    assert evaluate(model.model_, tmp_path / "t.csv", "b", read_options=options)["n"] == 3
    assert list(sk.inspect(tmp_path / "t.csv", read_options=options).names) == ["größe", "b"]
    words = ["delimiter=;", "decimal=,", "encoding=latin-1", "missing=-999,k. A.", "skip=2"]
    assert main(["inspect", str(tmp_path / "t.csv"), "--read-options", *words]) == 0
    out = tmp_path / "cli.zarr"
    assert (
        main(["ingest", str(tmp_path / "t.csv"), str(out), "--read-options", *words[:2], "--read-options", *words[2:]])
        == 0
    )
    np.testing.assert_array_equal(rows(sk.open_dataset(out)), X)
    assert main(["inspect", str(tmp_path / "t.csv"), "--read-options", "skip=x"]) == 2
    assert opened(tmp_path, b"a b\n1 2\n", delimiter=" ").columns == ("a", "b")


@pytest.mark.parametrize("written", ["-999", "-999.0", "-999.00", "-9.99e2"])
def test_a_number_that_means_missing_is_one_however_it_is_written(tmp_path, written):
    text = f"a,b,c\n1.5,x,1\n{written},y,2\n-99.9,{written},3\n"
    (tmp_path / "t.csv").write_text(text)
    data = sk.open_dataset(tmp_path / "t.csv", read_options=sk.read_options(missing=["-999"]))
    assert [column.kind for column in data.source.schema.columns] == ["number", "category", "number"]
    assert data.source.schema.columns[0].missing
    np.testing.assert_array_equal([row[0] for row in rows(data)], [1.5, np.nan, -99.9])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,Zürich\n".encode("latin-1"), r"not UTF-8(.|\n)*line 2(.|\n)*encoding="),
        ("größe,b\n1,2\n".encode("latin-1"), r"not UTF-8(.|\n)*line 1(.|\n)*encoding="),
        ("# ü\na,b\n1,2\n".encode().decode("utf-8").encode("utf-16-le"), r"NUL byte(.|\n)*encoding="),
        (b"a report, of a day\nwith many words\na,b\n1,2\n", r"line 2(.|\n)*skip="),
    ],
)
def test_errors_name_the_cause_and_the_option(tmp_path, text, message):
    with pytest.raises(sk.DataError, match=message):
        opened(tmp_path, text)


@pytest.mark.parametrize(
    "given",
    [
        {"delimiter": ";;"}, {"delimiter": "\n"}, {"decimal": ""}, {"encoding": "latin-99"}, {"encoding": "base64"},
        {"encoding": "rot13"}, {"encoding": "undefined"}, {"encoding": "utf-8\0"}, {"missing": [1]},
        {"skip": -1}, {"skip": True}, {"decimal": ",", "delimiter": ","},
    ],
)  # fmt: skip
def test_options_out_of_range_are_refused(given):
    (name, *_) = given
    with pytest.raises(sk.UsageError, match=rf"read_options\(({name}|delimiter)=\.\.\.\)"):
        sk.read_options(**given)


def test_options_that_nothing_takes_are_refused(tmp_path):
    pd.DataFrame({"a": [1.0]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(sk.UsageError, match="no source is a text table"):
        sk.open_dataset(tmp_path / "t.parquet", read_options=sk.read_options(skip=1))
    with pytest.raises(sk.UsageError, match="read_options is"):
        sk.open_dataset(tmp_path / "t.parquet", read_options={"sep": ";"})


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252", "shift_jis"])
def test_a_wrong_encoding_is_named_with_its_option(tmp_path: Path, encoding: str):
    with pytest.raises(sk.DataError, match=rf"(?s)not in the encoding '{encoding}'.*t\.csv.*encoding=\.\.\."):
        opened(tmp_path, PLAIN + b"7,8.5,\x81\xff\n", encoding=encoding)


def test_a_folder_of_text_tables_is_opened_by_a_pattern(tmp_path: Path):
    opened(tmp_path, PLAIN, "1.csv"), opened(tmp_path, PLAIN, "2.csv")
    assert len(sk.open_dataset(tmp_path / "*")) == 6
    with pytest.raises(sk.errors.StorageError, match=r"give a pattern: .*/\*\.csv"):
        sk.open_dataset(tmp_path)


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
        ("name,a\nu,4,5\nz,3\nu,4,5\n", "3 fields instead of 2", "line 2"),
        (HEAD + '"z\nz",3\nu,4,5\n', "3 fields instead of 2", "line 6"),
        (HEAD + "z,3\nu\0,4\n", "NUL byte", "line 5"),
        (HEAD + "z,1e400\nu,4\n", r"column 'a', row 2: .* '1e400'", "t.csv"),
        (HEAD + "z,3\nu,-1E+999\n", r"column 'a', row 3: .* '-1E\+999'", "t.csv"),
        (HEAD + f"z,{'9' * 400}\n", "column 'a', row 2: .* '9999", "t.csv"),
    ],
)
def test_a_damaged_table_is_an_error_that_names_the_place(tmp_path, capsys, text, message, where):
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
    assert labels.tolist() == [9007199254740993, 7]


def test_an_inch_mark_in_a_field_leaves_blocks_as_small_as_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(csv, "BLOCK_BYTES", 1 << 12)
    rows = "".join(f'pipe {i},{i},"a ""b"", c"\n' for i in range(5000))
    (tmp_path / "t.csv").write_text('name,a,b\n5" pipe,0,x\n' + rows + '6" pipe,1,5" x\n')
    source = open_tables([tmp_path / "t.csv"], columns=["a"])
    assert source.bounds[-1] == 5002
    assert max(np.diff(source.bounds)) < 300
    assert read_all(source).X[:, 0].tolist() == [0, *range(5000), 1]


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
