"""Sources with every facet at once, whole, joined and with rows left out: none of them loses any."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from pyarrow import csv as arrow_csv
from pyarrow import feather

import streamkern as sk
from streamkern.data.row_selection import FilteredSource, OutsideRanges, Rule, SelectedIds
from streamkern.formats import csv
from streamkern.formats.open_tables import open_tables
from streamkern.ingestion.array_files import READERS
from streamkern.sources import format_rules
from streamkern.sources.schema import number_of
from streamkern.testing.source import SourceSuite, read_all
from tests.faults import FaultyServer

N = 101
RNG = np.random.default_rng(7)
COLOURS = np.array(["red", "green", "blue", "red"], dtype=object)[RNG.integers(0, 4, N)]
A, B = RNG.normal(size=N), RNG.normal(size=N)
LABEL = RNG.integers(0, 10, N)
IMPORTANCE = RNG.integers(0, 4, N) / 2.0
WHEN = pd.date_range("2020-01-01", periods=N).to_numpy().astype("datetime64[ns]")


def table(a: np.ndarray = A) -> pa.Table:
    """Numbers, text, a date, labels and weights."""
    columns = {"a": a, "importance": IMPORTANCE, "colour": COLOURS, "b": B, "label": LABEL, "when": WHEN}
    return pa.table(columns)


def write(path: Path, rows: pa.Table) -> Path:
    """The rows in the format of the file's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(rows, path, row_group_size=17)
    elif path.suffix == ".csv":
        arrow_csv.write_csv(rows, path)
    else:
        feather.write_feather(rows, str(path), chunksize=17)
    return path


class FacetSuite(SourceSuite):
    """Files that the subclass names, written with all columns and opened by its ``opened``."""

    files: ClassVar[tuple[str, ...]] = ("rows.parquet",)

    @pytest.fixture(autouse=True)
    def _small_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(format_rules, "CHUNK_BYTES", 600)
        monkeypatch.setattr(csv, "BLOCK_BYTES", 700)

    @pytest.fixture
    def expected_X(self) -> np.ndarray:
        return np.column_stack([A, B])

    @pytest.fixture
    def expected_y(self) -> np.ndarray:
        return LABEL

    @pytest.fixture
    def expected_w(self) -> np.ndarray | None:
        return IMPORTANCE

    def write(self, folder: Path, a: np.ndarray = A) -> None:
        starts = np.linspace(0, N, len(self.files) + 1).astype(int)
        for name, start, stop in zip(self.files, starts[:-1], starts[1:], strict=True):
            write(folder / name, table(a)[start:stop])

    def opened(self, folder: Path) -> Any:
        return open_tables([folder / name for name in self.files], "label", weight="importance", lenient=True)

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Any:
        self.write(tmp_path)
        return lambda: self.opened(tmp_path)

    @pytest.fixture
    def change(self, tmp_path: Path) -> Any:
        return lambda: self.write(tmp_path, A + 1)


LENIENT = {
    "weight": "importance",
    "columns": ("a", "b"),
    "non_features": (("colour", "string"), ("when", "timestamp[ns]")),
}


class TestLenientParquetFolder(FacetSuite):
    facets: ClassVar[dict[str, Any]] = LENIENT
    files: ClassVar[tuple[str, ...]] = ("part-1.parquet", "part-2.parquet", "part-10.parquet")

    def opened(self, folder: Path) -> Any:
        return open_tables([folder], "label", weight="importance", lenient=True)


class TestJoined(FacetSuite):
    """Of three formats, with weights, and non-features that are described."""

    facets: ClassVar[dict[str, Any]] = LENIENT
    files: ClassVar[tuple[str, ...]] = ("one.parquet", "two.feather", "three.csv")


class TestRemote(FacetSuite):
    """Joined, of two formats behind HTTP."""

    facets: ClassVar[dict[str, Any]] = LENIENT | {"remote": True}
    files: ClassVar[tuple[str, ...]] = ("one.parquet", "two.feather")

    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Iterator[Any]:
        self.write(tmp_path)
        with FaultyServer(tmp_path) as server:
            places = [f"{server.url}/{name}" for name in self.files]
            yield lambda: open_tables(places, "label", weight="importance", lenient=True)


class TestFiltered(TestJoined):
    """Half of the rows of a joined source, by their hash."""

    facets: ClassVar[dict[str, Any]] = LENIENT | {"non_features": ()}
    RULES: ClassVar[list[Any]] = [Rule((3,), high=1 << 63), SelectedIds(np.array([0, 5, 100]), others=True)]

    def opened(self, folder: Path) -> Any:
        return FilteredSource(super().opened(folder), self.RULES)

    def kept(self) -> np.ndarray:
        ids = np.arange(N)
        return np.logical_and.reduce([rule.keep(ids) for rule in self.RULES])

    @pytest.fixture
    def expected_X(self) -> np.ndarray:
        return np.column_stack([A, B])[self.kept()]

    @pytest.fixture
    def expected_y(self) -> np.ndarray:
        return LABEL[self.kept()]

    @pytest.fixture
    def expected_w(self) -> np.ndarray:
        return IMPORTANCE[self.kept()]

    def test_its_ids_are_those_of_the_whole(self, source: Any) -> None:
        ids = np.concatenate([source.ids(chunk) for chunk in range(len(source.bounds) - 1)])
        np.testing.assert_array_equal(ids, np.flatnonzero(self.kept()))


class TestTextByName(FacetSuite):
    """Text that is named as a feature, in three parts, in a glob."""

    facets: ClassVar[dict[str, Any]] = {"weight": "importance", "columns": ("colour", "a"), "text": ("colour",)}
    files: ClassVar[tuple[str, ...]] = ("day=1/rows.parquet", "day=2/rows.parquet", "day=3/rows.parquet")

    @pytest.fixture
    def expected_X(self) -> np.ndarray:
        return np.column_stack([[number_of(colour) for colour in COLOURS], A])

    def opened(self, folder: Path) -> Any:
        return open_tables(f"{folder}/day=*/*.parquet", target="label", columns=["colour", "a"], weight="importance")


class TestTextJoined(TestTextByName):
    files: ClassVar[tuple[str, ...]] = ("one.csv", "two.parquet", "three.feather")

    def opened(self, folder: Path) -> Any:
        places = [folder / name for name in self.files]
        return open_tables(places, "label", ["colour", "a"], weight="importance")


class IngestedSuite(FacetSuite):
    """What ``ingest`` has made: its order, its text and its weights are noted with it."""

    facets: ClassVar[dict[str, Any]] = {
        "weight": "weight",
        "columns": ("colour", "a"),
        "text": ("colour",),
        "shuffled": True,
    }
    place = ""

    def write(self, folder: Path, a: np.ndarray = A) -> None:
        write(folder / "rows.parquet", table(a))
        sk.ingest(
            folder / "rows.parquet", folder / self.place, target="label", columns=["colour", "a"], weight="importance",
            shuffle=True, format="zarr" if self.place.endswith("zarr") else "parquet", overwrite=True,
        )  # fmt: skip

    def opened(self, folder: Path) -> Any:
        return open_tables(folder / self.place)

    @pytest.fixture
    def order(self, source: Any) -> np.ndarray:
        a = read_all(source).X[:, 1]
        return np.argsort(A)[np.argsort(np.argsort(a))]

    @pytest.fixture
    def expected_X(self, order: np.ndarray) -> np.ndarray:
        return np.column_stack([[number_of(colour) for colour in COLOURS[order]], A[order]])

    @pytest.fixture
    def expected_y(self, order: np.ndarray) -> np.ndarray:
        return LABEL[order]

    @pytest.fixture
    def expected_w(self, order: np.ndarray) -> np.ndarray:
        return IMPORTANCE[order]


class TestIngestedZarr(IngestedSuite):
    place = "made.zarr"


class TestIngestedParquet(IngestedSuite):
    place = "made"


class TestQuarantine(SourceSuite):
    """The rows that ``on_corrupt="quarantine"`` leaves, of which nothing corrupt is read."""

    facets: ClassVar[dict[str, Any]] = {"weight": "w"}

    @pytest.fixture
    def expected_X(self) -> np.ndarray:
        return np.delete(np.column_stack([A, B]), slice(20, 40), axis=0)

    @pytest.fixture
    def expected_y(self) -> np.ndarray:
        return np.delete(LABEL, slice(20, 40))

    @pytest.fixture
    def expected_w(self) -> np.ndarray:
        return np.delete(IMPORTANCE, slice(20, 40))

    @pytest.fixture
    def reopen(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setattr(format_rules, "CHUNK_BYTES", 1)
        group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
        for name, values in {"X": np.column_stack([A, B]), "y": LABEL, "w": IMPORTANCE}.items():
            group.create_array(name, data=values, chunks=(20, *values.shape[1:]))
        (tmp_path / "rows.zarr" / "X" / "c" / "1" / "0").write_bytes(b"corrupt")

        def opened() -> FilteredSource:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                data = sk.open_dataset(tmp_path / "rows.zarr", "y", weight="w", on_corrupt="quarantine")
            return FilteredSource(data.source, [rule for rule in data.rules if isinstance(rule, OutsideRanges)])

        return opened

    @pytest.fixture
    def change(self, tmp_path: Path) -> Any:
        def changed() -> None:
            array = zarr.open_group(tmp_path / "rows.zarr", mode="r+")["X"]
            array[50] = array[50] + 1

        return changed


@pytest.mark.parametrize("suffix", ["csv", "parquet", "feather"])
def test_a_column_is_of_the_kind_that_it_has_in_the_first_table(tmp_path: Path, suffix: str) -> None:
    """Digests of text among numbers would be trained on as if they meant something."""
    one = write(tmp_path / f"one.{suffix}", pa.table({"a": [1.5, 2.5], "b": [1, 2]}))
    two = write(tmp_path / f"two.{suffix}", pa.table({"a": ["1.5", "about 2"], "b": [3, 4]}))
    with pytest.raises(sk.DataError, match=r"(?s)The value 'about 2' of column 'a' is not a number.*two\..*row 1"):
        read_all(open_tables([one, two]))
    texts = read_all(open_tables([two, one])).X[:, 0]
    assert texts.tolist() == [number_of(text) for text in ("1.5", "about 2", "1.5", "2.5")]


@pytest.mark.parametrize("role", ["target", "weight", "id", "columns"])
@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv", "rows.feather", "rows.npz", "rows.zarr", "frame"])
def test_what_is_missing_is_called_what_the_user_named_it_for(tmp_path: Path, name: str, role: str) -> None:
    place: Any = tmp_path / name
    if name == "frame":
        place = table().select(["a", "b", "label"]).to_pandas()
    elif name == "rows.npz":
        np.savez(place, a=A, b=B)
    elif name == "rows.zarr":
        group = zarr.open_group(place, mode="w")
        for column, values in (("a", A), ("b", B)):
            group.create_array(column, data=values)
    else:
        write(place, table().select(["a", "b", "label"]))
    words = {"target": "target 'aa'", "weight": "weight 'aa'", "id": "id column 'aa'", "columns": "column 'aa'"}[role]
    with pytest.raises(sk.DataError, match=f"^{words} is not there(.|\n)*did you mean 'a'"):
        open_tables([place], **{role: ["aa"] if role == "columns" else "aa"}, readers=READERS)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "feather"])
def test_weights_that_are_no_numbers_are_refused(tmp_path: Path, suffix: str) -> None:
    place = write(tmp_path / f"rows.{suffix}", table())
    with pytest.raises(sk.DataError, match=r"weight 'colour' is a column of string(.|\n)*rows\."):
        open_tables([place], "label", ["a", "b"], weight="colour")


def test_weights_and_targets_of_npy_files_are_files_of_their_own(tmp_path: Path) -> None:
    for name, values in (("rows", np.column_stack([A, B])), ("y", LABEL), ("w", IMPORTANCE)):
        np.save(tmp_path / f"{name}.npy", values)
    source = open_tables([tmp_path / "rows.npy"], str(tmp_path / "y.npy"), weight=str(tmp_path / "w.npy"))
    assert source.weight == "w"
    rows = read_all(source)
    np.testing.assert_array_equal(rows.y, LABEL)
    np.testing.assert_array_equal(rows.w, IMPORTANCE)


def test_several_arrays_are_the_targets_and_one_the_weight(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "rows.zarr", mode="w")
    for name, values in {"X": np.column_stack([A, B]), "u": A, "v": B, "w": IMPORTANCE}.items():
        group.create_array(name, data=values)
    source = sk.open_dataset(tmp_path / "rows.zarr", ["v", "u"], weight="w").source
    np.testing.assert_array_equal(read_all(source).y, np.column_stack([B, A]))
    assert read_all(source).w is not None


def test_lists_of_features_may_have_a_column_of_weights(tmp_path: Path) -> None:
    lists = pa.FixedSizeListArray.from_arrays(pa.array(np.column_stack([A, B]).ravel()), 2)
    place = write(tmp_path / "rows.parquet", pa.table({"x": lists, "y": LABEL, "w": IMPORTANCE}))
    rows = read_all(sk.open_dataset(place, "y", weight="w").source)
    np.testing.assert_array_equal(rows.X, np.column_stack([A, B]))
    np.testing.assert_array_equal(rows.w, IMPORTANCE)
    with pytest.raises(sk.DataError, match="weight 'x' is a column of fixed_size_list"):
        sk.open_dataset(place, "y", columns=["w"], weight="x")


def test_what_is_read_in_one_stream_is_not_read_ahead(tmp_path: Path) -> None:
    """Chunks of text in a store come from one stream, in order; record batches each from a request of their own."""
    with FaultyServer(tmp_path) as server:
        for name, remote in (("rows.csv", False), ("rows.feather", True), ("rows.parquet", True)):
            write(tmp_path / name, table())
            source = open_tables([f"{server.url}/{name}"], "label", ["a", "b"])
            assert source.remote == remote, name
            assert open_tables([f"{server.url}/{name}"] * 2, "label", ["a", "b"]).remote == remote, name
