"""Codec of a few rows of flat columns without numpy or Arrow, where one call costs more than a whole row here.

A *cell* is the bytes of one value as Arrow stores them: little-endian; one byte for a boolean; the bytes of a string or
binary; zeros for a null. Keys, stored values and Arrow's buffers all consist of cells, so stored rows are not decoded
to values. The bytes are those of ``logformat.rows.keys`` and ``logformat.rows.rows``, which handle whole columns and
every type.

* Python values that are not exactly of their column's type are left to the general code: a method returns None.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from operator import call, itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from logformat.binary_column import WORD
from logformat.checksum import CHECKSUM_BITS, hasher
from logformat.errors import CorruptData
from logformat.ids import SchemaId
from logformat.rows.few.cells import MISFITS, code_of, conversion_of
from logformat.rows.keys import KEY_BYTES_MAX, ROW
from logformat.rows.schema import fixed_width, is_variable
from logformat.rows.types.registry import column_type

Cells = tuple[bytes, ...]
Hash = Callable[[bytes, int, bytes, int], int]
Columns = tuple[Sequence[Sequence[bytes]], tuple[int, ...]]
"""For each column the cells of its rows, and the nulls among them as bits."""

_HEAD = struct.Struct("<IH")
_LENGTH_FORM = "I"
_LENGTH = struct.Struct(f"<{_LENGTH_FORM}")
_PADDINGS = [bytes(-length % WORD) for length in range(WORD)]


class Operation(NamedTuple):
    """One upsert or delete of a row.

    Attributes:
        code: The encoded key.
        key: Cells of the key's columns, in key order.
        value: The value to store, with its checksum; None for a delete.
        hash: Hash of the row; 0 for a delete.
    """

    code: bytes
    key: Cells
    value: bytes | None
    hash: int


class CellPlace(NamedTuple):
    """Where a stored value has the cell of a column of a fixed width.

    Attributes:
        start, end: Of the cell.
        null_at, null_bit: The byte of the null bitmap, and its bit, which is set if the cell is null.
    """

    start: int
    end: int
    null_at: int
    null_bit: int


class FewRowsCodec:
    """Codec of rows in one schema of a table.

    Args:
        schema: All columns; see :meth:`supports`.
        key: Names of the key's columns, in key order.
        schema_id: Id of the schema.
        hash: Hash of a key and a value of whole words, each followed by its length; None to compute it here.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str], schema_id: SchemaId, *, hash: Hash | None = None) -> None:
        names = [*key, *(name for name in schema.names if name not in key)]
        self._schema_bytes = schema_id.to_bytes(2, "little")
        self._names = names
        self._columns = [_Column(schema.field(name)) for name in names]
        self._key = self._columns[: len(key)]
        self._kinds = tuple([column.kind for column in self._columns])
        self._key_kinds = self._kinds[: len(key)]
        self._cells_of = [column.cell_of for column in self._columns]
        self._codes_of = [column.code_of for column in self._key]
        self._values = values = self._columns[len(key) :]
        self._hash = _hash_of if hash is None else hash
        self._all_null = dict.fromkeys(names)
        self._all_there = (0,) * len(names)
        self._get = itemgetter(*names) if len(names) > 1 else _getter_of_one(names[0])
        self._in_order = [names.index(name) for name in schema.names]
        self._strings = [nth for nth, field in enumerate(schema) if pa.types.is_string(field.type)]
        self._key_widths = [column.width for column in self._key if column.width]
        self._head = bytes(4) + self._schema_bytes
        self._bitmap_bytes = (len(values) + 7) // 8
        self._no_nulls = bytes(self._bitmap_bytes)
        cells = "".join(f"{column.width}s" if column.width else "I" for column in values)
        self._fixed = struct.Struct(f"<{_HEAD.size}x{self._bitmap_bytes}s{cells}")
        self._texts = [nth for nth, column in enumerate(values, 1) if not column.width]
        # All cells in one call, where Python's struct makes each of them.
        self._beginning = self._head + self._no_nulls
        forms = [_LENGTH_FORM if not column.width else _form_of(column.type) for column in values]
        packed = f"<{len(self._beginning)}s{''.join(form or '' for form in forms)}"
        self._pack = struct.Struct(packed).pack if None not in forms else None
        self._pack_key = [column.cell_of for column in self._key]
        nulls = ((1 << len(values)) - 1).to_bytes(self._bitmap_bytes, "little")
        self._null_value = self._head + nulls + bytes(self._fixed.size - _HEAD.size - self._bitmap_bytes)

    @staticmethod
    def supports(schema: pa.Schema) -> bool:
        """Whether rows of a schema are supported: no column is nested."""
        return not any(pa.types.is_nested(field.type) for field in schema)

    def upsert(self, row: Mapping[str, Any]) -> Operation | None:
        """The operation that stores a row; None if it needs the general code, or does not fit."""
        if len(row) != len(self._names):
            row = {**self._all_null, **row}
            if len(row) != len(self._names):
                return None
        cells, nulls = [], 0
        try:
            values = self._get(row)
            if tuple(map(type, values)) == self._kinds:
                return self._upsert_plain(values)
            for nth, (column, value) in enumerate(zip(self._columns, values, strict=True)):
                if type(value) is column.kind:
                    cells.append(column.cell_of(value))
                elif value is None and column.nullable:
                    nulls |= 1 << nth
                    cells.append(column.zero)
                else:
                    return None
        except MISFITS:
            return None
        return self._upsert(cells, nulls)

    def delete(self, key: Any) -> Operation | None:
        """The operation that deletes a key, a value or a tuple in key order; None if it needs the general code."""
        values = key if type(key) is tuple else (key,)
        if tuple(map(type, values)) != self._key_kinds:
            return None
        try:
            return self._delete(tuple(map(call, self._pack_key, values)))
        except MISFITS:
            return None

    def operations(self, rows: pa.RecordBatch, is_delete: pa.BooleanArray) -> list[Operation] | None:
        """The operations of rows that fit this schema; None if a key is too long."""
        columns, nulls_of = [], [0] * rows.num_rows
        for nth, (name, about) in enumerate(zip(self._names, self._columns, strict=True)):
            cells, nulls = _cells_of(rows.column(name), about)
            columns.append(cells)
            if nulls:
                for row in range(rows.num_rows):
                    nulls_of[row] |= (nulls >> row & 1) << nth
        deletes = is_delete.to_pylist() if is_delete.true_count else [False] * rows.num_rows
        operations = []
        for deleted, nulls, *cells in zip(deletes, nulls_of, *columns, strict=True):
            operation = self._delete(tuple(cells[: len(self._key)])) if deleted else self._upsert(cells, nulls)
            if operation is None:
                return None
            operations.append(operation)
        return operations

    def received(self, key: Cells, value: bytes | None) -> Operation | None:
        """The operation of a key's cells and a value to store, as another process sends them; None for other bytes."""
        if [len(cell) for cell, column in zip(key, self._key, strict=True) if column.width] != self._key_widths:
            return None
        code = self._code(key)
        if code is None or value is None:
            return None if code is None else Operation(code, key, None, 0)
        try:
            hash_found = self.hash_of(code, value)
            columns, _ = self.columns([(key, value)])
            for nth in self._strings:
                columns[nth][0].decode()
        except (CorruptData, UnicodeDecodeError):
            return None
        return None if hash_found is None else Operation(code, key, value, hash_found)

    def code_of(self, key: Cells, number: int) -> bytes:
        """The part of an encoded key that is one of its columns."""
        return self._key[number].code_of(key[number])

    def hash_of(self, code: bytes, value: bytes) -> int | None:
        """Hash of a stored row; None if it was written in another schema.

        Raises:
            CorruptData: The value differs from what was written, or is under another key.
        """
        if len(value) < WORD or len(value) % WORD:
            raise CorruptData("A stored row is cut short; run `kvstore check`.", bytes=len(value))
        hash_found = self._hash(code, len(code), value, len(value))
        if hash_found & CHECKSUM_BITS != int.from_bytes(value[:4], "little"):
            raise CorruptData("Stored rows fail their checksum; run `kvstore check`.", rows=1)
        return hash_found if value[4:6] == self._schema_bytes else None

    def is_whole(self, value: bytes) -> bool:
        """Whether a stored value, which was not verified, is of this schema and has all cells of a fixed width."""
        return len(value) >= self._fixed.size and value[4:6] == self._schema_bytes

    def place_of(self, name: str) -> CellPlace | None:
        """Where stored values have the cell of a column outside the key; None if cells of it differ in length."""
        number = next(nth for nth, column in enumerate(self._values) if column.name == name)
        column = self._values[number]
        if not column.width:
            return None
        at = _HEAD.size + self._bitmap_bytes + sum(each.width or _LENGTH.size for each in self._values[:number])
        return CellPlace(at, at + column.width, _HEAD.size + (number >> 3), 1 << (number & 7))

    def changed(self, code: bytes, key: Cells, value: bytes, cells: Iterable[tuple[CellPlace, bytes]]) -> Operation:
        """The operation that stores a stored row again, with other cells.

        Args:
            value: As it is stored in this schema; see :meth:`is_whole`.
        """
        for place, cell in cells:
            value = value[: place.start] + cell + value[place.end :]
        return self._stored(code, key, value)

    def columns(self, rows: Iterable[tuple[Cells, bytes | None]]) -> Columns:
        """Cells of rows by column, in the order of the schema.

        Args:
            rows: For each row the cells of its key and its value, which was verified; None for nulls.

        Raises:
            CorruptData: A value does not fit the schema.
        """
        row_cells, bitmaps = [], []
        for key, value in rows:
            value = value or self._null_value
            position = self._fixed.size
            if position > len(value):
                raise CorruptData("A stored record is cut short; run `kvstore check`.")
            nulls, *cells = self._fixed.unpack_from(value)
            for nth in self._texts:
                end = position + cells[nth - 1]
                cells[nth - 1] = value[position:end]
                position = end
            if position > len(value):
                raise CorruptData("A stored record's lengths do not add up; run `kvstore check`.")
            bitmaps.append(nulls)
            row_cells.append((*key, *cells))
        columns = list(zip(*row_cells, strict=True)) or [()] * len(self._names)
        if bitmaps.count(self._no_nulls) == len(bitmaps):
            return [columns[nth] for nth in self._in_order], self._all_there
        nulls_of = [0] * len(self._names)
        for row, nulls in enumerate(bitmaps):
            bits = int.from_bytes(nulls, "little")
            for nth in range(len(self._values)):
                nulls_of[len(self._key) + nth] |= (bits >> nth & 1) << row
        return [columns[nth] for nth in self._in_order], tuple([nulls_of[nth] for nth in self._in_order])

    def _upsert(self, cells: Sequence[bytes], nulls: int) -> Operation | None:
        key = tuple(cells[: len(self._key)])
        code = self._code(key)
        if code is None:
            return None
        bitmap = (nulls >> len(key)).to_bytes(self._bitmap_bytes, "little") if nulls else self._no_nulls
        parts = [self._head, bitmap, *cells[len(key) :]]
        for nth in self._texts:
            cell = parts[nth + 1]
            parts[nth + 1] = _LENGTH.pack(len(cell))
            parts.append(cell)
        return self._stored(code, key, b"".join(parts))

    def _upsert_plain(self, values: Sequence[Any]) -> Operation | None:
        """The operation of values of which none is None."""
        if self._pack is None:
            return self._upsert(list(map(call, self._cells_of, values)), 0)
        key = tuple(map(call, self._pack_key, values))
        code = self._code(key)
        if code is None:
            return None
        given, rest = list(values[len(key) :]), b""
        for nth in self._texts:
            text = given[nth - 1]
            cell = text if type(text) is bytes else text.encode()
            given[nth - 1] = len(cell)
            rest += cell
        return self._stored(code, key, self._pack(self._beginning, *given) + rest)

    def _stored(self, code: bytes, key: Cells, value: bytes) -> Operation:
        """The operation that stores a value, which is not padded and has no checksum."""
        value += _PADDINGS[len(value) % WORD]
        hash_found = self._hash(code, len(code), value, len(value))
        return Operation(code, key, (hash_found & CHECKSUM_BITS).to_bytes(4, "little") + value[4:], hash_found)

    def _delete(self, key: Cells) -> Operation | None:
        code = self._code(key)
        return None if code is None else Operation(code, key, None, 0)

    def _code(self, key: Sequence[bytes]) -> bytes | None:
        code = b"".join([ROW, *map(call, self._codes_of, key)])
        return code if len(code) <= KEY_BYTES_MAX else None


class _Column:
    """One column.

    Attributes:
        name, type, nullable: Of the column.
        width: Bytes of a cell; 0 if cells differ in length.
        zero: The cell of a null.
        kind: Type of the Python values that :attr:`cell_of` takes; it raises one of ``MISFITS`` if one does not fit.
        code_of: Encodes a cell as a part of a key.
    """

    def __init__(self, field: pa.Field) -> None:
        self.name, self.type, self.nullable = field.name, field.type, field.nullable
        self.width = 0 if is_variable(self.type) else fixed_width(self.type)
        self.zero = bytes(self.width)
        self.kind, self.cell_of = conversion_of(self.type)
        self.code_of = code_of(self.type)


def _cells_of(column: pa.Array, about: _Column) -> tuple[list[bytes], int]:
    """Cells of an Arrow column, and its nulls as bits."""
    rows, offset = len(column), column.offset
    validity, *_, data = (b"" if buffer is None else memoryview(buffer) for buffer in column.buffers())
    if about.type == pa.bool_():
        bits = _bits(data, offset, rows)
        cells = [b"\1" if bits >> row & 1 else b"\0" for row in range(rows)]
    elif about.width:
        width = about.width
        whole = bytes(data[offset * width : (offset + rows) * width])
        cells = [whole[position : position + width] for position in range(0, rows * width, width)]
    else:
        ends = struct.unpack_from(f"<{rows + 1}i", column.buffers()[1], 4 * offset) if rows else (0,)
        cells = [bytes(data[start:end]) for start, end in pairwise(ends)]
    if not column.null_count:
        return cells, 0
    nulls = _bits(validity, offset, rows) ^ ((1 << rows) - 1)
    return [about.zero if nulls >> row & 1 else cell for row, cell in enumerate(cells)], nulls


def _bits(buffer: bytes | memoryview, offset: int, count: int) -> int:
    """Some bits of an Arrow bitmap, the first one lowest."""
    first, end = offset >> 3, (offset + count + 7) >> 3
    return int.from_bytes(buffer[first:end], "little") >> (offset & 7) & ((1 << count) - 1)


def _getter_of_one(name: str) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    return lambda row: (row[name],)


def _form_of(stored: pa.DataType) -> str | None:
    """The character of ``struct`` for a type; None if there is none."""
    kind = column_type(stored)
    return kind.struct_code(stored) if kind.packs(stored) else None


def _hash_of(code: bytes, code_bytes: int, value: bytes, value_bytes: int) -> int:
    return hasher(code_bytes, value_bytes)(code, value)[0]
