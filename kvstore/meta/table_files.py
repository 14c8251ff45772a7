"""The definition of each table, in a file beside its data: recovery of a lost catalog uses it (docs/format.md, TABLE).

* The file is written before the edit that it is about: while the catalog has a schema, rows of it can be read.
* Before a table is dropped its file gets another name, so a dropped table does not come back.
* The catalog is right wherever it is known. A file that is missing or old is written again when the table is opened.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias, TypeVar
from uuid import UUID

from kvstore.disk.files import Files, refusals
from kvstore.errors import CorruptData, LogFailed, Unavailable, UnsupportedOperation, UnsupportedVersion, WriterRejected
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState, TableDefinition
from logformat import paths
from logformat.catalog import table_file
from logformat.catalog.edits import AddSchema, AlterColumns, AlterTable, CreateTable, DropTable, Edit, RenameTable
from logformat.catalog.table_file import TABLE_BYTES_MAX, TableFile
from logformat.ids import BucketId, Epoch, TableId, Txid
from logformat.log.segment import HEAD_BYTES
from logformat.rows import schema as schemas

AboutDefinition: TypeAlias = CreateTable | AddSchema | RenameTable | AlterTable | AlterColumns | DropTable
DefinitionEdit = TypeVar("DefinitionEdit", bound=AboutDefinition)

_log = logging.getLogger(__name__)


@dataclass
class FoundTables:
    """Files of tables, as a store has them.

    Attributes:
        tables: Definitions by id.
        dropped: Tables that were being dropped.
        present: Tables that have a directory.
        damaged: One sentence for each file that can't be used.
    """

    tables: dict[TableId, TableFile] = field(default_factory=dict)
    dropped: set[TableId] = field(default_factory=set)
    present: set[TableId] = field(default_factory=set)
    damaged: list[str] = field(default_factory=list)


class TableFiles:
    """The files of the tables of one store."""

    def __init__(self, store: Path, store_id: UUID, files: Files) -> None:
        self._store = store
        self._store_id = store_id
        self._files = files
        self._completed = False

    def before(self, state: CatalogState, edit: DefinitionEdit) -> DefinitionEdit:
        """Bring the file of a table to what it is after an edit, which is about to be added after ``state``.

        Returns:
            The edit.

        Raises:
            StoreFull, LogFailed, NotAStore: The disk refuses.
        """
        id = edit.table_id
        with refusals(self._store):
            if isinstance(edit, AddSchema):
                self._write(state.tables[id], state, Txid(state.txid + 1), edit)
            elif not isinstance(edit, DropTable):
                following = Edit(txid=Txid(state.txid + 1), epoch=state.leader_epoch, time_ms=0, payload=edit)
                self._write(state.after(following).tables[id], state, following.txid)
            elif self._files.exists(file := paths.table_file(self._store, id)):
                self._files.rename(file, paths.dropped_file(self._store, id))
                self._files.sync_directory(file.parent)
        return edit

    def stage(self, directory: Path, state: CatalogState, edit: CreateTable, *, is_listed: bool = True) -> None:
        """Write the file of a new table into a directory that becomes the table's by an edit after ``state``.

        Args:
            is_listed: If false, it is the file of a dropped table until the catalog has the table.

        Raises:
            OSError: The disk refuses.
        """
        file = self._file_of(TableDefinition.of(edit), state.leader_epoch, Txid(state.txid + 1))
        name = paths.TABLE_FILE if is_listed else paths.DROPPED_FILE
        self._files.publish(directory / name, table_file.encode(file))

    def is_gone(self, id: TableId) -> bool:
        """Whether the files of a table say that it was dropped, or never was in the catalog."""
        dropped, there = paths.dropped_file(self._store, id), paths.table_file(self._store, id)
        return self._files.exists(dropped) and not self._files.exists(there)

    def complete(self, journal: Journal, opened: TableId | None = None) -> None:
        """Write the files that are missing; that of ``opened`` also if it is not what the catalog says.

        After the first call the files of other tables than ``opened`` are looked at only if it is None: a store of many
        tables opens each of them.

        Nothing depends on the files while the catalog is there. So if the disk refuses, this is only logged.
        """
        try:
            state = journal.state()
            only = opened if self._completed else None
            if self._wrong(state, opened, only):
                with journal.still() as state:
                    for definition in self._wrong(state, opened, only):
                        self._write(definition, state, state.txid)
            self._completed = True
        except (OSError, Unavailable, LogFailed, WriterRejected, UnsupportedOperation) as error:
            _log.warning("definitions of tables could not be written beside their data: %s", error)

    def write_all(self, state: CatalogState) -> None:
        """Write the files of all tables that differ from a catalog whose store no other process writes.

        Raises:
            OSError: The disk is full or failed.
        """
        for definition in state.tables.values():
            if not self._is_right(definition):
                self._write(definition, state, state.txid)

    def found(self) -> FoundTables:
        """The files as they are.

        Raises:
            UnsupportedVersion: A newer version wrote one.
            OSError: One can't be read.
        """
        tables = FoundTables()
        for directory in sorted((self._store / paths.TABLES).glob("*")):
            if not directory.name.isdecimal():
                continue
            id = TableId(int(directory.name))
            tables.present.add(id)
            try:
                tables.tables[id] = self._read(id)
            except FileNotFoundError:
                if self._files.exists(paths.dropped_file(self._store, id)):
                    tables.dropped.add(id)
            except UnsupportedVersion:
                raise
            except CorruptData as error:
                tables.damaged.append(f"definition of table {id}: {error}")
        return tables

    def damaged(self, state: CatalogState) -> dict[TableId, CorruptData | OSError]:
        """Tables of a catalog whose file can't be used, and why. A missing file is none of them.

        An OSError does not say that the file is damaged: it was not read.
        """
        damaged: dict[TableId, CorruptData | OSError] = {}
        for id in state.tables:
            try:
                self._read(id)
            except (FileNotFoundError, UnsupportedVersion):
                continue
            except (CorruptData, OSError) as error:
                damaged[id] = error
        return damaged

    def _wrong(self, state: CatalogState, opened: TableId | None, only: TableId | None) -> list[TableDefinition]:
        """Tables whose files are to be written, of all or of one."""
        tables = state.tables.items() if only is None else [(only, state.tables[only])] if only in state.tables else []
        return [
            table
            for id, table in tables
            if self._files.exists((file := paths.table_file(self._store, id)).parent)
            and (not self._files.exists(file) or (id == opened and not self._is_right(table)))
        ]

    def _is_right(self, definition: TableDefinition) -> bool:
        """Whether a file says what the catalog does, or is of a newer version, which knows better."""
        try:
            stored = self._read(definition.id)
        except UnsupportedVersion:
            return True
        except (FileNotFoundError, CorruptData):
            return False
        return stored == self._file_of(definition, stored.epoch, stored.txid)

    def _read(self, id: TableId) -> TableFile:
        path = paths.table_file(self._store, id)
        stored = table_file.decode(self._files.read(path, bytes_max=TABLE_BYTES_MAX))
        if (stored.store_id, stored.table_id) != (self._store_id, id):
            raise CorruptData("This is the definition of another table.", path=path, table_id=stored.table_id)
        return stored

    def _write(
        self, definition: TableDefinition, state: CatalogState, txid: Txid, added: AddSchema | None = None
    ) -> None:
        file = paths.table_file(self._store, definition.id)
        # What this process knows of the table's directory, it knows of its buckets.
        self._files.verify(paths.bucket_directory(self._store, definition.id, BucketId(0)))
        self._files.publish(file, table_file.encode(self._file_of(definition, state.leader_epoch, txid, added)))
        if self._files.exists(dropped := paths.dropped_file(self._store, definition.id)):
            self._files.remove(dropped)  # the drop was never committed
            self._files.sync_directory(file.parent)

    def _file_of(
        self, definition: TableDefinition, epoch: Epoch, txid: Txid, added: AddSchema | None = None
    ) -> TableFile:
        widths = [len(definition.schemas[id]) for id in sorted(definition.schemas)]
        if added is not None:
            widths.append(len(added.columns))
        key, bucket_key = definition.primary_key, definition.bucket_key
        return TableFile(
            format=table_file.format_of(widths),
            store_id=self._store_id,
            txid=txid,
            epoch=epoch,
            table_id=definition.id,
            name=definition.name,
            columns=schemas.to_json(definition.stored) if added is None else added.columns,
            widths=widths,
            primary_key=None if key is None else list(key),
            bucket_key=None if bucket_key is None else list(bucket_key),
            buckets=definition.buckets,
            options=definition.options,
        )


def lost_edits(
    state: CatalogState, files: FoundTables, dropped: Container[TableId], as_of: Callable[[TableId], Txid]
) -> tuple[list[AboutDefinition], list[str]]:
    """Edits that bring a catalog that lacks some back to the definitions of its tables.

    Args:
        state: All that is known of the catalog otherwise.
        dropped: Tables that were dropped by edits that are known.
        as_of: The last known edit of a table's definition.

    Returns:
        The edits, and one sentence for each definition that can't be used.
    """
    dropping = [DropTable(table_id=id) for id in sorted(files.dropped & state.tables.keys())]
    renaming: list[AboutDefinition] = []
    making: list[AboutDefinition] = []
    problems = []
    newer = {id for id, table in files.tables.items() if id not in state.tables or table.txid > as_of(id)}
    names = {table.name: id for id, table in state.tables.items() if id in files.present - files.dropped - newer}
    # A table that is new was created by the edit of its file; a rename that never came may have left the same txid.
    for id, table in sorted(
        files.tables.items(), key=lambda each: (each[1].txid, each[0] not in state.tables), reverse=True
    ):
        if id in dropped:
            continue
        table_there = state.tables.get(id)
        wanted = table.name if table_there is None or id in newer else table_there.name
        if names.setdefault(wanted, id) != id:
            problems.append(f"table {id}: the catalog has another table of its name, {wanted}")
            if table_there is None:
                continue
            # The name of a table stays what it was, or gets one that no other table can have.
            wanted = next(
                name for name in (table_there.name, f"{table_there.name}.{id}") if names.setdefault(name, id) == id
            )
        if table_there is not None and wanted != table_there.name:
            renaming.append(RenameTable(table_id=id, name=wanted))
        if table_there is not None and id in newer and table.options != table_there.options:
            making.append(AlterTable(table_id=id, options=table.options))
        making += table.edits()[0 if table_there is None else table_there.schema_id :]
    # First all names, so that at no time two tables that have one are changed.
    return [*dropping, *renaming, *making], problems


def has_changes(table: Path) -> bool:
    """Whether a table's directory holds changes."""
    segments = (each for each in table.glob(f"*/{paths.LOG}/*") if paths.segment_base(each.name) is not None)
    return any(segment.stat().st_size > HEAD_BYTES for segment in segments)
