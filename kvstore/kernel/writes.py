"""Groups rows by key, encodes them for an index, and makes change records: ``keys.c``, ``encode.c``, ``records.c``.

It knows tables of columns of fixed width, flags, strings and bytes. What it does not know, and what it finds wrong, is
left to Python, whose bytes are the same.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from logformat.binary_column import WORD, BinaryColumn
from logformat.rows.keys import KEY_BYTES_MAX
from logformat.rows.schema import fixed_width, is_variable

_DONE = 0
_FIXED, _FLAG, _VARIABLE = range(3)
_OF_KEY = 2**32 - 1
"""Kinds of columns, and the place of one of the key; ``arrow.h`` has the same, and the layout of a table."""
_OPAQUE, _UNSIGNED, _SIGNED, _BIT, _TEXT = range(5)
"""How columns of a key are encoded; ``keys.c`` has the same."""
KEY_COLUMNS_MAX = 64


class Batch(NamedTuple):
    """The operations of a batch, grouped by key, and what the index had.

    Attributes:
        rows: Rows of the operations, at least one.
        order, starts, lasts: See :class:`merge_engines.engine.Operations`.
        is_delete: bool, for each operation.
        old: uint8, the old values of the keys that have one, one after the other.
        lengths: int64, for each key the bytes of its old value, 0 if it has none.
        sums: uint64, of all keys.
    """

    rows: pa.RecordBatch
    order: np.ndarray
    starts: np.ndarray
    lasts: np.ndarray
    is_delete: np.ndarray
    old: np.ndarray
    lengths: np.ndarray
    sums: np.ndarray


class Table:
    """How rows of a table lie in memory.

    Args:
        schema: Its columns, none of them nested.
        key: Names of the key's columns, at most ``KEY_COLUMNS_MAX``.
        fixed: The fixed part of its values; see :class:`logformat.rows.record.RecordCodec`.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str], fixed: np.dtype, schema_id: int) -> None:
        self.schema = schema
        self.fixed_bytes = fixed.itemsize
        places: Mapping[str, Any] = fixed.fields or {}
        parts, number = [], 0
        for field in schema:
            width = 4 if is_variable(field.type) else fixed_width(field.type)
            kind = _VARIABLE if is_variable(field.type) else _FLAG if pa.types.is_boolean(field.type) else _FIXED
            if field.name in key:
                parts.append((kind, width, _OF_KEY, 0))
            else:
                parts.append((kind, width, places[f"c{number}"][1], number))
                number += 1
        self.buffers = sum(3 if part[0] == _VARIABLE else 2 for part in parts)
        ways = [_way(schema.field(name).type) for name in key]
        columns = list(map(schema.get_field_index, key))
        # Of a text, the byte that ends it.
        self.key_bytes = 1 + sum(1 if parts[at][0] == _VARIABLE else parts[at][1] for at in columns)
        self.key_width = None if _TEXT in ways else self.key_bytes
        self._key = np.array(list(zip(columns, ways, strict=True)), np.uint64)
        self.key_address, self.key_columns = _address(self._key), len(key)
        head = (schema_id, places["nulls"][1], fixed.itemsize, len(parts))
        self._numbers = np.array([*head, *(number for part in parts for number in part)], np.uint64)
        self.address = _address(self._numbers)


def group(
    kernel: ctypes.CDLL, table: Table, rows: pa.RecordBatch, rows_bytes: int
) -> tuple[BinaryColumn, np.ndarray, np.ndarray, np.ndarray] | None:
    """Group rows by their keys.

    Args:
        rows: Valid rows in the columns of the table, at least one; no key column has a null.
        rows_bytes: The bytes of their buffers. If it is less, Python may have to do it.

    Returns:
        Keys, order, starts and lasts, see :class:`kvstore.request.request.Grouping`; None if Python has to do it.
    """
    count = rows.num_rows
    room = count * table.key_bytes + (0 if table.key_width else 2 * rows_bytes)
    room = min(room, (count + 2) * KEY_BYTES_MAX)  # the last text needs room for twice its bytes
    encoded, numbers = np.empty(2 * room, np.uint8), np.empty(9 * count + 3, np.int64)
    keys = _address(encoded)
    order, starts, lasts, key_ends = (_address(numbers) + WORD * count * nth for nth in range(4))
    ends = key_ends + WORD * (count + 1)
    found = ends + WORD * (count + 1)
    column, _array = _exported(rows)
    status = kernel.kv_group(
        *(table.address, column, table.key_address, table.key_columns, keys + room, room, ends, found + WORD),
        *(keys, key_ends, order, starts, lasts, found),
    )
    if status != _DONE:
        return None
    different = int(numbers[5 * count + 2])
    offsets = numbers[3 * count : 3 * count + different + 1]
    flat = encoded if table.key_width is None else encoded[: different * table.key_width]
    return (
        BinaryColumn(flat, offsets, table.key_width),
        *(numbers[:count], numbers[count : count + different], numbers[2 * count : 2 * count + different]),
    )


def encode(
    kernel: ctypes.CDLL, table: Table, rows: pa.RecordBatch, rows_bytes: int, places: np.ndarray, keys: BinaryColumn
) -> tuple[BinaryColumn, np.ndarray, np.ndarray] | None:
    """Values of keys.

    Args:
        rows, rows_bytes: See :func:`group`.
        places: int64, for each key its row, -1 for none.

    Returns:
        The values, empty where there is no row; the hashes of the values and the sums of the keys, both uint64. None if
        Python has to encode them.
    """
    count = len(keys)
    numbers = np.empty(4 * count + 1, np.int64)
    address = _address(numbers)
    capacity = rows_bytes + (table.fixed_bytes + WORD) * count
    flat = np.empty(capacity, np.uint8)
    column, _array = _exported(rows)
    places, offsets = np.ascontiguousarray(places), np.ascontiguousarray(keys.offsets)  # copies live until the end
    status = kernel.kv_encode(
        *(table.address, column, _address(places), count),
        *(_address(keys.flat), _address(offsets), _address(flat), capacity),
        *(address + WORD * (3 * count), address, address + WORD * count, address + WORD * 2 * count),
    )
    if status != _DONE:
        return None
    words = numbers.view(np.uint64)
    return BinaryColumn(flat, numbers[3 * count :]), words[count : 2 * count], words[:count]


class Records:
    """The change records of a batch.

    Args:
        preimages, inserts: See :func:`kvstore.bucket.merge.cdc.records_of`.

    Attributes:
        count: How many there are; 0 if Python has to make them.
        digest: Sum of the hashes of the old values.
        types: Their change types.
        nodes, buffers, body_bytes: See :meth:`logformat.log.few_records.FewRecordsEncoder.batch_to_fill`.
    """

    def __init__(self, kernel: ctypes.CDLL, table: Table, batch: Batch, *, preimages: bool, inserts: bool) -> None:
        self._kernel, self._table = kernel, table
        count = len(batch.order)
        # Rows before operations, rows and values of records, types of records, results, nodes, buffers.
        self._numbers = numbers = np.empty(6 * count + 3 + 2 * len(batch.rows.schema) + 2 * table.buffers, np.int64)
        self._rows = count * WORD + _address(numbers)
        results = 6 * count
        nodes = results + 3
        buffers = nodes + 2 * len(batch.rows.schema)
        self._buffers = _address(numbers) + WORD * buffers
        self._column, self._array = _exported(batch.rows)
        self._old = batch.old
        given = [np.ascontiguousarray(each) for each in (batch.order, batch.starts, batch.lasts, batch.is_delete)]
        given += [self._old, batch.lengths, batch.sums]
        operations = np.array(
            [count, len(batch.starts), *map(_address, given), len(self._old), preimages, inserts], np.uint64
        )
        base = _address(numbers)
        self._types = base + WORD * 5 * count
        self._values = self._rows + 2 * count * WORD
        status = kernel.kv_records(
            *(table.address, self._column, _address(operations), base, self._types, self._rows, self._values),
            *(base + WORD * nodes, self._buffers, base + WORD * results),
        )
        found: list[int] = numbers[results : results + 3].tolist() if status == _DONE else [0, 0, 0]
        self.count, self.digest, self.body_bytes = found
        self.types = numbers[5 * count : results].view(np.uint8)[: self.count]
        self.nodes, self.buffers = numbers[nodes:buffers], numbers[buffers:]

    def fill(self, target: np.ndarray) -> None:
        """Write the columns into zeros (uint8)."""
        cursors = np.empty(self.count, np.int64)
        self._kernel.kv_fill(
            *(self._table.address, self._column, _address(self._old), self.count, self._types, self._rows),
            *(self._values, self._buffers, _address(cursors), _address(target)),
        )

    def rows(self) -> pa.RecordBatch:
        """The records' rows."""
        body = np.zeros(self.body_bytes, np.uint8)
        self.fill(body)
        data = pa.py_buffer(body)
        slices = iter([data.slice(place, size) for place, size in self.buffers.reshape(-1, 2).tolist()])
        columns = []
        for type, nulls in zip(self._table.schema.types, self.nodes[1::2].tolist(), strict=True):
            buffers = [next(slices) for _ in range(3 if is_variable(type) else 2)]
            buffers[0] = buffers[0] if nulls else None
            columns.append(pa.Array.from_buffers(type, self.count, buffers, null_count=nulls))
        return pa.RecordBatch.from_arrays(columns, schema=self._table.schema)


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def _exported(rows: pa.RecordBatch) -> tuple[int, Any]:
    """The address of rows in Arrow's C data interface, and what keeps it valid."""
    _, array = rows.__arrow_c_array__()
    return _pointer_of(array, b"arrow_array"), array


def _way(kind: pa.DataType) -> int:
    if is_variable(kind):
        return _TEXT
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return _OPAQUE
    if pa.types.is_boolean(kind):
        return _BIT
    return _UNSIGNED if pa.types.is_unsigned_integer(kind) else _SIGNED


def _address(array: np.ndarray) -> int:
    address: int = pa.py_buffer(array).address  # numpy takes four times as long to tell
    return address
