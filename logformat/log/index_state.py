"""State of an index: one record, written in the same transaction as the rows it describes (docs/format.md, Index)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from logformat.checksum import crc32c
from logformat.errors import CorruptData, UnsupportedVersion
from logformat.ids import BucketId, Offset, Position, TableId

VERSION = 3
"""Written while changes are merged in slices. Version 2 is written where timestamps were stepped over or went back; a
record without these is of version 1, and shorter."""
LAYOUT = "<IHHqIIqqqqqQqQ"
TIMES = "<qq"
MERGING = "<qqQqQqq"
"""Layouts of a state record, of the times that follow it from version 2 on, and of what version 3 adds, for
``struct``."""
STATE_BYTES_MAX = struct.calcsize(LAYOUT) + struct.calcsize(TIMES) + struct.calcsize(MERGING)


class IndexState(NamedTuple):  # every batch makes one, and a frozen dataclass is slower to make
    """State of an index.

    Attributes:
        applied_offset: The index has every change before this offset, and none from it on but those that are merged.
        synced_base: The log was known to be durable up to the segment of this base offset,
        synced_position: this byte in it,
        synced_offset: and this offset, exclusive.
        row_count: Number of rows; for a log table, of records appended.
        digest: Sum modulo 2^64 of the hashes of all rows.
        last_timestamp: Commit timestamp (ms) of the last batch applied.
        uncounted_ms: As in the header of that batch.
        back_offset: Base offset of the last batch whose commit timestamp is less than that of the one before; or 0.
        next_count: Which new row the next one is that gets an id in an auto-increment column, from 1.
        merging: The state after the changes of which the index has some already, in whole rows: those from the applied
            offset of this state on to that of the other one. None if there are none. Everything else here is as of
            before these changes, but the synced end.
    """

    table_id: TableId
    bucket_id: BucketId
    applied_offset: Offset = Offset(0)
    synced_base: Offset = Offset(0)
    synced_position: Position = Position(0)
    synced_offset: Offset = Offset(0)
    row_count: int = 0
    digest: int = 0
    last_timestamp: int = 0
    next_count: int = 1
    uncounted_ms: int = 0
    back_offset: Offset = Offset(0)
    merging: IndexState | None = None

    @property
    def latest_offset(self) -> Offset:
        """The index has nothing of the changes from this offset on."""
        return self.applied_offset if self.merging is None else self.merging.applied_offset

    @property
    def counted_ms(self) -> int:
        """Counted time of the last batch applied; see :class:`logformat.log.batch.BatchHeader`."""
        return self.last_timestamp - self.uncounted_ms


def encode(state: IndexState) -> bytes:
    """The record, 88 bytes, or 104 of version 2, or 160 of version 3."""
    times, after = (state.uncounted_ms, state.back_offset), state.merging
    version = 3 if after is not None else 2 if any(times) else 1
    body = struct.pack(
        LAYOUT[0] + LAYOUT[2:],
        *(version, 0, state.table_id, state.bucket_id, 0, state.applied_offset, state.synced_base),
        *(state.synced_position, state.synced_offset, state.row_count, state.digest, state.last_timestamp),
        state.next_count,
    )
    if version > 1:
        body += struct.pack(TIMES, *times)
    if after is not None:
        body += struct.pack(
            MERGING,
            *(after.applied_offset, after.row_count, after.digest, after.last_timestamp, after.next_count),
            *(after.uncounted_ms, after.back_offset),
        )
    return struct.pack("<I", crc32c(body)) + body


def decode(data: bytes) -> IndexState:
    """Decode the record.

    Raises:
        CorruptData: The record is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    size = struct.calcsize(LAYOUT)
    if len(data) < size or struct.unpack_from("<I", data)[0] != crc32c(memoryview(data)[4:]):
        raise CorruptData("The state of an index fails its checksum; run `kvstore check`.")
    _, version, _, table, bucket, _, applied, base, position, synced, rows, digest, timestamp, next_count = (
        struct.unpack_from(LAYOUT, data)
    )
    if not 1 <= version <= VERSION:
        raise UnsupportedVersion("This index was written by a newer kvstore; upgrade.", version=version)
    if len(data) != struct.calcsize(LAYOUT) + sum(map(struct.calcsize, (TIMES, MERGING)[: version - 1])):
        raise CorruptData("The state of an index has another length than its version; run `kvstore check`.")
    uncounted, back = struct.unpack_from(TIMES, data, size) if version > 1 else (0, 0)
    state = IndexState(
        TableId(table),
        BucketId(bucket),
        applied_offset=Offset(applied),
        synced_base=Offset(base),
        synced_position=Position(position),
        synced_offset=Offset(synced),
        row_count=rows,
        digest=digest,
        last_timestamp=timestamp,
        next_count=next_count,
        uncounted_ms=uncounted,
        back_offset=Offset(back),
    )
    return state if version < 3 else state._replace(merging=_merging(state, data))


def _merging(state: IndexState, data: bytes) -> IndexState:
    after = struct.unpack_from(MERGING, data, struct.calcsize(LAYOUT) + struct.calcsize(TIMES))
    applied, rows, digest, timestamp, next_count, uncounted, back = after
    if not state.applied_offset < applied <= state.synced_offset:
        raise CorruptData("The state of an index is merged up to a wrong offset; run `kvstore check`.", offset=applied)
    return state._replace(
        applied_offset=Offset(applied),
        row_count=rows,
        digest=digest,
        last_timestamp=timestamp,
        next_count=next_count,
        uncounted_ms=uncounted,
        back_offset=Offset(back),
    )
