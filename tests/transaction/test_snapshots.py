"""``with store.snapshot() as at``: all tables as of one cut, whatever is written meanwhile."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import kvstore
from kvstore.bucket.handle import BucketHandle
from kvstore.errors import NoSuchTable, StoreClosed, Unavailable, UnsupportedOperation
from kvstore.log.log import Log
from kvstore.table.open_table import OpenTable
from kvstore.transaction import cut
from tests.crash.deaths import dies
from tests.support.processes import Child, Pipe
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

ROWS = 700


def opened(store: kvstore.Store, name: str) -> OpenTable:
    return store.runtime.open_table(store.runtime.definition(name))


@pytest.fixture
def store(open_store: Callable[..., kvstore.Store]) -> kvstore.Store:
    store = open_store()
    for name, buckets in (("a", 1), ("b", 3)):
        store.create_table(name, {"k": "int64", "v": "int64"}, primary_key="k", buckets=buckets)
    put(store, 0)
    return store


def put(store: kvstore.Store, value: int, tables: str = "ab") -> None:
    """Give every row of both tables, or of one, one value."""
    with store.transaction() as tx:
        for name in tables:
            tx.upsert(name, pa.table({"k": range(ROWS), "v": [value] * ROWS}))


READS: dict[str, Callable[[kvstore.ReadTable], set[Any]]] = {
    "scan": lambda table: {row["v"] for row in rows_of(table)},
    "scan backwards": lambda table: set(table.scan(["v"], reverse=True).read_all()["v"].to_pylist()),
    "filter": lambda table: set(table.scan(filter=pc.field("k") < 5).read_all()["v"].to_pylist()),
    "get": lambda table: {table[k]["v"] for k in (0, 5, 6, ROWS - 1)},
    "lookup": lambda table: set(table.lookup(list(range(9)))["v"].to_pylist()),
    "changes": lambda table: {max(table.changelog().read_all()["v"].to_pylist())},
    "frame": lambda table: set(table.to_arrow()["v"].to_pylist()),
}


@pytest.mark.parametrize("is_merged", [False, True], ids=["in the memtable", "in the index"])
@pytest.mark.parametrize("read", READS)
def test_what_is_written_later_is_not_seen(store: kvstore.Store, read: str, is_merged: bool) -> None:
    put(store, 1)
    if is_merged:
        store.flush()
    with store.snapshot() as at:
        put(store, 2)
        store["a"].upsert({"k": ROWS, "v": 3})
        store["b"].delete(where=pc.field("k") > 3)
        store.flush()
        store["b"].compact()
        assert {name: READS[read](at[name]) for name in at} == {"a": {1}, "b": {1}}
        assert [at[name].count() for name in at] == [ROWS, ROWS]
        with store.snapshot(["a"]) as later:
            assert later.list_tables() == ["a"]
            assert later["a"][ROWS] == {"k": ROWS, "v": 3}
    assert store["b"].count() == 4


def test_sql_has_one_cut(store: kvstore.Store) -> None:
    with store.snapshot() as at:
        put(store, 1)
        found = at.sql("SELECT min(x.v), max(y.v), max(z.v), count(*) FROM a x JOIN b y USING (k) JOIN b z USING (k)")
        assert found.read_all().to_pylist()[0] == {"min(x.v)": 0, "max(y.v)": 0, "max(z.v)": 0, "count_star()": ROWS}


def test_a_query_of_the_store_has_one_cut_too(store: kvstore.Store) -> None:
    found = store.sql("SELECT a.v = b.v AS same, b.v AS v, count(*) FROM a JOIN b USING (k) GROUP BY ALL")
    put(store, 1)
    assert found.read_all().to_pylist() == [{"same": True, "v": 0, "count_star()": ROWS}]
    changes = store.sql("SELECT max(v) AS v FROM changes('a') UNION ALL SELECT max(v) FROM b")
    put(store, 2)
    assert changes.read_all().to_pylist() == [{"v": 1}, {"v": 1}]


LEFT: dict[str, Callable[[kvstore.Store], object]] = {
    "a snapshot": lambda store: store.snapshot(),
    "a query": lambda store: store.sql("FROM a"),
    "a query that was begun": lambda store: store.sql("FROM b").read_next_batch(),
}


@pytest.mark.parametrize("left", LEFT)
def test_what_is_left_open_and_forgotten_ends(store: kvstore.Store, left: str) -> None:
    store.flush()
    LEFT[left](store)
    gc.collect()
    environments = [handle.reader().environment for name in "ab" for handle in opened(store, name).handles]
    wait_until(lambda: not any(each.is_read for each in environments))


def test_threads_read_one_snapshot(store: kvstore.Store) -> None:
    with store.snapshot() as at, ThreadPoolExecutor(4) as pool:
        put(store, 1)
        found = [pool.submit(READS[read], at[name]) for _ in range(20) for read in READS for name in at]
        assert {value for each in found for value in each.result()} == {0}


def test_after_its_end_nothing_is_read(store: kvstore.Store) -> None:
    with store.snapshot() as at:
        table, scan = at["a"], at["b"].scan()
        scan.read_next_batch()
        reader = at["b"].changelog(follow=True)
        next(reader)
    for read in (lambda: at["a"], lambda: table.get(1), table.count, lambda: rows_of(table), lambda: at.sql("FROM a")):
        with pytest.raises(StoreClosed, match="snapshot has ended"):
            read()
    for begun in (scan.read_all, lambda: list(reader)):
        with pytest.raises(StoreClosed):
            begun()
    at.close()


def test_a_table_of_a_snapshot_says_that_it_is_only_read(store: kvstore.Store) -> None:
    with store.snapshot() as at:
        table: Any = at["a"]
        for refused in (
            lambda: table.upsert({"k": 1}),
            lambda: table.increment(1, {"n": 1}),
            lambda: table.subscribe("reader"),
            lambda: table.writers,
            lambda: table.__setitem__(1, {}),
            lambda: table.__delitem__(1),
        ):
            with pytest.raises(UnsupportedOperation, match=r"store\.table\(name\)"):
                refused()
        assert not hasattr(table, "nothing")


def test_tables_that_there_are_not(store: kvstore.Store) -> None:
    with pytest.raises(NoSuchTable):
        store.snapshot(["a", "nope"])
    with store.snapshot("a") as at, pytest.raises(NoSuchTable, match="The snapshot has no table"):
        at.table("b")
    with store.snapshot([]) as nothing:
        assert list(nothing) == []


def test_a_table_that_changes_its_columns_stays_as_it_was(store: kvstore.Store) -> None:
    with store.snapshot() as at:
        store.rename_columns("a", {"v": "w"})
        store.add_columns("b", {"more": "string"})
        store["b"].upsert({"k": 1, "v": 8, "more": "x"})
        assert at["a"][1] == {"k": 1, "v": 0}
        assert at["b"][1] == {"k": 1, "v": 0}
        store.drop_table("a")
        with pytest.raises(NoSuchTable):
            at["a"].get(1)
    with store.snapshot() as at:
        assert at["b"][1] == {"k": 1, "v": 8, "more": "x"}


def test_rows_of_a_wal_image_are_not_counted(store: kvstore.Store) -> None:
    store.create_table("w", {"k": "int64"}, primary_key="k", changelog_image="wal").upsert({"k": 1})
    with store.snapshot() as at:
        assert at["w"].get(1) == {"k": 1}
        with pytest.raises(UnsupportedOperation, match="WAL image"):
            at["w"].count()


Values = dict[str, set[int]]
"""What is in the rows of each table."""


def of_snapshot(store: kvstore.Store) -> Values:
    with store.snapshot() as at:
        return {name: READS["scan"](at[name]) for name in at}


def of_query(store: kvstore.Store) -> Values:
    rows = store.sql("SELECT 'a' AS name, v FROM a UNION SELECT 'b', v FROM b").read_all().to_pylist()
    return {name: {row["v"] for row in rows if row["name"] == name} for name in "ab"}


@pytest.mark.parametrize("read", [of_snapshot, of_query])
@pytest.mark.parametrize(("call", "tables", "in_a"), [(2, "ab", 1), (3, "b", 0)])
def test_a_commit_that_comes_between_two_buckets_is_in_none_or_all(
    store: kvstore.Store,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[kvstore.Store], Values],
    call: int,
    tables: str,
    in_a: int,
) -> None:
    snapshot, calls = BucketHandle.snapshot, []

    @contextmanager
    def late(self: BucketHandle) -> Any:
        with snapshot(self) as view:
            calls.append(self)
            if len(calls) == call:
                put(store, 1, tables)
            yield view

    monkeypatch.setattr(BucketHandle, "snapshot", late)
    assert read(store) == {"a": {in_a}, "b": {1}}
    assert len(calls) > 4


def test_commits_to_other_tables_do_not_matter(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_table("c", {"k": "int64", "v": "int64"}, primary_key="k", buckets=2)
    snapshot, calls = BucketHandle.snapshot, []

    @contextmanager
    def late(self: BucketHandle) -> Any:
        with snapshot(self) as view:
            calls.append(self)
            if len(calls) == 1:
                with store.transaction() as tx:
                    tx.upsert("c", [{"k": k, "v": 1} for k in range(9)])
            yield view

    monkeypatch.setattr(cut, "COMMIT_WAIT_SECONDS", 0)
    monkeypatch.setattr(BucketHandle, "snapshot", late)
    with store.snapshot(["a", "b"]) as at:
        assert at["a"].count() == ROWS
    assert store["c"].count() == 9


def test_a_commit_that_some_buckets_have_is_waited_for(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    append, begun, go_on = Log.append, threading.Event(), threading.Event()

    def wait(self: Log, *given: Any, **named: Any) -> None:
        if begun.is_set():
            assert go_on.wait(60)
        begun.set()
        append(self, *given, **named)

    with ThreadPoolExecutor(3) as pool:
        monkeypatch.setattr(Log, "append", wait)
        writing = pool.submit(put, store, 1)
        assert begun.wait(60)
        reading = pool.submit(store.snapshot)
        pool.submit(go_on.set)
        with reading.result() as at:
            assert len({value for name in at for value in READS["scan"](at[name])}) == 1
        writing.result()


# Processes


def put_and_die(pipe: Pipe, path: Path) -> None:
    with kvstore.open(path) as store:
        put(store, 1)
        dies(Log, "append", call=1)
        pipe.send("ready")
        put(store, 2)


def raises_unavailable(call: Callable[[], object]) -> bool:
    try:
        call()
    except Unavailable:
        return True
    return False


@pytest.mark.parametrize("read_only", [False, True])
def test_a_commit_of_a_dead_process(
    store: kvstore.Store, store_path: Path, read_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    with Child(put_and_die, store_path) as child:
        assert child.hear() == "ready"
        child.join()
    if read_only:
        monkeypatch.setattr(cut, "COMMIT_WAIT_SECONDS", 0)
        with kvstore.open(store_path, read_only=True) as reader:
            # Either bucket may be the one that has its batch.
            table = reader["a" if raises_unavailable(partial(len, reader["a"])) else "b"]
            others = table.count, table.offsets, partial(len, table), partial(table.history, 0), table.binlog
            for read in (reader.snapshot, *(partial(read, table) for read in READS.values()), *others):
                with pytest.raises(Unavailable, match="open the store for writing"):
                    read()
            assert [each for each in reader.check().findings if "was not completed" not in each] == []
            with kvstore.open(store_path) as writer:
                put(writer, 3)
            assert {name: READS["scan"](reader[name]) for name in "ab"} == {"a": {3}, "b": {3}}
        return
    with kvstore.open(store_path) as again, again.snapshot() as at:
        assert {name: READS["scan"](at[name]) for name in at} == {"a": {2}, "b": {2}}
