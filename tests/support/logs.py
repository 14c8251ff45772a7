"""Logs by hand, without a table above them."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa

from kvstore.disk.files import Files
from kvstore.log import recovery
from kvstore.log.log import Log
from kvstore.log.segment_writer import EncodedBatch
from kvstore.log.segments import FoundBatch, LogEnd, LogFiles, LogIdentity
from logformat.ids import BucketId, Offset, Sequence, TableId, WriterId
from logformat.log.batch import LogBatch, encode_parts

IDENTITY = LogIdentity(UUID(int=7), TableId(3), BucketId(0))
ROWS = pa.record_batch({"a": pa.array(range(8), pa.int64())})


def batch(
    base: int,
    records: int = 1,
    *,
    durable_end: int = 0,
    timestamp: int = 0,
    writer: int = -1,
    sequence: int = -1,
    rows: pa.RecordBatch = ROWS,
) -> EncodedBatch:
    whole = LogBatch(
        base_offset=Offset(base),
        last_offset_delta=max(records - 1, 0),
        commit_timestamp=timestamp,
        durable_end=Offset(durable_end),
        table_id=IDENTITY.table_id,
        bucket_id=IDENTITY.bucket_id,
        writer_id=WriterId(writer),
        batch_sequence=Sequence(sequence),
        rows=rows.slice(0, records),
        change_types=np.ones(records, np.uint8),
    )
    return EncodedBatch.of(whole, encode_parts(whole))


def stretch(start: int, end: int, *, timestamp: int = 0) -> EncodedBatch:
    """A batch without records that takes all offsets from ``start`` to ``end``."""
    whole = LogBatch(
        base_offset=Offset(start),
        last_offset_delta=end - start - 1,
        commit_timestamp=timestamp,
        table_id=IDENTITY.table_id,
        bucket_id=IDENTITY.bucket_id,
    )
    return EncodedBatch.of(whole, encode_parts(whole))


def open_log(
    directory: Path, files: Files | None = None, synced: LogEnd | None = None, segment_bytes_max: int = 1 << 20
) -> Log:
    files = files or Files()
    if not any(directory.glob("*.log")):
        recovery.create(directory, IDENTITY, files)
    end = recovery.prepare(directory, IDENTITY, synced, files)
    return Log(directory, IDENTITY, end, files, segment_bytes_max=segment_bytes_max)


def append(log: Log, count: int, records: int = 1, *, together: int = 1) -> None:
    """Append batches whose timestamps are their offsets, syncing ``together`` at once, rolling when it is due."""
    for _ in range(0, count, together):
        if log.is_full:
            log.roll(b"")
        base, durable = log.end.offset, log.durable.offset
        firsts = [base + number * max(records, 1) for number in range(together)]
        log.append([batch(first, records, durable_end=durable, timestamp=first) for first in firsts])
        log.sync()


def read(directory: Path, start: int = 0, end: int | None = None) -> list[FoundBatch]:
    files = LogFiles(directory, IDENTITY)
    last = end if end is not None else recovery.find_end(directory, IDENTITY, None).offset
    return list(files.batches(Offset(start), Offset(last)))


def offsets(directory: Path, start: int = 0, end: int | None = None) -> list[int]:
    return [found.header.base_offset for found in read(directory, start, end)]
