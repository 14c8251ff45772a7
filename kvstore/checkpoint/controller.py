"""Decides when the catalog gets an image, starts a worker that writes it, and removes old segments and images.

* In the writing process only a thread waits: the work is done in another process.
* Segments are dropped only up to a verified image, and only if a newer image was read back: if one of the two is
  damaged, the other and the journal are enough.
* An answer of another epoch is ignored. A failure is reported, and the checkpoint is tried again later.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from kvstore.checkpoint import worker
from kvstore.checkpoint.messages import Done, Refused, Task
from kvstore.checkpoint.process import Running, WorkerProcess, error_of
from kvstore.checkpoint.room import obstacle
from kvstore.clock import Clock
from kvstore.disk.files import Files, refusals
from kvstore.errors import StoreClosed, StoreError, StoreLocked, Unavailable
from kvstore.meta import image
from kvstore.meta.journal import Journal
from kvstore.options import EDITS_PER_JOURNAL
from kvstore.process.calls import uninterrupted
from logformat import paths
from logformat.ids import Epoch, Txid

WORKER_SECONDS = 600
REST_SECONDS = 60.0
"""Time between a failed checkpoint and the next automatic one."""
CLOSE_SECONDS = 10.0
"""How long a close waits for a running checkpoint before it ends the worker."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Result of a checkpoint.

    Attributes:
        txid: The last edit in the newest image.
        previous: The last edit in the image before it; None if no earlier image is valid.
        bytes: Size of the newest image.
        written: Whether this checkpoint wrote it; False if the catalog had not changed since.
        dropped_edits: Number of edits dropped from the journal.
        seconds: Duration of the checkpoint.
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
        writes: Whether this process writes; one that only reads begins no automatic checkpoints.
        edits_per_image: Number of edits after which one is due: as many as a segment of the journal has, which can be
            dropped only when an image has all of them.
        shipped: Returns the last edit that each replica has, before segments are dropped: the edits after it must stay.
        start: Starts a worker.
        succeeded: Called after each checkpoint with the monotonic time of its beginning, in seconds.

    Attributes:
        start: The function given as ``start``.
        at_work: Whether an automatic checkpoint is being made.
        failure: Why the last automatic checkpoint failed; None if it succeeded.
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
        shipped: Callable[[], Iterable[Txid]] = tuple,
        start: Callable[[Task], Running] = WorkerProcess,
        succeeded: Callable[[float], object] = lambda _: None,
    ) -> None:
        self._store = store
        self._store_id = store_id
        self._images = store / paths.IMAGES
        self._journal = journal
        self._files = files
        self._clock = clock
        self._writes = writes
        self._edits_per_image = edits_per_image
        self._shipped = shipped
        self._succeeded = succeeded
        self.start = start
        self._newest = Txid(0)
        self._rested = 0.0
        self._mutex = threading.Lock()
        self._working = threading.Lock()
        self._running: Running | None = None
        self._thread: threading.Thread | None = None
        self.at_work = self._closing = self._over = False
        self.failure: StoreError | None = None

    def appended(self, txid: Txid) -> None:
        """Note that this process added an edit, and begin a checkpoint in its own thread if one is due; never waits."""
        if txid - self._newest < self._edits_per_image or self.at_work:
            return
        with self._mutex:
            if self.at_work or self._closing or not self._writes() or self._clock.monotonic() < self._rested:
                return
            try:
                self._newest = next(iter(image.txids(self._images)), Txid(0))  # other processes make some too
                if txid - self._newest >= self._edits_per_image:
                    thread = threading.Thread(target=self._run, name="kvstore-checkpoint", daemon=True)
                    thread.start()
                    self._thread, self.at_work = thread, True
            except (OSError, RuntimeError) as error:
                # The directory can't be read or no thread begins: the edit was added nevertheless.
                self._fail(Unavailable("A checkpoint of the catalog can't begin.", reason=str(error)))

    @uninterrupted
    def checkpoint(self) -> Checkpoint:
        """Write an image of the current catalog, and remove what the two newest images make unnecessary.

        Raises:
            StoreLocked: Another process is writing an image.
            Unavailable: There is too little memory, or the worker ended without an answer.
            StoreFull, LogFailed: The disk is full or failed.
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
            if (reason := obstacle(self._store)) is not None:
                raise reason
            done = self._done()
            self._files.verify()  # the image belongs to this store
            dropped = 0
            if done.previous is not None:
                limit = min([done.previous, *self._shipped()])
                dropped = self._journal.drop_before(limit)
                self._remove_old(done.txid, done.previous)
            self.failure = None
            self._succeeded(began)
            took = self._clock.monotonic() - began
            return Checkpoint(done.txid, done.previous, done.bytes, done.written, dropped, took)

    def close(self) -> None:
        """Wait up to ``CLOSE_SECONDS`` for a running checkpoint, then end its worker; no new one begins."""
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
            pass  # a call of `checkpoint` in another thread has ended

    def _run(self) -> None:
        try:
            self._checkpoint()
        except StoreLocked:
            self._fail(None)
        except StoreError as error:
            self._fail(error)
        finally:
            with self._mutex:
                self.at_work = False

    def _fail(self, reason: StoreError | None) -> None:
        self.failure = reason
        self._rested = self._clock.monotonic() + REST_SECONDS

    def _done(self) -> Done:
        """Have a worker write an image."""
        self._journal.flush()  # an image has no edit that a power cut could undo
        held = self._files.held
        epoch = Epoch(worker.highest_epoch(self._images) + 1)
        task = Task(
            epoch=epoch,
            store=str(self._store),
            store_id=self._store_id,
            txid=self._journal.state().txid,
            seconds=WORKER_SECONDS,
            directory=None if held is None else held.identity,
            catalog=None if held is None else held.identity_of(self._store / paths.JOURNAL.parent),
        )
        with self._mutex:
            if self._over:
                raise self._closed()
            running = self._running = self.start(task)
        try:
            answer = running.answer(WORKER_SECONDS)
        except Unavailable as error:
            if self._over:  # the close has ended it
                raise self._closed() from error
            raise
        finally:
            with self._mutex:
                self._running = None
        if answer.epoch != epoch:
            raise Unavailable("The worker of another checkpoint answered; try again.", epoch=answer.epoch)
        if isinstance(answer, Refused):
            self._files.verify()  # a replaced directory may be the reason
            raise error_of(answer)
        return answer

    def _closed(self) -> StoreClosed:
        return StoreClosed("The store was closed; open it again.", path=self._store)

    def _remove_old(self, newest: Txid, previous: Txid) -> None:
        """Remove the images before the newest one, but not the previous one, which replaces it if it is damaged."""
        for txid in image.txids(self._images):
            # Another controller may already have made newer ones.
            if txid < newest and txid != previous:
                with suppress(FileNotFoundError):
                    self._files.remove(paths.image_file(self._images, txid))
