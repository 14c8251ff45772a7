"""Random edits of a catalog: what a store does to it, and what races may make of that."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa

from kvstore.meta.state import CatalogState
from logformat import schema as schemas
from logformat.edits import (
    AddSchema,
    AllocateWriter,
    BeginCommit,
    CreateTable,
    DropConsumer,
    DropTable,
    DropWriter,
    EndCommit,
    OpenWriter,
    Payload,
    SetConsumer,
    TableOptions,
)
from logformat.ids import Epoch, Offset, SchemaId, Sequence, TableId

_NAMES = ("a", "b", "ü")
_KINDS = (
    *(CreateTable, DropTable, AllocateWriter, AddSchema, OpenWriter, OpenWriter, DropWriter, BeginCommit, BeginCommit),
    *(EndCommit, SetConsumer, SetConsumer, SetConsumer, DropConsumer),
)
TABLES_MAX = 6


def columns(count: int) -> list[dict[str, Any]]:
    """So many columns."""
    return schemas.to_json(
        pa.schema([pa.field(f"c{n}", pa.list_(pa.int16()) if n else pa.int64()) for n in range(count)])
    )


def payload(random: Random, state: CatalogState) -> Payload:
    """An edit to come next; one in ten is about a table that is gone, or never was."""
    kind = random.choice(_KINDS)
    if len(state.tables) >= TABLES_MAX and kind is CreateTable:
        kind = DropTable
    there = sorted(state.tables)
    if not there and random.random() < 0.5:
        kind = CreateTable
    id = random.choice(there) if there and random.random() < 0.9 else TableId(random.randrange(1, 99))
    name = random.choice(_NAMES)
    writer = state.next_writer_id
    if kind is CreateTable:
        key = random.choice((["c0"], None))
        return CreateTable(
            table_id=state.next_table_id,
            name=f"t{state.next_table_id}",
            columns=columns(2),
            primary_key=key,
            buckets=random.randrange(1, 4),
            options=TableOptions(retention_ms=random.choice((None, 7)), merge_engine=random.choice(_ENGINES)),
        )
    if kind is DropTable:
        return DropTable(table_id=id)
    if kind is AllocateWriter:
        return AllocateWriter(writer_id=writer)
    if kind is AddSchema:
        table = state.tables.get(id)
        now = SchemaId(1) if table is None else table.schema_id
        return AddSchema(table_id=id, schema_id=SchemaId(now + 1), columns=columns(now + 2))
    if kind is OpenWriter:
        epochs = random.random() < 0.5
        return OpenWriter(
            table_id=id,
            name=name,
            writer_id=writer,
            writer_epoch=Epoch(random.randrange(3)),
            kind="epochs" if epochs else "batches",
            run="r" if epochs else None,
            first_epoch=random.randrange(9) if epochs else None,
        )
    if kind is DropWriter:
        return DropWriter(table_id=id, name=name)
    if kind is BeginCommit:
        return BeginCommit(
            table_id=id,
            commit_id=f"{id}-{random.randrange(4)}",
            writer_id=writer,
            writer_epoch=Epoch(0),
            sequence=Sequence(random.randrange(9)),
        )
    if kind is EndCommit:
        return EndCommit(table_id=id, commit_id=f"{id}-{random.randrange(4)}")
    if kind is SetConsumer:
        return SetConsumer(
            table_id=id,
            name=name,
            offsets=[Offset(random.randrange(9))],
            until_ms=random.choice((None, 1_000_000 + random.randrange(600))),
        )
    return DropConsumer(table_id=id, name=name)


_ENGINES: tuple[str | dict[str, Any], ...] = ("last_row", "first_row", {"versioned": "c1"})
