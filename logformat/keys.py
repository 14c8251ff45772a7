"""Memcomparable keys: byte order is value order, so ranges and prefixes of values are those of bytes.

A key is ``02`` and the codes of its columns; each code ends where its own bytes say so (docs/format.md, Key). Fixed
types are big-endian with the sign bit flipped; strings and binaries escape 00 and 01 and end with 00.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat import octets
from logformat.errors import CorruptData, KeyTooLarge
from logformat.octets import Octets
from logformat.schema import fixed_width, is_variable

KEY_BYTES_MAX = 511
"""What LMDB takes."""
ROW = b"\x02"
"""What every key begins with: rows share the index with its state and the writers (docs/format.md, Index)."""

_ROW = pa.scalar(ROW, pa.binary())
_END = pa.scalar(b"\x00", pa.binary())
_ESCAPES = ((b"\x01", b"\x01\x02"), (b"\x00", b"\x01\x01"))


class KeyCodec:
    """Codec of the keys of one table.

    Args:
        fields: The key's columns in key order; not null, no floats, not nested.
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = list(fields)
        self.width = (
            None
            if any(is_variable(field.type) for field in fields)
            else len(ROW) + sum(fixed_width(field.type) for field in fields)
        )

    def encode(self, columns: Sequence[pa.Array]) -> Octets:
        """Keys of a batch of rows; fixed-width if no key column is variable.

        Raises:
            KeyTooLarge: A key is longer than 511 bytes.
        """
        keys = self.encode_prefix(columns)
        longest = self.width
        if longest is None:
            lengths = np.diff(octets.to_flat(keys)[1])
            longest = int(lengths.max(initial=0))
        if longest > KEY_BYTES_MAX:
            raise KeyTooLarge(
                f"A key is encoded in at most {KEY_BYTES_MAX} bytes; use a shorter key, or a hash of it.",
                bytes=longest,
            )
        return keys

    def encode_prefix(self, columns: Sequence[pa.Array]) -> Octets:
        """Code of the first columns of keys: what every key with these values begins with."""
        parts = [_encode(column) for column in columns]
        if all(pa.types.is_fixed_size_binary(part.type) for part in parts):
            rows = np.full((len(columns[0]), len(ROW)), ROW[0], np.uint8)
            return octets.from_matrix(np.hstack([rows, *(octets.to_matrix(part) for part in parts)]))
        return pc.binary_join_element_wise(_ROW, *map(octets.as_binary, parts), octets.EMPTY)

    def decode(self, keys: Octets) -> list[pa.Array]:
        """Key columns of a column of keys.

        Raises:
            CorruptData: A key ends too early or too late.
        """
        if pa.types.is_fixed_size_binary(keys.type):
            keys = octets.as_binary(keys)
        flat, offsets = octets.to_flat(keys)
        place, ends = offsets[:-1] + len(ROW), offsets[1:]
        stops = np.flatnonzero(flat == 0) if self.width is None else np.zeros(0, np.int64)
        columns = []
        for field in self._fields:
            if is_variable(field.type):
                nth = np.searchsorted(stops, place)
                if np.any(nth >= len(stops)):
                    raise CorruptData("A stored key has no end; run `kvstore check`.", column=field.name)
                following = stops[nth] + 1
                codes = octets.slices(flat, place, following - 1)
            else:
                following = place + fixed_width(field.type)
                codes = octets.slices(flat, place, np.minimum(following, ends))
            if np.any(following > ends):
                raise CorruptData("A stored key is cut short; run `kvstore check`.", column=field.name)
            columns.append(_decode(codes, field.type))
            place = following
        if np.any(place != ends):
            raise CorruptData("A stored key is too long; run `kvstore check`.")
        return columns


def _encode(column: pa.Array) -> Octets:
    kind = column.type
    if is_variable(kind):
        raw = octets.as_binary(column)
        for byte, code in _ESCAPES:
            # Nearly no key holds these bytes, and looking is much cheaper than replacing.
            if pc.any(pc.match_substring(raw, byte)).as_py():
                raw = pc.replace_substring(raw, byte, code)
        return pc.binary_join_element_wise(raw, _END, octets.EMPTY)
    width = fixed_width(kind)
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return column if not column.offset else octets.from_matrix(octets.to_matrix(column).copy())
    if pa.types.is_boolean(kind):
        raw_bytes = column.cast(pa.uint8()).to_numpy(zero_copy_only=False).view(np.uint8).reshape(-1, 1)
    elif not len(column):
        raw_bytes = np.zeros((0, width), np.uint8)
    else:
        flat = np.frombuffer(column.buffers()[1], np.uint8)
        raw_bytes = flat[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)
    big_endian = np.ascontiguousarray(raw_bytes[:, ::-1])
    if _is_signed(kind):
        big_endian[:, 0] ^= 0x80
    return octets.from_matrix(big_endian)


def _decode(codes: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    if is_variable(kind):
        for byte, code in reversed(_ESCAPES):
            if pc.any(pc.match_substring(codes, code)).as_py():
                codes = pc.replace_substring(codes, code, byte)
        return pa.Array.from_buffers(kind, len(codes), codes.buffers())
    width = fixed_width(kind)
    big_endian = np.frombuffer(codes.buffers()[2] or b"", np.uint8, len(codes) * width).reshape(-1, width)
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return pa.Array.from_buffers(kind, len(codes), [None, pa.py_buffer(big_endian)])
    little_endian = np.ascontiguousarray(big_endian[:, ::-1])
    if _is_signed(kind):
        little_endian[:, -1] ^= 0x80
    if pa.types.is_boolean(kind):
        return pa.array(little_endian[:, 0] != 0)
    return pa.Array.from_buffers(kind, len(codes), [None, pa.py_buffer(little_endian)])


def _is_signed(kind: pa.DataType) -> bool:
    return not (pa.types.is_unsigned_integer(kind) or pa.types.is_boolean(kind))
