"""Stores: an ingest to S3 is whole or not read, and chunks are read several at a time where each is a round trip."""

import itertools
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk
from streamkern.data.chunk_cache import CONCURRENT_READS, CachedReader
from streamkern.data.row_order import Assembly, Scan, Stream
from streamkern.formats.open_tables import open_tables
from streamkern.ingestion import upload as ingest_store
from streamkern.testing.source import read_all
from tests.faults import Fault, FaultyServer, Request

N = 400
X = np.random.default_rng(0).normal(size=(N, 16)).astype(np.float32)
X[:, 0] = np.arange(N)
Y = np.arange(N) % 3
_names = (f"made-{number}" for number in itertools.count())


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 20 * 64)
    monkeypatch.setattr(ingest_store.tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()


@pytest.fixture
def bucket(s3_server: str, upload: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    name = next(_names)
    (tmp_path / "empty").write_bytes(b"")
    upload(tmp_path / "empty", f"{name}/empty")  # type: ignore[operator]
    return f"s3://{name}"


@pytest.mark.slow
def test_an_ingest_to_a_store_is_whole_or_is_not_read(bucket, tmp_path, monkeypatch):
    url = f"{bucket}/rows.zarr"
    put = ingest_store.RemoteObjects.put
    sent: list[str] = []

    def failing(self: ingest_store.RemoteObjects, name: str, data: bytes) -> None:
        if len(sent) == 12:
            raise OSError("the machine lost its network")
        sent.append(name)
        put(self, name, data)

    monkeypatch.setattr(ingest_store.RemoteObjects, "put", failing)
    with pytest.raises(OSError, match="lost its network"):
        sk.ingest((X, Y), url, target="label", shuffle=True, seed=5)
    with pytest.raises(sk.errors.StorageError, match="half-written"):
        open_tables(url)
    halves = list(sent)
    sent.clear()
    monkeypatch.setattr(
        ingest_store.RemoteObjects, "put", lambda self, name, data: (sent.append(name), put(self, name, data))
    )
    made = sk.ingest((X, Y), url, target="label", shuffle=True, seed=5)
    assert (made.path, made.rows) == (url, N)
    assert sent[0] == sent[-1] == "zarr.json"
    assert not set(sent[1:-1]) & set(halves)  # what was there was not sent again
    assert list((tmp_path / "scratch").iterdir()) == []
    source = open_tables(url)
    assert source.shuffled
    sk.ingest((X, Y), tmp_path / "local.zarr", target="label", shuffle=True, seed=5)
    for there, here in zip(read_all(source)[:2], read_all(open_tables(tmp_path / "local.zarr"))[:2], strict=True):
        np.testing.assert_array_equal(there, here)

    sent.clear()
    again = sk.ingest((X, Y), url, target="label", shuffle=True, seed=5)
    assert (again.kept, sent) == (N, [])
    with pytest.raises(sk.errors.StorageError, match="this path already exists"):
        sk.ingest((X[:100], Y[:100]), url, target="label")
    sk.ingest((X[:100], Y[:100]), url, target="label", overwrite=True)
    np.testing.assert_array_equal(read_all(open_tables(url)).X, X[:100])
    assert "secret" not in (ingest_store.RemoteObjects(url).content("zarr.json")).decode().lower()
    with pytest.raises(sk.errors.StorageError, match="this path already exists"):
        sk.ingest((X, Y), bucket, target="label", overwrite=True)  # holds what ingest has not made


class Slow:
    """A plan of faults: answers wait for one another until three are asked for, and take a while then; how many do."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.most = seconds, 0, 0
        self.lock, self.together = threading.Lock(), threading.Event()

    def __call__(self, request: Request) -> Fault:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
            if self.now >= 3:
                self.together.set()
        threading.Thread(target=self._answered).start()
        return Fault(delay=self.seconds, until=self.together)

    def _answered(self) -> None:
        self.together.wait(60)
        time.sleep(self.seconds)
        with self.lock:
            self.now -= 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zarr", "parquet"])
def test_chunks_of_a_store_are_read_several_at_a_time_within_the_budget(tmp_path: Path, kind: str) -> None:
    if kind == "zarr":
        sk.write_zarr(tmp_path / "rows.zarr", X, Y, chunk_rows=20)
    else:
        sk.write_parquet(tmp_path / "rows.parquet", X, Y, row_group_rows=20)
    with FaultyServer(tmp_path) as server:
        data = sk.open_dataset(f"{server.url}/rows.{kind}", target="target")
        slow = Slow(0.05)
        server.plan = slow
        scan = Scan(Assembly(data), 20)
        rows = np.concatenate([scan.block((i,)).X for i in range(len(scan))])
        np.testing.assert_array_equal(rows, X)
        assert 3 <= slow.most <= 2 * CONCURRENT_READS  # features and targets

        slow.most = 0
        slow.together.clear()
        stream = Stream(Assembly(data), lanes=2, block_rows=10, mix_chunks=5, cache_bytes=1 << 20)
        ids = [stream.block((0, lane, step)).ids for step in range(stream.steps) for lane in range(2)]
        assert sorted(np.concatenate(ids).tolist()) == list(range(N))
        assert slow.most >= 3

        chunk = 20 * (64 + 16)
        reader = CachedReader(data, cache_bytes=6 * chunk)
        reader.ahead(range(20))
        assert 0 < len(reader._sent) <= 3  # half of the budget
        for index in range(20):
            reader.chunk(index)
            reader.ahead(range(index, 20))
            assert reader._held + sum(reader._sent.values()) <= 7 * chunk


def test_threads_that_read_ahead_end_with_who_reads(tmp_path: Path) -> None:
    def ahead() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("streamkern-ahead")}

    sk.write_zarr(tmp_path / "rows.zarr", X, Y, chunk_rows=20)
    with FaultyServer(tmp_path) as server:
        before = ahead()
        scan = Scan(Assembly(sk.open_dataset(f"{server.url}/rows.zarr")), 20)
        scan.block((0,))
        mine = ahead() - before
        assert mine
        del scan
        for thread in mine:
            thread.join(20)
        assert not any(thread.is_alive() for thread in mine)


def test_local_chunks_are_not_read_ahead(tmp_path: Path) -> None:
    sk.write_zarr(tmp_path / "rows.zarr", X, Y, chunk_rows=20)
    scan = Scan(Assembly(sk.open_dataset(tmp_path / "rows.zarr")), 20)
    scan.block((0,))
    assert scan.reader._pool is None
