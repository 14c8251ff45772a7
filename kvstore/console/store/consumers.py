"""Consumers of a store, leases of reads that are running, and streams that write."""

from __future__ import annotations

from typing import Any

from kvstore.clock import time_text
from kvstore.console.commands import command
from kvstore.console.html import Content, Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import attempt, field, grid, is_error, pager
from kvstore.console.query import Query
from kvstore.console.rates import Lags, lag_html
from kvstore.meta.consumers import NO_CONSUMERS, NamedConsumer
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.store.store import Store

READERS_SHOWN = 50
BUCKETS_SHOWN = 20
"""Buckets whose positions are on the page; JSON has all."""


def consumers_page(store: Store, query: Query) -> Page:
    """Consumers, leases and streams of all tables; ``q`` is a part of the name of one or of its table."""
    state, words, number = store.runtime.catalog(), query.text("q"), query.number("page", least=1) or 1
    readers, streams = _readers(state, words), _streams(state, words)
    first = (number - 1) * READERS_SHOWN
    lags, path = Lags(store), "/consumers"
    facts: dict[str, Any] = {
        "readers_all": len(readers),
        "readers": [
            _facts(store, definition, name, each, lags)
            for definition, name, each in readers[first : first + READERS_SHOWN]
        ],
        "streams_all": len(streams),
        "streams": streams[first : first + READERS_SHOWN],
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


def _readers(state: CatalogState, words: str | None) -> list[tuple[TableDefinition, str, NamedConsumer]]:
    wanted = (words or "").casefold()
    return sorted(
        (
            (definition, name, each)
            for id, definition in state.tables.items()
            for name, each in state.consumers.get(id, NO_CONSUMERS).named.items()
            if wanted in name.casefold() or wanted in definition.name.casefold()
        ),
        key=lambda found: (found[0].name, found[1]),
    )


def _facts(store: Store, definition: TableDefinition, name: str, each: NamedConsumer, lags: Lags) -> dict[str, Any]:
    kind = "consumer" if each.until_ms is None else "lease"
    return {
        "name": name,
        "table": definition.name,
        "table_id": definition.id,
        "kind": kind,
        "until": None if each.until_ms is None else time_text(each.until_ms),
        "expired": each.is_over(store.runtime.clock.now_ms()),
        "positions": list(each.offsets),
        "status": attempt(lambda: _lag(store, definition, name, each, lags)),
    }


def _lag(store: Store, definition: TableDefinition, name: str, each: NamedConsumer, lags: Lags) -> dict[str, Any]:
    ends = [handle.log_end() for handle in store.runtime.open_table(definition).handles]
    now = [max(0, end - at) for end, at in zip(ends, each.offsets, strict=True)]
    over_time = lags.facts(definition, name, store.runtime.clock.now_ms())
    return {"log_ends": ends, "lags": now, "lag": sum(now), "over_time": over_time}


def _streams(state: CatalogState, words: str | None) -> list[dict[str, Any]]:
    """Writers of epochs that a run counts, such as the streaming queries of Spark; ingestion jobs have no run."""
    wanted = (words or "").casefold()
    found = []
    for id, definition in state.tables.items():
        for name, writer in state.writers_of(id).named.items():
            matches = wanted in name.casefold() or wanted in definition.name.casefold()
            if writer.kind == "epochs" and writer.run is not None and matches:
                found.append(
                    {
                        "writer": name,
                        "table": definition.name,
                        "table_id": definition.id,
                        "writer_id": writer.writer_id,
                        "run": writer.run,
                        "first_epoch": writer.first_epoch,
                    }
                )
    return sorted(found, key=lambda each: (each["table"], each["writer"]))


def _readers_html(readers: list[dict[str, Any]]) -> Html:
    if not readers:
        return tag("p", "Nothing that reads this store is registered.", class_="none")
    names = ["name", "table", "kind", "next offset of each bucket", "lag of each bucket", "lag", "lag over time"]
    return grid("Consumers and leases", names, [_row(each) for each in readers], right=[False] * 5 + [True])


def _row(each: dict[str, Any]) -> list[Content]:
    kind: Content = each["kind"]
    if each["until"] is not None:
        kind = f"lease, {'ended' if each['expired'] else 'ends'} {each['until']}"
    status = each["status"]
    lags: Content
    lag: Content
    if is_error(status):
        lags, lag = status["error"]["message"], tag("strong", status["error"]["class"])
    else:
        lags, lag = _numbers(status["lags"]), f"{status['lag']:,}"
    link = tag("a", each["table"], href=f"/tables/{each['table_id']}")
    log = url(f"/tables/{each['table_id']}/log")
    return [
        tag("a", each["name"], href=log, title="What it keeps in the log"),
        *(link, kind, _numbers(each["positions"]), lags, lag),
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
