"""The record that ``ingest`` stores with a data set: sources, options, and the order of rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from streamkern.sources.schema import Schema
from streamkern.storage.untrusted_files import given_path, read_json_file

RECORD = "_streamkern.json"
"""File of a parquet dataset's record; a zarr group has the record in its attributes."""


def ingest_record(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return ``ingest``'s record of a local data set: sources, options, version; None for other data."""
    place = Path(given_path(path).removeprefix("file://"))
    try:
        if (place / RECORD).exists():
            record = read_json_file(place / RECORD)
        else:
            marks = read_json_file(place / "zarr.json")["attributes"]["streamkern"]
            record = marks["ingest"] if marks["complete"] is True else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if isinstance(record, dict) and "fingerprint" in record else None


def recorded_roles(record: Any) -> dict[str, Any]:
    """Return what a record, which may be damaged, notes of time and group."""
    kinds = {"time": str, "group": str, "featured": list}
    found = record if isinstance(record, dict) else {}
    noted = {name: found[name] for name, kind in kinds.items() if isinstance(found.get(name), kind)}
    return {"time": None, "group": None, **noted}


def recorded_facets(record: Mapping[str, Any], columns: Sequence[str] | None) -> dict[str, Any]:
    """Return the order of the rows, and the schema and texts of the table that ``ingest`` stored as numbers."""
    schema = None
    if columns is not None:
        with suppress(KeyError, ValueError):
            schema = Schema.from_json(record["schema"]).picked(columns)
    return {"shuffled": record.get("shuffle") == "global", "schema": schema, "words": record.get("words")}
