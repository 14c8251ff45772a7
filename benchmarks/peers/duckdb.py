"""duckdb: a transaction a batch, of two statements. It has no setting for a commit that does not wait for the disk."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from benchmarks.peers.store import Durability
from benchmarks.rows import NARROW, Shape


class DuckDb:
    name = "duckdb"
    settings: ClassVar[dict[Durability, str]] = {
        "sync": "2 threads, a transaction a batch",
        "relaxed": "the same: it always syncs",
    }

    def __init__(self, path: Path, shape: Shape = NARROW, durability: Durability = "sync") -> None:  # noqa: ARG002
        import duckdb

        self._schema, self._key = shape.schema, shape.key[0]
        self._db = duckdb.connect(str(path / "duck.db"))
        self._db.execute("SET threads = 2")
        self._db.register("new", pa.table(shape.schema.empty_table()))
        types = {name: kind for name, kind, *_ in self._db.execute("DESCRIBE SELECT * FROM new").fetchall()}
        columns = ", ".join(f"{name} {kind}" for name, kind in types.items())
        self._db.execute(f"CREATE TABLE t ({columns}, PRIMARY KEY ({self._key}))")
        self._db.execute(f"CREATE TABLE log (change TINYINT, {columns})")

    def prepare(self, batch: pa.RecordBatch) -> pa.Table:
        return pa.Table.from_batches([batch])

    def apply(self, prepared: pa.Table) -> None:
        key = self._key
        self._db.register("new", prepared)
        self._db.execute("BEGIN")
        self._db.execute(
            f"INSERT INTO log SELECT 2, t.* FROM t JOIN new USING ({key}) UNION ALL"
            f" SELECT CASE WHEN t.{key} IS NULL THEN 1 ELSE 3 END, new.* FROM new LEFT JOIN t USING ({key})"
        )
        self._db.execute("INSERT OR REPLACE INTO t SELECT * FROM new")
        self._db.execute("COMMIT")

    def settle(self) -> None:
        """Nothing was put off that it does not do by itself."""

    def rows(self) -> pa.Table:
        return self._db.sql(f"SELECT * FROM t ORDER BY {self._key}").to_arrow_table().cast(self._schema)

    def log_count(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM log").fetchone()[0])

    def close(self) -> None:
        self._db.close()
