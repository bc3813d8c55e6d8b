"""One hypothesis profile for everyone: a failure seen in CI is the failure seen at the desk."""

from __future__ import annotations

from hypothesis import settings

# No deadline, because the first example pays for compilation; the per-test timeout stands in pyproject.toml.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci")
