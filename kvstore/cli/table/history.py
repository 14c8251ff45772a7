"""``kvstore history``: every version of a row."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import pyarrow as pa
import typer

from kvstore.cli.arguments import AsJson, Directory, TableName, key_of, opened, start_of
from kvstore.cli.printing import AlignedRows, print_batches
from kvstore.history.difference import difference
from kvstore.history.versions import LOG_START
from logformat.log.change import ChangeType
from logformat.rows.json_form import to_json

_WORDS = {
    ChangeType.INSERT.word: "insert",
    ChangeType.UPDATE_POSTIMAGE.word: "update",
    ChangeType.DELETE.word: "delete",
}


def history(
    path: Directory,
    name: TableName,
    key: Annotated[list[str], typer.Argument(metavar="KEY", help="Values of the key's columns.", show_default=False)],
    start: Annotated[str, typer.Option(metavar="BOUND", help="From here on: earliest, an offset or a time.")] = (
        "earliest"
    ),
    as_json: AsJson = False,
) -> None:
    """Show every version of a row that the log holds, and who wrote it.

    With --json, one object a line, with the whole row before and after. Exit code 1 if there is no version.
    """
    with opened(path) as store:
        table = store.table(name)
        (given,) = key_of(key, table).to_pylist()
        versions = table.history(given, start_of(start))
        names = table.primary_key or ()
    if as_json:
        print_batches(versions.to_batches(), versions.schema, as_json=True)
    elif versions.num_rows:
        _print(versions, names)
    begins = int(versions.schema.metadata[LOG_START])
    if not versions.num_rows:
        print("kvstore: the log has no change of this key", file=sys.stderr)
    if begins:
        print(f"kvstore: the log begins at offset {begins}; earlier versions are gone", file=sys.stderr)
    if not versions.num_rows:
        raise typer.Exit(1)


def _print(versions: pa.Table, key: tuple[str, ...]) -> None:
    columns = {name: to_json(versions.column(name).combine_chunks()) for name in versions.schema.names}
    printed = AlignedRows(["offset", "time", "change", "writer", "epoch", "file", "what"], right=[True])
    printed.add([_line(dict(zip(columns, row, strict=True)), key) for row in zip(*columns.values(), strict=True)])
    printed.finish()


def _line(version: dict[str, Any], key: tuple[str, ...]) -> list[Any]:
    what = difference(version["before"], version["after"], key)
    cells = (version["writer"], version["epoch"], version["file"])
    return [
        *(version["_log_offset"], version["_commit_timestamp"], _WORDS[version["_change_type"]]),
        *("" if each is None else each for each in cells),
        what,
    ]
