"""``kvstore init``, ``create``, ``tables`` and ``describe``: stores and their tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
import typer

import kvstore
from kvstore.cli.arguments import AsJson, Directory, Keys, TableName, count_of, opened, opened_store
from kvstore.cli.printing import plain, print_facts, print_json, print_line, print_table
from kvstore.errors import InvalidRequest
from kvstore.ingest.formats import source_of
from kvstore.table.declared_schema import NOT_NULL, type_named
from logformat.rows import schema as schemas


def init(path: Directory) -> None:
    """Create a store in a new or empty directory.

    An existing store is not changed.
    """
    with kvstore.open(path):
        pass


def create(
    path: Directory,
    name: TableName,
    column: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:TYPE", help="A column; its type as `describe` has it.", show_default=False),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take the columns of a Parquet, Arrow, CSV or JSON lines file."),
    ] = None,
    key: Keys = None,
    append_only: Annotated[bool, typer.Option("--append-only", help="A log table: no key, only appended to.")] = False,
) -> None:
    """Create a table with a primary key, or a log table."""
    if bool(column) == bool(like):
        raise InvalidRequest("Give the columns, either each with --column, or by a file with --like.")
    columns = source_of(like).schema() if like else pa.schema([field_of(each) for each in column or []])
    with opened_store(path, write=True) as store:
        create_table(store, name, columns, key, append_only=append_only)


def create_table(
    store: kvstore.Store, name: str, columns: pa.Schema, key: list[str] | None, *, append_only: bool
) -> kvstore.Table:
    """Create a table as the options define it.

    Raises:
        InvalidRequest: They give neither a key nor ``--append-only``, or both.
    """
    if bool(key) == append_only:
        raise InvalidRequest("Name the columns of the primary key with --key, or give --append-only for a log table.")
    return store.create_table(name, columns, primary_key=key or None)


def tables(path: Directory, as_json: AsJson = False) -> None:
    """List the tables of a store."""
    with opened(path) as store:
        summaries = [_summary(store.table(name)) for name in store.list_tables()]
    if as_json:
        print_json(summaries)
    else:
        rows = [[each["table"], _key_text(each["primary_key"]), *list(each.values())[2:]] for each in summaries]
        print_table(["table", "key", "buckets", "rows", "log_start", "log_end"], rows)


def describe(path: Directory, name: TableName, as_json: AsJson = False) -> None:
    """Show a table: its key, columns, number of rows, offsets, and consumers."""
    with opened(path) as store:
        table = store.table(name)
        summary, schema, options = _summary(table), table.schema, msgspec.structs.asdict(table.options)
        del options["indexes"]  # these have places of columns in place of their names
        indexes, bucket_key = table.indexes, table.bucket_key
        consumers = _consumers(table) if isinstance(table, kvstore.Table) else []
    if as_json:
        details = {"bucket_key": bucket_key, "options": options, "columns": schemas.to_json(schema)}
        if indexes:
            details["indexes"] = indexes
        print_json({**summary, **details, "consumers": consumers})
        return
    keys = {"primary_key": _key_text(summary["primary_key"])}
    if bucket_key is not None:
        keys["bucket_key"] = _key_text(bucket_key)
    shown = {f"index {index}": _key_text(columns) for index, columns in indexes.items()}
    print_facts({**summary, **keys, **options, **shown})
    print_line("")
    print_table(
        ["column", "type", "nullable"],
        [[field.name, str(field.type), "yes" if field.nullable else "no"] for field in schema],
    )
    if consumers:
        print_line("")
        print_table(["consumer", "position", "behind"], [list(each.values()) for each in consumers])


def _consumers(table: kvstore.Table) -> list[dict[str, Any]]:
    consumers = table.consumers  # before the ends, so that no position is beyond them
    ends = [end for _, end in table.offsets().values()]
    facts = []
    for name, offsets in consumers.items():
        behind = sum(end - offsets[bucket] for bucket, end in enumerate(ends))
        position = [offsets[bucket] for bucket in range(len(ends))]
        facts.append({"consumer": name, "position": position if len(ends) > 1 else position[0], "behind": behind})
    return facts


def _summary(table: kvstore.ReadTable) -> dict[str, Any]:
    starts, ends = (list(offsets) for offsets in zip(*table.offsets().values(), strict=True))
    several = table.buckets > 1
    return {
        "table": table.name,
        "primary_key": table.primary_key,
        "buckets": table.buckets,
        "rows": count_of(table),
        "log_start": starts if several else starts[0],
        "log_end": ends if several else ends[0],
    }


def _key_text(key: tuple[str, ...] | None) -> str:
    return "(append-only)" if key is None else ", ".join(map(plain, key))


def field_of(given: str) -> pa.Field:
    """A column from ``NAME:TYPE``.

    Raises:
        InvalidRequest: It is not written so.
    """
    name, colon, kind = given.rpartition(":")
    if not colon:
        raise InvalidRequest("A column is written NAME:TYPE.", given=repr(given))
    return pa.field(name, type_named(kind.removesuffix(NOT_NULL)), not kind.endswith(NOT_NULL))
