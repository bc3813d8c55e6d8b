"""Rows that are added to a fitted model, or taken away from it."""
