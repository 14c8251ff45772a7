"""Several processes and threads with one store: one writes a bucket, all read, and no read sees half of a commit."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.disk.environment import Environment
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock
from kvstore.errors import ForkedStore, StoreLocked
from kvstore.options import StoreOptions
from kvstore.store import runtime
from kvstore.store.store import Store
from logformat import paths
from tests.conftest import OpenStore
from tests.store.helpers import Program, run
from tests.support.tables import changes_of, rows_of
from tests.support.waiting import wait_until

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])

WRITER = """
store = kvstore.open(path)
table = store.table("t")
table.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 1}])
print("written")
sys.stdin.readline()
store.close()
print("closed")
"""


@pytest.fixture
def table(store: kvstore.Store) -> kvstore.Table:
    return store.create_table("t", SCHEMA, primary_key="k")


def test_a_second_writer_writes_beside_the_first_and_goes_on_when_that_is_done(
    store: kvstore.Store, table: kvstore.Table
) -> None:
    with Program(store.path, WRITER) as other:
        assert other.line() == "written"
        table.upsert({"k": 3, "v": 1})
        assert [row["k"] for row in rows_of(table)] == [1, 2, 3]
        other.go_on()
        assert other.line() == "closed"
    table.upsert({"k": 4, "v": 1})
    assert [row["k"] for row in rows_of(table)] == [1, 2, 3, 4]


def test_a_killed_writer_leaves_the_lock_and_all_it_acknowledged(store: kvstore.Store, table: kvstore.Table) -> None:
    with Program(store.path, WRITER) as other:
        assert other.line() == "written"
        other.kill()
    table.upsert({"k": 1, "v": 2})
    assert rows_of(table) == [{"k": 1, "v": 2}, {"k": 2, "v": 1}]
    assert [offset for offset, *_ in changes_of(table)] == [0, 1, 2, 3]


def test_what_a_killed_writer_acknowledged_is_read_by_the_next_process(open_store: OpenStore, store_path: Path) -> None:
    store = open_store()
    store.create_table("t", SCHEMA, primary_key="k")
    store.close()
    # The index is never committed by time here, so all that is left of the rows is in the log.
    lazy = WRITER.replace("kvstore.open(path)", "kvstore.open(path, commit_wait_ms=60_000, commit_idle_ms=60_000)")
    with Program(store_path, lazy) as other:
        assert other.line() == "written"
        other.kill()
    assert len(rows_of(open_store().table("t"))) == 2


def test_what_a_writer_acknowledged_is_seen_by_a_running_reader_also_once_it_was_killed(
    store: kvstore.Store, store_path: Path
) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    assert rows_of(table) == []
    lazy = WRITER.replace("kvstore.open(path)", "kvstore.open(path, commit_wait_ms=60_000, commit_idle_ms=60_000)")
    with Program(store_path, lazy) as other:
        assert other.line() == "written"
        assert len(rows_of(table)) == 2
        other.kill()
    assert len(rows_of(table)) == 2


def test_a_child_of_a_killed_writer_does_not_keep_its_lock(store: kvstore.Store, table: kvstore.Table) -> None:
    program = """
    store = kvstore.open(path)
    store.table("t").upsert({"k": 1, "v": 1})
    if os.fork() == 0:
        import time
        for inherited in (0, 1, 2):
            os.close(inherited)
        while os.path.exists(path) and not os.path.exists(path + ".over"):
            time.sleep(0.01)
        os._exit(0)
    print("forked")
    sys.stdin.readline()
    """
    try:
        with Program(store.path, program) as other:
            assert other.line() == "forked"
            other.kill()
        table.upsert({"k": 2, "v": 1})
        assert table.count() == 2
    finally:
        Path(f"{store.path}.over").touch()


def test_readers_elsewhere_see_writes_and_flushed_ones_at_once(store: kvstore.Store, table: kvstore.Table) -> None:
    program = """
    table = kvstore.open(path, read_only=True).table("t")
    print("ready")
    while sys.stdin.readline():
        print(table.count(), table.offsets()[0][1], len(list(table.changelog())))
    """
    with Program(store.path, program) as other:

        def sees(count: int) -> bool:
            other.go_on()
            rows, end, _ = map(int, other.line().split())
            assert count - 1 <= rows <= end <= count
            return rows == end == count

        assert other.line() == "ready"
        table.upsert({"k": 1, "v": 1})
        table.flush()
        other.go_on()
        assert other.line() == "1 1 1"
        for k in range(2, 5):
            table.upsert({"k": k, "v": 1})
            wait_until(lambda: sees(k))  # noqa: B023


def test_a_reader_never_sees_a_change_before_its_row(store: kvstore.Store, table: kvstore.Table) -> None:
    """Whatever end the changelog has in another process, the rows are at least that far."""
    program = """
    table = kvstore.open(path, read_only=True).table("t")
    print("ready")
    last = 0
    while last < 300:
        changes = [change for batch in table.changelog() for change in batch.to_pylist()]
        rows = {row["k"]: row["v"] for row in table.scan().read_all().to_pylist()}
        for change in changes[last:]:
            assert rows[change["k"]] >= change["v"], (change, rows)
        last = len(changes)
    print("done")
    """
    with Program(store.path, program) as other:
        assert other.line() == "ready"
        table.upsert({"k": 0, "v": 0})
        for version in range(1, 170):
            table.upsert({"k": 0, "v": version})
        table.flush()
        assert other.line() == "done"


def test_catalog_edits_of_two_processes_are_in_one_order(store: kvstore.Store) -> None:
    program = """
    store = kvstore.open(path)
    schema = pa.schema([pa.field("k", pa.int64(), False)])
    for number in range(10):
        store.create_table(f"theirs{number}", schema, primary_key="k")
    print(store.new_writer_id())
    """
    with Program(store.path, program) as other:
        for number in range(10):
            store.create_table(f"ours{number}", SCHEMA, primary_key="k")
        theirs = int(other.line())
    assert len(store.list_tables()) == 20
    assert store.new_writer_id() != theirs


def test_an_edit_is_seen_by_a_process_that_asked_while_it_was_being_synced(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LMDB publishes the number of a transaction shortly before its contents can be read."""
    last_committed = Environment.last_committed
    with monkeypatch.context() as early:
        early.setattr(Environment, "last_committed", lambda self: last_committed(self) + 1)
        assert store.list_tables() == []
    run(store.path, "kvstore.open(path).create_table('t', pa.schema([('k', pa.int64())]), 'k')")
    assert store.list_tables() == ["t"]


def test_a_table_dropped_by_another_process_is_gone(store: kvstore.Store, table: kvstore.Table) -> None:
    assert table.count() == 0
    run(store.path, "kvstore.open(path).drop_table('t')")
    with pytest.raises(kvstore.errors.NoSuchTable):
        table.upsert({"k": 1, "v": 1})


def test_a_table_that_another_process_writes_is_handed_over_and_dropped(
    store: kvstore.Store, table: kvstore.Table
) -> None:
    table.upsert({"k": 1, "v": 1})
    run(store.path, "kvstore.open(path).drop_table('t')")
    assert store.list_tables() == []
    for call in (table.count, lambda: table.upsert({"k": 1, "v": 1})):
        with pytest.raises(kvstore.errors.NoSuchTable):
            call()


def test_a_table_that_is_not_handed_over_is_not_dropped(
    store: kvstore.Store, table: kvstore.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "COMMIT_WAIT_SECONDS", 0)
    other = ProcessLock(table.bucket(0).handle.paths.directory / paths.LOCK_FILE)
    other.acquire()
    with pytest.raises(StoreLocked, match="holder_pid"):
        store.drop_table("t")
    other.release()
    table.upsert({"k": 1, "v": 1})
    assert table.count() == 1


ROWS = [{"k": k, "v": 0} for k in range(20)]

ONE_BUCKET = """
from kvstore.disk.lock import ProcessLock
lock = ProcessLock(kvstore.open(path).table("several").bucket(2).handle.paths.directory / "LOCK")
lock.acquire()
print("locked")
sys.stdin.readline()
"""
"""A process that owns a bucket and takes no requests, such as one of an older version."""


class TestOneBucketOfSeveralIsWrittenElsewhere:
    def test_a_write_that_touches_it_is_refused_whole(self, store: kvstore.Store) -> None:
        table = store.create_table("several", SCHEMA, "k", buckets=3)
        with Program(store.path, ONE_BUCKET) as other:
            assert other.line() == "locked"
            for _ in range(2):
                with pytest.raises(StoreLocked, match="tables/1/2"):
                    table.upsert(ROWS)
            table.flush()
            assert [end for _, end in table.offsets().values()][:2] == [0, 0]
            elsewhere = [row for row in ROWS if table.buckets_of([row["k"]]) != [2]]
            assert set(table.upsert(elsewhere).by_bucket) == {0, 1}
        table.upsert(ROWS)
        assert table.count() == len({row["k"] for row in rows_of(table)} | {row["k"] for row in ROWS})

    def test_the_table_is_not_dropped_and_stays_usable(
        self, store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runtime, "COMMIT_WAIT_SECONDS", 0)
        table = store.create_table("several", SCHEMA, "k", buckets=3)
        with Program(store.path, ONE_BUCKET) as other:
            assert other.line() == "locked"
            writes = [row for row in ROWS if table.buckets_of([row["k"]]) == [0]]
            table.upsert(writes)
            with pytest.raises(StoreLocked):
                store.drop_table("several")
            table.upsert(writes)
            assert table.get(writes[0]["k"]) == writes[0]
            assert store.check()
            # A bucket that was only claimed for the drop is free again.
            run(
                store.path,
                """
                table = kvstore.open(path).table("several")
                k = next(k for k in range(100) if table.buckets_of([k]) == [1])
                table.upsert({"k": k, "v": 1})
            """,
            )
        store.drop_table("several")
        assert store.list_tables() == []


def in_child(check: Callable[[], None]) -> None:
    """Run a check in a forked child; what fails there fails here."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            check()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


class TestFork:
    def test_every_use_in_the_child_is_refused(self, store: kvstore.Store, table: kvstore.Table) -> None:
        table.upsert({"k": 1, "v": 1})
        following = table.changelog(follow=True)
        next(following)

        def check() -> None:
            for call in (
                lambda: table.upsert({"k": 2, "v": 1}),
                lambda: table.get(1),
                lambda: table.scan(),
                lambda: table.changelog(),
                lambda: table.changelog(follow=True),
                lambda: next(following),
                table.count,
                store.check,
                lambda: store.table("t"),
            ):
                with pytest.raises(ForkedStore, match="open it again"):
                    call()
            store.close()

        in_child(check)
        table.upsert({"k": 2, "v": 1})
        assert table.count() == 2

    def test_the_child_can_open_the_store_itself(self, store: kvstore.Store, table: kvstore.Table) -> None:
        table.upsert({"k": 1, "v": 1})
        table.flush()

        def check() -> None:
            with kvstore.open(store.path) as own:
                assert own.table("t").get(1) == {"k": 1, "v": 1}
                own.table("t").upsert({"k": 2, "v": 1})

        in_child(check)
        table.upsert({"k": 3, "v": 1})
        assert table.count() == 3


def test_threads_write_together(table: kvstore.Table) -> None:
    threads = 8
    each = 25

    def work(number: int) -> None:
        for step in range(each):
            key = number * each + step
            table.upsert({"k": key, "v": number})
            assert table.get(key) == {"k": key, "v": number}

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert table.count() == threads * each
    assert [offset for offset, *_ in changes_of(table)] == list(range(threads * each))


def test_threads_of_one_writer_id_apply_each_batch_once(table: kvstore.Table) -> None:
    """The same numbered batch from many threads at once: one applies it, the others get its offsets."""
    for sequence in range(5):
        changes = kvstore.Changes.of([("upsert", {"k": sequence, "v": 0})], SCHEMA)
        results: list[kvstore.AppendResult] = []
        workers = [
            threading.Thread(target=lambda: results.append(table.bucket(0).apply(changes, 1, sequence)))  # noqa: B023
            for _ in range(6)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(result.duplicated for result in results) == [False] + [True] * 5
        assert {result.first_offset for result in results} == {sequence}


def test_a_snapshot_does_not_move(table: kvstore.Table) -> None:
    table.upsert([{"k": key, "v": 0} for key in range(100)])
    reader = table.scan()
    table.upsert([{"k": key, "v": 1} for key in range(200)])
    assert reader.read_all().column("v").to_pylist() == [0] * 100
    assert table.count() == 200


def test_two_processes_that_create_a_store_at_the_same_time_have_the_same_one(store_path: Path) -> None:
    class SlowFiles(Files):
        """Another process creates the store after this one has looked."""

        def make_directory(self, path: Path) -> None:
            super().make_directory(path)
            if path == store_path and not (path / "STORE").exists():
                run(path, "kvstore.open(path).create_table('t', pa.schema([('k', pa.int64())]))")

    with Store(store_path, StoreOptions(), files=SlowFiles()) as store:
        assert store.list_tables() == ["t"]
