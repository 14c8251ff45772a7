"""The log of one bucket: its segments, and what keeps each from expiring."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvstore.clock import time_text
from kvstore.console.commands import command
from kvstore.console.html import Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import error_box, error_facts, field, grid, is_error, pager, size_text
from kvstore.console.query import Query
from kvstore.errors import StoreError
from kvstore.log.segments import LogFiles
from kvstore.meta.state import TableDefinition
from kvstore.store.store import Store
from logformat.ids import BucketId, Offset, Position
from logformat.log.segment import HEAD_BYTES

SEGMENTS_SHOWN = 50


@dataclass(frozen=True)
class Part:
    """A segment and its exclusive end; the last one is still written.

    Attributes:
        reasons: What keeps it.
    """

    base: Offset
    end: Offset
    reasons: list[str]


def log_page(store: Store, definition: TableDefinition, query: Query) -> Page:
    """Segments of ``bucket``, the newest first; ``page`` counts from 1."""
    bucket, number = query.number("bucket", most=definition.buckets - 1) or 0, query.number("page", least=1) or 1
    table = store.table(definition.name)
    log = table.bucket(bucket).log
    parts = _parts(log, table.committed()[BucketId(bucket)][0], definition, _positions(store, definition, bucket))
    first = (number - 1) * SEGMENTS_SHOWN
    segments = [_facts(log, each) for each in parts[::-1][first : first + SEGMENTS_SHOWN]]
    path, kept = f"/tables/{definition.id}/log", {"bucket": query.text("bucket")}
    facts = {
        "id": definition.id,
        "table": definition.name,
        "bucket": bucket,
        "retention_ms": definition.options.retention_ms,
        "segments_all": len(parts),
        "segments": segments,
    }

    def to(page: int) -> str | None:
        there = page >= 1 and (page - 1) * SEGMENTS_SHOWN < len(parts)
        return url(path, **kept, page=page) if there else None

    def body() -> Html:
        return tag(
            "div",
            _form(definition, path, bucket),
            tag("p", _retention_words(definition), class_="note"),
            grid(
                "Segments, the newest first",
                ["segment", "first offset", "end", "size", "first change", "kept because"],
                [_row(each, definition, bucket) for each in segments],
                right=[False, True, True, True],
            ),
            [error_box(each["status"]) for each in segments if is_error(each["status"])],
            pager(Newer=to(number - 1), Older=to(number + 1)) if len(parts) > SEGMENTS_SHOWN else None,
        )

    line = command("log ls", store.path, definition.name, bucket=bucket)
    api = "/api" + url(path, **kept, page=query.text("page"))
    return Page("Log of " + definition.name, facts, body, line, api, definition, "log")


def _positions(store: Store, definition: TableDefinition, bucket: int) -> dict[str, int]:
    return {name: offsets[bucket] for name, offsets in store.table(definition.name).consumers.items()}


def _parts(log: LogFiles, log_end: Offset, definition: TableDefinition, positions: dict[str, int]) -> list[Part]:
    bases = [base for base in log.bases() if base < log_end] or log.bases()[:1]
    parts = []
    for base, end in pairwise([*bases, log_end]):
        reasons = [f"consumer {name} has yet to read from offset {at:,}" for name, at in positions.items() if at < end]
        if definition.options.retention_ms is None:
            reasons.append("the table keeps all changes")
        if base == bases[-1]:
            reasons.append("it is the newest")
        parts.append(Part(base, end, reasons))
    return parts


def _facts(log: LogFiles, part: Part) -> dict[str, Any]:
    return {
        "base_offset": part.base,
        "end_offset": part.end,
        "kept_because": part.reasons,
        "status": _status(log, part),
    }


def _status(log: LogFiles, part: Part) -> dict[str, Any]:
    try:
        segment = log.segment(part.base)
        first = segment.batch_at(Position(HEAD_BYTES), part.base) if part.end > part.base else None
    except StoreError as error:
        return error_facts(error)
    time = None if first is None else time_text(first.header.commit_timestamp)
    return {"segment": segment.path.name, "bytes": segment.bytes_with_batches(), "first_time": time}


def _row(segment: dict[str, Any], definition: TableDefinition, bucket: int) -> list[Any]:
    base, status = segment["base_offset"], segment["status"]
    path = f"/tables/{definition.id}/changes"
    shown = ["", tag("strong", status["error"]["class"])] if is_error(status) else [
        size_text(status["bytes"]),
        status["first_time"] or tag("span", "none", class_="null"),
    ]  # fmt: skip
    name = f"{base:020d}.log" if is_error(status) else status["segment"]
    reasons = "; ".join(segment["kept_because"]) or "it is not old enough, or recovery needs it"
    link = tag("a", name, href=url(path, bucket=bucket, start=base), title="Its first changes")
    return [link, f"{base:,}", f"{segment['end_offset']:,}", *shown, reasons]


def _retention_words(definition: TableDefinition) -> str:
    kept = definition.options.retention_ms
    if kept is None:
        return "Changes are kept for ever; kvstore alter --retention-days says for how long instead."
    days = f"{kept / 86_400_000:g}"
    return f"Changes are kept for {days} days, and longer where a consumer or recovery needs them."


def _form(definition: TableDefinition, path: str, bucket: int) -> Html | None:
    if definition.buckets == 1:
        return None
    chosen = field("Bucket", "bucket", bucket, type="number", min=0, max=definition.buckets - 1)
    return tag("form", chosen, tag("button", "Show"), action=path, role="search")
