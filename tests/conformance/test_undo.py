"""The changes that undo a changelog, as Fluss specifies them."""

from __future__ import annotations

import pyarrow as pa
import pytest

import kvstore
from kvstore.meta.state import TableDefinition
from kvstore.read.changelog import changelog_schema
from kvstore.read.time_travel import first_changes
from logformat.catalog.edits import TableOptions
from logformat.ids import SchemaId, TableId
from tests.conformance.vectors import VECTORS, running
from tests.support.tables import operations_of

KINDS = ("undo",)

SCHEMA = pa.schema([pa.field("k", pa.int32(), False), pa.field("name", pa.string()), pa.field("n", pa.int32())])
DEFINITION = TableDefinition(TableId(1), "t", {SchemaId(1): SCHEMA}, ("k",), 1, TableOptions())


@pytest.mark.parametrize("name", running(*KINDS))
@pytest.mark.parametrize("batches", ["one", "each"])
def test_undo(name: str, batches: str) -> None:
    vector = VECTORS[name]
    changes = [
        {"_change_type": kvstore.ChangeType(short).word, **dict(zip(SCHEMA.names, row, strict=True))}
        for _, short, row in vector["changelog"]
    ]
    changelog = pa.RecordBatch.from_pylist(changes, changelog_schema(DEFINITION, list(changes[0])))
    parts = [changelog] if batches == "one" else [changelog.slice(n, 1) for n in range(changelog.num_rows)]
    undo = first_changes(parts, DEFINITION).undo()
    assert [[word, list(row.values())] for word, row in operations_of(undo)] == vector["expect_undo"]
