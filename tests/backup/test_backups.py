"""Backups: a store as of one moment, while it is written; whole, continued, or refused by name."""

from __future__ import annotations

import datetime as dt
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.backup import cut
from kvstore.backup.backup import back_up
from kvstore.errors import CorruptData, NotAStore, StoreLocked
from tests.conftest import OpenStore
from tests.support.processes import Child, Pipe
from tests.support.repairs import Dying, Killed
from tests.support.tables import rows_of

SCHEMA = {"k": "int64", "v": "int64", "text": "string"}
OPTIONS = {"segment_bytes_max": 1 << 20}


def row(k: int, v: int) -> dict[str, Any]:
    return {"k": k, "v": v, "text": "x" * 200}


def changes_of(table: kvstore.Table) -> list[dict[str, Any]]:
    return [each for batch in table.changelog() for each in batch.to_pylist()]


def seen(store: kvstore.Store) -> dict[str, Any]:
    """What a user sees of a store, but for its replicas."""
    tables = {name: store[name] for name in store.list_tables()}
    return {
        "rows": {name: None if each.primary_key is None else rows_of(each) for name, each in tables.items()},
        "changes": {name: changes_of(each) for name, each in tables.items()},
        "schemas": {name: each.schema for name, each in tables.items()},
        "offsets": {name: each.offsets() for name, each in tables.items()},
        "consumers": store.consumers,
    }


def fill(store: kvstore.Store) -> None:
    """Tables of all kinds, several segments and a snapshot."""
    parts = store.create_table("parts", SCHEMA, "k", buckets=3)
    random = Random(7)
    for epoch in range(12):
        rows = [("upsert", row(random.randrange(100), epoch)) for _ in range(30)]
        parts.apply_epoch(kvstore.Changes.of(rows, parts.schema), "w", epoch)
    log = store.create_table("log", SCHEMA, None, compression=None, retention=dt.timedelta(days=1))
    for step in range(60):
        log.upsert([row(k, step) for k in range(100)])
    log.snapshot()
    store.add_columns("log", [pa.field("more", pa.int8())])
    log.upsert({**row(1, 1), "more": 3})
    store.create_table("empty", SCHEMA, "k")
    store.consumer("reader").commit("parts", {0: 1, 1: 2, 2: 3})


@pytest.mark.parametrize("reads", [True, False])
def test_a_backup_is_the_store_as_it_was(tmp_path: Path, reads: bool) -> None:
    reported: list[tuple[int, int]] = []
    with kvstore.open(tmp_path / "s", **OPTIONS) as store:
        fill(store)
        store.add_replica(str(tmp_path / "r"), "r").ship()
        truth = seen(store)
        done = store.backup(tmp_path / "b", lambda *each: reported.append(each))
        assert done.ends == {name: {b: end for b, (_, end) in each.items()} for name, each in truth["offsets"].items()}
        assert reported[0][0] == 0
        assert reported[-1] == (done.bytes, done.bytes)
        assert [each for each, _ in reported] == sorted(each for each, _ in reported)
        store["parts"].upsert(row(1, -1))
        store.drop_table("log")
        with kvstore.open(tmp_path / "b", read_only=reads) as backup:
            assert seen(backup) == truth
            assert backup.check()
            assert backup.replicas == {}
    with kvstore.open(tmp_path / "b") as backup:
        parts = backup["parts"]
        again = kvstore.Changes.of([("upsert", row(1, 1))], parts.schema)
        assert parts.apply_epoch(again, "w", 11).duplicated
        assert not parts.apply_epoch(again, "w", 12).duplicated
        backup.create_table("new", SCHEMA, "k").upsert(row(1, 1))
        assert backup.check()
    shutil.rmtree(tmp_path / "b/tables/2/0/index")  # what is derived can be made again
    with kvstore.open(tmp_path / "b") as backup:
        backup["log"].upsert(row(1, 1))
        assert backup.check()


def test_a_log_that_has_expired_comes_with_its_snapshot(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", **OPTIONS, log_bytes_max=1 << 20) as store:
        table = store.create_table("t", SCHEMA, "k", compression=None)
        for step in range(100):
            table.upsert([row(k, step) for k in range(100)])
        for handle in store.runtime.open_table(store.runtime.definition("t")).handles:
            handle.retain()
        assert table.offsets()[0][0] > 0
        truth = seen(store)
        store.backup(tmp_path / "b")
    shutil.rmtree(tmp_path / "b/tables/1/0/index")
    with kvstore.open(tmp_path / "b") as backup:
        for handle in backup.runtime.open_table(backup.runtime.definition("t")).handles:
            handle.write()  # makes the index again
        assert seen(backup) == truth


@contextmanager
def writing(store: kvstore.Store) -> Iterator[None]:
    """Writes in the background: epochs over all buckets, whose rows all have their number, and single rows."""
    ends, parts, single = threading.Event(), store["parts"], store["single"]

    def write() -> None:
        epoch = 0
        while not ends.is_set():
            rows = [("upsert", row(k, epoch)) for k in range(12)]
            parts.apply_epoch(kvstore.Changes.of(rows, parts.schema), "w", epoch)
            single.upsert(row(epoch, epoch))
            epoch += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def check_whole(path: Path) -> int:
    """Check a backup that was made beside :func:`writing`; returns its number of epochs."""
    with kvstore.open(path) as backup:
        (epoch,) = {each["v"] for each in rows_of(backup["parts"])} or {-1}
        assert [each["k"] for each in rows_of(backup["single"])] == list(range(len(backup["single"])))
        assert abs(len(backup["single"]) - epoch) <= 1
        assert backup.check()
    return epoch


def test_a_backup_has_no_commit_in_part(open_store: OpenStore, tmp_path: Path) -> None:
    store = open_store()
    store.create_table("parts", SCHEMA, "k", buckets=4)
    store.create_table("single", SCHEMA, "k")
    with writing(store):
        for number in range(5):
            store.backup(tmp_path / f"b{number}")
    epochs = [check_whole(tmp_path / f"b{number}") for number in range(5)]
    assert epochs == sorted(epochs)


def write_until_killed(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path) as store, writing(store):
        pipe.send("began")
        pipe.recv()


def test_a_backup_beside_a_process_that_writes(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("parts", SCHEMA, "k", buckets=2)
        store.create_table("single", SCHEMA, "k")
    with Child(write_until_killed, tmp_path / "s") as child:
        child.hear()
        with kvstore.open(tmp_path / "s") as store:
            for number in range(3):
                store.backup(tmp_path / f"b{number}")
    for number in range(3):
        check_whole(tmp_path / f"b{number}")


def write_at_messages(pipe: Pipe, path: Path) -> None:
    """Writes more rows at each message, and does not commit its index meanwhile."""
    with kvstore.open(path, **OPTIONS, commit_wait_ms=3_600_000, commit_idle_ms=3_600_000) as store:
        while (step := pipe.recv()) is not None:
            store["one"].upsert([row(k, step) for k in range(10)])
            store["several"].upsert([row(k, step) for k in range(1000)])  # segments end, too
            pipe.send(step)


def test_a_backup_has_all_that_another_process_has_acknowledged(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("one", SCHEMA, "k")
        store.create_table("several", SCHEMA, "k", buckets=2, compression=None)
    with Child(write_at_messages, tmp_path / "s") as child, kvstore.open(tmp_path / "s") as store:
        for step in range(12):
            child.say(step)
            assert child.hear() == step
            if step % 4 != 3:
                continue
            store.backup(tmp_path / "b")
            truth = seen(store)
            assert {each["v"] for name in ("one", "several") for each in truth["rows"][name]} == {step}
            with kvstore.open(tmp_path / "b") as backup:
                assert seen(backup) == truth
                assert backup.check()
            shutil.rmtree(tmp_path / "b")


def test_a_log_that_expires_meanwhile(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", **OPTIONS, log_bytes_max=1 << 20) as store:
        table = store.create_table("t", SCHEMA, "k", compression=None)
        table.upsert(row(1, -1))

        def expires(done: int, _total: int) -> None:
            if done and not table.offsets()[0][0]:  # the only segment was copied
                for step in range(100):
                    table.upsert([row(k, step) for k in range(100)])
                table.snapshot()  # what is before it may expire
                for handle in store.runtime.open_table(store.runtime.definition("t")).handles:
                    handle.retain()
                assert table.offsets()[0][0]

        before = seen(store)
        store.backup(tmp_path / "b", expires)
        after = seen(store)
    with kvstore.open(tmp_path / "b") as backup:
        assert seen(backup) in (before, after)
        report = backup.check()
        assert report.ok, report.findings


def test_a_snapshot_that_is_replaced_meanwhile(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", **OPTIONS, log_bytes_max=1 << 20) as store:
        table = store.create_table("t", SCHEMA, "k", compression=None)
        for step in range(100):
            table.upsert([row(k, step) for k in range(100)])
        table.snapshot()
        for handle in store.runtime.open_table(store.runtime.definition("t")).handles:
            handle.retain()
        assert table.offsets()[0][0]
        left = [1, 2, 3]  # more than are kept

        def replaces(done: int, _total: int) -> None:
            while done and left:
                table.upsert(row(1, left.pop()))
                table.snapshot()

        before = seen(store)
        store.backup(tmp_path / "b", replaces)
        after = seen(store)
    with kvstore.open(tmp_path / "b") as backup:
        assert seen(backup) in (before, after)
        report = backup.check()
        assert report.ok, report.findings


def write_and_expire(pipe: Pipe, path: Path) -> None:
    """Writes segments that its index lacks; at a message, commits its index and drops all but the last of them."""
    options: dict[str, Any] = {**OPTIONS, "log_bytes_max": 1 << 20}
    with kvstore.open(path, **options, commit_wait_ms=3_600_000, commit_idle_ms=3_600_000) as store:
        for step in range(100):
            store["t"].upsert([row(k, step) for k in range(100)])
        pipe.send("wrote")
        pipe.recv()
        store["t"].snapshot()  # what is before it may expire
        for handle in store.runtime.open_table(store.runtime.definition("t")).handles:
            handle.retain()
        pipe.send("expired")
        pipe.recv()


def test_what_the_copied_index_lacks_expires_meanwhile(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k", compression=None).upsert(row(1, -1))
    with Child(write_and_expire, tmp_path / "s") as child, kvstore.open(tmp_path / "s") as store:
        table = store["t"]
        assert child.hear() == "wrote"
        before = table.offsets()[0][0]

        def expires(_done: int, _total: int) -> None:
            if table.offsets()[0][0] == before:
                child.say("expire")
                assert child.hear() == "expired"
                assert table.offsets()[0][0] > before

        store.backup(tmp_path / "b", expires)
        truth = seen(store)
    with kvstore.open(tmp_path / "b") as backup:
        assert seen(backup) == truth
        assert backup.check()


def once(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen once a backup has the moment of its first bucket."""
    begin, acts = cut.bucket_cut, [act]

    def began(*of: Any) -> Any:
        done = begin(*of)
        while acts:
            acts.pop()()
        return done

    monkeypatch.setattr(cut, "bucket_cut", began)


@pytest.mark.parametrize("name", ["a", "b", "c"])
@pytest.mark.parametrize("is_copying", [False, True])
def test_a_table_that_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_copying: bool
) -> None:
    with kvstore.open(tmp_path / "s") as store:
        for each in ("a", "b", "c"):
            store.create_table(each, SCHEMA, "k").upsert(row(1, 1))

        def replaces(done: int = 1, _total: int = 1) -> None:
            if done and rows_of(store[name]) == [row(1, 1)]:
                store.drop_table(name)
                store.create_table(name, SCHEMA, "k").upsert(row(2, 2))

        if not is_copying:
            once(monkeypatch, replaces)
        store.backup(tmp_path / "b", replaces if is_copying else lambda *_: None)
        truth = seen(store)
    with kvstore.open(tmp_path / "b") as backup:
        assert {each: rows_of(backup[each]) for each in backup.list_tables()} == truth["rows"]
        assert backup.check()


def test_a_job_in_a_backup_goes_on_where_its_rows_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()

    def load(number: int) -> None:
        (tmp_path / f"in/{number}.csv").write_text(f"k,v,text\n{number},1,t\n")
        store.job("j").run()

    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k")
        store.create_job("j", source=tmp_path / "in", format="csv", table="t")
        load(1)
        loader = threading.Thread(target=load, args=[2])
        once(monkeypatch, lambda: (loader.start(), loader.join(0.3)))  # it waits for the backup's moment
        store.backup(tmp_path / "b")
        loader.join()
    with kvstore.open(tmp_path / "b") as backup:
        backup.job("j").run()
        assert [each["k"] for each in rows_of(backup["t"])] == [1, 2]


def _without_store(path: Path) -> None:
    """Opening the directory says what it is, and writes nothing."""
    before = sorted(path.rglob("*"))
    for reads in (True, False):
        with pytest.raises(NotAStore, match="unfinished backup"):
            kvstore.open(path, read_only=reads)
    assert sorted(path.rglob("*")) == before


@pytest.mark.parametrize("every", [31, pytest.param(1, marks=pytest.mark.long)])
def test_a_backup_that_is_killed_anywhere_is_refused_and_continued(tmp_path: Path, every: int) -> None:
    with kvstore.open(tmp_path / "s", **OPTIONS) as store:
        fill(store)
        calls, ends = 1, False
        while not ends:
            path = tmp_path / f"b{calls}"
            try:
                back_up(store.runtime, path, lambda *_: None, Dying(calls))
                ends = True
            except Killed:
                store["parts"].upsert(row(calls % 5, calls))  # it is continued as of later
            if not (path / "STORE").exists() and (path / "STORE.backup").exists():
                _without_store(path)
            truth = seen(store)
            if not (path / "STORE").exists():
                store.backup(path)
                with kvstore.open(path, read_only=True) as backup:
                    assert seen(backup) == truth, calls
            with kvstore.open(path) as backup:
                assert backup.check(), calls
            shutil.rmtree(path)
            calls += every


def dies_when_copied(done: int, total: int) -> None:
    """The progress of a backup that is killed after the last file of a table."""
    if done == total > 0:
        raise Killed


def test_a_backup_that_is_a_store_has_an_index_that_lacks_nothing(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(row(1, 1))
        with pytest.raises(Killed):
            back_up(store.runtime, tmp_path / "copied", dies_when_copied)
        table.upsert(row(2, 2))
        table.snapshot()
        truth = seen(store)
        for calls in count(1):
            shutil.copytree(tmp_path / "copied", path := tmp_path / f"b{calls}")
            try:
                back_up(store.runtime, path, lambda *_: None, Dying(calls))
                break
            except Killed:
                if not (path / "STORE").exists():
                    continue
            with kvstore.open(path, read_only=True) as backup:
                assert seen(backup) == truth
                report = backup.check()
                assert report.ok, report.findings


def test_what_was_copied_stays(tmp_path: Path) -> None:
    calls = count()

    def dies(_done: int, _total: int) -> None:
        if next(calls) == 3:  # after the beginning and two segments
            raise Killed

    def copied() -> dict[str, int]:
        return {each.name: each.stat().st_ino for each in (tmp_path / "b/tables/1/0/log").glob("*.log")}

    with kvstore.open(tmp_path / "s", **OPTIONS) as store:
        table = store.create_table("t", SCHEMA, "k", compression=None)
        for step in range(200):
            table.upsert([row(k, step) for k in range(100)])
        with pytest.raises(Killed):
            back_up(store.runtime, tmp_path / "b", dies)
        before = copied()
        assert len(before) == 3
        table.upsert(row(1, -1))
        store.backup(tmp_path / "b")
        assert len(copied()) > 3
        assert copied() == copied() | before
        truth = seen(store)
    with kvstore.open(tmp_path / "b") as backup:
        assert seen(backup) == truth
        assert backup.check()


def test_tables_that_were_dropped_since_an_interrupted_backup_are_not_in_it(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        fill(store)
        with pytest.raises(Killed):
            back_up(store.runtime, tmp_path / "b", lambda *_: None, Dying(120))
        store.drop_table("parts")
        store.create_table("new", SCHEMA, "k").upsert(row(1, 1))
        store.backup(tmp_path / "b")
        truth = seen(store)
    with kvstore.open(tmp_path / "b") as backup:
        assert seen(backup) == truth
        assert backup.check()
    assert not (tmp_path / "b/tables/1").exists()


def test_nothing_that_was_copied_of_another_history_stays(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(row(1, 1))
        store.backup(tmp_path / "other")
        table.upsert(row(2, 2))
        with pytest.raises(Killed):
            back_up(store.runtime, tmp_path / "b", dies_when_copied)
    with kvstore.open(tmp_path / "other") as store:
        store["t"].upsert(row(2, 3))
        store.backup(tmp_path / "b")
        truth = seen(store)
    with kvstore.open(tmp_path / "b") as backup:
        assert seen(backup) == truth
        assert backup.check()
    assert sorted(each.name for each in (tmp_path / "b").glob("STORE*")) == ["STORE"]


def test_a_wrong_place_is_refused_and_stays(store: kvstore.Store, tmp_path: Path) -> None:
    store.create_table("t", SCHEMA, "k").upsert(row(1, 1))
    store.flush()
    other = tmp_path / "other"
    kvstore.open(other).close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    with kvstore.open(other) as source, pytest.raises(Killed):
        back_up(source.runtime, tmp_path / "unfinished", lambda *_: None, Dying(9))
    before = {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")}
    for path, message in (
        (other, "new or empty"),
        (tmp_path / "full", "new or empty"),
        (tmp_path / "file", "this is a file"),
        (tmp_path / "no/where", "parent directory"),
        (store.path, "outside of the store"),
        (store.path / "b", "outside of the store"),
        (tmp_path / "unfinished", "backup of another store"),
    ):
        with pytest.raises(NotAStore, match=message):
            store.backup(path)
    with pytest.raises(kvstore.errors.InvalidRequest, match="object store"):
        store.backup("s3://bucket/backup")
    assert {each: each.stat().st_mtime_ns for each in tmp_path.rglob("*")} == before


def test_two_backups_at_one_place_at_once(store: kvstore.Store, tmp_path: Path) -> None:
    store.create_table("t", SCHEMA, "k").upsert(row(1, 1))

    def progress(done: int, _: int) -> None:
        if not done:
            with pytest.raises(StoreLocked, match="Another backup"):
                store.backup(tmp_path / "b")

    store.backup(tmp_path / "b", progress)
    with kvstore.open(tmp_path / "b") as backup:
        assert backup.check()


def test_damage_is_not_copied(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k").upsert([row(k, 1) for k in range(100)])
        (log,) = (tmp_path / "s/tables/1/0/log").glob("*.log")
        with log.open("r+b") as file:
            file.seek(200)
            file.write(b"\xff\xff\xff")
        with pytest.raises(CorruptData):
            store.backup(tmp_path / "b")
    with pytest.raises(NotAStore, match="unfinished backup"):
        kvstore.open(tmp_path / "b")
