"""Spark writes what Python would: all of a job or nothing, and each batch of a stream once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import kvstore
from kvstore.spark import KvStoreSource
from kvstore.spark.write import staged
from logformat import paths
from tests.support.spark_tables import EVERY_TYPE, SCHEMA, listed, load
from tests.support.tables import rows_of as rows_by_bucket

pytestmark = pytest.mark.spark


def save(frame: DataFrame, store: kvstore.Store, table: str, mode: str = "append", **options: str) -> None:
    frame.write.format("kvstore").options(path=str(store.path), table=table, **options).mode(mode).save()


def copy(spark: SparkSession, store: kvstore.Store, checkpoint: Path, **options: str) -> None:
    """Bring the changes of ``t`` into ``u``, as far as they go."""
    changes = spark.readStream.format("kvstore").options(path=str(store.path), table="t$changelog").load()
    into = changes.writeStream.format("kvstore").options(path=str(store.path), table="u", **options)
    query = into.option("checkpointLocation", str(checkpoint)).queryName("copy").trigger(availableNow=True).start()
    query.awaitTermination()


def rows_by_key(table: kvstore.Table) -> list[dict[str, Any]]:
    return sorted(rows_by_bucket(table), key=lambda row: row[table.schema.names[0]])


def staged_files(store: kvstore.Store) -> list[str]:
    return [path.name for path in (store.path / paths.STAGING).glob("*")]


def inserts(table: kvstore.Table) -> list[int]:
    return [row["k"] for batch in table.changelog(columns=["_change_type", "k"]) for row in batch.to_pylist()]


@pytest.fixture
def frame(spark: SparkSession) -> DataFrame:
    """Some thousand rows in four tasks."""
    return spark.range(0, 5000, 1, 4).selectExpr("id AS k", "concat('name-', id) AS s", "id / 2 AS v")


ROWS = [{"k": k, "s": f"name-{k}", "v": k / 2} for k in range(5000)]


def test_a_frame_becomes_rows_in_one_commit(frame: DataFrame, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=3)
    table.upsert([{"k": 7, "s": "before", "v": None}, {"k": -1, "s": "stays", "v": None}])
    ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
    save(frame.repartition(4), store, "t")
    assert rows_by_key(table) == sorted([*ROWS, {"k": -1, "s": "stays", "v": None}], key=lambda row: row["k"])
    versions = {(b["_bucket"][0].as_py(), *b["_commit_version"].unique().to_pylist()) for b in table.changelog(ends)}
    assert versions == set(ends.items())
    assert not staged_files(store)


def test_every_type_goes_there_and_back(spark: SparkSession, store: kvstore.Store) -> None:
    schema = pa.schema([pa.field("k", pa.int32(), False), *((name, kind) for name, (kind, _) in EVERY_TYPE.items())])
    table, copied = (store.create_table(name, schema, primary_key="k", buckets=2) for name in ("t", "u"))
    table.upsert([{"k": 1} | {name: value for name, (_, value) in EVERY_TYPE.items()}])
    table.upsert([{"k": 2} | dict.fromkeys(EVERY_TYPE)])
    table.flush()
    save(load(spark, store, "t"), store, "u")
    assert rows_by_key(copied) == rows_by_key(table)


@contextmanager
def writing(table: kvstore.Table) -> Iterator[list[int]]:
    """Have this process write meanwhile; how often it did."""
    ends = threading.Event()
    done: list[int] = []

    def write() -> None:
        while not ends.is_set():
            table.upsert({"k": -1 - len(done), "s": "here", "v": None})
            done.append(len(done))
            time.sleep(0.001)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield done
    finally:
        ends.set()
        thread.join()


@pytest.mark.spark_more
def test_the_program_that_drives_spark_writes_too(frame: DataFrame, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    with writing(table) as done:
        for _ in range(2):
            save(frame, store, "t")
        count = len(done)
        while len(done) < count + 10:
            time.sleep(0.01)
    assert table.count() == len(ROWS) + len(done)
    assert [row["k"] for row in rows_by_key(table)] == list(range(-len(done), len(ROWS)))


@pytest.mark.spark_more
def test_a_job_that_fails_leaves_nothing(frame: DataFrame, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    broken = frame.selectExpr("IF(k = 4999, raise_error('planted'), k) AS k", "s", "v")
    with pytest.raises(Exception, match="planted"):
        save(broken, store, "t")
    unfit = frame.selectExpr("IF(k = 4999, null, k) AS k", "s", "v")
    with pytest.raises(PythonException, match="This column does not allow nulls"):
        save(unfit, store, "t")
    assert table.offsets() == {0: (0, 0), 1: (0, 0)}
    save(frame, store, "t")
    assert rows_by_key(table) == ROWS
    # A task that was running when the others gave up may have left its file; that is all.
    assert all(paths.is_task_file(name) for name in staged_files(store))


def test_a_transaction_takes_place_once(frame: DataFrame, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    save(frame, store, "t", txnId="load of today")
    table.upsert({"k": 1, "s": "later", "v": None})
    ends = table.offsets()
    save(frame, store, "t", txnId="load of today")
    assert table.offsets() == ends
    save(frame, store, "t", txnId="load of tomorrow")
    assert rows_by_key(table) == ROWS


def test_change_types_say_what_a_row_does(spark: SparkSession, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    table.upsert([{"k": k, "s": "old", "v": None} for k in range(4)])
    changes = [(0, "delete", None), (1, "update_preimage", "wrong"), (1, "update_postimage", "new"), (2, "-D", None)]
    changes += [(4, "+I", "new"), (5, "append", "new"), (9, "delete", None), (3, "-U", "wrong"), (8, "-U", "wrong")]
    frame = spark.createDataFrame(
        [(k, kind, text, None) for k, kind, text in changes], "k long, _change_type string, s string, v double"
    )
    save(frame, store, "t")
    assert {row["k"]: row["s"] for row in rows_by_key(table)} == {1: "new", 3: "old", 4: "new", 5: "new"}


def test_overwriting_replaces_all_rows_and_tells_what_went(frame: DataFrame, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    table.upsert([{"k": k, "s": "old", "v": None} for k in (-3, -2, 0)])
    save(frame, store, "t", mode="overwrite")
    assert rows_by_key(table) == ROWS
    deleted = [row["k"] for b in table.changelog() for row in b.to_pylist() if row["_change_type"] == "delete"]
    assert sorted(deleted) == [-3, -2]
    save(frame.where("k < 0"), store, "t", mode="overwrite")
    assert table.count() == 0


def test_into_a_log_table_and_with_sql(spark: SparkSession, frame: DataFrame, store: kvstore.Store) -> None:
    log = store.create_table("log", SCHEMA, buckets=2)
    save(frame, store, "log")
    assert sorted(inserts(log)) == list(range(5000))
    table = store.create_table("t", SCHEMA, "k")
    spark.sql(f"CREATE TEMPORARY VIEW t_view USING kvstore OPTIONS (path '{store.path}', `table` 't')")
    spark.sql("INSERT INTO t_view VALUES (1, 'a', 0.5), (2, null, null)")
    spark.sql("DROP VIEW t_view")
    assert rows_by_key(table) == [{"k": 1, "s": "a", "v": 0.5}, {"k": 2, "s": None, "v": None}]


def test_a_stream_copies_a_table_and_every_change_once(
    spark: SparkSession, store: kvstore.Store, tmp_path: Path
) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=3)
    copied = store.create_table("u", SCHEMA, "k", buckets=2)
    for step in range(3):
        table.upsert([{"k": k, "s": str(step), "v": 0.0} for k in range(10 * step, 10 * step + 30)])
        table.delete(list(range(10 * step, 10 * step + 3)))
        table.flush()
        copy(spark, store, tmp_path / "c", writer="copy")
        assert rows_by_key(copied) == rows_by_key(table)
    kinds = [row["_change_type"] for b in copied.changelog() for row in b.to_pylist()]
    # Each batch is one commit, so of what happened to a key in it all changes are there.
    assert kinds.count("insert") == 27 + 10 + 10
    assert kinds.count("delete") == 6
    assert not staged_files(store)
    with pytest.raises(StreamingQueryException, match="Another run applies epochs under this name"):
        copy(spark, store, tmp_path / "new", writer="copy")
    assert rows_by_key(copied) == rows_by_key(table)
    copy(spark, store, tmp_path / "newer", writer="copy", takeover="true")
    assert rows_by_key(copied) == rows_by_key(table)
    copy(spark, store, tmp_path / "of its own")
    assert len(copied.writers) == 2


@pytest.mark.long
def test_a_stream_goes_on_after_its_target_has_gained_a_column(
    spark: SparkSession, store: kvstore.Store, tmp_path: Path
) -> None:
    table, copied = (store.create_table(name, SCHEMA, "k") for name in ("t", "u"))
    for k in range(2):
        table.upsert({"k": k, "s": "x", "v": None})
        table.flush()
        copy(spark, store, tmp_path / "c", writer="copy")
        if k == 0:
            store.add_columns("u", [pa.field("more", pa.int64())])
    assert rows_by_key(copied) == [row | {"more": None} for row in rows_by_key(table)]


@pytest.mark.spark_more
def test_an_aggregate_is_kept_in_a_table(spark: SparkSession, store: kvstore.Store, tmp_path: Path) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    counts = store.create_table("counts", pa.schema([pa.field("s", pa.string(), False), ("n", pa.int64())]), "s")
    for words, expected in (("aab", {"a": 2, "b": 1}), ("bba", {"a": 3, "b": 3})):
        table.upsert([{"k": table.count() + place, "s": word, "v": None} for place, word in enumerate(words)])
        table.flush()
        changes = spark.readStream.format("kvstore").options(path=str(store.path), table="t$changelog").load()
        query = changes.groupBy("s").count().withColumnRenamed("count", "n").writeStream.outputMode("complete")
        query = query.format("kvstore").options(path=str(store.path), table="counts")
        query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()
        assert {row["s"]: row["n"] for row in rows_by_key(counts)} == expected


@pytest.mark.parametrize(
    ("table", "columns", "options", "message"),
    [
        ("t", ["s", "v"], {}, r"A column is missing.*missing=\['k'\]"),
        ("t", ["k", "s", "v", "1 AS z"], {}, r"no such column.*unknown=\['z'\]"),
        ("t", ["s AS k", "s", "v"], {}, "different type"),
        ("t", ["k", "s", "v", "k AS _log_offset"], {}, "need their column _change_type"),
        ("t", ["k", "s", "v", "1 AS _change_type"], {}, "change type must be a string"),
        ("t", ["k", "s", "v", "'insert' AS _change_type", "s AS _log_offset"], {}, "its type of a changelog"),
        ("t$changelog", ["k", "s", "v"], {}, "not its changes"),
        ("nope", ["k", "s", "v"], {}, "There is no such table"),
        ("t", ["k", "s", "v"], {"writer": "w"}, "is not for a batch write"),
        ("t", ["k", "s", "v"], {"columns": "k"}, "is not for a batch write"),
        ("t", ["k", "s", "v"], {"txnId": ""}, "`txnId`"),
        ("t", ["k", "s", "v"], {"txnId": "x" * 300}, "`txnId`"),
        ("t", ["k", "s", "v"], {"mode": "overwrite", "table": "log"}, "Only a table with a key"),
        ("t", ["k", "s", "v", "'insert' AS _change_type"], {"mode": "overwrite"}, "are written in mode"),
        ("t", ["k", "s", "v"], {"checkpointLocation": "/tmp"}, "is not for a batch write"),
    ],
)
def test_what_does_not_fit_is_refused_before_any_task(
    frame: DataFrame, store: kvstore.Store, table: str, columns: list[str], options: dict[str, Any], message: str
) -> None:
    """test_errors.py shows what Spark makes of such an error."""
    store.create_table("t", SCHEMA, "k")
    store.create_table("log", SCHEMA)
    arguments = {"path": str(store.path), "table": table} | options
    overwrites = arguments.pop("mode", "append") == "overwrite"
    with pytest.raises(kvstore.errors.StoreError, match=f"(?s){message}"):
        KvStoreSource(arguments).writer(frame.selectExpr(*columns).schema, overwrites)


@pytest.mark.spark_more
def test_a_nullable_column_that_a_frame_does_not_have_is_null(frame: DataFrame, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    save(frame.drop("v"), store, "t")
    assert {row["v"] for row in rows_by_key(table)} == {None}
    assert table.count() == frame.count()


@pytest.mark.spark_more
def test_a_kind_of_change_that_is_none(frame: DataFrame, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    for kind, message in (("'upsert'", "Unknown change type"), ("IF(k = 7, NULL, 'insert')", "Every row needs")):
        with pytest.raises(PythonException, match=message):
            save(frame.selectExpr("*", f"{kind} AS _change_type"), store, "t")
    assert table.count() == 0


@pytest.mark.spark_more
def test_old_files_of_tasks_go(frame: DataFrame, store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("t", SCHEMA, "k")
    save(frame, store, "t")
    directory = store.path / paths.STAGING
    (directory / f"{'0' * 32}-0-0.rows").write_bytes(b"")
    (directory / "notes").write_bytes(b"")
    staged.sweep(store.path)
    assert len(staged_files(store)) == 2
    monkeypatch.setattr(staged, "OLD_SECONDS", -1)
    staged.sweep(store.path)
    assert staged_files(store) == ["notes"]
    assert listed(frame, "k") == rows_by_key(table)
