"""Processes that start fast: forked from one that has imported everything and opened nothing.

* :class:`Child` runs a function and has a pipe for objects; :class:`Forked` runs a program as ``subprocess`` would.
* A process is killed when its user leaves its block; it has the environment and directory of its user.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any, Self

WITHOUT_PANDAS = """
import sys
class WithoutPandas:
    def find_spec(name, *_):
        if name == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, WithoutPandas)
"""
"""Source for the beginning of a program: Arrow imports pandas where it is there, half as long as all else takes."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["kvstore", "tests.support.preload"])
"""Processes of ``multiprocessing`` that are forked from one that has imported everything."""


class Child:
    """A process that runs ``main(pipe, *arguments)``; a context manager that kills it in the end."""

    def __init__(self, main: Callable[..., None], *arguments: Any) -> None:
        self.pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=main, args=(theirs, *arguments), daemon=True)
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

    def stop(self) -> None:
        """Stop it; no thread of it runs any more on return. SIGCONT lets it go on."""
        os.kill(self.pid, signal.SIGSTOP)
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with suppress(FileNotFoundError):  # this thread has ended
                while (task / "stat").read_text().rpartition(")")[2].split()[0] != "T":
                    os.sched_yield()

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


class Descriptor:
    """A file descriptor, for a process that is being forked."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        assert get_spawning_popen() is not None, "only a process that is being forked receives a descriptor"
        return _received, (DupFd(self.number),)


def _received(sent: Any) -> Descriptor:
    return Descriptor(sent.detach())


class Forked:
    """A program as by ``subprocess.Popen([python, "-c", source, *arguments])``, but forked: it starts 40 times faster.

    Only for a program that finds its imports done and its memory in use. One that depends on how Python starts (its
    options, limits, imports, peak of memory) needs ``subprocess``.

    Args:
        source: A program.
        arguments: ``sys.argv`` after its first element.
        text: Whether the pipes are text.
        stdin: ``subprocess.PIPE``, a file, or nothing to read.
        buffered: Whether what the program prints waits in its buffer, as it does in a pipe unless it is flushed.

    Attributes:
        pid, returncode, stdin, stdout, stderr: As of ``subprocess.Popen``.
    """

    def __init__(
        self,
        source: str,
        *arguments: object,
        text: bool = True,
        stdin: int | IO[Any] = subprocess.DEVNULL,
        buffered: bool = True,
    ) -> None:
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self._readers: list[threading.Thread] = []
        self._out: list[Any] = []
        self._errors: list[Any] = []
        with ExitStack() as theirs:
            if stdin == subprocess.PIPE:
                read, write = os.pipe()
                theirs.callback(os.close, read)
                self.stdin = os.fdopen(write, "w" if text else "wb", buffering=1 if text else 0)
            elif stdin == subprocess.DEVNULL:
                read = theirs.enter_context(open(os.devnull)).fileno()
            else:
                assert not isinstance(stdin, int)
                read = stdin.fileno()
            given = [read]
            for name in ("stdout", "stderr"):
                read, write = os.pipe()
                theirs.callback(os.close, write)
                setattr(self, name, os.fdopen(read, "r" if text else "rb"))
                given.append(write)
            words, environment = ["-c", *map(str, arguments)], dict(os.environ)
            main = ([Descriptor(each) for each in given], os.getcwd(), environment, words, source, buffered)
            self._process = CONTEXT.Process(target=_run, args=main, daemon=True)
            self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.stdout: IO[Any]
        self.stderr: IO[Any]

    def poll(self) -> int | None:
        self.returncode = self._process.exitcode
        return self.returncode

    def wait(self, timeout: float = 600) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: Any = None, timeout: float = 600) -> tuple[Any, Any]:
        """What it prints until its end, and its errors."""

        def read(file: IO[Any], to: list[Any]) -> None:
            to.append(file.read())
            file.close()

        if not self._readers:  # it is called again after it took too long
            for file, to in ((self.stdout, self._out), (self.stderr, self._errors)):
                self._readers.append(threading.Thread(target=read, args=(file, to)))
                self._readers[-1].start()
        if self.stdin is not None:
            with suppress(BrokenPipeError):
                if input:
                    self.stdin.write(input)
                self.stdin.close()
        self.wait(timeout)
        for reader in self._readers:
            reader.join()
        return self._out[0], self._errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.stdout, self.stderr, self.stdin):
            if file is not None:
                with suppress(BrokenPipeError):
                    file.close()
        self.wait()


def ran(source: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """A program that has ended; see :class:`Forked`."""
    process = Forked(source, *arguments)
    out, errors = process.communicate()
    return subprocess.CompletedProcess([source, *map(str, arguments)], process.wait(), out, errors)


def _run(
    given: list[Descriptor],
    directory: str,
    environment: dict[str, str],
    words: list[str],
    source: str,
    buffered: bool,
) -> None:
    """Be the program."""
    for number, each in enumerate(given):
        os.dup2(each.number, number)
        os.close(each.number)
    os.chdir(directory)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
    sys.argv = words
    sys.stdin = os.fdopen(0)
    sys.stdout = os.fdopen(1, "w") if buffered else io.TextIOWrapper(io.FileIO(1, "w"), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w"), write_through=True)
    try:
        exec(compile(source, "<string>", "exec"), {"__name__": "__main__"})
    finally:
        threading._shutdown()
        atexit._run_exitfuncs()


Pipe = Connection
