"""Group commit: one thread for each bucket being written, which applies, syncs and commits.

Theory of operation. Callers put requests into a queue and wait for their answers. The thread takes what waits as one
group: it applies each request to the memtable, appends their batches to the log, syncs the log once, publishes the
rows, and answers all callers. The log is the truth from that moment on. The memtable is merged into the index by time,
by size, and by a flush; whatever it loses is replayed from the log. A merge goes on in slices between groups: while it
is under way, at least as large a part of it is done as was written meanwhile, compared with what is merged. So a write
waits for a slice of about its own size, and what is merged and what comes meanwhile stay within the memory.

* A caller that finds the bucket idle does its request itself: two switches between threads cost more than the rows. It
  has the turn meanwhile (:mod:`kvstore.bucket.turn`).
* A group whose requests fail for a reason other than their own content changes nothing. If damage was found, requests
  are tried one by one, so that only those that touch it fail; otherwise all get the same error.
* A part of a commit over several buckets is applied, and then the bucket waits until the commit is decided. A decided
  batch that the bucket lacks is appended before anything else.
* The thread ends if something acknowledged without waiting for the disk is lost, if the memtable can't be brought back
  to what the log holds, or if the store's directory was replaced.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, TypeVar

import lmdb

from kvstore.bucket.context import BucketContext
from kvstore.bucket.read_gate import ReadGate
from kvstore.bucket.turn import Hold, Turn
from kvstore.bucket.write_path import Applied, WritePath
from kvstore.disk.address_space import shortage
from kvstore.disk.lmdb_files import write_refusal
from kvstore.errors import (
    CorruptData,
    InvalidRequest,
    LogFailed,
    OutOfAddressSpace,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreReplaced,
    WriterRejected,
)
from kvstore.memtable.pace import Pace
from kvstore.meta.table_catalog import Now
from kvstore.process.calls import Answer, answer_of
from kvstore.process.signals import is_stack_short, undisturbed
from kvstore.request.encoded import SmallRequest, Submitted
from kvstore.request.preparation import up_to_date
from kvstore.request.prepared import Prepared
from kvstore.request.request import Request
from kvstore.request.results import AppendResult
from logformat.ids import Offset, Sequence as BatchSequence, WriterId
from logformat.log.index_state import IndexState

Outcomes: TypeAlias = Sequence[Applied | StoreError | None]

GROUP_REQUESTS_MAX = 1024
GROUP_BYTES_MAX = 64 << 20
GATHER_SECONDS = 0.0005
"""How long the thread waits for the rest while a group is smaller than the last one."""
READER_CHECK_SECONDS = 60.0
CLOSE_SECONDS = 2.0
"""How long a bucket that is closed goes on with merges, and until it has stored a slice, so that short sessions make
progress, too; the next opening takes the rest from the log."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What the thread is to do besides requests; ``last`` ends it."""

    do: Callable[[], Any]
    last: bool = False
    answer: Future[Any] = field(default_factory=Answer)


T = TypeVar("T")
Item: TypeAlias = Submitted | Prepared | Hold | _Work


class Committer:
    """The thread that writes one bucket.

    Args:
        path: Used in a turn only, the committer's or a caller's.
        gate: Held while the index grows: no transaction of this process may be open meanwhile.
        changed: Called when the log continues in a new segment, or the table has another definition.

    Attributes:
        memtable: What is acknowledged, for every reader.
        turn: The turn to change the bucket.
    """

    def __init__(
        self,
        path: WritePath,
        context: BucketContext,
        gate: ReadGate,
        changed: Callable[[], None],
    ) -> None:
        self._path = path
        path.grow = self._grow
        self.memtable = path.memtable
        self._context = context
        self._catalog = context.catalog
        self.turn = Turn()
        self._options = context.options
        self._clock = context.clock
        self._meter = context.meter
        self._index_gate = gate
        self._changed = changed
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()  # None wakes the thread
        self._gate = threading.Lock()
        self._durable_state = path.state
        self._ended: StoreError | None = None
        self._in_hand: list[Item] = []
        self._submitted = self._settled = 0
        self._broken = LogFailed("A write of the bucket ended on an error; reopen the store.")
        self._prepared: Now | None = None
        self._parts: list[Applied] = []  # of commits over several buckets, in a caller's turn
        self._is_pressed = False  # the memtable must not grow
        self._durably: set[object] = set()
        """Answers of requests that are durable before they are answered, if not all are."""
        self._together = 1
        self._is_gathering = False
        self._gathered: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Gets something when a thread that gathers a group has all of it."""
        self._applied_first = self._applied_last = context.clock.monotonic()
        self._merge_seconds = 0.0
        self._plan(0.0)
        self._pace = Pace(self.memtable, context.budget, context.paths.identity)
        self._pace.note()  # a recovery may have left something
        self._readers_checked = context.clock.monotonic()
        self._thread = threading.Thread(target=self._run, name="kvstore-committer", daemon=True)
        self._thread.start()

    @property
    def state(self) -> IndexState:
        """State of the bucket with every acknowledged change."""
        self.memtable.wait_shown()
        return self.memtable.published.state

    @property
    def durable_state(self) -> IndexState:
        """State of the bucket with every change that is acknowledged and can't be lost: what others see."""
        self.memtable.wait_shown()
        return self._durable_state

    @property
    def queued(self) -> int:
        """Number of waiting requests, without those being applied."""
        return self._queue.qsize()

    @property
    def waiting(self) -> int:
        """Number of requests that wait or are being applied."""
        return len(self._in_hand) + self.queued + self.turn.is_callers

    def last_sequence(self, writer_id: WriterId) -> BatchSequence | None:
        """Sequence of a writer's last batch; None if it has none that the index lacks."""
        (entry,) = self.memtable.published.writers.newest([writer_id]) or (None,)
        return None if entry is None else entry.batches[-1].sequence

    def check(self) -> None:
        """Refuse once the thread has ended.

        Raises:
            StoreError: Why it did.
        """
        if self._ended is not None:
            raise copy(self._ended)

    def submit(self, request: Submitted | Hold, *, here: bool = False) -> None:
        """Submit a request. If its answer is an error, nothing of it was written.

        Args:
            here: Whether the caller's thread may do the work, if the bucket is idle: its caller waits for nothing else.
        """
        if not here or isinstance(request, Hold) or not undisturbed(self._done_here, request):
            self.put(request)

    def put(self, item: Item) -> None:
        """Have the thread do something, such as a part of a commit, which the caller has to decide."""
        with self._gate:
            self.check()
            self._put(item)

    def submit_durably(self, request: Submitted | Hold, *, here: bool = False) -> None:
        """Like :meth:`submit`, whatever the durability: all that the answer says is durable by then."""
        self._answer_durably(request)
        self.submit(request, here=here)

    def _answer_durably(self, request: Submitted | Hold) -> None:
        if self._options.durability != "sync":
            self._durably.add(request.answer)

    def _put(self, item: Item) -> None:
        self._submitted += 1
        self._queue.put(item)
        if self._is_gathering and self._are_together():
            self._is_gathering = False
            self._gathered.put(None)

    def flush(self) -> None:
        """Merge everything acknowledged before into the index."""
        if not self.memtable.is_merged:  # two changes of threads take as long as a short scan
            self._worked(self._commit)

    @property
    def durable(self) -> Offset:
        """The offset after every change that is durable."""
        return self._path.log.durable.offset

    def sync(self) -> None:
        """Make everything acknowledged before durable.

        Raises:
            StoreFull, LogFailed: The disk refuses.
        """
        self._worked(self._sync_log)

    def settle(self) -> None:
        """Append the batches of open commits that the bucket lacks; then all that was submitted before is durable.

        Raises:
            CorruptData, StoreFull, LogFailed: It can't be; until it is, nothing else is written here.
        """
        self._worked(self._settle)

    def make_some_entries(self) -> int | None:
        """Read some rows for a secondary index that is new, or store some entries; of how many, None once all are made.

        Raises:
            CorruptData, StoreFull, LogFailed: They can't be made.
        """
        make = partial(self._entries_by, self._path.make_some_entries)
        return self._worked(lambda: _sure(self._attempt(make)))

    def _worked(self, do: Callable[[], T]) -> T:
        """Have the thread do something, and wait for it."""
        work = _Work(do)
        self.put(work)
        result: T = answer_of(work.answer)
        return result

    def close(self) -> None:
        """Make everything durable, merge for at most :data:`CLOSE_SECONDS` and a slice, and end the thread.

        Raises:
            LogFailed: Something that was acknowledged without waiting for the disk is lost.
            StoreFull: It can't be made durable; the log has some of it.
        """
        request = _Work(self._commit_at_end, last=True)
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
            self._pace.forget()
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
            # However the thread ended, no caller may wait for ever for it.
            with self._gate, self.turn.taken():
                self._ended = ended
            waiting: list[Item] = [*self._in_hand]
            while not self._queue.empty():
                waiting += filter(None, [self._queue.get()])
            for item in waiting:
                if isinstance(item, Prepared):
                    item.refuse(ended)
                elif not item.answer.done():
                    item.answer.set_exception(copy(ended))

    def _take_turn(self) -> bool:
        item = self._next()
        group: list[Submitted] = []
        waiting = 0
        while item is not None and not isinstance(item, (Prepared, Hold, _Work)):
            if self._together > 1 and not group:
                self._gather()
            group.append(item)
            waiting += item.size
            full = len(group) >= GROUP_REQUESTS_MAX or waiting >= GROUP_BYTES_MAX
            item = None if full or self._queue.empty() else self._queue.get_nowait()
        self._in_hand = [*group, item] if item is not None else [*group]
        if group:
            self._together = len(group)
            self._commit_group(group)
        goes_on = True
        if isinstance(item, _Work):
            self._settled += 1
            goes_on = self._answer_work(item)
        if isinstance(item, Prepared):
            self._take_part(item)
            self._settled += 1
        if isinstance(item, Hold):
            self._hold(item)
        if self.turn.left:
            with self._turn_taken():
                pass
        if goes_on and self._due():
            self._commit_in_time()
        return goes_on

    def _gather(self) -> None:
        """Wait a moment for as many requests as the last group had: callers that were just answered often send again.

        The thread wakes for the last of them only.
        """
        while not self._gathered.empty():
            self._gathered.get_nowait()
        self._is_gathering = True
        if not self._are_together():
            with suppress(queue.Empty):
                self._gathered.get(timeout=GATHER_SECONDS)
        self._is_gathering = False

    def _are_together(self) -> bool:
        return self._submitted - self._settled >= self._together

    def _next(self) -> Item | None:
        deadline = self._deadline()
        try:
            if deadline is None:
                return self._queue.get()
            seconds = max(0.0, deadline - self._clock.monotonic())
            return self._queue.get(timeout=min(seconds, threading.TIMEOUT_MAX))  # a clock may jump, such as in a merge
        except queue.Empty:
            return None

    # One group

    def _commit_group(self, group: Sequence[Submitted]) -> None:
        began = self._meter.append.now()
        outcomes = self._attempt(partial(self._apply, group))
        if len(group) > 1 and isinstance(outcomes, CorruptData):
            for request in group:
                self._commit_group([request])
            return
        self._settled += len(group)  # first: a caller that has its answer may find the bucket idle
        self._answer(group, outcomes, began)

    def _answer(self, group: Sequence[Submitted], outcomes: Outcomes | StoreError, began: float) -> None:
        if self._durably:
            self._durably.difference_update([request.answer for request in group])
        if isinstance(outcomes, StoreError):
            outcomes = [outcomes] * len(group)
        for request, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, StoreError):
                request.answer.set_exception(copy(outcome))
            else:
                answer: Any = request.answer
                answer.set_result(None if outcome is None else outcome.result)
        self._meter.append.since(began)

    def _hold(self, hold: Hold) -> None:
        """Wait for the next request of a sender, and do that one next."""
        outcome = self._attempt(partial(self._found, hold))
        request = None
        self._durably.discard(hold.answer)
        if isinstance(outcome, StoreError):
            hold.answer.set_exception(outcome)
        else:
            hold.answer.set_result(None)
            request = hold.next()
        if request is None:
            self._settled += 1
        else:
            self._answer_durably(request)
            self._in_hand = [request]
            self._commit_group([request])

    def _found(self, hold: Hold) -> None:
        self._path.log.sync()
        hold.found[:] = self.memtable.get(hold.keys)

    # One request in its caller's thread

    def _done_here(self, request: Submitted) -> bool:
        """Do what the thread does with a group of one request; False if the thread has to."""
        # After a group of several, callers are likely to send together again.
        if self._together > 1 or not self.turn.take():
            return False
        try:
            if not self._is_idle():
                return False
            began = self._meter.append.now()
            outcomes = self._change(partial(self._apply, [request]))
            if self.turn.end is not None:
                return False  # the thread ends
        finally:
            self._give_back()
        self._answer([request], outcomes, began)
        return True

    def begin_parts(self, seconds: float = 0.0) -> bool:
        """Begin to apply parts of commits of few rows in their caller's thread; False if the thread has to do it.

        If it is true, :meth:`end_parts` follows, from the same thread. The bucket waits until then.

        Args:
            seconds: How long to wait for the turn.

        Raises:
            StoreError: The bucket can't be written. It does not wait.
        """
        if is_stack_short() or not self.turn.take(seconds):
            return False
        is_begun = False
        try:
            if self._is_free(merges_later=True):
                _sure(self._change(self._prepare_parts))
                is_begun = True
            return is_begun
        finally:
            if not is_begun:
                self._give_back()

    def _prepare_parts(self) -> None:
        self._prepare()
        # A commit is all or nothing only if the batches before it, to which it was applied, are never lost.
        self._path.log.sync_undecided()

    def apply_part(self, request: Request | SmallRequest) -> Applied:
        """Apply a part of a commit, after :meth:`begin_parts`.

        Raises:
            InvalidRequest, WriterRejected: It is refused. What was applied is to be dropped, or to be applied alone.
            CorruptData: A stored row is damaged; the same.
        """
        self.turn.left = True  # from here on, whatever happens
        try:
            applied = self._path.apply(up_to_date(request, self._path.definition))
            if applied.batch is not None:
                self._parts.append(applied)
        except (InvalidRequest, WriterRejected):
            self.turn.left = bool(self._parts)
            raise
        self.turn.left = bool(self._parts)
        return applied

    def end_parts(self, *, decided: bool) -> None:
        """Append what :meth:`apply_part` has applied, or drop it.

        The commits end once the log is durable so far: until then they can be appended again.

        Raises:
            StoreFull, LogFailed: The disk refuses; what is decided is appended before anything else later.
        """
        parts, self._parts = self._parts, []
        try:
            if decided and parts:
                _sure(self._change(partial(self._append, parts, decided=True)))
        finally:
            self._give_back()

    def _give_back(self) -> None:
        """End a turn of this thread, which is a caller's."""
        if self.turn.left:
            self._queue.put(None)  # the committer's thread restores the memtable, or ends
        self.turn.give_back()

    def _is_free(self, *, merges_later: bool = False) -> bool:
        """Whether the thread has nothing to do, and nothing waits for it.

        Args:
            merges_later: Whether a merge that is due may wait, unless the memtable is large.
        """
        if self._settled != self._submitted or self._ended is not None or self.turn.left or self._is_pressed:
            return False
        return not ((not merges_later or self._pace.is_due()) and self._due())

    def _is_idle(self) -> bool:
        """Whether a request can be applied next, and the thread has nothing to do before."""
        if not self._is_free():
            return False
        try:
            now = self._catalog.now()
        except StoreError:
            return False
        return now is self._prepared and not now.has_replicas and not self._path.log.is_full

    @contextmanager
    def _turn_taken(self) -> Iterator[None]:
        """A turn, with the memtable as the log has it.

        Raises:
            StoreError: Nothing more can be written to the bucket.
        """
        with self.turn.taken():
            if self.turn.left:
                if self.turn.end is not None:
                    raise self.turn.end
                self._restore()
                self.turn.left = False
            yield

    def _change(self, work: Callable[[], T]) -> T | StoreError:
        """Do work on the bucket in a turn; this is the only place that decides what an error means.

        Returns:
            The result; or why the work failed, and then it has no effect: the memtable is restored before the next
            change. If nothing more can be written to the bucket, the turn's ``end`` says why.
        """
        self.turn.left = True  # from here on, whatever happens
        try:
            result = work()
        except StoreError as error:
            is_end = isinstance(error, StoreReplaced) or (isinstance(error, LogFailed) and self._path.log.has_lost)
            self.turn.end = error if is_end else None
            return error
        self.turn.left = False
        return result

    def _attempt(self, work: Callable[[], T]) -> T | StoreError:
        """Do work on the bucket in a turn of the thread; see :meth:`_change`.

        Raises:
            StoreReplaced, LogFailed: Nothing more can be written to the bucket.
        """
        try:
            self._catalog.check_leads()  # not in the turn: callers do not wait for an answer
        except StoreError as error:
            return error
        with self._turn_taken():
            result = self._change(partial(self._ready, work))
            if self.turn.end is not None:
                raise self.turn.end
        return result

    def _ready(self, work: Callable[[], T]) -> T:
        # What is large was to be merged before, and that failed, or one group was large.
        if self._must_merge():
            began = self._meter.wait.now()
            while self._must_merge():
                self._merge_slice(1.0)
            self._meter.wait.since(began)
        self._prepare()
        return work()

    def _restore(self) -> None:
        """Restore the memtable to the content of the log.

        Raises:
            LogFailed: It can't be restored; nothing more may be written until the bucket is opened again.
        """
        try:
            self._path.restore()
        except (StoreError, OSError) as error:
            raise LogFailed(
                "The memtable can't be brought back to what the log holds; reopen the store.", reason=str(error)
            ) from error

    def _grow(self) -> None:
        with self._index_gate.growing():
            self.memtable.index.environment.grow()

    def _prepare(self) -> None:
        now = self._catalog.now()  # it has the schemas of all that is staged
        definition, self._path.named = now.definition, now.writers
        if definition is not self._path.definition:
            self._path.use(definition)
            self._changed()
        self._make_entries()
        for commit in self._path.named.commits:
            if not self._path.has(commit):
                bucket = self._context.paths.identity.bucket_id
                request = self._context.staged.request(commit, definition, bucket)
                self._append([self._path.apply(request, decided=True)], durable=True)
        if self._path.log.is_full:
            self._path.roll()
            self._changed()
        self._prepared = now

    def _make_entries(self) -> None:
        """Make entries of secondary indexes that the next write needs, such as those that the index has lost."""
        if self._path.are_entries_due():
            self._merge_all()
            self._entries_by(self._path.make_entries)

    def _entries_by(self, make: Callable[[], T]) -> T:
        try:
            return make()
        except lmdb.Error as error:
            raise write_refusal(error, self._context.paths.index) from error

    def _apply(self, group: Sequence[Submitted]) -> Outcomes:
        outcomes = self._path.apply_all(group)
        self._catalog.check_leads()  # a large batch may have taken longer than a lease
        durable = self._options.durability == "sync"
        if self._durably and any(request.answer in self._durably for request in group):
            self._path.log.sync()  # also of what a request that writes nothing has found
            durable = True
        self._append([outcome for outcome in outcomes if isinstance(outcome, Applied)], durable=durable)
        return outcomes

    def _append(self, done: Sequence[Applied], *, durable: bool = False, decided: bool = False) -> None:
        batches = [each.batch for each in done if each.batch is not None]
        if batches:
            is_first = self.memtable.is_merged
            self.turn.end = self._broken  # unless the following ends as it should
            self._path.log.append(batches, durable=durable, decided=decided, shows=False)
            offsets = batches[-1].next_offset - batches[0].base_offset
            self._meter.wrote(len(batches), offsets, sum([batch.size for batch in batches]))
            self.memtable.publish(self._path.state, partial(self._show, is_durable=durable or decided))
            self._pace.note()
            self.turn.end = None
            self._applied_last = self._clock.monotonic()
            if is_first:
                self._applied_first = self._applied_last
                if self.turn.is_callers:
                    self._queue.put(None)  # the thread waits without a deadline
        elif durable or decided:
            self._durable_state = self._path.state

    def _show(self, *, is_durable: bool) -> None:
        self._path.log.show()
        if is_durable:
            self._durable_state = self._path.state

    # Commits over several buckets

    def _sync_log(self) -> None:
        with self._turn_taken():
            self._path.log.sync()

    def _settle(self) -> None:
        _sure(self._attempt(partial(self._apply, ())))
        self._sync_log()  # the end of a commit follows: what the bucket had of it must be durable, too

    def _take_part(self, prepared: Prepared) -> None:
        outcome = self._attempt(partial(self._apply_part, prepared))
        if isinstance(outcome, StoreError):
            prepared.refuse(outcome)
        elif prepared.decision.result():
            prepared.answer.set_result(outcome)

    def _apply_part(self, prepared: Prepared) -> AppendResult | StoreError:
        self._path.log.sync_undecided()  # see begin_parts
        (applied,) = self._path.apply_all([prepared.request])
        assert applied is not None  # it has no condition
        if not isinstance(applied, Applied):
            return applied  # nothing of it was stored
        self._catalog.check_leads()
        prepared.ready.set_result(applied.result)
        if prepared.decision.result():
            self._append([applied], durable=True)
        elif applied.batch is not None:
            self._restore()
        return applied.result

    # Commits

    def _deadline(self) -> float | None:
        """When the memtable must be merged even without a request, in seconds of the clock."""
        if self.memtable.is_merged:
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
        return deadline <= self._clock.monotonic() or self._pace.is_due()

    def _must_merge(self) -> bool:
        """Whether the memtable takes nothing more until it is merged."""
        return (self._is_pressed or self._pace.is_full()) and not self.memtable.is_merged

    def _commit(self) -> None:
        with self._turn_taken():
            self._merge_all()

    def _merge_all(self) -> None:
        while not self.memtable.is_merged:
            self._merge_slice(1.0)

    def _commit_at_end(self) -> None:
        """Make everything durable, and merge for a short time: what the index lacks then is read from the log."""
        until, is_whole = self._clock.monotonic() + CLOSE_SECONDS, False
        with self._turn_taken():
            self._path.log.sync()
            # An error that the index does not fit the disk would be taken for one of the last write, which is durable.
            with suppress(StoreFull):
                while not self.memtable.is_merged and (not is_whole or self._clock.monotonic() < until):
                    is_whole |= self._merge_slice(1.0)

    def _merge_slice(self, share: float) -> bool:
        began = self._clock.monotonic()
        try:
            if not self.memtable.is_merging:
                self._begin_merge(began)
            elif self._options.durability == "interval":
                self._path.log.sync()  # the merge may take longer than the interval, above all after a recovery
                self._durable_state = self.memtable.published.state
            with self._pace.slice():
                is_whole = self._path.merge_slice(share)
        except lmdb.Error as error:
            raise write_refusal(error, self._context.paths.index) from error
        except MemoryError as error:
            raise shortage(self._context.paths.index, error) from error
        took = self._clock.monotonic() - began
        self._merge_seconds += took
        self._meter.commit.since(began)
        if not self.memtable.is_merging:
            self._is_pressed = False
            self._pace.note()
            self._plan(self._merge_seconds)
        return is_whole

    def _begin_merge(self, now: float) -> None:
        if now - self._readers_checked >= READER_CHECK_SECONDS:
            self._readers_checked = now
            self.memtable.index.environment.release_dead_readers()
        self._pace.begin()
        self._path.begin_merge()
        self._durable_state = self._path.state
        self._applied_first, self._merge_seconds = now, 0.0

    def _commit_in_time(self) -> None:
        try:
            with self._turn_taken():
                if not self.memtable.is_merged:
                    began = self._meter.wait.now()
                    self._merge_slice(self._pace.share())
                    if not self._queue.empty():
                        self._meter.wait.since(began)
        except (StoreFull, CorruptData) as error:
            # The log has everything, on disk or in memory; it is tried again later. Memory may be all that is short.
            self._is_pressed = isinstance(error, OutOfAddressSpace)
            self._applied_first = self._applied_last = self._clock.monotonic()

    def _answer_work(self, work: _Work) -> bool:
        try:
            done = work.do()
        except StoreError as error:
            log = self._path.log
            if log.has_undecided and (log.has_lost or work.last):
                raise LogFailed("What was acknowledged last may be lost: it can't be made durable.") from error
            if log.has_lost:
                raise LogFailed(
                    "The disk failed; repair it and reopen the store. The catalog has what was acknowledged last.",
                    path=self._context.paths.log,
                ) from error
            work.answer.set_exception(error)
        else:
            work.answer.set_result(done)
        return not work.last


def _sure(result: T | StoreError) -> T:
    """What a change has returned; raises why it failed."""
    if isinstance(result, StoreError):
        raise result
    return result
