"""Arrow, which is imported with the first table: 40 MiB, and a tenth of a second, that rows of numbers do without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamkern.startup import LateModule

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq
else:
    pa, pc = LateModule("pyarrow"), LateModule("pyarrow.compute")
    pacsv, pq = LateModule("pyarrow.csv"), LateModule("pyarrow.parquet")

__all__ = ["pa", "pacsv", "pc", "pq"]
