"""Batches of a log on a page: what each is, where it comes from, and its changes; and one batch with its header."""

from __future__ import annotations

import struct
from typing import Any

from kvstore import LoggedBatch, Store
from kvstore.clock import time_text
from kvstore.console.commands import command
from kvstore.console.html import Content, Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import grid, pager
from kvstore.console.query import Query
from kvstore.console.table.definition import Definition
from kvstore.console.table.difference import version_facts, version_html
from kvstore.console.table.stretch import Batch, Stretch
from kvstore.console.values import json_text
from kvstore.errors import InvalidRequest, OffsetOutOfRange
from logformat.log.batch import APPEND_ONLY, LAYOUTS, NAMED_WRITER

_ATTRIBUTES = {APPEND_ONLY: "append_only", NAMED_WRITER: "named_writer"}
_MEANINGS = {
    "base_offset": "offset of the first record",
    "length": "bytes after this field",
    "magic": "version of the layout",
    "attributes": "bits: 1 append only, 2 the writer has a name",
    "schema_id": "schema of the records",
    "crc": "checksum (CRC-32C) of the batch without this field",
    "last_offset_delta": "last offset minus the first",
    "commit_timestamp": "time of the commit, milliseconds since 1970",
    "writer_id": "writer; -1 for none",
    "batch_sequence": "number of the batch among its writer's; -1 for none",
    "writer_epoch": "incarnation of the writer",
    "record_count": "number of records",
    "leader_epoch": "epoch of the leader of the store",
    "durable_end": "the log was durable up to this offset when the batch was written",
    "table_id": "table; a misplaced batch is detected",
    "bucket_id": "bucket",
    "statistics_length": "bytes of the statistics of columns",
    "records_position": "where the Arrow message begins",
    "uncounted_ms": "how much of the time does not count as age",
}


ORIGIN = ["writer", "writer_id", "epoch", "sequence", "run", "job", "task", "file"]
"""Who wrote a batch: attributes of :class:`kvstore.Origin`, and columns of :meth:`kvstore.Table.history`."""


def batch_facts(batch: Batch) -> dict[str, Any]:
    """A batch in JSON, with the changes that are shown."""
    header, logged = batch.header, batch.logged
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "time": time_text(header.commit_timestamp),
        "schema_id": header.schema_id,
        "attributes": [word for bit, word in _ATTRIBUTES.items() if header.attributes & bit],
        "leader_epoch": header.leader_epoch,
        "durable_end": header.durable_end,
        "segment": logged.path.name,
        "position": logged.position,
        **{name: value for name in ORIGIN if (value := getattr(logged.origin, name)) is not None},
        "changes": [version_facts(each) for each in batch.versions],
    }


def origin_words(facts: dict[str, Any]) -> list[Content]:
    """Where a batch comes from, for people; only what is known."""
    if "writer" not in facts:
        return ["written without a writer"]
    words: list[Content] = [tag("span", "writer ", tag("b", facts["writer"]))]
    if "job" in facts:
        words.append(f"job {facts['job']}, task {facts['task']}")
        words.append(facts.get("file"))
    words.append(f"epoch {facts['epoch']}, sequence {facts['sequence']}")
    return [each for each in words if each is not None]


def batch_html(batch: Batch, definition: Definition, bucket: int, stretch: Stretch) -> Html:
    """A batch with the changes that are shown."""
    facts, header = batch_facts(batch), batch.header
    first = batch.versions[0] if batch.versions else None
    halves = 1 if first is not None and first.before is not None and first.after is not None else 0
    before, after = header.base_offset < stretch.start - halves, header.last_offset >= stretch.stop
    elsewhere = [word for word, there in (("before", before), ("after", after)) if there]
    several = header.last_offset > header.base_offset
    offsets = f"{header.base_offset:,}–{header.last_offset:,}" if several else f"{header.base_offset:,}"
    count = "1 change record" if header.record_count == 1 else f"{header.record_count:,} change records"
    where = url(f"/tables/{definition.id}/batch", bucket=bucket, offset=header.last_offset)
    undo = _undo_link(batch, definition, bucket, stretch)
    about: list[Content] = [facts["time"], *origin_words(facts), f"{header.size:,} bytes", f"schema {header.schema_id}"]
    if not header.record_count:
        count = "empty"
        note = "An empty batch: it changes no row. It takes one offset, so that its writer's sequence goes on."
        content: Content = tag("p", note, class_="none")
    elif batch.versions:
        content = [version_html(each, definition, bucket) for each in batch.versions]
    else:
        content = tag("p", "None of its changes is on this page.", class_="none")
    return tag(
        "section",
        tag("h2", tag("a", f"Batch {offsets}", href=where, title="Its header"), " ", tag("small", count)),
        tag("ul", [tag("li", each) for each in (*about, undo) if each is not None], class_="about"),
        content,
        tag("p", f"It has more changes {' and '.join(elsewhere)} this page.", class_="none") if elsewhere else None,
        class_="batch",
        tabindex=-1,
        aria_label=f"Batch at offset {header.base_offset}",
    )


def _undo_link(batch: Batch, definition: Definition, bucket: int, stretch: Stretch) -> Html | None:
    header = batch.header
    if definition.primary_key is None or not header.record_count or header.base_offset < stretch.log_start:
        return None
    places = {"start": header.base_offset, "end": header.next_offset}
    if definition.buckets > 1:  # nothing of the others
        given = {
            name: json_text({str(each): at if each == bucket else end for each, end in enumerate(stretch.ends)})
            for name, at in places.items()
        }
    else:
        given = {name: str(at) for name, at in places.items()}
    label = f"Preview an undo of the batch at offset {header.base_offset}"
    return tag("span", tag("a", "preview undo", href=url(f"/tables/{definition.id}/undo", **given), aria_label=label))


def batch_page(store: Store, definition: Definition, query: Query) -> Page:
    """The header of the batch of ``bucket`` that has the offset ``offset``: bytes, values and meanings.

    Raises:
        InvalidRequest: There is no offset.
        OffsetOutOfRange: The log does not have it.
    """
    bucket, offset = query.number("bucket", most=definition.buckets - 1) or 0, query.number("offset")
    if offset is None:
        raise InvalidRequest("Name a batch by an `offset`.")
    table = definition.table
    log_start, end = table.offsets()[bucket]
    if not log_start <= offset < end:
        raise OffsetOutOfRange("The log does not hold this offset.", offset=offset, log_start=log_start, log_end=end)
    logged = next(table.bucket(bucket).log.batches(offset, offset + 1))
    header = logged.header
    path, kept = f"/tables/{definition.id}/batch", {"bucket": query.text("bucket")}
    facts = batch_facts(Batch(logged))
    del facts["changes"]
    facts = {"id": definition.id, "table": definition.name, "bucket": bucket, **facts, "header": _fields(logged)}

    def body() -> Html:
        rows = [
            [f"{each['position']}", tag("code", each["hex"]), each["field"], f"{each['value']}", each["meaning"]]
            for each in facts["header"]
        ]
        previous = url(path, **kept, offset=header.base_offset - 1) if header.base_offset > log_start else None
        following = url(path, **kept, offset=header.next_offset) if header.next_offset < end else None
        changes = url(f"/tables/{definition.id}/changes", bucket=bucket, start=max(log_start, header.base_offset))
        where = f"{facts['time']}, {header.size:,} bytes at byte {logged.position:,} of {logged.path.name}"
        return tag(
            "div",
            tag("ul", [tag("li", each) for each in (where, *origin_words(facts))], class_="about"),
            pager(Previous=previous, Next=following),
            grid("Header", ["byte", "bytes", "field", "value", "meaning"], rows, right=[True, False, False, True]),
            tag("p", tag("a", "Its changes", href=changes)),
        )

    several = bucket if definition.buckets > 1 else None
    line = command("log show", store.path, definition.name, offset, bucket=several)
    api = "/api" + url(path, **kept, offset=offset)
    return Page(f"Batch at offset {header.base_offset:,}", facts, body, line, api, definition, "changes")


def _fields(logged: LoggedBatch) -> list[dict[str, Any]]:
    """The fields of a header in the order of their bytes."""
    layout, at, fields = LAYOUTS[logged.header.magic], 0, []
    for name, kind in zip(layout.names, layout.format.removeprefix("<"), strict=False):
        size = struct.calcsize(f"<{kind}")
        data = bytes(logged.data[at : at + size])
        (value,) = struct.unpack(f"<{kind}", data)
        fields.append({"field": name, "position": at, "hex": data.hex(" "), "value": value, "meaning": _MEANINGS[name]})
        at += size
    return fields
