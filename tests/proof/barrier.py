"""Stops a thread between two steps of what the store does, wherever that thread was begun.

* Steps are calls of the store's own seams: files, log, index, catalog, maintenance. They are patched by tests only; the
  product has no switch.
* Only what is done while the barrier is armed counts, and it is armed for one thing at a time: so its n-th step is the
  same each time.
* Whether a thread waits for the one that is held is seen by what threads do, not by a clock: none runs, and the
  thread stands where it stood. Being wrong about it makes another order of events, never another verdict.
"""

from __future__ import annotations

import faulthandler
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from kvstore.bucket.commit_lock import CommitLock
from kvstore.bucket.handle import BucketHandle
from kvstore.bucket.read_gate import ReadGate
from kvstore.bucket.reading.overlay import OverlayReader
from kvstore.bucket.snapshots import snapshot
from kvstore.bucket.write_path import WritePath
from kvstore.checkpoint import worker
from kvstore.commit.coordinator import Commits
from kvstore.commit.staging import Staging
from kvstore.disk.environment import Environment
from kvstore.disk.files import Files
from kvstore.index.index import Index
from kvstore.log import retention
from kvstore.log.log import Log
from kvstore.log.published import EndPublisher
from kvstore.log.segments import LogFiles
from kvstore.memtable.memtable import Memtable
from kvstore.meta.journal import Journal

SEAMS: list[tuple[Any, str]] = [
    *((Files, name) for name in ("write", "sync", "truncate", "rename", "remove", "remove_tree", "make_directory")),
    *((Files, name) for name in ("create", "sync_directory")),
    *((Log, name) for name in ("append", "sync", "roll")),
    *((LogFiles, name) for name in ("bases", "segment")),
    (EndPublisher, "publish"),
    *((OverlayReader, name) for name in ("at", "close")),
    *((Index, name) for name in ("put", "commit", "abort")),
    *((Memtable, name) for name in ("get", "publish", "begin_merge", "merge_slice")),
    *((Environment, name) for name in ("begin_write", "sync", "show_last_commit", "drop_database")),
    *((WritePath, name) for name in ("apply_all", "restore")),
    *((Journal, name) for name in ("state", "append", "flush", "drop_before", "check_leads", "show_last_commit")),
    *((BucketHandle, name) for name in ("submit", "flush", "stop_writing", "value")),
    *((Staging, name) for name in ("write", "remove")),
    *((snapshot, name) for name in ("newest_valid", "read_back")),
    (retention, "remove_before"),
    (worker, "run"),
]
CONTEXTS: list[tuple[Any, str]] = [
    (Environment, "read"),
    (BucketHandle, "latest"),
    (BucketHandle, "snapshot"),
    (ReadGate, "reading"),
    (Journal, "still"),
    (Commits, "turn"),
    (CommitLock, "held"),
    (CommitLock, "wanting"),
]
"""Context managers: a step before they are entered, one inside and one before they are left."""
AFTER = {"Log.append", "Log.sync", "Index.commit", "Journal.append", "Files.rename", "WritePath.apply_all"}
"""Steps with another step after them: what was done is not published yet."""
HANG_SECONDS = 90
"""Nothing takes that long; a thread that waits for longer waits for ever."""
_SAMPLE_SECONDS = 0.002


class Hang(AssertionError):
    """A thread waits for ever; the message has the stacks of all threads."""


class Barrier:
    """See above; :meth:`installed` puts it in place."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._armed = self._held = self._open = False
        self._at: int | None = None
        self.seen: list[str] = []

    def arm(self, at: int | None) -> None:
        """Count steps from now on, and hold the thread that comes to the step ``at``; None holds no thread."""
        with self._change:
            self._armed, self._held, self._open, self._at, self.seen = True, False, False, at, []

    def disarm(self) -> None:
        """Count no more."""
        with self._change:
            self._armed = False

    def step(self, name: str) -> None:
        """A thread comes to a step."""
        with self._change:
            if not self._armed:
                return
            self.seen.append(name)
            if len(self.seen) - 1 != self._at:
                return
            self._armed, self._held = False, True
            self._change.notify_all()
            self._change.wait_for(lambda: self._open)

    @property
    def held(self) -> bool:
        return self._held

    def release(self) -> None:
        """Release the thread that is held."""
        with self._change:
            self._open = True
            self._change.notify_all()

    def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Return once a thread is held, or ``is_over``."""
        deadline = time.monotonic() + HANG_SECONDS
        while not self._held and not is_over():
            with self._change:
                self._change.wait(_SAMPLE_SECONDS)
            if time.monotonic() > deadline:
                raise Hang(stacks())

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Every seam is a step."""
        with ExitStack() as stack:
            for owner, name in SEAMS:
                stack.enter_context(patch.object(owner, name, self._around(owner, name)))
            for owner, name in CONTEXTS:
                stack.enter_context(patch.object(owner, name, self._around_context(owner, name)))
            yield

    def _around(self, owner: Any, name: str) -> Callable[..., Any]:
        original, step = getattr(owner, name), f"{owner.__name__.rpartition('.')[2]}.{name}"

        def call(*args: Any, **given: Any) -> Any:
            self.step(step)
            answer = original(*args, **given)
            if step in AFTER:
                self.step(f"after {step}")
            return answer

        return call

    def _around_context(self, owner: Any, name: str) -> Callable[..., Any]:
        original, step = getattr(owner, name), f"{owner.__name__}.{name}"

        @contextmanager
        def enter(*args: Any, **given: Any) -> Iterator[Any]:
            self.step(step)
            with original(*args, **given) as value:
                self.step(f"in {step}")
                yield value
                self.step(f"at the end of {step}")

        return enter


def stacks() -> str:
    """Where all threads of this process are."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()
