"""What the import linter cannot say about the layout: doors, file names, file lengths, and what an import may cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from streamkern.storage.base import FACETS

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "streamkern"
FILES = sorted(PACKAGE.rglob("*.py"))

# Each of these enters through its own files, so that replacing it, or doing without it, is a change in one place.
DOORS = {
    "bokeh": {"report/figures.py"},
    "cupy": {"backends/cupy.py"},
    "dask": {"storage/dask.py", "execute/dask.py"},
    "distributed": {"execute/client.py", "execute/dask.py"},
    "fcntl": {"storage/writer.py"},
    "h5py": {"storage/hdf5.py"},
    "mlflow": {"report/mlflow.py"},
    "numba": {
        *(
            f"backends/{name}.py"
            for name in ("compiled", "cuda", "lapack", "loops", "manhattan", "product", "slopes", "thin")
        ),
    },
    "numcodecs": {"storage/artifact_arrays.py"},
    "pyarrow": {
        "storage/arrow.py",
        "storage/csv.py",
        "storage/parquet.py",
        "storage/parquet_files.py",
        "storage/predictions.py",
    },
    "sklearn": {"estimators.py"},
    "zarr": {
        "storage/predictions.py",
        "storage/training_zarr.py",
        "storage/zarr.py",
        "storage/zarr_array.py",
        "storage/zarr_store.py",
    },
}
GRAB_BAGS = {"util", "utils", "helper", "helpers", "common", "misc"}
LONGEST = 650


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


@pytest.mark.parametrize("dependency", sorted(DOORS))
def test_a_dependency_enters_through_its_own_files(dependency: str):
    users = {str(file.relative_to(PACKAGE)) for file in FILES if dependency in imported(file.read_text())}
    assert users <= DOORS[dependency]


def test_one_module_renames_and_syncs():
    """Whatever else replaces a file would need its own tests of what a crash leaves (ADR 15)."""
    calls = {"os.rename", "os.replace", "os.fsync"}
    users = {
        str(file.relative_to(PACKAGE))
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in calls
    }
    assert users == {"storage/writer.py"}


def test_no_module_is_a_grab_bag():
    assert [file for file in FILES if GRAB_BAGS & {file.stem, file.parent.name}] == []


def test_no_file_is_longer_than_a_sitting():
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in FILES}
    assert lengths  # an empty list would pass everything above as well
    assert {name: n for name, n in lengths.items() if n > LONGEST} == {}


def test_no_package_is_empty():
    packages = [file.parent for file in FILES if file.name == "__init__.py"]
    assert [package for package in packages if not [f for f in package.glob("*.py") if f.name != "__init__.py"]] == []


def test_importing_the_library_does_not_import_what_is_optional():
    optional = {"bokeh", "distributed", "cupy", "mlflow", "pandas"}
    program = f"import sys, streamkern; print(*sorted({optional} & sys.modules.keys()))"
    out = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.split() == []


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


def test_a_facet_of_a_source_is_neither_probed_nor_set_from_outside():
    assert facet_faults("getattr(a, 'text', ())\nhasattr(a, 'weight')\nb.c, s.shuffled = 1, 2\nself.remote = 1") == [
        "1: getattr(a, 'text', ())",
        "2: hasattr(a, 'weight')",
        "3: s.shuffled",
    ]
    assert {str(file.relative_to(ROOT)): found for file in FILES if (found := facet_faults(file.read_text()))} == {}
