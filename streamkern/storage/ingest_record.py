"""What is noted with a data set that ``ingest`` has made: where its rows come from, and in which order they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from streamkern.storage.files import read_json_file

RECORD = "_streamkern.json"
"""Where a parquet dataset has its record; a zarr group has it among its attributes."""


def ingest_record(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """What ``ingest`` noted of a local data set: sources, options, version. None of any other.

    Args:
        path: the data set's directory.
    """
    place = Path(os.fspath(path).removeprefix("file://"))
    try:
        if (place / RECORD).exists():
            record = read_json_file(place / RECORD)
        else:
            marks = read_json_file(place / "zarr.json")["attributes"]["streamkern"]
            record = marks["ingest"] if marks["complete"] is True else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if isinstance(record, dict) and "fingerprint" in record else None
