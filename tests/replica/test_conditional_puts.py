"""An object is created once in every object store: which condition a put has there, and what an answer means."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from kvstore.errors import Unavailable
from kvstore.replica.client import NO_RETRIES, ObjectStore
from tests.support import s3

TAKEN = {"s3": (412, "PreconditionFailed"), "gs": (412, "conditionNotMet"), "az": (409, "BlobAlreadyExists")}
"""The answer to a put whose condition is not met: status and code."""
CONDITIONS = {"s3": ("if-none-match", "*"), "gs": ("x-goog-if-generation-match", "0"), "az": ("if-none-match", "*")}


@contextmanager
def store_of(scheme: str, puts: list[dict[str, str]], status: int | None = None) -> Iterator[str]:
    """An object store that has one object after the first put; its address.

    Args:
        puts: Gets the headers of each put, in lower case.
        status: The answer to every put; None for those of the store.
    """

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            puts.append({name.lower(): value for name, value in self.headers.items()})
            found, code = TAKEN[scheme] if len(puts) > 1 else (200, "")
            body = f"<Error><Code>{code}</Code></Error>".encode()
            self.send_response(status or found)
            self.send_header("ETag", '"1"')
            self.send_header("x-goog-generation", "1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environment(scheme: str, address: str) -> dict[str, str]:
    """What makes clients go to an address."""
    key = {"gcs_base_url": address, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return {
        "s3": s3.environment(address),
        "gs": {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps(key), "GOOGLE_ALLOW_HTTP": "true"},
        "az": {
            "AZURE_STORAGE_ACCOUNT_NAME": "nobody",
            "AZURE_SKIP_SIGNATURE": "true",
            "AZURE_STORAGE_ENDPOINT": address,
            "AZURE_ALLOW_HTTP": "true",
        },
    }[scheme]


@pytest.mark.parametrize("scheme", list(CONDITIONS))
def test_a_put_that_creates_has_the_condition_of_its_store(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    puts: list[dict[str, str]] = []
    with store_of(scheme, puts) as address:
        for name, value in environment(scheme, address).items():
            monkeypatch.setenv(name, value)
        place = ObjectStore(f"{scheme}://bucket/path", retries=NO_RETRIES)
        assert place.create("a", [b"one"])
        assert not place.create("a", [b"other"])
    header, value = CONDITIONS[scheme]
    assert [put.get(header) for put in puts] == [value, value]


@pytest.mark.parametrize("scheme", list(CONDITIONS))
def test_a_put_that_is_refused_for_another_reason_is_no_answer(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with store_of(scheme, [], status=501) as address:
        for name, value in environment(scheme, address).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(Unavailable):
            ObjectStore(f"{scheme}://bucket/path", retries=NO_RETRIES).create("a", [b"one"])
