"""Rows as bytes, as one writes it by hand: numbers by one ``struct``, a last string as it is, all else as MessagePack.

Whole columns go through ``map``, which is the fastest plain Python has.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from benchmarks.peers.store import as_table

_CODES = {pa.int64(): "q", pa.int32(): "i", pa.float64(): "d", pa.bool_(): "?"}
_KEY = struct.Struct(">q")
KEY_BYTES = _KEY.size

encode_number = _KEY.pack


class RowBytes:
    """Codec of rows whose key is their first column, an int64."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._fixed = [nth for nth, field in enumerate(schema) if nth and field.type in _CODES]
        self._others = [nth for nth in range(1, len(schema)) if nth not in self._fixed]
        self._struct = struct.Struct("<" + "".join(_CODES[schema.field(nth).type] for nth in self._fixed))
        self._is_text = [schema.field(nth).type for nth in self._others] == [pa.string()]

    def encode(self, columns: Sequence[list[Any]]) -> tuple[list[bytes], list[bytes]]:
        """Keys, whose order is that of the numbers while none is negative, and the rest of the rows."""
        fixed = map(self._struct.pack, *(columns[nth] for nth in self._fixed))
        rest = (
            map(str.encode, columns[self._others[0]])
            if self._is_text
            else map(msgspec.msgpack.encode, zip(*(columns[nth] for nth in self._others), strict=True))
        )
        return list(map(encode_number, columns[0])), list(map(bytes.__add__, fixed, rest))

    def decode(self, keys: Sequence[bytes], values: Sequence[bytes]) -> pa.Table:
        """The table again."""
        columns: list[list[Any]] = [[] for _ in self._schema]
        columns[0] = [_KEY.unpack(key)[0] for key in keys]
        size = self._struct.size
        for value in values:
            rest = [value[size:].decode()] if self._is_text else msgspec.msgpack.decode(value[size:])
            for nth, part in zip([*self._fixed, *self._others], [*self._struct.unpack_from(value), *rest], strict=True):
                columns[nth].append(part)
        return as_table(columns, self._schema)
