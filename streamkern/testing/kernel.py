"""Conformance tests of kernels: subclass `KernelSuite` to hold a new one to it."""

from __future__ import annotations

import json
import pickle
import tracemalloc

import numpy as np
import pytest

from streamkern.errors import UsageError
from streamkern.kernels import Expansion, Kernel, kernel_from_json
from streamkern.types import Array


class KernelSuite:
    """Conformance tests of a Kernel.

    A subclass gives the fixture ``kernel`` and the method ``formula``, k(X, Z) from its definition in float64. It may
    override ``single``, the largest error of a value in float32, and ``rows``.
    """

    single: float = 2e-5

    def formula(self, X: Array, Z: Array) -> Array:
        """k(X, Z), shape (n, p), of float64 rows: plain and slow."""
        raise NotImplementedError

    def rows(self, n: int, seed: int, d: int = 6) -> Array:
        """Rows of unit scale, shape (n, d), float64."""
        return np.random.default_rng([n, seed]).normal(size=(n, d))

    @pytest.mark.parametrize(("n", "p"), [(1, 1), (3, 2), (255, 257), (300, 2100)])
    def test_values_are_those_of_the_formula(self, kernel: Kernel, n: int, p: int) -> None:
        """In float64, on either side of the sizes of a tile."""
        X, Z = self.rows(n, 0), self.rows(p, 1)
        np.testing.assert_allclose(kernel(X, Z), self.formula(X, Z), rtol=1e-9, atol=1e-9)

    def test_float32_is_near(self, kernel: Kernel) -> None:
        """Within the suite's bound, and of the rows' type."""
        X, Z = self.rows(200, 0).astype(np.float32), self.rows(150, 1).astype(np.float32)
        K = kernel(X, Z)
        assert K.dtype == np.float32
        expected = self.formula(X.astype(np.float64), Z.astype(np.float64))
        assert np.abs(K - expected).max() <= self.single * np.abs(expected).max()

    def test_integer_rows_are_numbers(self, kernel: Kernel) -> None:
        """Computed in float64."""
        X = np.random.default_rng(0).integers(0, 4, (20, 6))
        np.testing.assert_array_equal(kernel(X), kernel(X.astype(np.float64)))

    def test_a_kernel_matrix_is_symmetric_and_positive(self, kernel: Kernel) -> None:
        """With repeated rows too; its diagonal is exact."""
        X = self.rows(80, 0)
        X = np.concatenate([X, X[:20]])
        K = kernel(X)
        np.testing.assert_allclose(K, K.T, rtol=1e-12, atol=1e-12)
        np.testing.assert_array_equal(np.diag(K), kernel.diag(X))
        computed = np.diag(kernel(X, X.copy()))  # K(X) has what ``diag`` says
        np.testing.assert_allclose(kernel.diag(X), computed, rtol=1e-5, atol=1e-5 * np.abs(computed).max())
        values = np.linalg.eigvalsh((K + K.T) / 2)
        assert values[0] >= -1e-6 * values[-1]

    def test_a_translation_changes_nothing_where_that_is_said(self, kernel: Kernel) -> None:
        """Far from the origin, in float32: rows are centred first."""
        if not kernel.translation_invariant:
            return
        X, Z = self.rows(50, 0), self.rows(40, 1)
        far = kernel((X + 64).astype(np.float32), (Z + 64).astype(np.float32))
        assert np.abs(far - kernel(X, Z)).max() <= 1e-3

    def test_a_product_is_that_with_the_matrix(self, kernel: Kernel) -> None:
        """For a matrix and for a vector of weights."""
        X, Z = self.rows(300, 0), self.rows(70, 1)
        W = np.random.default_rng(2).normal(size=(70, 3))
        expected = self.formula(X, Z) @ W
        np.testing.assert_allclose(kernel.matvec(X, Z, W), expected, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(kernel.matvec(X, Z, W[:, 0]), expected[:, 0], rtol=1e-8, atol=1e-8)

    def test_panels_do_not_matter(self, kernel: Kernel) -> None:
        """For panels of any size, from a row upwards."""
        X, Z, W = self.rows(300, 0), self.rows(70, 1), self.rows(70, 2, 4)
        whole = Expansion(kernel, Z).predict(X, W)
        for tile_bytes in (1, 70 * 8 * 7, 70 * 8 * 299):
            tiled = Expansion(kernel, Z, tile_bytes=tile_bytes)
            np.testing.assert_allclose(tiled.predict(X, W), whole, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(
                np.concatenate([K.copy() for _, K in tiled.engine.panels(tiled, X)]),
                self.formula(X, Z),
                rtol=1e-9,
                atol=1e-9,
            )

    def test_no_more_than_a_panel_is_held(self, kernel: Kernel) -> None:
        """A blocked product allocates its result, one panel within the budget, and a little."""
        X, Z, W = self.rows(3000, 0), self.rows(1500, 1), self.rows(1500, 2, 2)
        expansion = Expansion(kernel, Z, tile_bytes=1 << 20)
        assert expansion.scratch_bytes <= 1 << 20
        expansion.predict(X[:10], W)
        tracemalloc.start()
        try:
            out = Expansion(kernel, Z, tile_bytes=1 << 20).predict(X, W)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        # Sums and products of kernels copy strips of a tile besides.
        assert peak <= out.nbytes + 2 * expansion.scratch_bytes + (1 << 18)

    def test_an_expansion_survives_pickling(self, kernel: Kernel) -> None:
        """And gives the same bits."""
        X, Z, W = self.rows(60, 0), self.rows(50, 1), self.rows(50, 2, 2)
        expansion = Expansion(kernel, Z)
        before = expansion.predict(X, W)
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(expansion)).predict(X, W), before)

    def test_json_gives_the_kernel_back(self, kernel: Kernel) -> None:
        """By value."""
        assert kernel_from_json(json.loads(json.dumps(kernel.to_json()))) == kernel
        assert pickle.loads(pickle.dumps(kernel)) == kernel

    def test_shapes_that_do_not_fit_are_refused(self, kernel: Kernel) -> None:
        """Rows of another width, weights of another length, and arrays that are not matrices."""
        X, Z = self.rows(5, 0), self.rows(4, 1)
        with pytest.raises(UsageError, match="6 features and Z has 5"):
            kernel(X, Z[:, :5])
        with pytest.raises(UsageError, match="3 rows where Z has 4"):
            kernel.matvec(X, Z, np.ones(3))
        with pytest.raises(UsageError, match="1 dimensions"):
            kernel(X[0], Z)
