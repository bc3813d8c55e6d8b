"""The list of codecs that may read a zarr array, checked before zarr creates any codec.

Some of zarr's codecs execute code from the decoded data (``pickle``), and plug-ins may add others.
"""

from __future__ import annotations

import re
from typing import Any

BYTE_CODECS = frozenset(
    ("adler32", "blosc", "bz2", "crc32", "crc32c", "fletcher32", "gzip", "lz4", "lzma", "zlib", "zstd")
)
"""Codecs from bytes to bytes: compression and checksums."""

NUMBER_CODECS = frozenset(
    ("astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize", "shuffle", "transpose")
)
"""Codecs from arrays of numbers to arrays of numbers."""

TEXT_CODECS = frozenset(("vlen-bytes", "vlen-utf8"))
"""Codecs of text: the only ones that create Python objects."""

LAYOUT_CODECS = frozenset(("bytes", "endian", "sharding_indexed"))
"""Codecs of zarr version 3 from arrays to bytes."""

ALLOWED_CODECS = BYTE_CODECS | NUMBER_CODECS | TEXT_CODECS | LAYOUT_CODECS

_NUMBER = re.compile(r"[<>|=]?[biufc][0-9]{1,2}|bool|(?:int|uint|float|complex)[0-9]{1,3}")
_PLAIN = re.compile(r"[<>|=]?[biufcSUV][0-9]{1,9}|[<>|=]?[mM]8(?:\[[0-9]*[A-Za-z]{1,2}\])?")
_DTYPES = ("dtype", "astype", "encode_dtype", "decode_dtype")


def forbidden_codec(document: Any) -> str | None:
    """Return why the arrays of a parsed zarr.json, .zarray or .zmetadata must not be read, or None."""
    if not isinstance(document, dict):
        return None
    reason = _of_version_2(document) or _of_version_3(document)
    # Version 2 lists all documents under "metadata"; version 3 has that inside "consolidated_metadata".
    for inside in (document, document.get("consolidated_metadata")):
        members = inside.get("metadata") if isinstance(inside, dict) else None
        for name, member in members.items() if isinstance(members, dict) and reason is None else ():
            if not name.endswith(".zattrs") and (reason := forbidden_codec(member)) is not None:
                reason = f"{name}: {reason}"
                break
    return reason


def _of_version_2(document: dict[str, Any]) -> str | None:
    dtype, compressor = document.get("dtype"), document.get("compressor")
    filters = [] if document.get("filters") is None else document["filters"]
    if not isinstance(filters, list):
        return f"its filters are {_shown(filters)}, not a list"
    names = [_name(codec, "id") for codec in filters]
    for codec in filters:
        if (reason := _of_codec(codec, "id", BYTE_CODECS | NUMBER_CODECS | TEXT_CODECS)) is not None:
            return reason
    if compressor is not None and (reason := _of_codec(compressor, "id", BYTE_CODECS)) is not None:
        return reason
    if dtype in ("|O", "O"):
        if not names or names[0] not in TEXT_CODECS or TEXT_CODECS & set(names[1:]):
            return f"its dtype is {dtype!r}, Python objects, without vlen-utf8 as the first filter, and the only one"
    elif dtype is not None and not _is_plain(dtype):
        return f"its dtype {_shown(dtype)} is not a dtype of numbers, dates or text"
    return None


def _is_plain(dtype: Any) -> bool:
    """True if a version 2 dtype, or each of its fields, has a fixed width and no Python objects."""
    if isinstance(dtype, str):
        return _PLAIN.fullmatch(dtype) is not None
    fields = dtype if isinstance(dtype, list) else [None]
    return all(isinstance(field, list) and len(field) > 1 and _is_plain(field[1]) for field in fields)


def _of_version_3(document: dict[str, Any]) -> str | None:
    if document.get("storage_transformers"):
        return f"it has storage transformers: {_shown(document['storage_transformers'])}"
    return _of_chain(document.get("codecs"))


def _of_chain(codecs: Any) -> str | None:
    if codecs is None:
        return None
    if not isinstance(codecs, list):
        return f"its codecs are {_shown(codecs)}, not a list"
    for codec in codecs:
        reason = _of_codec(codec, "name", ALLOWED_CODECS)
        if reason is None and _name(codec, "name") == "sharding_indexed":
            inner = _configuration(codec)
            reason = _of_chain(inner.get("codecs")) or _of_chain(inner.get("index_codecs"))
        if reason is not None:
            return reason
    return None


def _of_codec(codec: Any, key: str, known: frozenset[str]) -> str | None:
    name = _name(codec, key)
    if name not in known:
        return f"its codec {_shown(codec if name is None else name)} is not one of those that are read"
    for field, value in _configuration(codec).items():
        if field in _DTYPES and not (isinstance(value, str) and _NUMBER.fullmatch(value)):
            return f"its codec {name!r} has the {field} {_shown(value)}"
    return None


def _name(codec: Any, key: str) -> str | None:
    """Version 2 names a codec by the key ``id``, version 3 by ``name`` or the bare text."""
    if isinstance(codec, dict):
        codec = codec.get(key)
    elif key == "id":
        return None
    return codec.removeprefix("numcodecs.") if isinstance(codec, str) else None


def _configuration(codec: Any) -> dict[str, Any]:
    if not isinstance(codec, dict):
        return {}
    inside = codec.get("configuration")
    return {**codec, **inside} if isinstance(inside, dict) else codec


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "..."
