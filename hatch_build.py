"""Build hook: puts loops compiled for levels of x86-64 into the wheel (ADR 45).

``STREAMKERN_LEVELS`` names the levels: "native" (default) is that of the building machine, "all" is for wheels that
other machines install, "none" compiles nothing; else levels such as "x86-64-v3 x86-64-v4". Editable installations and
source distributions have no such code.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
VARIABLE = "STREAMKERN_LEVELS"
TIMEOUT = 600  # seconds; compiling takes ten


class CompiledLoops(BuildHookInterface):
    """Adds compiled loops to a wheel, and never prevents its being built."""

    def dependencies(self) -> list[str]:
        """Return what the build environment needs."""
        return [] if levels() == "none" else ["numba>=0.61"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files of the wheel are collected."""
        if self.target_name != "wheel" or version == "editable" or levels() == "none":
            return
        self.folder = Path(tempfile.mkdtemp(prefix="streamkern-"))
        self.app.display_waiting("Compiling loops, which takes some ten seconds")
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        command, environment = (
            [sys.executable, ROOT / "hatch_build.py", self.folder],
            {**os.environ, "PYTHONPATH": path},
        )
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
            )
            said = (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""
        except (OSError, subprocess.SubprocessError) as error:
            said = str(error)
        if said:
            why = said.splitlines()[-1]
            self.app.display_warning(f"The wheel has no compiled loops, and the first fit will compile them: {why}")
            return
        for path in self.folder.glob("*/*"):
            build_data["force_include"][str(path)] = f"streamkern/cpu/code/{path.parent.name}/{path.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)


def levels() -> str:
    """Return the levels that the user wants."""
    return os.environ.get(VARIABLE, "").strip() or "native"


def without_imports(*packages: str) -> None:
    """Make packages importable without what their ``__init__`` imports, such as SciPy, which no loop needs."""
    for name in packages:
        package = types.ModuleType(name)
        package.__path__ = [str(ROOT.joinpath(*name.split(".")))]
        sys.modules[name] = package


if __name__ == "__main__":
    without_imports("streamkern", "streamkern.cpu", "streamkern.engine")
    from streamkern.cpu.code_files import LEVELS, processor_level
    from streamkern.cpu.compile_ahead import compile_ahead, compile_claimed

    folder, *words = sys.argv[1:]
    if words:  # one of the processes that compile
        compile_claimed([folder, *words])
        sys.exit()
    native = [level] if (level := processor_level()) else []
    wanted = {"native": native, "all": list(LEVELS)}.get(levels(), levels().split())
    for level in wanted:
        if reason := compile_ahead(level, Path(folder), program=(sys.executable, __file__)):
            sys.exit(reason)
