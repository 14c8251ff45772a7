"""Lookup of rows by key or key prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kvstore.bucket.reads import BucketReads
from kvstore.meta.state import TableDefinition
from kvstore.read.ranges import after
from kvstore.read.scan import KeyRange, rows_now
from kvstore.request.native_rows import native_columns
from kvstore.request.partition import bucket_finder, buckets_of_rows
from kvstore.request.row_layout import TableLayout, layout_of
from logformat import binary_column as binary_column
from logformat.binary_column import BinaryColumn
from logformat.checksum import key_sums
from logformat.ids import BucketId
from logformat.rows import intake
from logformat.rows.few.single_row import SingleRowCodec
from logformat.rows.python_rows import rows_of

FOUND = "_found"


def rows_of_keys(
    handles: Sequence[BucketReads], current: Callable[[], TableDefinition], key_rows: pa.RecordBatch
) -> pa.Table:
    """One row for each key, in order; see :meth:`kvstore.Table.lookup`.

    Args:
        current: Returns the table's current entry in the catalog.
        key_rows: The key columns.
    """
    encoded = layout_of(current()).encode_keys(key_rows)
    places, values = _found(handles, current(), key_rows, encoded)
    definition = current()  # read after the values, so that it has the schemas of all rows
    layout = layout_of(definition)
    names = [name for name in definition.schema.names if name not in layout.key_names]
    decoded = native_columns(layout, values, places, encoded, names) or _columns(layout, values, places, encoded, names)
    columns = dict(zip(names, decoded, strict=True))
    columns |= {name: key_rows.column(name) for name in layout.key_names}
    there = np.zeros(len(encoded), bool)
    there[places] = True
    fields = [field.with_nullable(field.name not in layout.key_names) for field in definition.schema]
    flag = pa.field(FOUND, pa.bool_(), False)
    ordered = [columns[name] for name in definition.schema.names]
    return pa.Table.from_arrays([*ordered, pa.array(there)], schema=pa.schema([*fields, flag]))


def _columns(
    layout: TableLayout, values: BinaryColumn, places: np.ndarray, keys: BinaryColumn, names: Sequence[str]
) -> list[pa.Array]:
    """Columns outside the key, one row for each key; see :func:`kvstore.request.native_rows.native_columns`."""
    columns = layout.decode_values(values, key_sums(keys)[places], names)
    if len(places) == len(keys) and (places[1:] > places[:-1]).all():
        return columns
    row_of_key, missing = np.zeros(len(keys), np.int64), np.ones(len(keys), bool)
    row_of_key[places], missing[places] = np.arange(len(places)), False
    taken = pa.array(row_of_key, mask=missing)
    return [column.take(taken) for column in columns]


class SingleReads:
    """Reads rows by one key; see :meth:`kvstore.Table.get`.

    Args:
        current: Returns the definition by which columns are called; refuses a log table.
        latest: Returns the one that has the schemas of all rows.
    """

    def __init__(
        self,
        handles: Sequence[BucketReads],
        current: Callable[[], TableDefinition],
        latest: Callable[[], TableDefinition],
    ) -> None:
        self._handles = handles
        self._current = current
        self._latest = latest
        self._only = handles[0] if len(handles) == 1 else None
        self._known: tuple[TableDefinition, SingleRowCodec, Callable[[Any, bytes], int]] | None = None

    def get(self, key: Any, definition: TableDefinition) -> dict[str, Any] | None:
        """The row of a key, or None.

        Args:
            definition: The table's entry in the catalog.
        """
        known = self._known
        if known is None or known[0] is not definition:
            definition = self._current()
            self._known = known = definition, layout_of(definition).single, bucket_finder(definition)
        codec = known[1]
        code = codec.encode_key(key)
        if code is not None:
            value = (self._only or self._handles[known[2](key, code)]).value(code)
            if value is None:
                return None
            decoded = codec.decode(key, code, value)
            if decoded is not None:
                return decoded
            # Another process has added a column since, or Python lacks a value: the latter is an error below.
        definition = self._current()
        key_rows = intake.key_rows([key], layout_of(definition).key_schema)
        found_rows = rows_of_keys(self._handles, lambda: self._latest().named_as(definition), key_rows)
        row = next(rows_of(found_rows, definition.schema))
        return row if row.pop(FOUND) else None


def rows_of_prefix(
    handles: Sequence[BucketReads], current: Callable[[], TableDefinition], prefix: pa.RecordBatch
) -> pa.Table:
    """All rows whose key begins with the values in the single row of ``prefix``."""
    definition = current()
    start = layout_of(definition).keys.encode_prefix(prefix.columns).to_list()[0]
    keys = KeyRange(start, after(start))
    if set(definition.bucket_key or ()) <= set(prefix.schema.names):
        handles = [handles[int(buckets_of_rows(definition, prefix)[0])]]
    batches = []
    for handle in handles:
        with handle.latest() as view:
            batches += list(rows_now(view, current(), definition.schema.names, keys))
    return pa.Table.from_batches(batches, definition.schema)


def _found(
    handles: Sequence[BucketReads], definition: TableDefinition, key_rows: pa.RecordBatch, keys: BinaryColumn
) -> tuple[np.ndarray, BinaryColumn]:
    """Which of the keys are there, int64; and their values, in the same order."""
    if len(handles) == 1:
        with handles[0].latest() as view:
            there, values = view.find(keys)
        return np.flatnonzero(there), values
    buckets = buckets_of_rows(definition, key_rows)
    places, columns = [np.zeros(0, np.int64)], [BinaryColumn.from_list([])]
    for bucket in map(BucketId, np.unique(buckets).tolist()):
        its_keys = np.flatnonzero(buckets == bucket)
        with handles[bucket].latest() as view:
            there, values = view.find(keys.take(its_keys))
        places.append(its_keys[there])
        columns.append(values)
    return np.concatenate(places), binary_column.concatenate(columns)
