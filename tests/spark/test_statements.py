"""INSERT, UPDATE, DELETE and MERGE: what they write and refuse, and how they fare beside other writers."""

from __future__ import annotations

import datetime as dt
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, QueryExecutionException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import kvstore
from kvstore.errors import Conflict
from kvstore.spark.connector.messages import Broken, Messages
from kvstore.spark.connector.plans import decode, encode
from kvstore.spark.connector.requests import answer
from kvstore.spark.connector.writes import begin, begin_statement, commit
from kvstore.spark.options import Kind
from kvstore.spark.read.address import TableAddress
from kvstore.spark.source import KvStoreSource
from kvstore.spark.types import spark_schema
from kvstore.spark.write.job import WriteJob
from kvstore.spark.write.statement import Statement as RowsRead
from kvstore.table.parts import TableParts
from logformat import paths
from tests.spark.catalogs import Run, catalog_of
from tests.spark.statements import CREATE, SHORT, Rows, Statement, Twice, statement
from tests.support.spark_tables import EVERY_TYPE
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string()), pa.field("n", pa.int32())])
STATEMENTS = 60


@pytest.fixture
def run(spark: SparkSession, store: kvstore.Store) -> Iterator[Run]:
    """Runs SQL in the catalog ``kv``, which is the store."""
    with catalog_of(spark, store.path) as (_, run):
        yield run


def values_of(table: kvstore.Table) -> Rows:
    return {row["k"]: (row["s"], row["n"]) for row in table.scan().read_all().to_pylist()}


def check(run: Run, table: kvstore.Table, given: Statement, rows: Rows) -> Rows:
    """Run a statement; it makes of the rows what the model makes of them."""
    before = table.offsets()
    try:
        expected = given.delta(rows).apply(rows)
    except Twice:
        with pytest.raises(QueryExecutionException, match="InvalidRequest: The statement writes several rows of one"):
            run(given.sql)
        assert table.offsets() == before
        return rows
    run(given.sql)
    assert values_of(table) == expected, given.sql
    return expected


def test_each_statement_does_what_the_model_does(run: Run, store: kvstore.Store) -> None:
    run(CREATE.format(2))
    table, rows = store.table("t"), {}
    for given in SHORT:
        rows = check(run, table, given, rows)
    assert not list((store.path / paths.STAGING).glob("*"))


@pytest.mark.long
@pytest.mark.parametrize("buckets", [1, 3])
def test_random_statements_do_what_the_model_does(run: Run, store: kvstore.Store, buckets: int) -> None:
    run(CREATE.format(buckets))
    table, random = store.table("t"), Random(buckets)
    rows: Rows = {}
    for _ in range(STATEMENTS):
        rows = check(run, table, statement(random), rows)


def test_an_update_of_a_key_is_a_delete_and_an_insert_in_one_commit(run: Run, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    table.upsert([{"k": 1, "s": "one", "n": 1}, {"k": 2, "s": "two", "n": 2}, {"k": 3, "s": "three", "n": 3}])
    table.flush()
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    run("UPDATE kv.t SET k = 5 - k WHERE k <> 1")
    changes = [row for batch in table.changelog(ends) for row in batch.to_pylist()]
    assert {(row["_change_type"], row["k"], row["s"]) for row in changes} == {
        ("update_preimage", 2, "two"),
        ("update_postimage", 2, "three"),
        ("update_preimage", 3, "three"),
        ("update_postimage", 3, "two"),
    }
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    run("UPDATE kv.t SET k = 10 WHERE k = 1")
    changes = [row for batch in table.changelog(ends) for row in batch.to_pylist()]
    assert {(row["_change_type"], row["k"], row["s"]) for row in changes} == {
        ("delete", 1, "one"),
        ("insert", 10, "one"),
    }


def test_an_update_keeps_what_it_does_not_assign_whatever_its_type(run: Run, store: kvstore.Store) -> None:
    types = {name: kind for name, (kind, _) in EVERY_TYPE.items()}
    schema = pa.schema([pa.field("k", pa.int32(), False), *types.items(), ("x", pa.int8())])
    table = store.create_table("t", schema, "k")
    table.upsert([{"k": 1} | {name: value for name, (_, value) in EVERY_TYPE.items()}, {"k": 2}])
    table.flush()
    before = table.scan().read_all().drop_columns(["x"])
    run("UPDATE kv.t SET x = k")
    after = table.scan().read_all()
    assert after.drop_columns(["x"]) == before
    assert after.column("x").to_pylist() == [1, 2]


def test_the_table_numbers_rows_that_statements_insert(run: Run, store: kvstore.Store) -> None:
    schema = SCHEMA.set(2, pa.field("n", pa.int64()))
    table = store.create_table("t", schema, "k", auto_increment="n")
    run("INSERT INTO kv.t (k, s) VALUES (1, 'a'), (2, 'b')")
    run("UPDATE kv.t SET s = 'x'")
    new = "(SELECT * FROM VALUES (2), (3) AS v(k)) AS x"
    run(f"MERGE INTO kv.t AS t USING {new} ON t.k = x.k WHEN NOT MATCHED THEN INSERT (k, s) VALUES (x.k, '')")
    assert values_of(table) == {1: ("x", 1), 2: ("x", 2), 3: ("", 3)}
    run("UPDATE kv.t SET k = 9 WHERE k = 1")
    assert values_of(table) == {9: ("x", 4), 2: ("x", 2), 3: ("", 3)}
    run("UPDATE kv.t SET k = k + 1 WHERE k < 4")  # 3 becomes 4, and 2 takes the place of 3
    assert values_of(table) == {9: ("x", 4), 3: ("x", 3), 4: ("", 5)}


@pytest.mark.spark_more
def test_an_update_that_assigns_a_number_of_the_table_is_refused(run: Run, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA.set(2, pa.field("n", pa.int64())), "k", auto_increment="n", buckets=2)
    table.upsert([{"k": k, "s": "a"} for k in range(4)])
    table.flush()
    before = values_of(table)
    message = "(?s)InvalidRequest: The table fills this column, .* column=n key=.* number=.* given=100"
    source = "(SELECT 2 AS k, 'b' AS s, CAST({} AS BIGINT) AS n) AS x"
    merge = f"MERGE INTO kv.t USING {source} ON t.k = x.k WHEN MATCHED THEN UPDATE SET *"
    for sql in ("UPDATE kv.t SET n = 100, s = 'b' WHERE k > 1", merge.format("100")):
        with pytest.raises(QueryExecutionException, match=message):
            run(sql)
        assert values_of(table) == before
    run("UPDATE kv.t SET n = n, s = 'b' WHERE k = 1")
    run(merge.format("NULL"))
    assert values_of(table) == before | {1: ("b", before[1][1]), 2: ("b", before[2][1])}


def test_an_update_of_a_row_that_has_another_number_by_now_conflicts(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA.set(2, pa.field("n", pa.int64())), "k", auto_increment="n")
    table.upsert([{"k": 1, "s": "a"}])
    statement = RowsRead({bucket: end for bucket, (_, end) in table.offsets().items()})
    table.delete([1])
    table.upsert([{"k": 1, "s": "a"}])
    update = pa.record_batch({"k": [1], "s": ["b"], "n": [1], "_change_type": ["update_postimage"]})
    with pytest.raises(Conflict, match="have changed since it has read them"):
        statement.completed(table, update, store.runtime.definition("t").schema_id)


@pytest.mark.parametrize(
    ("options", "sql", "message"),
    [
        ({}, "DELETE FROM kv.lines WHERE k = 1", "A log table takes INSERT only: .* DELETE"),
        ({"merge_engine": "first_row"}, "UPDATE kv.t SET s = ''", "UPDATE gives rows their values, and the merge"),
        ({"merge_engine": "first_row"}, "MERGE INTO kv.t USING kv.t u ON false WHEN MATCHED THEN DELETE", "MERGE give"),
        ({"delete_behavior": "ignore"}, "DELETE FROM kv.t", "The table takes no deletes.*delete_behavior=ignore"),
        ({"delete_behavior": "ignore"}, "DELETE FROM kv.t WHERE n = 1", "The table takes no deletes"),
        ({}, "DELETE FROM kv.t WITH (txnId = 'u')", r"InvalidRequest: .*leave it out.*unknown=\['txnid'\]"),
        (
            {"merge_engine": "first_row"},
            "DELETE FROM kv.t",
            "no deletes. [^;]*delete_behavior=ignore merge_engine=first",
        ),
        ({}, "UPDATE kv.t WITH (txnId = 'u') SET n = n + 1", "InvalidRequest: Option `txnId` .*only for INSERT"),
        ({}, "UPDATE kv.t WITH (Table = 'lines') SET n = 1", "InvalidRequest: .* leave these options out. .*table"),
        ({}, "INSERT INTO kv.t WITH (table = 'lines') VALUES (1, '', 1)", "leave these options out. .*table"),
        ({}, "INSERT INTO kv.t WITH (path = '/no') VALUES (1, '', 1)", "leave these options out. .*path"),
        ({}, "DELETE FROM kv.`t$changelog`", "Only a table can be written, not its changes"),
        ({}, "INSERT INTO kv.`t$binlog` SELECT * FROM kv.`t$binlog`", "Only a table can be written, not its changes"),
    ],
)
def test_a_statement_that_the_table_does_not_take_is_refused_when_it_is_planned(
    spark: SparkSession, store: kvstore.Store, options: dict[str, str], sql: str, message: str
) -> None:
    store.create_table("t", SCHEMA, "k", **options)  # type: ignore[arg-type] # of the parameters above
    store.create_table("lines", SCHEMA)
    with catalog_of(spark, store.path) as (_, run), pytest.raises(AnalysisException, match=f"(?s){message}"):
        run(sql)


@pytest.mark.spark_more
@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE kv.t SET n = slow(n) WHERE k = 5",
        "MERGE INTO kv.t USING (SELECT slow(7) AS k) x ON t.k = x.k WHEN NOT MATCHED THEN INSERT (k) VALUES (x.k)",
    ],
)
def test_a_statement_conflicts_with_a_write_of_its_rows_while_it_runs(
    spark: SparkSession, run: Run, store: kvstore.Store, tmp_path: Path, sql: str
) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert({"k": 5, "s": "there", "n": 1})
    table.flush()
    begun, may_end = tmp_path / "begun", tmp_path / "may end"

    def slow(value: int) -> int:
        begun.touch()
        while not may_end.exists():
            time.sleep(0.01)
        return value

    spark.udf.register("slow", udf(slow, "int", useArrow=False).asNondeterministic())
    with ThreadPoolExecutor() as threads:
        running = threads.submit(run, sql)
        wait_until(lambda: begun.exists() or running.done())
        table.upsert([{"k": 5, "s": "beside", "n": 2}, {"k": 7, "s": "beside", "n": 2}])
        may_end.touch()
        with pytest.raises(QueryExecutionException, match="Conflict: Rows that the statement changes have changed"):
            running.result()
    assert values_of(table) == {5: ("beside", 2), 7: ("beside", 2)}


def job_of(store: kvstore.Store, table: kvstore.Table) -> WriteJob:
    """The job of a statement that reads the table as it is now."""
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    return WriteJob(TableAddress.of(str(store.path), table, Kind.ROWS), statement=RowsRead(ends))


def sent(kind: str, rows: list[dict[str, object]]) -> pa.RecordBatch:
    batch = pa.RecordBatch.from_pylist(rows, SCHEMA if kind != "delete" else SCHEMA.empty_table().select(["k"]).schema)
    return batch.append_column("_change_type", pa.array([kind] * len(rows)))


@pytest.mark.parametrize("other", ["upsert", "delete", "nothing"])
def test_a_statement_fails_if_one_of_its_keys_was_written_since_it_was_read(store: kvstore.Store, other: str) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    table.upsert([{"k": k, "s": "before", "n": k} for k in range(6)])
    job = job_of(store, table)
    staged = [
        job.stage(iter([sent("update_postimage", [{"k": k, "s": "updated", "n": k} for k in range(2)])]), 0, 0, None),
        job.stage(iter([sent("delete", [{"k": 2}])]), 1, 1, None),
        job.stage(iter([sent("insert", [{"k": 7, "s": "inserted", "n": 7}])]), 2, 2, None),
    ]
    for key in (3, 5, 8):  # writes of other keys do not count
        table.upsert({"k": key, "s": "beside", "n": 0})
    if other == "nothing":
        job.commit(staged)
        expected = {0: "updated", 1: "updated", 3: "beside", 4: "before", 5: "beside", 7: "inserted", 8: "beside"}
        assert {k: s for k, (s, _) in values_of(table).items()} == expected
        return
    if other == "upsert":
        table.upsert({"k": 7, "s": "beside", "n": 0})
    else:
        table.delete([2])
    before = values_of(table), table.offsets()
    with pytest.raises(kvstore.errors.Conflict, match="changed since it has read them") as refused:
        job.commit(staged)
    assert refused.value.keys == [{"k": 7 if other == "upsert" else 2}]
    assert (values_of(table), table.offsets()) == before


@pytest.mark.parametrize("late_key", [7, 1])
def test_other_writers_wait_only_while_a_commit_checks_the_newest_changes(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch, late_key: int
) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert([{"k": k, "s": "before", "n": k} for k in range(9)])
    job = job_of(store, table)
    staged = [job.stage(iter([sent("update_postimage", [{"k": 1, "s": "updated", "n": 1}])]), 0, 0, None)]
    for n in range(20):
        table.upsert({"k": 7, "s": "early", "n": n})
    apply, changed = TableParts.apply, TableParts.keys_changed
    checked = []

    def late(self: TableParts, *arguments: Any, **named: Any) -> kvstore.WriteResult:
        table.upsert({"k": late_key, "s": "late", "n": 0})
        return apply(self, *arguments, **named)

    def counted(self: TableParts, keys: Any, start: Any, end: Any, *arguments: Any) -> Any:
        found = changed(self, keys, start, end, *arguments)
        checked.append(found[1][0] - start[0])
        return found

    monkeypatch.setattr(TableParts, "apply", late)
    monkeypatch.setattr(TableParts, "keys_changed", counted)
    with nullcontext() if late_key == 7 else pytest.raises(kvstore.errors.Conflict, match="run it again"):
        job.commit(staged)
    assert values_of(table)[1] == (("updated", 1) if late_key == 7 else ("late", 0))
    assert checked == [40, 2]  # an update is two changes


def test_a_write_beside_a_statement_on_a_wal_image_is_a_conflict_and_its_log_is_kept(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", changelog_image="wal", retention=dt.timedelta(hours=1))
    table.upsert({"k": 1, "s": "", "n": 1})
    table.flush()
    options = {"path": str(store.path), "table": "t"}
    source = KvStoreSource(options)
    columns = source.schema()
    begin_statement({"options": options, "pinned": encode(source.pin(columns)), "command": "UPDATE"})
    assert [len(each.named) for each in store.runtime.catalog().consumers.values()] == [1]
    (task,) = (reader := source.reader(columns)).partitions()
    table.upsert({"k": 2, "s": "beside", "n": 2})
    table.flush()
    with pytest.raises(kvstore.errors.Conflict, match="run it again"):
        list(reader.read(task))


def test_a_table_that_merges_rows_is_truncated(run: Run, store: kvstore.Store) -> None:
    sums = kvstore.Aggregate({"n": "sum"})
    table = store.create_table(
        "t", {"k": "int64 not null", "n": "int64"}, "k", merge_engine=sums, delete_behavior="allow"
    )
    for sql in ("TRUNCATE TABLE kv.t", "DELETE FROM kv.t"):
        run("INSERT INTO kv.t VALUES (1, 1), (2, 2)")
        run(sql)
        assert table.count() == 0


def test_an_insert_with_a_name_is_applied_once(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    options = {"path": str(store.path), "table": "t", "txnId": "load"}
    for attempt in range(2):
        begun = begin({"options": options, "replaces": False}, spark_schema(SCHEMA))
        job = decode(begun["job"], WriteJob)
        rows = pa.RecordBatch.from_pylist([{"k": 1, "s": "", "n": attempt}], SCHEMA)
        staged = job.stage(iter([rows]), 0, attempt, None)
        commit(begun | {"staged": [encode(staged)]})
    assert values_of(table) == {1: ("", 0)}
    assert list(table.writers) == ["spark txn load"]


def test_a_column_that_is_added_while_a_statement_runs_is_null_in_what_it_writes(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert([{"k": 1, "s": "before", "n": 1}, {"k": 2, "s": "before", "n": 2}])
    job = job_of(store, table)
    store.add_columns("t", [pa.field("z", pa.int32())])
    rows = sent("update_postimage", [{"k": 1, "s": "updated", "n": 1}])
    job.commit([job.stage(iter([each]), 0, at, None) for at, each in enumerate([rows, sent("delete", [{"k": 2}])])])
    assert table.scan().read_all().to_pylist() == [{"k": 1, "s": "updated", "n": 1, "z": None}]


@pytest.mark.parametrize("end", ["whole", "cut off", "refused"])
def test_rows_of_a_task_that_breaks_off_are_not_staged(store: kvstore.Store, end: str) -> None:
    table = store.create_table("t", SCHEMA, "k")
    job = encode(job_of(store, table))
    rows = sent("insert", [{"k": 1, "s": "a", "n": 1}])
    if end == "refused":
        rows = rows.set_column(1, "s", pa.array([1]))
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("wb") as out, Messages(theirs) as messages:
        with pa.ipc.new_stream(out, rows.schema) as stream:
            stream.write_batch(rows)
        if end != "cut off":
            out.write((2).to_bytes(4, "big") + b"{}")
        out.flush()
        ours.shutdown(socket.SHUT_WR)
        with nullcontext() if end != "cut off" else pytest.raises(Broken):
            answer({"do": "stage", "job": job, "partition": 0, "attempt": 0}, messages)
        if end != "cut off":
            found = Messages(ours).receive()
            assert ("SchemaMismatch" in found.get("error", "")) == (end == "refused"), found
    assert len(list((store.path / paths.STAGING).glob("*"))) == (1 if end == "whole" else 0)
