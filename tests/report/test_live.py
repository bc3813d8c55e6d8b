"""The page of a running run over HTTP, without a browser."""

from __future__ import annotations

import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from streamkern.report import live_page as live_page


@pytest.mark.parametrize("moved", [False, True])
def test_the_live_page_waits_for_a_run_that_has_not_begun_or_was_moved_away(
    runs: dict[str, Path], tmp_path: Path, moved: bool
):
    place = tmp_path / "run"
    if moved:
        shutil.copytree(runs["digits"], place)
    live = live_page.LivePage([place])
    thread = threading.Thread(target=live.serve)
    thread.start()

    def answer() -> tuple[int, str]:
        try:
            with urllib.request.urlopen(live.url, timeout=60) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    try:
        if moved:
            assert answer()[0] == 200
            shutil.rmtree(place)
        status, text = answer()
        assert status == 404
        assert all(part in text for part in ("Waiting for the run", 'http-equiv="refresh"', str(place)))
        shutil.copytree(runs["digits"], place)
        assert answer()[0] == 200
    finally:
        live.close()
        thread.join(100)
