"""Partitions: rows cut into leaves, a whole fit in each, and one model of them all."""
