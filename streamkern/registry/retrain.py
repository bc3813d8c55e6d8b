"""Nightly retraining: train if there are new data, compare, and promote a model that passes the gate."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from streamkern.data.dataset import Dataset
from streamkern.data.row_order import Assembly, RawRows, Scan
from streamkern.data.statistics import RawScan
from streamkern.defaults import CHECKPOINT_SECONDS, DRIFT_SAMPLE_BYTES, DRIFT_SAMPLE_ROWS, MAX_GROWTH, VERSIONS_KEPT
from streamkern.errors import DataError, PrecisionError, StreamkernError, UnlikeChampionError, UsageError
from streamkern.evaluation.metrics import METRIC_NAMES
from streamkern.events import Listener
from streamkern.execute import open_executor
from streamkern.execute.base import Executor, Parts, Stack
from streamkern.fitting.memory_projection import preprocessing_steps
from streamkern.fitting.recipe import AUTO
from streamkern.kernels import feature_map_from_json, kernel_from_json
from streamkern.models.kernel_machine import KernelMachine
from streamkern.models.partitioned_machine import PartitionedMachine, load_model
from streamkern.partition.one_or_leaves import decided
from streamkern.redaction import redacted
from streamkern.registry import drift
from streamkern.registry.incremental_retraining import (
    PROFILE,
    UPDATED,
    IncrementalUpdate,
    incremental_update,
    profile_of,
    training_record,
)
from streamkern.registry.model_comparison import ModelComparison, compare_models, without_scaling
from streamkern.registry.model_registry import Registry
from streamkern.registry.promotion_gate import Gate, Verdict, default_gate
from streamkern.registry.warm_start import with_warm_start
from streamkern.resources import Resources, given_resources
from streamkern.rng import Draw
from streamkern.runs.pipeline_definition import Pipeline
from streamkern.runs.run_pipeline import run, unknown_code_of
from streamkern.solvers.base import traits_of
from streamkern.solvers.lbfgs import loss_of
from streamkern.storage.artifact import save_artifact
from streamkern.storage.atomic_writes import discard
from streamkern.storage.value_digest import digest
from streamkern.sweep import ScanWork, sweep
from streamkern.user_code_digest import described
from streamkern.version import VERSION


class RetrainResult(dict[str, Any]):
    """The decision of ``retrain``: a dict, with the main entries as attributes."""

    @property
    def status(self) -> str:
        """``promoted``, ``rejected`` or ``unchanged``."""
        return str(self["status"])

    @property
    def champion(self) -> int | None:
        """The version now in use, or None."""
        return cast("int | None", self["champion"])

    @property
    def version(self) -> int | None:
        """The version of the trained model, or None if nothing was trained."""
        return cast("int | None", self["version"])

    @property
    def reasons(self) -> list[str]:
        """The reasons, in sentences."""
        return cast("list[str]", self["reasons"])

    def to_json(self) -> dict[str, Any]:
        return dict(self)

    def __repr__(self) -> str:
        return f"RetrainResult({self.status}, version {self.version}, champion {self.champion})"


def retrain(
    pipeline: Pipeline,
    registry: str | os.PathLike[str],
    *,
    gate: str | None = None,
    cold: bool = False,
    keep: int = VERSIONS_KEPT,
    forget: Dataset | None = None,
    memory: str | int | None = None,
    threads: int | None = None,
    resources: Resources | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    listeners: tuple[Listener, ...] = (),
    report: Callable[[Path], Path] | None = None,
    verbose: int = 0,
) -> RetrainResult:
    """Train a new model, and replace the model in use if the new model passes a gate.

    The models are in a directory, the registry. The model in use is called champion, and the new model is called
    challenger. The gate is a condition on the scores of both. If data, pipeline and gate have not changed, nothing is
    trained.

    With ``solver=Direct(keep_sums=True)``, the champion stores its normal equations, which are sums over its training
    rows. New rows are then added to the sums, and unchanged rows are not read again. A challenger from updated sums
    keeps the champion's kernel, centers and preprocessing.

    If the process is killed, the next call resumes. At any time, the champion is the old or the new model.

    Args:
        pipeline: a ``Pipeline``, which defines data, model and solver. Both models are scored on its ``test`` rows.
        registry: directory of the models, created if missing. Or an fsspec URL (``s3://bucket/models``); the files of
            training are then in ``runs/NAME``, with the name of the pipeline.
        gate: the condition, in the language of ``streamkern.registry.promotion_gate``. By default, there must be at
            least 100 test rows, and the challenger may be worse by at most 0.002 in accuracy, or 1% in squared error. A
            larger difference also passes if it is not significant in a paired test (p >= .05).
        cold: train from the beginning with new centers, even if training could start from the champion.
        keep: number of latest versions to keep, in addition to the champion and the previous champion.
        forget: rows that were removed from the training rows, with their original targets. They are subtracted from the
            champion's sums and removed from its centers. If you deleted some rows of a file, pass all rows of its old
            version. All of them are subtracted, and the rows of the new version are added. If rows were removed and
            ``forget`` is None, all rows are read again.
        memory: as for ``run``.
        threads: as for ``run``.
        resources: as for ``run``; test rows are scored on threads of this process.
        checkpoint_seconds: as for ``run``.
        listeners: as for ``run``.
        report: function of the directory of a run. It writes a report on the run, and returns the path of the report.
            The report is stored with the version. If the function fails, the call warns.
        verbose: as for ``run``.

    Returns:
        The decision. ``status`` is ``promoted``, ``rejected`` or ``unchanged``. ``champion`` is the version now in use,
        and ``version`` is the challenger's. ``start`` says where training started: from the champion's ``sums``, from
        its weights (``warm``), or from the beginning (``cold``). ``reused_rows`` is the number of rows that were not
        read again. Other keys have the scores of both models, the paired test, drift, warnings and reasons.

    Raises:
        BusyError: another process has locked the registry.
        UsageError: the gate cannot be read or names no metric, or the pipeline has no test rows.
        StreamkernError: training failed, as in ``run``; the champion is unchanged.
    """
    given = given_resources(resources, memory, threads)
    judge = default_gate(pipeline.task, loss_of(pipeline)) if gate is None else Gate(gate)
    _require_retrainable(pipeline, judge, keep)
    models = Registry(registry, create=True)
    with models.lock(models.run_dir(pipeline.name)):
        started = time.time()
        about = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
            "pipeline": pipeline.name,
            "gate": judge.expression,
        }
        try:
            settings = {"resources": given, "checkpoint_seconds": checkpoint_seconds, "verbose": verbose}
            retraining = _Retraining(pipeline, models, judge, cold, keep, forget, listeners, report, settings)
            made = retraining.decide()
        except StreamkernError as error:
            models.log(about | {"status": "failed", "champion": _champion(models), "reasons": [str(error)]})
            raise
        decision = RetrainResult(about | made | {"seconds": time.time() - started})
        models.log(decision)
        return decision


def _require_retrainable(pipeline: Pipeline, gate: Gate, keep: int) -> None:
    """Raise UsageError, before anything is read, if no challenger could be judged or kept."""
    if keep < 1:
        raise UsageError(f"keep is {keep}.", where="keep", expected="at least 1")
    if pipeline.test is None:
        raise UsageError(
            "The pipeline has no test rows.",
            where=pipeline.file or "Pipeline(test=None)",
            expected="rows that the gate can measure both models on",
            remedy="hold some back: train, test = data.split(test=0.2)",
        )
    gate.require(*_gate_names(pipeline))
    _require_loadable(pipeline)


def _gate_names(pipeline: Pipeline) -> tuple[list[str], list[str]]:
    target = pipeline.train.source.target
    several = target is not None and target.width > 1
    kind = "values" if pipeline.task == "regression" else "labels" if several else "classes"
    both = [*METRIC_NAMES[kind], "n_test", "n_train"]
    return [*both, "p_value", "residual", *drift.DRIFT_METRICS], both


def _require_loadable(pipeline: Pipeline) -> None:
    """Raise UsageError, before training, if the trained model could not be loaded from the registry."""
    for name, part, read in (
        ("kernel", pipeline.kernel, kernel_from_json),
        ("feature map", pipeline.features, feature_map_from_json),
    ):
        try:
            if part is not None:
                read(part.to_json())
        except StreamkernError as error:
            raise UsageError(
                f"A pipeline with this {name} cannot be retrained: {error.what}",
                where=f"Pipeline({type(part).__name__}(...), ...)",
                expected="a kernel of streamkern: retraining loads the models that it compares, which imports no code",
                remedy="use a kernel of streamkern; or streamkern run, and load_model(path, kernel=...)",
            ) from error


@dataclass(eq=False)
class _Retraining:
    """A retraining in a registry that is locked; ``settings`` are those of ``run``."""

    pipeline: Pipeline
    models: Registry
    gate: Gate
    cold: bool
    keep: int
    forget: Dataset | None
    listeners: tuple[Listener, ...]
    report: Callable[[Path], Path] | None
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        given, pipeline = self.settings["resources"], self.pipeline
        self.pipeline = replace(pipeline, partition=decided(pipeline, given.budget, given.device).partition)
        self.folder = self.models.run_dir(pipeline.name)
        self.threads: int | None = given.threads
        self.before = self.models.standing.champion
        self.champion: KernelMachine | None = None
        self.place = self.folder / "model.zarr"
        self.why_cold: str | None = None
        self.sums: dict[str, Any] | None = None
        self.incremental: IncrementalUpdate | None = None

    @property
    def start(self) -> str:
        return "sums" if self.incremental is not None else "warm" if self.why_cold is None else "cold"

    def decide(self) -> dict[str, Any]:
        models, before = self.models, self.before
        key = _key(self.pipeline, self.gate, self.cold)
        last = models.record(models.versions[-1]) if models.versions else None
        if last is not None and last["key"] == key and unknown_code_of(self.pipeline) is None:
            same = f"the same as for version {last['version']}, which was {last['status']}"
            reasons = [f"data, pipeline and gate are {same}"]
            return {"status": "unchanged", "version": None, "champion": before, "reasons": reasons}
        self.champion = None if before is None else models.load(before)
        self.why_cold = self.why_not_warm(last)
        result = self.train()
        solved = result.get("solver_report") or {}
        paired, obstacle, profile, moved = self.measured(result)
        metrics = {
            **paired.challenger,
            "n_train": float(len(self.pipeline.train)),
            "p_value": None if paired.test is None else paired.test["p_value"],
            "residual": solved.get("residual"),
            **(dict.fromkeys(drift.DRIFT_METRICS) if moved is None else moved.metrics()),
        }
        scores = paired.champion
        if scores is not None:
            scores = scores | {"n_train": float(models.record(before)["rows"])}
        verdict = self.gate.judge(metrics, scores)
        if obstacle is not None:
            verdict = Verdict(False, (obstacle, "a person decides: streamkern models DIR promote VERSION"))
        page, failure = self.page()
        decision = {
            "status": "promoted" if verdict.passed else "rejected",
            "promote": verdict.passed,
            "reasons": list(verdict.reasons),
            "challenger": _defined(metrics),
            "against": None if scores is None else _defined(scores),
            "champion": before,
            "start": self.start,
            "why_cold": self.why_cold,
            "reused_rows": 0 if self.incremental is None else self.incremental.reused,
            "significance": paired.test,
            "drift": None if moved is None else moved.summary(),
            "warnings": [*solved.get("warnings", ()), *([] if moved is None else moved.warnings()), *failure],
            "report": None if page is None else page.name,
        }
        number = self.add(result, profile, key, decision, page)
        if verdict.passed:
            models.promote(number, before)
        models.prune(self.keep)
        if self.incremental is not None:
            discard(self.place)
        facts = redacted({name: value for name, value in decision.items() if name != "promote"})
        if page is not None:
            facts["report"] = models.at(number, page.name)
        return facts | {"version": number, "before": before, "champion": _champion(models)}

    def why_not_warm(self, last: dict[str, Any] | None) -> str | None:
        if self.champion is None or self.cold:
            return "requested" if self.cold else "there is no champion yet"
        if last is not None and last["status"] == "rejected":
            return "the last challenger was rejected"
        chosen, rows = self.models.record(self.before)["centers_rows"], len(self.pipeline.train)
        if rows > MAX_GROWTH * chosen:
            return f"the rows have grown from {chosen:,} to {rows:,} since the centers were chosen"
        return None

    def train(self) -> dict[str, Any]:
        """Train: from the champion's sums if possible, else by a run, with a warm start if possible."""
        pipeline, champion = self.pipeline, self.champion
        if traits_of(pipeline.solver).keeps_sums and pipeline.partition is None:
            self.sums = training_record(pipeline)
        if self.why_cold is None and self.sums is not None and champion is not None:
            update, self.why_cold = incremental_update(
                pipeline, self.sums, champion, self.models, self.forget, self.threads
            )
            if update is not None:
                try:
                    place = self.folder / UPDATED
                    result = update.train(champion, place, pipeline.validation, self.forget, self.settings)
                    self.place, self.incremental = place, update
                    return result
                except UnlikeChampionError as error:
                    self.why_cold = error.what
        begun = pipeline
        if self.why_cold is None and champion is not None:
            begun, self.why_cold = with_warm_start(pipeline, champion)
        try:
            return run(begun, self.folder, listeners=self.listeners, **self.settings)
        except (UnlikeChampionError, PrecisionError) as error:
            if begun is pipeline:
                raise
            self.why_cold = error.what
            return run(pipeline, self.folder, listeners=self.listeners, **self.settings)

    def measured(
        self, result: dict[str, Any]
    ) -> tuple[ModelComparison, str | None, drift.DataProfile, drift.Drift | None]:
        """Compare both models; with the reason why they cannot be compared, and the rows' profile and drift."""
        challenger = load_model(self.place)
        assert self.pipeline.test is not None
        with open_executor("threads", self.threads) as executor:
            paired, obstacle = _compare(challenger, self.champion, self.pipeline.test, executor)
            if self.incremental is not None:
                result["metrics"] = {"test": _defined(paired.challenger)}
                return (paired, obstacle, *self.incremental.profile(paired))
            profile = data_profile(self.pipeline, executor, paired.challenger_scores, challenger)
            return paired, obstacle, profile, self.measure_drift(profile, executor, paired)

    def measure_drift(self, now: drift.DataProfile, executor: Executor, paired: ModelComparison) -> drift.Drift | None:
        if self.before is None:
            return None
        model = self.champion
        before = profile_of(self.models, self.before)
        if before.columns != now.columns or len(before.target_edges) != len(now.target_edges):
            return None
        rows, edges = without_scaling(self.pipeline.train), before.target_edges
        tally = drift.column_tally(rows, before.edges, edges, executor)
        found = drift.measure_drift(before, tally, paired.champion_scores)
        if isinstance(model, PartitionedMachine) and len(before.leaf_counts) == model.tree.leaves:
            found = replace(found, leaves=drift.leaf_drift(before, drift.leaf_tally(model, rows, edges, executor)))
        return found

    def page(self) -> tuple[Path | None, list[str]]:
        """Return the page written, or a warning: a failed report must not fail the retraining."""
        if self.report is None or self.incremental is not None:  # only a run has a report
            return None, []
        try:
            return self.report(self.folder), []
        except Exception as error:
            return None, [f"the report could not be written: {error}"]

    def add(
        self, result: dict[str, Any], profile: drift.DataProfile, key: str, decision: dict[str, Any], page: Path | None
    ) -> int:
        """Add the challenger, with the decision on it, as a version."""
        pipeline, models = self.pipeline, self.models
        assert pipeline.test is not None
        rows, cold = len(pipeline.train), self.start == "cold"
        record = {
            "key": key,
            "status": decision["status"],
            "pipeline": pipeline.name,
            "file": pipeline.file,
            "settings": dict(pipeline.settings),
            "gate": self.gate.expression,
            "rows": rows,
            "start": self.start,
            "why_cold": self.why_cold,
            **({} if self.sums is None else {"sums": self.sums}),
            "centers_rows": rows if cold else models.record(self.before)["centers_rows"],
            "trained_rows": result["history"][-1]["rows"] if result["history"] else 0,
            "train": pipeline.train.fingerprint,
            "test": pipeline.test.fingerprint,
            "weights_sha256": result["weights_sha256"],
            "solver": result["solver"],
            "metrics": result["metrics"],
            "training_seconds": result["seconds"],
            "resumed_rows": result["resumed_rows"],
            "streamkern": VERSION,
            "decision": decision,
        }

        def fill(version: Path) -> None:
            shutil.copytree(self.place, version / "model.zarr")
            load_model(version / "model.zarr")
            save_artifact(version / "profile.zarr", PROFILE, *profile.dump())
            if page is not None:
                shutil.copyfile(page, version / page.name)

        return models.add(fill, record)


def _compare(
    challenger: KernelMachine, champion: KernelMachine | None, test: Dataset, executor: Executor
) -> tuple[ModelComparison, str | None]:
    """Score both on the test rows; or the challenger alone, with the reason why the champion cannot be scored."""
    obstacle, old, new = None, None if champion is None else champion.encoding, challenger.encoding
    if old is not None:
        levels = [getattr(each, "levels", None) for each in (old, new)]
        if old.kind != new.kind or levels[0] != levels[1] or (old.kind == "regression" and old.outputs != new.outputs):
            obstacle = "the champion predicts something else: they cannot be compared"
        else:
            try:
                return compare_models(challenger, champion, test, executor), None
            except (DataError, UsageError) as error:
                obstacle = f"the champion cannot be scored on these rows: {error.what}"
    return compare_models(challenger, None, test, executor), obstacle  # raises if the rows themselves are at fault


def data_profile(pipeline: Pipeline, executor: Executor, scores: Any, model: KernelMachine) -> drift.DataProfile:
    """Return distributions of the unscaled training rows, by leaf too, and of a model's scores (k,), in one sweep."""
    rows = without_scaling(pipeline.train)
    k = int(np.clip(DRIFT_SAMPLE_BYTES // (8 * rows.n_features), 1, DRIFT_SAMPLE_ROWS))
    ids = np.sort(rows.draw(min(k, rows.base_rows), Draw.DRIFT))
    (pieces,) = sweep(executor, ScanWork(RawScan(Scan(Assembly(rows), only=ids)), _features_and_targets))
    X, y = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    edges, score_edges = drift.edges_of(X), drift.edges_of(scores[:, None])
    target_edges = drift.edges_of(y if pipeline.task == "regression" else y[:, :0])
    n, counts, targets, labels = drift.column_tally(rows, edges, target_edges, executor)
    leaves = {}
    if isinstance(model, PartitionedMachine):
        leaves = drift.leaf_profile(drift.leaf_tally(model, rows, target_edges, executor))
    return drift.DataProfile(
        int(n), edges, counts, target_edges, targets, dict(labels), score_edges,
        drift.count(scores[:, None], score_edges), **leaves,
        columns=rows.source.columns or tuple(f"f{i}" for i in range(rows.n_features)),
    )  # fmt: skip


def _features_and_targets(block: tuple[RawRows, str], state: Any) -> Parts:
    X, y = block[0].X, block[0].y
    assert y is not None
    return (Stack(((X, y.reshape(len(X), -1)),)),)


def _key(pipeline: Pipeline, gate: Gate, cold: bool) -> str:
    """Return a digest of everything that a decision depends on, except the champion."""
    return digest(
        VERSION,
        [None if rows is None else rows.fingerprint for rows in (pipeline.train, pipeline.test, pipeline.validation)],
        [described(getattr(pipeline, name)) for name in ("kernel", "metric", "centers", "features", "partition")],
        AUTO if pipeline.solver == AUTO else described(pipeline.solver),
        [described(step) for step in preprocessing_steps(pipeline)],
        [pipeline.task, pipeline.seed, pipeline.lanes, pipeline.dtype],
        [str(pipeline.class_weight), pipeline.threshold, gate.expression, cold],
    )


def _champion(models: Registry) -> int | None:
    try:
        return models.champion
    except StreamkernError:
        return None


def version_table(models: Registry) -> str:
    """Return a line for each version of a registry, for a terminal."""
    champion = models.champion
    lines = []
    for number in models.versions:
        record = models.record(number)
        scores = ", ".join(
            f"{k} {v:.4g}" for k, v in record["decision"]["challenger"].items() if k in _SHOWN and v is not None
        )
        mark = "*" if number == champion else " "
        lines.append(
            f"{mark} {number:>6}  {record['created']}  {record['status']:<8}  {scores} ({record['rows']:,} rows)"
        )
    return "\n".join(lines or ["there is no version yet"]) + "\n"


def _defined(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """JSON has no NaN."""
    return {name: None if value is None or not math.isfinite(value) else value for name, value in metrics.items()}


_SHOWN = ("accuracy", "auc", "poisson_deviance", "pinball_loss", "r2", "mse")
