"""Spark's part of a stream, played in this process: a checkpoint, and the order in which it is written."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

import kvstore
from kvstore.spark import KvStoreSource
from kvstore.spark.read.stream import KvStoreStreamReader

Rows = list[dict[str, Any]]


def place_of(row: dict[str, Any]) -> tuple[int, int]:
    return row["_bucket"], row["_log_offset"]


def in_order(rows: Rows) -> Rows:
    return sorted(rows, key=lambda row: (*place_of(row), row.get("k", 0)))


def changes(table: kvstore.ReadTable, start: Any, columns: list[str] | None = None) -> Rows:
    """What Python reads from a start, in the order of ``in_order``."""
    return in_order([row for batch in table.changelog(start, columns=columns) for row in batch.to_pylist()])


class Died(Exception):
    """The query died."""


@dataclass
class Query:
    """A query: its checkpoint, and a sink that keeps a batch under its id, so that one that comes again replaces it."""

    options: dict[str, str]
    offsets: list[str] = field(default_factory=list)
    committed: int = 0
    sunk: dict[int, Rows] = field(default_factory=dict)
    reader: Any = None

    def start(self) -> None:
        """Start the query, or start it again from its checkpoint, as another process would."""
        source = KvStoreSource(self.options)
        schema = source.schema()
        self.reader = pickle.loads(pickle.dumps(source)).streamReader(schema)
        self.executor = pickle.dumps(pickle.loads(pickle.dumps(source)).streamReader(schema))

    def stop(self) -> None:
        if self.reader is not None:
            self.reader.stop()
            self.reader = None

    def trigger(self, die: str | None = None, limit: ReadLimit | None = None) -> bool:
        """One batch; whether there was one.

        Args:
            die: ``planned``: once its end is in the checkpoint; ``sunk``: once its rows are in the sink.
        """
        if self.reader is None:
            self.start()
        reader, batch = self.reader, self.committed
        begin = self.offsets[batch - 1] if batch else json.dumps(reader.initialOffset())
        if len(self.offsets) == batch:
            limit = limit or reader.getDefaultReadLimit()
            end = json.dumps(reader.latestOffset(json.loads(begin), limit))
            if end == begin:
                return False
            self.offsets.append(end)
        if die == "planned":
            self.stop()
            return True
        end = self.offsets[batch]
        tasks = [pickle.dumps(task) for task in reader.partitions(json.loads(begin), json.loads(end))]
        executor = pickle.loads(self.executor)
        self.sunk[batch] = [
            row for task in tasks for rows in executor.read(pickle.loads(task)) for row in rows.to_pylist()
        ]
        if die == "sunk":
            self.stop()
            return True
        self.committed += 1
        reader.commit(json.loads(end))
        return True

    def run(self) -> None:
        """Until there is nothing new."""
        while self.trigger():
            pass

    def rows(self) -> Rows:
        """All that arrived."""
        return [row for batch in sorted(self.sunk) for row in self.sunk[batch]]


def reader_of(store: kvstore.Store, table: str, **options: str) -> KvStoreStreamReader:
    source = KvStoreSource({"path": str(store.path), "table": table} | options)
    reader = source.streamReader(source.schema())
    assert isinstance(reader, KvStoreStreamReader)
    return reader


EVERYTHING = ReadAllAvailable()
