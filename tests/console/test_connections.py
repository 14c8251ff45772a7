"""Many connections at once, and connections that ask for nothing: the console stays open to others."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kvstore.console.app import FOLLOWERS_MAX
from kvstore.console.connection import CONNECTIONS_MAX
from tests.cli.commands import process

PATIENCE_SECONDS = 120
"""After this long an answer is missing."""
NO_LIMIT = "import kvstore.console.connection as c; c.REQUEST_SECONDS = 3600"
SOON = "import kvstore.console.connection as c; c.REQUEST_SECONDS = 3"
LIVE = "/tables/1/changes/live"


class Console:
    """A console that runs, and raw connections to it."""

    def __init__(self, stack: ExitStack, url: str) -> None:
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=(.+)", url)
        assert found is not None
        self.address, self.token = ("127.0.0.1", int(found[1])), found[2]
        self._stack = stack

    def connect(self, sent: bytes = b"") -> socket.socket:
        made = self._stack.enter_context(socket.create_connection(self.address, PATIENCE_SECONDS))
        made.sendall(sent)
        return made

    def request(self, path: str, method: str = "GET") -> bytes:
        lines = f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.address[1]}", f"Authorization: Bearer {self.token}"
        return "\r\n".join([*lines, "", ""]).encode()

    def status(self, path: str, method: str = "GET") -> int:
        with self.connect(self.request(path, method)) as made:
            return status(made)


def status(made: socket.socket) -> int:
    """The status of the answer that comes next; 0 if the connection ends."""
    with made.makefile("rb", buffering=0) as answer:
        line = answer.readline()
    return int(line.split()[1]) if line else 0


def is_closed(made: socket.socket) -> bool:
    """Whether the connection ends, after what was sent."""
    try:
        return all(iter(lambda: made.recv(1 << 16), b""))
    except ConnectionError:
        return True


@pytest.fixture
def console(shown: Path) -> Iterator[Callable[[str], Console]]:
    with ExitStack() as stack:

        def started(script: str) -> Console:
            served = stack.enter_context(process("ui", shown, "--port", "0", "--no-browser", script=script))
            stack.callback(served.kill)
            assert served.stdout is not None
            return Console(stack, served.stdout.readline().strip())

        yield started


def test_of_streams_that_are_asked_for_at_the_same_moment_as_many_as_the_limit_are_accepted(
    console: Callable[[str], Console],
) -> None:
    shown = console("")
    for _ in range(FOLLOWERS_MAX):  # what is no stream takes no place of one
        assert shown.status(LIVE, "HEAD") == 200
        assert shown.status("/tables/999/changes/live") == 404
    asked = [shown.connect() for _ in range(40)]
    for each in asked:
        each.sendall(shown.request(LIVE))
    answered = [(status(each), each) for each in asked]
    assert Counter(number for number, _ in answered) == {200: FOLLOWERS_MAX, 503: 40 - FOLLOWERS_MAX}
    assert shown.status("/") == 200
    for number, each in answered:
        if number == 200:
            each.close()
    again = 0
    while again != 200:  # the server looks for a client that has gone
        again = shown.status(LIVE)


def test_a_connection_that_does_not_end_the_headers_of_a_request_is_closed(console: Callable[[str], Console]) -> None:
    shown = console(SOON)
    follows = shown.connect(shown.request(LIVE))
    assert status(follows) == 200
    silent, cut, drips = shown.connect(), shown.connect(shown.request("/")[:-2]), shown.connect(b"G")
    idle, again = (shown.connect(shown.request("/assets/nothing")) for _ in range(2))
    assert (status(idle), status(again)) == (404, 404)
    assert shown.status("/") == 200
    for each in (drips, again):
        each.sendall(b"E")
    assert all(is_closed(each) for each in (silent, cut, idle))
    drips.setblocking(False)
    assert is_closed(drips), "a byte does not make the time longer"
    assert is_closed(again)
    follows.setblocking(False)
    rest = iter(lambda: follows.recv(1 << 16), b"")
    with pytest.raises(BlockingIOError):  # a stream is an answer, however long
        list(rest)


def test_connections_that_ask_for_nothing_keep_no_request_out(console: Callable[[str], Console]) -> None:
    shown = console(NO_LIMIT)
    more = 20
    made = [shown.connect(b"GET / HTTP/1.1\r\n") for _ in range(CONNECTIONS_MAX + more)]
    assert all(is_closed(each) for each in made[:more])
    assert shown.status("/") == 200
    made[-1].sendall(shown.request("/").partition(b"\r\n")[2])
    assert status(made[-1]) == 200
