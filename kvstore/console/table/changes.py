"""The changelog of one bucket, batch by batch: the latest changes or those from a place on, all or filtered."""

from __future__ import annotations

from typing import Any

from kvstore import Store
from kvstore.console.commands import command, names_given
from kvstore.console.html import Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import error_box, field, hidden, pager
from kvstore.console.query import Query
from kvstore.console.table.batches import batch_facts, batch_html
from kvstore.console.table.columns import chosen, columns_form
from kvstore.console.table.definition import Definition
from kvstore.console.table.difference import WORDS
from kvstore.console.table.keys import key_fields
from kvstore.console.table.stretch import OFFSETS_SHOWN, Filter, Stretch, read_stretch


def changes_page(store: Store, definition: Definition, query: Query) -> Page:
    """Changes of a bucket from ``start`` to ``end``, or the latest; ``kind``, ``writer`` and ``key`` filter them."""
    names, _ = chosen(definition, query)
    filter = Filter.of(definition, query)
    bucket = filter.bucket(definition)
    if bucket is None:
        bucket = query.number("bucket", most=definition.buckets - 1) or 0
    stretch = read_stretch(definition, bucket, names, filter, query)
    path = f"/tables/{definition.id}/changes"
    kept: dict[str, Any] = {
        "column": query.all("column") or None,
        "bucket": query.text("bucket"),
        **filter.parameters,
    }
    links = _links(stretch, filter, path, kept, query)
    facts = {
        "id": definition.id,
        "table": definition.name,
        "bucket": bucket,
        "filter": {name: value for name, value in filter.parameters.items() if value is not None},
        "start": stretch.start,
        "end": stretch.stop,
        "log_start": stretch.log_start,
        "log_end": stretch.log_end,
        "batches": [batch_facts(each) for each in stretch.batches],
        **({} if stretch.error is None else stretch.error),
    }

    def body() -> Html:
        batches = [batch_html(each, definition, bucket, stretch) for each in stretch.batches]
        none = tag("p", "No change here matches the filter.", class_="none") if filter and not batches else None
        return tag(
            "div",
            _form(definition, path, stretch, filter, query),
            columns_form(definition, names, path, bucket=query.text("bucket"), start=query.text("start")),
            tag("p", _words(stretch, filter), class_="note"),
            pager(**links),
            batches,
            none,
            None if stretch.error is None else error_box(stretch.error),
            pager(**links) if len(stretch.batches) > 1 else None,
            _live(url(f"{path}/live", **kept, start=stretch.log_end)) if stretch.stop == stretch.log_end else None,
        )

    line = command(
        "changelog",
        store.path,
        definition.name,
        start=stretch.start,
        end=stretch.stop,
        bucket=bucket if definition.buckets > 1 else None,
        columns=names_given(["_log_offset", "_change_type", *names] if len(names) < len(definition.schema) else None),
    )
    api = "/api" + url(path, **kept, start=query.text("start"), end=query.text("end"))
    return Page("Changes of " + definition.name, facts, body, None if filter else line, api, definition, "changes")


def _links(stretch: Stretch, filter: Filter, path: str, kept: dict[str, Any], query: Query) -> dict[str, str | None]:
    end = query.text("end")
    is_first, is_last = stretch.start <= stretch.log_start, stretch.stop >= stretch.log_end
    if filter:
        earlier = url(path, **kept, end=stretch.start)
    else:
        earlier = url(path, **kept, start=max(stretch.log_start, stretch.start - OFFSETS_SHOWN))
    return {
        "Earliest": None if is_first else url(path, **kept, start=stretch.log_start),
        "Earlier": None if is_first else earlier,
        "Later": None
        if is_last
        else url(path, **kept, start=stretch.stop, end=end if _is_before(stretch, end) else None),
        "Latest": None if is_last else url(path, **kept),
    }


def _is_before(stretch: Stretch, end: str | None) -> bool:
    return end is not None and end.isdigit() and stretch.stop < int(end)


def _words(stretch: Stretch, filter: Filter) -> str:
    if stretch.log_end == stretch.log_start:
        return "The log is empty."
    last = max(stretch.start, stretch.stop - 1)
    held = f"; the log has {stretch.log_start:,} to {stretch.log_end - 1:,}."
    if not filter:
        return f"Offsets {stretch.start:,} to {last:,}{held}"
    count = sum(len(each.versions) for each in stretch.batches)
    return f"{count:,} matching changes of offsets {stretch.start:,} to {last:,}{held}"


def _live(source: str) -> Html:
    """New changes as they come. Without JavaScript it stays hidden: *Latest* shows them then."""
    return tag(
        "section",
        tag("div", class_="arrivals", role="log", aria_label="New changes"),
        tag("p", tag("button", "Follow", type="button", aria_pressed="false"), " ", tag("output", class_="note")),
        class_="live",
        data_source=source,
        hidden=True,
    )


def _form(definition: Definition, path: str, stretch: Stretch, filter: Filter, query: Query) -> Html:
    buckets = definition.buckets
    words = [word for word, _ in WORDS.values()]
    kinds = ["append"] if definition.primary_key is None else [each for each in words if each != "append"]
    boxes = [
        tag(
            "label",
            tag("input", type="checkbox", name="kind", value=word, checked=word in filter.kinds),
            tag("span", word),
            class_="box",
        )
        for word in kinds
    ]
    keys = [] if definition.primary_key is None else key_fields(definition)
    given = filter.key or ("",) * len(keys)
    return tag(
        "form",
        hidden(column=query.all("column")),
        field("Bucket", "bucket", query.text("bucket") or 0, type="number", min=0, max=buckets - 1)
        if buckets > 1
        else None,
        field("Go to an offset or a time", "start", query.text("start"), placeholder=str(stretch.log_start), size=24),
        field("up to (exclusive)", "end", query.text("end"), placeholder=str(stretch.log_end), size=24),
        tag("fieldset", tag("legend", "Kinds"), boxes) if len(boxes) > 1 else None,
        field("Writer", "writer", filter.writer),
        [field(f"{each.name} ({each.type})", "key", value) for each, value in zip(keys, given, strict=True)],
        tag("button", "Show"),
        action=path,
        role="search",
    )
