"""The raw limit: what LMDB and the disk leave to be had, with nothing between them.

The same keys and values as kvstore's through LMDB, as many bytes as its log takes to a file, and commits at its
cadence. All of it is finished bytes, made beforehand; nothing of it could be read back as a table.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import lmdb
import pyarrow as pa

from benchmarks.peers.store import Durability
from benchmarks.rows import NARROW, Shape
from kvstore.meta.state import TableDefinition
from kvstore.options import StoreOptions
from kvstore.request.request import group
from kvstore.request.row_layout import TableLayout
from logformat.catalog.edits import TableOptions
from logformat.checksum import key_sums
from logformat.ids import SchemaId, TableId


class RawLimit:
    name = "raw limit"
    settings: ClassVar[dict[Durability, str]] = {
        "sync": "getmulti + putmulti of sorted keys, write + fsync of the batch, commits at kvstore's cadence",
        "relaxed": "the same without the fsync",
    }

    def __init__(
        self,
        path: Path,
        shape: Shape = NARROW,
        durability: Durability = "sync",
        image: Literal["full", "wal"] = "full",
    ) -> None:
        self._env = lmdb.open(str(path / "lmdb"), map_size=256 << 30)
        self._file = os.open(path / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        definition = TableDefinition(TableId(1), "t", {SchemaId(1): shape.schema}, shape.key, 1, TableOptions())
        self._layout = TableLayout(definition)
        self._syncs, self._image = durability == "sync", image
        self._transaction: Any = None
        self._began = self._commit_seconds = 0.0
        self._wait = StoreOptions().commit_wait_ms / 1000

    def prepare(self, batch: pa.RecordBatch) -> tuple[Sequence[bytes], Sequence[bytes], bytes]:
        grouping = group(self._layout.encode_keys(batch))
        rows = batch.take(pa.array(grouping.order))
        values, _ = self._layout.encode_values(rows, key_sums(grouping.keys), SchemaId(1))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as stream:
            for _ in range(2 if self._image == "full" else 1):
                stream.write_batch(batch)
        return grouping.keys.to_list(), values.to_list(), sink.getvalue().to_pybytes()

    def apply(self, prepared: tuple[Sequence[bytes], Sequence[bytes], bytes]) -> None:
        keys, values, changes = prepared
        is_first = self._transaction is None
        if is_first:
            self._transaction = self._env.begin(write=True)
        with self._transaction.cursor() as cursor:
            if self._image == "full":
                cursor.getmulti(keys)
            cursor.putmulti(zip(keys, values, strict=True))
        os.write(self._file, changes)
        if self._syncs:
            os.fsync(self._file)
        now = time.monotonic()
        if is_first:
            self._began = now
        elif now - self._began >= max(self._wait, 4 * self._commit_seconds):
            self._commit()

    def settle(self) -> None:
        if self._transaction is not None:
            self._commit()

    def rows(self) -> pa.Table:
        raise NotImplementedError("It has no rows, only bytes.")

    def log_count(self) -> int:
        raise NotImplementedError("It has no log, only bytes.")

    def close(self) -> None:
        self.settle()
        self._env.close()
        os.close(self._file)

    def _commit(self) -> None:
        began = time.monotonic()
        self._transaction.commit()
        self._transaction = None
        self._commit_seconds = time.monotonic() - began
