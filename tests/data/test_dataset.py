"""A dataset is a description: immutable, cheap, and its fingerprint names the virtual rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.data.augment import GaussianNoise
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan
from streamkern.errors import DataError, UsageError


@given(st.lists(st.tuples(st.floats(-4, 4), st.floats(-4, 4)), max_size=4))
def test_scalings_compose(cut_source, scalings):
    data = Dataset(cut_source([20]))
    rows = data.source.X.astype(np.float64)
    for factor, shift in scalings:
        data = data.scale([factor] * 3, shift)
        rows = rows * factor + shift
    block = Scan(Assembly(data, dtype=np.dtype(np.float64)), 20).block((0,))
    np.testing.assert_allclose(block.X, rows, atol=1e-9 * max(1, np.abs(rows).max()))


@pytest.mark.parametrize(
    "arguments", [{"factor": np.nan}, {"shift": [1, 2]}, {"factor": np.inf}, {"shift": np.ones((3, 1))}]
)
def test_a_scaling_that_cannot_be_is_refused(cut_source, arguments):
    with pytest.raises(UsageError, match=next(iter(arguments))):
        Dataset(cut_source([5])).scale(**arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"copies": 0}, {"rows": 0}, {"copies": 1, "rows": 5}, {"copies": 2.5}, {"rows": "9"}, {"rows": 10**19},
     {"copies": 1 << 62}],
)  # fmt: skip
def test_augmenting_into_nothing_is_refused(cut_source, arguments):
    with pytest.raises(UsageError):
        Dataset(cut_source([5])).augment(**arguments)


@given(st.integers(1, 50), st.integers(1, 400))
def test_rows_copies_and_rounds_agree(cut_source, n, rows):
    data = Dataset(cut_source([n])).augment(rows=rows)
    assert len(data) == rows
    assert data._full_rounds == rows // n
    assert (data._last_round == ()) == (rows % n == 0)
    assert len(data.augment(copies=3)) == 3 * n
    assert len(data.plain()) == n


def test_the_fingerprint_names_the_virtual_rows(cut_source):
    base = Dataset(cut_source([20]))
    variants = [
        base,
        base.scale(2.0),
        base.scale(1.0, 2.0),
        base.scale([1.0, 1.0, 2.0]),
        base.split(0.2)[0],
        base.split(0.2)[1],
        base.split(0.2, seed=1)[0],
        base.sample(7),
        base.sample(7, seed=1),
        base.augment(copies=2),
        base.augment(rows=39),
        base.augment(GaussianNoise(1.0)),
        base.augment(GaussianNoise(2.0)),
        base.augment(GaussianNoise(1.0), seed=1),
        base.augment(GaussianNoise(1.0), GaussianNoise(1.0)),
    ]
    assert len({data.fingerprint for data in variants}) == len(variants)
    assert base.scale(2.0).fingerprint == Dataset(cut_source([20])).scale(2.0).fingerprint


def test_nothing_is_read_to_describe(cut_source):
    source = cut_source([20, 30])
    data = Dataset(source).split(0.3)[0].sample(9).augment(GaussianNoise(1.0), rows=25)
    assert (len(data), data._full_rounds, data.n_features, data.target) == (25, 2, 3, source.target)
    assert data.draw(3).shape == (3,)
    assert not source.reads


@pytest.mark.parametrize("rows", [None, 7])
def test_an_empty_dataset_has_no_rows_and_says_so(cut_source, rows):
    data = Dataset(cut_source([5])).split(1e-9)[1]
    data = data if rows is None else data.augment(rows=rows)
    assert (len(data), data._full_rounds, data._last_round) == (0, 0, ())
    with pytest.raises(DataError, match="empty"):
        data._require_rows()
