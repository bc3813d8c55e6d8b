"""The model of a partition: a tree, and a model in every leaf, read from the disk when a row first comes to it.

It is a ``KernelMachine`` whose functions are those of its leaves: whatever goes through a model's outputs (prediction,
scores, ``Predictor``, evaluation) works as it does for one model. Preprocessing is that of all rows; leaves see rows as
it leaves them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from streamkern.calibration.intervals import Intervals
from streamkern.cpu import default_engine
from streamkern.cpu.alignment import aligned_rows
from streamkern.data.targets import Classes
from streamkern.defaults import MAX_LEAVES
from streamkern.engine.base import Basis
from streamkern.errors import ModelFormatError, StorageError
from streamkern.kernels import Kernel
from streamkern.models.cut_tree import CutTree
from streamkern.models.kernel_machine import KIND as MACHINE
from streamkern.models.kernel_machine import KernelMachine, decoded, from_artifact, read_machine
from streamkern.storage.artifact import Contents, artifact_kind, load_artifact, save_artifact
from streamkern.storage.atomic_writes import keep_in_use
from streamkern.storage.untrusted_files import given_path
from streamkern.storage.value_digest import digest
from streamkern.types import Array

KIND = "PartitionedMachine"


@dataclass(eq=False)
class Leaves:
    """Models of leaves, in memory or in the folder of a saved model; None for one not read, or with constant outputs.

    ``constants`` (L, c) are the outputs of leaves whose rows have one target alone; NaN for all others. ``facts`` of a
    leaf are ``rows``, ``fingerprint``, ``weights_sha256`` and ``centers``.
    """

    models: list[KernelMachine | None]
    constants: Array
    facts: tuple[dict[str, Any], ...]
    folder: Path | None = None
    output_functions: dict[tuple[int, int], Callable[[Array], Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._locks = [threading.Lock() for _ in self.models]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_locks", "output_functions")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, output_functions={})
        self.__post_init__()

    def constant(self, leaf: int) -> bool:
        """True if the outputs of a leaf are the same for every row."""
        return not np.isnan(self.constants[leaf]).any()

    def model(self, leaf: int) -> KernelMachine:
        """Return the model of a leaf, read if need be; ModelFormatError if it is damaged or was saved again since."""
        model = self.models[leaf]
        if model is not None:
            return model
        assert self.folder is not None
        place = self.folder / leaf_name(leaf)
        try:
            model = read_machine(place, links=False)
        except StorageError as error:
            if place.exists():
                raise
            raise StorageError(
                "A leaf of the model is no longer there.",
                where=str(place),
                expected="the directory that the model was loaded from: leaves are read when a row first comes to them",
                remedy="load the model again; if its version was pruned or replaced, load the champion",
            ) from error
        if model.fingerprint != self.facts[leaf]["fingerprint"]:
            raise ModelFormatError(
                "The leaf is not the one that this model was saved with.",
                where=str(place),
                expected="the leaf that the model's description names",
                remedy="load the model again: another was saved in its place; or restore it from a copy",
            )
        self.models[leaf] = model
        return model

    def outputs(self, leaf: int, X: Array, width: int) -> Array:
        """Outputs (n, c) of a leaf for encoded rows; of width 2c with the outputs that scales of intervals use."""
        answer = self.output_functions.get((leaf, width))
        if answer is None:
            with self._locks[leaf]:
                answer = self.output_functions.get((leaf, width)) or self._output_function(leaf, width, X.shape[1])
                self.output_functions[leaf, width] = answer
        return answer(X)

    def _output_function(self, leaf: int, width: int, features: int) -> Callable[[Array], Array]:
        c = self.constants.shape[1]
        if self.constant(leaf):
            # Where all rows have one target, the scale is the least.
            same = np.concatenate([self.constants[leaf], np.full(width - c, -1.0)])
            return lambda X: np.broadcast_to(same, (len(X), width))
        model = self.model(leaf)
        places, own = getattr(model.encoding, "values", np.arange(c)), model.encoding.outputs
        among = places.dtype.kind in "iu" and np.all((places >= 0) & (places < c)) and len(np.unique(places)) == own
        if model.n_features != features or (own != c and not among):
            raise ModelFormatError(
                f"The leaf {leaf} takes {model.n_features} features and has {own} outputs.",
                where="leaves",
                expected=f"{features} features, and outputs among the {c} of the whole model",
                remedy="restore the model from a copy",
            )
        plain = leaf_output_function(model, scales=width > c)
        if own == c:
            return plain

        def spread(X: Array) -> Array:
            made = np.zeros((len(X), c))
            made[:, places] = plain(X)
            return made

        return spread


_FREE_PANELS: list[Array] = []
"""Bytes of panels that no thread uses now."""


class _Panels(list[Array]):
    """Panels of one leaf's basis, from those that all leaves share: a thread needs one at a time, whatever its width.

    With panels of their own a thousand leaves of a thousand centers would keep a gigabyte of them, for each thread.
    """

    def __init__(self, basis: Basis) -> None:
        super().__init__()
        self.shape, self.dtype = (basis.row_tile, basis.width), np.dtype(basis.dtype)

    def pop(self, index: Any = -1) -> Array:
        return aligned_rows(*self.shape, self.dtype, _FREE_PANELS.pop())

    def append(self, panel: Array) -> None:
        memory = panel.base  # of views of views: the bytes themselves
        assert memory is not None
        assert memory.dtype == np.uint8
        _FREE_PANELS.append(memory)


def leaf_output_function(model: KernelMachine, scales: bool = False) -> Callable[[Array], Array]:
    """A function from encoded rows to a leaf's outputs: ``KernelMachine._output_function`` without checks of rows.

    They were made before rows were routed. A leaf whose metric turns the features has a transform, which is applied as
    anywhere else. With ``scales``, outputs (n, c) are followed by the rows' scales less 1, shape (n, c): those of the
    leaf's ``Intervals``, or 0 for a leaf without.
    """
    intervals = model.calibration if scales and isinstance(model.calibration, Intervals) else None
    weights = model.weights if intervals is None else intervals.widened(model.weights)
    c = model.weights.shape[1]
    if model.transforms or np.any(model.origin):
        plain = model._output_function(intervals is not None, _Panels)
    else:
        basis = model._basis()
        basis.buffers = _Panels(basis)
        factor = np.asarray(model.factor, dtype=model.Z.dtype)
        offset = np.asarray(model.shift - model._center(), dtype=model.Z.dtype)

        def plain(X: Array) -> Array:
            return decoded(basis.predict(X * factor + offset, weights), model.encoding)

    if not scales:
        return plain

    def outputs(X: Array) -> Array:
        found = plain(X)
        more = np.zeros(found.shape) if intervals is None else intervals.scales(found[:, c:]) - 1.0
        return np.concatenate([found[:, :c], more], axis=1)

    return outputs


def leaf_name(leaf: int) -> str:
    """Name of a leaf's model inside that of all."""
    return f"leaf-{leaf:05}"


@dataclass(eq=False)
class LeafBasis(Basis):
    """The functions of all leaves: a row's outputs are those of its leaf, or of two of them near a border."""

    tree: CutTree
    leaves: Leaves
    blend: float
    number: np.dtype[Any]

    def __post_init__(self) -> None:
        self.engine = default_engine()

    @property
    def width(self) -> int:
        """0: each leaf has its own functions."""
        return 0

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.number

    def block(self, X: Array, out: Array | None = None) -> Array:
        """Return an empty array, shape (b, 0)."""
        return np.empty((len(X), 0), dtype=self.number)

    def predict(self, X: Array, W: Array) -> Array:
        """Outputs of encoded rows, shape (b, c); weights W are those of the leaves, and only their number counts.

        With 2c columns the second half are outputs for the scales of ``Intervals``.
        """
        leaves, weights = self.tree.routes(X, self.blend)
        n, both = len(X), np.flatnonzero(leaves[:, 1] >= 0)
        if n == 1 and not len(both):
            return np.asarray(self.leaves.outputs(int(leaves[0, 0]), X, W.shape[1])).astype(self.number)
        # Rows leaf after leaf, those near a border twice: each leaf gets a slice.
        owners = np.concatenate([leaves[:, 0], leaves[both, 1]])
        order = np.argsort(owners, kind="stable")
        owners, sorted_rows = owners[order], X[np.concatenate([np.arange(n), both])[order]]
        found = np.empty((len(order), W.shape[1]))
        starts = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), len(order)] if n else [0]
        # Begin with the leaf of the first row: threads that all went through the leaves in one order would wait for
        # each other.
        begin = int(np.searchsorted(owners[starts[:-1]], leaves[0, 0])) if n else 0
        slices = list(pairwise(starts))
        for first, last in slices[begin:] + slices[:begin]:
            found[first:last] = self.leaves.outputs(int(owners[first]), sorted_rows[first:last], W.shape[1])
        parts = np.empty_like(found)
        parts[order] = found
        total = parts[:n] * weights[:, :1]
        total[both] += parts[n:] * weights[both, 1:]
        return total.astype(self.number)


@dataclass(eq=False)
class PartitionedMachine(KernelMachine):
    """A model that divides the rows into parts, called leaves, and has a separate model in each leaf.

    Its ``Z`` (centers) and ``weights`` are empty, because each leaf has its own.

    Args:
        tree: finds the leaf that a row belongs to.
        leaves: the models of the leaves.
        blend: width of the zone at a cut between leaves where predictions of both sides are averaged, as a multiple of
            the width of the overlap. The overlap is the zone whose training rows belong to both sides.
    """

    tree: CutTree = field(default_factory=lambda: CutTree.of(1))
    leaves: Leaves = field(default_factory=lambda: Leaves([], np.zeros((0, 0)), ()))
    blend: float = 1.0

    def __repr__(self) -> str:
        targets = f"{self.encoding.outputs} {'classes' if isinstance(self.encoding, Classes) else 'output(s)'}"
        return f"PartitionedMachine({self.tree.leaves:,} leaves, {self.n_features:,} features, {targets})"

    @property
    def n_centers(self) -> int:
        """Number of centers of all leaves together."""
        return sum(int(each["centers"]) for each in self.leaves.facts)

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of the weights of all leaves. Runs that trained the same model have equal digests."""
        return digest([each["weights_sha256"] for each in self.leaves.facts], self.leaves.constants.tolist())

    @property
    def fingerprint(self) -> str:
        leaves = [each["fingerprint"] for each in self.leaves.facts]
        return digest(super().fingerprint, self.tree.fingerprint, leaves, self.leaves.constants.tolist(), self.blend)

    @property
    def held(self) -> tuple[int, int]:
        """Bytes that the centers of all leaves take in prediction, and the number of centers of the largest leaf."""
        centers = [int(each["centers"]) for each in self.leaves.facts]
        return 3 * self.n_centers * self.Z.shape[1] * self.Z.dtype.itemsize, max(centers, default=0)

    @property
    def _on_disk(self) -> object | None:
        return None if self.leaves.folder is None else self.leaves

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model and the models of its leaves as one zarr group. It replaces any model at this path.

        Raises:
            StorageError: the disk is full or not writable; an earlier model is unchanged.
        """
        arrays, metadata = self._artifact()
        cuts = {"directions": self.tree.directions, "cuts": self.tree.cuts, "children": self.tree.children}
        leaves = self.leaves

        def contents(leaf: int) -> Contents:
            return (MACHINE, *leaves.model(leaf)._artifact())

        members = {
            leaf_name(leaf): partial(contents, leaf) for leaf in range(self.tree.leaves) if not leaves.constant(leaf)
        }
        metadata |= {"leaves": list(leaves.facts), "blend": self.blend}
        save_artifact(path, KIND, arrays | cuts | {"constants": leaves.constants}, metadata, members)
        return Path(given_path(path))

    def _basis(self) -> Basis:
        return LeafBasis(self.tree, self.leaves, self.blend, self.weights.dtype)


def leaves_in_memory(models: Sequence[KernelMachine | None], constants: Array, rows: Sequence[int]) -> Leaves:
    """Leaves in memory."""
    facts = tuple(
        {
            "rows": int(n),
            "centers": 0 if model is None else len(model.Z),
            "fingerprint": "" if model is None else model.fingerprint,
            "weights_sha256": "" if model is None else model.weights_sha256,
        }
        for model, n in zip(models, rows, strict=True)
    )
    return Leaves(list(models), constants, facts)


def load_model(path: str | os.PathLike[str], *, kernel: Kernel | None = None) -> KernelMachine:
    """Read a saved model from its zarr and JSON files. Loading executes no code.

    Args:
        path: directory of the model.
        kernel: the kernel, if the kernel of the model is a user's function.

    Raises:
        StorageError: nothing is there.
        ModelFormatError: it is not a model, or is damaged.
    """
    return load_partition(path, kernel) if artifact_kind(path) == KIND else read_machine(path, kernel=kernel)


def load_partition(path: str | os.PathLike[str], kernel: Kernel | None = None) -> PartitionedMachine:
    """Read a saved model of many leaves; a leaf is read when a row first comes to it. Executes no code."""
    arrays, metadata = load_artifact(path, KIND)
    base = from_artifact(arrays, metadata, str(path), kernel)
    try:
        tree = CutTree(arrays["directions"], arrays["cuts"], arrays["children"])
        constants, facts = arrays["constants"], tuple(metadata["leaves"])
        width = base.Z.shape[1]
        if len(facts) != tree.leaves or len(facts) > MAX_LEAVES:
            raise KeyError("leaves")
        if not tree.sound or tree.directions.shape[1] != width or len(base.Z):
            raise KeyError("tree")
        if constants.shape != (tree.leaves, base.weights.shape[1]) or constants.dtype.kind != "f":
            raise KeyError("constants")
        facts = tuple(
            {"rows": int(each["rows"]), "centers": int(each["centers"])}
            | {name: str(each[name]) for name in ("fingerprint", "weights_sha256")}
            for each in facts
        )
        if not all(0 <= each[name] < 1 << 50 for each in facts for name in ("rows", "centers")):
            raise KeyError("rows and centers of leaves")
        blend = float(metadata["blend"])
        if not 0 <= blend <= 1:
            raise KeyError("blend")
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelFormatError(
            f"The partition's description is incomplete: {error}.",
            where=str(path),
            expected="a description as this release writes it",
            remedy="restore it from a copy",
        ) from error
    leaves = Leaves([None] * tree.leaves, constants, facts, Path(given_path(path)).absolute())
    keep_in_use(Path(given_path(path)), leaves)
    given = {each.name: getattr(base, each.name) for each in fields(KernelMachine)}
    return PartitionedMachine(**given, tree=tree, leaves=leaves, blend=blend)
