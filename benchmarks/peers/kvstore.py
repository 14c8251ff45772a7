"""kvstore, as it is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

import kvstore
from benchmarks.peers.store import Durability
from benchmarks.rows import NARROW, Shape
from kvstore.request.encoded import ROWS_MAX


class KvStore:
    name = "kvstore"
    settings: ClassVar[dict[Durability, str]] = {
        "sync": "the defaults: durability=sync",
        "relaxed": "durability=none: the log is synced at flush and close; the index is committed and synced as ever",
    }

    def __init__(
        self,
        path: Path,
        shape: Shape = NARROW,
        durability: Durability = "sync",
        *,
        memory_bytes: int | None = None,
        **table_options: Any,
    ) -> None:
        settings = {"durability": "sync" if durability == "sync" else "none", "memtable_bytes": memory_bytes}
        self.store = kvstore.open(path / "kvstore", **settings)
        self.table = self.store.create_table("t", shape.schema, primary_key=list(shape.key), **table_options)

    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch | list[dict[str, Any]]:
        return batch.to_pylist() if batch.num_rows <= ROWS_MAX else batch

    def apply(self, prepared: pa.RecordBatch | list[dict[str, Any]]) -> None:
        self.table.upsert(prepared)

    def settle(self) -> None:
        self.table.flush()

    def rows(self) -> pa.Table:
        return self.table.scan().read_all()

    def log_count(self) -> int:
        return sum(batch.num_rows for batch in self.table.changelog(columns=["_change_type"]))

    def close(self) -> None:
        self.store.close()
