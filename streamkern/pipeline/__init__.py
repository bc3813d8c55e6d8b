"""Pipelines: definition, plan and run."""

from __future__ import annotations

from streamkern.pipeline.pipeline import Parameter, Pipeline, load_pipeline, parameters, type_name
from streamkern.pipeline.plan import Plan, plan
from streamkern.pipeline.results import RunResult
from streamkern.pipeline.run import resume, run
from streamkern.pipeline.tune import Trial, Tuning, tune

__all__ = [
    "Parameter",
    "Pipeline",
    "Plan",
    "RunResult",
    "Trial",
    "Tuning",
    "load_pipeline",
    "parameters",
    "plan",
    "resume",
    "run",
    "tune",
    "type_name",
]
