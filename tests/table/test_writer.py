"""Writers of a table: batches of rows, names that continue and fence, threads and processes."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import ForkedStore, InvalidRequest, StoreError, StoreLocked, UnsupportedOperation, WriterFenced
from logformat.log.batch import NAMED_WRITER, decode_header
from tests.conftest import OpenStore
from tests.store.helpers import Program
from tests.support.tables import rows_of
from tests.support.waiting import ends_or_waits

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])


def headers(table: kvstore.Table, bucket: int = 0) -> list[Any]:
    return [decode_header(found.data) for found in table.bucket(bucket).log.batches(0, table.offsets()[bucket][1])]


def row(k: int, v: int = 0) -> dict[str, int]:
    return {"k": k, "v": v}


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    return store.create_table("t", SCHEMA, primary_key="k", buckets=3)


def test_rows_of_a_writer_are_in_the_table_once_it_is_closed(table: kvstore.Table) -> None:
    with table.writer(batch_rows=7) as writer:
        for k in range(100):
            writer.upsert(row(k))
        writer.delete([1, 2, 3])
        writer.upsert(pa.table({"k": [200, 201], "v": [1, 2]}))
    assert [each["k"] for each in sorted(rows_of(table), key=lambda each: each["k"])] == [0, *range(4, 100), 200, 201]
    for bucket in range(3):
        assert [header.batch_sequence for header in headers(table, bucket)] == [*range(len(headers(table, bucket)))]


def test_a_name_continues_after_a_restart_and_its_batches_have_its_flag(open_store: OpenStore) -> None:
    store = open_store()
    store.create_table("t", SCHEMA, primary_key="k")
    for epoch in range(3):
        with store.table("t").writer(name="w", batch_rows=10) as writer:
            for k in range(25):
                writer.upsert(row(k, epoch))
        store.close()
        store = open_store()
    found = headers(store.table("t"))
    assert [header.batch_sequence for header in found] == [*range(9)]
    assert [header.writer_epoch for header in found] == [0] * 3 + [1] * 3 + [2] * 3
    assert len({header.writer_id for header in found}) == 1
    assert all(header.attributes & NAMED_WRITER for header in found)


def test_the_older_of_two_writers_of_a_name_is_fenced_even_in_buckets_the_newer_has_not_written(
    store: kvstore.Store, table: kvstore.Table
) -> None:
    old = table.writer(name="w")
    old.upsert(row(1))
    old.flush()
    new = table.writer(name="w")
    for k in range(20):
        old.upsert(row(k, 1))
    with pytest.raises(WriterFenced, match="opened again"):
        old.flush()
    assert sum(map(len, old.unacknowledged)) == 20
    with pytest.raises(WriterFenced):
        old.upsert(row(1))
    new.upsert(row(2))
    new.close()
    assert sorted(each["k"] for each in rows_of(table)) == [1, 2]
    other = store.create_table("other", SCHEMA, primary_key="k").writer(name="w")  # a name belongs to a table
    other.upsert(row(1))
    other.close()


def test_a_name_is_for_batches_or_for_epochs(store: kvstore.Store, table: kvstore.Table) -> None:
    table.writer(name="batches").close()
    nothing = kvstore.Changes.of([], SCHEMA)
    with pytest.raises(InvalidRequest, match="sends batches"):
        table.apply_epoch(nothing, "batches", 0)
    table.apply_epoch(nothing, "epochs", 0)
    with pytest.raises(InvalidRequest, match="sends epochs"):
        table.writer(name="epochs")
    store.drop_writer("epochs")
    table.writer(name="epochs").close()


def test_a_dropped_writer_is_fenced(store: kvstore.Store, table: kvstore.Table) -> None:
    writer = table.writer(name="w")
    store.drop_writer("w")
    writer.upsert(row(1))
    with pytest.raises(WriterFenced, match="dropped"):
        writer.close()


@pytest.mark.parametrize(
    "arguments", [{"name": ""}, {"name": 3}, {"batch_row": 1}, {"batch_rows": 0}, {"linger_ms": "a"}]
)
def test_wrong_arguments_fence_no_writer(table: kvstore.Table, arguments: dict[str, Any]) -> None:
    writer = table.writer(name="w")
    with pytest.raises(InvalidRequest):
        table.writer(**({"name": "w"} | arguments))
    writer.upsert(row(1))
    writer.close()


def test_a_store_opened_read_only_has_no_writers(open_store: OpenStore) -> None:
    open_store().create_table("t", SCHEMA, primary_key="k")
    with pytest.raises(UnsupportedOperation):
        open_store(read_only=True).table("t").writer()


def test_many_threads_share_a_table_and_a_writer(table: kvstore.Table) -> None:
    with table.writer(batch_rows=20) as writer, ThreadPoolExecutor(8) as pool:

        def work(thread: int) -> None:
            for k in range(50):
                writer.upsert(row(thread * 1000 + k, 1))
                if k % 10 == 0:
                    table.upsert(row(thread * 1000 + 500 + k, 2))

        list(pool.map(work, range(8)))
    assert sum(each["v"] == 1 for each in rows_of(table)) == 400
    assert sum(each["v"] == 2 for each in rows_of(table)) == 40


HOLD = """
from kvstore.disk.lock import ProcessLock
table = kvstore.open(path).table("t")
locks = [ProcessLock(table.bucket(number).handle.paths.directory / "LOCK") for number in range(table.buckets)]
for lock in locks:
    lock.acquire()
print("holds")
sys.stdin.readline()
for lock in locks:
    lock.release()
print("closed")
"""
"""A process that owns the buckets and takes no requests, such as one of an older version."""


def test_a_writer_waits_for_buckets_that_another_process_writes(store: kvstore.Store, table: kvstore.Table) -> None:
    with Program(store.path, HOLD) as other:
        assert other.line() == "holds"
        with pytest.raises(StoreLocked, match=f"holder_pid={other.pid}"):
            table.upsert(row(1))
        writer = table.writer(name="w")
        for k in range(9):
            writer.upsert(row(k, 2))
        flushed = threading.Thread(target=writer.flush)
        flushed.start()
        assert not ends_or_waits(flushed)
        other.go_on()
        assert other.line() == "closed"
        flushed.join(600)
        assert not flushed.is_alive()
        writer.close()
    assert {each["v"] for each in rows_of(table)} == {2}


def test_a_writer_of_a_killed_process_leaves_what_it_acknowledged(store: kvstore.Store, table: kvstore.Table) -> None:
    code = """
table = kvstore.open(path).table("t")
writer = table.writer(name="w", batch_rows=5)
for k in range(50):
    writer.upsert({"k": k, "v": 1})
writer.flush()
print("flushed")
while True:
    writer.upsert({"k": 100, "v": 1})
"""
    with Program(store.path, code) as other:
        assert other.line() == "flushed"
        other.kill()
    with table.writer(name="w") as writer:
        writer.upsert(row(50, 2))
    assert {each["k"] for each in rows_of(table)} >= set(range(51))
    assert table.writers["w"].epoch == 1


def test_a_writer_is_refused_in_forked_children(table: kvstore.Table) -> None:
    writer = table.writer(linger_ms=60_000)
    writer.upsert(row(1))
    child = os.fork()
    if not child:
        status = 1
        try:
            writer.upsert(row(2))
        except ForkedStore:
            status = 0
        except StoreError:
            status = 2
        os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    writer.close()
    assert [each["k"] for each in rows_of(table)] == [1]


def test_leaving_a_writer_on_an_exception_reports_unacknowledged_rows(table: kvstore.Table) -> None:
    writer = table.writer(linger_ms=60_000)

    def work() -> None:
        with writer:
            writer.upsert(row(1))
            writer.flush()
            writer.upsert(row(2))
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        work()
    assert any("1 rows not acknowledged" in note for note in caught.value.__notes__)
    assert [each["k"] for changes in writer.unacknowledged for each in changes.rows.to_pylist()] == [2]
    assert [each["k"] for each in rows_of(table)] == [1]


def test_closing_a_store_ends_its_writers(store_path: Path) -> None:
    store = kvstore.open(store_path)
    writer = store.create_table("t", SCHEMA, primary_key="k").writer(linger_ms=60_000)
    writer.upsert(row(1))
    store.close()
    with pytest.raises(StoreError, match="closed"):
        writer.close()
    assert sum(map(len, writer.unacknowledged)) == 1
