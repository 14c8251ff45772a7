"""Group commit: one thread for each bucket being written, which applies, syncs and commits.

Theory of operation. Callers put requests into a queue and wait for their answers. The thread takes what waits as one
group: it applies each request to the index's open LMDB transaction, appends their batches to the log, syncs the log
once, and answers all of them. The log is the truth from that moment on. The transaction stays open over many groups; it
is committed by time, by size, and by a flush, and whatever it loses is replayed from the log.

* From the first change of a group until its sync the bucket's lock is held, so no reader sees a row through the open
  transaction before it is acknowledged.
* A caller that finds the bucket idle, and the transaction open, does its few rows itself: two switches between threads
  cost more than the rows. It has the turn meanwhile (:mod:`kvstore.bucket.turn`). The thread alone begins, commits and
  aborts the transaction, and does whatever else there is to do.
* A group whose requests fail for a reason other than their own content leaves the index as the log has it. If damage
  was found, requests are tried one by one, so that only those that touch it fail; otherwise all get the same error.
* A part of a commit over several buckets is applied, and then the bucket waits until the commit is decided. A decided
  batch that the bucket lacks is appended before anything else.
* The thread ends if something acknowledged without waiting for the disk is lost, if the index can't be brought back to
  what the log holds, or if the store's directory was replaced.
"""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

import lmdb

from kvstore.bucket.conditional import apply_in_order
from kvstore.bucket.context import BucketContext
from kvstore.bucket.read_gate import ReadGate
from kvstore.bucket.turn import Turn
from kvstore.bucket.write_path import Applied, WritePath
from kvstore.disk.address_space import shortage
from kvstore.disk.lmdb_files import write_refusal
from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    LogFailed,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReplaced,
    WriterRejected,
)
from kvstore.log.segments import LogFiles
from kvstore.meta.table_catalog import Now
from kvstore.process.calls import Answer, answer_of
from kvstore.process.signals import undisturbed
from kvstore.request.preparation import in_present_names
from kvstore.request.request import ConditionalRequest, Prepared, Request, RowRequest
from kvstore.request.results import AppendResult
from kvstore.request.small import SmallConditional, SmallRequest, Submitted
from logformat.log.index_state import IndexState

Outcomes: TypeAlias = list[tuple[Submitted, Applied | StoreError | None]]

GROUP_REQUESTS_MAX = 1024
GROUP_BYTES_MAX = 64 << 20
GATHER_SECONDS = 0.002
"""How long the thread waits for one more request while a group is smaller than the last one."""
READER_CHECK_SECONDS = 60.0
STACK_FRAMES = 150
"""Calls that a write in its caller's thread may take; the committer's thread has a stack of its own."""


@dataclass(frozen=True, slots=True)
class _Flush:
    """A request to commit everything acknowledged so far; with ``settle``, to complete open commits first.

    ``last`` ends the thread.
    """

    settle: bool = False
    last: bool = False
    answer: Future[None] = field(default_factory=Answer)


T = TypeVar("T")
Item: TypeAlias = Submitted | Prepared | _Flush
_FEW_ROWS = SmallRequest, SmallConditional


class Committer:
    """The thread that writes one bucket.

    Args:
        path: Used in a turn only, the committer's or a caller's, but for reads under ``lock``.
        lock: The bucket's lock.
        gate: Held while the index grows: no transaction of this process may be open meanwhile.
        changed: Called when the log continues in a new segment, or the table has another definition.

    Attributes:
        index: The index; reads need the bucket's lock while changes are uncommitted.
        all_committed: Whether the last commit of the index has everything acknowledged, so that a read needs no lock.
        durable_state: State of the bucket with every change that is acknowledged and durable: what others see.
    """

    def __init__(
        self,
        path: WritePath,
        context: BucketContext,
        lock: threading.Lock,
        gate: ReadGate,
        changed: Callable[[], None],
    ) -> None:
        self._path = path
        self.index = path.index
        self._log = LogFiles(context.place.log, context.place.identity, context.files)
        self._context = context
        self._catalog = context.catalog
        self._turn = Turn(lock)
        self._options = context.options
        self._clock = context.clock
        self._meter = context.meter
        self._index_gate = gate
        self._changed = changed
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()  # None wakes the thread
        self._gate = threading.Lock()
        self.all_committed = not path.index.writing
        self.durable_state = path.state
        self._ended: StoreError | None = None
        self._in_hand: list[Item] = []
        self._submitted = self._settled = 0
        self._broken = LogFailed("A write of the bucket ended on an error; reopen the store.")
        self._prepared: Now | None = None
        self._together = 1
        self._applied_first = self._applied_last = 0.0
        self._plan(0.0)
        self._readers_checked = context.clock.monotonic()
        self._thread = threading.Thread(target=self._run, name="kvstore-committer", daemon=True)
        self._thread.start()

    @property
    def state(self) -> IndexState:
        """State of the index with every acknowledged change; needs the bucket's lock."""
        return self._path.state

    @property
    def queued(self) -> int:
        """Number of waiting requests, without those being applied."""
        return self._queue.qsize()

    @property
    def waiting(self) -> int:
        """Number of requests that wait or are being applied."""
        return len(self._in_hand) + self.queued + self._turn.is_callers

    def check(self) -> None:
        """Refuse once the thread has ended.

        Raises:
            StoreError: Why it did.
        """
        if self._ended is not None:
            raise copy(self._ended)

    def submit(self, item: Item, *, here: bool = False) -> None:
        """Submit a request, or a part of a commit that the caller has to decide.

        If its answer is an error, nothing of it was written.

        Args:
            here: Whether the caller's thread may do the work, if the bucket is idle: of a request of few rows, whose
                caller waits for nothing else.
        """
        if here and isinstance(item, _FEW_ROWS) and undisturbed(self._done_here, item):
            return
        with self._gate:
            if self._ended is not None:
                raise copy(self._ended)
            self._put(item)

    def _put(self, item: Item) -> None:
        self._submitted += 1
        self._queue.put(item)

    def flush(self) -> None:
        """Commit everything acknowledged before, so that every process sees it."""
        if self.all_committed:
            return  # each scan flushes, and two changes of threads take as long as a short scan
        request = _Flush()
        self.submit(request)
        answer_of(request.answer)

    def settle(self) -> None:
        """Append the batches of open commits that the bucket lacks, and commit them.

        Raises:
            CorruptData, StoreFull, LogFailed: It can't be; until it is, nothing else is written here.
        """
        request = _Flush(settle=True)
        self.submit(request)
        answer_of(request.answer)

    def close(self) -> None:
        """Commit everything and end the thread.

        Raises:
            LogFailed: Something that was acknowledged without waiting for the disk is lost.
            StoreFull: The index can't be committed; the next open takes what it lacks from the log.
        """
        request = _Flush(last=True)
        try:
            with self._gate:
                self.check()
                self._put(request)
                self._ended = StoreClosed("The store was closed; open it again.")  # for later callers
            answer_of(request.answer)
        except LogFailed:
            if self._options.durability != "sync":
                raise
        except StoreReplaced:
            self._path.log.sync()  # makes acknowledged batches durable, wherever the directory is now
        finally:
            self._thread.join()
            self._path.close()

    def _run(self) -> None:
        ended: StoreError = self._broken
        try:
            while self._take_turn():
                pass
            ended = StoreClosed("The store was closed; open it again.")
        except (LogFailed, StoreReplaced) as error:
            ended = error
        finally:
            # However the thread ended, no caller may wait for ever for it or for its transaction.
            with self._gate, self._turn.taken():
                self._ended, self.all_committed, self._turn.left = ended, False, False
                self._path.index.abort()
            waiting: list[Item] = [*self._in_hand]
            while not self._queue.empty():
                waiting += filter(None, [self._queue.get()])
            for item in waiting:
                for answer in (item.ready, item.answer) if isinstance(item, Prepared) else (item.answer,):
                    if not answer.done():
                        answer.set_exception(copy(ended))

    def _take_turn(self) -> bool:
        item = self._next()
        group: list[Submitted] = []
        waiting = 0
        while isinstance(item, (Request, SmallRequest, RowRequest, ConditionalRequest)):
            group.append(item)
            waiting += item.size
            full = len(group) >= GROUP_REQUESTS_MAX or waiting >= GROUP_BYTES_MAX
            item = None if full else self._another(len(group))
        self._in_hand = [*group, item] if item is not None else [*group]
        if group:
            self._together = len(group)
            self._commit_group(group)
        goes_on = True
        if isinstance(item, _Flush):
            self._settled += 1
            goes_on = self._answer_flush(item)
        if isinstance(item, Prepared):
            self._take_part(item)
            self._settled += 1
        if self._turn.left:
            with self._turn_taken():
                pass
        if goes_on and self._due():
            self._commit_in_time()
        return goes_on

    def _another(self, there: int) -> Item | None:
        """The next item, if one comes soon: callers that were just answered often send again at once."""
        try:
            if there < self._together:
                return self._queue.get(timeout=GATHER_SECONDS)
            return None if self._queue.empty() else self._queue.get_nowait()
        except queue.Empty:
            return None

    def _next(self) -> Item | None:
        deadline = self._deadline()
        try:
            if deadline is None:
                return self._queue.get()
            return self._queue.get(timeout=max(0.0, deadline - self._clock.monotonic()))
        except queue.Empty:
            return None

    # One group

    def _commit_group(self, group: Sequence[Submitted]) -> None:
        began = self._meter.append.now()
        outcomes = None
        while outcomes is None:
            outcomes = self._attempt(partial(self._apply, group))
        if isinstance(outcomes, StoreError):
            failure = outcomes
            if len(group) > 1 and isinstance(failure, CorruptData):
                # Committed first, so that each failing request causes only a short replay.
                with suppress(StoreFull):
                    self._commit()
                for request in group:
                    self._commit_group([request])
                return
            outcomes = [(request, failure) for request in group]
        self._settled += len(group)  # first: a caller that has its answer may find the bucket idle
        self._answer(outcomes)
        self._meter.append.since(began)

    def _answer(self, outcomes: Outcomes) -> None:
        for request, outcome in outcomes:
            if isinstance(outcome, StoreError):
                request.answer.set_exception(copy(outcome))
            else:
                answer: Any = request.answer
                answer.set_result(None if outcome is None else outcome.result)

    # One request in its caller's thread

    def _done_here(self, request: Submitted) -> bool:
        """Do what the thread does with a group of one request; False if the thread has to."""
        # After a group of several, callers are likely to send together again.
        if self._together > 1 or _stack_is_short() or not self._turn.take():
            return False
        turn = self._turn
        try:
            if not self._is_idle():
                return False
            began = self._meter.append.now()
            turn.left = True  # from here on, whatever happens
            outcomes = self._applied([request])
            turn.end = self._broken
            self._append_all(outcomes)
            turn.left, turn.end = False, None
        except (lmdb.Error, StoreError) as error:
            turn.end = error if isinstance(error, StoreError) and self._is_end(error) else None
            if turn.end is not None or isinstance(error, lmdb.Error):
                return False  # the thread ends, or tries again
            outcomes = [(request, error)]
        finally:
            if turn.left:
                self._queue.put(None)
            turn.give_back()
        self._answer(outcomes)
        self._meter.append.since(began)
        return True

    def _is_idle(self) -> bool:
        """Whether a request can be applied next, and the thread has nothing to do before."""
        # A transaction of LMDB is begun and ended by one thread, the committer's; between, others may use it.
        if self._settled != self._submitted or self._ended is not None or not self._path.index.writing or self._due():
            return False
        try:
            now = self._catalog.now()
        except StoreError:
            return False
        return now is self._prepared and not now.has_replicas and not self._path.log.is_full

    @contextmanager
    def _turn_taken(self) -> Iterator[None]:
        """The thread's turn, with the index as the log has it.

        Raises:
            StoreError: Nothing more can be written to the bucket.
        """
        with self._turn.taken():
            if self._turn.left:
                if self._turn.end is not None:
                    raise self._turn.end
                self._restore()
                self._turn.left = False
            yield

    def _is_end(self, error: StoreError) -> bool:
        """Whether an error means that nothing more can be written to the bucket."""
        return isinstance(error, StoreReplaced) or (isinstance(error, LogFailed) and self._path.log.has_lost)

    def _attempt(self, work: Callable[[], T]) -> T | StoreError | None:
        """Do work on the bucket; this is the only place that decides what an error means.

        Returns:
            The result; or why the work failed, and then it had no effect; or None if it is to be tried again.

        Raises:
            StoreReplaced, LogFailed: Nothing more can be written to the bucket.
        """
        try:
            self._catalog.check_leads()  # not under the lock: readers of the bucket do not wait for an answer
        except StoreError as error:
            return error
        with self._turn_taken():
            self.all_committed = False
            try:
                self._prepare()
                done = work()
                self.all_committed = not self._path.index.writing
                return done
            except lmdb.MapFullError:
                return self._grow()
            except lmdb.MemoryError as error:
                self._restore()
                return shortage(self._context.place.index, error)
            except lmdb.Error as error:
                self._restore()
                return CorruptData("The index can't be used; run `kvstore check`.", reason=str(error))
            except StoreError as error:
                if self._is_end(error):
                    raise
                self._restore()
                return error

    def _restore(self) -> None:
        """Restore the index to the content of the log.

        Raises:
            LogFailed: The index can't be restored; nothing more may be written until the bucket is opened again.
        """
        try:
            self._path.restore(self._log)
        except (StoreError, OSError, lmdb.Error) as error:
            raise LogFailed(
                "The index can't be brought back to what the log holds; reopen the store.", reason=str(error)
            ) from error

    def _grow(self) -> StoreError | None:
        failure = None
        self._path.index.abort()
        try:
            with self._index_gate.growing():
                self._path.index.grow()
        except StoreFull as error:
            failure = error
        self._restore()
        return failure

    def _prepare(self) -> None:
        now = self._catalog.now()  # it has the schemas of all that is staged
        definition, self._path.named = now.definition, now.writers
        if definition is not self._path.definition:
            self._path.use(definition)
            self._changed()
        for commit in self._path.named.commits:
            if not self._path.has(commit):
                bucket = self._context.place.identity.bucket_id
                request = self._context.staged.request(commit, definition, bucket)
                self._append([self._path.apply(request, decided=True)], durable=True)
        if self._path.log.is_full:
            self._path.roll()
            self._changed()
        self._prepared = now

    def _apply(self, group: Sequence[Submitted]) -> Outcomes:
        is_first = not self._path.index.writing
        outcomes = self._applied(group)
        self._append_all(outcomes)
        if is_first:
            self._applied_first = self._applied_last
        return outcomes

    def _applied(self, group: Sequence[Submitted]) -> Outcomes:
        outcomes: Outcomes = list(zip(group, apply_in_order(self._path, group), strict=True))
        self._catalog.check_leads()  # a large batch may have taken longer than a lease
        return outcomes

    def _append_all(self, outcomes: Outcomes) -> None:
        done = [outcome for _, outcome in outcomes if isinstance(outcome, Applied)]
        self._append(done, durable=self._options.durability == "sync")

    def _append(self, done: Sequence[Applied], *, durable: bool) -> None:
        batches = [each.batch for each in done if each.batch is not None]
        if batches:
            self._path.log.append(batches, durable=durable)
            offsets = batches[-1].next_offset - batches[0].base_offset
            self._meter.wrote(len(batches), offsets, sum([batch.size for batch in batches]))
        if durable:
            self.durable_state = self._path.state
        self._applied_last = self._clock.monotonic()

    # Commits over several buckets

    def _settle(self) -> None:
        outcomes = None
        while outcomes is None:
            outcomes = self._attempt(partial(self._apply, ()))
        if isinstance(outcomes, StoreError):
            raise outcomes

    def _take_part(self, prepared: Prepared) -> None:
        outcome = None
        while outcome is None:
            outcome = self._attempt(partial(self._apply_part, prepared))
        if isinstance(outcome, StoreError):
            for answer in (prepared.ready, prepared.answer):
                if not answer.done():
                    answer.set_exception(copy(outcome))
        elif prepared.decision.result():
            prepared.answer.set_result(outcome)

    def _apply_part(self, prepared: Prepared) -> AppendResult | StoreError:
        # A commit is all or nothing only if the batches before it, to which it was applied, are never lost.
        self._path.log.sync()
        try:
            applied = self._path.apply(in_present_names(prepared.request, self._path.definition))
        except (InvalidRequest, WriterRejected) as error:
            return error  # nothing of it was stored
        self._catalog.check_leads()
        prepared.ready.set_result(applied.result)
        if prepared.decision.result():
            self._append([applied], durable=True)
        elif applied.batch is not None:
            self._restore()
        return applied.result

    # Commits

    def _deadline(self) -> float | None:
        """When the index must be committed even without a request, in seconds of the clock."""
        if not self._path.index.writing:
            return None
        return min(self._applied_first + self._wait, self._applied_last + self._idle)

    def _plan(self, commit_seconds: float) -> None:
        """Decide how long the next commit waits, given how long the last one took."""
        options = self._options
        # Slow commits happen less often: commits take at most a fifth of the time.
        self._wait = max(options.commit_wait_ms / 1000, 4 * commit_seconds)
        if options.durability == "interval":
            self._wait = min(self._wait, options.sync_interval_ms / 1000)
        self._idle = max(options.commit_idle_ms / 1000, commit_seconds / 2)

    def _due(self) -> bool:
        deadline = self._deadline()
        if deadline is None:
            return False
        return deadline <= self._clock.monotonic() or self._path.index.dirty_bytes() >= self._options.commit_bytes_max

    def _commit(self) -> None:
        with self._turn_taken():
            if not self._path.index.writing:
                return
            began = self._clock.monotonic()
            if began - self._readers_checked >= READER_CHECK_SECONDS:
                self._readers_checked = began
                self._path.index.release_dead_readers()
            while self._path.index.writing:
                try:
                    self._path.commit()
                except lmdb.MapFullError:
                    failure = self._grow()
                    if failure is not None:
                        raise failure from None
                except StoreFull:
                    self._restore()
                    raise
                except lmdb.Error as error:
                    self._restore()
                    raise write_refusal(error, self._context.place.index) from error
            self.all_committed = True
            self.durable_state = self._path.state
            self._plan(self._clock.monotonic() - began)
            self._meter.commit.since(began)

    def _commit_in_time(self) -> None:
        try:
            self._commit()
        except StoreFull:
            # The log has everything, on disk or in memory; until there is space, other processes wait longer.
            self._applied_first = self._applied_last = self._clock.monotonic()

    def _answer_flush(self, request: _Flush) -> bool:
        try:
            if request.settle:
                self._settle()
            self._commit()
        except StoreError as error:
            if self._path.log.has_lost or (request.last and self._path.log.durable != self._path.log.end):
                raise LogFailed("What was acknowledged last may be lost: it can't be made durable.") from error
            request.answer.set_exception(error)
        else:
            request.answer.set_result(None)
        return not request.last


def _stack_is_short() -> bool:
    """Whether the caller is so deep in recursion that a write could fail halfway for it."""
    try:
        sys._getframe(max(sys.getrecursionlimit() - STACK_FRAMES, 0))
    except ValueError:
        return False
    return True
