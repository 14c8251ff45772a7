"""Values of Arrow columns for a page: in their JSON form, the long ones cut before they are converted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from logformat.rows.json_form import to_json

LETTERS_MAX = 200
"""A longer value is cut on a page; its cell links to the whole."""

_types = pa.types


@dataclass(frozen=True, slots=True)
class Cell:
    """A value of a row.

    Attributes:
        value: Its JSON form; of a long value, the beginning as text.
        bytes: Of a long value, how long it is; None for others.
    """

    value: Any
    bytes: int | None = None


NULL = Cell(None)


def cells_of(column: pa.Array) -> list[Cell]:
    """The values of a column."""
    kind = column.type
    if _types.is_string(kind) or _types.is_binary(kind) or _types.is_fixed_size_binary(kind):
        return _of_bytes(column)
    values = to_json(column)
    return list(map(_of_nested if _types.is_nested(kind) else Cell, values))


def whole_of(column: pa.Array) -> tuple[bytes, str]:
    """The only value of a column as bytes to be saved, and the media type."""
    value = column[0].as_py()
    if isinstance(value, bytes):
        return value, "application/octet-stream"
    if isinstance(value, str):
        return value.encode(), "text/plain; charset=utf-8"
    return msgspec.json.encode(to_json(column)[0]), "application/json"


def json_text(value: Any) -> str:
    """A value in its JSON form as it stands in a cell: text without quotes."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _of_bytes(column: pa.Array) -> list[Cell]:
    is_text = _types.is_string(column.type)
    if not is_text:
        column = column.cast(pa.binary())
    short = pc.utf8_slice_codeunits(column, 0, LETTERS_MAX) if is_text else pc.binary_slice(column, 0, LETTERS_MAX)
    lengths, kept = (pc.binary_length(each).to_pylist() for each in (column, short))
    values = to_json(short)
    return [
        Cell(value, length if length != there else None)
        for value, length, there in zip(values, lengths, kept, strict=True)
    ]


def _of_nested(value: Any) -> Cell:
    if value is None:
        return NULL
    encoded = msgspec.json.encode(value)
    if len(encoded) <= LETTERS_MAX:
        return Cell(value)
    return Cell(encoded.decode()[:LETTERS_MAX], len(encoded))
