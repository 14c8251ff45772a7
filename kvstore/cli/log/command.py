"""``kvstore log``: segments and batches of a table's log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Any

import typer

import kvstore
from kvstore.cli.arguments import AsJson, BucketNumber, Directory, TableName, opened_store
from kvstore.cli.log.walk import headers, segments
from kvstore.cli.printing import AlignedRows, print_facts, print_json, print_line, print_records, print_table, rows_of
from kvstore.clock import time_text
from kvstore.errors import InvalidRequest, OffsetOutOfRange
from kvstore.history.origin import Origins
from kvstore.log.segments import FoundBatch
from logformat.ids import Offset
from logformat.log.batch import APPEND_ONLY, NAMED_WRITER
from logformat.log.change import ChangeType

_ATTRIBUTES = {APPEND_ONLY: "append_only", NAMED_WRITER: "named_writer"}


def ls(path: Directory, name: TableName, bucket: BucketNumber = None, as_json: AsJson = False) -> None:
    """List the segments of a table's log, or of the logs of its buckets."""
    with opened_store(path) as store:
        table = store.table(name)
        listed_segments = []
        for each in range(table.buckets) if bucket is None else [bucket]:
            log = table.bucket(each).handle.log
            for segment, stop in segments(log, Offset(table.offsets()[each][1])):
                # Times never decrease from batch to batch.
                times = [header.commit_timestamp for _, header in headers(segment, stop)]
                listed_segments.append(
                    {
                        "bucket": each,
                        "segment": segment.path.name,
                        "base_offset": segment.base,
                        "end_offset": stop,
                        "bytes": segment.bytes_with_batches(),
                        "batches": len(times),
                        "first_time": time_text(times[0]) if times else None,
                        "last_time": time_text(times[-1]) if times else None,
                    }
                )
    print_records(list(listed_segments[0]), listed_segments, as_json=as_json)


def show(
    path: Directory,
    name: TableName,
    offset: Annotated[
        int | None, typer.Argument(metavar="OFFSET", help="Only the batch that has this offset.", show_default=False)
    ] = None,
    start: Annotated[
        int | None, typer.Option("--from", metavar="OFFSET", help="Begin with the batch that has this offset.", min=0)
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most N batches.", min=0)] = None,
    bucket: BucketNumber = None,
    records: Annotated[bool, typer.Option("--records", help="Show the records, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Verify and show batches of a table's log: their headers, and with --records their records.

    With --json, one object per line for each batch.
    """
    if offset is not None:
        if start is not None:
            raise InvalidRequest("Give an offset, or --from; not both.")
        start, limit = offset, 1
    with opened_store(path) as store:
        table = store.table(name)
        if bucket is None and table.buckets > 1:
            raise InvalidRequest("Each bucket has its own log; choose a bucket with --bucket.", buckets=table.buckets)
        log, origins = table.bucket(bucket or 0).handle.log, table.origins()
        log_start, end = table.offsets()[bucket or 0]
        start = log_start if start is None else start
        if not log_start <= start <= end - (offset is not None):
            raise OffsetOutOfRange("The log does not have this offset.", offset=start, log_start=log_start, log_end=end)
        batches = islice(log.batches(Offset(start), Offset(end)), limit)
        if records:
            for batch in batches:
                _show_records(table, bucket or 0, batch, origins, as_json=as_json)
        elif as_json:
            for batch in batches:
                print_json(_facts(batch, origins))
        else:
            _show_headers(batches, origins)


def _show_headers(batches: Iterator[FoundBatch], origins: Origins) -> None:
    printed: AlignedRows | None = None
    # 100 at a time, so that columns are as wide as they need to be.
    while rows := [_facts(batch, origins) for batch in islice(batches, 100)]:
        printed = printed or AlignedRows(list(rows[0]), right=[isinstance(fact, int) for fact in rows[0].values()])
        printed.add([list(_in_words(facts).values()) for facts in rows])


def _show_records(table: kvstore.Table, bucket: int, logged: FoundBatch, origins: Origins, *, as_json: bool) -> None:
    header = logged.header
    last = header.base_offset + header.record_count
    names = ["_log_offset", "_change_type", *table.schema.names]
    found_changes = table.changelog(header.base_offset, last, bucket, names)
    changes = [row for batch in found_changes for row in rows_of(batch)]
    if as_json:
        print_json(
            {**_facts(logged, origins), "changes": [dict(zip(names, change, strict=True)) for change in changes]}
        )
        return
    print_facts(_in_words(_facts(logged, origins)))
    print_line("")
    print_table(names, [[offset, ChangeType(word).short, *row] for offset, word, *row in changes])
    print_line("")


def _in_words(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: ", ".join(fact) if isinstance(fact, list) else fact for name, fact in facts.items()}


def _facts(batch: FoundBatch, origins: Origins) -> dict[str, Any]:
    header = batch.header
    named = origins.writer(header.writer_id)
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "time": time_text(header.commit_timestamp),
        "writer_id": header.writer_id,
        "writer": None if named is None else named[0],
        "sequence": header.batch_sequence,
        "epoch": header.writer_epoch,
        "schema_id": header.schema_id,
        "attributes": [word for bit, word in _ATTRIBUTES.items() if header.attributes & bit],
        "durable_end": header.durable_end,
        "magic": header.magic,
        "crc": f"{header.crc:08x}",
        "segment": batch.path.name,
        "position": batch.position,
    }
