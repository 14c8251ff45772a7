"""deltalake: MERGE with its change data feed. It never syncs."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from benchmarks.peers.store import Durability
from benchmarks.rows import NARROW, Shape


class DeltaLake:
    name = "deltalake"
    settings: ClassVar[dict[Durability, str]] = {"relaxed": "MERGE with change data feed; it never syncs"}

    def __init__(self, path: Path, shape: Shape = NARROW, durability: Durability = "relaxed") -> None:
        from deltalake import DeltaTable, write_deltalake

        assert durability == "relaxed"
        self._schema, self._key = shape.schema, shape.key[0]
        self._path = str(path / "delta")
        feed = {"delta.enableChangeDataFeed": "true"}
        write_deltalake(self._path, pa.table(shape.schema.empty_table()), configuration=feed)
        self._table = DeltaTable(self._path)

    def prepare(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch])

    def apply(self, prepared: pa.Table) -> None:
        on = f"t.{self._key} = new.{self._key}"
        merge = self._table.merge(prepared, on, source_alias="new", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def settle(self) -> None:
        """Nothing was put off that it does not do by itself."""

    def rows(self) -> pa.Table:
        found = pa.table(self._table.to_pyarrow_table())
        return found.sort_by(self._key).cast(self._schema)

    def log_count(self) -> int:
        return pa.table(self._table.load_cdf(starting_version=1)).num_rows

    def close(self) -> None:
        """Nothing is open."""
