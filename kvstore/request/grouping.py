"""Groups rows by their keys, before the turn of their request comes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from kvstore.kernel import library, writes
from kvstore.kernel.writes import FEW_MAX, Encoded, Few
from kvstore.request.request import Grouping, group
from kvstore.request.row_layout import TableLayout
from kvstore.request.sizes import bytes_of
from logformat.binary_column import BinaryColumn
from logformat.ids import SchemaId
from logformat.rows.few.few_rows import Operation


def grouped(layout: TableLayout, rows: pa.RecordBatch) -> Grouping:
    """Group rows by their keys; rows of one key keep their order.

    Raises:
        KeyTooLarge: See :class:`logformat.rows.keys.KeyCodec`.
    """
    grouping = _natively_grouped(layout, rows)
    return group(layout.encode_keys(rows)) if grouping is None else grouping


def _natively_grouped(layout: TableLayout, rows: pa.RecordBatch) -> Grouping | None:
    kernel, table = library.kernel(), layout.flat
    if kernel is None or table is None or not rows.num_rows or not rows.schema.equals(table.schema):
        return None
    grouping = writes.group(kernel, table, rows, bytes_of(rows))
    return None if grouping is None else Grouping(*grouping)


def encoded_operations(operations: Sequence[Operation], schema_id: SchemaId) -> Encoded | Few:
    """Operations of rows that are encoded already, at least one."""
    names = [each.code for each in operations]
    values = [each.value or b"" for each in operations]
    if len(names) <= FEW_MAX and len(set(names)) == len(names):
        return Few(names, values, schema_id)
    grouping = group(BinaryColumn.from_list(names))
    column = BinaryColumn.from_list(values)
    return Encoded(grouping.keys, grouping.order, grouping.starts, grouping.lasts, column, schema_id)
