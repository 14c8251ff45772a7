"""Rows of any schema survive a round trip through a snapshot's file, byte for byte; other programs can read it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from kvstore.bucket.snapshot_rows import SCHEMA_ID, FileWriter, RowsWriter, read_rows
from kvstore.disk.files import Files
from kvstore.errors import CorruptData
from kvstore.meta.state import TableDefinition
from kvstore.request.row_layout import layout_of
from kvstore.testing.strategies import rows as record_batches, schemas
from logformat.binary_column import BinaryColumn
from logformat.catalog.edits import TableOptions
from logformat.checksum import key_sums
from logformat.ids import SchemaId, TableId

KEY = pa.field("key", pa.int64(), False)


def definition_of(*found: pa.Schema) -> TableDefinition:
    numbered = {SchemaId(number): schema for number, schema in enumerate(found, 1)}
    return TableDefinition(TableId(1), "t", numbered, ("key",), 1, TableOptions())


Stored = tuple[list[bytes], list[bytes]]


def encoded(definition: TableDefinition, parts: Sequence[pa.RecordBatch]) -> Stored:
    """Rows as the index stores them; each part follows the schema of its number."""
    layout = layout_of(definition)
    pairs: dict[bytes, bytes] = {}
    for number, rows in enumerate(parts, 1):
        keys = layout.encode_keys(rows)
        values, _ = layout.encode_values(rows, key_sums(keys), SchemaId(number))
        pairs |= dict(zip(keys.to_list(), values.to_list(), strict=True))
    listed = sorted(pairs.items())
    return [key for key, _ in listed], [value for _, value in listed]


def written(path: Path, definition: TableDefinition, stored: Stored, *, at_once: int = 3) -> bytes:
    descriptor = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR)
    writer = RowsWriter(FileWriter(descriptor, Files()), definition)
    for first in range(0, len(stored[0]), at_once):
        keys, values = (BinaryColumn.from_list(column[first : first + at_once]) for column in stored)
        writer.write(keys, values)
    written_file = writer.finish()
    os.close(descriptor)
    data = path.read_bytes()
    assert written_file.bytes == len(data)
    return data


def read_again(data: bytes, definition: TableDefinition) -> Stored:
    keys: list[bytes] = []
    values: list[bytes] = []
    for rows in read_rows(memoryview(data), definition):
        keys += rows.keys.to_list()
        values += rows.values.to_list()
        assert rows.hashes.dtype == np.uint64
    return keys, values


def keyed(rows: pa.RecordBatch, start: int) -> pa.RecordBatch:
    keys = pa.array(range(start, start + rows.num_rows), pa.int64())
    return pa.RecordBatch.from_arrays([*rows.columns, keys], schema=pa.schema([*rows.schema, KEY]))


@given(rows=record_batches(schemas(columns_max=4), rows_max=7))
def test_rows_of_any_types_survive_a_round_trip(rows: pa.RecordBatch, tmp_path: Path) -> None:
    rows = keyed(rows, -3)
    definition = definition_of(rows.schema)
    stored = encoded(definition, [rows])
    assert read_again(written(tmp_path / "rows", definition, stored), definition) == stored


@given(data=st.data())
def test_rows_of_several_schemas_survive_a_round_trip(data: st.DataObject, tmp_path: Path) -> None:
    last = data.draw(schemas(columns_max=4))
    # Added columns are nullable, and come after the others.
    last = pa.schema([field.with_nullable(True) for field in last])
    found = [pa.schema([KEY, *list(last)[:count]]) for count in range(len(last) + 1)]
    parts = []
    for number, schema in enumerate(found):
        rows = data.draw(record_batches(pa.schema(list(schema)[1:]), rows_max=4))
        keys = data.draw(st.lists(st.integers(-9, 9), min_size=rows.num_rows, max_size=rows.num_rows, unique=True))
        if not number:  # without columns a batch has no length
            keys = data.draw(st.lists(st.integers(-9, 9), max_size=4, unique=True))
        parts.append(pa.RecordBatch.from_arrays([pa.array(keys, pa.int64()), *rows.columns], schema=schema))
    definition = definition_of(*found)
    stored = encoded(definition, parts)
    data_written = written(tmp_path / "rows", definition, stored)
    assert read_again(data_written, definition) == stored
    newer = definition_of(*found, pa.schema([*found[-1], pa.field("newer", pa.int8())]))
    assert read_again(data_written, newer) == stored


EVERY_NAN = [b"\x00\x00\xc0\x7f", b"\x01\x00\xc0\x7f", b"\x00\x00\xc0\xff", b"\x00\x00\x00\x80", b"\x00\x00\x00\x00"]


def test_bits_of_floats_survive(tmp_path: Path) -> None:
    floats = pa.Array.from_buffers(pa.float32(), 10, [None, pa.py_buffer(b"".join(EVERY_NAN * 2))])
    listed = pa.ListArray.from_arrays(pa.array(range(11), pa.int32()), floats)
    rows = pa.record_batch([floats, listed, pa.array(range(10))], schema=pa.schema(
        [pa.field("a.b", pa.float32()), pa.field("l", pa.list_(pa.float32())), KEY]))  # fmt: skip
    definition = definition_of(rows.schema)
    stored = encoded(definition, [rows])
    assert read_again(written(tmp_path / "rows", definition, stored, at_once=100), definition) == stored


def test_a_file_is_plain_parquet_sorted_by_key(tmp_path: Path) -> None:
    first = pa.schema([pa.field("name", pa.string(), False), KEY])
    second = pa.schema([*first, pa.field("t", pa.timestamp("us", "UTC"))])
    definition = TableDefinition(
        TableId(1), "t", {SchemaId(1): first, SchemaId(2): second}, ("name", "key"), 1, TableOptions()
    )
    parts = [
        pa.record_batch([["b", "a", "a"], [1, 9, -9]], schema=first),
        pa.record_batch([["b"], [-1], pa.array([5], pa.timestamp("us", "UTC"))], schema=second),
    ]
    written(tmp_path / "rows", definition, encoded(definition, parts))
    found = pq.read_table(tmp_path / "rows")
    assert found.schema.names == ["name", "key", "t", SCHEMA_ID]
    assert found.schema.field("t").type == pa.timestamp("us", "UTC")
    assert found.select(["name", "key", SCHEMA_ID]).to_pylist() == [
        {"name": "a", "key": -9, SCHEMA_ID: 1},
        {"name": "a", "key": 9, SCHEMA_ID: 1},
        {"name": "b", "key": -1, SCHEMA_ID: 2},
        {"name": "b", "key": 1, SCHEMA_ID: 1},
    ]
    assert [(s.column_index, s.descending) for s in pq.ParquetFile(tmp_path / "rows").metadata.row_group(0).sorting_columns] == [(0, False), (1, False)]  # fmt: skip  # noqa: E501


def test_rows_of_another_table_are_refused(tmp_path: Path) -> None:
    definition = definition_of(pa.schema([KEY, ("a", pa.string())]))
    rows = pa.record_batch([[1], ["x"]], schema=definition.schema)
    data = written(tmp_path / "rows", definition, encoded(definition, [rows]))
    for other in (pa.schema([KEY, ("b", pa.string())]), pa.schema([KEY, ("a", pa.int64())])):
        with pytest.raises(CorruptData):
            read_again(data, definition_of(other))
    with pytest.raises(CorruptData):
        read_again(b"PAR1" + data, definition)
    with pytest.raises(CorruptData):
        read_again(b"", definition)
