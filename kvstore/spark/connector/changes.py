"""``CHANGES`` of a table: the range that a query reads, pinned when it is analysed."""

from __future__ import annotations

import json

from kvstore.errors import OffsetOutOfRange, UnsupportedOperation
from kvstore.replica.location import replica_at
from kvstore.spark.connector.messages import Message
from kvstore.spark.connector.plans import encode_read
from kvstore.spark.options import Kind, Options
from kvstore.spark.read.batch import Pinned
from kvstore.spark.read.place import TablePlace, found
from kvstore.spark.read.splits import ReadRange
from kvstore.spark.read.versions import Bound, offsets_of, ranges_of
from kvstore.spark.types import spark_schema
from logformat.ids import Offset


def load(request: Message) -> Message:
    """Columns of the changes of a table, their key, the pinned range, and the options of a stream from its start on."""
    path, name = request["path"], request["table"]
    options = Options.of({"path": path, "table": f"{name}$changelog"})
    if (url := replica_at(options.path)) is not None:
        raise UnsupportedOperation(f"CHANGES reads a store; of a replica read `{name}$changelog`.", url=url)
    start, end = Bound(**request["start"]), Bound(**request["end"])
    with found(options) as (place, table):
        if request["net"] and table.options.changelog_image == "wal":
            raise UnsupportedOperation(
                "Net changes need the rows before each change, which the changelog of this table does not have "
                "(changelog_image='wal'); leave `deduplicationMode` out.",
                table=name,
            )
        columns = spark_schema(table.changelog_schema())
        answer: Message = {"columns": columns.json(), "key": list(table.primary_key or ())}
        begins = offsets_of(table, start, is_start=True)
        try:
            ranges = ranges_of(table, start, end)
        except OffsetOutOfRange:
            pass  # a stream that continues from its checkpoint does not need them; a batch fails when it is planned
        else:
            begins = {bucket: first for bucket, (first, _) in ranges.items()}
            kind = Kind.NET if request["net"] or table.primary_key is None else Kind.CHANGELOG
            at = TablePlace.of(place.path, table, kind)
            read = Pinned(at, tuple(ReadRange(bucket, *each) for bucket, each in ranges.items()))
            if end.place is not None:
                read.hold(table)
            answer["pinned"] = encode_read(read)
            answer["rows"] = sum(each.end - each.start for each in read.ranges)  # an offset has one row or none
            answer["bytes"] = sum(
                table.parts.of_bucket(each.bucket).change_bytes(Offset(each.start), Offset(each.end))
                for each in read.ranges
            )
    offsets = json.dumps({str(bucket): offset for bucket, offset in begins.items()})
    answer["options"] = {"path": path, "table": f"{name}$changelog", "startingOffsets": offsets}
    return answer
