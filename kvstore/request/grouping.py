"""Grouping of rows by their keys: by the native kernel where it can, else by Python."""

from __future__ import annotations

import pyarrow as pa

from kvstore.request.request import Grouping, group
from kvstore.request.row_layout import TableLayout
from kvstore.request.sizes import bytes_of


def grouped(layout: TableLayout, rows: pa.RecordBatch) -> Grouping:
    """Group rows by their keys; rows of one key keep their order.

    Raises:
        KeyTooLarge: See :class:`logformat.rows.keys.KeyCodec`.
    """
    found = _natively_grouped(layout, rows)
    return group(layout.encode_keys(rows)) if found is None else found


def _natively_grouped(layout: TableLayout, rows: pa.RecordBatch) -> Grouping | None:
    from kvstore.kernel import library, writes

    kernel, table = library.kernel(), layout.flat
    if kernel is None or table is None or not rows.num_rows or not rows.schema.equals(table.schema):
        return None
    found = writes.group(kernel, table, rows, bytes_of(rows))
    return None if found is None else Grouping(*found)
