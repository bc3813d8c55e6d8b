"""What the import linter cannot say about the layout: doors, file names, file lengths, and what an import may cost."""

import ast
import functools
import importlib
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from streamkern.sources.base import FACETS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "streamkern"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each of these enters through its own files, so that replacing it, or doing without it, is a change in one place.
DOORS = {
    "bokeh": {"report/bokeh_plots.py"},
    "cupy": {"gpu/cupy.py"},
    "dask": {"formats/dask_source.py", "execute/dask_executor.py"},
    "distributed": {
        "execute/dask_executor.py",
        "execute/dask_actors.py",
        "execute/tree_allreduce.py",
        "execute/worker_protocol.py",
    },
    "fcntl": {"storage/atomic_writes.py"},
    "h5py": {"ingestion/array_files.py"},
    "numba": {
        *(
            f"cpu/{name}.py"
            for name in (
                "columns",
                "code_files",
                "compiled",
                "cholesky",
                "lapack",
                "loops",
                "manhattan",
                "fused_predict",
                "gemm",
                "leaf_routing",
                "kernel_gradients",
                "gemv",
            )
        ),
    },
    "numcodecs": {"storage/artifact_arrays.py", "formats/checked_zarr_array.py", "ingestion/ingest.py"},
    "pyarrow": {"sources/arrow.py", "serving/prediction_writers.py"},
    "rich": {"progress.py"},
    "sklearn": {"sklearn/estimators.py", "sklearn/partial_fit.py"},
    "zarr": {
        "formats/checked_zarr_array.py",
        "serving/prediction_writers.py",
        "formats/training_zarr.py",
        "formats/zarr.py",
        "formats/zarr_checked_stores.py",
    },
}
GRAB_BAGS = {"util", "utils", "helper", "helpers", "common", "misc"}
LONGEST = 650


@functools.cache
def imported(source: str) -> set[str]:
    """Return the top-level packages that a module imports, wherever in the file it does so."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_imports_are_found_wherever_they_stand():
    source = "import a.b as c, d\nfrom e.f import g\nfrom . import h\ndef i():\n    from j import k\n"
    assert imported(source) == {"a", "d", "e", "j"}


@pytest.mark.slow
@pytest.mark.parametrize("dependency", sorted(DOORS))
def test_a_dependency_enters_through_its_own_files(dependency: str):
    users = {str(file.relative_to(PACKAGE)) for file in FILES if dependency in imported(file.read_text())}
    assert users <= DOORS[dependency]


@pytest.mark.slow
def test_one_module_renames_and_syncs():
    """Whatever else replaces a file would need its own tests of what a crash leaves (ADR 15)."""
    calls = {"os.rename", "os.replace", "os.fsync"}
    users = {
        str(file.relative_to(PACKAGE))
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in calls
    }
    assert users == {"storage/atomic_writes.py"}


def test_the_guide_for_contributors_lists_the_layers_of_the_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = [re.sub("[()]", "", layer) for layer in settings["tool"]["importlinter"]["contracts"][0]["layers"]]
    assert "```\n" + "\n".join(layers) + "\n```\n" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_a_page_lists_every_decision():
    page = " ".join((ROOT / "docs" / "adr" / "index.md").read_text(encoding="utf-8").split())
    for record in sorted((ROOT / "docs" / "adr").glob("0*.md")):
        number, title = record.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ").split(". ", 1)
        assert f"{number}. [{title}]({record.name})" in page


def test_no_module_is_a_grab_bag():
    assert [file for file in FILES if GRAB_BAGS & {file.stem, file.parent.name}] == []


def test_no_file_is_longer_than_a_sitting():
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in FILES}
    assert lengths  # an empty list would pass everything above as well
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


# ------------------------------------------------------------------------------------------------- cycles of imports

LATE = {
    "streamkern.registry.model_registry": "most models that are opened are in no registry",
    "rich": "a tenth of a second that only a bar needs",
    "streamkern.report.live_page": "needs Bokeh",
    "h5py": "optional",
    "streamkern.gpu.cupy": "needs CuPy",
    "streamkern.gpu.engine": "needs the compiled engine, which computes on the host what a device does not",
    "streamkern.cpu.engine": "imports a compiler, half a second",
    "streamkern.execute.dask_executor": "needs distributed",
    "streamkern.report.page": "needs Bokeh",
    "scipy.sparse": "only for KMeans and sparse projections",
    "scipy.special": "a twentieth of a second, only for some augmentations, probabilities and quantiles",
    "scipy.spatial.distance": "a tenth of a second that only the median bandwidth needs",
    **{
        f"streamkern.formats.{name}": "zarr and Arrow, a quarter of a second that a pipeline on arrays does without"
        for name in ("arrow_tables", "open_tables")
    },
    "streamkern.formats.dask_source": "dask's arrays, a quarter of a second, only for who has one",
}
"""What is imported inside a function, and why: optional, or slow to import."""


def module(file: Path) -> str:
    """The dotted name of a file of the package."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(source: str, modules: Collection[str]) -> tuple[set[str], set[str]]:
    """What a module imports for more than its types: all of it, and what is imported inside functions."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    types = {id(n) for node in nodes if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
             for n in ast.walk(node)}  # fmt: skip
    inside = {id(n) for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
              for n in ast.walk(node)}  # fmt: skip
    found: set[str] = set()
    late: set[str] = set()
    for node in nodes:
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else str(node.module) for name in whole]
        if id(node) not in types:
            found |= set(names)
            late |= set(names) if id(node) in inside else set()
    return found, late


def cycles(edges: Mapping[str, set[str]]) -> list[str]:
    """The modules from which imports lead back to themselves: what is left when leaves are taken off."""
    left = dict(edges)
    while leaves := [name for name, found in left.items() if not found & left.keys()]:
        for name in leaves:
            del left[name]
    return sorted(left)


@pytest.mark.slow
def test_no_module_imports_itself_by_way_of_others():
    """Imports inside functions count: one that breaks a cycle hides it."""
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == ["a", "b", "c"]
    modules = {module(file): file for file in FILES}
    edges = {name: imports(file.read_text(), modules)[0] - {name} for name, file in modules.items()}
    assert "streamkern.partition.fit_partition" in edges["streamkern.sklearn.estimators"]
    assert cycles(edges) == []


@pytest.mark.slow
def test_an_import_inside_a_function_is_of_something_optional_or_slow():
    found, late = imports("import a\nif TYPE_CHECKING:\n    import t\ndef f():\n    from b import c\n", {"b.c"})
    assert (found, late) == ({"a", "b.c"}, {"b.c"})
    modules = {module(file) for file in FILES}
    late_imports = {name for file in FILES for name in imports(file.read_text(), modules)[1]}
    unlisted = {name for name in late_imports if not any(f"{name}.".startswith(f"{known}.") for known in LATE)}
    assert unlisted == set()
    assert {known for known in LATE if not any(f"{name}.".startswith(f"{known}.") for name in late_imports)} == set()


def facet_faults(source: str) -> list[str]:
    """Return the lines that probe a facet of a source by its name, or set one of another object."""
    facets = set(FACETS) - {"columns", "dtype", "bounds"}  # which arrays, frames and others have as well
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value in facets | {"describe", "where_row"}:
                found.append(f"{node.lineno}: {ast.unparse(node)}")
        for target in node.targets if isinstance(node, ast.Assign) else ():
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            for part in parts:
                if isinstance(part, ast.Attribute) and part.attr in facets and ast.unparse(part.value) != "self":
                    found.append(f"{node.lineno}: {ast.unparse(part)}")
    return sorted(found)


@pytest.mark.slow
def test_a_facet_of_a_source_is_neither_probed_nor_set_from_outside():
    assert facet_faults("getattr(a, 'schema', ())\nhasattr(a, 'weight')\nb.c, s.shuffled = 1, 2\nself.remote = 1") == [
        "1: getattr(a, 'schema', ())",
        "2: hasattr(a, 'weight')",
        "3: s.shuffled",
    ]
    assert {str(file.relative_to(ROOT)): found for file in FILES if (found := facet_faults(file.read_text()))} == {}


@pytest.mark.slow
def test_no_public_name_is_defined_in_two_modules():
    places: dict[str, list[str]] = {}
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def methods(file: Path) -> Iterator[tuple[str, str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """The public methods of public classes, each with its module and class."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for part in node.body:
                if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and not part.name.startswith("_"):
                    yield module(file), node.name, part


def overrides(place: str, owner: str, method: str) -> bool:
    """Return True if the method is declared by a class of another library."""
    bases = getattr(importlib.import_module(place), owner).__mro__
    return any(method in vars(base) for base in bases if not base.__module__.startswith("streamkern"))


@pytest.mark.slow
def test_a_public_method_has_a_docstring_unless_another_class_documents_that_name():
    """An override, or what a protocol asks for, is documented once, where it is declared."""
    found = [each for file in FILES for each in methods(file)]
    documented = {part.name for *_, part in found if ast.get_docstring(part)}
    missing = [(*place, part.name) for *place, part in found if part.name not in documented]
    assert [".".join(each) for each in missing if not overrides(*each)] == []
