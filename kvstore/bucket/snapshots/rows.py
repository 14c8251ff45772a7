"""Rows of a snapshot: from the index into plain Parquet, and back to the byte (docs/format.md, Snapshot).

* Rows have the table's stored columns and the id of the schema each was stored with: enough to rebuild key and value.
* Columns are known by their places: the table may have renamed or dropped some since.
* Types that Parquet lacks are written as the numbers they are stored as, which loses nothing.
* Bits of floats survive: columns that hold any have no dictionary, for it takes every NaN for the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kvstore.disk.files import Files
from kvstore.errors import CorruptData
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from logformat.binary_column import BinaryColumn
from logformat.checksum import crc32c, key_sums
from logformat.ids import SchemaId
from logformat.log.snapshot_manifest import FileSum
from logformat.rows.rows import schema_ids
from logformat.rows.schema import is_dropped
from logformat.rows.types.registry import column_type

SCHEMA_ID = "_schema_id"
GROUP_ROWS_MAX = 1 << 20
"""Rows of a row group that is written and read: Arrow believes any number, and takes memory for it first."""
_PIECE_BYTES = 1 << 20


def parquet_schema(schema: pa.Schema) -> pa.Schema:
    """Columns of the file: the table's stored ones, and after them the schema id."""
    names = {*schema.names}
    fields = []
    for number, field in enumerate(schema):
        name = field.name
        if is_dropped(name):
            name = f"_dropped_{number}"
            while name in names:
                name = f"_{name}"
        fields.append(pa.field(name, _with_leaves(field.type, _written_as), field.nullable))
    return pa.schema([*fields, pa.field(SCHEMA_ID, pa.int16(), False)])


def _with_leaves(kind: pa.DataType, leaf: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A type with others where it has no further parts; those that are parts may be null, as they are in a null."""

    def part(field: pa.Field) -> pa.Field:
        return pa.field(field.name, _with_leaves(field.type, leaf))

    types = pa.types
    if types.is_list(kind):
        return pa.list_(part(kind.value_field))
    if types.is_map(kind):
        return pa.map_(part(kind.key_field).with_nullable(False), part(kind.item_field))
    if types.is_struct(kind):
        return pa.struct([part(kind.field(i)) for i in range(kind.num_fields)])
    return leaf(kind)


def _written_as(kind: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision:
        return column_type(kind).made([kind.precision, 0])
    if types.is_timestamp(kind) and kind.unit == "s":
        return pa.int64()
    return pa.int32() if kind == pa.time32("s") else kind


def _seen_as(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.view(kind)


class FileWriter:
    """A new file written from its beginning to its end, as Arrow wants one; what the disk refuses is an OSError.

    Attributes:
        error: First error of the disk: the cause of the error that Arrow raises.
    """

    closed = False

    def __init__(self, descriptor: int, files: Files) -> None:
        self._descriptor = descriptor
        self._files = files
        self._waiting: list[bytes] = []
        self._waiting_bytes = self._position = self._crc = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Take bytes; they are on their way to the disk after the next :meth:`finish`, if not before."""
        piece = bytes(data)
        self._waiting.append(piece)
        self._waiting_bytes += len(piece)
        if self._waiting_bytes >= _PIECE_BYTES:
            self._write_out()
        return len(piece)

    def tell(self) -> int:
        """Bytes so far."""
        return self._position + self._waiting_bytes

    def flush(self) -> None:
        """Nothing: Arrow asks for it when it likes."""

    def close(self) -> None:
        """Nothing: the descriptor is not ours."""

    def finish(self) -> FileSum:
        """Write everything out and make it durable."""
        self._write_out()
        self._files.sync(self._descriptor)
        return FileSum(bytes=self._position, crc32c=self._crc)

    def _write_out(self) -> None:
        data = b"".join(self._waiting)
        try:
            self._files.write(self._descriptor, [memoryview(data)], self._position)
        except OSError as error:
            self.error = self.error or error
            raise
        self._crc = crc32c(data, self._crc)
        self._position += len(data)
        self._waiting, self._waiting_bytes = [], 0


class RowsWriter:
    """Writes rows as the index holds them, in key order.

    Args:
        file: Where to.
        definition: The table; it knows every schema of the rows.
    """

    def __init__(self, file: FileWriter, definition: TableDefinition) -> None:
        self._file = file
        self._definition = definition
        self._schema = parquet_schema(definition.stored)
        key = definition.primary_key or ()
        self._writer = pq.ParquetWriter(
            pa.PythonFile(file, mode="w"),
            self._schema,
            compression="zstd",
            use_dictionary=[field.name for field in self._schema if _may_repeat(field)],
            sorting_columns=pq.SortingColumn.from_ordering(self._schema, [(name, "ascending") for name in key]),
        )

    def write(self, keys: BinaryColumn, values: BinaryColumn) -> np.ndarray:
        """Write some rows; returns their hashes.

        Raises:
            CorruptData: A row is damaged.
            OSError: The disk refused.
        """
        rows, hashes = layout_of(self._definition).decode_found(keys, values, self._definition.stored.names)
        columns = [_seen_as(column, field.type) for column, field in zip(rows.columns, self._schema, strict=False)]
        ids = pa.array(schema_ids(values).astype(np.int16))
        batch = pa.RecordBatch.from_arrays([*columns, ids], schema=self._schema)
        self._call(self._writer.write_batch, batch, GROUP_ROWS_MAX)
        return hashes

    def finish(self) -> FileSum:
        """Write the rest, and make all of it durable."""
        self._call(self._writer.close)
        return self._file.finish()

    def _call(self, method: Any, *arguments: Any) -> None:
        try:
            method(*arguments)
        except (OSError, pa.ArrowException):
            if self._file.error is not None:
                raise self._file.error from None
            raise


def _may_repeat(field: pa.Field) -> bool:
    """Whether a dictionary is of use, and harmless; a name with a point may be a column of a struct too."""
    kind = field.type
    return "." not in field.name and (pa.types.is_string(kind) or pa.types.is_binary(kind) or field.name == SCHEMA_ID)


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as the index holds them: keys, values, and for checks the sums of the keys and the hashes of the rows."""

    keys: BinaryColumn
    values: BinaryColumn
    sums: np.ndarray
    hashes: np.ndarray


def read_rows(data: memoryview, definition: TableDefinition) -> Iterator[EncodedRows]:
    """Rows of a file, some at a time, in key order.

    Args:
        data: All of it, found to be what was written.

    Raises:
        CorruptData: It is not of this table, or says that it is larger than any is.
    """
    try:
        with pq.ParquetFile(pa.BufferReader(pa.py_buffer(data))) as file:
            _check_sizes(file.metadata)
            for group in range(file.num_row_groups):
                for rows in file.read_row_group(group).combine_chunks().to_batches():
                    rows.validate(full=True)  # it may come from a replica, and replicas are not trusted
                    if rows.num_rows:
                        yield _encoded(rows, definition)
    except (pa.ArrowException, OSError, KeyError, UnicodeDecodeError) as error:
        raise CorruptData("Rows of a snapshot can't be read; run `kvstore check`.", reason=str(error)) from error


def _check_sizes(metadata: pq.FileMetaData) -> None:
    """Check the size that a file claims, before it is trusted.

    Columns are not checked: pyarrow ends the process if the metadata of a column contradicts itself.
    """
    for number in range(metadata.num_row_groups):
        if not 0 <= metadata.row_group(number).num_rows <= GROUP_ROWS_MAX:
            raise CorruptData(
                "Rows of a snapshot say they are more than there can be.", rows=metadata.row_group(number).num_rows
            )


def _encoded(rows: pa.RecordBatch, definition: TableDefinition) -> EncodedRows:
    layout = layout_of(definition)
    written = rows.column(SCHEMA_ID).to_numpy()
    typed = _typed(rows, definition)
    keys = layout.encode_keys(typed)
    sums = key_sums(keys)
    parts, places, hashes = [], [], np.zeros(len(sums), np.uint64)
    for schema_id in np.unique(written):
        where = np.flatnonzero(written == schema_id)
        if schema_id not in definition.schemas:
            raise CorruptData("A row of a snapshot names an unknown schema; run `kvstore check`.", schema_id=schema_id)
        of_schema = typed if len(where) == len(written) else typed.take(pa.array(where))
        values, hashes[where] = layout.encode_values(of_schema, sums[where], SchemaId(int(schema_id)))
        parts.append(values)
        places.append(where)
    if len(parts) == 1:
        return EncodedRows(keys, parts[0], sums, hashes)
    back = pa.array(np.argsort(np.concatenate(places)))
    joined = pa.concat_arrays([part.to_arrow() for part in parts]).take(back)
    return EncodedRows(keys, BinaryColumn.from_arrow(joined), sums, hashes)


def _typed(rows: pa.RecordBatch, definition: TableDefinition) -> pa.RecordBatch:
    """The columns that the table has too, with its names and types."""
    schema = definition.stored
    width = min(rows.schema.names.index(SCHEMA_ID), len(schema))
    names = schema.names[:width]
    if rows.schema.names[:width] != names and not definition.was_altered:
        raise CorruptData("Rows of a snapshot have other columns than the table; run `kvstore check`.", columns=names)
    kinds = [_with_leaves(kind, lambda leaf: leaf) for kind in schema.types[:width]]
    columns = [_seen_as(column, kind) for column, kind in zip(rows.columns[:width], kinds, strict=True)]
    return pa.RecordBatch.from_arrays(columns, names=names)
