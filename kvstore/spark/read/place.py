"""Which table is read: found once, and no other of its name afterwards.

Objects that go to other processes hold text and numbers only; whoever reads opens the store itself, read-only but for
what the catalog is told of readers, and reads on without if its files can't be written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from kvstore.errors import NoSuchTable, NotAStore
from kvstore.spark.options import Kind, Options
from kvstore.store import Store, open_reader
from kvstore.table.table import Table


@dataclass(frozen=True)
class TablePlace:
    """A table, and what is read of it, for any process.

    Attributes:
        store_id, table_id: What there was at the path, and of the name, when it was found.
    """

    path: str
    store_id: str
    name: str
    table_id: int
    kind: Kind

    @classmethod
    def of(cls, path: str, table: Table, kind: Kind) -> TablePlace:
        """Where a table is, that is open here."""
        store_id, table_id = table.identity
        return cls(path, str(store_id), table.name, table_id, kind)

    @contextmanager
    def open(self) -> Iterator[Table]:
        """The table that was found, no other of its name.

        Raises:
            NoSuchTable: It was dropped since.
            NotAStore: The store is not there any more.
        """
        with opened(self.path) as store:
            yield self.table_of(store)

    def table_of(self, store: Store) -> Table:
        """The same, of a store that is open."""
        table = store.table(self.name) if self.name in store.list_tables() else None
        if table is None or table.identity != (UUID(self.store_id), self.table_id):
            raise NoSuchTable("The table was dropped since it was loaded; load it again.", table=self.name)
        return table


def opened(path: str) -> Store:
    """The store at a path, read-only; see :func:`kvstore.store.open_reader`.

    Raises:
        NotAStore: There is none.
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
    """The table that options name, as it is now.

    Raises:
        NotAStore, NoSuchTable: There is none.
    """
    with opened(options.path) as store:
        table = store.table(options.table)
        yield TablePlace.of(str(store.path), table, options.kind), table
