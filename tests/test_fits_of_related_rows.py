"""A fit to rows with a time or a group holds out, encodes and calibrates as new groups or the future will be met."""

import numpy as np
import pandas as pd
import pytest
import sklearn
from scipy import stats
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import GridSearchCV, GroupKFold, TimeSeriesSplit, cross_val_score

import streamkern as sk
from streamkern.data.dataset import Dataset
from streamkern.preprocessing import category_steps
from streamkern.registry import model_comparison
from streamkern.selection import learned_metric
from streamkern.serving.predict_files import evaluate


def table(n: int, groups: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    group = rng.integers(0, groups, n)
    X = rng.normal(size=(groups, 2))[group] + 0.3 * rng.normal(size=(n, 2))
    frame = pd.DataFrame({
        "a": X[:, 0], "b": X[:, 1], "code": [f"c{i}" for i in rng.integers(0, 60, n)], "group": group,
        "day": rng.permutation(n) // 3,
    })  # fmt: skip
    return frame, np.sin(X[:, 0]) + rng.normal(size=groups)[group] + 0.2 * rng.normal(size=n)


class Seen:
    """The splits that were made, and the folds that rows were encoded by."""

    def __init__(self) -> None:
        self.splits: list[tuple[Dataset, Dataset]] = []
        self.folds: list[object] = []

    def require(self) -> None:
        assert self.splits
        for rest, tested in self.splits:
            assert rest.roles is not None, "a split at random"
            a, b = (rest.roles.of_rows(np.concatenate(list(side.row_ids()))) for side in (rest, tested))
            if a.group is not None:
                assert not set(a.group) & set(b.group)
            if a.time is not None:
                assert a.time.max() < b.time.min()
        assert None not in self.folds


@pytest.fixture
def seen(monkeypatch):
    found = Seen()
    split, fold = Dataset.split, category_steps.fold_numbers

    def splitting(self, *args, **kwargs):
        found.splits.append(split(self, *args, **kwargs))
        return found.splits[-1]

    def folding(ids, folds, rows=None):
        found.folds.append(rows)
        return fold(ids, folds, rows)

    def leaving_out(*args, **kwargs):
        raise AssertionError("rows are left out one by one")

    monkeypatch.setattr(Dataset, "split", splitting)
    monkeypatch.setattr(category_steps, "fold_numbers", folding)
    monkeypatch.setattr(learned_metric, "left_out_solutions", leaving_out)
    return found


ROLES = {"time": ["day"], "group": ["group"], "both": ["day", "group"]}


@pytest.mark.parametrize("named", ROLES)
@pytest.mark.parametrize("kind", ["few", "many", "classes", "leaves", "steps", "metric", "tuned", "on disk"])
def test_no_split_of_a_fit_separates_a_group_or_uses_the_future(kind, named, seen, tmp_path):
    X, y = table(260 if kind == "few" else 2400, 80)
    roles = {role: name for role, name in (("time", "day"), ("group", "group")) if name in ROLES[named]}
    if kind == "classes":
        y = np.where(y > 0, "yes", "no")
    if kind == "on disk":
        X.assign(y=y).to_parquet(tmp_path / "t.parquet", row_group_size=500)
        data = sk.open_dataset(tmp_path / "t.parquet", "y", columns=["a", "b", "code"], **roles)
    else:
        data = sk.from_arrays(X, y, columns=["a", "b", "code"], **roles)
    given = {
        "leaves": {"partition": sk.Partition(rows=500)}, "metric": {"metric": sk.AGOP(rounds=1), "centers": 100},
        "steps": {"solver": sk.EigenPro(epochs=2, patience=1), "validation": 0.2, "kernel": sk.Laplace("median"),
                  "centers": 200,
                  "preprocess": (sk.TargetEncode(("code",)),)},
    }.get(kind, {})  # fmt: skip
    task = "classification" if kind == "classes" else "regression"
    pipeline = sk.Pipeline(data, task=task, **given)
    if kind == "tuned":
        sk.tune(pipeline, rows=800)
    else:
        result = sk.run(pipeline, tmp_path / "run")
        model = sk.load_model(tmp_path / "run" / "model.zarr")
        source = None if model.calibration is None else model.calibration.facts["source"]
        assert source in ("validation", "leave-group-out", *([None] if kind == "few" else []))
        assert (source == "leave-group-out") <= (named == "group")
        assert result["status"] == "done"
    seen.require()


@pytest.mark.parametrize("classes", [False, True])
def test_targets_of_a_group_or_the_future_do_not_enter_a_row(classes):
    X, y = table(1200, 40)
    y = np.where(y > 0, 1, 0) if classes else y
    # Without smoothing no mean of all rows enters, which other rows of every fold may change.
    step = sk.TargetEncode(("code",), smooth=0.0, task="classification" if classes else "regression")

    def encoded(targets: np.ndarray, **roles: str) -> tuple[np.ndarray, np.ndarray]:
        data = sk.from_arrays(X, targets, columns=["code"], **roles)
        contribution, ids = step.contribution(data), np.arange(len(X))
        rows = category_steps.RawRows(data.source.read(0).X, targets, ids, None)
        (transform,) = step.fitted(data, contribution((rows, ""), None))
        return transform.apply(data.source.read(0).X.copy(), ids, ""), data.roles.folds((), step.folds)(ids)

    for roles, hidden in (
        ({"group": "group"}, lambda fold, k: fold == k),
        ({"time": "day"}, lambda fold, k: fold >= k),
        ({"time": "day", "group": "group"}, lambda fold, k: (fold // 5 >= k // 5) | (fold % 5 == k % 5)),
    ):
        before, fold = encoded(y, **roles)
        for k in range({1: 1, 2: 5}[len(roles)], fold.max() + 1):  # the first fold in time has a mean of its own rows
            mine, hides = fold == k, hidden(fold, k)
            after, _ = encoded(np.where(hides, 1 - y if classes else y + 100.0, y), **roles)
            np.testing.assert_allclose(after[mine], before[mine], atol=1e-9)
            seen, _ = encoded(np.where(hides, y, 1 - y if classes else y + 100.0), **roles)
            assert np.abs(seen[mine] - before[mine]).max() > 0.1  # the other rows do enter


def test_intervals_cover_new_groups():
    found = []
    for seed in range(4):
        X, y = table(2000, 200, seed)
        new, y_new = table(4000, 400, seed + 100)
        row = []
        for groups in (None, X.group):
            model = sk.KernelRegressor(sk.Laplace(2.0), solver=sk.Direct(1e-3)).fit(X[["a", "b"]], y, groups=groups)
            low, high = model.predict_interval(new[["a", "b"]]).T
            row.append(np.mean((low <= y_new) & (y_new <= high)))
        found.append(row)
    without, with_groups = np.mean(found, axis=0)
    assert 0.87 < with_groups < 0.94
    assert without < with_groups - 0.03


def test_scikit_learns_scores_searches_and_calibrations_pass_groups_and_times_on(seen):
    X, y = table(600, 30)
    X, groups, order = X[["a", "b"]], X.group, np.argsort(X.day, kind="stable")
    days = np.arange(600) // 4
    sk.KernelRegressor(centers=60).fit(X, y, np.r_[0.0, np.ones(599)], times=days)
    seen.require()
    with sklearn.config_context(enable_metadata_routing=True):
        model = sk.KernelRegressor(centers=60).set_fit_request(groups=True).set_score_request(sample_weight=False)
        assert len(cross_val_score(model, X, y, cv=GroupKFold(3), params={"groups": groups})) == 3
        search = GridSearchCV(model, {"kernel": [None, "laplace"]}, cv=GroupKFold(2)).fit(X, y, groups=groups)
        assert search.best_score_ > -1
        labels = sk.KernelClassifier(centers=60).set_fit_request(groups=True)
        calibrated = CalibratedClassifierCV(labels, cv=GroupKFold(2)).fit(X, y > 0, groups=groups)
        assert calibrated.predict_proba(X).shape == (600, 2)
        seen.require()
        seen.splits.clear()
        forward = sk.KernelRegressor(centers=60).set_fit_request(times=True)
        cross_val_score(forward, X.iloc[order], y[order], cv=TimeSeriesSplit(3), params={"times": days})
        seen.require()


def test_the_gate_is_paired_by_group():
    rng = np.random.default_rng(0)
    sums, keys = model_comparison._GroupSums(None), rng.integers(0, 25, 600).astype(np.uint64)
    d = rng.normal(size=25)[keys.astype(int)] + 0.1 * rng.normal(size=600)
    for part in np.split(np.arange(600), [100, 101, 350]):
        sums.hashes = type("Hashes", (), {"take": staticmethod(lambda n, part=part: keys[part])})
        sums.add(d[part])
    found = sums.paired_t({})
    # The variance of a mean of clusters: Σ_g (Σ_{i in g} (d_i - mean))² G/(G - 1)/n².
    of_group = np.array([np.sum((d - d.mean())[keys == g]) for g in range(25)])
    error = np.sqrt(25 / 24 * np.sum(np.square(of_group))) / 600
    assert found["p_value"] == pytest.approx(2 * stats.t.sf(abs(d.mean() / error), 24))
    naive = stats.ttest_1samp(d, 0.0).pvalue
    assert found["p_value"] > naive
    assert found["groups"] == 25


def test_a_night_by_time_and_group_is_judged_by_groups(tmp_path):
    X, y = table(1500, 50)
    data = sk.from_arrays(X, y, columns=["a", "b"], group="group")
    train, test = data.split(0.3)
    first = sk.Pipeline(train.sample(600), sk.Laplace(2.0), 100, sk.Direct(), test=test, task="regression")
    second = sk.Pipeline(train, sk.Laplace(2.0), 100, sk.Direct(), test=test, task="regression")
    sk.retrain(first, tmp_path / "models")
    decided = sk.retrain(second, tmp_path / "models")
    assert decided["significance"]["name"] == "paired t by group"
    assert decided["significance"]["groups"] == len(set(X.group[np.concatenate(list(test.row_ids()))]))


def test_predict_and_evaluate_take_rows_that_satisfy_a_condition(tmp_path):
    X, y = table(600, 20)
    frame = X.assign(y=y)
    frame.to_parquet(tmp_path / "t.parquet")
    model = sk.KernelRegressor(sk.Laplace(2.0), centers=50).fit(X[["a", "b"]], y)
    late = frame[frame.day >= 150]
    scores = evaluate(model, tmp_path / "t.parquet", "y", where="day >= 150")
    assert scores == evaluate(model, late, "y")
    sk.predict(model, tmp_path / "t.parquet", tmp_path / "out.parquet", id="day", where="day >= 150")
    written = pd.read_parquet(tmp_path / "out.parquet")
    np.testing.assert_array_equal(written.day, late.day)
    np.testing.assert_allclose(written.prediction, model.predict(late[["a", "b"]]), rtol=1e-5)
    with pytest.raises(sk.errors.DataError, match="No row satisfies"):
        evaluate(model, tmp_path / "t.parquet", "y", where="day > 1000")


@pytest.mark.parametrize("name", ["store_id", "StoreID", "id", "customerId"])
def test_a_plan_and_an_inspection_name_columns_whose_rows_know_one_another(name, tmp_path):
    X, y = table(600, 20)
    frame = X[["a", "group"]].rename(columns={"group": name}).assign(
        day=pd.Timestamp("2020-01-01") + pd.to_timedelta(X.day, "D"), y=y
    )  # fmt: skip
    frame.to_parquet(tmp_path / "t.parquet")
    open_ = lambda **roles: sk.open_dataset(tmp_path / "t.parquet", "y", **roles)  # noqa: E731
    plan = sk.plan(sk.Pipeline(open_(), task="regression")).text()
    advice = sk.inspect(tmp_path / "t.parquet", "y").text()
    for text in (plan, advice):
        assert f"'{name}' has 20 values in 600 rows" in text
        assert "'day' has dates" in text
        assert f"group='{name}'" in text
    silent = sk.plan(sk.Pipeline(open_(time="day", group=name), task="regression")).text()
    assert "open the rows with" not in silent


@pytest.mark.slow
def test_workers_make_the_bits_of_threads(tmp_path):
    X, y = table(1600, 60)
    X.assign(y=y).to_parquet(tmp_path / "t.parquet", row_group_size=200)
    found = set()
    for scheduler, threads in (("threads", 1), ("threads", 2), ("processes:2", 1)):
        data = sk.open_dataset(tmp_path / "t.parquet", "y", columns=["a", "b", "code"], group="group", time="day")
        pipeline = sk.Pipeline(data, task="regression", validation=0.2, dtype="float64")
        resources = sk.Resources(scheduler=scheduler, threads=threads)
        found.add(sk.run(pipeline, tmp_path / f"{scheduler}-{threads}", resources=resources).weights_sha256)
    assert len(found) == 1


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("group", "time"),
    [
        (np.arange(1500) % 3, None), (np.minimum(np.arange(1500) // 1000, 1), None), (np.zeros(1500), None),
        (np.arange(1500) // 300, np.arange(1500)), (None, np.arange(1500) // 1000), (None, np.zeros(1500)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("classes", [False, True])
def test_a_default_fit_ends_however_few_the_groups_and_times_are(group, time, classes):
    X, y = table(1500, 40)
    estimator = sk.KernelClassifier if classes else sk.KernelRegressor
    late = np.where(np.arange(1500) > 1460, "late", np.where(y > 0, "yes", "no"))
    model = estimator(centers=100).fit(X[["a", "b"]], late if classes else y, groups=group, times=time)
    assert np.mean(model.predict(X[["a", "b"]]) == late) > 0.6 if classes else model.score(X[["a", "b"]], y) > 0.2


def test_a_threshold_that_no_rows_can_choose_is_said():
    X, y = table(2400, 40)
    with pytest.warns(UserWarning, match="every group is too large.*threshold keeps its default"):
        sk.KernelClassifier(sk.Laplace("median"), threshold="f1").fit(X[["a", "b"]], y > 0, groups=np.arange(2400) % 2)


def test_a_gate_of_few_groups_is_that_of_the_rows():
    sums = model_comparison._GroupSums(type("Hashes", (), {"take": staticmethod(lambda n: np.zeros(n, np.uint64))}))
    sums.add(np.ones(50))
    assert sums.paired_t({"p_value": 0.01}) == {"p_value": 0.01, "groups": 1}


def test_a_condition_may_name_columns_in_quotes_and_by_the_kinds_of_the_model(tmp_path):
    X, y = table(400, 20)
    frame = pd.DataFrame({"unit price": X.a, "zip": [f"{i % 7:05}" for i in range(400)], "y": y})
    frame.to_csv(tmp_path / "t.csv", index=False)
    data = sk.open_dataset(tmp_path / "t.csv", "y", schema={"zip": "category"})
    sk.run(sk.Pipeline(data, task="regression", centers=50), tmp_path / "run")
    model = tmp_path / "run" / "model.zarr"
    for condition, kept in (("'unit price' > 0", X.a > 0), ("zip == '00003'", np.arange(400) % 7 == 3)):
        scores = evaluate(model, tmp_path / "t.csv", "y", where=condition)
        frame[np.asarray(kept)].to_csv(tmp_path / "some.csv", index=False)
        assert scores == pytest.approx(evaluate(model, tmp_path / "some.csv", "y"))
    with pytest.raises(sk.errors.UsageError, match="names no column"):
        evaluate(model, tmp_path / "t.csv", "y", where="1 > 0")


@pytest.mark.parametrize("n", [300, 1500])
def test_a_missing_time_is_an_error_wherever_a_fit_looks_at_it(n):
    X, y = table(n, 20)
    days = X.day.to_numpy(dtype=float)
    days[7] = np.nan
    with pytest.raises(sk.errors.DataError, match="no time"):
        sk.KernelRegressor().fit(X[["a", "b"]], y, times=days)


@pytest.mark.slow
def test_leaves_of_rows_with_a_time_learn_no_metric_on_rows_drawn_at_random():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    data = sk.from_arrays(X, X[:, 0] + 0.1 * rng.normal(size=300), time=np.arange(300))
    for how in ({}, {"kernel": "laplace"}):
        model = sk.KernelRegressor(metric=sk.AGOP(), partition=sk.Partition(leaves=2), **how).fit(data).model_
        assert all("metric" not in model.leaves.model(leaf).metadata for leaf in range(2))
