"""The changelog of one bucket, batch by batch: what each batch is, and its changes with what they changed."""

from __future__ import annotations

from dataclasses import dataclass, field as default
from typing import Any

import pyarrow as pa

from kvstore.console.commands import command, names_given
from kvstore.console.html import Content, Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import error_box, error_facts, field, hidden, pager, time_text
from kvstore.console.query import Query
from kvstore.console.table.columns import chosen, columns_form
from kvstore.console.table.difference import Version, version_facts, version_html, versions_of
from kvstore.console.values import json_text
from kvstore.errors import OffsetOutOfRange, StoreError
from kvstore.history.origin import Origin, Origins
from kvstore.log.segments import FoundBatch, LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.read.binlog import binlog_of, binlog_schema, changelog_columns
from kvstore.read.changelog import changes_between, milliseconds
from kvstore.store import Store
from logformat.ids import BucketId, Offset
from logformat.log.batch import BatchHeader

OFFSETS_SHOWN = 50


@dataclass
class Batch:
    """A batch of the log.

    Attributes:
        versions: Its changes between the offsets of the page.
    """

    header: BatchHeader
    origin: Origin
    segment: str
    versions: list[Version] = default(default_factory=list)


@dataclass
class Stretch:
    """A part of a log.

    Attributes:
        start, stop: Its offsets; exclusive.
        ends: The ends of the logs of all buckets.
        error: Why it ends before ``stop``; None if it does not.
    """

    start: int
    stop: int
    log_start: int
    log_end: int
    ends: list[int]
    batches: list[Batch] = default(default_factory=list)
    error: dict[str, Any] | None = None


def read_changes(
    store: Store, definition: TableDefinition, bucket: int, names: list[str], query: Query, most: int = OFFSETS_SHOWN
) -> Stretch:
    """At most so many offsets of a log; ``start`` of the query is an offset or a time, else the latest are read.

    Raises:
        StoreError: The log does not have the place, or can't be read there.
    """
    table = store.table(definition.name)
    ends = [int(end) for end, _ in table.committed().values()]
    log, log_end = table.bucket(bucket).log, Offset(ends[bucket])
    log_start = log.start()
    start = _start(query, log, log_start, log_end, most)
    found = Stretch(start, min(start + most, log_end), log_start, log_end, ends)
    # Read after the end, so that it has the schemas of all changes.
    current = store.runtime.catalog().tables[definition.id].named_as(definition)
    origins = Origins(store.runtime.catalog(), definition.id)
    try:
        for each in log.batches(Offset(found.start), Offset(found.stop)):
            batch = Batch(each.header, origins.of(each.header), each.path.name)
            found.batches.append(batch)
            batch.versions = _versions(each, current, bucket, names, found)
    except StoreError as error:
        found.error = error_facts(error)
    return found


def _start(query: Query, log: LogFiles, log_start: Offset, log_end: Offset, most: int) -> int:
    place = query.place("start")
    if place is None:
        return max(log_start, log_end - most)
    if not isinstance(place, int):
        return log.first_at_or_after(milliseconds(place), log_end)
    if not log_start <= place <= log_end:
        raise OffsetOutOfRange("The log does not hold this offset.", offset=place, log_start=log_start, log_end=log_end)
    return place


def _versions(
    each: FoundBatch, definition: TableDefinition, bucket: int, names: list[str], found: Stretch
) -> list[Version]:
    schema = binlog_schema(definition, names)
    start, stop = Offset(found.start), Offset(found.stop)
    # An update belongs to the page that has its second half.
    changes = changes_between(
        [each], definition, BucketId(bucket), start, stop, changelog_columns(schema), whole_updates=True
    )
    versions = [versions_of(pa.Table.from_batches([paired]), definition) for paired in binlog_of(changes, schema)]
    return [version for several in versions for version in several]


def changes_page(store: Store, definition: TableDefinition, query: Query) -> Page:
    """Changes of a bucket from ``start`` on, or the latest."""
    names, _ = chosen(definition, query)
    bucket = query.number("bucket", most=definition.buckets - 1) or 0
    found = read_changes(store, definition, bucket, names, query)
    path = f"/tables/{definition.id}/changes"
    kept: dict[str, Any] = {"column": query.all("column") or None, "bucket": query.text("bucket")}
    earlier = max(found.log_start, found.start - OFFSETS_SHOWN)
    links = {
        "Earliest": url(path, **kept, start=found.log_start) if found.start > found.log_start else None,
        "Earlier": url(path, **kept, start=earlier) if found.start > found.log_start else None,
        "Later": url(path, **kept, start=found.stop) if found.stop < found.log_end else None,
        "Latest": url(path, **kept) if found.stop < found.log_end else None,
    }
    facts = {
        "id": definition.id,
        "table": definition.name,
        "bucket": bucket,
        "start": found.start,
        "end": found.stop,
        "log_start": found.log_start,
        "log_end": found.log_end,
        "batches": [_batch_facts(each) for each in found.batches],
        **({} if found.error is None else found.error),
    }

    def body() -> Html:
        return tag(
            "div",
            _form(definition, path, found, query),
            columns_form(definition, names, path, bucket=query.text("bucket"), start=query.text("start")),
            tag(
                "p",
                f"Offsets {found.start:,} to {max(found.start, found.stop - 1):,}; the log has"
                f" {found.log_start:,} to {found.log_end - 1:,}."
                if found.log_end > found.log_start
                else "The log is empty.",
                class_="note",
            ),
            pager(**links),
            [_batch_html(each, definition, bucket, found) for each in found.batches],
            None if found.error is None else error_box(found.error),
            pager(**links) if len(found.batches) > 1 else None,
        )

    line = command(
        "changelog",
        store.path,
        definition.name,
        start=found.start,
        end=found.stop,
        bucket=bucket if definition.buckets > 1 else None,
        columns=names_given(["_log_offset", "_change_type", *names] if len(names) < len(definition.schema) else None),
    )
    api = "/api" + url(path, **kept, start=query.text("start"))
    return Page("Changes of " + definition.name, facts, body, line, api, definition, "changes")


def _batch_facts(batch: Batch) -> dict[str, Any]:
    header, origin = batch.header, batch.origin
    return {
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "records": header.record_count,
        "bytes": header.size,
        "time": time_text(header.commit_timestamp),
        "schema_id": header.schema_id,
        "segment": batch.segment,
        **origin_facts(origin),
        "changes": [version_facts(each) for each in batch.versions],
    }


def origin_facts(origin: Origin) -> dict[str, Any]:
    """Where a batch comes from; only what is known."""
    named = {
        name: getattr(origin, name)
        for name in ("writer", "writer_id", "epoch", "sequence", "run", "job", "task", "file")
    }
    return {name: value for name, value in named.items() if value is not None}


def origin_words(facts: dict[str, Any]) -> list[Content]:
    """The same for people."""
    if "writer" not in facts:
        return ["written without a writer"]
    words: list[Content] = [tag("span", "writer ", tag("b", facts["writer"]))]
    if "job" in facts:
        words.append(f"job {facts['job']}, task {facts['task']}")
        words.append(facts.get("file"))
    words.append(f"epoch {facts['epoch']}, sequence {facts['sequence']}")
    return [each for each in words if each is not None]


def _batch_html(batch: Batch, definition: TableDefinition, bucket: int, found: Stretch) -> Html:
    facts, header = _batch_facts(batch), batch.header
    before, after = header.base_offset < found.start, header.last_offset >= found.stop
    elsewhere = [word for word, there in (("before", before), ("after", after)) if there]
    several = header.last_offset > header.base_offset
    offsets = f"{header.base_offset:,}–{header.last_offset:,}" if several else f"{header.base_offset:,}"
    count = "1 change record" if header.record_count == 1 else f"{header.record_count:,} change records"
    undo = _undo_link(batch, definition, bucket, found)
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
        tag("h2", f"Batch {offsets} ", tag("small", count)),
        tag("ul", [tag("li", each) for each in about], undo, class_="about"),
        content,
        tag("p", f"It has more changes {' and '.join(elsewhere)} this page.", class_="none") if elsewhere else None,
        class_="batch",
        tabindex=-1,
        aria_label=f"Batch at offset {header.base_offset}",
    )


def _form(definition: TableDefinition, path: str, found: Stretch, query: Query) -> Html:
    buckets = definition.buckets
    return tag(
        "form",
        hidden(column=query.all("column")),
        field("Bucket", "bucket", query.text("bucket") or 0, type="number", min=0, max=buckets - 1)
        if buckets > 1
        else None,
        field("Go to an offset or a time", "start", query.text("start"), placeholder=str(found.log_start), size=24),
        tag("button", "Go"),
        action=path,
        role="search",
    )


def _undo_link(batch: Batch, definition: TableDefinition, bucket: int, found: Stretch) -> Html | None:
    header = batch.header
    if definition.primary_key is None or not header.record_count or header.base_offset < found.log_start:
        return None
    places = {"start": header.base_offset, "end": header.next_offset}
    if definition.buckets > 1:  # nothing of the others
        given = {
            name: json_text({str(each): at if each == bucket else end for each, end in enumerate(found.ends)})
            for name, at in places.items()
        }
    else:
        given = {name: str(at) for name, at in places.items()}
    label = f"Preview an undo of the batch at offset {header.base_offset}"
    return tag("p", tag("a", "preview undo", href=url(f"/tables/{definition.id}/undo", **given), aria_label=label))
