"""The version of this release."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("streamkern")
except PackageNotFoundError:  # a checkout that is not installed
    VERSION = "0+unknown"


@cache
def version_of(package: str) -> str:
    """Return the version of an installed package, or of this one; a look-up takes milliseconds."""
    return VERSION if package == "streamkern" else version(package)
