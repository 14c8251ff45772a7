"""Codec of single keys and rows without Arrow or numpy, where one call costs more than everything here.

Only for tables whose columns Python's ``struct`` supports, or are strings or bytes. The bytes are the same as those of
``logformat.rows.keys`` and ``logformat.rows.rows``, which handle whole columns and every type.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import pyarrow as pa

from logformat.binary_column import WORD
from logformat.checksum import row_hash
from logformat.errors import CorruptData
from logformat.ids import SchemaId
from logformat.rows.keys import KEY_BYTES_MAX, ROW

_SIGNED = {pa.int8(): "b", pa.int16(): "h", pa.int32(): "i", pa.int64(): "q"}
_INTEGERS = {**_SIGNED, pa.uint8(): "B", pa.uint16(): "H", pa.uint32(): "I", pa.uint64(): "Q"}
_CODES = {**_INTEGERS, pa.float32(): "f", pa.float64(): "d", pa.bool_(): "?"}
_TEXTS = (pa.string(), pa.binary())
_HEAD = struct.Struct("<IH")
_LENGTH = "I"


class SingleRowCodec:
    """Codec of a table's rows, one at a time.

    Args:
        schemas: All columns by schema id; see ``supports`` for the types allowed.
        key: Names of the key's columns, in key order.
        columns: Columns of decoded rows, in order; None for all.
    """

    def __init__(
        self, schemas: Mapping[SchemaId, pa.Schema], key: Sequence[str], columns: Sequence[str] | None = None
    ) -> None:
        schema = schemas[max(schemas)]
        self._schema_id = max(schemas)
        self._key = [_KeyPart(schema.field(name).type) for name in key]
        self._values = {
            id: _Values([field.type for field in each if field.name not in key]) for id, each in schemas.items()
        }
        self._count = len(schema)
        self._names = [*key, *(name for name in schema.names if name not in key)]
        places = {name: place for place, name in enumerate(self._names)}
        self._schema_names = schema.names if columns is None else list(columns)
        wanted = [places[name] for name in self._schema_names]
        self._in_order = _in_order(wanted) if wanted != list(range(self._count)) else tuple

    @staticmethod
    def supports(schemas: Mapping[SchemaId, pa.Schema], key: Sequence[str]) -> bool:
        """Whether this codec supports the rows of such a table."""
        schema = schemas[max(schemas)]
        keys = all(schema.field(name).type in (*_INTEGERS, *_TEXTS) for name in key)
        return keys and all(field.type in (*_CODES, *_TEXTS) for field in schema)

    def encode_key(self, key: Any) -> bytes | None:
        """Encode a key: a value, or a tuple in key order.

        Returns:
            None if the key needs the general codec: its type differs, or it does not fit.
        """
        values = key if type(key) is tuple else (key,)
        if len(values) != len(self._key):
            return None
        code = ROW
        for part, value in zip(self._key, values, strict=True):
            its_code = part.encode(value)
            if its_code is None:
                return None
            code += its_code
        return code if len(code) <= KEY_BYTES_MAX else None

    def knows(self, value: bytes) -> bool:
        """Whether a value's schema is known here; otherwise the catalog has a newer one."""
        return int.from_bytes(value[4 : _HEAD.size], "little") <= self._schema_id

    def decode(self, key: Any, code: bytes, value: bytes) -> dict[str, Any]:
        """Decode the row of a key to Python values, in the order of the current schema.

        Args:
            key: The key, as given to :meth:`encode_key`.
            code: Its code, as returned.
            value: The value as LMDB stores it.

        Raises:
            CorruptData: The value differs from what was written, or is under another key.
        """
        if len(value) < WORD or len(value) % WORD:
            raise CorruptData("A stored row is cut short; run `kvstore check`.", bytes=len(value))
        checksum, schema_id = _HEAD.unpack_from(value)
        if row_hash(code, value) & 0xFFFFFFFF != checksum:
            raise CorruptData("Stored rows fail their checksum; run `kvstore check`.", rows=1, key=key)
        values = self._values.get(schema_id)
        if values is None:
            raise CorruptData("A stored row names an unknown schema; run `kvstore check`.", schema_id=schema_id)
        row = [*key] if type(key) is tuple else [key]
        row += values.decode(value)
        if len(row) < self._count:
            row += [None] * (self._count - len(row))  # the value is older than the last columns
        return dict(zip(self._schema_names, self._in_order(row), strict=True))


def _in_order(places: Sequence[int]) -> Callable[[Any], Any]:
    """Takes the values at these places from a row."""
    return itemgetter(*places) if len(places) > 1 else itemgetter(slice(places[0], places[0] + 1))


class _KeyPart:
    """One column of a key."""

    def __init__(self, kind: pa.DataType) -> None:
        self._is_string = kind == pa.string()
        self._is_integer = kind in _INTEGERS
        if self._is_integer:
            self._pack = struct.Struct(">" + _INTEGERS[kind].upper()).pack
            bits = kind.bit_width
            self._low = -(1 << bits - 1) if pa.types.is_signed_integer(kind) else 0
            self._high = self._low + (1 << bits)

    def encode(self, value: Any) -> bytes | None:
        if self._is_integer:
            is_one = type(value) is int and self._low <= value < self._high
            return self._pack(value - self._low) if is_one else None
        if self._is_string:
            if type(value) is not str:
                return None
            try:
                value = value.encode()
            except UnicodeEncodeError:
                return None
        elif type(value) is not bytes:
            return None
        return value.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + b"\x00"


class _Values:
    """The columns outside the key, in one schema."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self._nulls_none = bytes((len(types) + 7) // 8)
        codes = "".join(_CODES.get(kind, _LENGTH) for kind in types)
        self._fixed = struct.Struct(f"<{_HEAD.size}x{len(self._nulls_none)}s{codes}")
        self._texts = [(nth, kind == pa.string()) for nth, kind in enumerate(types) if kind in _TEXTS]

    def decode(self, value: bytes) -> list[Any]:
        """Decode a value; raises CorruptData if it does not fit the schema."""
        place = self._fixed.size
        if place > len(value):
            raise CorruptData("A stored record is cut short; run `kvstore check`.")
        nulls, *cells = self._fixed.unpack_from(value)
        for nth, is_string in self._texts:
            end = place + cells[nth]
            text = value[place:end]
            cells[nth] = text.decode() if is_string else text
            place = end
        if place > len(value):
            raise CorruptData("A stored record's lengths do not add up; run `kvstore check`.")
        if nulls != self._nulls_none:
            bits = int.from_bytes(nulls, "little")
            cells = [None if bits >> nth & 1 else cell for nth, cell in enumerate(cells)]
        return cells
