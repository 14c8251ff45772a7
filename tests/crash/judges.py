"""Processes that open states: as many as there are cores, at most two.

They live for a whole session, and see to it that a store that was closed keeps no descriptor and no thread.
"""

from __future__ import annotations

import gc
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from tests.crash.bugs import planted
from tests.crash.history import History
from tests.crash.places import materialised
from tests.crash.verdict import Finding, examine, prepare
from tests.crash.vfs import Contents
from tests.crash.workload import Script
from tests.support.processes import CONTEXT

PROCESSES_MAX = 2
Answer = TypeVar("Answer")


class Judges:
    """The processes; a context manager."""

    def __enter__(self) -> Self:
        count = min(PROCESSES_MAX, os.cpu_count() or 1)
        self._pool = ProcessPoolExecutor(count, CONTEXT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def submit(self, function: Callable[..., Answer], *arguments: object) -> Future[Answer]:
        """Have one of them call a function."""
        return self._pool.submit(function, *arguments)

    def court(self, script: Script, work: Path, bug: str | None = None) -> Court:
        """Where states of one script are judged."""
        return Court(self._pool, pickle.dumps(script), work, bug)


@dataclass(frozen=True, slots=True)
class Court:
    """See :meth:`Judges.court`."""

    _pool: ProcessPoolExecutor
    _script: bytes
    _work: Path
    _bug: str | None

    def submit(self, contents: Contents, *, thorough: bool) -> Future[Finding]:
        """Have a state opened and examined."""
        return self._pool.submit(_examine, self._script, contents, self._work, self._bug, thorough=thorough)


def _examine(script: bytes, contents: Contents, work: Path, bug: str | None, *, thorough: bool) -> Finding:
    history = _known(script)
    before = _in_use()
    with materialised(contents, work) as directory, planted(bug):
        finding = examine(directory, history, thorough=thorough)
    after = _in_use()
    if not finding.problem and after > before:
        gc.collect()
        after = _in_use()
        if after > before:
            return Finding(problem=f"{after - before} descriptors and threads are left", badness="UNREADABLE")
    return finding


def _in_use() -> int:
    return len(os.listdir("/proc/self/fd")) + threading.active_count()


@lru_cache(maxsize=4)
def _known(script: bytes) -> History:
    prepare()
    return History(pickle.loads(script))
