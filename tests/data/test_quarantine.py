"""Quarantine: the rows of corrupt chunks are left out, and nothing else changes."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamkern as sk
from streamkern.data import Quarantined
from streamkern.data.row_order import Assembly, Stream
from streamkern.sources.array_source import ArraySource


def bad(*chunks: int, rows: int = 10) -> list[Quarantined]:
    return [Quarantined(rows * chunk, rows * (chunk + 1), f"chunk {chunk}", "broken") for chunk in chunks]


def order(dataset: sk.Dataset, seed: int) -> list[int]:
    """Ids of a pass in the order of the stream, before windows shuffle them."""
    stream = Stream(Assembly(dataset), 1, block_rows=1, window_blocks=1, seed=seed)
    return [int(stream.block((0, 0, step)).ids[0]) for step in range(stream.steps)]


@pytest.mark.slow
@given(
    chunks=st.sets(st.integers(0, 9), max_size=9),
    seed=st.integers(0, 3),
    copies=st.integers(1, 3),
    split=st.booleans(),
)
def test_the_order_of_the_rest_is_unchanged(chunks, seed, copies, split):
    source = ArraySource(np.arange(97.0)[:, None], chunk_rows=10)
    missing = {row for each in bad(*sorted(chunks)) for row in range(each.start, each.stop)}

    def made(dataset):
        return (dataset.split(0.5, seed=seed)[0] if split else dataset).augment(copies=copies)

    whole, rest = made(sk.Dataset(source)), made(sk.Dataset(source).without(bad(*sorted(chunks))))
    if not rest.base_rows:
        return
    assert len(rest) == copies * rest.base_rows
    assert order(rest, seed) == [row for row in order(whole, seed) if row not in missing]
    drawn = [row for row in whole.draw(whole.base_rows, seed).tolist() if row not in missing]
    assert rest.draw(rest.base_rows, seed).tolist() == drawn


def test_a_quarantine_is_part_of_the_fingerprint():
    data = sk.Dataset(ArraySource(np.arange(97.0)[:, None], chunk_rows=10))
    assert data.without([]).fingerprint == data.fingerprint
    assert len({data.fingerprint, data.without(bad(1)).fingerprint, data.without(bad(2)).fingerprint}) == 3


@pytest.fixture
def damaged(tmp_path, monkeypatch):
    """Rows of eight chunks; a byte of the third is flipped, and the sixth is missing."""
    monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 1)  # every stored chunk is one of the source
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    X = (rng.standard_normal((400, 6)) + 2.0 * y[:, None]).astype(np.float32)
    sk.write_zarr(tmp_path / "rows.zarr", X, y, chunk_rows=50)
    chunk = tmp_path / "rows.zarr/X/c/2/0"
    content = bytearray(chunk.read_bytes())
    content[len(content) // 2] ^= 1
    chunk.write_bytes(content)
    (tmp_path / "rows.zarr/target/c/5").unlink()
    return tmp_path / "rows.zarr", X, y


def test_corrupt_and_missing_chunks_are_quarantined_only_by_request(damaged, tmp_path):
    path, _, _ = damaged
    with pytest.raises(sk.errors.CorruptChunkError, match=r"chunk (X/c/2/0 cannot be read|target/c/5 is not stored)"):
        sk.run(pipeline(sk.open_dataset(path)), tmp_path / "run")
    with pytest.raises(sk.UsageError, match="on_corrupt is 'ignore'"):
        sk.open_dataset(path, on_corrupt="ignore")
    with pytest.warns(UserWarning, match=r"2 corrupt chunk\(s\) are left out, 100 of 400 rows(.|\n)*X/c/2/0"):
        data = sk.open_dataset(path, on_corrupt="quarantine")
    assert [(each.start, each.stop) for each in data.quarantine] == [(100, 150), (250, 300)]
    assert "target/c/5 is not stored" in data.quarantine[1].why
    assert len(data) == 300


def pipeline(data: sk.Dataset) -> sk.Pipeline:
    rest, test = data.split(0.2)
    return sk.Pipeline(
        train=rest.augment(sk.augment.GaussianNoise(0.1), copies=2), test=test, kernel=sk.Laplace(2.0),
        centers=sk.Uniform(30), lanes=2,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*corrupt chunk")
def test_a_quarantined_run_is_recorded_and_the_same_everywhere(damaged, tmp_path):
    path, X, y = damaged
    data = sk.open_dataset(path, on_corrupt="quarantine")
    one = sk.run(pipeline(data), tmp_path / "one", threads=1)
    manifest = json.loads((tmp_path / "one/manifest.json").read_text())
    assert [(each["start"], each["stop"]) for each in manifest["train"]["quarantine"]] == [(100, 150), (250, 300)]
    events = [json.loads(line) for line in (tmp_path / "one/events.jsonl").read_text().splitlines()]
    warnings = [event for event in events if event["event"] == "warning"]
    assert [event["rows"] for event in warnings] == [[100, 150], [250, 300]]
    assert "X/c/2/0" in warnings[0]["message"]

    again = sk.open_dataset(path, on_corrupt="quarantine")
    assert again.fingerprint == data.fingerprint
    workers = sk.run(pipeline(again), tmp_path / "two", resources=sk.Resources(scheduler="processes:1"), threads=2)
    assert workers["weights_sha256"] == one["weights_sha256"]
    # The same rows left out of what is whole give the same weights: what stands in a corrupt chunk does not matter.
    sk.write_zarr(path, X, y, chunk_rows=50, overwrite=True)
    whole = sk.run(pipeline(sk.open_dataset(path).without(data.quarantine)), tmp_path / "whole")
    assert whole["weights_sha256"] == one["weights_sha256"]
