"""One whole value, to be saved: pages cut long ones."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from kvstore import Store
from kvstore.console.query import Query
from kvstore.console.table.definition import Definition
from kvstore.console.table.rows import row_of_key
from kvstore.console.values import whole_of
from kvstore.errors import InvalidRequest, OffsetOutOfRange, SchemaMismatch
from logformat.log.change import ChangeType


@dataclass(frozen=True)
class Download:
    """A value as a file.

    Attributes:
        name: Name for the file, of plain characters.
    """

    data: bytes
    media_type: str
    name: str


def value_of(_: Store, definition: Definition, query: Query) -> Download:
    """The value of ``column`` in the row of ``key``, or ``before`` or ``after`` (``side``) the change at ``offset``.

    Raises:
        InvalidRequest: There is no such value.
        StoreError: It can't be read.
    """
    column = query.text("column") or ""
    if column not in definition.schema.names:
        raise SchemaMismatch("The table has no such column.", column=repr(column[:100]))
    offset = query.number("offset")
    value = _of_key(definition, column, query) if offset is None else _of_change(definition, column, offset, query)
    data, media_type = whole_of(value)
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in column)
    return Download(data, media_type, f"{plain[:60] or 'value'}.{'bin' if 'octet' in media_type else 'txt'}")


def _of_key(definition: Definition, column: str, query: Query) -> pa.Array:
    rows = row_of_key(definition, [column], query.all("key"), query).rows
    if not rows.num_rows:
        raise InvalidRequest("There is no row of this key.")
    return rows.column(0)


def _of_change(definition: Definition, column: str, offset: int, query: Query) -> pa.Array:
    bucket = query.number("bucket", most=definition.buckets - 1) or 0
    is_before = query.text("side") == "before"
    table = definition.table
    log_start, end = table.offsets()[bucket]
    if not log_start <= offset < end:
        raise OffsetOutOfRange("The log does not hold this offset.", offset=offset, log_start=log_start, log_end=end)
    names = ["_log_offset", "_change_type", column]
    start = max(log_start, offset - 1)
    changes = _at(
        table.changelog({bucket: start}, {bucket: offset + 1}, bucket, names).read_all(),
        offset,
        is_before=is_before,
    )
    if not changes.num_rows:
        raise InvalidRequest("There is no change at this offset.", offset=offset)
    return changes.column(column).combine_chunks()


def _at(changes: pa.Table, offset: int, *, is_before: bool) -> pa.Table:
    """The row before or after the change at an offset; none if the log does not have it."""
    offsets, kinds = (changes.column(name).to_pylist() for name in ("_log_offset", "_change_type"))
    if not offsets or offsets[-1] != offset:
        return changes.slice(0, 0)
    if is_before and kinds[-1] == ChangeType.UPDATE_POSTIMAGE.word:  # the row before it is the change before it
        return changes.slice(0, int(kinds[0] == ChangeType.UPDATE_PREIMAGE.word))
    if kinds[-1] == ChangeType.UPDATE_PREIMAGE.word:  # half of an update
        return changes.slice(0, 0)
    is_deleted = kinds[-1] == ChangeType.DELETE.word
    return changes.slice(changes.num_rows - 1 if is_before == is_deleted else changes.num_rows)
