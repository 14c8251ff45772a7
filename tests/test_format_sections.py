"""What the sections of docs/format.md say, one after the other, and what docs/types.md says of types."""

from __future__ import annotations

import json
import re
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket.snapshots import rows as snapshot_rows
from kvstore.disk.lock import ProcessLock
from kvstore.errors import CorruptData, InvalidRequest, SchemaMismatch, UnsupportedOperation, UnsupportedVersion
from kvstore.meta import image
from kvstore.meta.state import CatalogState
from kvstore.spark.types import arrow_schema, for_spark, spark_schema
from logformat import checksum, paths
from logformat.binary_column import BinaryColumn
from logformat.catalog import edits, following_file, store_file, table_file
from logformat.catalog.image import Schema
from logformat.ids import OFFSET_MAX, Epoch, SchemaId, TableId, Txid
from logformat.log import batch, snapshot_manifest, writer_entry
from logformat.log.change import ChangeType
from logformat.replica import (
    follower_status,
    manifest as replica_manifest,
    object_file as replica_object,
    retention as replica_retention,
    shared_table,
)
from logformat.rows import intake, schema as schemas
from logformat.rows.keys import ROW, KeyCodec
from logformat.rows.record import RecordCodec
from logformat.rows.rows import RowCodec
from merge_engines import aggregate
from merge_engines.functions import function as function_module
from merge_engines.spec import engine_of, spec_of
from tests.documents import (
    FORMAT,
    KEY_SUMS,
    LETTERS,
    MAGIC_3,
    PEOPLE,
    ROW_CODEC,
    ROW_KEY,
    TYPES,
    WRITER,
    Arithmetic,
    names_in,
    parts_of,
    plain,
)
from tests.support.tables import rows_of

# One section after the other


def test_store() -> None:
    whole, covered_part = (block.rstrip("\n") for block in FORMAT.blocks("STORE", "json"))
    data = whole.encode() + b"\n"
    assert store_file.encode(store_file.decode(data)) == data
    fields = json.loads(whole)
    assert [name for name, *_ in FORMAT.tables("STORE")[0]] == list(fields)
    assert fields.pop("crc32c") == checksum.crc32c(covered_part.encode())
    assert json.loads(covered_part) == fields


def test_table() -> None:
    (block,) = FORMAT.blocks("TABLE", "json")
    data = block.replace("\n", "").encode() + b"\n"
    table = table_file.decode(data)
    assert table_file.encode(table) == data
    fields = json.loads(data)
    assert [name for name, *_ in FORMAT.tables("TABLE")[0]] == list(fields)
    create, add = table.edits()
    assert isinstance(create, edits.CreateTable)
    assert isinstance(add, edits.AddSchema)
    assert ([len(create.columns), len(add.columns)], add.schema_id) == (fields["widths"], 2)
    for damaged in (data.replace(b"people", b"peoplE"), data[:-1], b"{}\n"):
        with pytest.raises(CorruptData):
            table_file.decode(damaged)
    for widths in ([], [0, 2], [2, 2], [1], [1, 3]):
        with pytest.raises(CorruptData, match="other columns"):
            table_file.decode(table_file.encode(msgspec.structs.replace(table, widths=widths)))
    with pytest.raises(UnsupportedVersion, match="newer version"):
        table_file.decode(table_file.encode(msgspec.structs.replace(table, format=3)))
    altered = msgspec.structs.replace(table, format=2, widths=[1, 2, 2])
    assert table_file.decode(table_file.encode(altered)) == altered
    last = altered.edits()[-1]
    assert isinstance(last, edits.AlterColumns)
    assert (last.schema_id, last.columns) == (3, table.columns)
    for wrong in (msgspec.structs.replace(altered, format=1), msgspec.structs.replace(altered, widths=[2, 1, 2])):
        with pytest.raises(CorruptData, match="other columns"):
            table_file.decode(table_file.encode(wrong))


def test_manifest_of_a_snapshot() -> None:
    (block,) = FORMAT.blocks("Manifest", "json")
    data = block.replace("\n", "").encode() + b"\n"
    manifest = snapshot_manifest.decode_manifest(data)
    assert snapshot_manifest.encode_manifest(manifest) == data
    fields = json.loads(data)
    assert [name for name, *_ in FORMAT.tables("Manifest")[0]] == list(fields)
    assert fields["crc32c"] == checksum.crc32c(data[: data.rindex(b',"crc32c"')] + b"}")
    documented = re.findall(r"by name, `(\w+)` and the CRC-32C of all of them, `(\w+)`", FORMAT.prose)
    assert [tuple(file) for file in fields["files"].values()] == 2 * documented
    types = {int: "integer", str: "string", dict: "object"}
    assert [kind for _, kind, _ in FORMAT.tables("Manifest")[0]] == [types[type(value)] for value in fields.values()]
    for name in (b"next_count", b"digest"):
        with pytest.raises(CorruptData):
            snapshot_manifest.decode_manifest(data.replace(name, name.upper()))


def test_writers_of_a_snapshot() -> None:
    (block,) = FORMAT.blocks("Writers of a snapshot", "json")
    data = block.replace("\n", "").encode() + b"\n"
    writers = snapshot_manifest.decode_writers(data)
    assert snapshot_manifest.encode_writers(writers) == data
    assert writers == {WRITER: writer_entry.decode_entry(WRITER, FORMAT.dump("Writer entry"))}
    (manifest,) = FORMAT.blocks("Manifest", "json")
    documented = json.loads(manifest)["files"][paths.SNAPSHOT_WRITERS]
    assert documented == {"bytes": len(data), "crc32c": checksum.crc32c(data)}


def test_rows_of_a_snapshot_have_the_types_in_the_table() -> None:
    samples = {
        "timestamp in seconds, with or without zone": [pa.timestamp("s"), pa.timestamp("s", "UTC")],
        "time32 in seconds": [pa.time32("s")],
        "decimal128 with a scale below 0 or above its precision": [pa.decimal128(5, -1), pa.decimal128(5, 6)],
        "decimal256 with a scale below 0 or above its precision": [pa.decimal256(50, -1), pa.decimal256(50, 51)],
    }
    (table,) = FORMAT.tables("Rows of a snapshot")
    assert [line[0] for line in table] == list(samples)
    for kind, written in table:
        for sample in samples[kind]:
            found = snapshot_rows.parquet_schema(
                pa.schema([("c", sample), ("n", pa.list_(pa.struct([("x", sample)])))])
            )
            assert str(found.field("c").type).split("(")[0] == written.split(" ")[0]
            assert found.field("n").type.value_type.field("x").type == found.field("c").type
    others = [kind for kind in schemas.PLAIN_TYPES.values() if all(kind not in given for given in samples.values())]
    decimals = [pa.decimal128(5, 0), pa.decimal128(5, 5), pa.decimal256(50, 2)]
    for kind in [*others, *decimals, pa.binary(3), pa.map_(pa.int8(), pa.int8())]:
        assert snapshot_rows.parquet_schema(pa.schema([("c", kind)])).field("c").type == kind
    (schema_id,) = re.findall(r"then the column `(\w+)`, int16, not null", FORMAT.prose)
    assert found.field(schema_id) == pa.field(schema_id, pa.int16(), False)


def test_older_magics() -> None:
    (table,) = FORMAT.tables("Magic 0, 1 and 2")
    *fields, sizes = table
    for magic, layout in enumerate(batch.LAYOUTS[: batch.MAGIC]):
        parts = zip(layout.names, parts_of(layout.format), strict=True)
        said = [(name, int(line[magic]), LETTERS[kind]) for name, kind, *line in fields if line[magic] != "-"]
        assert said == [(name, position, letter) for name, (position, _, letter) in parts]
        assert int(sizes[2 + magic]) == layout.size
        assert layout.checksum_from == next(position for name, position, _ in said if name == "schema_id")


HEADER_RULE = (
    f"unless {MAGIC_3.size} ≤ size ≤ `BATCH_BYTES_MAX`, 0 ≤ `record_count` ≤ `RECORDS_MAX`, `last_offset_delta` ≥"
    " max(`record_count` - 1, 0), base and next offset lie between 0 and `OFFSET_MAX`, 0 ≤ `statistics_length` ≤ size -"
    f" {MAGIC_3.size}, and size and `records_position` are multiples of `ALIGNMENT`."
)


@pytest.mark.parametrize(
    ("name", "allowed", "refused"),
    [
        ("length", [128 - 12, 2**28 - 12], [64 - 12, 128 - 11, 2**28 + 64 - 12]),
        ("record_count", [0, 3], [-1, 4, 2**24 + 1]),
        ("last_offset_delta", [2, 9], [1, -1]),
        ("base_offset", [0, OFFSET_MAX - 3], [-1, OFFSET_MAX - 2]),
        ("statistics_length", [0, 448 - 96], [-1, 448 - 95]),
        ("records_position", [0, 64], [1, 65]),
    ],
)
def test_headers_are_refused_by_the_rule(name: str, allowed: list[int], refused: list[int]) -> None:
    assert HEADER_RULE in FORMAT.prose
    (field,) = (field for field in FORMAT.fields("Header of magic 3") if field.name == name)
    for value in [*allowed, *refused]:
        data = bytearray(FORMAT.dump("Record batch"))
        struct.pack_into(f"<{field.letter}", data, field.position, value)
        if value in allowed:
            batch.decode_header(bytes(data))
        else:
            with pytest.raises(CorruptData):
                batch.decode_header(bytes(data))


def test_names_of_magic_3() -> None:
    fields = [field.name for field in FORMAT.fields("Header of magic 3")]
    assert tuple(fields[:-1]) == MAGIC_3.names


def test_attributes_and_change_types() -> None:
    attributes = FORMAT.tables("Header of magic 3")[1]
    assert {name: int(value) for value, name, _ in attributes} == {
        name: getattr(batch, name) for name in ("APPEND_ONLY", "NAMED_WRITER")
    }
    (table,) = FORMAT.tables("Change types")
    said = [(int(code), short, word) for code, short, word, _ in table]
    assert said == [(change.value, change.short, change.word) for change in ChangeType]


def test_the_batch_in_the_dump_is_the_one_described() -> None:
    found = batch.decode_batch(FORMAT.dump("Record batch"), PEOPLE)
    records = zip(found.change_types, found.rows.to_pylist(), strict=True)
    said = ", ".join(f"{ChangeType(kind).short} ({row['id']}, {row['name'] or 'null'})" for kind, row in records)
    assert f"Its records are {said}." in FORMAT.text
    message = FORMAT.dump("Record batch")[found.records_position :]
    version, mark = re.findall(r"metadata version (\d+)\): `u32` (0x\w+), `i32` size of the metadata", FORMAT.prose)[0]
    assert struct.unpack_from("<I", message)[0] == int(mark, 16)
    assert f"V{version}" == pa.ipc.read_message(message).metadata_version.name
    columns = re.findall(r"Columns of the example: `(\w+)` (\w+) not null, `(\w+)` (\w+)\.", FORMAT.prose)[0]
    assert [*columns] == [text for field in PEOPLE for text in (field.name, str(field.type))]


def value_of(written: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_decimal(kind):
        return pa.array([Decimal(written)]).cast(kind)
    if isinstance(written, int) and not isinstance(written, bool):
        return pa.array([written], {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[kind.bit_width]).view(
            kind
        )
    column = pa.array([written])
    return column.view(pa.binary()).cast(kind) if pa.types.is_fixed_size_binary(kind) else column.cast(kind)


@pytest.mark.parametrize(("written", "value", "code"), [line[2:] for line in FORMAT.tables("Key")[0]])
def test_code_of_a_key_column(written: str, value: str, code: str) -> None:
    (field,) = schemas.from_json([{"name": "k", "type": json.loads(plain(written)), "nullable": False}])
    column = value_of(json.loads(plain(value)), field.type)
    keys = KeyCodec([field]).encode([column])
    assert bytes(keys.to_list()[0]) == ROW + bytes.fromhex(plain(code))
    assert KeyCodec([field]).decode(keys)[0].equals(column)


def test_strings_in_keys_are_escaped() -> None:
    rule = r"escaped: `(\d\d)` becomes `(.{5})`, `(\d\d)` becomes `(.{5})`\. Then they end with `(\d\d)`\."
    first, first_code, second, second_code, end = map(bytes.fromhex, re.findall(rule, FORMAT.prose)[0])
    codec = KeyCodec([pa.field("k", pa.binary(), False)])
    assert codec.encode([pa.array([first + second])]).to_list() == [ROW + first_code + second_code + end]
    twice = re.findall(r"each byte (\d\d) and (\d\d) of it counts twice", TYPES.prose)[0]
    assert [*map(bytes.fromhex, twice)] == [first, second]


def test_every_type_of_a_key_has_a_code() -> None:
    said = {name for line in FORMAT.tables("Key")[0] for name in re.findall(r"[a-z]\w+", line[0]) if name != "to"}
    keys = {re.split(r"\W", line[1].strip("`"))[0] for line in type_lines() if line[2] != "no"}
    assert keys - {"int16", "int32", "uint16", "uint32"} == said
    assert {f"int{width}" for width in (8, 16, 32, 64)} <= keys


def test_key() -> None:
    codec = KeyCodec([pa.field("region", pa.string(), False), pa.field("n", pa.int32(), False)])
    columns = [pa.array(["a\0b"]), pa.array([-2], pa.int32())]
    assert codec.encode(columns).to_list() == [FORMAT.dump("Key")]


def test_row_checksum() -> None:
    arithmetic = Arithmetic()
    key_sum, value_sum, row_hash = arithmetic.sums(ROW_KEY, FORMAT.dump("Row"))
    (table,) = FORMAT.tables("Row checksum")
    assert {name: int(value, 16) for name, value in table} == {
        **{f"V[{place}]": arithmetic.weight("V", place) for place in range(3)},
        **{f"K[{place}]": arithmetic.weight("K", place) for place in range(2)},
        "sum of the key": key_sum,
        "sum of the value": value_sum,
        "hash": row_hash,
        "checksum": row_hash % 2**32,
    }
    assert key_sum == KEY_SUMS[0]
    assert row_hash == ROW_CODEC.decode(BinaryColumn.from_list([FORMAT.dump("Row")]), KEY_SUMS, SchemaId(1))[1][0]
    assert f"It stands under the key `{ROW_KEY.hex(' ')}`" in FORMAT.text


def test_row_checksums_of_rows_of_any_length() -> None:
    arithmetic = Arithmetic()
    names = ["", "a", "x" * 7, "y" * 700]
    codec = RowCodec({SchemaId(1): pa.schema([("name", pa.string())])})
    keys = [b"\x02" + name.encode() + b"\x00" for name in names]
    values, hashes = codec.encode([pa.array(names)], checksum.key_sums(BinaryColumn.from_list(keys)), SchemaId(1))
    said = [arithmetic.sums(key, value)[2] for key, value in zip(keys, values.to_list(), strict=True)]
    assert said == hashes.tolist()


def test_record() -> None:
    types = [pa.list_(pa.int16()), pa.struct({"a": pa.int32(), "b": pa.string()}), pa.map_(pa.string(), pa.int8())]
    values: list[Any] = [[1, None, 3], {"a": 7, "b": "xy"}, [("k", 9)]]
    columns = [pa.array([value], kind) for value, kind in zip(values, types, strict=True)]
    data = FORMAT.dump("Record")
    assert RecordCodec(types).encode_whole(columns).to_list() == [data]
    flat, ends = np.frombuffer(data, np.uint8), np.array([len(data)])
    assert RecordCodec(types).decode(flat, np.array([0]), ends) == columns


def test_widths_of_the_fixed_part() -> None:
    widths: dict[str, str] = {}
    for types, width, _ in FORMAT.tables("Record")[0]:
        spread = names_in(width) if len(names_in(width)) > 1 else [width] * len(names_in(types))
        widths |= dict(zip(names_in(types), spread, strict=True))
    assert widths.pop("fixed_size_binary") == "its width"
    samples = [*schemas.PLAIN_TYPES.values(), pa.decimal128(10, 2), pa.decimal256(50, 2)]
    samples += [pa.list_(pa.int8()), pa.struct({"a": pa.int8()})]
    samples.append(pa.map_(pa.int8(), pa.int8()))
    said = {kind: int(widths[re.split(r"\W", str(kind))[0]]) for kind in samples}
    assert said == {kind: RecordCodec([kind]).dtype.itemsize - 1 for kind in samples}
    assert set(widths) == {re.split(r"\W", str(kind))[0] for kind in samples}


def test_payloads_of_edits() -> None:
    said = {int(op): (name, names_in(fields)) for op, name, fields, _ in FORMAT.tables("Payloads")[0]}
    assert said == {
        op: (kind.__name__, [field.name for field in msgspec.structs.fields(kind)])
        for op, kind in edits.PAYLOADS.items()
    }
    (example,) = FORMAT.blocks("Payloads", "json")
    create = msgspec.json.decode(example, type=edits.CreateTable)
    assert json.loads(msgspec.json.encode(create)) == json.loads(example)
    assert schemas.to_json(schemas.from_json(create.columns)) == create.columns


def test_renamed_and_dropped_columns() -> None:
    blocks = [FORMAT.blocks(section, "json")[0] for section in ("Payloads", "Renamed and dropped columns")]
    create, alter = (
        msgspec.json.decode(block, type=kind)
        for block, kind in zip(blocks, (edits.CreateTable, edits.AlterColumns), strict=True)
    )
    assert json.loads(msgspec.json.encode(alter)) == json.loads(blocks[1])
    assert schemas.to_json(schemas.from_json(alter.columns)) == alter.columns
    state = CatalogState()
    for txid, payload in enumerate((create, alter), 1):
        state = state.after(edits.Edit(txid=Txid(txid), epoch=Epoch(0), time_ms=0, payload=payload))
    table = state.tables[create.table_id]
    assert table.schema.names == ["id", "full_name"]
    assert len(table.schema_of(SchemaId(1))) == 3
    assert table.schema_of(SchemaId(1)).names[:2] == table.schema.names
    written = [each.altered for each in image.items_of(state) if isinstance(each, Schema)]
    assert written == [msgspec.UNSET, True]
    with pytest.raises(UnsupportedVersion):
        schemas.from_json([alter.columns[2] | {"nullable": False}])


def test_types_of_columns_in_json() -> None:
    (table,) = FORMAT.tables("Columns")
    column = json.dumps({"name": "c", "type": "int8", "nullable": False})
    plain_names = []
    for written in (text for line in table for text in re.findall(r"`(.+?)`", line[0])):
        kind = json.loads(written.replace("<column>", column).replace(", …", ""))
        again = [{"name": "c", "type": kind, "nullable": True}]
        assert schemas.to_json(schemas.from_json(again)) == again
        if isinstance(kind, str):
            plain_names.append(kind)
    assert plain_names == list(schemas.PLAIN_TYPES)


def test_merge_engines_in_json() -> None:
    engines, functions = FORMAT.tables("Merge engines")
    for written in (plain(line[0]) for line in engines):
        assert spec_of(engine_of(json.loads(written))) == json.loads(written)
        options = edits.TableOptions(merge_engine=json.loads(written))
        assert msgspec.json.decode(msgspec.json.encode(options), type=edits.TableOptions) == options
    known = []
    for written in (json.loads(text) for line in functions for text in re.findall(r"`(.+?)`", line[0])):
        (function,) = dict(engine_of({"aggregate": {"c": written}}).functions).values()
        known.append(function.name)
    assert sorted(known) == sorted(function_module.NAMES)
    (default,) = re.findall(r"is not named has `(\w+)`", FORMAT.prose)
    assert aggregate.DEFAULT.name == default


def test_lock(tmp_path: Path) -> None:
    (said,) = re.findall(r"`(\{.*?\})`", FORMAT.sections["LOCK"])
    lock = ProcessLock(tmp_path / paths.LOCK_FILE)
    lock.acquire()
    written = (tmp_path / paths.LOCK_FILE).read_text()
    assert len(written) == 512
    written = written.rstrip(" ")
    lock.release()
    assert re.sub(r": (\d+|\".*?\")", ": _", said) == re.sub(r": (\d+|\".*?\")", ": _", written)


# docs/types.md


def type_of(written: str) -> pa.DataType:
    return eval(plain(written), {"pa": pa})  # our own document


def type_lines() -> list[list[str]]:
    return [
        line for heading in ("Stored as given", "Stored as another type") for t in TYPES.tables(heading) for line in t
    ]


def key_bytes(stored: pa.DataType) -> str:
    try:
        fields = list(schemas.normalise(pa.schema([("k", stored)]), ["k"]))
    except InvalidRequest:
        return "no"
    width = KeyCodec(fields).width
    return "n + 1" if width is None else str(width - 1)


def row_bytes(stored: pa.DataType) -> str:
    fixed = RecordCodec([stored]).dtype.itemsize - 1
    return f"{fixed} + …" if pa.types.is_nested(stored) else f"{fixed} + n" * schemas.is_variable(stored) or str(fixed)


@pytest.mark.parametrize("line", type_lines(), ids=lambda line: line[0])
def test_a_type_is_stored_and_read_as_the_table_says(line: list[str]) -> None:
    given, written, key, row, spark = line
    stored = schemas.normalise_type(type_of(given))
    assert plain(written) == str(stored)
    assert (key, row) == (key_bytes(stored), row_bytes(stored))
    if spark == "no":
        with pytest.raises(UnsupportedOperation):
            spark_schema(pa.schema([("c", stored)]))
        return
    in_spark = spark_schema(pa.schema([("c", stored)]))
    assert plain(spark) == in_spark["c"].dataType.simpleString()
    nulls = pa.record_batch([pa.nulls(2, stored)], names=["c"])
    assert for_spark(nulls, arrow_schema(in_spark)).column(0).null_count == 2
    if any(line in table for table in TYPES.tables("Stored as given")):
        assert stored == type_of(given)


@pytest.mark.parametrize("given", [line[0] for line in TYPES.tables("Refused")[0]])
def test_a_type_is_refused_as_the_table_says(given: str) -> None:
    with pytest.raises(InvalidRequest):
        schemas.normalise(pa.schema([("c", type_of(given))]))


def test_every_arrow_type_has_a_line() -> None:
    lines = [line[0] for line in [*type_lines(), *TYPES.tables("Refused")[0]]]
    there = {type_of(given).id for given in lines}
    no_python_type = {pa.lib.Type_INTERVAL_DAY_TIME, pa.lib.Type_INTERVAL_MONTHS}
    assert {getattr(pa.lib, name) for name in dir(pa.lib) if name.startswith("Type_")} - no_python_type <= there
    assert {str(kind) for kind in schemas.PLAIN_TYPES.values()} <= {plain(line[1]) for line in type_lines()}


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (line[0], target)
        for line in TYPES.tables("Writing values of other types")[0]
        for target in re.findall(r"`(.+?)`", line[1])
    ],
)
def test_values_go_into_columns_as_the_table_says(given: str, target: str) -> None:
    column = pa.record_batch([pa.nulls(2, type_of(given))], names=["c"])
    assert intake.conform(column, pa.schema([("c", type_of(target))])).column(0).type == type_of(target)


@pytest.mark.parametrize("pair", [("string", "int64"), ("double", "int64"), ("bool", "int8"), ("int8", "bool")])
def test_values_that_are_of_another_kind_are_refused(pair: tuple[str, str]) -> None:
    given, target = (schemas.PLAIN_TYPES[name] for name in pair)
    with pytest.raises(SchemaMismatch):
        intake.conform(pa.record_batch([pa.nulls(1, given)], names=["c"]), pa.schema([("c", target)]))


def test_rules_beside_the_tables_of_types() -> None:
    (reserved,) = re.findall(r"These names of columns are reserved: (.*?)\.", TYPES.prose)
    assert {plain(name) for name in names_in(reserved)} == schemas.RESERVED_NAMES
    lines = type_lines()
    nested = pa.int8()
    for _ in range(schemas.NESTING_MAX):
        nested = pa.list_(nested)
    assert schemas.normalise_type(nested) == nested
    with pytest.raises(InvalidRequest):
        schemas.normalise_type(pa.list_(nested))
    assert len({line[0] for line in lines}) == len(lines)
    words = {plain(cell) for line in lines for cell in (line[1], line[4])} | {"date64"}
    named = re.findall(r"`((?:date|time|timestamp|duration)\d*(?:[\[(][^`]*)?)`", TYPES.prose)
    assert set(named) <= words


def test_a_type_reads_back_with_the_values_written(tmp_path: Path) -> None:
    columns = {str(kind): pa.nulls(1, kind) for kind in map(type_of, (line[0] for line in type_lines()))}
    given = pa.record_batch({"id": pa.array([1]), **columns})
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", given.schema, "id")
        table.upsert(given)
        assert rows_of(table) == [dict.fromkeys(given.schema.names) | {"id": 1}]


def test_names_of_objects() -> None:
    table = FORMAT.tables("Replica")[0]
    kinds = []
    for name, example, _ in table:
        written = re.sub(r"<(\d+)>", lambda found: f"{int(found[1]):020d}", plain(example))
        parsed = replica_object.parse_name(written)
        if parsed is not None:
            assert str(parsed) == written
            assert plain(name).endswith(f".<epoch>.{parsed.kind}")
            kinds.append(parsed.kind)
        elif written.startswith(follower_status.PREFIX):
            assert follower_status.object_name("<name>") == written
        elif "/" in written:
            assert written == replica_object.leader_name(Epoch(0))
            assert replica_object.leader_epoch(written) == 0
    assert kinds == ["range", "snapshot"]
    assert {plain(name) for name, *_ in table if "<" not in name} == {
        *(paths.STORE_FILE, replica_manifest.NAME, replica_retention.NAME)
    }
    assert f"`{paths.SHIPPING}`" in FORMAT.prose
    documented = re.findall(r"`(\w+)`", re.findall(r"`crc32c` last: (.*?), as in TellReplica", FORMAT.prose)[0])
    assert documented == [field.name for field in msgspec.structs.fields(replica_manifest.ReplicaManifest)]


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("FOLLOWING", following_file.FollowingFile),
        ("Follower", follower_status.FollowerStatus),
        ("Retention of a replica", replica_retention.Retention),
    ],
)
def test_fields_of_followers(section: str, kind: type[msgspec.Struct]) -> None:
    fields = [field.name for field in msgspec.structs.fields(kind)]
    named = re.findall(r"`(\w+)`", FORMAT.sections[section].partition("`format` ")[2])
    assert [name for name in ["format", *named] if name in fields][: len(fields)] == fields


def test_objects_of_a_shared_table() -> None:
    line, adds = (block.replace("\n", "") for block in FORMAT.blocks("Shared tables", "json"))
    given = json.loads(line)
    definition = shared_table.SharedDefinition(
        store_id=UUID(given["store_id"]),
        created_ms=0,
        table_id=TableId(given["table_id"]),
        name="t",
        columns=[],
        primary_key=None,
        buckets=len(given["ranges"]),
        bucket_key=None,
        options=edits.TableOptions(),
    )
    data = line.encode() + b"\n"
    found = shared_table.decode_epoch(data, definition, 2)
    assert shared_table.encode(found) == data
    data_adds = adds.encode() + b"\n"
    found_adds = shared_table.decode_epoch(data_adds, definition, 3)
    assert shared_table.encode(found_adds) == data_adds
    epoch = shared_table.epoch_of(found_adds, found)
    assert epoch.stored() == found_adds
    assert epoch.writers == {"load": 1, "more": 3}
    assert [epoch.end(bucket) for bucket in range(2)] == [4, 6]
    assert epoch.snapshots == found.snapshots
    assert shared_table.decode_definition(shared_table.encode(definition), "t") == definition
    for wrong in (data.replace(b"[3,4,9", b"[2,4,9"), data.replace(b'"load"', b'"lost"')):
        with pytest.raises(CorruptData):
            shared_table.decode_epoch(wrong, definition, 2)
    with pytest.raises(CorruptData, match="not the one in its name"):
        shared_table.decode_epoch(data, definition, 3)
    prose = FORMAT.sections["Shared tables"]
    for kind in (shared_table.SharedDefinition, shared_table.EpochObject, shared_table.CopyRecord):
        assert all(f"`{field.name}`" in prose for field in msgspec.structs.fields(kind))
    (names,) = FORMAT.tables("Shared tables")
    written = {plain(name) for name, _ in names[1:]}
    assert {
        "shared/<hash>",
        shared_table.epoch_name(TableId(7), 0).replace("/7/", "/<table>/").replace("0" * 20, "<n>"),
        shared_table.newest_name(TableId(7)).replace("/7/", "/<table>/"),
    } <= written
