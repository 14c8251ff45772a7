"""Objects of a shared table: its definition, and one manifest for each epoch (docs/format.md, Shared tables).

* An epoch is created once: creating its object is the commit. Nothing is changed afterwards.
* The object of an epoch is full, or has what the epoch has more than a full one before it: two objects are enough.
* A range has the name of a replica's range, with the number of an attempt in place of the leader's epoch.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from logformat import json_line
from logformat.catalog.edits import TableOptions
from logformat.catalog.replicas import Stream
from logformat.errors import CorruptData, OutOfOrderSequence
from logformat.ids import BucketId, Epoch, TableId
from logformat.replica.object_file import TABLES_PREFIX, ObjectName

DEFINITIONS_PREFIX = "shared"
ALL_OBJECTS = f"{TABLES_PREFIX}/"
"""What the names of all objects of all tables begin with."""
STAGING = "staging"
FORMAT = 1
EPOCH_FORMAT = 3
"""Of epochs; those of format 1 are full and have no snapshots, and up to format 2 all changes are there."""
_ALL_CHANGES = 2
DEFINITION_BYTES_MAX = 16 << 20
EPOCH_BYTES_MAX = 64 << 20
NEWEST_BYTES_MAX = 20
FIRST_ATTEMPT = 1 << 40
"""Attempts of ranges are larger; of tables that an earlier version wrote, some are not."""
_NUMBERED = 1 << 50
"""Attempts from here on say for which epoch a range was uploaded; those of earlier versions are smaller."""
_ATTEMPT_BITS = 20
COPY_RECORD = "APPLIED"
COPY_FORMAT = 2
"""Of records beside copies; by one of format 1 it is not known what a copy has."""
COPY_RECORD_BYTES_MAX = 1 << 10
WRITERS_MAX = 10_000
"""Names of writes that an epoch remembers, the ones that committed last; a stream has one."""
_IN_STREAM = "\n"
"""Between the parts of the name of a stream's batch."""


class SharedDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The definition of a shared table; the fields of the table are those of the edit CreateTable."""

    format: int = FORMAT
    store_id: UUID
    created_ms: int
    table_id: TableId
    name: str
    columns: list[dict[str, Any]]
    primary_key: list[str] | None
    buckets: int
    bucket_key: list[str] | None
    options: TableOptions


class SharedRange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A range object of a bucket: its offsets, the number of its attempt, and its size in bytes."""

    start: int
    end: int
    attempt: int
    bytes: int

    @property
    def epoch(self) -> int | None:
        """The epoch for which it was uploaded; None of ranges that were published, or that an earlier version wrote."""
        return None if self.attempt < _NUMBERED else self.attempt - _NUMBERED >> _ATTEMPT_BITS

    def name(self, stream: Stream) -> ObjectName:
        """Name of the object."""
        return ObjectName(stream, "range", self.start, self.end, Epoch(self.attempt))


class SharedSnapshot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A snapshot object of a bucket: the offset before which it has everything, its attempt, and its size in bytes.

    Its attempt is smaller than those of all ranges of the bucket: where an object of a later attempt begins, ranges of
    earlier ones end (:mod:`kvstore.replica.coverage`).
    """

    offset: int
    attempt: int
    bytes: int

    def name(self, stream: Stream) -> ObjectName:
        """Name of the object."""
        return ObjectName(stream, "snapshot", self.offset, self.offset, Epoch(self.attempt))


class EpochObject(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest of an epoch, as it is stored: full, or what it has more than a full one before it.

    Attributes:
        full: Number of that full epoch; None if this one is full.
        writers, ranges: All, or those more than the full one has.
        snapshots: For each bucket, in order; of a full one, and only in format 2.
    """

    format: int = _ALL_CHANGES
    store_id: UUID
    table_id: TableId
    epoch: int
    commit: UUID
    committed_ms: int
    full: int | None = None
    writers: dict[str, int]
    ranges: list[list[SharedRange]]
    snapshots: list[list[SharedSnapshot]] = []


@dataclass(frozen=True)
class SharedEpoch:
    """An epoch.

    Attributes:
        commit: Random id of the commit, by which a committer that got no answer knows its own.
        writers: For each name under which something was written once, the epoch that has it; of a stream the name of
            its last batch.
        ranges: For each bucket its ranges, in order and without holes. Those before the first one have expired.
        snapshots: For each bucket its snapshots, in order; where changes have expired there is one of their end.
        full: Number of the full epoch to which its object adds; its own number if it is full.
        in_full: For each bucket, how many of its ranges that one has.
    """

    store_id: UUID
    table_id: TableId
    epoch: int
    commit: UUID
    committed_ms: int
    writers: dict[str, int]
    ranges: list[list[SharedRange]]
    snapshots: list[list[SharedSnapshot]]
    full: int
    in_full: list[int]

    @property
    def attempt(self) -> int:
        """The largest number of an attempt."""
        return max((each.attempt for bucket in self.ranges for each in bucket), default=FIRST_ATTEMPT)

    def start(self, bucket: int) -> int:
        """The offset of the first change of a bucket that has not expired."""
        return self.ranges[bucket][0].start if self.ranges[bucket] else 0

    def next_attempt(self, random: int) -> int:
        """The number of an attempt for the next epoch: larger than all in this one."""
        least = _NUMBERED + (self.epoch + 1 << _ATTEMPT_BITS)
        return max(self.attempt + 1, least) + random % (1 << _ATTEMPT_BITS)

    def end(self, bucket: int) -> int:
        """The offset after the last change of a bucket."""
        return self.ranges[bucket][-1].end if self.ranges[bucket] else 0

    def written(self, name: str) -> int | None:
        """The epoch that has the write of a name; None if the table does not know the name.

        Raises:
            OutOfOrderSequence: The table has a later batch of the stream.
        """
        stream, batch = _stream_of(name), name.rpartition(_IN_STREAM)[2]
        if stream is None or name in self.writers:
            return self.writers.get(name)
        last = next((int(each.rpartition(_IN_STREAM)[2]) for each in self.writers if _stream_of(each) == stream), -1)
        if last > int(batch):
            raise OutOfOrderSequence(
                "The table has a later batch of this stream: the checkpoint is older than the table, or another driver "
                "runs the query. If the checkpoint was restored, begin a new one, after what the table has.",
                batch=int(batch),
                last_batch=last,
            )
        return self.writers.get(name.replace(_IN_STREAM, " "))  # an earlier version wrote it

    def sizes(self, bucket: BucketId) -> dict[ObjectName, int]:
        """Names and sizes in bytes of a bucket's ranges and snapshots."""
        stream = Stream(self.table_id, bucket)
        sizes = {each.name(stream): each.bytes for each in self.ranges[bucket]}
        return sizes | {each.name(stream): each.bytes for each in self.snapshots[bucket]}

    def as_full(self) -> SharedEpoch:
        """The same epoch, to be stored in full."""
        return replace(self, full=self.epoch, in_full=[len(ranges) for ranges in self.ranges])

    def in_fewer_bytes(self) -> SharedEpoch:
        """The same epoch, to be stored in full or not, so that all epochs together take little.

        With N things in a full epoch and one more in each epoch after it, full ones are about the root of N apart.
        """
        more = len(self._writers_since()) + sum(map(len, self._ranges_since()))
        everything = len(self.writers) + sum(map(len, self.ranges))
        return self if more * (self.epoch - self.full) <= everything else self.as_full()

    def stored(self) -> EpochObject:
        """Its object."""
        is_full = self.full == self.epoch
        return EpochObject(
            format=EPOCH_FORMAT if is_full and any(map(self.start, range(len(self.ranges)))) else _ALL_CHANGES,
            store_id=self.store_id,
            table_id=self.table_id,
            epoch=self.epoch,
            commit=self.commit,
            committed_ms=self.committed_ms,
            full=None if is_full else self.full,
            writers=self.writers if is_full else self._writers_since(),
            ranges=self.ranges if is_full else self._ranges_since(),
            snapshots=self.snapshots if is_full else [],
        )

    def _writers_since(self) -> dict[str, int]:
        return {name: epoch for name, epoch in self.writers.items() if epoch > self.full}

    def _ranges_since(self) -> list[list[SharedRange]]:
        return [ranges[count:] for ranges, count in zip(self.ranges, self.in_full, strict=True)]


class CopyEnd(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A range of a bucket, and the state of a copy's index that has everything up to its end (docs/format.md, Index).

    Where the copy's log ended is known if the copy was committed in this state.
    """

    range: SharedRange
    state: bytes


class CopyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The record beside a copy of a bucket on a machine.

    Attributes:
        ends: What the copy may be as of, in order. The last may be of a range that no epoch has: its batch, the last of
            the copy's log, has the rows before it.
    """

    format: int = COPY_FORMAT
    ends: list[CopyEnd]


def definition_name(table: str) -> str:
    """Name of the object with the definition of a table: names of tables may have any characters."""
    return f"{DEFINITIONS_PREFIX}/{sha256(table.encode()).hexdigest()}"


def objects_prefix(table: TableId) -> str:
    """What the names of all objects of a table begin with."""
    return f"{TABLES_PREFIX}/{table}/"


def epochs_prefix(table: TableId) -> str:
    """What the names of a table's epochs begin with."""
    return f"{TABLES_PREFIX}/{table}/epoch/"


def epoch_name(table: TableId, epoch: int) -> str:
    """Name of an epoch's object."""
    return f"{epochs_prefix(table)}{epoch:020d}"


def newest_name(table: TableId) -> str:
    """Name of the object with the number of an epoch that is there; later ones may be, too."""
    return f"{TABLES_PREFIX}/{table}/newest"


def encode(record: SharedDefinition | EpochObject | CopyRecord) -> bytes:
    """Encode the object, or the record."""
    return json_line.encode(record)


def decode_definition(data: bytes, name: str) -> SharedDefinition:
    """Decode a definition.

    Raises:
        CorruptData: The object is damaged, or is that of another table.
        UnsupportedVersion: A newer version wrote it.
    """
    definition = json_line.decode(data, SharedDefinition, FORMAT, definition_name(name))
    if definition.name != name:
        raise CorruptData("The definition of a shared table is that of another.", table=name, found=definition.name)
    return definition


def decode_named_definition(data: bytes, object: str) -> SharedDefinition:
    """Decode the definition in an object of this name; raises what :func:`decode_definition` raises."""
    definition = json_line.decode(data, SharedDefinition, FORMAT, object)
    if definition_name(definition.name) != object:
        raise CorruptData("The definition of a shared table is that of another.", object=object, found=definition.name)
    return definition


def decode_copy_record(data: bytes) -> CopyRecord:
    """Decode the record of a copy.

    Raises:
        CorruptData: It is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    return json_line.decode(data, CopyRecord, COPY_FORMAT, COPY_RECORD)


def decode_epoch(data: bytes, of: SharedDefinition, epoch: int) -> EpochObject:
    """Decode the object of an epoch.

    Raises:
        CorruptData: The object is damaged, or is that of another epoch or table.
        UnsupportedVersion: A newer version wrote it.
    """
    name = epoch_name(of.table_id, epoch)
    stored = json_line.decode(data, EpochObject, EPOCH_FORMAT, name)
    if (stored.store_id, stored.table_id, stored.epoch) != (of.store_id, of.table_id, epoch):
        raise CorruptData("An epoch is not the one in its name.", object=name, epoch=stored.epoch)
    if stored.full is not None and not (0 <= stored.full < epoch and not stored.snapshots):
        raise CorruptData("An epoch adds to one that can't be.", object=name, full=stored.full)
    if len(stored.ranges) != of.buckets or len(stored.snapshots) not in (0, of.buckets):
        raise CorruptData("An epoch has other buckets than its table.", object=name, buckets=len(stored.ranges))
    return stored


def epoch_of(part: EpochObject, full: EpochObject) -> SharedEpoch:
    """The epoch of an object.

    Args:
        full: The object of the full epoch to which it adds; the same object if it is full itself.

    Raises:
        CorruptData: They do not fit together, or ranges do not follow each other.
    """
    name = epoch_name(part.table_id, part.epoch)
    if full.full is not None:
        raise CorruptData("An epoch adds to one that is not full.", object=name, full=full.epoch)
    ranges, writers = full.ranges, full.writers
    if part is not full:
        ranges = [before + more for before, more in zip(full.ranges, part.ranges, strict=True)]
        writers = last_writers({**full.writers, **part.writers})
    starts = [bucket[0].start if bucket and full.format == EPOCH_FORMAT else 0 for bucket in ranges]
    for bucket, start in zip(ranges, starts, strict=True):
        ends = [start, *(each.end for each in bucket)]
        if any(each.start != end or each.end <= each.start for each, end in zip(bucket, ends, strict=False)):
            raise CorruptData("The ranges of an epoch do not follow each other.", object=name)
    snapshots = full.snapshots or [[] for _ in ranges]
    for bucket, start, taken in zip(ranges, starts, snapshots, strict=True):
        ends = [start, *(each.end for each in bucket)] if taken else []
        if any(snapshot.offset not in ends for snapshot in taken):
            raise CorruptData("A snapshot of an epoch is of no end of a range.", object=name)
        if start and start not in [snapshot.offset for snapshot in taken]:
            raise CorruptData("An epoch has no snapshot of the changes that have expired.", object=name)
    return SharedEpoch(
        store_id=part.store_id,
        table_id=part.table_id,
        epoch=part.epoch,
        commit=part.commit,
        committed_ms=part.committed_ms,
        writers=writers,
        ranges=ranges,
        snapshots=snapshots,
        full=full.epoch,
        in_full=[len(bucket) for bucket in full.ranges],
    )


def has_ranges(ranges: list[SharedRange], some: list[SharedRange]) -> bool:
    """Whether ranges of a bucket in an earlier epoch are among those of a later one, or have expired there."""
    start = ranges[0].start if ranges else 0
    left = [each for each in some if each.end > start]
    number = bisect_left(ranges, left[0].start, key=lambda each: each.start) if left else 0
    return ranges[number : number + len(left)] == left


def batch_name(writer: str, query: str, batch: int) -> str:
    """The name of a batch of a stream; other names have no line feeds."""
    return _IN_STREAM.join((writer, query, str(batch)))


def _stream_of(name: str) -> str | None:
    return name.rpartition(_IN_STREAM)[0] if _IN_STREAM in name else None


def last_writers(writers: dict[str, int]) -> dict[str, int]:
    """The names that committed last, as many as an epoch remembers, and of each stream its last batch only."""
    names = sorted(writers, key=writers.__getitem__)
    last = {_stream_of(name) or name: name for name in names}
    if len(last) < len(names):
        names = [name for name in names if last[_stream_of(name) or name] == name]
    return {name: writers[name] for name in names[-WRITERS_MAX:]}
