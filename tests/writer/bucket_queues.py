"""Lanes driven by hand."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from logformat.rows.changes import Changes
from writer.bucket_queue import BucketQueue, Sending, Timing
from writer.target import Identity

SCHEMA = pa.schema([pa.field("k", pa.int64(), False)])
TIMING = Timing(request_timeout=10.0, delivery_timeout=100.0, backoff_min=1.0, backoff_max=4.0)


@dataclass(frozen=True)
class Answer:
    first_offset: int = 0
    last_offset: int = 0
    duplicated: bool = False
    timestamp_ms: int = 0


DUPLICATE = Answer(duplicated=True)
LONG_DUPLICATE = Answer(0, 1, duplicated=True)


def batch(*keys: int) -> Changes:
    return Changes.upserts(pa.RecordBatch.from_pydict({"k": list(keys)}, SCHEMA))


def keys_of(changes: Changes) -> list[int]:
    found: list[int] = changes.rows.column("k").to_pylist()
    return found


def lane_of(batches: int, identity: Identity = Identity(7), jitter: float = 1.0) -> BucketQueue:  # noqa: B008
    bucket_queue = BucketQueue(0, identity, TIMING, lambda: jitter)
    for serial in range(batches):
        bucket_queue.add(batch(serial), serial)
    return bucket_queue


def sequences(sendings: list[Sending]) -> list[int]:
    return [sending.sequence for sending in sendings]


def outcomes(bucket_queue: BucketQueue) -> list[tuple[int, str | None]]:
    """Outcomes of batches since the last call: serial, and name of the error."""
    settled, bucket_queue.settled = bucket_queue.settled, []
    return [(each.serial, type(each.error).__name__ if each.error else None) for each in settled]
