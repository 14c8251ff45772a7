"""Writes that depend on the stored rows: no write of others in between is lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
import kvstore.table.table as table_module
from kvstore.errors import (
    CorruptData,
    DeletionDisabled,
    InvalidRequest,
    InvalidTargetColumns,
    SchemaMismatch,
    StoreError,
    UnsupportedOperation,
)
from kvstore.memtable.memtable import Memtable
from kvstore.request import encoded
from kvstore.request.results import WriteResult
from kvstore.table import conditional
from tests.support.examples import slow
from tests.support.processes import Forked
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int32()), pa.field("s", pa.string())])
THREADS = 8


def row(k: int, n: int | None, s: str | None = None) -> dict[str, Any]:
    return {"k": k, "n": n, "s": s}


@pytest.fixture(params=[1, 3])
def table(store: kvstore.Store, request: pytest.FixtureRequest) -> kvstore.Table:
    return store.create_table("t", SCHEMA, "k", buckets=request.param)


class TestPutIf:
    def test_only_the_expected_row_is_replaced(self, table: kvstore.Table) -> None:
        assert table.put_if(row(1, 1), None) is True
        ends = table.offsets()
        assert table.put_if(row(1, 2), None) is False
        assert table.put_if(row(1, 2), row(1, 2)) is False
        assert table.put_if(row(2, 2), row(2, 1)) is False
        assert table.put_if(row(1, 2), row(1, 1, "")) is False
        assert table.offsets() == ends
        assert table.put_if(row(1, 2), row(1, 1)) is True
        assert table.put_if({"k": 1, "n": 3}, {"n": 2}) is True
        assert table.put_if(row(1, 4), table.get(1)) is True
        assert rows_of(table) == [row(1, 4)]

    def test_a_row_of_an_older_schema_is_compared_with_all_columns(
        self, store: kvstore.Store, table: kvstore.Table
    ) -> None:
        table.upsert(row(1, 1))
        store.add_columns("t", [pa.field("more", pa.float64())])
        assert table.put_if(row(1, 2) | {"more": 0.5}, row(1, 1) | {"more": 1.0}) is False
        assert table.put_if(row(1, 2) | {"more": float("nan")}, row(1, 1)) is True
        assert table.put_if(row(1, 3), table.get(1)) is True  # a NaN is the same NaN

    def test_a_column_that_the_table_fills_may_be_left_out(self, store: kvstore.Store) -> None:
        table = store.create_table("numbered", {"k": "string", "id": "int64", "v": "string"}, "k", auto_increment="id")
        assert table.put_if({"k": "x", "v": "1"}, None)
        assert table.put_if({"k": "x", "v": "2"}, {"v": "1"})
        assert not table.put_if({"k": "x", "v": "3"}, {"id": 7, "v": "2"})
        assert table.put_if({"k": "x", "v": "3"}, table["x"])
        assert list(table) == [{"k": "x", "id": 1, "v": "3"}]

    @pytest.mark.parametrize("expected", [None, row(1, 1), row(1, 2)])
    def test_a_damaged_row_is_reported_whatever_is_expected(
        self, table: kvstore.Table, monkeypatch: pytest.MonkeyPatch, expected: Any
    ) -> None:
        table.upsert(row(1, 1))
        value = Memtable.get
        monkeypatch.setattr(Memtable, "get", lambda *given: [row[:-1] + b"x" for row in value(*given)])
        with pytest.raises(CorruptData):
            table.put_if(row(1, 2), expected)
        monkeypatch.undo()
        assert rows_of(table) == [row(1, 1)]

    def test_a_plain_row_is_compared_without_arrow(self, table: kvstore.Table, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(conditional, "replacement", None)
        assert [table.put_if(row(1, n), None) for n in (1, 2)] == [True, False]
        assert [table.put_if(row(1, 3), row(1, n)) for n in (2, 1)] == [False, True]
        assert rows_of(table) == [row(1, 3)]

    def test_what_is_wrong_is_refused(self, store: kvstore.Store, table: kvstore.Table) -> None:
        ends = table.offsets()
        for given_row, expected in (
            ({"n": 1}, None),
            (row(1, 1), row(2, 1)),
            (row(1, 1) | {"z": 1}, None),
            (row(1, 1), {"z": 1}),
            (row(1, 2**40), None),
            (7, None),
            (row(1, 1), 7),
        ):
            with pytest.raises(InvalidRequest):
                table.put_if(given_row, expected)
        assert table.offsets() == ends
        first = store.create_table("first", SCHEMA, "k", merge_engine="first_row")
        for wrong in (first, store.create_table("log", SCHEMA)):
            with pytest.raises(UnsupportedOperation):
                wrong.put_if(row(1, 1), None)

    @settings(max_examples=4)
    @given(
        counters=st.integers(1, 3),
        buckets=st.integers(1, 3),
        durability=st.sampled_from(["sync", "interval", "none"]),
    )
    def test_no_update_of_eight_threads_is_lost(
        self, counters: int, buckets: int, durability: str, tmp_path_factory: Any
    ) -> None:
        each = 8
        with kvstore.open(tmp_path_factory.mktemp("s") / "store", durability=durability) as store:
            table = store.create_table("t", SCHEMA, "k", buckets=buckets)

            def count(thread: int) -> int:
                tries = 0
                for n in range(each):
                    k = (thread + n) % counters
                    while True:
                        now = table.get(k)
                        tries += 1
                        if table.put_if(row(k, 1 if now is None else now["n"] + 1), now):
                            break
                return tries

            with ThreadPoolExecutor(THREADS) as threads:
                tries = sum(threads.map(count, range(THREADS)))
            assert tries >= THREADS * each
            assert sum(found["n"] for found in table) == THREADS * each
            # Every write was a step of one.
            images = [change["n"] for batch in table.changelog() for change in batch.to_pylist()]
            assert len(images) == 2 * THREADS * each - len(table)
            assert store.check().ok


def test_no_update_of_processes_that_take_turns_is_lost(store: kvstore.Store, tmp_path: Path) -> None:
    store.create_table("t", SCHEMA, "k").upsert(row(1, 0))
    store.close()
    program = """
import sys, time, kvstore
from kvstore.errors import StoreLocked
for _ in range(4):
    while True:
        with kvstore.open(sys.argv[1]) as store:
            table = store["t"]
            now = table.get(1)
            try:
                if table.put_if(now | {"n": now["n"] + 1}, now):
                    break
            except StoreLocked:
                time.sleep(0.01)
"""
    workers = [Forked(program, store.path) for _ in range(3)]
    assert [worker.communicate()[1] for worker in workers] == ["", "", ""]
    with kvstore.open(store.path) as again:
        assert list(again["t"]) == [row(1, 12)]


class TestWhere:
    def test_rows_are_deleted_and_updated_by_what_they_are(self, table: kvstore.Table) -> None:
        table.upsert([row(k, k) for k in range(10)] + [row(10, None)])
        deleted = table.delete(where=pc.field("n") > 6)
        assert sum(each.last_offset - each.first_offset + 1 for each in deleted.by_bucket.values()) == 3
        table.update_where(pc.field("n") < 2, {"s": "small", "n": 0})
        table.update_where(pc.field("n") == 5, {"n": pc.field("n") * 10 + pc.field("k").cast(pa.int32())})
        table.update_where(pc.field("n").is_null(), {"n": 1, "s": None})
        found = sorted(rows_of(table), key=lambda each: each["k"])
        assert found == [
            *(row(0, 0, "small"), row(1, 0, "small"), row(2, 2), row(3, 3), row(4, 4), row(5, 55), row(6, 6)),
            row(10, 1),
        ]

    def test_where_no_row_is_found_nothing_is_written(self, table: kvstore.Table) -> None:
        table.upsert(row(1, 1))
        ends = table.offsets()
        assert table.delete(where=pc.field("n") > 6).by_bucket == {}
        assert table.update_where(pc.field("n") > 6, {"n": 1}).by_bucket == {}
        assert table.offsets() == ends

    def test_what_is_wrong_is_refused_before_anything_is_written(
        self, store: kvstore.Store, table: kvstore.Table
    ) -> None:
        table.upsert([row(k, k, "x") for k in range(5)])
        ends = table.offsets()
        for values, error in (
            ({}, InvalidRequest),
            (None, InvalidRequest),
            ({"z": 1}, InvalidTargetColumns),
            ({"k": 1}, InvalidTargetColumns),
            ({"n": "x"}, SchemaMismatch),
            ({"n": 2**40}, SchemaMismatch),
            ({"n": pc.field("z")}, InvalidRequest),
            ({"n": pc.field("s")}, SchemaMismatch),
            ({"n": pc.field("k") + 2**40}, SchemaMismatch),
        ):
            with pytest.raises(error):
                table.update_where(pc.field("k") >= 0, values)
        for where in (7, pc.field("z") > 1, pc.field("n")):
            with pytest.raises(InvalidRequest):
                table.delete(where=where)
            with pytest.raises(InvalidRequest):
                table.update_where(where, {"n": 1})
        for each in (table, store.create_table("empty", table.schema, primary_key="k")):
            with pytest.raises(InvalidRequest, match="must be a pyarrow"):
                each.update_where(None, {"n": 1})  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="either"):
            table.delete([1], where=pc.field("n") > 1)
        with pytest.raises(InvalidRequest, match="Give keys, or a condition"):
            table.delete()
        assert table.offsets() == ends
        with pytest.raises(UnsupportedOperation):
            store.create_table("log", SCHEMA).delete(where=pc.field("n") > 1)
        versioned = store.create_table("versioned", SCHEMA, "k", merge_engine=kvstore.Versioned("n"))
        with pytest.raises(UnsupportedOperation):
            versioned.update_where(pc.field("n") > 1, {"s": ""})
        kept = store.create_table("kept", SCHEMA, "k", delete_behavior="disable")
        kept.upsert(row(1, 1))
        with pytest.raises(DeletionDisabled):
            kept.delete(where=pc.field("n") > 0)

    def test_floats_computed_for_integers_are_cast_as_the_error_says(self, table: kvstore.Table) -> None:
        table.upsert(row(1, 5))
        half = pc.field("n") / 2.0
        with pytest.raises(SchemaMismatch, match=r"\(…\)\.cast\('int32', safe=False\)"):
            table.update_where(pc.field("k") == 1, {"n": half})
        table.update_where(pc.field("k") == 1, {"n": half.cast("int32", safe=False)})
        assert table[1]["n"] == 2

    def test_many_rows_are_written_in_several_batches(self, open_store: Any) -> None:
        store = open_store(batch_rows_max=100)
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        table.upsert([row(k, k) for k in range(1000)])
        done = table.update_where(pc.field("n") >= 0, {"n": pc.field("n") + 1})
        assert sum(each.last_offset - each.first_offset + 1 for each in done.by_bucket.values()) == 2000
        assert [each["n"] - each["k"] for each in rows_of(table)] == [1] * 1000
        table.delete(where=pc.bit_wise_and(pc.field("k"), 1) == 0)
        assert len(table) == 500

    def test_a_table_is_emptied_by_deletes_that_can_be_undone(self, open_store: Any) -> None:
        store = open_store(batch_rows_max=100)
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        rows = [row(k, None if k % 3 else k) for k in range(1000)]
        table.upsert(rows)
        start = {bucket: end for bucket, (_, end) in table.offsets().items()}
        assert set(table.truncate().by_bucket) == {0, 1}
        assert (len(table), list(table)) == (0, [])
        assert table.changelog(start).read_all()["_change_type"].to_pylist() == ["delete"] * 1000
        assert table.truncate().by_bucket == {}
        table.apply(table.undo(start))
        assert list(table) == rows
        kept = store.create_table("kept", SCHEMA, "k", delete_behavior="disable")
        kept.upsert(rows)
        with pytest.raises(DeletionDisabled):
            kept.truncate()
        assert len(kept) == 1000
        for name, engine in {"first": "first_row", "sums": kvstore.Aggregate({"n": "sum"})}.items():
            ignoring = store.create_table(name, SCHEMA, "k", merge_engine=engine)
            ignoring.upsert(rows[:2])
            with pytest.raises(DeletionDisabled, match="drop the table"):
                ignoring.truncate()
            assert ignoring.offsets()[0][1] == len(ignoring) == 2
        with pytest.raises(UnsupportedOperation):
            store.create_table("log", SCHEMA).truncate()

    def test_a_batch_that_fails_leaves_itself_and_those_after_it_unwritten(self, open_store: Any) -> None:
        store = open_store(batch_rows_max=10)
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([row(k, 2**31 - 1 if k == 15 else k) for k in range(30)])
        with pytest.raises(StoreError):
            table.update_where(pc.field("k") >= 0, {"n": pc.add_checked(pc.field("n"), 1)})
        assert [each["n"] - each["k"] for each in rows_of(table) if each["k"] != 15] == [1] * 10 + [0] * 19

    def test_an_error_of_a_users_function_is_the_callers_and_the_table_goes_on(
        self, store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([row(1, 1), row(2, 2)])
        write, fails = table_module.apply_if, [False]

        def identity(_: Any, column: pa.Array) -> pa.Array:
            if fails[0]:
                raise RuntimeError("not today")
            return column

        def fail_from_now_on(*given: Any) -> WriteResult:
            fails[0] = True
            return write(*given)

        pc.register_scalar_function(
            identity, "kvstore_identity", {"summary": "", "description": ""}, {"n": pa.int32()}, pa.int32()
        )
        computed = pc.Expression._call("kvstore_identity", [pc.field("n")])
        monkeypatch.setattr(table_module, "apply_if", fail_from_now_on)
        with pytest.raises(InvalidRequest, match="not today"):
            table.update_where(pc.field("n") > 0, {"n": computed})
        fails[0] = False
        with pytest.raises(InvalidRequest, match="not today"):
            table.delete(where=computed > 0)
        fails[0] = False
        table.update_where(pc.field("n") > 1, {"n": 7})
        monkeypatch.undo()
        assert rows_of(table) == [row(1, 1), row(2, 7)]

    def test_no_increment_of_eight_threads_is_lost(self, table: kvstore.Table) -> None:
        table.upsert([row(k, 0) for k in range(4)])
        with ThreadPoolExecutor(THREADS) as threads:
            list(
                threads.map(
                    lambda _: table.update_where(pc.field("k") < 3, {"n": pc.field("n") + 1}), range(THREADS * 5)
                )
            )
        assert {each["k"]: each["n"] for each in table} == {0: 40, 1: 40, 2: 40, 3: 0}

    def test_a_row_that_changes_meanwhile_is_tested_again(
        self, table: kvstore.Table, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        table.upsert([row(1, 1), row(2, 1)])
        write = table_module.apply_if

        def after_others(*given: Any) -> WriteResult:
            table.upsert(row(1, 5))
            return write(*given)

        monkeypatch.setattr(table_module, "apply_if", after_others)
        table.delete(where=pc.field("n") == 1)
        monkeypatch.undo()
        assert rows_of(table) == [row(1, 5)]


KEYS, NUMBERS = st.integers(0, 5), st.none() | st.integers(0, 4)
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, NUMBERS),
    st.tuples(st.just("del"), KEYS, st.none()),
    st.tuples(st.just("put_if"), KEYS, NUMBERS),
    st.tuples(st.just("put_new"), KEYS, NUMBERS),
    st.tuples(st.just("delete"), st.integers(0, 4), st.none()),
    st.tuples(st.just("update"), st.integers(0, 4), st.none() | st.integers(0, 4)),
    st.tuples(st.just("add"), st.integers(0, 4), st.none()),
)


@slow(40)
@given(
    steps=st.lists(STEPS, max_size=25),
    buckets=st.integers(1, 3),
    image=st.sampled_from(["full", "wal"]),
    skip=st.booleans(),
    rows_max=st.sampled_from([encoded.ROWS_MAX, encoded.ROWS_MAX, 0]),
)
def test_a_history_is_that_of_a_dict(
    steps: list[tuple[str, int, int | None]], buckets: int, image: Any, skip: bool, rows_max: int, tmp_path_factory: Any
) -> None:
    model: dict[int, int | None] = {}
    with (
        mock.patch.object(encoded, "ROWS_MAX", rows_max),  # 0: no write is small
        kvstore.open(tmp_path_factory.mktemp("s") / "store", durability="none", batch_rows_max=2) as store,
    ):
        table = store.create_table(
            "t", SCHEMA, "k", buckets=buckets, changelog_image=image, skip_identical_updates=skip
        )
        for word, one, other in steps:
            match word:
                case "set":
                    table[one] = {"n": other}
                    model[one] = other
                case "del" if one in model:
                    del table[one]
                    del model[one]
                case "del":
                    with pytest.raises(KeyError):
                        del table[one]
                case "put_if":
                    expected = {"n": other}
                    is_expected = one in model and model[one] == other
                    assert table.put_if(row(one, 9), expected) is is_expected
                    if is_expected:
                        model[one] = 9
                case "put_new":
                    assert table.put_if(row(one, other), None) is (one not in model)
                    model.setdefault(one, other)
                case "delete":
                    table.delete(where=pc.field("n") == one)
                    model = {k: n for k, n in model.items() if n != one}
                case "update":
                    table.update_where(pc.field("n") >= one, {"n": other})
                    model = {k: other if n is not None and n >= one else n for k, n in model.items()}
                case "add":
                    table.update_where(pc.field("k") >= one, {"n": pc.field("n") + 1})
                    model = {k: n + 1 if k >= one and n is not None else n for k, n in model.items()}
            assert {each["k"]: each["n"] for each in table} == model
        assert len(table) == len(model)
        assert store.check().ok


def test_nothing_is_printed_of_one_row(store: kvstore.Store, capfd: pytest.CaptureFixture[str]) -> None:
    """Arrow warns of values that are not where a processor likes them."""
    types = {"n": pa.int64(), "d": pa.date32(), "l": pa.list_(pa.int32()), "s": pa.string()}
    schema = pa.schema([pa.field("k", pa.int64(), False), *(pa.field(*each) for each in types.items())])
    table = store.create_table("one", schema, primary_key="k")
    for text in ("", "a", "abc", "longer"):
        table.upsert([{"k": 1, "n": 2, "d": date(2026, 1, 2), "l": [1, 2], "s": text}])
        assert table.scan(filter=pc.field("n") > 1).read_all().num_rows == 1
        assert table.to_arrow().filter(pc.field("d") > date(2026, 1, 1)).num_rows == 1
        table.update_where(pc.field("n") > 1, {"n": pc.field("n") + 1})
        table.delete(where=pc.field("n") > 9)
    assert table.changelog().read_all().filter(pc.field("n") > 1).num_rows == 15
    assert capfd.readouterr() == ("", "")


def test_nothing_is_printed(store: kvstore.Store, capfd: pytest.CaptureFixture[str]) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), False), ("n", pa.int64()), ("s", pa.string())])
    table = store.create_table("printed", schema, primary_key="k")
    table.upsert([{"k": k, "n": 0, "s": "a"} for k in range(200)])
    for key in range(10):
        table.update_where(pc.field("k") == key, {"n": pc.field("n") + 1})
        table.delete(where=pc.field("k") == key + 100)
    assert capfd.readouterr() == ("", "")
