"""Pipelines: definition, plan and run."""

from __future__ import annotations

from streamkern.pipeline.pipeline import Pipeline, load_pipeline, parameters
from streamkern.pipeline.plan import Plan, plan
from streamkern.pipeline.run import run

__all__ = ["Pipeline", "Plan", "load_pipeline", "parameters", "plan", "run"]
