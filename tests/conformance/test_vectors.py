"""Apache Fluss's own expectations, as data (vectors.jsonl): what a table emits, answers and refuses."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import (
    DeletionDisabled,
    InvalidTargetColumns,
    OutOfOrderSequence,
    StoreError,
    UnknownSchema,
    UnsupportedOperation,
)
from logformat.log.batch import LAYOUTS, LogBatch, decode_batch, encode_batch
from tests.conformance.vectors import VECTORS, running
from tests.conftest import OpenStore

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
    "decimal(10,2)": pa.decimal128(10, 2),
    "string": pa.string(),
    "binary(4)": pa.binary(4),
    "date": pa.date32(),
    "time": pa.time32("ms"),
    "timestamp(3)": pa.timestamp("ms"),
    "timestamp(6)": pa.timestamp("us"),
    "timestamp(9)": pa.timestamp("ns"),
    "timestamp_ltz(6)": pa.timestamp("us", "UTC"),
    "timestamp_ltz(9)": pa.timestamp("ns", "UTC"),
}
ERRORS: dict[str, type[StoreError]] = {
    "OutOfOrderSequenceException": OutOfOrderSequence,
    "SchemaNotExistException": UnknownSchema,
    "InvalidTargetColumnException": InvalidTargetColumns,
    "DeletionDisabledException": DeletionDisabled,
    "UnsupportedOperationException": UnsupportedOperation,
}


def test_every_vector_runs() -> None:
    modules = [import_module(f"tests.conformance.{path.stem}") for path in Path(__file__).parent.glob("test_*.py")]
    kinds = [kind for module in modules for kind in module.KINDS]
    assert set(running(*kinds, *FORMAT_KINDS)) == set(VECTORS)


@pytest.mark.parametrize("name", running(*KINDS))
def test_table(name: str, open_store: OpenStore) -> None:
    vector, store = VECTORS[name], open_store()
    schema, key = table_of(vector["table"])
    table = store.create_table("t", schema, primary_key=key, **options_of(vector["table"]))
    schemas = [schema]
    failures = {failure["op"]: failure for failure in vector.get("expect_error", ())}
    scan = vector.get("expect_scan", {"open_after_op": None})
    reader = table.scan(limit=scan.get("limit")) if scan["open_after_op"] == -1 else None
    for number, operation in enumerate(vector["ops"]):
        if vector.get("restart_before_op") == number:
            store.close()
            store = open_store()
            table = store.table("t")
        if "alter_add_columns" in operation:
            add_columns(store, operation["alter_add_columns"])
            schemas.append(table.schema)
            continue
        written = (
            schemas[operation.get("schema_id", len(schemas)) - 1]
            if operation.get("schema_id", 1) <= len(schemas)
            else table.schema
        )
        apply_one(table, written, operation, failures.get(number))
        if scan["open_after_op"] == number:
            reader = table.scan(limit=scan.get("limit"))
    assert changes_of(table) == [[offset, kind, converted(row, table.schema)] for offset, kind, row in vector["expect"]]
    assert table.offsets()[0][1] == vector["expect_log_end_offset"]
    if vector.get("expect_row_count", 0) is None:
        with pytest.raises(UnsupportedOperation, match="Row count is disabled"):
            table.count()
    elif "expect_row_count" in vector:
        assert table.count() == vector["expect_row_count"]
    if reader is not None:
        rows = reader.read_all().to_pylist()
        assert rows == scan.get("rows", rows)
        assert len(rows) == scan.get("row_count", len(rows))
    for row in vector.get("expect_state", ()):
        found = table.lookup([{column: row[column] for column in key or ()}]).drop_columns("_found")
        assert listed(found.to_batches()[0]) == [converted(row, table.schema)]


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
    """Every field is where Fluss has it: changing its bytes changes it, and the checksum begins at the right place."""
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


def options_of(table: dict[str, Any]) -> dict[str, Any]:
    """Our names of a vector's table options."""
    options = table.get("options", {})
    given: dict[str, Any] = {"auto_increment": table.get("auto_increment")}
    match options.get("table.merge-engine"):
        case "first_row":
            given["merge_engine"] = "first_row"
        case "versioned":
            given["merge_engine"] = kvstore.Versioned(options["table.merge-engine.versioned.ver-column"])
        case "aggregation":
            named = [(name, options[0]) for name, _, *options in table["columns"] if options and "agg" in options[0]]
            given["merge_engine"] = kvstore.Aggregate(
                {
                    name: kvstore.listagg(function["delimiter"]) if "delimiter" in function else function["agg"]
                    for name, function in named
                }
            )
    if "table.changelog.image" in options:
        given["changelog_image"] = options["table.changelog.image"].lower()
    given["delete_behavior"] = options.get("table.delete.behavior")
    return given


def converted(row: dict[str, Any], schema: pa.Schema) -> dict[str, Any]:
    """A row with every column; Fluss's tests write values that JSON lacks as text."""
    return {field.name: value_of(row.get(field.name), field.type) for field in schema}


def value_of(written: Any, kind: pa.DataType) -> Any:
    if not isinstance(written, str) or pa.types.is_string(kind):
        return written
    if written.startswith("hex:"):
        return bytes.fromhex(written[4:])
    if pa.types.is_decimal(kind):
        return Decimal(written)
    if pa.types.is_time(kind):
        return dt.time.fromisoformat(written)
    if pa.types.is_date(kind):
        return dt.date.fromisoformat(written)
    found = pa.scalar(written.rstrip("Z")).cast(pa.timestamp(kind.unit)).cast(kind)
    return found.value if kind.unit == "ns" else found.as_py()  # Python's times have no nanoseconds


def column_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    in_numbers = pa.types.is_timestamp(kind) and kind.unit == "ns"
    return pa.array(values, pa.int64()).cast(kind) if in_numbers else pa.array(values, kind)


def listed(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    columns = [
        column.cast(pa.int64()) if pa.types.is_timestamp(column.type) and column.type.unit == "ns" else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names).to_pylist()


def add_columns(store: kvstore.Store, columns: list[list[str]]) -> None:
    store.add_columns("t", [pa.field(name, TYPES[kind]) for name, kind in columns])


def apply_one(
    table: kvstore.Table, schema: pa.Schema, operation: dict[str, Any], failure: dict[str, Any] | None
) -> None:
    """Apply one batch.

    Args:
        schema: Schema of the batch.
    """
    rows = [converted(row, schema) for _, row in operation["batch"]]
    columns = [column_of([row[field.name] for row in rows], field.type) for field in schema]
    is_delete = pa.array(["delete" in kind for kind, _ in operation["batch"]], pa.bool_())
    changes = kvstore.Changes(pa.RecordBatch.from_arrays(columns, names=schema.names), is_delete)

    def apply() -> kvstore.AppendResult:
        return table.bucket(0).apply(
            changes,
            operation.get("writer", -1),
            operation.get("seq", -1),
            columns=operation.get("target"),
            overwrite=operation.get("mode") == "overwrite",
            schema_id=operation.get("schema_id"),
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
        for change in listed(batch)
    ]
