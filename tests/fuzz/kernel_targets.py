"""Targets about the native kernel: of any bytes it makes what Python makes of them, and it reads no others."""

from __future__ import annotations

from functools import cache
from tempfile import TemporaryFile

import numpy as np
import pyarrow as pa

from kvstore.disk.pages import tree_of
from kvstore.errors import CorruptData
from kvstore.index.leaves import Leaves
from kvstore.kernel import library
from kvstore.meta.state import TableDefinition
from kvstore.request.native_rows import few_rows_of, native_columns, rows_of_pairs
from kvstore.request.row_layout import TableLayout
from logformat.binary_column import WORD, BinaryColumn
from logformat.catalog.edits import TableOptions
from logformat.checksum import hasher, key_sums
from logformat.ids import SchemaId, TableId
from logformat.rows.keys import ROW
from tests.kernel.both import assert_both_agree, assert_same_columns, found_by_kernel
from tests.kernel.guarded import guarded
from tests.kernel.reference import tree_file

_TRANSACTION = 2
_ROWS = {
    ROW + bytes([7 * number]) * (1 + number % 20): bytes([number] * 8 * (1 + number % 3)) for number in range(1, 30)
}
_BIG = {ROW + b"big": bytes(700)}
_KEYS = [*list(_ROWS)[::5], *_BIG, ROW, ROW + b"\x07\x08", b"\0", b"\xff" * 511]

_MANY_KEYS = sorted([*_ROWS, *(key + b"x" for key in _ROWS), *_KEYS])


def index_pages(data: bytes) -> None:
    """Keys are looked for in a file of any bytes: each by itself, then all together."""
    data = data[: len(data) // 8 * 8]
    places = [guarded(data), np.frombuffer(data, np.uint8).copy()]
    for keys in (*([key] for key in _KEYS), _KEYS):
        assert_both_agree(data, places, _TRANSACTION, keys)
    if library.kernel() is not None:
        for place in places:  # in a damaged leaf, keys in order are looked for in another way
            found_by_kernel(place, _TRANSACTION, _MANY_KEYS)


def index_pages_seeds() -> list[bytes]:
    """Trees of no page, one level, two and more, with pages of two sizes."""
    small = dict(list(_ROWS.items())[:5])
    return [
        tree_file({}),
        tree_file(small),
        tree_file(small | _BIG),
        tree_file(_ROWS | _BIG),
        tree_file(_ROWS, page_bytes=512, per_page=12),
    ]


def scanned_pages(data: bytes) -> None:
    """All rows of a file of any bytes are read: the kernel finds those that Python finds, or the same damage."""
    with TemporaryFile() as file:
        file.write(data)
        file.flush()
        with library.switched_off():
            expected = _scanned(file.fileno())
        found = _scanned(file.fileno())
    assert str(found) == str(expected)
    if isinstance(expected, CorruptData):
        raise expected


def _scanned(descriptor: int) -> list[tuple[list[bytes], list[bytes]]] | CorruptData | None:
    """Keys and values of all rows; None if the last commit is another one."""
    try:
        tree = tree_of(descriptor, _TRANSACTION)
        if tree is None:
            return None
        leaves = Leaves(descriptor, *tree, lambda: None)
        return [(rows.keys().to_list(), rows.values().to_list()) for rows in leaves.found(7, b"\0", None)]
    except CorruptData as error:
        return error


_KEY = pa.field("k", pa.int64(), False)
_SCHEMA = pa.schema(
    [
        *(_KEY, ("a", pa.int32()), ("s", pa.string()), ("b", pa.bool_()), ("raw", pa.binary()), ("n", pa.int8())),
        *(("d", pa.decimal128(30, 2)), ("f", pa.float64()), ("h", pa.float16()), ("t", pa.string())),
    ]
)
_LAYOUT = TableLayout(TableDefinition(TableId(1), "t", {SchemaId(1): _SCHEMA}, ("k",), 1, TableOptions()))
_NAMES = _SCHEMA.names[1:]
_FIVE = _LAYOUT.encode_keys(pa.RecordBatch.from_arrays([pa.array(range(5))], names=["k"]))
_PLACES = np.array([3, 0, 4])


def native_rows(data: bytes) -> None:
    """Three of five rows with any bytes as their values, under right checksums."""
    words = data.ljust(WORD, b"\1")[: len(data) // WORD * WORD or WORD]
    half = words[: len(words) // 2 // WORD * WORD or WORD]
    values = []
    for place, value in zip(_PLACES.tolist(), (words, half, words), strict=True):
        with_schema = bytes(4) + SchemaId(1).to_bytes(2, "little") + value[6:]
        values.append((_hash(_FIVE[place], with_schema) % 2**32).to_bytes(4, "little") + with_schema[4:])
    column = BinaryColumn.from_list(values)
    column = BinaryColumn(guarded(column.flat.tobytes()), column.offsets)
    found = native_columns(_LAYOUT, column, _PLACES, _FIVE, _NAMES)
    if found is not None:
        assert_same_columns(found, _LAYOUT, column, _PLACES, _FIVE, _NAMES, valid=False)
        return
    try:
        _LAYOUT.decode_values(column, key_sums(_FIVE)[_PLACES], _NAMES)
    except CorruptData:
        return
    assert library.kernel() is None, "the kernel knows all that is right"


def _hash(key: bytes, value: bytes) -> int:
    return hasher(len(key), len(value))(key, value)[0]


def native_rows_seeds() -> list[bytes]:
    """Rows of some values and of nulls."""
    rows = pa.RecordBatch.from_arrays([pa.array([1, 2]), *_some_columns()], schema=_SCHEMA)
    return _LAYOUT.encode_values(rows, key_sums(_LAYOUT.encode_keys(rows)), SchemaId(1))[0].to_list()


def _some_columns() -> list[pa.Array]:
    """Those outside the key, of two rows."""
    some = [7, "text", True, b"raw" * 9, 3, 5, 0.5, 0.5, ""]
    others = [None, None, None, b"", None, None, None, None, "x"]
    return [
        pa.array(pair).cast(kind) for pair, kind in zip(zip(some, others, strict=True), _SCHEMA.types[1:], strict=True)
    ]


_KEYED = pa.schema([pa.field("name", pa.string(), False), pa.field("at", pa.int32(), False), *_SCHEMA])
_OF_PAIRS = TableLayout(TableDefinition(TableId(1), "t", {SchemaId(1): _KEYED}, ("name", "at", "k"), 1, TableOptions()))
_BETWEEN = b"\n--\n"
_BITS = {pa.float64(): pa.int64(), pa.float16(): pa.int16(), pa.string(): pa.binary()}
"""Types whose values compare by their bytes."""


def native_pairs(data: bytes) -> None:
    """Three rows, the one in the middle with any bytes as its key and value, under a right checksum."""
    key, _, value = data.partition(_BETWEEN)
    words = value.ljust(WORD, b"\0")[: len(value) // WORD * WORD or WORD]
    value = bytes(4) + SchemaId(1).to_bytes(2, "little") + words[6:]
    value = (_hash(key, value) % 2**32).to_bytes(4, "little") + value[4:]
    first, last = _pairs()
    pairs = [first, (key, value), last]
    decoder = few_rows_of(_OF_PAIRS, SchemaId(1), None)
    found = None if decoder is None else decoder.decode(pairs)
    with library.switched_off():
        try:
            expected = rows_of_pairs(_OF_PAIRS, pairs)
        except CorruptData:
            assert found is None
            raise
    if found is None:
        is_right = _OF_PAIRS.encode_keys(expected)[1] == key  # Python decodes keys that it would not encode, too
        assert library.kernel() is None or not is_right, "the kernel knows all that is right"
        return
    found.validate()
    for column, its in zip(found.columns, expected.columns, strict=True):
        bits = _BITS.get(its.type, its.type)
        assert column.view(bits).equals(its.view(bits))


@cache
def _pairs() -> list[tuple[bytes, bytes]]:
    """Keys and values of rows of some values and of nulls."""
    columns = [pa.array(["", "a\0\1\2"]), pa.array([-1, 1 << 30], pa.int32()), pa.array([5, -5]), *_some_columns()]
    rows = pa.RecordBatch.from_arrays(columns, schema=_KEYED)
    keys = _OF_PAIRS.encode_keys(rows)
    values, _ = _OF_PAIRS.encode_values(rows.select(_NAMES), key_sums(keys), SchemaId(1))
    return list(zip(keys.to_list(), values.to_list(), strict=True))


def native_pairs_seeds() -> list[bytes]:
    """Each row of these."""
    return [_BETWEEN.join(pair) for pair in _pairs()]
