"""Other processes for tests: small programs run with this Python."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path
from types import TracebackType

from tests.support.processes import Forked

_BEGIN = """
import os, sys
import pyarrow as pa
import kvstore
from tests.support.image_workers import images_of_this_process
images = images_of_this_process()
images.__enter__()
from kvstore.errors import *
path = sys.argv[1]
"""


class Program:
    """Another process: it prints lines, and waits for one where its source does."""

    def __init__(self, store: Path, source: str) -> None:
        self.process = Forked(_BEGIN + textwrap.dedent(source), store, stdin=subprocess.PIPE, buffered=False)

    @property
    def pid(self) -> int:
        return self.process.pid

    def line(self) -> str:
        text: str = self.process.stdout.readline()
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
        self.process.__exit__(kind, error, trace)


def run(store: Path, source: str) -> str:
    """What a program prints."""
    process = Forked(_BEGIN + textwrap.dedent(source), store)
    out, errors = process.communicate()
    assert process.returncode == 0, errors
    return str(out).strip()
