"""Transactions of several processes: the process that owns the first bucket commits those of all, each once."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

import kvstore
from kvstore.bucket import commit_lock
from kvstore.bucket.commit_lock import COMMIT_WAIT_SECONDS
from kvstore.disk.lock import ProcessLock
from kvstore.errors import SchemaMismatch, TransactionConflict
from kvstore.sending.frames import Kind
from kvstore.store import runtime
from kvstore.transaction import commit
from kvstore.transaction.elsewhere import answer
from logformat import paths
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of

TABLES = {"a": 1, "b": 2}
"""Names, and numbers of buckets."""


@pytest.fixture
def path(store_path: Path) -> Path:
    with kvstore.open(store_path) as store:
        for name, buckets in TABLES.items():
            store.create_table(name, {"k": "int64", "n": "int64"}, primary_key="k", buckets=buckets)
    return store_path


def owned(store: kvstore.Store) -> int:
    """Number of the buckets that this process owns."""
    return sum(store[name].bucket(each).handle.writes for name, count in TABLES.items() for each in range(count))


def own(pipe: Pipe, path: Path, *tables: str) -> None:
    """Own the buckets of tables, and do what is heard."""
    with kvstore.open(path) as store:
        for name in tables:
            store[name].upsert([{"k": -1 - n, "n": 0} for n in range(16)])
        pipe.send("owns")
        while (word := pipe.recv()) != "end":
            if word == "alter":
                store.add_columns("a", {"m": "int64"})
            if word == "die":
                die_before_the_answer()
            pipe.send(owned(store))
    pipe.send("ended")


def die_before_the_answer() -> None:
    """End this process once it has committed a transaction of another one."""

    def dying(*arguments: Any) -> tuple[Kind, bytes]:
        answer(*arguments)
        os._exit(1)

    runtime.answer = dying


def count(pipe: Pipe, path: Path, name: str, times: int) -> None:
    """Add to a row of each table, and to one of this process, in one transaction; say so each time."""
    with kvstore.open(path) as store:
        for number in range(times):
            while True:
                try:
                    with store.transaction() as tx:
                        for table in TABLES:
                            row = tx.get(table, 0) or {"k": 0, "n": 0}
                            tx.upsert(table, row | {"n": row["n"] + 1})
                        tx.upsert("a", {"k": 1000 * int(name) + number + 1, "n": number})
                    break
                except TransactionConflict:
                    continue
            pipe.send(number)
    pipe.send("done")


def test_a_transaction_is_committed_by_the_owner(path: Path) -> None:
    with Child(own, path, "a", "b") as owner, kvstore.open(path) as store:
        assert owner.hear() == "owns"
        with store.transaction() as tx:
            assert tx.get("a", -1) == {"k": -1, "n": 0}
            assert tx.get("b", 5) is None
            tx.upsert("a", {"k": 5, "n": 1})
            tx.upsert("a", [{"k": k, "n": 1} for k in range(100, 400)])
            tx.delete("a", -1)
            tx.upsert("b", {"k": 5, "n": 2})
        assert tx.result is not None
        assert tx.result.offsets["a"][0].first_offset == 16
        assert set(tx.result.offsets["b"]) == {0, 1}
        assert owned(store) == 0
        assert (store["a"].get(5), store["a"].get(399)) == ({"k": 5, "n": 1}, {"k": 399, "n": 1})
        assert (store["a"].get(-1), store["b"].get(5)) == (None, {"k": 5, "n": 2})
        owner.say("?")
        assert owner.hear() == 3
        owner.say("end")
        assert owner.hear() == "ended"
        assert store.check()


def test_a_row_that_changed_is_a_conflict_with_its_key(path: Path) -> None:
    with Child(own, path, "a", "b") as owner, kvstore.open(path) as store:
        assert owner.hear() == "owns"
        transaction = store.transaction()
        tx = transaction.__enter__()
        tx.get("b", -3)
        store["b"].upsert({"k": -3, "n": 7})
        tx.upsert("a", {"k": 1, "n": 1})
        with pytest.raises(TransactionConflict) as conflict:
            transaction.__exit__(None, None, None)
        assert (conflict.value.where["table"], conflict.value.where["key"]) == ("b", {"k": -3})
        assert store["a"].get(1) is None
        with pytest.raises(SchemaMismatch), store.transaction() as tx:
            tx.upsert("a", {"k": "text"})


def test_named_ones_are_committed_once(path: Path) -> None:
    with Child(own, path, "a", "b") as owner, kvstore.open(path) as store:
        assert owner.hear() == "owns"
        for epoch in (3, 3, 7, 7):
            with store.transaction(writer="w", epoch=epoch) as tx:
                tx.upsert("a", {"k": 1, "n": epoch})
                tx.upsert("b", {"k": 1, "n": epoch})
            assert tx.result is not None
            last = tx.result.duplicated
        assert last
        assert store["a"].offsets()[0][1] == 16 + 3


def test_a_table_that_was_altered_meanwhile(path: Path) -> None:
    with Child(own, path, "a", "b") as owner, kvstore.open(path) as store:
        assert owner.hear() == "owns"
        with store.transaction() as tx:
            tx.upsert("a", {"k": 1, "n": 1})
            tx.upsert("b", {"k": 1, "n": 1})
            owner.say("alter")
            assert owner.hear() == 3
        assert store["a"].get(1) == {"k": 1, "n": 1, "m": None}
        assert store["b"].get(1) == {"k": 1, "n": 1}


def test_one_process_owns_all_after_a_few_transactions(path: Path) -> None:
    with Child(own, path, "a") as one, Child(own, path, "b") as other, kvstore.open(path) as store:
        assert (one.hear(), other.hear()) == ("owns", "owns")
        for n in range(3):
            with store.transaction() as tx:
                tx.upsert("a", {"k": 1, "n": n})
                tx.upsert("b", {"k": 1, "n": n})
        one.say("?")
        assert one.hear() == 3
        store["b"].upsert({"k": 2, "n": 2})
        assert not store["b"].bucket(0).handle.writes


def test_a_stopped_sender_stops_no_other(path: Path) -> None:
    with Child(own, path, "a", "b") as owner:
        assert owner.hear() == "owns"
        with Child(count, path, "1", 10**6) as sender:
            assert sender.hear() == 0
            sender.stop()
            with kvstore.open(path) as store, store.transaction() as tx:
                tx.upsert("a", {"k": 1, "n": 1})
                tx.upsert("b", {"k": 1, "n": 1})
            os.kill(sender.pid, signal.SIGCONT)


@pytest.mark.parametrize("others", [0, 6])
def test_an_answer_that_was_lost(path: Path, monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    with Child(own, path, "a", "b") as owner, kvstore.open(path) as store:
        assert owner.hear() == "owns"
        owner.say("die")
        assert owner.hear() == 3

        def committed_here(*arguments: Any, **given: Any) -> Any:
            monkeypatch.undo()
            for n in range(others):
                with store.transaction() as other:
                    other.upsert("a", {"k": 2, "n": n})
                    other.upsert("b", {"k": 2, "n": n})
            return commit.committed_here(*arguments, **given)

        monkeypatch.setattr(commit, "committed_here", committed_here)
        with store.transaction() as tx:
            assert tx.get("a", 1) is None
            tx.upsert("a", {"k": 1, "n": 1})
            tx.upsert("b", {"k": 1, "n": 1})
        assert owner.join() == 1
        assert tx.result is not None
        assert tx.result.duplicated
        offset = tx.result.offsets["a"][0].first_offset
        (change,) = [each for batch in store["a"].changelog(offset) for each in batch.to_pylist() if each["k"] == 1]
        assert change["_log_offset"] == offset
        assert len(store["b"]) == 17 + (others > 0)
        assert store.check()


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 100))])
def test_each_is_committed_once_whichever_process_is_killed(path: Path, seed: int) -> None:
    random = Random(seed)
    acknowledged: dict[str, int] = {}
    with Child(own, path, "a", "b") as owner:
        assert owner.hear() == "owns"
        with Child(count, path, "1", 8) as one, Child(count, path, "2", 8) as other:
            for _ in range(random.randrange(1, 5)):
                one.hear()
            owner.__exit__()
            for name, child in (("1", one), ("2", other)):
                said = list(iter(child.hear, "done"))
                acknowledged[name] = 8
                assert said[-1] == 7
    with kvstore.open(path) as store:
        rows = {row["k"]: row["n"] for row in rows_of(store["a"])}
        assert rows[0] == sum(acknowledged.values())
        assert {row["k"]: row["n"] for row in rows_of(store["b"])}[0] == rows[0]
        changes = [each["k"] for batch in store["a"].changelog() for each in batch.to_pylist()]
        assert all(changes.count(1000 * name + number + 1) == 1 for name in (1, 2) for number in range(8))
        assert store.check()


def write_much(pipe: Pipe, path: Path) -> None:
    """Commit a transaction that is not small, and say so."""
    with kvstore.open(path) as store:
        pipe.send("sends")
        with store.transaction() as tx:
            for table in TABLES:
                tx.upsert(table, [{"k": k, "n": 1} for k in range(500)])
    pipe.send("done")


def test_an_owner_closes_while_a_transaction_of_another_one_waits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for the lock that the transaction waits for; the sender goes on elsewhere."""
    waits, pause = threading.Event(), commit_lock.pause

    def paused() -> None:
        waits.set()
        pause()

    monkeypatch.setattr(commit_lock, "pause", paused)
    owner = kvstore.open(path)
    owner["a"].upsert({"k": -1, "n": 0})
    table = owner.runtime.open_table(owner.runtime.definition("a"))
    files = owner.runtime.files
    other = ProcessLock(paths.commit_lock(path, table.catalog.table), files)
    assert other.try_acquire()
    try:
        with Child(write_much, path) as sender:
            assert sender.hear() == "sends"
            assert waits.wait(60)
            closing = threading.Thread(target=owner.close)
            closing.start()
            closing.join(COMMIT_WAIT_SECONDS / 2)
            assert not closing.is_alive()
            other.release()
            assert sender.hear() == "done"
            assert sender.join() == 0
    finally:
        other.release()
    with kvstore.open(path) as store:
        assert [sum(row["n"] for row in rows_of(store[name])) for name in TABLES] == [500, 500]
        assert store.check().ok
