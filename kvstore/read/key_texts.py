"""A key given as texts, one for each of its columns, as on a command line or in a URL."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from kvstore.arguments import shown
from kvstore.errors import SchemaMismatch
from logformat.rows.json_form import from_text
from logformat.rows.python_values import MISFITS


def parse_key(texts: Sequence[str], fields: Sequence[pa.Field]) -> pa.RecordBatch:
    """A key from the texts of its columns, as one row: ``t.lookup(parse_key(["7"], [t.schema.field("k")]))``.

    The forms of values are those of the command line. The row is a key for every call that takes one.

    Args:
        texts: One for each column, in the order of the key.
        fields: The columns of the key.

    Raises:
        SchemaMismatch: There are too few or too many texts, or one does not fit its column.
    """
    if len(texts) != len(fields):
        raise SchemaMismatch(
            "Give one value for each of the key's columns.", columns=[each.name for each in fields], given=len(texts)
        )
    columns = []
    for field, given in zip(fields, texts, strict=True):
        try:
            columns.append(from_text(pa.array([given], pa.string()), field.type))
        except (*MISFITS, SchemaMismatch) as error:
            raise SchemaMismatch(
                "A value does not fit the key's column.",
                column=field.name,
                expected=field.type,
                given=shown(given),
                reason=str(error)[:200],
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
