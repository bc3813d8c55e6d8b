"""Predictions for rows in memory and for files."""

from __future__ import annotations

from streamkern.serving.predictor import Predictor

__all__ = ["Predictor"]
