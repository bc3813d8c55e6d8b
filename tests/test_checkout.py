"""A checkout that is not installed: it imports, runs and says that it does not know its version."""

import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "streamkern"

BEGIN = """
import sys, importlib.metadata as metadata
sys.path[:0] = {paths!r}
found = metadata.version
def version(name):
    if name == "streamkern":
        raise metadata.PackageNotFoundError(name)
    return found(name)
metadata.version = version
"""
"""Python without site, so without the hooks of an editable install, and without streamkern's metadata."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copytree(PACKAGE, folder / "streamkern", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def python(checkout: Path, program: str) -> str:
    paths = [str(checkout), *dict.fromkeys([sysconfig.get_path("purelib"), *site.getsitepackages()])]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BEGIN.format(paths=paths) + program],
        cwd=checkout, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_its_version_is_unknown_and_its_command_prints_that(checkout: Path):
    program = "import streamkern, streamkern.version as r; print(r.VERSION, r.version_of('streamkern'))"
    program += "; print(streamkern.__file__)"
    assert python(checkout, program).split() == ["0+unknown"] * 2 + [str(checkout / "streamkern" / "__init__.py")]
    command = "import runpy; sys.argv = ['streamkern', '--version']; "
    assert "0+unknown" in python(checkout, command + "runpy.run_module('streamkern', run_name='__main__')")
