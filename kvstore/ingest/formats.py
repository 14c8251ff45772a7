"""Files as rows of a table: Parquet, Arrow, CSV and JSON lines, read a piece at a time.

* A file of any size takes bounded memory: some blocks of text, or a row group of Parquet, or a batch of Arrow.
* What a value is stands in the file or in the table's schema; nothing is guessed but the columns of a table that is
  created for a file of CSV or JSON lines.
* Whatever does not fit is a SchemaMismatch that says where: rows count from 1, a CSV file's heading not among them.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from csv import Error as NoCells, reader as cells
from enum import StrEnum
from io import BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec
import pyarrow as pa
from pyarrow import csv, ipc, json, parquet

from kvstore.errors import InvalidRequest, SchemaMismatch, StoreError
from logformat.rows import intake
from logformat.rows.json_form import from_json, from_text
from logformat.rows.python_values import MISFITS

PIECE_ROWS = 1 << 13
INFERRED_BYTES = 1 << 20
"""From so much of a file of text the columns of a new table are taken."""
CSV_BLOCK_BYTES = 1 << 24
"""No line of a CSV file may be longer."""

_NULLS = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
_UNREADABLE = (OSError, EOFError, UnicodeDecodeError, pa.ArrowException)
UNFIT = (StoreError, *MISFITS, RecursionError)
"""What a piece raises if a row does not fit."""

Piece = tuple[int, Callable[[int, int], pa.RecordBatch]]
"""A number of rows, and what makes those from one to another (exclusive) the table's."""
Broken = Callable[[int, str], None]
"""Told of a row that is none: its number, and what is wrong. Such rows are not in any piece."""


class Format(StrEnum):
    """How a file is written."""

    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    JSONL = "jsonl"


SUFFIXES = {
    **dict.fromkeys((".parquet", ".pq"), Format.PARQUET),
    **dict.fromkeys((".arrow", ".arrows", ".ipc", ".feather"), Format.ARROW),
    ".csv": Format.CSV,
    **dict.fromkeys((".jsonl", ".ndjson"), Format.JSONL),
}


class Reader(Protocol):
    """One format."""

    def columns(self, file: BinaryIO) -> pa.Schema:
        """Columns a table made for this file would have."""

    def names(self, file: BinaryIO) -> list[str]:
        """Names of the file's columns; those of the first row where each has its own."""

    def pieces(self, file: BinaryIO, schema: pa.Schema, broken: Broken | None = None) -> Iterator[Piece]:
        """All rows, in order; if nobody is told of those that are none, the file can't be read."""


class Source:
    """A file of rows; see :func:`source_of`."""

    def __init__(self, path: Path, reader: Reader) -> None:
        self.path = path
        self._reader = reader

    def state(self) -> tuple[int, int]:
        """Its size, and its time of change in nanoseconds: if one is another, so is the file.

        Raises:
            InvalidRequest: It is gone.
        """
        with readable(self.path):
            now = self.path.stat()
            return now.st_size, now.st_mtime_ns

    def schema(self) -> pa.Schema:
        """Columns a table made for this file would have.

        Raises:
            InvalidRequest: The file can't be read.
        """
        with readable(self.path), self.path.open("rb") as file:
            return self._reader.columns(file)

    def batches(self, schema: pa.Schema, read: Callable[[int], object] = lambda _: None) -> Iterator[pa.RecordBatch]:
        """All rows in order, as they are to be in a table of this schema.

        Args:
            read: Told how many bytes of the file were looked at, more or less.

        Raises:
            SchemaMismatch: A row does not fit.
            InvalidRequest: The file can't be read.
        """
        row = 1
        with readable(self.path), self.path.open("rb") as file:
            for rows, fit in self._reader.pieces(file, schema):
                yield from _fitting(fit, rows, row)
                row += rows
                read(file.tell())


@contextmanager
def readable(path: object) -> Iterator[None]:
    """Whatever keeps a file from being read as an InvalidRequest that names it."""
    try:
        yield
    except StoreError:
        raise
    except _UNREADABLE as error:
        raise InvalidRequest(
            "This file can't be read; see the reason, and whether --format is what it is.",
            path=path,
            reason=str(error),
        ) from error


def source_of(path: Path, format: Format | None = None) -> Source:
    """A file, in the format that is given or that its name tells.

    Raises:
        InvalidRequest: There is no such file, or its name does not tell.
    """
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise InvalidRequest("There is no file to read.", path=path, reason=error.strerror) from error
    if not is_file:
        raise InvalidRequest("Only a file can be loaded, for what is read once can't be gone on with.", path=path)
    found = format or SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise InvalidRequest(f"The file's name does not tell its format; give --format {', '.join(Format)}.", path=path)
    return Source(path, reader_of(found))


def reader_of(format: Format) -> Reader:
    """What reads a format."""
    return _READERS[format]()


class _Parquet:
    def columns(self, file: BinaryIO) -> pa.Schema:
        return parquet.ParquetFile(file).schema_arrow

    def names(self, file: BinaryIO) -> list[str]:
        return self.columns(file).names

    def pieces(self, file: BinaryIO, schema: pa.Schema, broken: Broken | None = None) -> Iterator[Piece]:  # noqa: ARG002
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(PIECE_ROWS):
                yield from _pieces_of(batch, schema)


class _Arrow:
    def columns(self, file: BinaryIO) -> pa.Schema:
        return self._opened(file).schema

    def names(self, file: BinaryIO) -> list[str]:
        return self.columns(file).names

    def pieces(self, file: BinaryIO, schema: pa.Schema, broken: Broken | None = None) -> Iterator[Piece]:  # noqa: ARG002
        opened = self._opened(file)
        if isinstance(opened, ipc.RecordBatchFileReader):
            batches = map(opened.get_batch, range(opened.num_record_batches))
        else:
            batches = iter(opened)
        for batch in batches:
            yield from _pieces_of(batch, schema)

    @staticmethod
    def _opened(file: BinaryIO) -> ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader:
        magic = file.read(6)
        file.seek(0)
        return ipc.open_file(file) if magic == b"ARROW1" else ipc.open_stream(file)


class _Csv:
    def columns(self, file: BinaryIO) -> pa.Schema:
        with self._opened(file, INFERRED_BYTES, csv.ConvertOptions(**_NULLS)) as opened:
            return opened.schema

    def names(self, file: BinaryIO) -> list[str]:
        text = TextIOWrapper(file, "utf-8-sig", newline="")
        try:
            return next(cells(text), [])
        except (UnicodeDecodeError, NoCells):
            return []  # whoever reads its rows is told
        finally:
            text.detach()

    def pieces(self, file: BinaryIO, schema: pa.Schema, broken: Broken | None = None) -> Iterator[Piece]:
        # As text, and made values of the table's types here: so that it is known which cell does not fit.
        as_text = csv.ConvertOptions(**_NULLS, column_types=dict.fromkeys(schema.names, pa.string()))
        with self._opened(file, CSV_BLOCK_BYTES, as_text, broken) as opened:
            for batch in opened:
                for start in range(0, batch.num_rows, PIECE_ROWS):
                    yield self._piece(batch.slice(start, PIECE_ROWS), schema)

    @staticmethod
    def _opened(
        file: BinaryIO, block: int, convert: csv.ConvertOptions, broken: Broken | None = None
    ) -> csv.CSVStreamingReader:
        def left_out(row: csv.InvalidRow) -> str:
            assert broken is not None
            # The heading counts as one there.
            broken(row.number - 1, f"it has {row.actual_columns} cells, and the heading {row.expected_columns}")
            return "skip"

        return csv.open_csv(
            file,
            read_options=csv.ReadOptions(use_threads=False, block_size=block),
            parse_options=csv.ParseOptions(
                newlines_in_values=True, invalid_row_handler=None if broken is None else left_out
            ),
            convert_options=convert,
        )

    @staticmethod
    def _piece(cells: pa.RecordBatch, schema: pa.Schema) -> Piece:
        def fit(start: int, stop: int) -> pa.RecordBatch:
            part = cells.slice(start, stop - start)
            columns = []
            for name, column in zip(part.schema.names, part.columns, strict=True):
                known = name in schema.names and pa.types.is_string(column.type)
                columns.append(_column(from_text, column, schema.field(name)) if known else column)
            return intake.conform(pa.RecordBatch.from_arrays(columns, part.schema.names), schema)

        return cells.num_rows, fit


class _JsonLines:
    def columns(self, file: BinaryIO) -> pa.Schema:
        lines = file.readlines(INFERRED_BYTES)
        if not lines:
            raise InvalidRequest("An empty file has no columns; create the table first.")
        text = b"".join(lines)
        found = json.read_json(BytesIO(text), json.ReadOptions(use_threads=False, block_size=len(text) + 1)).schema
        # What looks like a time is text: JSON has no times, and the next line may hold something else.
        return pa.schema([pa.field(field.name, _without_times(field.type)) for field in found])

    def names(self, file: BinaryIO) -> list[str]:
        first = next((line for line in file if not line.isspace()), b"{}")
        try:
            return list(msgspec.json.decode(first, type=dict[str, Any]))
        except UNFIT:
            return []  # whoever reads its rows is told

    def pieces(self, file: BinaryIO, schema: pa.Schema, broken: Broken | None = None) -> Iterator[Piece]:  # noqa: ARG002
        while lines := file.readlines(INFERRED_BYTES):
            yield self._piece([line for line in lines if not line.isspace()], schema)

    @staticmethod
    def _piece(lines: list[bytes], schema: pa.Schema) -> Piece:
        wanted = set(schema.names)

        def fit(start: int, stop: int) -> pa.RecordBatch:
            rows = [msgspec.json.decode(line) for line in islice(lines, start, stop)]
            for row in rows:
                if not isinstance(row, dict) or row.keys() != wanted:
                    raise SchemaMismatch(
                        "Each line is a JSON object with all of the table's columns, and no others.",
                        **_other_names(row, schema),
                    )
            columns = [_column(from_json, [row[field.name] for row in rows], field) for field in schema]
            return intake.conform(pa.RecordBatch.from_arrays(columns, schema=schema), schema)

        return len(lines), fit


_READERS: dict[Format, Callable[[], Reader]] = {
    Format.PARQUET: _Parquet,
    Format.ARROW: _Arrow,
    Format.CSV: _Csv,
    Format.JSONL: _JsonLines,
}


def _pieces_of(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[Piece]:
    for start in range(0, batch.num_rows, PIECE_ROWS):
        yield _piece_of(batch.slice(start, PIECE_ROWS), schema)


def _piece_of(batch: pa.RecordBatch, schema: pa.Schema) -> Piece:
    return batch.num_rows, lambda start, stop: intake.conform(batch.slice(start, stop - start), schema)


def _fitting(fit: Callable[[int, int], pa.RecordBatch], rows: int, first: int) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, or those before the first that does not fit, and then why it does not."""
    try:
        yield fit(0, rows)
        return
    except UNFIT:
        fit(0, 0)  # raises what is no row's fault
    fits, fails = 0, rows
    while fails - fits > 1:
        middle = (fits + fails) // 2
        try:
            fit(fits, middle)
            fits = middle
        except UNFIT:
            fails = middle
    yield fit(0, fits)
    try:
        yield fit(fits, fails)
    except StoreError as error:
        raise SchemaMismatch(error.message, **{"row": first + fits, **error.where}) from error
    except (*MISFITS, RecursionError) as error:
        raise SchemaMismatch("A row can't be read.", row=first + fits, reason=str(error)) from error


def _column(make: Callable[..., pa.Array], values: object, field: pa.Field) -> pa.Array:
    try:
        return make(values, field.type)
    except StoreError as error:
        raise SchemaMismatch(error.message, **error.where, column=field.name, expected=field.type) from error
    except MISFITS as error:
        raise SchemaMismatch(
            "A value does not fit the column's type.", column=field.name, expected=field.type, reason=str(error)
        ) from error


def _other_names(row: object, schema: pa.Schema) -> dict[str, object]:
    if not isinstance(row, dict):
        return {"given": type(row).__name__}
    missing = [name for name in schema.names if name not in row]
    return {"missing": missing, "unknown": [name for name in row if name not in schema.names]}


def _without_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _without_times(field.type)) for field in kind.fields])
    return kind
