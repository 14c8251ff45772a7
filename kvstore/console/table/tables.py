"""One table: what it is, how large, and what it keeps."""

from __future__ import annotations

from typing import Any

import msgspec

from kvstore import Store, Table
from kvstore.clock import time_text
from kvstore.console.commands import command
from kvstore.console.html import Html, tag
from kvstore.console.page import Page
from kvstore.console.parts import (
    attempt,
    duration_text,
    error_box,
    fact_list,
    grid,
    is_error,
    option_text,
    pager,
    size_text,
)
from kvstore.console.query import Query
from kvstore.console.rates import SAMPLES, growths, rate_facts, rate_html
from kvstore.console.table.definition import Definition
from logformat.rows import schema as schemas

COLUMNS_SHOWN = 200


def matching(store: Store, words: str | None = None) -> list[str]:
    """Names of tables, sorted; only those with these words in it, if there are any."""
    wanted = (words or "").casefold()
    return [each for each in store.list_tables() if wanted in each.casefold()]


def summary(definition: Definition, samples: int = 0) -> dict[str, Any]:
    """The line of a table in a list; its status is an error if it can't be read.

    Args:
        samples: Of how many samples of each log the rate is made; none if 0.
    """
    return {
        "id": definition.id,
        "table": definition.name,
        "primary_key": definition.primary_key,
        "buckets": definition.buckets,
        "status": attempt(lambda: _status(definition.table, samples)),
    }


def _status(table: Table, samples: int) -> dict[str, Any]:
    buckets = [table.bucket(each).status() for each in range(table.buckets)]
    counts = [each.rows for each in buckets if each.rows is not None]
    times = [each.last_ms for each in buckets if each.last_ms is not None]
    return {
        "rows": sum(counts) if len(counts) == len(buckets) else None,
        "changes": sum(max(0, each.log_end - each.log_start) for each in buckets),
        "log_bytes": sum(each.log_bytes for each in buckets),
        "index_bytes": sum(each.index_bytes for each in buckets),
        "last_change": time_text(max(times)) if times else None,
        **({"rate": rate_facts(growths(table, samples))} if samples else {}),
    }


def key_text(key: tuple[str, ...] | None) -> str:
    """The columns of a key."""
    return "append-only" if key is None else ", ".join(key)


def _options(definition: Definition) -> dict[str, Any]:
    options = msgspec.structs.asdict(definition.options)
    del options["indexes"]  # these have places of columns in place of their names
    indexes = {f"index_{name}": ", ".join(columns) for name, columns in definition.table.indexes.items()}
    return {**options, **indexes}


def table_page(store: Store, definition: Definition, query: Query) -> Page:
    """Schema, options and buckets; ``page`` is that of the columns, from 1."""
    columns = schemas.to_json(definition.schema)
    number = query.number("page", least=1) or 1
    skipped = (number - 1) * COLUMNS_SHOWN
    facts = {
        **summary(definition, SAMPLES),
        "schema_id": definition.schema_id,
        "bucket_key": definition.bucket_key,
        "options": _options(definition),
        "columns": columns[skipped : skipped + COLUMNS_SHOWN],
        "columns_all": len(columns),
        "logs": attempt(lambda: _logs(definition.table)),
        "consumers": attempt(lambda: _consumers(definition.table)),
    }
    path = f"/tables/{definition.id}"

    def to(page: int) -> str | None:
        return f"{path}?page={page}" if page >= 1 and (page - 1) * COLUMNS_SHOWN < len(columns) else None

    def body() -> Html:
        pages = pager(Previous=to(number - 1), Next=to(number + 1)) if len(columns) > COLUMNS_SHOWN else None
        return tag(
            "div",
            _facts_html(facts),
            _columns_html(facts, definition),
            pages,
            _options_html(facts),
            _logs_html(facts["logs"], path),
            _consumers_html(facts["consumers"]),
        )

    line = command("describe", store.path, definition.name)
    return Page(definition.name, facts, body, line, f"/api{path}", definition, "table")


def _logs(table: Table) -> list[dict[str, Any]]:
    ranges = table.offsets()
    return [{"bucket": bucket, "log_start": start, "log_end": end} for bucket, (start, end) in ranges.items()]


def _consumers(table: Table) -> list[dict[str, Any]]:
    consumers = table.consumers  # before the ends, so that no position is beyond them
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    return [
        {
            "consumer": name,
            "positions": list(offsets.values()),
            "lag": sum(max(0, end - offsets[bucket]) for bucket, end in ends.items()),
        }
        for name, offsets in consumers.items()
    ]


def _facts_html(facts: dict[str, Any]) -> Html:
    status = facts["status"]
    if is_error(status):
        return error_box(status)
    rows = status["rows"]
    about = fact_list(
        {
            "primary key": key_text(facts["primary_key"]),
            "rows": tag("span", "not counted", class_="null") if rows is None else f"{rows:,}",
            "changes kept": f"{status['changes']:,}",
            "log": size_text(status["log_bytes"]),
            "index": size_text(status["index_bytes"]),
            "last change": status["last_change"] or tag("span", "none", class_="null"),
        }
    )
    return tag("div", about, _rate_html(status["rate"]))


def _rate_html(rate: dict[str, Any] | None) -> Html | None:
    if rate is None:
        return None
    most, part = f"{max(rate['changes']):,.0f}", duration_text(rate["part_ms"])
    words = f"Changes from {rate['from']} to {rate['to']}; the highest point is {most} changes in {part}."
    return tag("figure", rate_html(rate, "chart"), tag("figcaption", words))


def _columns_html(facts: dict[str, Any], definition: Definition) -> Html:
    key, types = facts["primary_key"] or (), {field.name: field for field in definition.schema}
    rows = [
        [
            each["name"],
            str(types[each["name"]].type),
            "yes" if types[each["name"]].nullable else "no",
            f"{key.index(each['name']) + 1}" if each["name"] in key else "",
        ]
        for each in facts["columns"]
    ]
    return tag(
        "section",
        tag("h2", f"Columns ({facts['columns_all']:,}), schema {facts['schema_id']}"),
        grid("Columns", ["column", "type", "nullable", "place in the key"], rows),
    )


def _options_html(facts: dict[str, Any]) -> Html:
    options = {name.replace("_", " "): option_text(value) for name, value in facts["options"].items()}
    if facts["bucket_key"] is not None:
        options["bucket key"] = ", ".join(facts["bucket_key"])
    return tag("section", tag("h2", "Options"), fact_list(options))


def _logs_html(logs: Any, path: str) -> Html:
    if is_error(logs):
        return tag("section", tag("h2", "Log"), error_box(logs))
    rows = [
        [
            each["bucket"],
            f"{each['log_start']:,}",
            f"{each['log_end']:,}",
            tag("a", "changes", href=f"{path}/changes?bucket={each['bucket']}"),
        ]
        for each in logs
    ]
    names = ["bucket", "first offset kept", "end (next offset)", ""]
    return tag("section", tag("h2", "Log"), grid("Log of each bucket", names, rows, right=[True, True, True]))


def _consumers_html(consumers: Any) -> Html | None:
    if is_error(consumers):
        return tag("section", tag("h2", "Consumers"), error_box(consumers))
    if not consumers:
        return None
    rows = [[each["consumer"], ", ".join(map(str, each["positions"])), f"{each['lag']:,}"] for each in consumers]
    return tag(
        "section",
        tag("h2", "Consumers"),
        grid("Consumers", ["consumer", "next offset", "lag"], rows, right=[False, True, True]),
    )
