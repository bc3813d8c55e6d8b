"""Centers shared out over the workers of a Dask cluster: the driver's side of ``sharded_centers_worker.py``."""

from __future__ import annotations

import platform
import secrets
import threading
import time
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Future

from streamkern.errors import StorageError, StreamkernError
from streamkern.execute.base import KeptShares, Parts, Position, Share, ShareDirectory, SharedState, SharedWork, Tile
from streamkern.execute.dask_actors import POLL_SECONDS, Cluster, Lanes, PlacedActor, call_actor, large_arguments
from streamkern.execute.sharded_centers_checkpoint import read_tiles, stacked_tiles, write_share
from streamkern.execute.sharded_centers_worker import Assignment, ShareActor, ShareReply, StepReply, can_share_files
from streamkern.execute.tree_allreduce import Route
from streamkern.execute.worker_protocol import LostError, dumps
from streamkern.storage.atomic_writes import write_text
from streamkern.types import Array

_SEEN = ".seen"
_GIVEN = 2  # tiles on their way to workers at a time


@dataclass(eq=False)
class _Set:
    """A set of shares that the workers are asked for: its name, its steps, and the step at whose end it is made."""

    name: str
    steps: int
    position: Position
    thread: threading.Thread | None = None


class SharedLanes(Lanes):
    """Assignment of centers on the workers of a cluster; the driver calls the root of their tree.

    The driver has no weights: it has the last complete set of shares and the sums of the steps since. When a worker is
    lost, the others begin with those, and the step is repeated. Workers need nothing of the driver for the next step
    of a pass: they get its request before they have answered this one, so that they compute while the driver goes on.
    """

    def __init__(
        self, executor: Cluster, work: SharedWork, constants: Callable[[int], Any], keep: ShareDirectory | None = None
    ) -> None:
        super().__init__(executor, b"", work.leaves)
        self.work, self.constants, self.keep, self._number = work, constants, keep, 0
        self._asked: dict[Position, Any] = {}
        self._sees: dict[str, str] = {}
        self._set: _Set | None = None
        self._newest: KeptShares | None = None
        self._in_memory = keep is None  # so is the next set where one could not be written
        self._unseen: set[str] = set()
        self._due = 0.0 if keep is None else time.monotonic() + keep.seconds

    def after(self, position: Position, state: SharedState, parts: Parts) -> SharedState:
        return state.after(position, parts, self._newest)

    def weights(self, state: SharedState) -> list[Array]:
        """The solution that a state stands for, tile by tile; asked of the workers, who have it."""

        def once() -> list[Array]:
            if self._asked:  # workers are a step ahead
                self._stop()
                self._drop()
            self._place(state)
            deadline = time.monotonic() + self.executor.step_timeout
            calls = [(placed, placed.actor.weights()) for placed in self._actors]
            return [
                tile
                for placed, call in calls
                for tile in self.executor.task_result(self._answer(placed, call, deadline), placed.address)
            ]

        return self._tried("The collection of weights", once)[0]

    # ----------------------------------------------------------------------------------------------------------- steps

    def _submitted(self, parts: Mapping[str, range], threads: Mapping[str, int], state: Any) -> list[Future[Any]]:
        given: SharedState = state
        workers, name, lanes = len(parts), f"streamkern-share-{secrets.token_hex(8)}", self.work.lanes
        seeing = self._sees = self._seeing(list(parts))
        base = given.base
        reference = base and KeptShares(base.name, base.steps, base.starts)
        broadcast = self.executor.broadcast(dumps((self.work.among(workers), reference, given.log)))
        peers = tuple((address, f"{name}-{rank}") for rank, address in enumerate(parts))
        with large_arguments():
            return [
                self.executor.client.submit(
                    ShareActor,
                    broadcast,
                    Route(rank, peers, self.executor.step_timeout),
                    Assignment(
                        assigned, range(lanes * rank // workers, lanes * (rank + 1) // workers), threads[address],
                        platform.node(), seeing.get(address, ""),
                    ),
                    self._number + 1,
                    actor=True,
                    workers=[address],
                    key=f"{name}-{rank}",
                )
                for rank, (address, assigned) in enumerate(parts.items())
            ]  # fmt: skip

    def _begin(self, state: Any, deadline: float) -> None:
        """Give each worker its tiles, few at a time: they may be as large as all else that this process holds."""
        base, calls = state.base, list[tuple[PlacedActor, Any]]()
        for placed in self._actors:
            kept = self._sent(base, placed.assigned, placed.address in self._sees)
            for number, leaf in enumerate(placed.assigned):
                message = dumps((leaf, self.constants(leaf), None if kept is None else kept[number]))
                calls.append((placed, call_actor(placed, message, "give")))
                if len(calls) >= _GIVEN:
                    self._answer(*calls.pop(0), deadline)
        for call in calls:
            self._answer(*call, deadline)

    def _seeing(self, addresses: list[str]) -> dict[str, str]:
        """The directory of checkpoints, for each worker that sees it and may write there."""
        if self.keep is None:
            return {}
        folder, token = self.keep.folder.absolute(), secrets.token_hex(8)
        answers: dict[str, Any] = {}
        with suppress(StorageError, OSError, RuntimeError, CancelledError):  # of a worker that is gone, a step will say
            write_text(folder / _SEEN, token, parents=True)
            answers = self.executor.client.run(
                can_share_files, str(folder / _SEEN), token, workers=addresses, on_error="ignore"
            )
        unseen = {address for address in addresses if answers.get(address) is not True}
        if unseen - self._unseen:
            self.keep.warn(
                f"{len(unseen)} of {len(addresses)} workers do not see {folder}, or may not write there: this process "
                "writes their shares of a checkpoint"
            )
        self._unseen |= unseen
        return {address: str(folder) for address in addresses if address not in unseen}

    def _sent(self, base: KeptShares | None, assigned: range, sees_them: bool) -> list[Tile] | None:
        """Arrays of tiles for a worker that cannot read them."""
        if base is None or (base.name and sees_them):
            return None
        return read_tiles(Path() if self.keep is None else self.keep.folder, base, assigned)

    def _step(
        self, position: Position, state: Any, ahead: tuple[Position, ...]
    ) -> tuple[Parts, tuple[Share, ...], float]:
        root, deadline = self._actors[0], time.monotonic() + self.executor.step_timeout
        call = self._asked.pop(position) if position in self._asked else self._ask(position, ahead, state, 1)
        if ahead and ahead[0][0] == position[0]:  # between passes workers evaluate
            self._asked[ahead[0]] = self._ask(ahead[0], ahead[1:], state, 2)
        done: StepReply = self.executor.task_result(self._answer(root, call, deadline), root.address)
        for requests in done.counts:
            self.executor.request_counts.add(requests)
        if self._set is not None and self._set.position == position:
            self._collect(self._set)
        return done.parts, done.shares, done.slowest

    def _ask(self, position: Position, ahead: tuple[Position, ...], state: SharedState, steps: int) -> Any:
        """Ask the root for a step, and where a set of shares is due the workers for theirs at its end."""
        self._number += 1
        name = None
        if self._set is None and (state.long or (self.keep is not None and time.monotonic() >= self._due)):
            taken = state.steps + steps
            name = "" if self._in_memory else f"shares-{taken:09}-{secrets.token_hex(4)}"
            self._set = _Set(name, taken, position)
        return call_actor(self._actors[0], dumps((self._number, position, ahead, name)))

    def _stop(self) -> None:
        """Have workers cancel the step that they run ahead, and release the arrays that others will have."""
        self._stop_actors()
        self._asked.clear()
        asked, self._set = self._set, None
        if asked is not None and asked.thread is not None:
            asked.thread.join()

    # ---------------------------------------------------------------------------------------------------------- shares

    def _collect(self, asked: _Set) -> None:
        """Wait for the shares of a set, in a thread: steps go on meanwhile."""
        with self.executor.client.as_current():
            calls = [placed.actor.written(asked.name) for placed in self._actors]
        arguments = asked, list(zip(self._actors, calls, strict=True))
        asked.thread = threading.Thread(target=self._collected, args=arguments, name="streamkern-shares", daemon=True)
        asked.thread.start()

    def _collected(self, asked: _Set, calls: Sequence[tuple[PlacedActor, Any]]) -> None:
        try:
            starts, tiles = list[int](), list[Tile]()
            for placed, call in calls:
                written: ShareReply = self.executor.task_result(self._share(asked, call), placed.address)
                starts.append(written.first)
                if written.tiles is not None and asked.name:
                    assert self.keep is not None
                    write_share(self.keep.folder / asked.name, written.first, *stacked_tiles(written.tiles))
                elif written.tiles is not None:
                    tiles += written.tiles
            if asked.name:
                self._newest = KeptShares(asked.name, asked.steps, tuple(starts))
            else:
                self._newest = KeptShares("", asked.steps, (), tuple(tiles))
            self._in_memory = self.keep is None
        except StreamkernError as error:
            # Steps since the last set would pile up; the memory of this process holds the next one, if it must.
            self._in_memory = True
            if self.keep is not None:
                self.keep.warn(f"no shares of a checkpoint were written: {error.what}")
        except LostError:
            pass  # the set is lost with the worker; steps are made again from the one before
        finally:
            self._due = time.monotonic() + (0.0 if self.keep is None else self.keep.seconds)
            if self._set is asked:
                self._set = None

    def _share(self, asked: _Set, call: Any) -> bytes:
        while True:
            try:
                return bytes(call.result(timeout=POLL_SECONDS))
            except TimeoutError:
                if self._set is not asked:
                    raise LostError from None
            except (Exception, CancelledError) as error:
                raise LostError from error
