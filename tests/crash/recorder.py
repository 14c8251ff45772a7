"""Runs jobs in traced processes: a process of its own, for ptrace and waiting for children are not shared with tests.

It has imported everything, so that each job costs a fork. Its children are alone with one thread when they begin.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from tests.crash.bugs import planted
from tests.crash.jobs import JOBS
from tests.crash.trace import UNDISTURBED, Plan, Trace, TracingRefused, follow, stop_to_be_traced
from tests.crash.transfers import TransferScript
from tests.crash.workload import Script

FAILED = 70
"""Exit status of a job that ended on an error."""
SECONDS_MAX = 600
"""A job that takes longer hangs, and is ended by SIGALRM."""


@dataclass(frozen=True, slots=True)
class Order:
    """A job to be run.

    Attributes:
        job: See ``jobs.JOBS``.
        directory: Where; calls on what is below are recorded.
        bug: Planted in the process; see ``bugs.BUGS``.
        traced: Otherwise the job only runs, and the trace is empty.
    """

    job: str
    directory: Path
    script: Script | TransferScript
    plan: Plan = UNDISTURBED
    bug: str | None = None
    traced: bool = True


class Recorder:
    """Client of the process that runs jobs; a context manager."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.recorder"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def run(self, order: Order) -> Trace:
        """What the job did.

        Raises:
            TracingRefused: This machine can't trace.
            AssertionError: The job ended on an error that is none of its own.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump(order, self._process.stdin)
        self._process.stdin.flush()
        answer = pickle.load(self._process.stdout)
        if isinstance(answer, Exception):
            raise answer
        trace: Trace = answer
        if trace.status == FAILED:
            raise AssertionError(Path(f"{order.directory}.error").read_text())
        return trace


def _serve() -> None:
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    pa.array([0])  # imports pandas where it is there: once, not in each process that is forked
    while True:
        try:
            order: Order = pickle.load(orders)
        except EOFError:
            return
        answer: Trace | TracingRefused
        pid = os.fork()
        if not pid:
            _child(order)
        try:
            if order.traced:
                answer = follow(pid, str(order.directory), order.plan)
            else:
                answer = Trace(status=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        except TracingRefused as error:
            answer = error
        pickle.dump(answer, answers)
        answers.flush()


def _child(order: Order) -> None:
    status = FAILED
    signal.alarm(SECONDS_MAX)
    try:
        if order.traced:
            stop_to_be_traced()
        with planted(order.bug):
            status = JOBS[order.job](order.directory, order.script)
    except BaseException:  # it ends here, and says why
        with open(f"{order.directory}.error", "w") as file:
            traceback.print_exc(file=file)
    finally:
        os._exit(status)


if __name__ == "__main__":
    _serve()
