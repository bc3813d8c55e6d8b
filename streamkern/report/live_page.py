"""The page of a running run, served on this machine only and refreshed every few seconds."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from streamkern.errors import StreamkernError
from streamkern.report.page import page, page_shell
from streamkern.report.run_directory import read_run


def _answer(run_dirs: Sequence[str | Path], image_shape: tuple[int, ...] | None) -> tuple[int, str]:
    refresh_seconds = 2  # seconds after which a browser reloads the page of a running run
    try:
        records = [read_run(folder) for folder in run_dirs]
        running = any(record.state == "running" for record in records)
        return 200, page(records, image_shape, refresh_seconds if running else None)
    except (StreamkernError, OSError) as error:  # not begun yet, or moved away, perhaps while it was read
        head = f"<h1>Waiting for the run</h1><pre>{escape(str(error))}</pre>"
        return 404, page_shell("Waiting for the run", head, (), {}, "Made by streamkern.", refresh_seconds)


class LivePage:
    """Serve the page of runs on the loopback interface; ``port`` 0 is any free one. A context manager that closes it.

    The address has a random word, so that other users of the machine cannot read the page; and requests for another
    host name are refused, so that web pages cannot. While a directory has no run, because it has not begun or was moved
    away, the page says so and is reloaded.
    """

    def __init__(
        self, run_dirs: Sequence[str | Path], image_shape: tuple[int, ...] | None = None, port: int = 0
    ) -> None:
        word = secrets.token_urlsafe(16)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                """Answer with the page."""
                host = self.headers.get("Host", "")
                if host not in (f"127.0.0.1:{port}", f"localhost:{port}") or self.path != f"/{word}/":
                    self.send_error(404)
                    return
                status, text = _answer(run_dirs, image_shape)
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """The terminal shows the address, and nothing else."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{port}/{word}/"

    def serve(self) -> None:
        """Answer requests until ``close`` is called in another thread, or an exception such as Ctrl-C is raised."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop ``serve``, if it is running, and free the port."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> LivePage:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()
