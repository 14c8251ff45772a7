"""Reading of Parquet, Arrow, CSV and JSON lines files as rows of a table, in portions.

* A file of any size takes bounded memory: some blocks of text, or a row group of Parquet, or a batch of Arrow. A row of
  CSV and a line of JSON have a limit, so this also holds for a small file that is large once it is decompressed.
* No thread of Arrow has an object of Python when a read ends: it would abort the process if that ends, too.
* The file or the table's schema defines the type of a value; types are inferred only for the columns of a table that is
  created from a CSV or JSON lines file.
* A row that does not fit raises a SchemaMismatch with its number: rows count from 1, without a CSV file's header.
"""

from __future__ import annotations

import stat
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from csv import Error as NoCells, reader as cells
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from io import BufferedReader, BytesIO, TextIOWrapper
from itertools import islice
from pathlib import Path, PurePosixPath
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, Protocol

import msgspec
import pyarrow as pa
from pyarrow import csv, ipc, json, parquet

from kvstore.arguments import shown
from kvstore.errors import InvalidRequest, SchemaMismatch, StoreError
from logformat.rows import intake
from logformat.rows.given import unnamed_index
from logformat.rows.json_form import from_json, from_text
from logformat.rows.python_values import MISFITS
from logformat.rows.schema import COLUMNS_MAX, NESTING_MAX

PORTION_ROWS = 1 << 13
INFERRED_BYTES = 1 << 20
"""Bytes of a text file from which the columns of a new table are inferred."""
CSV_BLOCK_BYTES = 1 << 24
"""Maximum length of a row of a CSV file."""
LINE_BYTES_MAX = 1 << 26
"""Maximum length of a line of a JSON lines file."""
ARRAY_BYTES_MAX = 1 << 28
"""Maximum size of a file that is one JSON array."""
_INFERRED_ELEMENTS = 1000
_NESTING_READ_MAX = 100
"""Values that lie deeper within each other are not given to Arrow."""
_COPIED_BYTES = 1 << 16
_RELEASE_SECONDS = 30
"""Longest wait for Arrow's threads to release a file: they may be in a read of one block."""
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
"""Suffixes that may follow that of a format of text."""

_LAST_CELL, _LAST_CELLS = "kvstore: the end", COLUMNS_MAX + 3
"""A row with more cells than any file's: it comes after the last one, unless that has a quote that is not closed."""
_STRADDLES = "straddles two block boundaries"
"""Part of Arrow's message of a row that is longer than a block."""
_NULLS = {"null_values": [""], "strings_can_be_null": True, "quoted_strings_can_be_null": False}
_UNREADABLE = (OSError, EOFError, UnicodeDecodeError, pa.ArrowException)
UNFIT = (StoreError, *MISFITS, RecursionError)
"""Errors of the conversion of a portion when a row does not fit."""

Portion = tuple[int, Callable[[int, int], pa.RecordBatch]]
"""A number of rows, and a function that converts rows ``[start, stop)`` of them to the table's columns."""
Broken = Callable[[int, str], None]
"""Called with the number of a row that can't be parsed, and the reason. Such rows are in no portion."""


class Format(StrEnum):
    """Format of a file."""

    PARQUET = "parquet"
    ARROW = "arrow"
    CSV = "csv"
    JSONL = "jsonl"


SUFFIXES = {
    **dict.fromkeys((".parquet", ".pq"), Format.PARQUET),
    **dict.fromkeys((".arrow", ".arrows", ".ipc", ".feather"), Format.ARROW),
    ".csv": Format.CSV,
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), Format.JSONL),
}
_TEXTS = (Format.CSV, Format.JSONL)
FORMATS = {**{format.value: format for format in Format}, "json": Format.JSONL}
"""Formats by the names that users give them."""


class Reader(Protocol):
    """Reads files of one format."""

    def columns(self, file: BinaryIO) -> pa.Schema:
        """Columns of a table created from this file."""

    def names(self, file: BinaryIO) -> list[str]:
        """Names of the file's columns; those of the first row in a format where each row has its own."""

    def portions(self, file: BinaryIO, schema: pa.Schema, broken: Broken | None = None) -> Generator[Portion]:
        """All rows in order; without ``broken``, a row that can't be parsed makes the file unreadable.

        Close it before the file.
        """


class Source:
    """A file of rows; see :func:`source_of`.

    Attributes:
        name: How messages name the file; its path if None.
        guess: What was guessed from the content, for a message; None if nothing was.
    """

    def __init__(
        self,
        path: Path,
        reader: Reader,
        compression: str | None = None,
        name: str | None = None,
        guess: str | None = None,
    ) -> None:
        self.path = path
        self.name = str(path) if name is None else name
        self.guess = guess
        self._reader = reader
        self._compression = compression

    def state(self) -> tuple[int, int]:
        """Size, and time of change in nanoseconds; they differ if the file has changed.

        Raises:
            InvalidRequest: The file no longer exists.
        """
        with readable(self.name):
            now = self.path.stat()
            return now.st_size, now.st_mtime_ns

    def schema(self) -> pa.Schema:
        """Columns of a table created from this file.

        Raises:
            InvalidRequest: The file can't be read, or the type of a column can't be guessed.
        """
        with self._opened() as (_, file):
            columns = self._reader.columns(file)
        _check_count(len(columns))
        if isinstance(self._reader, (_Csv, _JsonLines)) and (
            unknown := [field.name for field in columns if pa.types.is_null(field.type)]
        ):
            raise InvalidRequest(
                "No value of these columns is in the first MiB, so their types can't be guessed; create the table"
                " first: `kvstore create DIR TABLE --column NAME:TYPE …`.",
                path=self.name,
                columns=unknown,
            )
        return columns

    def batches(self, schema: pa.Schema, read: Callable[[int], object] = lambda _: None) -> Iterator[pa.RecordBatch]:
        """All rows in order, as a table of this schema stores them.

        Args:
            read: Called with the approximate number of bytes read from the file.

        Raises:
            SchemaMismatch: A row does not fit.
            InvalidRequest: The file can't be read.
        """
        row = 1
        try:
            self._check_header(schema)
            with self._opened() as (stored, file), closing(self._reader.portions(file, schema)) as portions:
                for rows, fit in portions:
                    yield from _fitting(fit, rows, row)
                    row += rows
                    read(stored.tell())
        except SchemaMismatch as error:
            if error.where.keys() & {"missing", "unknown"}:
                self._name_columns(error, schema)
            raise

    @contextmanager
    def _opened(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """The file as it is stored, and as it is read."""
        with readable(self.name), self.path.open("rb") as stored:
            yield stored, decompressed(stored, self._compression)

    def _check_header(self, schema: pa.Schema) -> None:
        """Refuse unknown columns of CSV before its rows: with the wrong separator their cells can't be counted."""
        if isinstance(self._reader, _Csv):
            with self._opened() as (_, file):
                names = self._reader.names(file)
            if unknown := [name for name in names if name not in schema.names]:
                raise SchemaMismatch("The table has no such column.", unknown=unknown, columns=schema.names)

    def _name_columns(self, error: SchemaMismatch, schema: pa.Schema) -> None:
        """Add the columns that the file has to an error about missing or unknown columns."""
        given = error.where.pop("given", None)
        with self._opened() as (_, file):
            names = given if isinstance(given, list) else self._reader.names(file)
        error.message += f" Columns found: {', '.join(names)}."
        if isinstance(self._reader, _Csv) and len(names) == 1:
            error.message += " Is --delimiter right?"
        unknown = [name for name in names if name not in schema.names]
        for name, close in ((name, get_close_matches(name, schema.names, 1)) for name in unknown):
            if close:
                error.message += f" Is {name} meant to be {close[0]}?"


@contextmanager
def readable(path: object) -> Iterator[None]:
    """Turn errors of reading a file into an InvalidRequest that names the file."""
    try:
        yield
    except StoreError:
        raise
    except _UNREADABLE as error:
        raise InvalidRequest(
            "This file can't be read; check the reason, and whether --format is its format.",
            path=path,
            reason=str(error),
        ) from error


def source_of(
    path: Path, format: Format | None = None, delimiter: str | None = None, name: str | None = None
) -> Source:
    """A file in the given format, or in the one of its suffix; a suffix ``.gz`` or ``.zst`` may follow.

    Args:
        delimiter: What separates the cells of a CSV file; a comma if None.
        name: How messages name the file; its path if None.

    Raises:
        InvalidRequest: There is no such file, its suffix is unknown, or an argument does not go with its format.
    """
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise InvalidRequest("There is no file to read.", path=path, reason=error.strerror) from error
    if not is_file:
        raise InvalidRequest(
            "Only a regular file can be loaded, because a load may have to be resumed; give - for standard input.",
            path=path,
        )
    format_used = format or format_of(path.name)
    if format_used is None:
        raise InvalidRequest(f"The file's suffix is unknown; give --format, one of {', '.join(FORMATS)}.", path=path)
    compression = compression_of(str(path), format_used)
    if delimiter is not None and format_used is not Format.CSV:
        raise InvalidRequest("--delimiter is for CSV.", format=format_used.value)
    if format_used is Format.CSV:
        return Source(path, _Csv(_checked(delimiter)), compression, name)
    source = Source(path, reader_of(format_used), compression, name)
    if format_used is not Format.JSONL:
        return source
    with source._opened() as (_, file):
        reader = reader_for(format_used, file)
    is_guessed = format is None and _suffixes(path.name)[0] == ".json"
    guess = "a JSON array" if isinstance(reader, _JsonArray) else "JSON lines"
    return Source(path, reader, compression, name, guess if is_guessed else None)


def _checked(delimiter: str | None) -> str:
    given = "," if delimiter is None else "\t" if delimiter == r"\t" else delimiter
    if len(given) != 1 or not given.isascii() or given in '"\r\n\0':
        raise InvalidRequest(r"--delimiter is one character of ASCII, such as ; or \t for a tab.", given=repr(given))
    return given


def _first_of(file: BinaryIO) -> bytes:
    """The first byte that is no white space; none of an empty file."""
    return next((line.strip()[:1] for line in iter(lambda: file.readline(1 << 16), b"") if line.strip()), b"")


def format_named(name: str) -> Format:
    """The format of a name in ``FORMATS``.

    Raises:
        InvalidRequest: There is none.
    """
    if name not in FORMATS:
        raise InvalidRequest("Unknown `format`; give one of these.", given=shown(name), formats=sorted(FORMATS))
    return FORMATS[name]


def format_of(name: str) -> Format | None:
    """The format of a file by the suffix of its name, which one of a compression may follow; None if it says none."""
    return SUFFIXES.get(_suffixes(name)[0])


def is_of(name: str, format: Format) -> bool:
    """Whether the suffixes of a name are those of a file of a format that can be read."""
    suffix, compression = _suffixes(name)
    return SUFFIXES.get(suffix) is format and (not compression or format in _TEXTS)


def compression_of(name: str, format: Format) -> str | None:
    """How a file of a format is compressed, by the suffix of its name; None if it is not.

    Raises:
        InvalidRequest: A compressed file of this format is not read.
    """
    compression = COMPRESSIONS.get(_suffixes(name)[1])
    if compression is not None and format not in _TEXTS:
        raise InvalidRequest(f"A compressed file of {format} can't be read; decompress it first.", path=name)
    return compression


def _suffixes(name: str) -> tuple[str, str]:
    """The suffix of a file's format, and of its compression, in lower case; empty where there is none."""
    path = PurePosixPath(name)
    if (last := path.suffix.lower()) not in COMPRESSIONS:
        return last, ""
    return path.with_suffix("").suffix.lower(), last


def decompressed(stored: BinaryIO, compression: str | None) -> BinaryIO:
    """The content of a file from where it is read now; the file stays open when this is closed."""
    if compression is None:
        return stored
    return BufferedReader(pa.CompressedInputStream(pa.PythonFile(_Lent(stored), "r"), compression))


def reader_of(format: Format) -> Reader:
    """The reader of a format."""
    return _READERS[format]()


def reader_for(format: Format, file: BinaryIO) -> Reader:
    """The reader of a file of a format, which it reads in part: JSON is lines, or one array."""
    return _JsonArray() if format is Format.JSONL and _first_of(file) == b"[" else reader_of(format)


class _Parquet:
    def columns(self, file: BinaryIO) -> pa.Schema:
        return _without_unnamed_index(parquet.ParquetFile(file).schema_arrow)

    def names(self, file: BinaryIO) -> list[str]:
        return self.columns(file).names

    def portions(self, file: BinaryIO, schema: pa.Schema, broken: Broken | None = None) -> Generator[Portion]:  # noqa: ARG002
        with parquet.ParquetFile(file) as opened:
            for batch in opened.iter_batches(PORTION_ROWS):
                yield from _portions_of(batch, schema)


class _Arrow:
    def columns(self, file: BinaryIO) -> pa.Schema:
        return _without_unnamed_index(self._opened(file).schema)

    def names(self, file: BinaryIO) -> list[str]:
        return self.columns(file).names

    def portions(self, file: BinaryIO, schema: pa.Schema, broken: Broken | None = None) -> Generator[Portion]:  # noqa: ARG002
        opened = self._opened(file)
        if isinstance(opened, ipc.RecordBatchFileReader):
            batches = map(opened.get_batch, range(opened.num_record_batches))
        else:
            batches = iter(opened)
        for batch in batches:
            yield from _portions_of(batch, schema)

    @staticmethod
    def _opened(file: BinaryIO) -> ipc.RecordBatchFileReader | ipc.RecordBatchStreamReader:
        magic = file.read(6)
        file.seek(0)
        return ipc.open_file(file) if magic == b"ARROW1" else ipc.open_stream(file)


class _Lent:
    """A file as Arrow's threads read it, and what they call; both end with it.

    Attributes:
        is_over: Whether nothing more is read.
    """

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.is_over = False

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the file; none if it is over."""
        return b"" if self.is_over else self._file.read(size)

    def close(self) -> None:
        """Arrow does this with what it reads; the file stays open."""
        self.is_over = True


class _LentCsv(_Lent):
    """A CSV file, with a row after its last one, which shows that no quote is open there.

    Attributes:
        is_whole: Whether that row was found, or none was needed.
        left_out_count: Number of rows that can't be parsed.
    """

    def __init__(self, file: BinaryIO, delimiter: str, broken: Broken | None) -> None:
        super().__init__(file)
        self._broken = broken
        self._left = f"\n{_LAST_CELL}{delimiter * (_LAST_CELLS - 1)}\n".encode()
        self._has_begun, self.is_whole = False, True
        self.left_out_count = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the file, and of the row after its last one."""
        data = super().read(size)
        while len(data) < size and (more := super().read(size - len(data))):
            data += more  # Arrow takes less for a block of its own
        self._has_begun = self._has_begun or bool(data.strip(b"\xef\xbb\xbf \t\r\n"))
        room = max(size - len(data), 0)
        if room and self._left and self._has_begun and not self.is_over:
            self.is_whole = False
            data, self._left = data + self._left[:room], self._left[room:]
        return data

    def left_out(self, row: csv.InvalidRow) -> str:
        """Take the number of a row that can't be parsed."""
        if row.actual_columns == _LAST_CELLS and row.text.startswith(_LAST_CELL):
            self.is_whole = True
            return "skip"
        if self._broken is None:
            return "error"
        self.left_out_count += 1
        # The parser counts the header as a row.
        self._broken(row.number - 1, f"it has {row.actual_columns} cells, and the header {row.expected_columns}")
        return "skip"


@dataclass
class _CsvBatches:
    """The batches of a CSV file; nothing else refers to Arrow's reader, so it is gone once this is closed."""

    opened: csv.CSVStreamingReader | None
    lent: _LentCsv | None

    @property
    def schema(self) -> pa.Schema:
        assert self.opened is not None
        return self.opened.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        rows, last = 0, None  # the last batch is given once it is known to be whole
        while self.opened is not None and self.lent is not None:
            try:
                batch = self.opened.read_next_batch()
            except StopIteration:
                # Raised here: no frame of the error has the file, which Arrow's threads must release.
                if not self.lent.is_whole:
                    raise pa.ArrowInvalid(
                        f"The last row ({rows + self.lent.left_out_count}) ends within a cell in quotes; is a quote "
                        "missing there, or the end of the file?"
                    ) from None
                batch = None
            if last is not None:
                yield last
            if batch is None:
                return
            rows += batch.num_rows
            last = batch

    def close(self) -> None:
        if self.opened is not None:
            self.opened.close()
        self.opened = self.lent = None


class _Csv:
    def __init__(self, delimiter: str = ",") -> None:
        self._delimiter = delimiter

    def columns(self, file: BinaryIO) -> pa.Schema:
        sample = _copied(file.read(2 * INFERRED_BYTES + 1))  # a row that is cut off here is not parsed
        with self._opened(sample, INFERRED_BYTES, csv.ConvertOptions(**_NULLS)) as batches:
            columns = batches.schema
        # Arrow does not look at names, and takes cells that are no text for bytes.
        if undecoded := [name for name, of in zip(columns.names, columns.types, strict=True) if pa.types.is_binary(of)]:
            raise pa.ArrowInvalid(f"No UTF-8 in {', '.join(undecoded)}")
        return columns

    def names(self, file: BinaryIO) -> list[str]:
        text = TextIOWrapper(file, "utf-8-sig", newline="")
        try:
            names = next(cells(_within_a_block(text), delimiter=self._delimiter), [])
        except NoCells:
            return []  # reading its rows raises the error
        finally:
            text.detach()
        _check_count(len(names))
        return names

    def portions(self, file: BinaryIO, schema: pa.Schema, broken: Broken | None = None) -> Generator[Portion]:
        # Read as text and converted to the table's types here, so that the cell that does not fit is known.
        as_text = csv.ConvertOptions(**_NULLS, column_types=dict.fromkeys(schema.names, pa.string()))
        with self._opened(file, CSV_BLOCK_BYTES, as_text, broken) as batches:
            for batch in batches:
                for start in range(0, batch.num_rows, PORTION_ROWS):
                    yield self._portion(batch.slice(start, PORTION_ROWS), schema)

    @contextmanager
    def _opened(
        self, file: BinaryIO, block: int, convert: csv.ConvertOptions, broken: Broken | None = None
    ) -> Iterator[_CsvBatches]:
        lent = _LentCsv(file, self._delimiter, broken)
        # C puts into this queue, no bytecode: before a get ends, the thread that releases the file is done with Python.
        released = SimpleQueue[object]()
        end = weakref.ref(lent, released.put)  # noqa: F841 (a reference that is gone calls nothing)
        batches = _CsvBatches(None, lent)
        try:
            batches.opened = csv.open_csv(
                # Copies what it reads into Arrow's memory: blocks that were read ahead are released late.
                pa.BufferedInputStream(pa.PythonFile(lent, "r"), _COPIED_BYTES),
                read_options=csv.ReadOptions(use_threads=False, block_size=block),
                parse_options=csv.ParseOptions(
                    delimiter=self._delimiter,
                    newlines_in_values=True,
                    invalid_row_handler=lent.left_out,
                ),
                convert_options=convert,
            )
            yield batches
        except pa.ArrowInvalid as error:
            if _STRADDLES in str(error):
                raise _too_long(block) from error
            raise
        finally:
            lent.is_over = True
            batches.close()
            del lent
            with suppress(Empty):
                released.get(timeout=_RELEASE_SECONDS)

    @staticmethod
    def _portion(cells: pa.RecordBatch, schema: pa.Schema) -> Portion:
        def fit(start: int, stop: int) -> pa.RecordBatch:
            part = cells.slice(start, stop - start)
            columns = []
            for name, column in zip(part.schema.names, part.columns, strict=True):
                is_text = name in schema.names and pa.types.is_string(column.type)
                columns.append(_column(from_text, column, schema.field(name)) if is_text else column)
            return intake.conform(pa.RecordBatch.from_arrays(columns, part.schema.names), schema)

        return cells.num_rows, fit


class _JsonLines:
    def columns(self, file: BinaryIO) -> pa.Schema:
        sample = BytesIO()
        for line in _lines(file):
            _check_nesting(line)
            sample.write(line)
            if sample.tell() >= INFERRED_BYTES:
                break
        if not (text := sample.getvalue()):
            raise InvalidRequest("An empty file has no columns; create the table first.")
        inferred = json.read_json(_copied(text), json.ReadOptions(use_threads=False, block_size=len(text) + 1)).schema
        # A value that looks like a time is text: JSON has no times, and the next line may have other text.
        return pa.schema([pa.field(field.name, _without_times(field.type)) for field in inferred])

    def names(self, file: BinaryIO) -> list[str]:
        line = next((line for line in _lines(file) if not line.isspace()), b"{}")
        try:
            return list(msgspec.json.decode(line, type=dict[str, Any]))
        except UNFIT:
            return []  # reading its rows raises the error

    def portions(self, file: BinaryIO, schema: pa.Schema, broken: Broken | None = None) -> Generator[Portion]:  # noqa: ARG002
        lines, size, rows = list[bytes](), 0, 0
        try:
            for line in _lines(file):
                if not line.isspace():
                    lines.append(line)
                    size += len(line)
                if size >= INFERRED_BYTES:
                    yield self._portion(lines, schema)
                    lines, size, rows = [], 0, rows + len(lines)
        except InvalidRequest as error:
            yield self._portion(lines, schema)
            error.where = {"row": rows + len(lines) + 1, **error.where}
            raise
        yield self._portion(lines, schema)

    @staticmethod
    def _portion(lines: list[bytes], schema: pa.Schema) -> Portion:
        wanted, required = set(schema.names), {field.name for field in schema if not field.nullable}

        def fit(start: int, stop: int) -> pa.RecordBatch:
            rows = [msgspec.json.decode(line) for line in islice(lines, start, stop)]
            for row in rows:
                if not isinstance(row, dict) or not required <= row.keys() <= wanted:
                    raise SchemaMismatch(
                        "Each line is a JSON object with the table's columns; only a nullable one may be left out.",
                        **_other_names(row, schema),
                    )
            columns = [_column(from_json, [row.get(field.name) for row in rows], field) for field in schema]
            return intake.conform(pa.RecordBatch.from_arrays(columns, schema=schema), schema)

        return len(lines), fit


class _JsonArray(_JsonLines):
    """One JSON array of objects; it is in memory as a whole."""

    def columns(self, file: BinaryIO) -> pa.Schema:
        lines = b"\n".join(self._elements(file)[:_INFERRED_ELEMENTS])
        return super().columns(BytesIO(lines))

    def names(self, file: BinaryIO) -> list[str]:
        return super().names(BytesIO(b"\n".join(self._elements(file)[:1])))

    def portions(self, file: BinaryIO, schema: pa.Schema, broken: Broken | None = None) -> Generator[Portion]:  # noqa: ARG002
        elements = self._elements(file)
        for start in range(0, len(elements), PORTION_ROWS):
            yield self._portion(elements[start : start + PORTION_ROWS], schema)

    @staticmethod
    def _elements(file: BinaryIO) -> list[bytes]:
        """The elements, each in one line."""
        data = file.read(ARRAY_BYTES_MAX + 1)
        if len(data) > ARRAY_BYTES_MAX:
            raise InvalidRequest(
                "A JSON array of this size is not read; make JSON lines of it, such as by `jq -c '.[]'`.",
                bytes_max=ARRAY_BYTES_MAX,
            )
        try:
            elements = msgspec.json.decode(data, type=list[msgspec.Raw])
        except msgspec.DecodeError as error:
            raise InvalidRequest("This file begins like a JSON array, and is none.", reason=str(error)) from error
        except RecursionError as error:
            raise _too_deep() from error
        # Outside of text, JSON has no line ends that mean anything; within text they are escaped.
        return [bytes(element).replace(b"\r", b" ").replace(b"\n", b" ") for element in elements]


_READERS: dict[Format, Callable[[], Reader]] = {
    Format.PARQUET: _Parquet,
    Format.ARROW: _Arrow,
    Format.CSV: _Csv,
    Format.JSONL: _JsonLines,
}


def _portions_of(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[Portion]:
    for start in range(0, batch.num_rows, PORTION_ROWS):
        yield _portion_of(batch.slice(start, PORTION_ROWS), schema)


def _portion_of(batch: pa.RecordBatch, schema: pa.Schema) -> Portion:
    return batch.num_rows, lambda start, stop: intake.conform(batch.slice(start, stop - start), schema)


def _copied(data: bytes) -> pa.BufferReader:
    """Data in Arrow's memory, to be read by Arrow's threads, which may outlive a call that raises an error.

    A thread that releases an object of Python while the interpreter ends aborts the process.
    """
    copy = pa.BufferOutputStream()
    copy.write(data)
    return pa.BufferReader(copy.getvalue())


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a JSON lines file.

    Raises:
        InvalidRequest: One is longer than ``LINE_BYTES_MAX``. Not all of it was read.
    """
    while line := file.readline(LINE_BYTES_MAX + 1):
        if len(line) > LINE_BYTES_MAX:
            raise InvalidRequest(
                "A line of JSON is longer than the limit; see whether the file has a row in each line, or write its"
                " rows as Parquet or Arrow.",
                bytes_max=LINE_BYTES_MAX,
            )
        yield line


def _check_nesting(line: bytes) -> None:
    """Refuse a line with values so deep within each other that Arrow would end the process.

    Raises:
        InvalidRequest: No table can have them.
    """
    if line.count(b"[") + line.count(b"{") <= _NESTING_READ_MAX:
        return
    try:
        level, depth = [msgspec.json.decode(line)], 0
    except msgspec.DecodeError:
        return  # reading the line raises the error
    except RecursionError:
        level, depth = [None], _NESTING_READ_MAX
    while level and depth <= _NESTING_READ_MAX:
        level = [inner for each in level for inner in _within(each)]
        depth += 1
    if depth > _NESTING_READ_MAX:
        raise _too_deep()


def _too_deep() -> InvalidRequest:
    return InvalidRequest(
        "Values of this file lie deeper within each other than in any table; write what is within as text.",
        nesting_max=NESTING_MAX,
    )


def _within(value: object) -> Iterable[object]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _check_count(columns: int) -> None:
    """Refuse a file with so many columns that a message about them would be as large.

    Raises:
        InvalidRequest: No table can have them.
    """
    if columns > COLUMNS_MAX + 1:  # one may say what a row does
        raise InvalidRequest(
            "This file has more columns than a table can have; see whether the first row of CSV has their names.",
            columns=columns,
            columns_max=COLUMNS_MAX,
        )


def _within_a_block(text: TextIOWrapper) -> Iterator[str]:
    """The lines of a CSV file, as far as its first row may have them."""
    left = CSV_BLOCK_BYTES
    while line := text.readline(left + 1):
        left -= len(line)
        if left < 0:
            raise _too_long(CSV_BLOCK_BYTES)
        yield line


def _too_long(block: int) -> InvalidRequest:
    return InvalidRequest(
        "A row of CSV is longer than the limit; see whether a quote is missing at the end of a cell, or write the rows"
        " as JSON lines, Parquet or Arrow.",
        bytes_max=block,
    )


def _fitting(fit: Callable[[int, int], pa.RecordBatch], rows: int, first: int) -> Iterator[pa.RecordBatch]:
    """The rows of a portion; or the rows before the first one that does not fit, and then its error."""
    try:
        yield fit(0, rows)
        return
    except UNFIT:
        fit(0, 0)  # raises an error that concerns all rows
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
    if len(row) > COLUMNS_MAX:
        return {"columns": len(row), "columns_max": COLUMNS_MAX}
    missing = [field.name for field in schema if not field.nullable and field.name not in row]
    return {"missing": missing, "unknown": [name for name in row if name not in schema.names], "given": list(row)}


def _without_unnamed_index(schema: pa.Schema) -> pa.Schema:
    """The columns of a file without an index of pandas that has no name."""
    dropped = unnamed_index(schema)
    return pa.schema([field for field in schema if field.name not in dropped]) if dropped else schema


def _without_times(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _without_times(field.type)) for field in kind.fields])
    return kind
