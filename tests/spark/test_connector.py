"""Where the connector's jar is loaded, `format("kvstore")` reads columns through it, and the same rows."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import kvstore
from kvstore.spark import read
from kvstore.spark.connector import build
from kvstore.spark.connector.helper import GROWN_BYTES_MAX
from kvstore.spark.connector.jar import find_jar
from tests.spark.catalogs import catalog_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        pa.field("k", pa.int64(), False),
        pa.field("s", pa.string()),
        pa.field("d", pa.decimal128(10, 2)),
        pa.field("f", pa.float64()),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("place", pa.struct([("x", pa.int32()), ("y", pa.float64())])),
    ]
)
FLOATS = (0.0, -0.0, float("nan"), None, 5.0, float("inf"), -1.5)
ROWS = [
    {
        "k": n,
        "s": None if n % 3 == 0 else f"s{n}",
        "d": Decimal(n) / 4 if n % 2 else None,
        "f": FLOATS[n % 7],
        "tags": ["a", None],
        "place": {"x": n, "y": FLOATS[n % 5]},
    }
    for n in range(50)
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("connector") / "store"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=2)
        table.upsert(ROWS)
        table.upsert([{**ROWS[7], "s": "other"}])
        table.delete([8])
    return path


def load(spark: SparkSession, path: Path, name: str, source: str = "kvstore") -> DataFrame:
    return spark.read.format(source).options(path=str(path), table=name).load()


def shown(frame: DataFrame) -> list[str]:
    """The rows as text, in which NaN equals NaN."""
    return sorted(map(repr, frame.collect()))


def planned(frame: DataFrame) -> str:
    return frame._jdf.queryExecution().executedPlan().toString()


@pytest.mark.parametrize("name", ["t", "t$changelog", "t$binlog"])
def test_the_rows_are_those_of_the_python_source(spark: SparkSession, path: Path, name: str) -> None:
    ours, python = load(spark, path, name), load(spark, path, name, "kvstore_python")
    assert ours.schema == python.schema
    assert shown(ours) == shown(python)
    assert ours.count() == len(python.collect())


def test_only_the_columns_of_a_query_are_read(spark: SparkSession, path: Path) -> None:
    frame = load(spark, path, "t").select("s", "place.x")
    assert "struct<s:string,place:struct<x:int>>" in planned(frame)
    assert {(row.s, row.x) for row in frame.collect()} == {
        ("other" if row["k"] == 7 else row["s"], row["k"]) for row in ROWS if row["k"] != 8
    }
    frame = load(spark, path, "t$binlog").where("before.k = after.k").select("before.s", "after.s", "after.k")
    assert [tuple(row) for row in frame.collect()] == [("s7", "other", 7)]
    batches = load(spark, path, "t$binlog").where("before is null").select("after.k").coalesce(1)  # more than one
    assert sorted(row.k for row in batches.collect()) == [row["k"] for row in ROWS]


def test_the_jar_has_no_moment_and_no_order_of_its_own() -> None:
    jar = find_jar()
    assert jar is not None
    with zipfile.ZipFile(jar) as archive:
        entries = archive.infolist()
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}
    assert [entry.filename for entry in entries[1:]] == sorted(entry.filename for entry in entries[1:])


@pytest.mark.parametrize("name", ["t", "t$changelog"])
def test_counting_reads_no_row(spark: SparkSession, path: Path, name: str) -> None:
    frame = load(spark, path, name)
    assert "LocalTableScan" in planned(frame.groupBy().count())
    assert frame.count() == len(load(spark, path, name, "kvstore_python").collect())
    assert frame.where("k = 7").count() == (1 if name == "t" else 3)


@pytest.mark.spark_more
@pytest.mark.parametrize(
    ("name", "aggregates", "is_known"),
    [
        ("t", "min(k), max(k), count(*)", True),
        ("t$changelog", "max(_log_offset), min(_log_offset), count(*)", True),
        ("t", "max(f)", False),
        ("t", "max(k), max(s)", False),
        ("t$changelog", "max(k)", False),
        ("t$binlog", "max(_log_offset)", False),
    ],
)
def test_the_smallest_and_largest_keys_and_offsets_are_known(
    spark: SparkSession, path: Path, name: str, aggregates: str, is_known: bool
) -> None:
    wanted = [f"{each} as c{place}" for place, each in enumerate(aggregates.split(", "))]
    ours, python = (load(spark, path, name, source).selectExpr(*wanted) for source in ("kvstore", "kvstore_python"))
    assert ("LocalTableScan" in planned(ours)) is is_known
    assert shown(ours) == shown(python)
    assert load(spark, path, name).where("1 = 2").selectExpr(*wanted).count() == 1


@pytest.mark.spark_more
def test_the_first_and_last_key_of_each_type_are_those_that_spark_finds(
    spark: SparkSession, store: kvstore.Store
) -> None:
    store.create_table("none", {"k": "int64 not null"}, "k")
    keys: dict[str, list[object]] = {
        "int8": [-3, 0, 7],
        "uint32": [0, 4_000_000_000],
        "string": ["", "Z", "a", "é", "\U0001f600", "\uffff"],
        "date32": [dt.date(1969, 12, 31), dt.date(2026, 1, 1)],
    }
    for kind, values in keys.items():
        table = store.create_table(kind, {"k": f"{kind} not null", "n": "int64 not null"}, ["k", "n"], buckets=2)
        table.upsert([{"k": k, "n": n} for k in values for n in range(2)])
    store.flush()
    for kind in ("none", *keys):
        frame = load(spark, store.path, kind).selectExpr("min(k) as low", "max(k) as high")
        assert "LocalTableScan" in planned(frame)
        assert (
            frame.collect()
            == load(spark, store.path, kind, "kvstore_python").selectExpr("min(k) as low", "max(k) as high").collect()
        ), kind
    # After a change the rows of the pinned moment have to be read.
    frame = load(spark, store.path, "int8").selectExpr("max(k) as high")
    store["int8"].upsert({"k": 9, "n": 0})
    store.flush()
    assert [row.high for row in frame.collect()] == [7]


def test_offsets_are_the_smallest_and_largest_of_all_buckets(spark: SparkSession, store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64 not null"}, "k", buckets=2)
    table.upsert([{"k": k} for k in range(30)])
    table.flush()
    places = {"startingOffsets": '{"0": 4, "1": 1}', "endingOffsets": '{"0": 9, "1": 7}'}
    options = {"path": str(store.path), "table": "t$changelog", **places}
    wanted = ["min(_log_offset) as low", "max(_log_offset) as high", "count(*) as rows"]
    found = spark.read.format("kvstore").options(**options).load().selectExpr(*wanted)
    assert "LocalTableScan" in planned(found)
    assert [tuple(row) for row in found.collect()] == [(1, 8, 11)]


def test_empty_batches_are_not_counted(spark: SparkSession, tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", SCHEMA.remove(4).remove(3), primary_key="k")
        table.delete([1])  # nothing to delete, but the batch is known by its sequence
        table.upsert({"k": 1, "s": "a"})
        table.delete([2])
        offsets = table.offsets()[0]
    count = load(spark, tmp_path / "store", "t$changelog").count()
    assert (count, offsets[1] - offsets[0]) == (1, 3)


@pytest.mark.spark_more
def test_a_filter_concerns_its_own_query_only(spark: SparkSession, path: Path) -> None:
    """The trap of decision 0011, which a Python source has."""
    frame = load(spark, path, "t$changelog")
    one = frame.where("k = 1")
    assert "EqualTo(k,1)" in planned(one)
    assert [row.k for row in one.collect()] == [1]
    assert frame.count() == len(ROWS) + 3
    assert sorted(row.k for row in one.union(frame.where("k = 2")).collect()) == [1, 2]


WHERE = (
    *("k in (5, 6, 99)", "k <> 5 and k < 9", "k = 5 or s = 's7'", "s is null", "s like 's1%'", "k <=> null"),
    *("_log_offset < 3", "_bucket = 1 and k < 10", "place.x >= 48", "d > 1.5", "not (s = 's7')"),
    *("_commit_timestamp < timestamp'2020-01-01'", "_commit_timestamp > timestamp'0001-01-01'"),
    *("_change_type = 'delete'", "f in (0.0D, 5.0D)", "f in (-0.0D, 7.0D)", "f = 0.0D", "f > 4.0D", "not f <= 0.0D"),
    *("f = double('NaN')", "place.y in (0.0D)"),
)


@pytest.mark.spark_more
def test_filters_leave_out_nothing_that_passes(spark: SparkSession, path: Path) -> None:
    ours, python = load(spark, path, "t$changelog"), load(spark, path, "t$changelog", "kvstore_python")
    known = spark.createDataFrame(python.collect(), python.schema)
    for where in WHERE:
        assert shown(ours.where(where)) == shown(known.where(where)), where


def test_a_small_table_is_known_to_be_small(spark: SparkSession, path: Path) -> None:
    small = load(spark, path, "t")
    many = spark.range(100_000_000).withColumnRenamed("id", "k")
    assert "BroadcastHashJoin" in planned(many.join(small, "k"))


@pytest.mark.spark_more
def test_a_table_of_few_large_rows_is_known_to_be_large(spark: SparkSession, store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "int64 not null", "s": "string"}, "k")
    table.upsert([{"k": k, "s": "x" * 100_000} for k in range(200)])
    table.flush()
    large = load(spark, store.path, "t")
    many = spark.range(100_000_000).withColumnRenamed("id", "k")
    assert "BroadcastHashJoin" not in planned(many.join(large, "k"))
    assert large.rdd.getNumPartitions() > 1


@pytest.mark.spark_more
def test_a_checkpoint_passes_between_the_python_source_and_the_connector(
    spark: SparkSession, store: kvstore.Store, tmp_path: Path
) -> None:
    table = store.create_table("t", {"k": "int64 not null"}, "k", buckets=2)
    seen: list[int] = []
    for number, source in enumerate(("kvstore_python", "kvstore", "kvstore", "kvstore_python")):
        table.upsert([{"k": 10 * number}, {"k": 10 * number + 1}])
        table.flush()
        stream = spark.readStream.format(source).options(path=str(store.path), table="t$changelog").load()
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer = writer.foreachBatch(lambda rows, _: seen.extend(row.k for row in rows.collect()))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert sorted(seen) == sorted(10 * each + half for each in range(number + 1) for half in (0, 1))
    offsets = (tmp_path / "checkpoint/offsets").glob("[0-9]*")
    assert all('{"table": "' in path.read_text() for path in offsets)


@pytest.mark.spark_more
def test_the_progress_of_a_stream_shows_its_lag(spark: SparkSession, store: kvstore.Store, tmp_path: Path) -> None:
    table = store.create_table("t", {"k": "int64 not null"}, "k")
    table.upsert([{"k": k} for k in range(10)])
    table.flush()
    seen: list[int] = []

    def take(rows: DataFrame, batch: int) -> None:
        seen.extend(row.k for row in rows.collect())
        if batch == 0:
            table.upsert([{"k": 10}, {"k": 11}])
            table.flush()

    stream = spark.readStream.format("kvstore").options(
        path=str(store.path), table="t$changelog", maxOffsetsPerTrigger=6
    )
    writer = stream.load().writeStream.foreachBatch(take).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.start()
    while len(seen) < 12:
        assert query.isActive, query.exception()
    query.processAllAvailable()
    query.stop()
    assert seen == list(range(12))
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    found = [(each["numInputRows"], each["sources"][0]["metrics"]) for each in batches]
    assert [(rows, lag["offsetsBehindLatest"], lag["bucketsToCopy"]) for rows, lag in found] == [
        (6, "2", "1"),
        (4, "2", "0"),
        (2, "0", "0"),
    ]
    ends = [json.loads(each["sources"][0]["latestOffset"])["offsets"] for each in batches]
    assert ends[-1] == {"0": 12}


def helpers(parent: int) -> list[int]:
    """Process ids of the helpers that a process has started, without those that they have forked."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            started_by = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
            if parent == started_by and b"kvstore.spark.connector.helper" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return found


@pytest.mark.spark_more
def test_a_helper_that_was_killed_is_replaced(spark: SparkSession, path: Path) -> None:
    driver = spark.sparkContext._gateway.proc.pid
    frame = load(spark, path, "t")
    for _ in range(2):
        (helper,) = helpers(driver)
        os.kill(helper, signal.SIGKILL)
        assert len(frame.collect()) == len(ROWS) - 1
        assert helper not in helpers(driver)


def test_processes_of_a_helper_are_used_again_and_replaced_after_they_were_killed(
    spark: SparkSession, path: Path
) -> None:
    (helper,) = helpers(spark.sparkContext._gateway.proc.pid)
    most = len(os.sched_getaffinity(0)) + 1

    def read() -> None:
        assert len(load(spark, path, "t").collect()) == len(ROWS) - 1
        assert load(spark, path, "t").count() == len(ROWS) - 1

    for _ in range(5):
        read()
    wait_until(lambda: len(helpers(helper)) <= most)
    kept = helpers(helper)
    assert kept
    read()
    assert set(kept) & set(helpers(helper))
    for process in kept:
        with suppress(ProcessLookupError):  # it was one too many
            os.kill(process, signal.SIGKILL)
    for process in kept:
        wait_until(lambda process=process: not Path(f"/proc/{process}").exists())
    read()
    assert not set(kept) & set(helpers(helper))


@pytest.mark.spark_more
def test_a_process_that_has_grown_does_not_wait_for_another_task(spark: SparkSession, store: kvstore.Store) -> None:
    store.create_table("t", {"k": "int64 not null", "s": "string"}, "k")
    with catalog_of(spark, store.path) as (_, run):
        run("INSERT INTO kv.t SELECT id, concat(id, repeat('x', 100)) FROM range(0, 1000000, 1, 1)")
    (helper,) = helpers(spark.sparkContext._gateway.proc.pid)
    most = own_bytes(helper) + GROWN_BYTES_MAX + (32 << 20)
    wait_until(lambda: all(own_bytes(process) < most for process in helpers(helper)))
    frame = load(spark, store.path, "t")
    assert tuple(frame.selectExpr("count(s)", "sum(k)").first() or ()) == (1_000_000, sum(range(1_000_000)))


def own_bytes(process: int) -> int:
    """Memory of a process that is not that of files; 0 if it has ended."""
    with suppress(OSError):
        counts = Path(f"/proc/{process}/statm").read_text().split()
        return (int(counts[1]) - int(counts[2])) * os.sysconf("SC_PAGE_SIZE")
    return 0


def test_a_query_that_ends_early_leaves_nothing_to_the_next(
    spark: SparkSession, store: kvstore.Store, tmp_path: Path
) -> None:
    rows = pa.table({"k": range(200_000), "s": [f"{k:0100}" for k in range(200_000)]})  # more than waits in pipes
    store.create_table("t", {"k": "int64 not null", "s": "string"}, "k", buckets=2).upsert(rows)
    store.flush()
    frame = load(spark, store.path, "t")

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield next(batches)
        raise ValueError("in the middle")

    for _ in range(3):
        assert len(frame.where("s > '1'").take(3)) == 0
        assert len(frame.select("s").take(3)) == 3
        with pytest.raises(PySparkException, match="in the middle"):
            frame.mapInArrow(fails, frame.schema).collect()
        with pytest.raises(PySparkException, match="in the middle"):
            spark.createDataFrame([(k, "x") for k in range(1000)], frame.schema).repartition(3).mapInArrow(
                fails, frame.schema
            ).write.format("kvstore").options(path=str(store.path), table="t").mode("append").save()
        assert frame.agg({"k": "sum", "s": "max"}).first() is not None
        found = frame.selectExpr("sum(k)", "max(s)", "count(*)").first()
        assert tuple(found or ()) == (sum(range(200_000)), f"{199_999:0100}", 200_000)


def test_a_query_whose_fork_was_killed_says_so(spark: SparkSession, store: kvstore.Store, tmp_path: Path) -> None:
    rows = pa.table({"k": range(200_000), "s": [f"{k:0100}" for k in range(200_000)]})  # more than waits in pipes
    store.create_table("t", {"k": "int64 not null", "s": "string"}, "k").upsert(rows)
    store.flush()
    frame = load(spark, store.path, "t")
    (helper,) = helpers(spark.sparkContext._gateway.proc.pid)
    has_failed = tmp_path / "failed"  # tasks of the query may go on after it has

    def kill_forks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for stat in [] if has_failed.exists() else Path("/proc").glob("[0-9]*/stat"):
                with suppress(OSError):  # it has ended
                    if int(stat.read_text().rpartition(") ")[2].split()[1]) == helper:
                        os.kill(int(stat.parent.name), signal.SIGKILL)
            yield batch

    with pytest.raises(PySparkException, match="helper process of kvstore ended before"):
        frame.mapInArrow(kill_forks, frame.schema).agg({"k": "sum"}).collect()
    has_failed.touch()

    def counts_all() -> bool:
        try:
            return frame.count() == 200_000
        except PySparkException:  # a task that looked before may kill one more
            return False

    wait_until(counts_all)


@pytest.mark.spark_more
def test_a_stream_whose_helper_was_killed_in_the_middle_goes_on_from_its_checkpoint(
    spark: SparkSession, store: kvstore.Store, tmp_path: Path
) -> None:
    table = store.create_table("t", {"k": "int64 not null"}, "k")
    table.upsert([{"k": k} for k in range(9)])
    table.flush()
    seen: dict[int, list[int]] = {}
    killed: list[int] = []

    def take(rows: DataFrame, batch: int) -> None:
        if batch == 1 and not killed:
            (helper,) = helpers(spark.sparkContext._gateway.proc.pid)
            killed.extend([helper, *helpers(helper)])
            for process in killed:
                os.kill(process, signal.SIGKILL)
        seen[batch] = [row.k for row in rows.collect()]

    def run() -> None:
        options = {"path": str(store.path), "table": "t$changelog", "maxOffsetsPerTrigger": "3"}
        stream = spark.readStream.format("kvstore").options(**options).load().writeStream.foreachBatch(take)
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        stream.start().awaitTermination()

    with pytest.raises(StreamingQueryException, match="helper process of kvstore ended"):
        run()
    assert sorted(seen) == [0, 1]
    run()
    assert seen == {0: [0, 1, 2], 1: [3, 4, 5], 2: [6, 7, 8]}


def test_read_takes_options_as_python_has_them(spark: SparkSession, path: Path) -> None:
    rows = read(spark, path, "t", columns=["s", "k"], asOf={0: 0, 1: 0})
    assert (rows.columns, rows.count()) == (["s", "k"], 0)
    late = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    changes = read(spark, path, "t$changelog", startingTimestamp=late, failOnDataLoss=False)
    assert changes.count() == len(ROWS) + 3


@pytest.mark.long
def test_the_same_sources_give_the_same_jar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    built = []
    for name in ("one", "two"):
        monkeypatch.setattr(build, "jar_path", lambda name=name: tmp_path / name)
        built.append(build.build().read_bytes())
    assert built[0] == built[1]
