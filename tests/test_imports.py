"""What an import and a command load: names of modules, which cost seconds on every start."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import streamkern as sk
from streamkern.defaults import RADIAL_NAMES
from streamkern.kernels import RADIAL_KERNELS

ROOT = Path(__file__).parent.parent
SLOW = {
    "bokeh", "dask", "distributed", "fsspec", "llvmlite", "numba", "numcodecs", "pandas", "pyarrow", "rich",
    "scipy", "sklearn", "zarr",
}  # fmt: skip


def loaded(program: str) -> tuple[set[str], set[str]]:
    """The modules of this package that a program loads, and the packages of others that are slow to import."""
    ending = "import json, sys; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run(
        [sys.executable, "-c", f"{program}\n{ending}"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    names = json.loads(out.splitlines()[-1])
    ours = {name for name in names if name.partition(".")[0] == "streamkern"}
    return ours, {name.partition(".")[0] for name in names} & (SLOW | {"numpy"})


def test_importing_the_library_loads_nothing_else():
    assert loaded("import streamkern") == ({"streamkern", "streamkern.version", "streamkern.startup"}, set())


COMMAND = """
from streamkern.commands.parser import main
try:
    main({words!r})
except SystemExit:
    pass
"""


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["ingest", "--help"], ["ingest"], ["--version"]])
def test_help_and_usage_errors_load_the_parser_alone(words: list[str]):
    ours, others = loaded(COMMAND.format(words=words))
    light = {"commands", "commands.parser", "commands.terminal", "defaults", "errors", "memory", "redaction"} | {
        "version",
        "startup",
        "user_code_digest",
    }
    assert ours == {"streamkern", *(f"streamkern.{name}" for name in light)}
    assert others == {"numpy"}


@pytest.mark.slow
def test_what_trains_loads_neither_dask_nor_drawings_nor_what_compiles():
    """Dask where Dask is used, Bokeh for a report, Numba with the first block."""
    assert loaded("import streamkern as sk; sk.KernelClassifier, sk.Pipeline, sk.run, sk.EigenPro")[1].isdisjoint(
        {"bokeh", "dask", "distributed", "numba", "rich"}
    )


@pytest.mark.slow
def test_a_pipeline_on_arrays_imports_no_formats():
    """zarr and Arrow are imported with the first path."""
    arrays = "sk.from_arrays(np.random.default_rng(0).random((50, 2)), np.zeros(50))"
    program = f"import numpy as np, streamkern as sk; job = sk.Pipeline({arrays}, sk.Laplace(1.0), sk.Uniform(9))"
    assert loaded(program)[1].isdisjoint({"pyarrow", "zarr"})


STORED = """
import numpy as np, zarr, streamkern as sk
X = np.random.default_rng(0).random((50, 2))
group = zarr.create_group("{path}")
for name, values in {arrays}.items():
    group.create_array(name, data=values)
rows = sk.open_dataset("{path}", target="y")
"""


@pytest.mark.slow
def test_rows_of_one_array_are_read_without_arrow_and_columns_load_it_when_they_are_opened(tmp_path: Path):
    """A plan counts what is loaded as in use."""
    wide = STORED.format(path=tmp_path / "wide.zarr", arrays="dict(X=X, y=X[:, 0])")
    assert "pyarrow" not in loaded(f"{wide}\nrows.source.read(0)")[1]
    columns = STORED.format(path=tmp_path / "columns.zarr", arrays="dict(a=X[:, 0], y=X[:, 1])")
    assert "pyarrow" in loaded(columns)[1]


COLLECTIONS = """
import gc
import streamkern as sk
found = []
gc.callbacks.append(lambda phase, _: found.append(phase))
sk.Pipeline
assert gc.isenabled() and len(found) < 10, len(found)  # hundreds of modules, and a collection once they are there
gc.disable()
sk.KernelClassifier
assert not gc.isenabled()
"""


@pytest.mark.slow
def test_imports_do_not_wait_for_the_garbage_collector():
    subprocess.run([sys.executable, "-c", COLLECTIONS], cwd=ROOT, check=True)


def test_status_compiles_and_trains_nothing(tmp_path: Path):
    (tmp_path / "result.json").write_text("{}")
    ours, others = loaded(COMMAND.format(words=["status", str(tmp_path)]))
    assert "streamkern.commands.run_reports" in ours
    assert {name for name in ours if name.split(".")[1:2] in (["solvers"], ["cpu"], ["gpu"], ["engine"])} == set()
    assert others & {"bokeh", "dask", "llvmlite", "numba", "pandas", "scipy", "sklearn"} == set()


def test_every_public_name_is_listed_once_for_each_reader():
    """For type checkers, and for the import at first use: from the same modules."""
    tree = ast.parse(Path(str(sk.__file__)).read_text())
    (types,) = (node for node in tree.body if isinstance(node, ast.If))
    shown = {node.module: node.names for node in types.body if isinstance(node, ast.ImportFrom)}
    assert {m: {a.name for a in names} for m, names in shown.items()} == {
        m: set(n.split()) for m, n in sk._NAMES.items()
    }
    assert all(a.name == a.asname for names in shown.values() for a in names)  # else it is no public name of ours
    assert len(set(sk.__all__)) == sum(map(len, shown.values()))
    assert set(sk.__all__) <= set(dir(sk))


@pytest.mark.parametrize("name", sk.__all__)
def test_a_public_name_is_found_where_the_table_says(name: str):
    assert getattr(sk, name).__name__.rpartition(".")[2] == name
    assert vars(sk)[name] is getattr(sk, name)  # the second use is a look-up


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'streamkern' has no attribute 'Lapalce'"):
        sk.Lapalce  # noqa: B018


@pytest.mark.slow
def test_modules_among_the_names_are_imported_when_they_are_used():
    ours = loaded("import streamkern as sk; sk.errors.BusyError")[0]
    assert ours == {
        "streamkern",
        "streamkern.errors",
        "streamkern.redaction",
        "streamkern.version",
        "streamkern.startup",
    }
    assert "streamkern.augment" not in ours
    assert "streamkern.augment" in loaded("import streamkern as sk; sk.augment.MixUp")[0]


def test_the_names_that_help_shows_are_those_of_the_kernels():
    assert tuple(sorted(RADIAL_KERNELS)) == RADIAL_NAMES


def test_every_command_has_a_function():
    source = (ROOT / "streamkern" / "commands" / "parser.py").read_text()
    names = {
        node.args[2].value if ast.unparse(node.func) == "_add" else node.args[0].value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("_add", "_late")
        and isinstance(node.args[min(2, len(node.args) - 1)], ast.Constant)
    }  # fmt: skip
    assert len(names) == 15  # fourteen commands, and the help on settings
    for name in names:
        module, _, function = name.partition(".")
        assert callable(getattr(importlib.import_module(f"streamkern.commands.{module}"), function))


@pytest.mark.parametrize("path", sorted((ROOT / "tests" / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_what_a_benchmark_imports_from_here_exists(path: Path):
    """Benchmarks run rarely and are long: a name that moved is noticed here."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in ("streamkern", "tests"):
            module = importlib.import_module(str(node.module))
            missing = [name.name for name in node.names if not hasattr(module, name.name)]
            for name in missing:  # a module of a package, which is no attribute before it is imported
                importlib.import_module(f"{node.module}.{name}")
