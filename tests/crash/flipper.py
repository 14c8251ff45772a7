"""Judges changed bits in a process of its own for some of them at a time.

What is damaged may end the process, or keep it for ever: then that is what is found, and the next process goes on.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from tests.crash.flips import BAD, Change, Judge, Outcome
from tests.crash.vfs import Contents

PROCESSES_MAX = 2
CHANGES_A_PROCESS = 1000
SECONDS_MAX = 60
"""A change that takes longer is a hang."""
FAILED = 70
"""Exit status of a process whose judge failed."""


class Flipper:
    """Client of the processes; a context manager."""

    def __init__(self, contents: Contents, work: Path) -> None:
        self._start = pickle.dumps((contents, work))

    def __enter__(self) -> Self:
        self._idle: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            process.communicate()

    def judge(self, changes: Sequence[Change]) -> Iterator[Outcome]:
        """What comes of each change alone."""
        parts = [changes[at : at + CHANGES_A_PROCESS] for at in range(0, len(changes), CHANGES_A_PROCESS)]
        while len(self._processes) < min(len(parts), PROCESSES_MAX, os.cpu_count() or 1):
            self._processes.append(_start(self._start))
            self._idle.put(self._processes[-1])
        with ThreadPoolExecutor(len(self._processes)) as pool:
            for outcomes in pool.map(self._judge, parts):
                yield from outcomes

    def _judge(self, changes: Sequence[Change]) -> list[Outcome]:
        process = self._idle.get()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(changes, process.stdin)
            process.stdin.flush()
            outcomes: list[Outcome] = pickle.load(process.stdout)
        finally:
            self._idle.put(process)
        return outcomes


def _start(start: bytes) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.flipper"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    process.stdin.write(start)
    process.stdin.flush()
    return process


def _serve() -> None:
    orders, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    contents, work = pickle.load(orders)
    judge = Judge(work / f"flips-{os.getpid()}", contents)
    while True:
        try:
            changes: list[Change] = pickle.load(orders)
        except EOFError:
            return
        pickle.dump(list(_judged(judge, changes)), answers)
        answers.flush()


def _judged(judge: Judge, changes: Sequence[Change]) -> Iterator[Outcome]:
    while changes:
        found = 0
        for outcome in _judged_by_a_child(judge, changes):
            yield outcome
            found += 1
        changes = changes[found:]


def _judged_by_a_child(judge: Judge, changes: Sequence[Change]) -> Iterator[Outcome]:
    """Outcomes up to the first bad one, or to what ends the child."""
    ours, childs = os.pipe()
    pid = os.fork()
    if not pid:
        _judge_in_child(judge, changes, childs)
    os.close(childs)
    found = 0
    with os.fdopen(ours, "rb") as answers:
        while True:
            try:
                yield pickle.load(answers)
            except (EOFError, pickle.UnpicklingError):
                break
            found += 1
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status:
        yield Outcome(changes[found], "crash", "it hangs" if status == -signal.SIGALRM else f"it ends with {status}")


def _judge_in_child(judge: Judge, changes: Sequence[Change], answers: int) -> None:
    """Judge and end, at the latest with what is bad: whatever it left open would be found by the next."""
    status = FAILED
    try:
        for change in changes:
            signal.alarm(SECONDS_MAX)
            outcome = judge.judge(change)
            os.write(answers, pickle.dumps(outcome))
            if outcome.verdict in BAD:
                break
        status = 0
    except BaseException:  # it ends here, and says why
        traceback.print_exc()
    finally:
        os._exit(status)


if __name__ == "__main__":
    _serve()
