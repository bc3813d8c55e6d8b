"""``partition="auto"``, the default everywhere: as many leaves as keep every row a center, or one model."""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_friedman1

import streamkern as sk
from streamkern.evaluation.paired_errors import Errors
from streamkern.models import cut_tree
from streamkern.partition.one_or_leaves import decided, default_partition
from streamkern.report.page import write_report
from streamkern.report.run_directory import read_run
from streamkern.selection import kernel_search

N, D = 2_250, 5


def cut_beyond(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kernel_search, cut_tree):
        monkeypatch.setattr(module, "MAX_ROWS_AS_CENTERS", rows)


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables that a test has the time for are large: not every row is a center of one model."""
    cut_beyond(2_000, monkeypatch)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many rows as 3 GiB have room for, or fewer: enough for leaves to learn what one model does not."""
    cut_beyond(4_000, monkeypatch)


def table(n: int = N, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Waves in two halves, along directions of their own."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D)).astype(np.float32)
    along = np.where(X[:, 0] > 0, X[:, 1] + X[:, 2], X[:, 3] - X[:, 4])
    return X, np.sign(X[:, 0]) * np.sin(3 * along)


@pytest.mark.parametrize("model", [sk.KernelClassifier, sk.KernelRegressor])
def test_it_is_the_default(model: Any):
    assert inspect.signature(model).parameters["partition"].default == "auto"
    X, y = table(50)
    with pytest.raises(sk.UsageError, match="partition is 'never'"):
        model(partition="never").fit(X, (y > 0).astype(int))


@pytest.mark.slow
@pytest.mark.usefixtures("later")
def test_leaves_keep_every_row_a_center(tmp_path: Path):
    X, y = table(4_500, 2)
    rows = table(2000, 1)
    labels, truth = y > 0, rows[1] > 0
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = sk.KernelClassifier(memory="3GiB", threads=1).fit(frame, labels)
    assert model.result_.report["partition"]["leaves"] == 4
    one = sk.KernelClassifier(memory="3GiB", partition=None).fit(frame, labels)
    assert not isinstance(one.model_, sk.PartitionedMachine)
    new = pd.DataFrame(rows[0], columns=list("abcde"))
    assert 1 - model.score(new, truth) < 0.9 * (1 - one.score(new, truth))
    p = model.predict_proba(new)
    assert np.allclose(p.sum(axis=1), 1)
    assert model.feature_importances_.shape == (D,)
    model.save(tmp_path / "model")
    loaded = sk.load_model(tmp_path / "model")
    assert isinstance(loaded, sk.PartitionedMachine)
    assert np.array_equal(loaded.predict_proba(new), p)


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_a_pipeline_of_defaults_is_planned_run_resumed_and_reported_as_an_estimator(tmp_path: Path):
    X, y = table()
    data, how = sk.from_arrays(X, y > 0), {"memory": "3GiB", "threads": 1}
    model = sk.KernelClassifier(**how).fit(data)
    assert model.result_.report["partition"]["leaves"] == 4
    asked = sk.KernelClassifier(**how | {"threads": 2}, partition=sk.Partition()).fit(data)
    assert asked.model_.weights_sha256 == model.model_.weights_sha256
    pipeline, folder = sk.Pipeline(train=data), tmp_path / "run"
    assert (pipeline.partition, pipeline.dtype) == ("auto", "auto")
    assert any(choice.startswith("partition: about 4 leaves") for choice in sk.plan(pipeline, **how).choices)

    def stop(kind: str, fields: dict[str, Any]) -> None:
        if kind == "stage" and fields["name"].startswith("leaf-") and fields["state"] == "end":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sk.run(pipeline, folder, listeners=(stop,), **how)
    result = sk.run(pipeline, folder, **how)
    kept = {stage["name"].partition("-")[0] for stage in result["stages"] if stage["cached"]}
    assert "leaf" in kept
    made = sk.load_model(result.model_path)
    assert isinstance(made, sk.PartitionedMachine)
    assert made.weights_sha256 == model.model_.weights_sha256
    np.testing.assert_array_equal(made.predict_proba(X[:300]), model.predict_proba(X[:300]))
    assert "4 leaves" in write_report([read_run(folder)], tmp_path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_a_pipeline_of_defaults_is_retrained_in_the_leaves_of_its_champion(tmp_path: Path):
    def pipeline(far: float) -> sk.Pipeline:
        X, y = table()
        y = np.where(X[:, 0] > far, -y, y)
        return sk.Pipeline(train=sk.from_arrays(X, y), test=sk.from_arrays(*table(200, 1)), task="regression")

    how: dict[str, Any] = {"gate": "r2 > -10", "memory": "3GiB", "threads": 1}
    nights = [sk.retrain(pipeline(far), tmp_path / "models", **how) for far in (9.0, 9.0, 2.5)]
    assert [night.status for night in nights] == ["promoted", "unchanged", "promoted"]
    assert (nights[0]["start"], nights[2]["start"]) == ("cold", "warm")


@pytest.mark.usefixtures("soon")
def test_no_leaves_are_made_on_a_card_or_with_a_diagnosis():
    data = sk.from_arrays(*table())
    for pipeline, device in ((sk.Pipeline(data), "cuda"), (sk.Pipeline(data, diagnose=True), "auto")):
        assert decided(pipeline, 3 << 30, device).partition is None
    assert decided(sk.Pipeline(data), 3 << 30).partition == sk.Partition(rows=2_000, trees=2)


def test_a_model_is_better_by_more_than_the_standard_error_of_the_difference():
    rng = np.random.default_rng(0)
    hard, same = rng.exponential(size=1000), np.ones(1000)  # rows differ far more than models do
    one = Errors(hard, same)
    everywhere, somewhere = Errors(0.97 * hard, same), Errors(hard - 0.03 + rng.normal(size=1000), same)
    somewhere = Errors(somewhere.errors - somewhere.mean + one.mean - 0.02, same)
    apart = hard - somewhere.errors
    assert somewhere.doubt(one) == pytest.approx(apart.std() / 1000**0.5)
    assert somewhere.mean < 0.99 * one.mean < one.mean
    assert apart.mean() < somewhere.doubt(one)
    assert everywhere.beats(one)
    assert not somewhere.beats(one)
    assert not Errors(0.995 * hard, same).beats(one)  # sure, and too little
    # A row of weight 3 is a row three times, but for what three rows would know.
    w = rng.integers(1, 4, size=1000).astype(float)
    often = Errors(np.repeat(somewhere.errors, w.astype(int)), np.ones(int(w.sum())))
    assert Errors(somewhere.errors, w).mean == pytest.approx(often.mean)
    assert Errors(somewhere.errors, 5 * w).doubt(Errors(hard, 5 * w)) == pytest.approx(
        Errors(somewhere.errors, w).doubt(Errors(hard, w))
    )


@pytest.mark.slow
def test_a_small_table_is_one_model():
    X, y = table(1000)
    model, one = (sk.KernelRegressor(partition=how).fit(X, y) for how in ("auto", None))
    assert "partition" not in model.result_.report
    assert model.model_.weights_sha256 == one.model_.weights_sha256


LARGE = kernel_search.MAX_ROWS_AS_CENTERS + 1


def recipe(n: int = LARGE, d: int = 3, **how: Any) -> Any:
    X = np.zeros((n, d), dtype=np.float32)
    return sk.KernelRegressor(**how, dtype="float32")._recipe(sk.from_arrays(X, np.zeros(n)))


def test_a_table_whose_rows_are_not_all_centers_of_one_model_is_cut_into_leaves():
    assert default_partition(recipe(), 16 << 30) == sk.Partition(rows=LARGE - 1, trees=2)
    assert default_partition(recipe(validation=0.1, n=2 * LARGE), 16 << 30) == sk.Partition(rows=LARGE - 1, trees=2)
    for given in ({"kernel": "laplace"}, {"metric": sk.AGOP()}):
        assert default_partition(recipe(**given), 16 << 30) == default_partition(recipe(), 16 << 30)
    assert default_partition(recipe(n=100 * LARGE), 4 << 30) == sk.Partition(
        rows=cut_tree.MIN_FULL_KERNEL_ROWS, trees=2
    )


@pytest.mark.parametrize(
    ("how", "budget"),
    [
        ({"n": LARGE - 1}, 16 << 30),
        ({"d": 201}, 4 << 30),
        ({"kernel": "gaussian"}, 4 << 30),
        ({"kernel": sk.Laplace("median")}, 4 << 30),
        ({"kernel": sk.Laplace("median"), "metric": sk.AGOP()}, 4 << 30),
        ({"centers": 1000}, 4 << 30),
        ({"solver": sk.Direct()}, 4 << 30),
        ({"n": 5_000_000, "d": 2}, 4 << 30),  # it would take too long
        ({}, 300 << 20),  # it would not fit
    ],
)
def test_what_is_given_small_wide_or_too_large_is_one_model(how: dict[str, Any], budget: int):
    assert default_partition(recipe(**how), budget) is None


def test_augmented_rows_are_one_model():
    made = recipe()
    assert (
        default_partition(replace(made, train=made.train.augment(sk.augment.GaussianNoise(0.1), copies=2)), 4 << 30)
        is None
    )


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_rows_are_added_to_one_model():
    X, y = table()
    model = sk.KernelRegressor(centers=100).partial_fit(X, y)
    assert "partition" not in model.result_.report
    assert sk.KernelRegressor().partial_fit(X, y).partial_fit(X[:10], y[:10]).model_.sums is not None


@pytest.mark.slow
@pytest.mark.usefixtures("later")
def test_a_few_more_rows_than_one_model_may_have_are_hardly_a_loss():
    """Two leaves that share half of their rows take the place of one model: in less time."""
    (X, y), (new, truth) = (make_friedman1(n, noise=1.0, random_state=seed) for n, seed in ((4_040, 0), (6_000, 1)))
    few, more = (sk.KernelRegressor(memory="3GiB").fit(X[:n].astype(np.float32), y[:n]) for n in (3_960, 4_040))
    assert "partition" not in few.result_.report
    assert more.result_.report["partition"]["leaves"] == 4
    errors = [np.square(model.predict(new.astype(np.float32)) - truth).mean() for model in (few, more)]
    assert errors[1] < 1.05 * errors[0]


def test_one_leaf_of_all_rows_has_the_kernel_of_one_model():
    X, y = table()
    models = [sk.KernelRegressor(memory="3GiB", partition=given).fit(X, y) for given in (None, sk.Partition(leaves=1))]
    assert models[0].model_.kernel == models[1].model_.kernel
    assert models[0].result_.report["kernel"] == models[1].result_.report["kernel"]


@pytest.mark.parametrize("rows", [200, 700])
def test_all_leaves_have_the_kernel_that_one_search_has_chosen(rows: int):
    """Whatever their size: a choice on a sample of all rows is as good for each of them, and as sure as it can be."""
    X, y = table()
    model = sk.KernelRegressor(memory="3GiB", partition=sk.Partition(rows=rows)).fit(X, y)
    found, leaves = model.result_.report["kernel"], model.model_.leaves
    made = [leaves.model(leaf) for leaf in range(model.result_.report["partition"]["leaves"])]
    assert len(made) > 2
    assert {str(one.kernel.to_json()) for one in made} == {str(found["kernel"])}
    assert found["rows"] > rows  # more than a leaf has
    assert model.feature_importances_.sum() == pytest.approx(1)
