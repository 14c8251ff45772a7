"""The first page: what needs attention, the tables, and those that read or copy the store.

* What can't be read, such as the jobs, is an error in its place; the rest is shown.
"""

from __future__ import annotations

import shutil
from typing import Any

from kvstore import Store
from kvstore.console.commands import command
from kvstore.console.html import Html, printed, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import attempt, error_box, fact_list, grid, is_error, pager, size_text
from kvstore.console.query import Query
from kvstore.console.rates import rate_html
from kvstore.console.table.definition import definitions
from kvstore.console.table.tables import key_text, matching, summary
from kvstore.console.values import LETTERS_MAX
from kvstore.errors import StoreError

TABLES_SHOWN = 50
SAMPLES = 12
"""Samples of each log for the rate of a table: few, because there are many tables."""
READERS_SHOWN = 20
"""Consumers, replicas and jobs on this page; each kind has a page of its own."""


def overview(store: Store, query: Query) -> Page:
    """The overview; ``q`` chooses tables by a part of their name, ``page`` counts from 1."""
    words, number = query.text("q"), query.number("page", least=1) or 1
    tables_found = matching(store, words)
    skipped = (number - 1) * TABLES_SHOWN
    replicas = attempt(lambda: _replicas(store))
    jobs = attempt(lambda: _jobs(store))
    facts: dict[str, Any] = {
        "store": {
            "path": printed(str(store.path)),
            "tables": len(store.list_tables()),
            "catalog_edits": store.txid,
            "disk_free_bytes": _free_bytes(store),
        },
        "attention": _attention(store, replicas, jobs),
        "tables": [
            summary(each, SAMPLES) for each in definitions(store, tables_found[skipped : skipped + TABLES_SHOWN])
        ],
        "tables_found": len(tables_found),
        "consumers": attempt(lambda: _consumers(store)),
        "replicas": replicas,
        "jobs": jobs,
    }

    def to(page: int) -> str | None:
        shown = page >= 1 and (page - 1) * TABLES_SHOWN < len(tables_found)
        return url("/", q=words, page=page) if shown else None

    def body() -> Html:
        pages = pager(Previous=to(number - 1), Next=to(number + 1)) if len(tables_found) > TABLES_SHOWN else None
        return tag(
            "div",
            _attention_html(facts["attention"]),
            _store_html(facts),
            _search(words),
            _tables_html(facts, words),
            pages,
            _readers_html(facts),
        )

    return Page(
        "Overview",
        facts,
        body,
        command("tables", store.path),
        url("/api/overview", q=words, page=query.text("page")),
        tab="overview",
    )


def _free_bytes(store: Store) -> int | None:
    """None if the directory is gone, or the system does not say."""
    try:
        return shutil.disk_usage(store.path).free
    except OSError:
        return None


def _attention(store: Store, replicas: Any, jobs: Any) -> list[dict[str, Any]]:
    """What needs attention, and what to do."""
    problems: list[dict[str, Any]] = []
    try:
        problems += [{"what": warning, "do": command("meta status", store.path)} for warning in store.health().warnings]
    except StoreError as error:
        problems.append({"what": str(error), "do": command("check", store.path)})
    for each in [] if is_error(replicas) else replicas:
        if each["findings"]:
            problems.append(
                {
                    "what": f"Replica {each['replica']} is not whole: its last check has {_count(each['findings'])}.",
                    "do": command("replica repair", store.path, each["replica"]),
                }
            )
    for each in [] if is_error(jobs) else jobs:
        if each["state"] == "paused":
            what = f"Job {each['job']} is paused: {_short(each['reason'])}"
            problems.append({"what": what, "do": command("job resume", store.path, each["job"])})
    return problems


def _count(findings: int) -> str:
    return "1 finding" if findings == 1 else f"{findings:,} findings"


def _consumers(store: Store) -> list[dict[str, Any]]:
    lags: dict[str, dict[str, int]] = store.metrics()["kvstore_consumer_lag_changes"]
    return [
        {"consumer": name, "table": table, "lag": lag}
        for name, tables in sorted(lags.items())
        for table, lag in sorted(tables.items())
    ]


def _replicas(store: Store) -> list[dict[str, Any]]:
    return [
        {
            "replica": name,
            "url": report.url,
            "lag": sum(report.behind.values()),
            "edits_shipped": report.edits_shipped,
            "edits": report.edits,
            "findings": len(report.findings),
        }
        for name, report in store.replicas.items()
    ]


def _jobs(store: Store) -> list[dict[str, Any]]:
    jobs = []
    for name in store.list_jobs():
        job = store.job(name)
        status = job.show()
        jobs.append(
            {
                "job": name,
                "table": job.table,
                "state": status.state,
                "offset": status.offset,
                "reason": status.reason,
            }
        )
    return jobs


def _attention_html(problems: list[dict[str, Any]]) -> Html:
    if not problems:
        return tag("p", tag("strong", "All is well."), " Nothing needs attention.", class_="well")
    return tag(
        "section",
        tag("h2", f"Needs attention ({len(problems)})"),
        tag("ul", [tag("li", each["what"], tag("br"), tag("code", each["do"])) for each in problems]),
        class_="attention",
        aria_label="Needs attention",
    )


def _store_html(facts: dict[str, Any]) -> Html:
    store = facts["store"]
    return fact_list(
        {
            "tables": f"{store['tables']:,}",
            "edits of the catalog": f"{store['catalog_edits']:,}",
            "free space of the disk": "not known"
            if store["disk_free_bytes"] is None
            else size_text(store["disk_free_bytes"]),
        }
    )


def _search(words: str | None) -> Html:
    return tag(
        "form",
        tag("label", tag("span", "Find a table"), tag("input", type="search", name="q", value=words or "")),
        tag("button", "Find"),
        action="/",
        role="search",
    )


def _tables_html(facts: dict[str, Any], words: str | None) -> Html:
    tables = facts["tables"]
    if not tables:
        why = "No table has this in its name." if words else "The store has no tables; kvstore create makes one."
        return tag("p", why, class_="none")
    return grid(
        "Tables",
        ["table", "key", "buckets", "rows", "changes kept", "log", "index", "changes over time", "last change"],
        [_table_row(each) for each in tables],
        right=[False, False, True, True, True, True, True],
    )


def _table_row(each: dict[str, Any]) -> list[Any]:
    name = tag("a", each["table"], href=f"/tables/{each['id']}")
    if is_error(each["status"]):
        error = each["status"]["error"]
        return [
            name,
            key_text(each["primary_key"]),
            each["buckets"],
            tag("strong", error["class"]),
            "",
            "",
            "",
            "",
            error["message"],
        ]
    status = each["status"]
    rows = status["rows"]
    return [
        *(name, key_text(each["primary_key"]), each["buckets"]),
        tag("span", "not counted", class_="null") if rows is None else f"{rows:,}",
        f"{status['changes']:,}",
        *(size_text(status["log_bytes"]), size_text(status["index_bytes"])),
        rate_html(status["rate"]),
        status["last_change"] or tag("span", "none", class_="null"),
    ]


def _readers_html(facts: dict[str, Any]) -> list[Html]:
    shown = []
    for title, readers in (("Consumers", facts["consumers"]), ("Replicas", facts["replicas"]), ("Jobs", facts["jobs"])):
        heading = tag("h2", tag("a", title, href=f"/{title.lower()}"))
        if is_error(readers):
            shown.append(tag("section", heading, error_box(readers)))
        elif readers:
            rows = [list(map(_short, each.values())) for each in readers[:READERS_SHOWN]]
            names, numbers = (
                [name.replace("_", " ") for name in readers[0]],
                [isinstance(cell, int) for cell in readers[0].values()],
            )
            more = len(readers) - len(rows)
            note = tag("p", f"and {more:,} more", class_="note") if more else None
            shown.append(tag("section", heading, grid(title, names, rows, right=numbers), note))
    return shown


def _short(value: Any) -> Any:
    if isinstance(value, int):
        return f"{value:,}"
    return value[:LETTERS_MAX] + "…" if isinstance(value, str) and len(value) > LETTERS_MAX else value
