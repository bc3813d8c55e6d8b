"""Faults of the user's code and rows: one error that names the line, or the row and the column; never a traceback."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.errors import DataError, UsageError

HEAD = "import sys\nimport numpy as np\nimport streamkern as sk\nimport users_helper\n\n\n"
BODY = HEAD + "def pipeline() -> sk.Pipeline:\n    {}\n"
DATA = 'sk.from_arrays(np.random.default_rng(0).standard_normal((60, 3)).astype("float32"), np.arange(60) % 2)'
RUN = (
    HEAD
    + f"DATA = {DATA}\n\n\ndef g(t):\n    {{}}\n\n\ndef wobble(X, U):\n    {{}}\n\n\n"
    + "def pipeline() -> sk.Pipeline:\n    data = DATA.augment(sk.augment.Custom(wobble))\n"
    + "    return sk.Pipeline(data, {}, sk.Uniform(5), sk.EigenPro(epochs=1, batch=20), test=DATA)\n"
)
HELPER = "def fails():\n    return 1 / 0\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "users_helper.py").write_text(HELPER)
    (tmp_path / "fails_inside.py").write_text("x = 1\nimport no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "users_helper", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        (
            BODY.format("raise ValueError('no rows today')"),
            "pipeline() raised ValueError: no rows today.",
            "p.py, line 8",
        ),
        (BODY.format("return pipeline()"), "pipeline() raised RecursionError", "p.py, line 8"),
        (BODY.format("sys.exit(0)"), "pipeline() raised SystemExit: 0.", "p.py, line 8"),
        (BODY.format("raise SystemExit"), "pipeline() raised SystemExit.", "p.py, line 8"),
        (BODY.format("users_helper.fails()"), "pipeline() raised ZeroDivisionError", "users_helper.py, line 2"),
        (BODY.format("return np.zeros(3).reshape(2, 2)"), "pipeline() raised ValueError", "p.py, line 8"),
        ("import no_such_module\n", "has an import that fails: ModuleNotFoundError", "p.py, line 1"),
        ("\nfrom numpy import no_such\n", "has an import that fails: ImportError", "p.py, line 2"),
        (BODY.format("import no_such_module"), "pipeline() has an import that fails", "p.py, line 8"),
        (HEAD + "import fails_inside\n", "No module named 'no_such_module'", "fails_inside.py, line 2"),
        ("\nx = 1 / 0\n", "The pipeline file raised ZeroDivisionError: division by zero.", "p.py, line 2"),
        ("import sys\nsys.exit(0)\n", "The pipeline file raised SystemExit: 0.", "p.py, line 2"),
        ("x = 1\ndef pipeline(:\n", "not valid Python", "p.py, line 2"),
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_pipeline_file_that_fails_is_one_error_with_its_line(folder, capsys, text, message, place, command):
    (folder / "p.py").write_text(text)
    assert main([command, "p.py"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: ")
    assert message in told
    assert place in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("profile", "wobble", "kernel", "message", "status"),
    [
        ("raise KeyError('x')", "return X", "sk.RadialProfile(g)", "of RadialProfile raised KeyError: 'x'.", 2),
        ("raise KeyError('x')", "return X", "sk.DotProfile(g)", "of DotProfile raised KeyError: 'x'.", 2),
        ("users_helper.fails()", "return X", "2 * sk.RadialProfile(g)", "ZeroDivisionError", 2),
        ("return t[0]", "return X", "sk.RadialProfile(g)", "of RadialProfile returned float", 2),
        ("pass", "return X", "sk.RadialProfile(g)", "of RadialProfile returned object of shape ()", 2),
        ("return t", "raise OSError('gone')", "sk.Laplace(1.0)", "An augmentation raised OSError: gone.", 1),
    ],
)
def test_a_function_of_the_users_that_fails_in_training_is_one_error(
    folder: Path, capsys: pytest.CaptureFixture[str], profile: str, wobble: str, kernel: str, message: str, status: int
):
    (folder / "p.py").write_text(RUN.format(profile, wobble, kernel))
    assert main(["run", "p.py", "--threads", "1", "--quiet"]) == status
    told = capsys.readouterr().err
    assert message in told
    assert "Traceback" not in told
    if "raise" in profile + wobble:
        assert "p.py, line" in told


def test_a_solver_of_the_users_that_fails_is_told_by_its_line(folder: Path, capsys: pytest.CaptureFixture[str]):
    text = RUN.format("return t", "return X", "sk.Laplace(1.0)").replace("sk.EigenPro(", "Mine(")
    text += "\n\nclass Mine(sk.EigenPro):\n    def setup(self, problem, prepared=None):\n        return [][1]\n"
    (folder / "p.py").write_text(text)
    assert main(["run", "p.py", "--threads", "1", "--quiet"]) == 1
    told = capsys.readouterr().err
    assert "error: IndexError: list index out of range." in told
    assert f"p.py, line {text.count(chr(10))}" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("kernel", ["sk.RadialProfile(g)", "sk.Laplace(1.0) + sk.DotProfile(g)"])
def test_retraining_refuses_a_kernel_that_it_could_not_load_before_it_trains(folder, capsys, kernel):
    (folder / "p.py").write_text(RUN.format("return np.exp(-t)", "return X", kernel))
    assert main(["retrain", "p.py", "--registry", "models", "--quiet"]) == 2
    assert "cannot be retrained" in capsys.readouterr().err
    assert not (folder / "models").exists()


# -------------------------------------------------------------------------------------------------- numbers too large

ROWS = np.random.default_rng(0).standard_normal((60, 3))


def with_value(value: float, dtype: str = "float64") -> sk.Dataset:
    X = ROWS.astype(dtype)
    X[17, 2] = value
    return sk.from_arrays(X, np.arange(60) % 2)


@pytest.mark.parametrize(
    ("value", "dtype", "stored"),
    [
        (1e300, "float32", "float64"),
        (1e300, "float64", "float64"),
        (-1e25, "float32", "float32"),
        (1e25, "float32", "float64"),
    ],
)
@pytest.mark.parametrize("solver", [sk.EigenPro(epochs=1), sk.Direct(), sk.Falkon()])
def test_a_value_whose_square_is_infinite_is_named(tmp_path, value, dtype, stored, solver):
    pipe = sk.Pipeline(with_value(value, stored), sk.Laplace(1.0), sk.Uniform(10), solver, dtype=dtype)
    with pytest.raises(DataError, match=f"too large.*: {str(value)[:2]}") as error:
        sk.run(pipe, tmp_path / "run", threads=1)  # a warning of NumPy's would be an error here
    assert str(error.value.where).endswith("row 17, feature 2")


def test_a_large_value_that_can_be_computed_with_is_taken(tmp_path: Path):
    pipe = sk.Pipeline(with_value(1e25), sk.Laplace(1.0), sk.Uniform(10), sk.Direct(), scaling="standard")
    assert sk.run(pipe, tmp_path / "run", threads=1)["status"] == "done"


def test_a_target_whose_square_is_infinite_is_named(tmp_path: Path):
    y = np.zeros(60)
    y[5] = 1e200
    pipe = sk.Pipeline(sk.from_arrays(ROWS, y), sk.Laplace(1.0), sk.Uniform(10), task="regression")
    with pytest.raises(DataError, match="A target is too large") as error:
        sk.run(pipe, tmp_path / "run", threads=1)
    assert str(error.value.where).endswith("row 5, target 0")


@pytest.mark.slow
def test_nothing_is_printed_before_the_error(tmp_path: Path):
    program = (
        "import numpy as np, streamkern as sk\nX = np.random.default_rng(0).standard_normal((60, 3))\nX[3, 1] = 1e300\n"
        "try:\n    sk.KernelClassifier(centers=10).fit(X, np.arange(60) % 2)\nexcept sk.DataError as error:\n"
        "    print('row 3, feature 1' in str(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("True", "")


@pytest.mark.slow
def test_an_error_of_this_library_in_a_pipeline_file_stays_what_it_is(folder: Path):
    (folder / "p.py").write_text(BODY.format("return sk.EigenPro(epochs=-1)"))
    with pytest.raises(UsageError, match="epochs is -1"):
        sk.load_pipeline("p.py")
