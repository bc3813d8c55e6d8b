"""What tests of several solvers share."""

from collections.abc import Iterator

import pytest

from streamkern.execute.threads_executor import ThreadsExecutor


@pytest.fixture(scope="module")
def executor() -> Iterator[ThreadsExecutor]:
    with ThreadsExecutor(2) as pool:
        yield pool
