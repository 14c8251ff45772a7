"""Commits over several tables: ``with store.transaction() as tx: …``.

Theory of operation. Until the block is left nothing is written and no lock is held. Then the commit takes the turn of
each table, in order of their ids, has every bucket apply its part, verifies that what was read is still the same, and
decides by one edit of the catalog for all tables (:mod:`kvstore.commit.parts`). If all that was read and written is in
one bucket, it is an ordinary write of that bucket.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from kvstore.arguments import integer_within, shown
from kvstore.commit.named_writers import writer_name
from kvstore.errors import InvalidRequest, NotAcknowledged, StoreError
from kvstore.process.calls import answer_of
from kvstore.request.results import AppendResult
from kvstore.table.access import Access
from kvstore.table.open_table import OpenTable
from kvstore.transaction.commit import committed
from kvstore.transaction.elsewhere import Identity
from kvstore.transaction.table_changes import TableChanges
from logformat.ids import OFFSET_MAX, BucketId, Txid
from logformat.rows.intake import Data, Keys


@dataclass(frozen=True, slots=True)
class TransactionResult:
    """Result of a transaction.

    Attributes:
        offsets: By name of the table and bucket, what was appended; tables of which it changed nothing are left out.
    """

    offsets: dict[str, dict[BucketId, AppendResult]] = field(default_factory=dict)

    @property
    def duplicated(self) -> bool:
        """Whether it had been applied before, under the same ``writer`` and ``epoch``."""
        return bool(self.offsets) and all(
            each.duplicated for by_bucket in self.offsets.values() for each in by_bucket.values()
        )


class Transaction:
    """Changes of several tables that become one commit, and rows that must not change before it.

    Made by :meth:`kvstore.Store.transaction`; a context manager, for one thread.

    Args:
        access: Whether the store is open, and may be written.
        opened: Returns what the process has open of a table, by its name; raises if there is none.
        writer, epoch: See :meth:`kvstore.Store.transaction`.

    Attributes:
        result: What was written; None before the block was left without an error.
    """

    def __init__(
        self, access: Access, opened: Callable[[str], OpenTable], writer: str | None = None, epoch: int | None = None
    ) -> None:
        if (writer is None) != (epoch is None):
            raise InvalidRequest(
                "Give `writer` and `epoch` together: the name counts epochs, so that each is committed once.",
                writer=shown(writer),
                epoch=shown(epoch),
            )
        self._writer = None if writer is None else writer_name(writer)
        self._epoch = None if epoch is None else integer_within("epoch", epoch, 0, OFFSET_MAX)
        self._access = access
        self._opened = opened
        self._tables: dict[str, TableChanges] = {}
        self._begun = Txid(0)
        self._is_used = self._is_open = False
        self.result: TransactionResult | None = None

    def __enter__(self) -> Self:
        if self._is_used:
            raise InvalidRequest("A transaction is used once; begin another one with store.transaction().")
        self._is_used = self._is_open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        if error is None:
            self._access.check_writable()
            self.result = self._committed()

    def get(self, table: str, key: Keys) -> dict[str, Any] | None:
        """The row of a key, or None, with what this transaction has written.

        The answer is a condition of the commit: if another one changes the row before, that raises TransactionConflict.

        Args:
            key: A scalar, a tuple in key order, or a dict.

        Raises:
            NoSuchTable: There is no table of that name.
            SchemaMismatch: The key does not fit.
            UnsupportedOperation: It is a log table; or the transaction has written the row, and the table merges rows
                or fills a column.
            CorruptData: The row is damaged.
        """
        return self._of(table).get(key)

    def upsert(self, table: str, data: Data) -> None:
        """Store rows with the commit, each in place of the stored row of its key; for a log table, append them.

        Args:
            data: See :meth:`kvstore.Table.upsert`.

        Raises:
            NoSuchTable: There is no table of that name.
            SchemaMismatch: A row does not fit. The transaction goes on without any of these rows, or with those of the
                batches before it where ``data`` is an iterator of several.
        """
        self._of(table).upsert(data)

    def delete(self, table: str, keys: Keys) -> None:
        """Remove the rows of keys with the commit; a key without a row is no error.

        Args:
            keys: See :meth:`kvstore.Table.delete`.

        Raises:
            NoSuchTable: There is no table of that name.
            SchemaMismatch: A key does not fit. The transaction goes on without any of them.
            UnsupportedOperation: It is a log table.
        """
        self._of(table).delete(keys)

    def put_if(self, table: str, row: Any, expected: Any) -> None:
        """Store a row with the commit if the row of its key is, and still will be, the expected one.

        Args:
            row, expected: See :meth:`kvstore.Table.put_if`.

        Raises:
            TransactionConflict: It is another one. Leave the block by it: then nothing is written.
            NoSuchTable, InvalidRequest, UnsupportedOperation: See :meth:`kvstore.Table.put_if`.
        """
        self._of(table).put_if(row, expected)

    def expect(self, table: str, key: Keys, row: Any) -> None:
        """Verify that the row of a key is, and still will be at the commit, the expected one.

        Args:
            key: See :meth:`get`.
            row: The whole row, with or without its key; None if there is to be none. A nullable column that is left out
                is expected to be null.

        Raises:
            TransactionConflict: It is another one. Leave the block by it: then nothing is written.
            NoSuchTable, SchemaMismatch, UnsupportedOperation: See :meth:`get`.
        """
        self._of(table).expect(key, row)

    def _of(self, table: str) -> TableChanges:
        if not self._is_open:
            raise InvalidRequest("A transaction is used within its block: with store.transaction() as tx: …")
        self._access.check_open()
        if table not in self._tables:
            opened = self._opened(table)
            known = (each for each in self._tables.values() if each.opened.catalog.table == opened.catalog.table)
            if not self._tables:
                self._begun = opened.catalog.state().txid
            self._tables[table] = next(known, None) or TableChanges(opened)  # it may have been renamed meanwhile
        return self._tables[table]

    def _committed(self) -> TransactionResult:
        named = {changes: name for name, changes in reversed(self._tables.items())}
        tables = sorted(named, key=lambda changes: changes.definition.id)
        for changes in tables:
            changes.check_table()
        if not any(changes.is_changed for changes in tables):
            if self._writer is not None:
                raise InvalidRequest(
                    "A transaction that writes nothing counts no epoch; give a `writer` only to one that writes.",
                    writer=self._writer,
                    epoch=self._epoch,
                )
            return TransactionResult()
        if self._writer is None and len(tables) == 1 and (bucket := tables[0].only_bucket()) is not None:
            return TransactionResult({named[tables[0]]: {bucket: _alone(tables[0], bucket)}})
        identity = Identity(self._writer, self._epoch, self._begun)
        try:
            results = zip(tables, committed(identity, tables), strict=True)
        except StoreError as error:
            if self._writer is not None or not error.where.get("committed"):
                raise  # with an epoch it can be run again
            raise NotAcknowledged(
                "The transaction is committed; do not run it again. Its rows are to be seen once the disk takes them,"
                f" with the next write of their tables: {error.message}",
                **error.where,
            ) from error
        return TransactionResult({named[each]: result.by_bucket for each, result in results if each.is_changed})


def _alone(changes: TableChanges, bucket: BucketId) -> AppendResult:
    request = changes.conditional()
    changes.opened.handles[bucket].submit(request, here=True)
    answer: Any = request.answer
    result: AppendResult = answer_of(answer)
    return result
