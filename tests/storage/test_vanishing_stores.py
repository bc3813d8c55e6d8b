"""Data that vanish in the middle of a run, a prediction or an ingest: one error, nothing lost, the same bits later."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.errors import StorageError
from streamkern.serving import predict_files as serving
from tests.faults import Fault, FaultyServer
from tests.storage.test_replaced_data import KINDS, OPENED, N, job

STAGES = ["statistics", "centers", "step", "evaluate"]


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored chunks are those of the source, rows without chunks are read a hundred at once, and parts are small."""
    monkeypatch.setattr("streamkern.sources.format_rules.CHUNK_BYTES", 100 * 24)
    monkeypatch.setattr(serving, "PART_BYTES", 8 * 100)


class Vanishing:
    """A local file or directory that is moved away at a moment, and put back."""

    def __init__(self, place: Path) -> None:
        self.place, self.away = place, place.with_name("away")

    def go(self) -> None:
        if self.place.exists():
            self.place.rename(self.away)

    def come_back(self) -> None:
        self.away.rename(self.place)


def at(when: str, go: Any) -> Any:
    """A listener that calls ``go`` in the middle of a run."""

    def hear(event: str, fields: dict[str, Any]) -> None:
        if when == "step" and event == "step" and fields["rows"] >= 900:
            go()
        if event == "stage" and (fields["name"], fields["state"]) == (when, "begin"):
            go()

    return hear


MOMENTS = [
    *((kind, "step", False) for kind in OPENED),
    *(("rows.zarr", when, False) for when in STAGES if when != "step"),
    *(
        pytest.param(kind, when, True, marks=pytest.mark.slow)
        for kind, when in (("rows.zarr", "step"), ("rows.zarr", "evaluate"), ("rows.parquet", "step"))
    ),
]


@pytest.mark.parametrize(("kind", "when", "remote"), MOMENTS)
def test_data_that_vanish_in_a_run_are_one_error_and_cost_nothing_that_was_done(kind, when, remote, tmp_path):
    """Files that are gone, and a store that answers no more."""
    place, retry = tmp_path / kind, sk.Retry(first_wait=0.05)
    KINDS[kind](place, 0)
    gone = Vanishing(place)
    with FaultyServer(tmp_path) as server:
        where = f"{server.url}/{kind}" if remote else place
        open_it = lambda: sk.open_dataset(where, target="y", columns=["a", "b"], retry=retry)  # noqa: E731

        def go() -> None:
            if remote:
                server.plan = lambda request: Fault(drop=True)
                vars(retry).update(timeout=1, deadline=1)  # from now on: until then the machine may be slow
            else:
                gone.go()

        whole = sk.run(job(open_it()), tmp_path / "whole", threads=1)
        with pytest.raises(StorageError) as raised:
            sk.run(job(open_it()), tmp_path / "run", threads=1, checkpoint_seconds=0, listeners=(at(when, go),))
        assert str(where) in str(raised.value)
        assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"
        if remote:
            server.plan, retry = None, sk.Retry()
        else:
            gone.come_back()
        result = sk.run(job(open_it()), tmp_path / "run", threads=1)
    assert result["weights_sha256"] == whole["weights_sha256"]
    assert result["metrics"] == whole["metrics"]
    done = {stage["name"] for stage in result["stages"] if stage["cached"]}
    assert done >= {"centers": {"statistics"}, "step": {"statistics", "centers"}}.get(when, set())


@pytest.mark.parametrize("kind", [*OPENED, "http"])
def test_data_that_vanish_in_a_prediction_are_one_error_and_parts_that_were_written_stay(kind, tmp_path):
    stored = "rows.zarr" if kind == "http" else kind
    place = tmp_path / stored
    KINDS[stored](place, 0)
    X = np.random.default_rng(0).uniform(10, 99, (100, 2))
    model = (
        sk.KernelRegressor(sk.Laplace("median"), centers=20)
        .fit({"a": X[:, 0], "b": X[:, 1]}, X[:, 0])
        .save(tmp_path / "m")
    )
    with FaultyServer(tmp_path) as server:
        data = f"{server.url}/{stored}" if kind == "http" else place
        gone = Vanishing(place)
        options: dict[str, Any] = {"threads": 1}
        whole = sk.predict(model, data, tmp_path / "whole.parquet", **options)
        assert whole.rows >= N

        def go(activity: str, done: int, rows: int) -> None:
            if done:
                gone.go()

        with pytest.raises(StorageError) as raised:
            sk.predict(model, data, tmp_path / "out.parquet", on_progress=go, **options)
        assert str(data) in str(raised.value)
        assert not (tmp_path / "out.parquet").exists()
        with pytest.raises(StorageError, match=r"rows|folder"):
            serving.evaluate(model, data, "y")
        gone.come_back()
        made = sk.predict(model, data, tmp_path / "out.parquet", **options)
    assert 0 < made.kept <= made.rows
    assert (tmp_path / "out.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


@pytest.mark.parametrize("kind", KINDS)
def test_data_that_vanish_in_an_ingest_are_one_error_and_nothing_is_put_in_place(kind: str, tmp_path: Path) -> None:
    place = tmp_path / kind
    KINDS[kind](place, 0)
    gone = Vanishing(place)
    with pytest.raises(StorageError) as raised:
        sk.ingest(place, tmp_path / "out.zarr", target="y", on_progress=lambda *_: gone.go())
    assert str(place) in str(raised.value)
    assert not (tmp_path / "out.zarr").exists()
    gone.come_back()
    sk.ingest(place, tmp_path / "out.zarr", target="y")
    assert len(sk.open_dataset(tmp_path / "out.zarr", target="y")) >= N
