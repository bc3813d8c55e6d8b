"""A source with any chunk bounds, empty chunks too, that counts its reads."""

import threading
from collections import Counter

import numpy as np
import pytest

from streamkern.formats import Source
from streamkern.types import IntArray, Rows, Target


class CutSource(Source):
    """Row i has features (i mod 251, i mod 7, ...) unless X is given, and target i mod 10 unless y is given."""

    fingerprint = "cut"

    def __init__(self, sizes, d=3, X=None, y=None):
        self.bounds: IntArray = np.cumsum([0, *sizes], dtype=np.int64)
        n = int(self.bounds[-1])
        self.X = (np.arange(n)[:, None] % np.array([251, 7, 13, 5, 11])[:d]).astype(np.uint8) if X is None else X
        self.y = np.arange(n) % 10 if y is None else y
        self.n_features = self.X.shape[1]
        self.dtype = self.X.dtype
        self.target = Target("target", self.y.dtype, self.y.shape[1:])
        self.reads: Counter[int] = Counter()
        self.fail: set[int] = set()
        self._lock = threading.Lock()

    def __getstate__(self):
        return {k: v for k, v in self.__dict__.items() if k != "_lock"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def read(self, chunk: int) -> Rows:
        with self._lock:
            self.reads[chunk] += 1
        if chunk in self.fail:
            self.fail.discard(chunk)
            raise OSError("the disk hiccupped")
        a, b = self.bounds[chunk], self.bounds[chunk + 1]
        return Rows(self.X[a:b], self.y[a:b])

    def where(self, chunk: int) -> str:
        return f"chunk {chunk}"


@pytest.fixture(scope="session")
def cut_source():
    return CutSource
