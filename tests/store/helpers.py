"""Other processes for tests: small programs run with this Python."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from types import TracebackType

from tests.support.processes import WITHOUT_PANDAS

PREAMBLE = f"""{WITHOUT_PANDAS}
import os, sys
import pyarrow as pa
import kvstore
from kvstore.errors import *
path = sys.argv[1]
"""


class Program:
    """Another process: it prints lines, and waits for one where its source does."""

    def __init__(self, store: Path, source: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", PREAMBLE + textwrap.dedent(source), str(store)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        if not text:
            raise AssertionError(self.process.communicate()[1])
        return text.strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()


def run(store: Path, source: str) -> str:
    """What a program prints."""
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(source), str(store)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
