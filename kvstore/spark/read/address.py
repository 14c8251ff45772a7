"""Identity of the table that is read: found once, so that another table of its name is never read instead.

Objects for other processes contain only text and numbers. Each process opens the store by itself, read-only except for
the catalog's records of readers; if the files can't be written, it reads without those.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import column_names
from kvstore.errors import NoSuchTable, NotAStore, UnsupportedOperation
from kvstore.history.shape import check_shapes
from kvstore.meta.state import TableDefinition
from kvstore.read.binlog import binlog_schema
from kvstore.read.changelog import changelog_schema
from kvstore.read.conditions import parse_filter
from kvstore.read.scan import scan_schema
from kvstore.read.time_travel import check_undoable
from kvstore.spark.options import Kind, Options
from kvstore.store.store import Store, open_reader
from kvstore.table.table import Table


class Where(StrEnum):
    """Where a table is: in a store on this machine, in a replica, or among shared tables."""

    STORE = "store"
    REPLICA = "replica"
    SHARED = "shared"


@dataclass(frozen=True)
class TableAddress:
    """A table and the view of it that is read, for any process.

    Attributes:
        path: Directory of the store; URL of a replica, or of shared tables.
        store_id: Id of the store when the table was found.
        definition: The table then: the columns that are read and written are called as in it.
        filter: A condition on the rows whose changes are read; None for all.
    """

    path: str
    store_id: UUID
    definition: TableDefinition
    kind: Kind
    where: Where = Where.STORE
    filter: str | None = None

    @classmethod
    def of(cls, path: str, table: Table, kind: Kind, filter: str | None = None) -> TableAddress:
        """Place of an open table of a store."""
        return cls(path, table.identity[0], table.parts.definition, kind, filter=filter)

    def shape(self) -> pc.Expression | None:
        """The filter, which shapes the changes.

        Raises:
            InvalidRequest: It is no condition on the columns of the table.
            UnsupportedOperation: The changelog is a WAL image.
        """
        condition = parse_filter(self.filter, self.definition.schema)
        if condition is not None:
            check_shapes(self.definition, condition)
        return condition

    @property
    def table_id(self) -> int:
        """Id of the table."""
        return self.definition.id

    @property
    def name(self) -> str:
        """Name of the table when it was found."""
        return self.definition.name

    @property
    def schema_id(self) -> int:
        """Schema of the table when it was found."""
        return self.definition.schema_id

    def stored(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """Stored columns of the view; all if None.

        Raises:
            SchemaMismatch: There is no such column.
            UnsupportedOperation: The table does not have this view.
        """
        names = None if columns is None else column_names("columns", columns)
        if self.kind is Kind.ROWS:
            self.check_key()
            return scan_schema(self.definition, names)
        if self.kind is Kind.BINLOG:
            check_undoable(self.definition)
            return binlog_schema(self.definition, names)
        return changelog_schema(self.definition, names)

    def check_key(self) -> None:
        """Verify that the table has a key, and so rows.

        Raises:
            UnsupportedOperation: It is a log table.
        """
        if self.definition.primary_key is None:
            raise UnsupportedOperation(
                "A log table has no key; read `<table>$changelog` from `earliest`.", table=self.definition.name
            )

    @contextmanager
    def open(self) -> Iterator[Table]:
        """Open the table of a store that was found.

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
        """The same table of an open store, with the columns that it had; see :meth:`open` for errors."""
        definition = store.runtime.catalog().tables.get(self.definition.id)
        table = None if definition is None else store.table(definition.name)
        if table is None or table.identity != (self.store_id, self.table_id):
            raise NoSuchTable("The table was dropped since it was loaded; load it again.", table=self.name)
        return table.with_fixed_columns(self.schema_id)

    def check_names(self, store: Store) -> None:
        """Verify that the columns of the table are called as they were.

        Raises:
            SchemaMismatch: Some were renamed or dropped.
        """
        definition = store.runtime.catalog().tables.get(self.definition.id)
        if definition is not None:
            definition.check_names_of(self.definition.schema_id)


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
def found(options: Options) -> Iterator[tuple[TableAddress, Table]]:
    """Open the table that options name, with fixed columns: the place has the same ones.

    Raises:
        NotAStore, NoSuchTable: The store or the table does not exist.
        InvalidRequest, UnsupportedOperation: See :meth:`TableAddress.shape`.
    """
    with opened(options.path) as store:
        table = store.table(options.table).with_fixed_columns()
        address = TableAddress.of(str(store.path), table, options.kind, options.filter)
        address.shape()  # refuses a filter that does not fit
        yield address, table
