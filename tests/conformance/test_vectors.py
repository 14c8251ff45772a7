"""Apache Fluss's own expectations, as data (vectors.jsonl): what a table emits, answers and refuses."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import OutOfOrderSequence, StoreError, UnknownSchema
from logformat.batch import LAYOUTS, LogBatch, decode_batch, encode_batch
from tests.conformance import test_log_recovery, test_recovery_point, test_segment, test_writer_state
from tests.conformance.vectors import VECTORS, WAITING, running

KINDS = ("kv", "log")
FORMAT_KINDS = ("batch_format",)

TYPES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
}
ERRORS: dict[str, type[StoreError]] = {
    "OutOfOrderSequenceException": OutOfOrderSequence,
    "SchemaNotExistException": UnknownSchema,
}


def test_every_vector_runs_or_waits_by_name() -> None:
    runners = (test_log_recovery, test_recovery_point, test_segment, test_writer_state)
    kinds = KINDS + FORMAT_KINDS + tuple(kind for runner in runners for kind in runner.KINDS)
    assert set(running(*kinds)) | WAITING == set(VECTORS)


@pytest.mark.parametrize("name", running(*KINDS))
def test_table(name: str, store: kvstore.Store) -> None:
    vector = VECTORS[name]
    schema, key = table_of(vector["table"])
    table = store.create_table("t", schema, primary_key=key)
    failures = {failure["op"]: failure for failure in vector.get("expect_error", ())}
    scan = vector.get("expect_scan", {"open_after_op": None})
    reader = table.scan(limit=scan.get("limit")) if scan["open_after_op"] == -1 else None
    for number, operation in enumerate(vector["ops"]):
        apply_one(table, operation, failures.get(number))
        if scan["open_after_op"] == number:
            reader = table.scan(limit=scan.get("limit"))
    assert changes_of(table) == vector["expect"]
    assert table.offsets()[0][1] == vector["expect_log_end_offset"]
    if "expect_row_count" in vector:
        assert table.count() == vector["expect_row_count"]
    if reader is not None:
        rows = reader.read_all().to_pylist()
        assert rows == scan.get("rows", rows)
        assert len(rows) == scan.get("row_count", len(rows))
    for row in vector.get("expect_state", ()):
        assert table.get({column: row[column] for column in key or ()}) == row


@pytest.mark.parametrize("name", running(*FORMAT_KINDS))
def test_batch_format(name: str) -> None:
    vector = VECTORS[name]
    magic = vector["magic"]
    if "offsets" in vector:
        check_header(vector)
        return
    empty = encode_batch(LogBatch(base_offset=vector["base_offset"]), magic)
    batch = decode_batch(empty, pa.schema([]))
    found = {"size": len(empty), "last_offset": batch.last_offset, "next_offset": batch.next_offset}
    assert found == vector["expect"]


def check_header(vector: dict[str, Any]) -> None:
    """Every field stands where Fluss has it: changing its bytes changes it, and the checksum begins where it should."""
    magic, offsets = vector["magic"], dict(vector["offsets"])
    rows = pa.record_batch({"a": pa.array([1, 2, 3], pa.int32())})
    batch = LogBatch(
        base_offset=0x0101, commit_timestamp=0x0202, leader_epoch=0x0303, schema_id=0x0404, writer_id=0x0505,
        batch_sequence=0x0606, rows=rows, change_types=pa.array([1, 1, 1], pa.uint8()).to_numpy(),
    )  # fmt: skip
    encoded = encode_batch(batch, magic)
    assert LAYOUTS[magic].size == vector["header_size"]
    expected = {
        "base_offset": (8, 0x0101),
        "length": (4, len(encoded) - 12),
        "magic": (1, magic),
        "commit_timestamp": (8, 0x0202),
        "leader_epoch": (4, 0x0303),
        "schema_id": (2, 0x0404),
        "attributes": (1, 0),
        "last_offset_delta": (4, 2),
        "writer_id": (8, 0x0505),
        "batch_sequence": (4, 0x0606),
        "record_count": (4, 3),
        "statistics_length": (4, 0),
    }
    for field, place in offsets.items():
        if field in expected:
            width, value = expected[field]
            assert int.from_bytes(encoded[place : place + width], vector["endianness"]) == value, field
    changes_at = offsets.get("records", offsets.get("statistics"))
    assert encoded[changes_at : changes_at + 3] == b"\1\1\1"
    for position in range(len(encoded)):
        changed = bytearray(encoded)
        changed[position] ^= 0x40
        covered = position >= offsets["schema_id"]
        in_checksum = offsets["crc"] <= position < offsets["crc"] + 4
        if covered or in_checksum:
            with pytest.raises(kvstore.errors.CorruptBatch):
                decode_batch(bytes(changed), rows.schema)


def table_of(table: dict[str, Any]) -> tuple[pa.Schema, list[str] | None]:
    fields = []
    for name, kind, *options in table["columns"]:
        nullable = options[0].get("nullable", True) if options else True
        fields.append(pa.field(name, TYPES[kind], nullable))
    return pa.schema(fields), table["pk"] or None


def apply_one(table: kvstore.Table, operation: dict[str, Any], failure: dict[str, Any] | None) -> None:
    words = {"upsert": "upsert", "append": "upsert", "delete": "delete"}
    changes = kvstore.Changes.of([(words[kind], row) for kind, row in operation["batch"]], table.schema)

    def apply() -> kvstore.AppendResult:
        return table.bucket(0).apply(
            changes, operation.get("writer", -1), operation.get("seq", -1), schema_id=operation.get("schema_id")
        )

    if failure is not None:
        with pytest.raises(ERRORS[failure["type"]]) as raised:
            apply()
        for part in failure.get("message", "").split(" ... "):
            assert part.lstrip(": ") in str(raised.value)
        return
    result = apply()
    for field, value in operation.get("ack", {}).items():
        assert getattr(result, field) == value


def changes_of(table: kvstore.Table) -> list[list[Any]]:
    return [
        [
            change["_log_offset"],
            kvstore.ChangeType(change["_change_type"]).short,
            {name: change[name] for name in table.schema.names},
        ]
        for batch in table.changelog()
        for change in batch.to_pylist()
    ]
