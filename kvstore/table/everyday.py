"""A table as a collection of Python rows, and as data of pandas, Polars and everything else that reads Arrow."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.errors import StoreError
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import End, Start, changelog_schema
from kvstore.read.frames import html_of, pandas_frame, polars_frame, stream_of
from kvstore.read.scan import rows_where
from kvstore.table.reading import TableReads

if TYPE_CHECKING:
    from kvstore.table.dataset import Read, TableDataset

SHOWN_ROWS = 10
"""Number of rows that a notebook shows of a table."""


class EverydayReads(TableReads):
    """What Python and its libraries expect of a table, by the methods of :class:`TableReads`."""

    def to_arrow(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        limit: int | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
    ) -> pa.Table:
        """All rows in key order, in memory; :meth:`scan` reads them batch by batch.

        Args:
            columns, filter, limit, as_of: See :meth:`scan`.

        Raises:
            InvalidRequest, SchemaMismatch, OffsetOutOfRange, CorruptData: See :meth:`scan`.
            UnsupportedOperation: It is a log table.
        """
        return self.scan(columns, filter, limit, as_of).read_all()

    def to_pandas(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        limit: int | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
    ) -> Any:
        """All rows in key order as a ``pandas.DataFrame``.

        A column of integers with nulls gets a nullable type of pandas, such as ``Int64``, so that each value is exact.

        Args:
            columns, filter, limit, as_of: See :meth:`scan`.

        Raises:
            UnsupportedOperation: pandas is not installed, or it is a log table.
            InvalidRequest, SchemaMismatch, OffsetOutOfRange, CorruptData: See :meth:`scan`.
        """
        return pandas_frame(self.to_arrow(columns, filter, limit, as_of))

    def to_polars(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        limit: int | None = None,
        as_of: int | Mapping[int, int] | dt.datetime | None = None,
    ) -> Any:
        """All rows in key order as a ``polars.DataFrame``.

        Args:
            columns, filter, limit, as_of: See :meth:`scan`.

        Raises:
            UnsupportedOperation: Polars is not installed, or it is a log table.
            InvalidRequest, SchemaMismatch, OffsetOutOfRange, CorruptData: See :meth:`scan`.
        """
        return polars_frame(self.to_arrow(columns, filter, limit, as_of))

    def dataset(self) -> TableDataset:
        """The rows as a ``pyarrow.dataset.Dataset``, which DuckDB, Polars and pyarrow scan lazily.

        Each scan reads the columns and rows that it needs, as they are when it begins; there may be any number of
        them. The rows of a log table are in the order in which they were appended.
        """
        definition = self._current()
        if definition.primary_key is None:
            return self._changes_dataset(definition, definition.schema, "earliest", "latest")
        return _dataset(definition.schema, partial(self._rows, definition))

    def changes_dataset(self, start: Start = "earliest", end: End = "latest") -> TableDataset:
        """The changes from ``start`` to ``end`` as a dataset; see :meth:`changelog` and :meth:`dataset`."""
        definition = self._current()
        return self._changes_dataset(definition, changelog_schema(definition), start, end)

    def _changes_dataset(self, definition: TableDefinition, schema: pa.Schema, start: Start, end: End) -> TableDataset:
        def read(columns: Sequence[str] | None, filter: pc.Expression | None) -> pa.RecordBatchReader:
            # A filter may be about any column.
            names = schema.names if filter is not None else columns
            changes = self._changelog(definition, start, end, columns=names)
            rows: Iterator[pa.RecordBatch] = changes if filter is None else rows_where(changes, filter)
            wanted = changes.schema if columns is None else pa.schema([changes.schema.field(name) for name in columns])
            return pa.RecordBatchReader.from_batches(wanted, (batch.select(wanted.names) for batch in rows))

        return _dataset(schema, read)

    def __len__(self) -> int:
        definition = self._current()
        # The rows of a table with a WAL image are not counted.
        if definition.options.changelog_image == "wal" and definition.primary_key is not None:
            return sum(batch.num_rows for batch in self._rows(definition, definition.primary_key))
        return self.count()

    def __bool__(self) -> bool:
        return True  # an empty table is a table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (row for batch in self.scan() for row in batch.to_pylist())

    def __repr__(self) -> str:
        name = self._catalog.name
        try:
            name = self.name
            key, rows = self.primary_key, None if self.options.changelog_image == "wal" else self.count()
        except StoreError as error:
            return f"<kvstore.Table {name}: {error.message}>"
        about = "append-only" if key is None else f"key {', '.join(key)}"
        return f"<kvstore.Table {name}: {about}{'' if rows is None else f', {rows:,} rows'}>"

    def _repr_html_(self) -> str | None:
        """The first rows as an HTML table, for notebooks; None if the table can't be read."""
        try:
            if self.primary_key is None:
                changes = self.changelog(columns=self.schema.names)
                rows = pa.Table.from_batches(islice(changes, 1), changes.schema)
            else:
                rows = self.to_arrow(limit=SHOWN_ROWS)
            return html_of(repr(self)[1:-1], rows.slice(0, SHOWN_ROWS))
        except StoreError:
            return None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rows as an Arrow stream, as of the call: ``pa.table(t)``, ``polars.DataFrame(t)`` and others ask for it.

        Args:
            requested_schema: See :func:`kvstore.read.frames.stream_of`, also for errors.
        """
        return stream_of(self.scan(), requested_schema)


def _dataset(schema: pa.Schema, read: Read) -> TableDataset:
    from kvstore.table.dataset import TableDataset  # it imports pandas where there is one, which takes long

    return TableDataset(schema, read)
