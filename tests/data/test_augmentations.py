"""The library of augmentations: each row by row, against a plain loop, and through streams and solvers."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import streamkern as sk
from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, Scan, Stream
from streamkern.data.targets import Classes, Continuous
from streamkern.engine.elementwise import Loops
from streamkern.rng import normal_rows, uniform_rows
from streamkern.testing.augmentation import AugmentationSuite
from tests.augmentations import augmented, mixed


def swap_ends(X, U):
    """A user's function: the first and last features change places in about half of the rows."""
    chosen = U[:, 0] < 0.5
    X[chosen, 0], X[chosen, -1] = X[chosen, -1], X[chosen, 0].copy()
    return X


def wobble(X, U):
    """Another, that returns new rows."""
    return X + (U[:, :1] - 0.5)


AUGMENTATIONS = {
    "noise": sk.augment.GaussianNoise(0.3),
    "dropout": sk.augment.FeatureDropout(0.3, value=-1.0),
    "flip": sk.augment.HorizontalFlip((3, 4), 0.4),
    "flip colour": sk.augment.HorizontalFlip((2, 2, 3)),
    "crop": sk.augment.RandomCrop((4, 3), padding=2, value=0.5),
    "crop colour": sk.augment.RandomCrop((2, 2, 3), padding=1),
    "erase": sk.augment.RandomErasing((4, 3), 0.7, value=2.0),
    "erase colour": sk.augment.RandomErasing((2, 2, 3), area=(0.2, 0.9)),
    "function": sk.augment.Custom(swap_ends),
    "new rows": sk.augment.Custom(wobble, uniforms=1),
}


@pytest.mark.parametrize("augmentation", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
class TestConformance(AugmentationSuite):
    """Of every augmentation."""


@pytest.mark.parametrize("name", [name for name in AUGMENTATIONS if name not in ("function", "new rows")])
@settings(max_examples=40)
@given(n=st.integers(1, 20), seed=st.integers(-5, 1 << 66))
def test_rows_are_those_of_the_plain_loop(name, n, seed):
    augmentation = AUGMENTATIONS[name]
    X, ids, copies = AugmentationSuite().rows(n)
    made = AugmentationSuite().applied(augmentation, X, ids, copies, seed)
    rows = zip(X, ids.tolist(), copies.tolist(), strict=True)
    np.testing.assert_allclose(made, [augmented(augmentation, *row, seed) for row in rows], atol=2e-6)


def test_uniform_numbers_are_uniform_independent_and_not_those_of_the_noise():
    n = 20_000
    U = uniform_rows(1, 0, np.arange(n), 6)
    assert 0 < U.min() < U.max() < 1
    for column in U.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-4
    others = [uniform_rows(2, 0, np.arange(n), 6), uniform_rows(1, np.full(n, 1), np.arange(n), 6)]
    others += [normal_rows(1, 0, np.arange(n), 6), np.roll(U, 1, axis=0), np.roll(U, 1, axis=1)]
    for other in others:
        assert abs(np.corrcoef(U.ravel(), other.ravel())[0, 1]) < 5 / np.sqrt(U.size)
    copies = np.arange(n) % 3
    mixed_copies = uniform_rows(1, copies, np.arange(n), 6)
    for copy in range(3):
        alone = uniform_rows(1, copy, np.arange(n)[copies == copy], 6)
        np.testing.assert_array_equal(mixed_copies[copies == copy], alone)
    np.testing.assert_array_equal(uniform_rows(1, 0, np.arange(n), 3), U[:, :3])


def test_shares_are_as_asked():
    n, d = 4000, 12
    X, ids, copies = np.ones((n, d)), np.arange(n), np.zeros(n, np.int64)
    suite = AugmentationSuite()
    dropped = suite.applied(sk.augment.FeatureDropout(0.2), X, ids, copies) == 0
    assert abs(dropped.mean() - 0.2) < 5 * np.sqrt(0.16 / dropped.size)
    assert not (suite.applied(sk.augment.FeatureDropout(0.0), X, ids, copies) == 0).any()
    assert (suite.applied(sk.augment.FeatureDropout(1.0), X, ids, copies) == 0).all()
    ramp = np.tile(np.arange(12.0), (n, 1))
    flipped = suite.applied(sk.augment.HorizontalFlip((3, 4), 0.3), ramp, ids, copies)[:, 0] == 3
    assert abs(flipped.mean() - 0.3) < 5 * np.sqrt(0.21 / n)
    # A crop's shift is uniform among the (2 p + 1)² of them.
    spot = np.zeros((n, 25))
    spot[:, 12] = 1
    places = suite.applied(sk.augment.RandomCrop((5, 5), 2), spot, ids, copies).argmax(axis=1)
    assert stats.chisquare(np.bincount(places, minlength=25)).pvalue > 1e-4
    big = np.ones((n, 400))
    erased = suite.applied(sk.augment.RandomErasing((20, 20), 1.0, area=(0.1, 0.3)), big, ids, copies) == 0
    assert abs(erased.mean() - 0.2) < 0.01
    assert erased.mean(axis=1).min() > 0.08
    assert erased.mean(axis=1).max() < 0.33


def multiset(blocks):
    return sorted(row.tobytes() for block in blocks for row in block.X)


CHAIN = (
    sk.augment.GaussianNoise(0.1),
    sk.augment.HorizontalFlip((2, 2)),
    sk.augment.RandomCrop((2, 2), 1),
    sk.augment.MixUp(0.4, bank=7),
    sk.augment.RandomErasing((2, 2)),
    sk.augment.FeatureDropout(0.1),
    sk.augment.Custom(wobble),
)


@pytest.mark.slow
@settings(max_examples=25)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(sum),
    st.integers(1, 4),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_any_chunks_lanes_blocks_and_windows_give_the_same_augmented_rows(cut_source, sizes, lanes, block_rows, window):
    n = sum(sizes)
    data, whole = (Dataset(cut_source(s, d=4)).scale(1 / 16).augment(*CHAIN, rows=2 * n + n // 2) for s in (sizes, [n]))
    encoding, center = Classes(np.arange(10)), np.linspace(-1, 1, 4)
    stream = Stream(Assembly(data, encoding, center), lanes, block_rows, window_blocks=window)
    scan = Scan(Assembly(whole, encoding, center), block_rows=11)
    scanned = [scan.block((i,)) for i in range(len(scan))]
    for pass_ in (0, 3):
        streamed = [stream.block((pass_, lane, step)) for lane in range(lanes) for step in range(stream.steps)]
        assert multiset(streamed) == multiset(scanned)
        order = [np.lexsort(np.concatenate([b.X for b in blocks]).T) for blocks in (streamed, scanned)]
        y = [np.concatenate([b.y for b in blocks])[o] for blocks, o in zip((streamed, scanned), order, strict=True)]
        np.testing.assert_array_equal(y[0], y[1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_mixup_mixes_rows_and_targets_with_rows_of_its_bank(cut_source, dtype, task):
    source = cut_source([30, 20], d=3)
    data = Dataset(source).scale(0.5, 1.0).augment(sk.augment.MixUp(0.4, bank=9), copies=2, seed=6)
    encoding = Classes(np.arange(10)) if task == "classification" else Continuous(np.array([4.5]))
    center = np.array([1.0, 2.0, 3.0])
    scan = Scan(Assembly(data, encoding, center, np.dtype(dtype)), 50)
    bank = np.sort(data.plain().draw(9, 6))
    X = source.X * 0.5 + 1.0
    y = np.eye(10)[source.y] if task == "classification" else source.y[:, None] - 4.5
    for copy, blocks in enumerate(([0, 1], [2, 3])):
        for block in map(scan.block, ((i,) for i in blocks)):
            for row, target, i in zip(block.X, block.y, block.ids.tolist(), strict=True):
                np.testing.assert_allclose(row + center, mixed(0.4, X[i], X[bank], i, copy, 6), atol=2e-5)
                np.testing.assert_allclose(target, mixed(0.4, y[i], y[bank], i, copy, 6), atol=1e-12)


def test_the_bank_holds_chosen_rows_only_and_is_read_once(cut_source):
    source = cut_source([40] * 5)
    train, test = Dataset(source).split(0.5)
    kept = set(range(200)) - {i for i in range(200) if test.rules[0].keep(np.array([i]))[0]}
    data = train.augment(sk.augment.MixUp(1.0, bank=20))
    assembly = Assembly(data, Classes(np.arange(10)))
    bank = assembly._bank(0)
    assert len(bank.X) == 20
    allowed = {source.X[i].astype(np.float32).tobytes() for i in kept}
    assert {row.tobytes() for row in bank.X} <= allowed
    reads = sum(source.reads.values())
    assert assembly._bank(0) is bank
    np.testing.assert_array_equal(Assembly(data, center=1.0)._bank(0).X, bank.X)
    assert sum(source.reads.values()) == reads
    assert "_banks" not in pickle.loads(pickle.dumps(data)).__dict__
    everything = Assembly(train.augment(sk.augment.MixUp(1.0)), Classes(np.arange(10)))._bank(0)
    assert len(everything.X) == train.base_rows


def test_mixup_without_targets_mixes_rows_alone(cut_source):
    data = Dataset(cut_source([30])).augment(sk.augment.MixUp(1.0))
    bare, full = (Scan(Assembly(data, encoding), 30).block((0,)) for encoding in (None, Classes(np.arange(10))))
    assert bare.y is None
    np.testing.assert_array_equal(bare.X, full.X)
    np.testing.assert_allclose(full.y.sum(axis=1), 1.0)


def blobs(n=600, d=16):
    random = np.random.default_rng(0)
    y = random.integers(0, 3, n)
    return (random.normal(size=(n, d)) + 2.0 * np.eye(3, d)[y]).astype(np.float32), y


SOLVERS = [
    sk.EigenPro(epochs=2),
    sk.EigenPro(epochs=1, projection="delayed"),
    sk.Falkon(ridge=1e-5),
    sk.Direct(ridge=1e-5),
    sk.SGD(epochs=20),
    sk.SVRG(epochs=6),
]


@pytest.mark.slow
@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: solver.to_json()["name"])
def test_every_solver_learns_from_mixed_rows(solver):
    X, y = blobs()
    train = sk.from_arrays(X[:400], y[:400]).augment(sk.augment.MixUp(0.3), copies=3)
    model = sk.KernelClassifier(sk.Laplace(8.0), sk.Uniform(100), solver, threads=1, memory="4GiB").fit(train)
    assert model.score(X[400:], y[400:]) > 0.75


def test_a_function_is_described_by_its_code():
    def made(source, **bound):
        space = dict(bound)
        exec(source, space)
        return sk.augment.Custom(space["f"])

    one, same, other = (made(f"def f(X, U):\n    return X + {c}\n") for c in ("1", "1", "2"))
    assert one.to_json()["code"] == same.to_json()["code"] != other.to_json()["code"]
    data = sk.from_arrays(np.ones((4, 2)), np.arange(4))
    assert data.augment(one).fingerprint == data.augment(same).fingerprint != data.augment(other).fingerprint


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(sum), st.sampled_from(["float32", "float64"]),
    st.integers(-3, 1 << 70),
)  # fmt: skip
def test_rows_are_the_reference_noise_on_the_stored_rows(cut_source, sizes, dtype, seed):
    source, ids, center = cut_source(sizes, d=5), np.arange(sum(sizes)), np.linspace(-1, 1, 5)
    data = Dataset(source).scale(1 / 16, -1.0).augment(sk.augment.GaussianNoise(0.3), copies=2, seed=seed)
    scan = Scan(Assembly(data, center=center, dtype=np.dtype(dtype)), 11)
    made = np.concatenate([scan.block((i,)).X for i in range(len(scan))])
    assert made.dtype == dtype
    noise = [normal_rows(seed, copy, ids, 5) for copy in (0, 1)]
    np.testing.assert_allclose(made, np.tile(source.X / 16 - 1 - center, (2, 1)) + 0.3 * np.vstack(noise), atol=2e-6)


def test_stacked_noise_adds_variances_and_both_dtypes_agree(cut_source):
    n = 3000
    source = cut_source([n], X=np.zeros((n, 5), np.uint8), y=np.zeros(n, np.int64))
    data = Dataset(source).augment(sk.augment.GaussianNoise(3.0), sk.augment.GaussianNoise(4.0), seed=2)
    single, double = (Scan(Assembly(data, dtype=np.dtype(t)), n).block((0,)).X for t in ("float32", "float64"))
    assert abs(single.std() - 5) < 0.2
    np.testing.assert_allclose(single, double, atol=1e-5)


class Doubling:
    """Something that does not commute with the shift to the centre."""

    def apply(self, X, row_ids, copies, seed, backend):
        X *= 2

    def to_json(self):
        return {"name": "Doubling"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_augmentations_see_rows_as_they_were_scaled(cut_source, dtype):
    source = cut_source([20])
    data = Dataset(source).scale(0.5).augment(Doubling())
    block = Scan(Assembly(data, center=np.ones(3), dtype=np.dtype(dtype)), 20).block((0,))
    np.testing.assert_allclose(block.X, source.X - 1.0)


def test_zero_noise_changes_nothing(cut_source):
    source = cut_source([20])
    block = Scan(Assembly(Dataset(source).augment(sk.augment.GaussianNoise(0.0)), loops=Loops()), 20).block((0,))
    np.testing.assert_array_equal(block.X, source.X)
