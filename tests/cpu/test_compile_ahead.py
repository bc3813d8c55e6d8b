"""Code that is compiled ahead: what defaults call is there, and no other code is ever taken for it."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest

from streamkern.cpu import code_files, compile_ahead, compiled, gemm, loops
from streamkern.cpu.code_files import LEVELS, code_folder, level_environment, processor_level
from streamkern.cpu.compiled import LOOPS

ROOT = Path(__file__).parent.parent.parent
FASHION = Path("/usr/share/datasets/fashion-mnist")
X = np.random.default_rng(0).random((9, 5), dtype=np.float32)

own_level = pytest.mark.skipif(processor_level() is None, reason="this processor has no level of x86-64")


@pytest.fixture
def norms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> compiled.Loop:
    """A loop that has not been called, with its code in a file."""
    found = LOOPS["streamkern.cpu.loops.row_norms"]
    monkeypatch.setattr(code_files, "CODE_ROOT", tmp_path)
    monkeypatch.setattr(compiled, "find_code", lambda name: code_files.find_code(name, tmp_path))
    fresh = compiled.Loop(found._function, found._signatures)
    fresh.compile_to(code_folder(str(processor_level()), tmp_path) / fresh.code_name(X.dtype), X.dtype)
    return fresh


def norms_of(loop: compiled.Loop) -> np.ndarray:
    out = np.empty(len(X), X.dtype)
    loop(X, out)
    return out


def never(self: Any, dtype: Any) -> Any:
    raise AssertionError("it compiles")


@own_level
def test_code_of_a_file_has_the_bits_of_code_compiled_here(norms: compiled.Loop, monkeypatch: pytest.MonkeyPatch):
    expected = norms_of(loops.row_norms)
    monkeypatch.setattr(compiled.Loop, "_written", never)
    assert norms.is_compiled(X.dtype)
    assert np.array_equal(norms_of(norms), expected)


LOADED = """
import re, sys
from pathlib import Path
import numpy as np
from streamkern.cpu import code_files, compiled, loops
from streamkern.memory import release_free_memory

compiled.find_code = lambda name: code_files.find_code(name, Path(sys.argv[1]))
compiled.Loop._written = None
X = np.arange(12.0, dtype=np.float32).reshape(3, 4)

def norms():
    out = np.empty(3, np.float32)
    loops.row_norms(X, out)
    return out

def mapped():
    maps = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.M)
    return sum(int(re.search(r"Rss: *(\\d+)", each)[1]) for each in maps if "libllvmlite.so" in each)

first, before = norms(), mapped()
release_free_memory()
after = mapped()
assert np.array_equal(norms(), first) and np.array_equal(first, np.square(X).sum(axis=1)), first
compiling = {"numba.np.arrayobj", "numba.cpython.unicode", "numba.typed.typeddict"} & set(sys.modules)
assert not compiling, compiling
assert after < 0.7 * before, (before, after)
import numba
assert numba.njit(lambda x: x.sum())(X) == X.sum()  # code is compiled afterwards, too
"""


@own_level
@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux only")
def test_a_process_that_loads_code_holds_no_compiler(norms: compiled.Loop, tmp_path: Path):
    """Modules that compile are not imported, and the code of LLVM is unmapped with the memory that is free."""
    subprocess.run([sys.executable, "-c", LOADED, str(tmp_path)], check=True)


@own_level
def test_a_damaged_file_is_not_used(norms: compiled.Loop, tmp_path: Path):
    (file,) = tmp_path.glob("*/*")
    file.write_bytes(file.read_bytes()[:1000])
    assert np.array_equal(norms_of(norms), norms_of(loops.row_norms))


@own_level
@pytest.mark.parametrize(
    ("where", "name", "value"),
    [
        (code_files, "sources_digest", lambda: "of another release"),
        (numba, "__version__", "0.1"),
        (sys.implementation, "cache_tag", "another-0"),
        (code_files, "processor_level", lambda: None),
        (code_files, "processor_level", lambda: "x86-64-v0"),
    ],
)
def test_code_of_other_sources_versions_and_levels_is_not_found(where, name, value, norms, monkeypatch, tmp_path):
    assert code_files.find_code(norms.code_name(X.dtype), tmp_path) is not None
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "none"))
    code_folder.cache_clear()
    monkeypatch.setattr(where, name, value)
    assert code_files.find_code(norms.code_name(X.dtype), tmp_path) is None
    code_folder.cache_clear()


def test_each_level_has_the_features_of_those_before_and_fused_products():
    narrow, wide = (set(features) for features in LEVELS.values())
    assert narrow < wide
    assert "fma" in narrow


@own_level
def test_a_processor_that_is_named_to_numba_has_no_level():
    named = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    program = "from streamkern.cpu.code_files import processor_level; print(processor_level())"
    told = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | named, capture_output=True, text=True, check=True
    )
    assert told.stdout == "None\n"


@own_level
def test_panels_have_the_width_that_code_of_this_level_is_compiled_for():
    program = "from streamkern.cpu import gemm; print(gemm.VECTORS, gemm.WIDTH)"
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | level_environment(str(processor_level())), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout == f"{gemm.VECTORS} {gemm.WIDTH}\n"


def test_default_loops_exist_for_the_types_that_are_listed():
    for name, dtype in compile_ahead.default_loops():
        assert np.dtype(dtype) in compile_ahead._loop(name)._signatures


@own_level
@pytest.mark.slow
def test_doctor_compiles_what_is_missing_beside_the_package(tmp_path: Path):
    level = str(processor_level())
    folder = code_folder(level, tmp_path)
    folder.mkdir()
    first, *others = [f"{name}-{dtype}" for name, dtype in reversed(compile_ahead.default_loops())]
    for name in others:
        (folder / name).touch()
    told = compile_ahead.compile_here(tmp_path)
    assert re.fullmatch(rf"\d+ loops for {level}, 1 compiled in [0-9.]+ s: {tmp_path}\n", told)
    assert (folder / first).stat().st_size > 0
    assert not any((folder / name).stat().st_size for name in others)
    assert "all compiled before" in compile_ahead.compile_here(tmp_path)


@own_level
def test_doctor_compiles_into_the_users_cache_where_the_package_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compile_ahead, "DEFAULTS", {"gemm.pack_rows": ("float32",)})
    monkeypatch.setattr(compile_ahead, "PROGRAM", (sys.executable, "-c", "import sys; sys.exit('read-only')"))
    told = compile_ahead.compile_here(Path("/proc/none"))
    assert f"{tmp_path}/streamkern (read-only)" in told
    assert np.dtype(np.float32) in LOOPS["streamkern.cpu.gemm.pack_rows"].dtypes


# ------------------------------------------------------------------------------------------ what defaults call

CALLED = """
import atexit, runpy, sys
def tell():
    from streamkern.cpu.compiled import LOOPS
    with open("loops", "a") as file:
        print(*(f"{name}-{dtype}" for name, loop in LOOPS.items() for dtype in loop.dtypes), file=file)
atexit.register(tell)
file, *words = sys.argv[1:]
if file == "streamkern":
    from streamkern.commands.parser import main
    sys.exit(main(words))
runpy.run_path(file, run_name="__main__")
"""


def called(folder: Path, *words: str | Path) -> set[str]:
    """Return the loops that a script, or a command of streamkern, calls in its own process."""
    done = subprocess.run(
        [sys.executable, "-c", CALLED, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set((folder / "loops").read_text().split())


def ahead() -> set[str]:
    return {f"{name}-{dtype}" for name, dtype in compile_ahead.default_loops()}


PIPELINES = {
    "digits": (),
    "fashion_mnist": ("rows=10_000", "centers=1000"),
    "hundred_million": ("rows=200_000",),
    "regression": ("rows=5_000", "centers=500"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_calls_only_loops_that_are_compiled_ahead(name: str, tmp_path: Path):
    if name == "fashion_mnist" and not FASHION.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    settings = ["--set", *PIPELINES[name]] if PIPELINES[name] else []
    found = called(tmp_path, "streamkern", "run", ROOT / "pipelines" / f"{name}.py", *settings)
    assert found
    assert found - ahead() == set()


def test_every_pipeline_is_run_here():
    assert PIPELINES.keys() == {path.stem for path in (ROOT / "pipelines").glob("*.py")}


ALONE = {"serve"}  # a web server, whose predictions are those of `first_model`


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem not in ALONE)
)
def test_an_example_calls_only_loops_that_are_compiled_ahead(name: str, tmp_path: Path):
    assert called(tmp_path, ROOT / "examples" / f"{name}.py") - ahead() == set()


FENCE = re.compile(r"^```(python|sh)(?: title=\"(.*?)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/first-steps.md"])
def test_a_page_calls_only_loops_that_are_compiled_ahead(page: str, tmp_path: Path):
    parts = []
    for kind, title, text in FENCE.findall((ROOT / page).read_text(encoding="utf-8")):
        if kind == "python" and title:
            (tmp_path / title).write_text(text, encoding="utf-8")
            parts.append(f"from streamkern.commands.parser import main\nassert main(['run', {title!r}]) == 0\n")
        elif kind == "python":
            parts.append(text)
    script = tmp_path / "page.py"
    script.write_text("\n".join(parts), encoding="utf-8")
    assert called(tmp_path, script) - ahead() == set()


# ------------------------------------------------------------------------------------------------- the build hook


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The build hook, with as much of hatchling as it uses."""
    parts = ["hatchling", "builders", "hooks", "plugin", "interface"]
    for end in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
    sys.modules[".".join(parts)].BuildHookInterface = object  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = module.CompiledLoops()
    said: list[str] = []
    made.target_name = "wheel"
    made.app = SimpleNamespace(display_waiting=lambda text: None, display_warning=said.append)
    made.said, made.module = said, module
    return made


@pytest.mark.parametrize("program", ["import sys; sys.exit('no compiler')", "import os; os._exit(9)"])
def test_a_wheel_is_built_where_compiling_fails(hook: Any, program: str, monkeypatch: pytest.MonkeyPatch):
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda words, **options: real([sys.executable, "-c", program], **options))
    build: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", build)
    hook.finalize("standard", build, "a.whl")
    assert build == {"force_include": {}}
    (said,) = hook.said
    assert "no compiler" in said or "exit status 9" in said


@pytest.mark.parametrize(
    ("version", "target", "wanted"),
    [("editable", "wheel", ""), ("standard", "sdist", ""), ("standard", "wheel", "none")],
)
def test_what_needs_no_code_compiles_nothing(hook, version, target, wanted, monkeypatch):
    monkeypatch.setenv(hook.module.VARIABLE, wanted)
    monkeypatch.setattr(subprocess, "run", never)
    hook.target_name, build = target, {"force_include": {}}
    hook.initialize(version, build)
    assert build == {"force_include": {}}
    assert bool(hook.dependencies()) == (wanted != "none")


@own_level
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_wheel_has_the_code_that_defaults_call(hook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stand_in = tmp_path / "hatchling/builders/hooks/plugin/interface.py"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text("BuildHookInterface = object\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    build: dict[str, Any] = {"force_include": {}}
    hook.initialize("standard", build)
    folder = code_folder(str(processor_level()), Path("streamkern/cpu/code"))
    assert hook.said == []
    assert set(build["force_include"].values()) == {f"{folder}/{name}" for name in ahead()}
    hook.finalize("standard", build, "a.whl")
    assert not any(Path(path).exists() for path in build["force_include"])
