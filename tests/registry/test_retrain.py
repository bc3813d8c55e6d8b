"""Nights: nothing new, better, worse, broken, killed; and that the last line tells which."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest, ttest_rel

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.evaluation.metrics import flat_metrics
from streamkern.execute import open_executor
from streamkern.registry import RetrainResult
from streamkern.registry.model_comparison import compare_models
from streamkern.registry.model_registry import Registry
from streamkern.registry.retrain import _gate_names
from streamkern.registry.warm_start import with_warm_start
from streamkern.report import read_run
from streamkern.report.page import write_report

PIPELINE = """
import streamkern as sk

def pipeline(rows: str = "rows.zarr", centers: int = 30, epochs: int = 1, seed: int = 0, step: float | None = None):
    train, test = sk.open_dataset(rows, target="label").split(test=0.3)
    return sk.Pipeline(
        train=train, test=test, kernel=sk.Laplace(2.0), centers=sk.Uniform(centers), seed=seed,
        solver=sk.EigenPro(epochs=epochs, step=step),
    )
"""


def rows(n: int, shift: float = 0.0, seed: int = 0, task: str = "classification") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    X = (rng.standard_normal((n, 4)) + 1.2 * y[:, None] + shift).astype("float32")
    return X, y if task == "classification" else X[:, 0] ** 2 + y


def pipeline(n: int = 600, shift: float = 0.0, task: str = "classification", **changes: Any) -> sk.Pipeline:
    train, test = sk.from_arrays(*rows(n, shift, task=task)).split(test=0.3)
    given: dict[str, Any] = {"train": train, "test": test, "kernel": sk.Laplace(2.0), "centers": sk.Uniform(30)}
    given["solver"] = sk.EigenPro(epochs=1)
    return sk.Pipeline(**(given | {"name": "nightly", "task": task} | changes))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry after three nights: 1 was champion, 2 is, 3 was rejected."""
    made = tmp_path_factory.mktemp("three") / "models"
    for seed, gate in ((0, None), (5, "accuracy > 0"), (6, "accuracy > 2")):
        sk.retrain(pipeline(seed=seed), made, gate=gate)
    return made


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry after the first night."""
    made = tmp_path_factory.mktemp("one") / "models"
    sk.retrain(pipeline(), made)
    return made


@pytest.fixture
def place(one: Path, tmp_path: Path) -> Path:
    shutil.copytree(one, tmp_path / "models")
    return tmp_path / "models"


def test_the_first_model_is_promoted_and_the_same_night_again_is_no_work(tmp_path: Path):
    place = tmp_path / "models"
    first = sk.retrain(pipeline(), place)
    assert isinstance(first, RetrainResult)
    assert (first.status, first.champion, first.version, first["before"]) == ("promoted", 1, 1, None)
    again = sk.retrain(pipeline(), place)
    assert (again["status"], again["champion"], again["version"]) == ("unchanged", 1, None)
    assert (again.status, again.version, again.champion, again.reasons) == ("unchanged", None, 1, again["reasons"])
    assert repr(again) == "RetrainResult(unchanged, version None, champion 1)"
    assert json.loads(json.dumps(again.to_json())) == again
    assert Registry(place).versions == [1]
    model = sk.Registry(place).load()
    assert model.weights_sha256 == sk.run(pipeline(), place.parent / "run")["weights_sha256"]


@pytest.mark.parametrize(
    "change",
    [
        {"n": 700}, {"kernel": sk.Laplace(3.0)}, {"centers": sk.Uniform(31)}, {"seed": 1}, {"scaling": "standard"},
    ],
    ids=str,
)  # fmt: skip
def test_a_change_of_data_or_pipeline_is_something_new(place: Path, change: dict[str, Any]):
    assert sk.retrain(pipeline(**change), place)["version"] == 2


@pytest.mark.slow
def test_the_version_keeps_the_report_of_its_training(tmp_path: Path):
    place = tmp_path / "models"
    first = sk.retrain(pipeline(), place, report=lambda folder: write_report([read_run(folder)]))
    assert first["report"] == str(place / "versions/000001/report.html")
    assert "nightly" in Path(first["report"]).read_text(encoding="utf-8")
    assert Registry(place).record()["decision"]["report"] == "report.html"

    def fails(folder: Path) -> Path:
        raise ValueError("no ink")

    second = sk.retrain(pipeline(seed=1), place, report=fails)
    assert (second["report"], second["warnings"]) == (None, ["the report could not be written: no ink"])


@pytest.mark.parametrize(
    ("task", "gate"),
    [
        ("classification", "acuracy > 0"),
        ("regression", "accuracy > 0"),
        ("regression", "mse < champion.r3"),
        ("classification", "True"),
    ],
)
def test_a_gate_that_cannot_be_judged_is_refused_before_training(tmp_path: Path, task: str, gate: str):
    with pytest.raises(sk.UsageError):
        sk.retrain(pipeline(task=task), tmp_path / "models", gate=gate)
    assert not (tmp_path / "models").exists()


def test_the_names_that_are_known_before_training_are_those_that_there_are_after_it(tmp_path: Path):
    for task in ("classification", "regression"):
        names, champions = _gate_names(pipeline(task=task))
        sk.retrain(pipeline(task=task), tmp_path / task)
        made = sk.retrain(pipeline(task=task, seed=1), tmp_path / task)
        for found, known in ((made["challenger"], names), (made["against"], champions)):
            assert found
            assert [x for x in found if x not in known and f"{x.partition('.')[0]}.LABEL" not in known] == []


def test_a_gate_refuses_a_fit_that_is_far_from_its_solution(tmp_path: Path):
    solvers = {"rejected": sk.EigenPro1(epochs=1, batch=64, step=1e-4), "promoted": sk.Direct()}
    for status, solver in solvers.items():
        made = sk.retrain(pipeline(solver=solver), tmp_path / status, gate="residual < 0.05")
        assert made["status"] == status
        assert any("has not reached" in warning for warning in made["warnings"]) == (status == "rejected")


def test_another_gate_judges_the_same_model_again(place: Path):
    strict = sk.retrain(pipeline(), place, gate="accuracy > champion")
    assert (strict["status"], strict["champion"]) == ("rejected", 1)
    assert strict["reasons"][0].endswith("is false")
    assert sk.retrain(pipeline(), place, gate="accuracy > champion")["status"] == "unchanged"


@pytest.mark.slow
def test_a_worse_model_does_not_take_the_place_of_a_better_one(place: Path):
    worse = sk.retrain(pipeline(centers=sk.Uniform(1)), place)
    assert (worse["status"], worse["version"], worse["champion"]) == ("rejected", 2, 1)
    assert worse["challenger"]["accuracy"] < worse["against"]["accuracy"]
    assert Registry(place).champion == 1
    assert Registry(place).record(2)["decision"]["reasons"] == worse["reasons"]


def test_the_paired_test_of_classes_is_the_exact_one(place: Path):
    now = pipeline(900, centers=sk.Uniform(60))
    decision = sk.retrain(now, place)
    ids = now.test.rules[0].keep(np.arange(900))
    X, y = (part[ids] for part in rows(900))
    before, after = (Registry(place).load(number).predict(X) == y for number in (1, 2))
    only = int((after & ~before).sum()), int((before & ~after).sum())
    said = decision["significance"]
    assert (said["only_challenger_right"], said["only_champion_right"]) == only
    assert said["p_value"] == pytest.approx(binomtest(only[0], sum(only)).pvalue if sum(only) else 1.0)


def test_the_paired_test_of_values_is_the_t_test(tmp_path: Path):
    place = tmp_path / "models"
    sk.retrain(pipeline(task="regression"), place)
    now = pipeline(900, task="regression", kernel=sk.Laplace(3.0))
    said = sk.retrain(now, place)["significance"]
    ids = now.test.rules[0].keep(np.arange(900))
    X, y = (part[ids] for part in rows(900, task="regression"))
    before, after = ((Registry(place).load(number).predict(X) - y) ** 2 for number in (1, 2))
    expected = ttest_rel(after, before)
    assert said["p_value"] == pytest.approx(expected.pvalue, rel=1e-3)
    assert said["t"] == pytest.approx(expected.statistic, rel=1e-3)


def test_drift_is_told_and_can_be_a_gate(place: Path):
    gate = "accuracy >= champion - 0.002 and drift.max_psi < 0.25"
    decision = sk.retrain(pipeline(shift=2.0), place, gate=gate)
    assert decision["status"] == "rejected"
    assert decision["drift"]["max_psi"] > 0.25
    assert decision["drift"]["score_psi"] > 0.25
    assert any("f0 has shifted" in warning for warning in decision["warnings"])
    assert sk.retrain(pipeline(900), place, gate=gate)["warnings"] == []


def test_a_champion_that_cannot_be_scored_is_left_to_a_person(place: Path):
    decision = sk.retrain(pipeline(task="regression"), place)
    assert (decision["status"], decision["champion"]) == ("rejected", 1)
    X, y = rows(600)
    train, test = sk.from_arrays(np.hstack([X, X]), y).split(test=0.3)
    decision = sk.retrain(pipeline(train=train, test=test), place)
    assert (decision["status"], decision["champion"]) == ("rejected", 1)
    assert "8 features" in decision["reasons"][0]
    with Registry(place).lock():
        Registry(place).promote(3)
    assert sk.retrain(pipeline(train=train, test=test), place)["champion"] == 3


def test_a_class_that_the_champion_never_saw_counts_against_it(place: Path):
    X, y = rows(900)
    y[X[:, 0] > 2] = 7
    train, test = sk.from_arrays(X, y).split(test=0.3)
    decision = sk.retrain(pipeline(train=train, test=test), place)
    assert decision["status"] == "promoted"
    assert decision["challenger"]["accuracy"] > decision["against"]["accuracy"]
    assert sorted(Registry(place).load().encoding.values.tolist()) == [0, 1, 7]


def test_old_versions_go_and_the_champion_stays(place: Path):
    for seed in range(1, 5):
        sk.retrain(pipeline(seed=seed), place, gate="accuracy > 2", keep=2)
    assert Registry(place).versions == [1, 4, 5]
    assert [line["status"] for line in Registry(place).decisions()] == ["promoted", *["rejected"] * 4]


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"test": None}, sk.UsageError, "no test rows"),
        ({"gate": "auk > 0.5"}, sk.UsageError, "no metric"),
        ({"keep": 0}, sk.UsageError, "keep is 0"),
        ({"memory": "10MB", "n": 700}, sk.errors.PlanRefusedError, "memory|budget|hold"),
        ({"solver": sk.EigenPro(step=1e6)}, sk.errors.NumericalError, "loss"),
    ],
    ids=str,
)
def test_a_night_that_fails_leaves_the_champion(place, change, error, words):
    settings = {name: change[name] for name in ("gate", "keep", "memory") if name in change}
    others = {name: value for name, value in change.items() if name not in settings}
    with pytest.raises(error, match=words):
        sk.retrain(pipeline(**others), place, **settings)
    assert (Registry(place).champion, Registry(place).versions) == (1, [1])


def test_rows_that_no_model_can_be_compared_on_are_an_error(place: Path):
    model = Registry(place).load()
    X, y = rows(300)
    X[7, 2] = np.nan
    with pytest.raises(sk.DataError, match="NaN"), sk.open_executor("threads") as executor:
        compare_models(model, model, sk.from_arrays(X, y), executor)


# ------------------------------------------------------------------------------------------------------ command line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nightly.py").write_text(PIPELINE)
    sk.write_zarr("rows.zarr", *rows(600), target="label", chunk_rows=100)
    return tmp_path


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any], str]:
    status = main(["retrain", "nightly.py", "--registry", "models", "--quiet", *words])
    said = capsys.readouterr()
    return status, json.loads(said.out.splitlines()[-1]), said.err


@pytest.mark.slow
def test_every_path_ends_in_a_status_and_a_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    def ends(*words: str) -> tuple[int, str]:
        status, line, _ = command(capsys, *words)
        assert line["exit_status"] == status
        return status, line["status"]

    assert ends() == (0, "promoted")
    assert Path("models/versions/000001/report.html").stat().st_size > 10_000
    assert ends() == (0, "unchanged")
    assert ends("--gate", "accuracy > champion") == (0, "rejected")
    assert ends("--gate", "accuracy >") == (2, "failed")
    assert ends("--set", "colour=red") == (2, "failed")
    assert ends("--memory", "10MB", "--set", "seed=3") == (2, "failed")
    assert ends("--set", "step=1e6") == (3, "failed")
    assert ends("--set", "rows=nowhere.zarr") == (1, "failed")
    with Registry("models").lock():
        assert ends() == (75, "failed")
    assert main(["retrain", "nightly.py"]) == 2
    assert "registry" in capsys.readouterr().err
    assert main(["retrain", "nightly.py", "--help"]) == 0
    assert "centers" in capsys.readouterr().out
    statuses = [line["status"] for line in Registry("models").decisions()]
    assert statuses == ["promoted", "unchanged", "rejected", "failed", "failed"]


@pytest.mark.slow
def test_models_are_listed_shown_promoted_rolled_back_and_pruned(folder: Path, capsys: pytest.CaptureFixture[str]):
    for seed in "012":
        command(capsys, "--set", f"seed={seed}", "--gate", "accuracy > 0.5")

    def models(*words: str) -> str:
        assert main(["models", "models", *words]) == 0
        return capsys.readouterr().out

    lines = models().splitlines()
    assert [line.split()[0] for line in lines] == ["1", "2", "*"]
    assert "accuracy 0." in lines[0]
    assert json.loads(models("show"))["version"] == 3
    assert json.loads(models("show", "1"))["settings"] == {"seed": "0"}
    assert models("promote", "1") == "the champion is version 1\n"
    assert models("rollback") == "the champion is version 3\n"
    assert models("prune", "--keep", "1") == "deleted 1\n"
    for words in (["promote", "../../x"], ["promote"], ["show", "1"]):
        assert main(["models", "models", *words]) == 2
    with pytest.raises(SystemExit, match="2"):
        main(["models", "models", "prune", "--keep", "x"])


KILLED = """
import os, signal, sys
from streamkern.commands.parser import main

seen = sys.argv[1]
before = os.stat(seen).st_ino

def hear(event, details):
    if event in ("open", "os.rename") and os.path.exists(seen) and os.stat(seen).st_ino != before:
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(hear)
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("sign", ["manifest.json", "model.zarr/zarr.json"])
def test_killed_in_training_and_after_it_the_next_night_goes_on(folder: Path, sign: str, forked: Callable[..., Any]):
    """kill -9 as soon as a file of the run is another one; the champion is there, whole, and the night is made good."""
    first = sk.retrain(sk.load_pipeline("nightly.py"), "models")
    models = Registry("models")
    Path("killed.py").write_text(KILLED)
    words = ["retrain", "nightly.py", "--registry", "models", "--quiet", "--set", "seed=1", "--gate", "accuracy > 0"]
    process = forked("python", ("killed.py", f"models/run/{sign}", *words), folder / "killed")
    assert process.wait() == -signal.SIGKILL
    assert models.champion == first["champion"] == 1
    assert models.load().score(sk.open_dataset("rows.zarr", target="label"))["accuracy"] > 0.7
    said, _ = forked("streamkern", words, folder / "done").communicate()
    assert json.loads(said.splitlines()[-1])["champion"] == models.champion == 2
    assert [name for name in os.listdir("models/versions") if name.startswith(".")] == []


STOPS = [
    ("streamkern.registry.retrain.save_artifact", False),
    ("streamkern.registry.model_registry.write_json", False),
    ("streamkern.registry.registry_storage.commit", False),
    ("streamkern.registry.registry_storage.commit", True),
    ("streamkern.registry.model_registry.Registry._set", False),
    ("streamkern.registry.model_registry.Registry._set", True),
    ("streamkern.registry.model_registry.Registry.log", False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("stop", "after"), STOPS, ids=lambda stop: str(stop).rpartition(".")[2])
def test_a_process_that_ends_between_two_steps_of_the_promotion(three: Path, tmp_path: Path, stop: str, after: bool):
    """A child of this process that is killed just before or after a step, at the exact place."""
    place = tmp_path / "models"
    shutil.copytree(three, place)
    models = Registry(place)
    assert models.champion == 2
    child = os.fork()
    if child == 0:  # pragma: no cover
        target, _, name = stop.rpartition(".")
        owner = sys.modules.get(target) or getattr(
            sys.modules.get(target.rpartition(".")[0]), target.rpartition(".")[2]
        )
        whole: Callable[..., Any] = getattr(owner, name)

        def ended(*args: Any, **kwargs: Any) -> None:
            if after:
                whole(*args, **kwargs)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(owner, name, ended)
        try:
            sk.retrain(pipeline(seed=7), place, keep=1, gate="accuracy > 0")
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert models.champion in (2, 4)
    models.load()
    decision = sk.retrain(pipeline(seed=7), place, keep=1, gate="accuracy > 0")
    assert decision["champion"] == models.champion == 4
    assert models.load().weights_sha256 == models.record()["weights_sha256"]
    assert set(models.versions) <= {1, 2, 3, 4}
    assert [name for name in os.listdir(place / "versions") if name.startswith(".")] == []


def test_models_may_cut_the_rows_as_suits_them(place: Path, monkeypatch: pytest.MonkeyPatch):
    """Two models' outputs in blocks of other sizes than one another's, and than the targets'."""
    model, test = Registry(place).load(), sk.from_arrays(*rows(5000))
    whole = model.decision_function(test)
    sizes = iter((7, 1900))

    def pieces(self: Any, X: Any, *, executor: Any = None, scales: bool = False) -> Iterator[np.ndarray]:
        size = next(sizes)
        return (whole[start : start + size] for start in range(0, len(whole), size))

    with sk.open_executor("threads") as executor:
        monkeypatch.setattr(type(model), "_stream_outputs", pieces)
        found = compare_models(model, model, test, executor)
    monkeypatch.undo()
    assert found.challenger == found.champion
    assert found.challenger["accuracy"] == model.score(test)["accuracy"]


def test_a_champion_that_fits_is_where_training_begins(place: Path):
    decision = sk.retrain(pipeline(630), place, gate="accuracy > 0")
    first, second = (Registry(place).record(number) for number in (1, 2))
    assert (first["start"], second["start"], decision["start"]) == ("cold", "warm", "warm")
    n = len(pipeline(630).train)
    assert (second["trained_rows"], decision["challenger"]["n_train"]) == (n // 3, n)
    assert decision["against"]["n_train"] == len(pipeline().train)
    models = [Registry(place).load(number) for number in (1, 2)]
    assert np.array_equal(models[0].Z, models[1].Z)
    assert decision["challenger"]["mse"] < 1.1 * decision["against"]["mse"]
    far, near = (np.linalg.norm(models[1].weights - weights) for weights in (0 * models[0].weights, models[0].weights))
    assert near < far
    # The next one begins anew, since there are too many new rows for the old centers.
    sk.retrain(pipeline(1200), place, gate="accuracy > 2")
    assert "grown" in Registry(place).record(3)["why_cold"]
    sk.retrain(pipeline(610), place)
    assert "rejected" in Registry(place).record(4)["why_cold"]


@pytest.mark.slow
def test_a_warm_start_of_several_passes_takes_fewer_of_them(tmp_path: Path):
    place = tmp_path / "models"
    for n in (600, 630):
        sk.retrain(pipeline(n, solver=sk.EigenPro(epochs=6)), place, gate="accuracy > 0")
    assert Registry(place).record(2)["trained_rows"] == 2 * len(pipeline(630).train)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"solver": sk.Falkon()}, "EigenPro"), ({"solver": sk.EigenPro(projection="delayed")}, "EigenPro"),
        ({"scaling": "standard"}, "learnt"), ({"train": pipeline().train.scale(2.0)}, "scaling"),
        ({"centers": sk.Uniform(31)}, "number"), ({"kernel": sk.Laplace(3.0)}, "kernel"),
        ({"dtype": "float64"}, "dtype"), ({"preprocess": (sk.UnitRange(),)}, "learnt"),
        ({"metric": sk.AGOP()}, "the metric is learnt"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)  # fmt: skip
def test_what_does_not_fit_the_champion_begins_at_0_and_says_why(one: Path, change: dict[str, Any], words: str):
    given = pipeline(**change)
    begun, why = with_warm_start(given, Registry(one).load())
    assert begun is given
    assert words in (why or "")


def test_a_metric_that_is_asked_for_later_begins_at_0(place: Path):
    night = sk.retrain(pipeline(630, metric=sk.AGOP(1)), place, gate="accuracy > 0")
    assert (night["start"], night["status"]) == ("cold", "promoted")
    assert "the metric is learnt" in night["why_cold"]


def test_a_cold_start_is_the_plain_run(place: Path):
    sk.retrain(pipeline(630), place, cold=True)
    assert Registry(place).record(2)["weights_sha256"] == sk.run(pipeline(630), place.parent / "r")["weights_sha256"]


ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
def test_every_command_of_the_page_runs(folder: Path, capsys: pytest.CaptureFixture[str]):
    """In its order, after a night with another champion; and then its Python."""
    page = (ROOT / "docs/retraining.md").read_text(encoding="utf-8")
    commands = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    ours = [shlex.split(line)[1:] for line in commands if line.startswith("streamkern ")]
    for words in (["retrain", "nightly.py", "--registry", "models", "--set", "centers=1"], *ours):
        assert main(words) == 0, words
    assert {words[0] for words in ours} == {"retrain", "models"}
    for line in set(commands) - {line for line in commands if line.startswith("streamkern ")}:
        assert (ROOT / line.split()[1]).is_file()
    capsys.readouterr()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(program, {})
    for text in re.findall(r"```python title=.*?\n(.*?)```", page, re.DOTALL):
        compile(text, "retraining.md", "exec")  # needs what is no dependency of the tests
    assert capsys.readouterr().out == f"{Registry('models').champion} 4\n"


@pytest.mark.slow
def test_a_week_of_the_simulated_year(tmp_path: Path):
    """``tests/year.py`` checks every night by itself; the whole year is run by hand."""
    words = [sys.executable, ROOT / "tests/year.py", "6", "--kills", "1", "--seed", "1", "--plot", tmp_path / "y.svg"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "champion missing: 0 nights" in done.stdout
    assert (tmp_path / "y.svg").read_text().startswith("<svg")
    kept = ROOT / "docs/img/retraining.svg"
    assert kept.stat().st_size < 100_000


def in_leaves(y: np.ndarray, **changes: Any) -> sk.Pipeline:
    X = np.random.default_rng(0).normal(size=(4000, 4)).astype("float32") * [1, 1, 1, 100]
    train, test = sk.from_arrays(X, y(X)).split(test=0.2)
    given: dict[str, Any] = {
        "train": train, "test": test, "kernel": sk.Laplace(2.0), "centers": sk.Uniform(40), "task": "regression",
        "preprocess": (sk.Standardise(),), "partition": sk.Partition(leaves=4, overlap=0.0), "name": "leaves",
        "dtype": "float32",
    }  # fmt: skip
    return sk.Pipeline(**(given | changes))


@pytest.mark.slow
def test_only_leaves_whose_rows_have_changed_are_trained_again(tmp_path: Path):
    place, gate = tmp_path / "models", "r2 > -10"

    def before(X: np.ndarray) -> np.ndarray:
        return np.sign(X[:, 0]) + np.sin(2 * X[:, 1])

    first = sk.retrain(in_leaves(before), place, gate=gate)
    old = Registry(place).load()
    tree = old.tree

    def after(X: np.ndarray) -> np.ndarray:
        y = before(X)
        encoded = ((X - X.mean(axis=0)) / X.std(axis=0)).astype(np.float32)
        sure = np.abs(encoded @ tree.directions.T - tree.cuts[:, 1]).min(axis=1) > 0.1  # the scaling is not quite that
        mine = tree.in_leaf(encoded, 2) & sure
        assert mine.sum() > 400
        return y + mine * X[:, 2]

    night = sk.retrain(in_leaves(after), place, gate=gate)
    assert (first["start"], night["start"]) == ("cold", "warm")
    result = json.loads((Registry(place).run_dir("leaves") / "result.json").read_text())
    kept = {stage["name"] for stage in result["stages"] if stage["cached"] and stage["name"].startswith("leaf-")}
    assert kept == {"leaf-0", "leaf-1", "leaf-3"}
    new = Registry(place).load()
    assert new.tree.fingerprint == tree.fingerprint
    same = [new.leaves.facts[leaf]["weights_sha256"] == old.leaves.facts[leaf]["weights_sha256"] for leaf in range(4)]
    assert same == [True, True, False, True]
    assert np.array_equal(new.factor, old.factor)
    drift = night["drift"]
    worst, *others = drift["leaves"]
    assert worst["leaf"] == 2
    assert worst["target_psi"] == drift["max_leaf_target_psi"] > 0.25
    assert max(each["target_psi"] for each in others) < 0.05
    assert sum(each["before"] for each in drift["leaves"]) == pytest.approx(1.0)
    assert drift["leaf_psi"] < 0.01  # no row has moved
    assert any("in leaf 2" in each for each in night["warnings"])
    assert new.score(in_leaves(after).test)["r2"] > old.score(in_leaves(after).test)["r2"] + 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"partition": sk.Partition(leaves=5, overlap=0.0)}, "partition differ"),
        ({"preprocess": (sk.Standardise(), sk.Normalise())}, "preprocessing, kernel, metric or partition differ"),
        ({"kernel": sk.Gaussian("median")}, "kernel, metric or partition differ"),
        ({"kernel": sk.Laplace("median"), "metric": sk.AGOP()}, "kernel, metric or partition differ"),
    ],
)
def test_leaves_of_another_request_are_cut_anew(changes: dict[str, Any], reason: str, tmp_path: Path):
    place = tmp_path / "models"
    sk.retrain(in_leaves(lambda X: X[:, 0]), place, gate="r2 > -10")
    _, why = with_warm_start(in_leaves(lambda X: X[:, 0], **changes), Registry(place).load())
    assert reason in why
    sk.run(in_leaves(lambda X: X[:, 0], partition=None), tmp_path / "run")
    one = sk.load_model(tmp_path / "run" / "model.zarr")
    assert with_warm_start(in_leaves(lambda X: X[:, 0]), one)[1] == "the champion is one model, without leaves"


@pytest.mark.slow
def test_leaves_of_other_classes_are_cut_anew(tmp_path: Path):
    place, given = tmp_path / "models", {"task": "classification"}
    sk.retrain(in_leaves(lambda X: (X[:, 0] > 0).astype(int), **given), place, gate="accuracy > 0")
    night = sk.retrain(in_leaves(lambda X: np.digitize(X[:, 0], [-0.5, 0.5]), **given), place, gate="accuracy > 0")
    assert night["start"] == "cold"
    assert "classes are not those of the champion" in Registry(place).record(night["version"])["why_cold"]


# ----------------------------------------------------------------------------------------------------- comparisons


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_metrics_are_those_of_score(task):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((900, 3))
    f = X[:, 0] + 0.5 * rng.standard_normal(900)
    if task == "classification":
        estimator, y = sk.KernelClassifier, np.where(f > 1, "yes", "no")
    else:
        estimator, y = sk.KernelRegressor, 40 + 3 * f
    # Each scales the stored rows itself.
    models = [
        estimator(sk.Gaussian("median"), centers=p, threads=1, preprocess=steps).fit(X[:600], y[:600]).model_
        for p, steps in ((20, "auto"), (60, (sk.UnitRange(),)))
    ]
    test = sk.from_arrays(X[600:], y[600:])
    with open_executor("threads", 1) as executor:
        paired = compare_models(models[1], models[0], test, executor)
    for model, found in ((models[1], paired.challenger), (models[0], paired.champion)):
        expected = flat_metrics(model.score(test))
        expected["n_test"] = expected.pop("n")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name] == pytest.approx(np.nan if value is None else value, rel=1e-6, nan_ok=True), name


def test_what_one_model_alone_has_is_not_a_number():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    y = np.array(["a", "b", "c"])[rng.integers(3, size=300)]
    two = y != "c"
    new = sk.KernelClassifier(sk.Gaussian("median"), centers=20, threads=1).fit(X, y).model_
    old = sk.KernelClassifier(sk.Gaussian("median"), centers=20, threads=1).fit(X[two], y[two]).model_
    with open_executor("threads", 1) as executor:
        paired = compare_models(new, old, sk.from_arrays(X, y), executor)
    assert np.isfinite(paired.challenger["recall.c"])
    assert np.isnan(paired.champion["recall.c"])
