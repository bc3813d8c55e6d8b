"""Rows in a server that speaks S3."""

from collections.abc import Callable
from pathlib import Path

import pytest
import s3fs


@pytest.fixture
def upload(s3_server: str, credentials: None) -> Callable[[Path, str], str]:
    """Puts a file or a folder into a bucket; gives its URL."""
    fs = s3fs.S3FileSystem(endpoint_url=s3_server, skip_instance_cache=True)

    def put(path: Path, place: str) -> str:
        fs.makedirs(place.partition("/")[0], exist_ok=True)
        end = "/" if path.is_dir() else ""  # the content of a folder, also where it is there already
        fs.put(f"{path}{end}", f"{place}{end}", recursive=path.is_dir())
        return f"s3://{place}"

    return put
