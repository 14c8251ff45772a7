"""Options of tables: invalid ones raise a named error before anything is written, and past bugs stay fixed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import kvstore
from kvstore import Aggregate, Versioned
from kvstore.errors import (
    AggregateOverflow,
    DeletionDisabled,
    InvalidRequest,
    InvalidTargetColumns,
    NoSuchTable,
    OutOfOrderSequence,
    SchemaMismatch,
    StoreError,
    UnknownSchema,
    UnsupportedOperation,
)
from tests.conftest import OpenStore
from tests.support.tables import changes_of, rows_of

SCHEMA = pa.schema(
    [
        pa.field("k", pa.string(), False),
        pa.field("n", pa.int32()),
        pa.field("s", pa.string()),
        pa.field("d", pa.float64()),
        pa.field("id", pa.int64()),
    ]
)
GIVEN = pa.schema([field for field in SCHEMA if field.name != "id"])
PART = pa.schema([SCHEMA.field("k"), SCHEMA.field("n")])
ROW = {"k": "a", "n": 1, "s": "x", "d": 0.5, "id": 1}
HALF = {"k": "a", "n": 2}
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1


def own(row: dict[str, Any]) -> dict[str, Any]:
    """A row without the column that the table fills."""
    return {name: value for name, value in row.items() if name != "id"}


def send(table: kvstore.Table, *operations: Any, schema: pa.Schema | None = None, **options: Any) -> list[int]:
    """First and last offset of a batch."""
    result = table.bucket(0).apply(kvstore.Changes.of(operations, schema or table.schema), **options)
    return [result.first_offset, result.last_offset]


def kinds_of(table: kvstore.Table) -> list[str]:
    return [change[1] for change in changes_of(table)]


BAD_TABLES: dict[str, tuple[type[StoreError], dict[str, Any]]] = {
    "unknown engine": (InvalidRequest, {"merge_engine": "max_row"}),
    "engine without its column": (InvalidRequest, {"merge_engine": "versioned"}),
    "engine that is a class": (InvalidRequest, {"merge_engine": Aggregate}),
    "engine as the catalog writes it": (InvalidRequest, {"merge_engine": {"versioned": "n"}}),
    "no engine": (InvalidRequest, {"merge_engine": None}),
    "aggregate without preimages": (UnsupportedOperation, {"merge_engine": Aggregate({}), "changelog_image": "wal"}),
    "aggregate of no column": (InvalidRequest, {"merge_engine": Aggregate({"zzz": "sum"})}),
    "aggregate of the key": (InvalidRequest, {"merge_engine": Aggregate({"k": "max"})}),
    "sum of text": (InvalidRequest, {"merge_engine": Aggregate({"s": "sum"})}),
    "version in no column": (InvalidRequest, {"merge_engine": Versioned("zzz")}),
    "version in the key": (InvalidRequest, {"merge_engine": Versioned("k")}),
    "version that is text": (InvalidRequest, {"merge_engine": Versioned("s")}),
    "version that is a float": (InvalidRequest, {"merge_engine": Versioned("d")}),
    "unknown image": (InvalidRequest, {"changelog_image": "FULL"}),
    "no image": (InvalidRequest, {"changelog_image": None}),
    "image that is a list": (InvalidRequest, {"changelog_image": ["wal"]}),
    "first_row with deletes": (InvalidRequest, {"merge_engine": "first_row", "delete_behavior": "allow"}),
    "versioned with deletes": (InvalidRequest, {"merge_engine": Versioned("n"), "delete_behavior": "allow"}),
    "unknown delete behaviour": (InvalidRequest, {"delete_behavior": "never"}),
    "delete behaviour that is a bool": (InvalidRequest, {"delete_behavior": True}),
    "text that counts": (InvalidRequest, {"auto_increment": "s"}),
    "float that counts": (InvalidRequest, {"auto_increment": "d"}),
    "key that counts": (InvalidRequest, {"auto_increment": "id", "primary_key": ["id"]}),
    "no column that counts": (InvalidRequest, {"auto_increment": "zzz"}),
    "two columns that count": (InvalidRequest, {"auto_increment": ["id", "n"]}),
    "short column that counts": (
        InvalidRequest,
        {"auto_increment": "i", "schema": pa.schema([("k", pa.string()), ("i", pa.int16())])},
    ),
    "unsigned column that counts": (
        InvalidRequest,
        {"auto_increment": "i", "schema": pa.schema([("k", pa.string()), ("i", pa.uint32())])},
    ),
    "version that counts": (InvalidRequest, {"auto_increment": "id", "merge_engine": Versioned("id")}),
    "aggregate that counts": (InvalidRequest, {"auto_increment": "id", "merge_engine": Aggregate({"id": "max"})}),
    "identical updates skipped, as a number": (InvalidRequest, {"skip_identical_updates": 1}),
    "identical updates skipped, perhaps": (InvalidRequest, {"skip_identical_updates": None}),
    "log table of an engine": (UnsupportedOperation, {"primary_key": None, "merge_engine": "first_row"}),
    "log table of aggregates": (UnsupportedOperation, {"primary_key": None, "merge_engine": Aggregate({})}),
    "log table without preimages": (UnsupportedOperation, {"primary_key": None, "changelog_image": "wal"}),
    "log table with deletes": (UnsupportedOperation, {"primary_key": None, "delete_behavior": "allow"}),
    "log table that counts": (UnsupportedOperation, {"primary_key": None, "auto_increment": "id"}),
    "log table that counts nothing": (UnsupportedOperation, {"primary_key": None, "auto_increment": ""}),
    "log table that skips": (UnsupportedOperation, {"primary_key": None, "skip_identical_updates": True}),
}


@pytest.mark.parametrize("what", BAD_TABLES)
def test_bad_table(what: str, store_of_module: kvstore.Store) -> None:
    store = store_of_module
    error, options = BAD_TABLES[what]
    with pytest.raises(error) as raised:
        store.create_table(**{"name": "t", "schema": SCHEMA, "primary_key": ["k"]} | options)
    assert raised.type is error
    assert len(str(raised.value)) > 20
    assert store.list_tables() == []
    assert not list((store.path / "tables").glob("*"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Aggregate({"n": "median"}),
        lambda: Aggregate({"n": None}),
        lambda: Aggregate(["n"]),
        lambda: Aggregate({1: "sum"}),
        lambda: Versioned(None),
        lambda: kvstore.listagg(5),
        lambda: kvstore.listagg("\ud800"),
    ],
)
def test_bad_engine(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidRequest):
        make()


LAST, FIRST, NEWEST = {"merge_engine": "last_row"}, {"merge_engine": "first_row"}, {"merge_engine": Versioned("n")}
SUMS = {"merge_engine": Aggregate({"n": "sum"}), "delete_behavior": "allow"}
COUNTS = {"auto_increment": "id"}
STRICT = {"schema": SCHEMA.set(2, pa.field("s", pa.string(), False))}
Call = Callable[[kvstore.Table], Any]
UPSERT, DELETE = ("upsert", HALF), ("delete", HALF)
OUTSIDE = [("upsert", {**ROW, "k": "b"}), ("upsert", {**ROW, "n": INT_MAX})]

BAD_CALLS: dict[str, tuple[type[StoreError], dict[str, Any], Call]] = {
    "partial first row": (UnsupportedOperation, FIRST, lambda t: t.upsert(HALF, columns=["k", "n"])),
    "partial version": (UnsupportedOperation, NEWEST, lambda t: t.upsert(HALF, columns=["k", "n"])),
    "partial delete of a first row": (UnsupportedOperation, FIRST, lambda t: t.delete("a", columns=["k", "n"])),
    "partial delete of a version": (UnsupportedOperation, NEWEST, lambda t: t.delete("a", columns=["k", "n"])),
    "partial batch for first rows": (
        UnsupportedOperation,
        FIRST,
        lambda t: send(t, UPSERT, schema=PART, columns=["k", "n"]),
    ),
    "partial row that lacks a value": (InvalidTargetColumns, STRICT, lambda t: t.upsert(HALF, columns=["k", "n"])),
    "partial row, the strict column given": (
        InvalidTargetColumns,
        STRICT,
        lambda t: t.upsert({"k": "a", "s": "y"}, columns=["k", "s"]),
    ),
    "partial delete of a strict row": (InvalidTargetColumns, STRICT, lambda t: t.delete("a", columns=["k", "n"])),
    "overwriting part of a strict row": (
        InvalidTargetColumns,
        STRICT,
        lambda t: send(t, UPSERT, schema=PART, columns=["k", "n"], overwrite=True),
    ),
    "targets without the key": (InvalidTargetColumns, LAST, lambda t: t.upsert({"n": 2}, columns=["n"])),
    "targets unknown": (InvalidTargetColumns, LAST, lambda t: t.upsert({"k": "a", "z": 2}, columns=["k", "z"])),
    "targets twice": (SchemaMismatch, LAST, lambda t: t.upsert(HALF, columns=["k", "n", "n"])),
    "no targets": (SchemaMismatch, LAST, lambda t: t.upsert(HALF, columns=[])),
    "targets that are a set": (InvalidRequest, LAST, lambda t: t.upsert(HALF, columns={"k", "n"})),
    "targets that are a number": (InvalidRequest, LAST, lambda t: t.delete("a", columns=1)),
    "rows with more than the targets": (SchemaMismatch, LAST, lambda t: t.upsert(ROW, columns=["k", "n"])),
    "rows with less than the targets": (SchemaMismatch, LAST, lambda t: t.upsert({"k": "a"}, columns=["k", "n"])),
    "part of an unknown schema": (
        UnknownSchema,
        LAST,
        lambda t: send(t, UPSERT, schema=PART, columns=["k", "n"], schema_id=2),
    ),
    "delete": (DeletionDisabled, {"delete_behavior": "disable"}, lambda t: t.delete("a")),
    "delete of a key that is not there": (DeletionDisabled, {"delete_behavior": "disable"}, lambda t: t.delete("z")),
    "delete after upserts": (
        DeletionDisabled,
        {"delete_behavior": "disable"},
        lambda t: send(t, UPSERT, DELETE, schema=PART, columns=["k", "n"]),
    ),
    "delete of part of a row": (
        DeletionDisabled,
        {"delete_behavior": "disable"},
        lambda t: t.delete("a", columns=["k", "n"]),
    ),
    "delete of a first row": (DeletionDisabled, {**FIRST, "delete_behavior": "disable"}, lambda t: t.delete("z")),
    "delete of a version": (DeletionDisabled, {**NEWEST, "delete_behavior": "disable"}, lambda t: t.delete("z")),
    "delete of a sum": (DeletionDisabled, {**SUMS, "delete_behavior": "disable"}, lambda t: t.delete("z")),
    "id by hand": (InvalidRequest, COUNTS, lambda t: t.upsert({**ROW, "id": 7})),
    "id by hand in a batch": (InvalidTargetColumns, COUNTS, lambda t: send(t, ("upsert", {**ROW, "id": 7}))),
    "id as a target": (InvalidTargetColumns, COUNTS, lambda t: t.upsert({"k": "a", "id": 7}, columns=["k", "id"])),
    "id to be deleted": (InvalidTargetColumns, COUNTS, lambda t: t.delete("a", columns=["k", "id"])),
    "id twice": (
        SchemaMismatch,
        COUNTS,
        lambda t: t.apply(kvstore.Changes(pa.record_batch([["b"], [1], [1]], ["k", "id", "id"]), pa.array([False]))),
    ),
    "overwriting, perhaps": (InvalidRequest, LAST, lambda t: send(t, ("upsert", ROW), overwrite="yes")),
    "overwriting, as a number": (InvalidRequest, LAST, lambda t: send(t, ("upsert", ROW), overwrite=1)),
    "sum too large": (AggregateOverflow, SUMS, lambda t: send(t, *OUTSIDE)),
    "sum too large on its way": (AggregateOverflow, SUMS, lambda t: send(t, *OUTSIDE, ("upsert", {**ROW, "n": -5}))),
    "sum too large before a delete": (AggregateOverflow, SUMS, lambda t: send(t, *OUTSIDE, ("delete", ROW))),
    "sum too large of a numbered batch": (
        AggregateOverflow,
        SUMS,
        lambda t: send(t, *OUTSIDE, writer_id=3, sequence=1),
    ),
    "count of a WAL image": (UnsupportedOperation, {"changelog_image": "wal"}, lambda t: t.count()),
    "as of, of a WAL image": (UnsupportedOperation, {"changelog_image": "wal"}, lambda t: t.scan(as_of=0)),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_bad_call(what: str, open_store: OpenStore) -> None:
    error, options, call = BAD_CALLS[what]
    store = open_store()
    table = store.create_table(**{"name": "t", "schema": SCHEMA, "primary_key": ["k"]} | options)
    given = own(ROW) if "auto_increment" in options else ROW
    first = kvstore.Changes.of([("upsert", given)], GIVEN if "auto_increment" in options else table.schema)
    table.bucket(0).apply(first, writer_id=3, sequence=0)
    before = (rows_of(table), changes_of(table), table.offsets())
    with pytest.raises(error) as raised:
        call(table)
    assert raised.type is error or error is InvalidRequest
    assert len(str(raised.value)) > 20
    assert (rows_of(table), changes_of(table), table.offsets()) == before
    # A refused call took no sequence, and the next call works as if it had not been made.
    with pytest.raises(OutOfOrderSequence):
        table.bucket(0).apply(first, writer_id=3, sequence=2)
    result = table.bucket(0).apply(first, writer_id=3, sequence=1)
    assert (result.first_offset, result.duplicated) == (1, False)
    rows = rows_of(table)
    store.close()
    assert rows_of(open_store().table("t")) == rows


BAD_COLUMNS: dict[str, tuple[type[StoreError], Any]] = {
    "not nullable": (SchemaMismatch, [pa.field("x", pa.int8()), pa.field("y", pa.int8(), False)]),
    "there already": (SchemaMismatch, [pa.field("n", pa.int32())]),
    "in the key": (SchemaMismatch, [pa.field("k", pa.string())]),
    "twice": (InvalidRequest, [pa.field("x", pa.int8()), pa.field("x", pa.int8())]),
    "reserved": (InvalidRequest, [pa.field("_change_type", pa.string())]),
    "reserved for lookups": (InvalidRequest, [pa.field("_found", pa.bool_())]),
    "without a name": (InvalidRequest, [pa.field("", pa.int8())]),
    "of a type that can't be stored": (InvalidRequest, [pa.field("x", pa.null())]),
    "none": (InvalidRequest, []),
    "nothing": (InvalidRequest, None),
    "pairs": (InvalidRequest, [("x", pa.int8())]),
    "a dict with a column that is not nullable": (SchemaMismatch, {"x": "int8 not null"}),
}


@pytest.mark.parametrize("what", BAD_COLUMNS)
def test_bad_columns(what: str, store: kvstore.Store) -> None:
    error, fields = BAD_COLUMNS[what]
    table = store.create_table("t", SCHEMA, "k")
    with pytest.raises(error):
        store.add_columns("t", fields)
    assert table.schema == SCHEMA
    with pytest.raises(UnknownSchema):
        send(table, ("upsert", ROW), schema_id=2)


def test_columns_of_no_table(store: kvstore.Store) -> None:
    with pytest.raises(NoSuchTable):
        store.add_columns("t", [pa.field("x", pa.int8())])


@pytest.mark.parametrize(
    "name",
    ["_bucket", "_log_offset", "_change_type", "_commit_timestamp", "_commit_version", "_found", "__offset"],
)
def test_reserved_names(name: str, store: kvstore.Store) -> None:
    with pytest.raises(InvalidRequest):
        store.create_table("t", pa.schema([pa.field("k", pa.int8()), pa.field(name, pa.int8())]), "k")
    # Only those: an underscore alone is not reserved.
    store.create_table("t", pa.schema([pa.field("k", pa.int8()), pa.field(name + "_", pa.int8())]), "k")


def test_a_log_table_takes_only_rows(store: kvstore.Store) -> None:
    log = store.create_table("log", SCHEMA)
    for call in (
        lambda: log.upsert(HALF, columns=["k", "n"]),
        lambda: log.delete("a", columns=["k", "n"]),
        lambda: send(log, UPSERT, schema=PART, columns=["k", "n"]),
        lambda: send(log, ("upsert", ROW), overwrite=True),
        lambda: send(log, ("delete", ROW)),
    ):
        with pytest.raises(UnsupportedOperation):
            call()
    assert log.offsets() == {0: (0, 0)}


class TestTargets:
    @pytest.mark.parametrize("options", [LAST, FIRST, NEWEST, SUMS])
    def test_all_columns_but_the_id_are_whole_rows(self, options: dict[str, Any], store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k", auto_increment="id", **options)
        table.upsert(own(ROW), columns=GIVEN.names)
        assert rows_of(table) == [ROW]
        table.delete("a", columns=GIVEN.names)
        assert table.count() == (options in (FIRST, NEWEST))

    @pytest.mark.parametrize("options", [FIRST, NEWEST])
    def test_an_overwriting_batch_may_be_partial(self, options: dict[str, Any], store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k", **options)
        table.upsert(ROW)
        send(table, ("upsert", {"k": "a", "n": 0}), schema=PART, columns=["k", "n"], overwrite=True)
        assert rows_of(table) == [{**ROW, "n": 0}]
        send(table, ("delete", {"k": "a"}), schema=PART, columns=["k", "n"], overwrite=True)
        assert rows_of(table) == [{**ROW, "n": None}]

    def test_all_columns_of_an_older_schema_are_not_all(self, store: kvstore.Store) -> None:
        table = store.create_table("t", PART, "k")
        store.add_columns("t", [pa.field("x", pa.int8())])
        table.upsert({"k": "a", "n": 1, "x": 1})
        send(table, UPSERT, schema=PART, columns=["k", "n"], schema_id=1)
        assert rows_of(table) == [{"k": "a", "n": 2, "x": 1}]
        send(table, UPSERT, schema=PART, schema_id=1)  # a whole row of the older schema covers more
        assert rows_of(table) == [{"k": "a", "n": 2, "x": None}]

    @pytest.mark.parametrize("options", [{}, {"merge_engine": Aggregate({"n": "sum"}), "delete_behavior": "allow"}])
    @pytest.mark.parametrize("strict", [False, True])
    def test_all_columns_stay_the_targets_of_a_write_that_waits_while_a_column_is_added(
        self, options: dict[str, Any], strict: bool, store: kvstore.Store
    ) -> None:
        columns = pa.schema([PART.field("k"), PART.field("n").with_nullable(not strict)])
        table = store.create_table("t", columns, "k", **options)

        def rows() -> Iterator[pa.RecordBatch]:
            """Come only after another thread has added a column and set it."""
            store.add_columns("t", [pa.field("x", pa.int8())])
            table.upsert([{"k": "a", "n": 1, "x": 7}, {"k": "b", "n": 1, "x": 8}])
            yield pa.RecordBatch.from_pylist([{"k": "a", "n": 2}], columns)

        table.upsert(pa.RecordBatchReader.from_batches(columns, rows()), columns=["k", "n"])
        expected = [{"k": "a", "n": 3 if options else 2, "x": 7}, {"k": "b", "n": 1, "x": 8}]
        assert rows_of(table) == expected
        send(table, ("upsert", {"k": "b", "n": 1}), schema=columns, columns=["k", "n"], schema_id=1)
        expected[1]["n"] = 2 if options else 1
        assert rows_of(table) == expected
        # A delete makes the columns it names null, and removes a row in which one of these is never null.
        send(table, ("delete", {"k": "a"}), schema=columns, columns=["k", "n"], schema_id=1)
        expected[0]["n"] = None
        assert rows_of(table) == expected[strict:]

    @pytest.mark.parametrize("options", [FIRST, NEWEST])
    def test_all_columns_stay_a_whole_row_where_rows_are_taken_whole(
        self, options: dict[str, Any], store: kvstore.Store
    ) -> None:
        table = store.create_table("t", PART, "k", **options)
        store.add_columns("t", [pa.field("x", pa.int8())])
        send(table, UPSERT, schema=PART, columns=["k", "n"], schema_id=1)
        assert rows_of(table) == [{"k": "a", "n": 2, "x": None}]

    def test_a_delete_may_bring_the_row_it_deletes(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k", auto_increment="id")
        table.upsert(own(ROW))
        send(table, ("delete", ROW))
        assert table.count() == 0


class TestIdenticalUpdates:
    def test_a_no_op_after_a_no_op_is_a_no_op(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k", skip_identical_updates=True)
        table.upsert(ROW)
        delete, touch = ("delete", {"k": "a"}), ("upsert", {"k": "a"})
        # A partial delete of no column changes nothing, nor does an upsert of the key alone.
        assert send(table, delete, touch, touch, schema=pa.schema([SCHEMA.field("k")]), columns=["k"]) == [1, 1]
        assert kinds_of(table) == ["insert"]

    def test_a_change_and_its_reversal_are_two_updates(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k", skip_identical_updates=True)
        table.upsert(ROW)
        assert send(table, *(("upsert", {**ROW, "n": n}) for n in (1, 2, 2, 1, 1))) == [1, 4]
        assert rows_of(table) == [ROW]


class TestWalImage:
    @pytest.mark.parametrize("options", [LAST, FIRST, NEWEST, LAST | {"skip_identical_updates": True}])
    def test_an_overwriting_upsert_is_an_update(self, options: dict[str, Any], store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k", changelog_image="wal", **options)
        send(table, ("upsert", ROW), ("upsert", {**ROW, "k": "b"}), overwrite=True)
        # Deletes in a batch do not affect its upserts.
        send(table, ("upsert", {**ROW, "k": "c"}), ("delete", {"k": "b"}), ("delete", {"k": "z"}), overwrite=True)
        update = "update_postimage"
        assert [change[1:3] for change in changes_of(table)] == [
            *((update, {**ROW, "k": key}) for key in "abc"),
            ("delete", {**ROW, "k": "b"}),
        ]

    def test_writes_that_look_up_the_row_log_inserts(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k", changelog_image="wal", merge_engine="first_row")
        send(table, ("upsert", ROW), ("upsert", {**ROW, "n": 5}), ("upsert", {**ROW, "k": "b"}))
        assert kinds_of(table) == ["insert", "insert"]
        send(table, UPSERT, ("upsert", {"k": "c", "n": 5}), schema=PART, columns=["k", "n"], overwrite=True)
        assert kinds_of(table)[2:] == ["update_postimage", "insert"]


class TestIds:
    def test_ids_are_allocated_in_the_order_of_the_operations(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k", auto_increment="id")
        upserts = [("upsert", own({**ROW, "k": key})) for key in "cabc"]
        send(table, *upserts, ("delete", {"k": "c"}), upserts[0], schema=GIVEN)
        assert [(row["k"], row["id"]) for row in rows_of(table)] == [("a", 2), ("b", 3), ("c", 4)]

    def test_a_batch_with_some_ids_equals_its_operations_one_by_one(self, store: kvstore.Store) -> None:
        operations = [
            ("upsert", {**ROW, "k": key, "id": id})
            for key, id in zip("fbdace", [None, 9, 2, None, 3, None], strict=True)
        ]
        at_once, one_by_one = (store.create_table(name, SCHEMA, "k", auto_increment="id") for name in "ab")
        send(at_once, *operations, overwrite=True)
        for operation in operations:
            send(one_by_one, operation, overwrite=True)
        assert rows_of(at_once) == rows_of(one_by_one)
        assert {row["k"]: row["id"] for row in rows_of(at_once)} == {"a": 10, "b": 9, "c": 3, "d": 2, "e": 11, "f": 1}
        assert send(at_once, ("upsert", own({**ROW, "k": "z"})), schema=GIVEN) == [6, 6]
        assert at_once["z"]["id"] == 12

    @pytest.mark.parametrize(("kind", "last"), [(pa.int32(), INT_MAX), (pa.int64(), LONG_MAX)])
    @pytest.mark.parametrize("writer", [{}, {"writer_id": 3, "sequence": 0}])
    def test_ids_run_out(self, kind: pa.DataType, last: int, writer: dict[str, int], open_store: OpenStore) -> None:
        store = open_store()
        schema = SCHEMA.set(4, pa.field("id", kind, False))
        table = store.create_table("t", schema, "k", auto_increment="id")
        send(table, ("upsert", {**ROW, "id": last - 1}), overwrite=True)
        more = [("upsert", own({**ROW, "k": key})) for key in ("b", "a", "c")]
        with pytest.raises(InvalidRequest, match="Reached maximum value") as raised:
            send(table, *more, schema=GIVEN, **writer)
        assert str(last) in str(raised.value)
        assert (rows_of(table), table.offsets()) == ([{**ROW, "id": last - 1}], {0: (0, 1)})
        assert send(table, *more[:2], schema=GIVEN, **writer) == [1, 3]
        assert table["b"]["id"] == last
        store.close()
        table = open_store().table("t")
        with pytest.raises(InvalidRequest, match="Reached maximum value"):
            send(table, more[2], schema=GIVEN)
        send(table, more[0], schema=GIVEN)  # it has one

    def test_the_last_id_may_be_given(self, open_store: OpenStore) -> None:
        store = open_store()
        table = store.create_table("t", SCHEMA, "k", auto_increment="id")
        lowest = ("upsert", {**ROW, "k": "b", "id": -(2**63)})
        send(
            table,
            lowest,
            ("upsert", {**ROW, "k": "c", "id": None}),
            ("upsert", {**ROW, "id": LONG_MAX}),
            overwrite=True,
        )
        table.flush()
        store.close()
        table = open_store().table("t")
        assert [row["id"] for row in rows_of(table)] == [LONG_MAX, -(2**63), 1]
        table.upsert(own(ROW))

    def test_a_null_id_is_filled_even_in_a_not_null_column(self, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA.set(4, pa.field("id", pa.int64(), False)), "k", auto_increment="id")
        rows = kvstore.Changes.of([("upsert", {**ROW, "id": None})], SCHEMA)
        table.bucket(0).apply(rows, overwrite=True)
        table.bucket(0).apply(rows, overwrite=True)
        assert rows_of(table) == [ROW]

    @pytest.mark.parametrize("at_once", [True, False])
    def test_a_row_with_only_an_id_is_removed(self, at_once: bool, store: kvstore.Store) -> None:
        table = store.create_table("t", SCHEMA, "k", auto_increment="id")
        operations = [UPSERT, DELETE, UPSERT]
        for batch in [operations] if at_once else [[each] for each in operations]:
            send(table, *batch, schema=PART, columns=["k", "n"])
        assert kinds_of(table) == ["insert", "delete", "insert"]
        assert rows_of(table) == [{**HALF, "s": None, "d": None, "id": 2}]


def test_a_log_table_with_added_columns_passes_its_check(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA)
    table.upsert([ROW, ROW])
    store.add_columns("t", [pa.field("x", pa.int8())])
    table.upsert({**ROW, "x": 1})
    assert store.check().findings == []
    assert table.count() == 3
