"""``kvstore undo`` and ``kvstore apply``: a patch that undoes changes, to be reviewed and then applied once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import kvstore
from kvstore.cli.arguments import AsJson, Directory, TableName, end_of, opened_store, start_of
from kvstore.cli.printing import print_json, print_line
from kvstore.errors import InvalidRequest

PatchFile = Annotated[Path, typer.Argument(metavar="FILE", help="File of a patch.", show_default=False)]


def undo(
    path: Directory,
    name: TableName,
    start: Annotated[
        str, typer.Option(metavar="BOUND", help="Undo changes from here on: earliest, an offset or a time.")
    ],
    end: Annotated[
        str | None, typer.Option(metavar="BOUND", help="Up to here, exclusive: an offset or a time.")
    ] = None,
    writer: Annotated[str | None, typer.Option(metavar="NAME", help="Only changes of this writer.")] = None,
    epoch: Annotated[int | None, typer.Option(metavar="N", help="Only changes of this epoch.")] = None,
    job: Annotated[str | None, typer.Option(metavar="NAME", help="Only changes of this ingestion job.")] = None,
    task: Annotated[int | None, typer.Option(metavar="N", help="Only changes of this task of the job.")] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the patch in a file.", show_default=False)
    ] = None,
) -> None:
    """Show what would undo changes of a table; the table stays as it is.

    With --to, the patch is saved: people review it, and `kvstore apply` applies it. Later changes of others stay, and
    rows that they changed, too, are shown with a `=`.
    """
    with opened_store(path) as store:
        table = store.table(name)
        last = None if end is None else end_of(end)
        patch = kvstore.Patch.of(table, table.undo(start_of(start), last, writer, epoch, job, task))
    for line in str(patch).splitlines():
        print_line(line)
    if to is not None:
        patch.save(to)
        print_line("")
        print_line(f"saved in {to}; to apply it: kvstore apply {path} {to}")


def apply(
    path: Directory,
    file: PatchFile,
    check: Annotated[bool, typer.Option("--check", help="Only say whether it can be applied.")] = False,
    as_json: AsJson = False,
) -> None:
    """Apply a patch to its table: all of it or nothing, and once.

    If rows have changed since it was made, nothing is applied, and the error names them. `head` shows what is in a
    patch.
    """
    patch = kvstore.Patch.load(file)
    with opened_store(path, write=not check) as store:
        table = _table_of(store, patch)
        if check:
            patch.check(table)
            done = patch.is_applied(table)
        else:
            done = patch.apply(table).duplicated
        name = table.name
    rows = len(patch.changes)
    if as_json:
        print_json({"table": name, "rows": rows, "applied_before": done, "applied_now": not (done or check)})
    elif done:
        print_line(f"{name}: the patch was applied before; nothing was written")
    elif check:
        print_line(f"{name}: the patch can be applied")
    else:
        print_line(f"{name}: {rows:,} {'row' if rows == 1 else 'rows'} changed, as {patch.writer}")


def _table_of(store: kvstore.Store, patch: kvstore.Patch) -> kvstore.Table:
    """The table of a patch, which may have another name now.

    Raises:
        InvalidRequest: It was dropped, or is one of another store.
    """
    names = store.list_tables()
    for name in sorted(names, key=lambda name: name != patch.table):
        table = store.table(name)
        if table.identity == patch.identity:
            return table
    raise InvalidRequest("The store does not have the table of the patch.", table=patch.table, tables=names)
