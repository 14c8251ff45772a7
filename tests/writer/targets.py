"""A table in memory, and an unreliable connection to it that runs its own threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from kvstore.errors import OutOfOrderSequence, StoreError
from logformat.catalog.edits import TableOptions
from logformat.ids import next_sequence
from logformat.log.writer_entry import WINDOW
from logformat.rows.changes import Changes
from tests.writer.bucket_queues import Answer

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string())])


class MemoryBucket:
    """Applies batches as a bucket does, and records them.

    Attributes:
        refuse: Called before a batch is applied; raises to refuse it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.writers: dict[int, list[tuple[int, Answer]]] = {}
        self.applied: list[tuple[int, int, Changes]] = []
        self.begun: list[int] = []
        self.end = 0
        self.refuse: Callable[[Changes], None] = lambda _: None

    def submit(self, changes: Changes, writer_id: int, sequence: int, _: int, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(self.apply(changes, writer_id, sequence))
        except StoreError as error:
            future.set_exception(error)
        return future

    def begin(self, writer_id: int) -> int | None:
        with self.lock:
            self.begun.append(writer_id)
            window = self.writers.get(writer_id)
            return window[-1][0] if window else None

    def apply(self, changes: Changes, writer_id: int, sequence: int) -> Answer:
        with self.lock:
            window = self.writers.setdefault(writer_id, [])
            for known, answer in window:
                if known == sequence:
                    return Answer(answer.first_offset, answer.last_offset, True)
            if sequence != next_sequence(window[-1][0] if window else -1):
                raise OutOfOrderSequence("Out of order.", sequence=sequence)
            self.refuse(changes)
            answer = Answer(self.end, self.end + max(1, len(changes)) - 1)
            self.end = answer.last_offset + 1
            self.writers[writer_id] = [*window, (sequence, answer)][-WINDOW:]
            self.applied.append((writer_id, sequence, changes))
            return answer

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


class LossyConnection:
    """A connection that loses, delays and duplicates requests and answers, in its own threads."""

    def __init__(self, bucket: MemoryBucket, seed: int, loss: float = 0.25) -> None:
        self._bucket = bucket
        self._random = random.Random(seed)
        self._loss = loss

    def begin(self, writer_id: int) -> int | None:
        return self._bucket.begin(writer_id)

    def submit(self, changes: Changes, writer_id: int, sequence: int, writer_epoch: int, **schema: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if self._random.random() < self._loss:
            return answer  # the request is lost
        for _ in range(1 + (self._random.random() < self._loss)):
            heard = self._random.random() >= self._loss
            delay = self._random.random() * 0.01

            def arrive(heard: bool = heard) -> None:
                done = self._bucket.submit(changes, writer_id, sequence, writer_epoch, **schema)
                if heard and not answer.done():
                    try:
                        answer.set_result(done.result())
                    except StoreError as error:
                        answer.set_exception(error)

            timer = threading.Timer(delay, arrive)
            timer.daemon = True
            timer.start()
        return answer


class SilentConnection(LossyConnection):
    """A connection that delivers nothing."""

    def __init__(self, bucket: MemoryBucket) -> None:
        super().__init__(bucket, 0, 1.0)


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
