"""Targets about a log: batches, heads, what is remembered of writers, whole segments.

A target is a function of bytes that succeeds, or raises an error of kvstore: its caller allows no other.
"""

from __future__ import annotations

import struct
from functools import cache

import numpy as np
import pyarrow as pa

from kvstore.log.writer_state import WriterStates
from logformat.binary_column import BinaryColumn
from logformat.ids import BucketId, Epoch, Offset, Sequence, TableId, WriterId
from logformat.log import index_state, segment, sparse_index
from logformat.log.arrow_message import Compression
from logformat.log.batch import LAYOUTS, MAGIC, LogBatch, decode_batch, decode_header, encode_batch, verify
from logformat.log.writer_entry import RememberedBatch, WriterEntry, decode_entry, decode_snapshot, encode_entry
from logformat.rows.record import RecordCodec
from tests.fuzz import golden, seal

_POINT = pa.struct([pa.field("x", pa.float32()), pa.field("y", pa.string())])
SCHEMAS = (
    pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())]),
    pa.schema([pa.field("k", pa.string(), False), pa.field("b", pa.bool_()), pa.field("n", pa.list_(pa.string()))]),
    pa.schema([("m", pa.map_(pa.string(), pa.int32())), ("p", _POINT), ("d", pa.decimal128(10, 2))]),
    pa.schema([("f", pa.binary(4)), ("t", pa.timestamp("us", "UTC")), ("l", pa.list_(_POINT)), ("h", pa.float16())]),
)
ROWS: tuple[list[dict[str, object]], ...] = (
    [{"k": 1, "v": 2}, {"k": -1, "v": None}, {"k": 2**62, "v": 0}],
    [
        {"k": "ü", "b": True, "n": ["a", None, ""]},
        {"k": "", "b": None, "n": None},
        {"k": "z" * 30, "b": False, "n": []},
    ],
    [{"m": [("a", 1), ("", None)], "p": {"x": 1.5, "y": "é"}, "d": None}, {"m": None, "p": None, "d": None}],
    [{"f": b"abcd", "t": None, "l": [{"x": None, "y": "q"}, None], "h": np.float16(0.5)}],
)
WRITER = WriterId(5)
_COLUMNS = 4
"""Bit of the selector: only the first column is wanted."""
_STRETCH = 8
"""Bit of the selector: the length in the header is made that of the data."""


def batch_header(data: bytes) -> None:
    """A header, and the checksum of what is after it."""
    header = decode_header(data)
    assert 0 <= header.base_offset < header.next_offset < 2**63
    assert LAYOUTS[header.magic].size <= header.size
    verify(header, data)


def batch(data: bytes) -> None:
    """A batch whose checksum is right, of one of the schemas."""
    selector = data[0] if data else 0
    schema = SCHEMAS[selector % len(SCHEMAS)]
    wanted = schema.names[:1] if selector & _COLUMNS else None
    found = decode_batch(seal.frame(data[1:], stretch=bool(selector & _STRETCH)), schema, wanted)
    # A caller that gets rows may read every value of them.
    assert found.rows.num_rows == found.record_count
    assert found.rows.schema.names == (wanted or schema.names)
    for column in found.rows.columns:
        column.to_pylist()


@cache
def batches(times: int = 1) -> tuple[bytes, ...]:
    """Of each schema and compression, after the number of the schema; with its rows so many times."""
    made = []
    for number, (schema, few) in enumerate(zip(SCHEMAS, ROWS, strict=True)):
        rows = few * times
        compressions: tuple[Compression, ...] = (None, "lz4", "zstd")
        for at, compression in enumerate(compressions):
            filled = LogBatch(
                attributes=at & 1,
                change_types=np.full(len(rows), 1, np.uint8),
                rows=pa.RecordBatch.from_pylist(rows, schema),
                base_offset=Offset(100),
                writer_id=WriterId(7),
                batch_sequence=Sequence(3),
            )
            magic = MAGIC if at or times > 1 else (number + MAGIC) % (MAGIC + 1)
            made.append(bytes([number]) + encode_batch(filled, magic, compression))
    return tuple(made)


def batch_seeds() -> list[bytes]:
    """Of each schema, compressed and not, all columns and one."""
    return [bytes([each[0] | more]) + each[1:] for each in batches() for more in (0, _COLUMNS, _STRETCH)]


def header_seeds() -> list[bytes]:
    """Batches of all magics, and what begins with some."""
    return [each[1:] for each in batches()] + [data[64:] for data in golden.ending("store", ".log")[1:5]]


def record(data: bytes) -> None:
    """Rows as the index holds them, of one of the schemas: its checksum was found right."""
    schema = SCHEMAS[data[0] % len(SCHEMAS) if data else 0]
    flat = np.frombuffer(data[1:], np.uint8)
    codec = RecordCodec([field.type for field in schema])
    found = codec.decode(flat, np.array([0], np.int64), np.array([len(flat)], np.int64))
    pa.RecordBatch.from_arrays(found, names=schema.names).validate()


def record_seeds() -> list[bytes]:
    """A row of each schema."""
    made = []
    for number, (schema, rows) in enumerate(zip(SCHEMAS, ROWS, strict=True)):
        columns = pa.RecordBatch.from_pylist(rows, schema).columns
        encoded: BinaryColumn = RecordCodec([field.type for field in schema]).encode_whole(columns)
        made += [bytes([number]) + bytes(each) for each in encoded.to_arrow().to_pylist()]
    return made


def small_records(data: bytes) -> None:
    """The head of a segment, its sparse index, or the state of an index; with their checksums."""
    kind, rest = data[:1], data[1:]
    if kind == b"s":
        head = segment.decode_head(seal.last_word(rest[: segment.HEAD_BYTES]))
        assert segment.decode_head(segment.encode_head(head)) == head
    elif kind == b"x":
        head_bytes, size = sparse_index.HEAD_BYTES, sparse_index.ENTRY_BYTES
        entries = [seal.last_word(rest[at : at + size]) for at in range(head_bytes, len(rest) - size + 1, size)]
        found = sparse_index.decode(rest[:head_bytes] + b"".join(entries))
        assert sorted(found) == found, "entries go up"
    else:
        state = index_state.decode(seal.first_word(rest))
        assert index_state.decode(index_state.encode(state)) == state


def small_records_seeds() -> list[bytes]:
    """One of each, and a longer sparse index."""
    entries = [sparse_index.Entry(Offset(9 * n), 5 * n, segment.Position(64 * n)) for n in range(6)]
    state = index_state.IndexState(TableId(3), BucketId(1), applied_offset=Offset(9), row_count=4, digest=2**64 - 1)
    heads = [b"s" + data[: segment.HEAD_BYTES] for data in golden.ending("store", ".log")]
    return [*heads[:4], b"x" + sparse_index.encode(entries), b"i" + index_state.encode(state)]


def writers(data: bytes) -> None:
    """What is remembered of writers, one entry or all of them; then it is asked."""
    known: dict[WriterId, WriterEntry]
    if data[:1] == b"e":
        known = {WRITER: decode_entry(WRITER, seal.first_word(data[1:], struct.pack("<q", WRITER)))}
    else:
        known = decode_snapshot(_snapshot(data[1:]))[1]
    states = WriterStates(known)
    for writer_id in known:
        states.last_sequence(writer_id, now_ms=1)
    decode_snapshot(states.snapshot(Offset(3)))


def _snapshot(data: bytes) -> bytes:
    """With every checksum right, as far as its entries can be found."""
    whole, place = bytearray(data), 20
    while place + 12 <= len(whole) - 4:
        writer_id, length = struct.unpack_from("<qI", whole, place)
        place += 12
        entry = bytes(whole[place : min(place + length, len(whole) - 4)])
        if len(entry) >= 4:
            whole[place : place + len(entry)] = seal.first_word(entry, struct.pack("<q", writer_id))
        place += max(length, 1)
    return seal.last_word(bytes(whole))


def writers_seeds() -> list[bytes]:
    """Of one batch, of five, and of several writers."""
    batches = tuple(RememberedBatch(Sequence(n), n, Offset(10 * n), 1_000 + n) for n in range(5))
    entries = {
        WriterId(5): WriterEntry(Epoch(2), True, batches),
        WriterId(9): WriterEntry(Epoch(0), False, batches[:1]),
    }
    whole = WriterStates(entries).snapshot(Offset(77))
    singles = [b"e" + encode_entry(WRITER, entry) for entry in entries.values()]
    return [*singles, b"s" + whole, *(b"s" + data for data in golden.ending("store", ".writers")[:1])]
