"""Changes of the definitions of a store's tables, as its users make them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import EllipsisType

import pyarrow as pa

from kvstore.arguments import column_names
from kvstore.errors import StoreError
from kvstore.store.runtime import StoreRuntime
from kvstore.store.session import Session
from kvstore.table.declared_schema import SchemaGiven
from kvstore.table.definition import added_fields, altered_options, new_names, with_index, without_index
from logformat.catalog.edits import DeleteBehavior
from logformat.log.arrow_message import Compression


class AlteredTables:
    """Changes of tables' columns and options; :class:`kvstore.Store` has everything else.

    Args:
        session: Use of the store.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def runtime(self) -> StoreRuntime:
        """What this process shares of the store's directory; for tools, not for programs."""
        return self._session.runtime

    def add_columns(self, name: str, fields: SchemaGiven | Sequence[pa.Field]) -> None:
        """Add columns after those of a table; they are null in existing rows and changes.

        Args:
            fields: New columns, all nullable, such as ``{"owner": "string"}``: what :meth:`Store.create_table` takes,
                or a list of fields. docs/types.md lists the types.

        Raises:
            NoSuchTable: There is none of that name.
            InvalidRequest: A name, type or option is not possible. Nothing was written.
        """
        self._session.check_writable()
        self.runtime.alterations.add_columns(self.runtime.definition(name), added_fields(fields))

    def rename_columns(self, name: str, names: Mapping[str, str]) -> None:
        """Give columns of a table other names: no row is touched, and columns may exchange their names.

        Earlier changes have the new names, too. Readers that are at work go on under the names that they began with,
        and so do batches on their way; DataFrames and streams of Spark raise SchemaMismatch, and are loaded again.
        Flush a :class:`writer.TableWriter` first: rows that it has not converted yet are taken by the new names.

        Args:
            names: From each column's name to its new one. Columns of the key, of buckets and of an engine may be there.

        Raises:
            NoSuchTable: There is none of that name.
            SchemaMismatch: There is no such column. Nothing was written.
            InvalidRequest: A name is not possible, or two columns would have it. Nothing was written.
        """
        self._session.check_writable()
        self.runtime.alterations.rename_columns(self.runtime.definition(name), new_names(names))

    def drop_columns(self, name: str, columns: Sequence[str] | str) -> None:
        """Drop columns of a table: no row is touched, and what they hold stays on disk, where nothing shows it.

        Earlier changes don't have them any more, and can't get them back: :func:`kvstore.restore` makes a copy as of a
        time before. A column that is added under such a name is a new one, and null. Readers that are at work go on
        with the columns that they began with, writers without those that are dropped.

        Args:
            columns: Their names; neither of the key, of buckets or of an engine, nor all that there are.

        Raises:
            NoSuchTable: There is none of that name.
            SchemaMismatch: There is no such column. Nothing was written.
            InvalidRequest: A column can't be dropped. Nothing was written.
        """
        self._session.check_writable()
        self.runtime.alterations.drop_columns(self.runtime.definition(name), column_names("columns", columns))

    def alter_table(
        self,
        name: str,
        *,
        retention: dt.timedelta | EllipsisType | None = ...,
        compression: Compression | EllipsisType = ...,
        delete_behavior: DeleteBehavior | EllipsisType | None = ...,
    ) -> None:
        """Change options of a table; what is left out stays. Rows and changes that are there stay as they are.

        A process that writes the table goes by the new options from its next write on; this one does so at once.

        Args:
            retention, compression, delete_behavior: As in :meth:`create_table`. With ``retention=None`` nothing expires
                by age any more. A reader that began while nothing could expire holds no lease: what it has yet to read
                may expire.

        Raises:
            NoSuchTable: There is none of that name.
            InvalidRequest: An option is not possible. Nothing was written.
        """
        self._session.check_writable()
        definition = self.runtime.definition(name)
        given = {"retention": retention, "compression": compression, "delete_behavior": delete_behavior}
        self.runtime.alter_table(definition, lambda now: altered_options(now.options, now.primary_key, **given))

    def create_index(
        self,
        table: str,
        name: str,
        columns: Sequence[str] | str,
        unique: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> None:
        """Create a secondary index, by which :meth:`kvstore.Table.find` finds rows without reading all.

        It is kept with each write from then on. This process becomes the writer of all buckets of the table. Entries of
        the rows are made some at a time, between other writes; while they are made, rows are found by a scan. Of a
        unique index writes wait until its entries are made. If the call ends early, such as by Ctrl-C, the index is
        dropped; if the process is killed, the next write of each bucket makes the entries first.

        Args:
            name: Up to 255 bytes of printable text, which no other index of the table has.
            columns: Its columns, of any type but lists, maps, structs and float16, in this order: the index finds rows
                by the first ones of them.
            unique: Whether no two rows may have the same values, unless one is null. A write that would leave two
                raises UniqueViolation, and nothing of it is written. In a table of several buckets the index has to
                have all columns of the bucket key.
            progress: Called with the number of rows of which entries are made, and about of all. Rows that no merge has
                moved into the index file count at the end: their entries come with it.

        Raises:
            NoSuchTable: There is none of that name.
            UniqueViolation: Two rows have the same values. There is no index; nothing was written, unless one of
                these rows was written during the call.
            InvalidRequest: The name or a column is not possible, or there is an index of that name. Nothing was
                written.
            UnsupportedOperation: It is a log table, or has several buckets and can't have such a unique index.
            StoreLocked: Another process writes the table. Nothing was written.
            StoreFull, LogFailed: The disk refuses. There is no index, unless the disk refuses to drop it, too; then
                writes make its entries.
            CorruptData: A row is damaged. There is no index.
        """
        self._session.check_writable()
        definition = self.runtime.definition(table)
        with_index(definition, name, columns, unique)  # what is wrong is found before the buckets are taken
        report = progress if progress is not None else lambda _done, _total: None
        self.runtime.begin_index(definition, lambda now: with_index(now, name, columns, unique))
        try:
            self.runtime.make_entries(definition, report)
            if unique and (violation := self.runtime.duplicate(definition, name)) is not None:
                raise violation
        except BaseException:
            with suppress(StoreError):
                self.drop_index(table, name)
            raise

    def drop_index(self, table: str, name: str) -> None:
        """Drop a secondary index of a table. Its entries are removed with the next write of each bucket.

        Raises:
            NoSuchTable: There is no table of that name.
            InvalidRequest: It has no such index. Nothing was written.
        """
        self._session.check_writable()
        self.runtime.alter_table(self.runtime.definition(table), lambda now: without_index(now, name))
