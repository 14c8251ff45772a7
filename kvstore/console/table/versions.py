"""The history of a key: every version that the log holds, and where each comes from."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from kvstore import Store
from kvstore.console.commands import bound_given, command
from kvstore.console.html import Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import pager
from kvstore.console.query import Query
from kvstore.console.table.batches import ORIGIN, origin_words
from kvstore.console.table.definition import Definition
from kvstore.console.table.difference import version_facts, version_html, versions_of
from kvstore.console.table.keys import bucket_of, key_form, key_of

VERSIONS_SHOWN = 50


def history_page(store: Store, definition: Definition, query: Query) -> Page:
    """The history of ``key``, newest first; ``start`` is an offset or a time, ``page`` counts from 1."""
    texts, number = query.all("key"), query.number("page", least=1) or 1
    key = key_of(texts, definition)
    bucket, ranges = bucket_of(key, definition), definition.table.offsets()
    bound = query.bound("start")
    start: Any = "earliest" if bound is None else bound
    if isinstance(bound, int):
        start = {each: bound if each == bucket else offset for each, (offset, _) in ranges.items()}
    history = definition.table.history(key.to_pylist()[0], start)
    log_start = int(history.schema.metadata[b"log_start"])
    last = history.num_rows - (number - 1) * VERSIONS_SHOWN
    begin = max(0, last - VERSIONS_SHOWN)
    shown = history.slice(begin, max(0, last - begin)).combine_chunks()
    versions = versions_of(shown, definition)[::-1]
    about = _origins(shown)[::-1]
    path, kept = f"/tables/{definition.id}/history", {"key": texts, "start": query.text("start")}
    facts = {
        "id": definition.id,
        "table": definition.name,
        "key": texts,
        "bucket": bucket,
        "log_start": log_start,
        "versions_all": history.num_rows,
        "versions": [version_facts(each) | origin for each, origin in zip(versions, about, strict=True)],
    }

    def to(page: int) -> str | None:
        there = page >= 1 and (page - 1) * VERSIONS_SHOWN < history.num_rows
        return url(path, **kept, page=page) if there else None

    def body() -> Html:
        pages = pager(Newer=to(number - 1), Older=to(number + 1)) if history.num_rows > VERSIONS_SHOWN else None
        return tag(
            "div",
            key_form(definition, texts, path, "Show the history"),
            tag("p", _words(history.num_rows, log_start), class_="note"),
            pages,
            [
                version_html(each, definition, bucket, _about(origin))
                for each, origin in zip(versions, about, strict=True)
            ],
            pages,
            tag("p", tag("a", "The row as it is now", href=url(f"/tables/{definition.id}/rows", key=texts))),
        )

    line = command(
        "history", store.path, definition.name, *texts, start=bound_given(query.text("start"), bucket, ranges)
    )
    api = "/api" + url(path, **kept, page=query.text("page"))
    return Page("History of " + ", ".join(each[:100] for each in texts), facts, body, line, api, definition, "rows")


def _origins(versions: pa.Table) -> list[dict[str, Any]]:
    times = versions.column("_commit_timestamp").to_pylist()
    origins = versions.select(ORIGIN).to_pylist()
    return [
        {"time": _time(time), **{name: value for name, value in origin.items() if value is not None}}
        for time, origin in zip(times, origins, strict=True)
    ]


def _time(time: dt.datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _about(origin: dict[str, Any]) -> Html:
    words = [tag("li", each) for each in (origin["time"], *origin_words(origin))]
    return tag("ul", words, class_="about")


def _words(count: int, log_start: int) -> str:
    if not count:
        words = "The log has no change of this key."
    else:
        words = "1 version, " if count == 1 else f"{count:,} versions, the newest first, "
        words += "of the row that the log holds."
    return words + (f" The log begins at offset {log_start:,}; earlier versions are gone." if log_start else "")
