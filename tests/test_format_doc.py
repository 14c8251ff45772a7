"""docs/format.md says what the code does: its tables of fields, dumps and limits are held against it.

Of a table of fields, every offset, size, type and name is compared with the code, and every example with the dump and
with what the code decodes from it.
"""

from __future__ import annotations

import importlib
import io
import re
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from kvstore.errors import CorruptData
from kvstore.meta.state import TABLES_SKIPPED, WRITER_EPOCHS_SKIPPED, WRITERS_SKIPPED, CatalogState
from kvstore.options import StoreOptions
from logformat import checksum
from logformat.binary_column import WORD, BinaryColumn
from logformat.catalog import edits, image, store_file
from logformat.catalog.replicas import CATALOG
from logformat.ids import NO_SEQUENCE, SEQUENCE_MAX, Epoch, Offset, SchemaId, next_sequence
from logformat.log import batch, entries_record, index_state, published_end, segment, sparse_index, writer_entry
from logformat.replica import manifest as replica_told, object_file as replica_object
from logformat.rows import entries, rows, schema as schemas
from logformat.rows.keys import KeyCodec
from tests.documents import (
    DIGITS,
    FORMAT,
    KEY_SUMS,
    MAGIC_3,
    PEOPLE,
    ROOT,
    ROW_CODEC,
    TYPES,
    WRITER,
    Document,
    covered,
    numbers,
    parts_of,
    plain,
)

PACKAGES = ("kvstore", "logformat", "merge_engines")

# Things stored, and what decodes and encodes them


def decoded_batch(data: bytes) -> dict[str, Any]:
    found = batch.decode_batch(data, PEOPLE)
    header = {name: getattr(found, name) for name in batch.BatchHeader.__dataclass_fields__}
    return header | {"length": header.pop("size") - batch.LOG_OVERHEAD}


def decoded_entry(data: bytes) -> dict[str, Any]:
    found = writer_entry.decode_entry(WRITER, data)
    return {"epoch": found.epoch, "named": int(found.named), "batch_count": len(found.batches)}


def decoded_uncounted(_: bytes) -> dict[str, Any]:
    data = FORMAT.dump("Writer entry of version 1")
    found = writer_entry.decode_entry(WRITER, data)
    assert writer_entry.encode_entry(WRITER, found) == data
    return {"uncounted_ms": found.uncounted_ms}


TIMES = ("uncounted_ms", "back_offset")


def decoded_state(data: bytes) -> dict[str, Any]:
    found = index_state.decode(data)._asdict()
    assert [found.pop(name) for name in (*TIMES, "merging")] == [0, 0, None]
    return found


def decoded_times(_: bytes) -> dict[str, Any]:
    data = FORMAT.dump("State record of version 2")
    found = index_state.decode(data)
    assert index_state.encode(found) == data
    return {name: getattr(found, name) for name in TIMES}


def decoded_merge(_: bytes) -> dict[str, Any]:
    data = FORMAT.dump("State record of version 3")
    found = index_state.decode(data)
    assert index_state.encode(found) == data
    assert found.merging is not None
    names = ("row_count", "digest", "last_timestamp", "next_count", "uncounted_ms", "back_offset")
    return {name: getattr(found.merging, name) for name in names} | {"merged_offset": found.merging.applied_offset}


def decoded_entries_record(data: bytes) -> dict[str, Any]:
    return entries_record.decode(3, data)._asdict() | {"index_id": 3}


def decoded_remembered(_: bytes) -> dict[str, Any]:
    return writer_entry.decode_entry(WRITER, FORMAT.dump("Writer entry")).batches[0]._asdict()


def decoded_published(data: bytes) -> dict[str, Any]:
    found = published_end.decode(data)
    if found is None:
        raise CorruptData("A published end is void, or no record.")
    assert published_end.encode(found) == data
    return found._asdict() | {"store_id": found.store_id.bytes, "owner": found.owner.bytes}


def decoded_snapshot(data: bytes) -> dict[str, Any]:
    next_offset, writers = writer_entry.decode_snapshot(data)
    return {"next_offset": next_offset, "writer_count": len(writers)}


def decoded_edit(data: bytes) -> dict[str, Any]:
    edit = edits.decode(data)
    return {"op": edit.payload.op, "txid": edit.txid, "epoch": edit.epoch, "time_ms": edit.time_ms}


def decoded_image_record(data: bytes) -> dict[str, Any]:
    return {"length": len(image.read_record(io.BytesIO(data).read, len(data))) - 8}


def image_record_again(data: bytes) -> bytes:
    return image.encode_record(image.decode_record(data))


OBJECT = replica_object.ObjectName(CATALOG, "range", 2, 3, Epoch(0))
STORE_ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def decoded_object(data: bytes) -> dict[str, Any]:
    found = replica_object.decode_object(memoryview(data), OBJECT, STORE_ID)
    assert [edits.decode(bytes(part)).txid for part in found.parts] == [3]
    kind, *_ = struct.unpack_from("<H", data, 6)
    stream = {"table_id": found.name.stream.table_id, "bucket": found.name.stream.bucket}
    length, body_crc = len(data) - replica_object.HEAD_BYTES, checksum.crc32c(data[replica_object.HEAD_BYTES :])
    return {
        "kind": kind,
        "store_id": STORE_ID.bytes,
        **stream,
        "start": found.name.start,
        "end": found.name.end,
        "leader_epoch": found.name.epoch,
        "length": length,
        "body_crc": body_crc,
    }


def object_again(data: bytes) -> bytes:
    found = replica_object.decode_object(memoryview(data), OBJECT, STORE_ID)
    return b"".join(replica_object.encode_object(OBJECT, STORE_ID, found.parts))


def decoded_segment(data: bytes) -> dict[str, Any]:
    found = asdict(segment.decode_head(data))
    return found | {"store_id": found["store_id"].bytes}


def decoded_row(data: bytes) -> dict[str, Any]:
    columns, hashes = ROW_CODEC.decode(BinaryColumn.from_list([data]), KEY_SUMS, SchemaId(1))
    assert [column.to_pylist() for column in columns] == [["Anna"], [None], [True]]
    return {"checksum": int(hashes[0]) & 0xFFFFFFFF, "schema_id": 1}


def encoded_row() -> bytes:
    columns = [pa.array(["Anna"]), pa.array([None], pa.int16()), pa.array([True])]
    return ROW_CODEC.encode(columns, KEY_SUMS, SchemaId(1))[0].to_list()[0]


@dataclass(frozen=True)
class Stored:
    """A thing stored: its table of fields, the struct format in the code, what it holds, and the code's bytes for it.

    Attributes:
        dump: Where it is shown, from byte ``start`` on.
    """

    heading: str
    formats: str
    decode: Callable[[bytes], dict[str, Any]]
    again: Callable[[bytes], bytes]
    dump: str
    start: int = 0

    @property
    def data(self) -> bytes:
        return FORMAT.dump(self.dump)[self.start :]


def entry_of(data: bytes) -> sparse_index.Entry:
    return sparse_index.decode(sparse_index.encode([]) + data)[0]


def state_again(data: bytes) -> bytes:
    return index_state.encode(index_state.decode(data))


def segment_again(data: bytes) -> bytes:
    return segment.encode_head(segment.decode_head(data))


def batch_again(data: bytes) -> bytes:
    return batch.encode_batch(batch.decode_batch(data, PEOPLE))


def entry_again(data: bytes) -> bytes:
    return writer_entry.encode_entry(WRITER, writer_entry.decode_entry(WRITER, data))


def snapshot_again(data: bytes) -> bytes:
    return writer_entry.encode_snapshot(*writer_entry.decode_snapshot(data))


ROW_HEAD = "<" + "".join(np.dtype(kind).char for _, kind in rows.HEAD)
ENTRY_HEAD = "<I" + writer_entry.HEAD[1:]
SPARSE = "Sparse index"
CONSTANTS = {"magic", "version", "zero", "crc"}
STORED = [
    Stored("Segment", segment.HEAD, decoded_segment, segment_again, "Segment"),
    Stored("Header of magic 3", batch.LAYOUTS[batch.MAGIC].format, decoded_batch, batch_again, "Record batch"),
    Stored(
        "Head of a sparse index", "<4sH10x", lambda _: {}, lambda d: sparse_index.encode([entry_of(d[16:])]), SPARSE
    ),
    Stored(
        *("Entry of a sparse index", sparse_index.ENTRY, lambda data: entry_of(data)._asdict()),
        *(lambda data: sparse_index.encode_entry(entry_of(data)), SPARSE, sparse_index.HEAD_BYTES),
    ),
    Stored("Writer entry", ENTRY_HEAD, decoded_entry, entry_again, "Writer entry"),
    Stored("Remembered batch", writer_entry.BATCH, decoded_remembered, lambda data: data, "Writer entry", 12),
    Stored("Writer snapshot", writer_entry.SNAPSHOT_HEAD, decoded_snapshot, snapshot_again, "Writer snapshot"),
    Stored(
        *("Uncounted time of a writer", writer_entry.UNCOUNTED, decoded_uncounted, lambda data: data),
        *("Writer entry of version 1", 12),
    ),
    Stored("State record", index_state.LAYOUT, decoded_state, state_again, "State record"),
    Stored(
        *("Times of a state record", index_state.TIMES, decoded_times, lambda data: data),
        *("State record of version 2", 88),
    ),
    Stored(
        *("Merge of a state record", index_state.MERGING, decoded_merge, lambda data: data),
        *("State record of version 3", 104),
    ),
    Stored(
        *("Record of entries", entries_record.LAYOUT, decoded_entries_record),
        *(lambda data: entries_record.encode(3, entries_record.decode(3, data)), "Record of entries"),
    ),
    Stored("PUBLISHED", published_end.LAYOUT, decoded_published, lambda data: data, "PUBLISHED"),
    Stored("Row", ROW_HEAD, decoded_row, lambda _: encoded_row(), "Row"),
    Stored("Catalog edit", edits.HEAD, decoded_edit, lambda d: edits.encode(edits.decode(d)), "Catalog edit"),
    Stored("Catalog image", image.RECORD_HEAD, decoded_image_record, image_record_again, "Catalog image"),
    Stored("Replica object", replica_object.HEAD, decoded_object, object_again, "Replica object"),
]
every_stored = pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored.heading)


def test_references_in_the_code_name_a_section() -> None:
    references: set[str] = set()
    for source in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        text = re.sub(r"\s+", " ", source.read_text())
        for after in re.findall(r"docs/format\.md(.{0,60})", text):
            found = re.match(r", ([A-Za-z ]+?)(?=[).,:;])", after)
            assert found or after.startswith(")"), (source, after)
            references |= {found[1]} if found else set()
    assert references
    assert references <= set(FORMAT.sections)


def test_the_code_encodes_the_entry_of_a_secondary_index() -> None:
    codes = entries.codes_of([pa.array(["a@x"]), pa.array([None], pa.int16())]).to_list()
    keys = KeyCodec([pa.field("id", pa.int64(), False)]).encode([pa.array([5])]).to_list()
    section = FORMAT.sections["Entries of a secondary index"]
    [value] = re.findall(r"^The value is `(.+)`\.$", section, re.MULTILINE)
    assert entries.entries_of(3, codes, keys) == ([FORMAT.dump("Entry")], [bytes.fromhex(value)])


@every_stored
def test_a_table_of_fields_is_the_layout_in_the_code(stored: Stored) -> None:
    fields = FORMAT.fields(stored.heading)
    expected = list(parts_of(stored.formats))
    assert [(field.position, field.size) for field in fields] == [part[:2] for part in expected]
    for field, (_, size, letter) in zip(fields, expected, strict=True):
        assert field.letter in (letter, "x"), field.name
        assert (field.letter == "x") == (field.name == "zero")
        assert size == field.size if field.letter in "sx" else size == struct.calcsize(f"<{field.letter}")


@every_stored
def test_the_examples_in_a_table_are_the_bytes_of_the_dump(stored: Stored) -> None:
    for field in FORMAT.fields(stored.heading):
        assert field.in_example() == field.in_bytes(stored.data), field.name


@every_stored
def test_the_code_decodes_the_examples_from_the_dump(stored: Stored) -> None:
    fields = {field.name: field.in_example() for field in FORMAT.fields(stored.heading)}
    decoded = stored.decode(stored.data)
    assert set(decoded) <= set(fields) <= {*decoded, *CONSTANTS}
    assert {name: fields[name] for name in decoded} == decoded


@every_stored
def test_the_code_encodes_the_dump(stored: Stored) -> None:
    assert stored.again(stored.data) == stored.data


@pytest.mark.parametrize("name", re.findall(r"^```hex (.+)$", FORMAT.text, re.MULTILINE))
def test_comments_in_a_dump_say_what_its_bytes_are(name: str) -> None:
    for data, comment in FORMAT.regions(name):
        expected = numbers(comment)
        if expected and data != comment.encode():
            width = len(data) // len(expected)
            assert [
                int.from_bytes(data[place : place + width], "little", signed=True)
                for place in range(0, len(data), width)
            ] == expected, comment


WITH_CHECKSUM = [stored for stored in STORED if "Checksum `crc`" in FORMAT.sections[stored.heading]]


@pytest.mark.parametrize("stored", WITH_CHECKSUM, ids=lambda stored: stored.heading)
def test_a_checksum_covers_what_the_document_says(stored: Stored) -> None:
    data = stored.data
    stored_crc, bytes_covered = covered(stored.heading)(data)
    assert checksum.crc32c(bytes_covered) == stored_crc
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises((CorruptData, IndexError)):
            stored.decode(bytes(damaged))


def test_the_crc_is_the_one_described() -> None:
    said = (
        r"polynomial (0x\w+) reflected, first value and last exclusive-or (0x\w+)\. The CRC-32C of `(\w+)` is (0x\w+)\."
    )
    polynomial, ones, text, expected = re.findall(said, FORMAT.prose)[0]
    reflected = int(f"{int(polynomial, 16):032b}"[::-1], 2)
    crc = int(ones, 16)
    for byte in text.encode():
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (reflected if crc & 1 else 0)
    assert crc ^ int(ones, 16) == int(expected, 16) == checksum.crc32c(text.encode())


# Limits


def amount(text: str) -> int:
    """A number as a limit is written."""
    found = re.fullmatch(r"(?:(\d+)\^(\d+)(-1)?|([\d,]+))(?: (KiB|MiB|GiB|bytes|ms|s|days))?", text)
    assert found is not None, text
    base, exponent, less, whole, unit = found.groups()
    value = int(base) ** int(exponent) - bool(less) if base else int(whole.replace(",", ""))
    return value * {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "days": 24 * 3600 * 1000}.get(unit, 1)


LIMITS, SETTINGS = FORMAT.tables("Limits")
LIMITS += FORMAT.tables("Largest files and objects")[0]


@pytest.mark.parametrize(("limit", "value"), [(plain(limit), value) for limit, value, _ in LIMITS])
def test_a_limit_is_the_one_in_the_code(limit: str, value: str) -> None:
    module, _, name = limit.rpartition(".")
    assert getattr(importlib.import_module(module), name) == amount(value)


@pytest.mark.parametrize(("setting", "value"), [(plain(setting), value) for setting, value, _ in SETTINGS])
def test_a_setting_is_the_one_in_the_code(setting: str, value: str) -> None:
    assert getattr(StoreOptions(), setting) == amount(value)


NOT_LIMITS = {
    "PUBLISHED",
    "STORE",
    "FOLLOWING",
    "LOCK",
    "COMMIT",
    "WANTED",
    "WRITING",
    "TABLE",
    "DROPPED",
    "KVLG",
    "KVIX",
    "KVWS",
    "KVRO",
    "APPLIED",
    "TOLD",
    "RETENTION",
    "BAD",
    "MISSING_VERSION",
}


def test_limits_named_in_the_text_are_in_the_table() -> None:
    known = {plain(limit).rpartition(".")[2] for limit, *_ in LIMITS}
    known |= {*batch.BatchHeader.__dataclass_fields__, "APPEND_ONLY", "NAMED_WRITER"}
    assert set(re.findall(r"`([A-Z]+(?:_[A-Z]+)*)`", FORMAT.text)) - NOT_LIMITS <= known
    assert {plain(setting) for setting, *_ in SETTINGS} <= set(StoreOptions.__dataclass_fields__)


HEADER = batch.BatchHeader()
EMPTY = batch.decode_header(batch.encode_batch(batch.LogBatch(base_offset=Offset(7))))
SAID = [
    (FORMAT, r"Nth place in the log of a bucket, from (\d+)", HEADER.base_offset),
    (FORMAT, r"in one bucket: (\d+), 1, … ", next_sequence(NO_SEQUENCE)),
    (FORMAT, r"… 2\^(\d+)-1, then 0 again", SEQUENCE_MAX.bit_length()),
    (FORMAT, r"2\^31-1, then (\d+) again", next_sequence(SEQUENCE_MAX)),
    (FORMAT, r"2\^31-1 \| a sequence; (\d+) follows", next_sequence(SEQUENCE_MAX)),
    (FORMAT, r"Nth edit of the catalog, from (\d+)", CatalogState().txid + 1),
    (FORMAT, r"a `format` other than (\d+), before", image.FORMAT),
    (FORMAT, r"go on 2\^(\d+) \(tables\)", TABLES_SKIPPED.bit_length() - 1),
    (FORMAT, r"\(tables\) and 2\^(\d+) \(writers\)", WRITERS_SKIPPED.bit_length() - 1),
    (FORMAT, r"epochs of named writers 2\^(\d+)", WRITER_EPOCHS_SKIPPED.bit_length() - 1),
    (FORMAT, r"`format` \((\d+)\), `store_id`, `leader_epoch`", replica_told.FORMAT),
    (FORMAT, r"`<base>` is a base offset, (\d+) decimal digits", DIGITS),
    (FORMAT, r"segment before it, (-?\d+) if there is none", segment.NO_OFFSET),
    (FORMAT, r"that segment's batches end, (\d+) if there is none", segment.START),
    (FORMAT, r"The writer's id, (-?\d+) for none", HEADER.writer_id),
    (FORMAT, r"writer's batches, (-?\d+) for none", HEADER.batch_sequence),
    (FORMAT, r"No writer \((-?\d+)\)", HEADER.writer_id),
    (FORMAT, r"(-?\d+): not used so far", HEADER.leader_epoch),
    (FORMAT, r"Records; (\d+) in an empty batch", EMPTY.record_count),
    (FORMAT, r"`base_offset`; (\d+) if there is none", EMPTY.last_offset_delta),
    (FORMAT, r"an empty batch has a delta of (\d+)", EMPTY.last_offset_delta),
    (FORMAT, r"`last_offset_delta` \+ (\d+)\. It MUST NOT", EMPTY.next_offset - EMPTY.last_offset),
    (FORMAT, r"Bytes of statistics; (\d+) so far", EMPTY.statistics_length),
    (FORMAT, r"the Arrow message begins, (\d+) if it is empty", EMPTY.records_position),
    (FORMAT, r"Table ids count from (\d+), writer", CatalogState().next_table_id),
    (FORMAT, r"writer ids from (\d+) \(", CatalogState().next_writer_id),
    (FORMAT, r"Version (\d+) of everything in a store", store_file.FORMAT),
    (FORMAT, r"A head of (\d+) bytes, then batches", segment.HEAD_BYTES),
    (FORMAT, r"each at a multiple of (\d+) bytes", batch.ALIGNMENT),
    (FORMAT, r"Byte (\d+) of a batch is its magic", struct.calcsize("<qi")),
    (FORMAT, r"The store writes magic (\d+)", batch.MAGIC),
    (FORMAT, r"\| (\d+) \| 0 so far \| 1 a record", MAGIC_3.size),
    (FORMAT, r"to (\d+)n \|", batch.ALIGNMENT),
    (FORMAT, r"size of the batch - (\d+)", batch.LOG_OVERHEAD),
    (FORMAT, r"unless (\d+) ≤ size", MAGIC_3.size),
    (FORMAT, r"`statistics_length` ≤ size - (\d+)", MAGIC_3.size),
    (FORMAT, r"Unless its (\d+) bytes are exactly these", sparse_index.HEAD_BYTES),
    (FORMAT, r"^(\d+) bytes, then \d+ for each batch", struct.calcsize(writer_entry.HEAD) + 4),
    (FORMAT, r"^\d+ bytes, then (\d+) for each batch", struct.calcsize(writer_entry.BATCH)),
    (FORMAT, r"Always a multiple of (\d+) bytes", WORD),
    (FORMAT, r"then zeros to a multiple of (\d+) bytes", WORD),
    (FORMAT, r"A table's first schema has id (\d+)", 1),
    (FORMAT, r"Schema ids are at most ([\d,]+)", 2 ** (8 * struct.calcsize("<h") - 1) - 1),
    (FORMAT, r"a segment MUST end before (\d+) GiB", 2 ** (8 * struct.calcsize("<I")) >> 30),
    (FORMAT, r"a writer stops at (half) of it", "half"),
    (TYPES, r"more than (\d+) digits", 38),
    (TYPES, r"nest up to (\d+) deep", schemas.NESTING_MAX),
    (TYPES, r"at most (\d+) bytes of printable text", schemas.NAME_BYTES_MAX),
]


@pytest.mark.parametrize(("document", "pattern", "expected"), SAID)
def test_numbers_in_the_text_are_those_in_the_code(document: Document, pattern: str, expected: int | str) -> None:
    found = re.findall(pattern, document.text, re.MULTILINE) or re.findall(pattern, document.prose)
    assert found
    assert {text.replace(",", "") for text in found} == {str(expected)}


@pytest.mark.parametrize("document", [FORMAT, TYPES], ids=["format.md", "types.md"])
def test_lines_are_not_too_long(document: Document) -> None:
    assert [line for line in document.text.splitlines() if len(line) > 120] == []
