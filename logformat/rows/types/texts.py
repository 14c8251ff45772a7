"""Text and bytes."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pyarrow as pa

from logformat.rows.types.column_type import ColumnType, Layout, all_of


def _width(parameters: Any) -> pa.DataType | None:
    match parameters:
        case int(width) if 0 < width < 2**31:
            return pa.binary(width)
    return None


def _bytes_to_json(column: pa.Array) -> list[str]:
    return [base64.b64encode(value).decode("ascii") for value in column.to_pylist()]


def _bytes_from_json(values: list[Any], _: pa.DataType) -> list[Any]:
    all_of(values, str)
    return [None if value is None else base64.b64decode(value, validate=True) for value in values]


TEXTS = ColumnType(
    carried=(pa.large_string(), pa.string_view()),
    layout=Layout.VARIABLE,
    plain=(pa.string(),),
    stored_as=lambda _: pa.string(),
    taken=(str,),
)
BYTES = ColumnType(
    carried=(pa.large_binary(), pa.binary_view()),
    layout=Layout.VARIABLE,
    plain=(pa.binary(),),
    stored_as=lambda _: pa.binary(),
    taken=(bytes, bytearray, memoryview),
    to_json=_bytes_to_json,
    from_json=_bytes_from_json,
)
FIXED_BYTES = replace(
    BYTES,
    carried=(),
    layout=Layout.OPAQUE,
    plain=(),
    examples=(pa.binary(1), pa.binary(7), pa.binary(16), pa.binary(20)),
    name="fixed_size_binary",
    parameters=lambda stored: stored.byte_width,
    made=_width,
    stored_as=lambda given: given if given.byte_width else None,
)
