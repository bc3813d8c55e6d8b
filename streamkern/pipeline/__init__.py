"""Pipelines: definition, plan and run."""

from __future__ import annotations

from streamkern.pipeline.pipeline import Parameter, Pipeline, load_pipeline, parameters, type_name
from streamkern.pipeline.plan import Plan, plan
from streamkern.pipeline.run import resume, run

__all__ = ["Parameter", "Pipeline", "Plan", "load_pipeline", "parameters", "plan", "resume", "run", "type_name"]
