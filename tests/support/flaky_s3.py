"""A way to an S3 of this machine on which requests and answers are lost, cut off, refused, or late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Fault = Literal["none", "refused", "lost", "unanswered", "partial", "late"]
"""What happens to a request: it is answered; 503; it does not arrive; its answer does not; half of its answer does;
its answer comes after the client has given up."""
FAULTS: tuple[Fault, ...] = ("refused", "lost", "unanswered", "partial", "late")
_HOP = {"connection", "transfer-encoding", "content-length", "date", "server"}


@contextmanager
def flaky(endpoint: str, fault: Callable[[str, str], Fault]) -> Iterator[str]:
    """Serve on a free port of this machine; its endpoint.

    Args:
        endpoint: Where requests go.
        fault: What happens to a request, by its method and path.
    """
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            chosen = fault(self.command, self.path)
            if chosen == "lost":
                self.close_connection = True
                return
            if chosen == "refused":
                self._answer(503, [], b"<Error><Code>SlowDown</Code></Error>", 0)
                return
            connection = HTTPConnection(urlsplit(endpoint).netloc)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
            length = answer.getheader("Content-Length")
            data = answer.read()
            connection.close()
            if chosen == "late":
                ended.wait(60)
            if chosen in ("late", "unanswered"):
                self.close_connection = True
                return
            cut = len(data) // 2 if chosen == "partial" else 0
            self._answer(answer.status, headers, data, cut, length)

        def _answer(
            self, status: int, headers: list[tuple[str, str]], data: bytes, cut: int, length: str | None = None
        ) -> None:
            with suppress(OSError):  # the client has given up
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("Content-Length", length or str(len(data)))
                self.end_headers()
                self.wfile.write(data[: len(data) - cut])
            self.close_connection = self.close_connection or bool(cut)

        def do_GET(self) -> None:
            self._handle()

        def do_HEAD(self) -> None:
            self._handle()

        def do_PUT(self) -> None:
            self._handle()

        def do_POST(self) -> None:
            self._handle()

        def do_DELETE(self) -> None:
            self._handle()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
