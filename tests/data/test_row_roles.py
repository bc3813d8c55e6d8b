"""Splits of rows with a time and a group keep every group on one side, and predict no row from later ones."""

import datetime
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkern as sk
from streamkern.data.dataset import Dataset
from streamkern.data.row_roles import RowRoles, TimeOrder
from streamkern.sources.array_source import ArraySource

DAY = 86400.0


def ids(data: Dataset) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype=np.int64), *data.row_ids()])


def table(n: int = 900, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    store = rng.integers(0, 30, n)
    days = rng.integers(0, 200, n)
    x = rng.normal(size=n)
    return pd.DataFrame({
        "x": x,
        "city": np.array(["a", "b", "c", "d"])[rng.integers(0, 4, n)],
        "store": np.array([f"s{i}" for i in range(30)])[store],
        "sold": pd.Timestamp("2012-01-01") + pd.to_timedelta(days, "D"),
        "y": np.sin(3 * x) + 0.3 * rng.normal(size=30)[store] + 0.01 * days,
    })  # fmt: skip


values = st.lists(st.tuples(st.integers(-3, 6) | st.floats(-1e6, 1e6), st.integers(0, 5)), min_size=2, max_size=60)
roles = st.sampled_from([("time",), ("group",), ("time", "group")])


@settings(deadline=None)
@given(values, roles, st.floats(0.05, 0.95), st.integers(0, 3), st.integers(1, 9), st.floats(0, 3))
def test_a_split_separates_no_group_and_has_no_future_in_the_rest(rows, named, test, seed, chunk, gap):
    time, group = np.array(rows, dtype=np.float64).T
    given = {"time": time, "group": group}
    X = np.stack([given[name] for name in named], axis=1)

    def opened(chunk_rows: int) -> Dataset:
        source = ArraySource(X, columns=named, chunk_rows=chunk_rows)
        made = RowRoles(source, *(name if name in named else None for name in ("time", "group")))
        return replace(sk.from_arrays(np.arange(len(X), dtype=np.float64)[:, None]), roles=made)

    gap = gap if "time" in named else 0.0
    try:
        rest, tested = opened(chunk).split(test, seed, gap=gap)
    except sk.errors.DataError:  # a side would be empty
        many = [len(np.unique(given[name])) > 1 for name in named]
        assert gap or not all(many) or len(named) == 2  # early rows of groups that have late ones are left out
        return
    a, b = ids(rest), ids(tested)
    assert len(a) > 0 < len(b)
    assert not set(a) & set(b)
    if "group" in named:
        assert not set(group[a]) & set(group[b])
    if "time" in named:
        assert time[a].max() < time[b].min()
        assert time[b].min() - gap >= time[a].max()
    if named == ("group",) or (named == ("time",) and not gap):
        assert len(a) + len(b) == len(X)
    whole = opened(len(X)).split(test, seed, gap=gap)
    assert [ids(side).tolist() for side in whole] == [a.tolist(), b.tolist()]


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=2, max_size=80), st.floats(0, 1))
def test_a_cut_has_the_nearest_share_that_keeps_times_whole(times, share):
    order = TimeOrder(RowRoles(ArraySource(np.array(times)[:, None]), "time", None), ())
    early = np.sort(order.codes) < order.cut(share)
    sizes = [int(np.sum(order.codes < code)) for code in [*np.unique(order.codes)[1:], math.inf]]
    wanted = min(max(round(share * len(times)), 1), len(times) - 1)
    possible = [size for size in sizes if 0 < size < len(times)]
    if not possible:  # all rows have one time
        assert early.sum() in (0, len(times))
        return
    assert early.sum() in possible
    assert abs(early.sum() - wanted) == min(abs(size - wanted) for size in possible)


@pytest.mark.parametrize("exact", [10**6, 0])
def test_the_code_of_a_time_has_its_order(exact, monkeypatch):
    monkeypatch.setattr("streamkern.data.row_roles.MAX_EXACT_TIMES", exact)
    rng = np.random.default_rng(0)
    times = np.concatenate([rng.normal(size=300) * 10.0 ** rng.integers(-6, 9, 300), [0.0, -0.0]])
    order = TimeOrder(RowRoles(ArraySource(times[:, None]), "time", None), ())
    at = np.argsort(times, kind="stable")
    codes = order.codes[at]
    assert (codes[1:] >= codes[:-1]).all()
    assert not exact or (codes[1:] > codes[:-1]).sum() == len(np.unique(times)) - 1


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    """One table behind every door."""
    import dask.dataframe
    import polars
    import pyarrow as pa
    from pyarrow import feather, parquet

    folder, frame = tmp_path_factory.mktemp("doors"), table()
    frame.to_parquet(folder / "t.parquet", row_group_size=100, index=False)
    frame.to_csv(folder / "t.csv", index=False)
    arrow = pa.Table.from_pandas(frame, preserve_index=False)
    feather.write_feather(arrow, str(folder / "t.arrow"), chunksize=77)
    for k, start in enumerate(range(0, len(frame), 250)):
        (folder / "parts").mkdir(exist_ok=True)
        parquet.write_table(arrow.slice(start, 250), folder / "parts" / f"part-{k}.parquet")
    roles = {"time": "sold", "group": "store"}
    for name in ("t.zarr", "t-parquet.parquet"):
        sk.ingest(folder / "t.csv", folder / name, target="y", **roles)
    y = frame.y
    X = frame.drop(columns="y")
    return {
        "pandas": sk.from_arrays(X, y, **roles),
        "polars": sk.from_arrays(polars.from_pandas(X), y, **roles),
        "Arrow": sk.from_arrays(pa.Table.from_pandas(X, preserve_index=False), y, **roles),
        "dict": sk.from_arrays({name: X[name].to_numpy() for name in X}, y, **roles),
        "Dask": sk.from_arrays(dask.dataframe.from_pandas(X, npartitions=3), y.to_numpy(), **roles),
        "values": sk.from_arrays(X[["x"]].to_numpy(), y, time=X.sold, group=X.store),
        "texts": sk.from_arrays(X[["x"]].to_numpy(), y, time=X.sold.astype(str), group=X.store),
        "parquet": sk.open_dataset(folder / "t.parquet", "y", **roles),
        "folder": sk.open_dataset(folder / "parts", "y", **roles),
        "csv": sk.open_dataset(folder / "t.csv", "y", **roles),
        "ipc": sk.open_dataset(folder / "t.arrow", "y", **roles),
        "list": sk.open_dataset([folder / "parts" / f"part-{k}.parquet" for k in range(4)], "y", **roles),
        "ingested zarr": sk.open_dataset(folder / "t.zarr"),
        "ingested parquet": sk.open_dataset(folder / "t-parquet.parquet"),
    }


@pytest.mark.parametrize("by", [None, "time", "group"])
def test_every_door_splits_the_same_rows(doors, by):
    found = {}
    for name, data in doors.items():
        column = None if by is None else getattr(data.roles, by)
        found[name] = [ids(side).tolist() for side in data.split(0.3, 1, by=column)]
        assert not {"sold", "store"} & set(data.columns or ())
    assert all(each == found["pandas"] for each in found.values()), {k: list(map(len, v)) for k, v in found.items()}


def test_a_shuffled_ingest_keeps_each_row_on_its_side(tmp_path):
    frame = table()
    sk.ingest(frame, tmp_path / "t.zarr", target="y", time="sold", group="store", shuffle=True, seed=3)
    rest, tested = sk.open_dataset(tmp_path / "t.zarr").split(0.3)
    sides = sk.from_arrays(frame.drop(columns="y"), frame.y, time="sold", group="store").split(0.3)
    for side, other in zip((rest, tested), sides, strict=True):
        y = side.source.read(0).y[ids(side)]
        assert sorted(y) == sorted(frame.y[ids(other)])


def test_roles_are_no_features_unless_they_are_named(doors):
    frame = table()
    data = sk.from_arrays(frame, columns=["x", "sold"], time="sold", group="store")
    assert data.columns == ("x", "sold")
    assert doors["parquet"].columns == ("x", "city")


def test_time_and_group_are_part_of_the_fingerprint():
    frame = table()
    marks = [{}, {"time": "sold"}, {"group": "store"}, {"time": "sold", "group": "store"}]
    made = {sk.from_arrays(frame, columns=["x"], **roles).fingerprint for roles in marks}
    assert len(made) == len(marks)


def test_expanding_splits_walk_forward():
    frame = table()
    data = sk.from_arrays(frame[["x", "sold"]], frame.y, time="sold")
    before = set()
    for rest, tested in data.expanding_splits(4, gap=datetime.timedelta(days=5)):
        a, b = frame.sold.iloc[ids(rest)], frame.sold.iloc[ids(tested)]
        assert b.min() - a.max() >= pd.Timedelta(days=5)
        assert before <= set(ids(rest))
        before = set(ids(rest))
        assert 0.15 * len(frame) < len(tested) < 0.25 * len(frame)


def test_a_split_by_hand():
    frame = table()
    data = sk.from_arrays(frame, columns=["x", "city", "sold"])
    rest, tested = data.split(by="sold", after="2012-05-01", gap=10 * DAY)
    assert (frame.sold.iloc[ids(tested)] >= "2012-05-01").all()
    assert len(tested) == (frame.sold >= "2012-05-01").sum()
    assert len(rest) == (frame.sold <= pd.Timestamp("2012-05-01") - pd.Timedelta(days=10)).sum()
    rest, tested = data.split(0.5, by="city")
    assert not set(frame.city.iloc[ids(rest)]) & set(frame.city.iloc[ids(tested)])


@pytest.mark.parametrize(
    "condition",
    [
        "x > 0.5", "0 < x < 1", "city == 'a'", "city != 'a' and x <= 0", "city in ('a', 'b') or not x < 1",
        "sold >= '2012-03-01'", "'2012-02-01' <= sold < '2012-03-01' and store == 's3'", "store not in ['s1', 's2']",
    ],
)  # fmt: skip
def test_where_selects_what_pandas_selects(doors, condition):
    frame = table()
    expected = np.flatnonzero(frame.eval(condition))
    for name in ("pandas", "parquet", "csv", "ingested zarr"):
        assert ids(doors[name].where(condition)).tolist() == expected.tolist(), name


def test_a_comparison_with_a_missing_value_is_false():
    frame = pd.DataFrame({"unit price": [1.0, np.nan, 3.0], "kind": ["a", None, "b"]})
    data = sk.from_arrays(frame)
    assert ids(data.where("'unit price' != 1")).tolist() == [2]
    assert ids(data.where("kind not in ('a',)")).tolist() == [2]
    assert ids(data.where("not kind == 'a'")).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("condition", "says"),
    [
        ("x", "no comparison"), ("x > y0", "y0"), ("__import__('os').system('x') == 1", "not compared"),
        ("x >", "read"),
        ("city < 'b'", "equal or not"), ("x == 'a'", "not a number"), ("x in 3", "no list"), ("zz == 1", "not there"),
        ("sold > 'noon'", "not a time"), ("x > 1 if x else 2", "no comparison"),
    ],
)  # fmt: skip
def test_a_condition_that_cannot_be_read_says_why(condition, says):
    data = sk.from_arrays(table(), columns=["x", "city", "sold"])
    with pytest.raises(sk.errors.StreamkernError, match=says):
        data.where(condition)


def test_errors_name_the_row_the_column_and_the_remedy():
    frame = table()
    gone = frame.assign(sold=frame.sold.where(frame.index != 7))
    for wrong, says in (
        (lambda: sk.from_arrays(gone, columns=["x"], time="sold").split(), "row 7.*fill the times"),
        (lambda: sk.from_arrays(frame, columns=["x"], group="shop"), "shop.*one of.*store"),
        (lambda: sk.from_arrays(frame.assign(store="s"), columns=["x"], group="store").split(), "has no row"),
        (lambda: sk.from_arrays(frame[["x"]].to_numpy(), group="store"), "values, shape"),
        (lambda: sk.from_arrays(frame[["x"]].to_numpy(), group=frame.store[:5]), "900 rows"),
        (lambda: sk.from_arrays(frame, columns=["x"]).split(after="2012-01-01"), 'time="COLUMN"'),
        (lambda: sk.from_arrays(frame, columns=["x"], group="store").split(stratify=True), "stratify"),
        (lambda: sk.from_arrays(frame, columns=["x"], group="store").expanding_splits(3), "time="),
        (lambda: sk.from_arrays(frame, columns=["x"], time="sold").split(gap="week"), "not a gap"),
        (lambda: sk.from_arrays(frame, columns=["x"]).split(by="nothing"), "nothing"),
    ):
        with pytest.raises(sk.errors.StreamkernError, match=f"(?s){says}"):
            wrong()


def test_whole_numbers_beyond_53_bits_are_groups_of_their_own(tmp_path):
    big = np.arange(100, dtype=np.int64).repeat(3) + (1 << 60)
    frame = pd.DataFrame({"x": np.arange(300.0), "group": big})
    frame.to_parquet(tmp_path / "t.parquet")
    for data in (
        sk.open_dataset(tmp_path / "t.parquet", group="group"), sk.from_arrays(frame[["x"]].to_numpy(), group=big),
    ):  # fmt: skip
        rest, tested = data.split(0.3)
        assert 30 < len(tested) < 150
        assert not set(big[ids(rest)]) & set(big[ids(tested)])


def test_missing_groups_given_as_values_are_one_group():
    group = pd.array([1, None, 2, None, 3] * 40, dtype="Int64")
    texts = np.array(["a", None, np.nan, pd.NA, "b"] * 40, dtype=object)
    for values, missing in ((group, [1, 3]), (texts, [1, 2, 3])):
        for seed in range(4):
            for side in sk.from_arrays(np.zeros((200, 1)), group=values).split(0.4, seed):
                assert len({int(i) % 5 in missing for i in ids(side) if int(i) % 5 in missing}) <= 1
                assert len(set(ids(side) % 5) & set(missing)) in (0, len(missing))


def test_groups_stay_on_their_sides_where_rows_are_left_out():
    frame = table()
    weights = np.ones(len(frame))
    weights[5] = 0.0
    whole = sk.from_arrays(frame, columns=["x"], group="store")
    side = set(ids(whole.split(0.3)[1]))
    for data in (
        sk.from_arrays(frame, columns=["x"], group="store", sample_weight=weights), whole.where("x > -100"),
    ):  # fmt: skip
        assert set(ids(data.split(0.3)[1])) == side - ({5} if data.weighted else set())
    again = whole.split(0.3)[0].split(0.3)[1]
    assert 0 < len(again) < len(whole)


def test_small_gaps_count_and_so_do_units():
    times = np.r_[0.0, 4e8 + np.arange(1000.0)]
    data = sk.from_arrays(np.zeros((1001, 1)), time=times)
    for gap in (1, 5.0, np.timedelta64(5, "s"), np.timedelta64(5 * 10**9, "ns"), datetime.timedelta(seconds=5)):
        rest, tested = data.split(gap=gap)
        seconds = gap if isinstance(gap, int | float) else 5
        assert times[ids(tested)].min() - times[ids(rest)].max() == seconds
    with pytest.raises(sk.errors.UsageError, match="not a gap"):
        data.split(gap=np.timedelta64(1, "M"))


def test_a_corrupt_column_of_groups_is_quarantined(tmp_path):
    import pyarrow.parquet as pq

    n, place = 1_200_000, tmp_path / "t.parquet"
    frame = pd.DataFrame({"x": np.arange(float(n)), "group": np.arange(n) // 1000})
    frame.to_parquet(place, row_group_size=n // 2, compression=None, index=False, use_dictionary=False)
    column = pq.ParquetFile(place).metadata.row_group(1).column(1)
    with open(place, "r+b") as file:
        file.seek(column.data_page_offset + 2)
        file.write(b"\xff" * 40)
    with pytest.warns(UserWarning, match="left out"):
        data = sk.open_dataset(place, columns=["x"], group="group", on_corrupt="quarantine")
    rest, tested = data.split(0.3)
    assert len(rest) + len(tested) == n // 2


def test_an_ingest_that_would_round_time_or_group_is_refused_and_features_stay(tmp_path):
    frame = table()
    with pytest.raises(sk.errors.UsageError, match="would round the columns of time and group"):
        sk.ingest(frame, tmp_path / "a.zarr", target="y", group="store", dtype="float32")
    sk.ingest(frame, tmp_path / "b.zarr", target="y", columns=["x", "sold"], time="sold", group="store")
    data = sk.open_dataset(tmp_path / "b.zarr")
    assert (data.columns, data.roles.time, data.roles.group) == (("x", "sold"), "sold", "store")
