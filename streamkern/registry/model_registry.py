"""A registry of models: numbered versions that never change, and one small file that names the champion.

    REGISTRY/
      champion.json             {"format": 1, "champion": 7, "before": [6, 3], "decided": 9}, replaced as a whole
      versions/000007/          model.zarr, profile.zarr, report.html, record.json; appears and goes as a whole
      decisions.jsonl           one line a decision (decisions/, one object a decision, in a store over a network)
      run/                      run directory of the training (runs/NAME, if the registry is not local)
      .lock

Writers take the lock; readers need no lock.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from streamkern.defaults import MAX_EARLIER_CHAMPIONS, VERSIONS_KEPT
from streamkern.errors import BusyError, ModelFormatError, StorageError, StreamkernError, UsageError
from streamkern.models.kernel_machine import KernelMachine
from streamkern.models.partitioned_machine import load_model
from streamkern.redaction import redacted
from streamkern.registry.registry_storage import CHAMPION, RECORD, DirectoryStore, open_store
from streamkern.storage.atomic_writes import write_json
from streamkern.storage.untrusted_files import parse_json
from streamkern.storage.value_digest import digest

T = TypeVar("T")

FORMAT = 1
"""Format of champion.json and record.json."""

_PROMOTE = "streamkern models DIR promote VERSION"


@dataclass(frozen=True)
class ChampionRecord:
    """champion.json: earlier champions, the latest first, and the highest version with a completed decision."""

    champion: int | None = None
    before: tuple[int, ...] = ()
    decided: int = 0


class Registry:
    """Models by version number, in a local directory or an object store. One version, the champion, is in use.

    An object store (``s3://bucket/models``) has no locks. Several machines may write to it only if the store, like S3,
    has conditional writes, which fail if the object has changed. If two machines replace the same champion, one of them
    gets an error.

    Args:
        place: the directory, or an fsspec URL.
        create: create the registry if it is missing.
        storage_options: options for fsspec.

    Raises:
        UsageError: there is no registry at this place, and ``create`` is False.
        StorageError: the registry cannot be created, or reached.
    """

    def __init__(
        self, place: str | os.PathLike[str], *, create: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        self._store = open_store(place, storage_options)
        self.where = self._store.where
        if create:
            self._store.make()
        elif not self._store.present():
            expected = "a directory or URL with models of streamkern retrain"
            remedy = "streamkern retrain PIPELINE --registry DIR"
            raise self._unusable("There is no model registry here.", expected, remedy)

    # ------------------------------------------------------------------------------------------------------- readers

    @property
    def versions(self) -> list[int]:
        """Return the numbers of all versions, ascending."""
        return self._store.numbers()

    @property
    def champion(self) -> int | None:
        """The champion's version number; None before the first promotion."""
        return self.standing.champion

    @property
    def standing(self) -> ChampionRecord:
        """Return the champion and earlier champions.

        Raises:
            ModelFormatError: champion.json is damaged, or has a later format.
        """
        return self._standing()[0]

    def path(self, version: int | str | None = None) -> Path:
        """Return the local directory of a version, by default the champion's.

        Args:
            version: the version's number, an integer or text such as ``7`` or ``000007``.

        Raises:
            UsageError: the version is not a number or does not exist, there is no champion, or the registry is not
                local.
        """
        if not isinstance(self._store, DirectoryStore):
            what, remedy = "The models are not in a local directory.", "Registry(URL).load(VERSION).save(PATH)"
            raise self._unusable(what, "a local registry", remedy)
        return self._store.folder(self.number(version), "")

    def at(self, number: int, name: str) -> str:
        """Return the location of a file of a version: a path, or a URL with secrets hidden."""
        return self._at(f"versions/{number:06}/{name}")

    def number(self, version: int | str | None = None) -> int:
        """Check that a version exists, by default the champion, and return its number as an integer.

        Raises:
            UsageError: as ``path``.
        """
        if version is None:
            version = self.champion
            if version is None:
                raise self._unusable("There is no champion yet.", "a version that has been promoted", _PROMOTE)
        text, listed = f"{version:06}" if isinstance(version, int) else str(version), "streamkern models DIR lists them"
        if not re.fullmatch(r"\d{1,9}", text, re.ASCII):
            raise self._unusable(f"{version!r} is not a version.", "a number, such as 7", listed)
        number, present = int(text), self.versions
        if number not in present:
            expected = "one of " + ", ".join(map(str, present)) if present else "no version is there yet"
            raise self._unusable(f"There is no version {number}.", expected, listed)
        return number

    def record(self, version: int | str | None = None) -> dict[str, Any]:
        """Return the metadata of a version, by default the champion's.

        Raises:
            UsageError: as ``path``.
            ModelFormatError: the record is damaged, or has a later format.
        """

        def read(number: int) -> dict[str, Any]:
            name = f"versions/{number:06}/{RECORD}"
            record = self._json(name, self._bytes(name)[0])
            seal = record.pop("sha256", None)
            if seal != digest(record) or record.get("version") != number:
                what = "The record is damaged: its checksum differs."
                raise self._damaged(name, what, "the checksum it was written with")
            return record

        return self._steady(version, read)

    def load(self, version: int | str | None = None) -> KernelMachine:
        """Load the model of a version, by default the champion's. Other processes may change the registry meanwhile.

        Raises:
            UsageError: as ``path``.
            ModelFormatError: the model is damaged.
        """
        return self.read(version, "model.zarr", load_model)

    def read(self, version: int | str | None, part: str, read: Callable[[Path], T]) -> T:
        """Return the result of a function that reads a part of a version.

        Args:
            version: the version's number; by default, the champion's.
            part: the name of a directory, such as ``profile.zarr``.
            read: function called with the path of the directory, or of a temporary copy of it. It is called again
                if the champion is replaced meanwhile. The copy is deleted when the function returns; or, if it returns
                a model that still reads from disk, when the model is garbage-collected.
        """

        def at(number: int) -> T:
            folder, user = self._store.folder(number, part), None
            try:
                found = read(folder)
                user = getattr(found, "_on_disk", None)  # centers, or leaves, may still be read from disk
                return found
            finally:
                self._store.release(folder, user)

        return self._steady(version, at)

    def _steady(self, version: int | str | None, read: Callable[[int], T]) -> T:
        max_read_attempts = 20  # attempts of a reader while champions are replaced
        for _ in range(max_read_attempts):
            standing = self.standing if version is None else None
            try:
                return read(self.number(version if standing is None else standing.champion))
            except (StreamkernError, OSError) as error:
                # A version that exists but cannot be read is damaged; a removed version is no longer the champion.
                if standing is None or standing == self.standing:
                    if isinstance(error, FileNotFoundError):
                        raise self._unreadable(str(error.filename or error), "it is not there") from error
                    raise
        raise StorageError(
            "The champion changed faster than it could be read.",
            where=self.where,
            expected="a champion that does not change while it is read",
            remedy="try again",
        )

    # ------------------------------------------------------------------------------------------------------- writers

    @contextmanager
    def lock(self, run_dir: Path | None = None) -> Iterator[None]:
        """Lock the registry, and repair unfinished work of killed processes.

        The operating system releases the lock when the process ends. If the registry is not local, the local directory
        in which the new model is trained is locked instead. This lock excludes only processes of this machine.

        Args:
            run_dir: the local directory in which the new model is trained, if any.

        Raises:
            BusyError: another process has the lock.
        """
        with self._store.lock(run_dir):
            self._recover()
            yield

    def run_dir(self, name: str) -> Path:
        """Return the local directory in which a pipeline of this name is trained."""
        return self._store.run_dir(name)

    def add(self, fill: Callable[[Path], None], record: dict[str, Any]) -> int:
        """Add a new version. The caller must have the lock.

        Args:
            fill: function that writes ``model.zarr`` and further files into a directory.
            record: metadata of the version, JSON-serialisable.

        Returns:
            The number of the version.

        Raises:
            StorageError: the version could not be written; nothing has changed.
        """
        standing = self.standing
        staging: Path | None = None
        try:
            number, staging = self._store.claim(
                max([*self.versions, standing.champion or 0, standing.decided, *standing.before]) + 1
            )
            facts = {"format": FORMAT, "version": number, "created": _now(), **record}
            facts = redacted(json.loads(json.dumps(facts, default=str)))
            fill(staging)
            write_json(staging / RECORD, facts | {"sha256": digest(facts)})
            self._store.add(number, staging)
        except OSError as error:
            if staging is not None:
                shutil.rmtree(staging, ignore_errors=True)
            if isinstance(error, StorageError):
                raise
            raise StorageError(
                f"The version could not be written: {error.strerror}.",
                where=self.where,
                expected="a disk with space, and permission to write",
                remedy="free space",
            ) from error
        return number

    def promote(self, version: int | str, instead_of: int | Literal["any"] | None = "any") -> int:
        """Make a version the champion. The change is atomic. The caller must have the lock.

        Args:
            version: the number of the version.
            instead_of: version number of the champion that may be replaced. None: there must be no champion. By
                default, any champion may be replaced.

        Returns:
            The number of the version.

        Raises:
            UsageError: there is no such version.
            ModelFormatError: the version's model is damaged; the champion is unchanged.
            BusyError: the champion is not ``instead_of``, or another machine has replaced it meanwhile.
        """
        number = self.number(version)
        standing, tag = self._standing(mend=True)
        if standing.champion == number:
            return number
        if instead_of not in ("any", standing.champion):
            raise BusyError(
                f"Version {standing.champion} became the champion meanwhile.",
                where=self.where,
                expected=f"version {instead_of}, which version {number} was compared with",
                remedy="retrain again: it is compared with the new champion",
            )
        self.load(number)
        before = (() if standing.champion is None else (standing.champion,)) + standing.before
        kept = tuple(each for each in before if each != number)[:MAX_EARLIER_CHAMPIONS]
        self._set(ChampionRecord(number, kept, max(standing.decided, number)), tag)
        return number

    def rollback(self) -> int:
        """Promote the previous champion again. The caller must have the lock.

        Returns:
            The number of the version.

        Raises:
            UsageError: there is no earlier champion.
        """
        (standing, tag), present = self._standing(), self.versions
        left = [number for number in standing.before if number in present]
        if standing.champion is None or not left:
            what = "There is no earlier champion to go back to."
            raise self._unusable(what, "a champion that replaced another", _PROMOTE)
        self.load(left[0])
        self._set(ChampionRecord(left[0], tuple(left[1:]), max([standing.decided, *present])), tag)
        return left[0]

    def prune(self, keep: int = VERSIONS_KEPT) -> list[int]:
        """Delete old versions, but not the champion and the champion before it. The caller must have the lock.

        If an open model on this machine still reads from a version, only a later call deletes the version.

        Args:
            keep: number of newest versions that are not deleted.

        Returns:
            The numbers of the deleted versions.

        Raises:
            UsageError: ``keep`` is below 1.
        """
        if keep < 1:
            raise UsageError(f"keep is {keep}.", where="prune", expected="at least 1", remedy="keep 1 or more")
        standing, present = self.standing, self.versions
        kept = {*present[-keep:], standing.champion, *standing.before[:1]}
        gone = [number for number in present if number not in kept and not self._store.in_use(number)]
        for number in gone:
            self._store.remove(number)
        return gone

    def log(self, decision: dict[str, Any]) -> None:
        """Append a decision to the log: whether a version was promoted. If this fails, the decision remains valid."""
        self._store.log(json.dumps(redacted(json.loads(json.dumps(decision, default=str)))).encode() + b"\n")

    def decisions(self) -> list[dict[str, Any]]:
        """Return all logged decisions on whether a version was promoted, oldest first."""
        found = []
        for line in self._store.lines():
            with suppress(ValueError, StorageError):
                decision = parse_json(line, "decisions")
                if isinstance(decision, dict):
                    found.append(decision)
        return found

    def _recover(self) -> None:
        standing, _ = self._standing(mend=True)
        self._store.tidy(standing.decided)
        for number in self.versions:
            if number <= standing.decided:
                continue
            decision = self.record(number).get("decision", {})
            # The process was killed after the decision, before it replaced the champion's file.
            if decision.get("promote") and decision.get("champion") == standing.champion:
                self.promote(number)
                self.log(
                    {"time": _now(), "status": "promoted", "version": number, "reason": "an interrupted promotion"}
                )
                standing = self.standing

    def _standing(self, mend: bool = False) -> tuple[ChampionRecord, str | None]:
        """To ``mend``, a promotion replaces a damaged file; nothing is promoted automatically."""
        try:
            content, tag = self._bytes(CHAMPION)
        except FileNotFoundError:
            return ChampionRecord(), None
        try:
            return self._parsed(content), tag
        except ModelFormatError:
            if not mend:
                raise
            return ChampionRecord(None, (), max(self.versions, default=0)), tag

    def _set(self, standing: ChampionRecord, tag: str | None) -> None:
        facts = {"format": FORMAT, **vars(standing), "before": list(standing.before), "since": _now()}
        self._store.replace(CHAMPION, facts | {"sha256": digest(facts)}, tag)

    def _parsed(self, content: bytes) -> ChampionRecord:
        facts = self._json(CHAMPION, content)
        seal, before = facts.pop("sha256", None), facts.get("before")  # the first release wrote no checksum
        numbers = (facts.get("champion"), facts.get("decided"), *(before if isinstance(before, list) else [None]))
        if seal not in (None, digest(facts)) or not all(type(each) is int and 0 < each < 10**9 for each in numbers):
            expected = "the number of a version, and the checksum it was written with"
            raise self._damaged(CHAMPION, "The champion's file is damaged.", expected, _PROMOTE)
        return ChampionRecord(facts["champion"], tuple(facts["before"]), facts["decided"])

    def _bytes(self, name: str) -> tuple[bytes, str]:
        try:
            return self._store.read(name)
        except (FileNotFoundError, StorageError):
            raise
        except OSError as error:
            raise self._unreadable(name, error.strerror or str(error)) from error

    def _json(self, name: str, content: bytes) -> dict[str, Any]:
        try:
            found = parse_json(content, name)
            if not isinstance(found, dict) or type(found.get("format")) is not int:
                raise ValueError("it has no format")
        except (ValueError, StorageError) as error:
            reason = error.what if isinstance(error, StorageError) else error
            raise self._damaged(name, f"{name} is damaged: {reason}.", "JSON as streamkern writes it") from error
        if found["format"] > FORMAT:
            remedy = "read it with the version of streamkern that wrote it, or a later one"
            raise self._damaged(name, f"The format is {found['format']}.", f"at most {FORMAT}", remedy)
        return found

    def _unusable(self, what: str, expected: str, remedy: str) -> UsageError:
        return UsageError(what, where=self.where, expected=expected, remedy=remedy)

    def _damaged(self, name: str, what: str, expected: str, remedy: str = "restore it from a copy") -> ModelFormatError:
        return ModelFormatError(what, where=self._at(name), expected=expected, remedy=remedy)

    def _unreadable(self, name: str, why: str) -> StorageError:
        return StorageError(
            f"{name} cannot be read: {why}.",
            where=self.where,
            expected="a file that can be read",
            remedy="check its permissions, or restore it from a copy",
        )

    def _at(self, name: str) -> str:
        return f"{self.where.rstrip('/')}/{name}"


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
