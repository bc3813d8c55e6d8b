"""Data sets in real stores on loopback: S3 and HTTP are read as the local disk is, and no secret is ever said."""

import itertools
import json
import re
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import zarr

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.errors import StorageError, UsageError
from streamkern.formats.open_tables import open_tables
from streamkern.sources.remote_store import REQUEST_COUNTS, Retry
from streamkern.testing.source import SourceSuite, read_all
from tests.faults import Fault, FaultyServer

QUICK = Retry(timeout=10, deadline=30, first_wait=0.01)
_buckets = (f"bucket-{number}" for number in itertools.count())


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    """Every stored chunk is one of the source."""
    monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 1)


@pytest.fixture
def http(tmp_path):
    (tmp_path / "served").mkdir()
    with FaultyServer(tmp_path / "served") as server:
        yield server


class TestZarrOnS3(SourceSuite):
    facets: ClassVar[dict[str, Any]] = {"remote": True}

    uploaded: ClassVar[set[str]] = set()  # by the first test, for all

    @pytest.fixture
    def write(self, tmp_path, upload, expected_y):
        def write(X):
            sk.write_zarr(tmp_path / "rows.zarr", X, expected_y, chunk_rows=30, overwrite=True)
            return upload(tmp_path / "rows.zarr", "suite/rows.zarr")

        return write

    @pytest.fixture
    def reopen(self, write, s3_server, expected_X):
        if not self.uploaded:
            self.uploaded.add(write(expected_X))
        (url,) = self.uploaded
        return lambda: open_tables(url, storage_options={"endpoint_url": s3_server}, retry=QUICK)

    @pytest.fixture
    def change(self, write, expected_X):
        yield lambda: write(expected_X + 1)
        write(expected_X)


class TestParquetOnHttp(SourceSuite):
    facets: ClassVar[dict[str, Any]] = {"remote": True}

    @pytest.fixture
    def write(self, http, expected_y):
        return lambda X: sk.write_parquet(http.behind / "rows.parquet", X, expected_y, row_group_rows=30)

    @pytest.fixture
    def reopen(self, http, write, expected_X):
        write(expected_X)
        return lambda: open_tables(f"{http.url}/rows.parquet?signature=of-a-day", retry=QUICK)

    @pytest.fixture
    def change(self, write, expected_X):
        return lambda: write(expected_X + 1)


X = np.random.default_rng(0).integers(0, 255, (90, 8)).astype(np.uint8)
y = (X[:, 0] > 100).astype(np.int64)


def same(source):
    rows = read_all(source)
    np.testing.assert_array_equal(rows.X, X)
    np.testing.assert_array_equal(rows.y, y)


@pytest.mark.slow
def test_parquet_files_directories_globs_and_partitions_on_s3(tmp_path, upload, s3_server):
    folder = tmp_path / "data"
    for part in range(3):
        rows = slice(30 * part, 30 * part + 30)
        (folder / f"day={part}").mkdir(parents=True)
        sk.write_parquet(folder / f"day={part}" / "part.parquet", X[rows], y[rows], row_group_rows=30)
    (folder / "_SUCCESS").touch()
    url = upload(folder, f"{next(_buckets)}/data")
    options = {"endpoint_url": s3_server}
    for place in (f"{url}/", f"{url}/day=?/part.parquet", f"{url}/**/*.parquet"):
        same(open_tables(place, storage_options=options))
    one = open_tables(f"{url}/day=1/part.parquet", storage_options=options)
    np.testing.assert_array_equal(read_all(one).X, X[30:60])
    assert one.where(0).startswith(f"{url}/day=1/part.parquet, row group 0")
    days = open_tables(url, columns=["day", "X"][:1], target="target", storage_options=options)
    np.testing.assert_array_equal(read_all(days).X[:, 0], np.repeat([0, 1, 2], 30))
    with pytest.raises(StorageError, match="no parquet files here") as raised:
        open_tables(f"{url}/day=7/*.parquet", storage_options=options)
    assert raised.value.remedy == "check the URL"


@pytest.mark.slow
def test_a_folder_without_a_suffix_is_recognised(tmp_path, upload, s3_server):
    sk.write_zarr(tmp_path / "rows", X, y, chunk_rows=30)
    url = upload(tmp_path / "rows", f"{next(_buckets)}/rows")
    same(open_tables(url, storage_options={"endpoint_url": s3_server}))
    with pytest.raises(StorageError, match="neither zarr nor parquet is recognised"):
        open_tables(f"{url}/X/c", storage_options={"endpoint_url": s3_server})


def test_shards_and_large_label_chunks_over_http(http):
    group = zarr.create_group(http.behind / "rows.zarr")
    group.create_array("X", shape=X.shape, dtype=X.dtype, shards=(60, 8), chunks=(10, 8))[:] = X
    group.create_array("label", data=y, chunks=90)
    same(open_tables(f"{http.url}/rows.zarr", target="label"))


def test_http_has_no_listing_and_says_so_where_one_is_needed(http):
    sk.write_parquet(http.behind / "rows.parquet", X, y, row_group_rows=30)
    for url in (f"{http.url}/*.parquet", f"{http.url}/"):
        with pytest.raises(StorageError, match="http has no listing"):
            open_tables(url, format="parquet", retry=QUICK)
    # Of a zarr group, what is named is found.
    group = zarr.create_group(http.behind / "a.zarr")
    for name, values in (("height", X[:, 0]), ("width", X[:, 1]), ("label", y)):
        group.create_array(name, data=values, chunks=30)
    named = open_tables(f"{http.url}/a.zarr", target="label", columns=["width", "height"])
    np.testing.assert_array_equal(read_all(named).X, X[:, [1, 0]])
    with pytest.raises(StorageError, match=r"http has no listing(.|\n)*for zarr name target= and columns="):
        open_tables(f"{http.url}/a.zarr", target="label")
    # Consolidated metadata are a listing.
    group = zarr.create_group(http.behind / "b.zarr", zarr_format=2)
    for name, values in (("height", X[:, 0]), ("width", X[:, 1]), ("label", y)):
        group.create_array(name, data=values, chunks=30)
    zarr.consolidate_metadata(http.behind / "b.zarr", zarr_format=2)
    listed = open_tables(f"{http.url}/b.zarr", target="label")
    np.testing.assert_array_equal(read_all(listed).X, X[:, [0, 1]])


def test_a_server_without_ranges_is_told_apart(tmp_path):
    sk.write_parquet(tmp_path / "rows.parquet", X, y, row_group_rows=30)
    sk.write_zarr(tmp_path / "rows.zarr", X, y, chunk_rows=30)
    with FaultyServer(tmp_path, ranges=False) as server:
        with pytest.raises(StorageError, match="whole files where a part was requested"):
            open_tables(f"{server.url}/rows.parquet")
        same(open_tables(f"{server.url}/rows.zarr"))


def test_what_is_not_there_is_said_at_once(http, s3_server, credentials):
    began = time.monotonic()
    with pytest.raises(StorageError, match="no parquet files here"):
        open_tables(f"{http.url}/rows.parquet")
    with pytest.raises(StorageError, match="no zarr array or group can be opened"):
        open_tables(f"{http.url}/rows.zarr")
    for url in ("s3://no-such-bucket/rows.zarr", "s3://no-such-bucket/rows.parquet"):
        with pytest.raises(StorageError):
            open_tables(url, storage_options={"endpoint_url": s3_server})
    assert time.monotonic() - began < 20  # the deadline is 300


def test_a_refusal_is_not_repeated(tmp_path, s3_server, credentials):
    with FaultyServer(s3_server, lambda request: Fault(status=403)) as server:
        for url in ("s3://bucket/rows.zarr", "s3://bucket/rows.parquet", f"{server.url}/rows.zarr"):
            before = REQUEST_COUNTS.now()["retries"]
            with pytest.raises(StorageError, match="the store refuses") as raised:
                open_tables(url, storage_options={"endpoint_url": server.url} if url.startswith("s3") else None)
            assert "credentials" in raised.value.remedy
            assert REQUEST_COUNTS.now()["retries"] == before


def test_missing_credentials_are_not_waited_for(s3_server, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(StorageError, match="the store refuses the request: NoCredentialsError"):
        open_tables("s3://bucket/rows.zarr", storage_options={"endpoint_url": s3_server})


def test_retry_refuses_what_is_not_positive():
    with pytest.raises(UsageError, match="deadline is 0"):
        sk.Retry(deadline=0)


SECRETS = ("an-example-of-a-secret", "hunter2-and-more", "sig-0123456789", "opt-secret-value")


PIPELINE = """
import streamkern as sk

def pipeline(path: str, endpoint: str = "", deadline: float = 60.0) -> sk.Pipeline:
    options = {"endpoint_url": endpoint, "key": "AKIDEXAMPLE", "secret": "opt-secret-value"} if endpoint else None
    data = sk.open_dataset(path, target="target", storage_options=options, retry=sk.Retry(deadline=deadline))
    return sk.Pipeline(train=data, kernel=sk.Gaussian(200.0), centers=sk.Uniform(10))
"""


def contents(folder: Path) -> str:
    return "\n".join(file.read_bytes().decode("latin-1") for file in folder.rglob("*") if file.is_file())


@pytest.mark.slow
@pytest.mark.parametrize(("store", "broken"), [("s3", True), ("s3", False), ("signed", False), ("user", True)])
def test_no_secret_is_written_anywhere(tmp_path, upload, s3_server, capfd, store, broken):
    sk.write_parquet(tmp_path / "rows.parquet", X, y, row_group_rows=30)
    (tmp_path / "p.py").write_text(PIPELINE)
    upload(tmp_path / "rows.parquet", "secrets/rows.parquet")
    behind = s3_server if store == "s3" else tmp_path
    with FaultyServer(behind) as server:
        host = server.url.removeprefix("http://")
        path = {
            "s3": "s3://secrets/rows.parquet",
            "signed": f"{server.url}/rows.parquet?X-Amz-Signature=sig-0123456789",
            "user": f"http://user:hunter2-and-more@{host}/rows.parquet",
        }[store]
        settings = [f"path={path}", *([f"endpoint={server.url}"] if store == "s3" else [])]
        if broken:
            settings += ["deadline=1"]
            server.plan = lambda request: Fault(status=500) if request.number > 8 else None
        run = ["run", str(tmp_path / "p.py"), "--set", *settings, "--run-dir", str(tmp_path / "run")]
        status = main(run)
    written = contents(tmp_path / "run") + "".join(capfd.readouterr())
    assert not [secret for secret in SECRETS if secret in written]
    assert status == (1 if broken else 0)
    assert not broken or "did not return this object" in written
    if store == "signed":
        assert "***" in json.loads((tmp_path / "run/manifest.json").read_text())["settings"]["path"]
        (tmp_path / "run/result.json").unlink()
        assert main(["resume", str(tmp_path / "run")]) == 2
        assert "which was not saved" in capfd.readouterr().err


@pytest.mark.slow
def test_the_examples_of_the_documentation_run(tmp_path, upload, s3_server, monkeypatch):
    sk.write_zarr(tmp_path / "train.zarr", X, y, target="label", chunk_rows=30)
    sk.write_parquet(tmp_path / "1.parquet", X, y, target="label", row_group_rows=30)
    upload(tmp_path / "train.zarr", "example/train.zarr")
    upload(tmp_path / "1.parquet", "example/days/1.parquet")
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)  # as users of other stores than Amazon's set it
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, sk.Dataset] = {}
    exec("\n".join(blocks), names)
    assert len(names["train"]) == len(names["days"]) == len(X)
    assert names["train"].target == names["days"].target
