"""Split of a table's columns between key and value, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache

import numpy as np
import pyarrow as pa

from kvstore.kernel import library, writes
from kvstore.kernel.writes import KEY_COLUMNS_MAX, Table
from kvstore.meta.state import TableDefinition
from kvstore.request.request import Grouping, group
from kvstore.request.sizes import bytes_of
from logformat.binary_column import BinaryColumn
from logformat.checksum import key_sums
from logformat.ids import SchemaId
from logformat.rows.few.single_row import SingleRowCodec
from logformat.rows.keys import KeyCodec
from logformat.rows.record import RecordCodec
from logformat.rows.rows import RowCodec
from logformat.rows.schema import is_dropped


@lru_cache(maxsize=256)
def layout_of(definition: TableDefinition) -> TableLayout:
    """The layout of a table; built once for each definition."""
    return TableLayout(definition)


class TableLayout:
    """Codecs of a table with a primary key; see :func:`layout_of`.

    Dropped columns are in what is stored; they are not decoded unless they are named, and null where rows lack them.

    Args:
        definition: The table's entry in the catalog.
    """

    def __init__(self, definition: TableDefinition) -> None:
        key = definition.primary_key or ()
        self.schema = definition.schema
        self.schema_id = definition.schema_id
        self.key_names = key
        self.key_schema = pa.schema([self.schema.field(name) for name in key])
        self.keys = KeyCodec(list(self.key_schema))
        self._stored = stored = definition.schemas_now
        self._has_dropped = len(definition.stored) > len(self.schema)
        self._value_names = {id: [name for name in schema.names if name not in key] for id, schema in stored.items()}
        self._names = [name for name in self.schema.names if name not in key]
        self._rows = RowCodec(
            {id: pa.schema([schema.field(name) for name in self._value_names[id]]) for id, schema in stored.items()}
        )

    @cached_property
    def single(self) -> SingleRowCodec:
        """Codec of single rows, which verifies them by the native kernel if there is one now."""
        from kvstore.kernel.library import row_verifier

        return SingleRowCodec(self._stored, self.key_names, self.schema.names, verify=row_verifier())

    @cached_property
    def flat(self) -> Table | None:
        """How rows of the current schema lie in memory, for the native kernel; None if they are not for it."""
        record = self._rows.record(self.schema_id)
        is_flat = record is not None and not any(map(pa.types.is_nested, self.schema.types)) and not self._has_dropped
        if record is None or not is_flat or not 0 < len(self.key_names) <= KEY_COLUMNS_MAX:
            return None
        return Table(self.schema, self.key_names, record[1].dtype, self.schema_id)

    def encode_keys(self, rows: pa.RecordBatch) -> BinaryColumn:
        """Encode the keys of rows in any of the table's schemas.

        Raises:
            KeyTooLarge: See :class:`logformat.rows.keys.KeyCodec`.
        """
        return self.keys.encode([rows.column(name) for name in self.key_names])

    def encode_values(
        self, rows: pa.RecordBatch, sums: np.ndarray, schema_id: SchemaId
    ) -> tuple[BinaryColumn, np.ndarray]:
        """Encode values of rows in one of the table's schemas; see :meth:`logformat.rows.rows.RowCodec.encode`."""
        names = self._value_names[schema_id]
        if not self._has_dropped:
            return self._rows.encode([rows.column(name) for name in names], sums, schema_id)
        there, types = set(rows.schema.names), self._stored[schema_id]
        columns = [
            pa.nulls(rows.num_rows, types.field(name).type)
            if is_dropped(name) and name not in there
            else rows.column(name)
            for name in names
        ]
        return self._rows.encode(columns, sums, schema_id)

    def record(self, schema_id: SchemaId) -> tuple[list[str], RecordCodec] | None:
        """Columns of stored values of a schema; see :meth:`logformat.rows.rows.RowCodec.record`."""
        return self._rows.record(schema_id)

    def decode(
        self, values: BinaryColumn, sums: np.ndarray, key_columns: pa.RecordBatch, names: Sequence[str] | None = None
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        """Decode rows in the current schema, with their hashes.

        Args:
            sums: ``checksum.key_sums`` of the keys of the values.
            key_columns: A batch that has the key columns of the rows; other columns are ignored.
            names: Columns to return; None for all that are not dropped.

        Raises:
            CorruptData: A row is damaged.
        """
        schema, wanted = self._wanted(names)
        columns, hashes = self._rows.decode(values, sums, self.schema_id, wanted)
        decoded = iter(columns)
        ordered = [key_columns.column(name) if name in self.key_names else next(decoded) for name in schema.names]
        return pa.RecordBatch.from_arrays(ordered, schema=schema), hashes

    def decode_values(self, values: BinaryColumn, sums: np.ndarray, names: Sequence[str]) -> list[pa.Array]:
        """Columns of :meth:`decode` by name, none of them of the key."""
        return self._rows.decode(values, sums, self.schema_id, names)[0]

    def decode_found(
        self, keys: BinaryColumn, values: BinaryColumn, names: Sequence[str] | None = None
    ) -> tuple[pa.RecordBatch, np.ndarray]:
        """Like :meth:`decode`, for rows whose keys are only known encoded."""
        columns = pa.RecordBatch.from_arrays(self.keys.decode(keys), schema=self.key_schema)
        return self.decode(values, key_sums(keys), columns, names)

    def columns(self, names: Sequence[str] | None = None) -> pa.Schema:
        """The given columns, those that are not dropped if None, as they are in the current schema."""
        return self._wanted(names)[0]

    def _wanted(self, names: Sequence[str] | None) -> tuple[pa.Schema, list[str]]:
        if names is None:
            return self.schema, self._names
        schema = pa.schema([self._stored[self.schema_id].field(name) for name in names])
        return schema, [name for name in names if name not in self.key_names]


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
