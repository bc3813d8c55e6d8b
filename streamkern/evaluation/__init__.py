"""Metrics of a model over rows, and curves of reports."""
