"""Programs that drive Spark as processes of their own, and their ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]


LOCAL_CLUSTER = "local-cluster[2,1,1024]"


@contextmanager
def driver(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A program of ``tests/spark/drivers``, in a process group of its own that does not outlive this."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.spark.drivers.{program}", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        kill_all(process)
        process.communicate()


def kill_all(process: subprocess.Popen[str]) -> None:
    """Kill a driver and all it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def lines_until(process: subprocess.Popen[str], word: str) -> list[str]:
    """What a driver says, up to the line that begins with a word."""
    assert process.stdout is not None
    said = []
    for line in process.stdout:
        said.append(line)
        if line.startswith(word):
            return said
    raise AssertionError("".join([line for line in said if not line.startswith("\tat ")][-80:]))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


HELPER, EXECUTOR = b"kvstore.spark.connector.helper", b"CoarseGrainedExecutorBackend"


def of_a_driver(pid: int, word: bytes) -> list[int]:
    """Processes that descend from a driver and have a word in their command line."""
    parents, commands = {}, {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            number = int(process.name)
            parents[number] = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
            commands[number] = (process / "cmdline").read_bytes()

    def descends(number: int) -> bool:
        while number in parents and number != pid:
            number = parents[number]
        return number == pid

    return [number for number, command in commands.items() if word in command and descends(number)]


def kill(pid: int, word: bytes) -> None:
    for number in of_a_driver(pid, word):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)
