"""The file ``tables/<table>/TABLE``: the definition of a table beside its data (docs/format.md, TABLE)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from logformat import json_line
from logformat.catalog.edits import AddSchema, AlterColumns, CreateTable, TableOptions
from logformat.errors import CorruptData
from logformat.ids import Epoch, SchemaId, TableId, Txid

FORMAT = 2
TABLE_BYTES_MAX = 1 << 28


class TableFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Definition of a table, as the catalog has it.

    Attributes:
        format: 2 if columns were renamed or dropped, which older versions refuse.
        txid: The edit that made the definition, or a later one.
        epoch: Epoch of the leader that wrote it.
        columns: Columns of the newest schema.
        widths: For schemas 1, 2, …: how many of these columns the schema has, from the first on; as many as the one
            before if an AlterColumns made it.
    """

    format: int
    store_id: UUID
    txid: Txid
    epoch: Epoch
    table_id: TableId
    name: str
    columns: list[dict[str, Any]]
    widths: list[int]
    primary_key: list[str] | None
    bucket_key: list[str] | None
    buckets: int
    options: TableOptions

    def edits(self) -> list[CreateTable | AddSchema | AlterColumns]:
        """The edits that make the table: the first creates it, each other one adds a schema."""
        create = CreateTable(
            table_id=self.table_id,
            name=self.name,
            columns=self.columns[: self.widths[0]],
            primary_key=self.primary_key,
            buckets=self.buckets,
            bucket_key=self.bucket_key,
            options=self.options,
        )
        pairs = zip(self.widths, self.widths[1:], strict=False)
        return [create, *(self._adding(SchemaId(n), *widths) for n, widths in enumerate(pairs, 2))]

    def _adding(self, schema_id: SchemaId, before: int, width: int) -> AddSchema | AlterColumns:
        columns = self.columns[:width]
        if width > before:
            return AddSchema(table_id=self.table_id, schema_id=schema_id, columns=columns)
        return AlterColumns(
            table_id=self.table_id,
            schema_id=schema_id,
            columns=columns,
            primary_key=self.primary_key,
            bucket_key=self.bucket_key,
            options=self.options,
        )


def format_of(widths: Sequence[int]) -> int:
    """Format of the file of a table whose schemas have these widths."""
    return FORMAT if len(set(widths)) < len(widths) else 1


def encode(table: TableFile) -> bytes:
    """Encode the file."""
    return json_line.encode(table)


def decode(data: bytes) -> TableFile:
    """Decode the file.

    Raises:
        CorruptData: The file is damaged.
        UnsupportedVersion: A newer version wrote it.
    """
    table = json_line.decode(data, TableFile, FORMAT, "TABLE")
    widths = table.widths
    has_order = bool(widths) and widths[0] > 0 and widths == sorted(widths) and table.format == format_of(widths)
    if not has_order or widths[-1] != len(table.columns):
        raise CorruptData("TABLE has other columns than its schemas.", table=table.name)
    return table
