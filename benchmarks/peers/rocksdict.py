"""RocksDB through rocksdict: the log is a column family of the same write batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from benchmarks.peers.row_bytes import RowBytes, encode_number
from benchmarks.peers.store import Durability
from benchmarks.rows import NARROW, Shape

_SETTINGS = "64 MB memtables, bloom filter, 256 MB cache, log in a column family of the same batch"


BUFFERS = 2
"""RocksDB writes to one while it makes a file of the other."""


class RocksDict:
    name = "rocksdict"
    settings: ClassVar[dict[Durability, str]] = {
        "sync": f"sync=True; {_SETTINGS}",
        "relaxed": f"sync=False; {_SETTINGS}",
    }

    def __init__(
        self,
        path: Path,
        shape: Shape = NARROW,
        durability: Durability = "sync",
        *,
        memory_bytes: int | None = None,
    ) -> None:
        from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch, WriteOptions

        rows, log = Options(raw_mode=True), Options(raw_mode=True)
        for options in (rows, log):
            options.create_if_missing(True)
            options.create_missing_column_families(True)
            options.set_write_buffer_size((memory_bytes or 128 << 20) // BUFFERS)
            options.increase_parallelism(2)
        blocks = BlockBasedOptions()
        blocks.set_bloom_filter(10, False)
        blocks.set_block_cache(Cache(256 << 20))
        rows.set_block_based_table_factory(blocks)
        self._db = Rdict(str(path / "rocksdb"), options=rows, column_families={"log": log})
        self._log = self._db.get_column_family_handle("log")
        self._batch = WriteBatch
        self._write_options = WriteOptions()
        self._write_options.sync = durability == "sync"
        self._codec = RowBytes(shape.schema)
        self._end = 0

    def prepare(self, batch: pa.RecordBatch) -> list[list[Any]]:
        return [column.to_pylist() for column in batch.columns]

    def apply(self, prepared: list[list[Any]]) -> None:
        log, end = self._log, self._end
        keys, values = self._codec.encode(prepared)
        batch = self._batch(raw_mode=True)
        put = batch.put
        for key, value, old in zip(keys, values, self._db.get(keys), strict=True):
            if old is None:
                put(encode_number(end), b"\1" + key + value, log)
                end += 1
            else:
                put(encode_number(end), b"\2" + key + old, log)
                put(encode_number(end + 1), b"\3" + key + value, log)
                end += 2
            put(key, value)
        self._end = end
        self._db.write(batch, self._write_options)

    def settle(self) -> None:
        self._db.flush()
        self._db.get_column_family("log").flush()

    def rows(self) -> pa.Table:
        keys, values = zip(*self._db.items(), strict=True)
        return self._codec.decode(keys, values)

    def log_count(self) -> int:
        return sum(1 for _ in self._db.get_column_family("log").keys())  # noqa: SIM118

    def close(self) -> None:
        self._db.close()
