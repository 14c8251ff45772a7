"""What says that it is huge is refused before memory is taken for it: each in a process that may have little more.

Each is built as an attacker would build it: with valid checksums.
"""

from __future__ import annotations

import io
import os
import resource
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest

from kvstore.bucket.snapshots.rows import read_rows
from kvstore.errors import CorruptData
from kvstore.meta.state import TableDefinition
from kvstore.replica.check import RANGE_BYTES_MAX, read_object
from logformat.catalog import image
from logformat.catalog.edits import TableOptions
from logformat.ids import SchemaId, TableId
from logformat.log import arrow_message, writer_entry
from logformat.log.batch import LogBatch, decode_batch, decode_header, encode_batch
from logformat.replica.object_file import CRC_AT, HEAD, decode_object, encode_object, parse_name
from tests.fuzz import seal
from tests.support.processes import ran

ROOT = Path(__file__).parents[2]
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string())])
Bomb = Callable[[], object]
MEGABYTES = 256
"""More than the process has, and far less than any of these would take."""


def _batch(rows: pa.RecordBatch, compression: str | None = "zstd") -> bytes:
    filled = LogBatch(change_types=np.full(rows.num_rows, 1, np.uint8), rows=rows)
    return encode_batch(filled, compression=compression)  # type: ignore[arg-type]


def _zeros(count: int, width: int = 0) -> pa.RecordBatch:
    texts = pa.array(["\0" * width] * count) if width else pa.nulls(count, pa.string())
    return pa.record_batch([np.zeros(count, np.int64), texts], schema=SCHEMA)


def sizes_of_buffers() -> Bomb:
    """Compressed buffers of a batch that say they are a terabyte."""
    data = bytearray(_batch(_zeros(100_000)))
    at = data.find(struct.pack("<q", 800_000))
    struct.pack_into("<q", data, at, 1 << 40)
    return lambda: decode_batch(seal.frame(bytes(data), stretch=False), SCHEMA)


def codec_named_the_older_way() -> Bomb:
    """Many zeros in a batch that names its codec as Arrow 0.17 did, where nothing looks for sizes."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, SCHEMA, options=options) as stream:
        stream.write_batch(_zeros(1 << 24), custom_metadata={"ARROW:experimental_compression": "zstd"})
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    message = bytearray(reader.read_next_message().serialize())
    metadata = memoryview(message)[8:]
    table = arrow_message.FlatTable(metadata, arrow_message.follow(metadata, 0))
    batch = arrow_message.FlatTable(metadata, arrow_message.follow(metadata, table.field(2)))
    if batch.field(3):
        struct.pack_into("<H", metadata, batch.vtable + 4 + 2 * 3, 0)  # it says nothing of a codec now
    assert len(message) < 1 << 20
    return lambda: arrow_message.decode(memoryview(message), SCHEMA)


def rows_of_a_batch() -> Bomb:
    """A header that counts more rows than there can be."""
    data = bytearray(_batch(_zeros(10)))
    struct.pack_into("<i", data, 48, 2**31 - 1)
    struct.pack_into("<i", data, 20, 2**31 - 2)
    return lambda: decode_batch(seal.frame(bytes(data), stretch=False), SCHEMA)


def bytes_of_a_batch() -> Bomb:
    """A header that says its batch has two gigabytes."""
    data = bytearray(_batch(_zeros(10)))
    struct.pack_into("<i", data, 8, 2**31 - 64 - 12)
    return lambda: decode_header(data)


def record_of_an_image() -> Bomb:
    """A record of an image that says it has four gigabytes."""
    data = struct.pack("<II", 2**32 - 1, 0) + b"{}"
    return lambda: image.Reader(io.BytesIO(data).read, len(data))


def writers() -> Bomb:
    """A snapshot of writers that counts four billions of them."""
    body = struct.pack("<4sHHqI", b"KVWS", 1, 0, 0, 2**32 - 1)
    return lambda: writer_entry.decode_snapshot(seal.last_word(body + bytes(4)))


def part_of_an_object() -> Bomb:
    """An object of a replica with a part that says it has an exabyte."""
    name = parse_name(f"tables/1/0/{0:020d}-{1:020d}.{0:020d}.range")
    assert name is not None
    data = bytearray(b"".join(encode_object(name, UUID(int=1), [b"x" * 64])))
    struct.pack_into("<Q", data, len(data) - 72, 1 << 60)
    whole = seal.object_of_replica(bytes(data), HEAD, CRC_AT)
    return lambda: decode_object(memoryview(whole), name, UUID(int=1))


class _Listed:
    """A replica that lists a large object, which takes memory only if it is fetched."""

    def list(self, prefix: str = "", after: str = "") -> Sequence[tuple[str, int]]:
        assert not after
        return [(prefix, RANGE_BYTES_MAX + 1)]

    def get(self, name: str, *, bytes_max: int) -> memoryview:
        raise AssertionError(f"{name} of {bytes_max} was fetched")


def object_of_a_replica() -> Bomb:
    """An object that is listed as larger than any can be."""
    name = parse_name(f"tables/1/0/{0:020d}-{1:020d}.{0:020d}.range")
    assert name is not None
    return lambda: read_object(_Listed(), UUID(int=1), name, RANGE_BYTES_MAX + 1)  # type: ignore[arg-type]


def rows_of_a_snapshot() -> Bomb:
    """A Parquet file of 2 MB with a row group of sixteen millions of rows."""
    sink = io.BytesIO()
    schema = pa.schema([SCHEMA.field("k"), pa.field("_schema_id", pa.int16(), False)])
    zeros = pa.record_batch([np.zeros(1 << 22, np.int64), np.ones(1 << 22, np.int16)], schema=schema)
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        writer.write_table(pa.Table.from_batches([zeros] * 4), row_group_size=1 << 24)
    assert len(sink.getvalue()) < 2 << 20
    definition = TableDefinition(TableId(1), "t", {SchemaId(1): SCHEMA}, ("k",), 1, TableOptions(), ("k",))
    return lambda: list(read_rows(memoryview(sink.getvalue()), definition))


BOMBS: dict[str, Callable[[], Bomb]] = {
    each.__name__: each
    for each in (
        *(sizes_of_buffers, rows_of_a_batch, bytes_of_a_batch, record_of_an_image, writers, part_of_an_object),
        *(object_of_a_replica, rows_of_a_snapshot, codec_named_the_older_way),
    )
}


def _limited() -> None:
    """From here on, so much more memory at most."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (MEGABYTES << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def explode() -> None:
    """All of them, each in a process of its own, which may have little more memory than it has."""
    for name, make in BOMBS.items():
        pid = os.fork()
        if not pid:
            status = 1
            try:
                bomb = make()
                _limited()
                with pytest.raises(CorruptData) as refused:
                    bomb()
                assert not isinstance(refused.value.__cause__, MemoryError), "memory was asked for"
                status = 0
            except BaseException:  # it ends here, and says why
                traceback.print_exc()
            finally:
                os._exit(status)
        if os.waitpid(pid, 0)[1]:
            sys.exit(f"{name} is not refused for what it says")


def test_they_are_refused_before_memory_is_taken() -> None:
    code = "from tests.store.test_bombs import explode; explode()"
    done = ran(code)
    assert not done.returncode, f"{done.returncode}\n{done.stderr[-3_000:]}"
