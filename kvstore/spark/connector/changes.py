"""``CHANGES`` of a table: the range that a query reads, pinned when it is analysed."""

from __future__ import annotations

import json
from dataclasses import replace

from kvstore.errors import OffsetOutOfRange, UnsupportedOperation
from kvstore.replica.location import replica_at
from kvstore.spark.connector.messages import Message
from kvstore.spark.connector.plans import encode
from kvstore.spark.options import Kind, Options
from kvstore.spark.read.address import found
from kvstore.spark.read.store import StoreReads, changes_max
from kvstore.spark.read.tasks import Pinned, ReadRange
from kvstore.spark.read.versions import Bound, is_ahead, offsets_of, ranges_of
from kvstore.spark.types import spark_schema


def load(request: Message) -> Message:
    """Columns of the changes of a table, their key, the pinned range, and the options of a stream from its start on."""
    path, name = request["path"], request["table"]
    options = Options.of({"path": path, "table": f"{name}$changelog"})
    if (url := replica_at(options.path)) is not None:
        raise UnsupportedOperation(f"CHANGES reads a store; of a replica read `{name}$changelog`.", url=url)
    start, end = Bound(**request["start"]), Bound(**request["end"])
    with found(options) as (address, table):
        if request["net"] and table.options.changelog_image == "wal":
            raise UnsupportedOperation(
                "Net changes need the rows before each change, which the changelog of this table does not have "
                "(changelog_image='wal'); leave `deduplicationMode` out.",
                table=name,
            )
        columns = spark_schema(address.stored())
        answer: Message = {"columns": columns.json(), "key": list(table.primary_key or ())}
        begins = offsets_of(table, start, is_start=True)
        # A range may lie after the last commit; a stream from there would give what comes before its start.
        answer["ahead"] = is_ahead(table, start, begins)
        try:
            ranges = ranges_of(table, start, end)
        except OffsetOutOfRange:
            pass  # a stream that continues from its checkpoint does not need them; a batch fails when it is planned
        else:
            begins = {bucket: log_start for bucket, (log_start, _) in ranges.items()}
            kind = Kind.NET if request["net"] or table.primary_key is None else Kind.CHANGELOG
            read = Pinned(
                replace(address, kind=kind), tuple(ReadRange(bucket, *each) for bucket, each in ranges.items())
            )
            reads = StoreReads(read.address, table)
            if end.place is not None:
                reads.hold(read)
            answer["pinned"] = encode(read)
            answer["rows"] = changes_max(read.ranges)
            answer["bytes"] = reads.change_bytes(read.ranges)
    offsets = json.dumps({str(bucket): offset for bucket, offset in begins.items()})
    answer["options"] = {"path": path, "table": f"{name}$changelog", "startingOffsets": offsets}
    return answer
