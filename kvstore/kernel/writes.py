"""Groups rows by key, and encodes them for an index: ``keys.c``, ``encode.c``.

It knows tables of columns of fixed width, flags, strings and bytes. What it does not know, and what it finds wrong, is
left to Python, whose bytes are the same.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from logformat.binary_column import WORD, BinaryColumn
from logformat.rows.keys import KEY_BYTES_MAX
from logformat.rows.schema import fixed_width, is_variable
from logformat.rows.types.column_type import Layout
from logformat.rows.types.registry import layout_of

_DONE = 0
_FIXED, _FLAG, _VARIABLE = range(3)
_OF_KEY = 2**32 - 1
"""Kinds of columns, and the place of one of the key; ``arrow.h`` has the same, and the layout of a table."""
_TEXT = 4
_WAYS = {Layout.OPAQUE: 0, Layout.UNSIGNED: 1, Layout.SIGNED: 2, Layout.FLAG: 3, Layout.VARIABLE: _TEXT}
"""How columns of a key are encoded; ``keys.c`` has the same."""
KEY_COLUMNS_MAX = 64
_LENGTH_BYTES = 2
FEW_MAX = 256
"""Up to so many operations take less time than giving the interpreter's lock to another thread."""
FEW_ROWS_MAX, _FEW_BYTES_MAX = 128, 1 << 17
"""Up to so many rows, and bytes of them, lists take less time than columns."""
_FEW_WORDS = 6
"""Numbers for each row that ``kv_few_rows`` lists, or needs."""


class Table:
    """How rows of a table lie in memory.

    Args:
        schema: Its columns, none of them nested.
        key: Names of the key's columns, at most ``KEY_COLUMNS_MAX``.
        fixed: The fixed part of its values; see :class:`logformat.rows.record.RecordCodec`.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str], fixed: np.dtype, schema_id: int) -> None:
        self.schema, self.schema_id = schema, schema_id
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
        ways = [way_of(schema.field(name).type) for name in key]
        columns = list(map(schema.get_field_index, key))
        # Of a text, the byte that ends it.
        self.key_bytes = 1 + sum(1 if parts[at][0] == _VARIABLE else parts[at][1] for at in columns)
        self.key_width = None if _TEXT in ways else self.key_bytes
        self._key = np.array(list(zip(columns, ways, strict=True)), np.uint64)
        self.key_address, self.key_columns = address_of(self._key), len(key)
        head = (schema_id, places["nulls"][1], fixed.itemsize, len(parts))
        self._numbers = np.array([*head, *(number for part in parts for number in part)], np.uint64)
        self.address = address_of(self._numbers)


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
    room = _key_room(table, count, rows_bytes)
    encoded, numbers = np.empty(2 * room, np.uint8), np.empty(9 * count + 3, np.int64)
    keys = address_of(encoded)
    order, starts, lasts, key_ends = (address_of(numbers) + WORD * count * nth for nth in range(4))
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


def entries(
    kernel: ctypes.CDLL, head: bytes, codes: BinaryColumn, keys: BinaryColumn
) -> tuple[BinaryColumn, BinaryColumn] | None:
    """Keys and values of entries of a secondary index, in their order.

    Args:
        head: What all entries begin with.
        codes: Codes of the columns of each row; none is a proper prefix of another.
        keys: Keys of the rows, not empty, each once.

    Returns:
        None if Python has to make them, because one is longer than a key may be.
    """
    count = len(keys)
    room = int(codes.offsets[-1] - codes.offsets[0] + keys.offsets[-1] - keys.offsets[0])
    flat, numbers = np.empty(2 * room + len(head) * count, np.uint8), np.empty(6 * count + 2, np.int64)
    ends, lengths = numbers[4 * count : 5 * count + 1], np.empty((count, _LENGTH_BYTES), np.uint8)
    target, target_ends = flat[room:], numbers[5 * count + 1 :]
    given = [np.ascontiguousarray(each) for each in (codes.flat, codes.offsets, keys.flat, keys.offsets)]
    status = kernel.kv_entries(
        *(head, len(head), *(address_of(each) for each in given), count),
        *(address_of(each) for each in (flat, ends, numbers, target, target_ends, lengths)),
    )
    return None if status != _DONE else (BinaryColumn(target, target_ends), BinaryColumn.from_matrix(lengths))


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
    address = address_of(numbers)
    capacity = rows_bytes + (table.fixed_bytes + WORD) * count
    flat = np.empty(capacity, np.uint8)
    column, _array = _exported(rows)
    places, offsets = np.ascontiguousarray(places), np.ascontiguousarray(keys.offsets)  # copies live until the end
    status = kernel.kv_encode(
        *(table.address, column, address_of(places), count),
        *(address_of(keys.flat), address_of(offsets), address_of(flat), capacity),
        *(address + WORD * (3 * count), address, address + WORD * count, address + WORD * 2 * count),
    )
    if status != _DONE:
        return None
    words = numbers.view(np.uint64)
    return BinaryColumn(flat, numbers[3 * count :]), words[count : 2 * count], words[:count]


class Few(NamedTuple):
    """A few operations as they are stored, each of another key.

    Attributes:
        names: The keys.
        values: Values of each operation; empty for a delete.
        schema_id: Of the values.
    """

    names: list[bytes]
    values: list[bytes]
    schema_id: int

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return sum(map(len, self.values))


class Encoded(NamedTuple):
    """Operations as they are stored, grouped by key.

    Attributes:
        keys: The different keys, sorted.
        order, starts, lasts: See :class:`kvstore.request.request.Grouping`.
        values: Values of each operation, in order; empty for a delete.
        schema_id: Of the values.
    """

    keys: BinaryColumn
    order: np.ndarray
    starts: np.ndarray
    lasts: np.ndarray
    values: BinaryColumn
    schema_id: int

    @property
    def size(self) -> int:
        """Bytes of the values."""
        return int(self.values.offsets[-1])


class RowEncoder:
    """Encodes rows of a table as they are stored.

    Args:
        encode_few: See :func:`kvstore.kernel.library.few_encoder`.
    """

    def __init__(self, kernel: ctypes.CDLL, encode_few: Callable[..., int], table: Table) -> None:
        self._kernel, self._encode_few, self._table = kernel, encode_few, table

    def encoded(
        self, rows: pa.RecordBatch, rows_bytes: int, is_delete: np.ndarray | None = None
    ) -> Encoded | Few | None:
        """Rows in the form that takes least time; None if Python has to encode them.

        Args:
            rows, rows_bytes: See :func:`group`.
            is_delete: bool, for each row whether its key gets no value, but an empty one; None if none does.
        """
        few = None
        if is_delete is None and rows.num_rows <= FEW_ROWS_MAX and rows_bytes <= _FEW_BYTES_MAX:
            few = self.few(rows, rows_bytes)
        return self.many(rows, rows_bytes, is_delete) if few is None else few

    def few(self, rows: pa.RecordBatch, rows_bytes: int) -> Few | None:
        """The same as lists; None also if two of the rows have one key."""
        table, count = self._table, rows.num_rows
        room = _key_room(table, count, rows_bytes)
        room += -room % WORD
        capacity = rows_bytes + (table.fixed_bytes + WORD) * count
        capacity += -capacity % WORD
        target = bytes(room + capacity + _FEW_WORDS * WORD * (count + 1))
        # These bytes are new and known here only, so the kernel may fill them.
        column, _array = _exported(rows)
        if (
            self._encode_few(table.address, column, table.key_address, table.key_columns, count, target, room, capacity)
            != _DONE
        ):
            return None
        cuts = numbers_of(2 * count + 2).unpack_from(target)
        names = [target[start:end] for start, end in pairwise(cuts[: count + 1])]
        if len(set(names)) < count:
            return None
        return Few(names, [target[start:end] for start, end in pairwise(cuts[count + 1 :])], table.schema_id)

    def many(self, rows: pa.RecordBatch, rows_bytes: int, is_delete: np.ndarray | None) -> Encoded | None:
        """The same as columns, grouped by key."""
        table, count = self._table, rows.num_rows
        room = _key_room(table, count, rows_bytes)
        order, starts, lasts = np.empty((3, count), np.int64)
        key_ends, ends = np.empty((2, count + 1), np.int64)
        keys = np.empty(room, np.uint8)
        values = np.empty(rows_bytes + (table.fixed_bytes + WORD) * count, np.uint8)
        places, found = np.arange(count), np.empty(1, np.int64)
        if is_delete is not None:
            places[is_delete] = -1
        scratch = np.empty(8 * count + 2 + room // WORD, np.int64)
        entries, sums, hashes, cursors, ends_of_rows = (
            address_of(scratch) + WORD * count * nth for nth in (0, 4, 5, 6, 7)
        )
        column, _array = _exported(rows)
        status = self._kernel.kv_rows(
            *(table.address, column, address_of(places), table.key_address, table.key_columns),
            *(ends_of_rows + WORD * (count + 1), room, ends_of_rows, entries),
            *map(address_of, (keys, key_ends, order, starts, lasts, found)),
            *(address_of(values), len(values), address_of(ends), sums, hashes, cursors),
        )
        if status != _DONE:
            return None
        different, width = int(found[0]), table.key_width
        return Encoded(
            BinaryColumn(keys if width is None else keys[: different * width], key_ends[: different + 1], width),
            *(order, starts[:different], lasts[:different], BinaryColumn(values, ends), table.schema_id),
        )


@lru_cache(maxsize=512)
def numbers_of(count: int) -> struct.Struct:
    """So many numbers, as a word each."""
    return struct.Struct(f"<{count}q")


def _key_room(table: Table, count: int, rows_bytes: int) -> int:
    """Bytes that the keys of rows need at most."""
    room = count * table.key_bytes + (0 if table.key_width else 2 * rows_bytes)
    return min(room, (count + 2) * KEY_BYTES_MAX)  # the last text needs room for twice its bytes


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes, _pointer_of.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def _exported(rows: pa.RecordBatch) -> tuple[int, Any]:
    """The address of rows in Arrow's C data interface, and what keeps it valid."""
    _, array = rows.__arrow_c_array__()
    return _pointer_of(array, b"arrow_array"), array


def way_of(kind: pa.DataType) -> int:
    """How a column of the key is encoded."""
    return _WAYS[layout_of(kind)]


def address_of(array: np.ndarray | bytes) -> int:
    """The address of memory, which the caller keeps."""
    address: int = pa.py_buffer(array).address  # numpy takes four times as long to tell
    return address
