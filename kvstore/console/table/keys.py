"""Keys in URLs and forms: a parameter for each of the key's columns, in the form that the command line has."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from kvstore import parse_key
from kvstore.console.html import Html, tag
from kvstore.console.parts import field
from kvstore.console.table.definition import Definition
from kvstore.console.values import json_text
from kvstore.errors import UnsupportedOperation
from logformat.rows.json_form import to_json


def key_fields(definition: Definition) -> list[pa.Field]:
    """The columns of a table's key.

    Raises:
        UnsupportedOperation: It is a log table.
    """
    if definition.primary_key is None:
        raise UnsupportedOperation("A log table has no rows by key; see its changes.", table=definition.name)
    return [definition.schema.field(name) for name in definition.primary_key]


def key_of(texts: list[str], definition: Definition) -> pa.RecordBatch:
    """A key from the texts of its columns, as one row.

    Raises:
        UnsupportedOperation: The table has no key.
        SchemaMismatch: There are too few or too many values, or one does not fit its column.
    """
    return parse_key(texts, key_fields(definition))


def bucket_of(key: pa.RecordBatch, definition: Definition) -> int:
    """The bucket of a key."""
    return definition.table.buckets_of(key)[0]


def texts_of(rows: pa.RecordBatch, definition: Definition) -> list[list[str]]:
    """The texts of the keys of rows."""
    columns = [to_json(rows.column(each.name)) for each in key_fields(definition)]
    return [[json_text(value) for value in key] for key in zip(*columns, strict=True)]


def values_of(key: pa.RecordBatch) -> list[Any]:
    """The values of a key in their JSON form."""
    return [to_json(column)[0] for column in key.columns]


def key_form(definition: Definition, given: list[str], path: str, button: str) -> Html:
    """A form that asks for a key."""
    fields = key_fields(definition)
    values = given if len(given) == len(fields) else [""] * len(fields)
    asked = [
        field(f"{each.name} ({each.type})", "key", value, required=not pa.types.is_string(each.type))
        for each, value in zip(fields, values, strict=True)
    ]
    return tag("form", asked, tag("button", button), action=path, role="search", aria_label=button)
