"""Predictions: of rows in memory, and of files."""

from __future__ import annotations

from streamkern.serving.predictor import Predictor

__all__ = ["Predictor"]
