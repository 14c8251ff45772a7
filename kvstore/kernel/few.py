"""Decodes a few rows into a record batch, keys and values in one call; ``few.c`` has its invariants.

What the kernel does not know, and what it finds wrong, is left to Python.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from kvstore.kernel.writes import KEY_COLUMNS_MAX, address_of, way_of
from logformat.rows.schema import fixed_width, is_variable

_DONE = 0
_OF_VALUE, _IN_KEY, _NOWHERE = range(3)
_FIXED, _FLAG, _VARIABLE = range(3)
"""Where a column is, and its kind; ``few.c`` has the same, and the layout of a shape."""
_ARRAY_WORDS = 10
"""Size of an array of Arrow's C data interface."""
_BYTES_MAX = 1 << 30

Decode = Callable[..., int]


class FewRows:
    """Decoder of rows of one stored schema.

    Args:
        decode: The function of the kernel.
        schema: Columns to return; none of them is nested.
        key: All columns of the key, in its order.
        stored: Types of the columns of values, by name, in the order of the record.
        fixed: The fixed part of values; see :class:`logformat.rows.record.RecordCodec`.
    """

    def __init__(
        self,
        decode: Decode,
        schema: pa.Schema,
        key: pa.Schema,
        stored: Mapping[str, pa.DataType],
        fixed: np.dtype,
        schema_id: int,
    ) -> None:
        places: Mapping[str, Any] = fixed.fields or {}
        numbers = {name: number for number, name in enumerate(stored)}
        variable = [name for name, kind in stored.items() if is_variable(kind)]
        wanted = []
        for field in schema:
            kind = _VARIABLE if is_variable(field.type) else _FLAG if pa.types.is_boolean(field.type) else _FIXED
            width = 0 if kind == _VARIABLE else fixed_width(field.type)
            if field.name in key.names:
                wanted.append((_IN_KEY, kind, width, 0, key.names.index(field.name)))
            elif field.name in stored:
                number = numbers[field.name]
                place = variable.index(field.name) if kind == _VARIABLE else places[f"c{number}"][1]
                wanted.append((_OF_VALUE, kind, width, place, number))
            else:
                wanted.append((_NOWHERE, kind, width, 0, 0))
        coded = [(way_of(field.type), 0 if is_variable(field.type) else fixed_width(field.type)) for field in key]
        nulls, bitmap = places["nulls"][:2]
        head = schema_id, bitmap, nulls.itemsize, fixed.itemsize, len(wanted), len(coded), len(variable)
        ends = (places[f"c{numbers[name]}"][1] for name in variable)
        self._schema = schema
        self._decode = decode
        self._shape = np.array([*head, *chain(*wanted), *chain(*coded), *ends], np.uint64)
        self._address = address_of(self._shape)

    @staticmethod
    def supports(schema: pa.Schema, key: pa.Schema, stored: Mapping[str, pa.DataType]) -> bool:
        """Whether there may be a decoder of these columns."""
        variable = sum(map(is_variable, stored.values()))
        is_flat = not any(map(pa.types.is_nested, (*schema.types, *stored.values())))
        return is_flat and len(schema) > 0 and max(len(key), variable) <= KEY_COLUMNS_MAX

    def decode(self, pairs: Sequence[tuple[bytes, bytes]]) -> pa.RecordBatch | None:
        """The rows of keys and values; None if Python has to decode them."""
        parts = list(chain.from_iterable(pairs))
        flat = b"".join(parts)
        if len(flat) > _BYTES_MAX:
            return None
        sizes = array("I", list(map(len, parts)))
        found = (ctypes.c_uint64 * _ARRAY_WORDS)()
        address = ctypes.addressof(found)
        if self._decode(self._address, flat, sizes.buffer_info()[0], len(pairs), address) != _DONE:
            return None
        return pa.RecordBatch._import_from_c(address, self._schema)
