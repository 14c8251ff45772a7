"""Progress of a load, from the table's state of writers: every batch of a load has a sequence number.

* A load writes under a writer id derived from its identity, and its nth batch has sequence n: a batch that is in the
  log is never applied again, and none is left out.
* A table forgets a writer after seven days, and then accepts sequences from 0 again. The log has the batches of an
  older load; its rest is written under another id, derived from its identity and its progress.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import kvstore
from kvstore.cli.log.walk import headers, segments
from logformat.ids import NO_WRITER, Offset

_ID_BITS = 62
"""Stores allocate ids from 2^62 on."""


@dataclass(frozen=True, slots=True)
class Position:
    """Position at which a load continues.

    Attributes:
        batch: Number of the first batch that the table lacks.
        writer_id: Id of the writer for the next batches.
        first: Number of the batch that has sequence 0 of this writer.
    """

    batch: int
    writer_id: int
    first: int


def position_of(load: bytes, bucket: kvstore.Bucket) -> Position:
    """Position at which a load continues.

    Args:
        load: Identity of the load: everything by which two loads differ.

    Raises:
        CorruptData: The index or the log is damaged.
    """
    first = 0
    forgotten: dict[int, int] | None = None
    while True:
        writer_id = _writer_id(load, first)
        last = bucket.last_sequence(writer_id)
        if last is not None:
            return Position(first + last + 1, writer_id, first)
        if forgotten is None:
            forgotten = _forgotten(bucket)
        if writer_id not in forgotten:
            return Position(first, writer_id, first)
        first += forgotten[writer_id] + 1


def _writer_id(load: bytes, first: int) -> int:
    digest = sha256(b"%d\0%b" % (first, load)).digest()
    return int.from_bytes(digest[:8]) >> (64 - _ID_BITS)


def _forgotten(bucket: kvstore.Bucket) -> dict[int, int]:
    """Last sequences of writers in the part of the log whose writers may be forgotten."""
    end, log = Offset(bucket.remembered_from()), bucket.handle.log
    return {
        header.writer_id: header.batch_sequence
        for segment, stop in segments(log, end)
        for _, header in headers(segment, stop)
        if header.writer_id != NO_WRITER
    }
