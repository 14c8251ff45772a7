"""Sender: the thread that batches what callers hand over, sends the batches and takes the answers.

Only this thread uses the accumulator and the bucket queues. Answers arrive on any thread, and only wake this one.
"""

from __future__ import annotations

import logging
import queue
import random
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from logformat.errors import NotAcknowledged, StoreClosed, StoreError, Unavailable, UnsupportedOperation
from logformat.rows.changes import Changes
from writer.accumulator import Accumulator
from writer.bucket_queue import BucketQueue, PendingCall, Restart, Sending
from writer.buffer import Buffer
from writer.clock import Clock
from writer.intake import Item
from writer.options import WriterOptions
from writer.refused import Refused
from writer.target import AppendTarget, Identity, TargetTable

log = logging.getLogger("writer")

ABORT_SECONDS = 5.0
"""How long a writer that is left on an exception waits for answers to the batches it sent."""


class Sender:
    """Owner of the sending thread; see the module.

    Args:
        new_id: Returns a writer id that was never used before; None if there is no source of ids.

    Attributes:
        restarts: Buckets that continued under a new writer id.
    """

    def __init__(
        self,
        table: TargetTable,
        identity: Identity,
        options: WriterOptions,
        clock: Clock,
        new_id: Callable[[], int] | None,
    ) -> None:
        self.restarts: list[Restart] = []
        self._table = table
        self._identity = identity
        self._options = options
        self._clock = clock
        self._new_id = new_id
        self._events: queue.SimpleQueue[tuple[BucketQueue, Sending, Future[Any]] | None] = queue.SimpleQueue()
        self.buffer = Buffer(options.buffer_bytes, options.batch_rows, lambda: self._events.put(None))
        self._accumulator = Accumulator(table, options)
        self._bucket_queues: dict[int, BucketQueue] = {}
        self._targets: dict[int, AppendTarget] = {}
        self._serial = 0
        self._open: dict[int, int] = {}
        """Bytes of each batch that is not settled, by its serial, in order."""
        self._flushes: list[tuple[int, int]] = []
        """Pending flushes: the ticket, and the first serial after the flush."""
        self._flush_seen = 0
        self._linger_at: float | None = None
        self._abort_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="kvstore-writer", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def join(self, seconds: float | None = None) -> bool:
        """Wait until the thread has ended, at most ``seconds``; returns whether it has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        ended: StoreError | None = None
        try:
            while self._turn():
                pass
            ended = StoreClosed("The writer was closed; open another.")
        except StoreError as error:
            ended = error
        finally:
            # However the thread ended, no caller waits forever and no row is lost from the report.
            if ended is None:
                ended = NotAcknowledged("The writer ended with an unexpected error; its rows may have been written.")
                ended.__cause__ = sys.exception()
            self.buffer.end(ended, self._left)
            if self.buffer.abandoned:
                self._log_unwritten(ended)

    def _log_unwritten(self, ended: StoreError) -> None:
        """Log the rows of an abandoned writer that were not written: it has no caller left to raise an error to."""
        if rows := sum(map(len, self.buffer.unacknowledged)):
            log.error("a writer that was not closed ended with %d rows not acknowledged: %s", rows, ended)
        if refused := self.buffer.refused:
            log.error(
                "rows that were refused, of a writer that was not closed: %d; the first: %s",
                sum(len(each.changes) for each in refused),
                refused[0].error,
            )

    def _left(self, items: list[Item]) -> tuple[list[Changes], list[Refused]]:
        left = [changes for bucket_queue in self._bucket_queues.values() for changes in bucket_queue.unacknowledged()]
        left += [made.changes for made in self._accumulator.batches]
        left += self._accumulator.left_over(items)
        return left, self._accumulator.refused

    def _turn(self) -> bool:
        self._wait()
        now = self._clock.monotonic()
        if self.buffer.aborted:
            return self._await_last(now)
        self._gather(now)
        for bucket, bucket_queue in self._bucket_queues.items():
            if self.buffer.aborted:
                break  # a call may take long
            self._drive(bucket, bucket_queue, now)
        self._settle()
        return not (self.buffer.abandoned and self._is_done)

    @property
    def _is_done(self) -> bool:
        return not (self._open or self.buffer.waiting or self._accumulator.waiting)

    def _wait(self) -> None:
        """Wait for the next event, then take all answers that are there."""
        wake = [time for bucket_queue in self._bucket_queues.values() if (time := bucket_queue.wake_at()) is not None]
        wake += [time for time in (self._linger_at, self._abort_at) if time is not None]
        try:
            timeout = max(0.0, min(wake) - self._clock.monotonic()) if wake else None
            self._take_answer(self._events.get(timeout=timeout))
            while True:
                self._take_answer(self._events.get_nowait())
        except queue.Empty:
            pass

    def _take_answer(self, event: tuple[BucketQueue, Sending, Future[Any]] | None) -> None:
        if event is None:
            return
        bucket_queue, sending, future = event
        error = future.exception()
        if error is None:
            bucket_queue.acknowledged(sending, future.result())
        elif isinstance(error, StoreError):
            bucket_queue.failed(sending, error, self._clock.monotonic())
        else:
            raise error

    def _await_last(self, now: float) -> bool:
        """After an abort: whether to keep waiting for answers."""
        if self._abort_at is None:
            self._abort_at = now + min(ABORT_SECONDS, self._options.request_timeout_ms / 1000)
        self._settle()
        return now < self._abort_at and any(bucket_queue.in_flight for bucket_queue in self._bucket_queues.values())

    # Input

    def _gather(self, now: float) -> None:
        asked = self.buffer.asked
        lingered = self._linger_at is not None and now >= self._linger_at
        flush = asked > self._flush_seen or self.buffer.abandoned
        if lingered or flush or self.buffer.is_worth_it:
            self._take()
            if lingered or flush:
                self._accumulator.seal()
        if self.buffer.is_full and not self._open:
            self._accumulator.seal()  # only sending frees room
        self._put_in_line()
        if asked > self._flush_seen:
            self._flush_seen = asked
            self._flushes.append((asked, self._serial))
        if self.buffer.is_empty() and not self._accumulator.waiting:
            self._linger_at = None
        elif self._linger_at is None or lingered:
            self._linger_at = now + self._options.linger_ms / 1000

    def _take(self) -> None:
        items, size = self.buffer.take()
        if not items:
            return
        before = self._accumulator.gathered
        self._accumulator.take(items)
        self.buffer.converted(len(items), size, self._accumulator.gathered - before)
        refused, self._accumulator.refused = self._accumulator.refused, []
        if refused:
            self.buffer.settle(0, refused)

    def _put_in_line(self) -> None:
        batches = self._accumulator.batches
        while batches:
            bucket, changes, schema_id, size = batches[0]
            if bucket not in self._bucket_queues:
                self._targets[bucket] = self._table.bucket(bucket)
                self._bucket_queues[bucket] = BucketQueue(bucket, self._identity, self._options.timing, random.random)
            self._open[self._serial] = size
            self._bucket_queues[bucket].add(changes, self._serial, schema_id)
            batches.popleft()
            self._serial += 1

    # Output

    def _drive(self, bucket: int, bucket_queue: BucketQueue, now: float) -> None:
        target = self._targets[bucket]
        call = bucket_queue.pending_call(now)
        if call is not None:
            try:
                bucket_queue.call_succeeded(self._make_call(call, target))
            except StoreError as error:
                bucket_queue.call_failed(error, now)
        put_off: Unavailable | None = None
        for sending in bucket_queue.due(now):
            try:
                if self.buffer.aborted:
                    put_off = put_off or Unavailable("The writer is ending; this batch was not sent.")
                if put_off is not None:
                    raise put_off
                future = target.submit(
                    sending.changes,
                    sending.writer_id,
                    sending.sequence,
                    sending.epoch,
                    schema_id=sending.batch.schema_id,
                )
            except StoreError as error:
                if isinstance(error, Unavailable):
                    put_off = error  # the target would not take later batches either
                future = Future()
                future.set_exception(error)
            future.add_done_callback(partial(self._answer, bucket_queue, sending))
        for restart in bucket_queue.restarts:
            log.warning(
                "bucket %d has forgotten writer %d; continuing as writer %d; rows that may be written twice: %d",
                restart.bucket,
                restart.before,
                restart.after,
                sum(map(len, restart.in_doubt)),
            )
        self.restarts += bucket_queue.restarts
        bucket_queue.restarts = []
        if bucket_queue.error is not None:
            raise bucket_queue.error

    def _answer(self, bucket_queue: BucketQueue, sending: Sending, future: Future[Any]) -> None:
        self._events.put((bucket_queue, sending, future))

    def _make_call(self, call: PendingCall, target: AppendTarget) -> int | None:
        if call is PendingCall.BEGIN:
            return target.begin(self._identity.writer_id)
        if self._new_id is None:
            raise UnsupportedOperation("The bucket has forgotten this writer, and it can't get a new id; open another.")
        return self._new_id()

    def _settle(self) -> None:
        size, refused = 0, []
        for bucket_queue in self._bucket_queues.values():
            for settled in bucket_queue.settled:
                size += self._open.pop(settled.serial)
                if settled.error is not None:
                    refused.append(Refused(settled.changes, settled.error))
            bucket_queue.settled = []
        if size or refused:
            self.buffer.settle(size, refused)
        first_open = next(iter(self._open), self._serial)
        while self._flushes and self._flushes[0][1] <= first_open:
            ticket, _ = self._flushes.pop(0)
            self.buffer.flushed(ticket)
