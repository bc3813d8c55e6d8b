"""Rows on their way to the leaves of a tree: counted, fingerprinted and scattered in one pass where they are stored."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from streamkern.data.row_order import Assembly
from streamkern.data.targets import encoding_to_json
from streamkern.execute.base import Executor
from streamkern.fitting.preparation import rows_key
from streamkern.fitting.stage import Runner
from streamkern.memory import release_free_memory
from streamkern.models.cut_tree import CutTree
from streamkern.partition.leaf_rows import LeafFingerprints, LeafIds, LeafRows, LeafRuns
from streamkern.storage.value_digest import digest


@dataclass(eq=False)
class RowsOfLeaves:
    """The rows of a tree's leaves, scattered to ``folder`` or a temporary one; deleted at the end, but for an error."""

    assembly: Assembly
    executor: Executor
    runner: Runner
    folder: Path | None
    _known: dict[str, LeafFingerprints] = field(default_factory=dict, init=False)
    _scattered: tuple[str, LeafRuns] | None = field(default=None, init=False)
    _temporary: tempfile.TemporaryDirectory[str] | None = field(default=None, init=False)

    def close(self, kind: type[BaseException] | None, *error: Any) -> None:
        """Delete the rows; the callback of an ``ExitStack``."""
        if self._temporary is not None:
            self._temporary.cleanup()
        elif kind is None and self.folder is not None:  # after an error they are gone on with
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def stored(self) -> bool:
        return not self.assembly.dataset.source.in_memory

    def fingerprints(self, tree: CutTree) -> LeafFingerprints:
        """Return counts and fingerprints of each leaf's rows: known, or a stage which writes nothing."""

        def read() -> LeafFingerprints:
            found = LeafFingerprints.of(self.assembly, tree, self.executor)
            release_free_memory()
            return found

        return self._noted(tree, "fingerprints", read)

    def scatter(self, tree: CutTree) -> LeafFingerprints:
        """Return counts and fingerprints of the rows of each leaf, as a stage which scatters them."""
        return self._noted(tree, "scatter", lambda: self._runs(tree).fingerprints())

    def _noted(self, tree: CutTree, stage: str, make: Callable[[], LeafFingerprints]) -> LeafFingerprints:
        if tree.fingerprint not in self._known:
            self._known[tree.fingerprint] = self.runner.keep(stage, lambda: self._key(tree), make)
        return self._known[tree.fingerprint]

    def rows(self, tree: CutTree) -> LeafRows:
        if not self.stored:
            return LeafIds.of(self.assembly, tree, self.executor)
        if self._scattered is None or self._scattered[0] != tree.fingerprint:
            return self.runner.keep("scatter", None, lambda: self._runs(tree))
        return self._scattered[1]

    def _runs(self, tree: CutTree) -> LeafRuns:
        if self.folder is None:
            self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="streamkern-")
            place = Path(self._temporary.name)
        else:
            place = self.folder.absolute()
        in_leaf = place / digest("runs with digests", *self._key(tree))[:16]
        for other in place.glob("*") if place.is_dir() else ():
            if other != in_leaf:  # of other cuts
                shutil.rmtree(other, ignore_errors=True)
        self._scattered = tree.fingerprint, LeafRuns.of(self.assembly, tree, self.executor, in_leaf)
        release_free_memory()
        return self._scattered[1]

    def _key(self, tree: CutTree) -> tuple[Any, ...]:
        encoding = self.assembly.encoding
        return rows_key(self.assembly.dataset), tree.fingerprint, encoding_to_json(encoding), self.assembly.dtype.str
