"""The same bits on 1, 2 and 4 workers and on threads, in every stage; workers of any size that come and go."""

import re
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk
from streamkern.errors import MemoryLimitError, StorageError
from streamkern.execute import dask_executor as lanes_module
from streamkern.execute import open_executor
from streamkern.execute.base import Allowance, Stack
from streamkern.execute.dask_executor import DaskExecutor
from streamkern.execute.threads_executor import blas_kernels
from streamkern.runs import load_pipeline
from streamkern.testing.executor import OrderSensitive, doubled, expected_step, expected_weights, small_weights

ROOT = Path(__file__).parents[2]


def rows():
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 4, 4000)
    return (rng.normal(size=(4, 12))[codes] + rng.normal(size=(4000, 12))).astype(np.float32), codes


PIPELINES = {
    "kmeans": {"centers": sk.KMeans(60, iterations=3), "solver": sk.EigenPro(epochs=2, batch=256)},
    "rpcholesky": {"centers": sk.RPCholesky(60, sk.Laplace(4.0)), "solver": sk.Falkon(ridge=1e-5)},
    "logistic": {"centers": sk.Uniform(60), "solver": sk.LBFGS(ridge=1e-4)},
    "delayed": {"centers": sk.Uniform(200), "solver": sk.EigenPro(epochs=2, batch=64, projection="delayed")},
    "packed": {"centers": sk.Uniform(200), "solver": sk.EigenPro(epochs=1, batch=256, projection="packed")},
    "every row": {"centers": sk.AllRows(), "solver": sk.EigenPro2(epochs=1, s=200, batch=1000)},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    X, y = rows()
    place = tmp_path_factory.mktemp("data") / "rows.zarr"
    sk.write_zarr(place, X, y, target="label", chunk_rows=500)
    return sk.open_dataset(place, target="label")


def everything(name, data, folder, scheduler, threads):
    """What a run and a prediction give: centers, weights, metrics, scores."""
    pipeline = sk.Pipeline(
        train=data, test=data, kernel=sk.Laplace(4.0), scaling="standard", name=name, **PIPELINES[name]
    )
    result = sk.run(pipeline, folder, resources=sk.Resources(scheduler=scheduler), threads=threads)
    model = sk.load_model(folder / "model.zarr")
    with open_executor(scheduler, threads) as executor:
        scores = model.decision_function(rows()[0][:1000], executor=executor)
    centers = model.Z.tobytes() if isinstance(model.Z, np.ndarray) else b""  # every row, in its file
    return centers, result["weights_sha256"], result["metrics"], scores.tobytes()


@pytest.fixture(scope="module")
def on_one_thread(data, tmp_path_factory):
    return {name: everything(name, data, tmp_path_factory.mktemp(name), "threads", 1) for name in PIPELINES}


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["threads", 1, 2, 4])
def test_every_stage_gives_the_bits_of_one_thread(workers, cluster, data, on_one_thread, tmp_path):
    names = {1: list(PIPELINES)[::2], 4: list(PIPELINES)[1::2]}
    if workers != "threads":
        cluster.keep(workers)
    scheduler = workers if workers == "threads" else cluster.address
    for name in names.get(workers, PIPELINES):
        assert everything(name, data, tmp_path / name, scheduler, 2) == on_one_thread[name], name


@pytest.mark.slow
def test_workers_of_any_size_that_join_and_leave_change_no_bit(cluster, monkeypatch):
    monkeypatch.setattr(lanes_module, "WORKER_UPDATE_SECONDS", 0.0)
    cluster.keep(1)
    with DaskExecutor(cluster.address, 1) as executor:
        (first,) = cluster.workers

        def until(condition):
            start = time.monotonic()
            while not condition():
                assert time.monotonic() < start + 200
                time.sleep(0.05)
                executor.update_workers()

        def on_step(progress):
            if (progress.pass_, progress.step) == (0, 2):
                cluster.add(threads=3)
                until(lambda: sorted(executor.workers.values()) == [1, 3])
            if (progress.pass_, progress.step) == (1, 2):
                first.terminate()  # as a batch system does
                until(lambda: list(executor.workers.values()) == [3])

        np.testing.assert_array_equal(small_weights(executor, "exact", on_step), expected_weights("exact"))
        assert executor.losses == 1


class Greedy(OrderSensitive):
    """Holds more memory than there is, the first time."""

    def __init__(self, once, bytes_):
        super().__init__()
        self.once, self.bytes_ = once, bytes_

    def contribute(self, block, state, prepared=None):
        try:
            self.once.touch(exist_ok=False)
            held = np.ones(self.bytes_, dtype=np.uint8)
            time.sleep(30)
            del held
        except FileExistsError:
            pass
        return super().contribute(block, state)


@pytest.mark.slow
def test_a_worker_killed_for_memory_changes_no_bit(cluster, tmp_path):
    cluster.keep(0)
    nanny = cluster.add(memory="600MB")  # kills its worker at 95% of it, and starts another
    with DaskExecutor(cluster.address, 1) as executor:
        placement = executor.place(Greedy(tmp_path / "once", 1 << 30), 2)
        result = placement.step((0, 0), 1.0)
        placement.close()
        np.testing.assert_array_equal(result.parts[0], expected_step(OrderSensitive(), 2, (0, 0), 1.0)[0])
        assert (result.retries, executor.losses) == (1, 1)
    nanny.terminate()
    nanny.wait()


class Endless(OrderSensitive):
    """Asks for more memory than any machine has."""

    def contribute(self, block, state, prepared=None):
        return (np.ones(1 << 46), Stack())


def test_a_worker_without_memory_is_a_clear_error(cluster):
    cluster.keep(1)
    with DaskExecutor(cluster.address, 1) as executor:
        placement = executor.place(Endless(), 1)
        with pytest.raises(StorageError, match=r"(?s)no memory left.*where: tcp://.*fewer threads"):
            placement.step((0, 0), 1.0)
        placement.close()


class Growing(OrderSensitive):
    """Keeps more than a worker may hold."""

    def contribute(self, block, state, prepared=None):
        self.kept = np.ones(32 << 20)
        return (1.0, Stack())


def test_a_worker_that_holds_more_than_it_may_stops_and_is_named(cluster):
    cluster.keep(1)
    with DaskExecutor(cluster.address, 1) as executor:
        executor.allowed = Allowance(budget=1, first=64 << 20, more=0)
        placement = executor.place(Growing(), 1)
        with pytest.raises(MemoryLimitError, match=r"(?s)its budget is.*where: worker tcp://"):
            placement.step((0, 0), 1.0)
        placement.close()


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_of_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from streamkern.execute import open_executor\nwith open_executor('processes:1'):\n    pass\n")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "UsageError: The worker processes did not start." in done.stderr
    assert '__name__ == "__main__"' in done.stderr


@pytest.mark.slow
def test_what_a_pipeline_file_defines_runs_on_workers_that_cannot_import_it(cluster, tmp_path):
    """A kernel's profile, an augmentation and a solver's contribution, each a name of the file."""
    cluster.keep(2)
    file = tmp_path / "own.py"
    file.write_text(
        textwrap.dedent(
            """
            from dataclasses import dataclass
            from typing import Any

            import numpy as np
            import streamkern as sk


            def profile(t):
                return np.exp(-t / 40)


            def twisted(X, U):
                return X * (0.9 + 0.2 * U)


            @dataclass
            class Same:
                contribution: Any

                def __call__(self, block, state):
                    return self.contribution(block, state)


            class Mine(sk.Falkon):
                def setup(self, problem, prepared=None):
                    iteration = super().setup(problem, prepared)
                    begin = iteration.begin
                    iteration.begin = lambda state, pass_, sweep: begin(state, pass_, lambda f, v: sweep(Same(f), v))
                    return iteration


            def pipeline(solver: str) -> sk.Pipeline:
                rng = np.random.default_rng(5)
                X = rng.normal(size=(4000, 12)).astype(np.float32)
                data = sk.from_arrays(X, (X[:, 0] > 0).astype(int)).augment(sk.augment.Custom(twisted, uniforms=1))
                chosen = Mine(epochs=4) if solver == "falkon" else sk.EigenPro(epochs=1, batch=256)
                return sk.Pipeline(data, sk.RadialProfile(profile), sk.Uniform(60), chosen)
            """
        )
    )
    for solver in ("falkon", "eigenpro"):
        results = [
            sk.run(
                load_pipeline(file, {"solver": solver}),
                tmp_path / f"{solver}{number}",
                resources=sk.Resources(scheduler=scheduler),
            )
            for number, scheduler in enumerate(("threads", cluster.address))
        ]
        assert len({result["weights_sha256"] for result in results}) == 1


@pytest.mark.slow
def test_a_worker_with_other_blas_kernels_is_told_of(new_cluster):
    here = blas_kernels()
    if not any("openblas" in kernel for kernel in here):
        pytest.skip("only OpenBLAS can be told which kernels to run")
    other = "Nehalem" if not any("Nehalem" in kernel for kernel in here) else "Haswell"
    odd = new_cluster("tcp", {"OPENBLAS_CORETYPE": other})
    odd.keep(1)
    with open_executor(odd.address, 1) as executor:
        (doubt,) = executor.doubts()
        assert other in doubt
        assert doubt.startswith("1 of the workers run other BLAS kernels")
    odd.kill()


def test_large_items_of_a_sweep_are_sent_without_a_warning(cluster):
    """Such as the rows of a leaf: Dask warns of tasks beyond 10 MB."""
    cluster.keep(1)
    rows = np.ones(20 << 20, np.uint8)
    with open_executor(cluster.address, 1) as executor:
        assert executor.doubts() == []  # workers like this process
        (doubled_rows,) = executor.imap(doubled, [rows], (np.uint8(2),))
    assert (doubled_rows == 2).all()


@pytest.mark.slow
def test_the_python_of_the_page_runs(tmp_path):
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "clusters.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "page.py").write_text(program)
    found = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("2 http")
