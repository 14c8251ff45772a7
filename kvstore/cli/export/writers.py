"""Writing of rows as Parquet, Arrow, CSV or JSON lines; ``load`` reads the same rows from it."""

from __future__ import annotations

import csv as lines
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import StringIO
from typing import BinaryIO, Protocol

import msgspec
import pyarrow as pa
from pyarrow import csv, ipc, parquet

from kvstore.cli.printing import json_lines, rows_of
from kvstore.errors import InvalidRequest
from kvstore.ingest.formats import Format
from logformat.rows.json_form import to_json


class Writer(Protocol):
    """Writes rows of one schema."""

    def write(self, rows: pa.RecordBatch) -> object:
        """Write some rows."""

    def close(self) -> object:
        """Write what the format has after the last row; the file stays open."""


def writer_of(format: Format, file: BinaryIO, schema: pa.Schema, *, stream: bool) -> Writer:
    """The writer of a format.

    Args:
        stream: Whether Arrow is written as a stream, which a reader takes batch by batch from a pipe.
    """
    return _WRITERS[format](file, schema, stream)


@contextmanager
def fits(format: Format) -> Iterator[None]:
    """Turn the error of a type that a format does not have into an InvalidRequest."""
    try:
        yield
    except (OSError, pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        raise InvalidRequest(
            f"{format.capitalize()} can't hold a column; choose another --format, or leave it out by --columns.",
            reason=str(error).partition("\n")[0],
        ) from error


class _Csv:
    """CSV as `load` reads it: a null is an empty cell, text is in quotes, other values have their JSON form."""

    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        heading = StringIO()
        lines.writer(heading, lineterminator="\n").writerow(schema.names)
        file.write(heading.getvalue().encode())
        self._schema = pa.schema([pa.field(field.name, _type_of_cells(field.type)) for field in schema])
        self._writer = csv.CSVWriter(file, self._schema, write_options=csv.WriteOptions(include_header=False))

    def write(self, rows: pa.RecordBatch) -> None:
        if rows.num_columns == 1 and rows.column(0).null_count:
            raise InvalidRequest(
                "CSV of one column can't have a null, which would be an empty line; choose another --format.",
                column=rows.schema.names[0],
            )
        columns = [
            column if column.type == kind else pa.array(map(_cell, to_json(column)), kind)
            for column, kind in zip(rows.columns, self._schema.types, strict=True)
        ]
        self._writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()


def _type_of_cells(kind: pa.DataType) -> pa.DataType:
    is_own = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
    return kind if is_own else pa.string()


def _cell(value: object) -> str | None:
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


class _JsonLines:
    def __init__(self, file: BinaryIO, schema: pa.Schema) -> None:
        self._file = file
        self._names = schema.names

    def write(self, rows: pa.RecordBatch) -> None:
        self._file.write(json_lines(dict(zip(self._names, row, strict=True)) for row in rows_of(rows)))

    def close(self) -> None:
        """Nothing comes after the last line."""


_WRITERS: dict[Format, Callable[[BinaryIO, pa.Schema, bool], Writer]] = {
    Format.PARQUET: lambda file, schema, _: parquet.ParquetWriter(file, schema),
    Format.ARROW: lambda file, schema, stream: (ipc.new_stream if stream else ipc.new_file)(file, schema),
    Format.CSV: lambda file, schema, _: _Csv(file, schema),
    Format.JSONL: lambda file, schema, _: _JsonLines(file, schema),
}
