"""Targets about a replica, which may come from anywhere: names, objects, listings, rows of a snapshot."""

from __future__ import annotations

import struct
from functools import cache
from io import BytesIO
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from kvstore.bucket.snapshots.rows import parquet_schema, read_rows
from kvstore.meta.state import TableDefinition
from kvstore.replica.contents import batches_along, edits_of, verify_parts
from kvstore.replica.coverage import holes, path_from, path_to, reached
from logformat.catalog import store_file
from logformat.catalog.edits import TableOptions
from logformat.catalog.replicas import CATALOG, Shipped
from logformat.ids import Epoch, SchemaId, TableId
from logformat.log.batch import decode_verified
from logformat.replica.object_file import (
    CRC_AT,
    HEAD,
    ObjectName,
    decode_object,
    encode_object,
    leader_epoch,
    leader_name,
    parse_name,
)
from tests.fuzz import golden, seal
from tests.fuzz.log_targets import ROWS, SCHEMAS

_KEYED = SCHEMAS[0]


def object_name(data: bytes) -> None:
    """A name is one that is made here, or none; so nothing of it leads anywhere else."""
    name = data.decode("utf-8", "surrogateescape")
    found = parse_name(name)
    if found is not None:
        assert str(found) == name
        assert parse_name(str(found)) == found
    epoch = leader_epoch(name)
    assert epoch is None or leader_name(epoch) == name


def object_name_seeds() -> list[bytes]:
    """All of the golden replica."""
    return [name.encode() for name in sorted(golden.files("replica"))]


@cache
def _objects() -> tuple[tuple[ObjectName, bytes], ...]:
    found = ((parse_name(name), data) for name, data in sorted(golden.files("replica").items()))
    return tuple((name, data) for name, data in found if name is not None)


@cache
def _store() -> store_file.StoreFile:
    return store_file.decode(golden.files("replica")["STORE"])


def replica_object(data: bytes) -> None:
    """An object whose own checksums are right; with a selector above 127 those of its batches or edits too."""
    selector, rest = (data[0], data[1:]) if data else (0, b"")
    name, _ = _objects()[selector % 128 % len(_objects())]
    if selector >= 128:
        parts = _parts(rest)
        sealed = [_sealed(name, part) for part in parts]
        written = b"".join(encode_object(name, _store().store_id, sealed))
    else:
        written = seal.object_of_replica(rest, HEAD, CRC_AT)
    found = decode_object(memoryview(written), name, _store().store_id)
    verify_parts(found, _store().store_id)
    if name.kind == "range" and name.stream == CATALOG:
        assert [edit.txid for edit in edits_of(found)] == list(range(name.start + 1, name.end + 1))
    elif name.kind == "range":
        offset = name.start
        for header, batch in batches_along([(found, name.end)], name.start):
            assert header.base_offset == offset, "batches follow each other"
            offset = header.next_offset
            decode_verified(header, batch, _KEYED, validate=True)


def _parts(data: bytes) -> list[bytes]:
    """Parts as an object has them, whatever their lengths say."""
    parts = []
    while len(data) > 8 and len(parts) < 100:
        length = struct.unpack_from("<Q", data)[0] % (1 << 16)
        parts.append(data[8 : 8 + length])
        data = data[8 + length :]
    return parts


def _sealed(name: ObjectName, part: bytes) -> bytes:
    if name.kind == "snapshot":
        return part
    return seal.first_word(part) if name.stream == CATALOG else seal.frame(part, stretch=False)


def replica_object_seeds() -> list[bytes]:
    """Every object of the golden replica, as it is and in parts."""
    head = struct.calcsize(HEAD)
    whole = [bytes([number]) + data for number, (_, data) in enumerate(_objects()) if len(data) < 3_000]
    return whole + [bytes([128 + each[0]]) + each[1 + head :] for each in whole]


def listing(data: bytes) -> None:
    """A path never crosses a hole, whatever a replica lists: missing objects, duplicates, overlaps, other leaders."""
    if len(data) < 4:
        return
    snapshots = sorted({data[2] % 40, data[3] % 40} - {0})
    reported = Shipped(stream=CATALOG, start=data[0] % 8, end=data[0] % 8 + data[1] % 40, snapshots=snapshots)
    objects = [_named(*each) for each in struct.iter_unpack("4B", data[4 : 4 + len(data[4:]) // 4 * 4])]
    held = {offset for each in objects for offset in _counts(each, objects)}
    wanted = range(reported.start, reported.end)
    lacking = {offset for start, end in holes(reported, objects) for offset in range(start, end)}
    assert lacking == {offset for offset in wanted if offset not in held}
    until = next((offset for offset in wanted if offset not in held), reported.end)
    assert reached(reported, objects) == until or reached(reported, objects) > reported.end == until
    for end in range(reported.end + 2):
        path = path_to(end, reported, objects)
        starts = {reported.start, *snapshots}
        named = {each.start for each in objects if each.kind == "snapshot"}
        possible = [s for s in starts if s <= end and (not s or s in named) and held.issuperset(range(s, end))]
        assert (path is not None) == bool(possible), "there is a path if there is one"
        if path is None:
            continue
        assert path.start == min(possible)
        assert path.snapshot is None if not path.start else path.snapshot in objects
        at = path.start
        for piece in path.pieces:
            assert piece.name.start <= at < piece.until <= piece.name.end
            at = piece.until
        assert at >= end
    for first, second in pairwise(path_from(reported.start, reported.end, objects).pieces):
        assert second.name.start <= first.until < second.until


def _named(start: int, length: int, epoch: int, kind: int) -> ObjectName:
    start %= 40
    if kind % 4 == 0:
        return ObjectName(CATALOG, "snapshot", start, start, Epoch(epoch % 3))
    return ObjectName(CATALOG, "range", start, start + 1 + length % 12, Epoch(epoch % 3))


def _counts(each: ObjectName, objects: list[ObjectName]) -> range:
    """Offsets for which a range counts: those before a later leader began."""
    later = [other.start for other in objects if other.epoch > each.epoch]
    return range(each.start, min([each.end, *later])) if each.kind == "range" else range(0)


def listing_seeds() -> list[bytes]:
    """A replica that is whole, one with a hole, and one with two leaders."""
    whole = b"".join(bytes([start, 4, 0, 1]) for start in range(0, 40, 5))
    head = bytes([0, 40, 10, 20])
    snapshots = bytes([10, 0, 0, 0, 20, 0, 1, 0])
    leaders = whole[:16] + b"".join(bytes([start, 4, 1, 1]) for start in range(12, 40, 5))
    return [head + whole, head + snapshots + whole[:12] + whole[16:], head + snapshots + leaders]


def snapshot_rows(data: bytes) -> None:
    """Rows of a snapshot: Parquet of a table of one of the schemas."""
    selector = data[0] % len(SCHEMAS) if data else 0
    for rows in read_rows(memoryview(data[1:]), _definition(selector)):
        assert len(rows.keys) == len(rows.values)


@cache
def _definition(number: int) -> TableDefinition:
    schema = SCHEMAS[number]
    key = ("k",) if "k" in schema.names else None
    return TableDefinition(TableId(1), "t", {SchemaId(1): schema}, key or (schema.names[0],), 1, TableOptions(), key)


def _parquet(table: pa.Table) -> bytes:
    sink = BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _others() -> list[pa.Table]:
    """Rows that are of no such table: other types, nulls in the key, columns that are missing or there twice."""
    ids = pa.array([1, 1], pa.int16())
    keys, values = pa.array([1, 2]), pa.array([3, None], pa.int64())
    made = [
        [("k", pa.array(["a", "b"])), ("v", values), ("_schema_id", ids)],
        [("k", pa.array([1, None])), ("v", values), ("_schema_id", ids)],
        [("k", keys), ("v", pa.array([[1], None])), ("_schema_id", ids)],
        [("k", keys), ("v", pa.array([1.5, None])), ("_schema_id", ids)],
        [("v", values), ("_schema_id", ids)],
        [("k", keys), ("v", values)],
        [("k", keys), ("_schema_id", ids)],
        [("k", keys), ("v", values), ("_schema_id", pa.array([1, None], pa.int16()))],
        [("k", keys), ("v", values), ("_schema_id", pa.array(["1", "2"]))],
        [("k", keys), ("v", values), ("_schema_id", pa.array([2, 1], pa.int16()))],
        [("k", keys), ("k", keys), ("v", values), ("_schema_id", ids)],
        [("k", pa.array([b"\xff" * 8, b"1" * 8], pa.binary(8))), ("v", values), ("_schema_id", ids)],
    ]
    return [pa.Table.from_arrays([array for _, array in each], names=[name for name, _ in each]) for each in made]


def snapshot_rows_seeds() -> list[bytes]:
    """Those of the golden store, and of schemas with a key."""
    seeds = [b"\0" + data for data in golden.ending("store", "rows.parquet")]
    for number in (0, 1):
        rows = pa.RecordBatch.from_pylist([{**row, "_schema_id": 1} for row in ROWS[number]], None)
        table = pa.Table.from_batches([rows]).select([*SCHEMAS[number].names, "_schema_id"])
        seeds.append(bytes([number]) + _parquet(table.cast(parquet_schema(SCHEMAS[number]))))
    return seeds + [b"\0" + _parquet(table) for table in _others()]
