"""``kvstore alter``: changes of a table's columns, indexes, options and name, in one call.

* Each change is one edit of the catalog. All are decided first, each for the table that those before it make, by what
  the store itself decides them by; so a call that is wrong changes nothing.
* What may still fail then is a unique index, the disk, and what another process changes meanwhile. So columns are
  dropped last, because nothing brings them back.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeAlias

import typer

import kvstore
from kvstore.arguments import column_names
from kvstore.cli.arguments import Directory, TableName, opened_store
from kvstore.cli.table.tables import field_of
from kvstore.errors import InvalidRequest, StoreError
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.store.store import table_name
from kvstore.table.alteration import columns_added, columns_dropped, columns_renamed, renamed
from kvstore.table.definition import added_fields, altered_options, with_index, without_index
from logformat.catalog.edits import AlterTable, Edit, Payload, TableOptions
from logformat.ids import TableId, Txid

_Decision: TypeAlias = Callable[[CatalogState, TableDefinition], Payload]


@dataclass
class _Changes:
    """Changes of one table.

    Attributes:
        state: The catalog after all of them.
        calls: What makes them, each with the option that asks for it.
    """

    state: CatalogState
    table: TableId
    calls: list[tuple[str, Callable[[], object]]] = field(default_factory=list)

    def add(self, option: str, call: Callable[[], object], decide: _Decision) -> None:
        """Add a change after the others.

        Raises:
            InvalidRequest: It is not possible after them.
        """
        now = self.state
        payload = decide(now, now.tables[self.table])
        self.state = now.after(Edit(txid=Txid(now.txid + 1), epoch=now.leader_epoch, time_ms=0, payload=payload))
        self.calls.append((option, call))

    def make(self) -> None:
        """Make them. An error says which of them are done."""
        done: list[str] = []
        for option, call in self.calls:
            try:
                call()
            except StoreError as error:
                if done:
                    error.where["done"] = done
                raise
            done.append(option)


def alter(
    path: Directory,
    name: TableName,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add", metavar="NAME:TYPE", help="A new column; null in the rows that are there.", show_default=False
        ),
    ] = None,
    rename_column: Annotated[
        list[str] | None,
        typer.Option(metavar="OLD:NEW", help="A column and its new name.", show_default=False),
    ] = None,
    drop: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A column that goes, with all its values.", show_default=False),
    ] = None,
    retention_days: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS", help="How long changes are kept; 0: for ever.", min=0, max=36_500, show_default=False
        ),
    ] = None,
    compression: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of new changes: lz4, zstd or none.", show_default=False),
    ] = None,
    delete_behavior: Annotated[
        str | None,
        typer.Option(metavar="WORD", help="What deletes do: allow, ignore or disable.", show_default=False),
    ] = None,
    index: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:COLUMNS", help="A new index; its columns with commas.", show_default=False),
    ] = None,
    unique_index: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:COLUMNS", help="A new index of unique values.", show_default=False),
    ] = None,
    drop_index: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="An index that goes.", show_default=False)
    ] = None,
    rename: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another name for the table.", show_default=False)
    ] = None,
) -> None:
    """Drop indexes and columns of a table, rename and add columns, add indexes, change its options and its name.

    All of it is checked before the first of it is done. Columns are dropped last, unless their names are used again.
    """
    options: dict[str, Any] = {}
    if retention_days is not None:
        options["retention"] = dt.timedelta(days=retention_days) if retention_days else None
    if compression is not None:
        options["compression"] = None if compression == "none" else compression
    if delete_behavior is not None:
        options["delete_behavior"] = delete_behavior
    names, added = _new_names(rename_column or []), [field_of(each) for each in add or []]
    indexes = [(*_index(each), False) for each in index or []] + [(*_index(each), True) for each in unique_index or []]
    if not (drop or names or added or options or indexes or drop_index) and rename is None:
        raise InvalidRequest(
            "Say what to change: --add NAME:TYPE, --rename-column OLD:NEW, --drop NAME, --index NAME:COLUMNS,"
            " --unique-index NAME:COLUMNS, --drop-index NAME, --retention-days, --compression, --delete-behavior or"
            " --rename."
        )
    with opened_store(path, write=True) as store:
        changes = _Changes(store.runtime.catalog(), store.runtime.definition(name).id)
        reused = {*names.values(), *(each.name for each in added)}
        drop_columns = partial(_drop_columns, changes, store, name, drop or [])
        for each in drop_index or []:
            without = _options(partial(without_index, name=each))
            changes.add(f"--drop-index {each}", partial(store.drop_index, name, each), without)
        if reused & set(drop or []):
            drop_columns()
        if names:
            changes.add(
                "--rename-column",
                partial(store.rename_columns, name, names),
                lambda _, now: columns_renamed(now, names),
            )
        if added:
            changes.add(
                "--add",
                partial(store.add_columns, name, added),
                lambda _, now: columns_added(now, added_fields(added)),
            )
        for index_name, index_columns, unique in indexes:
            changes.add(
                f"--{'unique-' if unique else ''}index {index_name}",
                partial(store.create_index, name, index_name, index_columns, unique=unique),
                _options(partial(with_index, name=index_name, columns=index_columns, unique=unique)),
            )
        if options:
            left_out = dict.fromkeys(("retention", "compression", "delete_behavior"), ...)
            changes.add(
                " ".join(f"--{each.replace('_', '-')}" for each in options),
                partial(store.alter_table, name, **options),
                _options(lambda now: altered_options(now.options, now.primary_key, **{**left_out, **options})),
            )
        if not reused & set(drop or []):
            drop_columns()
        if rename is not None:
            changes.add(
                f"--rename {rename}",
                partial(store.rename_table, name, rename),
                lambda state, now: renamed(state, now, table_name(rename)),
            )
        changes.make()


def _drop_columns(changes: _Changes, store: kvstore.Store, name: str, columns: list[str]) -> None:
    if columns:
        changes.add(
            "--drop",
            partial(store.drop_columns, name, columns),
            lambda _, now: columns_dropped(now, column_names("columns", columns)),
        )


def _options(altered: Callable[[TableDefinition], TableOptions]) -> _Decision:
    return lambda _, now: AlterTable(table_id=now.id, options=altered(now))


def _index(text: str) -> tuple[str, list[str]]:
    """Name and columns of an index from ``NAME:COLUMN,COLUMN``."""
    name, colon, columns = text.partition(":")
    if not colon:
        raise InvalidRequest("An index is NAME:COLUMNS, such as by_mail:mail or by_age:age,mail.", given=text)
    return name, columns.split(",")


def _new_names(given: list[str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for each in given:
        old, colon, new = each.partition(":")
        if not colon or ":" in new:
            raise InvalidRequest("A new name is written OLD:NEW.", given=repr(each))
        if names.setdefault(old, new) != new:
            raise InvalidRequest("A column has one new name.", column=repr(old))
    return names
