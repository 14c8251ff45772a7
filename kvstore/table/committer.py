"""Group commit: one thread for each bucket being written, which alone applies, syncs and commits.

* What waits when its turn comes is one group: each request is applied, the log is synced once, then all are answered.
* From the first change of a group until its sync the bucket's lock is held, so that nobody reads a row through the
  open transaction before it is acknowledged.
* If a group fails for other reasons than a request's content, the index is brought back to what the log holds. Requests
  are tried one by one if damage was found, so that only those that touch it fail; otherwise none is to blame, and all
  are answered alike.
* It ends if something acknowledged without waiting for the disk is lost, or the index can't be brought back.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import TypeAlias

import lmdb

from kvstore.clock import Clock
from kvstore.errors import CorruptData, LogFailed, StoreClosed, StoreError, StoreFull
from kvstore.index.index import Index
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.table.apply import Applied, WritePath
from kvstore.table.request import Request
from kvstore.table.results import AppendResult
from kvstore.table.sizes import bytes_of
from logformat.index_state import IndexState

Outcomes: TypeAlias = list[tuple[Request, Applied | StoreError]]

GROUP_REQUESTS_MAX = 1024
GROUP_BYTES_MAX = 64 << 20
GATHER_SECONDS = 0.0005
"""How long, at most, one more request is waited for while a group is smaller than the last one was."""
READER_CHECK_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class _Flush:
    """Asks for everything acknowledged so far to be committed; ``last`` ends the thread."""

    last: bool = False
    answer: Future[None] = field(default_factory=Future)


class Committer:
    """The thread that writes one bucket.

    Args:
        path: Used by this thread only, but for reads under ``lock``.
        log: The same log, for replays.
        lock: The bucket's lock.
        current: The table as the catalog has it now, other processes' edits included; raises if it was dropped.

    Attributes:
        rolled: Called when the log goes on in a new segment.
        growing: Held while the index grows: nobody of this process may read it meanwhile.
    """

    def __init__(
        self,
        path: WritePath,
        log: LogFiles,
        lock: threading.Lock,
        options: StoreOptions,
        clock: Clock,
        current: Callable[[], TableDefinition],
    ) -> None:
        self._path = path
        self._log = log
        self._lock = lock
        self._options = options
        self._clock = clock
        self._current = current
        self.rolled: Callable[[], None] = lambda: None
        self.growing: Callable[[], AbstractContextManager[None]] = nullcontext
        self._queue: queue.SimpleQueue[Request | _Flush] = queue.SimpleQueue()
        self._gate = threading.Lock()
        self._ended: StoreError | None = None
        self._in_hand: list[Request | _Flush] = []
        self._together = 1
        self._applied_first = self._applied_last = self._commit_seconds = 0.0
        self._readers_checked = clock.monotonic()
        self._thread = threading.Thread(target=self._run, name="kvstore-committer", daemon=True)
        self._thread.start()

    @property
    def index(self) -> Index:
        """The index; to be read under the bucket's lock while something is not committed."""
        return self._path.index

    @property
    def state(self) -> IndexState:
        """How far the index is, all that is acknowledged included; under the bucket's lock."""
        return self._path.state

    def check(self) -> None:
        """Refuse once the thread has ended.

        Raises:
            StoreError: Why it did.
        """
        if self._ended is not None:
            raise copy(self._ended)

    def submit(self, request: Request) -> Future[AppendResult]:
        """Have a request applied. Its answer comes; if it is an error, nothing of it was written."""
        self._enqueue(request)
        return request.answer

    def flush(self) -> None:
        """Return once everything acknowledged before is committed, and so seen by every process."""
        request = _Flush()
        self._enqueue(request)
        request.answer.result()

    def close(self) -> None:
        """Commit everything and end the thread.

        Raises:
            LogFailed: Something that was acknowledged without waiting for the disk is lost.
            StoreFull: The index can't be committed; the next open takes what it lacks from the log.
        """
        request = _Flush(last=True)
        try:
            self._enqueue(request)
            request.answer.result()
        except LogFailed:
            if self._options.durability != "sync":
                raise
        finally:
            self._thread.join()
            self._path.close()

    def _enqueue(self, item: Request | _Flush) -> None:
        with self._gate:
            self.check()
            self._queue.put(item)

    def _run(self) -> None:
        ended: StoreError = LogFailed("The bucket's committer ended on an error; reopen the store.")
        try:
            while self._turn():
                pass
            ended = StoreClosed("The store was closed; open it again.")
        except LogFailed as error:
            ended = error
        finally:
            # Whatever ended the thread, nobody may wait for it for ever, or for its transaction.
            with self._gate, self._lock:
                self._ended = ended
                self._path.index.abort()
            waiting: list[Request | _Flush] = [*self._in_hand]
            while not self._queue.empty():
                waiting.append(self._queue.get())
            for item in waiting:
                if not item.answer.done():
                    item.answer.set_exception(copy(ended))

    def _turn(self) -> bool:
        item = self._next()
        group: list[Request] = []
        waiting = 0
        while isinstance(item, Request):
            group.append(item)
            waiting += bytes_of(item.changes.rows)
            full = len(group) >= GROUP_REQUESTS_MAX or waiting >= GROUP_BYTES_MAX
            item = None if full else self._another(len(group))
        self._in_hand = [*group, item] if item is not None else [*group]
        if group:
            self._together = len(group)
            self._commit_group(group)
        if item is not None:
            return self._answer_flush(item)
        if self._due():
            self._commit_in_time()
        return True

    def _another(self, there: int) -> Request | _Flush | None:
        """What comes next of what waits; those answered last are likely to come again at once, so they are awaited."""
        try:
            return self._queue.get(timeout=GATHER_SECONDS if there < self._together else 0.0)
        except queue.Empty:
            return None

    def _next(self) -> Request | _Flush | None:
        deadline = self._deadline()
        try:
            if deadline is None:
                return self._queue.get()
            return self._queue.get(timeout=max(0.0, deadline - self._clock.monotonic()))
        except queue.Empty:
            return None

    # One group

    def _commit_group(self, group: Sequence[Request]) -> None:
        outcomes = None
        while outcomes is None:
            outcomes = self._try_group(group)
        if isinstance(outcomes, StoreError):
            failure = outcomes
            if len(group) > 1 and isinstance(failure, CorruptData):
                # Committed first, so that little has to be replayed after each that fails.
                with suppress(StoreFull):
                    self._commit()
                for request in group:
                    self._commit_group([request])
                return
            outcomes = [(request, failure) for request in group]
        for request, outcome in outcomes:
            if isinstance(outcome, StoreError):
                request.answer.set_exception(copy(outcome))
            else:
                request.answer.set_result(outcome.result)

    def _try_group(self, group: Sequence[Request]) -> Outcomes | StoreError | None:
        """The outcome of each request; or why all of them failed; or None if they are to be tried again.

        If it is not an outcome of each, none of them took effect.
        """
        with self._lock:
            try:
                self._prepare()
                return self._apply(group)
            except lmdb.MapFullError:
                return self._grow()
            except lmdb.Error as error:
                self._restore()
                return CorruptData("The index can't be used; run `kvstore check`.", reason=str(error))
            except StoreError as error:
                if isinstance(error, LogFailed) and self._path.log.has_lost:
                    raise
                self._restore()
                return error

    def _restore(self) -> None:
        """Bring the index back to what the log holds.

        Raises:
            LogFailed: It can't be; nothing more may be written until it was opened anew.
        """
        try:
            self._path.restore(self._log)
        except (StoreError, lmdb.Error) as error:
            raise LogFailed(
                "The index can't be brought back to what the log holds; reopen the store.", reason=str(error)
            ) from error

    def _grow(self) -> StoreError | None:
        failure = None
        self._path.index.abort()
        try:
            with self.growing():
                self._path.index.grow()
        except StoreFull as error:
            failure = error
        self._restore()
        return failure

    def _prepare(self) -> None:
        definition = self._current()
        if definition is not self._path.definition:
            self._path.use(definition)
        if self._path.log.is_full:
            self._path.roll()
            self.rolled()

    def _apply(self, group: Sequence[Request]) -> Outcomes:
        is_first = not self._path.index.writing
        outcomes: Outcomes = list(zip(group, self._path.apply_all(group), strict=True))
        batches = [done.batch for _, done in outcomes if isinstance(done, Applied) and done.batch is not None]
        if batches:
            self._path.log.append(batches, durable=self._options.durability == "sync")
        self._applied_last = self._clock.monotonic()
        if is_first:
            self._applied_first = self._applied_last
        return outcomes

    # Commits

    def _deadline(self) -> float | None:
        """When the index must be committed even if no request comes, in seconds of the clock."""
        if not self._path.index.writing:
            return None
        options = self._options
        # What takes long is done less often: a fifth of the time at most goes into commits.
        wait = max(options.commit_wait_ms / 1000, 4 * self._commit_seconds)
        idle = max(options.commit_idle_ms / 1000, self._commit_seconds / 2)
        if options.durability == "interval":
            wait = min(wait, options.sync_interval_ms / 1000)
        return min(self._applied_first + wait, self._applied_last + idle)

    def _due(self) -> bool:
        deadline = self._deadline()
        if deadline is None:
            return False
        return deadline <= self._clock.monotonic() or self._path.index.dirty_bytes() >= self._options.commit_bytes_max

    def _commit(self) -> None:
        with self._lock:
            if not self._path.index.writing:
                return
            began = self._clock.monotonic()
            try:
                self._path.commit()
            except lmdb.MapFullError:
                failure = self._grow()
                if failure is not None:
                    raise failure from None
                self._path.commit()
            except lmdb.Error as error:
                self._restore()
                raise StoreFull("The index can't be committed; free some space.", reason=str(error)) from error
            self._commit_seconds = self._clock.monotonic() - began

    def _commit_in_time(self) -> None:
        now = self._clock.monotonic()
        if now - self._readers_checked >= READER_CHECK_SECONDS:
            self._readers_checked = now
            self._path.index.release_dead_readers()
        try:
            self._commit()
        except StoreFull:
            # The log has everything, on disk or in memory; until there is space, other processes wait longer.
            self._applied_first = self._applied_last = self._clock.monotonic()

    def _answer_flush(self, request: _Flush) -> bool:
        try:
            self._commit()
        except StoreError as error:
            if self._path.log.has_lost or (request.last and self._path.log.durable != self._path.log.end):
                raise LogFailed("What was acknowledged last may be lost: it can't be made durable.") from error
            request.answer.set_exception(error)
        else:
            request.answer.set_result(None)
        return not request.last
