"""A small writer, and bugs for it: each is a writer of its own, with something that is wrong."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from logformat.rows.changes import Changes
from writer import AppendTarget

TIMEOUT_SECONDS = 30.0


@dataclass
class Sent:
    sequence: int
    changes: Changes
    answer: Future[Any] | None = None
    time: float = 0.0
    attempts: int = 0

    @property
    def is_acknowledged(self) -> bool:
        return self.answer is not None and self.answer.done() and self.answer.exception() is None


class Producer:
    """Sends the first five batches that are not acknowledged, again after thirty seconds."""

    in_flight_max = 5

    def __init__(self, target: AppendTarget) -> None:
        self.target = target
        self.batches: list[Sent] = []
        self.sequence = 0
        self.time = 0.0

    def send(self, changes: Changes) -> None:
        self.batches.append(Sent(self.sequence, changes))
        self.sequence += 1

    def poll(self, seconds: float) -> None:
        self.time += seconds
        self.take_answers()
        for batch in self.batches[: self.in_flight_max]:
            if batch.answer is None or (not batch.is_acknowledged and self.time - batch.time >= TIMEOUT_SECONDS):
                self.submit(batch)

    def take_answers(self) -> None:
        # Only from the front: the bucket knows a batch again while it is among the last five.
        while self.batches and self.batches[0].is_acknowledged:
            del self.batches[0]

    def submit(self, batch: Sent) -> None:
        batch.time, batch.attempts = self.time, batch.attempts + 1
        batch.answer = self.target.submit(batch.changes, 7, batch.sequence, 0)

    def waiting(self) -> int:
        return len(self.batches)


class NewNumberForEachAttempt(Producer):
    def submit(self, batch: Sent) -> None:
        if batch.attempts:
            batch.sequence, self.sequence = self.sequence, self.sequence + 1
        super().submit(batch)


class NumbersFromOne(Producer):
    def __init__(self, target: AppendTarget) -> None:
        super().__init__(target)
        self.sequence = 1


class SixInFlight(Producer):
    in_flight_max = 6


class NewestFirst(Producer):
    def poll(self, seconds: float) -> None:
        self.batches.reverse()
        super().poll(seconds)
        self.batches.sort(key=lambda batch: batch.sequence)


class AcknowledgedOnesLeaveTheWindow(Producer):
    """Later batches push a batch that is not acknowledged out of the bucket's memory."""

    def take_answers(self) -> None:
        self.batches = [batch for batch in self.batches if not batch.is_acknowledged]


class AnyAnswerAcknowledges(Producer):
    def take_answers(self) -> None:
        while self.batches and self.batches[0].answer is not None and self.batches[0].answer.done():
            del self.batches[0]


class DuplicatesDoNotCount(Producer):
    def take_answers(self) -> None:
        while self.batches and self.batches[0].is_acknowledged:
            answer = self.batches[0].answer
            if answer is not None and answer.result().duplicated:
                self.batches[0].answer = None
                break
            del self.batches[0]


class NeverAgain(Producer):
    def submit(self, batch: Sent) -> None:
        if not batch.attempts:
            super().submit(batch)


class GivesUp(Producer):
    def submit(self, batch: Sent) -> None:
        super().submit(batch)
        if batch.attempts == 3:
            self.batches.remove(batch)


class MoreRowsInTheNextAttempt(Producer):
    def submit(self, batch: Sent) -> None:
        if batch.attempts and len(self.batches) > 1 and self.batches[-1].answer is None:
            batch.changes = self.batches[-1].changes
        super().submit(batch)


BUGS: list[type[Producer]] = [
    each
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, Producer) and each is not Producer
]
