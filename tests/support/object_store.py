"""As much of an object store's protocol as it takes to list a bucket and to read from it."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

Objects = dict[str, tuple[float, bytes]]
"""When each was put, in seconds since 1970, and its bytes; by bucket and path."""


@contextmanager
def serving(objects: Objects) -> Iterator[int]:
    """Serve objects on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            url = urlsplit(self.path)
            name, query = unquote(url.path).strip("/"), parse_qs(url.query)
            if "list-type" in query:
                self._send(200, _listed(objects, name, query.get("prefix", [""])[0]).encode(), {})
            elif name not in objects:
                self._send(404 if "/" in name else 200, b"", {}, with_body=with_body)
            else:
                put, data = objects[name]
                headers = {"Last-Modified": formatdate(put, usegmt=True), "ETag": f'"{md5(data).hexdigest()}"'}
                first, status = 0, 200
                if asked := self.headers.get("Range"):
                    first, last = (int(end) for end in asked.removeprefix("bytes=").split("-"))
                    headers["Content-Range"] = f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
                    data, status = data[first : last + 1], 206
                self._send(status, data, headers, with_body=with_body)

        def _send(self, status: int, data: bytes, headers: dict[str, str], *, with_body: bool = True) -> None:
            self.send_response(status)
            for header, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(header, value)
            self.end_headers()
            if with_body:
                self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listed(objects: Objects, bucket: str, prefix: str) -> str:
    found = "".join(
        f"<Contents><Key>{name.removeprefix(f'{bucket}/')}</Key><Size>{len(data)}</Size>"
        f"<LastModified>{dt.datetime.fromtimestamp(put, dt.UTC):%Y-%m-%dT%H:%M:%S.123Z}</LastModified></Contents>"
        for name, (put, data) in sorted(objects.items())
        if name.startswith(f"{bucket}/{prefix}")
    )
    return (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket}</Name><Prefix>{prefix}</Prefix><IsTruncated>false</IsTruncated>{found}</ListBucketResult>"
    )
