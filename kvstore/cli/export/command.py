"""``kvstore export``: rows or changes as a file, or on standard output."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import pyarrow as pa
import typer

import kvstore
from kvstore.cli.arguments import (
    AsJson,
    AsOf,
    Columns,
    Directory,
    TableName,
    Where,
    as_of,
    count_of,
    end_of,
    names_of,
    opened,
    start_of,
)
from kvstore.cli.export.target import replaced, standard_output
from kvstore.cli.export.writers import fits, writer_of
from kvstore.cli.load.portions import portions
from kvstore.cli.printing import print_json
from kvstore.cli.progress import Bar, Unit
from kvstore.cli.table.given_rows import FORMAT_OPTION
from kvstore.disk.files import Files
from kvstore.errors import InvalidRequest
from kvstore.ingest.formats import COMPRESSIONS, FORMATS, Format, format_of
from kvstore.read.changelog import End, Start
from kvstore.read.conditions import parse_filter

_TEXTS = (Format.CSV, Format.JSONL)


def export(
    path: Directory,
    name: TableName,
    format: Annotated[
        Format | None,
        typer.Option("--format", **FORMAT_OPTION, help="Format of the output; by default that of the suffix of --to."),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="A file, in place of standard output.", show_default=False),
    ] = None,
    changelog: Annotated[bool, typer.Option("--changelog", help="The changes, in place of the rows.")] = False,
    columns: Columns = None,
    where: Where = None,
    moment: AsOf = None,
    start: Annotated[
        str | None,
        typer.Option(metavar="BOUND", help="Changes from here on: full, earliest (default), an offset or a time."),
    ] = None,
    end: Annotated[
        str | None, typer.Option(metavar="BOUND", help="Changes up to here, exclusive: latest (default) …")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the rows of a table, or its changes, to a file or to standard output.

    A file is written under another name and renamed when it is whole: an interrupted export leaves what was there
    before. CSV and JSON lines are compressed if --to ends with .gz or .zst.
    """
    chosen = _format(format, to)
    compression = None if to is None else COMPRESSIONS.get(to.suffix.lower())
    if compression is not None and chosen not in _TEXTS:
        raise InvalidRequest(f"{chosen} compresses itself; leave {to.suffix if to else ''} out.", to=to)
    if changelog and (where is not None or moment is not None):
        raise InvalidRequest("--where and --as-of are for rows; leave them or --changelog out.")
    if not changelog and (start is not None or end is not None):
        raise InvalidRequest("--start and --end are for changes; give --changelog, too.")
    if as_json and to is None:
        raise InvalidRequest("--json tells what was exported; give --to, so that it is not between the rows.")
    with opened(path) as store:
        table = store.table(name)
        if changelog:
            begin, stop, wanted = start_of(start or "earliest"), end_of(end or "latest"), names_of(columns)
            schema, total = table.changelog_schema(wanted), _changes(table, begin, stop)
            batches: Iterator[pa.RecordBatch] = iter(table.changelog(begin, stop, columns=wanted))
        else:
            filter = parse_filter(where, table.schema)
            scanned = table.scan(names_of(columns), filter=filter, as_of=as_of(moment))
            schema, batches = scanned.schema, iter(scanned)
            total = count_of(table) if filter is None and moment is None else None
        unit: Unit = "changes" if changelog else "rows"
        hidden = to is None and sys.stdout.isatty()
        with Bar(name, unit, total, hidden=hidden) as bar, _target(path, to) as file:
            done = _write(batches, schema, chosen, file, compression, bar, stream=to is None or to.suffix == ".arrows")
    if to is None:
        return
    if as_json:
        print_json({unit: done, "file": str(to)})
    else:
        print(f"{to}: {done:,} {unit}", file=sys.stderr)


def _format(given: Format | None, to: Path | None) -> Format:
    if given is None:
        if to is not None and (format := format_of(to.name)) is not None:
            return format
        raise InvalidRequest(f"Give --format, one of {', '.join(FORMATS)}, or a file with the suffix of one by --to.")
    if to is None and given not in _TEXTS and sys.stdout.isatty():
        raise InvalidRequest(f"{given.capitalize()} is not for a terminal; give --to, or redirect the output.")
    return given


@contextmanager
def _target(store: Path, to: Path | None) -> Iterator[BinaryIO]:
    if to is None:
        with standard_output() as file:
            yield file
        return
    if Path(os.path.realpath(to)).is_relative_to(os.path.realpath(store)):
        raise InvalidRequest("The directory of the store is for the store; choose another.", to=to)
    with replaced(to, Files()) as file:
        yield file


def _write(
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    format: Format,
    file: BinaryIO,
    compression: str | None,
    bar: Bar,
    *,
    stream: bool,
) -> int:
    sink = file if compression is None else pa.CompressedOutputStream(file, compression)
    done = 0
    with fits(format):
        writer = writer_of(format, sink, schema, stream=stream)
    for rows in portions(batches):
        with fits(format):
            writer.write(rows)
        done += rows.num_rows
        bar.to(done)
    with fits(format):
        writer.close()
    if compression is not None:
        sink.close()
    return done


def _changes(table: kvstore.ReadTable, start: Start, end: End) -> int | None:
    """Number of changes in a range; None with the current rows before them."""
    if start == "full":
        return None
    return sum(stop - begin for begin, stop in table.offset_ranges(start, end).values())
