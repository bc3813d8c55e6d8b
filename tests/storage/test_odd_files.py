"""Files as nobody means them: without rows among others, and changed between opening and reading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import streamkern as sk
from streamkern.storage.tables import open_tables
from streamkern.testing.source import read_all

WRITE = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
    "feather": lambda frame, path: frame.to_feather(path),
}


@pytest.mark.parametrize("empty", [{1}, {0}, {2}, {0, 1, 2}], ids=str)
@pytest.mark.parametrize("kind", WRITE)
def test_a_file_without_rows_among_others_is_passed_over(kind: str, empty: set[int], tmp_path: Path) -> None:
    frame = pd.DataFrame({"a": np.arange(4.0), "c": list("uvuv"), "y": [0.0, 1.0, 0.0, 1.0]})
    for i in range(3):
        WRITE[kind](frame[:0] if i in empty else frame, tmp_path / f"{i}.{kind}")
    if len(empty) == 3:
        with pytest.raises(sk.DataError, match="no row|empty"):
            sk.KernelRegressor(centers=2).fit(sk.open_dataset(tmp_path / f"*.{kind}", target="y"))
        return
    source = open_tables([tmp_path / f"*.{kind}"], "y")
    assert int(source.bounds[-1]) == 8
    np.testing.assert_array_equal(read_all(source)[0][:, 0], np.tile(np.arange(4.0), 2))
