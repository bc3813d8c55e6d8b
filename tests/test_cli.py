"""The command line as a user meets it: words, exit statuses, what is printed where, signals."""

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import streamkern as sk
from streamkern.commands.parser import main
from streamkern.progress import Display
from streamkern.resources import default_threads

DIGITS = str(Path(__file__).parent.parent / "pipelines" / "digits.py")
SMALL = ["--set", "rows=4_000", "centers=100"]
MODULE = [sys.executable, "-m", "streamkern"]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def result_of(folder: str = "runs/digits") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(folder, "result.json").read_text())
    return found


def computed(result: dict[str, Any]) -> list[str]:
    return [stage["name"] for stage in result["stages"] if not stage["cached"]]


def model_bytes(folder: str = "runs/digits") -> dict[str, bytes]:
    return {str(f): f.read_bytes() for f in Path(folder, "model.zarr").rglob("*") if f.is_file()}


# ------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", [MODULE, [str(Path(sys.executable).parent / "streamkern")]], ids=["module", "script"]
)
def test_run_trains_and_says_what_came_of_it(program: list[str]):
    if not Path(program[0]).exists():
        pytest.skip("the package is on the path but not installed, so there is no script")
    done = subprocess.run([*program, "run", DIGITS, *SMALL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = result_of()
    assert f"accuracy {result['metrics']['test']['accuracy']:.4g}" in done.stdout
    assert f"{result['samples_per_second']:,.0f} rows/s" in done.stdout
    assert {"result   runs/digits/result.json", "model    runs/digits/model.zarr"} <= {
        line.strip() for line in done.stdout.splitlines()
    }
    # Progress goes to stderr, as plain lines: no stage is missing, and nothing is drawn over.
    for stage in ("statistics", "centers", "eigensystem", "train", "evaluate"):
        assert re.search(rf"^{stage}: \d+\.\d s$", done.stderr, re.MULTILINE)
    assert re.search(r"^train: 100%, 4,000 of 4,000 rows, [\d,]+ rows/s, loss .*ETA 0\.0 s", done.stderr, re.MULTILINE)
    assert not {"\r", "\x1b"} & set(done.stderr)


@pytest.mark.parametrize(
    "words",
    [
        [DIGITS, "--set", "rows=4_000", "centers=100", "noise=0"],
        ["--set", "rows=5", "centers=100", "--set", "noise=0", "rows=4e3", "--", DIGITS],
        ["--set", "rows=4000", "centers=100", "noise=0.0", DIGITS],
        ["--set=rows=4000", "--set=centers=100", DIGITS, "--set", "noise=0"],
    ],
)
def test_settings_may_stand_anywhere_and_the_last_one_counts(words: list[str]):
    assert main(["run", "--quiet", *words]) == 0
    result = result_of()
    assert (result["n_rows"], result["n_centers"]) == (4_000, 100)


def test_quiet_says_nothing_but_errors(capsys: pytest.CaptureFixture[str]):
    assert main(["run", DIGITS, *SMALL, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["run", DIGITS, *SMALL, "--quiet", "--memory", "1MB"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")


# --------------------------------------------------------------------------------------------------- exit statuses


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", DIGITS, "--set", "row=5"], "did you mean 'rows'"),
        (["run", DIGITS, "--set", "rows=many"], "not of type int"),
        (["run", DIGITS, "--set", "rows"], "'rows' is not a setting"),
        (["run", DIGITS, "--set", "centers=0"], "at least 1"),
        (["run", DIGITS, "--memory", "lots"], "'lots' is not a size"),
        (["run", DIGITS, "--device", "cuda"], "CUDA is not available"),
        (["run", DIGITS, "--scheduler", "nowhere"], "nowhere"),
        (["run", DIGITS, "--memory", "10MB"], "may use 9.5 MiB"),
        (["plan", DIGITS, "--memory", "10MB"], "may use 9.5 MiB"),
        (["plan", DIGITS, "--device", "cuda"], "CUDA is not available"),
        (["run", "absent.py"], "no pipeline file"),
        (["run"], "No pipeline is given"),
    ],
    ids=lambda value: " ".join(value[2:]) if isinstance(value, list) else "",
)
def test_bad_usage_is_one_error_and_status_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert err.count("error: ") == 1


@pytest.mark.parametrize(
    "words",
    [["fly"], ["run", DIGITS, "--threads", "0"], ["run", DIGITS, "--device", "abacus"], ["run", DIGITS, "--bad"]],
)
def test_words_that_are_no_command_are_status_2(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: streamkern" in capsys.readouterr().err


def test_no_words_at_all_show_the_help_and_are_status_2(capsys: pytest.CaptureFixture[str]):
    assert main([]) == 2
    assert "doctor" in capsys.readouterr().err


PIPELINE = """
import numpy as np
import streamkern as sk

def pipeline(step: float | None = None, bad: bool = False, crash: bool = False) -> sk.Pipeline:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    X = rng.standard_normal((400, 3)) + 2.0 * y[:, None]
    if bad:
        X[123, 1] = np.nan
    if crash:
        raise RuntimeError("in the user's own code")
    return sk.Pipeline(train=sk.from_arrays(X, y), kernel=sk.Laplace(2.0), centers=sk.Uniform(30),
                       solver=sk.EigenPro(step=step))
"""


@pytest.mark.parametrize(
    ("setting", "status", "state", "messages"),
    [
        ("bad=true", 1, "failed", ["error: ", "row 123", "  do: "]),
        ("step=1e6", 3, "diverged", ["error: The loss", "  do: leave step"]),
        ("step=-1", 2, None, ["error: The step is -1.0."]),
        ("crash=true", 2, None, ["error: pipeline() raised ", "in the user's own code", "mine.py, line "]),
        ("step=none", 0, "done", []),
    ],
)
def test_the_exit_status_tells_how_a_run_ended(setting, status, state, messages, capsys):
    Path("mine.py").write_text(PIPELINE)
    assert main(["run", "mine.py", "--set", setting]) == status
    out, err = capsys.readouterr()
    assert [message for message in messages if message not in err] == []
    assert ("Traceback" in err) == ("Traceback" in messages)
    assert (out == "") == (status != 0)
    assert (result_of("runs/mine")["status"] if state else Path("runs").exists()) == (state or False)


# ------------------------------------------------------------------------------------------- signals, locks, pipes


def started(command: Callable[..., Any]) -> Any:
    """A long run, past its first step."""
    size = Path("runs/digits/events.jsonl").stat().st_size
    process = command("run", DIGITS, "--set", "rows=1e9", "centers=200")
    end = time.monotonic() + 200
    while '"event": "step"' not in Path("runs/digits/events.jsonl").read_text()[size:]:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
    return process


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "state"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "interrupted"), (signal.SIGKILL, -9, "done")],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_run_that_is_stopped_loses_nothing_and_frees_its_directory(number, status, state, command, capsys):
    assert main(["run", DIGITS, *SMALL, "--quiet"]) == 0
    before, model = result_of(), model_bytes()
    process = started(command)
    try:
        assert main(["run", DIGITS, *SMALL]) == 75
        assert str(process.pid) in capsys.readouterr().err
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == status
    assert out == ""
    assert "Traceback" not in err
    result = result_of()
    assert result["status"] == state
    assert before == (result if state == "done" else result["last_done"])
    assert model_bytes() == model
    assert main(["run", DIGITS, *SMALL, "--quiet"]) == 0
    assert computed(result_of()) == ["save"]
    assert result_of()["weights_sha256"] == before["weights_sha256"]


@pytest.mark.slow
def test_a_reader_that_has_gone_away_is_no_failure():
    program = "import sys; from streamkern.commands.parser import main; sys.exit(main(sys.argv[1:]))"
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([sys.executable, "-c", program, "run", DIGITS, *SMALL], stdout=write, stderr=write)
    os.close(write)
    assert done.returncode == 0
    assert result_of()["status"] == "done"


def test_ctrl_c_while_the_command_is_still_loading_is_one_line():
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "streamkern", "--version"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, pipesize=4096,
    )  # fmt: skip
    # As early as there is something to stop; it cannot end meanwhile, as what it has to say does not fit into the pipe.
    while b"streamkern.startup" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    said = err.decode().splitlines()  # the signal may have cut the last but one
    assert said[-1].endswith("stopped by SIGINT")
    assert all(line.startswith("import time:") for line in said[:-1])
    assert out == b""


# --------------------------------------------------------------------------------------------------- other commands


@pytest.mark.parametrize("words", [["run", DIGITS, "--run-dir", ""], ["resume", " "], ["status", ""]])
def test_an_empty_path_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "the path is empty" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("command", ["resume", "status", "report"])
def test_where_there_is_no_run_the_exit_status_is_that_of_bad_usage(command: str, capsys: pytest.CaptureFixture[str]):
    assert main([command, "nowhere"]) == 2
    assert "no run here" in capsys.readouterr().err


def test_more_threads_than_cores_are_told_how_many_there_are(capsys: pytest.CaptureFixture[str]):
    assert main(["plan", DIGITS, "--threads", "100000"]) == 2
    err = capsys.readouterr().err
    assert f"use {default_threads()} thread(s)" in err
    assert "raise memory" not in err


@pytest.mark.slow
def test_a_plan_beside_a_run_shows_what_each_stage_took(capsys: pytest.CaptureFixture[str]):
    words = [DIGITS, "--set", "rows=2000", "centers=100"]
    assert main(["plan", *words, "--beside", "run"]) == 2
    assert "--beside run" in capsys.readouterr().err
    assert main(["run", *words, "--run-dir", "run", "--quiet"]) == 0
    assert main(["plan", *words, "--beside", "run"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.endswith("took")
    took = {line.split()[0]: line.split()[-1] for line in lines[:7]}
    assert list(took) == ["statistics", "check-test", "centers", "eigensystem", "train", "evaluate", "total"]
    assert all(float(seconds) >= 0 for seconds in took.values())
    assert "the run held" in lines[7]
    assert main(["run", *words, "--run-dir", "run", "--quiet"]) == 0
    assert main(["plan", *words, "--beside", "run"]) == 0
    assert re.search(r"^train .* kept$", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    "words", [["run", DIGITS, "--help"], ["plan", "-h", DIGITS], ["run", "--set", "a=1", DIGITS, "-h"]]
)
def test_help_of_a_pipeline_lists_its_settings(words: list[str], capsys: pytest.CaptureFixture[str]):
    assert main(words) == 0
    out = capsys.readouterr().out
    assert re.search(r"^  rows +int +300_000 +training rows in a pass; more", out, re.MULTILINE)
    assert re.search(r"^  noise +float +0\.05 +standard deviation", out, re.MULTILINE)
    assert "--run-dir" in out or words[0] == "plan"


def test_help_names_the_commands_there_are_and_each_answers(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    named = re.findall(r"^    (\w+) ", capsys.readouterr().out, re.MULTILINE)
    assert {"run", "resume", "plan", "evaluate", "doctor"} <= set(named)
    for command in named:
        try:
            status = main([command, "--help"])
        except SystemExit as end:
            status = int(end.code or 0)
        assert status == 0
        assert f"usage: streamkern {command}" in capsys.readouterr().out


def test_evaluate_shows_the_rows_it_scored_and_fails_where_there_is_no_model_or_target(capsys):
    X = np.random.default_rng(1).standard_normal((300, 3))
    sk.write_parquet("new.parquet", X, X[:, 0] > 0, target="label")
    sk.KernelClassifier(centers=20).fit(X, X[:, 0] > 0).save("m.zarr")
    assert main(["evaluate", "m.zarr", "new.parquet", "--target", "label"]) == 0
    assert "(300 rows)" in capsys.readouterr().out
    assert main(["evaluate", "absent.zarr", "new.parquet", "--target", "label"]) == 1
    assert main(["evaluate", "m.zarr", "new.parquet", "--target", "lable"]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_doctor_describes_the_machine_and_measures_what_the_engine_reaches_of_it(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for word in ("streamkern ", "numpy ", "cores ", "memory ", "GEMM ", "GFLOP/s"):
        assert word in out
    wide = "avx512f" in Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else False
    assert ("OPENBLAS_CORETYPE=SKYLAKEX" in out) == (wide and "Haswell kernels" in out)
    assert "of BLAS's GEMM rate" in out
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"gemm", "copy", "copy_all_threads"} == found["rates"].keys()
    assert all(rate > 1e7 for rate in found["rates"].values())
    assert [shape["d"] for shape in found["engine"]] == [18, 100, 784]
    for shape in found["engine"]:
        assert shape["of_gemm"] == pytest.approx(2 * shape["d"] * shape["values"] / found["rates"]["gemm"])
    assert found["threads_gain"] > 0
    assert all(library["kernels"] for library in found["blas"])


# --------------------------------------------------------------------------------------------------------- progress


def on_terminal(words: list[str], columns: int) -> str:
    """What a command draws on a terminal of that width."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(words, stdout=slave, stderr=slave, env=os.environ | {"TERM": "xterm"})
    os.close(slave)
    drawn = b""
    while True:
        try:
            ready, _, _ = select.select([master], [], [], 60)
            piece = os.read(master, 65536) if ready else b""
        except OSError:  # Linux ends a terminal without writers in an error
            break
        if not piece:
            break
        drawn += piece
    os.close(master)
    assert process.wait(60) == 0
    return drawn.decode()


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 120])
def test_a_terminal_shows_one_live_line_that_fits(columns: int):
    start = time.monotonic()
    drawn = on_terminal([*MODULE, "run", DIGITS, "--set", "rows=3e5", "centers=200"], columns)
    seconds = time.monotonic() - start
    drawn = re.sub(r"\x1b\[[0-9;]*m", "", drawn)  # colours
    live = [piece.split("\n")[0].split("\r")[0] for piece in drawn.split("\r\x1b[2K")[1:]]
    steps = [line for line in live if "of 300,000 rows" in line]
    assert 1 <= len(steps) <= 8 * seconds + 1
    assert max(len(line) for line in steps) < columns
    assert ("rows/s" in steps[-1] and "ETA" in steps[-1] and "waiting for data" in steps[-1]) == (columns == 120)
    last = drawn.replace("\r\n", "\n").split("\x1b[1A\x1b[2K")[-1]
    assert re.search(r"^evaluate: \d", last)  # nothing of the live line is left
    assert ("━" in drawn) == (columns == 120)
    assert "digits: done" in last


def step(rows: int, **changes: Any) -> dict[str, Any]:
    fields = {"pass_": 0, "step": rows, "steps": 1000, "rows": rows, "total_rows": 2000, "loss": 0.5, "wait": 0.25}
    return fields | {"seconds": 10.0} | changes


def test_plain_step_lines_come_every_ten_seconds_and_at_the_end_however_short_passes_are():
    stream, now = io.StringIO(), 0.0
    display = Display(stream, live=False, clock=lambda: now)
    display("stage", {"name": "train", "state": "begin"})
    for i in range(1, 2001):  # 200 passes
        now = i * 0.0175
        display("step", step(i, pass_=(i - 1) // 10, step=(i - 1) % 10 + 1, steps=10))
    display("stage", {"name": "train", "state": "end", "seconds": 3725.0, "cached": False})
    lines = stream.getvalue().splitlines()
    assert lines[0] == "train ..."
    assert lines[-1] == "train: 1:02:05"
    assert len(lines) == 6  # at 10, 20, 30 and 35 seconds
    assert (
        lines[-2] == "train: 100%, 2,000 of 2,000 rows, 200 rows/s, loss 0.5, ETA 0.0 s, 25% waiting for data, pass 200"
    )


@pytest.mark.parametrize("live", [True, False])
def test_warnings_and_kept_stages_are_told(live: bool):
    stream = io.StringIO()
    display = Display(stream, live=live)
    display("stage", {"name": "train", "state": "begin"})
    display("warning", {"message": "look out"})
    display("stage", {"name": "centers", "state": "end", "seconds": 0.1, "cached": True})
    display.close()
    assert "warning: look out\n" in stream.getvalue()
    assert "centers: reused from an earlier run\n" in stream.getvalue()


def test_a_stream_that_fails_ends_the_display_and_not_the_run(monkeypatch: pytest.MonkeyPatch):
    stream, written = io.StringIO(), list[str]()

    def write(text: str) -> int:
        written.append(text)
        raise BrokenPipeError

    monkeypatch.setattr(stream, "write", write)
    display = Display(stream, live=False)
    for _ in range(3):
        display("warning", {"message": "x"})
    display.close()
    assert len(written) == 1


@pytest.mark.slow
def test_a_library_that_fails_while_python_ends_changes_no_status():
    """A thread of Arrow's aborts a process now and then whose interpreter is being taken down."""
    Path("mine.py").write_text(
        """import atexit
import os

class Last:
    def __del__(self):
        os._exit(7)

last = Last()
atexit.register(print, "closed")
"""
        + PIPELINE
    )
    done = subprocess.run([*MODULE, "plan", "mine.py", "--help"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("closed\n")
    assert len(done.stdout.splitlines()) > 3
