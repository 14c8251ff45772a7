"""Memcomparable keys: the order of the bytes is the order of the values, so ranges and prefixes of both correspond.

A key is ``02`` and the codes of its columns; each code marks its own end (docs/format.md, Key). Fixed types are
big-endian with the sign bit flipped; strings and binaries escape 00 and 01 and end with 00.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat import binary_column as binary_column
from logformat.binary_column import WORD, BinaryColumn
from logformat.errors import CorruptData, KeyTooLarge
from logformat.rows.schema import fixed_width, is_variable
from logformat.rows.types.column_type import Layout
from logformat.rows.types.registry import layout_of

KEY_BYTES_MAX = 511
"""LMDB's limit."""
ROW = b"\x02"
"""First byte of every key: rows share the index with its state and the writers (docs/format.md, Index)."""

_ROW = binary_column.scalar(ROW)
_END = binary_column.scalar(b"\x00")
_ESCAPES = ((b"\x01", b"\x01\x02"), (b"\x00", b"\x01\x01"))
_ESCAPED_MAX = 1
_SIGN = 0x80


class KeyCodec:
    """Codec of the keys of one table.

    Args:
        fields: The key's columns in key order: not null, not floats, not nested.
    """

    def __init__(self, fields: Sequence[pa.Field]) -> None:
        self._fields = list(fields)
        self.width = (
            None
            if any(is_variable(field.type) for field in fields)
            else len(ROW) + sum(fixed_width(field.type) for field in fields)
        )

    def encode(self, columns: Sequence[pa.Array]) -> BinaryColumn:
        """Encode the keys of a batch of rows; of known width if no key column is variable.

        Raises:
            KeyTooLarge: A key is longer than 511 bytes.
        """
        keys = self.encode_prefix(columns)
        longest = int(keys.lengths.max(initial=0)) if self.width is None else self.width
        if longest > KEY_BYTES_MAX:
            raise KeyTooLarge(
                f"An encoded key has at most {KEY_BYTES_MAX} bytes. Use a hash of it as the key, such as"
                " hashlib.sha256(text.encode()).digest(), and keep the text in another column.",
                bytes=longest,
            )
        return keys

    def encode_prefix(self, columns: Sequence[pa.Array]) -> BinaryColumn:
        """Encode the first columns of keys: the prefix of every key with these values."""
        if not any(is_variable(column.type) for column in columns):
            codes = [_encode_fixed(column) for column in columns]
            matrix = np.empty((len(columns[0]), len(ROW) + sum(code.shape[1] for code in codes)), np.uint8)
            matrix[:, 0] = ROW[0]
            np.concatenate(codes, axis=1, out=matrix[:, len(ROW) :])
            return BinaryColumn.from_matrix(matrix)
        parts: list[pa.BinaryArray | pa.BinaryScalar] = []
        for column in columns:
            if is_variable(column.type):
                parts += [_escaped(column), _END]
            else:
                parts.append(BinaryColumn.from_matrix(np.ascontiguousarray(_encode_fixed(column))).to_arrow())
        return BinaryColumn.from_arrow(pc.binary_join_element_wise(_ROW, *parts, binary_column.EMPTY))

    def decode(self, keys: BinaryColumn) -> list[pa.Array]:
        """Decode keys to key columns.

        Raises:
            CorruptData: A key ends too early or too late.
        """
        if keys.width is not None and keys.width == self.width:
            return self._decode_fixed(keys.matrix())
        flat = keys.flat
        positions, ends = keys.offsets[:-1] + len(ROW), keys.offsets[1:]
        stops = np.flatnonzero(flat == 0) if self.width is None else np.zeros(0, np.int64)
        columns = []
        for field in self._fields:
            if is_variable(field.type):
                nth = np.searchsorted(stops, positions)
                if (nth >= len(stops)).any():
                    raise CorruptData("A stored key has no end; run `kvstore check`.", column=field.name)
                following = stops[nth] + 1
                code_ends = following - 1
            else:
                following = code_ends = positions + fixed_width(field.type)
            if (following > ends).any():
                raise CorruptData("A stored key is cut short; run `kvstore check`.", column=field.name)
            codes = binary_column.slices(flat, positions, code_ends)
            if is_variable(field.type):
                columns.append(_decode_variable(codes, field.type))
            else:
                shape = len(codes), fixed_width(field.type)
                matrix = np.ndarray(shape, np.uint8, codes.buffers()[2] or b"")
                columns.append(_decode_fixed(matrix, field.type))
            positions = following
        if (positions != ends).any():
            raise CorruptData("A stored key is too long; run `kvstore check`.")
        return columns

    def _decode_fixed(self, keys: np.ndarray) -> list[pa.Array]:
        columns, position = [], len(ROW)
        for field in self._fields:
            following = position + fixed_width(field.type)
            columns.append(_decode_fixed(keys[:, position:following], field.type))
            position = following
        return columns


def _escaped(column: pa.Array) -> pa.BinaryArray:
    raw = column.view(pa.binary())
    data = column.buffers()[2]
    # Few keys contain these bytes, and searching is much cheaper than replacing.
    if data is not None and (np.frombuffer(data, np.uint8) <= _ESCAPED_MAX).any():
        for byte, code in _ESCAPES:
            raw = pc.replace_substring(raw, byte, code)
    return raw


def _encode_fixed(column: pa.Array) -> np.ndarray:
    """Encode values as rows of a uint8 matrix."""
    kind, rows = column.type, len(column)
    width = fixed_width(kind)
    layout = layout_of(kind)
    if layout is Layout.FLAG:
        flags: np.ndarray = column.cast(pa.uint8()).to_numpy(zero_copy_only=False)
        return flags.reshape(rows, 1)
    if not rows:
        return np.zeros((0, width), np.uint8)
    stored = np.frombuffer(column.buffers()[1], np.uint8, rows * width, column.offset * width).reshape(rows, width)
    if layout is Layout.OPAQUE:
        return stored
    big_endian = stored[:, ::-1]
    if layout is Layout.SIGNED:
        big_endian = big_endian.copy()
        big_endian[:, 0] ^= _SIGN
    return big_endian


def _decode_variable(codes: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    data = codes.buffers()[2] or b""
    if len(data) and (np.frombuffer(data, np.uint8) == _ESCAPES[0][0][0]).any():
        for byte, code in reversed(_ESCAPES):
            codes = pc.replace_substring(codes, code, byte)
    return pa.Array.from_buffers(kind, len(codes), codes.buffers())


def _decode_fixed(codes: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Decode a uint8 matrix to a column."""
    (rows, width), layout = codes.shape, layout_of(kind)
    if layout is Layout.FLAG:
        return pa.array(codes[:, 0] != 0)
    if layout is Layout.OPAQUE:
        stored = np.ascontiguousarray(codes)
    elif width <= WORD:
        stored = codes.view(f">u{width}").astype(f"<u{width}")
        if layout is Layout.SIGNED:
            stored ^= stored.dtype.type(_SIGN << 8 * (width - 1))
    else:
        stored = codes[:, ::-1].copy()
        stored[:, -1] ^= _SIGN
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(stored)])
