"""A table as a ``pyarrow.dataset.Dataset``: DuckDB, Polars and pyarrow scan it lazily, any number of times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from kvstore.errors import StoreError, UnsupportedOperation

BATCH_ROWS = 1 << 17
Read: TypeAlias = Callable[[Sequence[str] | None, pc.Expression | None], pa.RecordBatchReader]
"""Reads columns (None for all) of the rows for which an expression is true (None for all)."""
Columns: TypeAlias = Sequence[str] | Mapping[str, pc.Expression] | None


class TableDataset(dataset.Dataset):
    """Rows or changes of a table; each scan reads what the table has when the scan begins.

    Made by :meth:`kvstore.Table.dataset`. The columns and the filter of a scan are those that are read of the table; a
    filter about the beginning of the key reads only that range.

    Args:
        schema: Columns of the dataset; those that the table gains later are not in it.
        where: Only rows for which it is true.
    """

    # What dataset.Dataset does, it does with a dataset of C++, which this is not; so nothing of it is inherited.
    def __init__(self, schema: pa.Schema, read: Read, where: pc.Expression | None = None) -> None:
        self._schema = schema
        self._read = read
        self._where = where

    def __repr__(self) -> str:
        return f"<kvstore.table.queries.dataset.TableDataset: {', '.join(self._schema.names)}>"

    @property
    def schema(self) -> pa.Schema:
        """Columns of the dataset."""
        return self._schema

    @property
    def partition_expression(self) -> pc.Expression:
        """What is true of all rows: nothing is known."""
        return pc.scalar(True)

    def scanner(
        self,
        columns: Columns = None,
        filter: pc.Expression | None = None,
        batch_size: int = BATCH_ROWS,
        **others: Any,  # noqa: ARG002 - how pyarrow is to read files
    ) -> dataset.Scanner:
        """A scan, which can be read once.

        Args:
            columns: Names of columns, or expressions by name; all columns if None.
            filter: Only rows for which it is true.
            batch_size: Largest number of rows of a batch.

        Raises:
            InvalidRequest, SchemaMismatch: See :meth:`kvstore.Table.scan`.
        """
        if columns is None or isinstance(columns, Mapping):
            needed = self._schema.names
        else:
            needed = list(dict.fromkeys(columns)) or self._schema.names[:1]
        reader = self._read(needed, _both(self._where, filter))
        return dataset.Scanner.from_batches(reader, columns=columns, batch_size=batch_size)

    def to_table(self, columns: Columns = None, filter: pc.Expression | None = None, **others: Any) -> pa.Table:
        """Read everything; see :meth:`scanner`."""
        return self.scanner(columns, filter, **others).to_table()

    def to_batches(
        self, columns: Columns = None, filter: pc.Expression | None = None, **others: Any
    ) -> Iterator[pa.RecordBatch]:
        """Read batch by batch; see :meth:`scanner`."""
        batches: Iterator[pa.RecordBatch] = self.scanner(columns, filter, **others).to_batches()
        return batches

    def head(
        self, num_rows: int, columns: Columns = None, filter: pc.Expression | None = None, **others: Any
    ) -> pa.Table:
        """The first rows; see :meth:`scanner`."""
        return self.scanner(columns, filter, **others).head(num_rows)

    def take(
        self, indices: Any, columns: Columns = None, filter: pc.Expression | None = None, **others: Any
    ) -> pa.Table:
        """Rows by their number; see :meth:`scanner`."""
        return self.to_table(columns, filter, **others).take(indices)

    def count_rows(self, filter: pc.Expression | None = None, **others: Any) -> int:
        """Number of rows; see :meth:`scanner`."""
        return sum(batch.num_rows for batch in self.to_batches([], filter, **others))

    def filter(self, expression: pc.Expression) -> TableDataset:
        """The dataset of the rows for which an expression is true."""
        return TableDataset(self._schema, self._read, _both(self._where, expression))

    def keeping_errors(self, errors: list[StoreError]) -> TableDataset:
        """The same dataset; adds errors of the store to ``errors``, because other libraries keep only their text."""

        def kept(batches: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
            try:
                yield from batches
            except StoreError as error:
                errors.append(error)
                raise

        def read(columns: Sequence[str] | None, filter: pc.Expression | None) -> pa.RecordBatchReader:
            try:
                batches = self._read(columns, filter)
            except StoreError as error:
                errors.append(error)
                raise
            return pa.RecordBatchReader.from_batches(batches.schema, kept(batches))

        return TableDataset(self._schema, read, self._where)

    def sort_by(self, sorting: Any, **others: Any) -> dataset.Dataset:
        """The rows in another order, in memory; see ``pyarrow.dataset.Dataset``."""
        return self._in_memory().sort_by(sorting, **others)

    def join(self, right_dataset: Any, keys: Any, *given: Any, **others: Any) -> dataset.Dataset:
        """A join, in memory; see ``pyarrow.dataset.Dataset``."""
        return self._in_memory().join(_plain(right_dataset), keys, *given, **others)

    def join_asof(self, right_dataset: Any, *given: Any, **others: Any) -> dataset.Dataset:
        """A join on the nearest key, in memory; see ``pyarrow.dataset.Dataset``."""
        return self._in_memory().join_asof(_plain(right_dataset), *given, **others)

    def get_fragments(self, filter: pc.Expression | None = None) -> NoReturn:  # noqa: ARG002 - as pyarrow has it
        """Refuse: a table has no files that could be read one by one.

        Raises:
            UnsupportedOperation: Always.
        """
        raise UnsupportedOperation("A table is no dataset of files; read it as a whole.")

    def replace_schema(self, schema: pa.Schema) -> NoReturn:  # noqa: ARG002 - as pyarrow has it
        """Refuse: the columns are those of the table.

        Raises:
            UnsupportedOperation: Always.
        """
        raise UnsupportedOperation("The columns are those of the table; choose and compute others in the scan.")

    def _get_fragments(self, *given: Any) -> NoReturn:  # noqa: ARG002 - as pyarrow has it
        self.get_fragments()

    def _scan_options(self, *given: Any) -> NoReturn:  # noqa: ARG002 - as pyarrow has it
        self.get_fragments()

    def _scanner_options(self, *given: Any) -> NoReturn:  # noqa: ARG002 - as pyarrow has it
        self.get_fragments()

    def _in_memory(self) -> dataset.Dataset:
        return dataset.InMemoryDataset(self.to_table())


def _plain(other: Any) -> Any:
    return other._in_memory() if isinstance(other, TableDataset) else other


def _both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    if one is None or other is None:
        return one if other is None else other
    return one & other
