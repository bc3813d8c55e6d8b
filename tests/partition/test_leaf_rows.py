"""Rows of leaves, read a run at a time."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk
from streamkern.data.row_order import Assembly
from streamkern.data.targets import Classes
from streamkern.errors import StorageError
from streamkern.execute import ThreadsExecutor
from streamkern.models.cut_tree import CutTree
from streamkern.partition import leaf_rows as rows

D = 5


def test_rows_at_the_end_change_the_digests_of_their_own_leaves(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rows, "RUN_BYTES", 1 << 12)
    monkeypatch.setattr(rows, "_BLOCK_ROWS", 50)
    tree = CutTree.of(D).grown(0, np.eye(D)[0], (-0.1, 0, 0.1)).grown(1, np.eye(D)[1], (-0.1, 0, 0.1))
    X = np.random.default_rng(0).normal(size=(3000, D)).astype(np.float32)
    X[2500:, 0] = -1.0  # the first leaf
    y = np.arange(3000) % 2

    def fingerprints(n: int) -> rows.LeafFingerprints:
        data = sk.from_arrays(X[:n], y[:n])
        with ThreadsExecutor(2) as executor:
            return rows.LeafFingerprints.of(Assembly(data, Classes(np.arange(2))), tree, executor)

    before, after = fingerprints(2500), fingerprints(3000)
    assert before.digests[1:] == after.digests[1:]
    assert before.digests[0] != after.digests[0]
    assert (after.counts - before.counts).tolist() == [500, 0, 0]
    assert len(rows.first_blocks(rows.routed_scan(Assembly(sk.from_arrays(X, y), Classes(np.arange(2)))))) > 10


@pytest.mark.slow
def test_memory_of_digests_does_not_grow_with_rows_times_leaves(monkeypatch: pytest.MonkeyPatch):
    """Runs of a hundred rows in 64 leaves: what is held of a run that is done is a digest a leaf."""
    monkeypatch.setattr(rows, "RUN_BYTES", 100 * 8)
    monkeypatch.setattr(rows, "_BLOCK_ROWS", 100)
    tree = CutTree.of(2)
    while tree.leaves < 64:
        tree = tree.grown(tree.leaves - 1, np.eye(2)[0], (tree.leaves / 64,) * 3)
    peaks = []
    for n in (5_000, 40_000):
        data = sk.from_arrays(np.random.default_rng(0).random((n, 2), dtype=np.float32), np.arange(n) % 2)
        assembly = Assembly(data, Classes(np.arange(2)))
        with ThreadsExecutor(1) as one:
            tracemalloc.start()
            found = rows.LeafFingerprints.of(assembly, tree, one)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert found.counts.sum() == n
    assert peaks[1] < 2 * peaks[0]


def test_a_run_that_was_cut_short_is_an_error(tmp_path: Path):
    X, y = np.random.default_rng(0).normal(size=(300, D)), np.arange(300) % 2
    assembly, tree = Assembly(sk.from_arrays(X, y), Classes(np.arange(2))), CutTree.of(D)
    with ThreadsExecutor(1) as one:
        there = rows.LeafRuns.of(assembly, tree, one, tmp_path / "rows")
    assert np.array_equal(there.read(0).X, X.astype(np.float32))
    (run,) = (tmp_path / "rows").glob("run-*")
    with open(run, "r+b") as stream:
        stream.truncate(run.stat().st_size - 8)
    with pytest.raises(StorageError, match="shorter"):
        there.read(0)


@pytest.mark.slow
@pytest.mark.parametrize("metric", [None, sk.AGOP(rounds=1)])
def test_leaves_share_the_memory_that_kernel_values_are_in(metric: sk.AGOP | None, tmp_path: Path):
    X = np.random.default_rng(0).normal(size=(4000, D)).astype(np.float32)
    given = sk.KernelRegressor(sk.Laplace("median"), centers=300, metric=metric, partition=sk.Partition(leaves=8))
    model = given.fit(X, np.sin(X[:, 0])).model_
    model.predict(X[:1])
    tracemalloc.start()
    outputs = model.predict(X)
    kept = tracemalloc.get_traced_memory()[0] - outputs.nbytes
    tracemalloc.stop()
    assert kept < 4 * 256 * 300 * X.itemsize  # with a panel for each leaf eight
    assert np.array_equal(sk.load_model(model.save(tmp_path / "model.zarr")).predict(X), outputs)
