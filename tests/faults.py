"""A real HTTP server that fails as told: by itself over a folder, or in front of another server (such as S3's)."""

from __future__ import annotations

import hashlib
import http.client
import threading
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from urllib.parse import unquote, urlsplit


@dataclass(frozen=True)
class Fault:
    """What happens to one request.

    Args:
        delay: seconds before anything is answered.
        until: nothing is answered before this is set, for a minute at most.
        status: answered instead of the truth, if not 0.
        hang: say nothing until the server is closed.
        drop: close the connection without an answer.
        truncate: send half of the body that was promised, then close the connection.
        shorten: send half of the body and say that this is all.
        flip: change one bit in the middle of the body.
    """

    delay: float = 0.0
    until: threading.Event | None = None
    status: int = 0
    hang: bool = False
    drop: bool = False
    truncate: bool = False
    shorten: bool = False
    flip: bool = False


@dataclass(frozen=True)
class Request:
    """One request, as a plan of faults sees it.

    Attributes:
        number: how many came before, in all.
        times: how many came before with the same method, path and range.
        method: GET, HEAD, ...
        path: with the query.
    """

    number: int
    times: int
    method: str
    path: str


Plan = Callable[[Request], Fault | None]


def one_in(k: int, fault: Fault) -> Plan:
    """The fault on every k-th GET or HEAD request."""
    return lambda request: fault if request.method in ("GET", "HEAD") and request.number % k == k - 1 else None


def first_time(fault: Fault, containing: str) -> Plan:
    """The fault on the first GET of every object whose path contains a text; repetitions are served."""
    return lambda request: (
        fault if request.method == "GET" and containing in request.path and not request.times else None
    )


class FaultyServer:
    """Serves a folder (GET and HEAD, ranges, ETags; no listing), or passes everything on to another server.

    A context manager; a plan may be exchanged while it runs.

    Args:
        behind: the folder, or the other server's URL.
        plan: which fault a request meets; None for none.
        ranges: whether range requests of a folder are understood.

    Attributes:
        plan: as above.
        requests: requests so far.
        faults: how many of them met a fault.
    """

    def __init__(self, behind: Path | str, plan: Plan | None = None, ranges: bool = True) -> None:
        self.behind, self.plan, self.ranges = behind, plan, ranges
        self.requests = self.faults = 0
        self.closing = threading.Event()
        self._seen: dict[tuple[str, str, str], int] = {}
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> FaultyServer:
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fault(self, method: str, path: str, part: str) -> Fault | None:
        """Count a request, and say what happens to it."""
        with self._lock:
            key = (method, path, part)
            request = Request(self.requests, self._seen.get(key, 0), method, path)
            self.requests += 1
            self._seen[key] = request.times + 1
            found = self.plan(request) if self.plan is not None else None
            self.faults += found is not None
            return found


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone away is no news: it timed out, as it should."""


class _Handler(BaseHTTPRequestHandler):
    owner: FaultyServer
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.owner.fault(self.command, self.path, self.headers.get("Range", "")) or Fault()
        if fault.until is not None:
            fault.until.wait(60)
        if fault.delay:
            self.owner.closing.wait(fault.delay)
        if fault.hang:
            self.owner.closing.wait()
        if fault.hang or fault.drop:
            self.close_connection = True
            return
        if fault.status:
            status, headers, body = fault.status, {"Content-Type": "text/plain"}, b"a fault, as planned"
        elif isinstance(self.owner.behind, Path):
            status, headers, body = self._from_folder(self.owner.behind)
        else:
            status, headers, body = self._from_server(self.owner.behind, sent)
        promised = len(body)
        if fault.flip and body:
            middle = len(body) // 2
            body = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
        if fault.shorten or fault.truncate:
            body = body[: len(body) // 2]
            promised = len(body) if fault.shorten else promised
        self.send_response_only(status)
        headers.setdefault("Content-Length", str(promised))
        if fault.shorten:
            headers["Content-Length"] = str(promised)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        if fault.truncate:
            self.close_connection = True

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _answer

    def _from_folder(self, folder: Path) -> tuple[int, dict[str, str], bytes]:
        file = folder / unquote(urlsplit(self.path).path).lstrip("/")
        if not file.is_file():
            return 404, {}, b""
        body = file.read_bytes()
        headers = {
            "ETag": f'"{hashlib.md5(body).hexdigest()}"',
            "Last-Modified": formatdate(file.stat().st_mtime, usegmt=True),
        }
        part = self.headers.get("Range", "").removeprefix("bytes=")
        if not part or not self.owner.ranges:
            return 200, headers, body
        first, _, last = part.partition("-")
        start = int(first) if first else max(0, len(body) - int(last))
        stop = min(int(last) + 1, len(body)) if first and last else len(body)
        if start >= len(body):
            return 416, headers, b""
        return 206, headers | {"Content-Range": f"bytes {start}-{stop - 1}/{len(body)}"}, body[start:stop]

    def _from_server(self, url: str, sent: bytes) -> tuple[int, dict[str, str], bytes]:
        other = http.client.HTTPConnection(urlsplit(url).netloc)
        try:
            other.request(self.command, self.path, sent, dict(self.headers.items()))
            answer = other.getresponse()
            body = answer.read()
            hop = ("transfer-encoding", "connection", "keep-alive", "date", "server")
            return answer.status, {k: v for k, v in answer.getheaders() if k.lower() not in hop}, body
        finally:
            other.close()
