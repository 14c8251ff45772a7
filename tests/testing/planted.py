"""Bugs for the toy store: each is a store of its own, with one method that is wrong."""

from __future__ import annotations

from typing import Any

from kvstore.testing import Answer
from kvstore.testing.model import Operation
from tests.testing.toy import BadRow, Entry, Fenced, Memory, OutOfOrder, Toy, ToyBucket

Operations = list[Operation]


class ShortWindow(ToyBucket):
    window = 4


class LongWindow(ToyBucket):
    window = 6


class EmptyBatchTakesNoOffset(ToyBucket):
    def remember(self, entry: Entry) -> None:
        super().remember(entry)
        self.memory.end = entry.first + len(entry.changes)


class BatchWithoutEffectTakesNoSequence(ToyBucket):
    def write(self, entry: Entry) -> Answer:
        if not entry.changes:
            entry.writer = -1
        return super().write(entry)


class EmptyBatchForEveryOperation(ToyBucket):
    """A batch without effect takes an offset for each of its operations."""

    def remember(self, entry: Entry) -> None:
        super().remember(entry)
        self.memory.end = entry.first + max(1, len(entry.changes) or len(entry.operations))


class DuplicateIsApplied(ToyBucket):
    def check(self, writer: int, sequence: int, epoch: int) -> Entry | None:
        super().check(writer, sequence, epoch)
        return None


class DuplicateGetsNewOffsets(ToyBucket):
    def answer_again(self, entry: Entry) -> Answer:
        return Answer(self.memory.end, self.memory.end + entry.last - entry.first, duplicated=True)


class DuplicateGetsOneOffset(ToyBucket):
    def answer_again(self, entry: Entry) -> Answer:
        return Answer(entry.first, entry.first, duplicated=True)


class DuplicateIsNotMarked(ToyBucket):
    def answer_again(self, entry: Entry) -> Answer:
        return Answer(entry.first, entry.last, duplicated=False)


class DuplicateIsFoundByContent(ToyBucket):
    def append(self, operations: Operations, writer: int, sequence: int, epoch: int) -> Answer:
        known = self.check(writer, sequence, epoch)
        if known is not None and known.operations != operations:
            return self.write(self.entry_of(operations, writer, sequence, epoch))
        return super().append(operations, writer, sequence, epoch)


class GapIsApplied(ToyBucket):
    def check(self, writer: int, sequence: int, epoch: int) -> Entry | None:
        try:
            return super().check(writer, sequence, epoch)
        except OutOfOrder:
            if sequence > self.next_sequence(writer):
                return None
            raise


class GapIsHalfApplied(ToyBucket):
    def append(self, operations: Operations, writer: int, sequence: int, epoch: int) -> Answer:
        try:
            return super().append(operations, writer, sequence, epoch)
        except OutOfOrder:
            self.write(self.entry_of(operations[:1], -1, -1, 0))
            raise


class GapMovesTheSequence(ToyBucket):
    def check(self, writer: int, sequence: int, epoch: int) -> Entry | None:
        try:
            return super().check(writer, sequence, epoch)
        except OutOfOrder:
            if self.memory.sent[writer]:
                self.memory.sent[writer].append(self.memory.sent[writer][-1])
                self.memory.sent[writer][-1].sequence = sequence
            raise


class WriterMayBeginAnywhere(ToyBucket):
    def check(self, writer: int, sequence: int, epoch: int) -> Entry | None:
        return super().check(writer, sequence, epoch) if self.memory.sent[writer] else None


class SequencesAreNotStored(ToyBucket):
    def restart(self) -> None:
        super().restart()
        self.memory.sent.clear()


class WindowIsNotStored(ToyBucket):
    def restart(self) -> None:
        super().restart()
        for writer, sent in self.memory.sent.items():
            self.memory.sent[writer] = sent[-1:]


class LastBatchIsNotStored(ToyBucket):
    def restart(self) -> None:
        del self.log[-1:]
        super().restart()


class EpochsAreNotStored(ToyBucket):
    def restart(self) -> None:
        super().restart()
        self.memory.epochs.clear()


class NoWrap(ToyBucket):
    sequence_max = 2**32


class WrapsEarly(ToyBucket):
    sequence_max = 2**31 - 2


class WrapsToOne(ToyBucket):
    def next_sequence(self, writer: int) -> int:
        sent = self.memory.sent[writer]
        return 1 if sent and sent[-1].sequence == self.sequence_max else super().next_sequence(writer)


class WindowEndsAtTheWrap(ToyBucket):
    """Batches with larger sequences than the next one are no longer known."""

    def check(self, writer: int, sequence: int, epoch: int) -> Entry | None:
        known = super().check(writer, sequence, epoch)
        if known is not None and sequence > self.memory.sent[writer][-1].sequence:
            raise OutOfOrder
        return known


class NoFence(ToyBucket):
    def check(self, writer: int, sequence: int, _: int) -> Entry | None:
        return super().check(writer, sequence, 2**31)


class FencedDuplicatesAreAnswered(ToyBucket):
    def check(self, writer: int, sequence: int, epoch: int) -> Entry | None:
        try:
            return super().check(writer, sequence, epoch)
        except Fenced:
            for entry in self.memory.sent[writer][-self.window :]:
                if entry.sequence == sequence:
                    return entry
            raise


class FencedBatchLowersTheEpoch(ToyBucket):
    def check(self, writer: int, sequence: int, epoch: int) -> Entry | None:
        try:
            return super().check(writer, sequence, epoch)
        finally:
            self.memory.epochs[writer] = epoch


class NewEpochBeginsAtZero(ToyBucket):
    def next_sequence(self, writer: int) -> int:
        sent = self.memory.sent[writer]
        return super().next_sequence(writer) if sent and sent[-1].epoch == self.memory.epochs[writer] else 0


class RefusedBatchTakesTheSequence(ToyBucket):
    def append(self, operations: Operations, writer: int, sequence: int, epoch: int) -> Answer:
        try:
            return super().append(operations, writer, sequence, epoch)
        except BadRow:
            self.memory.sent[writer].append(Entry(writer, sequence, epoch, self.memory.end, [], []))
            raise


class RefusedBatchLeavesItsFirstRows(ToyBucket):
    def append(self, operations: Operations, writer: int, sequence: int, epoch: int) -> Answer:
        try:
            return super().append(operations, writer, sequence, epoch)
        except BadRow:
            self.write(self.entry_of(operations[:-1], -1, -1, 0))
            raise


class BatchWithoutWriterIsDeduplicated(ToyBucket):
    def append(self, operations: Operations, writer: int, sequence: int, epoch: int) -> Answer:
        if writer < 0 and self.log and self.log[-1].operations == operations:
            return self.answer_again(self.log[-1])
        return super().append(operations, writer, sequence, epoch)


class WindowIsSharedByWriters(ToyBucket):
    """A writer's window is cut when another one writes."""

    def remember(self, entry: Entry) -> None:
        super().remember(entry)
        if sum(map(len, self.memory.sent.values())) > self.window:
            for sent in self.memory.sent.values():
                del sent[:-1]


class SequencesAreSharedByWriters(ToyBucket):
    def remember(self, entry: Entry) -> None:
        super().remember(entry)
        if entry.writer >= 0:
            self.memory.sent.setdefault(0, [])
            for writer in range(2):
                self.memory.sent[writer] = self.memory.sent[entry.writer]


BUCKETS: list[type[ToyBucket]] = [
    each
    for each in list(globals().values())
    if isinstance(each, type) and issubclass(each, ToyBucket) and each is not ToyBucket
]


class SequencesAreSharedByBuckets(Toy):
    def append(self, operations: Operations, *, bucket: int, writer: int, **numbers: Any) -> Answer:
        answer = super().append(operations, bucket=bucket, writer=writer, **numbers)
        for each in self.buckets:
            each.memory.sent[writer] = self.buckets[bucket].memory.sent[writer]
        return answer


class EpochIsHalfApplied(Toy):
    def append_epoch(self, batches: list[Operations], *, name: str, epoch: int) -> list[Answer]:
        both = zip(self.buckets, batches, strict=True)
        return [bucket.append(batch, self.id_of(name), epoch, 0) for bucket, batch in both]


class EpochsMayLeaveGaps(Toy):
    def append_epoch(self, batches: list[Operations], *, name: str, epoch: int) -> list[Answer]:
        writer = self.id_of(name)
        if all(epoch > bucket.next_sequence(writer) for bucket in self.buckets):
            epoch = self.buckets[0].next_sequence(writer)
        return super().append_epoch(batches, name=name, epoch=epoch)


class OnlyTheLastEpochIsKnown(Toy):
    def append_epoch(self, batches: list[Operations], *, name: str, epoch: int) -> list[Answer]:
        if 0 <= epoch < self.buckets[0].next_sequence(self.id_of(name)) - 1:
            raise OutOfOrder
        return super().append_epoch(batches, name=name, epoch=epoch)


class EpochSkipsBucketsWithoutRows(Toy):
    def append_epoch(self, batches: list[Operations], *, name: str, epoch: int) -> list[Answer]:
        answers = super().append_epoch(batches, name=name, epoch=epoch)
        for bucket, batch in zip(self.buckets, batches, strict=True):
            if not batch and bucket.log[-1].sequence == epoch:
                bucket.memory.end = bucket.log[-1].first
        return answers


class OpeningANameFencesLate(Toy):
    """Only once the new incarnation has written."""

    def fence(self) -> None:
        pass


class OpenNamesAreNotStored(Toy):
    def restart(self) -> None:
        self.names.clear()
        super().restart()


class LastSequenceOfAnotherBucket(Toy):
    def last_sequence(self, _: int, writer: int) -> int | None:
        return super().last_sequence(0, writer)


class LastSequenceIsTheNext(Toy):
    def last_sequence(self, bucket: int, writer: int) -> int | None:
        last = super().last_sequence(bucket, writer)
        return None if last is None else last + 1


class RestartForgetsRows(Toy):
    def restart(self) -> None:
        super().restart()
        self.buckets[-1].memory = Memory()


STORES: list[type[Toy]] = [
    each for each in list(globals().values()) if isinstance(each, type) and issubclass(each, Toy) and each is not Toy
]
