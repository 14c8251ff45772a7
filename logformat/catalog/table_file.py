"""The file ``tables/<table>/TABLE``: the definition of a table beside its data (docs/format.md, TABLE)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from logformat import json_line
from logformat.catalog.edits import AddSchema, CreateTable, TableOptions
from logformat.errors import CorruptData
from logformat.ids import Epoch, SchemaId, TableId, Txid

FORMAT = 1
TABLE_BYTES_MAX = 1 << 28


class TableFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Definition of a table, as the catalog has it.

    Attributes:
        txid: The edit that made the definition, or a later one.
        epoch: Epoch of the leader that wrote it.
        columns: Columns of the newest schema.
        widths: For schemas 1, 2, …: how many of these columns the schema has, from the first on.
    """

    format: int = FORMAT
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

    def edits(self) -> list[CreateTable | AddSchema]:
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
        later = enumerate(self.widths[1:], 2)
        return [
            create,
            *(AddSchema(table_id=self.table_id, schema_id=SchemaId(n), columns=self.columns[:w]) for n, w in later),
        ]


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
    rising = [0, *table.widths]
    if not table.widths or rising != sorted(set(rising)) or table.widths[-1] != len(table.columns):
        raise CorruptData("TABLE has other columns than its schemas.", table=table.name)
    return table
