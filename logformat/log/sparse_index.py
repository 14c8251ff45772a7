"""Sparse index of a segment: some of its batches by offset, position and time (docs/format.md, Sparse index).

It saves time and is never relied on: every entry has its own checksum, readers check the batch that an entry points at,
and a missing, torn or wrong file only makes the scan longer. Commit timestamps never decrease within a log, so one
sorted list serves offsets and times.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from logformat.checksum import crc32c
from logformat.ids import Offset, Position
from logformat.log.segment import SEGMENT_BYTES_MAX

INTERVAL_BYTES = 1 << 16
"""Minimum distance of two entries, in bytes of the log."""

_HEAD = struct.pack("<4sHHQ", b"KVIX", 1, 0, 0)
ENTRY = "<qqII"
"""Layout of an entry, for ``struct``."""
ENTRY_BYTES = struct.calcsize(ENTRY)
HEAD_BYTES = len(_HEAD)
SPARSE_INDEX_BYTES_MAX = HEAD_BYTES + (SEGMENT_BYTES_MAX // INTERVAL_BYTES + 1) * ENTRY_BYTES


class Entry(NamedTuple):
    """One batch: its base offset, its commit timestamp (ms), and its position in the segment."""

    offset: Offset
    timestamp: int
    position: Position


def is_due(position: Position, last: Position | None) -> bool:
    """Whether a writer adds an entry for the batch at a position.

    Args:
        last: Position of the last entry's batch; None if there is no entry.
    """
    return last is None or position - last >= INTERVAL_BYTES


def encode_entry(entry: Entry) -> bytes:
    """Encode one entry, 24 bytes."""
    body = struct.pack(ENTRY[:-1], *entry)
    return body + struct.pack("<I", crc32c(body))


def encode(entries: Sequence[Entry]) -> bytes:
    """Encode a whole file."""
    return _HEAD + b"".join(map(encode_entry, entries))


def decode(data: bytes) -> list[Entry]:
    """Entries of a file, up to the first damaged or out-of-order one."""
    entries: list[Entry] = []
    if data[:HEAD_BYTES] != _HEAD:
        return entries
    whole = len(data) - (len(data) - HEAD_BYTES) % ENTRY_BYTES
    for start in range(HEAD_BYTES, whole, ENTRY_BYTES):
        offset, timestamp, position, crc = struct.unpack_from(ENTRY, data, start)
        if crc32c(memoryview(data)[start : start + ENTRY_BYTES - 4]) != crc:
            break
        entry = Entry(Offset(offset), timestamp, Position(position))
        if entries and not (entries[-1].offset < offset and entries[-1].position < position):
            break
        entries.append(entry)
    return entries


def at_offset(entries: Sequence[Entry], offset: Offset) -> Entry | None:
    """The last entry at or before an offset."""
    number = bisect_right(entries, offset, key=lambda entry: entry.offset)
    return entries[number - 1] if number else None


def before_time(entries: Sequence[Entry], timestamp: int) -> Entry | None:
    """The last entry older than a time; the first batch at or after that time is not before this entry."""
    number = bisect_right(entries, timestamp - 1, key=lambda entry: entry.timestamp)
    return entries[number - 1] if number else None
