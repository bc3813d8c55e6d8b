"""A fit without a kernel: what is tried, how much of it, and what comes of it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import streamkern as sk
from streamkern.costs.dry_run import CostEstimate, ProblemSize, nominal_prices, nominal_work
from streamkern.costs.fit_shape import solver_memory
from streamkern.data.targets import Classes
from streamkern.defaults import ASSUMED_THREADS
from streamkern.evaluation.paired_errors import Errors
from streamkern.fitting import stages
from streamkern.fitting.solver_choice import choose_solver, resolve_solver
from streamkern.report import read_run
from streamkern.selection import kernel_search as choice
from streamkern.selection.kernel_search import (
    MAX_PASS_WORK,
    MAX_SEARCH_SHARE,
    MAX_SEARCH_WORK,
    MIN_FULL_KERNEL_SEARCH_WORK,
    MIN_SEARCH_WORK,
    KernelChoice,
    default_centers,
    search_for,
)
from streamkern.selection.learned_metric import Metric, Round
from streamkern.storage.serialize import load_value, save_value

N = 3600


def test_a_metric_is_preferred_where_it_is_surely_better():
    nothing, same, n = None, np.ones(2811), 2811
    problem: Any = SimpleNamespace(encoding=Classes(np.arange(10)))
    noise = np.random.default_rng(0).normal(size=n)
    noise = (noise - noise.mean()) / noise.std()

    def made(kind: str, loss: float, apart: float = 0.0, mse: float = 0.02) -> Round:
        """A model whose losses differ from others' by noise: its standard deviation is ``apart``."""
        return Round(kind, 0, nothing, nothing, problem, nothing, 1e-8, mse, 0.9, Errors(loss + apart * noise, same))

    plain = made("none", 0.300)
    assert choice._simplest(plain, [made("full", 0.298)]) is plain  # hardly better
    assert choice._simplest(plain, [made("full", 0.290, apart=0.6)]) is plain  # within the standard error
    better = made("full", 0.290, apart=0.4)
    assert choice._simplest(plain, [better]) is better
    simpler = made("diagonal", 0.291)
    assert choice._simplest(plain, [better, simpler]) is simpler
    rounding = made("none", 1e-6, mse=1e-12)
    assert choice._simplest(rounding, [made("full", 1e-8)]) is rounding


def test_the_best_of_two_kinds_of_the_better_norm_are_fitted_to_all_rows():
    problem: Any = SimpleNamespace(encoding=Classes(np.arange(10)))

    def made(**losses: float) -> list[Round]:
        return [
            Round(kind, 0, None, None, problem, None, 1e-8, 0.02, 0.9, Errors(np.full(9, loss), np.ones(9)))
            for kind, loss in losses.items()
        ]

    other = made(none=0.4, diagonal=0.45, full=0.5)
    for losses, kinds in (
        ({"none": 0.3, "diagonal": 0.25, "full": 0.2}, ["full", "diagonal"]),
        ({"none": 0.3, "diagonal": 0.2, "full": 0.25}, ["diagonal", "full"]),
        ({"none": 0.3, "diagonal": 0.2, "full": 0.35}, ["diagonal", "none"]),
        ({"none": 0.2, "diagonal": 0.3}, ["none", "diagonal"]),
        ({"none": 0.2}, ["none"]),
    ):
        best = made(**losses)
        first, last, *second = choice._finalists([best, other])
        assert last is other[0]
        assert [each.kind for each in (first, *second)] == kinds
        assert {id(first), *map(id, second)} <= {id(each) for each in best}


@pytest.mark.parametrize("far", [0.0, 1e6])
def test_kernels_are_compared_in_float32_where_it_tells_rows_apart(far: float, monkeypatch: pytest.MonkeyPatch):
    X, y = rows(500)
    X = X.astype(np.float64)
    X[300:] += far  # most pairs of rows are near to each other, and the mean is far from all
    compared, choose = [], stages.choose_kernel

    def choose_kernel(search: Any, problem: Any) -> KernelChoice:
        compared.append(problem.dtype.name)
        return choose(search, problem)

    monkeypatch.setattr(stages, "choose_kernel", choose_kernel)
    model = sk.KernelRegressor(preprocess=None).fit(X, y)
    assert compared == ["float64" if far else "float32"]
    assert model.model_.Z.dtype == np.float64


def test_a_fit_in_float64_has_the_search_and_the_kernel_of_one_in_float32():
    X, y = rows(900)
    found = [sk.KernelRegressor(dtype=dtype).fit(X, y) for dtype in ("float32", "float64")]
    first, second = (model.result_.report["kernel"] for model in found)
    assert [model.model_.Z.dtype.name for model in found] == ["float32", "float64"]
    assert first["kernel"] == second["kernel"]
    assert [each["centers"] for each in first["trials"]] == [each["centers"] for each in second["trials"]]
    for n in (5_000, 9_000):
        size = ProblemSize(n, n, 20, 1, memory=8 << 30, all_rows_are_centers=True)
        narrow, wide = (
            search_for(CostEstimate(sk.Direct(), replace(size, itemsize=itemsize)), n, 16 << 30) for itemsize in (4, 8)
        )
        assert narrow == wide


def rows(n: int = N, d: int = 10) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(0).normal(size=(n, d)).astype(np.float32)
    return X, np.sin(2 * X[:, 3]) + X[:, 7]


@pytest.fixture
def generous(monkeypatch: pytest.MonkeyPatch) -> None:
    """One search, whatever it takes."""
    monkeypatch.setattr(choice, "MAX_SEARCH_SHARE", 1e9)
    monkeypatch.setattr(choice, "SUBSAMPLE_SIZES", ((3000, 300),))


def fitted(X: np.ndarray, y: np.ndarray, kernel: Any = None, **how: Any) -> sk.KernelRegressor:
    return sk.KernelRegressor(kernel, 300, memory="4GiB", **how).fit(X, y)


@pytest.mark.slow
@pytest.mark.usefixtures("generous")
def test_it_finds_the_columns_that_matter_and_any_threads_find_the_same():
    X, y = rows(N + 500)
    one, two = (fitted(X[:N], y[:N], threads=threads) for threads in (1, 3))
    plain = fitted(X[:N], y[:N], sk.Laplace("median"))
    assert 1 - one.score(X[N:], y[N:]) < 0.3 * (1 - plain.score(X[N:], y[N:]))
    assert one.feature_importances_[[3, 7]].sum() > 0.9
    found = one.result_.report["kernel"]
    assert found["metric"] in ("diagonal", "full")
    assert "on held-out rows" in found["reason"]
    assert {trial["kernel"].get("norm", 2) for trial in found["trials"]} == {1, 2}
    assert one.model_.weights_sha256 == two.model_.weights_sha256
    assert two.result_.report["kernel"] == found


@pytest.mark.slow
@pytest.mark.usefixtures("generous")
def test_nothing_is_chosen_that_is_no_better():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(N, 3))
    y = rng.normal(size=N)
    model = fitted(X, y)
    assert model.result_.report["kernel"]["metric"] == "none"
    assert "none of" in model.result_.report["kernel"]["reason"]
    spread = float(np.sqrt(2 * np.var(X, axis=0).sum()))
    assert model.model_.kernel.bandwidth == pytest.approx(spread, rel=1e-6)


def test_a_ridge_that_is_given_stays_and_one_that_is_chosen_follows_the_rows():
    def chosen(ridge: float, solver: Any, n: int) -> Any:
        found = KernelChoice({"name": "Laplace", "bandwidth": 1.0}, ridge, 2000, _nothing(), (), 1.0, 0.5)
        return found.solver(solver, n)

    assert chosen(1e-3, sk.Direct(), 20_000) == sk.Direct(1e-4)
    assert chosen(1e-3, sk.Direct(), 1000) == sk.Direct(1e-3)
    assert chosen(1e-3, sk.Direct(1e-5), 20_000) == sk.Direct(1e-5)
    assert chosen(1e-3, sk.Falkon(), 4000) == replace(sk.Falkon(), ridge=5e-4)
    assert chosen(1e-3, sk.EigenPro(), 4000) == sk.EigenPro()
    assert chosen(1e-3, sk.LBFGS(), 4000) == sk.LBFGS(ridge=5e-4)
    # Where squares want no ridge, the logistic loss has one.
    assert chosen(1e-8, sk.Direct(), 20_000) == sk.Direct(1e-9)
    assert chosen(1e-8, sk.LBFGS(), 20_000) == sk.LBFGS(ridge=3e-8)
    assert chosen(1e-8, sk.LBFGS(ridge=1e-8), 20_000) == sk.LBFGS(ridge=1e-8)


def _nothing() -> Metric:
    return Metric("none", 0, np.ones(2), np.ones(2), np.full(2, 0.5))


def test_a_choice_is_kept_as_data(tmp_path: Path):
    made = KernelChoice({"name": "Laplace", "bandwidth": 1.0, "norm": 1}, 1e-3, 2000, _nothing(), (), 1.0, 0.5)
    save_value(tmp_path / "kept", "kernel", made)
    again = load_value(tmp_path / "kept", "kernel")
    assert again.kernel == sk.Laplace(1.0, norm=1)
    assert again.summary() == made.summary()


sizes = st.builds(
    ProblemSize, n=st.integers(100, 10**7), p=st.integers(10, 10_000), d=st.integers(1, 1500), outputs=st.just(16),
    memory=st.just(4 << 30),
)  # fmt: skip


@pytest.mark.slow
@given(sizes, st.integers(1, 64))
@settings(max_examples=60, deadline=None)
def test_a_search_stays_within_its_share_and_threads_do_not_matter(size: ProblemSize, slots: int):
    size = replace(size, n=max(size.n, size.p))
    bill = CostEstimate(choose_solver(size).solver, size)
    search = search_for(bill, size.n, 8 << 30)
    assert search_for(CostEstimate(bill.solver, replace(size, slots=slots)), size.n, 8 << 30) == search
    if search is not None:
        work = search.work(replace(size, slots=ASSUMED_THREADS, overlaps=True)).priced(nominal_prices(size.d))
        assert work <= max(MIN_SEARCH_WORK, min(MAX_SEARCH_WORK, MAX_SEARCH_SHARE * nominal_work(bill.solver, size)))
        assert search.rows <= size.n
        few = search.rows < 400
        assert search.leave_one_out == few == (size.n < 400)
        assert ("diagonal" in search.kinds) == (not few)
        assert ("full" in search.kinds) == (not few and 20 * size.d <= search.rows and 1 < size.d <= 1000)
        assert bool(search.kinds) or "each left out" in search.text()
        assert (1 in search.norms) == (size.d <= 200)


def test_little_memory_makes_it_smaller_and_few_rows_rule_it_out():
    size = ProblemSize(500_000, 4000, 30, 16, memory=4 << 30)
    bill = CostEstimate(choose_solver(size).solver, size)
    large, small = (search_for(bill, size.n, budget) for budget in (16 << 30, 400 << 20))
    assert large is not None and small is not None  # noqa: PT018
    assert small.centers < large.centers
    every = CostEstimate(sk.Direct(), ProblemSize(9_000, 9_000, 30, 1, memory=4 << 30, all_rows_are_centers=True))
    large, small = (search_for(every, 9_000, budget) for budget in (16 << 30, 400 << 20))
    assert large is not None and small is not None  # noqa: PT018
    assert small.rows < large.rows
    assert search_for(bill, 39, 16 << 30) is None
    assert "kernel" not in sk.KernelRegressor(memory="4GiB").fit(*rows(39)).result_.report


@pytest.mark.slow
def test_a_small_table_of_many_levels_chooses_bandwidth_and_ridge():
    """250 indicators for 3,200 rows: too many for a metric of all directions."""
    rng = np.random.default_rng(3)
    n = 4000
    frame = {
        "town": [f"town {k}" for k in rng.integers(0, 240, n)],
        "kind": [f"kind {k}" for k in rng.integers(0, 10, n)],
        "size": rng.normal(size=n),
    }
    y = 2 * frame["size"] + np.array([int(k[5:]) % 3 for k in frame["kind"]]) + rng.normal(size=n)
    model = sk.KernelRegressor(memory="4GiB")
    model.fit({k: v[:3200] for k, v in frame.items()}, y[:3200])
    trials = model.result_.report["kernel"]["trials"]
    assert {each["kind"] for each in trials} == {"none", "diagonal"}
    assert model.result_.report["ridge"] > 1e-6
    assert model.score({k: v[3200:] for k, v in frame.items()}, y[3200:]) > 0.75


def test_a_table_gets_more_centers_and_little_memory_fewer():
    assert default_centers(900, 10, 8 << 30, 0) == sk.Uniform(900)
    assert default_centers(7_000, 10, 8 << 30, 0) == sk.Uniform(2000)
    assert default_centers(10_000, 10, 8 << 30, 0) == sk.Uniform(2500)
    assert default_centers(30_000, 10, 9 << 30, 3) == default_centers(40_000, 10, 8 << 30, 3) == sk.Uniform(5000, 3)
    assert default_centers(60_000, 10, 8 << 30, 0) == sk.Uniform(7500)
    for gigabytes in (1, 2, 4, 6, 8):  # more than an eighth only with the ridge of normal equations
        budget = gigabytes << 30
        p = default_centers(20_000, 10, budget, 0).p
        data = sk.from_arrays(np.zeros((20_000, 10), np.float32), np.zeros(20_000))
        size = ProblemSize(20_000, p, 20, 16, memory=solver_memory(budget, data, p, 4))
        assert p == 2500 or isinstance(choose_solver(size, ridge=True).solver, sk.Direct)
    assert default_centers(10**7, 10, 8 << 30, 0) == sk.Uniform(8000)
    assert default_centers(10**7, 10, 1 << 30, 0).p < 4000


@pytest.mark.slow
def test_a_search_has_every_row_as_a_center_where_its_fit_has():
    size = ProblemSize(4_800, 4_800, 20, 1, memory=4 << 30, all_rows_are_centers=True)
    bill = CostEstimate(sk.Direct(), size)
    every, some = (
        search_for(each, 4_800, 8 << 30)
        for each in (bill, CostEstimate(sk.Direct(), replace(size, p=2_000, all_rows_are_centers=False)))
    )
    leaf = search_for(bill, 4_800, 8 << 30, leaves=2)
    assert (every.rows, every.centers, every.few) == (4_400, 2_933, (1_466, 488))
    assert (some.centers, leaf.centers) == (500, 500)  # each leaf would take as long
    work = every.work(replace(size, slots=ASSUMED_THREADS, overlaps=True)).priced(nominal_prices(20))
    assert some.work(size).priced(nominal_prices(20)) < work <= MIN_FULL_KERNEL_SEARCH_WORK
    assert "models with every row that is not held out as a center" in every.text()
    X, y = rows(4_800)
    trials = sk.KernelRegressor(memory="4GiB").fit(X, y).result_.report["kernel"]["trials"]
    last = [each for each in trials if each["rows"] > 2_000]
    assert len(last) > 8
    assert all(each["centers"] == each["rows"] for each in last)
    assert all(each["centers"] < each["rows"] // 2 for each in trials if each not in last)


def test_every_row_is_a_center_where_one_factor_solves_for_all():
    def p(n: int, d: int, gigabytes: int) -> int:
        data = sk.from_arrays(np.broadcast_to(np.float32(0), (n, d)), np.zeros(n))
        job = sk.Pipeline(data, task="regression", solver="auto", dtype="float32")
        return resolve_solver(job, gigabytes << 30)[0].centers.p

    assert [p(n, 10, 10) for n in (900, 7_000, 10_000, 10_001, 60_000)] == [900, 7_000, 10_000, 2_500, 7_500]
    assert [p(n, 10, 2) for n in (4_000, 8_000)] == [4_000, 2_000]
    assert p(8_000, 20_000, 8) == 2_000


@pytest.mark.slow
def test_estimators_take_every_row_and_what_cannot_be_factored_does_not():
    X, y = rows(2_300)
    for kernel, solver, p in (
        (None, "auto", 2_300), (sk.Laplace(3.0), "auto", 2_300), (sk.Laplace(3.0), sk.Direct(1e-4), 2_300),
        (sk.Gaussian(3.0), "auto", 2_000), (sk.Laplace(3.0), sk.Direct(1e-4, keep_sums=True), 2_000),
        (sk.Laplace(3.0), sk.EigenPro(epochs=1), 2_000),
    ):  # fmt: skip
        model = sk.KernelRegressor(kernel, solver=solver, memory="4GiB").fit(X, y)
        assert len(model.model_.Z) == p, (kernel, solver)


def test_wide_rows_get_as_many_centers_while_a_pass_is_short():
    assert [default_centers(n, 784, 8 << 30, 0).p for n in (900, 2000, 8000, 10_000)] == [900, 2000, 2000, 2500]
    assert default_centers(20_000, 784, 9 << 30, 1) == default_centers(20_000, 10, 9 << 30, 1) == sk.Uniform(5000, 1)
    assert default_centers(60_000, 784, 8 << 30, 0) == sk.Uniform(7500)
    assert 2000 < default_centers(60_000, 3072, 8 << 30, 0).p < 5000
    assert default_centers(60_000, 20_000, 8 << 30, 0) == default_centers(10**6, 784, 8 << 30, 0) == sk.Uniform(2000)
    assert default_centers(4000, 10**6, 1 << 30, 0) == sk.Uniform(2000)
    for n in (30_000, 100_000, 400_000):
        p = default_centers(n, 1000, 8 << 30, 0).p
        assert p == 2000 or n * p * nominal_prices(1000).values <= MAX_PASS_WORK


@pytest.mark.slow
@pytest.mark.usefixtures("generous")
def test_a_run_keeps_the_choice_as_a_stage_and_the_plan_says_what_is_tried(tmp_path: Path):
    X, y = rows()
    data, test = sk.from_arrays(X[:3200], y[:3200]), sk.from_arrays(X[3200:], y[3200:])
    pipeline = sk.Pipeline(data, centers=sk.Uniform(300), solver=sk.Direct(), test=test, task="regression")
    planned = sk.plan(pipeline, memory="4GiB")
    (stage,) = [each for each in planned.stages if each.name == "kernel"]
    assert stage.rows == 3000
    assert stage.flops > 0
    assert any(line.startswith("kernel: Laplace in the L1 and L2 norm") for line in planned.choices)
    first = sk.run(pipeline, tmp_path / "run", memory="4GiB")
    again = sk.run(pipeline, tmp_path / "run", memory="4GiB", threads=1)
    cached = {each["name"]: each["cached"] for each in again["stages"]}
    assert cached["kernel"]
    assert not {each["name"]: each["cached"] for each in first["stages"]}["kernel"]
    assert again["weights_sha256"] == first["weights_sha256"]
    assert first["kernel_choice"]["kernel"] == first["kernel"]
    assert first["metrics"]["test"]["r2"] > 0.95
    html = pytest.importorskip("streamkern.report.page").page([read_run(tmp_path / "run")])
    assert "Models of the search" in html
