"""kvstore, its peers and the raw limit behind one interface: a keyed table that keeps a full-image changelog.

Every store syncs each batch before the next one. What a store is handed is made beforehand, in the form it likes best:
Arrow for those that read Arrow, tuples for the others; the raw limit gets finished bytes.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import lmdb
import pyarrow as pa

import kvstore
from benchmarks.rows import SCHEMA
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.table.layout import TableLayout
from kvstore.table.request import group
from logformat.checksum import key_sums
from logformat.edits import TableOptions
from logformat.ids import SchemaId, TableId


class Store(Protocol):
    """One store with one table."""

    name: str
    settings: str

    def prepare(self, batch: pa.RecordBatch) -> Any:
        """A batch in the form the store takes; not timed."""

    def apply(self, prepared: Any) -> None:
        """Upsert a batch and log its changes, both durable on return."""

    def settle(self) -> None:
        """Do what was put off and does not happen by itself, so that the next turn is another's."""

    def close(self) -> None:
        """Give everything up."""


def tuples(batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))


class KvStore:
    name = "kvstore"
    settings = "durability=sync, the defaults"

    def __init__(self, path: Path, **options: Any) -> None:
        self._store = kvstore.open(path / "kvstore", **options)
        self._table = self._store.create_table("t", SCHEMA, primary_key="k")

    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def apply(self, prepared: pa.RecordBatch) -> None:
        self._table.upsert(prepared)

    def settle(self) -> None:
        self._table.flush()

    def close(self) -> None:
        self._store.close()


class Sqlite:
    name = "sqlite3"
    settings = "journal_mode=WAL, synchronous=FULL, cache 256 MB, triggers write the log"

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path / "sqlite.db", isolation_level=None)
        self._db.executescript(
            """
            PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -262144;
            CREATE TABLE t (k INTEGER PRIMARY KEY, a, b, c, s);
            CREATE TABLE log (offset INTEGER PRIMARY KEY, change, k, a, b, c, s);
            CREATE TRIGGER inserted AFTER INSERT ON t BEGIN
                INSERT INTO log (change, k, a, b, c, s) VALUES (1, new.k, new.a, new.b, new.c, new.s);
            END;
            CREATE TRIGGER updated AFTER UPDATE ON t BEGIN
                INSERT INTO log (change, k, a, b, c, s)
                VALUES (2, old.k, old.a, old.b, old.c, old.s), (3, new.k, new.a, new.b, new.c, new.s);
            END;
            """
        )

    def prepare(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        return tuples(batch)

    def apply(self, prepared: list[tuple[Any, ...]]) -> None:
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT INTO t VALUES (?, ?, ?, ?, ?) ON CONFLICT (k) DO UPDATE"
            " SET a = excluded.a, b = excluded.b, c = excluded.c, s = excluded.s",
            prepared,
        )
        self._db.execute("COMMIT")

    def settle(self) -> None:
        """Nothing was put off that it does not do by itself."""

    def close(self) -> None:
        self._db.close()


class RocksDict:
    name = "rocksdict"
    settings = "sync writes, 64 MB memtables, bloom filter, 256 MB cache, log in a column family of the same batch"

    def __init__(self, path: Path) -> None:
        from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch, WriteOptions

        rows, log = Options(raw_mode=True), Options(raw_mode=True)
        for options in (rows, log):
            options.create_if_missing(True)
            options.create_missing_column_families(True)
            options.set_write_buffer_size(64 << 20)
            options.increase_parallelism(2)
        blocks = BlockBasedOptions()
        blocks.set_bloom_filter(10, False)
        blocks.set_block_cache(Cache(256 << 20))
        rows.set_block_based_table_factory(blocks)
        self._db = Rdict(str(path / "rocksdb"), options=rows, column_families={"log": log})
        self._log = self._db.get_column_family_handle("log")
        self._batch = WriteBatch
        self._sync = WriteOptions()
        self._sync.sync = True
        self._key, self._row = struct.Struct(">q").pack, struct.Struct("<idq").pack
        self._end = 0

    def prepare(self, batch: pa.RecordBatch) -> list[tuple[Any, ...]]:
        return tuples(batch)

    def apply(self, prepared: list[tuple[Any, ...]]) -> None:
        encode_key, encode_row, log = self._key, self._row, self._log
        keys = [encode_key(row[0]) for row in prepared]
        values = [encode_row(row[1], row[2], row[3]) + row[4].encode() for row in prepared]
        batch = self._batch(raw_mode=True)
        put, end = batch.put, self._end
        for key, value, old in zip(keys, values, self._db.get(keys), strict=True):
            if old is None:
                put(encode_key(end), b"\1" + key + value, log)
                end += 1
            else:
                put(encode_key(end), b"\2" + key + old, log)
                put(encode_key(end + 1), b"\3" + key + value, log)
                end += 2
            put(key, value)
        self._end = end
        self._db.write(batch, self._sync)

    def settle(self) -> None:
        """Nothing was put off that it does not do by itself."""

    def close(self) -> None:
        self._db.close()


class DuckDb:
    name = "duckdb"
    settings = "2 threads, a transaction a batch"

    def __init__(self, path: Path) -> None:
        import duckdb

        self._db = duckdb.connect(str(path / "duck.db"))
        self._db.execute("SET threads = 2")
        self._db.execute("CREATE TABLE t (k BIGINT PRIMARY KEY, a INTEGER, b DOUBLE, c BIGINT, s VARCHAR)")
        self._db.execute("CREATE TABLE log (change TINYINT, k BIGINT, a INTEGER, b DOUBLE, c BIGINT, s VARCHAR)")

    def prepare(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch])

    def apply(self, prepared: pa.Table) -> None:
        self._db.register("new", prepared)
        self._db.execute("BEGIN")
        self._db.execute(
            "INSERT INTO log SELECT 2, t.* FROM t JOIN new USING (k) UNION ALL"
            " SELECT CASE WHEN t.k IS NULL THEN 1 ELSE 3 END, new.* FROM new LEFT JOIN t USING (k)"
        )
        self._db.execute("INSERT OR REPLACE INTO t SELECT * FROM new")
        self._db.execute("COMMIT")

    def settle(self) -> None:
        """Nothing was put off that it does not do by itself."""

    def close(self) -> None:
        self._db.close()


class DeltaLake:
    name = "deltalake"
    settings = "MERGE with change data feed; it never syncs"

    def __init__(self, path: Path) -> None:
        from deltalake import DeltaTable, write_deltalake

        self._path = str(path / "delta")
        write_deltalake(
            self._path, pa.table(SCHEMA.empty_table()), configuration={"delta.enableChangeDataFeed": "true"}
        )
        self._table = DeltaTable(self._path)

    def prepare(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch])

    def apply(self, prepared: pa.Table) -> None:
        merge = self._table.merge(prepared, "t.k = new.k", source_alias="new", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def settle(self) -> None:
        """Nothing was put off that it does not do by itself."""

    def close(self) -> None:
        """Nothing is open."""


class RawLimit:
    """The parts with nothing between them: the same keys and values through LMDB, the same bytes to a file."""

    name = "raw limit"
    settings = "getmulti + putmulti of sorted keys, write + fsync of the batch, commits at kvstore's cadence"

    def __init__(self, path: Path) -> None:
        self._env = lmdb.open(str(path / "lmdb"), map_size=256 << 30)
        self._file = os.open(path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        definition = TableDefinition(TableId(1), "t", {SchemaId(1): SCHEMA}, ("k",), 1, TableOptions())
        self._layout = TableLayout(definition)
        self._transaction: Any = None
        self._began = self._commit_seconds = 0.0
        self._wait = StoreOptions().commit_wait_ms / 1000

    def prepare(self, batch: pa.RecordBatch) -> tuple[Sequence[bytes], Sequence[bytes], bytes]:
        grouping = group(self._layout.encode_keys(batch))
        rows = batch.take(pa.array(grouping.order))
        values, _ = self._layout.encode_values(rows, key_sums(grouping.keys), SchemaId(1))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            stream.write_batch(batch)
            stream.write_batch(batch)
        return grouping.keys.to_list(), values.to_list(), sink.getvalue().to_pybytes()

    def apply(self, prepared: tuple[Sequence[bytes], Sequence[bytes], bytes]) -> None:
        keys, values, changes = prepared
        is_first = self._transaction is None
        if is_first:
            self._transaction = self._env.begin(write=True)
        with self._transaction.cursor() as cursor:
            cursor.getmulti(keys)
            cursor.putmulti(zip(keys, values, strict=True))
        os.write(self._file, changes)
        os.fsync(self._file)
        now = time.monotonic()
        if is_first:
            self._began = now
        elif now - self._began >= max(self._wait, 4 * self._commit_seconds):
            self._commit()

    def settle(self) -> None:
        if self._transaction is not None:
            self._commit()

    def close(self) -> None:
        self.settle()
        self._env.close()
        os.close(self._file)

    def _commit(self) -> None:
        began = time.monotonic()
        self._transaction.commit()
        self._transaction = None
        self._commit_seconds = time.monotonic() - began


PEERS: tuple[type[Store], ...] = (Sqlite, RocksDict, DuckDb)
