"""A client of a scheduler at an address, closed completely after use or a failed connection."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import Client

from streamkern.errors import StorageError, UsageError

CONNECT_SECONDS = 5.0
"""Seconds that a scheduler may take to answer the first time."""


class _Client(Client):
    """Dask leaves a client that cannot be started with its thread, and a deadlock once Python collects it."""

    def start(self, **kwargs: Any) -> None:
        try:
            super().start(**kwargs)  # type: ignore[no-untyped-call]
        except BaseException:
            self.close()  # type: ignore[no-untyped-call]
            self._loop_runner.stop()  # type: ignore[no-untyped-call]
            raise


@contextmanager
def connect(address: str) -> Iterator[Any]:  # a Client, whose methods have no types
    """A client that prints no tracebacks beside our error when it loses the scheduler."""
    with _silent("distributed.client", "distributed.batched"), _client(address) as client:
        yield client


def _client(address: str) -> Client:
    try:
        return _Client(address, timeout=CONNECT_SECONDS, set_as_default=False)  # type: ignore[no-untyped-call]
    except OSError as error:
        secure = ", and that both sides' certificates are of the authority in distributed.comm.tls.ca-file"
        raise StorageError(
            f"No Dask scheduler answered within {CONNECT_SECONDS:g} seconds.",
            where=address,
            expected="a scheduler that listens there",
            remedy="start one (dask scheduler), or check the address" + secure * address.startswith("tls:"),
        ) from error
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(
            f"The address of the scheduler cannot be used: {error}",
            where=address,
            expected="tcp://HOST:PORT, or tls://HOST:PORT with distributed.comm.tls configured",
        ) from error


@contextmanager
def _silent(*loggers: str) -> Iterator[None]:
    before = [(log, log.level) for log in map(logging.getLogger, loggers)]
    for log, _ in before:
        log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for log, level in before:
            log.setLevel(level)
