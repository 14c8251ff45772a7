"""Processes that start fast: forked from one that has imported everything and opened nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Self

WITHOUT_PANDAS = """
import sys
class WithoutPandas:
    def find_spec(name, *_):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, WithoutPandas)
"""
"""Source for the beginning of a program: Arrow imports pandas where it is there, half as long as all else takes."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["kvstore", "tests.support.preload"])


class Child:
    """A process that runs ``main(pipe, *arguments)``; a context manager that kills it in the end."""

    def __init__(self, main: Callable[..., None], *arguments: Any) -> None:
        self.pipe, theirs = _CONTEXT.Pipe()
        self._process = _CONTEXT.Process(target=main, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def hear(self, seconds: float = 600) -> Any:
        """What it says next; EOFError if it ended."""
        if not self.pipe.poll(seconds):
            raise TimeoutError(f"nothing was said for {seconds} s")
        return self.pipe.recv()

    def say(self, word: Any) -> None:
        self.pipe.send(word)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.join()

    def join(self, seconds: float = 600) -> int:
        """Wait for its end; its exit status, negative for a signal."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, "it did not end"
        return self._process.exitcode

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.exitcode is None:
            self.kill()
        self.pipe.close()


Pipe = Connection
