"""Preprocessing: each step against plain NumPy, the same under any chunking, and kept by the model."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkern as sk
from streamkern.data.dataset import Dataset
from streamkern.data.encoders import Encode
from streamkern.data.row_order import Assembly, Scan, Stream
from streamkern.data.targets import Classes
from streamkern.data.transforms import load, projection_matrix
from streamkern.errors import DataError, ModelFormatError, UsageError
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.fitting.preparation import fit_step, prepare
from streamkern.fitting.stage import Runner
from streamkern.preprocessing import category_steps
from streamkern.preprocessing import steps as preprocess
from streamkern.preprocessing.steps import with_expected_width
from streamkern.rng import normal_rows, uniform_rows
from tests.data.test_automatic import Recipe


@pytest.fixture(scope="module")
def threads():
    with ThreadsExecutor(2) as executor:
        yield executor


def prepared(train, steps, threads, scaling=None) -> Dataset:
    return prepare(Recipe(train, "classification", steps, scaling=scaling), threads, Runner())[0]


def rows_of(data, dtype="float64", block_rows=7):
    scan = Scan(Assembly(data, dtype=np.dtype(dtype)), block_rows)
    return np.concatenate([scan.block((i,)).X for i in range(len(scan))])


def table(n=200, seed=0):
    """Numbers with gaps, categories as numbers, and a constant column: float64, shape (n, 5)."""
    random = np.random.default_rng(seed)
    X = np.column_stack([
        random.normal(5.0, 3.0, n), random.integers(0, 4, n) * 10.0, random.exponential(2.0, n),
        random.integers(3, 6, n) * 1.0, np.full(n, 2.5),
    ])  # fmt: skip
    X[random.random(n) < 0.2, 0] = np.nan
    X[random.random(n) < 0.1, 2] = np.nan
    return X


def filled(X, how):
    return np.where(np.isnan(X), how(X, axis=0), X)


def one_hot(X, columns):
    parts = [
        (X[:, j : j + 1] == np.unique(X[:, j])).astype(float) if j in columns else X[:, j : j + 1]
        for j in range(X.shape[1])
    ]
    return np.concatenate(parts, axis=1)


def standardised(X):
    spread = X.std(axis=0)
    return (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0)


def ranged(X):
    spread = np.ptp(X, axis=0)
    return (X - X.min(axis=0)) / np.where(spread > 0, spread, 1.0)


def unit(X):
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    return X / np.where(norms > 0, norms, 1.0)


def ranks(X, j):
    X = X.copy()
    X[:, j] = np.searchsorted(np.unique(X[:, j]), X[:, j])
    return X


MEAN = sk.Impute("mean")
CHAINS = {
    "mean": ((MEAN,), lambda X: filled(X, np.nanmean)),
    "median": ((sk.Impute("median"),), lambda X: filled(X, np.nanmedian)),
    "constant": ((sk.Impute("constant", -7.0),), lambda X: np.nan_to_num(X, nan=-7.0)),
    "standardise": ((MEAN, sk.Standardise()), lambda X: standardised(filled(X, np.nanmean))),
    "range": ((MEAN, sk.UnitRange()), lambda X: ranged(filled(X, np.nanmean))),
    "one-hot": ((MEAN, sk.OneHot((1, 3))), lambda X: one_hot(filled(X, np.nanmean), (1, 3))),
    "ordinal": ((MEAN, sk.Ordinal((1,))), lambda X: ranks(filled(X, np.nanmean), 1)),
    "unit rows": ((MEAN, sk.Normalise()), lambda X: unit(filled(X, np.nanmean))),
    "scaled, then unit rows": (
        (MEAN, sk.Standardise(), sk.Normalise(), sk.UnitRange()),
        lambda X: ranged(unit(standardised(filled(X, np.nanmean)))),
    ),
    "two scalings": ((MEAN, sk.UnitRange(), sk.Standardise()), lambda X: standardised(ranged(filled(X, np.nanmean)))),
    "projection": (
        (MEAN, sk.RandomProjection(3, seed=4)),
        lambda X: filled(X, np.nanmean) @ normal_rows(4, 0, np.arange(5), 3) / np.sqrt(3),
    ),
    "all": (
        (
            MEAN,
            sk.OneHot((1,)),
            sk.Ordinal((6,)),
            sk.Standardise(),
            sk.RandomProjection(6, density=0.5),
            sk.UnitRange(),
        ),
        lambda X: ranged(
            standardised(ranks(one_hot(filled(X, np.nanmean), (1,)), 6))
            @ np.asarray(projection_matrix(8, 6, 0.5, 0, np.dtype(float)).todense())
        ),
    ),
}


@pytest.mark.parametrize(("steps", "plain"), CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("sizes", [[200], [30, 0, 1, 169]], ids=len)
def test_steps_are_their_plain_counterparts(cut_source, threads, steps, plain, sizes):
    X = table()
    data = prepared(Dataset(cut_source(sizes, X=X)), steps, threads)
    wanted = plain(X)
    assert data.n_features == wanted.shape[1]
    np.testing.assert_allclose(rows_of(data), wanted, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(rows_of(data, "float32"), wanted, rtol=1e-5, atol=2e-6)


@settings(max_examples=20)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(sum),
    st.integers(1, 3),
    st.integers(1, 9),
)
def test_streams_deliver_prepared_rows_whatever_the_order(cut_source, threads, sizes, lanes, block_rows):
    X = table(sum(sizes))
    steps = (MEAN, sk.OneHot((1, 3)), sk.Normalise())
    fitted = prepared(Dataset(cut_source([200], X=table())), steps, threads)
    data = Dataset(cut_source(sizes, X=X)).augment(sk.augment.GaussianNoise(0.1), copies=2)._prepared_like(fitted)
    assert len(data) == 2 * sum(sizes)
    stream = Stream(Assembly(data), lanes, block_rows, window_blocks=2)
    streamed = [stream.block((0, lane, step)) for lane in range(lanes) for step in range(stream.steps)]
    whole = Dataset(cut_source([sum(sizes)], X=X)).augment(sk.augment.GaussianNoise(0.1), copies=2)._prepared_like(data)
    scanned = rows_of(whole, "float32", 11)
    assert sorted(row.tobytes() for block in streamed for row in block.X) == sorted(row.tobytes() for row in scanned)


def test_scaling_that_a_data_set_has_comes_first(cut_source, threads):
    X = np.random.default_rng(0).normal(3.0, 2.0, (100, 3))
    data = Dataset(cut_source([60, 40], X=X)).scale(0.5, [1.0, 2.0, -9.0])
    for steps in ((sk.Standardise(),), (sk.Normalise(), sk.Standardise()), (MEAN, sk.Standardise())):
        own = X * 0.5 + [1.0, 2.0, -9.0]
        wanted = standardised(unit(own) if isinstance(steps[0], sk.Normalise) else own)
        np.testing.assert_allclose(rows_of(prepared(data, steps, threads)), wanted, atol=1e-9)
    backwards = Dataset(cut_source([100], X=X)).scale(-2.0)
    np.testing.assert_allclose(rows_of(prepared(backwards, (sk.UnitRange(),), threads)), ranged(-2.0 * X), atol=1e-9)


def test_standard_scaling_is_short_for_a_last_step(cut_source, threads):
    data = Dataset(cut_source([60, 40]))
    one, other = prepared(data, (), threads, scaling="standard"), prepared(data, (sk.Standardise(),), threads)
    assert one.fingerprint == other.fingerprint != data.fingerprint


def test_scaling_shares_the_sweep_of_the_statistics(cut_source, threads):
    source = cut_source([10] * 8)
    recipe = Recipe(Dataset(source), "classification", (sk.UnitRange(), sk.Standardise()), scaling=None)
    swept = []

    class Counted(Runner):
        def keep(self, name, key, compute):
            swept.append(name)
            return compute()

    prepare(recipe, threads, Counted())
    assert swept == ["statistics"]


def test_a_mean_keeps_its_digits(cut_source, threads):
    X = 1e9 + np.random.default_rng(0).random((3000, 2))
    X[::7, 0] = np.nan
    data = Dataset(cut_source([1000, 2000], X=X))
    (made,) = fit_step(data, MEAN, threads)
    assert np.abs(made.values - np.nanmean(X.astype(np.longdouble), axis=0)).max() < 1e-6


def test_medians_of_large_sets_are_those_of_a_sample(cut_source, threads, monkeypatch):
    X = np.random.default_rng(0).normal(size=(3000, 2))
    data = Dataset(cut_source([1000, 2000], X=X))
    monkeypatch.setattr(preprocess, "MEDIAN_BYTES", 16 * 500)
    step = sk.Impute("median")
    ids = step.only(data)
    assert len(ids) == 500
    np.testing.assert_array_equal(fit_step(data, step, threads)[0].values, np.median(X[ids], axis=0))


def test_columns_go_by_name_and_features_keep_theirs(threads):
    X = np.array([[1, 10, 3], [2, 20, 4], [1, 30, 3]], np.int16)
    data = sk.from_arrays(X, np.array([0, 1, 0]), columns=["brand", "price", "kind"])
    made = prepared(data, (sk.OneHot(("kind", "brand")), sk.Ordinal(("price",)), sk.Standardise()), threads)
    assert made.columns == ("brand=1", "brand=2", "price", "kind=3", "kind=4")
    assert prepared(data, (sk.RandomProjection(2),), threads).columns is None
    assert [f.n_in for f in made.transforms] == [3, 5]
    assert sk.from_arrays(X).columns is None


def prepared_like(cut_source, threads, X, other, step):
    """Other rows, as a step that was fitted to rows X makes them."""
    fitted = prepared(Dataset(cut_source([len(X)], X=X)), (step,), threads)
    return rows_of(Dataset(cut_source([len(other)], X=other))._prepared_like(fitted))


def test_unknown_categories_are_an_error_or_nothing(cut_source, threads):
    X = np.array([[1.0, 7.0], [2.0, 8.0], [1.0, 9.0]])
    other = np.array([[1.0, 7.0], [3.0, 8.5]])
    for step, rows in (
        (sk.OneHot((0,), unknown="ignore"), [[1, 0, 7], [0, 0, 8.5]]),
        (sk.Ordinal((1,), unknown="ignore"), [[1, 0], [3, -1]]),
    ):
        np.testing.assert_array_equal(prepared_like(cut_source, threads, X, other, step), rows)
    with pytest.raises(DataError, match="The value 3 of column '0' was not among the categories") as caught:
        prepared_like(cut_source, threads, X, other, sk.OneHot((0,), unknown="error"))
    assert caught.value.where == "chunk 0, row 1"


def test_a_missing_category_is_one_of_its_own_and_an_unknown_one_counts_as_missing(cut_source, threads):
    X = np.array([[1.0], [2.0], [np.nan]])
    other = np.array([[3.0], [np.nan], [2.0]])
    for step, rows in ((sk.OneHot((0,)), [[0, 0, 1], [0, 0, 1], [0, 1, 0]]), (sk.Ordinal((0,)), [[2], [2], [1]])):
        np.testing.assert_array_equal(prepared_like(cut_source, threads, X, other, step), rows)


def test_missing_values_are_marked_by_indicators_after_all_features(cut_source, threads):
    X = np.array([[1.0, 5.0, 1.0], [np.nan, 6.0, 2.0], [3.0, 7.0, 4.0]])
    for policy, fill in (("mean", 2.0), ("median", 2.0), ("constant", 0.0)):
        fitted = prepared(
            Dataset(cut_source([2, 1], X=X)), (sk.Impute(policy, columns=(0, 1), indicator=True),), threads
        )
        made = [[1, 5, 1, 0], [fill, 6, 2, 1], [3, 7, 4, 0]]
        np.testing.assert_array_equal(rows_of(fitted), made)


def test_large_integers_are_told_apart_as_categories(cut_source, threads):
    X = np.array([[1 << 40, 0], [(1 << 40) + 1, 1]], np.int64)
    fitted = prepared(Dataset(cut_source([2], X=X)), (sk.OneHot((0,)),), threads)
    np.testing.assert_array_equal(rows_of(fitted, "float32"), [[1, 0, 0], [0, 1, 1]])


def test_projections_keep_norms_and_depend_on_their_seed():
    d, k = 300, 400
    for density in (None, 0.2):
        R = projection_matrix(d, k, density, 1, np.dtype(np.float64))
        R = R if density is None else np.asarray(R.todense())
        assert abs(R.mean()) < 5 / np.sqrt(d * k * k)
        assert abs((R**2).mean() * k - 1) < 0.03
        if density is not None:
            assert abs((R != 0).mean() - density) < 0.01
            u = uniform_rows(1, 0, np.arange(d), k)
            signs = np.where(u < 0.1, 1, np.where(u > 0.9, -1, 0)) / np.sqrt(0.2 * k)
            np.testing.assert_allclose(R, signs)
        X = np.random.default_rng(0).normal(size=(40, d))
        assert np.abs(np.linalg.norm(X @ R, axis=1) / np.linalg.norm(X, axis=1) - 1).max() < 0.2
        other = projection_matrix(d, k, density, 2, np.dtype(np.float64))
        assert np.any((other if density is None else other.todense()) != R)


def test_an_unknown_transform_is_refused():
    with pytest.raises(ModelFormatError, match="'Quantile' is not known"):
        load([{"name": "Quantile"}], {})


def labels(X):
    return (np.nan_to_num(X[:, 0], nan=5.0) > 5).astype(int) + (X[:, 1] > 15)


@pytest.mark.parametrize("name", CHAINS)
def test_a_model_keeps_its_preprocessing(tmp_path, name):
    steps, plain = CHAINS[name]
    X, more = table(300), table(100, 1)
    y = labels(X)
    settings = {"kernel": sk.Laplace(5.0), "centers": 60, "solver": sk.Direct(1e-6), "threads": 1, "memory": "4GiB"}
    model = sk.KernelClassifier(**settings, preprocess=steps).fit(X, y)
    assert model.n_features_in_ == model.model_.n_features == 5
    by_hand = sk.KernelClassifier(**settings).fit(plain(X), y)
    np.testing.assert_allclose(model.model_.decision_function(X), by_hand.model_.decision_function(plain(X)), atol=1e-6)
    model.save(tmp_path / "model.zarr")
    loaded = sk.load_model(tmp_path / "model.zarr")
    np.testing.assert_array_equal(loaded.decision_function(more), model.model_.decision_function(more))
    np.testing.assert_array_equal(loaded.predict(more), model.predict(more))
    sk.write_zarr(tmp_path / "more.zarr", more)
    np.testing.assert_array_equal(loaded.decision_function(tmp_path / "more.zarr"), loaded.decision_function(more))


def test_a_regressor_and_a_validation_set_are_prepared_too():
    X = table(300)
    y = np.nan_to_num(X[:, 0], nan=5.0)
    model = sk.KernelRegressor(
        sk.Laplace(3.0), 100, sk.EigenPro(epochs=4, patience=2), validation=0.2, preprocess=(MEAN, sk.OneHot((1,))),
        scaling="standard", threads=1, memory="4GiB",
    ).fit(X, y)  # fmt: skip
    assert model.score(X, y) > 0.9
    data = sk.from_arrays(X, y)
    assert model.score(data) == pytest.approx(model.score(X, y), abs=1e-6)


def test_a_missing_value_is_an_error_without_a_policy():
    X = table(100)
    settings = {"threads": 1, "memory": "4GiB", "centers": 10}
    with pytest.raises(DataError, match="A feature is NaN") as caught:
        sk.KernelClassifier(**settings).fit(X, labels(X))
    assert "sk.Impute" in caught.value.remedy
    with pytest.raises(DataError, match="A feature is NaN"):
        sk.KernelClassifier(**settings, scaling="standard").fit(X, labels(X))
    X[:, 4] = np.nan
    for policy in ("mean", "median"):
        with pytest.raises(DataError, match="Feature 4 has no value in any row"):
            sk.KernelClassifier(**settings, preprocess=(sk.Impute(policy),)).fit(X, labels(X))
    X[:, 4], X[7, 0] = 0.0, np.inf
    for policy in ("mean", "median", "constant"):
        with pytest.raises(DataError, match="A feature is infinity"):
            sk.KernelClassifier(**settings, preprocess=(sk.Impute(policy),)).fit(X, labels(X))


def test_too_many_categories_are_refused(cut_source, threads, monkeypatch):
    monkeypatch.setattr(category_steps, "MAX_CATEGORIES", 20)
    X = np.arange(60.0).reshape(30, 2)
    for sizes in ([30], [15, 15]):  # within a block, and over several
        with pytest.raises(DataError, match="Column '1' has more than 20 different values"):
            fit_step(Dataset(cut_source(sizes, X=X)), sk.OneHot((1,)), threads)


def test_widths_are_expected_from_the_first_chunk_and_of_projections_without_reading(cut_source):
    source = cut_source([50], X=table(50))
    data = Dataset(source)
    steps = (MEAN, sk.Ordinal((1,)), sk.OneHot((3,)), sk.Standardise(), sk.Normalise())
    assert with_expected_width(data, steps).n_features == 4 + len(np.unique(table(50)[:, 3]))
    assert with_expected_width(data, steps).n_features == 7
    assert dict(source.reads) == {0: 1}
    source.reads.clear()
    wide = with_expected_width(data, (sk.RandomProjection(50), sk.RandomProjection(8)))
    assert (wide.n_features, wide._widest) == (8, 50)
    assert not source.reads


def test_a_plan_and_a_footprint_know_the_projected_width(tmp_path):
    X = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    pipe = sk.Pipeline(sk.from_arrays(X, y), centers=sk.Uniform(50), preprocess=(sk.RandomProjection(3),))
    result = sk.run(pipe, tmp_path / "run", memory="4GiB", threads=1)
    assert result["status"] == "done"
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["preprocess"] == [{"name": "RandomProjection", "components": 3, "density": None, "seed": 0}]
    with pytest.raises(sk.errors.PlanRefusedError):
        sk.run(
            sk.Pipeline(pipe.train, centers=sk.Uniform(50), preprocess=(sk.RandomProjection(1_000_000),)),
            tmp_path / "wide", memory="512MiB", threads=1,
        )  # fmt: skip


@pytest.mark.parametrize("density", [None, 0.1])
def test_what_making_rows_holds_is_foreseen(density):
    X = np.zeros((4000, 500), np.uint8)
    data = sk.from_arrays(X, np.arange(4000) % 2).augment(sk.augment.MixUp(0.3, bank=3000))
    data = with_expected_width(data, (sk.RandomProjection(700, density=density),))
    assembly = Assembly(data, Classes(np.arange(2)))
    scan = Scan(assembly, 8)
    projection_matrix.cache_clear()
    tracemalloc.start()
    scan.block((0,))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.3 * data._held_bytes(4, 2) < peak < data._held_bytes(4, 2) + 3000 * 8 * 1200


def test_a_run_keeps_what_it_learnt_and_predicts_alike(tmp_path):
    X = table(400)
    train, test = sk.from_arrays(X, labels(X)).split(0.25)
    steps = (MEAN, sk.OneHot((1,)), sk.UnitRange())

    def pipeline(preprocess):
        return sk.Pipeline(
            train, test=test, kernel=sk.Laplace(3.0), centers=sk.Uniform(80), solver=sk.Direct(1e-6),
            preprocess=preprocess, name="prepared",
        )  # fmt: skip

    first = sk.run(pipeline(steps), tmp_path / "run", memory="4GiB", threads=1)
    again = sk.run(pipeline(steps), tmp_path / "run", memory="4GiB", threads=1)
    assert [stage["name"] for stage in again["stages"]][:3] == ["preprocess-impute", "preprocess-onehot", "statistics"]
    assert all(stage["cached"] for stage in again["stages"] if stage["name"] not in ("save",))
    assert again["weights_sha256"] == first["weights_sha256"]
    assert first["metrics"]["test"]["accuracy"] > 0.8
    other = sk.run(pipeline((sk.Impute("median"), *steps[1:])), tmp_path / "run", memory="4GiB", threads=1)
    assert not other["stages"][0]["cached"]
    model = sk.load_model(tmp_path / "run" / "model.zarr")
    assert model.score(test)["accuracy"] == other["metrics"]["test"]["accuracy"]


def test_columns_that_are_not_there_are_refused(threads):
    named = sk.from_arrays(np.ones((4, 2)), np.arange(4) % 2, columns=["a", "b"])
    for columns, error, message in (
        ((2,), UsageError, "no column 2"),
        (("c",), DataError, "'c' is not there"),
        (("a", 0), UsageError, "given twice"),
    ):
        with pytest.raises(error, match=message):
            fit_step(named, sk.OneHot(columns), threads)


def test_a_transform_belongs_to_its_width_and_comes_before_augmentation(cut_source):
    data = Dataset(cut_source([5]))
    fitted = Encode(4, (0,), (np.array([1.0]),), True, "error")
    with pytest.raises(UsageError, match="takes 4 features and the rows have 3"):
        data.transform(fitted)
    with pytest.raises(UsageError, match="augmented already"):
        data.augment(sk.augment.GaussianNoise(0.1)).transform(fitted)
