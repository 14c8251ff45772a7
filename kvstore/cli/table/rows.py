"""``kvstore get``, ``scan``, ``explain`` and ``changelog``: rows and their changes."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvstore.cli.arguments import (
    AsJson,
    AsOf,
    BucketNumber,
    Columns,
    Directory,
    TableName,
    Where,
    as_of,
    beginning_of,
    end_of,
    key_of,
    names_of,
    opened,
    start_of,
)
from kvstore.cli.printing import print_batches, print_facts, print_json, print_line, rows_of
from kvstore.read.conditions import parse_filter
from kvstore.read.lookup import FOUND


def get(
    path: Directory,
    name: TableName,
    key: Annotated[list[str], typer.Argument(metavar="KEY", help="Values of the key's columns.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show the row of a key.

    Exit code 1 if there is none.
    """
    with opened(path) as store:
        table = store.table(name)
        (batch,) = table.lookup(key_of(key, table)).to_batches()
    row = dict(zip(batch.schema.names, rows_of(batch)[0], strict=True))
    is_there = row.pop(FOUND)
    if as_json:
        print_json(row if is_there else None)
    elif is_there:
        print_facts(row)
    if not is_there:
        print("kvstore: there is no row of this key", file=sys.stderr)
        raise typer.Exit(1)


def scan(
    path: Directory,
    name: TableName,
    columns: Columns = None,
    where: Where = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Only the first N rows.", min=0)] = None,
    moment: AsOf = None,
    start: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="First key; of several columns, once for each of the first, in key order."),
    ] = None,
    stop: Annotated[list[str] | None, typer.Option(metavar="VALUE", help="Key that ends the range, exclusive.")] = None,
    prefix: Annotated[
        list[str] | None,
        typer.Option(metavar="VALUE", help="Only keys that begin so; the last value may be the beginning of a text."),
    ] = None,
    reverse: Annotated[bool, typer.Option("--reverse", help="From the last key to the first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show rows in key order.

    With --json, one object a line.
    """
    with opened(path) as store:
        table = store.table(name)
        filter = parse_filter(where, table.schema)
        reader = table.scan(
            *(names_of(columns), filter, limit, as_of(moment)),
            start=beginning_of(start, table),
            stop=beginning_of(stop, table),
            prefix=beginning_of(prefix, table),
            reverse=reverse,
        )
        print_batches(reader, reader.schema, as_json=as_json)


def explain(
    path: Directory,
    name: TableName,
    where: Annotated[str, typer.Option("--where", metavar="EXPR", help="The condition, as of `kvstore scan`.")],
) -> None:
    """Show how the rows of a condition are found: by which index, in which part of the keys, or by reading all rows."""
    with opened(path) as store:
        table = store.table(name)
        for line in table.explain(parse_filter(where, table.schema)).split("\n"):
            print_line(line)


def changelog(
    path: Directory,
    name: TableName,
    start: Annotated[
        str, typer.Option(metavar="BOUND", help="full (current rows first), earliest, latest, an offset or a time.")
    ] = "earliest",
    end: Annotated[
        str, typer.Option(metavar="BOUND", help="Up to here, exclusive: latest, an offset or a time.")
    ] = "latest",
    bucket: BucketNumber = None,
    columns: Columns = None,
    where: Where = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further changes until interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show changes in the order of the log.

    With --where, what they do to the rows for which it is true: a row that comes into it is an insert, one that leaves
    it a delete. With --json, one object a line.
    """
    with opened(path) as store:
        table = store.table(name)
        wanted = names_of(columns)
        filter = parse_filter(where, table.schema)
        changes = table.changelog(start_of(start), end_of(end), bucket, wanted, follow, filter)
        print_batches(changes, table.changelog_schema(wanted), as_json=as_json)
