"""A store as a catalog of Spark SQL."""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PySparkException, UnsupportedOperationException
from pyspark.sql import SparkSession

import kvstore

pytestmark = pytest.mark.spark

_numbers = count()
CREATE = "CREATE TABLE kv.t (k bigint, s string, PRIMARY KEY (k)) TBLPROPERTIES ('bucket.num' = '2')"


@pytest.fixture
def store_of_catalog(spark: SparkSession, store: kvstore.Store) -> Iterator[kvstore.Store]:
    """A store that is the catalog `kv`."""
    name = f"kv{next(_numbers)}"  # a name of its own: Spark keeps the catalogs it has once loaded
    spark.conf.set(f"spark.sql.catalog.{name}", "kvstore.spark.StoreCatalog")
    spark.conf.set(f"spark.sql.catalog.{name}.path", str(store.path))
    spark.conf.set("kvstore.test.catalog", name)
    yield store
    for setting in (f"spark.sql.catalog.{name}", f"spark.sql.catalog.{name}.path", "kvstore.test.catalog"):
        spark.conf.unset(setting)


def run(spark: SparkSession, sql: str) -> list[tuple[object, ...]]:
    name = spark.conf.get("kvstore.test.catalog")
    return [tuple(row) for row in spark.sql(sql.replace("kv.", f"{name}.").replace("IN kv", f"IN {name}")).collect()]


def test_a_table_from_its_creation_to_its_end(spark: SparkSession, store_of_catalog: kvstore.Store) -> None:
    store = store_of_catalog
    run(spark, CREATE)
    assert [row[1] for row in run(spark, "SHOW TABLES IN kv")] == ["t"] == store.list_tables()
    table = store["t"]
    assert (table.primary_key, table.buckets, table.schema.field("s").nullable) == (("k",), 2, True)
    assert ("primary.key", "k") in run(spark, "SHOW TBLPROPERTIES kv.t")
    run(spark, "INSERT INTO kv.t VALUES (1, 'a'), (2, 'b')")
    assert run(spark, "SELECT * FROM kv.t ORDER BY k") == [(1, "a"), (2, "b")]
    run(spark, "ALTER TABLE kv.t ADD COLUMN n int")
    run(spark, "ALTER TABLE kv.t RENAME COLUMN s TO text")
    run(spark, "ALTER TABLE kv.t SET TBLPROPERTIES ('table.log.ttl' = '7 d')")
    assert store["t"].schema.names == ["k", "text", "n"]
    assert store["t"].options.retention_ms == dt.timedelta(days=7) // dt.timedelta(milliseconds=1)
    run(spark, "ALTER TABLE kv.t DROP COLUMN n")
    run(spark, "ALTER TABLE kv.t RENAME TO kv.u")
    assert run(spark, "SELECT text FROM kv.u WHERE k = 2") == [("b",)]
    run(spark, "DROP TABLE kv.u")
    assert run(spark, "SHOW TABLES IN kv") == []


def test_each_query_reads_what_is_committed_and_as_of_pins(
    spark: SparkSession, store_of_catalog: kvstore.Store
) -> None:
    table = store_of_catalog.create_table("t", {"k": "int64 not null", "s": "string"}, "k")
    for number in range(3):
        table.upsert({"k": number, "s": "x"})
        table.flush()
        assert run(spark, "SELECT count(*) FROM kv.t") == [(number + 1,)]
    assert run(spark, "SELECT k FROM kv.t VERSION AS OF 2 ORDER BY k") == [(0,), (1,)]
    assert run(spark, "SELECT count(*) FROM kv.t TIMESTAMP AS OF '2020-01-01 00:00:00'") == [(0,)]
    assert run(spark, "SELECT count(*) FROM kv.`t$changelog`") == [(3,)]
    assert run(spark, "SELECT after.k FROM kv.`t$binlog` WHERE after.k > 1") == [(2,)]


def test_only_a_planned_scan_keeps_the_log(spark: SparkSession, store_of_catalog: kvstore.Store) -> None:
    def leases() -> int:
        return sum(len(each.named) for each in store_of_catalog.runtime.catalog().consumers.values())

    run(spark, "CREATE TABLE kv.t (k bigint, PRIMARY KEY (k)) TBLPROPERTIES ('table.log.ttl' = '1 h')")
    run(spark, "DESCRIBE TABLE EXTENDED kv.t")
    run(spark, "INSERT INTO kv.t VALUES (1)")
    run(spark, "SHOW TBLPROPERTIES kv.t")
    assert leases() == 0
    assert run(spark, "SELECT * FROM kv.t") == [(1,)]
    assert leases() == 1


def test_a_join_on_the_key_of_equal_buckets_shuffles_nothing(
    spark: SparkSession, store_of_catalog: kvstore.Store
) -> None:
    columns = {"k": "int64 not null", "s": "string"}
    rows = pa.table({"k": range(24_000), "s": ["x" * 500] * 24_000})  # worth a task for each bucket
    for name, buckets in (("a", 2), ("b", 2), ("c", 3)):
        store_of_catalog.create_table(name, columns, "k", buckets=buckets).upsert(rows)
    store_of_catalog.flush()
    join = "SELECT count(*), sum(a.k) FROM kv.a, kv.{other} WHERE a.k = {other}.k AND a.s < 'y' AND {other}.s < 'y'"
    settings = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.sources.v2.bucketing.enabled": "true"}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        for other, shuffles in (("b", False), ("c", True)):
            plan = "\n".join(str(row[0]) for row in run(spark, f"EXPLAIN {join.format(other=other)}"))
            assert ("Exchange hashpartitioning(k#" in plan) is shuffles, plan
            assert run(spark, join.format(other=other)) == [(24_000, sum(range(24_000)))]
    finally:
        for name in settings:
            spark.conf.unset(name)


def test_a_table_is_replaced_by_one_commit_or_stays_as_it_is(
    spark: SparkSession, store_of_catalog: kvstore.Store
) -> None:
    def found() -> list[tuple[object, ...]]:
        return run(spark, "SELECT * FROM kv.t ORDER BY k") + run(spark, "SELECT * FROM kv.`t$changelog`")

    run(spark, "CREATE TABLE kv.t (k bigint, n int, PRIMARY KEY (k)) TBLPROPERTIES ('bucket.num' = '2')")
    run(spark, "INSERT INTO kv.t VALUES (1, 10), (2, 20)")
    run(spark, "INSERT INTO kv.t VALUES (2, 21)")
    before = found()
    assert len(before) == 2 + 4
    name = f"{spark.conf.get('kvstore.test.catalog')}.t"
    failing = "CAST(IF(id = 7, raise_error('in the middle'), id) AS int)"
    for sql, message in (
        (f"CREATE OR REPLACE TABLE kv.t AS SELECT id AS k, {failing} AS n FROM range(9)", "in the middle"),
        ("REPLACE TABLE kv.T (k bigint, v variant, PRIMARY KEY (k))", "InvalidRequest.*column=v"),
        ("REPLACE TABLE kv.t (k int) TBLPROPERTIES ('primary.key' = 'n')", "InvalidRequest|SchemaMismatch"),
        ("REPLACE TABLE kv.t AS SELECT 1 AS other", r"lack some of the key.*lacking=\['k'\]"),
        ("REPLACE TABLE kv.nothing AS SELECT 1 AS k", "TABLE_OR_VIEW_NOT_FOUND"),
    ):
        with pytest.raises(PySparkException, match=f"(?s){message}"):
            run(spark, sql)
        assert found() == before
    assert store_of_catalog.list_tables() == ["t"]
    # It reads the table that it replaces, and keeps its key and its properties.
    run(spark, "CREATE OR REPLACE TABLE kv.T AS SELECT k + 1 AS k, n, 'x' AS s FROM kv.t")
    assert found()[:2] == [(2, 10, "x"), (3, 21, "x")]
    assert (store_of_catalog["t"].buckets, store_of_catalog["t"].primary_key) == (2, ("k",))
    assert run(spark, "SELECT _change_type FROM kv.`t$changelog`") == [("insert",)] * 2
    frame = spark.table(name)
    frame.where("k = 2").writeTo(name).createOrReplace()
    assert run(spark, "SELECT * FROM kv.t") == [(2, 10, "x")]
    frame = spark.table(name).where("k > 0").selectExpr("k", "n + 1 AS n", "s")
    ends = {str(bucket): end for bucket, (_, end) in store_of_catalog["t"].offset_ranges().items()}
    run(spark, "INSERT INTO kv.t VALUES (5, 50, 'later')")
    with pytest.raises(AnalysisException, match=r"Conflict: The query reads the table that it replaces.*run it again"):
        frame.writeTo(name).createOrReplace()  # it has the table as it was when the frame was made
    run(spark, f"CREATE OR REPLACE TABLE kv.t AS SELECT * FROM kv.t VERSION AS OF '{json.dumps(ends)}'")
    assert run(spark, "SELECT * FROM kv.t") == [(2, 10, "x")]
    frame = spark.table(name)
    keys = spark.range(3).withColumnRenamed("id", "k")
    with pytest.raises(AnalysisException, match=r"takes no options.*tableProperty.*given=primary\.key"):
        keys.write.mode("overwrite").option("primary.key", "k").saveAsTable(name)
    keys.write.mode("overwrite").saveAsTable(name)
    assert run(spark, "SELECT * FROM kv.t ORDER BY k") == [(0,), (1,), (2,)]
    run(spark, "REPLACE TABLE kv.t (a string, PRIMARY KEY (a))")
    assert (run(spark, "SELECT * FROM kv.t"), store_of_catalog["t"].buckets) == ([], 1)
    with pytest.raises(AnalysisException, match="dropped since it was loaded"):
        frame.collect()


def test_create_as_select_makes_a_whole_table_or_none(spark: SparkSession, store_of_catalog: kvstore.Store) -> None:
    name, keyed = spark.conf.get("kvstore.test.catalog"), "TBLPROPERTIES ('primary.key' = 'k')"
    failing = "CAST(IF(id = 7, raise_error('in the middle'), id) AS int)"
    for verb in ("CREATE", "CREATE OR REPLACE"):
        with pytest.raises(PySparkException, match="in the middle"):
            run(spark, f"{verb} TABLE kv.t {keyed} AS SELECT id AS k, {failing} AS n FROM range(9)")
        assert store_of_catalog.list_tables() == []
    run(spark, f"CREATE TABLE kv.t {keyed} AS SELECT id AS k FROM range(2)")
    assert run(spark, "SELECT * FROM kv.t ORDER BY k") == [(0,), (1,)]
    spark.range(3).writeTo(f"{name}.lines").createOrReplace()  # a log table, which has no rows to overwrite
    spark.range(3).writeTo(f"{name}.sums").tableProperty("primary.key", "id").tableProperty(
        "table.merge-engine", "aggregation"
    ).createOrReplace()
    assert (
        run(spark, "SELECT count(*) FROM kv.`lines$changelog`") == run(spark, "SELECT count(*) FROM kv.sums") == [(3,)]
    )


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("z string COLLATE UTF8_LCASE", "keeps no collation.*Leave COLLATE out.*column=z"),
        ("z varchar(3)", r"use STRING.*column=z type=varchar\(3\)"),
        ("z array<struct<a: char(2)>>", r"use STRING.*column=z\.element\.a type=char\(2\)"),
        ("z interval year to month", "use INT.*column=z"),
        ("z map<string, variant>", r"use STRING, and write to_json.*column=z\.value type=variant"),
        ("z geometry(4326)", "use BINARY.*column=z"),
        ("z1 int, z2 int DEFAULT 7", "no DEFAULT.*UPDATE.*column=z2 default=7|not support column default"),
        ("z1 int, z2 string AFTER s", "leave FIRST and AFTER out.*column=z2 place=AFTER s|AFTER s"),
        ("z1 int, z2 void", "InvalidRequest.*column=z2"),
    ],
)
def test_columns_are_all_created_as_they_are_declared_or_none_is(
    spark: SparkSession, store_of_catalog: kvstore.Store, columns: str, message: str
) -> None:
    table = store_of_catalog.create_table("t", {"k": "int64 not null", "s": "string"}, "k")
    for sql in (f"ALTER TABLE kv.t ADD COLUMNS ({columns})", f"CREATE TABLE kv.u (k bigint, {columns})"):
        with pytest.raises(AnalysisException, match=f"(?s){message}"):
            run(spark, sql)
    assert store_of_catalog.list_tables() == ["t"]
    assert store_of_catalog["t"].schema == table.schema


def test_a_statement_changes_a_table_by_one_commit_or_not_at_all(
    spark: SparkSession, store_of_catalog: kvstore.Store
) -> None:
    run(spark, "CREATE TABLE kv.t (k bigint, s string, PRIMARY KEY (k))")
    for sql, message in (
        ("ALTER TABLE kv.t REPLACE COLUMNS (k bigint, n int)", "can't be changed like this; nothing was changed"),
        (
            "ALTER TABLE kv.t SET TBLPROPERTIES ('table.log.ttl' = '7 d', 'table.delete.behavior' = 'sometimes')",
            "InvalidRequest: .*sometimes",
        ),
        ("CREATE TABLE kv.u (k string) DEFAULT COLLATION UTF8_LCASE", "Leave DEFAULT COLLATION out"),
    ):
        with pytest.raises(AnalysisException, match=f"(?s){message}"):
            run(spark, sql)
        found = store_of_catalog["t"]
        assert (found.schema.names, found.options.retention_ms) == (["k", "s"], None)
    run(spark, "ALTER TABLE kv.t ADD COLUMNS (z1 int, z2 string)")
    run(spark, "ALTER TABLE kv.t DROP COLUMNS (S, z1)")
    run(spark, "ALTER TABLE kv.t ALTER COLUMN z2 TYPE string")  # it is one
    assert store_of_catalog["t"].schema.names == ["k", "z2"]
    assert store_of_catalog.list_tables() == ["t"]


def test_other_changes_of_a_table_are_refused_as_a_whole(spark: SparkSession, store_of_catalog: kvstore.Store) -> None:
    run(spark, "CREATE TABLE kv.t (k bigint, n int, f float, m decimal(10, 2), st struct<x: int>, PRIMARY KEY (k))")
    schema = store_of_catalog["t"].schema
    for sql, message in {
        "ALTER COLUMN n TYPE bigint": "keeps its type",
        "ALTER COLUMN f TYPE double": "keeps its type",
        "ALTER COLUMN m TYPE decimal(12, 2)": "keeps its type",
        "ALTER COLUMN n SET DEFAULT 3": "can't be changed like this",
        "ALTER COLUMN n FIRST": "can't be changed like this",
        "ALTER COLUMN n AFTER m": "can't be changed like this",
        "ALTER COLUMN n COMMENT 'c'": "keeps no comments",
        "ADD COLUMNS (y int, st.z int)": "field of a struct",
        "RENAME COLUMN st.x TO y": "field of a struct",
        "DROP COLUMNS (n, st.x)": "field of a struct",
        "ADD COLUMNS (y int, z int DEFAULT 3)": "have no DEFAULT",
        "ADD COLUMNS (y int, z int AFTER k)": "leave FIRST and AFTER out",
        "ADD COLUMNS (y int, z int NOT NULL)": "must be nullable",
        "SET TBLPROPERTIES ('table.log.ttl' = '7 d', 'comment' = 'c')": "keeps no comments",
    }.items():
        with pytest.raises(AnalysisException, match=f"(?s){message}"):
            run(spark, f"ALTER TABLE kv.t {sql}")
        assert (store_of_catalog["t"].schema, store_of_catalog["t"].options.retention_ms) == (schema, None), sql
    with pytest.raises(AnalysisException, match="keeps no comments"):
        run(spark, "COMMENT ON TABLE kv.t IS 'c'")
    with pytest.raises(AnalysisException, match="UNSUPPORTED_FEATURE"):
        run(spark, "CREATE TABLE kv.u (k bigint, n int DEFAULT 3, PRIMARY KEY (k))")
    assert store_of_catalog.list_tables() == ["t"]


def test_names_follow_the_setting_of_spark_for_case(spark: SparkSession, store_of_catalog: kvstore.Store) -> None:
    properties = "'bucket.key' = 'kK', 'table.merge-engine' = 'aggregation', 'fields.N.agg' = 'sum'"
    run(spark, f"CREATE TABLE kv.Files (Kk bigint, n int, PRIMARY KEY (KK)) TBLPROPERTIES ({properties})")
    assert store_of_catalog["Files"].primary_key == ("Kk",)
    run(spark, "INSERT INTO kv.files VALUES (1, 2)")
    run(spark, "INSERT INTO kv.FILES VALUES (1, 4)")
    assert run(spark, "SELECT * FROM kv.fILES") == [(1, 6)]
    assert run(spark, "SELECT max(_commit_version) FROM kv.`files$changelog`") == run(
        spark, "SELECT max(_commit_version) FROM kv.files CHANGES FROM VERSION 'earliest'"
    )
    run(spark, "CREATE TABLE IF NOT EXISTS kv.files (k bigint)")
    run(spark, "CREATE TABLE kv.other (k bigint)")
    for sql in ("CREATE TABLE kv.files (k bigint)", "ALTER TABLE kv.other RENAME TO kv.files"):
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_ALREADY_EXISTS"):
            run(spark, sql)
    run(spark, "ALTER TABLE kv.files ADD COLUMN m int")
    run(spark, "ALTER TABLE kv.files RENAME TO kv.FILES")
    run(spark, "DROP TABLE kv.Other")
    assert store_of_catalog.list_tables() == ["FILES"]
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        for sql, message in (
            ("SELECT * FROM kv.files", "TABLE_OR_VIEW_NOT_FOUND"),
            ("CREATE TABLE kv.files (kk bigint, PRIMARY KEY (KK))", "InvalidRequest: .*column=KK"),
        ):
            with pytest.raises(AnalysisException, match=f"(?s){message}"):
                run(spark, sql)
        run(spark, "CREATE TABLE kv.files (k bigint, PRIMARY KEY (k))")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert run(spark, "SELECT * FROM kv.files") == [], "a name as it is written comes first"
    for sql in ("SELECT * FROM kv.Files", "DROP TABLE IF EXISTS kv.Files"):
        with pytest.raises(AnalysisException, match=r"only by case.*tables=\[FILES, files\]"):
            run(spark, sql)


@pytest.mark.spark_more
@pytest.mark.parametrize("kind", [pa.decimal256(50, 2), pa.decimal128(5, -2), pa.decimal128(2, 5)])
def test_a_table_with_a_column_that_spark_can_not_have(
    spark: SparkSession, store_of_catalog: kvstore.Store, kind: pa.DataType
) -> None:
    table = store_of_catalog.create_table("t", pa.schema([("k", pa.int64()), ("v", kind)]), "k")
    table.upsert([{"k": 1, "v": None}])
    with pytest.raises(PySparkException, match=r"option `columns`.*column=v"):
        run(spark, "SELECT k FROM kv.t")
    options = {"path": str(store_of_catalog.path), "table": "t", "columns": "k"}
    assert spark.read.format("kvstore").options(**options).load().collect() == [(1,)]
    run(spark, "DROP TABLE kv.T")
    assert store_of_catalog.list_tables() == []
    run(spark, "DROP TABLE IF EXISTS kv.t")


@pytest.mark.spark_more
def test_a_query_on_a_table_of_a_catalog_names_its_columns_itself(
    spark: SparkSession, store_of_catalog: kvstore.Store
) -> None:
    run(spark, CREATE)
    name = f"{spark.conf.get('kvstore.test.catalog')}.t"
    with pytest.raises(PySparkException, match=r"leave this option out. columns=k"):
        spark.read.option("columns", "k").table(name).collect()
    run(spark, "INSERT INTO kv.t VALUES (1, 'a')")
    assert run(spark, "SELECT s FROM kv.t") == [("a",)]


@pytest.mark.spark_more
@pytest.mark.parametrize(
    ("condition", "row_changes"),
    [
        ("n <> 20", [1, 3]),
        ("NOT n <=> 20", None),
        ("n NOT IN (10, 20)", None),
        ("n = 20 OR k = 1", None),
        ("n % 2 = 0", None),
        ("CAST(n AS string) = '10'", None),
        ("d > 1", [1, 4]),
        ("d <= 1", [2]),
        ("d = CAST('NaN' AS double)", None),
        ("s >= 'b' AND n IS NULL", [4]),
        ("N <> 20 AND S = 'a'", [1]),
    ],
)
def test_an_insert_replaces_the_rows_that_pass_a_condition_and_no_others(
    spark: SparkSession, store_of_catalog: kvstore.Store, condition: str, row_changes: list[int] | None
) -> None:
    columns = {"k": "int64 not null", "n": "int32", "d": "float64", "s": "string"}
    table = store_of_catalog.create_table("t", columns, "k", buckets=2)
    rows = [(1, 10, math.nan, "a"), (2, 20, 1.0, "b"), (3, 30, None, None), (4, None, 2.0, "d")]
    table.upsert([dict(zip(columns, row, strict=True)) for row in rows])
    sql = f"INSERT INTO kv.t REPLACE WHERE {condition} SELECT bigint(9), 9, double(9), 'z'"
    if row_changes is None:
        with pytest.raises(AnalysisException, match=r"UnsupportedOperation: .*DELETE the rows.*condition="):
            run(spark, sql)
        assert table.count() == 4
    else:
        run(spark, sql)
        assert {key for (key,) in run(spark, "SELECT k FROM kv.t")} == {1, 2, 3, 4, 9} - set(row_changes)


def test_two_statements_that_replace_a_table_at_once(spark: SparkSession, store_of_catalog: kvstore.Store) -> None:
    """One of them writes all its rows while the query of the other runs."""
    properties = "TBLPROPERTIES ('primary.key' = 'k', 'auto-increment.fields' = 'id')"

    def other(sql: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        path = str(store_of_catalog.path)

        def run_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            with kvstore.open(path) as store:
                if sql == "create":
                    store.create_table("t", {"k": "int64 not null"}, "k").upsert([{"k": 7}])
                else:
                    store.table("t").upsert([{"k": 8}])
            yield from batches

        return run_first

    name = f"{spark.conf.get('kvstore.test.catalog')}.t"
    for verb, message in (("create", "was created meanwhile.*run it again"), ("write", "Run it again")):
        frame = spark.range(0, 1, 1, 1).withColumnRenamed("id", "k").mapInArrow(other(verb), "k bigint")
        with pytest.raises(PySparkException, match=f"Conflict: .*{message}"):
            frame.writeTo(name).createOrReplace()
    assert [row["k"] for row in store_of_catalog["t"]] == [7, 8]
    run(spark, f"CREATE OR REPLACE TABLE kv.t {properties} AS SELECT 'a' AS k, bigint(null) AS id")
    with pytest.raises(
        AnalysisException,
        match=r"keeps its key and its properties.*auto_increment is the name of a column.*give PRIMARY KEY",
    ):
        run(spark, "CREATE OR REPLACE TABLE kv.t AS SELECT k FROM kv.t")


def test_an_overwrite_of_partitions_is_refused(spark: SparkSession, store_of_catalog: kvstore.Store) -> None:
    table = store_of_catalog.create_table("t", {"k": "int64 not null"}, "k")
    table.upsert([{"k": 1}])
    rows = spark.range(2, 4).withColumnRenamed("id", "k")
    with pytest.raises(AnalysisException, match=r"UnsupportedOperation: .*no partitions.*overwrite\(lit\(True\)\)"):
        rows.writeTo(f"{spark.conf.get('kvstore.test.catalog')}.t").overwritePartitions()
    assert [row["k"] for row in table] == [1]


def test_a_table_like_another_and_the_namespace_default(spark: SparkSession, store_of_catalog: kvstore.Store) -> None:
    properties = (
        "'table.merge-engine' = 'aggregation', 'fields.n.agg' = 'sum', 'table.log.ttl' = '3 d', 'bucket.num' = '2'"
    )
    run(spark, f"CREATE TABLE kv.default.t (k bigint, n int, PRIMARY KEY (k)) TBLPROPERTIES ({properties})")
    run(spark, "CREATE TABLE kv.u LIKE kv.T")
    with pytest.raises(AnalysisException, match=r"leave TBLPROPERTIES and USING out.*given=bucket\.num"):
        run(spark, "CREATE TABLE kv.w LIKE kv.t TBLPROPERTIES ('bucket.num' = '3')")
    with pytest.raises(AnalysisException, match=r"takes a table, not its changes.*table=t\$changelog"):
        run(spark, "CREATE TABLE kv.w LIKE kv.`t$changelog`")
    for sql in ("CREATE TABLE kv.other.w (k int)", "CREATE OR REPLACE TABLE kv.other.w AS SELECT 1 AS k"):
        with pytest.raises(AnalysisException, match="SCHEMA_NOT_FOUND"):
            run(spark, sql)
    for sql in ("CREATE NAMESPACE kv.other", "DROP NAMESPACE kv.default"):
        with pytest.raises(AnalysisException, match="has one namespace, `default`"):
            run(spark, sql)
    assert run(spark, "SHOW NAMESPACES IN kv") == [("default",)]
    assert run(spark, "SHOW TABLES FROM kv.default") == [("default", "t", False), ("default", "u", False)]
    run(spark, "INSERT INTO kv.default.u VALUES (1, 2)")
    run(spark, "INSERT INTO kv.u VALUES (1, 3)")
    assert run(spark, "SELECT * FROM kv.default.u") == [(1, 5)]
    for of in ("t", "u"):
        options = store_of_catalog[of].options
        assert (store_of_catalog[of].buckets, options.retention_ms) == (2, 3 * 24 * 3600 * 1000)
    run(spark, "ALTER TABLE kv.default.u RENAME TO kv.default.w")
    assert store_of_catalog.list_tables() == ["t", "w"]
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        run(spark, "SELECT * FROM kv.other.w")


@pytest.mark.parametrize(
    "engine",
    [
        "last_row",
        "first_row",
        kvstore.Versioned("n"),
        kvstore.Aggregate({"n": "sum", "s": kvstore.listagg("; "), "m.x": "max"}),
    ],
)
def test_what_show_create_table_says_creates_the_same_table(
    spark: SparkSession, store_of_catalog: kvstore.Store, engine: Any
) -> None:
    columns = {"k": "int64 not null", "n": "int32", "s": "string", "m.x": "int64"}
    table = store_of_catalog.create_table(
        "t", columns, "k", merge_engine=engine, buckets=2, retention=dt.timedelta(days=3)
    )
    [(sql,)] = run(spark, "SHOW CREATE TABLE kv.t")
    run(spark, str(sql).replace(".t (", ".u ("))
    other = store_of_catalog["u"]
    assert (other.schema, other.primary_key, other.options) == (table.schema, table.primary_key, table.options)


KEYED = "CREATE TABLE kv.u (k bigint, n int, PRIMARY KEY (k))"


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("CREATE TABLE kv.t (k bigint)", "TABLE_OR_VIEW_ALREADY_EXISTS"),
        ("TRUNCATE TABLE kv.lines", "A log table takes INSERT only"),
        ("ALTER TABLE kv.t ADD COLUMN k.x int", "INVALID_FIELD_NAME"),
        ("CREATE TABLE kv.u (k bigint) TBLPROPERTIES ('buckets' = '2')", r"Unknown property.*buckets.*bucket\.num"),
        (
            "CREATE TABLE kv.u (k bigint) TBLPROPERTIES ('bucket.num' = 'two')",
            "InvalidRequest: `bucket.num` is a number",
        ),
        ("CREATE TABLE kv.u (k bigint) TBLPROPERTIES ('primary.key' = 'z')", "InvalidRequest"),
        ("ALTER TABLE kv.t SET TBLPROPERTIES ('bucket.num' = '3')", "property can't be changed"),
        ("CREATE TABLE kv.u (k bigint) TBLPROPERTIES ('table.log.ttl' = '3 months')", "number and a unit"),
        ("CREATE TABLE kv.u (k bigint) TBLPROPERTIES ('table.log.ttl' = '99999999999 d')", "longer than any time"),
        ("CREATE TABLE kv.u (k bigint) TBLPROPERTIES ('option.bucket.num' = '2')", r"Unknown.*\['option\.bucket\.num"),
        (
            "CREATE TABLE kv.u (k bigint) TBLPROPERTIES ('primary.key' = 'k', 'primary-key' = 'z')",
            r"`primary.key` is given twice.*given=\['k', 'z'\]",
        ),
        (f"{KEYED} TBLPROPERTIES ('fields.n.agg' = 'sum')", "for the engine `aggregation`.*columns=.'n'"),
        (f"{KEYED} TBLPROPERTIES ('table.merge-engine.versioned.ver-column' = 'n')", "go together.*engine=last_row"),
        (f"{KEYED} TBLPROPERTIES ('table.merge-engine' = 'versioned')", "go together.*engine=versioned"),
        (f"{KEYED} TBLPROPERTIES ('table.merge-engine' = 'sums')", "versioned or aggregation.*given=sums"),
        (
            f"{KEYED} TBLPROPERTIES ('table.merge-engine' = 'aggregation', 'fields.n.listagg.delimiter' = ';')",
            "for the function `listagg`.*columns=.'n'",
        ),
        ("CREATE OR REPLACE TABLE kv.t (k bigint) TBLPROPERTIES ('option.x' = '1')", "Unknown property"),
        ("ALTER TABLE kv.t RENAME TO kv.lines", r"TABLE_OR_VIEW_ALREADY_EXISTS.*\.lines because"),
        ("ALTER TABLE kv.t RENAME TO nope.t", "SCHEMA_NOT_FOUND.*`nope`"),
        ("CREATE TABLE kv.`` (k bigint)", "`table` is missing or empty"),
        ("ALTER TABLE kv.t UNSET TBLPROPERTIES ('table.delete.behavior')", "or unsets `table.log.ttl`"),
        ("CREATE TABLE kv.u (k bigint) USING parquet", "leave USING and LOCATION out"),
        ("CREATE TABLE kv.u (k bigint, CONSTRAINT c CHECK (k > 0))", "no constraint but PRIMARY KEY"),
        ("SELECT * FROM kv.nope", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT * FROM kv.lines", "log table has no key"),
    ],
)
def test_what_is_refused(spark: SparkSession, store_of_catalog: kvstore.Store, sql: str, message: str) -> None:
    store_of_catalog.create_table("t", {"k": "int64 not null"}, "k")
    store_of_catalog.create_table("lines", {"k": "int64"})
    with pytest.raises((AnalysisException, UnsupportedOperationException), match=f"(?s){message}"):
        run(spark, sql)
    assert store_of_catalog.list_tables() == ["lines", "t"]
    assert store_of_catalog["t"].primary_key == ("k",)


def test_the_directory_of_a_catalog_must_be_a_store(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.catalog.nowhere", "kvstore.spark.StoreCatalog")
    spark.conf.set("spark.sql.catalog.nowhere.path", str(tmp_path / "nowhere"))
    with pytest.raises(AnalysisException, match="NotAStore: There is no store here"):
        spark.sql("CREATE TABLE nowhere.t (k bigint)")
    assert not (tmp_path / "nowhere").exists()
