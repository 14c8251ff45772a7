"""A bucket queue: which batches it sends when, and what answers mean."""

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
from tests.writer.bucket_queues import DUPLICATE, LONG_DUPLICATE, Answer, keys_of, lane_of, outcomes, sequences
from writer.bucket_queue import PendingCall
from writer.target import Identity

NAMED = Identity(WriterId(7), Epoch(3), "loader")
OUT_OF_ORDER = OutOfOrderSequence("Out of order.")
OVERFLOW = AggregateOverflow("Too much.")
LOCKED = StoreLocked("Locked.")


def test_five_batches_are_in_flight_and_each_answer_admits_one_more() -> None:
    bucket_queue = lane_of(8)
    sent = bucket_queue.due(0.0)
    assert sequences(sent) == [0, 1, 2, 3, 4]
    assert bucket_queue.due(0.0) == []
    bucket_queue.acknowledged(sent[0], Answer())
    (sixth,) = bucket_queue.due(0.0)
    assert (sixth.sequence, sixth.writer_id, keys_of(sixth.changes)) == (5, 7, [5])


def test_answers_may_arrive_in_any_order_but_the_window_begins_at_the_first_unsettled() -> None:
    bucket_queue = lane_of(8)
    sent = bucket_queue.due(0.0)
    for place in (4, 2, 1, 3):
        bucket_queue.acknowledged(sent[place], Answer())
    assert outcomes(bucket_queue) == [(4, None), (2, None), (1, None), (3, None)]
    # The bucket remembers five: if a later batch were sent, it could forget the first.
    assert bucket_queue.due(0.0) == []
    bucket_queue.acknowledged(sent[0], Answer())
    assert sequences(bucket_queue.due(0.0)) == [5, 6, 7]


def test_a_duplicate_is_a_success_and_a_second_answer_is_ignored() -> None:
    bucket_queue = lane_of(1)
    (sent,) = bucket_queue.due(0.0)
    bucket_queue.acknowledged(sent, DUPLICATE)
    bucket_queue.acknowledged(sent, DUPLICATE)
    bucket_queue.failed(sent, OVERFLOW, 0.0)
    assert outcomes(bucket_queue) == [(0, None)]
    assert bucket_queue.error is None


@pytest.mark.parametrize("error", [LOCKED, StoreFull("Full.")])
def test_an_unavailable_bucket_is_retried_with_the_same_sequence_and_growing_delays(error: StoreError) -> None:
    bucket_queue = lane_of(2)
    first, _ = bucket_queue.due(0.0)
    now = 0.0
    for wait in (1.0, 2.0, 4.0, 4.0):
        bucket_queue.failed(first, error, now)
        assert bucket_queue.wake_at() is not None
        assert bucket_queue.due(now + wait - 0.01) == []
        now += wait
        (first,) = bucket_queue.due(now)
        assert (first.sequence, keys_of(first.changes)) == (0, [0])
    bucket_queue.acknowledged(first, Answer())
    assert outcomes(bucket_queue) == [(0, None)]


def test_jitter_shortens_a_delay_by_at_most_half() -> None:
    bucket_queue = lane_of(1, jitter=0.0)
    (sent,) = bucket_queue.due(0.0)
    bucket_queue.failed(sent, LOCKED, 0.0)
    assert bucket_queue.wake_at() == 0.5


def test_an_unanswered_batch_is_sent_again_and_any_attempt_may_be_answered() -> None:
    bucket_queue = lane_of(1)
    (first,) = bucket_queue.due(0.0)
    assert bucket_queue.wake_at() == 10.0
    assert bucket_queue.due(9.9) == []
    assert bucket_queue.due(10.0) == []
    assert bucket_queue.wake_at() == 11.0
    (second,) = bucket_queue.due(11.0)
    assert (first.sequence, second.sequence) == (0, 0)
    bucket_queue.acknowledged(first, Answer())
    bucket_queue.acknowledged(second, DUPLICATE)
    assert outcomes(bucket_queue) == [(0, None)]


def test_nothing_is_sent_after_a_waiting_batch() -> None:
    bucket_queue = lane_of(3)
    sent = bucket_queue.due(0.0)
    for each in sent:
        bucket_queue.failed(each, LOCKED, 0.0)
    assert bucket_queue.due(0.5) == []
    assert sequences(bucket_queue.due(1.0)) == [0, 1, 2]


def test_after_a_gap_each_batch_waits_until_it_is_the_next() -> None:
    bucket_queue = lane_of(4)
    first, second, third, _ = bucket_queue.due(0.0)
    bucket_queue.failed(second, OUT_OF_ORDER, 1.0)
    bucket_queue.failed(third, OUT_OF_ORDER, 1.0)
    assert bucket_queue.due(9.0) == []
    bucket_queue.acknowledged(first, Answer())
    (again,) = bucket_queue.due(9.0)
    assert again.sequence == 1
    assert bucket_queue.error is None
    assert bucket_queue.pending_call(9.0) is None


def test_out_of_order_answers_are_judged_by_the_state_when_the_batch_was_sent() -> None:
    """The answer is late: the missing batch was acknowledged since, and the bucket has forgotten nothing."""
    bucket_queue = lane_of(2)
    first, second = bucket_queue.due(0.0)
    bucket_queue.acknowledged(first, Answer())
    bucket_queue.failed(second, OUT_OF_ORDER, 0.0)
    assert bucket_queue.pending_call(0.0) is None
    (again,) = bucket_queue.due(0.0)
    assert (again.sequence, again.writer_id) == (1, 7)


def test_out_of_order_is_a_success_once_a_later_batch_is_acknowledged() -> None:
    bucket_queue = lane_of(3)
    first, second, third = bucket_queue.due(0.0)
    bucket_queue.acknowledged(third, Answer())
    bucket_queue.failed(first, OUT_OF_ORDER, 0.0)
    bucket_queue.failed(second, OUT_OF_ORDER, 0.0)
    assert outcomes(bucket_queue) == [(2, None), (0, None), (1, None)]


def test_a_forgotten_writer_continues_under_a_new_id_and_lists_rows_in_doubt() -> None:
    bucket_queue = lane_of(4)
    sent = bucket_queue.due(0.0)
    bucket_queue.acknowledged(sent[0], Answer())
    bucket_queue.due(10.0)  # silence
    (again,) = bucket_queue.due(11.0)[:1]
    bucket_queue.failed(again, OUT_OF_ORDER, 11.0)
    assert bucket_queue.pending_call(11.0) is PendingCall.NEW_ID
    assert bucket_queue.due(11.0) == []
    bucket_queue.call_succeeded(8)
    renumbered = bucket_queue.due(11.0)
    assert [(each.writer_id, each.sequence, keys_of(each.changes)) for each in renumbered] == [
        (8, 0, [1]),
        (8, 1, [2]),
        (8, 2, [3]),
    ]
    (restart,) = bucket_queue.restarts
    assert (restart.before, restart.after) == (7, 8)
    assert [keys_of(changes) for changes in restart.in_doubt] == [[1], [2], [3]]
    # Answers to the old id no longer count.
    bucket_queue.acknowledged(sent[1], Answer())
    bucket_queue.failed(again, WriterFenced("Fenced."), 12.0)
    outcomes(bucket_queue)
    bucket_queue.acknowledged(renumbered[0], Answer())
    assert outcomes(bucket_queue) == [(1, None)]


def test_answered_batches_are_not_in_doubt_after_a_restart() -> None:
    bucket_queue = lane_of(2)
    first, second = bucket_queue.due(0.0)
    bucket_queue.acknowledged(first, Answer())
    bucket_queue.failed(second, OUT_OF_ORDER, 0.0)
    (second,) = bucket_queue.due(0.0)
    bucket_queue.failed(second, OUT_OF_ORDER, 0.0)
    bucket_queue.pending_call(0.0)
    bucket_queue.call_succeeded(8)
    assert bucket_queue.restarts[0].in_doubt == ()


def test_a_new_id_is_requested_until_it_succeeds() -> None:
    bucket_queue = lane_of(1)
    (sent,) = bucket_queue.due(0.0)
    bucket_queue.failed(sent, OUT_OF_ORDER, 0.0)
    assert bucket_queue.pending_call(0.0) is PendingCall.NEW_ID
    bucket_queue.call_failed(LOCKED, 0.0)
    assert bucket_queue.pending_call(0.5) is None
    assert bucket_queue.wake_at() == 1.0
    assert bucket_queue.pending_call(1.0) is PendingCall.NEW_ID
    bucket_queue.call_failed(NoSuchTable("Gone."), 1.0)
    assert isinstance(bucket_queue.error, NoSuchTable)


def test_a_forgotten_named_writer_ends() -> None:
    bucket_queue = lane_of(2, NAMED)
    assert bucket_queue.due(0.0) == []
    assert bucket_queue.pending_call(0.0) is PendingCall.BEGIN
    bucket_queue.call_succeeded(None)
    first, _ = bucket_queue.due(0.0)
    assert (first.sequence, first.epoch) == (0, 3)
    bucket_queue.failed(first, OUT_OF_ORDER, 0.0)
    assert bucket_queue.error is OUT_OF_ORDER
    assert bucket_queue.due(50.0) == []
    assert [keys_of(changes) for changes in bucket_queue.unacknowledged()] == [[0], [1]]


def test_a_named_writer_continues_after_the_buckets_last_sequence() -> None:
    bucket_queue = lane_of(3, NAMED)
    assert bucket_queue.pending_call(0.0) is PendingCall.BEGIN
    bucket_queue.call_failed(LOCKED, 0.0)
    assert bucket_queue.pending_call(1.0) is PendingCall.BEGIN
    bucket_queue.call_succeeded(SEQUENCE_MAX - 1)
    assert sequences(bucket_queue.due(1.0)) == [SEQUENCE_MAX, 0, 1]


def test_begin_is_given_up_at_the_delivery_timeout() -> None:
    bucket_queue = lane_of(1, NAMED)
    assert bucket_queue.pending_call(0.0) is PendingCall.BEGIN
    bucket_queue.call_failed(LOCKED, 0.0)
    bucket_queue.call_failed(LOCKED, 100.0)
    assert bucket_queue.error is LOCKED


@pytest.mark.parametrize("error", [OVERFLOW, SchemaMismatch("No."), InvalidRequest("Too large.")])
def test_an_empty_batch_takes_the_place_of_a_refused_one(error: StoreError) -> None:
    bucket_queue = lane_of(3)
    first, second, third = bucket_queue.due(0.0)
    bucket_queue.failed(first, error, 0.0)
    bucket_queue.failed(second, OUT_OF_ORDER, 0.0)
    bucket_queue.failed(third, OUT_OF_ORDER, 0.0)
    (empty,) = bucket_queue.due(0.0)
    assert (empty.sequence, empty.writer_id, len(empty.changes)) == (0, 7, 0)
    assert outcomes(bucket_queue) == []
    bucket_queue.acknowledged(empty, Answer())
    assert outcomes(bucket_queue) == [(0, type(error).__name__)]
    (second,) = bucket_queue.due(0.0)
    assert (second.sequence, keys_of(second.changes)) == (1, [1])


@pytest.mark.parametrize("error", [OVERFLOW, SchemaMismatch("No."), InvalidRequest("Too large.")])
def test_a_refused_empty_batch_ends_the_writer(error: StoreError) -> None:
    """It has no content: the bucket would accept nothing that could be sent."""
    bucket_queue = lane_of(2)
    first, _ = bucket_queue.due(0.0)
    bucket_queue.failed(first, OVERFLOW, 0.0)
    (empty,) = bucket_queue.due(0.0)
    bucket_queue.failed(empty, error, 0.0)
    assert bucket_queue.error is error
    assert bucket_queue.due(50.0) == []
    assert [keys_of(changes) for changes in bucket_queue.unacknowledged()] == [[0], [1]]


def emptied_twice() -> tuple:
    bucket_queue = lane_of(1)
    (rows,) = bucket_queue.due(0.0)
    bucket_queue.due(10.0)  # silence
    (rows_again,) = bucket_queue.due(11.0)
    bucket_queue.failed(rows_again, OVERFLOW, 11.0)
    (empty,) = bucket_queue.due(11.0)
    bucket_queue.due(21.0)  # silence
    (empty_again,) = bucket_queue.due(22.0)
    assert len(empty_again.changes) == 0
    return bucket_queue, rows, empty, empty_again


def test_a_late_copy_of_refused_rows_may_be_written_before_the_empty_batch() -> None:
    bucket_queue, rows, empty, empty_again = emptied_twice()
    bucket_queue.acknowledged(rows, Answer())
    bucket_queue.acknowledged(empty, DUPLICATE)
    bucket_queue.acknowledged(empty_again, DUPLICATE)
    assert outcomes(bucket_queue) == [(0, None)]


def test_more_than_one_offset_proves_that_the_rows_were_written() -> None:
    bucket_queue, _, _, empty_again = emptied_twice()
    bucket_queue.acknowledged(empty_again, LONG_DUPLICATE)
    assert outcomes(bucket_queue) == [(0, None)]


def test_a_duplicate_of_an_empty_batch_leaves_the_outcome_unknown() -> None:
    bucket_queue, _, empty, _ = emptied_twice()
    bucket_queue.acknowledged(empty, DUPLICATE)
    (settled,) = bucket_queue.settled
    assert isinstance(settled.error, NotAcknowledged)
    assert settled.error.__cause__ is OVERFLOW


def test_a_duplicate_answered_to_the_rows_may_be_the_empty_batch() -> None:
    bucket_queue, rows, empty, _ = emptied_twice()
    bucket_queue.acknowledged(rows, DUPLICATE)
    assert outcomes(bucket_queue) == []
    bucket_queue.acknowledged(empty, Answer())
    assert outcomes(bucket_queue) == [(0, "AggregateOverflow")]


def test_a_passed_empty_batch_leaves_the_outcome_unknown() -> None:
    bucket_queue = lane_of(2)
    first, second = bucket_queue.due(0.0)
    bucket_queue.failed(first, OVERFLOW, 0.0)
    (empty,) = bucket_queue.due(0.0)
    bucket_queue.acknowledged(second, Answer())
    bucket_queue.failed(empty, OUT_OF_ORDER, 0.0)
    assert outcomes(bucket_queue) == [(1, None), (0, "NotAcknowledged")]


def test_refused_rows_are_not_sent_under_a_new_id() -> None:
    bucket_queue = lane_of(2)
    first, _ = bucket_queue.due(0.0)
    bucket_queue.failed(first, OVERFLOW, 0.0)
    (empty,) = bucket_queue.due(0.0)
    bucket_queue.failed(empty, OUT_OF_ORDER, 0.0)
    assert outcomes(bucket_queue) == [(0, "AggregateOverflow")]
    bucket_queue.pending_call(0.0)
    bucket_queue.call_succeeded(8)
    assert [(each.sequence, keys_of(each.changes)) for each in bucket_queue.due(0.0)] == [(0, [1])]


@pytest.mark.parametrize(
    "error",
    [
        *(StoreClosed("x"), ForkedStore("x"), NoSuchTable("x"), UnsupportedOperation("x")),
        *(WriterFenced("x"), CorruptData("x"), LogFailed("x")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_that_end_the_writer(error: StoreError) -> None:
    bucket_queue = lane_of(7)
    first, second, *_ = bucket_queue.due(0.0)
    bucket_queue.acknowledged(first, Answer())
    bucket_queue.failed(second, error, 0.0)
    assert bucket_queue.error is error
    assert bucket_queue.due(50.0) == []
    assert bucket_queue.wake_at() is None
    assert [keys_of(changes) for changes in bucket_queue.unacknowledged()] == [[1], [2], [3], [4], [5], [6]]


def test_a_batch_not_acknowledged_in_time_ends_the_writer() -> None:
    bucket_queue = lane_of(2)
    now = 0.0
    while bucket_queue.error is None:
        bucket_queue.due(now)
        wake = bucket_queue.wake_at()
        assert wake is None or wake > now
        now = now if wake is None else wake
    assert now == 100.0
    assert isinstance(bucket_queue.error, NotAcknowledged)
    assert len(bucket_queue.unacknowledged()) == 2


def test_a_failed_delivery_reports_its_reason() -> None:
    bucket_queue = lane_of(1)
    now = 0.0
    while bucket_queue.error is None:
        for sending in bucket_queue.due(now):
            bucket_queue.failed(sending, LOCKED, now)
        now += 1.0
    assert bucket_queue.error.__cause__ is LOCKED
    assert "Locked." in str(bucket_queue.error)
