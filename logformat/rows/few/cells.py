"""Cells of single values, and their codes in keys; see :mod:`logformat.rows.few.few_rows` for what a cell is."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from logformat.rows.schema import fixed_width
from logformat.rows.types.column_type import Layout
from logformat.rows.types.registry import column_type, layout_of

MISFITS = (KeyError, OverflowError, UnicodeEncodeError, struct.error, TypeError)
"""Errors that a conversion raises for a value that does not fit."""
_SIGN = 0x80


def conversion_of(stored: pa.DataType) -> tuple[type | None, Callable[[Any], bytes]]:
    """The type of Python values that become cells of a stored type directly, and the function that does it."""
    kind = column_type(stored)
    if kind.packs(stored):
        return kind.python, struct.Struct(f"<{kind.struct_code(stored)}").pack
    if kind.layout is Layout.VARIABLE:
        return kind.python, str.encode if kind.python is str else bytes
    width = fixed_width(stored)
    if kind.layout is Layout.OPAQUE:

        def of_width(value: bytes) -> bytes:
            if len(value) != width:
                raise OverflowError
            return value

        return kind.python, of_width
    if (number_of := kind.number_of(stored)) is None:
        return None, _nothing

    def of_number(value: Any) -> bytes:
        number = number_of(value)
        if number is None:
            raise OverflowError
        return number.to_bytes(width, "little", signed=True)

    return kind.python, of_number


def _nothing(_: Any) -> bytes:
    raise TypeError


def code_of(stored: pa.DataType) -> Callable[[bytes], bytes]:
    """Encodes a cell as a part of a key; see :mod:`logformat.rows.keys`."""
    return _CODES.get(layout_of(stored), _signed_code)


def _text_code(cell: bytes) -> bytes:
    return cell.replace(b"\x01", b"\x01\x02").replace(b"\x00", b"\x01\x01") + b"\x00"


def _unsigned_code(cell: bytes) -> bytes:
    return cell[::-1]


def _signed_code(cell: bytes) -> bytes:
    return bytes((cell[-1] ^ _SIGN,)) + cell[-2::-1]


_CODES: dict[Layout, Callable[[bytes], bytes]] = {
    Layout.VARIABLE: _text_code,
    Layout.FLAG: bytes,
    Layout.OPAQUE: bytes,
    Layout.UNSIGNED: _unsigned_code,
}
