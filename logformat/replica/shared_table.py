"""Objects of a shared table: its definition, and one manifest for each epoch (docs/format.md, Shared tables).

* An epoch is created once: creating its object is the commit. Nothing is changed afterwards.
* A range has the name of a replica's range, with the number of an attempt in place of the leader's epoch.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec

from logformat import json_line
from logformat.catalog.edits import TableOptions
from logformat.catalog.replicas import Stream
from logformat.errors import CorruptData
from logformat.ids import BucketId, Epoch, TableId
from logformat.replica.object_file import TABLES_PREFIX, ObjectName

DEFINITIONS_PREFIX = "shared"
FORMAT = 1
DEFINITION_BYTES_MAX = 16 << 20
EPOCH_BYTES_MAX = 64 << 20
NEWEST_BYTES_MAX = 20
COPY_RECORD = "APPLIED"
COPY_RECORD_BYTES_MAX = 1 << 10
WRITERS_MAX = 10_000
"""Names of writers that an epoch remembers; the ones that committed last."""


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

    def name(self, stream: Stream) -> ObjectName:
        """Name of the object."""
        return ObjectName(stream, "range", self.start, self.end, Epoch(self.attempt))


class SharedEpoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The manifest of an epoch.

    Attributes:
        commit: Random id of the commit, by which a committer that got no answer knows its own.
        writers: For each name under which something was written once, the epoch that has it.
        ranges: For each bucket its ranges, in order and without holes from offset 0 on.
    """

    format: int = FORMAT
    store_id: UUID
    table_id: TableId
    epoch: int
    commit: UUID
    committed_ms: int
    writers: dict[str, int]
    ranges: list[list[SharedRange]]

    @property
    def attempt(self) -> int:
        """The largest number of an attempt."""
        return max((each.attempt for bucket in self.ranges for each in bucket), default=0)

    def end(self, bucket: int) -> int:
        """The offset after the last change of a bucket."""
        return self.ranges[bucket][-1].end if self.ranges[bucket] else 0

    def sizes(self, bucket: BucketId) -> dict[ObjectName, int]:
        """Names and sizes in bytes of a bucket's ranges."""
        stream = Stream(self.table_id, bucket)
        return {each.name(stream): each.bytes for each in self.ranges[bucket]}


class CopyRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The record beside a copy of a bucket on a machine.

    Attributes:
        range: The copy is a beginning of the history that ends with this range.
    """

    format: int = FORMAT
    range: SharedRange


def definition_name(table: str) -> str:
    """Name of the object with the definition of a table: names of tables may have any characters."""
    return f"{DEFINITIONS_PREFIX}/{sha256(table.encode()).hexdigest()}"


def epochs_prefix(table: TableId) -> str:
    """What the names of a table's epochs begin with."""
    return f"{TABLES_PREFIX}/{table}/epoch/"


def epoch_name(table: TableId, epoch: int) -> str:
    """Name of an epoch's object."""
    return f"{epochs_prefix(table)}{epoch:020d}"


def newest_name(table: TableId) -> str:
    """Name of the object with the number of an epoch that is there; later ones may be, too."""
    return f"{TABLES_PREFIX}/{table}/newest"


def encode(found: SharedDefinition | SharedEpoch | CopyRecord) -> bytes:
    """Encode the object, or the record."""
    return json_line.encode(found)


def decode_definition(data: bytes, name: str) -> SharedDefinition:
    """Decode a definition.

    Raises:
        CorruptData: The object is damaged, or is that of another table.
        UnsupportedVersion: A newer version wrote it.
    """
    found = json_line.decode(data, SharedDefinition, FORMAT, definition_name(name))
    if found.name != name:
        raise CorruptData("The definition of a shared table is that of another.", table=name, found=found.name)
    return found


def decode_copy_record(data: bytes) -> CopyRecord:
    """Decode the record of a copy.

    Raises:
        CorruptData: It is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    return json_line.decode(data, CopyRecord, FORMAT, COPY_RECORD)


def decode_epoch(data: bytes, of: SharedDefinition, epoch: int) -> SharedEpoch:
    """Decode an epoch.

    Raises:
        CorruptData: The object is damaged, or is that of another epoch or table.
        UnsupportedVersion: A newer version wrote it.
    """
    name = epoch_name(of.table_id, epoch)
    found = json_line.decode(data, SharedEpoch, FORMAT, name)
    if (found.store_id, found.table_id, found.epoch) != (of.store_id, of.table_id, epoch):
        raise CorruptData("An epoch is not the one in its name.", object=name, epoch=found.epoch)
    for bucket in found.ranges:
        ends = [0, *(each.end for each in bucket)]
        if any(each.start != end or each.end <= each.start for each, end in zip(bucket, ends, strict=False)):
            raise CorruptData("The ranges of an epoch do not follow each other.", object=name)
    if len(found.ranges) != of.buckets:
        raise CorruptData("An epoch has other buckets than its table.", object=name, buckets=len(found.ranges))
    return found
