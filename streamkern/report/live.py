"""The page of a running run, served on this machine only and refreshed every few seconds."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from streamkern.report.page import page
from streamkern.report.run_directory import read_run

AGAIN = 2
"""Seconds after which a browser reloads the page of a running run."""


class LivePage:
    """Serve the page of runs on the loopback interface. A context manager that calls ``close`` on exit.

    The address has a random word, so that other users of the machine cannot read the page; and requests for another
    host name are refused, so that web pages cannot.

    Args:
        run_dirs: the run directories.
        image_shape: as for ``write_report``.
        port: the port; 0 for any free port.

    Attributes:
        url: address of the page.

    Raises:
        UsageError: there is no run in one of the directories.
        OSError: the port is in use.
    """

    def __init__(
        self, run_dirs: Sequence[str | Path], image_shape: tuple[int, ...] | None = None, port: int = 0
    ) -> None:
        for folder in run_dirs:
            read_run(folder)
        word = secrets.token_urlsafe(16)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                """Answer with the page."""
                host = self.headers.get("Host", "")
                if host not in (f"127.0.0.1:{port}", f"localhost:{port}") or self.path != f"/{word}/":
                    self.send_error(404)
                    return
                records = [read_run(folder) for folder in run_dirs]
                running = any(record.state == "running" for record in records)
                body = page(records, image_shape, AGAIN if running else None).encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Cache-Control", "no-store")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: the terminal shows the address."""

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
