"""A get that begins before its process becomes the bucket's writer, and goes on while that writes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket.handle import BucketHandle
from kvstore.index.index import Index
from kvstore.log.log import Log
from kvstore.memtable.generation import Entry

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])


def test_a_get_shows_no_row_that_is_not_in_the_log_yet(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kvstore.open(store_path) as store:
        store.create_table("t", SCHEMA, primary_key="k").upsert([{"k": 1, "v": "first"}])
    applied, go_on = Event(), Event()
    append, ready_for = Log.append, BucketHandle.ready_for

    def append_later(self: Log, *given: Any, **named: Any) -> None:
        applied.set()
        go_on.wait()
        append(self, *given, **named)

    with kvstore.open(store_path) as store, ThreadPoolExecutor(1) as pool:
        table = store.table("t")

        def overtaken(self: BucketHandle, key: bytes) -> tuple[Index, Entry | None]:
            monkeypatch.setattr(BucketHandle, "ready_for", ready_for)
            pool.submit(table.upsert, [{"k": 1, "v": "second"}])
            applied.wait()
            return ready_for(self, key)

        assert table.get(1) == {"k": 1, "v": "first"}
        monkeypatch.setattr(Log, "append", append_later)
        monkeypatch.setattr(BucketHandle, "ready_for", overtaken)
        try:
            found = table.get(1)
        finally:
            go_on.set()
        pool.shutdown()
        assert found == {"k": 1, "v": "first"}
        assert table.get(1) == {"k": 1, "v": "second"}
