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

Decode = Callable[[bytes, Any], dict[str, Any]]

COMPILED_MAX = 100
"""Up to so many columns, a function is compiled for a row: for 4,000 that takes as long as hundreds of rows."""

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
            raise _cut_short()
        row = list(self._unpack(record))
        nulls, row[0] = row[0], first
        for nth, convert in self._variable:
            start, position = position, position + row[nth]
            row[nth] = convert(record[start:position])
        if position > end:
            raise _not_adding_up()
        for nth, convert in self._converted:
            row[nth] = convert(row[nth])
        if nulls != self._valid:
            bits = int.from_bytes(nulls, "little") << 1
            row = [None if bits >> nth & 1 else cell for nth, cell in enumerate(row)]
        return row

    def decoder(self, names: Sequence[str], key: Sequence[str], columns: Sequence[str]) -> Decode:
        """A function from a record, and the values of a key, to a dict; errors are those of :meth:`decode`.

        For up to :data:`COMPILED_MAX` columns it is written for them and compiled, as those of dataclasses are: loops
        over them take twice as long. Its source has their numbers alone; their names are variables.

        Args:
            names: Names of the record's columns.
            key: Names of the key's columns. Their values are given as a sequence, or as the value of the only one.
            columns: Names of the dict, in order; one that is among neither is None.
        """
        if len(columns) > COMPILED_MAX:
            return self._looping_decoder(names, key, columns)
        keys, cells = ([f"{kind}{nth}" for nth in range(len(of))] for kind, of in (("key", key), ("cell", names)))
        value_of = dict.fromkeys(columns, "None") | dict(zip((*names, *key), (*cells, *keys), strict=True))
        variable, converted = ([nth - 1 for nth, _ in each] for each in (self._variable, self._converted))
        nullable = [(nth, name) for nth, name in enumerate(names, 1) if name in columns]

        def void(row: dict[str, Any], nulls: bytes) -> None:
            bits = int.from_bytes(nulls, "little") << 1
            row.update((name, None) for nth, name in nullable if bits >> nth & 1)

        lines = [
            "def decode(record, key):",
            " if len(record) < size: raise cut_short()",
            f" {', '.join(keys) or '_'} = key",
            f" {', '.join(['nulls', *cells])}, = unpack(record)",
            " end = size",
            *(f" start = end; end += cell{nth}; cell{nth} = convert{nth}(record[start:end])" for nth in variable),
            " if end > len(record): raise not_adding_up()",
            *(f" cell{nth} = convert{nth}(cell{nth})" for nth in converted),
            f" row = {{{', '.join(f'name{nth}: {value_of[name]}' for nth, name in enumerate(columns))}}}",
            " if nulls != valid: void(row, nulls)",
            " return row",
        ]
        scope: dict[str, Any] = {f"name{nth}": name for nth, name in enumerate(columns)}
        scope |= {f"convert{nth - 1}": convert for nth, convert in (*self._variable, *self._converted)}
        scope |= {"size": self._size, "unpack": self._unpack, "valid": self._valid, "void": void}
        scope |= {"cut_short": _cut_short, "not_adding_up": _not_adding_up}
        exec("\n".join(lines), scope)  # noqa: S102  # see above
        decode: Decode = scope["decode"]
        return decode

    def _looping_decoder(self, names: Sequence[str], key: Sequence[str], columns: Sequence[str]) -> Decode:
        there = [*key, *names]
        is_in_order = there == list(columns)

        def decode(record: bytes, given: Any) -> dict[str, Any]:
            row = self.decode(record)
            row[:1] = [given] if len(key) == 1 else given or ()
            named = dict(zip(there, row, strict=True))
            return named if is_in_order else {name: named.get(name) for name in columns}

        return decode


def _cut_short() -> CorruptData:
    return CorruptData("A stored record is cut short; run `kvstore check`.")


def _not_adding_up() -> CorruptData:
    return CorruptData("A stored record's lengths do not add up; run `kvstore check`.")


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
    names = [field.name for field in fields]
    decode = SingleRecord([field.type for field in fields]).decoder(names, (), names)
    return lambda stored: decode(stored, None) if stored else None


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
