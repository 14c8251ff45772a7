"""Output of commands: aligned columns for people, JSON for programs; neither ever has a control character."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from rich.cells import cell_len, set_cell_size

from kvstore.disk.files import refusal
from logformat.rows.json_form import to_json

Row = Sequence[Any]

WIDTH_MAX = 60
"""Maximum width of a cell on a terminal; output to a pipe or file is not shortened."""

_BOLD, _RED = "\x1b[1m", "\x1b[31m"

_CHUNK_ROWS = 1000
"""Number of rows that determine the widths of columns."""

_UNSAFE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""Characters that JSON does not escape but a terminal may interpret."""


def plain(text: str) -> str:
    """Text in one line, with every unprintable character escaped."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def print_json(*documents: Any) -> None:
    """Print each document on a line."""
    _write_bytes(json_lines(documents))


def json_lines(documents: Iterable[Any]) -> bytes:
    """Each document on a line, with every character escaped that does not print."""
    lines = (msgspec.json.encode(document).decode() for document in documents)
    shown = (_UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", line) for line in lines)
    return "".join(f"{line}\n" for line in shown).encode("utf-8", "backslashreplace")


def print_findings(findings: Iterable[str]) -> None:
    """Print each finding on a line that begins with ``wrong:``."""
    for finding in findings:
        print_line(finding, label="wrong:")


def print_line(text: str, label: str = "") -> None:
    """Print a line, after a label such as ``wrong:`` that stands out on a terminal."""
    _write(f"{_styled(label, _RED)} {plain(text)}\n" if label else f"{plain(text)}\n")


def rows_of(batch: pa.RecordBatch) -> list[list[Any]]:
    """The rows of a batch, each value in its JSON form."""
    return [list(row) for row in zip(*map(to_json, batch.columns), strict=True)]


def print_batches(batches: Iterable[pa.RecordBatch], schema: pa.Schema, *, as_json: bool) -> None:
    """Print rows as they come: as aligned columns, or as one JSON object per line."""
    if as_json:
        for batch in batches:
            print_json(*(dict(zip(schema.names, row, strict=True)) for row in rows_of(batch)))
        return
    numbers = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in schema.types]
    printed = AlignedRows(schema.names, right=numbers)
    for batch in batches:
        for start in range(0, batch.num_rows, _CHUNK_ROWS):
            printed.add(rows_of(batch.slice(start, _CHUNK_ROWS)))
    printed.finish()


def print_table(names: Sequence[str], rows: Sequence[Row]) -> None:
    """Print a small table; a column that begins with a number is aligned to the right."""
    first: Row = rows[0] if rows else []
    printed = AlignedRows(names, right=[isinstance(cell, int) for cell in first])
    printed.add(rows)
    printed.finish()


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print names and values, one pair per line."""
    width = max(map(cell_len, map(plain, facts)), default=0)
    shown = ((set_cell_size(plain(name), width), cell(value)) for name, value in facts.items())
    _write("".join(f"{_styled(name, _BOLD)}  {value}\n" for name, value in shown))


def print_all_facts(facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print names and values, or one document with them."""
    if as_json:
        print_json(facts)
    else:
        print_facts(facts)


def print_records(names: Sequence[str], records: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print records of these names as a table, or all as one document."""
    if as_json:
        print_json(records)
    else:
        print_table(names, [[record[name] for name in names] for record in records])


def print_ends(ends_of: Mapping[str, Mapping[int, int]]) -> None:
    """Print how far each bucket of a copy reaches."""
    rows = [[table, bucket, end] for table, ends in ends_of.items() for bucket, end in ends.items()]
    print_table(["table", "bucket", "end"], rows)


def cell(value: Any) -> str:
    """A value in its JSON form for people: text without quotes, and ``null`` for a null."""
    if value is None:
        return "null"
    if isinstance(value, str):
        return plain(value)
    return plain(msgspec.json.encode(value).decode())


class AlignedRows:
    """A table printed some rows at a time; the first rows determine the widths of its columns.

    Args:
        names: Names of the columns.
        right: For each column, whether it is aligned to the right.
    """

    def __init__(self, names: Sequence[str], right: Sequence[bool] = ()) -> None:
        self._names = [plain(name) for name in names]
        self._right = [*right, *[False] * (len(names) - len(right))]
        self._widths: list[int] = []
        self._width_max = WIDTH_MAX if sys.stdout.isatty() else None

    def add(self, rows: Iterable[Row]) -> None:
        """Print some rows."""
        cells = [[self._cut(cell(value)) for value in row] for row in rows]
        heading: list[list[str]] = []
        if not self._widths:
            self._widths = [max(map(cell_len, column)) for column in zip(*chain([self._names], cells), strict=True)]
            heading = [self._names, ["-" * width for width in self._widths]]
        _write("".join(f"{_styled(self._line(row), _BOLD)}\n" for row in heading))
        _write("".join(f"{self._line(row)}\n" for row in cells))

    def finish(self) -> None:
        """Print the names if there were no rows."""
        if not self._widths:
            self.add([])

    def _line(self, cells: Sequence[str]) -> str:
        aligned = (
            " " * (width - cell_len(text)) + text if right else text + " " * (width - cell_len(text))
            for text, width, right in zip(cells, self._widths, self._right, strict=True)
        )
        return "  ".join(aligned).rstrip()

    def _cut(self, text: str) -> str:
        if self._width_max is None or cell_len(text) <= self._width_max:
            return text
        return set_cell_size(text, self._width_max - 1) + "…"


def _styled(text: str, style: str) -> str:
    """Text in a style on a terminal that has styles; as it is elsewhere, or if ``NO_COLOR`` is set."""
    plain_wanted = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if plain_wanted else f"{style}{text}\x1b[0m"


def _write(text: str) -> None:
    # Always UTF-8, which JSON requires, also in other locales.
    _write_bytes(text.encode("utf-8", "backslashreplace"))


def _write_bytes(data: bytes) -> None:
    out = StandardOutput()
    out.write(data)
    out.flush()


class StandardOutput(io.RawIOBase):
    """Standard output; an error other than that its reader has ended is one of the store."""

    def writable(self) -> bool:
        """Whether it can be written."""
        return True

    def write(self, data: object, /) -> int:
        """Write bytes.

        Raises:
            BrokenPipeError: The reader has ended.
            StoreFull, LogFailed: They can't be written; what follows is discarded.
        """
        with _refusals():
            return sys.stdout.buffer.write(memoryview(data))  # type: ignore[arg-type] # any buffer

    def flush(self) -> None:
        """Write what is in the buffer; see :meth:`write`."""
        with _refusals():
            sys.stdout.buffer.flush()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output()
        raise refusal(error, Path("standard output")) from error


def discard_output() -> None:
    """Discard what is still to be written to standard output, so that no error is printed when the interpreter ends."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
