"""The helper process: ``python -m kvstore.spark.connector.helper``, which the connector starts in each executor.

* It has loaded all modules and the native kernel, and forks a process for each connection: a task need not start
  Python. Until then it has one thread, opens no store and computes nothing: threads and locks do not survive a fork.
* Its socket is in a directory of its own, which only its user can enter, and a connection begins with the token that
  came over standard input.
* It ends, with all its processes, when its standard input ends, and so also after its parent was killed.
"""

from __future__ import annotations

import gc
import hmac
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from kvstore.kernel import leaves as leaves, library, pages as pages, rows as rows
from kvstore.process.signals import undisturbed
from kvstore.spark.connector.messages import Broken, Messages
from kvstore.spark.connector.requests import answer

SOCKET_BYTES_MAX = 107
"""Bytes of the path of a socket, without the zero at its end."""
GROWN_BYTES_MAX = 64 << 20
"""A process that has grown by more does not wait for another task: what it has freed, the system does not have back."""
_BACKLOG = 128


def main() -> None:
    """Listen, print the path of the socket, and serve until standard input ends."""
    token = sys.stdin.readline().strip()
    os.setsid()
    directory = private_directory()
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            path = directory / "s"
            listening.bind(str(path))
            listening.listen(_BACKLOG)
            sys.stdout.write(f"{path}\n")
            sys.stdout.flush()
            os.dup2(2, 1)  # the other end reads one line only
            _serve(listening, token)
    finally:
        if os.getpid() == os.getsid(0):
            shutil.rmtree(directory, ignore_errors=True)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.killpg(0, signal.SIGTERM)


def private_directory() -> Path:
    """A new directory that only this user can enter, with a path that is short enough for a socket."""
    for parent in (tempfile.gettempdir(), "/tmp", os.getcwd()):  # noqa: S108
        if len(os.fsencode(parent)) + len("/kvstore-12345678/s") <= SOCKET_BYTES_MAX and os.access(parent, os.W_OK):
            return Path(tempfile.mkdtemp(prefix="kvstore-", dir=parent))
    return Path(tempfile.mkdtemp(prefix="kvstore-"))


def _serve(listening: socket.socket, token: str) -> None:
    signal.signal(signal.SIGCHLD, _reap)
    library.kernel()  # each process would load it by itself
    gc.freeze()
    with selectors.DefaultSelector() as events:
        events.register(listening, selectors.EVENT_READ)
        events.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in events.select():
                if key.fd == 0:
                    if not os.read(0, 1 << 10):
                        return
                    continue
                connection, _ = listening.accept()
                if os.fork() == 0:
                    _converse(connection, listening, token)
                connection.close()


def _reap(*_: object) -> None:
    """Wait for processes that have ended: what they took is then counted as the helper's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _converse(connection: socket.socket, listening: socket.socket, token: str) -> None:
    """Serve one connection, and end this process."""
    status = 1
    try:
        listening.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        with connection, Messages(connection) as messages:
            if hmac.compare_digest(str(messages.receive().get("token")), token):
                messages.send({})
                if not undisturbed(_answer_all, messages):
                    _answer_all(messages)
    except Broken:
        status = 0  # the other end has what it wants
    finally:
        if sys.exc_info()[0] is not None:
            sys.excepthook(*sys.exc_info())  # to the log of Spark's process
            sys.stderr.flush()
        os._exit(status)


def _answer_all(messages: Messages) -> bool:
    """Answer requests until the other end closes. No Ctrl-C comes here, so no call needs a thread that it spares."""
    first = own_bytes()

    def has_grown() -> bool:
        if own_bytes() - first > GROWN_BYTES_MAX:
            pa.default_memory_pool().release_unused()
        return own_bytes() - first > GROWN_BYTES_MAX

    while True:
        answer(messages.receive(), messages, has_grown)


def own_bytes() -> int:
    """Memory of this process that is not that of files."""
    counts = Path("/proc/self/statm").read_text().split()
    return (int(counts[1]) - int(counts[2])) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
