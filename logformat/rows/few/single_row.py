"""Codec of single keys and rows without Arrow or numpy, where one call costs more than everything here.

The bytes are the same as those of ``logformat.rows.keys`` and ``logformat.rows.rows``, which handle whole columns; the
values are those of :mod:`logformat.rows.python_rows`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from logformat.checksum import CHECKSUM_BITS, hasher
from logformat.errors import CorruptData
from logformat.ids import SchemaId
from logformat.rows.few.cells import MISFITS, code_of, conversion_of
from logformat.rows.few.single_record import Decode, SingleRecord
from logformat.rows.keys import KEY_BYTES_MAX, ROW
from logformat.rows.schema import fixed_width
from logformat.rows.types.column_type import Layout
from logformat.rows.types.registry import column_type, layout_of

_HEAD_BYTES = 6
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}

_WHOLE = (tuple, dict)
"""Types of keys that have all columns of a key; a value of any other type is the key's one column."""

Encode = Callable[[Any], "bytes | None"]
Verify = Callable[[bytes, int, bytes, int], int]


class SingleRowCodec:
    """Codec of a table's rows, one at a time.

    Args:
        schemas: All columns by schema id.
        key: Names of the key's columns, in key order.
        columns: Columns of decoded rows, in order; None for those of the last schema. Rows that lack one have null.
        verify: Whether a key and a value, each followed by its length, have the value's checksum; None to compute
            it here.

    Attributes:
        encode_key: Encodes a key: a value, a tuple in key order, or a dict; None if it needs the general codec, because
            its type differs or it does not fit.
    """

    def __init__(
        self,
        schemas: Mapping[SchemaId, pa.Schema],
        key: Sequence[str],
        columns: Sequence[str] | None = None,
        *,
        verify: Verify | None = None,
    ) -> None:
        schema = schemas[max(schemas)]
        kinds = [schema.field(name).type for name in key]
        self._schema_id = max(schemas)
        self._key = list(key)
        self._kinds = kinds
        self._key_kind, self._key_bias = "", 0
        if len(key) == 1 and pa.types.is_integer(kinds[0]):
            self._key_kind, self._key_bias = "integer", _bias(kinds[0])
        elif len(key) == 1 and pa.types.is_string(kinds[0]):
            self._key_kind = "text"
        self._encoders = list(map(encoder_of, kinds))
        self._as_stored = [(nth, as_stored) for nth, as_stored in enumerate(map(_as_stored, kinds)) if as_stored]
        self.encode_key = _whole_key(kinds[0], self._encoded) if len(key) == 1 else self._encoded
        self._names = schema.names if columns is None else list(columns)
        self._schemas = schemas
        self._verify = verify
        self._rows: dict[int, Decode] = {}

    def encode_columns(self, key: Any, names: Sequence[str]) -> bytes:
        """Code of some columns of a key that :meth:`encode_key` has encoded, in this order and without a prefix."""
        values = self._given(key)
        numbers = map(self._key.index, names)
        return b"".join(self._encoders[number](values[number]) or b"" for number in numbers)

    def decode(self, key: Any, code: bytes, value: bytes) -> dict[str, Any] | None:
        """Decode the row of a key to Python values.

        Args:
            key: The key, as given to :meth:`encode_key`.
            code: Its code, as returned.
            value: The value as LMDB stores it.

        Returns:
            None if the general codec has to decode it: its schema is newer than those known here, or Python lacks a
            value.

        Raises:
            CorruptData: The value differs from what was written, or is under another key.
        """
        verify = self._verify
        if verify is None:
            computed, stored = hasher(len(code), len(value))(code, value)
            if computed & CHECKSUM_BITS != stored:
                raise _wrong_checksum(key)
        elif not verify(code, len(code), value, len(value)):
            raise _wrong_checksum(key)
        return self.decoded(key, value)

    def decoded(self, key: Any, value: bytes) -> dict[str, Any] | None:
        """Like :meth:`decode`, of a value that was verified, or just encoded."""
        schema_id = value[4] | value[5] << 8
        if schema_id > self._schema_id:
            return None
        decode = self._rows.get(schema_id) or self._row_of(schema_id)
        try:
            return decode(value, self._stored(key) if self._as_stored or type(key) in _WHOLE else key)
        except (ValueError, OverflowError):
            return None

    def key_of(self, code: bytes) -> Any | None:
        """The key that has this code, of one column of integers or text; None if it has another type."""
        if self._key_kind == "integer":
            return int.from_bytes(code[len(ROW) :], "big") - self._key_bias
        if self._key_kind == "text":
            return code[len(ROW) : -1].replace(b"\x01\x01", b"\x00").replace(b"\x01\x02", b"\x01").decode()
        return None

    def _row_of(self, schema_id: int) -> Decode:
        """Decoder of rows of a schema, from their values and their keys."""
        schema = self._schemas.get(SchemaId(schema_id))
        if schema is None:
            raise CorruptData("A stored row names an unknown schema; run `kvstore check`.", schema_id=schema_id)
        others = [name for name in schema.names if name not in self._key]
        record = SingleRecord([schema.field(name).type for name in others], _HEAD_BYTES)
        decoder = self._rows[schema_id] = record.decoder(others, self._key, self._names)
        return decoder

    def _given(self, key: Any) -> Sequence[Any]:
        return key if type(key) is tuple else tuple(map(key.get, self._key)) if type(key) is dict else (key,)

    def _stored(self, key: Any) -> Any:
        """Values of a key's columns, or that of its only one, as they are stored."""
        values = [*self._given(key)]
        for number, as_stored in self._as_stored:
            values[number] = as_stored(values[number])
        return values if len(values) > 1 else values[0]

    def _encoded(self, key: Any) -> bytes | None:
        """Encode any key, column by column."""
        values = self._given(key)
        if len(values) != len(self._encoders) or (type(key) is dict and len(key) != len(values)):
            return None
        code = ROW
        for encode, value in zip(self._encoders, values, strict=True):
            its_code = encode(value)
            if its_code is None:
                return None
            code += its_code
        return code if len(code) <= KEY_BYTES_MAX else None


def _wrong_checksum(key: Any) -> CorruptData:
    return CorruptData("Stored rows fail their checksum; run `kvstore check`.", rows=1, key=key)


def _whole_key(kind: pa.DataType, encoded: Encode) -> Encode:
    """Encoder of keys of one column, fast for the most common kinds; anything else goes to ``encoded``."""
    if pa.types.is_integer(kind):
        pack, bias = struct.Struct(f">B{_UNSIGNED[fixed_width(kind)]}").pack, _bias(kind)

        def whole_integer(key: Any) -> bytes | None:
            if type(key) is int:
                try:
                    return pack(ROW[0], key + bias)
                except struct.error:
                    return None
            return encoded(key)

        return whole_integer
    if pa.types.is_string(kind):
        encode = encoder_of(kind)

        def whole_text(key: Any) -> bytes | None:
            if type(key) is str:
                code = encode(key)
                return ROW + code if code is not None and len(code) < KEY_BYTES_MAX else None
            return encoded(key)

        return whole_text
    return encoded


def encoder_of(kind: pa.DataType) -> Encode:
    """Encoder of values of a key's column; None is what the general codec has to encode, or to refuse."""
    python, cell_of = conversion_of(kind)
    code_of_cell = code_of(kind)

    def encode(value: Any) -> bytes | None:
        try:
            return code_of_cell(cell_of(value)) if type(value) is python else None
        except MISFITS:
            return None

    return encode


def _bias(kind: pa.DataType) -> int:
    """What is added to a number so that its bytes are in order: it moves the smallest one to 0."""
    return 0 if layout_of(kind) in (Layout.UNSIGNED, Layout.FLAG) else 1 << 8 * fixed_width(kind) - 1


def _as_stored(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """The function from a given value of a key's column to the one that is read again; None if they are the same."""
    column_kind = column_type(kind)
    number_of, value_of = column_kind.number_of(kind), column_kind.value_of(kind)
    if number_of is None or value_of is None:
        return None
    if not column_kind.struct_code(kind).endswith("s"):
        return lambda value: value_of(number_of(value))
    width = fixed_width(kind)
    return lambda value: value_of((number_of(value) or 0).to_bytes(width, "little", signed=True))
