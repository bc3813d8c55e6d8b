"""Ingest to a remote store: written to the local disk, then uploaded; the completion mark is sent last."""

from __future__ import annotations

import json
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from streamkern.redaction import redacted
from streamkern.sources.format_rules import existing_output_error
from streamkern.sources.object_writes import CONCURRENT_REQUESTS, RemoteObjects
from streamkern.storage.value_digest import digest

_MARKS = "zarr.json"


class ZarrUpload:
    """Upload of a zarr group to a store from ``place``, a local directory below TMPDIR that is named after the URL.

    The group's metadata are marked incomplete first, and complete by the last object sent, so that a partial upload is
    never read. Local files are kept until the upload is complete.
    """

    def __init__(self, url: str, storage_options: dict[str, Any] | None) -> None:
        self._store = RemoteObjects(url, storage_options)
        self._shown = redacted(url)
        self.place = Path(tempfile.gettempdir()) / f"streamkern-ingest-{digest(self._shown)[:16]}" / "data.zarr"

    def prepare(self, fingerprint: str, overwrite: bool) -> bool:
        """Return True if the store already has the complete group; StorageError if other content is kept."""
        marks = self._marks()
        ours = marks.get("ingest", {})
        if marks.get("complete") is True and ours.get("fingerprint") == fingerprint and not overwrite:
            return True
        if (ours and (overwrite or marks.get("complete") is not True)) or not self._store.all():
            return False
        raise existing_output_error(self._shown, overwrite, "an earlier result of ingest")

    def send(self) -> str:
        """Upload a finished group and remove the local files; return the URL with secrets hidden."""
        final = (self.place / _MARKS).read_bytes()
        mine = json.loads(final)["attributes"]["streamkern"]
        theirs, there = self._marks(), {}
        if theirs.get("complete") is not True and theirs.get("ingest") == mine["ingest"]:
            there = self._store.sizes()  # objects of an earlier attempt at the same group
        files = {path.relative_to(self.place).as_posix(): path for path in self.place.rglob("*") if path.is_file()}
        unfinished = json.loads(final)
        unfinished["attributes"]["streamkern"]["complete"] = False
        self._store.put(_MARKS, json.dumps(unfinished).encode())
        if not there:
            self._store.remove(sorted(set(self._store.all()) - {_MARKS}))
        left = [name for name, path in files.items() if name != _MARKS and there.get(name) != path.stat().st_size]
        with ThreadPoolExecutor(CONCURRENT_REQUESTS) as pool:
            for _ in pool.map(lambda name: self._store.put(name, files[name].read_bytes()), sorted(left)):
                pass
        self._store.put(_MARKS, final)
        shutil.rmtree(self.place.parent, ignore_errors=True)
        return self._shown

    def _marks(self) -> dict[str, Any]:
        try:
            found = json.loads(self._store.content(_MARKS))["attributes"]["streamkern"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return {}
        return found if isinstance(found, dict) else {}
