"""Conformance tests of augmentations."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest

from streamkern.cpu import default_engine
from streamkern.data.augment import Augmentation
from streamkern.types import Array, IntArray


class AugmentationSuite:
    """Conformance tests of an Augmentation.

    A subclass gives the fixture ``augmentation``, and sets ``width`` to that of the rows it takes.
    """

    width: int = 12

    def rows(self, n: int) -> tuple[Array, IntArray, IntArray]:
        """Rows (n, width) in [0, 1), ids far apart, and copy numbers."""
        random = np.random.default_rng(n)
        ids = np.sort(random.choice(1 << 40, n, replace=False)).astype(np.int64)
        return random.random((n, self.width)), ids, random.integers(0, 3, n)

    def applied(self, augmentation: Augmentation, X: Array, ids: IntArray, copies: IntArray, seed: int = 3) -> Array:
        """Augmented copies of rows."""
        out = X.copy()
        augmentation.apply(out, ids, copies, seed, default_engine().loops)
        return out

    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_a_row_does_not_depend_on_its_block(self, augmentation: Augmentation, dtype: Any) -> None:
        """Any cut, any order: the same row to the bit."""
        X, ids, copies = self.rows(97)
        X = X.astype(dtype)
        whole = self.applied(augmentation, X, ids, copies)
        assert whole.dtype == dtype
        order = np.random.default_rng(1).permutation(97)
        shuffled = self.applied(augmentation, X[order], ids[order], copies[order])
        np.testing.assert_array_equal(shuffled, whole[order])
        for start, stop in ((0, 1), (1, 50), (50, 97)):
            part = self.applied(augmentation, X[start:stop], ids[start:stop], copies[start:stop])
            np.testing.assert_array_equal(part, whole[start:stop])

    def test_no_rows_are_no_rows(self, augmentation: Augmentation) -> None:
        """An empty block stays empty."""
        X, ids, copies = self.rows(0)
        assert self.applied(augmentation, X, ids, copies).shape == (0, self.width)

    def test_seeds_and_copies_and_rows_are_told_apart(self, augmentation: Augmentation) -> None:
        """Each changes the random draws, for some of the rows."""
        X, ids, copies = self.rows(60)
        base = self.applied(augmentation, X, ids, copies)
        for ids2, copies2, seed in ((ids, copies, 4), (ids, copies + 1, 3), (ids + 1, copies, 3)):
            assert np.any(self.applied(augmentation, X, ids2, copies2, seed) != base)

    def test_both_dtypes_draw_the_same(self, augmentation: Augmentation) -> None:
        """float32 rows are the float64 rows, rounded."""
        X, ids, copies = self.rows(60)
        X = X.astype(np.float32).astype(np.float64)
        single = self.applied(augmentation, X.astype(np.float32), ids, copies)
        np.testing.assert_allclose(single, self.applied(augmentation, X, ids, copies), atol=2e-6)

    def test_it_is_a_value(self, augmentation: Augmentation) -> None:
        """It travels, and describes itself in JSON that differs from others'."""
        assert isinstance(augmentation, Augmentation)
        again = pickle.loads(pickle.dumps(augmentation))
        assert again == augmentation
        assert json.loads(json.dumps(augmentation.to_json())) == json.loads(json.dumps(again.to_json()))
        assert augmentation.to_json()["name"] == type(augmentation).__name__
