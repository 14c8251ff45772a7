"""The rows of a patch: each changed key once, with its row as it is and as it is to become."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import UnsupportedOperation
from kvstore.patch.contents import DELETE, STAY, STORE, UPDATE
from kvstore.read.lookup import FOUND
from kvstore.request.request import group
from kvstore.table.table import Table
from logformat.rows.changes import Changes
from logformat.rows.keys import KeyCodec
from logformat.rows.record import RecordCodec


def compared(table: Table, changes: Changes, stay: pa.RecordBatch | None) -> pa.RecordBatch:
    """What changes make of the rows as they are; a change without effect is left out.

    Args:
        table: With fixed columns: they are asked for more than once.
        stay: Keys whose rows stay as they are, and are shown.

    Raises:
        SchemaMismatch: The changes do not fit the table.
        UnsupportedOperation: A row would need its old value in a column that the table fills.
    """
    key, automatic = list(table.primary_key or ()), table.options.auto_increment
    ids = None
    if automatic is not None and automatic in changes.rows.schema.names:
        ids = changes.rows.column(automatic)
        changes = Changes(changes.rows.drop_columns([automatic]), changes.is_delete)
    fitting = table.parts.fitting(changes)
    key_schema = pa.schema([table.schema.field(name) for name in key])
    encoded = KeyCodec(list(key_schema)).encode([fitting.rows.column(name) for name in key])
    grouping = group(encoded)
    last = pa.array(grouping.order[grouping.lasts])
    final = fitting.take(last)
    is_there, before = _rows_now(table, final.rows.select(key))
    if automatic is not None:
        _check_ids(automatic, None if ids is None else ids.take(last), before.column(automatic), final.is_delete)
    given = dict(zip(final.rows.schema.names, final.rows.columns, strict=True))
    given |= {} if automatic is None else {automatic: before.column(automatic)}
    after = [given[name] for name in table.schema.names]
    is_delete = final.is_delete.to_numpy(zero_copy_only=False)
    codec = RecordCodec(table.schema.types)
    same = pc.equal(codec.encode_whole(before.columns).to_arrow(), codec.encode_whole(after).to_arrow())
    differs = ~is_there | ~same.to_numpy(zero_copy_only=False)
    what = np.where(is_delete, DELETE, np.where(is_there, UPDATE, STORE))
    kept = np.where(is_delete, is_there, differs)
    images = [_images(before.columns, is_there, table.schema), _images(after, ~is_delete, table.schema)]
    rows = pa.RecordBatch.from_arrays([pa.array(what, pa.string()), *images], ["what", "before", "after"])
    rows = rows.filter(pa.array(kept))
    if stay is None or not stay.num_rows:
        return rows
    there, now = _rows_now(table, stay)
    # A key in conflict may have no row: then its key is all that is known of it.
    shown = _images(now.columns, np.ones(len(there), bool), table.schema)
    nothing = pa.nulls(len(there), rows.schema.field("after").type)
    staying = pa.RecordBatch.from_arrays([pa.array([STAY] * len(there)), shown, nothing], schema=rows.schema)
    return pa.concat_batches([rows, staying])


def _rows_now(table: Table, keys: pa.RecordBatch) -> tuple[np.ndarray, pa.RecordBatch]:
    rows = table.lookup(keys).combine_chunks()
    is_there = rows.column(FOUND).to_numpy()
    columns = [
        pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        for column in rows.drop_columns([FOUND]).columns
    ]
    fields = [field.with_nullable(True) for field in table.schema]
    return is_there, pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _images(columns: list[pa.Array], there: np.ndarray, schema: pa.Schema) -> pa.StructArray:
    fields = [field.with_nullable(True) for field in schema]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=pa.array(~there))


def _check_ids(automatic: str, ids: pa.Array | None, now: pa.Array, is_delete: pa.BooleanArray) -> None:
    if ids is None:
        return
    given = pc.and_not(ids.is_valid(), is_delete)
    kept = pc.fill_null(pc.equal(ids, now), False)
    others = pc.sum(pc.and_not(given, kept)).as_py() or 0
    if others:
        raise UnsupportedOperation(
            "The table fills this column: a row that was removed gets a new value, so its old one can't be restored;"
            " apply the changes with `overwrite`, see Bucket.apply().",
            column=automatic,
            rows=others,
        )
