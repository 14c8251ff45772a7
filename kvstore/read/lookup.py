"""Lookup of rows by key or key prefix."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from kvstore.bucket.handle import BucketHandle
from kvstore.errors import SchemaMismatch
from kvstore.meta.state import TableDefinition
from kvstore.read.scan import KeyRange, rows_now
from kvstore.request.partition import bucket_of_key, buckets_of_rows
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.checksum import key_sums
from logformat.ids import BucketId
from logformat.rows import intake
from logformat.rows.single_row import SingleRowCodec

FOUND = "_found"


def rows_of_keys(
    handles: Sequence[BucketHandle], current: Callable[[], TableDefinition], key_rows: pa.RecordBatch
) -> pa.Table:
    """One row for each key, in order; see :meth:`kvstore.Table.lookup`.

    Args:
        current: Returns the table's current entry in the catalog.
        key_rows: The key columns.
    """
    encoded = layout_of(current()).encode_keys(key_rows)
    values = _values(handles, current(), key_rows, encoded.to_list())
    definition = current()  # read after the values, so that it has the schemas of all rows
    layout = layout_of(definition)
    there = np.fromiter(map(bool, values), bool, len(values))
    found_keys = key_rows.filter(pa.array(there))
    rows, _ = layout.decode(BinaryColumn.from_list(list(filter(None, values))), key_sums(encoded)[there], found_keys)
    places = pa.array(np.cumsum(there) - 1, mask=~there)
    columns = [
        key_rows.column(field.name) if field.name in layout.key_names else rows.column(field.name).take(places)
        for field in definition.schema
    ]
    fields = [field.with_nullable(field.name not in layout.key_names) for field in definition.schema]
    found = pa.field(FOUND, pa.bool_(), False)
    return pa.Table.from_arrays([*columns, pa.array(there)], schema=pa.schema([*fields, found]))


class SingleReads:
    """Reads rows by one key; see :meth:`kvstore.Table.get`."""

    def __init__(self, handles: Sequence[BucketHandle]) -> None:
        self._handles = handles
        self._only = handles[0] if len(handles) == 1 else None
        self._known: tuple[TableDefinition, SingleRowCodec] | None = None

    def get(
        self, key: Any, definition: TableDefinition, current: Callable[[], TableDefinition]
    ) -> dict[str, Any] | None:
        """The row of a key, or None.

        Args:
            definition: The table's entry in the catalog.
            current: Returns the current one; refuses a log table.
        """
        known = self._known
        if known is None or known[0] is not definition:
            definition = current()
            self._known = known = definition, layout_of(definition).single
        codec = known[1]
        code = codec.encode_key(key)
        if code is not None:
            value = (self._only or self._handles[bucket_of_key(definition, key, code)]).value(code)
            if value is None:
                return None
            found = codec.decode(key, code, value)
            if found is not None:
                return found
            # Another process has added a column since, or Python lacks a value: the latter is an error below.
        definition = current()
        key_rows = intake.key_rows([key], layout_of(definition).key_schema)
        found_rows = rows_of_keys(self._handles, lambda: current().named_as(definition), key_rows)
        row: dict[str, Any] = found_rows.to_pylist()[0]
        return row if row.pop(FOUND) else None


def prefix_row(prefix: Any, key_schema: pa.Schema) -> pa.RecordBatch:
    """Values of the first columns of a key, as one row.

    Raises:
        SchemaMismatch: The values are not a prefix of a key, or do not fit.
    """
    names = key_schema.names
    if not isinstance(prefix, Mapping):
        values = list(prefix) if isinstance(prefix, (tuple, list)) else [prefix]
        prefix = dict(zip(names, values, strict=False)) if len(values) <= len(names) else dict(enumerate(values))
    if not prefix or set(prefix) != set(names[: len(prefix)]):
        raise SchemaMismatch("A prefix needs values for the first columns of the key.", given=list(prefix), key=names)
    return intake.one_batch(dict(prefix), pa.schema([key_schema.field(name) for name in names[: len(prefix)]]))


def rows_of_prefix(
    handles: Sequence[BucketHandle], current: Callable[[], TableDefinition], prefix: pa.RecordBatch
) -> pa.Table:
    """All rows whose key begins with the values in the single row of ``prefix``."""
    definition = current()
    start = layout_of(definition).keys.encode_prefix(prefix.columns).to_list()[0]
    keys = KeyRange(start, _after(start))
    if set(definition.bucket_key or ()) <= set(prefix.schema.names):
        handles = [handles[int(buckets_of_rows(definition, prefix)[0])]]
    batches = []
    for handle in handles:
        with handle.latest() as view:
            batches += list(rows_now(view, current(), definition.schema.names, keys))
    return pa.Table.from_batches(batches, definition.schema)


def _values(
    handles: Sequence[BucketHandle], definition: TableDefinition, key_rows: pa.RecordBatch, keys: list[bytes]
) -> list[bytes]:
    if len(handles) == 1:
        with handles[0].latest() as view:
            return view.get(keys)
    buckets = buckets_of_rows(definition, key_rows)
    values = np.full(len(keys), b"", object)
    for bucket in map(BucketId, np.unique(buckets).tolist()):
        places = np.flatnonzero(buckets == bucket)
        with handles[bucket].latest() as view:
            found = view.get([keys[place] for place in places])
        for place, value in zip(places, found, strict=True):
            values[place] = value
    listed: list[bytes] = values.tolist()
    return listed


def _after(prefix: bytes) -> bytes | None:
    """The smallest byte string after all that begin with ``prefix``; None if there is none."""
    shorter = prefix.rstrip(b"\xff")
    return shorter[:-1] + bytes([shorter[-1] + 1]) if shorter else None
