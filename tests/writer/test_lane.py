"""One bucket's batches: what is sent when, and what an answer means."""

from __future__ import annotations

import pytest

from logformat.errors import (
    AggregateOverflow,
    CorruptData,
    ForkedStore,
    InvalidRequest,
    LogFailed,
    NoSuchTable,
    NotAcknowledged,
    OutOfOrderSequence,
    SchemaMismatch,
    StoreClosed,
    StoreError,
    StoreFull,
    StoreLocked,
    UnsupportedOperation,
    WriterFenced,
)
from logformat.ids import SEQUENCE_MAX, Epoch, WriterId
from tests.writer.lanes import DUPLICATE, LONG_DUPLICATE, Answer, keys_of, lane_of, sequences, told
from writer.lane import Errand
from writer.target import Identity

NAMED = Identity(WriterId(7), Epoch(3), "loader")
OUT_OF_ORDER = OutOfOrderSequence("Out of order.")
OVERFLOW = AggregateOverflow("Too much.")
LOCKED = StoreLocked("Locked.")


def test_five_are_in_flight_and_each_answer_lets_one_more_go() -> None:
    lane = lane_of(8)
    sent = lane.due(0.0)
    assert sequences(sent) == [0, 1, 2, 3, 4]
    assert lane.due(0.0) == []
    lane.acknowledged(sent[0], Answer())
    (sixth,) = lane.due(0.0)
    assert (sixth.sequence, sixth.writer_id, keys_of(sixth.changes)) == (5, 7, [5])


def test_answers_may_come_in_any_order_but_the_window_begins_at_the_first_that_is_open() -> None:
    lane = lane_of(8)
    sent = lane.due(0.0)
    for place in (4, 2, 1, 3):
        lane.acknowledged(sent[place], Answer())
    assert told(lane) == [(4, None), (2, None), (1, None), (3, None)]
    # The bucket remembers five: were a later one sent, it could forget the first.
    assert lane.due(0.0) == []
    lane.acknowledged(sent[0], Answer())
    assert sequences(lane.due(0.0)) == [5, 6, 7]


def test_a_duplicate_is_a_success_and_a_second_answer_is_ignored() -> None:
    lane = lane_of(1)
    (sent,) = lane.due(0.0)
    lane.acknowledged(sent, DUPLICATE)
    lane.acknowledged(sent, DUPLICATE)
    lane.failed(sent, OVERFLOW, 0.0)
    assert told(lane) == [(0, None)]
    assert lane.error is None


@pytest.mark.parametrize("error", [LOCKED, StoreFull("Full.")])
def test_not_now_is_tried_again_with_the_same_sequence_later_and_later(error: StoreError) -> None:
    lane = lane_of(2)
    first, _ = lane.due(0.0)
    now = 0.0
    for wait in (1.0, 2.0, 4.0, 4.0):
        lane.failed(first, error, now)
        assert lane.wake_at() is not None
        assert lane.due(now + wait - 0.01) == []
        now += wait
        (first,) = lane.due(now)
        assert (first.sequence, keys_of(first.changes)) == (0, [0])
    lane.acknowledged(first, Answer())
    assert told(lane) == [(0, None)]


def test_chance_shortens_a_wait_by_half_at_most() -> None:
    lane = lane_of(1, jitter=0.0)
    (sent,) = lane.due(0.0)
    lane.failed(sent, LOCKED, 0.0)
    assert lane.wake_at() == 0.5


def test_silence_has_it_sent_again_and_any_attempt_may_be_answered() -> None:
    lane = lane_of(1)
    (first,) = lane.due(0.0)
    assert lane.wake_at() == 10.0
    assert lane.due(9.9) == []
    assert lane.due(10.0) == []
    assert lane.wake_at() == 11.0
    (second,) = lane.due(11.0)
    assert (first.sequence, second.sequence) == (0, 0)
    lane.acknowledged(first, Answer())
    lane.acknowledged(second, DUPLICATE)
    assert told(lane) == [(0, None)]


def test_nothing_is_sent_behind_one_that_waits() -> None:
    lane = lane_of(3)
    sent = lane.due(0.0)
    for each in sent:
        lane.failed(each, LOCKED, 0.0)
    assert lane.due(0.5) == []
    assert sequences(lane.due(1.0)) == [0, 1, 2]


def test_behind_a_gap_each_waits_until_it_is_the_next() -> None:
    lane = lane_of(4)
    first, second, third, _ = lane.due(0.0)
    lane.failed(second, OUT_OF_ORDER, 1.0)
    lane.failed(third, OUT_OF_ORDER, 1.0)
    assert lane.due(9.0) == []
    lane.acknowledged(first, Answer())
    (again,) = lane.due(9.0)
    assert again.sequence == 1
    assert lane.error is None
    assert lane.errand(9.0) is None


def test_an_answer_out_of_order_is_judged_by_what_was_known_when_it_was_sent() -> None:
    """It came late: meanwhile the missing one was acknowledged, and the bucket has forgotten nothing."""
    lane = lane_of(2)
    first, second = lane.due(0.0)
    lane.acknowledged(first, Answer())
    lane.failed(second, OUT_OF_ORDER, 0.0)
    assert lane.errand(0.0) is None
    (again,) = lane.due(0.0)
    assert (again.sequence, again.writer_id) == (1, 7)


def test_out_of_order_behind_the_last_acknowledged_is_a_success() -> None:
    lane = lane_of(3)
    first, second, third = lane.due(0.0)
    lane.acknowledged(third, Answer())
    lane.failed(first, OUT_OF_ORDER, 0.0)
    lane.failed(second, OUT_OF_ORDER, 0.0)
    assert told(lane) == [(2, None), (0, None), (1, None)]


def test_a_forgotten_writer_goes_on_under_a_new_id_and_says_what_may_be_there_twice() -> None:
    lane = lane_of(4)
    sent = lane.due(0.0)
    lane.acknowledged(sent[0], Answer())
    lane.due(10.0)  # silence
    (again,) = lane.due(11.0)[:1]
    lane.failed(again, OUT_OF_ORDER, 11.0)
    assert lane.errand(11.0) is Errand.NEW_ID
    assert lane.due(11.0) == []
    lane.errand_done(8)
    renumbered = lane.due(11.0)
    assert [(each.writer_id, each.sequence, keys_of(each.changes)) for each in renumbered] == [
        (8, 0, [1]),
        (8, 1, [2]),
        (8, 2, [3]),
    ]
    (restart,) = lane.restarts
    assert (restart.before, restart.after) == (7, 8)
    assert [keys_of(changes) for changes in restart.in_doubt] == [[1], [2], [3]]
    # Answers to the old id say nothing any more.
    lane.acknowledged(sent[1], Answer())
    lane.failed(again, WriterFenced("Fenced."), 12.0)
    told(lane)
    lane.acknowledged(renumbered[0], Answer())
    assert told(lane) == [(1, None)]


def test_what_was_answered_is_in_no_doubt_after_a_restart() -> None:
    lane = lane_of(2)
    first, second = lane.due(0.0)
    lane.acknowledged(first, Answer())
    lane.failed(second, OUT_OF_ORDER, 0.0)
    (second,) = lane.due(0.0)
    lane.failed(second, OUT_OF_ORDER, 0.0)
    lane.errand(0.0)
    lane.errand_done(8)
    assert lane.restarts[0].in_doubt == ()


def test_a_new_id_is_asked_for_until_there_is_one() -> None:
    lane = lane_of(1)
    (sent,) = lane.due(0.0)
    lane.failed(sent, OUT_OF_ORDER, 0.0)
    assert lane.errand(0.0) is Errand.NEW_ID
    lane.errand_failed(LOCKED, 0.0)
    assert lane.errand(0.5) is None
    assert lane.wake_at() == 1.0
    assert lane.errand(1.0) is Errand.NEW_ID
    lane.errand_failed(NoSuchTable("Gone."), 1.0)
    assert isinstance(lane.error, NoSuchTable)


def test_a_forgotten_writer_with_a_name_is_over() -> None:
    lane = lane_of(2, NAMED)
    assert lane.due(0.0) == []
    assert lane.errand(0.0) is Errand.BEGIN
    lane.errand_done(None)
    first, _ = lane.due(0.0)
    assert (first.sequence, first.epoch) == (0, 3)
    lane.failed(first, OUT_OF_ORDER, 0.0)
    assert lane.error is OUT_OF_ORDER
    assert lane.due(50.0) == []
    assert [keys_of(changes) for changes in lane.unacknowledged()] == [[0], [1]]


def test_a_named_writer_goes_on_behind_what_the_bucket_has() -> None:
    lane = lane_of(3, NAMED)
    assert lane.errand(0.0) is Errand.BEGIN
    lane.errand_failed(LOCKED, 0.0)
    assert lane.errand(1.0) is Errand.BEGIN
    lane.errand_done(SEQUENCE_MAX - 1)
    assert sequences(lane.due(1.0)) == [SEQUENCE_MAX, 0, 1]


def test_beginning_is_given_up_in_time() -> None:
    lane = lane_of(1, NAMED)
    assert lane.errand(0.0) is Errand.BEGIN
    lane.errand_failed(LOCKED, 0.0)
    lane.errand_failed(LOCKED, 100.0)
    assert lane.error is LOCKED


@pytest.mark.parametrize("error", [OVERFLOW, SchemaMismatch("No."), InvalidRequest("Too large.")])
def test_an_empty_batch_takes_the_place_of_a_refused_one(error: StoreError) -> None:
    lane = lane_of(3)
    first, second, third = lane.due(0.0)
    lane.failed(first, error, 0.0)
    lane.failed(second, OUT_OF_ORDER, 0.0)
    lane.failed(third, OUT_OF_ORDER, 0.0)
    (empty,) = lane.due(0.0)
    assert (empty.sequence, empty.writer_id, len(empty.changes)) == (0, 7, 0)
    assert told(lane) == []
    lane.acknowledged(empty, Answer())
    assert told(lane) == [(0, type(error).__name__)]
    (second,) = lane.due(0.0)
    assert (second.sequence, keys_of(second.changes)) == (1, [1])


@pytest.mark.parametrize("error", [OVERFLOW, SchemaMismatch("No."), InvalidRequest("Too large.")])
def test_an_empty_batch_that_is_refused_ends_the_writer(error: StoreError) -> None:
    """It has no content: nothing that could be sent would be taken."""
    lane = lane_of(2)
    first, _ = lane.due(0.0)
    lane.failed(first, OVERFLOW, 0.0)
    (empty,) = lane.due(0.0)
    lane.failed(empty, error, 0.0)
    assert lane.error is error
    assert lane.due(50.0) == []
    assert [keys_of(changes) for changes in lane.unacknowledged()] == [[0], [1]]


def emptied_twice() -> tuple:
    lane = lane_of(1)
    (rows,) = lane.due(0.0)
    lane.due(10.0)  # silence
    (rows_again,) = lane.due(11.0)
    lane.failed(rows_again, OVERFLOW, 11.0)
    (empty,) = lane.due(11.0)
    lane.due(21.0)  # silence
    (empty_again,) = lane.due(22.0)
    assert len(empty_again.changes) == 0
    return lane, rows, empty, empty_again


def test_a_late_copy_of_refused_rows_may_be_written_before_the_empty_batch() -> None:
    lane, rows, empty, empty_again = emptied_twice()
    lane.acknowledged(rows, Answer())
    lane.acknowledged(empty, DUPLICATE)
    lane.acknowledged(empty_again, DUPLICATE)
    assert told(lane) == [(0, None)]


def test_more_than_one_offset_tells_that_the_rows_were_written() -> None:
    lane, _, _, empty_again = emptied_twice()
    lane.acknowledged(empty_again, LONG_DUPLICATE)
    assert told(lane) == [(0, None)]


def test_a_duplicate_of_an_empty_batch_leaves_open_what_is_there() -> None:
    lane, _, empty, _ = emptied_twice()
    lane.acknowledged(empty, DUPLICATE)
    (settled,) = lane.settled
    assert isinstance(settled.error, NotAcknowledged)
    assert settled.error.__cause__ is OVERFLOW


def test_a_duplicate_answered_to_the_rows_may_be_the_empty_batch() -> None:
    lane, rows, empty, _ = emptied_twice()
    lane.acknowledged(rows, DUPLICATE)
    assert told(lane) == []
    lane.acknowledged(empty, Answer())
    assert told(lane) == [(0, "AggregateOverflow")]


def test_an_empty_batch_that_is_passed_leaves_open_what_is_there() -> None:
    lane = lane_of(2)
    first, second = lane.due(0.0)
    lane.failed(first, OVERFLOW, 0.0)
    (empty,) = lane.due(0.0)
    lane.acknowledged(second, Answer())
    lane.failed(empty, OUT_OF_ORDER, 0.0)
    assert told(lane) == [(1, None), (0, "NotAcknowledged")]


def test_refused_rows_are_not_sent_under_a_new_id() -> None:
    lane = lane_of(2)
    first, _ = lane.due(0.0)
    lane.failed(first, OVERFLOW, 0.0)
    (empty,) = lane.due(0.0)
    lane.failed(empty, OUT_OF_ORDER, 0.0)
    assert told(lane) == [(0, "AggregateOverflow")]
    lane.errand(0.0)
    lane.errand_done(8)
    assert [(each.sequence, keys_of(each.changes)) for each in lane.due(0.0)] == [(0, [1])]


@pytest.mark.parametrize(
    "error",
    [
        *(StoreClosed("x"), ForkedStore("x"), NoSuchTable("x"), UnsupportedOperation("x")),
        *(WriterFenced("x"), CorruptData("x"), LogFailed("x")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_after_which_nothing_goes_on(error: StoreError) -> None:
    lane = lane_of(7)
    first, second, *_ = lane.due(0.0)
    lane.acknowledged(first, Answer())
    lane.failed(second, error, 0.0)
    assert lane.error is error
    assert lane.due(50.0) == []
    assert lane.wake_at() is None
    assert [keys_of(changes) for changes in lane.unacknowledged()] == [[1], [2], [3], [4], [5], [6]]


def test_what_is_not_acknowledged_in_time_ends_the_writer() -> None:
    lane = lane_of(2)
    now = 0.0
    while lane.error is None:
        lane.due(now)
        wake = lane.wake_at()
        assert wake is None or wake > now
        now = now if wake is None else wake
    assert now == 100.0
    assert isinstance(lane.error, NotAcknowledged)
    assert len(lane.unacknowledged()) == 2


def test_the_reason_of_a_delivery_that_failed_is_told() -> None:
    lane = lane_of(1)
    now = 0.0
    while lane.error is None:
        for sending in lane.due(now):
            lane.failed(sending, LOCKED, now)
        now += 1.0
    assert lane.error.__cause__ is LOCKED
    assert "Locked." in str(lane.error)
