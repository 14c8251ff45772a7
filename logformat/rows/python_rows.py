"""Rows of Arrow data as dicts of Python: what Arrow's ``to_pylist`` gives, but maps declared as dicts are dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from logformat.errors import UnsupportedOperation
from logformat.rows.schema import is_dict


def rows_of(rows: pa.RecordBatch | pa.Table, schema: pa.Schema) -> Iterator[dict[str, Any]]:
    """The rows, in order.

    Args:
        schema: Columns as the table stores them; those of the rows that it does not have are as Arrow gives them.

    Raises:
        UnsupportedOperation: Python has no such value, as for a time that is out of its range.
    """
    converted = [(field.name, convert) for field in schema if (convert := _dicts_in(field.type)) is not None]
    row: dict[str, Any]
    try:
        listed = rows.to_pylist()
    except (OverflowError, ValueError) as error:
        raise UnsupportedOperation(
            "Python has no such value; read the row as Arrow, by `lookup`, `find` or `to_arrow`.", reason=str(error)
        ) from error
    for row in listed:
        for name, convert in converted:
            row[name] = convert(row[name])
        yield row


def _dicts_in(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """The function from a value of Arrow to one with dicts; None if they are the same."""
    if pa.types.is_map(kind):
        item, make = _dicts_in(kind.item_type) or _same, dict if is_dict(kind) else list
        if make is list and item is _same:
            return None
        return lambda value: None if value is None else make((key, item(each)) for key, each in value)
    if pa.types.is_list(kind):
        element = _dicts_in(kind.value_type)
        return element and (lambda value: None if value is None else list(map(element, value)))
    if pa.types.is_struct(kind):
        fields = {field.name: convert for field in kind if (convert := _dicts_in(field.type)) is not None}
        if not fields:
            return None
        return lambda value: value and {name: fields.get(name, _same)(each) for name, each in value.items()}
    return None


def _same(value: Any) -> Any:
    return value
