"""Groups rows by their keys, and encodes them as they are stored: before the turn of their request comes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from kvstore.kernel import library, writes
from kvstore.kernel.writes import FEW_MAX, Encoded, Few
from kvstore.meta.state import TableDefinition
from kvstore.request.request import Grouping, group
from kvstore.request.row_layout import TableLayout, layout_of
from kvstore.request.sizes import bytes_of
from logformat.binary_column import BinaryColumn
from logformat.ids import SchemaId
from logformat.rows.few.few_rows import Operation

FEW_ROWS_MAX, FEW_BYTES_MAX = 128, 1 << 17
"""Up to so many rows, and bytes of them, lists take less time than columns."""


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


def encoded_rows(
    definition: TableDefinition, rows: pa.RecordBatch, is_delete: pa.BooleanArray | None = None
) -> Encoded | Few | None:
    """The rows as they are stored; None if Python has to encode them.

    Args:
        rows: Valid, with the types of the table's columns; no key column has a null.
        is_delete: For each row whether its key is deleted; None if none is.
    """
    kernel, table = library.kernel(), layout_of(definition).flat
    if kernel is None or table is None or not rows.num_rows:
        return None
    deletes = None
    if is_delete is not None and is_delete.true_count:
        deletes = np.asarray(is_delete.to_numpy(zero_copy_only=False))
    size = bytes_of(rows)
    if deletes is None and rows.num_rows <= FEW_ROWS_MAX and size <= FEW_BYTES_MAX:
        encode = library.few_encoder()
        few = None if encode is None else writes.encode_few(encode, table, rows, size)
        if few is not None:
            return few
    return writes.encode_rows(kernel, table, rows, size, deletes)


def encoded_operations(operations: Sequence[Operation], schema_id: SchemaId) -> Encoded | Few:
    """Operations of rows that are encoded already, at least one."""
    names = [each.code for each in operations]
    values = [each.value or b"" for each in operations]
    if len(names) <= FEW_MAX and len(set(names)) == len(names):
        return Few(names, values, schema_id)
    grouping = group(BinaryColumn.from_list(names))
    column = BinaryColumn.from_list(values)
    return Encoded(grouping.keys, grouping.order, grouping.starts, grouping.lasts, column, schema_id)
