"""Queue of one writer's batches in one bucket: decides which to send now, and what the answers mean.

* It opens nothing, waits for nothing and has no clock: time comes in as an argument, in seconds, and never goes back.
* Only the first five unsettled batches are in flight, so that the bucket remembers every one of them.
* No batch is sent after one that can't be sent yet.

All transitions are in :mod:`writer.sequence`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice

from logformat.errors import NotAcknowledged, StoreError, Unavailable
from logformat.ids import NO_SEQUENCE, NO_WRITER, SEQUENCE_MAX, Epoch, Sequence, WriterId, next_sequence
from logformat.log.writer_entry import WINDOW
from logformat.rows.changes import Changes
from logformat.rows.intake import empty
from writer.sequence import SETTLED, TRANSITIONS, Action, Event, State, event_of_answer, event_of_error
from writer.target import Appended, Identity


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts and delays, in seconds.

    Attributes:
        request_timeout: Time to wait for an answer before a batch is sent again.
        delivery_timeout: Time from the first attempt to send a batch until the writer gives up.
        backoff_min, backoff_max: Delay before the first retry, and the maximum; it doubles in between.
    """

    request_timeout: float = 30.0
    delivery_timeout: float = 120.0
    backoff_min: float = 0.02
    backoff_max: float = 1.0


class PendingCall(Enum):
    """A call that must be made before the queue can send."""

    BEGIN = "the bucket's begin()"
    NEW_ID = "a new writer id"


@dataclass(frozen=True, slots=True)
class Restart:
    """The bucket forgot the writer, and the writer continued under a new id.

    Attributes:
        bucket: The bucket.
        before, after: The old and the new writer id.
        in_doubt: Batches sent again although an earlier attempt was never answered: the table may have them twice.
    """

    bucket: int
    before: WriterId
    after: WriterId
    in_doubt: tuple[Changes, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """Outcome of a batch.

    Attributes:
        serial: The serial that it was added with.
        changes: Its rows.
        error: Why they were refused, or that it is unknown whether they were written; None if they were written.
    """

    serial: int
    changes: Changes
    error: StoreError | None


@dataclass(slots=True, eq=False)
class Batch:
    """One batch of the queue."""

    serial: int
    changes: Changes
    schema_id: int | None = None
    """Schema of the rows, and of the empty batch that may take their place."""
    state: State = State.QUEUED
    refusal: StoreError | None = None
    """Why its rows were refused; if set, an empty batch takes their place."""
    latest: Sending | None = None
    failures: int = 0
    """Consecutive failures; the backoff grows with them."""
    unanswered: int = 0
    """Attempts to send its rows that were not answered."""
    time: float = 0.0
    """In flight: when the request times out. Backing off: when to send again."""
    expires: float | None = None
    reason: StoreError | None = None
    """The last error."""


@dataclass(slots=True, eq=False)
class Sending:
    """One attempt to send a batch: the arguments of :meth:`writer.target.AppendTarget.submit`."""

    batch: Batch
    changes: Changes
    writer_id: WriterId
    sequence: Sequence
    epoch: Epoch
    was_next: bool
    was_empty: bool
    answered: bool = field(default=False)


class BucketQueue:
    """The queue of one bucket; see the module. Used by one thread.

    Args:
        jitter: Returns a number from 0 to 1, different each time.

    Attributes:
        settled: Outcomes of batches since the caller last emptied this list.
        restarts: New writer ids since the caller last emptied this list.
        error: Why the writer ended; None while it runs.
    """

    def __init__(self, bucket: int, identity: Identity, timing: Timing, jitter: Callable[[], float]) -> None:
        self.settled: list[Settled] = []
        self.restarts: list[Restart] = []
        self.error: StoreError | None = None
        self._bucket = bucket
        self._identity = identity
        self._writer_id = identity.writer_id
        self._timing = timing
        self._jitter = jitter
        self._line: deque[Batch] = deque()
        self._head = next_sequence(NO_SEQUENCE)
        """Sequence of the first batch in the queue."""
        # An unnamed writer is new to every bucket. A named one must ask for its last sequence.
        self._pending = PendingCall.BEGIN if identity.name is not None else None
        self._call_failures = 0
        self._call_at = 0.0
        self._call_expires: float | None = None
        self._forgotten = NO_WRITER
        self._in_doubt: tuple[Changes, ...] = ()

    def add(self, changes: Changes, serial: int = 0, schema_id: int | None = None) -> None:
        """Append a batch to the queue.

        Args:
            schema_id: Schema of the rows, since the table may have a later one when they are sent; None for the current
                one.
        """
        self._line.append(Batch(serial, changes, schema_id))

    def __len__(self) -> int:
        return len(self._line)

    @property
    def in_flight(self) -> int:
        """Number of batches that were sent and await an answer."""
        return sum(batch.state is State.IN_FLIGHT for batch in self._window())

    def unacknowledged(self) -> list[Changes]:
        """Batches that are not known to be written, in order."""
        return [batch.changes for batch in self._line if batch.state not in SETTLED or batch.state is State.KEPT]

    # What to do next

    def pending_call(self, now: float) -> PendingCall | None:
        """The call to make now, before anything is sent; :meth:`call_succeeded` or :meth:`call_failed` follows."""
        if self._pending is None or not self._line or self.error is not None or now < self._call_at:
            return None
        if self._call_expires is None:
            self._call_expires = now + self._timing.delivery_timeout
        return self._pending

    def call_succeeded(self, answer: int | None) -> None:
        """Take the result of the pending call: what ``begin`` returned, or the new writer id."""
        if self._pending is PendingCall.NEW_ID:
            assert answer is not None
            self._writer_id = WriterId(answer)
            self.restarts.append(Restart(self._bucket, self._forgotten, self._writer_id, self._in_doubt))
        else:
            self._head = next_sequence(NO_SEQUENCE if answer is None else Sequence(answer))
        self._pending = self._call_expires = None
        self._call_failures = 0

    def call_failed(self, error: StoreError, now: float) -> None:
        """Record that the pending call failed; it is retried if that can help."""
        if not isinstance(error, Unavailable) or (self._call_expires is not None and now >= self._call_expires):
            self.error = error
        self._call_failures += 1
        self._call_at = now + self._backoff(self._call_failures)

    def due(self, now: float) -> list[Sending]:
        """The batches to send now, in this order; they count as sent."""
        if self.error is None:
            self._check_timeouts(now)
        if self._pending is not None or self.error is not None:
            return []
        sendings = []
        for number, batch in enumerate(self._window()):
            if batch.state is State.IN_FLIGHT or batch.state in SETTLED:
                continue
            if (batch.state is State.BACKING_OFF and now < batch.time) or (batch.state is State.HELD and number):
                break
            sendings.append(self._send(batch, number, now))
        return sendings

    def wake_at(self) -> float | None:
        """The time at which :meth:`pending_call` or :meth:`due` has something to do even if no answer arrives."""
        if self.error is not None or not self._line:
            return None
        times = [] if self._pending is None else [self._call_at]
        waits = self._pending is not None
        for batch in self._window():
            if batch.state in SETTLED:
                continue
            if batch.expires is not None:
                times.append(batch.expires)
            if batch.state is State.IN_FLIGHT:
                times.append(batch.time)
            elif not waits:
                # Every later batch waits for this one.
                waits = True
                times.append(batch.time if batch.state is State.BACKING_OFF else 0.0)
        return min(times, default=None)

    # Answers

    def acknowledged(self, sending: Sending, answer: Appended) -> None:
        """Take an answer: the batch of this attempt is in the log."""
        batch = self._answered(sending)
        if batch is not None:
            event = event_of_answer(
                offsets=answer.last_offset - answer.first_offset + 1,
                duplicated=answer.duplicated,
                was_empty=sending.was_empty,
                emptied=batch.refusal is not None,
            )
            if event is not None:
                self._happened(batch, event)

    def failed(self, sending: Sending, error: StoreError, now: float) -> None:
        """Take an error that answers an attempt."""
        batch = self._answered(sending)
        if batch is None:
            return
        event = event_of_error(
            error,
            passed=self._is_passed(batch),
            was_next=sending.was_next,
            was_empty=sending.was_empty,
            emptied=batch.refusal is not None,
        )
        settles = TRANSITIONS[State.IN_FLIGHT][event].state in SETTLED
        if settles or sending is batch.latest:
            self._happened(batch, event, error, now)

    def _answered(self, sending: Sending) -> Batch | None:
        """The batch that an answer is about; None if the answer no longer matters."""
        batch = sending.batch
        if sending.answered or sending.writer_id != self._writer_id or self._pending is PendingCall.NEW_ID:
            return None
        sending.answered = True
        batch.unanswered -= not sending.was_empty
        return batch

    def _happened(self, batch: Batch, event: Event, error: StoreError | None = None, now: float = 0.0) -> None:
        step = TRANSITIONS[batch.state].get(event)
        if step is None:
            return
        batch.state, batch.reason = step.state, error or batch.reason
        match step.action:
            case Action.BACK_OFF:
                batch.failures += 1
                batch.time = now + self._backoff(batch.failures)
            case Action.EMPTY:
                assert error is not None
                batch.refusal, batch.failures = batch.refusal or error, 0
            case Action.RENUMBER:
                assert error is not None
                self._renumber(batch, error)
            case Action.SETTLE:
                self._settle(batch)
            case Action.END:
                self.error = self._end_reason(batch, event)

    # Inside

    def _window(self) -> islice[Batch]:
        return islice(self._line, WINDOW)

    def _is_passed(self, batch: Batch) -> bool:
        is_later = False
        for other in self._window():
            if is_later and other.state in SETTLED and other.state is not State.KEPT:
                return True
            is_later = is_later or other is batch
        return False

    def _send(self, batch: Batch, number: int, now: float) -> Sending:
        self._happened(batch, Event.SENT)
        batch.time = now + self._timing.request_timeout
        if batch.expires is None:
            batch.expires = now + self._timing.delivery_timeout
        is_empty = batch.refusal is not None
        batch.unanswered += not is_empty
        sequence = Sequence((self._head + number) % (SEQUENCE_MAX + 1))
        changes = Changes.upserts(empty(batch.changes.rows.schema)) if is_empty else batch.changes
        batch.latest = Sending(
            batch, changes, self._writer_id, sequence, self._identity.epoch, was_next=number == 0, was_empty=is_empty
        )
        return batch.latest

    def _check_timeouts(self, now: float) -> None:
        for batch in list(self._window()):
            if batch.state in SETTLED:
                continue
            if batch.expires is not None and now >= batch.expires:
                self._happened(batch, Event.EXPIRED)
            elif batch.state is State.IN_FLIGHT and now >= batch.time:
                self._happened(batch, Event.SILENCE, None, now)

    def _backoff(self, failures: int) -> float:
        longest = min(self._timing.backoff_max, self._timing.backoff_min * 2.0 ** min(failures - 1, 30))
        return longest * (0.5 + self._jitter() / 2)

    def _settle(self, batch: Batch) -> None:
        error = None
        if batch.state is State.REFUSED:
            error = batch.refusal
        elif batch.state is State.UNKNOWN:
            error = NotAcknowledged(
                "These rows were refused, but an earlier attempt may have been written; read the table to find out.",
                bucket=self._bucket,
                rows=len(batch.changes),
                reason=str(batch.refusal),
            )
            error.__cause__ = batch.refusal
        self.settled.append(Settled(batch.serial, batch.changes, error))
        while self._line and self._line[0].state in SETTLED and self._line[0].state is not State.KEPT:
            self._line.popleft()
            self._head = next_sequence(self._head)

    def _renumber(self, forgotten: Batch, error: StoreError) -> None:
        """Give everything that is not settled new sequences, under a writer id to come."""
        if self._identity.name is not None:
            forgotten.state = State.KEPT
            self.error = error
            return
        in_doubt = []
        for batch in list(self._line):
            if batch.state in SETTLED:
                continue
            if batch.refusal is not None:
                # The new id leaves no gap to fill. Under the old id the rows may have been sent, unanswered.
                batch.state = State.UNKNOWN if batch.unanswered else State.REFUSED
                self._settle(batch)
                continue
            if batch.unanswered:
                in_doubt.append(batch.changes)
            batch.state, batch.latest, batch.unanswered, batch.failures = State.QUEUED, None, 0, 0
        self._line = deque(batch for batch in self._line if batch.state not in SETTLED)
        self._head = next_sequence(NO_SEQUENCE)
        self._forgotten, self._writer_id = self._writer_id, NO_WRITER
        self._in_doubt = tuple(in_doubt)
        self._pending, self._call_at = PendingCall.NEW_ID, 0.0

    def _end_reason(self, batch: Batch, event: Event) -> StoreError:
        if event is Event.OVER and batch.reason is not None:
            return batch.reason
        error = NotAcknowledged(
            "A batch was not acknowledged in time; it is unknown whether its rows were written.",
            bucket=self._bucket,
            rows=len(batch.changes),
            seconds=self._timing.delivery_timeout,
            reason=str(batch.reason) if batch.reason else "no answer",
        )
        error.__cause__ = batch.reason
        return error
