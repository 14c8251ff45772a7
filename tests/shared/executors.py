"""An executor as a process of its own; it is forked often, so this imports little more than the fork server has."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa

from kvstore.clock import SystemClock
from kvstore.errors import Unavailable
from kvstore.replica.client import ObjectStore
from kvstore.request.partition import spread
from kvstore.shared.bucket import apply_changes
from kvstore.shared.table import SharedTable
from logformat.ids import BucketId
from logformat.replica.shared_table import SharedDefinition, SharedEpoch
from logformat.rows.changes import Changes

KEYS = 8
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
Task = tuple[SharedEpoch, BucketId, int, int]
"""The base, the bucket, the value that the bucket's keys get, and the time of the commit (ms)."""


def execute(pipe: Connection, url: str, described: SharedDefinition, cache: Path) -> None:
    """An executor: it applies the changes of one bucket after another."""
    table = SharedTable(url, ObjectStore(url), described)
    while True:
        base, bucket, value, at_ms = pipe.recv()
        rows = Changes.of([("upsert", {"k": k, "v": value}) for k in range(KEYS)], SCHEMA)
        changes = dict(spread(table.definition, rows, BucketId(0)))[bucket]
        try:
            pipe.send(apply_changes(table, base, bucket, changes, cache, SystemClock(), at_ms=at_ms))
        except Unavailable as error:  # another task of this machine has the copy
            pipe.send(error)
