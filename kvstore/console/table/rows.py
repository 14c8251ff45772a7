"""Rows of a table: a page of one bucket in key order, as they are or as they were, or the row of a key.

* A page reads at most ``ROWS_READ`` rows or ``BYTES_READ`` for a condition, and ``PAST_BYTES_MAX`` of a log for an
  earlier state; then it says where to go on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kvstore import BucketLog, BucketRows, Store, parse_filter
from kvstore.clock import time_text
from kvstore.console.commands import after_key, bound_given, command, condition_of, names_given, of_key
from kvstore.console.html import Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import attempt, field, grid, hidden, is_error, pager, value_html
from kvstore.console.query import Query
from kvstore.console.table.columns import chosen, columns_form
from kvstore.console.table.definition import Definition
from kvstore.console.table.keys import bucket_of, key_fields, key_form, key_of, texts_of, values_of
from kvstore.console.values import Cell, cells_of
from kvstore.errors import UnsupportedOperation

ROWS_SHOWN = 50
ROWS_A_TIME = 1_000
ROWS_READ = 20_000
BYTES_READ = 32 << 20
"""A page with a condition looks at no more rows than these."""
TIMES = 1_000
"""Places of the slider over time."""
PAST_BYTES_MAX = 256 << 20
"""A page of an earlier state reads no more of the log than this."""


@dataclass(frozen=True)
class Read:
    """Rows of one bucket.

    Attributes:
        offset: They are as of this offset.
        start, end: The first offset that the log holds, and its end.
        stopped: The last row that was looked at, if there may be more after it that match a condition.
    """

    rows: pa.RecordBatch
    offset: int
    start: int
    end: int
    stopped: pa.RecordBatch | None = None


def read_rows(
    definition: Definition,
    bucket: int,
    names: list[str],
    most: int,
    query: Query,
    condition: pc.Expression | None = None,
    **keys: pa.RecordBatch | None,
) -> Read:
    """At most so many rows of a bucket; ``as_of`` of the query says of when.

    With a condition, only so many rows are looked at, and :attr:`Read.stopped` is where to go on.

    Args:
        keys: ``key`` or ``after``, see :meth:`kvstore.Bucket.scan`.

    Raises:
        StoreError: They can't be read; see :meth:`kvstore.Bucket.scan`.
    """
    opened = definition.table.bucket(bucket)
    read_names, at_once = (names, most) if condition is None else (definition.schema.names, ROWS_A_TIME)
    with opened.scan(read_names, as_of=query.bound("as_of"), batch_rows=at_once, **keys) as scanned:
        _check_past(opened.log, scanned)
        kept, stopped = _matching(scanned.batches, condition, most)
    rows = pa.Table.from_batches(kept, scanned.schema).select(names).combine_chunks()
    batch = next(iter(rows.to_batches()), pa.RecordBatch.from_pylist([], rows.schema))
    return Read(batch, scanned.offset, opened.log.start(), scanned.end, stopped)


def _matching(
    batches: Iterable[pa.RecordBatch], condition: pc.Expression | None, most: int
) -> tuple[list[pa.RecordBatch], pa.RecordBatch | None]:
    """The first rows, or those that match, and the last row that was looked at if that was enough work."""
    kept: list[pa.RecordBatch] = []
    count = looked = size = 0
    for batch in batches:
        passing = (batch if condition is None else batch.filter(condition)).slice(0, most - count)
        kept.append(passing)
        count += passing.num_rows
        looked += batch.num_rows
        size += batch.nbytes
        if count >= most:
            return kept, None
        if condition is not None and (looked >= ROWS_READ or size >= BYTES_READ):
            return kept, batch.slice(batch.num_rows - 1)
    return kept, None


def _check_past(log: BucketLog, scanned: BucketRows) -> None:
    """Refuse to undo very much in memory for one page.

    Raises:
        UnsupportedOperation: There is more log since the offset.
    """
    size = log.bytes_between(scanned.offset, scanned.end) if log.start() <= scanned.offset < scanned.end else 0
    if size > PAST_BYTES_MAX:
        raise UnsupportedOperation(
            "This is too far back for a page: it would undo all changes since then. Choose a later place, or use"
            " `kvstore scan --as-of`.",
            log_bytes=size,
            log_bytes_max=PAST_BYTES_MAX,
        )


def row_of_key(definition: Definition, names: list[str], texts: list[str], query: Query) -> Read:
    """The row of a key, or none.

    Raises:
        StoreError: The key does not fit, or the row can't be read.
    """
    key = key_of(texts, definition)
    return read_rows(definition, bucket_of(key, definition), names, 1, query, key=key)


def rows_page(store: Store, definition: Definition, query: Query) -> Page:
    """Rows; ``key`` (once for each of its columns) looks one up, ``after`` begins after a key, ``bucket`` chooses.

    ``as_of_ms`` is a time like ``as_of``, as the slider over time gives it.
    """
    query = query.with_time("as_of", "as_of_ms")
    names, _ = chosen(definition, query)
    key, after = query.all("key"), query.all("after")
    bucket, text = query.number("bucket", most=definition.buckets - 1) or 0, query.text("where")
    condition = parse_filter(text, definition.schema)
    if key:
        read = row_of_key(definition, names, key, query)
    else:
        start = key_of(after, definition) if after else None
        read = read_rows(definition, bucket, names, ROWS_SHOWN + 1, query, condition, after=start)
    more = not key and read.rows.num_rows > ROWS_SHOWN
    shown = read.rows.slice(0, ROWS_SHOWN)
    cells = [cells_of(column) for column in shown.columns]
    keys = texts_of(shown, definition)
    rows = list(zip(*cells, strict=True)) if cells else []
    path, as_of = f"/tables/{definition.id}/rows", query.text("as_of")
    kept: dict[str, Any] = {"column": query.all("column") or None, "bucket": query.text("bucket"), "as_of": as_of}
    kept["where"] = text
    last = keys[-1] if more else texts_of(read.stopped, definition)[0] if read.stopped is not None else None
    following = None if last is None else url(path, **kept, after=last)
    first_page = url(path, **kept) if after else None
    facts = {
        "id": definition.id,
        "table": definition.name,
        "bucket": None if key else bucket,
        "as_of": read.offset,
        "log_end": read.end,
        "where": text,
        "columns": names,
        "rows": [row_facts(names, row) for row in rows],
        "next": None if following is None else f"/api{following}",
    }

    def body() -> Html:
        lines = [
            [_key_cell(definition, key), *_cells(definition, names, row, key, as_of)]
            for row, key in zip(rows, keys, strict=True)
        ]
        headings = [tag("span", each.name, title=str(each.type)) for each in read.rows.schema]
        return tag(
            "div",
            key_form(definition, key, path, "Look up a key"),
            _place_form(definition, path, read, query),
            _sliders(definition, bucket, path, read, query) if not key else None,
            columns_form(definition, names, path, bucket=query.text("bucket"), as_of=as_of, where=text),
            tag("p", _as_of_words(read), class_="note"),
            tag("p", f"{ROWS_READ:,} rows were looked at; Next goes on.", class_="note") if read.stopped else None,
            grid("Rows", ["", *headings], lines, right=[False, *_numbers(read.rows.schema)])
            if rows
            else tag("p", "There is no row of this key." if key else _NONE[text is not None], class_="none"),
            pager(First=first_page, Next=following) if first_page or following else None,
        )

    return Page(
        "Rows of " + definition.name,
        facts,
        body,
        _command(store, definition, key, after, names, query),
        "/api" + url(path, **kept, key=key or None, after=after or None),
        definition,
        "rows",
    )


_NONE = {False: "No rows.", True: "No row here matches the condition."}


def row_facts(names: list[str], row: tuple[Cell, ...]) -> dict[str, Any]:
    """A row in JSON; ``cut`` has the bytes of the long values of which only the beginning is in it."""
    cut = {name: cell.bytes for name, cell in zip(names, row, strict=True) if cell.bytes is not None}
    values = {name: cell.value for name, cell in zip(names, row, strict=True)}
    return {"values": values, "cut": cut} if cut else {"values": values}


def _key_cell(definition: Definition, key: list[str]) -> Html:
    return tag(
        "a",
        "history",
        href=url(f"/tables/{definition.id}/history", key=key),
        aria_label=f"History of {', '.join(each[:100] for each in key)}",
    )


def _cells(
    definition: Definition, names: list[str], row: tuple[Cell, ...], key: list[str], as_of: str | None
) -> list[Html]:
    path = f"/tables/{definition.id}/cell"
    return [
        value_html(cell, None if cell.bytes is None else url(path, column=name, key=key, as_of=as_of))
        for name, cell in zip(names, row, strict=True)
    ]


def _numbers(schema: pa.Schema) -> list[bool]:
    return [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in schema.types]


def _as_of_words(read: Read) -> str:
    if read.offset == read.end:
        return f"As of now: after all changes before offset {read.end:,}."
    return f"As of offset {read.offset:,}: without the {read.end - read.offset:,} changes since then."


def _place_form(definition: Definition, path: str, read: Read, query: Query) -> Html:
    has_past = definition.options.changelog_image != "wal"
    return tag(
        "form",
        hidden(column=query.all("column")),
        _bucket_field(definition, query),
        field("As of an offset or a time", "as_of", query.text("as_of"), placeholder=str(read.end), size=24)
        if has_past
        else None,
        field("Rows for which this is true", "where", query.text("where"), size=40, placeholder=_example(definition)),
        tag("button", "Show"),
        action=path,
    )


def _example(definition: Definition) -> str:
    column = definition.schema.field(definition.schema.names[-1])
    kind = column.type
    value = "100" if pa.types.is_integer(kind) or pa.types.is_floating(kind) else "'…'"
    return condition_of(column, value)


def _sliders(definition: Definition, bucket: int, path: str, read: Read, query: Query) -> list[Html]:
    """Sliders over the offsets and over the times of a bucket, as far as its log goes back."""
    if definition.options.changelog_image == "wal" or read.end == read.start:
        return []
    kept = hidden(column=query.all("column"), bucket=query.text("bucket"), where=query.text("where"))
    offsets = {"name": "as_of", "min": read.start, "max": read.end, "value": read.offset}
    sliders = [_slider(path, kept, "Back to offset ", str(read.offset), "as-of", offsets)]
    times = attempt(lambda: _times(definition.table.bucket(bucket).log, read))
    if times is not None and not is_error(times):  # the page shows the rows all the same
        text = time_text(times["value"])
        sliders.append(_slider(path, kept, "Back to ", text, "as-of-time", {"name": "as_of_ms", **times}))
    return sliders


def _times(log: BucketLog, read: Read) -> dict[str, int] | None:
    """The limits, the step and the value of the slider over time, in milliseconds; None if all was in one commit.

    Raises:
        StoreError: A batch can't be read.
    """

    def at(offset: int) -> int:
        return next(log.batches(offset, offset + 1)).header.commit_timestamp

    # The rows as of a time are those before its first commit. Of a log that was cut, the first has none before it.
    least, most = at(read.start) + (read.start > 0), at(read.end - 1) + 1
    step = max(1, (most - least) // TIMES)
    most += (least - most) % step
    value = most if read.offset >= read.end else at(read.offset)
    if most - least < 2 or not least <= value <= most:  # the clock went back
        return None
    return {"min": least, "max": most, "step": step, "value": value - (value - least) % step}


def _slider(path: str, kept: list[Html], words: str, shown: str, id: str, values: dict[str, Any]) -> Html:
    return tag(
        "form",
        kept,
        tag(
            "label",
            tag("span", words, tag("output", shown, for_=id)),
            tag("input", type="range", id=id, **values),
            for_=id,  # an output can have a label, too
        ),
        tag("button", "Show"),
        action=path,
        class_="slider",
    )


def _bucket_field(definition: Definition, query: Query) -> Html | None:
    if definition.buckets == 1:
        return None
    return field("Bucket", "bucket", query.text("bucket") or 0, type="number", min=0, max=definition.buckets - 1)


def _command(
    store: Store, definition: Definition, key: list[str], after: list[str], names: list[str], query: Query
) -> str | None:
    bound = query.text("as_of")
    if key and bound is None:
        return command("get", store.path, definition.name, *key)
    if definition.buckets > 1 and not key:
        return None  # `kvstore scan` reads all buckets
    fields, bucket = key_fields(definition), query.number("bucket") or 0
    condition = query.text("where")
    if after:
        following = after_key(fields, values_of(key_of(after, definition)))
        condition = following if condition is None else f"({condition}) and ({following})"
    if key:
        condition, bucket = (
            of_key(fields, values_of(key_of(key, definition))),
            bucket_of(key_of(key, definition), definition),
        )
    return command(
        "scan",
        store.path,
        definition.name,
        columns=names_given(names if len(names) < len(definition.schema) else None),
        where=condition,
        as_of=bound_given(bound, bucket, definition.table.offsets()),
        limit=ROWS_SHOWN,
    )
