"""Registry of models: versions, the gate that promotes them, and retraining."""

from __future__ import annotations

from streamkern.registry.model_registry import Registry
from streamkern.registry.retrain import RetrainResult, retrain

__all__ = ["Registry", "RetrainResult", "retrain"]
