"""Blocks made ahead of time: each once, in order, none in vain."""

from __future__ import annotations

import threading

import pytest

from streamkern.errors import DataError
from streamkern.execute.threads_executor import Prefetch


class Builds:
    """Blocks that are their keys; building waits until it is let go."""

    def __init__(self):
        self.started = []
        self.go = threading.Event()
        self.busy = threading.Event()

    def __call__(self, *key):
        self.started.append(key)
        self.busy.set()
        assert self.go.wait(10)
        if key[0] < 0:
            raise DataError("A bad row.", where=f"block {key}")
        return key


@pytest.fixture
def builds():
    return Builds()


@pytest.fixture
def prefetch(builds):
    prefetch = Prefetch(builds)
    yield prefetch
    builds.go.set()
    prefetch.close()


def test_blocks_are_built_in_the_order_announced_and_once(builds, prefetch):
    builds.go.set()
    keys = [(i, 0) for i in range(5)]
    prefetch.announce(keys)
    prefetch.announce(keys)
    assert [prefetch.take(key)[0] for key in reversed(keys)] == keys[::-1]
    assert builds.started == keys


def test_a_block_is_handed_out_once(builds, prefetch):
    builds.go.set()
    prefetch.announce([(1,)])
    prefetch.take((1,))
    with pytest.raises(KeyError):
        prefetch.take((1,))
    prefetch.announce([(1,)])
    assert prefetch.take((1,))[0] == (1,)
    assert builds.started == [(1,), (1,)]


def test_what_is_no_longer_announced_is_not_built(builds, prefetch):
    prefetch.announce([(1,), (2,), (3,)])
    assert builds.busy.wait(10)
    prefetch.announce([(3,), (4,)])
    builds.go.set()
    assert prefetch.take((4,))[0] == (4,)
    assert builds.started == [(1,), (3,), (4,)]
    with pytest.raises(KeyError):
        prefetch.take((2,))


def test_an_error_comes_with_its_block_and_with_no_other(builds, prefetch):
    builds.go.set()
    prefetch.announce([(-1,), (2,)])
    assert prefetch.take((2,))[0] == (2,)
    with pytest.raises(DataError, match=r"block \(-1,\)"):
        prefetch.take((-1,))


def test_waiting_is_measured(builds, prefetch):
    prefetch.announce([(1,)])
    timer = threading.Timer(0.2, builds.go.set)
    timer.start()
    waited = prefetch.take((1,))[1]
    assert waited > 0.1
    timer.join()
    prefetch.announce([(2,), (3,)])
    prefetch.take((3,))
    assert prefetch.take((2,))[1] < waited


def test_closing_builds_nothing_more(builds):
    prefetch = Prefetch(builds)
    prefetch.announce([(1,), (2,), (3,)])
    assert builds.busy.wait(10)
    last = prefetch._ready[3,]
    last.add_done_callback(lambda _: builds.go.set())  # once it is cancelled
    prefetch.close()
    assert last.cancelled()
    assert builds.started == [(1,)]
