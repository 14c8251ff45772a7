"""Columns that are renamed and dropped: rows, changes, readers and writers at work, engines, copies and losses."""

from __future__ import annotations

import datetime as dt
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import kvstore
from kvstore.bucket.handle import BucketHandle
from kvstore.checkpoint import recovery
from kvstore.cli.arguments import store_id_of
from kvstore.clock import SystemClock
from kvstore.disk.files import Files
from kvstore.errors import (
    InvalidRequest,
    InvalidTargetColumns,
    NoSuchTable,
    SchemaMismatch,
    StoreError,
    UnsupportedOperation,
)
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from logformat import paths
from logformat.ids import BucketId
from tests.conftest import OpenStore
from tests.store.helpers import Program
from tests.support.clocks import SetClock
from tests.support.disks import FailingDisk
from tests.support.tables import binlog_of, changes_of, rows_of

pytestmark = pytest.mark.usefixtures("both_ways")

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), False),
        pa.field("a", pa.int64()),
        pa.field("b", pa.int64()),
        pa.field("c", pa.string(), False),
    ]
)


def row(k: int, a: int | None = None, b: int | None = None, c: str = "c") -> dict[str, Any]:
    return {"k": k, "a": a, "b": b, "c": c}


ROWS = [row(1, 10, 20), row(2, 11, 21)]

OTHER = """
store = kvstore.open(path, read_only=True)
table = store.table("t")
print([table[1]["a"], table[1]["b"]])
sys.stdin.readline()
print([table[1], table[2], table.schema.names])
"""


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.long), 3], ids=["one bucket", "three buckets"])
def table(store: kvstore.Store, request: pytest.FixtureRequest) -> Iterator[kvstore.Table]:
    table = store.create_table("t", SCHEMA, "k", buckets=request.param)
    table.upsert(ROWS)
    yield table
    assert store.check()


def by_key(table: kvstore.Table) -> list[dict[str, Any]]:
    assert table.primary_key is not None
    return sorted(rows_of(table), key=lambda each: each[table.primary_key[0]])  # type: ignore[index]


class TestRename:
    def test_every_read_has_the_new_names(self, store: kvstore.Store, table: kvstore.Table) -> None:
        table.delete([2])
        store.rename_columns("t", {"k": "key", "a": "x"})
        expected = {"key": 1, "x": 10, "b": 20, "c": "c"}
        assert table.schema.names == list(expected)
        assert (table.primary_key, table.bucket_key) == (("key",), ("key",))
        assert by_key(table) == [expected]
        assert table[1] == table.get({"key": 1}) == expected
        assert table.lookup([1]).to_pylist() == [{**expected, "_found": True}]
        assert table.prefix_lookup({"key": 1}).to_pylist() == [expected]
        assert {name for _, _, change, _ in changes_of(table) for name in change} == set(expected)
        assert {name for _, _, _, after, _ in binlog_of(table) for name in after or {}} == set(expected)
        assert table.scan(columns=["x"], filter=pc.field("key") == 1).read_all().to_pylist() == [{"x": 10}]
        with pytest.raises(SchemaMismatch, match="unknown"):
            table.scan(columns=["a"])
        with pytest.raises(SchemaMismatch):
            table.upsert(row(1))
        table.upsert({"key": 3, "x": 1, "c": "d"})
        table.upsert({**expected, "x": 2})
        assert by_key(table) == [{**expected, "x": 2}, {"key": 3, "x": 1, "b": None, "c": "d"}]

    def test_columns_exchange_their_names(self, store: kvstore.Store, table: kvstore.Table) -> None:
        store.rename_columns("t", {"a": "b", "b": "a"})
        assert by_key(table) == [{"k": 1, "b": 10, "a": 20, "c": "c"}, {"k": 2, "b": 11, "a": 21, "c": "c"}]
        store.rename_columns("t", {"a": "b", "b": "a"})
        assert by_key(table) == ROWS

    def test_earlier_rows_and_undo_have_the_new_names(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(ROWS)
        then = table.offsets()[0][1]
        table.upsert(row(1, 5))
        store.rename_columns("t", {"a": "b", "b": "a"})
        table.upsert({"k": 2, "a": 7, "b": 8, "c": "e"})
        expected = [{"k": 1, "b": 10, "a": 20, "c": "c"}, {"k": 2, "b": 11, "a": 21, "c": "c"}]
        assert rows_of(table, as_of=then) == expected
        table.apply(table.undo(then))
        assert by_key(table) == expected
        assert store.check()

    @pytest.mark.parametrize("engine", [kvstore.Versioned("a"), kvstore.Aggregate({"a": "sum", "b": "max"})])
    def test_the_columns_of_an_engine(self, store: kvstore.Store, engine: Any) -> None:
        table = store.create_table("t", SCHEMA, "k", merge_engine=engine, buckets=2)
        table.upsert(row(1, 5, 1))
        store.rename_columns("t", {"a": "b", "b": "a"})
        table.upsert({"k": 1, "b": 6, "a": 0, "c": "c"})
        table.upsert({"k": 1, "b": 1, "a": 9, "c": "c"})
        is_sum = isinstance(engine, kvstore.Aggregate)
        assert table[1] == {"k": 1, "b": 12 if is_sum else 6, "a": 9 if is_sum else 0, "c": "c"}

    def test_a_column_that_the_table_fills_and_a_bucket_key(self, store: kvstore.Store) -> None:
        schema = pa.schema([*SCHEMA, pa.field("id", pa.int64())])
        table = store.create_table("t", schema, ["k", "c"], auto_increment="id", buckets=3, bucket_key="c")
        table.upsert([row(n, c=str(n)) for n in range(9)])
        ids = {each["id"] for each in rows_of(table)}
        store.rename_columns("t", {"id": "nr", "c": "place"})
        table.upsert([{"k": n, "place": str(n), "a": 1} for n in range(12)])
        assert len({each["nr"] for each in rows_of(table)} | ids) == 12
        assert (table.options.auto_increment, table.bucket_key) == ("nr", ("place",))
        assert store.check()


class TestDrop:
    def test_nothing_shows_a_dropped_column(self, store: kvstore.Store, table: kvstore.Table) -> None:
        table.upsert(row(1, 12, 22))
        store.drop_columns("t", ["a", "c"])
        assert table.schema.names == ["k", "b"]
        assert by_key(table) == [{"k": 1, "b": 22}, {"k": 2, "b": 21}]
        assert table[2] == {"k": 2, "b": 21}
        assert table.lookup([2]).schema.names == ["k", "b", "_found"]
        assert all(set(change) == {"k", "b"} for _, _, change, _ in changes_of(table))
        assert all(set(after) == {"k", "b"} for _, _, _, after, _ in binlog_of(table) if after)
        assert table.changelog().read_all().schema.names[5:] == ["k", "b"]
        for wrong in ({"k": 1, "a": 1}, {"k": 1, "c": "c"}):
            with pytest.raises(SchemaMismatch):
                table.upsert(wrong)
        with pytest.raises(InvalidTargetColumns):
            table.upsert({"k": 1, "a": 1}, columns=["k", "a"])
        table.upsert({"k": 3, "b": 1})  # without c, which took no nulls
        assert table[3] == {"k": 3, "b": 1}

    def test_a_column_of_that_name_is_a_new_one(self, store: kvstore.Store, table: kvstore.Table) -> None:
        store.drop_columns("t", "a")
        store.add_columns("t", [pa.field("a", pa.string())])
        store.rename_columns("t", {"b": "_dropped_1"})
        expected = {"k": 1, "_dropped_1": 20, "c": "c", "a": None}
        assert table[1] == expected
        table.upsert({**expected, "a": "x"})
        store.drop_columns("t", "a")
        store.rename_columns("t", {"_dropped_1": "a"})
        assert by_key(table) == [{"k": 1, "a": 20, "c": "c"}, {"k": 2, "a": 21, "c": "c"}]

    def test_only_the_key_is_left(self, store: kvstore.Store, table: kvstore.Table) -> None:
        store.drop_columns("t", ["a", "b", "c"])
        table.upsert({"k": 3})
        assert [table[k] for k in (1, 2, 3)] == by_key(table) == [{"k": 1}, {"k": 2}, {"k": 3}]

    def test_writes_that_look_at_the_stored_row(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k", skip_identical_updates=True)
        table.upsert(ROWS)
        store.drop_columns("t", ["a", "c"])
        end = table.offsets()[0][1]
        table.upsert({"k": 1, "b": 20})
        assert not table.changelog(end).read_all().num_rows, "what is not shown is no difference"
        assert not table.put_if({"k": 2, "b": 0}, {"k": 2, "b": 20})
        assert table.put_if({"k": 2, "b": 0}, {"k": 2, "b": 21})
        table.update_where(pc.field("b") == 20, {"b": pc.field("b") + 1})
        table.delete(where=pc.field("b") == 0)
        assert rows_of(table) == [{"k": 1, "b": 21}]
        assert store.check()

    def test_log_tables(self, store: kvstore.Store) -> None:
        table = store.create_table("log", SCHEMA)
        table.upsert(ROWS)
        store.rename_columns("log", {"b": "x"})
        store.drop_columns("log", ["a", "c"])
        table.upsert({"k": 3, "x": 5})
        assert [change for _, _, change, _ in changes_of(table)] == [
            *({"k": each["k"], "x": each["b"]} for each in ROWS),
            {"k": 3, "x": 5},
        ]
        assert store.check()


def test_what_is_refused(store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, ["k", "c"], bucket_key="c", merge_engine=kvstore.Versioned("a"))
    store.create_table("ids", SCHEMA, "k", auto_increment="a")
    store.create_table("sums", SCHEMA, "k", merge_engine=kvstore.Aggregate({"b": "sum"}))
    before = [store[name].schema_id for name in store]
    wrong_names: list[Any] = [
        *({}, {"a": "b"}, {"a": "x", "b": "x"}, {"a": ""}, {"a": "_bucket"}, {"a": "\x7f1"}, {"a": "x\n"}, {"a": 5}),
        *(["a"], {"a": "x" * 256}, {"a": "\ud800"}),
    ]
    for names in wrong_names:
        with pytest.raises(InvalidRequest):
            store.rename_columns("t", names)
    for names in ({"x": "y"}, {"\x7f1": "y"}):
        with pytest.raises(SchemaMismatch, match="no such column"):
            store.rename_columns("t", names)
    for name, column, said in (
        *(("t", "k", "the key"), ("t", "c", "key"), ("t", "a", "merge engine"), ("ids", "a", "auto_increment")),
        ("sums", "b", "merge engine"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            store.drop_columns(name, [column])
    with pytest.raises(SchemaMismatch, match="no such column"):
        store.drop_columns("t", ["b", "x"])
    store.create_table("log", SCHEMA)
    with pytest.raises(InvalidRequest, match="at least one column"):
        store.drop_columns("log", SCHEMA.names)
    for call in (store.rename_columns, store.drop_columns):
        with pytest.raises(NoSuchTable):
            call("none", {"a": "b"} if call == store.rename_columns else ["a"])  # type: ignore[arg-type]
    store.rename_columns("t", {"a": "a"})  # nothing changes, so earlier versions still read the store
    assert [store[name].schema_id for name in ("ids", "sums", "t")] == before
    with kvstore.open(store.path, read_only=True) as reader, pytest.raises(UnsupportedOperation):
        reader.drop_columns("t", "b")


class TestAtWork:
    """What began before the columns changed goes on under the names that it began with, or says that it can't."""

    def test_readers(self, store: kvstore.Store, table: kvstore.Table) -> None:
        scan, started = table.scan(), table.changelog(follow=True)
        first = next(started).to_pylist()
        followed = table.changelog(table_ends(table), follow=True)
        binlog = table.binlog(table_ends(table), follow=True)
        store.rename_columns("t", {"a": "b", "b": "a", "k": "key"})
        store.drop_columns("t", ["c"])
        store.add_columns("t", {"c": "int32"})
        table.upsert({"key": 7, "a": 1, "b": 2, "c": 3})
        store.flush()
        assert sorted(scan.read_all().to_pylist(), key=lambda each: each["k"]) == ROWS
        assert {name: first[0][name] for name in SCHEMA.names} in ROWS
        (change,) = next(iter(followed)).to_pylist()
        assert {name: change[name] for name in SCHEMA.names} == {"k": 7, "a": 2, "b": 1, "c": None}
        (change,) = next(iter(binlog)).to_pylist()
        assert change["after"] == {"k": 7, "a": 2, "b": 1, "c": None}
        assert by_key(table)[0] == {"key": 1, "b": 10, "a": 20, "c": None}

    def test_a_long_upsert(self, open_store: OpenStore) -> None:
        store = open_store(batch_rows_max=2)
        table = store.create_table("t", SCHEMA, "k")

        def rows() -> Iterator[dict[str, Any]]:
            for n in range(8):
                if n == 5:
                    store.rename_columns("t", {"a": "b", "b": "a"})
                    store.drop_columns("t", "c")
                yield row(n, n, -n)

        def batches() -> Iterator[pa.RecordBatch]:
            for each in rows():
                yield pa.RecordBatch.from_pylist([each], schema=SCHEMA)

        table.upsert(pa.RecordBatchReader.from_batches(SCHEMA, batches()))
        assert rows_of(table) == [{"k": n, "b": n, "a": -n} for n in range(8)]
        assert store.check()

    def test_batches_of_an_earlier_schema(self, store: kvstore.Store, table: kvstore.Table) -> None:
        schema_id, changes = (
            table.schema_id,
            kvstore.Changes.of([("upsert", row(5, 1, 2)), ("delete", {"k": 1})], SCHEMA),
        )
        early = table.by_bucket(changes)
        store.rename_columns("t", {"a": "b", "b": "a", "k": "key"})
        store.drop_columns("t", "c")
        for bucket, part in early.items():
            table.bucket(bucket).apply(part, schema_id=schema_id)
        assert by_key(table) == [{"key": 2, "b": 11, "a": 21}, {"key": 5, "b": 1, "a": 2}]
        late = table.by_bucket(kvstore.Changes.of([("upsert", row(6, 3, 4))], SCHEMA), schema_id=schema_id)
        for bucket, part in late.items():
            table.bucket(bucket).apply(part, schema_id=schema_id)
        assert table[6] == {"key": 6, "b": 3, "a": 4}
        if table.buckets == 1:
            partial = kvstore.Changes.of([("upsert", {"k": 6, "a": 9})], SCHEMA.remove(3).remove(2))
            table.bucket(0).apply(partial, columns=["k", "a"], schema_id=schema_id)
            assert table[6] == {"key": 6, "b": 9, "a": 4}
            with_dropped = kvstore.Changes.of([("upsert", {"k": 6, "a": 10, "c": "z"})], SCHEMA.remove(2))
            table.bucket(0).apply(with_dropped, columns=["k", "a", "c"], schema_id=schema_id)
            assert table[6] == {"key": 6, "b": 10, "a": 4}
        with pytest.raises(SchemaMismatch, match="renamed or dropped") as refused:
            table.parts.apply({BucketId(0): changes}, "w", schema_id=schema_id)
        assert refused.value.where["renamed"] == {"k": "key", "a": "b", "b": "a"}
        assert refused.value.where["dropped"] == ["c"]
        with pytest.raises(SchemaMismatch, match="no such column"):
            table.parts.apply({BucketId(0): changes}, "w")

    def test_a_process_that_has_the_table_open(self, store: kvstore.Store, table: kvstore.Table) -> None:
        store.flush()
        with Program(store.path, OTHER) as other:
            assert other.line() == str([10, 20])
            store.rename_columns("t", {"a": "b", "b": "a"})
            store.drop_columns("t", ["c"])
            table.upsert({"k": 1, "a": 5, "b": 6})
            store.flush()
            other.go_on()
            assert other.line() == str([{"k": 1, "b": 6, "a": 5}, {"k": 2, "b": 11, "a": 21}, ["k", "b", "a"]])

    def test_conditional_writes(self, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
        store = open_store(batch_rows_max=2)
        table = store.create_table("t", SCHEMA.remove(3), "k")
        table.upsert([{"k": k, "a": 10 + k, "b": k} for k in range(6)])
        submit, hooks = BucketHandle.submit, [lambda: None]

        def late(*arguments: Any, **named: Any) -> Any:
            """The columns change while a request is on its way."""
            if hooks:
                hooks.pop(0)()
            return submit(*arguments, **named)

        monkeypatch.setattr(BucketHandle, "submit", late)
        hooks.append(lambda: store.rename_columns("t", {"a": "b", "b": "a"}))
        table.update_where(pc.field("a") >= 10, {"a": pc.field("a") + pc.field("b"), "b": 0})
        expected = [{"k": k, "b": 10 + 2 * k, "a": 0} for k in range(6)]
        assert rows_of(table) == expected
        hooks.append(lambda: store.rename_columns("t", {"a": "b", "b": "x"}))
        assert table.put_if({"k": 1, "b": 5, "a": 6}, expected[1])
        assert table[1] == {"k": 1, "x": 5, "b": 6}
        hooks.append(lambda: store.drop_columns("t", "x"))
        assert not table.put_if({"k": 1, "x": 7, "b": 8}, {"k": 1, "x": 0, "b": 6})

        def rename_add_and_write() -> None:
            store.rename_columns("t", {"b": "y"})
            store.add_columns("t", [pa.field("n", pa.int64())])
            table.upsert({"k": 2, "n": 7}, columns=["k", "n"])

        before = table[2]
        hooks.append(rename_add_and_write)
        with pytest.raises(SchemaMismatch, match="repeat it"):
            table.put_if(before | {"b": 9}, before)
        assert table[2]["n"] == 7, "what others have stored in a new column stays"
        store.drop_columns("t", "n")
        store.rename_columns("t", {"y": "b"})
        hooks.append(lambda: store.add_columns("t", [pa.field("x", pa.string())]))
        table.delete(where=pc.field("b") == 6)
        assert rows_of(table) == [{"k": k, "b": 0, "x": None} for k in (0, 2, 3, 4, 5)]
        assert store.check()

    def test_a_writer(self, store: kvstore.Store, table: kvstore.Table) -> None:
        with table.writer(linger_ms=60_000) as writer:
            writer.upsert(pa.table([[5], [1], [2], ["c"]], schema=SCHEMA))  # converted now, sent later
            store.rename_columns("t", {"a": "b", "b": "a", "k": "key"})
            store.drop_columns("t", "c")
            writer.upsert({"key": 6, "b": 3, "a": 4})
            writer.flush()
            assert by_key(table)[2:] == [{"key": 5, "b": 1, "a": 2}, {"key": 6, "b": 3, "a": 4}]
            writer.upsert({"k": 7})
            with pytest.raises(StoreError, match="k"):
                writer.flush()

    def test_an_epoch_that_is_decided_and_not_appended_yet(self, store_path: Path) -> None:
        disk = FailingDisk()
        with Store(store_path, StoreOptions(), files=disk) as store:
            table = store.create_table("t", SCHEMA.insert(1, pa.field("d", pa.date32())), "k", buckets=3)
            table.upsert(ROWS)
            store.drop_columns("t", "d")
            append = store.runtime.journal.append

            def then_fail(decide: Any, **how: Any) -> Any:
                state = append(decide, **how)
                disk.fail = lambda _: errno.ENOSPC if state.writers_of(table.identity[1]).commits else 0
                return state

            store.runtime.journal.append = then_fail  # type: ignore[method-assign]
            with pytest.raises(StoreError):
                table.apply_epoch(kvstore.Changes.of([("upsert", row(n, n, -n)) for n in range(6)], SCHEMA), "w", 0)
            disk.fail = lambda _: 0
            store.runtime.journal.append = append  # type: ignore[method-assign]
            assert store.runtime.catalog().writers_of(table.identity[1]).commits
            store.rename_columns("t", {"a": "b", "b": "a"})
            store.drop_columns("t", "c")
        with kvstore.open(store_path) as store:
            table = store["t"]
            assert by_key(table) == [{"k": n, "b": n, "a": -n} for n in range(6)]
            table.apply_epoch(kvstore.Changes.of([("delete", {"k": 0})], table.schema), "w", 1)
            assert [each["k"] for each in by_key(table)] == [1, 2, 3, 4, 5]
            assert store.check()


def table_ends(table: kvstore.Table) -> dict[int, int]:
    return {bucket: end for bucket, (_, end) in table.offsets().items()}


class TestKept:
    """A column is what it was after losses, in snapshots, restored stores and copies."""

    def test_a_lost_index_is_rebuilt_from_an_earlier_snapshot(self, open_store: OpenStore) -> None:
        store = open_store()
        table = store.create_table("t", SCHEMA, "k")
        table.upsert(ROWS)
        table.snapshot()
        store.rename_columns("t", {"a": "b", "b": "a"})
        store.drop_columns("t", "c")
        table.upsert({"k": 3, "b": 1, "a": 2})
        (taken,) = table.snapshot().paths
        kept = pq.read_table(taken / "rows.parquet").to_pylist()
        assert kept[0] == {"k": 1, "b": 10, "a": 20, "_dropped_3": "c", "_schema_id": 1}
        store.add_columns("t", [pa.field("_dropped_3", pa.int8())])
        table.upsert({"k": 4, "b": 0, "a": 1, "_dropped_3": 9})
        expected = rows_of(table)
        (newest,) = table.snapshot().paths
        assert pq.read_schema(newest / "rows.parquet").names[3:5] == ["__dropped_3", "_dropped_3"]
        store.checkpoint()
        store.close()
        shutil.rmtree(store.path / "tables/1/0/index")
        shutil.rmtree(newest)
        shutil.rmtree(taken)
        store = open_store()
        assert rows_of(store["t"]) == expected
        assert store.check()

    def test_a_lost_catalog_gets_them_back_from_the_definition_file(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with kvstore.open(path) as store:
            table = store.create_table("t", SCHEMA, "k", merge_engine=kvstore.Versioned("a"))
            other = store.create_table("u", SCHEMA, "k")
            for each in (table, other):
                each.upsert(ROWS)
                each.snapshot()
            store.checkpoint()
            store.rename_columns("t", {"a": "b", "b": "a", "k": "key"})
            store.drop_columns("t", "c")
            store.add_columns("t", [pa.field("c", pa.int8())])
            table.upsert({"key": 1, "b": 99, "c": 5})
            expected, changes = by_key(table), changes_of(table)
        for lost in (paths.JOURNAL, paths.IMAGES):
            shutil.rmtree(path / lost)
            shutil.rmtree(path / "tables/1/0/index", ignore_errors=True)
            found = recovery.recover(path, store_id_of(path), Files(), SystemClock(), write=True)
            assert "t" in found.restored
            with kvstore.open(path) as store:
                assert (by_key(store["t"]), changes_of(store["t"])) == (expected, changes)
                assert rows_of(store["u"]) == ROWS
                assert store["t"].options.merge_engine == {"versioned": "b"}
                assert store.check()
                store.checkpoint()

    def test_restored_stores_and_copies(self, tmp_path: Path) -> None:
        clock = SetClock()
        with Store(tmp_path / "s", StoreOptions(), clock=clock) as store:
            table = store.create_table("t", SCHEMA, "k", buckets=2)
            table.upsert(ROWS)
            replica = store.add_replica(str(tmp_path / "r"), "r")
            store.flush()
            replica.ship()
            clock.now += 1000
            before = dt.datetime.fromtimestamp(clock.now / 1000, dt.UTC)
            clock.now += 1000
            with kvstore.follow(str(tmp_path / "r"), tmp_path / "copy") as follower:
                follower.pull()
            with kvstore.open(tmp_path / "copy", read_only=True) as copy:
                known = copy["t"]
                assert by_key(known) == ROWS
                store.rename_columns("t", {"a": "b", "b": "a"})
                store.drop_columns("t", "c")
                table.upsert({"k": 3, "b": 1, "a": 2})
                store.flush()
                replica.ship()
                expected = by_key(table)
                with kvstore.follow(str(tmp_path / "r"), tmp_path / "copy") as follower:
                    follower.pull()
                assert by_key(known) == expected
                assert known.schema.names == ["k", "b", "a"]
        kvstore.restore(str(tmp_path / "r"), tmp_path / "restored")
        kvstore.restore(str(tmp_path / "r"), tmp_path / "former", before)
        with kvstore.open(tmp_path / "restored") as restored:
            assert by_key(restored["t"]) == expected
            assert restored.check()
        with kvstore.open(tmp_path / "former") as former:
            assert former["t"].schema.names == SCHEMA.names
            assert by_key(former["t"]) == ROWS
            assert former.check()
