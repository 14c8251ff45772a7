"""Reads that begin before their process becomes the bucket's writer, and go on while that writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket.handle import BucketHandle
from kvstore.errors import StoreFull
from kvstore.index.index import Index, View
from kvstore.log.log import Log
from kvstore.memtable import memtable
from kvstore.memtable.memtable import Memtable
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of

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

        def overtaken(self: BucketHandle, key: bytes) -> tuple[Index, bytes | None] | None:
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


def write(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path, commit_wait_ms=60_000, commit_idle_ms=60_000) as store:
        store.table("t").upsert([{"k": k, "v": "of a process that was killed"} for k in range(3)])
        pipe.send("acknowledged")
        pipe.recv()


READS: dict[str, tuple[str, Callable[[kvstore.Table], int]]] = {
    "lookup": ("view", lambda table: table.lookup([{"k": k} for k in range(3)])["v"].drop_null().length()),
    "scan": ("scan_view", lambda table: len(rows_of(table))),
}


@pytest.mark.parametrize("read", READS)
def test_a_read_that_its_process_overtakes_as_a_writer_has_all_rows(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    with kvstore.open(store_path) as store:
        store.create_table("t", SCHEMA, primary_key="k")
    with Child(write, store_path) as writer:
        assert writer.hear() == "acknowledged"
    kind, reads = READS[read]
    view_of: Callable[[Index], AbstractContextManager[View]] = getattr(Index, kind)
    waiting = [True]

    with kvstore.open(store_path) as store, ThreadPoolExecutor(1) as pool:
        table = store.table("t")

        @contextmanager
        def overtaken(self: Index) -> Iterator[View]:
            with view_of(self) as view:
                if waiting:
                    waiting.clear()
                    pool.submit(table.upsert, [{"k": 0, "v": "of this process"}]).result()
                yield view

        assert table.get(0) == {"k": 0, "v": "of a process that was killed"}
        monkeypatch.setattr(Index, kind, overtaken)
        assert reads(table) == 3
        assert not waiting


def test_a_get_that_waits_for_the_recovery_of_its_process_has_rows_that_are_not_merged(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvstore.open(store_path) as store:
        store.create_table("t", SCHEMA, primary_key="k")
    with Child(write, store_path) as writer:
        assert writer.hear() == "acknowledged"
    for name in ("SLICE_ROWS", "SLICE_ROWS_MAX"):
        monkeypatch.setattr(memtable, name, 1)
    ready_for, waiting = BucketHandle.ready_for, [True]

    with (
        kvstore.open(store_path, commit_wait_ms=60_000, commit_idle_ms=60_000) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        table = store.table("t")

        def overtaken(self: BucketHandle, key: bytes) -> tuple[Index, bytes | None] | None:
            if waiting:
                waiting.clear()
                pool.submit(table.upsert, [{"k": 0, "v": "of this process"}]).result()
            return ready_for(self, key)

        monkeypatch.setattr(BucketHandle, "ready_for", overtaken)
        assert table.get(2) == {"k": 2, "v": "of a process that was killed"}
        assert not waiting


def test_a_view_of_an_index_has_what_its_process_has_recovered_meanwhile(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvstore.open(store_path) as store:
        store.create_table("t", SCHEMA, primary_key="k")
    with Child(write, store_path) as writer:
        assert writer.hear() == "acknowledged"
    merge_slice, reader, waiting = Memtable.merge_slice, BucketHandle.reader, [True]

    def full(self: Memtable, share: float = 1.0) -> None:
        raise StoreFull("the disk is full")

    with (
        kvstore.open(store_path, commit_wait_ms=60_000, commit_idle_ms=60_000) as store,
        ThreadPoolExecutor(1) as pool,
    ):
        table = store.table("t")

        def overtaken(self: BucketHandle) -> Index:
            if waiting:
                waiting.clear()
                monkeypatch.setattr(Memtable, "merge_slice", full)
                pool.submit(table.upsert, [{"k": 0, "v": "of this process"}]).result()
                monkeypatch.setattr(Memtable, "merge_slice", merge_slice)
            return reader(self)

        monkeypatch.setattr(BucketHandle, "reader", overtaken)
        with table.bucket(0).handle.indexed() as view:
            assert view.state().row_count == 3
        assert not waiting
