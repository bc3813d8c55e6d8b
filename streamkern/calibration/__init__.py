"""Probabilities, intervals and thresholds from held-out rows."""
