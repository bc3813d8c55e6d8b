"""A registry of models: numbered versions that never change, and one small file that says which is the champion.

    REGISTRY/
      champion.json             {"format": 1, "champion": 7, "before": [6, 3], "decided": 9}, replaced by one rename
      versions/000007/          model.zarr, profile.zarr, record.json; appears by one rename, goes by one rename
      decisions.jsonl           one line a decision
      run/                      run directory of the training
      .lock

Whoever writes holds the lock; readers need none.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from streamkern.errors import BusyError, ModelFormatError, StorageError, StreamkernError, UsageError
from streamkern.model import KernelMachine, load_model
from streamkern.pipeline.run import _locked, _make, _write_json
from streamkern.storage.base import digest

T = TypeVar("T")

FORMAT = 1
"""Of champion.json and record.json."""

KEPT = 10
"""Versions that pruning leaves, by default."""

REMEMBERED = 20
"""Earlier champions that a rollback can go back to, at most."""

_LARGEST = 16 << 20  # bytes of a JSON file that is read
_NAME = re.compile(r"\d{6,9}", re.ASCII)
_TRIES = 20  # of a reader, while champions come and go under its hands


@dataclass(frozen=True)
class Standing:
    """What champion.json says.

    Attributes:
        champion: version number, or None.
        before: earlier champions, the last first.
        decided: highest version whose decision has been carried out.
    """

    champion: int | None = None
    before: tuple[int, ...] = ()
    decided: int = 0


class Registry:
    """Models by version number, in a local directory.

    Args:
        folder: the directory.
        create: make it where it is missing.

    Raises:
        UsageError: there is no registry there, and none is to be made.
        StorageError: it cannot be made.
    """

    def __init__(self, folder: str | os.PathLike[str], *, create: bool = False) -> None:
        self.folder = Path(folder)
        if create:
            _make(self.folder / "versions")
        if not (self.folder / "versions").is_dir():
            raise UsageError(
                "There is no model registry here.",
                where=str(folder),
                expected="a directory that streamkern retrain has made",
                remedy="streamkern retrain PIPELINE --registry DIR",
            )

    # ------------------------------------------------------------------------------------------------------- readers

    @property
    def versions(self) -> list[int]:
        """Numbers of all versions, ascending."""
        return sorted(int(place.name) for place in (self.folder / "versions").iterdir() if _NAME.fullmatch(place.name))

    @property
    def champion(self) -> int | None:
        """The champion's version number; None before the first promotion."""
        return self.standing.champion

    @property
    def standing(self) -> Standing:
        """Champion and earlier champions.

        Raises:
            ModelFormatError: champion.json is damaged, or of a later format.
        """
        place = self.folder / "champion.json"
        if not place.exists():
            return Standing()
        told = _read(place)
        numbers = (told.get("champion"), told.get("decided"), *_listed(told.get("before")))
        if not all(type(number) is int and number > 0 for number in numbers):
            raise ModelFormatError(
                "The champion's file is damaged.",
                where=str(place),
                expected="the number of a version",
                remedy="streamkern models DIR promote VERSION",
            )
        return Standing(told["champion"], tuple(told["before"]), told["decided"])

    def path(self, version: int | str | None = None) -> Path:
        """The directory of a version; of the champion by default.

        Args:
            version: its number, as a number or as text such as ``7`` or ``000007``.

        Raises:
            UsageError: it is no version number, there is no such version, or there is no champion.
        """
        if version is None:
            version = self.champion
            if version is None:
                raise UsageError(
                    "There is no champion yet.",
                    where=str(self.folder),
                    expected="a version that has been promoted",
                    remedy="streamkern models DIR promote VERSION",
                )
        text = f"{version:06}" if isinstance(version, int) else str(version)
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
            raise UsageError(f"{version!r} is not a version.", where=str(self.folder), expected="a number, such as 7")
        place = self.folder / "versions" / f"{int(text):06}"
        if not place.is_dir():
            raise UsageError(
                f"There is no version {int(text)}.",
                where=str(self.folder),
                expected="one of " + ", ".join(map(str, self.versions)) if self.versions else "no version is there yet",
            )
        return place

    def record(self, version: int | str | None = None) -> dict[str, Any]:
        """What is known of a version; of the champion by default.

        Raises:
            UsageError: see ``path``.
            ModelFormatError: it is damaged, or of a later format.
        """

        def read(folder: Path) -> dict[str, Any]:
            record = _read(folder / "record.json")
            seal = record.pop("sha256", None)
            if seal != digest(record):
                raise ModelFormatError(
                    "The record is not what was written: its checksum differs.",
                    where=str(folder / "record.json"),
                    expected="the checksum it was written with",
                    remedy="restore it from a copy",
                )
            return record

        return self.steady(version, read)

    def load(self, version: int | str | None = None) -> KernelMachine:
        """A version's model; the champion's by default. It is complete, whoever promotes or prunes meanwhile.

        Raises:
            UsageError: see ``path``.
            ModelFormatError: the model is damaged.
        """
        return self.steady(version, lambda folder: load_model(folder / "model.zarr"))

    def steady(self, version: int | str | None, read: Callable[[Path], T]) -> T:
        """What ``read`` makes of a version's directory; of the champion's, again if it went while it was read."""
        for _ in range(_TRIES):
            standing = self.standing if version is None else None
            try:
                folder = self.path(version if standing is None else standing.champion)
                return read(folder)
            except (StreamkernError, OSError):
                # A version that is there and cannot be read is damaged; one that went was no longer the champion.
                if standing is None or standing == self.standing:
                    raise
        raise StorageError(
            "The champion changed faster than it could be read.",
            where=str(self.folder),
            expected="a champion that stands for a moment",
            remedy="try again",
        )

    # ------------------------------------------------------------------------------------------------------- writers

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the registry, and put right what a killed process left half done.

        The lock goes with the process that holds it, so that a dead one never leaves it behind.

        Raises:
            BusyError: another process holds it.
        """
        with _hold(self.folder):
            self._recover()
            yield

    def add(self, fill: Callable[[Path], None], record: dict[str, Any]) -> int:
        """A new version. The caller holds the lock.

        Args:
            fill: writes ``model.zarr`` and what else belongs to it into the directory it is given.
            record: JSON-serialisable facts.

        Returns:
            Its number.

        Raises:
            StorageError: it could not be written; nothing has changed.
        """
        standing = self.standing
        number = max([*self.versions, standing.champion or 0, standing.decided, *standing.before]) + 1
        place = self.folder / "versions" / f"{number:06}"
        staging = place.with_name(f".{place.name}.tmp")
        facts = json.loads(json.dumps({"format": FORMAT, "version": number, "created": _now(), **record}, default=str))
        try:
            staging.mkdir()
            fill(staging)
            _write_json(staging / "record.json", facts | {"sha256": digest(facts)})
            _sync(staging)
            os.rename(staging, place)
            _sync(place.parent)
        except OSError as error:
            shutil.rmtree(staging, ignore_errors=True)
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"Version {number} could not be written: {error.strerror}.",
                where=str(place),
                expected="a disk with room, and the right to write",
                remedy="free space",
            ) from error
        return number

    def promote(self, version: int | str) -> int:
        """Make a version the champion, by one rename. The caller holds the lock.

        Returns:
            Its number.

        Raises:
            UsageError: there is no such version.
            ModelFormatError: its model is damaged: the champion stays.
        """
        number = int(self.path(version).name)
        self.load(number)
        standing = self._standing_or_none()
        if standing.champion == number:
            return number
        before = (() if standing.champion is None else (standing.champion,)) + standing.before
        kept = tuple(each for each in before if each != number)[:REMEMBERED]
        self._set(Standing(number, kept, max(standing.decided, number)))
        return number

    def rollback(self) -> int:
        """Make the champion before this one the champion again. The caller holds the lock.

        Returns:
            Its number.

        Raises:
            UsageError: no earlier champion is left.
        """
        standing = self.standing
        left = [number for number in standing.before if number in self.versions]
        if standing.champion is None or not left:
            raise UsageError(
                "There is no earlier champion to go back to.",
                where=str(self.folder),
                expected="a champion that replaced another",
                remedy="streamkern models DIR promote VERSION",
            )
        self.load(left[0])
        self._set(Standing(left[0], tuple(left[1:]), max([standing.decided, *self.versions])))
        return left[0]

    def prune(self, keep: int = KEPT) -> list[int]:
        """Delete all versions but the last ones, the champion, and the champion before it. The caller holds the lock.

        Args:
            keep: how many of the last versions stay.

        Returns:
            What was deleted.

        Raises:
            UsageError: ``keep`` is below 1.
        """
        if keep < 1:
            raise UsageError(f"{keep} versions are to be kept.", where="prune", expected="at least 1")
        standing = self.standing
        kept = {*self.versions[-keep:], standing.champion, *standing.before[:1]}
        gone = [number for number in self.versions if number not in kept]
        for number in gone:
            self._remove(number)
        return gone

    def _remove(self, number: int) -> None:
        place = self.folder / "versions" / f"{number:06}"
        aside = place.with_name(f".{place.name}.old")
        os.rename(place, aside)  # readers find all of it or nothing
        shutil.rmtree(aside, ignore_errors=True)

    def log(self, decision: dict[str, Any]) -> None:
        """Append a decision to ``decisions.jsonl``; a disk that is full does not undo what was decided."""
        line = json.dumps(decision, default=str).encode() + b"\n"
        with suppress(OSError), (self.folder / "decisions.jsonl").open("ab+", buffering=0) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    line = b"\n" + line  # a killed process left half a line
            file.write(line)

    def decisions(self) -> list[dict[str, Any]]:
        """All decisions, oldest first; half a line of a killed process is left out."""
        place = self.folder / "decisions.jsonl"
        found = []
        for line in place.read_text(encoding="utf-8").splitlines() if place.exists() else []:
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def _recover(self) -> None:
        for pattern in (".*.tmp", ".*.old"):
            for place in (self.folder / "versions").glob(pattern):
                shutil.rmtree(place, ignore_errors=True)
        standing = self._standing_or_none()
        for number in self.versions:
            if number <= standing.decided:
                continue
            decision = self.record(number).get("decision", {})
            # Written, decided, and killed before the champion's file was replaced.
            if decision.get("promote") and decision.get("champion") == standing.champion:
                self.promote(number)
                self.log(
                    {"time": _now(), "status": "promoted", "version": number, "reason": "an interrupted promotion"}
                )
                standing = self.standing

    def _standing_or_none(self) -> Standing:
        """The standing; where its file is damaged, a promotion is what mends it, and nothing is promoted by itself."""
        try:
            return self.standing
        except ModelFormatError:
            return Standing(None, (), max(self.versions, default=0))

    def _set(self, standing: Standing) -> None:
        told = {"format": FORMAT, **vars(replace(standing)), "since": _now()}
        _write_json(self.folder / "champion.json", told)
        _sync(self.folder)


@contextmanager
def _hold(folder: Path) -> Iterator[None]:
    lock = _locked(folder)
    try:
        lock.__enter__()
    except BusyError as error:
        raise BusyError(
            error.what.replace("run holds this directory", "process holds this registry"),
            where=str(folder),
            expected="one process at a time",
            remedy="wait for it; the lock of a dead process holds nobody up",
        ) from error
    try:
        yield
    finally:
        lock.__exit__(None, None, None)


def _read(place: Path) -> dict[str, Any]:
    try:
        if place.stat().st_size > _LARGEST:
            raise ValueError("it is too large")
        found = json.loads(place.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or type(found.get("format")) is not int:
            raise ValueError("it has no format")
    except (ValueError, RecursionError) as error:
        raise ModelFormatError(
            f"{place.name} is damaged: {error}.",
            where=str(place),
            expected="JSON as streamkern writes it",
            remedy="restore it from a copy",
        ) from error
    except OSError as error:
        raise StorageError(
            f"{place.name} cannot be read: {error.strerror}.",
            where=str(place),
            expected="a file that can be read",
            remedy="check its permissions, or restore it from a copy",
        ) from error
    if found["format"] > FORMAT:
        raise ModelFormatError(
            f"The format is {found['format']}.",
            where=str(place),
            expected=f"at most {FORMAT}",
            remedy="read it with the version of streamkern that wrote it, or a later one",
        )
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [None]


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _sync(folder: Path) -> None:
    """Have a rename on the disk; some file systems do not sync directories."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
