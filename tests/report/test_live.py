"""The page of a running run over HTTP, without a browser."""

import http.client
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from streamkern.commands.parser import main
from streamkern.report.live_page import LivePage


@contextmanager
def served(run: Path) -> Iterator[LivePage]:
    """The page of a run, until it is no longer wanted."""
    live = LivePage([run])
    thread = threading.Thread(target=live.serve)
    thread.start()
    try:
        yield live
    finally:
        live.close()
        thread.join(100)
    assert not thread.is_alive()


def answer(live: LivePage, path: str | None = None, host: str | None = None) -> tuple[int, str]:
    """Status and text of the page, or of another path or host at its port."""
    place = urlsplit(live.url)
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=100)
    connection.request("GET", path or place.path, headers={"Host": host or place.netloc})
    reply = connection.getresponse()
    return reply.status, reply.read().decode()


@pytest.mark.parametrize("moved", [False, True])
def test_the_live_page_waits_for_a_run_that_has_not_begun_or_was_moved_away(runs, tmp_path, moved):
    place = tmp_path / "run"
    if moved:
        shutil.copytree(runs["digits"], place)
    with served(place) as live:
        if moved:
            assert answer(live)[0] == 200
            shutil.rmtree(place)
        status, text = answer(live)
        assert status == 404
        assert all(part in text for part in ("Waiting for the run", 'http-equiv="refresh"', str(place)))
        shutil.copytree(runs["digits"], place)
        assert answer(live)[0] == 200


@pytest.mark.slow
def test_a_live_page_answers_to_its_own_address_on_this_machine_only(runs: dict[str, Path]):
    with served(runs["digits"]) as live:
        assert urlsplit(live.url).hostname == "127.0.0.1"
        assert answer(live)[0] == 200
        assert answer(live, path="/")[0] == answer(live, host="evil.example")[0] == 404


def test_a_port_that_is_taken_is_told(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["report", str(runs["digits"]), "--live", "--port", port]) == 2
    assert "The page cannot be served: Address already in use." in capsys.readouterr().err
