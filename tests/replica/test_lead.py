"""After a promotion the former leader appends nothing; a replica that is gone stops no leader."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket.write_path import WritePath
from kvstore.checkpoint import recovery
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import StoreFull, Unavailable, WriterFenced
from kvstore.replica import leadership
from logformat import paths
from logformat.ids import Epoch
from logformat.replica.object_file import leader_name
from tests.replica.objects import SCHEMA, Objects
from tests.support.processes import Child, Pipe
from tests.support.replicas import append_until_fenced
from tests.support.tables import rows_of


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Of a store at ``s`` that ships to ``r``."""
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        store.flush()
        store.add_replica(str(tmp_path / "r"), "r").ship()
    kvstore.follow(str(tmp_path / "r"), tmp_path / "c").close()
    return tmp_path / "c"


def test_a_fenced_leader_appends_nothing(tmp_path: Path, copy: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.table("t")
        table.upsert([{"k": 2, "v": 2}])
        writer = table.writer()
        kvstore.promote(copy)
        with pytest.raises(WriterFenced, match="write there"):
            table.upsert([{"k": 3, "v": 3}])
        with pytest.raises(WriterFenced, match="write there"):
            store.create_table("u", SCHEMA, "k")
        writer.upsert({"k": 4, "v": 4})
        with pytest.raises(WriterFenced, match="write there"):
            writer.flush()
        with pytest.raises(WriterFenced):
            store.replica("r").ship()
        assert rows_of(table) == [{"k": 1, "v": 1}, {"k": 2, "v": 2}]
    with kvstore.open(copy) as store:
        store.table("t").upsert([{"k": 9, "v": 9}])
        assert rows_of(store.table("t")) == [{"k": 1, "v": 1}, {"k": 9, "v": 9}]


def test_a_fenced_leader_appends_nothing_after_it_is_reopened(tmp_path: Path, copy: Path) -> None:
    kvstore.promote(copy)
    with kvstore.open(tmp_path / "s") as store, pytest.raises(WriterFenced, match="write there"):
        store.table("t").upsert([{"k": 3, "v": 3}])


@pytest.mark.parametrize("round", range(3))
def test_a_leader_that_is_appending_is_fenced(tmp_path: Path, copy: Path, round: int) -> None:
    """A thread, and a process of its own, that append all the time."""
    promoted, late, fenced = threading.Event(), [], []
    with kvstore.open(tmp_path / "s") as store:
        tables = [store.create_table("u", SCHEMA, "k"), store.create_table("w", SCHEMA, "k")]

        def write() -> None:
            number = 0
            try:
                while True:
                    was_promoted = promoted.is_set()
                    tables[0].upsert([{"k": number, "v": round}])
                    number += 1
                    late.extend([number] if was_promoted else [])
            except WriterFenced as error:
                fenced.append(error)

        thread = threading.Thread(target=write)
        with Child(append_always, tmp_path / "s", leadership.LEASE_SECONDS) as child:
            assert child.hear() == "began"
            thread.start()
            kvstore.promote(copy)
            promoted.set()
            child.say("promoted")
            assert child.hear() == "fenced"
        thread.join()
    assert fenced
    assert late == []


def append_always(pipe: Pipe, path: Path, lease: float) -> None:
    leadership.LEASE_SECONDS = lease
    with kvstore.open(path) as store:
        table = store.table("w")
        table.upsert([{"k": 0, "v": 0}])
        pipe.send("began")
        try:
            while not pipe.poll():
                table.upsert([{"k": 1, "v": 0}])
            table.upsert([{"k": 2, "v": 0}])
        except WriterFenced:
            pipe.recv()
            pipe.send("fenced")
        else:
            pipe.send("appended")


def test_an_unreachable_replica_stops_no_leader(tmp_path: Path, copy: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        shutil.move(tmp_path / "r", tmp_path / "away")
        store.table("t").upsert([{"k": 2, "v": 2}])
        store.table("t").upsert([{"k": 3, "v": 3}])
        shutil.move(tmp_path / "away", tmp_path / "r")
        kvstore.promote(copy)
        with pytest.raises(WriterFenced):
            append_until_fenced(store.table("t"))  # it is asked beside appends first


def test_a_replica_that_does_not_answer_stops_no_leader(
    tmp_path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "WAIT_SECONDS", 0.01)
    answers, asked = threading.Event(), threading.Event()

    class Silent(Objects):
        def get(self, name: str, *, bytes_max: int) -> memoryview:
            asked.set()
            if not answers.wait(600):
                raise Unavailable("nothing")
            return super().get(name, bytes_max=bytes_max)

    place = Silent()
    monkeypatch.setattr(
        "kvstore.store.store.ReplicaLeadership", lambda clock: leadership.ReplicaLeadership(clock, lambda _: place)
    )
    with kvstore.open(tmp_path / "s") as store:
        for number in range(3):
            store.table("t").upsert(pa.RecordBatch.from_pylist([{"k": 2, "v": number}], schema=SCHEMA))
        assert asked.is_set()
        assert not answers.is_set()
        place.create(paths.STORE_FILE, [(tmp_path / "s" / paths.STORE_FILE).read_bytes()])
        place.create(leader_name(store.runtime.catalog().leader_epoch + 1), [b"other"])
        answers.set()
        with pytest.raises(WriterFenced):
            append_until_fenced(store.table("t"))


def test_a_late_answer_does_not_renew_the_lease(tmp_path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is pending when a write begins may have been sent before a promotion."""
    asked, answers = threading.Event(), threading.Event()

    class Late(Objects):
        def get(self, name: str, *, bytes_max: int) -> memoryview:
            first, found = not asked.is_set(), Objects(dict(self.held))
            asked.set()
            if first:
                assert answers.wait(600)
            return found.get(name, bytes_max=bytes_max)

    class Ahead(SystemClock):
        ahead = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.ahead

    objects, clock = Late(), Ahead()
    with kvstore.open(tmp_path / "s") as store:
        journal, epoch = store.runtime.journal, store.runtime.catalog().leader_epoch
        leads = leadership.ReplicaLeadership(clock, lambda _: objects)
        monkeypatch.setattr(leadership, "WAIT_SECONDS", 0.0)
        leads.check(journal)
        assert asked.wait(600)
        objects.create(paths.STORE_FILE, [(tmp_path / "s" / paths.STORE_FILE).read_bytes()])
        objects.create(leader_name(Epoch(epoch + 1)), [b"other"])
        clock.ahead = 3600
        answers.set()
        monkeypatch.setattr(leadership, "WAIT_SECONDS", 600.0)
        with pytest.raises(WriterFenced):
            leads.check(journal)
        assert journal.state().lost_to == epoch + 1


def test_a_replica_that_was_unreachable_is_asked_again_after_a_pause(tmp_path: Path, copy: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        shutil.move(tmp_path / "r", tmp_path / "away")
        store.table("t").upsert([{"k": 2, "v": 2}])
        shutil.move(tmp_path / "away", tmp_path / "r")
        kvstore.promote(copy)  # waits until every lease has ended
        with pytest.raises(WriterFenced):
            store.table("t").upsert([{"k": 3, "v": 3}])


def test_an_unreachable_replica_does_not_hide_another_one(tmp_path: Path, copy: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.add_replica(str(tmp_path / "r2"), "a").ship()
        store.table("t").upsert([{"k": 2, "v": 2}])
        shutil.rmtree(tmp_path / "r2")
        kvstore.promote(copy)
        with pytest.raises(WriterFenced):
            store.table("t").upsert([{"k": 3, "v": 3}])


def test_rows_merged_before_the_fencing_are_not_appended_after_it(
    tmp_path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch that takes longer than a lease: it is asked once more before it goes to the log."""
    apply, merged = WritePath.apply_all, []

    def slowly(self: WritePath, requests: Any) -> Any:
        found = apply(self, requests)
        merged.append(kvstore.promote(copy))
        return found

    with kvstore.open(tmp_path / "s") as store:
        table = store.table("t")
        table.upsert([{"k": 2, "v": 2}])
        monkeypatch.setattr(WritePath, "apply_all", slowly)
        with pytest.raises(WriterFenced):
            table.upsert([{"k": 3, "v": 3}])
        assert merged
        assert rows_of(table) == [{"k": 1, "v": 1}, {"k": 2, "v": 2}]


def test_an_epoch_merged_before_the_fencing_is_not_appended_after_it(
    tmp_path: Path, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, merged = WritePath.apply_all, []

    def slowly(self: WritePath, *arguments: Any, **given: Any) -> Any:
        found = apply(self, *arguments, **given)
        merged.append(kvstore.promote(copy))
        return found

    with kvstore.open(tmp_path / "s") as store:
        table = store.table("t")
        monkeypatch.setattr(WritePath, "apply_all", slowly)
        with pytest.raises(WriterFenced):
            table.apply_epoch(kvstore.Changes.of([("upsert", {"k": 3, "v": 3})], SCHEMA), "w", 0)
        assert merged
        assert rows_of(table) == [{"k": 1, "v": 1}]


def test_waiting_edits_of_a_fenced_leader_are_dropped(tmp_path: Path, copy: Path) -> None:
    with kvstore.open(tmp_path / "s", journal_sync="NO_SYNC", sync_interval_ms=60_000) as store:
        consumer = store.consumer("c")
        consumer.commit("t", {0: 0})
        before = store.runtime.catalog().txid
        consumer.commit("t", {0: 1})
        kvstore.promote(copy)
    with kvstore.open(tmp_path / "s", read_only=True) as store:
        assert store.runtime.catalog().lost_to == 1
        assert store.runtime.catalog().txid == before + 1
        assert store.table("t").consumers["c"][0] == 0


def test_a_replica_that_now_belongs_to_another_store_fences_no_leader(tmp_path: Path, copy: Path) -> None:
    with kvstore.open(tmp_path / "s") as store, kvstore.open(tmp_path / "o") as other:
        shutil.rmtree(tmp_path / "r")
        other.create_table("t", SCHEMA, "k")
        other.add_replica(str(tmp_path / "r"), "r").ship()
        kvstore.follow(str(tmp_path / "r"), tmp_path / "oc").close()
        kvstore.promote(tmp_path / "oc")
        with pytest.raises(WriterFenced, match="belongs to another store"):
            store.replica("r").ship()
        store.table("t").upsert([{"k": 2, "v": 2}])
        store.drop_replica("r")


def test_a_leader_several_epochs_later_fences_the_old_one(tmp_path: Path, copy: Path) -> None:
    """For example after two recoveries: no leader shipped in the epoch between."""
    shutil.copytree(tmp_path / "s", tmp_path / "s2")
    with kvstore.open(tmp_path / "s", read_only=True) as store:
        store_id = store.runtime.store_id
    for _ in range(2):
        recovery.recover(tmp_path / "s2", store_id, Files(), SystemClock(), write=True)
    with kvstore.open(tmp_path / "s2") as store:
        store.replica("r").ship()
    with kvstore.open(tmp_path / "s") as store, pytest.raises(WriterFenced):
        store.table("t").upsert([{"k": 2, "v": 2}])


def test_a_shipment_that_died_before_its_report_still_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        store.flush()
        replica = store.add_replica(str(tmp_path / "r"), "r")
        with monkeypatch.context() as patch:
            patch.setattr(type(store.runtime.journal), "append", full)
            with pytest.raises(StoreFull):
                replica.ship()
        kvstore.follow(str(tmp_path / "r"), tmp_path / "c").close()
        kvstore.promote(tmp_path / "c")
        with pytest.raises(WriterFenced):
            store.table("t").upsert([{"k": 2, "v": 2}])


def full(*_: Any, **__: Any) -> None:
    raise StoreFull("planted")


def test_the_replica_of_another_store_fences_no_leader(tmp_path: Path, copy: Path) -> None:
    """Nothing was shipped there, and nothing is."""
    kvstore.promote(copy)
    with kvstore.open(tmp_path / "other") as other:
        other.add_replica(str(tmp_path / "r"), "r")
        with pytest.raises(WriterFenced):
            other.replica("r").ship()
        other.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
