"""A table of ours as the machine sees it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa

import kvstore
from kvstore.testing.model import Operation, Row
from logformat import decode_batch, encode_batch
from logformat.ids import Sequence

BUCKETS = 2
SCHEMA = pa.schema([pa.field("k", pa.int16(), False), pa.field("v", pa.int64(), False)])
REMOVALS = ("delete", "update_preimage")


class OwnTable:
    """A table with two buckets in a store that is created in a directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._ids: dict[int, int] = {}
        self._restarts = count()
        self._is_renumbered = False
        self._open()
        # Not compressed, so that a batch can be changed in its place.
        self._store.create_table("t", SCHEMA, primary_key="k", buckets=BUCKETS, compression=None)
        self._table = self._store.table("t")

    def _open(self) -> None:
        self._store = kvstore.open(self._path, segment_bytes_max=2000, durability="none", commit_wait_ms=10**6)
        if "t" in self._store:
            self._table = self._store.table("t")

    def keys_of(self, bucket: int) -> list[int]:
        return [key for key, found in enumerate(self._table.buckets_of(list(range(20)))) if found == bucket][:3]

    def append(
        self, operations: list[Operation], *, bucket: int, writer: int, sequence: int, epoch: int
    ) -> kvstore.AppendResult:
        return self._table.bucket(bucket).apply(self._changes(operations), self._id(writer), sequence, epoch)

    def changes(self, bucket: int) -> list[tuple[int, str, Row]]:
        return [
            (
                change["_log_offset"],
                "delete" if change["_change_type"] in REMOVALS else "upsert",
                {name: change[name] for name in SCHEMA.names},
            )
            for batch in self._table.changelog(bucket=bucket)
            for change in batch.to_pylist()
        ]

    def restart(self) -> None:
        """Close the store; every other time, its indexes are lost."""
        self._store.close()
        if next(self._restarts) % 2:
            self._lose_indexes()
        self._open()

    def open_writer(self, name: str) -> tuple[int, int]:
        identity = self._store.runtime.open_table(self._store.runtime.definition("t")).writers.open(name)
        self._ids[100 + identity.writer_id] = identity.writer_id
        return 100 + identity.writer_id, identity.epoch

    def last_sequence(self, bucket: int, writer: int) -> int | None:
        return self._table.bucket(bucket).begin(self._id(writer))

    def append_epoch(self, batches: list[list[Operation]], *, name: str, epoch: int) -> list[kvstore.AppendResult]:
        changes = self._changes([operation for batch in batches for operation in batch])
        result = self._table.apply_epoch(changes, writer=name, epoch=epoch)
        return [result.by_bucket[bucket] for bucket in range(BUCKETS)]

    def renumber(self, writer: int, sequence: int) -> None:
        """Give the batches in the log another sequence; the memory of writers is made of the log again."""
        found = [
            (each.path, each.position, bytes(each.data))
            for bucket, (start, end) in self._table.offsets().items()
            for each in self._table.bucket(bucket).log.batches(start, end)
            if each.header.writer_id == self._id(writer)
        ]
        self._is_renumbered = True
        self._store.close()
        for path, position, data in found:
            changed = encode_batch(replace(decode_batch(data, SCHEMA), batch_sequence=Sequence(sequence)))
            assert len(changed) == len(data)
            with path.open("r+b") as file:
                file.seek(position)
                file.write(changed)
        for remembered in self._path.glob("tables/*/*/log/*.writers"):
            remembered.unlink()
        self._lose_indexes()
        self._open()

    def close(self, *, checked: bool = True) -> None:
        findings = self._store.check().findings if checked else []
        self._store.close()
        if self._is_renumbered:  # which a check finds
            findings = [finding for finding in findings if "Out of order batch sequence" not in finding]
        assert not findings

    def _lose_indexes(self) -> None:
        for index in self._path.glob("tables/*/*/index"):
            shutil.rmtree(index)

    def _id(self, writer: int) -> int:
        if writer >= 0 and writer not in self._ids:
            self._ids[writer] = self._store.new_writer_id()
        return self._ids.get(writer, -1)

    def _changes(self, operations: list[Operation]) -> kvstore.Changes:
        columns: dict[str, list[Any]] = {"k": [row["k"] for _, row in operations]}
        columns["v"] = [row.get("v", 0 if word == "delete" else None) for word, row in operations]
        schema = pa.schema([field.with_nullable(True) for field in SCHEMA])
        return kvstore.Changes(
            pa.RecordBatch.from_pydict(columns, schema), [word == "delete" for word, _ in operations]
        )
