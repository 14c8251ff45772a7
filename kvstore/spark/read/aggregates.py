"""Aggregates that are known without reading a row: numbers of rows, and the smallest and largest keys and offsets.

They are exact, or not given: then Spark reads the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from kvstore.read.splits import Splits
from kvstore.spark.options import Kind
from kvstore.spark.read.tasks import Aggregate, ReadRange, Value
from kvstore.spark.types import spark_type
from kvstore.table.table import Table
from logformat.ids import Offset

_OFFSET = "_log_offset"
JSON_TYPES = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.string(), pa.date32())
"""Types of Spark whose order is that of the index, and whose values JSON has."""


def aggregates_of(
    table: Table, kind: Kind, ranges: Sequence[ReadRange], wanted: Sequence[Aggregate]
) -> list[Value] | None:
    """Values of aggregates of a pinned read without filters; None if rows must be read for one of them."""
    if kind in (Kind.BINLOG, Kind.NET) or any(each.inserted_at is not None for each in ranges):
        return None
    splits_read = [(table.parts.of_bucket(each.bucket), Offset(each.start), Offset(each.end)) for each in ranges]
    return _of_changes(splits_read, wanted) if kind is Kind.CHANGELOG else _of_rows(table, splits_read, wanted)


def count_of(table: Table, kind: Kind, ranges: Sequence[ReadRange]) -> int | None:
    """Number of rows of a pinned read; None if they must be read."""
    values = aggregates_of(table, kind, ranges, [("count", None)])
    if values is None:
        return None
    assert isinstance(values[0], int)
    return values[0]


SplitsRead = Iterable[tuple[Splits, Offset, Offset]]


def _of_changes(splits_read: SplitsRead, wanted: Sequence[Aggregate]) -> list[Value] | None:
    if any(name != "count" and column != _OFFSET for name, column in wanted):
        return None
    extents = [splits.change_extent(start, end) for splits, start, end in splits_read]
    value_of: dict[str, Value] = {
        "count": sum(count for count, _, _ in extents),
        "min": min((first for _, first, _ in extents if first is not None), default=None),
        "max": max((last for _, _, last in extents if last is not None), default=None),
    }
    return [value_of[name] for name, _ in wanted]


def _of_rows(table: Table, splits_read: SplitsRead, wanted: Sequence[Aggregate]) -> list[Value] | None:
    key = table.primary_key
    assert key is not None
    if any(name != "count" and (column != key[0] or not _has_order(table.schema, key[0])) for name, column in wanted):
        return None
    value_of: dict[str, Value] = {}
    for name in {name for name, _ in wanted}:
        if name == "count":
            counts = [splits.row_count(as_of=end) for splits, _, end in splits_read]
            if None in counts:
                return None
            value_of[name] = sum(count for count in counts if count is not None)
            continue
        bounds = [splits.first_and_last_keys(as_of=end) for splits, _, end in splits_read]
        values: list[Value] = []
        for rows in bounds:
            if rows is None:
                return None
            column = rows.column(key[0])
            values += (column.cast(pa.int32()) if pa.types.is_date(column.type) else column).to_pylist()
        value_of[name] = (min if name == "min" else max)(values, default=None)  # type: ignore[type-var] # of one type
    return [value_of[name] for name, _ in wanted]


def _has_order(schema: pa.Schema, name: str) -> bool:
    """Whether the index has the keys in Spark's order, and JSON has their values as Spark does."""
    kind = schema.field(name).type
    return spark_type(kind) in JSON_TYPES
