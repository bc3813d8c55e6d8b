"""Pipelines: definition, plan and run."""

from __future__ import annotations

from streamkern.runs.pipeline_definition import Parameter, Pipeline, load_pipeline, parameters, type_name
from streamkern.runs.plan import Plan, plan
from streamkern.runs.results import RunResult
from streamkern.runs.run_pipeline import resume, run
from streamkern.runs.tune import Trial, Tuning, tune

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
