"""Digests of values, by which what was stored is known again."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from streamkern.types import Array


def array_content(values: Array) -> bytes | memoryview:
    """Return bytes that identify an array's values in C order; for objects, such as texts, a digest."""
    if values.dtype == object:
        return digest(values.tolist()).encode()
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def digest(*parts: Any) -> str:
    """Return the hex SHA-256 of JSON-serialisable parts, in order."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()
