"""The average gradient outer product of rows in memory points along what the outputs change with."""

from __future__ import annotations

import numpy as np
import pytest

import streamkern as sk
from streamkern.selection.gradient_outer_product import gradient_outer_product

rng = np.random.default_rng(0)
X = rng.normal(size=(1000, 6)).astype(np.float32)
ALONG = np.array([3.0, 4.0, 0, 0, 0, 0]) / 5
Y = np.stack([np.sin(X @ ALONG), np.cos(X @ ALONG)], axis=1)


@pytest.mark.parametrize("kernel", [sk.Laplace("median"), sk.Laplace(4.0), sk.Laplace("median", norm=1)], ids=repr)
def test_its_top_eigenvector_is_the_direction(kernel: sk.Laplace) -> None:
    G = gradient_outer_product(X, Y, None, kernel, 0)
    _, vectors = np.linalg.eigh(G)
    assert abs(vectors[:, -1] @ ALONG) > 0.98


def test_a_feature_that_does_not_vary_has_no_gradient_and_changes_no_other() -> None:
    wider = np.insert(X, 2, 7.0, axis=1)
    G, plain = (gradient_outer_product(each, Y, None, sk.Laplace(4.0), 0) for each in (wider, X))
    assert not G[2].any()
    assert not G[:, 2].any()
    np.testing.assert_array_equal(np.delete(np.delete(G, 2, 0), 2, 1), plain)


def test_weights_say_which_rows_matter() -> None:
    """A tenth of the rows, of great weight, depends on the last feature, all others on the first two."""
    heavy = rng.random(len(X)) < 0.1
    targets = np.where(heavy, 2 * X[:, 5], X @ ALONG)[:, None].astype(np.float64)
    top = [
        np.linalg.eigh(gradient_outer_product(X, targets, w, sk.Laplace("median"), 0))[1][:, -1]
        for w in (None, np.where(heavy, 1000.0, 1.0))
    ]
    assert abs(top[0] @ ALONG) > 0.9
    assert abs(top[1][5]) > 0.9


def test_rows_that_are_all_alike_have_none() -> None:
    assert gradient_outer_product(np.ones((500, 3), np.float32), np.zeros((500, 1)), None, sk.Laplace(1.0), 0) is None
