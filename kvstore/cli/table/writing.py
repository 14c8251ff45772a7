"""``kvstore upsert``, ``delete`` and ``drop``: rows and tables that come and go."""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import typer

import kvstore
from kvstore.cli.arguments import AsJson, Directory, TableName, Where, key_of, names_of, opened_store
from kvstore.cli.load.portions import portions
from kvstore.cli.printing import plain, print_json, print_line
from kvstore.cli.progress import Bar
from kvstore.cli.table.given_rows import STANDARD_INPUT, Delimiter, FormatGiven, rows_given
from kvstore.errors import InvalidRequest, StoreError, UnsupportedOperation
from kvstore.ingest.formats import Format
from kvstore.ingest.tasks import columns_of
from kvstore.read.conditions import parse_filter
from logformat.log.change import ChangeType


def upsert(
    path: Directory,
    name: TableName,
    file: Annotated[
        str, typer.Argument(metavar="FILE|-", help="Rows; by default standard input.", show_default=False)
    ] = STANDARD_INPUT,
    format: FormatGiven = None,
    delimiter: Delimiter = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="A partial update: the rows have these columns, with those of the key; the others stay as they are.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Store rows, each in place of the stored row of its key; append them to a log table.

    The file is Parquet, Arrow, CSV or JSON lines; standard input is JSON, one row a line or an array, unless --format
    says otherwise. All of it is read before a row is written. Unlike `load`, the same command writes the rows again.
    """
    is_json_assumed = file == STANDARD_INPUT and format is None
    if is_json_assumed:
        format = Format.JSONL
    done = 0
    with opened_store(path, write=True) as store, rows_given(file, format, delimiter) as (source, _):
        table = store.table(name).with_fixed_columns()
        targets = names_of(columns)
        schema = _given(table, targets)
        try:
            with Bar(name, "bytes", source.state()[0]) as bar:
                for rows in portions(source.batches(schema, bar.to)):
                    table.upsert(rows, targets)
                    done += rows.num_rows
                    bar.say(f"{done:,} rows")
        except StoreError as error:
            if is_json_assumed and isinstance(error.__cause__, msgspec.DecodeError):
                error.message += " Standard input is read as JSON; for CSV give --format csv."
            error.where["rows_written"] = done
            raise
    if as_json:
        print_json({"rows": done})
    else:
        print_line(f"{name}: {done:,} rows written")


def _given(table: kvstore.Table, columns: list[str] | None) -> pa.Schema:
    """Columns that rows may have: without the one that the table fills, or those of a partial update."""
    if columns is None:
        return columns_of(table).schema
    if unknown := [name for name in columns if name not in table.schema.names]:
        raise InvalidRequest("The table has no such column.", unknown=unknown, columns=table.schema.names)
    return pa.schema([field for field in table.schema if field.name in columns])


def delete(
    path: Directory,
    name: TableName,
    key: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY",
            help="Values of the key's columns; several keys one after the other.",
            show_default=False,
        ),
    ] = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Delete rows by their keys, or all for which a condition is true.

    A key without a row is no error. `kvstore scan --where` shows what a condition would delete.
    """
    if bool(key) == (where is not None):
        raise InvalidRequest("Give keys, or a condition by --where.")
    with opened_store(path, write=True) as store:
        table = store.table(name).with_fixed_columns()
        if table.primary_key is None:
            raise UnsupportedOperation("A log table has no key, and its rows can't be deleted.", table=name)
        filter = parse_filter(where, table.schema)
        done = table.delete(_keys(table, key or [])) if filter is None else table.delete(where=filter)
        deleted = _deletes_of(table, done)
    if as_json:
        print_json({"deleted": deleted})
    else:
        print_line(f"{name}: {deleted:,} {'row' if deleted == 1 else 'rows'} deleted")


def _keys(table: kvstore.Table, cells: list[str]) -> pa.Table:
    width = len(table.primary_key or ())
    return pa.concat_tables([key_of(cells[start : start + width], table) for start in range(0, len(cells), width)])


def _deletes_of(table: kvstore.Table, done: kvstore.WriteResult) -> int:
    """Number of rows that a write deleted, by its changes: a key may have had no row."""
    deletes = 0
    for bucket, result in done.by_bucket.items():
        for batch in table.changelog(result.first_offset, result.log_end_offset, bucket, ["_change_type"]):
            deletes += pc.sum(pc.equal(batch.column(0), ChangeType.DELETE.word)).as_py()
    return deletes


def drop(
    path: Directory,
    name: TableName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a table with all its rows and changes; it can't be undone.

    On a terminal it asks first; elsewhere it needs --yes.
    """
    with opened_store(path, write=True) as store:
        table = store.table(name)
        if not yes:
            if not sys.stdin.isatty():
                raise InvalidRequest("A dropped table is gone; give --yes to say that you mean it.", table=name)
            changes = sum(end - start for start, end in table.offsets().values())
            question = f"Drop table {plain(name)} with all its rows and {changes:,} changes?"
            if not typer.confirm(question, err=True):
                print("kvstore: nothing was dropped", file=sys.stderr)
                raise typer.Exit(1)
        store.drop_table(name)
    print_line(f"{name}: dropped")
