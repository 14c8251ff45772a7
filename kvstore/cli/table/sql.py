"""``kvstore sql``: a query over the tables of a store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import pyarrow as pa
import typer

from kvstore.cli.arguments import AsJson, Directory, opened
from kvstore.cli.printing import print_batches
from kvstore.errors import InvalidRequest
from logformat.rows.arrow_values import as_type
from logformat.rows.schema import normalise_type


def sql(
    path: Directory,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="A SELECT of DuckDB.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Run a query over the tables of a store, by DuckDB (the extra `sql`).

    Tables are found by their names; changes('files', start, end) has the changes of one. A query reads nothing but
    tables of the store, and writes nothing. With --json, one object a line.
    """
    with opened(path) as store:
        try:
            reader = store.sql(query)
            schema = _printable(reader.schema, as_json=as_json)
            print_batches(_converted(reader, schema), schema, as_json=as_json)
        except InvalidRequest as error:
            if "reason" in error.where:
                error.where["reason"] = " ".join(str(error.where["reason"]).split())
            raise


def _printable(schema: pa.Schema, *, as_json: bool) -> pa.Schema:
    """The types in which the columns of a result are printed."""
    if as_json and len({*schema.names}) < len(schema):
        raise InvalidRequest("Two columns of the result have the same name; name them with AS.", columns=schema.names)
    fields = []
    for field in schema:
        try:
            kind = pa.string() if pa.types.is_null(field.type) else normalise_type(field.type, field.name)
        except InvalidRequest as error:
            raise InvalidRequest(
                "A column of the result has a type that can't be printed; cast it, such as to VARCHAR.",
                column=field.name,
                type=field.type,
            ) from error
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def _converted(batches: pa.RecordBatchReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        columns = [
            pa.nulls(batch.num_rows, kind) if pa.types.is_null(column.type) else as_type(column, kind)
            for column, kind in zip(batch.columns, schema.types, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
