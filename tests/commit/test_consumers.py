"""Retention keeps what a registered consumer has yet to read, in any process, and removes everything else."""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, TimeoutError as StillWaiting
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.bucket import maintenance as maintenance
from kvstore.bucket.maintenance import Maintenance
from kvstore.commit.consumers import LEASE_SECONDS
from kvstore.errors import (
    InvalidRequest,
    NoSuchTable,
    OffsetOutOfRange,
    StoreClosed,
    StoreError,
    StoreFull,
    UnsupportedOperation,
)
from kvstore.log.retention import remove_before
from kvstore.meta.journal import Journal
from kvstore.store.store import Store, open_reader
from tests.support.clocks import SetClock
from tests.support.disks import FailingDisk
from tests.support.indexes import files_in
from tests.support.processes import Child, Pipe
from tests.support.retention import HOUR, HOUR_MS, SCHEMA, Kept
from tests.support.tables import changes_of, rows_of

LEASE_MS = 1000 * LEASE_SECONDS


@pytest.fixture
def kept(store_path: Path) -> Iterator[Kept]:
    """The log after retention with everything but the last segment expired."""
    with patch.object(Maintenance, "begin"), patch.object(maintenance, "REST_FACTOR", 0):
        kept = Kept(store_path)
        kept.write(12)
        kept.clock.now += HOUR_MS + 1
        yield kept
        report = kept.store.check()
        kept.store.close()
        assert report.findings == []


def bases_of(kept: Kept) -> list[int]:
    return sorted(int(name.split(".")[0]) for name in files_in(kept.path, "log") if name.endswith(".log"))


# The limit of what a consumer keeps


def test_a_consumer_keeps_no_more_than_its_limit(store_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with patch.object(Maintenance, "begin"), patch.object(maintenance, "REST_FACTOR", 0):
        kept = Kept(store_path, None, log_bytes_max=1500, consumer_log_bytes_max=5000)
        kept.write(2)
        kept.store.consumer("dead").commit("t", {0: 0})
        kept.store.consumer("alive").commit("t", {0: 0})
        sizes, warned = [], None
        for turn in range(24):
            kept.write(1)
            kept.store.consumer("alive").commit("t", {0: kept.end})
            kept.retain()
            sizes.append(kept.store.metrics()["kvstore_consumer_log_bytes"]["dead"]["t"])
            if warned is None and any("'dead'" in message for message in caplog.messages):
                warned = turn
                assert kept.start == 0  # it is said before
        # A machine that is slow may be the cause of other messages.
        [_] = [message for message in caplog.messages if "'dead' of table 't'" in message]
        assert not any("alive" in message for message in caplog.messages)
        assert 5000 <= max(sizes) < 5000 + 3 * 1500
        assert sizes[-1] >= 5000
        assert kept.start > 0
        with pytest.raises(OffsetOutOfRange):
            list(kept.table.changelog(kept.store.consumer("dead").position("t")))
        with pytest.raises(OffsetOutOfRange), kept.table.subscribe("dead", follow=False) as changes:
            next(changes)
        kept.store.drop_consumer("dead")
        with kept.table.subscribe("dead", follow=False) as changes:
            assert sum(batch.num_rows for batch in changes) == 3
        assert kept.store.check().findings == []
        kept.store.close()


def test_without_a_limit_a_consumer_keeps_all(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    kept.store.consumer("dead").commit("t", {0: 0})
    for _ in range(8):
        kept.write(3)
        kept.retain()
    assert kept.start == 0
    assert caplog.messages == []


# Positions of consumers


def test_a_consumers_position_survives_a_restart(kept: Kept) -> None:
    consumer = kept.store.consumer("é 1")
    assert (consumer.name, consumer.position("t"), kept.store.consumers, kept.table.consumers) == ("é 1", None, {}, {})
    for offset in (0, kept.end, 3):
        consumer.commit("t", {0: offset})
        assert consumer.position("t") == {0: offset}
    kept.store.create_table("other", SCHEMA, buckets=2)
    consumer.commit("other", {0: 0, 1: 0})
    kept.store.consumer("b").commit("t", {0: 5})
    expected = {"b": {"t": {0: 5}}, "é 1": {"other": {0: 0, 1: 0}, "t": {0: 3}}}
    assert kept.store.consumers == expected
    kept.store.close()
    kept.open()
    assert kept.store.consumers == expected
    assert kept.table.consumers == {"b": {0: 5}, "é 1": {0: 3}}
    kept.store.drop_consumer("é 1")
    assert kept.store.consumers == {"b": {"t": {0: 5}}}
    kept.store.drop_table("t")
    assert kept.store.consumers == {}
    kept.store.create_table("t", SCHEMA, "k")
    assert kept.store.consumer("b").position("t") is None


def test_a_commit_is_one_edit_and_none_if_nothing_changes(kept: Kept) -> None:
    consumer, core = kept.store.consumer("a"), kept.store.runtime
    before = core.catalog().txid
    for offset, edits in ((3, 1), (3, 1), (4, 2)):
        consumer.commit("t", {0: offset})
        assert core.catalog().txid == before + edits


def test_an_acknowledged_offset_can_be_committed_at_once(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    for k in range(5):
        last = table.upsert({"k": k, "v": ""}).last_offset
        store.consumer("a").commit("t", {0: last + 1})
        with pytest.raises(OffsetOutOfRange):
            store.consumer("a").commit("t", {0: last + 2})


BAD_COMMITS: dict[str, tuple[type[StoreError], str, Any]] = {
    "a table that is not there": (NoSuchTable, "zzz", {0: 0}),
    "a table that is no name": (NoSuchTable, 5, {0: 0}),  # type: ignore[dict-item]
    "no offsets": (InvalidRequest, "t", None),
    "a number": (InvalidRequest, "t", 3),
    "a list": (InvalidRequest, "t", [3]),
    "no bucket": (InvalidRequest, "t", {}),
    "another bucket": (InvalidRequest, "t", {1: 0}),
    "a bucket too many": (InvalidRequest, "t", {0: 0, 1: 0}),
    "an offset that is a text": (InvalidRequest, "t", {0: "3"}),
    "an offset that is a bool": (InvalidRequest, "t", {0: True}),
    "an offset that is null": (InvalidRequest, "t", {0: None}),
    "a negative offset": (OffsetOutOfRange, "t", {0: -1}),
    "an offset to come": (OffsetOutOfRange, "t", {0: 10_000}),
    "an offset that is too large": (OffsetOutOfRange, "t", {0: 2**63}),
}


@pytest.mark.parametrize("bad", BAD_COMMITS)
def test_a_bad_commit_is_refused_and_changes_nothing(store: kvstore.Store, bad: str) -> None:
    error, table, offsets = BAD_COMMITS[bad]
    store.create_table("t", SCHEMA, "k").upsert({"k": 1, "v": ""})
    store.consumer("a").commit("t", {0: 1})
    with pytest.raises(StoreError) as refused:
        store.consumer("a").commit(table, offsets)
    assert type(refused.value) is error
    assert store.consumers == {"a": {"t": {0: 1}}}


@pytest.mark.parametrize("name", ["", "a\n", "x" * 256, None, 5, b"a"])
def test_a_name_must_be_printable_text(store: kvstore.Store, name: Any) -> None:
    with pytest.raises(InvalidRequest, match="printable"):
        store.consumer(name)


def test_only_an_existing_consumer_is_dropped(kept: Kept) -> None:
    kept.table.parts.lease("lease", {0: 0})
    for name in ("a", "lease", None):
        with pytest.raises(InvalidRequest, match=r"see Store\.consumers"):
            kept.store.drop_consumer(name)  # type: ignore[arg-type]


def test_a_read_only_store_lists_consumers_and_does_not_commit(kept: Kept) -> None:
    kept.store.consumer("a").commit("t", {0: 3})
    with kvstore.open(kept.path, read_only=True) as reader:
        consumer = reader.consumer("a")
        assert (consumer.position("t"), reader.consumers) == ({0: 3}, {"a": {"t": {0: 3}}})
        for call in (
            lambda: consumer.commit("t", {0: 4}),
            lambda: reader.drop_consumer("a"),
            lambda: reader.table("t").parts.hold("a", {0: 4}),
        ):
            with pytest.raises(UnsupportedOperation, match="open it for writing"):
                call()
        txid = kept.store.runtime.catalog().txid
        reader.table("t").parts.lease("lease", {0: 4})
        assert kept.store.runtime.catalog().txid == txid
    with pytest.raises(StoreClosed):
        consumer.position("t")
    with pytest.raises(StoreClosed):
        consumer.commit("t", {0: 4})


def test_a_reader_may_register_without_writing(kept: Kept) -> None:
    with open_reader(kept.path) as reader:
        reader.table("t").parts.hold("a", {0: 4})
        with pytest.raises(UnsupportedOperation):
            reader.table("t").upsert({"k": 1, "v": ""})
        reader.drop_consumer("a")
    with pytest.raises(StoreClosed):
        reader.drop_consumer("a")


# Retained segments


def test_a_slow_consumer_holds_the_log_until_it_advances(kept: Kept) -> None:
    bases = bases_of(kept)
    expected = changes_of(kept.table)
    consumer = kept.store.consumer("slow")
    for position in (0, bases[2] - 1, bases[2], bases[4] + 1, kept.end):
        consumer.commit("t", {0: position})
        for _ in range(2):
            kept.retain()
            assert kept.start == max(base for base in bases if base <= position)
            assert changes_of(kept.table, position) == [change for change in expected if change[0] >= position]
    with pytest.raises(OffsetOutOfRange, match="log_start") as refused:
        consumer.commit("t", {0: kept.start - 1})
    assert refused.value.where["log_start"] == kept.start
    assert consumer.position("t") == {0: kept.end}


def test_the_size_limit_does_not_apply_to_unread_changes(store_path: Path) -> None:
    with patch.object(Maintenance, "begin"), patch.object(maintenance, "REST_FACTOR", 0):
        kept = Kept(store_path, None, log_bytes_max=2000)
        kept.store.consumer("slow").commit("t", {0: 0})
        kept.write(12)
        kept.retain()
        assert kept.start == 0
        kept.store.drop_consumer("slow")
        kept.retain()
        assert kept.start > 0
        kept.store.close()


def test_buckets_expire_independently(store_path: Path) -> None:
    with patch.object(Maintenance, "begin"), patch.object(maintenance, "REST_FACTOR", 0):
        clock = SetClock()
        store = Store(store_path, kvstore.StoreOptions(segment_bytes_max=1000), clock=clock)
        table = store.create_table("t", SCHEMA, "k", buckets=2, retention=HOUR)
        for number in range(12):
            table.upsert([{"k": k, "v": f"{number}" * 20} for k in range(6)])
        clock.now += HOUR_MS + 1
        ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
        store.consumer("a").commit("t", ends | {1: 0})
        for bucket in range(2):
            table.bucket(bucket).handle.retain()
        assert [start > 0 for start, _ in table.offsets().values()] == [True, False]
        store.close()


def other_process(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path) as store:
        consumer = store.consumer("elsewhere")
        while (offset := pipe.recv()) is not None:
            try:
                consumer.commit("t", {0: offset})
                pipe.send(None)
            except OffsetOutOfRange as error:
                pipe.send(error.where["log_start"])
        store.drop_consumer("elsewhere")
        pipe.send(None)


def test_a_consumer_of_another_process_counts(kept: Kept) -> None:
    bases = bases_of(kept)
    with Child(other_process, kept.path) as other:
        for position in (bases[1], bases[3] + 1):
            other.say(position)
            assert other.hear() is None
            kept.retain()
            assert kept.start == max(base for base in bases if base <= position)
            assert kept.table.consumers == {"elsewhere": {0: position}}
        other.say(0)
        assert other.hear() == kept.start
        other.say(None)
        other.hear()
        kept.retain()
        assert kept.start == bases[-1]


# During retention


class Registering(FailingDisk):
    """A disk that registers a consumer while a segment is removed; the next removal waits for the result.

    Attributes:
        answer: The result, once the next removal was asked for.
    """

    def __init__(self, base: int, register: Callable[[], Future[None]]) -> None:
        super().__init__()
        self._base, self._register = base, register
        self.answer: Future[None] | None = None

    def remove(self, path: Path) -> None:
        if path.suffix == ".log" and int(path.stem) == self._base:
            self.answer = self._register()
            with pytest.raises(StillWaiting):
                self.answer.result(0.2)
        super().remove(path)

    def sync_directory(self, path: Path) -> None:
        if self.answer is not None:
            self.answer.exception(20)
        super().sync_directory(path)


@pytest.mark.parametrize("at", range(4))
def test_registering_during_retention_gets_all_or_an_error(kept: Kept, at: int) -> None:
    bases = bases_of(kept)
    with ThreadPoolExecutor(1) as thread:
        disk = Registering(bases[1], lambda: thread.submit(late.commit, "t", {0: bases[at]}))
        kept.store.close()
        kept.disk = disk
        kept.open()
        late = kept.store.consumer("late")
        kept.retain()
    assert disk.answer is not None
    if at <= 1:
        with pytest.raises(OffsetOutOfRange) as refused:
            disk.answer.result()
        assert refused.value.where["log_start"] == bases[2]
        assert (kept.start, kept.table.consumers) == (bases[-1], {})
    else:
        disk.answer.result()
        assert (kept.start, kept.table.consumers) == (bases[at], {"late": {0: bases[at]}})


def test_registering_after_the_decision_still_counts(kept: Kept) -> None:
    """The expired segments are decided, a snapshot exists, and the first segment is about to be removed."""

    def late(*arguments: Any, **given: Any) -> Any:
        kept.store.consumer("late").commit("t", {0: 0})
        return remove_before(*arguments, **given)

    with patch.object(maintenance.retention, "remove_before", late):
        kept.retain()
    assert kept.start == 0


def test_an_unreadable_catalog_stops_retention(kept: Kept) -> None:
    def refused(_: Journal) -> Any:
        raise StoreFull("no")

    with patch.object(Journal, "still", refused), pytest.raises(StoreFull):
        kept.retain()
    assert kept.start == 0


# Leases


def test_a_lease_holds_the_log_for_its_time_and_is_renewed(kept: Kept) -> None:
    bases = bases_of(kept)
    rows = rows_of(kept.table, as_of=bases[1])
    kept.table.parts.lease("lease", {0: bases[1]})
    assert kept.store.consumers == kept.table.consumers == {}
    for _ in range(3):
        kept.clock.now += LEASE_MS - 1
        kept.retain()
        assert kept.start == bases[1]
        assert rows_of(kept.table, as_of=bases[1]) == rows
        kept.table.parts.lease("lease", {0: bases[1]})
    kept.clock.now += LEASE_MS
    kept.retain()
    assert kept.start == bases[-1]
    kept.table.parts.lease("lease", {0: bases[1]})  # its remaining time
    catalog = kept.store.runtime.catalog()
    (consumers,) = catalog.consumers.values()
    assert [consumer.offsets for consumer in consumers.named.values()] == [(bases[-1],)]


def test_a_table_without_retention_has_no_lease(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert({"k": 1, "v": ""})
    before = store.runtime.catalog()
    table.parts.lease("lease", {0: 0})
    assert store.runtime.catalog() is before


def test_a_size_limit_of_another_process_shows_once_it_took_effect(store_path: Path) -> None:
    with patch.object(Maintenance, "begin"), patch.object(maintenance, "REST_FACTOR", 0):
        kept = Kept(store_path, None, log_bytes_max=2000)
        kept.write(12)
        kept.table.parts.lease("one", {0: 0})  # here the limit is known
        assert len(kept.store.runtime.catalog().consumers) == 1
        kept.clock.now += LEASE_MS
        kept.retain()
        start = kept.start
        kept.store.close()
        with open_reader(store_path) as reader:
            table = reader.table("t")
            before = reader.runtime.catalog().txid
            table.parts.lease("two", {0: start})
            assert reader.runtime.catalog().txid == before + 1


def test_a_lease_that_can_not_be_written_is_no_error(kept: Kept) -> None:
    with patch.object(Journal, "append", side_effect=StoreFull("no")):
        kept.table.parts.lease("lease", {0: 0})


def test_consumers_of_a_store_with_read_only_files(kept: Kept, tmp_path: Path) -> None:
    kept.store.consumer("a").commit("t", {0: 0})
    kept.store.flush()
    shutil.copytree(kept.path, tmp_path / "copy")

    def access(path: Path, mode: int) -> bool:
        return path.name != "data.mdb" or not mode & os.W_OK

    with patch("kvstore.disk.environment.os.access", access), open_reader(tmp_path / "copy") as reader:
        reader.table("t").parts.lease("lease", {0: 0})
        with pytest.raises(UnsupportedOperation, match="may only be read"):
            reader.table("t").parts.hold("a", {0: 1})
        assert reader.consumers == {"a": {"t": {0: 0}}}


# All together

steps = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 3)),
    st.tuples(st.just("commit"), st.tuples(st.sampled_from("ab"), st.floats(0, 1))),
    st.tuples(st.just("drop"), st.sampled_from("ab")),
    st.tuples(st.just("lease"), st.tuples(st.sampled_from("cd"), st.floats(0, 1))),
    st.tuples(st.just("later"), st.sampled_from([HOUR_MS // 3, HOUR_MS + 1])),
    st.tuples(st.just("retain"), st.none()),
    st.tuples(st.just("reopen"), st.none()),
)


@given(history=st.lists(steps, max_size=30))
def test_exactly_what_consumers_and_leases_hold_is_kept(
    history: list[tuple[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    with patch.object(Maintenance, "begin"), patch.object(maintenance, "REST_FACTOR", 0):
        kept = Kept(tmp_path_factory.mktemp("s") / "store", dt.timedelta(milliseconds=1), segment_bytes_max=1)
        held: dict[str, tuple[int, int | None]] = {}
        kept.write(1)
        for verb, what in history:
            if verb == "write":
                kept.write(what)
            elif verb == "commit":
                name, where = what
                held[name] = round(kept.start + where * (kept.end - kept.start)), None
                kept.store.consumer(name).commit("t", {0: held[name][0]})
            elif verb == "drop" and what in held:
                kept.store.drop_consumer(what)
                del held[what]
            elif verb == "lease":
                name, where = what
                held[name] = round(kept.start + where * (kept.end - kept.start)), kept.clock.now + LEASE_MS
                kept.table.parts.lease(name, {0: held[name][0]})
            elif verb == "later":
                kept.clock.now += what
                held = {
                    name: (at, until) for name, (at, until) in held.items() if until is None or until > kept.clock.now
                }
            elif verb == "reopen":
                kept.store.close()
                kept.open()
            elif verb == "retain":
                kept.clock.now += 2
                held = {
                    name: (at, until) for name, (at, until) in held.items() if until is None or until > kept.clock.now
                }
                bases = bases_of(kept)
                kept.retain()
                needed = min([kept.end, *(at for at, _ in held.values())])
                assert kept.start == max(base for base in bases if base <= needed)
            assert all(kept.start <= at for at, _ in held.values())
            assert kept.table.consumers == {name: {0: at} for name, (at, until) in held.items() if until is None}
        kept.store.close()
