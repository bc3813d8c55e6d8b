"""polars LazyFrames as a Source: the query runs once, in batches, into a temporary file that is read in chunks."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from streamkern.formats.arrow_tables import ArrowSource
from streamkern.formats.fsspec_file import TableFile
from streamkern.sources.column_roles import Request
from streamkern.sources.format_rules import CHUNK_BYTES
from streamkern.storage.untrusted_files import storage_errors


def lazy_source(frame: Any, request: Request) -> ArrowSource:
    """Open a LazyFrame through a temporary file below TMPDIR, so that its rows never are in memory all at once."""
    folder = tempfile.mkdtemp(prefix="streamkern-")
    path = Path(folder) / "LazyFrame.arrow"
    value = 8  # bytes of a value, to estimate the rows of a chunk
    failed = (
        "LazyFrame",
        "a query that polars can compute, and room for its rows in the temporary directory",
        "computing the LazyFrame failed",
        "collect it by hand to see the traceback; or set TMPDIR to a disk with room",
    )
    with ExitStack() as unfinished, storage_errors(*failed):
        unfinished.callback(shutil.rmtree, folder, ignore_errors=True)
        rows = max(1, CHUNK_BYTES // (value * max(1, len(frame.collect_schema()))))
        frame.sink_ipc(path, compression="uncompressed", record_batch_size=rows)
        file = TableFile(str(path))
        source = ArrowSource(file, request)
        unfinished.pop_all()
    weakref.finalize(file, shutil.rmtree, folder, ignore_errors=True)
    return source
