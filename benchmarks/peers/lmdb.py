"""LMDB by hand: what a capable user writes with py-lmdb in an afternoon.

Rows and log are two databases of one environment and one transaction a batch, so they can't diverge. Keys are sorted,
read by one ``getmulti`` and written by one ``putmulti``; the log is appended (``MDB_APPEND``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import lmdb
import pyarrow as pa

from benchmarks.peers.row_bytes import RowBytes, encode_number
from benchmarks.peers.store import Durability
from benchmarks.rows import NARROW, Shape


class LmdbByHand:
    name = "LMDB by hand"
    settings: ClassVar[dict[Durability, str]] = {
        "sync": "getmulti + putmulti of sorted keys, the log in a database of its own, a transaction a batch",
        "relaxed": "the same with sync=False: a power cut may take all of it",
    }

    def __init__(self, path: Path, shape: Shape = NARROW, durability: Durability = "sync") -> None:
        self._env = lmdb.open(str(path), map_size=256 << 30, max_dbs=2, sync=durability == "sync")
        self._rows, self._log = self._env.open_db(b"rows"), self._env.open_db(b"log")
        self._codec = RowBytes(shape.schema)
        self._end = 0

    def prepare(self, batch: pa.RecordBatch) -> list[list[Any]]:
        return [column.to_pylist() for column in batch.columns]

    def apply(self, prepared: list[list[Any]]) -> None:
        pairs = sorted(zip(*self._codec.encode(prepared), strict=True))
        with self._env.begin(write=True) as transaction:
            with transaction.cursor(self._rows) as cursor:
                old = dict(cursor.getmulti([key for key, _ in pairs]))
                cursor.putmulti(pairs)
            changes = []
            for key, value in pairs:
                before = old.get(key)
                if before is None:
                    changes.append(b"\1" + key + value)
                else:
                    changes += (b"\2" + key + before, b"\3" + key + value)
            offsets = map(encode_number, range(self._end, self._end + len(changes)))
            with transaction.cursor(self._log) as cursor:
                cursor.putmulti(zip(offsets, changes, strict=True), append=True)
        self._end += len(changes)

    def settle(self) -> None:
        """Nothing was put off that it does not do by itself."""

    def rows(self) -> pa.Table:
        with self._env.begin(self._rows) as transaction, transaction.cursor() as cursor:
            keys, values = zip(*cursor, strict=True)
        return self._codec.decode(keys, values)

    def log_count(self) -> int:
        with self._env.begin() as transaction:
            return int(transaction.stat(self._log)["entries"])

    def close(self) -> None:
        self._env.close()
