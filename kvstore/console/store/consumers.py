"""Consumers of a store, leases of reads that are running, and streams that write."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from kvstore import Lease, Store
from kvstore.clock import SystemClock, time_text
from kvstore.console.commands import command
from kvstore.console.html import Content, Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import attempt, field, grid, is_error, pager
from kvstore.console.query import Query
from kvstore.console.rates import Lags, lag_html
from kvstore.console.table.definition import Definition, definitions
from kvstore.errors import NoSuchTable

READERS_SHOWN = 50
BUCKETS_SHOWN = 20
"""Buckets whose positions are on the page; JSON has all."""


@dataclass(frozen=True)
class Reader:
    """A consumer or a lease of a table, which a page calls readers.

    Attributes:
        offsets: The next offset to read of each bucket.
        lease: None for a consumer.
    """

    name: str
    table: str
    offsets: dict[int, int]
    lease: Lease | None


def consumers_page(store: Store, query: Query) -> Page:
    """Consumers, leases and streams of all tables; ``q`` is a part of the name of one or of its table."""
    words, number = query.text("q"), query.number("page", least=1) or 1
    readers, streams = _readers(store, words), _streams(store, words)
    skipped = (number - 1) * READERS_SHOWN
    lags, path = Lags(store), "/consumers"
    facts: dict[str, Any] = {
        "readers_all": len(readers),
        "readers": [
            _facts(each, definition, lags)
            for each in readers[skipped : skipped + READERS_SHOWN]
            for definition in definitions(store, [each.table])
        ],
        "streams_all": len(streams),
        "streams": streams[skipped : skipped + READERS_SHOWN],
    }
    most = max(len(readers), len(streams))

    def to(page: int) -> str | None:
        return url(path, q=words, page=page) if page >= 1 and (page - 1) * READERS_SHOWN < most else None

    def body() -> Html:
        return tag(
            "div",
            tag(
                "form",
                field("Find a name or a table", "q", words, type="search"),
                tag("button", "Find"),
                action=path,
                role="search",
            ),
            tag("section", tag("h2", f"Consumers and leases ({len(readers):,})"), _readers_html(facts["readers"])),
            tag("section", tag("h2", f"Streams that write ({len(streams):,})"), _streams_html(facts["streams"])),
            pager(Previous=to(number - 1), Next=to(number + 1)) if most > READERS_SHOWN else None,
        )

    only = facts["readers"][0]["table"] if len({each["table"] for each in facts["readers"]}) == 1 else None
    line = command("tables", store.path) if only is None else command("describe", store.path, only)
    api = url("/api/consumers", q=words, page=query.text("page"))
    return Page("Consumers", facts, body, line, api, tab="consumers")


def _matches(words: str | None, *names: str) -> bool:
    return any((words or "").casefold() in each.casefold() for each in names)


def _readers(store: Store, words: str | None) -> list[Reader]:
    readers = [Reader(name, table, offsets, None)
             for name, tables in store.consumers.items() for table, offsets in tables.items()]  # fmt: skip
    readers += [Reader(name, table, lease.offsets, lease)
              for name, tables in store.leases.items() for table, lease in tables.items()]  # fmt: skip
    return sorted(
        (each for each in readers if _matches(words, each.name, each.table)), key=lambda each: (each.table, each.name)
    )


def _facts(each: Reader, definition: Definition, lags: Lags) -> dict[str, Any]:
    return {
        "name": each.name,
        "table": definition.name,
        "table_id": definition.id,
        "kind": "consumer" if each.lease is None else "lease",
        "until": None if each.lease is None else time_text(each.lease.until_ms),
        "expired": each.lease is not None and each.lease.is_over,
        "positions": list(each.offsets.values()),
        "status": attempt(lambda: _lag(each, definition, lags)),
    }


def _lag(each: Reader, definition: Definition, lags: Lags) -> dict[str, Any]:
    logs = [definition.table.bucket(bucket).log for bucket in each.offsets]
    ends, now_ms = [log.end() for log in logs], SystemClock().now_ms()
    first_ms = [
        next(log.batches(at, at + 1)).header.commit_timestamp
        for log, at, end in zip(logs, each.offsets.values(), ends, strict=True)
        if at < end
    ]
    now = [max(0, end - at) for end, at in zip(ends, each.offsets.values(), strict=True)]
    over_time = lags.facts(definition, each.name, now_ms)
    seconds = max(0, now_ms - min(first_ms, default=now_ms)) / 1000
    return {"log_ends": ends, "lags": now, "lag": sum(now), "lag_seconds": seconds, "over_time": over_time}


def _streams(store: Store, words: str | None) -> list[dict[str, Any]]:
    """Writers of epochs that a run counts, such as the streaming queries of Spark; ingestion jobs have no run."""
    streams = []
    for table in store.list_tables():
        with suppress(NoSuchTable):  # it was dropped meanwhile
            opened = store.table(table)
            streams += [
                {
                    "writer": name,
                    "table": table,
                    "table_id": opened.identity[1],
                    "writer_id": writer.writer_id,
                    "run": writer.run,
                    "first_epoch": writer.first_epoch,
                }
                for name, writer in opened.writers.items()
                if writer.kind == "epochs" and writer.run is not None and _matches(words, name, table)
            ]
    return sorted(streams, key=lambda each: (each["table"], each["writer"]))


def _readers_html(readers: list[dict[str, Any]]) -> Html:
    if not readers:
        return tag("p", "Nothing that reads this store is registered.", class_="none")
    names = ["name", "table", "kind", "next offset of each bucket", "lag of each bucket"]
    names += ["lag", "seconds", "lag over time"]
    return grid("Consumers and leases", names, [_row(each) for each in readers], right=[False] * 5 + [True, True])


def _row(each: dict[str, Any]) -> list[Content]:
    kind: Content = each["kind"]
    if each["until"] is not None:
        kind = f"lease, {'ended' if each['expired'] else 'ends'} {each['until']}"
    status = each["status"]
    lags: Content
    lag: Content
    seconds: Content = None
    if is_error(status):
        lags, lag = status["error"]["message"], tag("strong", status["error"]["class"])
    else:
        lags, lag, seconds = _numbers(status["lags"]), f"{status['lag']:,}", f"{status['lag_seconds']:,.0f}"
    link = tag("a", each["table"], href=f"/tables/{each['table_id']}")
    log = url(f"/tables/{each['table_id']}/log")
    return [
        tag("a", each["name"], href=log, title="What it keeps in the log"),
        *(link, kind, _numbers(each["positions"]), lags, lag, seconds),
        None if is_error(status) else lag_html(status["over_time"]),
    ]


def _numbers(given: list[int]) -> str:
    more = len(given) - BUCKETS_SHOWN
    return ", ".join(f"{each:,}" for each in given[:BUCKETS_SHOWN]) + (f", and {more:,} more" if more > 0 else "")


def _streams_html(streams: list[dict[str, Any]]) -> Html:
    if not streams:
        return tag("p", "No stream of Spark, and no other run that counts epochs, writes to this store.", class_="none")
    rows: list[list[Content]] = [
        [
            each["writer"],
            tag("a", each["table"], href=f"/tables/{each['table_id']}/writers"),
            str(each["writer_id"]),
            each["run"],
            f"{each['first_epoch']:,}",
        ]
        for each in streams
    ]
    names = ["writer", "table", "id", "run (query id)", "first epoch"]
    return grid("Streams that write", names, rows, right=[False, False, True, False, True])
