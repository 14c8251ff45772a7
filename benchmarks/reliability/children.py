"""Work in a process of its own: what is damaged may end it, or keep it for ever, and that is an answer too."""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

SECONDS_MAX = 60
"""What takes longer hangs."""

How = Literal["done", "failed", "crash", "hang"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended.

    Attributes:
        value: What it returned, or what it failed with, as text.
        sent: What it sent before, as bytes.
    """

    how: How
    value: Any = None
    sent: bytes = b""


def run(work: Callable[[Callable[[bytes], None]], Any], *, kill_after: tuple[int, float] | None = None) -> Ended:
    """Run ``work(send)`` in a forked process.

    Args:
        kill_after: Kill it so many seconds after it sent so many bytes.
    """
    ours, theirs = os.pipe()
    answer_ours, answer_theirs = os.pipe()
    pid = os.fork()
    if not pid:
        _work(work, theirs, answer_theirs)
    os.close(theirs)
    os.close(answer_theirs)
    sent = b""
    if kill_after is not None:
        count, seconds = kill_after
        while len(sent) < count and (more := os.read(ours, 1)):
            sent += more
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(answer_ours, "rb") as answers:
        answered = answers.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with os.fdopen(ours, "rb") as file:
        sent += file.read()
    if answered:
        how, value = pickle.loads(answered)
        return Ended(how, value, sent)
    return Ended("hang" if status == -signal.SIGALRM else "crash", status, sent)


def _work(work: Callable[[Callable[[bytes], None]], Any], theirs: int, answers: int) -> None:
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        signal.alarm(SECONDS_MAX)
        try:
            answer = "done", work(lambda data: _write(theirs, data))
        except BaseException as error:  # Rust's panics are no Exception
            answer = "failed", f"{type(error).__name__}: {error}"[:300]
        _write(answers, pickle.dumps(answer))
    finally:
        os._exit(0)  # without a word to libraries whose threads may never end


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
