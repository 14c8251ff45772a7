"""The reads of a store, wherever it is: a directory of this machine, a replica, or a place of shared tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from kvstore.store.check import CheckReport
from kvstore.table.queries import sql
from kvstore.table.read_table import ReadTable


class ReadTables(ABC):
    """Tables by name, and SQL over them; a context manager."""

    @abstractmethod
    def list_tables(self) -> list[str]:
        """Names of all tables, sorted."""

    @abstractmethod
    def table(self, name: str) -> ReadTable:
        """A table of the store.

        Raises:
            NoSuchTable: There is none of that name.
        """

    @abstractmethod
    def close(self) -> None:
        """End reading; a second call does nothing."""

    def __getitem__(self, name: str) -> ReadTable:
        return self.table(name)

    def __contains__(self, name: object) -> bool:
        return name in self.list_tables()

    def __iter__(self) -> Iterator[str]:
        return iter(self.list_tables())

    def sql(
        self,
        query: str,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        tables: Mapping[str, Any] | None = None,
    ) -> pa.RecordBatchReader:
        """Run a query over the tables, by DuckDB in this process, such as ``SELECT count(*) FROM files WHERE n > 3``.

        Tables are found by their names, in which upper and lower case are the same. ``changes('files', start, end)``
        has the rows of :meth:`Table.changelog`; ``start`` and ``end`` may be left out. A query reads only tables of
        this store and what is given in ``tables``: no files, no network, no variables. All tables are read as of one
        moment, that of the call, as by :meth:`kvstore.Store.snapshot`; in a replica or a shared table, each as it is
        when its scan begins.

        Args:
            query: A SELECT of DuckDB.
            params: Values of the query's parameters: a list for ``?`` and ``$1``, a dict for ``$name``. What a value
                has is never read as SQL.
            tables: Other data by name: frames of pandas and Polars, datasets, tables of another store, and any other
                Arrow data. A name that a table of this store has is refused.

        Returns:
            Batches of the result, computed while they are read.

        Raises:
            UnsupportedOperation: DuckDB is not installed (the extra ``sql``).
            InvalidRequest: The query can't be run, or writes, or an argument does not fit; the message has the reason.
                The reader may raise it, too.
            NoSuchTable, OffsetOutOfRange: There is no such table for ``changes``, or no such offset.
            CorruptData: A table is damaged. The reader may raise it, too.
        """
        return sql.run(query, self.list_tables(), self._at_once, params, tables)

    def _at_once(self, names: Sequence[str]) -> AbstractContextManager[Callable[[str], ReadTable]]:  # noqa: ARG002 - all
        """The tables that a query names."""
        return nullcontext(self.table)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ReadStore(ReadTables):
    """An open store that is read. :class:`kvstore.Store` adds everything that writes."""

    @abstractmethod
    def check(self, progress: Callable[[int, int], object] = lambda _done, _total: None) -> CheckReport:
        """Verify everything.

        Args:
            progress: Called with how much was verified, and of how much.
        """
