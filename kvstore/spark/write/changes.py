"""Spark's rows as changes of a table: columns of a changelog among them say what each row does, and in what order."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kvstore.errors import SchemaMismatch
from kvstore.read.changelog import CHANGE_FIELDS
from kvstore.spark.write.staged import CHANGE_TYPE, ORDER
from logformat.log.change import ChangeType
from logformat.rows.changes import Changes


def changes_of(batch: pa.RecordBatch) -> tuple[Changes, dict[str, pa.Array]]:
    """Changes of a table from Spark's rows, and the columns that define their order; by default, rows are upserts.

    Raises:
        SchemaMismatch: The rows have columns of a changelog without ``_change_type``, or an unknown change type.
    """
    names = batch.schema.names
    rows = batch.drop_columns([name for name in CHANGE_FIELDS.names if name in names])
    if rows.num_columns == batch.num_columns:
        return Changes.upserts(rows), {}
    if CHANGE_TYPE not in names:
        raise SchemaMismatch(
            f"Rows of a changelog need their column {CHANGE_TYPE}, which distinguishes deletes; give it, or drop all "
            "columns of the changelog.",
            columns=[name for name in CHANGE_FIELDS.names if name in names],
        )
    kinds = _kinds(batch.column(CHANGE_TYPE))
    changes = Changes(rows, pa.array(kinds == ChangeType.DELETE))
    order = {name: _in_utc(batch.column(name)) for name in ORDER if name in names}
    for name, column in order.items():
        if column.type != CHANGE_FIELDS.field(name).type or column.null_count:
            raise SchemaMismatch(
                "A column that orders changes must have its type of a changelog, and no nulls; drop it to leave the "
                "order to the rows.",
                column=name,
                type=column.type,
                expected=CHANGE_FIELDS.field(name).type,
                nulls=column.null_count,
            )
    kept = kinds != ChangeType.UPDATE_PREIMAGE
    if kept.all():
        return changes, order
    places = pa.array(np.flatnonzero(kept))
    return changes.take(places), {name: column.take(places) for name, column in order.items()}


def _in_utc(column: pa.Array) -> pa.Array:
    """Timestamps in UTC: Spark gives them in the zone of its session, which does not change the moment."""
    is_moment = pa.types.is_timestamp(column.type) and column.type.tz is not None
    return column.cast(pa.timestamp(column.type.unit, "UTC")) if is_moment else column


def _kinds(column: pa.Array) -> np.ndarray:
    """Byte codes of change types, uint8 ``(n,)``."""
    if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
        raise SchemaMismatch("A change type must be a string.", column=CHANGE_TYPE, type=column.type)
    encoded = column.dictionary_encode()
    try:
        codes = np.array([ChangeType(word) for word in encoded.dictionary.to_pylist()], np.uint8)
    except ValueError as error:
        raise SchemaMismatch(
            "Unknown change type.",
            given=encoded.dictionary.to_pylist()[:5],
            kinds=[kind.word for kind in ChangeType],
        ) from error
    if encoded.null_count:
        raise SchemaMismatch("Every row needs a change type.", column=CHANGE_TYPE, nulls=encoded.null_count)
    return codes[encoded.indices.to_numpy()] if len(codes) else np.zeros(0, np.uint8)
