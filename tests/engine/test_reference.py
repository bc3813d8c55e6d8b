"""The largest eigenvalue, by the Lanczos method."""

import numpy as np
import pytest

from streamkern.engine.reference import Engine


@pytest.mark.parametrize("decay", [0.0, 1e-3, 0.05, 1.0])
def test_the_largest_eigenvalue_is_approached_from_below_in_few_products(decay: float):
    """A power iteration ends 2% below where the eigenvalues fall most slowly, and takes 34 products for the next."""
    spectrum, products = 3.0 / (1.0 + decay * np.arange(2000)), 0
    engine = Engine()

    def matvec(v: np.ndarray) -> np.ndarray:
        nonlocal products
        products += 1
        return spectrum * v

    top = engine.top_eigenvalue(matvec, len(spectrum))
    assert 0.985 * 3.0 <= top <= 3.0 * (1 + 1e-12)
    assert products <= 30


def test_the_largest_eigenvalue_of_extremes():
    engine = Engine()
    assert engine.top_eigenvalue(lambda v: 7.0 * v, 1) == pytest.approx(7.0)
    assert engine.top_eigenvalue(lambda v: 0.0 * v, 50) == 0.0
    assert np.isnan(engine.top_eigenvalue(lambda v: np.full_like(v, np.inf), 50))
    few = np.diag([1.0, 2.0, 5.0])  # as many products as there are eigenvalues
    assert engine.top_eigenvalue(lambda v: few @ v, 3) == pytest.approx(5.0)
