"""Decoder of single records (docs/format.md, Record) to Python's values, without Arrow or numpy.

It gives what ``logformat.rows.record`` and :mod:`logformat.rows.python_rows` give, for every stored type. For one row,
a call of theirs costs more than everything here.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from logformat.errors import CorruptData
from logformat.rows.schema import is_dict, is_variable
from logformat.rows.types.registry import column_type

_COUNT = struct.Struct("<I")
_VARIABLE = struct.Struct("<?I")


class SingleRecord:
    """Decoder of records with these column types.

    Args:
        types: Stored types, in order.
        head: Bytes before the record that are skipped.
    """

    def __init__(self, types: Sequence[pa.DataType], head: int = 0) -> None:
        self._valid = bytes((len(types) + 7) // 8)
        codes = [_COUNT.format[1:] if is_variable(kind) else column_type(kind).struct_code(kind) for kind in types]
        self._fixed = struct.Struct(f"<{head}x{len(self._valid)}s{''.join(codes)}")
        self._size = self._fixed.size
        self._unpack = self._fixed.unpack_from
        self._variable = [(nth, _of_bytes(kind)) for nth, kind in enumerate(types, 1) if is_variable(kind)]
        others = [(nth, column_type(kind).value_of(kind)) for nth, kind in enumerate(types, 1) if not is_variable(kind)]
        self._converted = [(nth, convert) for nth, convert in others if convert is not None]

    def decode(self, record: bytes, first: Any = None) -> list[Any]:
        """Decode a record to a list: ``first``, then the columns. Bytes after the record are ignored.

        Raises:
            CorruptData: It is not a record of these types.
            ValueError, OverflowError: Python has no such value.
        """
        position, end = self._size, len(record)
        if position > end:
            raise CorruptData("A stored record is cut short; run `kvstore check`.")
        row = list(self._unpack(record))
        nulls, row[0] = row[0], first
        for nth, convert in self._variable:
            start, position = position, position + row[nth]
            row[nth] = convert(record[start:position])
        if position > end:
            raise CorruptData("A stored record's lengths do not add up; run `kvstore check`.")
        for nth, convert in self._converted:
            row[nth] = convert(row[nth])
        if nulls != self._valid:
            bits = int.from_bytes(nulls, "little") << 1
            row = [None if bits >> nth & 1 else cell for nth, cell in enumerate(row)]
        return row


def _of_bytes(kind: pa.DataType) -> Callable[[bytes], Any]:
    """The function from the bytes in the variable part to a value; empty bytes of a nested type stand for null."""
    types = pa.types
    if types.is_string(kind):
        return bytes.decode
    if types.is_struct(kind):
        return _structs([kind.field(nth) for nth in range(kind.num_fields)])
    if types.is_map(kind):
        return _maps(kind)
    if types.is_list(kind):
        return _lists(kind.value_type)
    return bytes


def _structs(fields: Sequence[pa.Field]) -> Callable[[bytes], Any]:
    names, record = [field.name for field in fields], SingleRecord([field.type for field in fields])
    return lambda stored: dict(zip(names, record.decode(stored)[1:], strict=True)) if stored else None


def _maps(kind: pa.MapType) -> Callable[[bytes], Any]:
    # Its elements are structs, which are never null.
    entries, entry = _elements(pa.binary()), SingleRecord([kind.key_type, kind.item_type])

    as_declared: Callable[[list[Any]], Any] = dict if is_dict(kind) else list

    def decode(stored: bytes) -> Any:
        if not stored:
            return None
        pairs = [tuple(entry.decode(each)[1:]) for each in entries(stored)]
        if any(key is None for key, _ in pairs):
            raise CorruptData("A key of a stored map is null; run `kvstore check`.")
        return as_declared(pairs)

    return decode


def _lists(kind: pa.DataType) -> Callable[[bytes], Any]:
    decode = _elements(kind)
    return lambda stored: decode(stored) if stored else None


def _elements(kind: pa.DataType) -> Callable[[bytes], list[Any]]:
    """Decoder of lists: ``count u32 | end of each element u32 | elements``, each element a record of one column."""
    if is_variable(kind):
        convert = _of_bytes(kind)

        def decode_variable(stored: bytes) -> list[Any]:
            elements, start = [], _first_element(stored)
            first = start
            for (end,) in _COUNT.iter_unpack(stored[_COUNT.size : first]):
                null, length = _VARIABLE.unpack_from(stored, start)
                start += _VARIABLE.size
                if start + length != first + end:
                    raise CorruptData("A stored list's lengths do not add up; run `kvstore check`.")
                elements.append(None if null else convert(stored[start : first + end]))
                start = first + end
            return elements

        return decode_variable
    element_type = column_type(kind)
    element, convert_one = struct.Struct("<?" + element_type.struct_code(kind)), element_type.value_of(kind)

    def decode(stored: bytes) -> list[Any]:
        first = _first_element(stored)
        if len(stored) - first != element.size * (first // _COUNT.size - 1):
            raise CorruptData("A stored list's lengths do not add up; run `kvstore check`.")
        pairs = element.iter_unpack(stored[first:])
        if convert_one is None:
            return [None if null else value for null, value in pairs]
        return [None if null else convert_one(value) for null, value in pairs]

    return decode


def _first_element(stored: bytes) -> int:
    """Place of a list's first element."""
    first = _COUNT.size * (int.from_bytes(stored[: _COUNT.size], "little") + 1)
    if first > len(stored):
        raise CorruptData("A stored list is cut short; run `kvstore check`.")
    return first
