"""Tuning: its numbers are those of plain ridge regression, its bits depend on the rows alone, and its choice holds."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

import streamkern as sk
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.runs.tune import TUNING_RIDGES, Trial, Tuning, next_command, tune
from streamkern.solvers.ridge import ridge_path
from tests.problems import posed

Make = Callable[..., sk.Pipeline]


def waves(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 3))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(n)


def test_the_path_is_ridge_regression_at_every_ridge_and_number_of_centers() -> None:
    X, y = waves(300)
    with ThreadsExecutor(2) as executor:
        path = ridge_path(posed(executor, X, y[:, None], kernel=sk.Laplace(2.0), centers=np.arange(40)))
    for p in (40, 7):
        K, R = (np.exp(-cdist(A, X[:p]) / 2.0) for A in (X, X[:p]))
        for ridge in (1e-6, 1e-1):
            expected = np.linalg.solve(K.T @ K / 300 + ridge * R, K.T @ y / 300)
            np.testing.assert_allclose(path.head(p).weights((ridge,))[:, 0], expected, rtol=1e-6, atol=1e-8)


def told(found: Tuning) -> dict[str, Any]:
    return {name: value for name, value in found.to_json().items() if name != "seconds"}


@pytest.mark.slow
def test_threads_and_chunks_do_not_change_a_bit(tmp_path: Path) -> None:
    X, y = waves(900)
    X = X.astype(np.float32)  # of float64 in memory, the arithmetic is float64
    for rows in (50, 333):
        sk.write_zarr(tmp_path / f"{rows}.zarr", X, y, target="y", chunk_rows=rows)
    given: dict[str, Any] = {"task": "regression", "rows": 600, "centers": 40, "seconds": False, "memory": "4GiB"}
    one, other, arrays = (
        tune(data, scaling="standard", threads=threads, **given)
        for data, threads in (
            (sk.open_dataset(tmp_path / "50.zarr", target="y"), 1),
            (sk.open_dataset(tmp_path / "333.zarr", target="y"), 3),
            (sk.from_arrays(X, y), 2),
        )
    )
    assert told(one) == told(other) == told(arrays)
    assert one.rows + one.held_out == 600


def test_the_choice_is_that_of_the_table_and_trains(tmp_path: Path) -> None:
    X, y = waves(1200)
    heard: list[Trial] = []
    kernels = [sk.Laplace("median"), sk.Gaussian(1.5)]
    found = tune(sk.from_arrays(X, y), kernels, task="regression", centers=100, seconds=False, on_trial=heard.append)
    assert len(found.trials) == len(heard) * len(TUNING_RIDGES)
    assert sk.Gaussian(1.5) in {trial.kernel for trial in found.trials}
    assert found.median == pytest.approx(2.3, rel=0.1)
    least = min(trial.mse for trial in found.trials)
    assert found.choice.mse <= 1.01**2 * least
    assert isinstance(found.kernel, sk.Gaussian)
    assert [trial.centers for trial in found.curve] == [50, 100]
    assert found.kernel == found.choice.kernel == found.pipeline.kernel
    assert isinstance(found.solver, sk.Direct)
    assert found.solver.ridge == pytest.approx(found.choice.ridge * found.rows / 1200, rel=0.1)
    result = sk.run(replace(found.pipeline, test=sk.from_arrays(*waves(500, 3))), tmp_path / "run")
    assert result["metrics"]["test"]["r2"] == pytest.approx(found.choice.score, abs=0.03)
    table = found.text()
    assert table.count("*") == 2
    for trial in found.best():
        assert f"{trial.mse:.4g}" in table


def test_what_is_tuned_is_the_pipelines_own_kernel_and_centers(make: Make) -> None:
    found = tune(make(), seconds=False)
    assert {type(trial.kernel) for trial in found.trials} == {sk.Laplace}
    assert sk.Laplace(2.0) in {trial.kernel for trial in found.trials}
    assert found.curve[-1].centers == 40
    assert isinstance(found.solver, sk.EigenPro)
    assert any("EigenPro has no ridge" in reason for reason in found.reasons)
    assert any(reason.startswith("q, batch and step: EigenPro") for reason in found.reasons)
    linear = tune(make(kernel=sk.Linear(), centers=sk.KMeans(40)), seconds=False)
    assert len(linear.trials) == len(TUNING_RIDGES)
    assert linear.centers == sk.KMeans(40)


def test_the_curve_says_what_a_run_would_take(make: Make) -> None:
    from streamkern.costs.machine_speed import Prices
    from streamkern.engine.operation_counts import Operations

    prices = Prices(Operations(values=1e-9, gemm=1e-12, gemm64=1e-9, panel=1e-9), 1e-3, 1e-6, 1e-6, 1e-9)
    found = tune(make(centers=sk.Uniform(128)), prices=prices, memory="4GiB", threads=1)
    seconds = [trial.seconds for trial in found.curve]
    assert len(seconds) == 3
    assert seconds == sorted(seconds)  # type: ignore[type-var]
    for trial in found.curve:
        at = replace(found.pipeline, centers=sk.Uniform(trial.centers))
        assert trial.seconds == pytest.approx(sk.plan(at, memory="4GiB", threads=1, prices=prices).seconds)


@pytest.mark.parametrize(
    ("give", "message"),
    [
        ({"rows": 3}, "3 rows are too few"),
        ({"centers": 10_000}, "10000 centers are requested"),
        ({"kernel": "laplase"}, "did you mean 'laplace'"),
        ({"kernel": []}, r"kernel is \[\]"),
        ({"scaling": "standard"}, "A pipeline is given"),
        ({"data": 3}, "data is 3"),
        ({"memory": "1MiB"}, "needs"),
    ],
)
def test_what_cannot_be_tuned_is_refused(make: Make, give: dict[str, Any], message: str) -> None:
    error = sk.errors.PlanRefusedError if "memory" in give else sk.UsageError
    with pytest.raises(error, match=message):
        tune(**{"data": make(), "seconds": False} | give)


def test_a_feature_map_is_refused(make: Make) -> None:
    with pytest.raises(sk.UsageError, match="has a feature map"):
        tune(make(kernel=None, centers=None, features=sk.ReLUFeatures(50), solver=sk.SGD()))


FILE = """
import numpy as np
import streamkern as sk

def pipeline(bandwidth: float = 1.0, centers: int = 60, unit: float = 1.0):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2]
    kernel = sk.Gaussian(bandwidth * unit)
    return sk.Pipeline(sk.from_arrays(X, y), kernel, sk.Uniform(centers), sk.EigenPro(), task="regression")
"""


def test_the_next_command_is_one_that_gives_the_choice(tmp_path: Path) -> None:
    file = tmp_path / "waves.py"
    file.write_text(FILE)
    found = tune(sk.load_pipeline(file), seconds=False)
    sigma = found.kernel.bandwidth  # type: ignore[attr-defined]
    command = next_command(found, str(file), {})
    assert command == f"streamkern run {file} --set bandwidth={sigma:g} centers={found.choice.centers}"
    other = next_command(found, str(file), {"unit": "2.0"})
    assert other.startswith(f"in {file}:")
    assert f"    kernel=sk.Gaussian(bandwidth={sigma})," in other.splitlines()
    assert "solver" not in other  # as it is in the file


@pytest.mark.slow
def test_the_command_line_prints_a_table_and_leaves_json(tmp_path, capsys, monkeypatch):
    from streamkern.commands.parser import main

    monkeypatch.chdir(tmp_path)
    Path("waves.py").write_text(FILE)
    assert main(["tune", "waves.py", "--kernel", "gaussian", "--kernel", "laplace", "--rows", "400"]) == 0
    said = capsys.readouterr()
    found = json.loads(Path("runs/waves/tune.json").read_text())
    assert found["next"] in said.out
    assert "squared error" in said.err
    assert main(["tune", "waves.py", "--rows", "400", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["choice"]["kernel"]["name"] == "Gaussian"


OPEN = """
import numpy as np
import streamkern as sk

def pipeline(centers: int = 300):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3200, 6)) * [1, 1, 1, 1, 1, 50]
    rows = sk.from_arrays(X, np.sin(2 * X[:, 0]) + X[:, 1])
    return sk.Pipeline(rows, centers=sk.Uniform(centers), solver=sk.EigenPro(), task="regression")
"""


@pytest.mark.slow
def test_a_kernel_that_is_left_open_is_searched_for_and_every_model_is_shown(tmp_path, capsys, monkeypatch):
    from streamkern.commands.parser import main

    monkeypatch.chdir(tmp_path)
    Path("table.py").write_text(OPEN)
    assert main(["tune", "table.py"]) == 0
    said = capsys.readouterr()
    kept = json.loads(Path("runs/table/tune.json").read_text())
    search = kept["search"]
    best = min(search["trials"], key=lambda trial: trial["mse"])
    assert search["best"] == best["mse"]
    assert kept["choice"]["kernel"] == search["kernel"] == best["kernel"]
    assert search["metric"] == best["kind"] != "none"
    assert {trial["kernel"].get("norm", 2) for trial in search["trials"]} == {1, 2}
    assert {trial["kind"] for trial in search["trials"]} == {"none", "diagonal", "full"}
    table, _, rest = said.out.partition("\n\n")
    assert len(table.splitlines()) == 1 + len(search["trials"])
    (marked,) = [line for line in table.splitlines() if line.endswith("*")]
    assert f"{best['mse']:.4g}" in marked
    assert search["reason"] in rest
    assert kept["choice"]["mse"] < 0.2 * search["trials"][0]["mse"]
    made = sk.load_pipeline("table.py")
    found = tune(made, seconds=False)
    assert found.pipeline.kernel is None  # a run chooses again
    assert found.search is not None
    assert next_command(found, "table.py", {}).startswith("streamkern run table.py --set centers=")
    named = tune(made, "laplace", seconds=False)
    assert named.search is None
    assert named.choice.mse > 2 * found.choice.mse


def test_a_pipeline_of_defaults_and_one_of_few_rows_are_tuned() -> None:
    X, y = waves(300)
    found = tune(sk.Pipeline(sk.from_arrays(X, y), task="regression"), seconds=False, centers=50)
    assert {trial["centers"] for trial in found.search.trials} == {300}
    X, y = waves(39)
    found = tune(sk.Pipeline(sk.from_arrays(X, y), task="regression"), seconds=False, centers=8)
    assert found.search is None
    assert {type(trial.kernel) for trial in found.trials} == {sk.Laplace}
