"""The first read after a writer was killed has all that it acknowledged, whichever process recovers it meanwhile.

A process that reads waits for no recovery, except where the index is missing. One that writes waits for another one
that recovers the bucket, but not for ever. Where there is nothing to recover nobody waits.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket import engine, handle
from kvstore.bucket.merge import tail
from kvstore.bucket.reading import overlay, reader
from kvstore.bucket.recovery import open_for_writing
from kvstore.bucket.write_path import WritePath
from kvstore.clock import SystemClock
from kvstore.disk import lock
from kvstore.disk.files import Files
from kvstore.disk.lock import RecoveryLock
from kvstore.errors import NoSuchTable, StoreLocked
from kvstore.memtable import memtable
from kvstore.meta.journal import Journal
from kvstore.repair.store import repair
from logformat import paths
from logformat.ids import BucketId, TableId
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
COUNT = 60
NEVER_COMMITTED: dict[str, Any] = {"commit_wait_ms": 60_000, "commit_idle_ms": 60_000}
"""All that a killed process acknowledged is in the log only."""
READ: dict[str, Callable[[kvstore.Table], int]] = {
    "scan": lambda table: sum(row["v"] == 1 for row in rows_of(table)),
    "get": lambda table: sum(table.get(k) == {"k": k, "v": 1} for k in range(COUNT)),
    "count": lambda table: table.count(),
    "offsets": lambda table: sum(end for _, end in table.offsets().values()),
    "changelog": lambda table: sum(batch.num_rows for batch in table.changelog()),
    "binlog": lambda table: sum(batch.num_rows for batch in table.binlog()),
    "follow": lambda table: followed(table),
}


def followed(table: kvstore.Table) -> int:
    """Changes that a follower gets, until it has all of them."""
    found = 0
    for batch in table.changelog(follow=True):
        found += batch.num_rows
        if found >= COUNT:
            break
    return found


def write(pipe: Pipe, path: Path, keys: range) -> None:
    with kvstore.open(path, **NEVER_COMMITTED) as store:
        for k in keys:
            store.table("t").upsert({"k": k, "v": 1})
        pipe.send("acknowledged")
        pipe.recv()


def killed(path: Path, keys: range = range(COUNT)) -> None:
    """Have a process write these keys, and kill it."""
    with Child(write, path, keys) as writer:
        assert writer.hear() == "acknowledged"


def killed_without_index(path: Path) -> None:
    """As :func:`killed`; and its index is lost."""
    killed(path)
    (paths.bucket_directory(path, TableId(1), BucketId(0)) / "index/data.mdb").unlink()


@pytest.fixture
def path(store_path: Path) -> Iterator[Path]:
    """A store with an empty table, which is right in the end."""
    create(store_path)
    yield store_path
    with kvstore.open(store_path) as store:
        assert store.check()


def create(path: Path, buckets: int = 1) -> None:
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, primary_key="k", buckets=buckets)


@pytest.mark.parametrize("limit", [None, 1_000], ids=["in its memtable", "in its index"])
def test_the_next_writer_has_all_rows(path: Path, limit: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its memtable; or in its index, if they take more memory than there is."""
    killed(path)
    monkeypatch.setattr(tail, "TOGETHER_BYTES", 500)
    monkeypatch.setattr(memtable, "SLICE_ROWS", COUNT // 4)  # a slice is stored when the bucket is opened
    merges: list[bool] = []

    def opened(*given: Any) -> WritePath:
        recovered = open_for_writing(*given)
        with recovered.memtable.index.view() as view:
            merges.append(view.state().applied_offset > 0)
        return recovered

    monkeypatch.setattr(engine, "open_for_writing", opened)
    with kvstore.open(path, memtable_bytes=limit) as store:
        store.table("t").upsert({"k": COUNT, "v": 1})
        assert merges == [limit is not None]
        assert [row["k"] for row in rows_of(store.table("t"))] == list(range(COUNT + 1))


# Processes that come at once


def scan_once(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path) as store:
        table = store.table("t")
        pipe.send("ready")
        pipe.recv()
        pipe.send({row["k"]: row["v"] for row in rows_of(table)})
        pipe.recv()


def add_once(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path) as store:
        table = store.table("t")
        pipe.send("ready")
        pipe.recv()
        row = table.get(7)
        pipe.send(row)
        table.upsert({"k": 7, "v": 0 if row is None else row["v"] + 1})
        pipe.send("added")
        pipe.recv()


def all_at_once(path: Path) -> None:
    """Three that scan and one that reads and writes come right after a kill, and each reads once."""
    create(path)
    with (
        Child(add_once, path) as adder,
        Child(scan_once, path) as first,
        Child(scan_once, path) as second,
        Child(scan_once, path) as third,
    ):
        scanners = [first, second, third]
        for child in (adder, *scanners):
            assert child.hear() == "ready"
        killed(path)
        for child in (adder, *scanners):
            child.say("go")
        for child in scanners:
            found = child.hear()
            assert found.pop(7) in (1, 2)
            assert found == dict.fromkeys({*range(COUNT)} - {7}, 1)
        assert adder.hear() == {"k": 7, "v": 1}
        assert adder.hear() == "added"
        for child in (adder, *scanners):
            child.say("end")
            assert child.join() == 0
    with kvstore.open(path) as store:
        assert store.table("t").get(7) == {"k": 7, "v": 2}
        assert store.table("t").count() == COUNT
        assert store.check()


def test_every_process_sees_all_in_its_first_read_and_no_write_is_refused(tmp_path: Path) -> None:
    for number in range(3):
        all_at_once(tmp_path / str(number))


@pytest.mark.long
def test_every_process_sees_all_in_200_trials(tmp_path: Path) -> None:
    for number in range(200):
        all_at_once(tmp_path / str(number))


# One that is held while it recovers


def recover(pipe: Pipe, path: Path, *, writes: bool) -> None:
    """Hold the recovery before its first step, and after its last one."""
    engine = handle.BucketEngine

    def held(*given: Any) -> Any:
        pipe.send("recovers")
        pipe.recv()
        try:
            return engine(*given)
        finally:
            pipe.send("has recovered")
            pipe.recv()

    handle.BucketEngine = reader.BucketEngine = held  # type: ignore[assignment,misc]
    with kvstore.open(path, **NEVER_COMMITTED) as store:
        table = store.table("t")
        if writes:
            table.upsert({"k": COUNT, "v": 2})
        else:
            with suppress(NoSuchTable):  # it was dropped as soon as it was recovered
                rows_of(table)
        pipe.send("done")
        pipe.recv()


@pytest.fixture
def recovering(path: Path) -> Iterator[Child]:
    """A process that has begun to recover what a killed one left, to write."""
    killed(path)
    with Child(_recover_and_write, path) as child:
        assert child.hear() == "recovers"
        yield child


@pytest.fixture(params=["a reader", "a writer"])
def building(request: pytest.FixtureRequest, path: Path) -> Iterator[Child]:
    """A process that has begun to build the index of a bucket whose writer was killed."""
    killed_without_index(path)
    with Child(_recover_and_write if request.param == "a writer" else _recover_and_read, path) as child:
        assert child.hear() == "recovers"
        yield child


def _recover_and_write(pipe: Pipe, path: Path) -> None:
    recover(pipe, path, writes=True)


def _recover_and_read(pipe: Pipe, path: Path) -> None:
    recover(pipe, path, writes=False)


class Waiting(threading.Thread):
    """A call that is made in a thread and waits for another process."""

    def __init__(self, call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.result: Any = None
        self._waits_or_ended = threading.Event()
        monkeypatch.setattr(lock, "check_caller", self._waits_or_ended.set)
        self.start()
        assert self._waits_or_ended.wait(600)
        assert self.is_alive(), self.result

    def run(self) -> None:
        try:
            self.result = self._call()
        except Exception as error:
            self.result = error
        finally:
            self._waits_or_ended.set()

    def ended(self) -> Any:
        self.join(600)
        return self.result


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_a_read_waits_for_no_recovery_and_sees_all(
    path: Path, recovering: Child, read: Callable[[kvstore.Table], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "check_caller", lambda: pytest.fail("it waits"))
    with kvstore.open(path) as store:
        table = store.table("t")
        assert read(table) == COUNT
        for said in ("has recovered", "done"):
            recovering.say("go on")
            assert recovering.hear() == said
        assert read(table) >= COUNT  # the recovering process has written a row


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_a_read_of_a_store_that_was_open_before_sees_all(
    path: Path, read: Callable[[kvstore.Table], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (overlay, reader):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(lock, "check_caller", lambda: pytest.fail("it waits"))
    with kvstore.open(path) as store:
        table = store.table("t")
        assert table.get(7) is None
        assert READ["scan"](table) == table.count() == 0
        killed(path)
        assert read(table) == COUNT


@pytest.mark.parametrize("read", READ.values(), ids=READ)
def test_a_read_waits_for_an_index_and_sees_all(
    path: Path, building: Child, read: Callable[[kvstore.Table], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvstore.open(path) as store:
        reading = Waiting(lambda: read(store.table("t")), monkeypatch)
        building.say("go on")
        assert building.hear() == "has recovered"
        assert reading.is_alive()
        building.say("go on")
        assert building.hear() == "done"
        assert reading.ended() >= COUNT  # one that builds it to write has written a row


def test_a_stopped_recovery_is_named_and_refuses_no_read(
    path: Path, recovering: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 1 < lock.RECOVERY_WAIT_SECONDS < 30
    monkeypatch.setattr(lock, "RECOVERY_WAIT_SECONDS", 0.1)
    recovering.stop()
    with kvstore.open(path) as store:
        table = store.table("t")
        for read in READ.values():
            assert read(table) == COUNT
        assert store.check()
        refuse(recovering, {name: call for name, call in calls_of(store).items() if name in WRITES})
        recovering.kill()
        table.upsert({"k": 7, "v": 2})
        assert READ["scan"](table) == COUNT - 1


def test_a_process_that_stopped_while_it_builds_an_index_is_named(
    path: Path, building: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "RECOVERY_WAIT_SECONDS", 0.1)
    building.stop()
    with kvstore.open(path) as store:
        table = store.table("t")
        refuse(building, calls_of(store))
        building.kill()
        assert table.get(7) == {"k": 7, "v": 1}
        assert READ["scan"](table) == COUNT
        table.upsert({"k": 7, "v": 2})


WRITES = ("upsert", "snapshot", "compact", "drop")


def calls_of(store: kvstore.Store) -> dict[str, Callable[[], object]]:
    table = store.table("t")
    reads: dict[str, Callable[[], object]] = {name: lambda read=read: read(table) for name, read in READ.items()}
    return reads | {
        "check": store.check,
        "upsert": lambda: table.upsert({"k": 7, "v": 2}),
        "snapshot": table.snapshot,
        "compact": table.compact,
        "drop": lambda: store.drop_table("t"),
    }


def refuse(recovering: Child, calls: dict[str, Callable[[], object]]) -> None:
    for name, call in calls.items():
        with pytest.raises(StoreLocked, match=f"holder_pid={recovering.pid}") as refused:
            call()
        assert "recovers or repairs this bucket" in str(refused.value), name
        assert "end that process" in str(refused.value), name


def test_a_repair_waits_for_a_recovery_by_a_reader(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_without_index(path)
    with Child(_recover_and_read, path) as child:
        assert child.hear() == "recovers"
        repairing = Waiting(lambda: repair(path), monkeypatch)
        for said in ("has recovered", "done"):
            child.say("go on")
            assert child.hear() == said
        assert repairing.ended().left == []


@pytest.mark.parametrize("change", ["upsert", "drop"])
def test_a_change_waits_for_a_recovery_by_a_reader(path: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_without_index(path)
    with Child(_recover_and_read, path) as child, kvstore.open(path) as store:
        assert child.hear() == "recovers"
        table = store.table("t")
        work = {"upsert": lambda: table.upsert({"k": 7, "v": 2}), "drop": lambda: store.drop_table("t")}[change]
        changing = Waiting(work, monkeypatch)
        for said in ("has recovered", "done"):
            child.say("go on")
            assert child.hear() == said
        assert not isinstance(changing.ended(), Exception)
        if change == "drop":
            assert store.list_tables() == []
        else:
            assert table.get(7) == {"k": 7, "v": 2}
            assert table.count() == COUNT


def test_a_write_beside_a_writer_waits_for_no_recovery(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "check_caller", lambda: pytest.fail("it waits"))
    with Child(write, path, range(COUNT)) as writer:
        assert writer.hear() == "acknowledged"
        with kvstore.open(path) as store:
            store.table("t").upsert({"k": 0, "v": 0})
            assert store.table("t").get(0) == {"k": 0, "v": 0}


def test_nobody_waits_where_nothing_is_to_be_recovered(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kvstore.open(path) as store:
        store.table("t").upsert([{"k": k, "v": 1} for k in range(COUNT)])
    recovery = RecoveryLock(paths.bucket_directory(path, TableId(1), BucketId(0)), Files(), SystemClock())
    recovery.acquire()
    for module in (overlay, reader):
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(lock, "check_caller", lambda: pytest.fail("it waits"))
    with kvstore.open(path) as store:
        for read in READ.values():
            assert read(store.table("t")) == COUNT
    recovery.release()


# Commits over several buckets


def die_in_a_commit(pipe: Pipe, path: Path) -> None:
    """End once a commit is decided, before any bucket has its batch."""
    append = Journal.append

    def then_die(self: Journal, *given: Any, **named: Any) -> Any:
        done = append(self, *given, **named)
        if self.state().writers_of(TableId(1)).commits:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    Journal.append = then_die  # type: ignore[method-assign]
    with kvstore.open(path, **NEVER_COMMITTED) as store:
        changes = kvstore.Changes.upserts(pa.RecordBatch.from_pylist([{"k": k, "v": 1} for k in range(COUNT)], SCHEMA))
        store.table("t").apply_epoch(changes, "w", 0)


def test_a_commit_that_its_process_only_decided_is_read_as_a_whole(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(store_path, buckets=3)
    with Child(die_in_a_commit, store_path) as child:
        assert child.join() == -signal.SIGKILL
    with Child(_recover_and_read, store_path) as child, kvstore.open(store_path) as store:
        assert child.hear() == "recovers"
        reading = Waiting(lambda: READ["scan"](store.table("t")), monkeypatch)
        child.say("go on")
        while child.hear() != "done":
            child.say("go on")
        assert reading.ended() == COUNT
        assert store.table("t").is_applied("w", 0)
        assert store.check()


# An index that is compacted by its writer


def compact(pipe: Pipe, path: Path) -> None:
    """Hold the compaction when its copy, which has less than the index had, is in the place of the index."""
    engine, copy = handle.BucketEngine, handle.Maintenance.copy_index
    with kvstore.open(path) as store:
        table = store.table("t")
        table.upsert([{"k": k, "v": 1} for k in range(COUNT // 2)])

        def copy_and_write(self: Any) -> None:
            copy(self)
            table.upsert([{"k": k, "v": 1} for k in range(COUNT // 2, COUNT)])
            table.flush()
            pipe.send("has copied")
            pipe.recv()

        def held(*given: Any) -> Any:
            pipe.send("has swapped")
            pipe.recv()
            return engine(*given)

        handle.Maintenance.copy_index = copy_and_write  # type: ignore[method-assign]
        handle.BucketEngine = held  # type: ignore[assignment,misc]
        table.compact()
        pipe.send("done")
        pipe.recv()


@pytest.mark.parametrize("was_open", [True, False])
def test_a_read_never_goes_back_while_an_index_is_compacted(path: Path, *, was_open: bool) -> None:
    with Child(compact, path) as child, kvstore.open(path) as store:
        assert child.hear() == "has copied"
        table = store.table("t")
        if was_open:
            assert READ["scan"](table) == COUNT
        child.say("go on")
        assert child.hear() == "has swapped"
        assert READ["scan"](table) == table.count() == COUNT
        child.say("go on")
        assert child.hear() == "done"
        assert READ["scan"](table) == table.count() == COUNT
