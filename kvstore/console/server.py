"""Serving the console: on this machine only, until it is interrupted."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path

import uvicorn

from kvstore.console.app import application
from kvstore.console.connection import Connection
from kvstore.errors import InvalidRequest, Unavailable

HTTP_PORT = 80
"""Browsers leave it out of the header ``Host``."""
_NAMES = ("localhost", "127.0.0.1", "[::1]")


def serve(store: Path, host: str, port: int, show: Callable[[str], None], *, opens: bool) -> None:
    """Serve the console of a store until the process is interrupted.

    Args:
        host: An address of the loopback interface, or ``localhost``.
        port: 0 for a free one.
        show: Is given the URL, once it answers.
        opens: Whether to open it in a browser.

    Raises:
        InvalidRequest: The host is not this machine's loopback.
        Unavailable: The port is in use.
    """
    listening = _listening(loopback(host), port)
    with listening:
        port = listening.getsockname()[1]
        name = f"[{host}]" if ":" in host else host
        token = secrets.token_urlsafe(24)
        names = {*_NAMES, name.lower()}
        hosts = frozenset({f"{each}:{port}" for each in names} | (names if port == HTTP_PORT else set()))
        app = application(store, token, hosts, f"kvstore-{port}", lambda: server.should_exit)
        settings = uvicorn.Config(
            app, http=Connection, log_level="warning", access_log=False, server_header=False, ws="none"
        )
        server = uvicorn.Server(settings)
        url = f"http://{name}:{port}/?token={token}"
        show(url)
        if opens:
            # A browser of the terminal ends only when its user leaves it.
            threading.Thread(target=webbrowser.open, args=(url,), name="kvstore-browser", daemon=True).start()
        server.run(sockets=[listening])


def loopback(host: str) -> str:
    """The address of a host that only this machine reaches.

    Raises:
        InvalidRequest: Others may reach it.
    """
    try:
        address = ipaddress.ip_address("127.0.0.1" if host.lower() == "localhost" else host)
    except ValueError as error:
        raise InvalidRequest("The host is an address such as 127.0.0.1, or localhost.", host=repr(host)) from error
    if not address.is_loopback:
        raise InvalidRequest(
            "The console listens on this machine only, on 127.0.0.1 or ::1; from another one, use"
            " ssh -L 8765:127.0.0.1:8765.",
            host=host,
        )
    return str(address)


def _listening(address: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((address, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise Unavailable(
            "The console can't listen here; give another --port, or 0 for a free one.",
            host=address,
            port=port,
            reason=error.strerror,
        ) from error
    return listening
