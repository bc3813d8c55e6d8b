"""Centers shared out over workers: weights equal those of one process, for any placement and after a worker's death."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import streamkern as sk
from streamkern.data.targets import Continuous
from streamkern.errors import DataError, MemoryLimitError, StorageError
from streamkern.events import EventLog
from streamkern.execute.base import LOG_STEPS, ShareDirectory, SharedState, Tree
from streamkern.execute.dask_executor import DaskExecutor
from streamkern.execute.sharded_centers_checkpoint import require_whole
from streamkern.execute.sharded_centers_driver import SharedLanes
from streamkern.execute.sharded_centers_worker import can_share_files
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.execute.tree_allreduce import Route
from streamkern.execute.worker_protocol import dumps
from streamkern.runs import load_pipeline
from streamkern.runs.checkpoints import Checkpoints
from streamkern.solvers import Problem, train
from streamkern.testing.executor import SharedSums

N = 9_000  # five tiles


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(N, 6)).astype(np.float32)
    place = tmp_path_factory.mktemp("data") / "rows.zarr"
    y = np.stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
    sk.write_zarr(place, ((X[a : a + 1000], y[a : a + 1000]) for a in range(0, N, 1000)), n_rows=N)
    return place


@pytest.fixture(scope="module")
def rows(place):
    return sk.open_dataset(place, target="target")


@contextmanager
def workers_of(cluster, number, **settings):
    """An open executor that has seen all workers."""
    cluster.keep(number)
    with DaskExecutor(cluster.address, 1, **settings) as executor:
        start = time.monotonic()
        while len(executor.workers) < number:
            executor.update_workers()
            assert time.monotonic() < start + 200
        yield executor


@contextmanager
def killed_within(cluster, executor, victim, step, seconds):
    """Yield a callback that kills a worker some seconds into a step; at the end, that worker has been lost."""
    address = sorted(executor.workers)[0 if victim == "the root" else -1]
    pid = executor.client.run(os.getpid)[address]
    timers = []

    def kill(progress):
        if progress.step == step:
            process = next(worker for worker in cluster.workers if worker.pid == pid)
            timers.append(threading.Timer(seconds, process.kill))
            timers[0].start()

    yield kill
    timers[0].join()
    assert executor.losses == 1


def weights(rows, executor, on_step=lambda progress: None, keeper=None, start=None, **changes):
    """Of EigenPro 2 after a pass."""
    dtype = np.dtype(np.float32)
    centers = sk.AllRows().choose(rows, executor, dtype)
    problem = Problem(rows, Continuous(np.zeros(2)), sk.Laplace(3.0), centers, executor, dtype=dtype, **changes)
    iteration = sk.EigenPro2(epochs=1, s=300, batch=1500).setup(problem)
    outcome = train(problem, iteration, on_step=on_step, keeper=keeper, start=start)
    assert outcome.failure is None
    return outcome.weights


@pytest.fixture(scope="module")
def expected(rows):
    with ThreadsExecutor(2) as executor:
        return weights(rows, executor)


def steps(placement, count, state=None, ahead=True):
    """Sums of as many steps from the first state on, and the state after them."""
    state, found = state or SharedState(), []
    for step in range(state.steps, state.steps + count):
        found.append(placement.step((0, step), state, [(0, step + 1)] if ahead else []).parts)
        state = placement.after((0, step), state, found[-1])
    return found, state


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_weights_are_those_of_threads_whatever_the_workers(cluster, rows, expected, workers):
    with workers_of(cluster, workers) as executor:
        seen = []
        np.testing.assert_array_equal(weights(rows, executor, seen.append), expected)
        assert len(seen[-1].timeline["workers"]) == workers
        if workers == 2:  # each with all centers
            np.testing.assert_array_equal(weights(rows, executor, share=False), expected)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("sums", "owns"), [(1, False), (3, False), (2, True)])
def test_sums_are_added_in_the_order_of_the_tree_over_several_steps(cluster, workers, sums, owns):
    """Whether more sums follow from the first ones, and tiles know by themselves what changes them, or not."""
    work = SharedSums(sums=sums, owns=owns)
    with workers_of(cluster, workers) as executor:
        placement = executor.share(work, lambda leaf: None)
        expected, weights = work.expected(4)
        sums, state = steps(placement, 4)
        for found, wanted in zip(sums, expected, strict=True):
            for one, other in zip(found[:-2], wanted[:-2], strict=True):
                np.testing.assert_equal(tuple(one), tuple(other))
            assert found[-1] == 3
        # The workers, who were asked for a fifth step, are not where the driver is.
        np.testing.assert_array_equal(np.ravel(placement.weights(state)), np.ravel(weights))
        placement.close()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["the root", "another"])
def test_a_worker_killed_within_a_step_changes_no_bit(cluster, rows, expected, victim):
    """The root of the tree, which the driver waits for, or one that the root waits for."""
    with workers_of(cluster, 3) as executor, killed_within(cluster, executor, victim, 2, 0.05) as kill:
        np.testing.assert_array_equal(weights(rows, executor, kill), expected)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [[], [(0, 1)]], ids=["asked for", "run ahead"])
def test_the_step_in_which_a_worker_is_killed_is_repeated(cluster, tmp_path, ahead):
    """Of the second step the last tile does not end before a worker has been killed."""
    with workers_of(cluster, 2) as executor:

        def hold_up(folder):
            from streamkern.testing.executor import SharedSums

            forward, begun = SharedSums.forward, []

            def held_up(work, held, *given):
                begun.append(held[0] == work.leaves - 1)
                while sum(begun) == 2 and not (folder / "killed").exists():
                    (folder / "begun").touch()
                    time.sleep(0.01)
                return forward(work, held, *given)

            SharedSums.forward, SharedSums.as_it_was = held_up, forward

        def let_go():
            from streamkern.testing.executor import SharedSums

            SharedSums.forward = SharedSums.as_it_was

        def kill():
            while not (tmp_path / "begun").exists():
                time.sleep(0.01)
            cluster.workers[1].kill()
            cluster.workers[1].wait()
            (tmp_path / "killed").touch()

        executor.client.run(hold_up, tmp_path)
        placement = executor.share(SharedSums(), lambda leaf: None)
        wanted, _ = SharedSums().expected(2)
        _, state = steps(placement, 1, ahead=bool(ahead))
        killer = threading.Thread(target=kill)
        killer.start()
        result = placement.step((0, 1), state)
        killer.join()
        np.testing.assert_array_equal(result.parts[1], wanted[1][1])
        assert (result.losses, len(result.shares)) == (1, 1)
        assert result.retries in (1, 2)  # two where the scheduler still names the worker as the step is first repeated
        placement.close()
        executor.client.run(let_go)


@pytest.mark.slow
def test_the_worker_whose_memory_is_full_is_named_and_not_the_root(cluster):
    """The last tile is not on the root, which receives the error and replies to the driver."""
    with workers_of(cluster, 2) as executor:

        def fill():
            from streamkern.testing.executor import SharedSums

            forward = SharedSums.forward

            def full(work, held, *given):
                if held[0] == work.leaves - 1:
                    raise MemoryLimitError(f"Process {os.getpid()} is full.", where="the last tile")
                return forward(work, held, *given)

            SharedSums.forward, SharedSums.as_it_was = full, forward

        def empty():
            from streamkern.testing.executor import SharedSums

            SharedSums.forward = SharedSums.as_it_was

        executor.client.run(fill)
        pids = executor.client.run(os.getpid)
        placement = executor.share(SharedSums(), lambda leaf: None)
        with pytest.raises(MemoryLimitError) as caught:
            placement.step((0, 0), SharedState())
        address = next(address for address, pid in pids.items() if f"Process {pid} is" in str(caught.value))
        assert address == sorted(pids)[-1]
        assert str(caught.value.where) == f"worker {address}, the last tile"
        placement.close()
        executor.client.run(empty)


def test_workers_compute_the_next_step_of_a_pass_before_the_driver_asks_for_it(cluster):
    with workers_of(cluster, 2) as executor:
        placement = executor.share(SharedSums(), lambda leaf: None)
        wanted, _ = SharedSums().expected(2)
        first = placement.step((0, 0), SharedState(), [(0, 1), (1, 0)])
        state = placement.after((0, 0), SharedState(), first.parts)
        start = time.monotonic()
        while not placement._asked[0, 1].done():
            assert time.monotonic() < start + 200
            time.sleep(0.05)
        found = placement.step((0, 1), state, [(1, 0)]).parts
        np.testing.assert_array_equal(found[1], wanted[1][1])
        assert not placement._asked  # between passes the workers evaluate
        placement.close()


def test_a_step_that_overtakes_an_earlier_one_on_its_way_waits_for_it(cluster):
    """Two requests on connections of their own come in any order; with sums of a state that has not come about yet,
    weights were wrong without a word."""
    with workers_of(cluster, 2) as executor, executor.client.as_current():
        placement = executor.share(SharedSums(), lambda leaf: None)
        placement._place(SharedState())
        root = placement._actors[0]
        second = root.actor.step(dumps((2, (0, 1), (), None)))
        time.sleep(0.5)
        first = root.actor.step(dumps((1, (0, 0), ((0, 1),), None)))
        for call, wanted in zip((first, second), SharedSums().expected(2)[0], strict=True):
            done = executor.task_result(call.result(timeout=200), root.address)
            np.testing.assert_array_equal(done.parts[1], wanted[1])
        placement.close()


# ----------------------------------------------------------------------------------------------- shares that are kept


def kept_in(folder, said=None, seconds=0.0):
    """A directory for sets of shares; warnings go to ``said``."""
    return ShareDirectory(folder, seconds, (lambda message: None) if said is None else said.append)


def until_kept(placement, state, name=True):
    """Steps until the state stands on a newer set of shares, in files or in memory; their sums, and the state."""
    sums, before = [], state.base
    start = time.monotonic()
    while state.base is before or bool(state.base.name) != name:
        more, state = steps(placement, 1, state)
        sums += more
        assert time.monotonic() < start + 200
    return sums, state


def agree(sums, state, placement):
    """Sums and weights are those of one thread."""
    expected, weights = SharedSums().expected(len(sums))
    for found, wanted in zip(sums, expected, strict=True):
        np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_array_equal(np.ravel(placement.weights(state)), np.ravel(weights))


@pytest.mark.slow
def test_workers_write_their_shares_and_others_go_on_from_them(cluster, tmp_path, monkeypatch):
    """The driver writes nothing; three workers read the shares of two."""

    def refuse(*given):
        raise AssertionError("the driver wrote a share")

    monkeypatch.setattr("streamkern.execute.sharded_centers_driver.write_share", refuse)
    with workers_of(cluster, 2) as executor:
        placement = executor.share(SharedSums(), lambda leaf: None, kept_in(tmp_path))
        sums, state = until_kept(placement, SharedState())
        placement.close()
        assert [place.name for place in sorted((tmp_path / state.base.name).iterdir())] == [
            "share-000000",
            "share-000004",
        ]
        assert len(state.log) < len(sums)
        require_whole(tmp_path, state.base)
    with workers_of(cluster, 3) as executor:
        placement = executor.share(SharedSums(), lambda leaf: None, kept_in(tmp_path, seconds=1e6))
        more, state = steps(placement, 2, state)
        agree([*sums, *more], state, placement)
        placement.close()


@pytest.mark.slow
def test_a_worker_killed_while_it_writes_its_share_costs_that_set_only(cluster, tmp_path):
    """Nothing names the set that it leaves unfinished, and the state still stands on the one before."""
    with workers_of(cluster, 2) as executor:
        placement = executor.share(SharedSums(), lambda leaf: None, kept_in(tmp_path))
        sums, state = until_kept(placement, SharedState())

        def die_at_the_next():
            import streamkern.storage.artifact_arrays as arrays

            arrays.ArrayWriter.manifest = lambda array: os._exit(9)

        executor.client.run(die_at_the_next, workers=[sorted(executor.workers)[1]])
        start, stood_on = time.monotonic(), {state.base.name}
        while not executor.losses:
            more, state = steps(placement, 1, state)
            sums += more
            stood_on.add(state.base.name)
            assert time.monotonic() < start + 200
        require_whole(tmp_path, state.base)  # of both workers, or already of the one that is left
        assert {place.name for place in tmp_path.glob("shares-*")} - stood_on  # the unfinished one
        while state.base.starts != (0,):  # the one that is left has all tiles
            more, state = steps(placement, 1, state)
            sums += more
            assert time.monotonic() < start + 200
        agree(sums, state, placement)
        placement.close()


@pytest.mark.slow
def test_shares_of_workers_that_do_not_see_the_directory_are_written_by_the_driver(cluster, tmp_path, monkeypatch):
    with workers_of(cluster, 2) as executor:
        first, _ = sorted(executor.workers)

        def sees_it(path, token, dask_worker):
            return dask_worker.address == first and can_share_files(path, token)

        monkeypatch.setattr("streamkern.execute.sharded_centers_driver.can_share_files", sees_it)
        said = []
        placement = executor.share(SharedSums(), lambda leaf: None, kept_in(tmp_path, said))
        sums, state = until_kept(placement, SharedState())
        assert "1 of 2 workers do not see" in said[0]
        require_whole(tmp_path, state.base)
        executor.client.run(os._exit, 1, workers=[first], on_error="ignore")  # the other is sent all tiles
        more, state = steps(placement, 2, state)
        agree([*sums, *more], state, placement)
        placement.close()


@pytest.mark.slow
def test_shares_that_cannot_be_written_are_held_by_the_driver_until_they_can(cluster, tmp_path):
    with workers_of(cluster, 2) as executor:
        said = []
        placement = executor.share(SharedSums(), lambda leaf: None, kept_in(tmp_path, said))

        def fill_the_disk(full):
            import streamkern.execute.sharded_centers_worker as shared
            from streamkern.errors import StorageError
            from streamkern.execute.sharded_centers_checkpoint import write_share

            def refused(*given):
                raise StorageError("the disk is full", where="here", expected="room")

            shared.write_share = refused if full else write_share

        executor.client.run(fill_the_disk, True)
        sums, state = until_kept(placement, SharedState(), name=False)
        assert "the disk is full" in said[0]
        assert len(state.base.tiles) == 7
        executor.client.run(fill_the_disk, False)
        more, state = until_kept(placement, state)
        agree([*sums, *more], state, placement)
        placement.close()


@pytest.mark.slow
def test_a_long_log_makes_a_set_before_it_is_due(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr("streamkern.execute.base.LOG_BYTES", 1)
    with workers_of(cluster, 2) as executor:
        for keep in (kept_in(tmp_path, seconds=1e6), None):
            placement = executor.share(SharedSums(), lambda leaf: None, keep)
            sums, state = until_kept(placement, SharedState(), name=keep is not None)
            assert state.base.steps >= LOG_STEPS
            agree(sums, state, placement)
            placement.close()


@pytest.mark.slow
def test_a_training_begun_on_threads_goes_on_with_its_centers_shared_out(cluster, rows, expected, tmp_path):
    """From a whole state, which the driver has: to the same weights."""

    class Stop(Exception):
        """An end in the middle."""

    def stop(progress):
        if progress.step == 3:
            raise Stop

    def kept(events):
        return Checkpoints(tmp_path / "kept", events, seconds=1e6)

    with EventLog() as events, kept(events) as keeper, ThreadsExecutor(2) as executor, pytest.raises(Stop):
        weights(rows, executor, stop, keeper=keeper)
    with EventLog() as events, kept(events) as keeper, workers_of(cluster, 2) as executor:
        found = weights(rows, executor, keeper=keeper, start=keeper.latest()[0])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.slow
def test_workers_that_are_all_killed_are_a_clear_error(cluster, rows):
    with workers_of(cluster, 2, worker_timeout=2) as executor:

        def disaster(progress):
            for worker in cluster.workers:
                worker.kill()

        with pytest.raises(StorageError, match="no workers for 2 seconds"):
            weights(rows, executor, disaster)


@pytest.mark.slow
def test_what_a_worker_raises_is_raised_here_and_others_go_on(cluster):
    """The last tile belongs to a worker that the root waits for."""
    with workers_of(cluster, 3) as executor:
        placement = executor.share(SharedSums(seconds=-1), lambda leaf: None)
        with pytest.raises(DataError, match=r"(?s)A bad tile.*tile 6"):
            steps(placement, 1)
        placement.close()
        placement = executor.share(SharedSums(), lambda leaf: None)
        np.testing.assert_array_equal(steps(placement, 1)[0][0][1], SharedSums().expected(1)[0][0][1])
        placement.close()


@pytest.mark.slow
def test_a_worker_that_joins_is_given_tiles(cluster, monkeypatch):
    """What the others had run ahead is given up, and made anew."""
    monkeypatch.setattr("streamkern.execute.dask_actors.WORKER_UPDATE_SECONDS", 0.0)
    with workers_of(cluster, 1) as executor:
        placement = executor.share(SharedSums(), lambda leaf: None)
        wanted, _ = SharedSums().expected(2)
        _, state = steps(placement, 1)
        cluster.keep(2)
        start = time.monotonic()
        while len(executor.workers) < 2:
            executor.update_workers()
            assert time.monotonic() < start + 200
        result = placement.step((0, 1), state)
        np.testing.assert_array_equal(result.parts[1], wanted[1][1])
        assert len(result.shares) == 2
        placement.close()


def test_workers_without_a_tile_are_no_reason_to_share(cluster):
    with workers_of(cluster, 2) as executor:
        assert executor.share(SharedSums(leaves=1), lambda leaf: None) is None
        assert isinstance(executor.share(SharedSums(leaves=2), lambda leaf: None), SharedLanes)


@pytest.mark.parametrize("workers", range(1, 20))
def test_workers_are_a_tree_that_joins_neighbours(workers):
    """Everybody reaches the root, over at most log2 of them, and a parent joins tiles that follow its own."""
    peers = tuple((str(rank), "") for rank in range(workers))
    routes = [Route(rank, peers, 1.0) for rank in range(workers)]
    assert sorted(child for route in routes for child in route.children) == list(range(1, workers))
    for route in routes:
        assert all(routes[child].parent == route.rank for child in route.children)
        assert route.children == sorted(route.children)

    def nodes(rank):
        tree = Tree(workers)
        tree.put(0, rank, (np.float64(rank),))
        for child in routes[rank].children:
            for (level, index), parts in nodes(child).items():
                tree.put(level, index, parts)
        return tree.nodes

    assert Tree(workers, nodes(0)).total() == (sum(range(workers)),)


@pytest.mark.slow
def test_a_run_shares_out_and_evaluates(cluster, rows, tmp_path):
    """From the pipeline to the model: weights and metrics of threads; a plan names the share."""
    cluster.keep(2)
    pipeline = sk.Pipeline(
        train=rows, test=rows, kernel=sk.Laplace(3.0), centers=sk.AllRows(), task="regression",
        solver=sk.EigenPro2(epochs=1, s=300, batch=1500),
    )  # fmt: skip
    threads = sk.run(pipeline, tmp_path / "threads", threads=1)
    shared = sk.run(pipeline, tmp_path / "shared", resources=sk.Resources(scheduler=cluster.address), threads=1)
    assert shared["weights_sha256"] == threads["weights_sha256"]
    assert shared["metrics"] == threads["metrics"]
    made = sk.plan(pipeline, resources=sk.Resources(workers=2))
    assert "each of 2 workers" in made.text()
    assert "its share of the centers" in made.text()
    assert made.footprint.workers.share


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["workers", "threads"])
def test_a_driver_killed_within_a_pass_goes_on_from_its_checkpoint(cluster, place, tmp_path, command, scheduler):
    """On other workers than before, or on threads: kill -9 leaves workers with centers of a run that nobody ends."""
    file, folder = tmp_path / "p.py", tmp_path / "run"
    file.write_text(
        f"""
import os
import time

import streamkern as sk
from streamkern.runs.checkpoints import Checkpoints

offer, pause = Checkpoints.offer, float(os.environ.get("PAUSE", "0"))


def slow(*given, **more):
    time.sleep(pause)
    return offer(*given, **more)


if pause:  # 72 steps: it does not end before it is killed
    Checkpoints.offer = slow


def pipeline() -> sk.Pipeline:
    rows = sk.open_dataset({str(place)!r}, target="target")
    solver = sk.EigenPro2(epochs=12, s=300, batch=1500)
    return sk.Pipeline(rows, sk.Laplace(3.0), sk.AllRows(), solver, task="regression")
"""
    )
    cluster.keep(2)
    process = command(
        "run", file, "--run-dir", folder, "--scheduler", cluster.address, "--threads", 1, "--checkpoint-seconds", 0,
        PAUSE="0.15",
    )  # fmt: skip
    start = time.monotonic()
    while not any(kept.name > "000002" for kept in folder.glob("checkpoints/*/0*")):  # in its third pass
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < start + 200
        time.sleep(0.01)
    process.kill()
    process.communicate()
    (checkpoints,) = folder.glob("checkpoints/*")
    for kept in checkpoints.glob("0*"):  # the driver has written steps, and no weights
        assert sum(file.stat().st_size for file in kept.rglob("*") if file.is_file()) < N * 2 * (4 + 8)
    sets = sorted(checkpoints.glob("shares-*"))
    assert 1 <= len(sets) <= 6
    assert [place.name for place in sorted(sets[0].iterdir())] == ["share-000000", "share-000003"]
    cluster.keep(3)
    pipeline = load_pipeline(file)
    resumed = sk.run(
        pipeline,
        folder,
        resources=sk.Resources(scheduler=cluster.address if scheduler == "workers" else "threads"),
        threads=1,
    )
    assert not list(folder.glob("checkpoints/*"))
    assert 2 * N <= resumed["resumed_rows"] < 12 * N
    assert resumed["weights_sha256"] == sk.run(pipeline, tmp_path / "threads", threads=1)["weights_sha256"]
