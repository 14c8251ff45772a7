"""What may become of a numbered batch: states, events, and the one table of transitions.

* A sequence that was sent is never given up: another batch, maybe an empty one, goes in its place or it is sent again.
* An answer settles a batch if it says what became of its sequence; any other counts only if it is to the latest
  attempt, and while that is awaited.
* What is settled stays so.

docs/sequences.md holds the same table in words, and a test compares them.
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
    """Of one batch of a lane."""

    QUEUED = "queued"
    """It is sent as soon as those before it are."""
    IN_FLIGHT = "in flight"
    """An answer is awaited."""
    BACKING_OFF = "backing off"
    """It is sent again after a while."""
    HELD = "held"
    """It is sent again once it is the next in line."""
    ACKNOWLEDGED = "acknowledged"
    """Its rows are in the table."""
    REFUSED = "refused"
    """Its rows are not, and never will be: an empty batch stands in its place."""
    UNKNOWN = "unknown"
    """Something stands in its place: its rows, or the empty batch."""
    KEPT = "kept"
    """The writer is over; the caller has the rows."""


SETTLED = frozenset({State.ACKNOWLEDGED, State.REFUSED, State.UNKNOWN, State.KEPT})


class Event(Enum):
    """What happens to a batch."""

    SENT = "sent"
    WRITTEN = "written"
    """Its rows are in the log."""
    EMPTY_WRITTEN = "empty written"
    """The empty batch in its place was appended just now, so its rows never were."""
    TAKEN = "taken"
    """Its sequence is in the log, with its rows or without."""
    UNAVAILABLE = "unavailable"
    """Not now; nothing was written."""
    SILENCE = "silence"
    """No answer in time."""
    GAP = "gap"
    """Out of order, as one before it is not there yet."""
    FORGOTTEN = "forgotten"
    """Out of order, though it was the next in line: the bucket does not know the writer any more."""
    CONTENT = "content"
    """Refused for what it holds."""
    OVER = "over"
    """An error after which the writer can't go on."""
    EXPIRED = "expired"
    """It was tried for as long as the caller would wait."""


class Action(Enum):
    """What the lane does beside the change of state."""

    NOTHING = "-"
    BACK_OFF = "send again after a delay"
    EMPTY = "put an empty batch in its place"
    RENUMBER = "new writer id, renumber all from 0"
    SETTLE = "report to the caller"
    END = "end the writer"


class Step(NamedTuple):
    """Where an event leads."""

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
"""What is not here is ignored."""

_WRITER_OVER = (StoreClosed, ForkedStore, NoSuchTable, NotAStore, UnsupportedOperation)
"""Invalid requests that are about the store or the table, not about the rows."""


def is_about_content(error: StoreError) -> bool:
    """Whether an error is about the rows, so that others may be fine."""
    return isinstance(error, InvalidRequest) and not isinstance(error, _WRITER_OVER)


def event_of_error(error: StoreError, *, passed: bool, was_next: bool, was_empty: bool, emptied: bool) -> Event:
    """What an error answered to a batch means.

    Args:
        passed: Whether a later sequence was acknowledged, which is only after this one was.
        was_next: Whether all before it were acknowledged when it was sent.
        was_empty: Whether the attempt that is answered was the empty batch.
        emptied: Whether its rows had been refused before.
    """
    if isinstance(error, OutOfOrderSequence):
        if passed:
            return Event.TAKEN if emptied else Event.WRITTEN
        return Event.FORGOTTEN if was_next else Event.GAP
    if isinstance(error, Unavailable):
        return Event.UNAVAILABLE
    # There is no content left to refuse of an empty batch: nothing that could be sent would be taken.
    return Event.CONTENT if is_about_content(error) and not was_empty else Event.OVER


def event_of_answer(*, offsets: int, duplicated: bool, was_empty: bool, emptied: bool) -> Event | None:
    """What it means that a batch is in the log; None if it says nothing.

    Args:
        offsets: How many the batch took.
        duplicated: Whether it was there before.
        was_empty: Whether the attempt that is answered was the empty batch.
        emptied: Whether an empty batch may have been sent in its place.
    """
    if not duplicated:
        return Event.EMPTY_WRITTEN if was_empty else Event.WRITTEN
    # A batch that took more than one offset is not the empty one. One that took one may be, if that was ever sent:
    # even one attempt may arrive twice, and the second be answered first.
    if offsets > 1 or not emptied:
        return Event.WRITTEN
    return Event.TAKEN if was_empty else None
