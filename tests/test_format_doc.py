"""docs/format.md and docs/types.md say what the code does: their tables, dumps and limits are held against it.

Of a table of fields, every offset, size, type and name is compared with the code, and every example with the dump and
with what the code decodes from it. A store is then read with what the document says, and nothing else.
"""

from __future__ import annotations

import datetime as dt
import importlib
import io
import json
import os
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any
from uuid import UUID

import lmdb
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import kvstore
from kvstore.bucket import snapshot_rows
from kvstore.checkpoint import worker
from kvstore.checkpoint.messages import Task
from kvstore.clock import SystemClock
from kvstore.commit.coordinator import Commits
from kvstore.errors import CorruptData, InvalidRequest, SchemaMismatch
from kvstore.files import Files
from kvstore.lock import ProcessLock
from kvstore.meta.image import items_of
from kvstore.meta.state import TABLES_SKIPPED, WRITER_EPOCHS_SKIPPED, WRITERS_SKIPPED, CatalogState
from kvstore.options import StoreOptions
from kvstore.read.changelog import CHANGE_FIELDS
from kvstore.spark import KvStoreSource
from kvstore.spark.types import arrow_schema, for_spark, spark_schema
from kvstore.spark.write.sink import KvStoreWriter
from kvstore.spark.write.staged import OLD_SECONDS
from logformat import checksum, paths
from logformat.binary_column import WORD, BinaryColumn
from logformat.catalog import edits, following_file, image, jobs, store_file
from logformat.catalog.replicas import CATALOG
from logformat.ids import (
    NO_SEQUENCE,
    OFFSET_MAX,
    SEQUENCE_MAX,
    BucketId,
    Epoch,
    JobId,
    Offset,
    SchemaId,
    TableId,
    Txid,
    WriterId,
    next_sequence,
)
from logformat.log import batch, index_state, segment, snapshot_manifest, sparse_index, writer_entry
from logformat.log.change import ChangeType
from logformat.replica import follower_status, manifest as replica_told, object_file as replica_object
from logformat.rows import intake, rows, schema as schemas
from logformat.rows.keys import ROW, KeyCodec
from logformat.rows.record import RecordCodec
from logformat.rows.rows import RowCodec
from merge_engines import aggregate
from merge_engines.functions import function as function_module
from merge_engines.spec import engine_of, spec_of
from tests.support.tables import rows_of

ROOT = Path(__file__).parents[1]
PACKAGES = ("kvstore", "logformat", "merge_engines")
LETTERS = {"u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "u64": "Q", "i64": "q"}
LETTERS |= {"char": "s", "bytes": "s", "zero": "x"}


# Reading the documents


@dataclass(frozen=True)
class Field:
    """One line of a table of fields."""

    position: int
    size: int
    letter: str
    name: str
    example: str

    def in_bytes(self, data: bytes) -> int | bytes:
        code = f"<{self.size}s" if self.letter in "sx" else f"<{self.letter}"
        value: int | bytes = struct.unpack_from(code, data, self.position)[0]
        return value

    def in_example(self) -> int | bytes:
        text = self.example.strip("`")
        if self.letter == "s":
            return bytes.fromhex(text) if self.size == 16 else text.encode()
        return int(text, 0).to_bytes(self.size, "little") if self.letter == "x" else int(text, 0)


class Document:
    """A page, by its headings."""

    def __init__(self, name: str) -> None:
        self.text = (ROOT / "docs" / name).read_text()
        parts = re.split(r"^#+ (.+)\n", self.text, flags=re.MULTILINE)
        self.sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        assert len(self.sections) == len(parts) // 2, "a heading stands there twice"
        self.prose = re.sub(r"\s+", " ", self.text)

    def tables(self, heading: str) -> list[list[list[str]]]:
        """Every table of a section, cells as text, without the head."""
        text = re.sub(r"^```.*?^```", "", self.sections[heading], flags=re.MULTILINE | re.DOTALL)
        found = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
        lines = [table.splitlines()[2:] for table in found]
        return [[[cell.strip() for cell in line.strip("|").split("|")] for line in table] for table in lines]

    def fields(self, heading: str) -> list[Field]:
        fields = []
        for position, size, kind, name, example, _ in self.tables(heading)[0]:
            plain_kind, _, count = kind.strip("]").partition("[")
            assert count in ("", size)
            fields.append(Field(int(position), int(size), LETTERS[plain_kind], name, example))
        return fields

    def blocks(self, heading: str, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```", self.sections[heading], re.MULTILINE | re.DOTALL)

    def dump(self, name: str) -> bytes:
        return b"".join(data for data, _ in self.regions(name))

    def regions(self, name: str) -> list[tuple[bytes, str]]:
        """Bytes of a dump with the comment on them."""
        (block,) = re.findall(rf"^```hex {name}\n(.*?)^```", self.text, re.MULTILINE | re.DOTALL)
        found: list[tuple[bytes, str]] = []
        length = 0
        for line in block.splitlines():
            found_line = re.fullmatch(r"([0-9a-f]{4})  ([0-9a-f ]+?) *(?:; (.*))?", line)
            assert found_line is not None, line
            place, data, comment = found_line.groups("")
            assert int(place, 16) == length, line
            length += len(bytes.fromhex(data))
            if comment or not found:
                found.append((bytes.fromhex(data), comment))
            else:
                found[-1] = (found[-1][0] + bytes.fromhex(data), found[-1][1])
        return found


FORMAT, TYPES = Document("format.md"), Document("types.md")


def plain(cell: str) -> str:
    return cell.strip("`")


def numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"(?<![\w.])-?\d+(?![\w.])", text)]


def names_in(cell: str) -> list[str]:
    return cell.split(", ") if cell else []


# Things stored, and what decodes and encodes them

WRITER = WriterId(5)
PEOPLE = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string())])
OTHERS = pa.schema([("name", pa.string()), ("age", pa.int16()), ("ok", pa.bool_())])
ROW_CODEC = RowCodec({SchemaId(1): OTHERS})
ROW_KEY = bytes.fromhex("02 80 00 00 00 00 00 00 05")
KEY_SUMS = checksum.key_sums(BinaryColumn.from_list([ROW_KEY]))


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
    found = asdict(index_state.decode(data))
    assert [found.pop(name) for name in TIMES] == [0, 0]
    return found


def decoded_times(_: bytes) -> dict[str, Any]:
    data = FORMAT.dump("State record of version 2")
    found = index_state.decode(data)
    assert index_state.encode(found) == data
    return {name: getattr(found, name) for name in TIMES}


def decoded_remembered(_: bytes) -> dict[str, Any]:
    return writer_entry.decode_entry(WRITER, FORMAT.dump("Writer entry")).batches[0]._asdict()


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


ROW_HEAD = "<" + "".join(np.dtype(kind).char for _, kind in rows._HEAD)
ENTRY_HEAD = "<I" + writer_entry._HEAD[1:]
SPARSE = "Sparse index"
CONSTANTS = {"magic", "version", "zero", "crc"}
STORED = [
    Stored("Segment", segment._FORMAT, decoded_segment, segment_again, "Segment"),
    Stored("Header of magic 3", batch.LAYOUTS[batch.MAGIC].format, decoded_batch, batch_again, "Record batch"),
    Stored(
        "Head of a sparse index", "<4sH10x", lambda _: {}, lambda d: sparse_index.encode([entry_of(d[16:])]), SPARSE
    ),
    Stored(
        *("Entry of a sparse index", sparse_index._ENTRY, lambda data: entry_of(data)._asdict()),
        *(lambda data: sparse_index.encode_entry(entry_of(data)), SPARSE, sparse_index.HEAD_BYTES),
    ),
    Stored("Writer entry", ENTRY_HEAD, decoded_entry, entry_again, "Writer entry"),
    Stored("Remembered batch", writer_entry._BATCH, decoded_remembered, lambda data: data, "Writer entry", 12),
    Stored("Writer snapshot", writer_entry._SNAPSHOT_HEAD, decoded_snapshot, snapshot_again, "Writer snapshot"),
    Stored(
        *("Uncounted time of a writer", writer_entry._UNCOUNTED, decoded_uncounted, lambda data: data),
        *("Writer entry of version 1", 12),
    ),
    Stored("State record", index_state._FORMAT, decoded_state, state_again, "State record"),
    Stored(
        *("Times of a state record", index_state._TIMES, decoded_times, lambda data: data),
        *("State record of version 2", 88),
    ),
    Stored("Row", ROW_HEAD, decoded_row, lambda _: encoded_row(), "Row"),
    Stored("Catalog edit", edits._HEAD, decoded_edit, lambda d: edits.encode(edits.decode(d)), "Catalog edit"),
    Stored("Catalog image", image._HEAD, decoded_image_record, image_record_again, "Catalog image"),
    Stored("Replica object", replica_object._HEAD, decoded_object, object_again, "Replica object"),
]
every_stored = pytest.mark.parametrize("stored", STORED, ids=lambda stored: stored.heading)


def parts_of(formats: str) -> Iterator[tuple[int, int, str]]:
    """Position, size and letter of each part of a struct format."""
    for found in re.finditer(r"\d*[a-zA-Z]", formats):
        size = struct.calcsize("<" + found[0])
        yield struct.calcsize(formats[: found.end()]) - size, size, found[0][-1]


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


@lru_cache
def covered(heading: str) -> Callable[[bytes], tuple[int, bytes]]:
    """From a thing stored, the checksum in it and the bytes it covers, as the document says."""
    (said,) = re.findall(r"Checksum `crc`(.*?)\.\n", FORMAT.sections[heading])
    if said == ", the last 4 bytes: all bytes before it":
        return lambda data: (struct.unpack("<I", data[-4:])[0], data[:-4])
    before = b""
    if said.startswith(": the writer id as `i64`, then "):
        before = struct.pack("<q", WRITER)
        said = ": " + said.removeprefix(": the writer id as `i64`, then ")
    ranges = re.fullmatch(r": bytes (\d+–(?:\d+|end)(?: and \d+–(?:\d+|end))*)", said)
    assert ranges is not None, said
    bounds = [part.split("–") for part in ranges[1].split(" and ")]
    (field,) = (field for field in FORMAT.fields(heading) if field.name == "crc")

    def cover(data: bytes) -> tuple[int, bytes]:
        parts = (data[int(first) : None if last == "end" else int(last) + 1] for first, last in bounds)
        return int(field.in_bytes(data)), before + b"".join(parts)

    return cover


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


# Files and limits


def test_files_have_the_names_in_the_table(tmp_path: Path) -> None:
    (table,) = FORMAT.tables("Files and names")
    patterns = {}
    (digits,) = re.findall(r"table's id, `-`, and (\d+) hexadecimal digits", FORMAT.prose)
    (said,) = re.findall(r"\* `([^`]+)/` holds `([^`]+)`, `([^`]+)` and `([^`]+)`, see", FORMAT.prose)
    for file in said[1:]:
        pattern = re.escape(f"{said[0]}/{file}").replace("<offset>", r"\d{20}")
        patterns[file] = re.compile(re.sub("<table>|<bucket>", lambda _: r"\d+", pattern))
    for name, example, _ in table:
        pattern = re.escape(plain(name)).replace("<table>", r"\d+").replace("<bucket>", r"\d+")
        pattern = pattern.replace("<job>", r"\d+").replace("<number>", r"\d+")
        pattern = pattern.replace("<commit>", rf"\d+-[0-9a-f]{{{digits}}}")
        pattern = pattern.replace("<task>", rf"[0-9a-f]{{{digits}}}-\d+-\d+")
        patterns[plain(name)] = re.compile(re.sub("<base>|<txid>", lambda _: r"\d{20}", pattern))
        assert patterns[plain(name)].fullmatch(plain(example))
    store = tmp_path / "store"
    write_a_store(store)
    leave_a_commit(store)
    leave_a_task(store)
    with kvstore.open(store) as opened:
        opened.add_replica(str(tmp_path / "replica")).ship()
    leave_a_job(store, tmp_path / "in")
    take_an_image(store, 1)
    copy = store.with_name("copy")
    kvstore.follow(str(tmp_path / "replica"), copy).close()
    os.link(copy / paths.FOLLOWING, store / paths.FOLLOWING)
    Files().publish(paths.wanted_file(store, TableId(1)), b"")  # last: who has the store open takes it away
    found = [path for path in store.rglob("*") if path.is_file()]
    matched = {name for path in found for name in patterns if patterns[name].fullmatch(str(path.relative_to(store)))}
    assert matched == set(patterns)
    assert all(any(p.fullmatch(str(path.relative_to(store))) for p in patterns.values()) for path in found)
    assert all("tables" not in example or "tables/7/" in example for _, example, _ in table)
    modes = [{f"{path.stat().st_mode & 0o7777:04o}" for path in store.rglob("*") if path.is_dir() == d} for d in (0, 1)]
    assert modes == [{mode} for mode in re.findall(r"Files have mode (\d+), directories (\d+)\.", FORMAT.prose)[0]]
    versions = re.findall(r"data version (\d+), as of LMDB (\d+)\.(\d+)", FORMAT.prose)[0]
    found_version = struct.unpack_from("<I", (store / paths.JOURNAL / "data.mdb").read_bytes(), 20)
    assert tuple(map(int, versions)) == (*found_version, *lmdb.version()[:2])


def test_the_code_makes_the_names_in_the_table() -> None:
    (table,) = FORMAT.tables("Files and names")
    examples = {plain(name).rpartition(".")[2].rpartition("/")[2]: Path(plain(example)) for name, example, _ in table}
    bucket = paths.bucket_directory(Path(), TableId(7), BucketId(2))
    log, base = bucket / paths.LOG, Offset(100)
    assert examples["STORE"] == Path(paths.STORE_FILE)
    assert examples["FOLLOWING"] == paths.FOLLOWING
    assert Path("tables/7/COMMIT") == paths.commit_lock(Path(), TableId(7))
    assert Path("tables/7/WRITING") == paths.writing_file(Path(), TableId(7))
    assert Path("meta/image/image.00000000000000050000") == paths.image_file(paths.IMAGES, Txid(50_000))
    assert paths.image_txid("image.00000000000000050000") == 50_000
    assert paths.image_txid(paths.UNFINISHED_IMAGE) is None
    assert f"`{paths.IMAGES}/{paths.UNFINISHED_IMAGE}` is an image being written" in FORMAT.text
    assert f"`{paths.IMAGES}/{paths.LOCK_FILE}` is such a file too" in FORMAT.text
    assert paths.lost_directory(Path(), Txid(5)).parts == (paths.LOST, f"{5:020d}")
    assert f"`{paths.LOST}/<txid>/` holds what a recovery" in FORMAT.prose
    assert f"to `{paths.UNFINISHED_JOURNAL}`" in FORMAT.prose
    assert Path("tables/7/WANTED") == paths.wanted_file(Path(), TableId(7))
    assert examples["batches"] == paths.staged_file(Path(), examples["batches"].stem)
    assert paths.staged_commit(examples["batches"].name, TableId(7)) == examples["batches"].stem
    assert paths.staged_commit(examples["batches"].name, TableId(8)) is None
    assert examples["rows"] == paths.task_file(Path(), "00112233445566778899aabbccddeeff", 3, 17)
    assert paths.is_task_file(examples["rows"].name)
    assert not paths.is_task_file(examples["batches"].name)
    assert examples["LOCK"] == bucket / paths.LOCK_FILE
    assert examples["log"] == paths.segment_file(log, base)
    assert examples["index"] == paths.sparse_index_file(log, base)
    assert examples["writers"] == paths.writers_file(log, base)
    assert f"`{paths.JOURNAL}/data.mdb`" in FORMAT.text
    assert f"`{paths.REBUILT_INDEX}/` holds the same files as `{paths.INDEX}/`" in FORMAT.text
    assert f"A name that ends in `{paths.TEMPORARY}`" in FORMAT.text
    assert paths.snapshot_directory(Path(), Offset(103)) == Path(paths.SNAPSHOTS, f"{103:0{DIGITS}d}")
    files = [paths.SNAPSHOT_ROWS, paths.SNAPSHOT_WRITERS, paths.SNAPSHOT_MANIFEST]
    assert "holds {}, {} and {}".format(*(f"`{name}`" for name in files)) in FORMAT.prose


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
    "STORE",
    "FOLLOWING",
    "LOCK",
    "COMMIT",
    "WANTED",
    "WRITING",
    "KVLG",
    "KVIX",
    "KVWS",
    "KVRO",
    "TOLD",
    "BAD",
    "MISSING_VERSION",
}


def test_limits_named_in_the_text_are_in_the_table() -> None:
    known = {plain(limit).rpartition(".")[2] for limit, *_ in LIMITS}
    known |= {*batch.BatchHeader.__dataclass_fields__, "APPEND_ONLY", "NAMED_WRITER"}
    assert set(re.findall(r"`([A-Z]+(?:_[A-Z]+)*)`", FORMAT.text)) - NOT_LIMITS <= known
    assert {plain(setting) for setting, *_ in SETTINGS} <= set(StoreOptions.__dataclass_fields__)


MAGIC_3 = batch.LAYOUTS[batch.MAGIC]
DIGITS = len(paths.segment_file(Path(), Offset(0)).stem)
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
    (FORMAT, r"^(\d+) bytes, then \d+ for each batch", struct.calcsize(writer_entry._HEAD) + 4),
    (FORMAT, r"^\d+ bytes, then (\d+) for each batch", struct.calcsize(writer_entry._BATCH)),
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


# One section after the other


def test_store() -> None:
    whole, covered_part = (block.rstrip("\n") for block in FORMAT.blocks("STORE", "json"))
    data = whole.encode() + b"\n"
    assert store_file.encode(store_file.decode(data)) == data
    fields = json.loads(whole)
    assert [name for name, *_ in FORMAT.tables("STORE")[0]] == list(fields)
    assert fields.pop("crc32c") == checksum.crc32c(covered_part.encode())
    assert json.loads(covered_part) == fields


def test_manifest_of_a_snapshot() -> None:
    (block,) = FORMAT.blocks("Manifest", "json")
    data = block.replace("\n", "").encode() + b"\n"
    manifest = snapshot_manifest.decode_manifest(data)
    assert snapshot_manifest.encode_manifest(manifest) == data
    fields = json.loads(data)
    assert [name for name, *_ in FORMAT.tables("Manifest")[0]] == list(fields)
    assert fields["crc32c"] == checksum.crc32c(data[: data.rindex(b',"crc32c"')] + b"}")
    told = re.findall(r"by name, `(\w+)` and the CRC-32C of all of them, `(\w+)`", FORMAT.prose)
    assert [tuple(file) for file in fields["files"].values()] == 2 * told
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
    told = json.loads(manifest)["files"][paths.SNAPSHOT_WRITERS]
    assert told == {"bytes": len(data), "crc32c": checksum.crc32c(data)}


def test_rows_of_a_snapshot_have_the_types_in_the_table() -> None:
    samples = {
        "timestamp in seconds, with or without zone": [pa.timestamp("s"), pa.timestamp("s", "UTC")],
        "time32 in seconds": [pa.time32("s")],
        "decimal128 with a scale below 0 or above its precision": [pa.decimal128(5, -1), pa.decimal128(5, 6)],
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
    others = [kind for kind in schemas._PLAIN.values() if all(kind not in given for given in samples.values())]
    for kind in [*others, pa.decimal128(5, 0), pa.decimal128(5, 5), pa.binary(3), pa.map_(pa.int8(), pa.int8())]:
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


class Arithmetic:
    """Row hashes, computed with nothing but the constants in the document."""

    def __init__(self) -> None:
        (text,) = FORMAT.blocks("Row checksum", "text")
        self.shifts = [int(shift) for shift in re.findall(r"z >> (\d+)", text)]
        self.factors = [int(factor, 16) for factor in re.findall(r"\)\) \* (0x\w+)$", text, re.MULTILINE)]
        (self.golden,) = (int(value, 16) for value in re.findall(r"^G += (0x\w+)", text, re.MULTILINE))
        self.seeds = {name: int(seed, 16) for name, seed in re.findall(r"^([VK])\[i\] = mix\((0x\w+) \+", text, re.M)}
        assert f"checksum = hash modulo 2^{8 * FORMAT.fields('Row')[0].size}" in text

    def mix(self, z: int) -> int:
        for shift, factor in zip(self.shifts, [*self.factors, 1], strict=True):
            z = (z ^ (z >> shift)) * factor % 2**64
        return z

    def weight(self, kind: str, place: int) -> int:
        return self.mix((self.seeds[kind] + (place + 1) * self.golden) % 2**64) | 1

    def sum(self, kind: str, data: bytes) -> int:
        padded = data + bytes(-len(data) % 8)
        words: list[int] = [word for (word,) in struct.iter_unpack("<Q", padded)]
        return sum(word * self.weight(kind, place) for place, word in enumerate(words)) % 2**64

    def sums(self, key: bytes, value: bytes) -> tuple[int, int, int]:
        """Of a key, of a value whose checksum is taken out, and the hash of both."""
        key_sum = (self.sum("K", key) + len(key) * self.golden) % 2**64
        value_sum = self.sum("V", bytes(4) + value[4:])
        return key_sum, value_sum, self.mix((key_sum + value_sum) % 2**64)


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
    assert RecordCodec(types).encode_octets(columns).to_list() == [data]
    flat, ends = np.frombuffer(data, np.uint8), np.array([len(data)])
    assert RecordCodec(types).decode(flat, np.array([0]), ends) == columns


def test_widths_of_the_fixed_part() -> None:
    widths: dict[str, str] = {}
    for types, width, _ in FORMAT.tables("Record")[0]:
        spread = names_in(width) if len(names_in(width)) > 1 else [width] * len(names_in(types))
        widths |= dict(zip(names_in(types), spread, strict=True))
    assert widths.pop("fixed_size_binary") == "its width"
    samples = [*schemas._PLAIN.values(), pa.decimal128(10, 2), pa.list_(pa.int8()), pa.struct({"a": pa.int8()})]
    samples.append(pa.map_(pa.int8(), pa.int8()))
    said = {kind: int(widths[re.split(r"\W", str(kind))[0]]) for kind in samples}
    assert said == {kind: RecordCodec([kind]).dtype.itemsize - 1 for kind in samples}
    assert set(widths) == {re.split(r"\W", str(kind))[0] for kind in samples}


def test_payloads_of_edits() -> None:
    said = {int(op): (name, names_in(fields)) for op, name, fields, _ in FORMAT.tables("Payloads")[0]}
    assert said == {
        op: (kind.__name__, [field.name for field in msgspec.structs.fields(kind)])
        for op, kind in edits._PAYLOADS.items()
    }
    (example,) = FORMAT.blocks("Payloads", "json")
    create = msgspec.json.decode(example, type=edits.CreateTable)
    assert json.loads(msgspec.json.encode(create)) == json.loads(example)
    assert schemas.to_json(schemas.from_json(create.columns)) == create.columns


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
    assert plain_names == list(schemas._PLAIN)


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
    lock.release()
    assert re.sub(r": (\d+|\".*?\")", ": _", said) == re.sub(r": (\d+|\".*?\")", ": _", written)


# A store read with what the document says


def write_a_store(path: Path) -> None:
    """A store with a table, three segments, a writer and a snapshot."""
    with kvstore.open(path, segment_bytes_max=1000) as store:
        table = store.create_table("people", OTHERS, "name")
        _, writer = store.new_writer_id(), store.new_writer_id()
        for sequence in range(7):
            changes = kvstore.Changes.of(
                [("upsert", {"name": f"n{sequence % 5}", "age": sequence, "ok": None})], table.schema
            )
            table.bucket(0).apply(changes, writer, sequence)
        table.delete("n0")
        table.snapshot()


def leave_a_commit(path: Path) -> None:
    """A commit whose process died when all buckets had it."""
    with kvstore.open(path) as store:
        table = store.create_table("pets", OTHERS, "name", buckets=3)
        changes = kvstore.Changes.of(
            [*(("upsert", {"name": f"n{n}", "age": n, "ok": None}) for n in range(9)), ("delete", {"name": "n0"})],
            table.schema,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Commits, "_end", lambda *_: None)
            table.apply_epoch(changes, "w", 4, "r")


def take_an_image(path: Path, txid: int) -> Path:
    store = store_file.decode((path / paths.STORE_FILE).read_bytes())
    task = Task(epoch=Epoch(4), store=str(path), store_id=store.store_id, txid=Txid(txid), seconds=60)
    made = worker.run(task, Files(), SystemClock())
    return paths.image_file(path / paths.IMAGES, made.txid)


def leave_a_job(path: Path, source: Path) -> int:
    """A job that has taken a file, and left out a row of it; its id."""
    source.mkdir()
    (source / "a.csv").write_text("name,age,ok\nx,1,\ny,old,\n")
    with kvstore.open(path) as store:
        job = store.create_job("j", source=source, format="csv", table="people", max_filter_ratio=0.5)
        job.run()
        return job.id


def test_files_of_a_job_are_what_the_document_says(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    directory = paths.job_directory(tmp_path / "s", JobId(leave_a_job(tmp_path / "s", tmp_path / "in")))
    (line,) = map(json.loads, (directory / paths.TAKEN_FILE).read_text().splitlines())
    status = (tmp_path / "in" / "a.csv").stat()
    assert line == {"version": 0, "files": [{"path": "a.csv", "size": status.st_size, "tag": str(status.st_mtime_ns)}]}
    (left_out,) = map(json.loads, paths.rejected_file(directory, 1).read_text().splitlines())
    assert list(left_out) == ["file", "row", "reason"]
    assert (left_out["file"], left_out["row"]) == ("a.csv", 2)


def test_a_job_in_an_image_is_what_the_document_says(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    leave_a_job(tmp_path / "s", tmp_path / "in")
    with kvstore.open(tmp_path / "s") as store:
        state = store.runtime.catalog()
    (found,) = (item for item in items_of(state) if isinstance(item, image.Job))
    job = json.loads(msgspec.json.encode(found))["job"]
    of_job, of_task, of_history = re.findall(
        r"`job` is an object with (.*?)\. `task` is null, or has (.*?)\. Each of `history` has (.*?)\.", FORMAT.prose
    )[0]
    (totals,) = re.findall(r"`statistics` is what a job has done altogether: (.*?)\. They are totals", FORMAT.prose)
    (counts,) = re.findall(r"`counts` has (.*?) of the task", FORMAT.prose)
    (options,) = re.findall(r"`options` of a job has (.*?), the share of rows", FORMAT.prose)
    assert list(job) == quoted(of_job)
    assert list(job["history"][0]) == quoted(of_history)
    assert list(job["options"]) == quoted(options)
    assert set(job["history"][0]["counts"]) == set(quoted(counts))
    assert set(job["statistics"]) == {*quoted(counts), *quoted(totals)} - {"counts"}
    assert [field.name for field in msgspec.structs.fields(jobs.OpenTask)] == quoted(
        of_task.replace("`counts` (null before `ReadTask`)", "`counts`")
    )


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def leave_a_task(path: Path) -> list[tuple[int, pa.RecordBatch]]:
    """Rows that a task has staged, by bucket."""
    schema = spark_schema(pa.schema([*CHANGE_FIELDS, *OTHERS]))
    writer = KvStoreSource({"path": str(path), "table": "people"}).writer(schema, False)
    assert isinstance(writer, KvStoreWriter)
    rows = [
        {
            "name": f"n{n}",
            "age": n,
            "_change_type": "delete" if n % 2 else "insert",
            "_commit_timestamp": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
            "_log_offset": 9 - n,
        }
        for n in range(4)
    ]
    staged = writer.stage(iter([pa.RecordBatch.from_pylist(rows, arrow_schema(schema))]), 3, 17, None)
    with pa.ipc.open_file(staged.file) as reader:
        return [(bucket, reader.get_batch(place)) for place, bucket in enumerate(staged.buckets)]


def test_rows_of_a_task_are_what_the_document_says(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    ((bucket, batch),) = leave_a_task(tmp_path / "s")
    assert bucket == 0
    assert batch.schema.names == [*OTHERS.names, "_change_type", "_commit_timestamp", "_log_offset"]
    assert batch.schema.types[-3:] == [pa.uint8(), pa.timestamp("us", "UTC"), pa.int64()]
    assert batch.column("_change_type").to_pylist() == [ChangeType.INSERT, ChangeType.DELETE] * 2
    assert batch.column("_log_offset").to_pylist() == [9, 8, 7, 6]
    (seven,) = re.findall(r"older than (\w+) days belongs to a task", FORMAT.prose)
    assert (seven, OLD_SECONDS) == ("seven", 7 * 24 * 3600)


def test_staged_batches_are_what_the_document_says(tmp_path: Path) -> None:
    leave_a_commit(tmp_path / "s")
    (path,) = (tmp_path / "s" / "staging").glob("*")
    data, operations, buckets = path.read_bytes(), [], []
    while data:
        found = read_fields("Header of magic 3", data[: batch.decode_header(data).size])
        assert (found["table_id"], found["schema_id"], found["writer_epoch"], found["batch_sequence"]) == (1, 1, 0, 0)
        assert not any(found[name] for name in ("base_offset", "commit_timestamp", "durable_end", "attributes"))
        rows = batch.decode_batch(data, OTHERS)
        operations += zip(rows.rows["name"].to_pylist(), rows.change_types.tolist(), strict=True)
        buckets.append(found["bucket_id"])
        data = data[found["length"] + batch.LOG_OVERHEAD :]
    assert buckets == [0, 1, 2]
    assert sorted(operations) == sorted([("n0", ChangeType.DELETE), *((f"n{n}", ChangeType.INSERT) for n in range(9))])


def pairs_of(path: Path, name: str | None = None) -> dict[bytes, bytes]:
    with lmdb.open(str(path), readonly=True, max_dbs=1, create=False) as environment:
        database = environment.open_db(name.encode()) if name else None
        with environment.begin(db=database) as transaction:
            return {bytes(key): bytes(value) for key, value in transaction.cursor()}


def read_fields(heading: str, data: bytes) -> dict[str, Any]:
    """What a table of fields makes of bytes; where there is a checksum, it is checked."""
    if "Checksum `crc`:" in FORMAT.sections[heading] and heading != "Writer entry":
        crc, bytes_covered = covered(heading)(data)
        assert checksum.crc32c(bytes_covered) == crc
    return {field.name: field.in_bytes(data) for field in FORMAT.fields(heading)}


def test_the_journal_can_be_read_with_the_document(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    journal = tmp_path / "s" / paths.JOURNAL
    assert list(pairs_of(journal)) == [f"{1:020d}".encode()]
    assert f"its first txid in {len(b'%020d' % 1)} decimal digits" in FORMAT.prose
    ops = {int(op): name for op, name, *_ in FORMAT.tables("Payloads")[0]}
    found = []
    for key, value in pairs_of(journal, f"{1:020d}").items():
        head = read_fields("Catalog edit", value)
        assert struct.unpack(">q", key) == (head["txid"],)
        start = FORMAT.fields("Catalog edit")[-1]
        found.append((ops[head["op"]], json.loads(value[start.position + start.size :])))
    assert [name for name, _ in found] == ["CreateTable", "AllocateWriter", "AllocateWriter"]
    assert (found[0][1]["name"], found[2][1]) == ("people", {"writer_id": 2**62 + 1})


def test_an_image_can_be_read_with_the_document(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    with kvstore.open(tmp_path / "s") as store:
        store.table("people").apply_epoch(kvstore.Changes.of([("delete", {"name": "n1"})], OTHERS), "w", 4, "r")
        store.consumer("c").commit("people", {0: 3})
        store.runtime.journal.append(lambda _: edits.AddReplica(name="r", url="file:///backup"))
        state = store.runtime.catalog()
    path = take_an_image(tmp_path / "s", state.txid)
    data, position, found = path.read_bytes(), 0, []
    while position < len(data):
        length, crc = struct.unpack_from("<II", data, position)
        body = data[position + 8 : position + 8 + length]
        assert checksum.crc32c(data[position : position + 4] + body) == crc
        found.append((position, json.loads(body)))
        position += 8 + length
    assert position == len(data)
    kinds = {kind: names_in(fields) for kind, fields, _ in FORMAT.tables("Catalog image")[1]}
    assert all(list(record) == ["kind", *kinds[record["kind"]]] for _, record in found)
    (_, head), *_, (place, foot) = found
    assert (head["kind"], foot["kind"], foot["crc32c"]) == ("head", "foot", checksum.crc32c(data[:place]))
    assert f"a `format` other than {head['format']}," in FORMAT.prose
    assert (head["txid"], head["epoch"], path.name) == (state.txid, 4, f"image.{state.txid:020d}")
    counted = Counter(record["kind"] for _, record in found[1:-1])
    assert head["counts"] == {kind: counted[kind] for kind in kinds if kind not in ("head", "foot")}
    order = list(dict.fromkeys(record["kind"] for _, record in found))
    assert order == [kind for kind in kinds if kind not in ("former", "commit", "job")]
    assert found[1][1]["name"] == "people"
    assert schemas.from_json(found[2][1]["columns"]) == OTHERS.remove(0).insert(0, pa.field("name", pa.string(), False))
    assert msgspec.json.decode(json.dumps(found[-3][1]), type=image.Consumer).offsets == (3,)
    structs = {kind.__name__.lower(): kind for kind in (image.Head, *image.ITEMS, image.Foot)}
    assert kinds == {name: [field.name for field in msgspec.structs.fields(kind)] for name, kind in structs.items()}


def test_the_index_can_be_read_with_the_document(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    bucket = paths.bucket_directory(tmp_path / "s", TableId(1), BucketId(0))
    pairs = pairs_of(bucket / paths.INDEX)
    kinds = [re.findall(r"`(\d\d)`", key)[0] for key, _ in FORMAT.tables("Index")[0]]
    assert sorted({key[:1].hex() for key in pairs}) == kinds
    state_key, writer_kind, row_kind = (bytes.fromhex(kind) for kind in kinds)
    state = read_fields("State record", pairs[state_key])
    (writer,) = (key for key in pairs if key.startswith(writer_kind))
    assert writer == writer_kind + struct.pack(">q", 2**62 + 1)
    assert f"the key of writer 5 is `{(writer_kind + struct.pack('>q', 5)).hex(' ')}`" in FORMAT.text
    entry = read_fields("Writer entry", pairs[writer])
    assert entry["batch_count"] == writer_entry.WINDOW
    arithmetic, digest, found = Arithmetic(), 0, 0
    for key, value in pairs.items():
        if key.startswith(row_kind):
            row_hash = arithmetic.sums(key, value)[2]
            row = read_fields("Row", value)
            assert (row["checksum"], row["schema_id"]) == (row_hash % 2**32, 1)
            digest, found = (digest + row_hash) % 2**64, found + 1
    assert (state["digest"], state["row_count"], state["applied_offset"]) == (digest, found, 10)


def test_the_log_can_be_read_with_the_document(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    bucket = paths.bucket_directory(tmp_path / "s", TableId(1), BucketId(0))
    segments = {int(path.stem): path.read_bytes() for path in sorted((bucket / paths.LOG).glob("*.log"))}
    assert len(segments) > 2
    expected, changes = 0, 0
    heads = {base: read_fields("Segment", data[:64]) for base, data in segments.items()}
    ends = [head["previous_end"] for head in heads.values()][1:]
    for (base, data), end in zip(segments.items(), [*ends, None], strict=True):
        assert (base, heads[base]["base_offset"], heads[base]["table_id"]) == (expected, expected, 1)
        position = 64
        while position < (len(data) if end is None else end):
            size = struct.unpack_from("<i", data, position + 8)[0] + 12
            header = read_fields("Header of magic 3", data[position : position + size])
            assert (header["base_offset"], header["magic"], size % 64) == (expected, 3, 0)
            expected += header["last_offset_delta"] + 1
            changes += header["record_count"]
            position += size
    assert (expected, changes) == (10, 10)


def test_a_snapshot_can_be_read_with_the_document(tmp_path: Path) -> None:
    write_a_store(tmp_path / "s")
    bucket = paths.bucket_directory(tmp_path / "s", TableId(1), BucketId(0))
    (directory,) = (bucket / paths.SNAPSHOTS).iterdir()
    manifest = json.loads((directory / "manifest.json").read_bytes())
    for name, told in manifest["files"].items():
        data = (directory / name).read_bytes()
        assert told == {"bytes": len(data), "crc32c": checksum.crc32c(data)}
    index = pairs_of(bucket / paths.INDEX)
    state = read_fields("State record", index[b"\0"])
    for name in ("table_id", "bucket_id", "applied_offset", "row_count", "last_timestamp", "next_count"):
        assert manifest[name] == state[name]
    assert int(manifest["digest"], 16) == state["digest"]
    assert (manifest["log_base"], manifest["log_position"]) == (state["synced_base"], state["synced_position"])
    rows = pq.read_table(directory / "rows.parquet").to_pylist()
    assert [row.pop("_schema_id") for row in rows] == [1] * state["row_count"]
    assert rows == [{"name": f"n{n}", "age": age, "ok": None} for n, age in ((1, 6), (2, 2), (3, 3), (4, 4))]
    (writer,) = json.loads((directory / "writers.json").read_bytes())["writers"]
    assert [batch[0] for batch in writer["batches"]] == [2, 3, 4, 5, 6]


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
    assert {str(kind) for kind in schemas._PLAIN.values()} <= {plain(line[1]) for line in type_lines()}


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
    given, target = (schemas._PLAIN[name] for name in pair)
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


@pytest.mark.parametrize("document", [FORMAT, TYPES], ids=["format.md", "types.md"])
def test_lines_are_not_too_long(document: Document) -> None:
    assert [line for line in document.text.splitlines() if len(line) > 120] == []


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
        elif written.startswith("task/"):
            names = (follower_status.task_name, follower_status.answer_name, follower_status.image_name)
            assert name.split(", ") == [f"`{of('<name>')}`" for of in names]
        elif "/" in written:
            assert written == replica_object.leader_name(Epoch(0))
            assert replica_object.leader_epoch(written) == 0
    assert kinds == ["range", "snapshot"]
    assert {plain(name) for name, *_ in table if "<" not in name} == {paths.STORE_FILE, replica_told.NAME}
    assert f"`{paths.SHIPPING}`" in FORMAT.prose
    told = re.findall(r"`(\w+)`", re.findall(r"`crc32c` last: (.*?), as in TellReplica", FORMAT.prose)[0])
    assert told == [field.name for field in msgspec.structs.fields(replica_told.ReplicaManifest)]


@pytest.mark.parametrize(
    ("section", "kind"), [("FOLLOWING", following_file.FollowingFile), ("Follower", follower_status.FollowerStatus)]
)
def test_fields_of_who_follows(section: str, kind: type[msgspec.Struct]) -> None:
    fields = [field.name for field in msgspec.structs.fields(kind)]
    named = re.findall(r"`(\w+)`", FORMAT.sections[section].partition("`format` ")[2])
    assert [name for name in ["format", *named] if name in fields][: len(fields)] == fields
