"""A small store that keeps the rules of sequences, in memory.

What it calls stored survives a restart; the rest is computed from it again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from kvstore.testing import Answer
from kvstore.testing.model import Operation, Row

Change = tuple[str, Row]


class OutOfOrder(Exception):
    pass


class Fenced(Exception):
    pass


class BadRow(Exception):
    pass


@dataclass
class Entry:
    """One batch in a bucket's log."""

    writer: int
    sequence: int
    epoch: int
    first: int
    changes: list[Change]
    operations: list[Operation]

    @property
    def last(self) -> int:
        return self.first + max(1, len(self.changes)) - 1


@dataclass
class Memory:
    """What a bucket computes from its log."""

    rows: dict[int, Row] = field(default_factory=dict)
    end: int = 0
    sent: defaultdict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    epochs: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))


class ToyBucket:
    """One bucket: a log that is stored, and the memory of it."""

    window = 5
    sequence_max = 2**31 - 1

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.memory = Memory()

    def append(self, operations: list[Operation], writer: int, sequence: int, epoch: int) -> Answer:
        known = self.check(writer, sequence, epoch)
        if known is not None:
            return self.answer_again(known)
        return self.write(self.entry_of(operations, writer, sequence, epoch))

    def check(self, writer: int, sequence: int, epoch: int) -> Entry | None:
        """The batch of this sequence, if it is one of the last."""
        if writer < 0:
            return None
        if epoch < self.memory.epochs[writer]:
            raise Fenced
        for entry in self.memory.sent[writer][-self.window :]:
            if entry.sequence == sequence:
                return entry
        if sequence != self.next_sequence(writer):
            raise OutOfOrder
        return None

    def next_sequence(self, writer: int) -> int:
        sent = self.memory.sent[writer]
        return 0 if not sent or sent[-1].sequence == self.sequence_max else sent[-1].sequence + 1

    def answer_again(self, entry: Entry) -> Answer:
        return Answer(entry.first, entry.last, duplicated=True)

    def entry_of(self, operations: list[Operation], writer: int, sequence: int, epoch: int) -> Entry:
        """What the operations change; writes nothing."""
        rows = dict(self.memory.rows)
        changes: list[Change] = []
        for word, row in operations:
            before = rows.pop(row["k"], None)
            if word == "upsert" and row["v"] is None:
                raise BadRow
            if before is not None:
                changes.append(("delete", before))
            if word == "upsert":
                changes.append(("upsert", row))
                rows[row["k"]] = row
        return Entry(writer, sequence, epoch, self.memory.end, changes, operations)

    def write(self, entry: Entry) -> Answer:
        self.log.append(entry)
        self.remember(entry)
        return Answer(entry.first, entry.last, duplicated=False)

    def remember(self, entry: Entry) -> None:
        memory = self.memory
        for word, row in entry.changes:
            memory.rows.pop(row["k"], None)
            if word == "upsert":
                memory.rows[row["k"]] = row
        memory.end = entry.last + 1
        if entry.writer >= 0:
            memory.sent[entry.writer].append(entry)
            memory.epochs[entry.writer] = entry.epoch

    def restart(self) -> None:
        self.memory = Memory()
        for entry in self.log:
            self.remember(entry)


class Toy:
    """Buckets, and names of writers, which are stored too."""

    bucket_class = ToyBucket

    def __init__(self, buckets: int) -> None:
        self.buckets = [self.bucket_class() for _ in range(buckets)]
        self.names: dict[str, int] = {}

    def append(self, operations: list[Operation], *, bucket: int, writer: int, sequence: int, epoch: int) -> Answer:
        return self.buckets[bucket].append(operations, writer, sequence, epoch)

    def changes(self, bucket: int) -> list[tuple[int, str, Row]]:
        return [
            (entry.first + at, *change) for entry in self.buckets[bucket].log for at, change in enumerate(entry.changes)
        ]

    def restart(self) -> None:
        for bucket in self.buckets:
            bucket.restart()
        self.fence()

    def open_writer(self, name: str) -> tuple[int, int]:
        self.names[name] = self.names.get(name, -1) + 1
        self.fence()
        return self.id_of(name), self.names[name]

    def fence(self) -> None:
        for name, epoch in self.names.items():
            for bucket in self.buckets:
                bucket.memory.epochs[self.id_of(name)] = epoch

    def id_of(self, name: str) -> int:
        return 100 + ord(name[0])

    def last_sequence(self, bucket: int, writer: int) -> int | None:
        sent = self.buckets[bucket].memory.sent[writer]
        return sent[-1].sequence if sent else None

    def append_epoch(self, batches: list[list[Operation]], *, name: str, epoch: int) -> list[Answer]:
        writer = self.id_of(name)
        both = list(zip(self.buckets, batches, strict=True))
        known = [bucket.check(writer, epoch, 0) for bucket in self.buckets]
        if known[0] is not None:
            return [bucket.answer_again(entry) for bucket, entry in zip(self.buckets, known, strict=True) if entry]
        entries = [bucket.entry_of(batch, writer, epoch, 0) for bucket, batch in both]
        return [bucket.write(entry) for bucket, entry in zip(self.buckets, entries, strict=True)]

    def renumber(self, writer: int, sequence: int) -> None:
        for bucket in self.buckets:
            for entry in bucket.log:
                if entry.writer == writer:
                    entry.sequence = sequence
