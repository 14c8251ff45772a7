"""What a table is, as of the beginning of a request: a page shows one schema, whatever others alter meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from kvstore import Store, Table
from kvstore.errors import NoSuchTable
from logformat.catalog.edits import TableOptions


@dataclass(frozen=True)
class Definition:
    """A table and its definition; the attributes are those of :class:`kvstore.Table`.

    Attributes:
        table: The table, for reading it by these names of its columns.
        id: Its id in the store.
    """

    table: Table
    id: int
    name: str
    schema: pa.Schema
    schema_id: int
    primary_key: tuple[str, ...] | None
    bucket_key: tuple[str, ...] | None
    buckets: int
    options: TableOptions

    @classmethod
    def of(cls, table: Table) -> Self:
        """The definition of a table now.

        Raises:
            NoSuchTable: It was dropped.
        """
        table = table.with_fixed_columns()
        return cls(
            *(table, table.identity[1], table.name, table.schema, table.schema_id),
            *(table.primary_key, table.bucket_key, table.buckets, table.options),
        )


def definitions(store: Store, names: Iterable[str]) -> Iterator[Definition]:
    """Definitions of some tables, without those that are dropped meanwhile."""
    for name in names:
        with suppress(NoSuchTable):
            yield Definition.of(store.table(name))
