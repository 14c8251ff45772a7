"""Identity of the table that is read: found once, so that another table of its name is never read instead.

Objects for other processes contain only text and numbers. Each process opens the store by itself, read-only except for
the catalog's records of readers; if the files can't be written, it reads without those.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from kvstore.errors import NoSuchTable, NotAStore
from kvstore.spark.options import Kind, Options
from kvstore.store.store import Store, open_reader
from kvstore.table.table import Table
from logformat.ids import SchemaId, TableId


@dataclass(frozen=True)
class TablePlace:
    """A table and the view of it that is read, for any process.

    Attributes:
        store_id, table_id: Ids of the store at the path and of the table of the name when they were found.
        schema_id: Schema of the table then: the columns that are read and written are called as in it.
    """

    path: str
    store_id: str
    name: str
    table_id: int
    kind: Kind
    schema_id: int

    @classmethod
    def of(cls, path: str, table: Table, kind: Kind) -> TablePlace:
        """Place of an open table."""
        store_id, table_id = table.identity
        return cls(path, str(store_id), table.name, table_id, kind, table.schema_id)

    @contextmanager
    def open(self) -> Iterator[Table]:
        """Open the table that was found.

        Raises:
            NoSuchTable: The table was dropped meanwhile.
            SchemaMismatch: Columns of the table were renamed or dropped meanwhile.
            NotAStore: The store is no longer at the path, or this host does not have it.
        """
        try:
            store = opened(self.path)
        except NotAStore as error:
            raise NotAStore(
                "This host does not have the store that the query reads. Let Spark use only hosts that have its "
                "directory, or read a replica of it, which any host can read.",
                host=socket.gethostname(),
                path=self.path,
            ) from error
        with store:
            yield self.table_of(store)

    def table_of(self, store: Store) -> Table:
        """The same table of an open store; see :meth:`open` for errors."""
        definition = store.runtime.catalog().tables.get(TableId(self.table_id))
        table = None if definition is None else store.table(definition.name)
        if table is None or table.identity != (UUID(self.store_id), self.table_id):
            raise NoSuchTable("The table was dropped since it was loaded; load it again.", table=self.name)
        self.check_names(store)
        return table

    def check_names(self, store: Store) -> None:
        """Verify that the columns of the table are called as they were.

        Raises:
            SchemaMismatch: Some were renamed or dropped.
        """
        definition = store.runtime.catalog().tables.get(TableId(self.table_id))
        if definition is not None:
            definition.check_names_of(SchemaId(self.schema_id))


def opened(path: str) -> Store:
    """Open the store at a path read-only; see :func:`kvstore.store.store.open_reader`.

    Raises:
        NotAStore: The path has no store.
    """
    try:
        return open_reader(path)
    except NotAStore as error:
        raise NotAStore(
            "There is no store here; give `path` the directory that kvstore.open() was given, on this machine.",
            path=os.path.abspath(path),
        ) from error


@contextmanager
def found(options: Options) -> Iterator[tuple[TablePlace, Table]]:
    """Open the table that options name.

    Raises:
        NotAStore, NoSuchTable: The store or the table does not exist.
    """
    with opened(options.path) as store:
        table = store.table(options.table)
        yield TablePlace.of(str(store.path), table, options.kind), table
