"""Code that is compiled at a first call is kept in the user's cache, where several processes look for it at once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamkern.cpu.code_files import OWN, code_folder
from streamkern.cpu.compiled import COMPILING

MODULE = """
import numba
import numpy as np
from streamkern.cpu.compiled import OPTIONS, loop, vector

@numba.njit(**OPTIONS)
def inner(x):
    return x + 1

@loop(lambda dtype: dtype(vector(dtype)), numba.float32, numba.float64)
def outer(x):
    return inner(x[0]) * 2

if __name__ == "__main__":
    for dtype in (np.float32, np.float64):
        assert outer(np.full(1, 1.5, dtype)) == 5.0
"""


@pytest.fixture
def begin(tmp_path: Path) -> Any:
    """A function that runs code, or the loops of ``MODULE``, in a new process with an empty cache."""
    (tmp_path / "loops_of_a_user.py").write_text(MODULE)

    def begun(*code: str, cache: str = "cache", **variables: str) -> subprocess.Popen[str]:
        words = ["-c", *code] if code else ["-m", "loops_of_a_user"]
        env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / cache)} | variables
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, *words], cwd=tmp_path, env=env, **streams)  # type: ignore[call-overload]

    return begun


def said(process: subprocess.Popen[str]) -> tuple[str, str]:
    told = process.communicate(timeout=120)
    assert process.returncode == 0, told
    return told


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("streamkern/*/*"))


def test_where_nothing_can_be_kept_every_process_compiles_and_says_so(begin: Any, tmp_path: Path):
    (tmp_path / "cache").touch()
    _, told = said(begin())
    assert told.count("Set NUMBA_CACHE_DIR to a writable one") == 1
    assert COMPILING not in told


def test_a_user_without_a_home_compiles_too(monkeypatch: pytest.MonkeyPatch):
    from streamkern.cpu import code_files

    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(code_files.Path, "home", none)
    with pytest.raises(OSError, match="Not a directory"):
        code_folder(OWN, code_files.user_root()).mkdir(parents=True)
    assert code_files.find_code("none") is None


@pytest.mark.slow
def test_the_first_process_says_once_that_it_compiles(begin: Any, tmp_path: Path):
    code = "import loops_of_a_user as m\nm.outer(m.np.zeros(1))\nm.outer(m.np.zeros(1, 'f4'))"
    assert [said(begin(code))[1] for _ in range(2)] == [COMPILING, ""]
    assert files(tmp_path / "cache") == ["loops_of_a_user.outer-float32", "loops_of_a_user.outer-float64"]


@pytest.mark.slow
def test_processes_side_by_side_compile_a_loop_once(begin: Any, tmp_path: Path):
    assert sorted(said(process)[1] for process in [begin() for _ in range(4)]).count(COMPILING) in (1, 2)
    assert len(files(tmp_path / "cache")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("code", [b"", b"code of another release"])
def test_a_damaged_file_is_compiled_again(begin: Any, tmp_path: Path, code: bytes):
    said(begin())
    for path in tmp_path.glob("cache/streamkern/*/*"):
        path.write_bytes(code)
    assert [said(begin())[1] for _ in range(2)] == [COMPILING, ""]


@pytest.mark.slow
def test_code_of_another_processor_is_not_used(begin: Any):
    assert said(begin())[1] == COMPILING
    other = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert [said(begin(**other))[1] for _ in range(2)] == [COMPILING, ""]
    assert said(begin())[1] == ""


@pytest.mark.slow
def test_a_loop_is_compiled_only_for_the_types_it_is_called_with(begin: Any, tmp_path: Path):
    code = "import loops_of_a_user as m\nm.outer(m.np.zeros(1))\nassert m.outer.is_compiled(float)\n"
    code += "assert not m.outer.is_compiled('f4')\nm.outer(m.np.zeros(1, int))"
    process = begin(code)
    assert "KeyError: dtype('int64')" in process.communicate(timeout=120)[1]
    assert files(tmp_path / "cache") == ["loops_of_a_user.outer-float64"]
    code = "import loops_of_a_user as m\nprint([m.outer.is_compiled(dtype) for dtype in ('f8', 'f4')])"
    assert said(begin(code))[0] == "[True, False]\n"
