"""The state kept for a writer: its last five batches (docs/format.md, Writer entry and Writer snapshot)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from logformat.checksum import crc32c
from logformat.errors import CorruptData, UnsupportedVersion
from logformat.ids import Epoch, Offset, Sequence, WriterId

WINDOW = 5
"""Number of batches remembered of each writer, and so the limit of its batches in flight."""

EXPIRY_MS = 7 * 24 * 3600 * 1000
"""Counted time after which a writer without a name is forgotten."""

WRITERS_BYTES_MAX = 1 << 27
"""A writer snapshot: of 800,000 writers."""

HEAD = "<iBBH"
"""Layout of the head of an entry, for ``struct``; its checksum comes before it."""
UNCOUNTED = "<q"
"""Layout of the uncounted time after the head, for ``struct``; only in version 1."""
_AGED = 1
"""Version of an entry that has :attr:`WriterEntry.uncounted_ms`; without it, it is 0."""
BATCH = "<iiqq"
"""Layout of a remembered batch, for ``struct``."""
SNAPSHOT_HEAD = "<4sHHqI"
"""Layout of the head of a writer snapshot, for ``struct``."""
_SNAPSHOT_MAGIC = b"KVWS"


class RememberedBatch(NamedTuple):
    """An appended batch."""

    sequence: Sequence
    last_offset_delta: int
    base_offset: Offset
    timestamp: int

    @property
    def last_offset(self) -> Offset:
        """Offset of its last record, or the one that an empty batch took."""
        return Offset(self.base_offset + self.last_offset_delta)


class WriterEntry(NamedTuple):
    """One writer.

    Attributes:
        named: Whether it has a name.
        batches: Its last ones, oldest first, at least one.
        uncounted_ms: Of the last of them, see :class:`logformat.log.batch.BatchHeader`.
    """

    epoch: Epoch
    named: bool
    batches: tuple[RememberedBatch, ...]
    uncounted_ms: int = 0

    @property
    def counted_ms(self) -> int:
        """Counted time of its last batch, from which on it ages."""
        return self.batches[-1].timestamp - self.uncounted_ms

    def before(self, offset: Offset) -> WriterEntry | None:
        """The entry with the batches before an offset; None if there are none."""
        batches = tuple(each for each in self.batches if each.base_offset < offset)
        return self._replace(batches=batches) if batches else None


def encode_entry(writer_id: WriterId, entry: WriterEntry) -> bytes:
    """12 bytes, 8 if some of its time is uncounted, and 24 for each batch; the checksum covers the writer id too."""
    head = struct.pack(HEAD, entry.epoch, entry.named, len(entry.batches), _AGED if entry.uncounted_ms else 0)
    if entry.uncounted_ms:
        head += struct.pack(UNCOUNTED, entry.uncounted_ms)
    body = head + b"".join(struct.pack(BATCH, *batch) for batch in entry.batches)
    return _checksum(writer_id, body) + body


def decode_entry(writer_id: WriterId, data: bytes) -> WriterEntry:
    """Decode the entry of this writer.

    Raises:
        CorruptData: It is damaged, or another writer's.
        UnsupportedVersion: A newer version wrote it.
    """
    body = data[4:]
    if len(body) < struct.calcsize(HEAD) or data[:4] != _checksum(writer_id, body):
        raise CorruptData("A writer entry fails its checksum; run `kvstore check`.", writer_id=writer_id)
    epoch, named, count, version = struct.unpack_from(HEAD, body)
    if version > _AGED:
        raise UnsupportedVersion("A writer entry was written by a newer kvstore; upgrade.", version=version)
    position = struct.calcsize(HEAD) + version * struct.calcsize(UNCOUNTED)
    if not count or len(body) != position + count * struct.calcsize(BATCH):
        raise CorruptData("A writer entry has other batches than it counts; run `kvstore check`.", writer_id=writer_id)
    batches = tuple(
        RememberedBatch(Sequence(sequence), delta, Offset(base), timestamp)
        for sequence, delta, base, timestamp in struct.iter_unpack(BATCH, body[position:])
    )
    uncounted = struct.unpack_from(UNCOUNTED, body, struct.calcsize(HEAD))[0] if version else 0
    return WriterEntry(Epoch(epoch), bool(named), batches, uncounted)


def encode_snapshot(next_offset: Offset, writers: Mapping[WriterId, WriterEntry]) -> bytes:
    """A whole file: every writer known when the log ended at ``next_offset``."""
    version = 2 if any(entry.uncounted_ms for entry in writers.values()) else 1
    body = struct.pack(SNAPSHOT_HEAD, _SNAPSHOT_MAGIC, version, 0, next_offset, len(writers))
    for writer_id, entry in sorted(writers.items()):
        encoded = encode_entry(writer_id, entry)
        body += struct.pack("<qI", writer_id, len(encoded)) + encoded
    return body + struct.pack("<I", crc32c(body))


def decode_snapshot(data: bytes) -> tuple[Offset, dict[WriterId, WriterEntry]]:
    """Decode a whole file.

    Raises:
        CorruptData: The file is damaged.
    """
    position = struct.calcsize(SNAPSHOT_HEAD)
    if len(data) < position + 4 or struct.unpack_from("<I", data, len(data) - 4)[0] != crc32c(memoryview(data)[:-4]):
        raise CorruptData("A writer snapshot fails its checksum; run `kvstore check`.")
    magic, version, _, next_offset, count = struct.unpack_from(SNAPSHOT_HEAD, data)
    if magic != _SNAPSHOT_MAGIC or version not in (1, 2):
        raise CorruptData("This is no writer snapshot; run `kvstore check`.")
    writers = {}
    for _ in range(count):
        if len(data) < position + 12:
            raise CorruptData("A writer snapshot is cut short; run `kvstore check`.")
        writer_id, length = struct.unpack_from("<qI", data, position)
        position += 12
        writers[WriterId(writer_id)] = decode_entry(WriterId(writer_id), data[position : position + length])
        position += length
    return Offset(next_offset), writers


def _checksum(writer_id: WriterId, body: bytes) -> bytes:
    return struct.pack("<I", crc32c(struct.pack("<q", writer_id) + body))
