"""An index that has grown is reported, and compacted while its table is in use."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket.committer import Committer
from kvstore.bucket.engine import BucketEngine
from kvstore.bucket.handle import BucketHandle
from kvstore.bucket.maintenance import Maintenance
from kvstore.clock import SystemClock
from kvstore.disk.environment import Environment
from kvstore.disk.files import Files
from kvstore.disk.lock import ProcessLock
from kvstore.errors import StoreError, StoreFull, StoreLocked
from kvstore.options import StoreOptions
from kvstore.request.prepared import Prepared
from kvstore.store import held_indexes
from kvstore.store.store import Store
from logformat import paths
from tests.cli.commands import fine, run
from tests.conftest import OpenStore
from tests.support.processes import Forked, ran
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])
COUNT = 3_000


class Killed(BaseException):
    """The process ends here."""


def handle_of(table: kvstore.Table) -> BucketHandle:
    return table.bucket(0).handle


def write(table: kvstore.Table, value: str, *, each: int = 1) -> None:
    table.upsert([{"k": k, "v": value * 500} for k in range(0, COUNT, each)])


def grow(store: Store, table: kvstore.Table) -> None:
    """Commit many changes, each to pages of its own."""
    for number in range(6):
        write(table, str(number), each=2)
        store.flush()


def size_of(table: kvstore.Table) -> int:
    return (handle_of(table).paths.index / "data.mdb").stat().st_size


def test_what_holds_a_grown_index_is_reported(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_indexes, "LOOK_BYTES", 1 << 20)
    with open_store() as store:
        table = store.create_table("t", SCHEMA, "k")
        write(table, "a")
        store.flush()
        assert store.health()
        assert store.health().held == []
        before = size_of(table)
        scan = iter(table.scan())
        next(scan)
        grow(store, table)
        health = store.health()
        (held,) = health.held
        assert size_of(table) > 2 * before
        assert held.bytes == size_of(table)
        assert held.held_bytes > (held.bytes - before) // 2
        assert (held.table, held.bucket, held.pid) == ("t", 0, os.getpid())
        assert held.commits >= 6
        assert held.since_ms is not None
        assert held.process_since_ms is not None
        assert held.process_since_ms - 1_000 <= held.since_ms <= SystemClock().now_ms()
        (warning,) = health.warnings
        assert f"process {os.getpid()}, since 20" in warning
        assert "kvstore compact" in warning
        del scan
        assert store.health().held == []
        assert store.health()


READER = """
import sys
import kvstore
with kvstore.open(sys.argv[1], read_only=True) as store:
    scan = iter(store.table("t").scan())
    count = next(scan).num_rows
    print("ready", flush=True)
    sys.stdin.readline()
    value = store.table("t").get(0)["v"][:1]
    print(count + sum(batch.num_rows for batch in scan), value, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Callable[[Path], Forked]]:
    """Another process that begins a scan, and ends it at the next line."""
    begun: list[Forked] = []

    def begin(path: Path) -> Forked:
        process = Forked(READER, path, stdin=subprocess.PIPE)
        begun.append(process)
        assert process.stdout.readline() == "ready\n"
        return process

    yield begin
    for process in begun:
        process.communicate("\n\n")
        assert process.returncode == 0


def test_the_scan_of_another_process_is_reported_and_goes_on_while_the_index_is_compacted(
    tmp_path: Path, reader: Callable[[Path], Forked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_indexes, "LOOK_BYTES", 1 << 20)
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k")
        write(table, "a")
        store.flush()
        before = size_of(table)
        other = reader(path)
        assert other.stdin is not None
        assert other.stdout is not None
        grow(store, table)
        (held,) = store.health().held
        assert (held.pid, held.since_ms) == (other.pid, None)
        status = run("meta", "status", path, "--json")
        assert status.code == 1
        (shown,) = status.lines[0]["held"]
        assert shown["pid"] == other.pid
        assert str(other.pid) in run("meta", "status", path).out
        done = table.compact()[0]
        assert done.bytes_after < 1.5 * before < done.bytes_before
        write(table, "z")
        store.flush()
        other.stdin.write("\n")
        other.stdin.flush()
        assert other.stdout.readline() == f"{COUNT} z\n"
        assert store.health().held == []
        assert store.check()


def test_writes_scans_and_lookups_go_on_while_an_index_is_compacted(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path, segment_bytes_max=1 << 20) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        write(table, "a")
        stop = threading.Event()
        failures: list[BaseException] = []
        models: list[dict[int, str]] = [{} for _ in range(3)]

        def forever(work: Callable[[random.Random], None], seed: int) -> threading.Thread:
            chance = random.Random(seed)

            def loop() -> None:
                try:
                    while not stop.is_set():
                        work(chance)
                except BaseException as error:  # the test reports it
                    failures.append(error)
                    raise

            thread = threading.Thread(target=loop)
            thread.start()
            return thread

        def writes(number: int) -> Callable[[random.Random], None]:
            def work(chance: random.Random) -> None:
                keys = [COUNT + 3 * chance.randrange(500) + number for _ in range(20)]
                value = str(chance.random())
                table.upsert([{"k": k, "v": value} for k in keys])
                models[number].update(dict.fromkeys(keys, value))
                key = keys[0]
                found = table.get(key)
                assert found is not None
                assert found["v"] == value

            return work

        def epochs(chance: random.Random) -> None:
            number = len(models[2])
            row = {"k": -1 - number, "v": str(chance.random())}
            table.apply_epoch(kvstore.Changes.of([("upsert", row)], SCHEMA), "w", number, "r")
            models[2][row["k"]] = row["v"]

        def reads(chance: random.Random) -> None:
            found = {row["k"] for batch in table.scan() for row in batch.to_pylist()}
            assert set(range(COUNT)) <= found
            assert table.get(chance.randrange(COUNT)) is not None
            assert table.count() >= COUNT

        threads = [forever(work, seed) for seed, work in enumerate([writes(0), writes(1), epochs, reads, reads])]
        try:
            before = 0
            for _ in range(6):
                before = max(before, *(done.bytes_before for done in table.compact().values()))
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert failures == []
        model = {k: v for each in models for k, v in each.items()} | dict.fromkeys(range(COUNT), "a" * 500)
        assert {row["k"]: row["v"] for row in rows_of(table)} == model
        assert store.check()
    with kvstore.open(path) as store:
        assert {row["k"]: row["v"] for row in rows_of(store.table("t"))} == model
        assert store.check()


def test_an_open_scan_goes_on_and_the_file_becomes_small(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k")
        write(table, "a")
        store.flush()
        small = size_of(table)
        scan = iter(table.scan())
        found = next(scan).to_pylist()
        grow(store, table)
        large = size_of(table)
        done = table.compact()[0]
        assert (done.bytes_before, done.bytes_after) == (large, size_of(table))
        assert size_of(table) < 1.5 * small < large
        table.compact()
        write(table, "z")
        found += [row for batch in scan for row in batch.to_pylist()]
        assert found == [{"k": k, "v": "a" * 500} for k in range(COUNT)]
        assert rows_of(table) == [{"k": k, "v": "z" * 500} for k in range(COUNT)]
        maps = Path("/proc/self/maps").read_text()
        assert f"{path}/tables/1/0/index" in maps
        assert "(deleted)" not in "".join(line for line in maps.splitlines() if str(path) in line)


STEPS = ("rename", "sync_directory", "make_directory", "remove_tree", "write", "sync", "open")


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store whose index has grown."""
    path = tmp_path_factory.mktemp("grown") / "s"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k")
        write(table, "a")
        grow(store, table)
    return path


@pytest.mark.parametrize("step", [pytest.param(step, marks=[pytest.mark.long] * (step % 2)) for step in range(14)])
def test_a_process_that_dies_in_a_compaction_loses_nothing(grown: Path, tmp_path: Path, step: int) -> None:
    path, copy = tmp_path / "s", tmp_path / "copy"

    class Dying(Files):
        left: int | None = None

        def __getattribute__(self, name: str) -> object:
            if name in STEPS and Dying.left is not None:
                if not Dying.left:
                    if not copy.exists():  # as a kill at this moment leaves it
                        shutil.copytree(path, copy)
                    raise OSError(5, "Input/output error")
                Dying.left -= 1
            return super().__getattribute__(name)

    shutil.copytree(grown, path)
    store = Store(path, StoreOptions(), files=Dying())
    table = store.table("t")
    table.upsert({"k": 0, "v": "begun"})
    before = rows_of(table)
    Dying.left = step
    with suppress(StoreError):
        table.compact()
    Dying.left = None
    with suppress(StoreError):  # a disk that failed may end the use of the bucket
        store.close()
    for left in (copy, path):
        if left.exists():
            with kvstore.open(left) as again:
                assert rows_of(again.table("t")) == before
                write(again.table("t"), "z")
                rows = rows_of(again.table("t"))
                assert not (left / "tables/1/0" / (paths.INDEX + paths.TEMPORARY)).exists()
                again.table("t").compact()
                assert rows_of(again.table("t")) == rows
                assert again.check()
            assert not (left / "tables/1/0" / paths.REBUILT_INDEX).exists()


def test_a_full_disk_leaves_the_index_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise StoreFull("No space.")

    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        write(table, "a")
        monkeypatch.setattr(Environment, "copy_to", full)
        with pytest.raises(StoreFull):
            table.compact()
        write(table, "b")
        assert rows_of(table) == [{"k": k, "v": "b" * 500} for k in range(COUNT)]
        monkeypatch.undo()
        table.compact()
        assert store.check()


def test_a_copy_whose_log_has_expired_meanwhile_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kvstore.open(tmp_path / "s", segment_bytes_max=10_000, log_bytes_max=20_000) as store:
        table = store.create_table("t", SCHEMA, "k")
        write(table, "a")
        real, copies = Environment.copy_to, []

        def counted(environment: Environment, descriptor: int) -> None:
            real(environment, descriptor)
            copies.append(descriptor)

        monkeypatch.setattr(Environment, "copy_to", counted)
        with_maintenance = BucketHandle.with_maintenance

        def then_expire(handle: BucketHandle, work: Callable[..., object]) -> object:
            done = with_maintenance(handle, work)
            if len(copies) == 1:
                for value in "bcd":
                    write(table, value)
                    with_maintenance(handle, Maintenance.snapshot)
                    with_maintenance(handle, Maintenance.retain)
            return done

        monkeypatch.setattr(BucketHandle, "with_maintenance", then_expire)
        table.compact()
        assert len(copies) == 2
        assert rows_of(table) == [{"k": k, "v": "d" * 500} for k in range(COUNT)]
        assert store.check()


def test_only_the_writer_of_a_bucket_compacts_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k")
        write(table, "a")
        code = "import kvstore, sys\nkvstore.open(sys.argv[1]).table('t').compact()"
        other = ran(code, path)
        assert StoreLocked.__name__ in other.stderr
    with kvstore.open(path, read_only=True) as store, pytest.raises(kvstore.errors.UnsupportedOperation):
        store.table("t").compact()


def test_the_command_compacts_all_tables(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        for name in ("t", "u"):
            write(store.create_table(name, SCHEMA, "k"), "a")
            grow(store, store.table(name))
    (done,) = fine("compact", path, "--json").lines
    assert [(each["table"], each["bucket"]) for each in done] == [("t", 0), ("u", 0)]
    assert all(each["bytes_after"] < each["bytes_before"] for each in done)
    assert "bytes_after" in fine("compact", path, "u").out
    assert run("compact", path, "none").code == 2
    fine("check", path)


@pytest.mark.parametrize("writes", [False, True])
def test_a_read_that_begins_when_its_index_is_replaced_reads_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    with kvstore.open(tmp_path / "s") as store:
        write(store.create_table("t", SCHEMA, "k"), "a")
    real = BucketHandle.reader
    with kvstore.open(tmp_path / "s") as store:
        table = store.table("t")
        if writes:
            write(table, "a")
        for read in (
            lambda: len(rows_of(table)),
            table.count,
            lambda: COUNT * (table.get(5) is not None),
            lambda: COUNT * (handle_of(table).space() is not None),
        ):
            pending = [handle_of(table)]

            def then_compact(handle: BucketHandle, pending: list[BucketHandle] = pending) -> object:
                found = real(handle)
                if pending:
                    pending.pop().compact()
                    if not writes:
                        handle.stop_writing()
                return found

            with monkeypatch.context() as patch:
                patch.setattr(BucketHandle, "reader", then_compact)
                assert read() == COUNT


def test_a_commit_over_several_buckets_is_whole_when_one_of_them_is_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        write(table, "a")
        real, real_swap, swapped = Committer.put, BucketHandle.swap_index, threading.Event()
        threads: list[threading.Thread] = []

        def swap(handle: BucketHandle, engine: BucketEngine) -> object:
            done = real_swap(handle, engine)
            swapped.set()
            return done

        def put(committer: Committer, item: Any) -> None:
            if isinstance(item, Prepared) and not threads:  # between the choice of the committer and its use
                threads.append(threading.Thread(target=table.compact))
                threads[0].start()
                swapped.wait(1)  # it waits for the commit to end
            real(committer, item)

        monkeypatch.setattr(BucketHandle, "swap_index", swap)
        monkeypatch.setattr(Committer, "put", put)
        rows = [("upsert", {"k": k, "v": "b"}) for k in range(COUNT)]
        table.apply_epoch(kvstore.Changes.of(rows, SCHEMA), "w", 0, "r")
        threads[0].join()
        assert swapped.is_set()
        assert {row["v"] for row in rows_of(table)} == {"b"}
        assert store.check()


def test_a_reader_waits_for_an_index_that_another_process_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kvstore.open(tmp_path / "s") as store:
        write(store.create_table("t", SCHEMA, "k"), "a")
    with kvstore.open(tmp_path / "s", read_only=True) as store:
        table = store.table("t")
        place = handle_of(table).paths
        lock = ProcessLock(place.directory / paths.LOCK_FILE)
        lock.acquire()
        moved = place.directory / (paths.INDEX + paths.TEMPORARY)
        place.index.rename(moved)
        looks = []

        def then_back() -> None:
            looks.append(moved.exists())
            if len(looks) == 3:
                moved.rename(place.index)

        monkeypatch.setattr("kvstore.bucket.reading.reader.pause", then_back)
        assert table.count() == COUNT
        assert looks == [True] * 3
        lock.release()


def test_a_thread_compacts_what_another_one_has_just_compacted(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    write(table, "a")
    copy_index = Maintenance.copy_index

    def overtaken(self: Maintenance) -> None:
        monkeypatch.setattr(Maintenance, "copy_index", copy_index)
        copy_index(self)
        table.compact()  # another thread's, which uses the copy, and closes what made it

    monkeypatch.setattr(Maintenance, "copy_index", overtaken)
    assert table.compact()[0].bytes_after == size_of(table)
    table.upsert([{"k": 1, "v": "b"}])
    assert table.count() == COUNT
    assert table.get(1) == {"k": 1, "v": "b"}


def test_a_check_waits_for_an_index_that_is_being_replaced(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", SCHEMA, primary_key="k")
    write(table, "a")
    began, moved, tried = threading.Event(), threading.Event(), threading.Event()
    rename, verify = Files.rename, Environment.verify

    def renamed(self: Files, old: Path, new: Path) -> None:
        rename(self, old, new)
        moved.set()
        tried.wait()

    def verified(self: Environment) -> None:
        began.set()
        moved.wait()
        try:
            verify(self)
        finally:
            tried.set()

    monkeypatch.setattr(Environment, "verify", verified)
    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(handle_of(table).verify_pages)
        began.wait()
        monkeypatch.setattr(Files, "rename", renamed)
        table.compact()
        assert checked.result() is None
