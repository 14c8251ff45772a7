"""Images of the catalog that are made by forked processes, or by this one.

A store starts a Python of its own for each, which takes 0.4 s: tests/checkpoint/test_processes.py has these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from unittest import mock

from kvstore.checkpoint import worker
from kvstore.checkpoint.controller import Controller
from kvstore.checkpoint.messages import Answer, Task, encode
from kvstore.checkpoint.process import Running, WorkerProcess
from kvstore.clock import Clock, SystemClock
from kvstore.disk.files import Files
from tests.support.processes import Forked

_PROGRAM = "from kvstore.checkpoint.worker import main; main()"


class ForkedWorker(WorkerProcess):
    """The worker that runs in a process of the fork server."""

    def __init__(self, task: Task) -> None:
        self.process = Forked(_PROGRAM, encode(task).decode(), text=False)

    def _communicate(self, seconds: float) -> tuple[bytes, bytes]:
        return self.process.communicate(timeout=seconds)


class Here:
    """A worker in this process."""

    def __init__(self, task: Task, files: Files | None = None, clock: Clock | None = None) -> None:
        self._task = task
        self._files = files or Files()
        self._clock = clock or SystemClock()

    def answer(self, _seconds: float) -> Answer:
        return worker.run(self._task, self._files, self._clock)

    def kill(self) -> None:
        pass


@contextmanager
def images_by(start: Callable[[Task], Running]) -> Iterator[None]:
    """While it lasts, stores of this process start their workers so."""
    defaults = Controller.__init__.__kwdefaults__
    with mock.patch.dict(defaults, start=start):
        yield


def images_of_this_process(clock: Clock | None = None) -> AbstractContextManager[None]:
    """While it lasts, images are made by this process, by the time of a clock."""
    return images_by(partial(Here, clock=clock))
