"""The worker's process: spawned, because LMDB does not survive a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from kvstore import errors
from kvstore.checkpoint.messages import Answer, Refused, Task, decode_answer, encode
from kvstore.errors import StoreError, Unavailable
from kvstore.process.calls import check_caller

WORKER_MODULE = "kvstore.checkpoint.worker"
"""Module that the process runs."""
_REASON_LETTERS = 500
_LOOK_SECONDS = 0.25
_NICENESS = 10
"""Lower priority of the worker: it uses the time that other processes leave."""


class Running(Protocol):
    """A running worker."""

    def answer(self, seconds: float) -> Answer:
        """Wait for the worker's answer.

        Raises:
            Unavailable: The worker ended without an answer, or took longer and was ended.
        """

    def kill(self) -> None:
        """End the worker."""


class WorkerProcess:
    """A worker in its own process, which the constructor starts.

    Attributes:
        process: The process.

    Raises:
        Unavailable: The system can't start the process.
    """

    def __init__(self, task: Task) -> None:
        self._epoch = task.epoch
        here = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
        try:
            self.process = subprocess.Popen(
                # -P: no file in the current directory replaces a module.
                [sys.executable, "-P", "-m", WORKER_MODULE, encode(task).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C ends only the controller
            )
        except OSError as error:
            raise Unavailable("The worker of a checkpoint can't be started.", reason=error.strerror) from error
        with suppress(OSError):  # it may have ended
            os.setpriority(os.PRIO_PROCESS, self.process.pid, _NICENESS)

    def answer(self, seconds: float) -> Answer:
        """Wait for the worker's answer; see :meth:`Running.answer`."""
        try:
            out, errors_out = self._communicate(seconds)
        except BaseException as error:
            self.kill()
            self.process.communicate()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise Unavailable("The worker of a checkpoint took too long, and was ended.", seconds=seconds) from error
        try:
            return decode_answer(out)
        except msgspec.DecodeError as error:
            raise Unavailable(
                "The worker of a checkpoint ended without an answer; try again.",
                status=self.process.returncode,
                reason=errors_out.decode(errors="replace").strip()[-_REASON_LETTERS:],
            ) from error

    def _communicate(self, seconds: float) -> tuple[bytes, bytes]:
        left = seconds
        while True:
            try:
                return self.process.communicate(timeout=min(left, _LOOK_SECONDS))
            except subprocess.TimeoutExpired:
                left -= _LOOK_SECONDS
                if left <= 0:
                    raise
                check_caller()

    def kill(self) -> None:
        """End the worker."""
        self.process.kill()


def error_of(refused: Refused) -> StoreError:
    """The error of a worker, as an exception of this process."""
    # RowsRefused holds more than facts.
    is_ours = refused.error in errors.__all__ and refused.error != errors.RowsRefused.__name__
    kind = getattr(errors, refused.error) if is_ours else StoreError
    return kind(refused.message, **refused.where)
