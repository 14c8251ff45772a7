"""States and events of a numbered batch, and the one table of transitions.

* A sequence that was sent is never given up: its batch is sent again, or another batch, maybe an empty one, takes its
  place.
* An answer settles a batch if it states the outcome of its sequence; any other answer counts only for the latest
  attempt, while that is in flight.
* A settled batch stays settled.

docs/sequences.md holds the same table in words; a test compares them.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from logformat.errors import (
    ForkedStore,
    InvalidRequest,
    NoSuchTable,
    NotAStore,
    OutOfOrderSequence,
    StoreClosed,
    StoreError,
    Unavailable,
    UnsupportedOperation,
)


class State(Enum):
    """State of one batch in a bucket queue."""

    QUEUED = "queued"
    """It is sent as soon as the batches before it are."""
    IN_FLIGHT = "in flight"
    """It awaits an answer."""
    BACKING_OFF = "backing off"
    """It is sent again after a delay."""
    HELD = "held"
    """It is sent again once it is the first in the queue."""
    ACKNOWLEDGED = "acknowledged"
    """Its rows are in the table."""
    REFUSED = "refused"
    """Its rows are not in the table and never will be: an empty batch has its sequence."""
    UNKNOWN = "unknown"
    """Either its rows or the empty batch have its sequence."""
    KEPT = "kept"
    """The writer has ended; the caller has the rows."""


SETTLED = frozenset({State.ACKNOWLEDGED, State.REFUSED, State.UNKNOWN, State.KEPT})


class Event(Enum):
    """An event in the life of a batch."""

    SENT = "sent"
    WRITTEN = "written"
    """Its rows are in the log."""
    EMPTY_WRITTEN = "empty written"
    """The bucket just appended the empty batch in its place, so its rows were never written."""
    TAKEN = "taken"
    """Its sequence is in the log, with or without its rows."""
    UNAVAILABLE = "unavailable"
    """The bucket can't take it now; nothing was written."""
    SILENCE = "silence"
    """No answer in time."""
    GAP = "gap"
    """Out of order: a batch before it is missing."""
    FORGOTTEN = "forgotten"
    """Out of order, although it was the next: the bucket has forgotten the writer."""
    CONTENT = "content"
    """Refused because of its content."""
    OVER = "over"
    """An error after which the writer can't continue."""
    EXPIRED = "expired"
    """The delivery timeout has passed."""


class Action(Enum):
    """What the bucket queue does in addition to the change of state."""

    NOTHING = "-"
    BACK_OFF = "send again after a delay"
    EMPTY = "put an empty batch in its place"
    RENUMBER = "new writer id, renumber all from 0"
    SETTLE = "report to the caller"
    END = "end the writer"


class Step(NamedTuple):
    """Result of an event."""

    state: State
    action: Action = Action.NOTHING


_SETTLING = {
    Event.WRITTEN: Step(State.ACKNOWLEDGED, Action.SETTLE),
    Event.EMPTY_WRITTEN: Step(State.REFUSED, Action.SETTLE),
    Event.TAKEN: Step(State.UNKNOWN, Action.SETTLE),
    Event.OVER: Step(State.KEPT, Action.END),
    Event.EXPIRED: Step(State.KEPT, Action.END),
}
_TO_SEND = {Event.SENT: Step(State.IN_FLIGHT), **_SETTLING}

TRANSITIONS: dict[State, dict[Event, Step]] = {
    State.QUEUED: _TO_SEND,
    State.IN_FLIGHT: {
        Event.UNAVAILABLE: Step(State.BACKING_OFF, Action.BACK_OFF),
        Event.SILENCE: Step(State.BACKING_OFF, Action.BACK_OFF),
        Event.GAP: Step(State.HELD),
        Event.FORGOTTEN: Step(State.QUEUED, Action.RENUMBER),
        Event.CONTENT: Step(State.QUEUED, Action.EMPTY),
        **_SETTLING,
    },
    State.BACKING_OFF: _TO_SEND,
    State.HELD: _TO_SEND,
    State.ACKNOWLEDGED: {},
    State.REFUSED: {},
    State.UNKNOWN: {},
    State.KEPT: {},
}
"""Events that are not listed for a state are ignored."""

_WRITER_OVER = (StoreClosed, ForkedStore, NoSuchTable, NotAStore, UnsupportedOperation)
"""Invalid requests that concern the store or the table, not the rows."""


def is_about_content(error: StoreError) -> bool:
    """Whether an error concerns the rows, so that other rows may be accepted."""
    return isinstance(error, InvalidRequest) and not isinstance(error, _WRITER_OVER)


def event_of_error(error: StoreError, *, passed: bool, was_next: bool, was_empty: bool, emptied: bool) -> Event:
    """The meaning of an error that answers a batch.

    Args:
        passed: Whether a later sequence was acknowledged; that implies that this one was written.
        was_next: Whether all batches before it were acknowledged when it was sent.
        was_empty: Whether the answered attempt was the empty batch.
        emptied: Whether its rows were refused before.
    """
    if isinstance(error, OutOfOrderSequence):
        if passed:
            return Event.TAKEN if emptied else Event.WRITTEN
        return Event.FORGOTTEN if was_next else Event.GAP
    if isinstance(error, Unavailable):
        return Event.UNAVAILABLE
    # An empty batch has no content left to refuse: the target would take nothing that could be sent.
    return Event.CONTENT if is_about_content(error) and not was_empty else Event.OVER


def event_of_answer(*, offsets: int, duplicated: bool, was_empty: bool, emptied: bool) -> Event | None:
    """The meaning of an answer that a batch is in the log; None if it settles nothing.

    Args:
        offsets: Number of offsets that the batch took.
        duplicated: Whether the bucket had it before.
        was_empty: Whether the answered attempt was the empty batch.
        emptied: Whether an empty batch may have been sent in its place.
    """
    if not duplicated:
        return Event.EMPTY_WRITTEN if was_empty else Event.WRITTEN
    # A batch that took more than one offset is not the empty one. One that took one offset may be, if the empty batch
    # was ever sent: even one attempt may arrive twice, and the second copy may be answered first.
    if offsets > 1 or not emptied:
        return Event.WRITTEN
    return Event.TAKEN if was_empty else None
