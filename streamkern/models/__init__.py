"""Trained models: one kernel machine, and partitioned ones."""
