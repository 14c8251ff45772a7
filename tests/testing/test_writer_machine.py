"""The machine finds every bug that is planted into a small writer, and none in the queue that ours has for a bucket."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from kvstore.errors import StoreError
from kvstore.testing import RuleBroken, SequenceWriter, WriterMachine
from logformat.ids import Sequence, WriterId
from logformat.rows.changes import Changes
from tests.testing import producers
from tests.testing.producers import Producer
from writer import AppendTarget, Identity, bucket_queue
from writer.bucket_queue import BucketQueue, Sending, Timing
from writer.sequence import Event, event_of_answer

FIND = settings(
    max_examples=200, stateful_step_count=15, database=None, phases=[Phase.generate], report_multiple_bugs=False
)
"""Stops at the first failure, and does not shorten it."""
SOME = [
    *(producers.NewNumberForEachAttempt, producers.NumbersFromOne, producers.SixInFlight, producers.NewestFirst),
    *(producers.DuplicatesDoNotCount, producers.MoreRowsInTheNextAttempt),
]
TIMING = Timing(request_timeout=30.0, delivery_timeout=1e9, backoff_min=1.0, backoff_max=16.0)


class OwnQueue:
    """A bucket queue, driven by polls."""

    def __init__(self, target: AppendTarget) -> None:
        self._target = target
        self._queue = BucketQueue(0, Identity(WriterId(7)), TIMING, lambda: 0.5)
        self._now = 0.0
        self._batches = 0

    def send(self, changes: Changes) -> None:
        self._queue.add(changes, self._batches)
        self._batches += 1

    def poll(self, seconds: float) -> None:
        self._now += seconds
        for sending in self._queue.due(self._now):
            answer = self._target.submit(sending.changes, sending.writer_id, sending.sequence, sending.epoch)
            answer.add_done_callback(partial(self._answered, sending))

    def _answered(self, sending: Sending, answer: Future[Any]) -> None:
        error = answer.exception()
        if isinstance(error, StoreError):
            self._queue.failed(sending, error, self._now)
        else:
            self._queue.acknowledged(sending, answer.result())

    def waiting(self) -> int:
        assert self._queue.error is None
        return len(self._queue)


def machine_of(writer: Any) -> type[WriterMachine]:
    """The machine of a writer that a target is enough to create."""

    def create(_: WriterMachine, target: AppendTarget) -> SequenceWriter:
        return writer(target)

    return type(writer.__name__, (WriterMachine,), {"create": create})


@pytest.mark.parametrize("writer", [Producer, OwnQueue])
def test_a_writer_without_bugs_keeps_the_rules(writer: Any) -> None:
    run_state_machine_as_test(machine_of(writer), settings=settings(max_examples=15, stateful_step_count=15))


@pytest.mark.parametrize("bug", SOME, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[Producer]) -> None:
    with pytest.raises(RuleBroken):
        run_state_machine_as_test(machine_of(bug), settings=FIND)


def answer_to_the_first(**about: bool) -> Event | None:
    """A duplicate is no answer."""
    return None if about["duplicated"] else event_of_answer(**about)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("WINDOW", 6),
        ("event_of_error", lambda *_, **__: Event.WRITTEN),
        ("event_of_answer", answer_to_the_first),
        ("next_sequence", lambda _: Sequence(0)),
    ],
    ids=["six in flight", "any answer counts", "duplicates do not count", "always sequence 0"],
)
def test_a_rule_that_is_taken_out_of_our_writer_is_missed(
    name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_queue, name, wrong)
    with pytest.raises(RuleBroken):
        run_state_machine_as_test(machine_of(OwnQueue), settings=FIND)


@pytest.mark.long
@pytest.mark.parametrize("attempt", range(5))
@pytest.mark.parametrize("bug", producers.BUGS, ids=lambda bug: bug.__name__)
def test_every_planted_bug_is_found_with_any_seed(bug: type[Producer], attempt: int) -> None:
    with pytest.raises(RuleBroken):
        run_state_machine_as_test(machine_of(bug), settings=settings(FIND, max_examples=1000, derandomize=False))


@pytest.mark.long
@pytest.mark.parametrize("writer", [Producer, OwnQueue])
def test_a_writer_without_bugs_keeps_the_rules_for_long(writer: Any) -> None:
    run_state_machine_as_test(machine_of(writer), settings=settings(max_examples=300, stateful_step_count=50))
