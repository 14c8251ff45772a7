"""The log of a table expires by age and by size; rows stay, and so does everything that a recovery needs."""

from __future__ import annotations

import datetime as dt
import errno
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import kvstore
from kvstore.bucket import maintenance as maintenance
from kvstore.bucket.maintenance import Maintenance
from kvstore.bucket.read_gate import ReadGate
from kvstore.errors import CorruptData, LogFailed, OffsetOutOfRange, StoreFull
from logformat.ids import Offset
from logformat.log.segment import HEAD_BYTES
from tests.support.disks import failing
from tests.support.examples import slow
from tests.support.indexes import BUCKET, contents, files_in, lose_index
from tests.support.retention import HOUR_MS, SCHEMA, Kept, RetentionMachine
from tests.support.tables import changes_of, rows_of
from tests.support.waiting import wait_until

LONG_MS = 10**14


@contextmanager
def long_pause() -> Iterator[None]:
    """After a snapshot that is taken here, the next automatic one waits for hours, and not longer than ``LONG_MS``."""
    with patch.object(maintenance, "REST_FACTOR", 10**8):
        yield


@pytest.fixture
def opened(store_path: Path) -> Iterator[Callable[..., Kept]]:
    every: list[Kept] = []

    def make(*arguments: Any, **options: Any) -> Kept:
        every.append(Kept(store_path, *arguments, **options))
        return every[-1]

    with patch.object(Maintenance, "begin"), patch.object(maintenance, "REST_FACTOR", 0):
        yield make
        for kept in every:
            report = kept.store.check()
            kept.store.close()
            assert report.findings == []


def test_data_older_than_the_retention_is_removed(opened: Callable[..., Kept]) -> None:
    kept = opened()
    kept.write()
    rows, middle = rows_of(kept.table), kept.last_base()
    kept.retain()
    assert kept.start == 0
    kept.clock.now += HOUR_MS + 1
    kept.write(1)
    expected = changes_of(kept.table, kept.end - 6)
    kept.retain()
    assert middle <= kept.start <= kept.last_base()
    assert changes_of(kept.table, kept.end - 6) == expected
    assert [row["k"] for row in rows_of(kept.table)] == [row["k"] for row in rows]
    for start in (0, kept.start - 1):
        with pytest.raises(OffsetOutOfRange, match="log_start"):
            list(kept.table.changelog(start))
    assert changes_of(kept.table, "earliest")[0][0] == kept.start
    assert {int(name.split(".")[0]) for name in files_in(kept.path, "log")} >= {kept.start}
    assert len(files_in(kept.path, "snapshots")) == 1


def test_earlier_states_are_readable_from_the_log_start_on(opened: Callable[..., Kept]) -> None:
    kept = opened()
    kept.write()
    kept.clock.now += HOUR_MS + 1
    kept.write()
    before = {offset: rows_of(kept.table, as_of=offset) for offset in range(kept.end + 1)}
    kept.retain()
    assert kept.start
    for offset, rows in before.items():
        if offset >= kept.start:
            assert rows_of(kept.table, as_of=offset) == rows
        else:
            with pytest.raises(OffsetOutOfRange):
                rows_of(kept.table, as_of=offset)


def test_without_a_retention_nothing_is_removed(opened: Callable[..., Kept]) -> None:
    kept = opened(None)
    kept.write()
    kept.clock.now += 1000 * HOUR_MS
    kept.write()
    kept.retain()
    assert kept.start == 0
    assert files_in(kept.path, "snapshots") == []


def test_a_log_has_a_size_limit(opened: Callable[..., Kept]) -> None:
    kept = opened(None, log_bytes_max=2500)
    for _ in range(4):
        kept.write()
        kept.table.flush()
        kept.retain()
        log = kept.table.bucket(0).handle.log
        sizes = dict.fromkeys(log.bases(), HEAD_BYTES)
        for found in log.batches(log.start(), Offset(kept.end)):
            sizes[Offset(int(found.path.stem))] += found.header.size
        assert sum(sizes.values()) - sizes[min(sizes)] < 2500 <= sum(sizes.values()) or min(sizes) == 0
    assert kept.start > 0


def test_one_snapshot_covers_everything_up_to_its_time(opened: Callable[..., Kept]) -> None:
    kept = opened()
    kept.write()
    kept.clock.now += HOUR_MS // 2
    kept.write()
    covered = kept.last_base()
    kept.clock.now += HOUR_MS // 2 + 1
    kept.retain()
    first = kept.start
    names = files_in(kept.path, "snapshots")
    assert 0 < first < covered
    kept.clock.now += HOUR_MS // 2
    kept.retain()
    assert kept.start == covered
    assert files_in(kept.path, "snapshots") == names


def test_snapshots_pause_in_between(opened: Callable[..., Kept]) -> None:
    kept = opened()
    kept.write()
    kept.clock.now += HOUR_MS + 1
    with long_pause():
        kept.retain()
    start, names = kept.start, files_in(kept.path, "snapshots")
    assert start
    kept.write()
    kept.clock.now += HOUR_MS + 1
    kept.retain()
    assert (kept.start, files_in(kept.path, "snapshots")) == (start, names)
    kept.clock.now += LONG_MS
    kept.retain()
    assert kept.start > start


def test_a_damaged_snapshot_is_replaced_before_retention(opened: Callable[..., Kept]) -> None:
    """The damage is detected before anything is removed, and a valid snapshot is taken first."""
    kept = opened()
    kept.write()
    with long_pause():
        path = kept.table.snapshot().paths[0]
    rows = path / "rows.parquet"
    rows.write_bytes(rows.read_bytes()[:-1] + b"?")
    kept.write(1)
    kept.clock.now += HOUR_MS + 1
    kept.retain()
    assert kept.start == 0
    kept.clock.now += LONG_MS
    kept.retain()
    assert kept.start > 0
    kept.write(1)
    kept.table.snapshot()  # and the damaged one is removed


def test_unread_changes_are_kept(opened: Callable[..., Kept]) -> None:
    kept = opened()
    kept.write(12)
    kept.clock.now += HOUR_MS + 1
    bases = sorted({int(name.split(".")[0]) for name in files_in(kept.path, "log")})
    kept.store.consumer("ahead").commit("t", {0: kept.end})
    slow = kept.store.consumer("slow")
    for position in (0, bases[1] - 1, bases[1], bases[2] + 1):
        slow.commit("t", {0: position})
        kept.retain()
        assert kept.start == max(base for base in bases if base <= position)
    kept.store.drop_consumer("slow")
    kept.retain()
    assert kept.start == bases[-1]


@pytest.mark.parametrize("call", ["write", "sync", "sync_directory", "rename"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failing_disk_removes_only_unneeded_data(opened: Callable[..., Kept], call: str, code: int) -> None:
    kept = opened()
    for after in range(30):
        kept.disk.fail = lambda _: 0
        kept.write(3)
        kept.table.flush()
        kept.clock.now += HOUR_MS + 1
        kept.disk.fail = failing(call, code, after=after)
        try:
            kept.retain()
        except (StoreFull, LogFailed):
            kept.disk.fail = lambda _: 0
            assert kept.store.check().findings == []
            if after % 4 == 0:
                kept.store.close()
                before = contents(kept.path)
                lose_index(kept.path)
                kept.open()
                kept.table.upsert([])
                kept.store.close()
                assert {key: value for key, value in contents(kept.path).items() if key[:1] == b"\2"} == {
                    key: value for key, value in before.items() if key[:1] == b"\2"
                }
                kept.open()
        else:
            break
    else:
        raise AssertionError("it never came to an end")
    kept.disk.fail = lambda _: 0
    assert after


def test_an_index_lost_with_every_snapshot_is_reported(opened: Callable[..., Kept]) -> None:
    kept = opened()
    kept.write()
    kept.clock.now += HOUR_MS + 1
    kept.write()
    kept.retain()
    kept.store.close()
    shutil.copytree(kept.path / BUCKET, kept.path.with_name("copy"))
    lose_index(kept.path)
    shutil.rmtree(kept.path / BUCKET / "snapshots")
    kept.open()
    with pytest.raises(CorruptData, match="put index/ or snapshots/ back"):
        kept.table.upsert([])
    assert not kept.store.check().ok
    kept.store.close()
    shutil.copytree(kept.path.with_name("copy") / "snapshots", kept.path / BUCKET / "snapshots")
    kept.open()
    assert kept.table.count() == 3


def test_lost_snapshots_are_detected_by_the_check(opened: Callable[..., Kept]) -> None:
    kept = opened()
    kept.write()
    kept.clock.now += HOUR_MS + 1
    kept.retain()
    shutil.rmtree(kept.path / BUCKET / "snapshots")
    (finding,) = kept.store.check().findings
    assert "no valid snapshot" in finding
    kept.write(1)
    kept.table.snapshot()


# The thread


def test_a_log_expires_by_itself_when_a_segment_begins(store_path: Path) -> None:
    kept = Kept(store_path)
    kept.write()
    kept.clock.now += HOUR_MS + 1
    kept.write()
    wait_until(lambda: kept.start > 0)
    assert kept.store.check().findings == []
    kept.store.close()


def test_a_log_expires_by_itself_while_nothing_is_written(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "LOOK_SECONDS", 0.02)
    kept = Kept(store_path)
    kept.write()
    kept.clock.now += HOUR_MS + 1
    wait_until(lambda: kept.start > 0)
    kept.store.close()


def test_a_failure_is_reported_and_retried(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "LOOK_SECONDS", 0.02)
    kept = Kept(store_path)
    kept.write()
    keeper = kept.table.bucket(0).handle.engine.maintenance
    assert keeper is not None
    kept.table.flush()
    kept.disk.fail = lambda call: errno.ENOSPC if call == "rename" else 0
    kept.clock.now += HOUR_MS + 1
    wait_until(lambda: isinstance(keeper.failure, StoreFull))
    kept.disk.fail = lambda _: 0
    wait_until(lambda: kept.start > 0 and keeper.failure is None)
    kept.store.close()


def test_a_table_without_retention_has_no_thread(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert({"k": 1, "v": ""})
    assert table.bucket(0).handle.writes
    assert "kvstore-maintenance" not in {thread.name for thread in threading.enumerate()}


def test_retention_survives_in_the_catalog(store_path: Path) -> None:
    for name, retention in (("a", dt.timedelta(days=7)), ("b", None), ("c", dt.timedelta(milliseconds=1))):
        with kvstore.open(store_path) as store:
            store.create_table(name, SCHEMA, "k", retention=retention)
    with kvstore.open(store_path) as store:
        kept = [store.runtime.definition(name).options.retention_ms for name in "abc"]
    assert kept == [7 * 24 * HOUR_MS, None, 1]


# Against the model


TestRetention = RetentionMachine.TestCase
TestRetention.settings = slow(40, stateful_step_count=25)


def test_a_store_is_closed_while_maintenance_begins(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beginning, closing = threading.Event(), threading.Event()
    start, close = threading.Thread.start, ReadGate.close

    def start_late(thread: threading.Thread) -> None:
        if thread.name == "kvstore-maintenance":
            beginning.set()
            assert closing.wait(60)
        start(thread)

    def close_first(gate: ReadGate) -> None:
        close(gate)
        closing.set()  # the thread that waits for it runs once this one waits

    store = kvstore.open(store_path)
    table = store.create_table("t", SCHEMA, "k")
    table.upsert([{"k": 1}])
    monkeypatch.setattr(threading.Thread, "start", start_late)
    monkeypatch.setattr(ReadGate, "close", close_first)
    altering = threading.Thread(target=store.alter_table, args=("t",), kwargs={"retention": dt.timedelta(days=1)})
    start(altering)
    assert beginning.wait(60)
    store.close()
    altering.join()
    assert not [each for each in threading.enumerate() if each.name == "kvstore-maintenance"]
