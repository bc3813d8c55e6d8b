import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamkern.rng import generator, normal_rows, philox4x32, row_hash

ROWS, COLUMNS = 20_000, 10
COUNT = ROWS * COLUMNS

integers = st.integers(-(2**70), 2**70)
row_ids = st.integers(-(2**63), 2**63 - 1)


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of two samples in standard errors: standard normal for independent ones."""
    return float(np.corrcoef(a.ravel(), b.ravel())[0, 1] * np.sqrt(a.size))


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    # Random123's known answers for philox4x32-10.
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]):
    words = philox4x32(np.array([counter, counter], np.uint32), np.array(key, np.uint32))
    assert words.dtype == np.uint32
    assert words.tolist() == [list(expected)] * 2


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    return normal_rows(seed=7, copy=3, row_ids=np.arange(ROWS), d=COLUMNS).astype(np.float64)


def test_noise_has_the_moments_of_a_standard_normal(noise: np.ndarray):
    # The standard errors of the first four moments of n normals: 1, √2, √15 and √96, over √n.
    moments = [np.mean(noise**k) for k in (1, 2, 3, 4)]
    errors = (np.array(moments) - [0, 1, 0, 3]) * np.sqrt(COUNT) / np.sqrt([1, 2, 15, 96])
    assert np.abs(errors).max() < 5


def test_noise_has_the_distribution_of_a_standard_normal_without_its_far_tails(noise: np.ndarray):
    from scipy import stats

    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-6
    assert np.abs(normal_rows(0, 0, np.arange(200_000), 4)).max() < np.sqrt(48 * np.log(2))


def test_columns_are_independent(noise: np.ndarray):
    scores = (np.corrcoef(noise.T) - np.eye(COLUMNS)) * np.sqrt(ROWS)
    assert np.abs(scores).max() < 5
    squares = (np.corrcoef(noise.T**2) - np.eye(COLUMNS)) * np.sqrt(ROWS)  # the two of a pair share a radius
    assert np.abs(squares).max() < 5


@pytest.mark.parametrize("lag", [1, 2, 64, 4096])
def test_rows_are_independent(noise: np.ndarray, lag: int):
    assert abs(correlation(noise[:-lag], noise[lag:])) < 5
    assert abs(correlation(noise[:-lag, :-1], noise[lag:, 1:])) < 5


@pytest.mark.parametrize(
    ("seed", "copy", "first"), [(7, 4, 0), (8, 3, 0), (7 + 2**32, 3, 0), (7, 3 + 2**31, 0), (7, 3, 2**32)]
)
def test_copies_seeds_and_row_ids_are_independent(noise: np.ndarray, seed: int, copy: int, first: int):
    other = normal_rows(seed, copy, np.arange(ROWS) + first, COLUMNS)
    assert abs(correlation(noise, other)) < 5
    assert abs(correlation(noise**2, other.astype(np.float64) ** 2)) < 5


@given(
    seed=integers,
    copy=st.integers(0, 2**32 - 1),
    ids=st.lists(row_ids, min_size=1, max_size=12),
    d=st.integers(1, 9),
    data=st.data(),
)
def test_noise_of_a_row_does_not_depend_on_its_company(seed, copy, ids, d, data):
    whole = normal_rows(seed, copy, np.array(ids), d)
    chosen = data.draw(st.lists(st.integers(0, len(ids) - 1), max_size=8))
    assert np.array_equal(normal_rows(seed, copy, np.array(ids)[chosen], d), whole[chosen])
    narrower = data.draw(st.integers(1, d))
    assert np.array_equal(normal_rows(seed, copy, np.array(ids), narrower), whole[:, :narrower])


# Hashes and generators decide which rows a split or a subsample takes: a changed value is another model for every user.
def test_row_hash_is_what_it_was():
    assert row_hash(np.array([0, 1, -1, 2**40]), 1, 2).tolist() == [
        4391446669911840083,
        940761850445385982,
        3402554212698385533,
        17327147031001803662,
    ]


@given(ids=st.sets(row_ids, min_size=1, max_size=50), key=st.lists(integers, max_size=3))
def test_row_hash_has_no_collisions_and_no_context(ids: set[int], key: list[int]):
    rows = np.array(sorted(ids))
    hashes = row_hash(rows, *key)
    assert len(np.unique(hashes)) == len(rows)
    assert hashes.tolist() == [int(row_hash(np.array([row]), *key)[0]) for row in rows]
    assert rows.tolist() == sorted(ids)  # the argument is not written to


def test_row_hash_bits_are_fair_and_independent():
    n = 50_000
    bits = np.unpackbits(row_hash(np.arange(n), 5).view(np.uint8).reshape(n, 8), axis=1).astype(np.float64)
    scores = (bits.mean(axis=0) - 0.5) * 2 * np.sqrt(n)
    assert np.abs(scores).max() < 5
    assert np.abs((np.corrcoef(bits.T) - np.eye(64)) * np.sqrt(n)).max() < 6  # 2,016 pairs
    other = np.unpackbits(row_hash(np.arange(n), 6).view(np.uint8).reshape(n, 8), axis=1).astype(np.float64)
    assert abs(correlation(bits, other)) < 5


def test_every_bit_of_a_row_id_changes_half_of_the_hash():
    rows = np.arange(2_000)
    for bit in range(63):
        changed = np.bitwise_count(row_hash(rows, 9) ^ row_hash(rows ^ (1 << bit), 9))
        assert abs(changed.mean() - 32) < 5 * 4 / np.sqrt(len(rows))  # 64 fair bits have a standard deviation of 4


def test_key_words_are_told_apart():
    keys = [(), (0,), (0, 0), (1,), (1, 0), (0, 1), (2**63,), (-1,)]
    assert len({int(row_hash(np.array([3]), *key)[0]) for key in keys}) == len(keys)


def test_generator_draws_what_it_drew():
    assert generator("centers", 5).integers(2**63) == 3014672037578216264


def test_generator_parts_are_told_apart():
    parts = [(), (1,), ("1",), ("ab",), ("a", "b"), ("", "ab"), (1, 1), (11,), (-1,), (2**200,)]
    assert len({int(generator(*part).integers(2**63)) for part in parts}) == len(parts)
    assert generator("split", np.int64(3)).random() == generator("split", 3).random()


def test_nothing_touches_the_global_generator():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    generator(1).random(10)
    normal_rows(1, 1, np.arange(10), 10)
    assert np.array_equal(np.random.get_state()[1], before)  # noqa: NPY002
