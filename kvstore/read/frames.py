"""Rows as frames of other libraries, which are imported only here and only when they are asked for."""

from __future__ import annotations

from html import escape
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import SchemaMismatch, UnsupportedOperation
from logformat.errors import InvalidRequest
from logformat.rows.python_values import MISFITS
from logformat.rows.schema import normalise_type

SHOWN_CHARACTERS = 100
"""Number of characters of a value that HTML shows."""


def pandas_frame(rows: pa.Table) -> Any:
    """Rows as a ``pandas.DataFrame``.

    A column of integers with nulls has a nullable type of pandas, such as ``Int64``: as floats, large integers would
    not keep their value.

    Raises:
        UnsupportedOperation: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise not_installed("pandas", error) from error
    frame = rows.to_pandas()
    for field, column in zip(rows.schema, rows.columns, strict=True):
        if pa.types.is_integer(field.type) and column.null_count:
            nullable = pandas.api.types.pandas_dtype(str(field.type).replace("i", "I").replace("u", "U"))
            frame[field.name] = column.to_pandas(types_mapper={field.type: nullable}.get)
    return frame


def polars_frame(rows: pa.Table) -> Any:
    """Rows as a ``polars.DataFrame``.

    Raises:
        UnsupportedOperation: Polars is not installed, or has no type for a column.
    """
    try:
        import polars
    except ImportError as error:
        raise not_installed("polars", error) from error
    for field in rows.schema:
        if _has_wide_decimals(field.type):  # Polars would panic
            raise UnsupportedOperation(
                "Polars has decimals of at most 38 digits; read other `columns`.", column=field.name, type=field.type
            )
    return polars.DataFrame(rows)


def _has_wide_decimals(kind: pa.DataType) -> bool:
    parts = (kind.field(nth).type for nth in range(kind.num_fields))
    return pa.types.is_decimal256(kind) or any(map(_has_wide_decimals, parts))


def html_of(caption: str, rows: pa.Table) -> str:
    """Rows as an HTML table, with everything that is not ours escaped."""
    heads = "".join(f"<th>{escape(field.name)}<br>{escape(str(field.type))}</th>" for field in rows.schema)
    lines = "".join(
        f"<tr>{''.join(f'<td>{escape(_shown(value))}</td>' for value in row.values())}</tr>" for row in rows.to_pylist()
    )
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{lines}</tbody></table>"


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


def not_installed(package: str, error: ImportError) -> UnsupportedOperation:
    """The error for a package that kvstore works with and does not need."""
    return UnsupportedOperation(
        f"The package {package} is not installed; install it with: pip install {package}", reason=str(error)
    )


class _Capsule:
    """A schema as the Arrow PyCapsule interface passes it."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __arrow_c_schema__(self) -> object:
        return self._capsule


def stream_of(reader: pa.RecordBatchReader, requested: object = None) -> object:
    """Batches as a stream of the Arrow PyCapsule interface.

    Args:
        requested: The schema that the consumer would like, as a capsule: the same columns in another representation,
            such as large strings.

    Raises:
        SchemaMismatch: The requested schema has other columns, or types of other values.
    """
    if requested is not None:
        wanted = pa.schema(_Capsule(requested))
        if wanted.names != reader.schema.names:
            raise SchemaMismatch(
                "The requested schema has other columns.", requested=wanted.names, columns=reader.schema.names
            )
        fields = [_field_requested(given, each) for given, each in zip(reader.schema, wanted, strict=True)]
        reader = reader.cast(pa.schema(fields))
    return reader.__arrow_c_stream__()


def _field_requested(given: pa.Field, wanted: pa.Field) -> pa.Field:
    try:
        same = normalise_type(wanted.type) == given.type
        if same:
            pc.cast(pa.array([], given.type), wanted.type)
    except (InvalidRequest, *MISFITS):
        same = False
    if not same:
        raise SchemaMismatch(
            "The requested schema has a type of other values; request the column's type, or its large, view or"
            " dictionary form.",
            column=given.name,
            requested=wanted.type,
            type=given.type,
        )
    return given.with_type(wanted.type)
