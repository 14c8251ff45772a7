"""A stream has every change once, whatever dies: Spark's part is played here, by tests/spark/streams.py."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

import kvstore
from kvstore.errors import InvalidRequest, NoSuchTable, OffsetOutOfRange, SchemaMismatch, UnsupportedOperation
from kvstore.spark import KvStoreSource
from tests.spark.streams import EVERYTHING, Query, changes, in_order, reader_of
from tests.support.calls_made import calls_made
from tests.support.examples import slow

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
AT = ("_bucket", "_log_offset")

keys = st.integers(0, 20)
steps = st.one_of(
    st.tuples(st.just("upsert"), st.lists(keys, min_size=1, max_size=8)),
    st.tuples(st.just("delete"), st.lists(keys, min_size=1, max_size=4)),
    st.tuples(st.just("trigger"), st.sampled_from([None, None, "planned", "sunk"])),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("column"), st.none()),
)


class Writer:
    """Writes as the steps say, a new value each time."""

    def __init__(self, store: kvstore.Store, table: kvstore.Table) -> None:
        self.store, self.table, self.value = store, table, 0

    def do(self, verb: str, what: Any) -> None:
        self.value += 1
        names = self.table.schema.names
        if verb == "upsert":
            self.table.upsert([{"k": k} | dict.fromkeys(names[1:], self.value) for k in what])
        elif verb == "delete":
            self.table.delete(what)
        elif verb == "column":
            self.store.add_columns("t", [pa.field(f"v{self.value}", pa.int64())])
        self.table.flush()


COLUMNS = ["_bucket", "_log_offset", "_change_type", "_commit_version", "k", "v"]


@pytest.mark.parametrize(
    "mode",
    ["offsets", *(pytest.param(m, marks=pytest.mark.spark_more) for m in ("full", "earliest", "latest", "timestamp"))],
)
@slow(25)
@given(before=st.lists(steps, max_size=6), during=st.lists(steps, max_size=14), most=st.none() | st.integers(1, 9))
def test_every_change_is_had_once(
    mode: str,
    before: list[tuple[str, Any]],
    during: list[tuple[str, Any]],
    most: int | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with kvstore.open(tmp_path_factory.mktemp("s") / "store") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        writer = Writer(store, table)
        for verb, what in before:
            writer.do(verb, what)
        options = {"path": str(store.path), "table": "t$changelog", "columns": ",".join(COLUMNS)}
        starts = {bucket: end // 2 for bucket, (_, end) in table.offsets().items()}
        options |= {
            "offsets": {"startingOffsets": json.dumps(starts)},
            "timestamp": {"startingTimestamp": "1000"},
        }.get(mode, {"startingOffsets": mode})
        query = Query(options | ({} if most is None else {"maxOffsetsPerTrigger": str(most)}))
        begun: Any = None
        for verb, what in [*during, ("trigger", None)]:
            if verb == "restart":
                query.stop()
            elif verb == "trigger":
                if not query.offsets:
                    # What is decided then is what holds, whatever dies from here on.
                    begun = {bucket: end for bucket, (_, end) in table.offsets().items()}
                    inserts = changes(table, "full", COLUMNS)
                query.trigger(what)
            else:
                writer.do(verb, what)
        query.run()
        query.stop()
        start = {"full": begun, "latest": begun, "offsets": starts}.get(mode, "earliest")
        expected = changes(table, start, COLUMNS)
        if mode == "full":
            expected = in_order([*inserts, *expected])
        assert in_order(query.rows()) == expected
        for rows in query.sunk.values():  # a commit is in one batch
            for other in query.sunk.values():
                if rows is not other and mode != "full":
                    commits = [{(row["_bucket"], row["_commit_version"]) for row in each} for each in (rows, other)]
                    assert not commits[0] & commits[1]


def test_binlog_rows_and_inserts(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    table.upsert([{"k": k, "v": 0} for k in range(10)])
    table.flush()
    query = Query({"path": str(store.path), "table": "t$binlog"})
    query.run()
    expected = [row for batch in table.binlog("full") for row in batch.to_pylist()]
    assert query.rows() == expected
    then = {bucket: end for bucket, (_, end) in table.offsets().items()}
    table.upsert([{"k": k, "v": 1} for k in range(5)])
    table.delete([1])
    table.flush()
    query.run()
    query.stop()
    assert query.rows() == expected + [row for batch in table.binlog(then) for row in batch.to_pylist()]


def test_nothing_new_is_no_batch_and_costs_little(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=4)
    table.upsert([{"k": k, "v": 0} for k in range(100)])
    table.flush()
    reader = reader_of(store, "t$changelog", startingOffsets="latest")
    offset = reader.latestOffset(reader.initialOffset(), EVERYTHING)

    def look() -> None:
        assert reader.latestOffset(offset, EVERYTHING) is offset
        reader.reportLatestOffset()

    look()  # the first one opens what it needs
    assert min(calls_made(look) for _ in range(3)) < 1000  # once in a while the store's directory is looked at, too
    reader.stop()


@pytest.mark.parametrize("most", [3, 10, *(pytest.param(most, marks=pytest.mark.long) for most in (1, 1000))])
def test_a_limit_takes_from_every_bucket_and_cuts_no_commit(store: kvstore.Store, most: int) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=3)
    for k in range(60):
        table.upsert([{"k": k % 20, "v": k}, {"k": k % 7 + 20, "v": k}])
    table.flush()
    query = Query({"path": str(store.path), "table": "t$changelog", "startingOffsets": "earliest"})
    query.options["maxOffsetsPerTrigger"] = str(most)
    query.run()
    query.stop()
    assert in_order(query.rows()) == changes(table, "earliest", table.changelog_schema().names)
    sizes = [len(rows) for rows in query.sunk.values()]
    assert max(sizes) <= most + 3  # or one commit more
    assert len(sizes) >= sum(sizes) / (most + 3)
    if most == 10:
        first = Counter(row["_bucket"] for row in query.sunk[0])
        assert len(first) == 3


def test_a_large_table_is_copied_in_batches_of_the_limit(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    table.upsert([{"k": k, "v": 0} for k in range(100)])
    table.flush()
    copied = changes(table, "full")
    start = {bucket: end for bucket, (_, end) in table.offsets().items()}
    query = Query({"path": str(store.path), "table": "t$changelog", "maxOffsetsPerTrigger": "15"})
    for number in range(7):  # other rows come, change and go meanwhile
        assert query.trigger(("planned", "sunk", None)[number % 3] if number else None)
        query.stop()
        query.trigger() if number % 3 else None
        table.upsert([{"k": k, "v": 1} for k in (7 * number, 200 + number, -number)])
        table.delete([7 * number + 1])
        table.flush()
    query.run()
    query.stop()
    assert in_order(query.rows()) == in_order([*copied, *changes(table, start, table.changelog_schema().names)])
    sizes = [len(query.sunk[batch]) for batch in range(7)]
    assert sizes == [15] * 6 + [10]
    assert "rows_from" not in query.offsets[6]


def test_a_copy_that_was_begun_goes_on_with_another_limit_or_none(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert([{"k": k, "v": 0} for k in range(100)])
    table.flush()
    query = Query({"path": str(store.path), "table": "t$changelog", "maxOffsetsPerTrigger": "10"})
    for limit in (None, ReadMaxRows(30), EVERYTHING):
        query.trigger(limit=limit)
    query.stop()
    assert [[row["k"] for row in rows] for rows in query.sunk.values()] == [
        list(range(10)),
        list(range(10, 40)),
        list(range(40, 100)),
    ]


def test_only_what_is_there_when_it_is_triggered_once(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert([{"k": k, "v": 0} for k in range(10)])
    table.flush()
    for mode, expected in (("earliest", 10), ("latest", 0), ("full", 10)):
        reader = reader_of(store, "t$changelog", startingOffsets=mode)
        reader.prepareForTriggerAvailableNow()
        end = table.offsets()[0][1]
        table.upsert({"k": 1, "v": 2})
        table.flush()
        offset = reader.latestOffset(reader.initialOffset(), EVERYTHING)
        assert offset["offsets"] == {"0": end}
        assert reader.latestOffset(offset, EVERYTHING) == offset
        found = [row for task in reader.partitions(reader.initialOffset(), offset) for row in reader.read(task)]
        assert sum(batch.num_rows for batch in found) >= expected
        reader.stop()


def test_where_it_starts_is_not_decided_in_the_initial_offset(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    for mode in ("full", "earliest", "latest", '{"0": 0}'):
        reader = reader_of(store, "t$changelog", startingOffsets=mode)
        first = reader.initialOffset()
        table.upsert({"k": 1, "v": 1})
        table.flush()
        assert reader.initialOffset() == first == reader_of(store, "t$changelog", startingOffsets=mode).initialOffset()


def expiring(store: kvstore.Store) -> kvstore.Table:
    """A table whose log loses what is older than its last segment, once it is asked to."""
    return store.create_table("t", SCHEMA, "k")


@pytest.fixture
def short_store(tmp_path: Path) -> Any:
    with kvstore.open(tmp_path / "short", segment_bytes_max=1 << 16, log_bytes_max=1 << 16) as store:
        yield store


def fill(table: kvstore.Table, batches: int) -> None:
    for number in range(batches):
        table.upsert(pa.table({"k": range(2000), "v": pa.array([number] * 2000)}))
    table.flush()


def expire(table: kvstore.Table) -> int:
    table.snapshot()
    table.bucket(0).handle.retain()
    start = table.offsets()[0][0]
    assert start > 0
    return start


def test_what_has_expired_is_reported(short_store: kvstore.Store) -> None:
    table = expiring(short_store)
    options = {"path": str(short_store.path), "table": "t$changelog", "startingOffsets": "earliest"}
    queries = [Query(options), Query(options | {"failOnDataLoss": "false"})]
    fill(table, 1)
    for query in queries:
        query.run()
    fill(table, 20)
    start = expire(table)
    with pytest.raises(OffsetOutOfRange, match=r"failOnDataLoss.*startingOffsets `full`"):
        queries[0].run()
    queries[1].run()
    assert [row["_log_offset"] for row in queries[1].rows()] == [*range(2000), *range(start, table.offsets()[0][1])]
    # Again from the checkpoint, in another process.
    for query in queries:
        query.stop()
    with pytest.raises(OffsetOutOfRange):
        queries[0].run()
    fill(table, 1)
    queries[1].run()
    assert queries[1].rows()[-1]["_log_offset"] == table.offsets()[0][1] - 1
    for query in queries:
        query.stop()


def test_past_rows_that_expired_are_reported(short_store: kvstore.Store) -> None:
    table = expiring(short_store)
    fill(table, 1)
    query = Query({"path": str(short_store.path), "table": "t$changelog", "failOnDataLoss": "false"})
    query.trigger("planned")
    fill(table, 20)
    expire(table)
    with pytest.raises(OffsetOutOfRange, match="rows this stream starts with"):
        query.run()
    query.stop()


def test_an_old_starting_offset_is_no_matter_to_a_stream_with_a_checkpoint(short_store: kvstore.Store) -> None:
    table = expiring(short_store)
    fill(table, 1)
    query = Query({"path": str(short_store.path), "table": "t$changelog", "startingOffsets": '{"0": 5}'})
    query.run()
    query.stop()
    fill(table, 20)
    expire(table)
    query.options["failOnDataLoss"] = "false"
    query.run()
    query.stop()
    assert query.rows()[-1]["_log_offset"] == table.offsets()[0][1] - 1
    fresh = Query(query.options | {"failOnDataLoss": "true"})
    with pytest.raises(OffsetOutOfRange, match="does not hold this offset"):
        fresh.run()
    fresh.stop()
    lenient = Query(query.options | {"failOnDataLoss": "false"})
    lenient.run()
    lenient.stop()
    assert lenient.rows()[0]["_log_offset"] == table.offsets()[0][0]


def test_a_table_of_the_same_name_is_not_gone_on_with(store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, "k").upsert({"k": 1, "v": 1})
    query = Query({"path": str(store.path), "table": "t$changelog"})
    store.flush()
    query.run()
    store.drop_table("t")
    with pytest.raises(NoSuchTable):
        query.run()
    query.stop()
    store.create_table("t", SCHEMA, "k")
    with pytest.raises(InvalidRequest, match="checkpoint belongs to another table"):
        query.run()
    query.stop()


def test_offsets_that_go_back_are_refused(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 1}])
    table.flush()
    reader = reader_of(store, "t$changelog")
    end = reader.latestOffset(reader.initialOffset(), EVERYTHING)
    beyond = end | {"offsets": {"0": 99}}
    for start, stop in ((end, end | {"offsets": {"0": 1}}), (end, beyond)):
        with pytest.raises(OffsetOutOfRange, match="ends before what this stream has read"):
            reader.partitions(start, stop)
    with pytest.raises(OffsetOutOfRange, match="ends before"):
        reader.latestOffset(beyond, EVERYTHING)
    with pytest.raises(InvalidRequest, match="another source"):
        reader.partitions({"seq": 3}, {"seq": 4})
    with pytest.raises(InvalidRequest, match="lacks the start of the stream"):
        reader.partitions(reader.initialOffset(), {name: end[name] for name in ("table", "offsets")})
    with pytest.raises(InvalidRequest, match="has other buckets than the table"):
        reader.latestOffset(end | {"offsets": {"0": 1, "1": 0}}, EVERYTHING)
    with pytest.raises(UnsupportedOperation, match="maxOffsetsPerTrigger"):
        reader.latestOffset(end | {"offsets": {"0": 0}}, ReadMaxBytes(10))
    assert reader.latestOffset(end | {"offsets": {"0": 0}}, ReadMaxRows(1))["offsets"] == {"0": 2}
    reader.stop()


@pytest.mark.parametrize(
    ("table", "options", "message"),
    [
        ("t", {}, r"`name\$changelog`"),
        ("t$changelog", {"endingOffsets": "latest"}, "A stream has no end"),
        ("t$changelog", {"startingTimestamp": "99999999999999"}, "in the future"),
        ("wal$changelog", {}, "can't begin with them"),
        ("wal$binlog", {"startingOffsets": "latest"}, "WAL image"),
        ("log$changelog", {"startingOffsets": "full"}, "no key"),
    ],
)
def test_what_a_stream_can_not_do(store: kvstore.Store, table: str, options: dict[str, str], message: str) -> None:
    store.create_table("t", SCHEMA, "k")
    store.create_table("wal", SCHEMA, "k", changelog_image="wal")
    store.create_table("log", SCHEMA)
    with pytest.raises(InvalidRequest, match=message):
        reader_of(store, table, **options)


def test_a_log_table_starts_at_its_beginning(store: kvstore.Store) -> None:
    table = store.create_table("log", SCHEMA)
    table.upsert([{"k": 3, "v": 1}, {"k": 3, "v": 1}])
    table.flush()
    query = Query({"path": str(store.path), "table": "log$changelog"})
    query.run()
    query.stop()
    assert [row["_change_type"] for row in query.rows()] == ["append", "append"]


def test_a_stream_whose_columns_were_renamed_or_dropped_says_so_and_begins_again(store: kvstore.Store) -> None:
    table = store.create_table("t", pa.schema([*SCHEMA, pa.field("w", pa.int64())]), "k")
    table.upsert({"k": 1, "v": 2, "w": 3})
    table.flush()
    query = Query({"path": str(store.path), "table": "t$changelog"})
    query.run()
    store.rename_columns("t", {"v": "w", "w": "v"})
    table.upsert({"k": 2, "v": 3, "w": 2})
    table.flush()
    with pytest.raises(SchemaMismatch, match="renamed or dropped since it was loaded"):
        query.trigger()
    query.stop()
    query.run()
    (found,) = query.sunk[1]
    assert (found["k"], found["v"], found["w"]) == (2, 3, 2)
    source = KvStoreSource({"path": str(store.path), "table": "t"})
    reader = source.reader(source.schema())
    (task,) = reader.partitions()
    store.drop_columns("t", ["w"])
    for read in (lambda: reader.partitions(), lambda: next(reader.read(task))):
        with pytest.raises(SchemaMismatch, match="renamed or dropped since it was loaded"):
            read()
    query.stop()
