"""A table in memory, and a connection to it that answers late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from kvstore.errors import StoreError
from kvstore.testing import ModelTarget
from logformat.catalog.edits import TableOptions
from logformat.rows.changes import Changes

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string())])


class MemoryBucket(ModelTarget):
    """Applies batches as a bucket does, and records them.

    Attributes:
        refuse: Called before a batch is applied; raises to refuse it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.applied: list[tuple[int, int, Changes]] = []
        self.begun: list[int] = []
        self.refuse: Callable[[Changes], None] = lambda _: None

    def submit(self, changes: Changes, writer_id: int, sequence: int, epoch: int, **_: Any) -> Future[Any]:
        with self.lock:
            if sequence == self.model.next_sequence(writer_id):
                try:
                    self.refuse(changes)
                except StoreError as error:
                    refused: Future[Any] = Future()
                    refused.set_exception(error)
                    return refused
            answer = super().submit(changes, writer_id, sequence, epoch)
            if answer.exception() is None and not answer.result().duplicated:
                self.applied.append((writer_id, sequence, changes))
            return answer

    def begin(self, writer_id: int) -> int | None:
        with self.lock:
            self.begun.append(writer_id)
            return super().begin(writer_id)

    def rows(self) -> list[dict[str, Any]]:
        """All applied operations in order; a delete has its word in ``s``."""
        with self.lock:
            return [
                {"k": row["k"], "s": "deleted"} if deletes else row
                for _, _, changes in self.applied
                for row, deletes in zip(changes.rows.to_pylist(), changes.is_delete.to_pylist(), strict=True)
            ]


class MemoryTable:
    """A table of such buckets, or of connections to them."""

    schema = SCHEMA
    schema_id = 1
    primary_key = ("k",)
    options = TableOptions()

    def __init__(self, buckets: int = 1, connection: Callable[[MemoryBucket], Any] = lambda bucket: bucket) -> None:
        self.buckets = buckets
        self.real = [MemoryBucket() for _ in range(buckets)]
        self.connections = [connection(bucket) for bucket in self.real]

    def bucket(self, bucket: int) -> Any:
        return self.connections[bucket]

    def by_bucket(self, changes: Changes, _: int = 0, **__: Any) -> dict[int, Changes]:
        keys = changes.rows.column("k").to_pylist()
        return {
            bucket: Changes(changes.rows.take(places), changes.is_delete.take(places))
            for bucket in range(self.buckets)
            if len(places := pa.array([i for i, key in enumerate(keys) if key % self.buckets == bucket], pa.int64()))
        }

    def rows(self) -> list[dict[str, Any]]:
        return [row for bucket in self.real for row in bucket.rows()]


class GatedConnection:
    """A connection that delivers batches at once, and answers when the gate opens."""

    def __init__(self, bucket: MemoryBucket) -> None:
        self._bucket = bucket
        self._waiting: list[tuple[Future[Any], Future[Any]]] = []
        self._lock = threading.Lock()
        self._is_open = False

    def begin(self, writer_id: int) -> int | None:
        return self._bucket.begin(writer_id)

    def submit(self, changes: Changes, writer_id: int, sequence: int, writer_epoch: int, **schema: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        done = self._bucket.submit(changes, writer_id, sequence, writer_epoch, **schema)
        with self._lock:
            self._waiting.append((answer, done))
        if self._is_open:
            self.open()
        return answer

    def open(self) -> None:
        with self._lock:
            self._is_open = True
            waiting, self._waiting = self._waiting, []
        for answer, done in waiting:
            if error := done.exception():
                answer.set_exception(error)
            else:
                answer.set_result(done.result())
