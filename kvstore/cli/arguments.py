"""Arguments that several commands share, with one meaning in all of them."""

from __future__ import annotations

import csv
import datetime as dt
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pyarrow as pa
import typer

import kvstore
from kvstore.arguments import bound_of
from kvstore.disk.files import read_file
from kvstore.errors import NotAStore, StoreError, UnsupportedOperation
from kvstore.read.changelog import End, Start
from kvstore.read.key_texts import parse_key
from kvstore.replica.location import replica_at
from logformat import paths
from logformat.catalog import store_file
from logformat.urls import shown_url

_URL = re.compile("([a-z][a-z0-9]+):/(.*)")  # a path has one slash where a URL has several
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the store.", show_default=False)]


def _tables_of(context: typer.Context, incomplete: str) -> list[str]:
    """Names of tables, when the shell completes a command."""
    try:
        with kvstore.open(location_of(context.params["path"]), read_only=True) as store:
            return [name for name in store.list_tables() if name.startswith(incomplete)]
    except StoreError:
        return []  # the command itself reports it


TableName = Annotated[
    str,
    typer.Argument(metavar="TABLE", help="Name of the table.", show_default=False, autocompletion=_tables_of),
]
Columns = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help='Only these columns, in this order: a,b. One with a comma goes in quotes: "a,b".'
    ),
]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="COLUMN", help="A column of the primary key; once for each, in key order."),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--where", metavar="EXPR", help="Only rows for which this is true: \"size > 100 and path like 'src/%'\"."
    ),
]
Url = Annotated[
    str,
    typer.Argument(metavar="URL", help="s3://bucket/path, gs://…, az://…, or a directory.", show_default=False),
]
AsOf = Annotated[
    str | None, typer.Option("--as-of", metavar="BOUND", help="Rows as they were before this offset or time.")
]
BucketNumber = Annotated[
    int | None, typer.Option("--bucket", metavar="N", help="Only this bucket, from 0.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  kvstore {line}" for line in lines)


def opened(path: Path) -> kvstore.Store | kvstore.StoreInReplica:
    """Open the store in a directory, or a replica or shared tables, also at a URL, to be read.

    Raises:
        NotAStore: The directory is not a store.
    """
    return kvstore.open(location_of(path), read_only=True)


def opened_store(path: Path, *, write: bool = False) -> kvstore.Store:
    """Open the store in a directory; never creates one.

    Raises:
        NotAStore: The directory is not a store.
        UnsupportedOperation: There is a replica, or shared tables.
    """
    location = location_of(path)
    if write and not isinstance(location, Path):
        return kvstore.open(location)  # which refuses it
    reading = kvstore.open(location, read_only=True)
    if write:
        with reading:
            return kvstore.open(location)
    if isinstance(reading, kvstore.StoreInReplica):
        reading.close()
        raise _no_store(reading.url)
    return reading


def _no_store(url: str) -> UnsupportedOperation:
    return UnsupportedOperation(
        "This command takes the directory of a store; a replica or a place of shared tables has rows and changes.",
        url=shown_url(url),
    )


def location_of(path: Path) -> Path | str:
    """The path that was given, or the URL: as a path, a URL has lost slashes."""
    url = _URL.fullmatch(str(path))
    if url is None or path.exists():
        return path
    return f"{url[1]}:///{url[2]}" if url[1] == "file" else f"{url[1]}://{url[2]}"


def refuse_replica(path: Path) -> None:
    """Refuse what is read by a URL, for a command that does not open the store.

    Raises:
        UnsupportedOperation: There is a replica, or shared tables.
    """
    if (url := replica_at(str(location_of(path)))) is not None:
        raise _no_store(url)


def store_id_of(path: Path) -> UUID:
    """Id of the store in a directory, also if its catalog is damaged.

    Raises:
        NotAStore: The directory is not a store.
    """
    try:
        return store_file.decode(read_file(path / paths.STORE_FILE, bytes_max=store_file.STORE_BYTES_MAX)).store_id
    except OSError as error:
        raise NotAStore("There is no store here; check the path.", path=location_of(path)) from error


def names_of(given: str | None) -> list[str] | None:
    """Names separated by commas."""
    return None if given is None else next(csv.reader([given], skipinitialspace=True), [])


def count_of(table: kvstore.ReadTable) -> int | None:
    """Number of rows of a table; None if it does not count them."""
    try:
        return table.count()
    except UnsupportedOperation:
        return None


def key_of(cells: Sequence[str], table: kvstore.ReadTable) -> pa.Table:
    """A key from its values on the command line, one for each of its columns.

    Raises:
        UnsupportedOperation: The table has no key.
        SchemaMismatch: The number of values is wrong, or one does not fit its column.
    """
    names = table.primary_key
    if names is None:
        raise UnsupportedOperation("A log table has no key; read it with `kvstore changelog`.", table=table.name)
    return pa.Table.from_batches([parse_key(cells, [table.schema.field(name) for name in names])])


def beginning_of(cells: Sequence[str] | None, table: kvstore.ReadTable) -> dict[str, Any] | None:
    """The first columns of a key from their values on the command line; None if there are none.

    Raises:
        UnsupportedOperation, SchemaMismatch: See :func:`key_of`.
    """
    if not cells:
        return None
    fields = [table.schema.field(name) for name in table.primary_key or ()][: len(cells)]
    row: dict[str, Any] = parse_key(cells, fields).to_pylist()[0] if fields else {}
    return row


def start_of(given: str) -> Start:
    """Start of a changelog.

    Raises:
        InvalidRequest: The text is not a valid start.
    """
    return bound_of("--start", given, "full", "earliest", "latest")


def end_of(given: str) -> End:
    """Exclusive end of a changelog.

    Raises:
        InvalidRequest: The text is not a valid end.
    """
    return bound_of("--end", given, "latest")


def as_of(given: str | None) -> int | dict[int, int] | dt.datetime | None:
    """Offset or time of the rows that are read; None for the current rows.

    Raises:
        InvalidRequest: The text is neither.
    """
    return None if given is None else bound_of("--as-of", given)
