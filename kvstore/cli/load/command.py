"""``kvstore load``: loads each row of a file into a table once, however often the load is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer

import kvstore
from kvstore.cli.arguments import AsJson, Directory, Keys, TableName, opened_store
from kvstore.cli.load.portions import RULE, portions
from kvstore.cli.load.position import position_of
from kvstore.cli.printing import print_json, print_line
from kvstore.cli.progress import Bar
from kvstore.cli.table.given_rows import Delimiter, FormatGiven, rows_given
from kvstore.cli.table.tables import create_table
from kvstore.errors import InvalidRequest, OutOfOrderSequence, StoreError
from kvstore.ingest.formats import Source
from kvstore.ingest.tasks import columns_of


@dataclass
class Loaded:
    """Result of a load, and of its earlier attempts.

    Attributes:
        rows, batches: Numbers applied now.
        rows_before, batches_before: Numbers that the table already had.
        first_offset, last_offset: Offsets of the new changes; None if there are none, or if the table has several
            buckets.
    """

    rows: int = 0
    batches: int = 0
    rows_before: int = 0
    batches_before: int = 0
    first_offset: int | None = None
    last_offset: int | None = None

    def add(self, rows: int, results: Sequence[kvstore.AppendResult], *, buckets: int) -> None:
        """Count a batch, given the results of all buckets; no results if it had been applied before."""
        made = [result for result in results if not result.duplicated]
        if not made:
            self.rows_before += rows
            self.batches_before += 1
            return
        self.rows += rows
        self.batches += 1
        if buckets == 1:
            self.first_offset = made[0].first_offset if self.first_offset is None else self.first_offset
            self.last_offset = made[0].last_offset


def load(
    path: Directory,
    name: TableName,
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="Rows, with all columns; - is standard input.", show_default=False)
    ],
    format: FormatGiven = None,
    delimiter: Delimiter = None,
    key: Keys = None,
    append_only: Annotated[
        bool, typer.Option("--append-only", help="Create a log table if there is no such table.")
    ] = False,
    skip: Annotated[int, typer.Option(metavar="ROWS", help="Leave out the first ROWS rows.", min=0)] = 0,
    called: Annotated[
        str | None,
        typer.Option("--name", help="Name that identifies this load in place of its path.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Load the rows of a file into a table.

    Rows are upserted, or appended to a log table. The file is Parquet, Arrow, CSV or JSON lines; a text may be
    compressed (.gz, .zst).

    With --key (once for each column) or --append-only the table is created if it does not exist.

    The same command continues an interrupted load: no row is applied twice, and a loaded file is not loaded again. A
    file with another path, size or time of change is another load.
    """
    done = Loaded()
    with opened_store(path, write=True) as store, rows_given(file, format, delimiter) as (source, digest):
        state = source.state()
        identity = _identity(source, state, digest, called, skip, delimiter)
        table = _table(store, name, source, key, append_only=append_only)
        try:
            _apply_all(table, source, state, identity, skip, done)
        except StoreError as error:
            error.where["rows_loaded"] = done.rows_before + done.rows
            raise
        except KeyboardInterrupt:
            rows = done.rows_before + done.rows
            # The last batch may be loaded, too.
            print(f"\nkvstore: interrupted; at least {rows} rows are loaded; repeat the command", file=sys.stderr)
            raise
    if as_json:
        print_json(done)
    else:
        print_line(_in_words(done, source.name))


def _identity(
    source: Source, state: tuple[int, int], digest: bytes | None, called: str | None, skip: int, delimiter: str | None
) -> bytes:
    """Everything by which two loads differ: for a file its name, size and time of change, else the content."""
    if called is not None:
        parts = [b"name:" + os.fsencode(called), RULE]
    else:
        parts = [b"path:" + os.fsencode(source.path.resolve()) if digest is None else b"standard input", RULE]
    parts += [b"%d" % number for number in state] if digest is None else [digest]
    parts.append(b"%d" % skip)
    return b"\0".join(parts if delimiter is None else [*parts, delimiter.encode()])


def _table(
    store: kvstore.Store, name: str, source: Source, key: list[str] | None, *, append_only: bool
) -> kvstore.Table:
    if name not in store.list_tables() and (key or append_only):
        columns = source.schema()
        try:
            return create_table(store, name, columns, key, append_only=append_only)
        except InvalidRequest as error:
            if "columns" in error.where and len(columns) == 1:
                error.message += " The file has one column; is --delimiter right?"
            raise
    table = store.table(name).with_fixed_columns()
    if (key and tuple(key) != table.primary_key) or (append_only and table.primary_key is not None):
        raise InvalidRequest(
            "The table exists with another key; leave --key and --append-only out, or load into another table.",
            table=name,
            primary_key=table.primary_key,
        )
    return table


def _apply_all(
    table: kvstore.Table, source: Source, state: tuple[int, int], identity: bytes, skip: int, done: Loaded
) -> None:
    buckets = table.buckets
    positions = [position_of(identity, table.bucket(bucket)) for bucket in range(buckets)]
    none = kvstore.Changes.of([], table.schema)
    with Bar(Path(source.name).name, "bytes", state[0]) as bar:
        rows = source.batches(columns_of(table).schema, bar.to)
        for batch, portion in enumerate(portions(_without_first(rows, skip))):
            if all(batch < position.batch for position in positions):
                done.add(portion.num_rows, [], buckets=buckets)
                continue
            if source.state() != state:
                raise InvalidRequest("The file was changed while it was read; load it again.", path=source.name)
            parts = table.by_bucket(kvstore.Changes.upserts(portion), other=batch % buckets)
            # Each bucket gets every batch, even an empty one, so that all buckets number batches equally.
            results = []
            for bucket, position in enumerate(positions):
                if batch < position.batch:
                    continue
                try:
                    changes = parts.get(bucket, none)
                    results.append(table.bucket(bucket).apply(changes, position.writer_id, batch - position.first))
                except OutOfOrderSequence:
                    # Another process loads the file, too, and is ahead by more batches than the table remembers.
                    positions[bucket] = position_of(identity, table.bucket(bucket))
                    if batch >= positions[bucket].batch:
                        raise
            done.add(portion.num_rows, results, buckets=buckets)
            bar.say(f"{done.rows_before + done.rows:,} rows")
        bar.to(state[0])
    if done.batches_before + done.batches < max(position.batch for position in positions):
        raise InvalidRequest(
            "The table has more batches of this load than the file; give the load another --name.",
            path=source.name,
            batches_loaded=max(position.batch for position in positions),
        )


def _without_first(batches: Iterator[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        left_out = min(rows, batch.num_rows)
        rows -= left_out
        yield batch.slice(left_out)


def _in_words(done: Loaded, file: str) -> str:
    if not done.batches:
        what = f"all {done.rows_before:,} rows of it were loaded before" if done.batches_before else "it has no rows"
        return f"{file}: {what}"
    earlier = f"; {done.rows_before:,} were loaded before" if done.batches_before else ""
    places = "" if done.first_offset is None else f", offsets {done.first_offset} to {done.last_offset}"
    return f"{file}: {done.rows:,} rows loaded{places}{earlier}"
