"""The log of one bucket: its segments, and what keeps each from expiring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvstore import BucketLog, LogSegment, Store
from kvstore.clock import time_text
from kvstore.console.commands import command
from kvstore.console.html import Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import attempt, bucket_form, error_box, grid, is_error, pager, size_text
from kvstore.console.query import Query
from kvstore.console.table.definition import Definition

SEGMENTS_SHOWN = 50


@dataclass(frozen=True)
class Part:
    """A segment, and what keeps it."""

    segment: LogSegment
    reasons: list[str]


def log_page(store: Store, definition: Definition, query: Query) -> Page:
    """Segments of ``bucket``, the newest first; ``page`` counts from 1."""
    bucket, number = query.number("bucket", most=definition.buckets - 1) or 0, query.number("page", least=1) or 1
    table = definition.table
    log = table.bucket(bucket).log
    parts = _parts(log.segments(), definition, {name: offsets[bucket] for name, offsets in table.consumers.items()})
    skipped = (number - 1) * SEGMENTS_SHOWN
    segments = [_facts(log, each) for each in parts[::-1][skipped : skipped + SEGMENTS_SHOWN]]
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
            bucket_form(definition.buckets, path, bucket),
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


def _parts(segments: list[LogSegment], definition: Definition, positions: dict[str, int]) -> list[Part]:
    parts = []
    for each in segments:
        reasons = [f"consumer {name} has yet to read from offset {at:,}"
                   for name, at in positions.items() if at < each.end]  # fmt: skip
        if definition.options.retention_ms is None:
            reasons.append("the table keeps all changes")
        if each is segments[-1]:
            reasons.append("it is the newest")
        parts.append(Part(each, reasons))
    return parts


def _facts(log: BucketLog, part: Part) -> dict[str, Any]:
    return {
        "base_offset": part.segment.start,
        "end_offset": part.segment.end,
        "kept_because": part.reasons,
        "status": attempt(lambda: _status(log, part.segment)),
    }


def _status(log: BucketLog, segment: LogSegment) -> dict[str, Any]:
    content = log.segment(segment)
    time = None if content.first_ms is None else time_text(content.first_ms)
    return {"segment": segment.name, "bytes": content.bytes, "first_time": time}


def _row(segment: dict[str, Any], definition: Definition, bucket: int) -> list[Any]:
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


def _retention_words(definition: Definition) -> str:
    kept = definition.options.retention_ms
    if kept is None:
        return "Changes are kept for ever; kvstore alter --retention-days says for how long instead."
    days = f"{kept / 86_400_000:g}"
    return f"Changes are kept for {days} days, and longer where a consumer or recovery needs them."
