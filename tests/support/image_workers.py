"""Images of the catalog are made by forked processes: a Python of its own, as the store starts it, takes 0.4 s."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

from kvstore.checkpoint.controller import Controller
from kvstore.checkpoint.messages import Task, encode
from kvstore.checkpoint.process import Running, WorkerProcess
from tests.support.processes import Forked

_PROGRAM = "from kvstore.checkpoint.worker import main; main()"


class ForkedWorker(WorkerProcess):
    """The worker that runs in a process of the fork server."""

    def __init__(self, task: Task) -> None:
        self.process = Forked(_PROGRAM, encode(task).decode(), text=False)

    def _communicate(self, seconds: float) -> tuple[bytes, bytes]:
        return self.process.communicate(timeout=seconds)


@contextmanager
def images_by(start: Callable[[Task], Running]) -> Iterator[None]:
    """While it lasts, stores of this process start their workers so."""
    defaults = Controller.__init__.__kwdefaults__
    with mock.patch.dict(defaults, start=start):
        yield
