"""Machines that write a shared table, each with copies of buckets of its own."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from kvstore.replica.read.reader import ReplicaReader
from kvstore.request.partition import spread
from kvstore.shared.bucket import apply_changes
from kvstore.shared.table import SharedTable
from kvstore.shared.write import WriteSummary, write_once
from kvstore.table.definition import options_of
from logformat.catalog.edits import ChangelogImage, CreateTable
from logformat.ids import BucketId, TableId
from logformat.replica.shared_table import SharedEpoch, SharedRange
from logformat.rows import schema as schemas
from logformat.rows.changes import Changes
from merge_engines.engine import MergeEngine
from tests.support.clocks import SetClock

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
Ranges = Mapping[BucketId, SharedRange]


def created(
    client: Any,
    name: str = "t",
    buckets: int = 1,
    engine: str | MergeEngine = "last_row",
    *,
    schema: pa.Schema = SCHEMA,
    retention: dt.timedelta | None = None,
    changelog_image: ChangelogImage = "full",
    has_key: bool = True,
) -> SharedTable:
    key = ["k"] if has_key else None
    options = options_of(
        schema,
        key,
        merge_engine=engine,
        changelog_image=changelog_image,
        compression="lz4",
        delete_behavior=None,
        auto_increment=None,
        skip_identical_updates=False,
        retention=retention,
    )
    table = CreateTable(
        table_id=TableId(0),
        name=name,
        columns=schemas.to_json(schema),
        primary_key=key,
        buckets=buckets,
        bucket_key=key,
        options=options,
    )
    return SharedTable.create("memory://x", client, table, SetClock())


class Host:
    """A machine that writes a shared table: its copies of buckets, and its driver."""

    def __init__(self, table: SharedTable, cache: Path, clock: SetClock | None = None) -> None:
        self.table, self.cache, self.clock = table, cache, clock or SetClock()

    def ranges(
        self, base: SharedEpoch, changes: Changes, at_ms: int = 2_000_000, columns: Sequence[str] | None = None
    ) -> Ranges | None:
        found = {}
        for bucket, part in spread(self.table.definition, changes, BucketId(0)):
            place = self.cache, self.clock
            range = apply_changes(self.table, base, bucket, part, *place, at_ms=at_ms, columns=columns)
            if range is None:
                return None
            found[bucket] = range
        return found

    def write(self, changes: Changes, writer: str | None = None, columns: Sequence[str] | None = None) -> WriteSummary:
        return write_once(
            self.table, writer, lambda base, at_ms: self.ranges(base, changes, at_ms, columns), self.clock
        )


def upserts(keys: Sequence[int], value: int) -> Changes:
    return Changes.of([("upsert", {"k": k, "v": value}) for k in keys], SCHEMA)


def read(table: SharedTable, directory: Path) -> tuple[dict[int, int], list[str]]:
    """Rows by key, and the kinds of all changes that have not expired."""
    found = table.at(table.newest())
    reader = ReplicaReader(table.client, found.store_id, found.definition)
    bounds = found.bounds().items()
    rows = [
        r
        for b, (_, end) in bounds
        for part in reader.rows(found.rows(b, end), ["k", "v"], None, directory)
        for r in part.to_pylist()
    ]
    kinds = ["_change_type"]
    changes = [
        r
        for b, (start, end) in bounds
        for part in reader.changes(found.changes(b, start, end), kinds)
        for r in part.to_pylist()
    ]
    return {row["k"]: row["v"] for row in rows}, [row["_change_type"] for row in changes]
