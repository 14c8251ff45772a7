"""Entries of a secondary index: the codes of the indexed columns, then the row's key.

docs/format.md, Entries of a secondary index, has the bytes.

* The order of entries is the order of the columns' values, nulls first: one value, or a range, is a range of entries.
* An entry only says where to look: the row decides whether it has the value. So a long code may be cut off.
* Values that compare as equal have one code: the zeros of floats, and all NaNs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat import binary_column
from logformat.binary_column import BinaryColumn
from logformat.errors import CorruptData
from logformat.rows.keys import KEY_BYTES_MAX, ROW, KeyCodec
from logformat.rows.ordering import in_order

RECORDS = b"\x01\x80"
"""First bytes of the keys of records of entries: after all writers, whose ids are not negative."""
ENTRIES = b"\x01\x81"
"""First bytes of the keys of entries; they come before all rows."""
NULL = b"\x01"
"""Code of a null; that of a value begins with :data:`logformat.rows.keys.ROW`, as a key does."""
CODE_BYTES_MAX = 240
"""So much of its code has an entry that would be longer than a key of LMDB may be."""
_LONG = 0xFFFF
FEW = 16
"""Fewer entries are put in order one by one."""
_DIGEST_BYTES = 16
_ID = struct.Struct(">I")
_LENGTH = struct.Struct("<H")
_HEAD_BYTES = len(ENTRIES) + _ID.size
_ROOM = KEY_BYTES_MAX - _HEAD_BYTES + len(ROW)
"""For code and key together, of which the first byte of the key is left out."""
LENGTHS = [_LENGTH.pack(length) for length in range(KEY_BYTES_MAX + 1)]
"""Values of the entries of codes of 0, 1 and more bytes, if the row's key follows the code in the entry."""
_KEYS = KeyCodec([])
_LAST = 255
_NEXT = [bytes([number + 1]) for number in range(_LAST)]


def record_key(index_id: int) -> bytes:
    """Key of the record of a secondary index."""
    return RECORDS + _ID.pack(index_id)


def id_of_record(key: bytes) -> int:
    """The secondary index that a record belongs to.

    Raises:
        CorruptData: It is no key of a record.
    """
    if len(key) != len(RECORDS) + _ID.size or not key.startswith(RECORDS):
        raise CorruptData("An index has an unknown key; run `kvstore check`.", key=key.hex())
    return int(_ID.unpack_from(key, len(RECORDS))[0])


def entries_prefix(index_id: int) -> bytes:
    """What the keys of all entries of a secondary index begin with."""
    return ENTRIES + _ID.pack(index_id)


def codes_of(columns: Sequence[pa.Array]) -> BinaryColumn:
    """The code of each row of some columns; none is a proper prefix of another.

    Args:
        columns: Neither nested nor dropped; they may have nulls.
    """
    codes = [_codes_of(column) for column in columns]
    if len(codes) == 1:
        return BinaryColumn.from_arrow(codes[0])
    return BinaryColumn.from_arrow(pc.binary_join_element_wise(*codes, binary_column.EMPTY))


def entries_of(index_id: int, codes: Sequence[bytes], keys: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of the entries of rows, in the order of the rows.

    Args:
        codes: Of their columns.
        keys: Their keys.
    """
    head = entries_prefix(index_id)
    pairs = list(zip(codes, keys, strict=True))
    if all(len(code) + len(key) <= _ROOM for code, key in pairs):
        return [head + code + key[1:] for code, key in pairs], [LENGTHS[len(code)] for code in codes]
    entries, values = [], []
    for code, key in pairs:
        if len(code) + len(key) <= _ROOM:
            entries.append(head + code + key[1:])
            values.append(LENGTHS[len(code)])
        else:
            digest = hashlib.sha256(code + key).digest()[:_DIGEST_BYTES]
            entries.append(head + code[:CODE_BYTES_MAX] + digest)
            values.append(_LENGTH.pack(_LONG) + key)
    return entries, values


def entries_in_order(index_id: int, codes: BinaryColumn, keys: BinaryColumn) -> tuple[BinaryColumn, BinaryColumn]:
    """Like :func:`entries_of`, in the order of the entries; of many rows much faster."""
    lengths = codes.lengths
    if len(keys) < FEW or (lengths + keys.lengths).max() > _ROOM:
        pairs = sorted(zip(*entries_of(index_id, codes.to_list(), keys.to_list()), strict=True))
        return BinaryColumn.from_list([entry for entry, _ in pairs]), BinaryColumn.from_list(
            [each for _, each in pairs]
        )
    head = binary_column.scalar(entries_prefix(index_id))
    rest = binary_column.slices(keys.flat, keys.offsets[:-1] + len(ROW), keys.offsets[1:])
    joined = pc.binary_join_element_wise(head, codes.to_arrow(), rest, binary_column.EMPTY)
    entries = BinaryColumn.from_arrow(joined)
    order, _ = in_order(entries)
    values = BinaryColumn.from_matrix(lengths.astype("<u2").view(np.uint8).reshape(len(keys), _LENGTH.size))
    return entries.take(order), values.take(order)


def row_key_of(entry: bytes, value: bytes) -> bytes:
    """The key of the row that an entry belongs to.

    Raises:
        CorruptData: It is no entry.
    """
    if len(value) >= _LENGTH.size:
        (length,) = _LENGTH.unpack_from(value)
        if length == _LONG and value[_LENGTH.size : _LENGTH.size + len(ROW)] == ROW:
            return value[_LENGTH.size :]
        if len(value) == _LENGTH.size and 0 < length < len(entry) - _HEAD_BYTES:
            return ROW + entry[_HEAD_BYTES + length :]
    raise CorruptData("An entry of an index is damaged; run `kvstore check`.", entry=entry.hex())


def row_keys_of(pairs: Sequence[tuple[bytes, bytes]]) -> list[bytes]:
    """Like :func:`row_key_of`, of many entries."""
    if len(pairs) < FEW:
        return [row_key_of(*pair) for pair in pairs]
    entries, values = zip(*pairs, strict=True)
    lengths = np.frombuffer(b"".join(values), "<u2") if set(map(len, values)) == {_LENGTH.size} else np.zeros(1)
    if lengths.all() and (lengths + _HEAD_BYTES < np.fromiter(map(len, entries), np.int64, len(entries))).all():
        starts = (lengths.astype(np.int64) + _HEAD_BYTES).tolist()
        return [ROW + entry[start:] for entry, start in zip(entries, starts, strict=True)]
    return [row_key_of(*pair) for pair in pairs]


def code_of(entry: bytes, value: bytes) -> bytes:
    """The code of an entry's columns, or its first :data:`CODE_BYTES_MAX` bytes.

    Raises:
        CorruptData: It is no entry.
    """
    key = row_key_of(entry, value)
    (length,) = _LENGTH.unpack_from(value)
    return entry[_HEAD_BYTES : -_DIGEST_BYTES if length == _LONG else len(entry) - len(key) + len(ROW)]


def index_of(entry: bytes, value: bytes) -> int:
    """The secondary index that an entry belongs to.

    Raises:
        CorruptData: It is no entry.
    """
    row_key_of(entry, value)
    if not entry.startswith(ENTRIES):
        raise CorruptData("An index has an unknown key; run `kvstore check`.", key=entry.hex())
    return int(_ID.unpack_from(entry, len(ENTRIES))[0])


def between(index_id: int, low: bytes, high: bytes) -> tuple[bytes, bytes]:
    """Start and stop (exclusive) of the entries whose codes begin with these, or are between them.

    Args:
        low, high: Codes, or beginnings of codes; empty for no limit.
    """
    head = entries_prefix(index_id)
    return head + low[:CODE_BYTES_MAX], _after(head + high[:CODE_BYTES_MAX])


def ranges_of(index_id: int, codes: Iterable[bytes]) -> list[tuple[bytes, bytes]]:
    """Start and stop (exclusive) of the entries whose codes begin with each of these."""
    head = entries_prefix(index_id)
    starts = [head + code[:CODE_BYTES_MAX] for code in codes]
    return [(one, one[:-1] + _NEXT[one[-1]] if one[-1] < _LAST else _after(one)) for one in starts]


def _after(prefix: bytes) -> bytes:
    """The first string after all that begin with this one, whose first byte is not ff."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1])


def _codes_of(column: pa.Array) -> pa.BinaryArray:
    there = column.drop_null() if column.null_count else column
    codes = _codes_of_floats(there) if pa.types.is_floating(there.type) else _KEYS.encode_prefix([there])
    if not column.null_count:
        return codes.to_arrow()
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    places = pa.array(np.maximum(is_there.cumsum() - 1, 0), mask=~is_there)
    return pc.fill_null(codes.to_arrow().take(places), binary_column.scalar(NULL))


def _codes_of_floats(column: pa.Array) -> BinaryColumn:
    """As of unsigned integers: positive numbers with the sign bit set, of negative ones all bits flipped."""
    floats = column.to_numpy(zero_copy_only=False)
    width = floats.dtype.itemsize
    # The sum with zero turns -0.0 into 0.0.
    same = np.where(np.isnan(floats), np.array(np.nan, floats.dtype), floats + floats.dtype.type(0))
    bits = same.view(f"<u{width}")
    sign = bits.dtype.type(1 << 8 * width - 1)
    ordered = np.where(bits & sign, ~bits, bits | sign).astype(f">u{width}")
    matrix = np.empty((len(column), len(ROW) + width), np.uint8)
    matrix[:, 0] = ROW[0]
    matrix[:, len(ROW) :] = ordered.view(np.uint8).reshape(len(column), width)
    return BinaryColumn.from_matrix(matrix)
