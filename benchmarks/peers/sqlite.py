"""sqlite3: triggers write the log. A column of lists is text of JSON, which is made while the clock runs."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from benchmarks.peers.store import Durability, as_table
from benchmarks.rows import NARROW, Shape

Row = tuple[Any, ...]


class Sqlite:
    name = "sqlite3"
    settings: ClassVar[dict[Durability, str]] = {
        "sync": "journal_mode=WAL, synchronous=FULL, cache 256 MB",
        "relaxed": "journal_mode=WAL, synchronous=NORMAL, cache 256 MB",
    }

    def __init__(self, path: Path, shape: Shape = NARROW, durability: Durability = "sync") -> None:
        self._schema = shape.schema
        self._nested = [nth for nth, field in enumerate(shape.schema) if pa.types.is_nested(field.type)]
        key, *others = shape.schema.names
        names = ", ".join(shape.schema.names)

        def of(row: str) -> str:
            return ", ".join(f"{row}.{name}" for name in shape.schema.names)

        self.db = sqlite3.connect(path / "sqlite.db", isolation_level=None)
        self.db.executescript(
            f"""
            PRAGMA journal_mode = WAL; PRAGMA synchronous = {"FULL" if durability == "sync" else "NORMAL"};
            PRAGMA cache_size = -262144;
            CREATE TABLE t ({key} INTEGER PRIMARY KEY, {", ".join(others)});
            CREATE TABLE log (offset INTEGER PRIMARY KEY, change, {names});
            CREATE TRIGGER inserted AFTER INSERT ON t BEGIN
                INSERT INTO log (change, {names}) VALUES (1, {of("new")});
            END;
            CREATE TRIGGER updated AFTER UPDATE ON t BEGIN
                INSERT INTO log (change, {names}) VALUES (2, {of("old")}), (3, {of("new")});
            END;
            """
        )
        marks = ", ".join("?" * len(shape.schema))
        sets = ", ".join(f"{name} = excluded.{name}" for name in others)
        self._upsert = f"INSERT INTO t VALUES ({marks}) ON CONFLICT ({key}) DO UPDATE SET {sets}"

    def prepare(self, batch: pa.RecordBatch) -> list[Row]:
        return list(zip(*(column.to_pylist() for column in batch.columns), strict=True))

    def apply(self, prepared: list[Row]) -> None:
        for nth in self._nested:
            prepared = [(*row[:nth], json.dumps(row[nth]), *row[nth + 1 :]) for row in prepared]
        self.db.execute("BEGIN")
        self.db.executemany(self._upsert, prepared)
        self.db.execute("COMMIT")

    def settle(self) -> None:
        """Nothing was put off that it does not do by itself."""

    def rows(self) -> pa.Table:
        columns: list[Any] = list(zip(*self.db.execute("SELECT * FROM t ORDER BY 1"), strict=True))
        for nth, field in enumerate(self._schema):
            if nth in self._nested:
                columns[nth] = list(map(json.loads, columns[nth]))
            elif pa.types.is_boolean(field.type):
                columns[nth] = list(map(bool, columns[nth]))
        return as_table(columns, self._schema)

    def log_count(self) -> int:
        return int(self.db.execute("SELECT count(*) FROM log").fetchone()[0])

    def close(self) -> None:
        self.db.close()
