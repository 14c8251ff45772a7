"""An S3 of this machine, as moto has it: everything that the stores of others say, and nothing that they cost."""

from __future__ import annotations

import logging
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def serving() -> Iterator[str]:
    """Serve on a free port of this machine; its endpoint."""
    from moto.server import ThreadedMotoServer  # half a second, which only tests that need it wait for

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def environment(endpoint: str) -> dict[str, str]:
    """What makes clients go there, and nowhere else."""
    return {
        "AWS_ACCESS_KEY_ID": "nobody",
        "AWS_SECRET_ACCESS_KEY": "nothing",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
    }


def create_bucket(endpoint: str, bucket: str) -> None:
    """A bucket with nothing in it."""
    put_bytes(f"{endpoint}/{bucket}")


def put_bytes(url: str, data: bytes | None = None) -> None:
    """Put something there, also under a name that a client would not."""
    urllib.request.urlopen(urllib.request.Request(url, data, method="PUT")).close()
