"""The batches of one writer in one bucket: which are to be sent now, and what became of each.

* It opens nothing, waits for nothing and knows no clock: time comes in as an argument, in seconds that never go back.
* Only the first five that are not settled are in flight, so that the bucket remembers every one of them.
* Nothing is sent behind a batch that can't be sent yet.

All transitions stand in :mod:`writer.sequence`.
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
    """How long to wait, in seconds.

    Attributes:
        request_timeout: For an answer, before a batch is sent again.
        delivery_timeout: From the first attempt to send a batch until the writer gives up.
        backoff_min, backoff_max: Before the first attempt after a failed one, and at most; it doubles between.
    """

    request_timeout: float = 30.0
    delivery_timeout: float = 120.0
    backoff_min: float = 0.02
    backoff_max: float = 1.0


class Errand(Enum):
    """What a lane needs done before it can go on."""

    BEGIN = "the bucket's begin()"
    NEW_ID = "a new writer id"


@dataclass(frozen=True, slots=True)
class Restart:
    """A bucket did not know the writer any more, and it went on under a new id.

    Attributes:
        bucket: Which bucket.
        before, after: Writer ids.
        in_doubt: Batches sent again of which no attempt was answered before: they may be in the table twice.
    """

    bucket: int
    before: WriterId
    after: WriterId
    in_doubt: tuple[Changes, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of a batch.

    Attributes:
        serial: What it was added with.
        changes: Its rows.
        error: Why they were refused, or that it is not known whether they were written; None if they were.
    """

    serial: int
    changes: Changes
    error: StoreError | None


@dataclass(slots=True, eq=False)
class Batch:
    """One batch in line."""

    serial: int
    changes: Changes
    schema_id: int | None = None
    """Schema it follows; the empty batch in its place does too."""
    state: State = State.QUEUED
    refusal: StoreError | None = None
    """Why its rows were refused: since then an empty batch is in its place."""
    latest: Sending | None = None
    failures: int = 0
    """In a row; what the backoff grows with."""
    unanswered: int = 0
    """Attempts of its rows that were not answered."""
    time: float = 0.0
    """In flight: when the answer is late. Backing off: when it is sent."""
    expires: float | None = None
    reason: StoreError | None = None
    """The last error it met."""


@dataclass(slots=True, eq=False)
class Sending:
    """One attempt to send a batch: what goes to :meth:`writer.target.AppendTarget.submit`."""

    batch: Batch
    changes: Changes
    writer_id: WriterId
    sequence: Sequence
    epoch: Epoch
    was_next: bool
    was_empty: bool
    answered: bool = field(default=False)


class Lane:
    """See above; used by one thread.

    Args:
        jitter: Something from 0 to 1, different each time.

    Attributes:
        settled: What became of batches since the caller last emptied this.
        restarts: New writer ids since the caller last emptied this.
        error: Why the writer is over; None while it is not.
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
        """Sequence of the first in line."""
        # An unnamed writer was nowhere before. A named one has to ask.
        self._errand = Errand.BEGIN if identity.name is not None else None
        self._errand_failures = 0
        self._errand_at = 0.0
        self._errand_expires: float | None = None
        self._forgotten = NO_WRITER
        self._in_doubt: tuple[Changes, ...] = ()

    def add(self, changes: Changes, serial: int = 0, schema_id: int | None = None) -> None:
        """Put a batch at the end of the line.

        Args:
            schema_id: Schema it follows, for it may be sent when the table has another; None for that one.
        """
        self._line.append(Batch(serial, changes, schema_id))

    def __len__(self) -> int:
        return len(self._line)

    @property
    def in_flight(self) -> int:
        """How many batches were sent and await an answer."""
        return sum(batch.state is State.IN_FLIGHT for batch in self._window())

    def unacknowledged(self) -> list[Changes]:
        """Batches of which it is not known that they were written, in order."""
        return [batch.changes for batch in self._line if batch.state not in SETTLED or batch.state is State.KEPT]

    # What is to be done

    def errand(self, now: float) -> Errand | None:
        """What is to be done now before anything can be sent; :meth:`errand_done` or :meth:`errand_failed` follows."""
        if self._errand is None or not self._line or self.error is not None or now < self._errand_at:
            return None
        if self._errand_expires is None:
            self._errand_expires = now + self._timing.delivery_timeout
        return self._errand

    def errand_done(self, found: int | None) -> None:
        """What ``begin`` returned, or the new writer id."""
        if self._errand is Errand.NEW_ID:
            assert found is not None
            self._writer_id = WriterId(found)
            self.restarts.append(Restart(self._bucket, self._forgotten, self._writer_id, self._in_doubt))
        else:
            self._head = next_sequence(NO_SEQUENCE if found is None else Sequence(found))
        self._errand = self._errand_expires = None
        self._errand_failures = 0

    def errand_failed(self, error: StoreError, now: float) -> None:
        """It will be asked again, if that can be of use."""
        if not isinstance(error, Unavailable) or (self._errand_expires is not None and now >= self._errand_expires):
            self.error = error
        self._errand_failures += 1
        self._errand_at = now + self._backoff(self._errand_failures)

    def due(self, now: float) -> list[Sending]:
        """What is to be sent now, in this order; it counts as sent."""
        if self.error is None:
            self._look_at_the_time(now)
        if self._errand is not None or self.error is not None:
            return []
        sendings = []
        for place, batch in enumerate(self._window()):
            if batch.state is State.IN_FLIGHT or batch.state in SETTLED:
                continue
            if (batch.state is State.BACKING_OFF and now < batch.time) or (batch.state is State.HELD and place):
                break
            sendings.append(self._send(batch, place, now))
        return sendings

    def wake_at(self) -> float | None:
        """When :meth:`errand` or :meth:`due` have something to do even if no answer comes."""
        if self.error is not None or not self._line:
            return None
        times = [] if self._errand is None else [self._errand_at]
        waits = self._errand is not None
        for batch in self._window():
            if batch.state in SETTLED:
                continue
            if batch.expires is not None:
                times.append(batch.expires)
            if batch.state is State.IN_FLIGHT:
                times.append(batch.time)
            elif not waits:
                # Whatever comes behind it waits for it.
                waits = True
                times.append(batch.time if batch.state is State.BACKING_OFF else 0.0)
        return min(times, default=None)

    # Answers

    def acknowledged(self, sending: Sending, answer: Appended) -> None:
        """An attempt was answered: it is in the log."""
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
        """An attempt was answered with an error."""
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
        """The batch that an answer is about; None if it is of no interest any more."""
        batch = sending.batch
        if sending.answered or sending.writer_id != self._writer_id or self._errand is Errand.NEW_ID:
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
                self._begin_anew(batch, error)
            case Action.SETTLE:
                self._settle(batch)
            case Action.END:
                self.error = self._why_over(batch, event)

    # Inside

    def _window(self) -> islice[Batch]:
        return islice(self._line, WINDOW)

    def _is_passed(self, batch: Batch) -> bool:
        behind = False
        for other in self._window():
            if behind and other.state in SETTLED and other.state is not State.KEPT:
                return True
            behind = behind or other is batch
        return False

    def _send(self, batch: Batch, place: int, now: float) -> Sending:
        self._happened(batch, Event.SENT)
        batch.time = now + self._timing.request_timeout
        if batch.expires is None:
            batch.expires = now + self._timing.delivery_timeout
        is_empty = batch.refusal is not None
        batch.unanswered += not is_empty
        sequence = Sequence((self._head + place) % (SEQUENCE_MAX + 1))
        changes = Changes.upserts(empty(batch.changes.rows.schema)) if is_empty else batch.changes
        batch.latest = Sending(
            batch, changes, self._writer_id, sequence, self._identity.epoch, was_next=place == 0, was_empty=is_empty
        )
        return batch.latest

    def _look_at_the_time(self, now: float) -> None:
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
                "These rows were refused once, but an earlier attempt may have been written; read the table.",
                bucket=self._bucket,
                rows=len(batch.changes),
                reason=str(batch.refusal),
            )
            error.__cause__ = batch.refusal
        self.settled.append(Settled(batch.serial, batch.changes, error))
        while self._line and self._line[0].state in SETTLED and self._line[0].state is not State.KEPT:
            self._line.popleft()
            self._head = next_sequence(self._head)

    def _begin_anew(self, forgotten: Batch, error: StoreError) -> None:
        """Number everything that is not settled anew, under an id to come."""
        if self._identity.name is not None:
            forgotten.state = State.KEPT
            self.error = error
            return
        in_doubt = []
        for batch in list(self._line):
            if batch.state in SETTLED:
                continue
            if batch.refusal is not None:
                # The new id has no gap to fill. The old one may have been sent the rows with no answer yet.
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
        self._errand, self._errand_at = Errand.NEW_ID, 0.0

    def _why_over(self, batch: Batch, event: Event) -> StoreError:
        if event is Event.OVER and batch.reason is not None:
            return batch.reason
        error = NotAcknowledged(
            "A batch was not acknowledged in time; whether these rows were written is not known.",
            bucket=self._bucket,
            rows=len(batch.changes),
            seconds=self._timing.delivery_timeout,
            reason=str(batch.reason) if batch.reason else "no answer",
        )
        error.__cause__ = batch.reason
        return error
