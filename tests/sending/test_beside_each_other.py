"""Several processes write one table beside each other: each is answered as if it wrote alone."""

from __future__ import annotations

import errno
import threading
from contextlib import suppress
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore
from kvstore.errors import InvalidRequest, NoSuchTable, SchemaMismatch, StoreError, StoreFull
from kvstore.options import Durability, StoreOptions
from kvstore.sending import requests
from kvstore.store.store import Store
from logformat import paths
from tests.cli.commands import run as run_command
from tests.sending.writers import SCHEMA, check, create, write_for_ever
from tests.support.disks import FailingDisk, failing
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of
from tests.support.waiting import wait_until


def own(pipe: Pipe, path: Path) -> None:
    """Own all buckets of the table until a word comes."""
    with kvstore.open(path) as store:
        table = store.table("t")
        table.upsert([{"k": -1 - n, "v": "owner", "n": n} for n in range(16)])
        pipe.send("owns")
        pipe.recv()


@pytest.fixture
def table(store_path: Path):
    """A table that another process owns."""
    create(store_path)
    with Child(own, store_path) as owner, kvstore.open(store_path) as store:
        assert owner.hear() == "owns"
        yield store.table("t")
        assert store.check()


def test_two_processes_write_and_read_the_same_rows(store_path: Path, tmp_path: Path) -> None:
    create(store_path)
    history = tmp_path / "history"
    with (
        Child(write_for_ever, store_path, history, "a") as first,
        Child(write_for_ever, store_path, history, "b") as second,
    ):
        for writer in (first, second):
            while writer.hear() < 40:
                pass
        for writer in (first, second):
            writer.say("enough")
        for writer in (first, second):
            while writer.hear() != "closed":
                pass
            assert writer.join() == 0
    check(store_path, history)


def test_every_write_of_a_sender_is_as_one_of_the_owner(table: kvstore.Table) -> None:
    assert table.upsert({"k": 1, "v": "a", "n": 1}).first_offset == 16
    assert table.get(1) == {"k": 1, "v": "a", "n": 1}
    table.upsert([{"k": k, "v": "b", "n": k} for k in range(2, 200)])
    table.upsert(pa.table({"k": [200, 201], "v": [None, "c"], "n": [1, 2]}))
    table.upsert({"k": 1, "n": 5}, columns=["k", "n"])
    assert table.get(1) == {"k": 1, "v": "a", "n": 5}
    assert table.put_if({"k": 1, "v": "d", "n": 6}, table.get(1))
    assert not table.put_if({"k": 1, "v": "e", "n": 7}, None)
    assert table.increment(1, {"n": 4}) == {"k": 1, "v": "d", "n": 10}
    assert table.increment(300, {"n": 4}, default={}) == {"k": 300, "v": None, "n": 4}
    with pytest.raises(KeyError):
        table.increment(301, {"n": 4})
    table.update_where(pc.field("k") > 198, {"v": "where"})
    table.delete([2, 3])
    table.delete(where=pc.field("k") == 4)
    del table[5]
    table[6] = {"v": "item", "n": 0}
    table.apply(kvstore.Changes.of([("upsert", {"k": 7, "v": "f", "n": 0}), ("delete", {"k": 8})], table.schema))
    with table.writer("numbered") as writer:
        for k in range(400, 500):
            writer.upsert({"k": k, "v": "w", "n": k})
    bucket = table.bucket(0)
    changes = kvstore.Changes.of([("upsert", {"k": 500, "v": "g", "n": 0})], table.schema)
    first = bucket.apply(changes, 77, 0)
    again = bucket.apply(changes, 77, 0)
    assert (again.duplicated, again.first_offset) == (True, first.first_offset)
    expected = {k: ("b", k) for k in range(9, 199)} | {k: ("w", k) for k in range(400, 500)}
    expected |= {1: ("d", 10), 300: ("where", 4), 199: ("where", 199), 200: ("where", 1), 201: ("where", 2)}
    expected |= {6: ("item", 0), 7: ("f", 0), 500: ("g", 0)}
    assert {row["k"]: (row["v"], row["n"]) for row in rows_of(table) if row["k"] >= 0} == expected
    assert table.truncate()
    assert rows_of(table) == []


def test_a_batch_too_large_to_be_sent_takes_the_bucket_over(table: kvstore.Table) -> None:
    table.upsert({"k": 1, "v": "sent", "n": 1})
    text = "x" * 1_000_000
    table.upsert([{"k": k, "v": text, "n": k} for k in range(10, 20)])
    assert table.bucket(0).handle.writes
    table.update_where(pc.field("k") >= 10, {"n": 0})
    assert table.increment(1, {"n": 1}) == {"k": 1, "v": "sent", "n": 2}
    assert [(row["k"], row["n"]) for row in rows_of(table) if row["k"] > 0] == [
        (1, 2),
        *((k, 0) for k in range(10, 20)),
    ]


def test_a_refused_row_is_refused_by_name_and_the_next_one_is_written(table: kvstore.Table) -> None:
    for _ in range(3):
        with pytest.raises(SchemaMismatch):
            table.upsert({"k": "text"})
        with pytest.raises(InvalidRequest):
            table.increment(-1, {"n": 2**63 - 1}) if table.increment(-1, {"n": 1}) else None
        table.upsert({"k": 1, "v": "a", "n": 1})
    assert len([each for batch in table.changelog(16) for each in batch.to_pylist() if each["k"] == 1]) == 5


@pytest.mark.parametrize("engine", ["versioned", "first_row", "partial"])
def test_engines_and_filled_columns(store_path: Path, engine: str) -> None:
    options = {
        "versioned": {"merge_engine": kvstore.Versioned("n")},
        "first_row": {"merge_engine": "first_row"},
        "partial": {"auto_increment": "n"},
    }[engine]
    with kvstore.open(store_path) as store:
        store.create_table("t", SCHEMA, primary_key="k", **options)
    given = [{"k": k % 3, "v": str(k)} | ({} if engine == "partial" else {"n": k}) for k in range(9)]

    with Child(write_one, store_path, given[0]) as owner, kvstore.open(store_path) as store:
        assert owner.hear() == "owns"
        table = store.table("t")
        for row in given[1:]:
            table.upsert(row)
        found = rows_of(table)
    with kvstore.open(store_path.parent / "alone") as store:
        table = store.create_table("t", SCHEMA, primary_key="k", **options)
        for row in given:
            table.upsert(row)
        assert found == rows_of(table)


def write_one(pipe: Pipe, path: Path, row: dict[str, object]) -> None:
    with kvstore.open(path) as store:
        store.table("t").upsert(row)
        pipe.send("owns")
        pipe.recv()


def write_until_dropped(pipe: Pipe, path: Path, name: str) -> None:
    """Write rows until the table is gone; say by which error."""
    with kvstore.open(path) as store:
        table = store.table("t")
        for n in count():
            try:
                table.upsert({"k": n, "v": name, "n": n})
            except StoreError as error:
                pipe.send(type(error).__name__)
                break
            if n == 5:
                pipe.send("writes")
        store.create_table(f"new-{name}", SCHEMA, primary_key="k").upsert({"k": 1})
        with pytest.raises(NoSuchTable):
            table.upsert({"k": 0})
    pipe.send("closed")


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_table_is_dropped_while_others_write_it(store_path: Path, buckets: int) -> None:
    create(store_path, buckets)
    with (
        Child(write_until_dropped, store_path, "a") as first,
        Child(write_until_dropped, store_path, "b") as second,
        kvstore.open(store_path) as store,
    ):
        assert [first.hear(), second.hear()] == ["writes", "writes"]
        store.drop_table("t")
        for writer in (first, second):
            assert writer.hear() == "NoSuchTable"
            assert writer.hear() == "closed"
            assert writer.join() == 0
        assert sorted(store.list_tables()) == ["new-a", "new-b"]
        assert store.check()


def own_without_syncs(pipe: Pipe, path: Path, durability: Durability) -> None:
    """Own the bucket and write rows that are not synced, until a word comes; then be killed."""
    late = {"sync_interval_ms": 10**6, "commit_wait_ms": 10**6, "commit_idle_ms": 10**6}
    store = kvstore.open(path, durability=durability, **late)
    table = store.table("t")
    for n in count():
        table.upsert({"k": -1 - n % 4, "v": "owner", "n": n})
        if not n:
            table.upsert({"k": -5, "v": "owner", "n": 0})
            pipe.send("owns")
        if pipe.poll(0.001):  # no more rows than a reader on a busy machine keeps up with
            pipe.recv()
            table.upsert({"k": 0, "v": "owner", "n": n})
            pipe.send("wrote")
            pipe.recv()


@pytest.mark.parametrize("durability", ["interval", "none"])
def test_an_owner_that_syncs_later_syncs_what_others_write(store_path: Path, durability: Durability) -> None:
    create(store_path)
    with Child(own_without_syncs, store_path, durability) as owner, kvstore.open(store_path) as store:
        assert owner.hear() == "owns"
        table = store.table("t")
        for n in range(20):
            table.upsert({"k": 1, "v": "a", "n": n})
            assert table.get(1) == {"k": 1, "v": "a", "n": n}
            assert table.increment(-5, {"n": 1})["n"] == n + 1
        owner.say("stop")
        assert owner.hear() == "wrote"
        assert not table.put_if({"k": 0, "v": "b", "n": 0}, None)
        assert table.get(0) is not None
        assert table.increment(0, {"n": 1})["v"] == "owner"
        with kvstore.open(store_path, read_only=True) as reader:
            found = rows_of(reader.table("t"))
        owner.kill()
        assert rows_of(table) == found
        assert store.check()


def own_decimals(pipe: Pipe, path: Path) -> None:
    """Own the bucket, and store what is said."""
    with kvstore.open(path, durability="none") as store:
        table = store.create_table("d", {"k": "int64", "n": "decimal128(10, 2)"}, primary_key="k")
        while (said := pipe.recv()) != "end":
            table.upsert({"k": 0, "n": said})
            if said is None:
                table.flush()
            pipe.send("stored")


def test_what_is_not_on_disk_yet_is_there_for_another_process(store_path: Path) -> None:
    """It reads the disk to decide; before it says that there is no row, or refuses it, it asks the owner."""
    kvstore.open(store_path).close()
    with Child(own_decimals, store_path) as owner, kvstore.open(store_path) as store:

        def stored(value: Decimal | None) -> kvstore.Table:
            owner.say(value)
            assert owner.hear() == "stored"
            return store.table("d")

        assert stored(Decimal(1)).increment(0, {"n": 1}) == {"k": 0, "n": Decimal(2)}
        with pytest.raises(KeyError):
            store.table("d").increment(1, {"n": 1})
        with pytest.raises(InvalidRequest, match="is null"):
            stored(None).increment(0, {"n": 1})
        assert stored(Decimal(5)).increment(0, {"n": 1})["n"] == 6
        owner.say("end")
        assert owner.join() == 0


def own_a_hot_row(pipe: Pipe, path: Path) -> None:
    """Own the bucket and write one row all the time, until a word comes."""
    with kvstore.open(path, durability="none") as store:
        table = store.table("t")
        for n in count():
            table.upsert({"k": 0, "v": str(n), "n": 0})
            if not n:
                pipe.send("owns")
            if pipe.poll():
                break


@pytest.mark.parametrize("decides", [True, False])
def test_a_row_that_its_owner_writes_all_the_time_is_changed_by_others_too(
    store_path: Path, monkeypatch: pytest.MonkeyPatch, decides: bool
) -> None:
    """Where this process decides what is written, and where the owner adds."""
    sent: list[bytes] = []
    encode_few = requests.encode_few
    monkeypatch.setattr(requests, "encode_few", lambda *given: sent.append(encode_few(*given)) or sent[-1])
    create(store_path)
    if decides:  # not every time has a value of Python's
        with kvstore.open(store_path) as store:
            store.add_columns("t", [pa.field("at", pa.timestamp("ns"))])
    with Child(own_a_hot_row, store_path) as owner, kvstore.open(store_path) as store:
        assert owner.hear() == "owns"
        table = store.table("t")
        table.upsert({"k": 1})  # what the owner wrote is on disk then, and seen
        counted = [table.increment(0, {"n": 1})["n"] for _ in range(20)]
        # Without a hold there were some hundred times as many; an upsert is sent in the same form.
        assert len(sent) < 100 if decides else len(sent) == 1
        # The last time there is nothing to write, and the owner goes on at once.
        table.update_where((pc.field("k") == 0) & (pc.field("n") < 0), {"n": 5})
        owner.say("end")
        assert owner.join() == 0
        changes = [change for batch in table.changelog() for change in batch.to_pylist()]
        assert [row["n"] for row in changes if row["_change_type"] == "update_postimage" and row["n"]] == counted
        assert store.check()


def own_on_a_disk_that_fills(pipe: Pipe, path: Path) -> None:
    """Own the bucket; the disk is full, or has space again, as it is said."""
    disk = FailingDisk()
    with Store(path, StoreOptions(), files=disk) as store:
        table = store.table("t")
        table.upsert({"k": 0, "v": "owner", "n": 0})
        pipe.send("owns")
        while (word := pipe.recv()) != "end":
            disk.fail = failing("write", errno.ENOSPC, times=10**9) if word == "full" else lambda _: 0
            pipe.send(word)


def test_a_full_disk_of_the_owner_is_named_and_what_was_refused_is_not_written(store_path: Path) -> None:
    create(store_path)
    with Child(own_on_a_disk_that_fills, store_path) as owner, kvstore.open(store_path) as store:
        assert owner.hear() == "owns"
        table = store.table("t")
        table.upsert({"k": 1, "v": "before", "n": 0})
        for n in range(3):
            for word in ("full", "free"):
                owner.say(word)
                assert owner.hear() == word
                if word == "full":
                    for _ in range(10):  # more than there are ids at once
                        with pytest.raises(StoreFull, match="free some"):
                            table.upsert({"k": 2, "v": "refused", "n": n})
                        with pytest.raises(StoreFull, match="free some"):
                            table.increment(1, {"n": 1})
                else:
                    assert table.increment(1, {"n": 1})["n"] == n + 1
        assert table.get(2) is None
        owner.say("end")
        assert owner.join() == 0
        assert table.increment(1, {"n": 1})["n"] == 4
        assert store.check()


def test_a_full_disk_when_slots_are_given_back(store_path: Path) -> None:
    create(store_path)
    disk = FailingDisk()
    with Child(own_on_a_disk_that_fills, store_path) as owner:
        assert owner.hear() == "owns"
        store = Store(store_path, StoreOptions(), files=disk)
        store.table("t").upsert({"k": 1, "v": "sent", "n": 0})
        disk.fail = lambda call: errno.ENOSPC if call == "write" else 0
        store.close()
        with kvstore.open(store_path) as again:
            again.table("t").upsert({"k": 2, "v": "sent", "n": 0})
            slots = sorted(path.name for path in (store_path / paths.SENDERS).glob("*.slot"))
            assert slots == ["0.slot"]  # it was let go
            assert again.table("t").count() >= 2
        owner.say("end")


def test_jobs_patches_epochs_transactions_and_commands_beside_an_owner(
    table: kvstore.Table, store_path: Path, tmp_path: Path
) -> None:
    with kvstore.open(store_path) as store:
        table.upsert({"k": 1, "v": "wrong", "n": 1})
        table.apply_epoch(kvstore.Changes.of([("upsert", {"k": 2, "v": "epoch", "n": 2})], table.schema), "w", 1)
        assert not table.bucket(0).handle.writes
        patch = kvstore.Patch.of(table, table.undo("earliest", writer="w", epoch=1))
        patch.apply(table)
        assert table.get(2) is None
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "a.csv").write_text("k,v,n\n3,job,3\n4,job,4\n")
        store.create_job("landing", source=str(tmp_path / "in"), format="csv", table="t").run()
        with store.transaction() as transaction:
            transaction.upsert("t", {"k": 5, "v": "transaction", "n": 5})
            transaction.delete("t", 1)
        (tmp_path / "rows.csv").write_text("k,v,n\n6,command,6\n")
        assert run_command("load", store_path, "t", tmp_path / "rows.csv").code == 0
        assert [(row["k"], row["v"]) for row in rows_of(table) if row["k"] >= 0] == [
            *((k, "job") for k in (3, 4)),
            (5, "transaction"),
            (6, "command"),
        ]


def write_as_said(pipe: Pipe, path: Path) -> None:
    """Store the rows that are said; delete keys."""
    with kvstore.open(path) as store:
        while (said := pipe.recv()) != "end":
            store.table("t").upsert(said) if isinstance(said, dict) else store.table("t").delete(said)
            pipe.send("done")


def test_what_was_seen_of_a_row_before_is_never_an_answer(table: kvstore.Table, store_path: Path) -> None:
    with Child(write_as_said, store_path) as other:

        def others(said: object) -> None:
            other.say(said)
            assert other.hear() == "done"

        assert table.increment(1, {"n": 1}, default={}) == {"k": 1, "v": None, "n": 1}
        others(1)
        with pytest.raises(KeyError):
            table.increment(1, {"n": 1})
        others({"k": 1, "v": "other", "n": 5})
        assert table.increment(1, {"n": 1}) == {"k": 1, "v": "other", "n": 6}
        assert not table.put_if({"k": 1, "v": "own", "n": 0}, {"k": 1, "v": "other", "n": 5})
        others(1)
        assert table.put_if({"k": 1, "v": "own", "n": 2**63 - 1}, None)
        with pytest.raises(InvalidRequest):
            table.increment(1, {"n": 1})
        others({"k": 1, "v": "other", "n": 0})
        assert table.increment(1, {"n": 1})["n"] == 1
        assert table.increment(2, {"n": 1}, default={"v": "x" * 70_000})["n"] == 1  # too large to be told
        assert [table.increment(2, {"n": 1})["n"] for _ in range(3)] == [2, 3, 4]
        other.say("end")
        assert other.join() == 0


def test_a_request_that_fails_halfway_when_it_is_decided_again_is_sent_as_it_was(
    table: kvstore.Table, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So what is written next is not taken for a repetition."""
    failed, encode_few = list[bool](), requests.encode_few
    with Child(write_as_said, store_path) as other:

        def fail(*given: Any) -> bytes:
            # On a busy machine the sender's thread does it, which would end.
            if not failed and threading.current_thread() is threading.main_thread():
                failed.append(True)
                other.say({"k": 9, "v": "other", "n": 5})
                assert other.hear() == "done"
                raise MemoryError
            return encode_few(*given)

        with monkeypatch.context() as patch, suppress(MemoryError):
            patch.setattr(requests, "encode_few", fail)
            table.increment(9, {"n": 1}, default={"v": "own", "n": 0})
        wait_until(lambda: (table.get(9) or {}).get("n") == (6 if failed else 1))  # it was sent again
        assert not any(table.upsert({"k": n, "v": "own", "n": n}).duplicated for n in range(10, 14))
        assert {row["k"] for row in rows_of(table)} >= {9, 10, 11, 12, 13}
        other.say("end")
        assert other.join() == 0
