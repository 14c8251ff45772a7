"""Apache Fluss's expectations of its merge engines and partial updates, as far as engines alone can be tested."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from kvstore.bucket.merge import cdc
from kvstore.testing.engine_model import Row
from logformat.log.change import ChangeType
from merge_engines.aggregate import Aggregate
from merge_engines.engine import MergeEngine
from merge_engines.first_row import FirstRow
from merge_engines.functions.function import listagg
from merge_engines.last_row import LastRow
from merge_engines.versioned import Versioned
from tests.conformance.vectors import VECTORS
from tests.merge_engines.batches import Batch, plain_rows

OPTIONS = {"table.merge-engine", "table.merge-engine.versioned.ver-column", "table.delete.behavior"}
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


def is_for_engines(vector: dict[str, Any]) -> bool:
    """Whether the vector needs only merges of whole batches under an integer key."""
    if vector["kind"] != "kv" or "auto_increment" in vector["table"] or not vector["table"]["pk"]:
        return False
    columns = {name: kind for name, kind, *_ in vector["table"]["columns"]}
    return (
        set(vector["table"].get("options", {})) <= OPTIONS
        and [columns[name] for name in vector["table"]["pk"]] == ["int"]
        and not vector.get("expect_error")
        and all("batch" in operation and operation.get("writer", -1) == -1 for operation in vector["ops"])
        and all("schema_id" not in operation for operation in vector["ops"])
    )


NAMES = [name for name, vector in VECTORS.items() if is_for_engines(vector)]


def test_vectors_exist() -> None:
    assert len(NAMES) > 90


@pytest.mark.parametrize("name", NAMES)
def test_vector(name: str) -> None:
    vector = VECTORS[name]
    table = vector["table"]
    (key,) = table["pk"]
    # In batches the key is named k.
    kinds = {"k" if name == key else name: TYPES[kind] for name, kind, *_ in table["columns"]}
    schema = pa.schema(kinds)
    engine = engine_of(table)
    engine.check(schema, ("k",))
    drops_deletes = table.get("options", {}).get("table.delete.behavior", engine.delete_behaviors[0]) == "ignore"
    rows: dict[int, Row] = {}
    found = []
    for operation in vector["ops"]:
        overwrites = operation.get("mode") == "overwrite"
        targets = (
            frozenset("k" if name == key else name for name in operation["target"]) if "target" in operation else None
        )
        incoming = [
            (converted(row, key, schema, targets), "delete" in kind)
            for kind, row in operation["batch"]
            if overwrites or not (drops_deletes and "delete" in kind)
        ]
        operations = Batch(schema, list(rows.values()), incoming, targets).operations()
        merged = (LastRow() if overwrites else engine).merge(operations)
        change_types, changed = cdc.records_of(merged, operations.order)
        for code, row in zip(change_types.tolist(), plain_rows(changed), strict=True):
            found.append((ChangeType(code).short, row))
            if code in (ChangeType.INSERT, ChangeType.UPDATE_POSTIMAGE):
                rows[row["k"]] = row
            elif code == ChangeType.DELETE:
                del rows[row["k"]]
    assert found == [(short, converted(row, key, schema, None)) for _, short, row in vector["expect"]]


def engine_of(table: dict[str, Any]) -> MergeEngine:
    options = table.get("options", {})
    match options.get("table.merge-engine"):
        case "first_row":
            return FirstRow()
        case "versioned":
            return Versioned(options["table.merge-engine.versioned.ver-column"])
        case "aggregation":
            given = [(name, options[0]) for name, _, *options in table["columns"] if options]
            return Aggregate(
                {
                    name: listagg(options["delimiter"]) if "delimiter" in options else options["agg"]
                    for name, options in given
                    if "agg" in options
                }
            )
    return LastRow()


def converted(row: Row, key: str, schema: pa.Schema, targets: frozenset[str] | None) -> Row:
    """A row of a vector, with dates and times as numbers; null where it has no value, and outside the targets."""
    named = {"k" if name == key else name: value for name, value in row.items()}
    return {
        field.name: value_of(named.get(field.name), field.type) if targets is None or field.name in targets else None
        for field in schema
    }


def value_of(written: Any, kind: pa.DataType) -> Any:
    if not isinstance(written, str) or pa.types.is_string(kind):
        return written
    if written.startswith("hex:"):
        return bytes.fromhex(written[4:])
    if pa.types.is_decimal(kind):
        return Decimal(written)
    if pa.types.is_time(kind):
        time = dt.time.fromisoformat(written)
        return 1000 * (3600 * time.hour + 60 * time.minute + time.second)
    if pa.types.is_date(kind):
        return (dt.date.fromisoformat(written) - dt.date(1970, 1, 1)).days
    return pa.scalar(written.rstrip("Z")).cast(pa.timestamp(kind.unit)).cast(pa.int64()).as_py()
