"""Targets become numbers, or an error that names the value, the row and what to do."""

import numpy as np
import pytest

from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan, Stream
from streamkern.data.targets import Classes, Continuous
from streamkern.errors import DataError

IDS = np.arange(100, 120)


@pytest.mark.parametrize(
    ("values", "y"),
    [
        (np.array([0, 1, 7]), np.array([7, 0, 1, 7])),
        (np.array([0, 1, 7]), np.array([7.0, 0.0, 1.0, 7.0])),
        (np.array([0, 1, 7]), np.array([7, 0, 1, 7], dtype=np.uint8)),
        (np.array([-1.5, 0.0, 2.5]), np.array([2.5, -1.5, 0.0, 2.5], dtype=np.float32)),
        (np.array([False, True]), np.array([True, False, False, True])),
        (np.array([0, 1]), np.array([True, False, False, True])),
        (np.array(["a", "bb", "ccc"]), np.array(["ccc", "a", "bb", "ccc"])),
        (np.array(["a", "bb", "ccc"]), np.array(["ccc", "a", "bb", "ccc"], dtype=object)),
        (np.array(["a", "bb"]), np.array(["a", "bb", "a", "bb"], dtype="U40")),
        (np.array([0, 1, 7]), np.array([[7], [0], [1], [7]])),
    ],
)
def test_labels_become_the_codes_of_equal_classes(values, y):
    encoding = Classes(values)
    codes = encoding.encode(y, IDS[:4], "here")
    assert codes.dtype == np.int64
    assert codes.shape == (4,)
    np.testing.assert_array_equal(encoding.values[codes], y.ravel())
    empty = encoding.encode(y[:0], IDS[:0], "here")
    assert empty.shape == (0,)


@pytest.mark.parametrize(
    ("values", "y", "shown"),
    [
        (np.array([0, 1, 7]), np.array([0, 3, 1]), "label 3 "),
        (np.array([0, 1, 7]), np.array([0, 9, 1]), "label 9 "),
        (np.array([0, 1, 7]), np.array([0, -9, 1]), "label -9 "),
        (np.array([0, 1, 7]), np.array([0, 0.5, 1]), "label 0.5 "),
        (np.array([0.0, 1.0]), np.array([0, np.nan, 1]), "label nan "),
        (np.array(["a", "bb"]), np.array(["a", "b", "bb"]), "label 'b' "),
        (np.array(["a", "bb"]), np.array(["a", "bbb", "bb"]), "label 'bbb' "),
        (np.array(["a", "bb"]), np.array(["a", "zz", "bb"], dtype=object), "label 'zz' "),
        (np.array(["1", "2"]), np.array(["1", "3", "1"]), "label '3' "),
    ],
)
def test_an_unknown_label_is_named_with_its_row_and_a_remedy(values, y, shown):
    with pytest.raises(DataError, match=shown) as caught:
        Classes(values).encode(y, IDS[:3], "file.zarr, chunk 4")
    assert caught.value.where == "file.zarr, chunk 4, row 101"
    assert caught.value.expected is not None
    assert repr(values[:1].tolist()[0]) in caught.value.expected
    assert caught.value.remedy is not None
    assert "leave the row out" in caught.value.remedy


@pytest.mark.parametrize(
    ("encoding", "y"),
    [
        (Classes(np.array([0, 1])), np.array(["0", "1"], dtype=object)),
        (Classes(np.array([0, 1])), np.array(["0", "1"])),
        (Classes(np.array(["0", "1"])), np.array([0, 1])),
        (Classes(np.array(["0", "1"])), np.array(["0", None], dtype=object)),
        (Classes(np.array([0, 1])), np.array([[0, 1], [1, 0]])),
        (Continuous(np.zeros(1)), np.zeros((2, 3))),
        (Continuous(np.zeros(1)), np.array(["1.5", "many"], dtype=object)),
    ],
)
def test_targets_of_another_width_or_kind_are_an_error_and_not_a_guess(encoding, y):
    with pytest.raises(DataError) as caught:
        encoding.encode(y, IDS[:2], "here")
    assert str(caught.value.where).startswith("here")


def test_many_classes_are_listed_in_short():
    with pytest.raises(DataError, match=r"11, \.\.\. \(1000 classes\)"):
        Classes(np.arange(1000)).encode(np.array([-1]), IDS[:1], "here")


@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool, object])
@pytest.mark.parametrize("shape", [(6,), (6, 1), (2, 3)])
def test_values_are_centred_in_float64(dtype, shape):
    y = np.array([0, 1, 1, 0, 1, 0]).reshape(shape).astype(dtype)
    c = 1 if len(shape) == 1 else shape[1]
    encoding = Continuous(np.full(c, 0.5), flat=len(shape) == 1)
    values = encoding.encode(y, IDS[: len(y)], "here")
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values, y.astype(float).reshape(len(y), c) - 0.5)
    assert encoding.encode(y[:0], IDS[:0], "here").shape == (0, c)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, None])
def test_a_target_that_is_not_finite_is_named_with_its_row(bad):
    y = np.array([[1.0, 2.0], [3.0, bad]], dtype=object if bad is None else float)
    with pytest.raises(DataError, match="NaN or infinite") as caught:
        Continuous(np.zeros(2)).encode(y, IDS[:2], "file, chunk 3")
    assert caught.value.where == "file, chunk 3, row 101"
    assert caught.value.remedy


def test_an_unknown_label_in_a_stream_or_scan_names_its_row(cut_source):
    y = np.zeros(30, np.int64)
    y[17] = 5
    assembly = Assembly(Dataset(cut_source([10, 10, 10], y=y)), Classes(np.array([0, 1])))
    with pytest.raises(DataError, match="label 5") as caught:
        Stream(assembly, lanes=1, block_rows=30).block((0, 0, 0))
    assert "row 17" in str(caught.value)
    with pytest.raises(DataError, match="label 5") as caught:
        Scan(assembly).block((1,))
    assert caught.value.where == "chunk 1, row 17"
