"""How far a load has come: the table's own memory of writers says so, for every batch of a load is numbered.

* A load writes under an id made of what it is, and its nth batch has sequence n: a batch that is in the log is never
  applied again, and none is left out.
* A table forgets a writer after seven days, and then takes sequences from 0 again. What an older load has done stands
  in the log; the rest of it is written under another id, made of what it is and how far it had come.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

import kvstore
from kvstore.cli.log.walk import headers, segments
from logformat.ids import NO_WRITER, Offset

_ID_BITS = 62
"""Ids from 2^62 on are given out by stores."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a load goes on.

    Attributes:
        batch: The first batch of it that is not in the table.
        writer_id: Under whom it is written,
        first: and the batch that is, or was, this writer's sequence 0.
    """

    batch: int
    writer_id: int
    first: int


def position_of(load: bytes, bucket: kvstore.Bucket) -> Position:
    """Where a load goes on.

    Args:
        load: What it is; whatever makes it another load must be in here.

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
    end, log = Offset(bucket.remembered_from()), bucket.log
    return {
        header.writer_id: header.batch_sequence
        for segment, stop in segments(log, end)
        for _, header in headers(segment, stop)
        if header.writer_id != NO_WRITER
    }
