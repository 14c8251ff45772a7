"""Replicas: what was shipped to each, the findings of its last check, and the objects of a stream.

* What can't be reached, such as a replica's objects, is an error in its place; the rest is shown.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvstore import Store, StreamObjects
from kvstore.console.commands import command
from kvstore.console.drawing import Part, line
from kvstore.console.html import Content, Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import attempt, error_box, fact_list, grid, is_error, pager, size_text
from kvstore.console.query import Query
from kvstore.errors import InvalidRequest, NoSuchTable
from logformat.catalog.replicas import CATALOG, Finding, ReplicaStatus, Shipped, Stream
from logformat.replica.object_file import ObjectName, place_of_stream

STREAMS_SHOWN = 50
FINDINGS_SHOWN = 200
OBJECTS_SHOWN = 200
OBJECTS_READ = 20_000
"""Objects of a stream that are listed at most; retention and merging keep a healthy replica far below."""


def replicas_page(store: Store, _: Query) -> Page:
    """All replicas."""
    replicas: Any = attempt(lambda: [{"name": name, **each.to_json()} for name, each in store.replicas.items()])

    def body() -> Html:
        if is_error(replicas):
            return error_box(replicas)
        if not replicas:
            return tag("p", "The store has no replica; kvstore replica add registers one.", class_="none")
        names = ["replica", "URL", "as of", "lag in changes", "lag in edits", "last check", "findings"]
        return grid(
            "Replicas", names, [_row(each) for each in replicas], right=[False] * 3 + [True] * 2 + [False, True]
        )

    return Page("Replicas", {"replicas": replicas}, body, command("replica ls", store.path), "/api/replicas",
                tab="replicas")  # fmt: skip


def replica_page(store: Store, query: Query) -> Page:
    """The replica ``name``; ``stream`` lists the objects of one stream, ``page`` counts streams from 1."""
    name, number, stream = query.text("name"), query.number("page", least=1) or 1, query.text("stream")
    if name is None:
        raise InvalidRequest("Name a replica by `name`.")
    replica = store.replica(name)
    report, status = replica.report(), replica.status()
    skipped = (number - 1) * STREAMS_SHOWN
    streams = [_stream(store, status, each) for each in status.shipped[skipped : skipped + STREAMS_SHOWN]]
    facts: dict[str, Any] = {
        "name": name,
        **report.to_json(),
        "streams_all": len(status.shipped),
        "streams": streams,
        "objects": None if stream is None else attempt(lambda: _objects(replica.objects(stream, OBJECTS_READ))),
    }
    path = "/replicas/replica"

    def to(page: int) -> str | None:
        there = page >= 1 and (page - 1) * STREAMS_SHOWN < len(status.shipped)
        return url(path, name=name, page=page) if there else None

    def body() -> Html:
        pages = pager(Previous=to(number - 1), Next=to(number + 1)) if len(status.shipped) > STREAMS_SHOWN else None
        return tag(
            "div",
            fact_list(
                {
                    "URL": facts["url"],
                    "as of": facts["as_of"] or "nothing was shipped yet",
                    "lag": f"{facts['behind']:,} changes, {facts['edits_behind']:,} edits",
                    "last check": facts["checked"] or "never",
                }
            ),
            _findings_html(facts, store),
            None if facts["objects"] is None else _objects_html(facts["objects"], stream or ""),
            tag("section", tag("h2", "What was shipped"), _LEGEND, _streams_html(streams, name), pages),
        )

    line = command("replica ls", store.path)
    api = "/api" + url(path, name=name, stream=stream, page=query.text("page"))
    return Page(f"Replica {name}", facts, body, line, api, tab="replicas")


def _stream(store: Store, status: ReplicaStatus, shipped: Shipped) -> dict[str, Any]:
    findings = [each for each in status.findings if each.stream == shipped.stream]
    ranges = [(each.start, each.end) for each in findings if each.kind == "MISSING_VERSION"]
    return {
        "stream": place_of_stream(shipped.stream),
        "table": None if shipped.stream == CATALOG else _table_name(store, shipped.stream.table_id),
        "bucket": None if shipped.stream == CATALOG else shipped.stream.bucket,
        "start": shipped.start,
        "end": shipped.end,
        "store_end": attempt(lambda: _end(store, shipped.stream)),
        "snapshots": shipped.snapshots,
        "missing": ranges,
        "bad": [{"object": each.object, "start": each.start, "end": each.end}
                for each in findings if each.kind == "BAD"],
    }  # fmt: skip


def _end(store: Store, stream: Stream) -> int:
    """The end of a stream in the store."""
    if stream == CATALOG:
        return store.txid
    return store.table_by_id(stream.table_id).bucket(stream.bucket).log.end()


def _table_name(store: Store, id: int) -> str | None:
    """None if the table was dropped."""
    try:
        return store.table_by_id(id).name
    except NoSuchTable:
        return None


def _objects(stream: StreamObjects) -> dict[str, Any]:
    return {
        "start": stream.shipped.start,
        "end": stream.shipped.end,
        "objects_all": len(stream.sizes),
        "cut": stream.missing is None,
        "bytes": sum(stream.sizes.values()),
        "missing": stream.missing or [],
        "objects": [_object(*each) for each in list(stream.sizes.items())[-OBJECTS_SHOWN:]],
    }


def _object(name: ObjectName, size: int) -> dict[str, Any]:
    return {
        "object": str(name),
        "kind": name.kind,
        "start": name.start,
        "end": name.end,
        "leader_epoch": name.epoch,
        "bytes": size,
    }


def _row(each: dict[str, Any]) -> list[Content]:
    count = len(each["findings"])
    return [
        tag("a", each["name"], href=url("/replicas/replica", name=each["name"])),
        each["url"],
        each["as_of"] or "nothing was shipped yet",
        f"{each['behind']:,}",
        f"{each['edits_behind']:,}",
        each["checked"] or "never",
        tag("strong", f"{count:,}") if count else "0",
    ]


def _findings_html(facts: dict[str, Any], store: Store) -> Html:
    findings_all = facts["findings"]
    if not findings_all:
        words = "The last check found nothing wrong." if facts["checked"] else "It was never checked."
        do = tag("code", command("replica check", store.path, facts["name"]))
        return tag("p", tag("strong", "No findings. "), words, " ", do, class_="well" if facts["checked"] else "note")
    rows = [_finding(msgspec.convert(each, Finding)) for each in findings_all[:FINDINGS_SHOWN]]
    repair = command("replica repair", store.path, facts["name"])
    more = f" The first {FINDINGS_SHOWN}:" if len(findings_all) > FINDINGS_SHOWN else ""
    return tag(
        "section",
        tag("h2", f"Findings of the last check ({len(findings_all):,})"),
        tag("p", f"The replica is not whole.{more} ", tag("code", repair)),
        grid("Findings", ["finding", "stream", "offsets", "object"], rows),
        class_="attention",
    )


def _finding(each: Finding) -> list[Content]:
    is_snapshot = each.start == each.end
    offsets = f"{each.start:,}" if is_snapshot else f"{each.start:,}–{each.end - 1:,}"
    return [tag("strong", each.kind), place_of_stream(each.stream), offsets, each.object or ""]


_LEGEND = tag(
    "p",
    "Each line is a stream from its first offset to the end in the store: ",
    tag("span", "shipped", class_="key shipped"),
    " ",
    tag("span", "missing", class_="key missing"),
    " ",
    tag("span", "bad object", class_="key bad"),
    " ",
    tag("span", "not shipped yet", class_="key lag"),
    class_="note",
)


def _streams_html(streams: list[dict[str, Any]], name: str) -> Html:
    if not streams:
        return tag("p", "Nothing was shipped yet; kvstore replicate ships.", class_="none")
    rows = [_stream_row(each, name) for each in streams]
    names = ["stream", "table", "offsets shipped", "lag", "line", "snapshots"]
    return grid("Streams", names, rows, right=[False, False, True, True])


def _stream_row(each: dict[str, Any], name: str) -> list[Content]:
    is_known = not is_error(each["store_end"])
    end = max(each["end"], each["store_end"]) if is_known else each["end"]
    parts = [Part(each["start"], each["end"], "shipped")]
    if end > each["end"]:
        parts.append(Part(each["end"], end, "lag"))
    parts += [Part(start, stop, "missing") for start, stop in each["missing"]]
    parts += [Part(bad["start"], max(bad["end"], bad["start"] + 1), "bad") for bad in each["bad"]]
    words = f"{each['stream']}: shipped {each['start']:,} to {each['end']:,}, {len(each['missing'])} holes,"
    words += f" {len(each['bad'])} bad objects"
    snapshots = each["snapshots"]
    return [
        tag("a", each["stream"], href=url("/replicas/replica", name=name, stream=each["stream"]), title="Its objects"),
        "the catalog" if each["bucket"] is None else f"{each['table']}, bucket {each['bucket']}",
        f"{each['start']:,}–{each['end']:,}",
        f"{end - each['end']:,}" if is_known else tag("strong", each["store_end"]["error"]["class"]),
        line(each["start"], end, parts, words),
        ", ".join(f"{offset:,}" for offset in snapshots[-3:]) + (" …" if len(snapshots) > 3 else "") or "none",
    ]


def _objects_html(objects: Any, stream: str) -> Html:
    title = tag("h2", "Objects of ", tag("code", stream))
    if is_error(objects):
        return tag("section", title, error_box(objects))
    rows: list[list[Content]] = [
        [each["object"], each["kind"], f"{each['start']:,}", f"{each['end']:,}", each["leader_epoch"],
         size_text(each["bytes"])]
        for each in reversed(objects["objects"])
    ]  # fmt: skip
    about = f"{objects['objects_all']:,} objects, {size_text(objects['bytes'])}, as the replica lists them now."
    if objects["cut"]:
        about = f"The first {OBJECTS_READ:,} objects only; holes are not computed."
    if len(objects["objects"]) < objects["objects_all"]:
        about += f" Those with the last offsets, {len(objects['objects'])}:"
    ranges = [Part(each["start"], each["end"], "shipped") for each in objects["objects"] if each["kind"] == "range"]
    missing = [Part(start, stop, "missing") for start, stop in objects["missing"]]
    words = "Offsets without an object: " + (
        ", ".join(f"{start:,}–{stop - 1:,}" for start, stop in objects["missing"][:20]) or "none"
    )
    names = ["object", "kind", "start", "end", "leader epoch", "size"]
    return tag(
        "section",
        title,
        tag("p", about, class_="note"),
        line(objects["start"], objects["end"], [*ranges, *missing], words),
        tag("p", words, class_="note"),
        grid("Objects", names, rows, right=[False, False, True, True, True, True]),
    )
