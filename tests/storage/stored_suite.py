"""The promises of a source, for rows that are written below a folder and opened by ``open_tables``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamkern.formats.open_tables import open_tables
from streamkern.ingestion.array_files import READERS
from streamkern.sources.base import Source
from streamkern.testing.source import SourceSuite


class StoredSuite(SourceSuite):
    """A subclass has ``write``, which gives the place of the rows; their target is called ``label``."""

    def write(self, folder: Path, X: np.ndarray, y: np.ndarray) -> Any:
        raise NotImplementedError

    def opened(self, place: Any) -> Source:
        return open_tables([place], target="label", readers=READERS)

    @pytest.fixture
    def reopen(self, tmp_path: Path, expected_X: np.ndarray, expected_y: np.ndarray) -> Callable[[], Source]:
        place = self.write(tmp_path, expected_X, expected_y)
        return lambda: self.opened(place)

    @pytest.fixture
    def change(self, tmp_path: Path, expected_X: np.ndarray, expected_y: np.ndarray) -> Callable[[], None]:
        def changed() -> None:
            X = expected_X.copy()
            X[50, 3] += 1
            self.write(tmp_path, X, expected_y)

        return changed
