"""All tables of a store at one cut."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from kvstore.errors import NoSuchTable, StoreClosed
from kvstore.process.calls import in_background
from kvstore.store.read_store import ReadTables
from kvstore.store.session import Session
from kvstore.table.open_table import OpenTable
from kvstore.table.read_only import ReadOnlyTable
from kvstore.table.read_table import ReadTable
from kvstore.transaction.cut import tables_at_one_cut

_REFUSED = "A table of a snapshot is only read, and has no `{name}`. Use the one of the store: store.table(name)."


class StoreSnapshot(ReadTables):
    """Tables of a store as they were at one moment, at which no commit is in one of them and not in another.

    Made by :meth:`kvstore.Store.snapshot`; any thread may use it. Everything that reads a table works: rows, changes up
    to the moment, times and offsets before it. Once the block is left, or :meth:`close` was called, reads of it, also
    those that have begun, raise StoreClosed.

    Args:
        session: Session of the store.
        tables: By name.
    """

    def __init__(self, session: Session, tables: Mapping[str, OpenTable]) -> None:
        self._session = session
        self._is_closed = False
        self._views = ExitStack()
        self._tables = tables_at_one_cut(tables, self._views, read_only=session.read_only, copy=session.copy)

    def list_tables(self) -> list[str]:
        """Names of its tables, sorted."""
        return sorted(self._tables)

    def table(self, name: str) -> ReadTable:
        """A table as it was.

        Raises:
            NoSuchTable: The snapshot has none of that name.
            StoreClosed: It has ended.
        """
        self.check_open()
        if name not in self._tables:
            raise NoSuchTable("The snapshot has no table of that name.", table=name, tables=self.list_tables())
        return ReadOnlyTable(self._tables[name], self, _REFUSED)

    def close(self) -> None:
        """End it, and give its pages back; a second call does nothing."""
        self._is_closed = True
        self._views.close()

    def __del__(self) -> None:
        """End a snapshot without references, which its user can't end any more."""
        if not self._is_closed:
            in_background(self._views.close)

    def check_open(self) -> None:
        """Refuse if it has ended, or the store is closed."""
        self._session.check_open()
        if self._is_closed:
            raise StoreClosed("The snapshot has ended; read within its block: with store.snapshot() as at: …")

    def check_writable(self) -> None:
        """See :meth:`kvstore.store.session.Session.check_writable`."""
        self._session.check_writable()

    def check_registers(self) -> None:
        """See :meth:`kvstore.store.session.Session.check_registers`."""
        self._session.check_registers()
