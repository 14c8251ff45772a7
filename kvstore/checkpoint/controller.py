"""Decides when the catalog gets an image, has a worker make it, and lets go what is not needed any more.

* In the process that writes there is a thread that waits, and nothing else: the work is done elsewhere.
* Segments go only at or before an image that was found right, with a newer one behind it that was read back: should
  one be damaged, the other and the journal are enough.
* What an answer of another epoch says does not count. What fails is said, and tried again later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from uuid import UUID

from kvstore.calls import uninterrupted
from kvstore.checkpoint import worker
from kvstore.checkpoint.messages import Done, Refused, Task
from kvstore.checkpoint.process import Running, WorkerProcess, error_of
from kvstore.checkpoint.room import obstacle
from kvstore.clock import Clock
from kvstore.errors import StoreClosed, StoreError, StoreFull, StoreLocked, Unavailable
from kvstore.files import Files, refusals
from kvstore.meta import image
from kvstore.meta.journal import Journal
from kvstore.options import EDITS_PER_JOURNAL
from logformat import paths
from logformat.ids import Epoch, Txid

WORKER_SECONDS = 600
REST_SECONDS = 60.0
"""Between a checkpoint that failed and the next that is tried of its own accord."""
CLOSE_SECONDS = 10.0
"""Who closes the store waits so long for a checkpoint under way; then its worker is ended."""


class Follower(Protocol):
    """Somebody elsewhere who takes edits from the journal."""

    def replayed(self) -> Txid:
        """The last edit it has; those behind it must stay."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a checkpoint did.

    Attributes:
        txid: The last edit in the newest image.
        previous: The last edit in the image before it; None if there is none that is right.
        bytes: Size of the newest image.
        written: Whether it was made now; else nothing had changed since it was.
        dropped_edits: Edits that went from the journal.
        seconds: How long it took.
    """

    txid: Txid
    previous: Txid | None
    bytes: int
    written: bool
    dropped_edits: int
    seconds: float


class Controller:
    """Checkpoints of one store, in a process that has it open.

    Args:
        writes: Whether this process writes; one that only reads begins none of its own accord.
        edits_per_image: One is due after so many edits: as many as a segment of the journal has, which can only go once
            an image has them all.
        followers: Who else needs the journal, asked before something of it goes.
        start: Starts a worker.
        elsewhere: Starts one on another machine, where there is too little memory here; None if there is none.

    Attributes:
        elsewhere: As it was given.
        failure: Why the last one that was begun of its own accord came to no end; None if it did.
    """

    def __init__(
        self,
        store: Path,
        store_id: UUID,
        journal: Journal,
        files: Files,
        clock: Clock,
        *,
        writes: Callable[[], bool] = lambda: True,
        edits_per_image: int = EDITS_PER_JOURNAL,
        followers: Callable[[], Sequence[Follower]] = tuple,
        start: Callable[[Task], Running] = WorkerProcess,
        elsewhere: Callable[[Task], Running | None] = lambda _: None,
    ) -> None:
        self._store = store
        self._store_id = store_id
        self._images = store / paths.IMAGES
        self._journal = journal
        self._files = files
        self._clock = clock
        self._writes = writes
        self._edits_per_image = edits_per_image
        self._followers = followers
        self._start = start
        self.elsewhere = elsewhere
        self._newest = Txid(0)
        self._rested = 0.0
        self._mutex = threading.Lock()
        self._working = threading.Lock()
        self._running: Running | None = None
        self._thread: threading.Thread | None = None
        self._at_work = self._closing = self._over = False
        self.failure: StoreError | None = None

    def appended(self, txid: Txid) -> None:
        """An edit was added here: begin a checkpoint in a thread of its own if one is due. It never waits."""
        if txid - self._newest < self._edits_per_image or self._at_work:
            return
        with self._mutex:
            if self._at_work or self._closing or not self._writes() or self._clock.monotonic() < self._rested:
                return
            try:
                self._newest = next(iter(image.txids(self._images)), Txid(0))  # other processes make some too
                if txid - self._newest >= self._edits_per_image:
                    thread = threading.Thread(target=self._run, name="kvstore-checkpoint", daemon=True)
                    thread.start()
                    self._thread, self._at_work = thread, True
            except (OSError, RuntimeError) as error:
                # No directory can be read, or no thread begun: the edit is there all the same.
                self._fail(Unavailable("A checkpoint of the catalog can't be begun.", reason=str(error)))

    @uninterrupted
    def checkpoint(self) -> Checkpoint:
        """Make an image of the catalog as it is now, and let go what two images make superfluous.

        Raises:
            StoreLocked: Another process is about to.
            Unavailable: There is too little memory; or the worker ended without an answer.
            StoreFull, LogFailed: The disk refuses.
            CorruptImage, UnsupportedVersion: The catalog can't be loaded.
            StoreClosed: The store was closed.
        """
        if self._closing:
            raise self._closed()
        return self._checkpoint()

    def _checkpoint(self) -> Checkpoint:
        with self._working, refusals(self._images):
            self._files.verify()
            began = self._clock.monotonic()
            reason = obstacle(self._store)
            if isinstance(reason, StoreFull):
                raise reason
            done = self._done(reason)
            self._files.verify()  # the image is this store's
            dropped = 0
            if done.previous is not None:
                limit = min([done.previous, *(follower.replayed() for follower in self._followers())])
                dropped = self._journal.drop_before(limit)
                self._remove_old(done.txid, done.previous)
            self.failure = None
            took = self._clock.monotonic() - began
            return Checkpoint(done.txid, done.previous, done.bytes, done.written, dropped, took)

    def close(self) -> None:
        """Wait for what is under way, for a while; then end it. Nothing is begun any more."""
        with self._mutex:
            self._closing = True
        thread = self._thread
        if thread is not None:
            thread.join(CLOSE_SECONDS)
        with self._mutex:
            self._over = True
            if self._running is not None:
                self._running.kill()
        if thread is not None:
            thread.join()
        with self._working:
            pass  # whoever asked for one knows how it ended

    def _run(self) -> None:
        try:
            self._checkpoint()
        except StoreLocked:
            self._fail(None)
        except StoreError as error:
            self._fail(error)
        finally:
            with self._mutex:
                self._at_work = False

    def _fail(self, reason: StoreError | None) -> None:
        self.failure = reason
        self._rested = self._clock.monotonic() + REST_SECONDS

    def _done(self, reason: StoreError | None) -> Done:
        """Have an image made: elsewhere, if there is a reason why it can't be here."""
        self._journal.flush()  # an image has no edit that a power cut could undo
        epoch = Epoch(worker.highest_epoch(self._images) + 1)
        task = Task(
            epoch=epoch,
            store=str(self._store),
            store_id=self._store_id,
            txid=self._journal.state().txid,
            seconds=WORKER_SECONDS,
            directory=None if self._files.place is None else self._files.place.identity,
        )
        with self._mutex:
            if self._over:
                raise self._closed()
            running = self._running = self._started(task, reason)
        try:
            answer = running.answer(WORKER_SECONDS)
        finally:
            with self._mutex:
                self._running = None
        if answer.epoch != epoch:
            raise Unavailable("The worker of another checkpoint answered; try again.", epoch=answer.epoch)
        if isinstance(answer, Refused):
            self._files.verify()  # it may be why
            raise error_of(answer)
        return answer

    def _started(self, task: Task, reason: StoreError | None) -> Running:
        if reason is None:
            return self._start(task)
        running = self.elsewhere(task)
        if running is None:
            raise reason
        return running

    def _closed(self) -> StoreClosed:
        return StoreClosed("The store was closed; open it again.", path=self._store)

    def _remove_old(self, newest: Txid, previous: Txid) -> None:
        """Remove images that came before the newest, but for the one that stands in for it."""
        for txid in image.txids(self._images):
            # Newer ones are of another controller, which was faster.
            if txid < newest and txid != previous:
                with suppress(FileNotFoundError):
                    self._files.remove(paths.image_file(self._images, txid))
