"""Compiled code is kept on the disk, where several processes look for it at once."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numba
import pytest

from streamkern.cpu.compiled import COMPILING

MODULE = """
import sys, time, numba
import numpy as np
from numba.core import caching
from streamkern.cpu.compiled import OPTIONS, loop, vector

@numba.njit(**OPTIONS)
def inner(x):
    return x + 1

@loop(lambda dtype: dtype(vector(dtype)), numba.float32, numba.float64)
def outer(x):
    return inner(x[0]) * 2

if __name__ == "__main__":
    save = caching.IndexDataCacheFile._save_data
    def slow(self, name, data):
        time.sleep(float(sys.argv[1]))
        save(self, name, data)
    caching.IndexDataCacheFile._save_data = slow
    for dtype in (np.float32, np.float64):
        assert outer(np.full(1, 1.5, dtype)) == 5.0
"""

NOWHERE = """
from numba.core import caching
getattr(caching, "CacheImpl", getattr(caching, "_CacheImpl", None))._locator_classes = []
"""


@pytest.mark.slow
def test_a_process_does_not_take_what_another_release_of_numba_left_for_what_one_beside_it_compiles(tmp_path: Path):
    module, kept = tmp_path / "loops_of_a_user.py", tmp_path / "__pycache__"
    module.write_text(MODULE)

    def begin(pause: float) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, module, str(pause)])

    assert begin(0).wait(120) == 0
    for index in kept.glob("*.nbi"):  # the release comes first, what it indexes is written after it
        with index.open("rb") as file:
            pickle.load(file)
            rest = file.read()
        index.write_bytes(pickle.dumps("0.1") + rest)
    before = {index: index.read_bytes() for index in kept.glob("*.nbi")}
    codes = list(kept.glob("*.nbc"))
    assert len(before) == 2
    assert len(codes) == 4
    for code in codes:
        code.write_bytes(pickle.dumps("code of another release"))

    slow = begin(2.0)
    until = time.monotonic() + 200
    while all(index.read_bytes() == old for index, old in before.items()):
        assert time.monotonic() < until
        time.sleep(0.01)
    beside = begin(0)
    assert [process.wait(120) for process in (slow, beside)] == [0, 0]


@pytest.mark.slow
def test_code_of_older_sources_of_the_functions_it_calls_is_not_used(tmp_path: Path):
    """Numba looks only at the file of a function itself."""
    module, called = tmp_path / "loops_of_a_user.py", tmp_path / "called.py"
    module.write_text(
        MODULE.replace("@numba.njit(**OPTIONS)\ndef inner(x):\n    return x + 1\n", "from called import inner\n")
    )
    code = "import numba, loops_of_a_user, streamkern.cpu.compiled as c\n"
    code += "c.sources_digest = lambda: {!r}\nprint(loops_of_a_user.outer(loops_of_a_user.np.array([1.5])))"
    found = []
    for version, added in (("first", 1), ("second", 10), ("second", 10)):  # of other sizes, else Python keeps its code
        called.write_text(f"import numba\n@numba.njit\ndef inner(x):\n    return x + {added}\n")
        done = subprocess.run(
            [sys.executable, "-c", code.format(version)], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        found.append(float(done.stdout))
    assert found == [5.0, 23.0, 23.0]
    assert (tmp_path / "__pycache__" / "streamkern.sources").read_text() == "second"


def test_where_nothing_can_be_kept_every_process_compiles_and_says_so(tmp_path: Path):
    module = tmp_path / "loops_of_a_user.py"
    module.write_text(NOWHERE + MODULE)
    done = subprocess.run([sys.executable, module, "0"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Set NUMBA_CACHE_DIR to a writable one") == 1
    assert not (tmp_path / "__pycache__").exists()


@pytest.mark.slow
def test_the_first_process_says_once_that_it_compiles(tmp_path: Path):
    (tmp_path / "loops_of_a_user.py").write_text(MODULE)
    code = "import loops_of_a_user as m\nm.outer(m.np.zeros(1))\nm.outer(m.np.zeros(1, 'f4'))"
    told = [
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120).stderr
        for _ in range(2)
    ]
    assert told == [COMPILING, ""]


@pytest.mark.slow
def test_a_new_time_of_the_file_compiles_nothing(tmp_path: Path):
    """A second installation of the same sources."""
    if not isinstance(numba.njit(cache=True)(_nothing)._cache._impl.locator.get_source_stamp(), bytes):
        pytest.skip("this release of Numba compares times")
    module = tmp_path / "loops_of_a_user.py"
    module.write_text(MODULE)
    code = "import loops_of_a_user as m\nprint(m.outer.is_compiled(float))\nm.outer(m.np.zeros(1))"
    for known in ("False\n", "True\n"):
        os.utime(module)
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.stdout == known, done.stderr


def _nothing() -> None:
    pass


@pytest.mark.slow
def test_a_loop_is_compiled_only_for_the_types_it_is_called_with(tmp_path: Path):
    module = tmp_path / "loops_of_a_user.py"
    module.write_text(MODULE)
    code = "import loops_of_a_user as m\nm.outer(m.np.zeros(1))\nassert m.outer.is_compiled(float)\n"
    code += "assert not m.outer.is_compiled('f4')\nm.outer(m.np.zeros(1, int))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "KeyError: dtype('int64')" in done.stderr
    assert len(list((tmp_path / "__pycache__").glob("*.outer-*.nbc"))) == 1
    code = "import loops_of_a_user as m\nprint([m.outer.is_compiled(dtype) for dtype in ('f8', 'f4')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "[True, False]\n", done.stderr
