"""Durable files: atomic writes, artifacts, and serialised values."""
