"""The record that ``ingest`` stores with a data set: sources, options, and the order of rows."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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


def recorded_schema(record: Mapping[str, Any], columns: Sequence[str] | None) -> Schema | None:
    """Return the schema of the table that ``ingest`` stored as numbers; None for other data."""
    if columns is None:
        return None
    try:
        return Schema.from_json(record["schema"]).picked(columns)
    except (KeyError, ValueError):
        return None
