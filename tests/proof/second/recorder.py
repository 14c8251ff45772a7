"""Runs a job under the supervisor: in a process that was forked from one that has imported everything."""

from __future__ import annotations

import os
import signal
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from tests.proof.second import plants, workload
from tests.proof.second.calls import change_everything
from tests.proof.second.oracle import recover
from tests.proof.second.supervisor import Event, NotPossible, Supervisor, be_recorded, listener_of
from tests.proof.second.workload import HANG_SECONDS, MARKS, STORE
from tests.support.processes import Child, Pipe

JOBS: dict[str, Callable[..., None]] = {
    "run": workload.run,
    "recover": recover,
    "change everything": change_everything,
}
ERROR = "error"


class Order(NamedTuple):
    """What is to be recorded.

    Attributes:
        job: See ``JOBS``.
        directory: It has the store, if there is one.
        arguments: Of the job, after the directory.
        bug: Planted in the processes that are recorded; None for none.
    """

    job: str
    directory: Path
    arguments: tuple[Any, ...] = ()
    bug: str | None = None


def serve(pipe: Pipe) -> None:
    """Record what is ordered, until None is."""
    while (order := pipe.recv()) is not None:
        try:
            pipe.send(_record(order))
        except (NotPossible, AssertionError) as error:
            pipe.send(error)


def record(child: Child, order: Order) -> list[Event]:
    """What the job did.

    Raises:
        NotPossible: Nothing can be recorded on this machine.
        AssertionError: The job failed.
    """
    child.say(order)
    answer = child.hear()
    if isinstance(answer, Exception):
        raise answer
    events: list[Event] = answer
    return events


def _record(order: Order) -> list[Event]:
    (order.directory / STORE).mkdir(exist_ok=True)
    marks = order.directory / MARKS
    marks.touch()
    questions, answers = socket.socketpair()
    worker = os.fork()
    if not worker:
        _work(order, answers)
    answers.close()
    with questions:
        listener = listener_of(questions)
    try:
        supervisor = Supervisor(order.directory / STORE, marks)
        supervisor.serve(listener)
    finally:
        os.close(listener)
    _, status = os.waitpid(worker, 0)
    assert not status, (order.directory / ERROR).read_text()
    return supervisor.events


def _work(order: Order, answers: socket.socket) -> None:
    status = 1
    try:
        signal.alarm(HANG_SECONDS)
        os.dup2(os.open(order.directory / ERROR, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
        be_recorded(answers)
        with plants.planted(order.bug):
            JOBS[order.job](order.directory, *order.arguments)
        status = 0
    except BaseException:  # it ends here, and says why
        traceback.print_exc()
    finally:
        os._exit(status)
