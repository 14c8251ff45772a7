"""Pinned reads and tasks as JSON, for the way through Spark's process; they contain offsets, keys and names only."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from kvstore.replica.read.parts import Changes, Rows
from kvstore.spark.read.batch import Pinned
from kvstore.spark.read.replica import PinnedReplica, ReplicaPlace, ReplicaReadTask
from kvstore.spark.read.splits import ReadTask

T = TypeVar("T")


@dataclass(frozen=True)
class _Replica:
    """A pinned read of a replica, or one task of it; ``columns`` only of a read. Rows are read before changes."""

    place: ReplicaPlace
    rows: tuple[Rows, ...]
    changes: tuple[Changes, ...]
    columns: pa.Schema | None = None

    @classmethod
    def of(cls, place: ReplicaPlace, reads: Iterable[Changes | Rows], columns: pa.Schema | None = None) -> _Replica:
        pieces = list(reads)
        rows = tuple(piece for piece in pieces if isinstance(piece, Rows))
        return cls(place, rows, tuple(piece for piece in pieces if isinstance(piece, Changes)), columns)

    @property
    def reads(self) -> tuple[Changes | Rows, ...]:
        return (*self.rows, *self.changes)


@dataclass(frozen=True)
class _Read:
    store: Pinned | None = None
    replica: _Replica | None = None


@dataclass(frozen=True)
class _Task:
    store: ReadTask | None = None
    replica: _Replica | None = None


def encode_read(read: Pinned | PinnedReplica) -> str:
    """Encode a pinned read."""
    if isinstance(read, Pinned):
        return _encode(_Read(store=read))
    return _encode(_Read(replica=_Replica.of(read.place, read.reads, read.columns)))


def decode_read(text: str) -> Pinned | PinnedReplica:
    """Decode a pinned read."""
    read = _decode(text, _Read)
    if read.store is not None:
        return read.store
    assert read.replica is not None
    return PinnedReplica(read.replica.place, read.replica.columns, read.replica.reads)


def encode_task(task: InputPartition) -> str:
    """Encode a task of a store or of a replica."""
    if isinstance(task, ReadTask):
        return _encode(_Task(store=task))
    assert isinstance(task, ReplicaReadTask)
    return _encode(_Task(replica=_Replica.of(task.place, task.pieces)))


def decode_task(text: str) -> ReadTask | ReplicaReadTask:
    """Decode a task."""
    task = _decode(text, _Task)
    if task.store is not None:
        return task.store
    assert task.replica is not None
    return ReplicaReadTask(task.replica.place, task.replica.reads)


def _encode(found: object) -> str:
    return msgspec.json.encode(found, enc_hook=encode_schema).decode()


def _decode(text: str, kind: type[T]) -> T:
    return msgspec.json.decode(text, type=kind, dec_hook=lambda _, schema: decode_schema(schema))


def encode_schema(schema: Any) -> str:
    """Encode stored columns as text."""
    return base64.b64encode(schema.serialize()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Decode stored columns."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
