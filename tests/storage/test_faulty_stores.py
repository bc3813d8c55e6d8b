"""Stores that are slow, fail now and then, hang, lie or go: the same rows and weights, or one clear error in time."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import streamkern as sk
from streamkern.errors import CorruptChunkError, StorageError
from streamkern.formats.open_tables import open_tables
from streamkern.sources.remote_store import REQUEST_COUNTS
from streamkern.testing.source import read_all
from tests.faults import Fault, FaultyServer, first_time, one_in

PATIENT = sk.Retry(timeout=20, deadline=120, first_wait=0.01)
HASTY = sk.Retry(timeout=1, deadline=120, first_wait=0.01)

rng = np.random.default_rng(0)
y = rng.integers(0, 2, 400)
X = (rng.standard_normal((400, 6)) + 2.0 * y[:, None]).astype(np.float32)


@pytest.fixture(autouse=True, scope="module")
def _small_chunks():
    """Every stored chunk is one of the source."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 1)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory, _small_chunks):
    """The same rows as zarr and as parquet, in eight chunks."""
    place = tmp_path_factory.mktemp("served")
    sk.write_zarr(place / "rows.zarr", X, y, chunk_rows=50)
    sk.write_parquet(place / "rows.parquet", X, y, row_group_rows=50)
    return place


def hurry(retry):
    """Give up soon from now on: what came before did not depend on the speed of this machine."""
    vars(retry).update(timeout=0.3, deadline=0.6, first_wait=0.1)


def same(source):
    rows = read_all(source)
    np.testing.assert_array_equal(rows.X, X)
    np.testing.assert_array_equal(rows.y, y)


FAULTS = {
    "delay": one_in(1, Fault(delay=0.01)),
    "errors": one_in(3, Fault(status=503)),
    "too many requests": one_in(3, Fault(status=429)),
    "drops": one_in(3, Fault(drop=True)),
    "truncated": one_in(3, Fault(truncate=True)),
    "cut short": first_time(Fault(shorten=True), ""),
    "hangs": one_in(8, Fault(hang=True)),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", ["rows.zarr", "rows.parquet"])
def test_rows_are_those_of_a_healthy_store(folder, fault, name):
    with FaultyServer(folder, FAULTS[fault]) as server:
        before = REQUEST_COUNTS.now()
        source = open_tables(f"{server.url}/{name}", retry=HASTY if fault == "hangs" else PATIENT)
        same(source)
        assert source.fingerprint
        after = REQUEST_COUNTS.now()
        # A dropped connection may also be made again by the HTTP library; what is cut short without notice does not
        # decode where it is not the length that tells.
        counted = sum(after[kind] - before[kind] for kind in ("retries", "rereads"))
        assert server.faults > 0
        assert counted > 0 or fault in ("delay", "drops") or (fault, name) == ("cut short", "rows.zarr")


@pytest.mark.parametrize("name", ["rows.zarr", "rows.parquet"])
def test_a_byte_flipped_on_the_wire_is_read_again(folder, name):
    with FaultyServer(folder) as server:
        source = open_tables(f"{server.url}/{name}", retry=PATIENT)
        server.plan = first_time(Fault(flip=True), "/c/" if name == "rows.zarr" else name)
        before = REQUEST_COUNTS.now()["rereads"]
        same(source)
        assert server.faults >= 8
        assert REQUEST_COUNTS.now()["rereads"] - before >= 8


@pytest.mark.parametrize("name", ["rows.zarr", "rows.parquet"])
def test_a_byte_that_is_always_flipped_is_one_error_that_names_the_chunk(folder, name):
    with FaultyServer(folder) as server:
        source = open_tables(f"{server.url}/{name}", retry=PATIENT)
        same(source)
        server.plan = lambda request: Fault(flip=True)
        with pytest.raises(CorruptChunkError, match=r"(chunk X/c/3/0|row group 3) cannot be read") as raised:
            source.read(3)
        assert f"{server.url}/{name}" in str(raised.value)
        assert 'on_corrupt="quarantine"' in raised.value.remedy


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(hang=True), Fault(drop=True)])
def test_a_store_that_is_gone_is_one_error_within_the_deadline(folder, fault):
    with FaultyServer(folder) as server:
        retry = dataclasses.replace(PATIENT)
        sources = [open_tables(f"{server.url}/{name}", retry=retry) for name in ("rows.zarr", "rows.parquet")]
        server.plan = lambda request: fault
        hurry(retry)
        for source in sources:
            with pytest.raises(
                StorageError, match=r"the store did not return this object: .*attempt (\d+), "
            ) as raised:
                source.read(2)
            # Waits of 0.05, 0.1, 0.2 and 0.4 s, at least, fill the deadline of 0.6 s, however long an answer takes.
            assert 1 <= int(re.findall(r"attempt (\d+), ", str(raised.value))[0]) <= 4
            assert not isinstance(raised.value, CorruptChunkError)
            assert raised.value.where.startswith(server.url)
            assert "check the network and the store" in raised.value.remedy
    with pytest.raises(StorageError, match="the store did not return this object"):
        open_tables(f"{server.url}/rows.zarr", retry=sk.Retry(deadline=0.5))  # nobody listens there any more


def test_an_unreachable_store_is_no_corrupt_chunk(folder):
    with (
        FaultyServer(folder, lambda request: Fault(status=500) if "/c/" in request.path else None) as server,
        pytest.raises(StorageError, match="the store did not return"),
    ):
        sk.open_dataset(f"{server.url}/rows.zarr", on_corrupt="quarantine", retry=sk.Retry(deadline=0.3))


def pipeline(data: sk.Dataset) -> sk.Pipeline:
    train = data.augment(sk.augment.GaussianNoise(0.1), copies=2)
    return sk.Pipeline(
        train=train, kernel=sk.Laplace(2.0), centers=sk.Uniform(30), solver=sk.EigenPro(epochs=1), lanes=2
    )


@pytest.fixture(scope="module")
def weights(folder, tmp_path_factory):
    """Weights of the rows on the local disk, by format."""
    return {
        name: sk.run(pipeline(sk.open_dataset(folder / name)), tmp_path_factory.mktemp("local"))["weights_sha256"]
        for name in ("rows.zarr", "rows.parquet")
    }


@pytest.mark.slow
def test_a_run_over_a_failing_store_gives_the_weights_of_a_healthy_one(folder, upload, s3_server, weights, tmp_path):
    url = upload(folder / "rows.zarr", "runs/rows.zarr")
    with FaultyServer(s3_server, one_in(5, Fault(status=503))) as server:
        data = sk.open_dataset(url, storage_options={"endpoint_url": server.url}, retry=PATIENT)
        result = sk.run(pipeline(data), tmp_path / "s3")
        assert result["weights_sha256"] == weights["rows.zarr"]
        assert server.faults >= 5
    first, *_, last = (json.loads(line)["store"] for line in (tmp_path / "s3/events.jsonl").read_text().splitlines())
    assert last["requests"] - first["requests"] > last["retries"] - first["retries"] > 0
    with FaultyServer(folder, one_in(5, Fault(truncate=True))) as server:
        data = sk.open_dataset(f"{server.url}/rows.parquet", retry=PATIENT)
        result = sk.run(pipeline(data), tmp_path / "http", resources=sk.Resources(scheduler="processes:1"), threads=1)
        assert result["weights_sha256"] == weights["rows.parquet"]
        assert server.faults >= 5


MEMORY = """
import json, sys, streamkern as sk
data = sk.open_dataset(sys.argv[1], retry=sk.Retry(timeout=60, deadline=300))
made = sk.Pipeline(train=data.scale(1 / 255), kernel=sk.Laplace(20.0), centers=sk.Uniform(50), lanes=2)
print(json.dumps(sk.run(made, sys.argv[2], memory=sys.argv[3], threads=2)))
"""


@pytest.mark.slow
def test_memory_over_a_remote_store_is_as_projected(tmp_path):
    blocks = ((rng.integers(0, 256, (4000, 1024), dtype=np.uint8), np.arange(4000) % 2) for _ in range(20))
    sk.write_zarr(tmp_path / "rows.zarr", blocks, n_rows=80_000, chunk_rows=4096)  # 78 MiB in chunks of 4 MiB
    with FaultyServer(tmp_path, one_in(10, Fault(delay=0.02))) as server:
        command = [sys.executable, "-c", MEMORY, f"{server.url}/rows.zarr", str(tmp_path / "run"), "560MiB"]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONWARNINGS": "error"})
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert server.requests > 3 * 20  # several stages read the twenty chunks, and keep few of them
    assert result["peak_memory_bytes"] <= result["projected_memory_bytes"] <= 560 << 20


@pytest.mark.parametrize("kind", ["zarr", "parquet"])
def test_a_flipped_byte_at_rest_is_an_error_after_three_reads(folder, kind, tmp_path):
    folder = shutil.copytree(folder, tmp_path / "damaged")
    if kind == "zarr":
        file = folder / "rows.zarr/X/c/4/0"
        source = open_tables(folder / "rows.zarr")
    else:
        file = folder / "rows.parquet"
        source = open_tables(file)
    content, stamp = bytearray(file.read_bytes()), file.stat().st_mtime_ns
    place = len(content) // 2
    content[place] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(stamp, stamp))
    before = REQUEST_COUNTS.now()["rereads"]
    with pytest.raises(CorruptChunkError, match=r"chunk X/c/4/0|row group \d") as raised:
        read_all(source)
    assert REQUEST_COUNTS.now()["rereads"] == before + 2
    assert str(folder) in raised.value.where
