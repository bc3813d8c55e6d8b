"""KernelMachine: a trained model with everything that prediction needs."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from streamkern.calibration.serialization import Calibration, calibration_digests, dump_calibration, load_calibration
from streamkern.cpu import default_engine
from streamkern.data.class_weights import described_weights, without_class_weights
from streamkern.data.dataset import Dataset
from streamkern.data.encoders import warn_unseen
from streamkern.data.row_compatibility import (
    require_names,
    require_same_scaling,
    require_training_columns,
    require_width,
    unusable_row_error,
)
from streamkern.data.row_order import Assembly, Block, RawRows, Scan
from streamkern.data.row_selection import runs
from streamkern.data.targets import Classes, Continuous, Encoding, Indicators, encoding_from_json, encoding_to_json
from streamkern.data.transforms import Project, Transform, dump, load, transforms_for_prediction
from streamkern.engine.base import ROW_TILE
from streamkern.engine.elementwise import wide
from streamkern.engine.parallel import VALUE
from streamkern.errors import DataError, ModelFormatError, StreamkernError, UsageError
from streamkern.evaluation.score import ScoreResult, score, score_in_detail
from streamkern.execute.base import Executor
from streamkern.execute.threads_executor import ThreadsExecutor
from streamkern.fitting.calibrate import with_decision_rule
from streamkern.fitting.fitted import Fitted
from streamkern.formats import Source, wrap
from streamkern.kernels import (
    Basis,
    Expansion,
    FeatureMap,
    Kernel,
    StoredCenters,
    StreamedExpansion,
    feature_map_from_json,
    kernel_from_json,
    mean_row,
)
from streamkern.models.calibrated_model import CalibratedModel
from streamkern.solvers.direct import MEMBER, StoredSums, Sums, kept_of
from streamkern.sources.column_roles import Request
from streamkern.sources.input_types import has_text, is_path, is_table
from streamkern.sources.schema import Schema
from streamkern.startup import paused_collector
from streamkern.storage.artifact import load_artifact, require_machine_room, save_artifact, sha256
from streamkern.storage.untrusted_files import given_path
from streamkern.storage.value_digest import digest
from streamkern.types import Array
from streamkern.user_code_digest import described

KIND = "KernelMachine"
_TASK_ROWS = 1 << 16

R = TypeVar("R")


class PredictedRows(NamedTuple):
    """Predictions of neighbouring rows; ``y`` are stored targets.

    ``values`` are as from ``predict``, or codes of classes if outputs decide among them; ``outputs``, if requested, as
    from ``decision_function``.
    """

    values: Array
    outputs: Array | None
    y: Array | None

    def part(self, rows: slice) -> PredictedRows:
        return PredictedRows(*(None if each is None else each[rows] for each in self))  # type: ignore[arg-type]


@dataclass(eq=False)
class KernelMachine(CalibratedModel):
    """A trained model f(x) = Σ_j α_j k(x, z_j), with the preprocessing of rows and the decoding of outputs.

    Args:
        kernel: the kernel k.
        Z: centers z_j, shape (p, d), in scaled units; in memory, or stored.
        weights: α, shape (p, c).
        encoding: the classes, or the mean that was subtracted from the targets.
        factor: multiplies features, after the transforms: a number or shape (d,).
        shift: added after the factor: a number or shape (d,).
        columns: names of the features, or None.
        metadata: JSON-serialisable facts about the training.
        features: a feature map φ; the model is then f(x) = Σ_j w_j φ_j(x), with weights w. If φ is made from centers,
            Z has them.
        transforms: fitted preprocessing of stored rows, in order.
        origin: a number or shape (d,), subtracted from scaled rows in float64 before they are rounded to the dtype of
            the arithmetic. Z is relative to it.
        schema: names and kinds of the columns of a table, by which rows are read; None for arrays of numbers.
        calibration: calibration of probabilities or intervals; None if there were no rows to learn it from.
        sums: the normal equations, for ``update_model``; None if the solver did not keep them.
    """

    kernel: Kernel
    Z: Array | StoredCenters
    weights: Array
    encoding: Encoding
    factor: float | Array = 1.0
    shift: float | Array = 0.0
    columns: tuple[str, ...] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    features: FeatureMap | None = None
    transforms: tuple[Transform, ...] = ()
    origin: float | Array = 0.0
    schema: Schema | None = None
    calibration: Calibration | None = None
    sums: Sums | StoredSums | None = None

    def __repr__(self) -> str:
        basis = repr(self.kernel) if self.features is None else f"{type(self.features).__name__} features"
        outputs = self.encoding.outputs
        what = {"classification": "classes", "multilabel": "labels"}.get(self.encoding.kind, "output(s)")
        targets = f"{outputs} {what}"
        basis = basis if len(basis) <= 50 else f"{type(self.features or self.kernel).__name__}(...)"
        return f"KernelMachine({basis}, {len(self.Z):,} centers, {self.n_features:,} features, {targets})"

    @classmethod
    def of(cls, fitted: Fitted, **metadata: Any) -> Self:
        """Return the model from ``fitted``, the result of a training. Keywords are added to its ``metadata``."""
        problem, outcome = fitted.problem, fitted.outcome
        facts = {
            "rows": outcome.rows,
            "passes": outcome.passes,
            "data": without_class_weights(problem.train).fingerprint,
            "dtype": problem.train.source.dtype.str,
        }
        if weights := described_weights(problem.train):
            facts["class_weight"] = weights
        if "preprocess" in fitted.report:
            facts["preprocess"] = fitted.report["preprocess"]
        if fitted.metric is not None and fitted.columns is not None:
            facts["metric"] = fitted.metric.summary(fitted.columns)
        return cls(
            problem.kernel, problem.centers.Z, outcome.weights, fitted.encoding, problem.train.factor,
            problem.train.shift, problem.train.source.columns, facts | metadata, problem.features,
            transforms_for_prediction(problem.train.transforms), problem.train.origin, problem.train.source.schema,
            fitted.calibration, kept_of(outcome.sums, problem.train),
        )  # fmt: skip

    @property
    def n_features(self) -> int:
        """Number of features of a stored row, before preprocessing."""
        return self.transforms[0].n_in if self.transforms else int(self.Z.shape[1])

    @property
    def n_centers(self) -> int:
        """Number of centers."""
        return len(self.Z)

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of the bytes of the weights. Runs that trained the same model have equal digests."""
        return sha256(self.weights)

    @property
    def fingerprint(self) -> str:
        """Hex digest of everything that predictions depend on."""
        centers = sha256(self.Z if isinstance(self.Z, np.ndarray) else self.Z.mean_row)
        transforms, fitted = dump(self.transforms)
        return digest(
            described(self.kernel),
            described(self.features),
            [centers, self.Z.shape, self.weights_sha256, {name: sha256(array) for name, array in fitted.items()}],
            encoding_to_json(self.encoding),
            transforms,
            [np.asarray(value, dtype=np.float64).tolist() for value in (self.factor, self.shift)],
            self.columns,
            *([np.asarray(self.origin).tolist()] if np.any(self.origin) else []),
            *(["wide"] if self.wide else []),
            *([self.schema.kinds] if self.schema is not None and not self.schema.plain else []),
            *(calibration_digests(self.calibration) if self.calibration is not None else []),
        )

    @property
    def _drawn(self) -> int:
        """Arrays that prediction computes once from the description: random matrices, Nyström's factor."""
        d, p = int(self.Z.shape[1]), len(self.Z)
        matrices = sum(each.n_in * each.n_out for each in self.transforms if isinstance(each, Project))
        features = 0 if self.features is None else self.features.resident_bytes(d, np.dtype(np.float64), p)
        return 2 * 8 * matrices + 2 * features  # drawn in float64, and rounded

    @property
    def _widest(self) -> int:
        return max(1, int(self.Z.shape[1]), self.n_features, *(each.n_out for each in self.transforms))

    @property
    def held(self) -> tuple[int, int]:
        """Two numbers: the bytes of arrays that prediction keeps in memory, and the number of weights per output."""
        return (3 * self.Z.nbytes if isinstance(self.Z, np.ndarray) else 0) + self._drawn, len(self.weights)

    @property
    def _on_disk(self) -> object | None:
        """The object that still reads from the saved model's folder after loading."""
        if isinstance(self.sums, StoredSums):
            return self.sums
        return None if isinstance(self.Z, np.ndarray) else self.Z

    @property
    def wide(self) -> bool | None:
        """True if training scaled stored values in float64, as float32 cannot represent them all; None if unknown."""
        stored = self.metadata.get("dtype")
        return None if stored is None else wide(np.dtype(stored))

    @property
    def _output_dtype(self) -> np.dtype[Any]:
        """Outputs are float64 if float32 cannot distinguish the targets."""
        encoding, working = self.encoding, self.weights.dtype
        return encoding.dtype(working) if isinstance(encoding, Continuous) else working

    def decision_function(
        self, X: Any, *, executor: Executor | None = None, threads: int | None = None, scales: bool = False
    ) -> Array:
        """Return outputs f(x), shape (n, c): a score for each class, or predicted values.

        Args:
            X: rows as in training: an array (n, d), a table, a ``Dataset`` or a path. A table is a frame, an Arrow
                table, a dict of columns or a list of dicts; its columns are found by name.
            executor: where blocks of rows are computed; by default, threads of this process.
            threads: largest number of threads without an executor; by default, the number of cores. Results do not
                depend on it.
            scales: whether to append c columns, from which ``intervals`` computes the widths of prediction intervals.
                The shape is then (n, 2c).

        Raises:
            DataError: the number of features differs, or a feature is NaN or infinite; the message names the row.
            UsageError: ``threads`` is below 1.
        """
        empty = np.empty((0, (1 + scales) * self.weights.shape[1]), self._output_dtype)
        return np.concatenate([empty, *self._stream_outputs(X, executor=executor, threads=threads, scales=scales)])

    def _stream_outputs(
        self, X: Any, *, executor: Executor | None = None, threads: int | None = None, scales: bool = False
    ) -> Iterator[Array]:
        """Memory does not grow with the number of rows."""
        scan, unseen, rows = self._scan(self.dataset(X)), Counter[str](), 0
        weights = self._intervals().widened(self.weights) if scales else None
        for outputs, strange in self._swept(_outputs, scan, [*zip(range(len(scan)))], executor, threads, weights):
            unseen, rows = unseen + strange, rows + len(outputs)
            yield outputs
        warn_unseen(unseen, rows)

    def stream_predictions(
        self,
        X: Any,
        *,
        executor: Executor | None = None,
        outputs: bool = False,
        scales: bool = False,
        rows: tuple[int, int] | None = None,
        unseen: Counter[str] | None = None,
    ) -> Iterator[PredictedRows]:
        """Yield predictions block by block, in the order of the stored rows.

        Args:
            X: as in ``decision_function``; a ``Dataset`` must have every stored row once.
            executor: as in ``decision_function``.
            outputs: whether to return outputs too.
            scales: as in ``decision_function``.
            rows: first row, and last row + 1; all rows by default. Predictions do not depend on the range.
            unseen: a counter, by column, of rows with a category that training did not see; the call adds to it.

        Raises:
            DataError: as in ``decision_function``.
            UsageError: the ``Dataset`` is a selection of rows, or augmented.
        """
        dataset = self.dataset(X)
        if dataset.rules or dataset.virtual_rows is not None:
            raise UsageError(
                "The data set is a selection of rows, or augmented.", where="dataset", expected="every stored row once"
            )
        scan, bounds = self._scan(dataset), dataset.source.bounds
        starts, stops = runs(bounds[:-1], bounds[1:], scan.block_rows)
        start, stop = rows or (0, int(bounds[-1]))
        numbers = range(int(np.searchsorted(stops, start, side="right")), int(np.searchsorted(starts, stop)))
        weights = self._intervals().widened(self.weights) if scales else None
        found = self._swept(_predictions, scan, [(i, outputs or scales) for i in numbers], executor, weights=weights)
        for i, (block, strange) in zip(numbers, found, strict=True):
            if unseen is not None:
                unseen.update(strange)
            here = slice(max(0, start - int(starts[i])), min(stop, int(stops[i])) - int(starts[i]))
            yield PredictedRows(*block).part(here)

    def _output_function(
        self, scales: bool = False, panels: Callable[[Basis], list[Array]] = lambda basis: []
    ) -> Callable[[Array], Array]:
        """From stored rows in memory (n, d) to outputs (n, c); work common to all calls is done once.

        With ``scales`` outputs have shape (n, 2c) and include those for ``intervals``. The function is thread-safe, and
        does not check the shape.
        """
        dataset = self._prepared(Dataset(wrap(np.empty((0, self.n_features)), request=Request(columns=self.columns))))
        assembly, basis = self._assembly(dataset, encoding=None), self._basis()
        basis.buffers = panels(basis)
        weights = self._intervals().widened(self.weights) if scales else self.weights
        call_bytes = 256 << 20  # bytes of in-memory rows evaluated at once
        most = max(1, call_bytes // (8 * self._widest))

        def outputs(X: Array) -> Array:
            if len(X) > most:  # after preprocessing, which may widen rows
                return np.concatenate([outputs(X[i : i + most]) for i in range(0, len(X), most)])
            ids = np.arange(len(X), dtype=np.int64)
            block = assembly.build(RawRows(X, None, ids, np.zeros_like(ids)), ids, (), "the rows")
            warn_unseen(block.unseen, len(X))
            return _evaluated(block, dataset, basis, weights, self.encoding, X)

        return outputs

    def blocks(self, X: Any) -> tuple[Scan, Basis]:
        """Return two objects: a scan that reads X in blocks, and the basis functions of the model.

        Args:
            X: as in ``decision_function``.
        """
        return self._scan(self.dataset(X)), self._basis()

    def _rows_of(self, X: Any) -> Array:
        source = self._prepared(Dataset(self._source(X))).source
        pieces = [source.read(chunk).X for chunk in range(len(source.bounds) - 1)]
        return np.concatenate(pieces) if pieces else np.empty((0, source.n_features))

    def _task_rows(self, dataset: Dataset) -> int:
        """A task of about 8 MiB makes the cost of its start negligible."""
        width = max(self._widest, dataset.source.n_features) + self.weights.shape[1]
        task_bytes = 8 << 20
        return int(np.clip(task_bytes // (width * self.Z.dtype.itemsize), 1, _TASK_ROWS))

    def _scan(self, dataset: Dataset) -> Scan:
        rows = self._task_rows(dataset)
        task_work = 1 << 28  # multiply-adds of a task, about: some ten milliseconds of a core
        # Small tasks, so that few rows use every core; but stored centers are read again in each task.
        if isinstance(self.Z, np.ndarray):
            rows = min(rows, max(ROW_TILE, task_work // (self.Z.size + VALUE * len(self.Z) + 1)))
        return Scan(self._assembly(dataset, encoding=None), rows)

    def _swept(
        self, task: Callable[..., R], scan: Scan, items: list[tuple[Any, ...]], executor: Executor | None,
        threads: int | None = None, weights: Array | None = None,
    ) -> Iterator[R]:  # fmt: skip
        shared = (scan, self._basis(), self.weights if weights is None else weights, self.encoding)
        if executor is not None:
            yield from executor.imap(task, items, shared)
        else:
            with ThreadsExecutor(threads) as pool:
                yield from pool.imap(task, items, shared)

    def predict(self, X: Any, *, executor: Executor | None = None, threads: int | None = None) -> Array:
        """Return labels, shape (n,), or values, shape (n,) or (n, c).

        Args:
            X: as in ``decision_function``.
            executor: as in ``decision_function``.
            threads: as in ``decision_function``.

        Raises:
            DataError: as in ``decision_function``.
            UsageError: as in ``decision_function``.
        """
        return self.decide(self.decision_function(X, executor=executor, threads=threads))

    def decide(self, outputs: Array) -> Array:
        """Return predictions from outputs (n, c)."""
        values = _decided(outputs, self.encoding)
        return np.asarray(self.encoding.values[values]) if isinstance(self.encoding, Classes) else values

    def score(self, X: Any, y: Array | None = None, *, executor: Executor | None = None) -> dict[str, Any]:
        """Return metrics on rows with targets: ``n``, ``mse``, ``accuracy`` of classes, ``r2`` of values, and others.

        Args:
            X: as in ``decision_function``; a ``Dataset`` or path with a target, or an array with ``y``.
            y: targets, for an array.
            executor: as in ``decision_function``.

        Raises:
            DataError: as in ``decision_function``, or a label that training did not see.
        """
        assembly = self._with_target(self.dataset(X, y))
        with ThreadsExecutor() if executor is None else nullcontext(executor) as running:
            return score(
                running, assembly, self._basis(), self.weights, all_metrics=True,
                calibration=self.calibration,
            )  # fmt: skip

    def _score_in_detail(self, dataset: Dataset, executor: Executor) -> ScoreResult:
        assembly = self._with_target(self.dataset(dataset))
        return score_in_detail(executor, assembly, self._basis(), self.weights, self.calibration)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model as a zarr group with JSON attributes. It replaces any model at this path.

        Raises:
            StorageError: the disk is full or not writable; an earlier model is unchanged.
        """
        arrays, metadata = self._artifact()
        sums = self.sums.load() if isinstance(self.sums, StoredSums) else self.sums
        members = {} if sums is None else {MEMBER: partial(sums.contents, self.weights_sha256)}
        if sums is not None:
            metadata |= {MEMBER: {"bytes": sums.nbytes, "rows": sums.rows, "bound": sums.bound}}
        save_artifact(path, KIND, arrays, metadata, members)
        return Path(given_path(path))

    def _artifact(self) -> tuple[dict[str, Any], dict[str, Any]]:
        stored = {} if isinstance(self.Z, np.ndarray) else {"centers_mean": self.Z.mean_row}
        arrays: dict[str, Any] = {
            "centers": self.Z,
            "weights": self.weights,
            "factor": np.asarray(self.factor, dtype=np.float64),
            "shift": np.asarray(self.shift, dtype=np.float64),
        }
        if np.any(self.origin):
            arrays["origin"] = np.asarray(self.origin, dtype=np.float64)
        described, fitted = dump(self.transforms)
        calibration, numbers = dump_calibration(self.calibration)
        metadata = {
            "kernel": self.kernel.to_json(),
            "features": None if self.features is None else self.features.to_json(),
            "encoding": encoding_to_json(self.encoding),
            "transforms": described,
            "columns": None if self.columns is None else list(self.columns),
            "schema": None if self.schema is None else self.schema.to_json(),
            "weights_sha256": self.weights_sha256,
            "training": self.metadata,
            **({} if self.calibration is None else {"answers": calibration}),
        }
        return arrays | stored | fitted | numbers, metadata

    def _basis(self) -> Basis:
        center = self._center()
        if not isinstance(self.Z, np.ndarray):
            return StreamedExpansion(self.kernel, self.Z, center)
        if self.features is None:
            return Expansion(self.kernel, self.Z - center)
        Z = self.Z if self.features.needs_centers else None
        return self.features.basis(self.Z.shape[1], self.Z.dtype, Z, center)

    def _center(self) -> Array:
        if not (self.features or self.kernel).translation_invariant or not len(self.Z):
            return np.zeros(self.Z.shape[1], dtype=self.Z.dtype)
        return np.asarray(mean_row(self.Z), dtype=self.Z.dtype)

    def _with_target(self, dataset: Dataset) -> Assembly:
        dataset._require_rows()
        if dataset.target is None:
            raise DataError(
                "The data set has no target to score against.",
                where="score",
                expected="rows with a target",
                remedy="name its target column, or give y",
            )
        return self._assembly(dataset, self.encoding)

    def _assembly(self, dataset: Dataset, encoding: Encoding | None) -> Assembly:
        return Assembly(dataset, encoding, self._center(), self.Z.dtype)

    def dataset(self, X: Any, y: Array | None = None) -> Dataset:
        """Return X (as in ``decision_function``) as a dataset with the preprocessing of the model."""
        if isinstance(X, Dataset):
            dataset = replace(X, source=X.source.conformed(self.schema))
        else:
            dataset = Dataset(self._source(X, y))
        return self._prepared(dataset)

    def _source(self, X: Any, y: Array | None = None) -> Source:
        if is_path(X):
            with paused_collector():  # imports zarr and Arrow
                from streamkern.formats.open_tables import open_tables
            return open_tables([X], columns=self.columns, schema=self.schema)
        if is_table(X):
            require_names(X, self.columns, self.n_features)
            return wrap(X, y, request=Request(columns=self.columns, schema=self.schema))
        if self.schema is None or (self.schema.plain and not has_text(X)):
            return wrap(X, y)
        if isinstance(X, np.ndarray) and X.ndim == 2:
            require_width(X.shape[1], self.n_features)
        # By position: an array has no column names.
        return wrap(X, y, request=Request(columns=self.columns, schema=self.schema), as_table=True)

    def _prepared(self, dataset: Dataset) -> Dataset:
        require_training_columns(dataset, self.n_features, self.columns, self.transforms, self.schema)
        prepared = replace(
            dataset, transforms=self.transforms, factor=self.factor, shift=self.shift, origin=self.origin,
            wide=self.wide,
        )  # fmt: skip
        require_same_scaling(dataset, prepared)
        return prepared


def read_machine(path: str | os.PathLike[str], *, kernel: Kernel | None = None, links: bool = True) -> KernelMachine:
    """Read a model with one set of centers; ``kernel`` is a user's function, ``links`` allows a symbolic link."""
    arrays, metadata = load_artifact(path, KIND, stay=("centers", "centers_mean"), links=links)
    return from_artifact(arrays, metadata, str(path), kernel)


def from_artifact(
    arrays: dict[str, Any], metadata: dict[str, Any], where: str, kernel: Kernel | None = None
) -> KernelMachine:
    """Return the model of ``KernelMachine._artifact``; ModelFormatError, about ``where``, if it does not fit."""
    try:
        Z, weights = arrays["centers"], arrays["weights"]
        encoding = encoding_from_json(metadata["encoding"])
        columns = metadata["columns"]
        described = metadata.get("features")
        features = None if described is None else feature_map_from_json(described)
        width = len(Z) if features is None else features.width(Z.shape[1], len(Z))
        numbers = {"centers": "biuf", "weights": "biuf", "factor": "f", "shift": "f"}
        if any(arrays[name].dtype.kind not in kinds for name, kinds in numbers.items()):
            raise KeyError("dtypes")
        if len(Z.shape) != 2 or weights.ndim != 2 or width != len(weights) or encoding is None:
            raise KeyError("shapes")
        if encoding.outputs != weights.shape[1]:
            raise KeyError("outputs")
        if any(arrays[name].shape not in ((), (Z.shape[1],)) for name in ("factor", "shift")):
            raise KeyError("factor and shift")
        transforms = load(metadata.get("transforms", []), arrays)
        calibration = load_calibration(metadata.get("answers"), arrays, encoding, len(weights))
        if transforms and transforms[-1].n_out != Z.shape[1]:
            raise KeyError("transforms")
        names = None if columns is None else tuple(map(str, columns))
        origin = _number_or_array(arrays["origin"]) if "origin" in arrays else 0.0
        schema = None if metadata.get("schema") is None else Schema.from_json(metadata["schema"])
        kernel = kernel or kernel_from_json(metadata["kernel"])
        factor, shift = (_number_or_array(arrays[name]) for name in ("factor", "shift"))
        model = KernelMachine(
            kernel, Z, weights, with_decision_rule(encoding, calibration), factor, shift, names, metadata["training"],
            features, transforms, origin, schema, calibration, _stored_sums(metadata, where, weights.shape),
        )  # fmt: skip
        if model.schema is not None and model.schema.names != model.columns:
            raise KeyError("schema")
        _ = model.wide  # fails if its dtype is unknown
        require_machine_room(model._drawn, where, "KernelMachine")
        return model
    except StreamkernError:
        raise
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise ModelFormatError(
            f"The model's description is incomplete: {error}.", where=where,
            expected="a description as this release writes it", remedy="restore it from a copy",
        ) from error  # fmt: skip


def _stored_sums(metadata: dict[str, Any], where: str, shape: tuple[int, ...]) -> StoredSums | None:
    if (about := metadata.get(MEMBER)) is None:
        return None
    nbytes, rows, bound = int(about["bytes"]), int(about["rows"]), str(about.get("bound", ""))
    if not (0 < nbytes < 1 << 50 and 0 < rows < 1 << 60):
        raise KeyError(MEMBER)
    return StoredSums(Path(given_path(where)).absolute(), str(metadata["weights_sha256"]), nbytes, rows, bound, shape)


def _number_or_array(value: Array) -> float | Array:
    return value if value.ndim else float(value)


def _outputs(key: tuple[int], scan: Scan, basis: Basis, weights: Array, encoding: Encoding) -> tuple[Any, Any]:
    block = scan.block(key)
    return _evaluated(block, scan.assembly.dataset, basis, weights, encoding), block.unseen


def _predictions(
    key: tuple[int, bool], scan: Scan, basis: Basis, weights: Array, encoding: Encoding
) -> tuple[tuple[Array, Array | None, Array | None], Counter[str]]:
    raw, where = scan.raw(key[:1])
    block = scan.assembly.build(raw, np.arange(len(raw.ids), dtype=np.int64), key[:1], where)
    outputs = _evaluated(block, scan.assembly.dataset, basis, weights, encoding)
    return (_decided(outputs, encoding), outputs if key[1] else None, raw.y), block.unseen


def _decided(outputs: Array, encoding: Encoding) -> Array:
    if isinstance(encoding, Classes | Indicators):
        return encoding.decided(outputs[:, : encoding.outputs])
    assert isinstance(encoding, Continuous)
    return outputs[:, 0] if encoding.flat else outputs[:, : encoding.outputs]


def _evaluated(
    block: Block, dataset: Dataset, basis: Basis, weights: Array, encoding: Encoding, stored: Array | None = None
) -> Array:
    finite_rows = default_engine().loops.finite_rows
    bad = finite_rows(block.X)
    outputs = basis.predict(block.X, weights) if bad < 0 else np.empty((0, 1))
    bad = finite_rows(outputs) if bad < 0 else bad
    if bad >= 0:
        raise unusable_row_error(dataset, block.X[bad], int(block.ids[bad]), None if stored is None else stored[bad])
    return decoded(outputs, encoding)


def decoded(outputs: Array, encoding: Encoding) -> Array:
    """Return outputs (n, c) in stored units; with those for the scales of intervals, (n, 2c), which have no unit."""
    if not isinstance(encoding, Continuous):
        return outputs
    c = encoding.outputs
    if outputs.shape[1] == c:
        return encoding.decode(outputs)
    return np.concatenate([encoding.decode(np.ascontiguousarray(outputs[:, :c])), outputs[:, c:]], axis=1)
