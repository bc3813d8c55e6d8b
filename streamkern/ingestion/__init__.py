"""Rows of many formats, shuffled and written once in the layout of training."""
