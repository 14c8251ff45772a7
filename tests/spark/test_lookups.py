"""Keys that a query names are looked up: lists of them, joins with a few rows, and MERGE."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, In

import kvstore
from kvstore.errors import InvalidRequest, UnsupportedOperation
from kvstore.spark.connector import catalog
from kvstore.spark.read.batch import KvStoreReader
from kvstore.spark.source import KvStoreSource
from tests.conftest import OpenStore
from tests.spark.catalogs import catalog_of
from tests.spark.statements import SIMPLE, TAKEN, Rows, below, merge, some_rows

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string()), pa.field("n", pa.int32())])
MANY = 30_000
"""So many rows that a join with a few looks them up."""


def read(store: kvstore.Store, wanted: list[Filter], **options: str) -> tuple[bool, list[dict[str, Any]]]:
    """Whether rows are looked up, and the rows."""
    source = KvStoreSource({"path": str(store.path), "table": "t", "pushFilters": "true"} | options)
    reader = source.reader(source.schema())
    assert isinstance(reader, KvStoreReader)
    reader.pushFilters(wanted)
    tasks = reader.partitions()
    return reader.looks_up, [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]


@pytest.mark.parametrize("buckets", [1, 3])
def test_keys_are_looked_up_as_of_any_moment(store: kvstore.Store, buckets: int) -> None:
    schema = pa.schema([pa.field("a", pa.string(), False), pa.field("b", pa.int32(), False), pa.field("n", pa.int64())])
    table = store.create_table("t", schema, ["a", "b"], buckets=buckets, bucket_key=["a"])
    random, then, rows = Random(buckets), [], {}
    for number in range(12):
        for _ in range(30):
            key = random.choice("uvwxyz"), random.randrange(20)
            if random.random() < 0.3:
                table.delete([key])
                rows.pop(key, None)
            else:
                table.upsert({"a": key[0], "b": key[1], "n": number})
                rows[key] = number
        if random.random() < 0.5:
            table.flush()
        offsets = {str(bucket): end for bucket, (_, end) in table.offsets().items()}
        then.append((json.dumps(offsets), dict(rows)))
    for offsets, expected in [random.choice(then) for _ in range(12)] + then[-1:]:
        some, numbers = random.sample("uvwxyz_", 2), [*random.sample(range(25), 6), None]
        wanted = [In(("a",), tuple(some)), In(("b",), tuple(numbers)), In(("b",), tuple(range(30)))]
        looks_up, found = read(store, wanted, asOf=offsets)
        assert looks_up
        assert {(row["a"], row["b"]): row["n"] for row in found} == {
            key: n for key, n in expected.items() if key[0] in some and key[1] in numbers
        }
        assert len(found) == len({(row["a"], row["b"]) for row in found})


@pytest.mark.parametrize(
    ("kind", "given", "asked", "others"),
    [
        (pa.decimal128(10, 2), Decimal("1.50"), Decimal("1.5"), [Decimal("1.505")]),
        (pa.date32(), dt.date(1969, 5, 1), dt.date(1969, 5, 1), []),
        (pa.timestamp("ms", "UTC"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, tzinfo=dt.UTC), []),
        (pa.uint8(), 200, 200, [300]),
        (pa.binary(2), b"ab", bytearray(b"ab"), [b"abc"]),
        (pa.bool_(), True, True, []),
    ],
    ids=str,
)
def test_a_key_is_looked_up_whatever_its_type(
    store: kvstore.Store, kind: pa.DataType, given: Any, asked: Any, others: list[Any]
) -> None:
    table = store.create_table("t", pa.schema([pa.field("k", kind, False), pa.field("n", pa.int32())]), "k")
    table.upsert({"k": given, "n": 1})
    looks_up, found = read(store, [In(("k",), (asked, None))])
    assert (looks_up, [row["n"] for row in found]) == (True, [1])
    for other in others:  # of no stored key: all rows that Spark may keep are read
        assert [row["n"] for row in read(store, [In(("k",), (asked, other))])[1]] == [1]
    assert read(store, [In(("k",), (None,))])[1] == []


def test_rows_are_read_where_lookups_would_cost_more(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    table.upsert([{"k": k, "s": "x", "n": k} for k in range(MANY)])
    for count, expected in ((1000, True), (MANY, False)):
        looks_up, found = read(store, [In(("k",), tuple(range(count)))])
        assert looks_up == expected
        assert sorted(row["k"] for row in found) == list(range(count))
    assert not read(store, [EqualTo(("n",), 7)])[0]
    assert not read(store, [EqualTo(("k",), 7)], table="t$changelog")[0]


@pytest.mark.parametrize("buckets", [1, 3])
def test_rows_that_an_index_names_are_looked_up_as_of_any_moment(store: kvstore.Store, buckets: int) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=buckets, indexes={"by_s": ["s", "n"], "by_n": "n"})
    table.upsert([{"k": k, "s": f"s{k % 500}", "n": k % 900} for k in range(5000)])
    table.flush()
    random = Random(buckets)
    for wanted, passes in (
        ([EqualTo(("s",), "s7")], lambda row: row["s"] == "s7"),
        ([In(("n",), (3, 800)), EqualTo(("s",), "s3")], lambda row: row["n"] in (3, 800) and row["s"] == "s3"),
        ([EqualTo(("s",), "nowhere")], lambda row: row["s"] == "nowhere"),
    ):
        source = KvStoreSource({"path": str(store.path), "table": "t", "pushFilters": "true"})
        reader = source.reader(source.schema())
        assert isinstance(reader, KvStoreReader)
        reader.pushFilters(wanted)
        expected = sorted(row["k"] for row in table.to_arrow().to_pylist() if passes(row))
        for _ in range(3):  # changes after the moment of the read, before its tasks and while they run
            ids = [*random.sample(range(5000), 20), *expected[:2]]
            table.upsert([{"k": k, "s": random.choice(["s7", "s3", "x"]), "n": 3} for k in ids])
            tasks = reader.partitions()
            table.delete(expected[-1:])
            assert all(piece.wanted is not None for task in tasks for piece in task.pieces)
            found = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
            assert len(found) < 200
            assert sorted(row["k"] for row in found if passes(row)) == expected


def rows_read(frame: DataFrame) -> list[int]:
    """Number of rows that each scan of a table has given to Spark."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    plans = [leaves.apply(place) for place in range(leaves.size())]
    return [plan.metrics().apply("numOutputRows").value() for plan in plans if plan.nodeName().startswith("BatchScan")]


def rows_that_came_with(frame: DataFrame) -> list[int]:
    """Number of rows that came with the plan, of each scan that needs no task for them."""
    leaves = frame._jdf.queryExecution().optimizedPlan().collectLeaves()
    plans = [leaves.apply(place) for place in range(leaves.size())]
    return [plan.data().length() for plan in plans if plan.nodeName() == "LocalRelation"]


@pytest.mark.spark
def test_rows_of_a_few_keys_come_with_the_plan(spark: SparkSession, store: kvstore.Store, tmp_path: Path) -> None:
    schema = pa.schema(
        [
            pa.field("k", pa.int64(), False),
            pa.field("s", pa.string()),
            pa.field("n", pa.decimal128(20, 3)),
            pa.field("some", pa.list_(pa.struct([("a", pa.binary()), ("b", pa.map_(pa.string(), pa.date32()))]))),
        ]
    )
    table = store.create_table("t", schema, "k", buckets=2)
    some = [None, [], [{"a": b"\0", "b": {"x": dt.date(1969, 1, 1)}}, None, {"a": None, "b": {}}]]
    table.upsert([{"k": k, "s": f"s{k}" if k % 3 else None, "n": k, "some": some[k % 3]} for k in range(200)])
    table.flush()
    table.upsert({"k": 5, "s": "five", "n": Decimal("5.5"), "some": None})
    table.delete([8])
    with catalog_of(spark, store.path) as (name, run):
        spark.udf.register("twice", lambda k: 2 * k, "long")
        spark.range(4, 9).createOrReplaceTempView("few")
        few = ", ".join(map(str, range(0, 400, 2)))
        expected: list[tuple[str, list[int]]] = [
            ("SELECT * FROM kv.t WHERE k = 5", [1]),
            ("SELECT * FROM kv.t WHERE k = 8 OR k IS NULL", []),
            ("SELECT * FROM kv.t WHERE k = 8", [0]),
            (f"SELECT * FROM kv.t WHERE k IN ({few})", [99]),
            ("SELECT k + 1, upper(s) FROM kv.t WHERE k IN (5, 6, 7, 1000) AND s LIKE '%s%' AND n < 7", []),
            ("SELECT count(*) FROM kv.t WHERE k IN (5, 6, 8)", []),
            ("SELECT s IS NULL, sum(n), max(k), collect_set(s) FROM kv.t WHERE k IN (3, 5, 6) GROUP BY 1", []),
            ("SELECT t.* FROM kv.t t JOIN few ON t.k = few.id WHERE t.k IN (1, 5, 6, 7)", []),
            ("SELECT few.id, t.s FROM few LEFT JOIN (SELECT * FROM kv.t WHERE k IN (5, 8)) t ON t.k = few.id", []),
            ("SELECT * FROM kv.t WHERE k = 5 UNION ALL SELECT * FROM kv.t WHERE k = 6 ORDER BY k", []),
            ("SELECT * FROM kv.t WHERE k IN (5, 6, 7) ORDER BY k DESC LIMIT 2", []),
            ("SELECT k, row_number() OVER (ORDER BY k DESC) FROM kv.t WHERE k IN (5, 6, 7)", []),
            ("SELECT k, twice(k) FROM kv.t WHERE k IN (5, 6) AND twice(k) = 12", []),
            ("SELECT k, (SELECT max(u.s) FROM kv.t u WHERE u.k = 5) FROM kv.t WHERE k IN (6, 7)", []),
            ("SELECT few.id FROM few WHERE EXISTS (SELECT 1 FROM kv.t t WHERE t.k = 5 AND t.k = few.id)", []),
            ("SELECT explode(some) FROM kv.t WHERE k IN (2, 5, 11)", []),
            ("SELECT sum(k + 1), max(upper(s)) FROM kv.t WHERE k IN (5, 6, 7) AND length(s) > 2", []),
        ]
        for sql, came in expected:
            found = run(sql)
            frame = spark.sql(sql.replace("kv.", f"{name}."))
            frame.collect()
            assert not rows_read(frame) or "OR" in sql, sql
            assert not came or rows_that_came_with(frame) == came, sql
            spark.conf.set("spark.sql.optimizer.dynamicPartitionPruning.enabled", "false")
            try:
                read = spark.sql(sql.replace("kv.", f"{name}."))
                assert sorted(found, key=repr) == sorted(map(tuple, read.collect()), key=repr), sql
                assert rows_read(read), sql
            finally:
                spark.conf.unset("spark.sql.optimizer.dynamicPartitionPruning.enabled")
        never = "SELECT coalesce(1, (SELECT 1 DIV (k - 5) FROM kv.t WHERE k = 5))"
        assert run(never) == [(1,)]  # what may fail is left for tasks
        assert "LocalTableScan" in str(run("EXPLAIN SELECT 1 DIV (k - 5) FROM kv.t WHERE k = 5"))
        with pytest.raises(PySparkException, match="DIVIDE_BY_ZERO"):
            run("SELECT 1 DIV (k - 5) FROM kv.t WHERE k = 5")
        spark.range(40).selectExpr("id", "id % 4 AS part").write.partitionBy("part").parquet(str(tmp_path / "parts"))
        spark.read.parquet(str(tmp_path / "parts")).createOrReplaceTempView("parts")
        pruned = "SELECT p.id FROM parts p JOIN kv.t t ON p.part = t.k WHERE t.k IN (1, 9)"
        assert sorted(run(pruned)) == [(k,) for k in range(1, 40, 4)]
        assert "dynamicpruning" in str(run(f"EXPLAIN {pruned}")), "one partition is read"
        by_name = spark.table(f"{name}.t").where("k = 5")
        assert [row.s for row in by_name.collect()] == ["five"]
        then = json.dumps({str(bucket): end for bucket, (_, end) in table.offsets().items()})
        table.upsert({"k": 5, "s": "new", "n": None, "some": None})
        assert [row.s for row in by_name.select("s").collect()] == ["five"]  # as of when the table was loaded
        assert run("SELECT s FROM kv.t WHERE k = 5") == [("new",)]
        assert run(f"SELECT s FROM kv.t VERSION AS OF '{then}' WHERE k = 5") == [("five",)]
        run("UPDATE kv.t SET s = 'newer' WHERE k = 5")
        run("DELETE FROM kv.t WHERE k = 6")
        assert run("SELECT k, s FROM kv.t WHERE k IN (5, 6)") == [(5, "newer")]
        table.upsert([{"k": k, "s": "x" * 30_000, "n": k, "some": None} for k in range(50)])
        frame = spark.sql(f"SELECT max(length(s)) FROM {name}.t WHERE k IN ({', '.join(map(str, range(50)))})")
        assert [tuple(row) for row in frame.collect()] == [(30_000,)]
        assert rows_read(frame) == [50]  # too many bytes for a plan


@pytest.mark.spark
def test_a_join_with_a_few_rows_and_a_merge_look_up_their_keys(spark: SparkSession, store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    rows: Rows = {k: (f"s{k % 7}" * 40, k % 5) for k in range(24, MANY, 2)}
    table.upsert([{"k": k, "s": s, "n": n} for k, (s, n) in rows.items()])
    table.flush()
    with catalog_of(spark, store.path) as (name, run):
        few = spark.range(0, 300, 3).selectExpr("cast(id as int) AS id", "'x' AS x")
        few.createOrReplaceTempView("few")
        expected = sorted(k for k in range(24, 300, 2) if k % 3 == 0)
        for sql, given in (
            (f"SELECT t.k FROM {name}.t JOIN few ON t.k = few.id", expected),
            (f"SELECT u.k FROM (SELECT k, n AS m FROM {name}.t) u LEFT SEMI JOIN few ON u.k = few.id", expected),
            (f"SELECT t.k FROM few LEFT JOIN {name}.t t ON t.k = few.id WHERE few.id >= 0", expected),
        ):
            frame = spark.sql(sql)
            assert sorted(row.k for row in frame.collect() if row.k is not None) == given, sql
            assert rows_read(frame) == [len(given)], sql
        pairs = store.create_table("pairs", {"a": "string not null", "b": "int64 not null", "s": "string"}, ["a", "b"])
        pairs.upsert([{"a": f"a{k % 3}", "b": k, "s": "s" * 80} for k in range(MANY // 2)])
        pairs.flush()
        both = "(SELECT concat('a', id % 2) AS a, id FROM few)"
        found = spark.sql(f"SELECT p.b FROM {name}.pairs p JOIN {both} f ON p.a = f.a AND p.b = f.id")
        assert sorted(row.b for row in found.collect()) == list(range(0, 300, 6))
        assert rows_read(found) == [100]  # of all pairs of these values
        found = spark.sql(f"SELECT p.b FROM {name}.pairs p JOIN few ON p.a = few.x AND p.s = few.x")
        found.collect()
        assert "dynamicpruning" not in found._jdf.queryExecution().executedPlan().toString()
        # Other joins read all rows, and so do those with rows that may differ when they are computed again.
        for sql in (
            f"SELECT t.k FROM {name}.t LEFT JOIN few ON t.k = few.id",
            f"SELECT t.k FROM (SELECT * FROM few WHERE rand() < 0.9) f LEFT JOIN {name}.t t ON t.k = f.id",
            f"SELECT t.k FROM (SELECT * FROM few LIMIT 50) f LEFT JOIN {name}.t t ON t.k = f.id",
            f"SELECT t.k FROM {name}.t JOIN few ON t.n = few.id",
        ):
            frame = spark.sql(sql)
            frame.collect()
            assert rows_read(frame) == [len(rows)], sql
        random = Random(5)
        simple = [below(24, each) for each in SIMPLE]
        for _ in range(5):
            source = some_rows(random, 8)
            clauses = [(random.choice(simple), random.choice([TAKEN, None]))]
            given = merge(source, ("true", lambda *_: True), clauses, True, [])
            expected_rows = given.delta(rows).apply(rows)
            # The table is larger than these.
            sizes = {"spark.sql.maxSinglePartitionBytes": "100k", "spark.sql.autoBroadcastJoinThreshold": "10k"}
            for name_of, size in sizes.items():
                spark.conf.set(name_of, size)
            try:
                plan = str(run(f"EXPLAIN {given.sql}"))
            finally:
                for name_of in sizes:
                    spark.conf.unset(name_of)
            assert "dynamicpruning" in plan
            assert "Exchange" not in plan
            run(given.sql)
            found = table.scan().read_all().to_pylist()
            assert {row["k"]: (row["s"], row["n"]) for row in found} == expected_rows, given.sql
            rows = expected_rows


def test_a_helper_creates_lists_and_drops_indexes(open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        store.create_table("t", SCHEMA, "k", buckets=2).upsert([{"k": 1, "s": "x", "n": 1}])
    path = str(store_path)
    catalog.create_index(path, "t", "by_s", ["s", "n"], {})
    catalog.create_index(path, "t", "u", ["k", "n"], {"unique": "TRUE"})
    assert catalog.indexes(path, "t") == {"by_s": ["s", "n"], "u": ["k", "n"]}
    for options in ({"speed": "9"}, {"unique": "yes"}, {"type": "btree"}):
        with pytest.raises(InvalidRequest, match=r"no option but `unique`"):
            catalog.create_index(path, "t", "x", ["n"], options)
    with pytest.raises(UnsupportedOperation, match=r"bucket key"):
        catalog.create_index(path, "t", "x", ["n"], {"unique": "true"})
    catalog.drop_index(path, "t", "by_s")
    assert catalog.indexes(path, "t") == {"u": ["k", "n"]}


@pytest.mark.spark
def test_indexes_are_created_used_and_dropped(spark: SparkSession, open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        table.upsert([{"k": k, "s": f"s{k % 3000}", "n": k % 7} for k in range(MANY)])

    def indexes() -> dict[str, tuple[str, ...]]:
        with kvstore.open(store_path, read_only=True) as store:
            return store.table("t").indexes

    with catalog_of(spark, store_path) as (name, run):
        run(f"CREATE INDEX by_s ON TABLE {name}.t (s, n)")
        run(f"CREATE INDEX IF NOT EXISTS by_s ON {name}.t (s)")
        assert indexes() == {"by_s": ("s", "n")}
        frame = spark.sql(f"SELECT k FROM {name}.t WHERE s = 's7' AND n < 9")
        assert sorted(row.k for row in frame.collect()) == list(range(7, MANY, 3000))
        assert (rows_read(frame), rows_that_came_with(frame)) == ([], [10])
        for statement, match in (
            (f"CREATE INDEX by_s ON {name}.t (n)", "by_s"),
            (f"CREATE INDEX x ON {name}.t (nowhere)", "nowhere"),
            (f"CREATE INDEX x ON {name}.t (n) OPTIONS (speed = '9')", "unique"),
            (f"CREATE INDEX x ON {name}.t USING btree (n)", "unique"),
            (f"CREATE INDEX x ON {name}.t (n) OPTIONS (unique = 'true')", "bucket key"),
            (f"DROP INDEX x ON {name}.t", "x"),
        ):
            with pytest.raises(PySparkException, match=match):
                run(statement)
        run(f"CREATE INDEX u ON {name}.t (k, n) OPTIONS (unique = 'true')")
        run(f"DROP INDEX by_s ON {name}.t")
        run(f"DROP INDEX IF EXISTS by_s ON {name}.t")
        assert indexes() == {"u": ("k", "n")}
