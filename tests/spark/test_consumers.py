"""What a stream or a DataFrame has yet to read is kept; Spark's part is played here, by tests/spark/streams.py."""

from __future__ import annotations

import datetime as dt
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.bucket import maintenance as maintenance
from kvstore.bucket.maintenance import Maintenance
from kvstore.commit.consumers import LEASE_SECONDS
from kvstore.errors import InvalidRequest, OffsetOutOfRange, UnsupportedOperation
from kvstore.spark import KvStoreSource
from kvstore.store.store import Store
from tests.spark.streams import EVERYTHING, Query, Rows, changes, in_order, place_of, reader_of
from tests.support.clocks import SetClock
from tests.support.examples import slow

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
OPTIONS = kvstore.StoreOptions(segment_bytes_max=1, log_bytes_max=1)


class Short:
    """A table of two buckets whose log keeps the last commit only, as soon as it is asked to."""

    def __init__(self, path: Path) -> None:
        self.clock = SetClock()
        self.store = Store(path, OPTIONS, clock=self.clock)
        self.table = self.store.create_table("t", SCHEMA, "k", buckets=2)
        self.number = 0

    def write(self, commits: int = 3) -> None:
        for _ in range(commits):
            self.number += 1
            self.table.upsert([{"k": k, "v": self.number} for k in range(4)])
        self.table.flush()

    def expire(self) -> None:
        for bucket in range(2):
            self.table.bucket(bucket).handle.retain()

    @property
    def starts(self) -> dict[int, int]:
        return {bucket: start for bucket, (start, _) in self.table.offsets().items()}

    @property
    def ends(self) -> dict[int, int]:
        return {bucket: end for bucket, (_, end) in self.table.offsets().items()}

    def query(self, **options: str) -> Query:
        return Query({"path": str(self.store.path), "table": "t$changelog", "consumer": "q"} | options)


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Short]:
    with patch.object(Maintenance, "begin"), patch.object(maintenance, "REST_FACTOR", 0):
        short = Short(tmp_path / "store")
        short.write()
        yield short
        assert short.store.check().findings == []
        short.store.close()


def test_a_stream_that_is_stopped_while_the_log_expires_loses_nothing(short: Short) -> None:
    with_name, without = short.query(), short.query()
    del without.options["consumer"]
    inserts = changes(short.table, "full")
    for query in (with_name, without):
        query.run()
        query.stop()
    then = short.ends
    short.write()
    expected = inserts + changes(short.table, then)
    short.expire()
    assert short.starts == then
    with_name.run()
    with_name.stop()
    assert in_order(with_name.rows()) == in_order(expected)
    short.expire()
    assert all(start > then[bucket] for bucket, start in short.starts.items())
    with pytest.raises(OffsetOutOfRange, match="failOnDataLoss"):
        without.run()
    without.stop()


@pytest.mark.parametrize("mode", ["full", "earliest", "latest"])
@pytest.mark.parametrize("die", ["planned", "sunk"])
def test_where_a_stream_starts_is_kept_before_its_first_batch_is_done(short: Short, mode: str, die: str) -> None:
    query = short.query(startingOffsets=mode)
    start = short.ends if mode != "earliest" else short.starts
    expected = changes(short.table, "full") if mode == "full" else []
    query.trigger(die)
    assert short.table.consumers == {"q": start}
    short.write()
    expected += changes(short.table, start)
    short.expire()
    query.run()
    query.stop()
    assert in_order(query.rows()) == in_order(expected)


steps = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 3)),
    st.tuples(st.just("trigger"), st.sampled_from([None, None, "planned", "sunk"])),
    st.tuples(st.just("restart"), st.none()),
    st.tuples(st.just("expire"), st.none()),
)


@slow(40)
@given(during=st.lists(steps, max_size=16), most=st.none() | st.integers(1, 9))
def test_whatever_expires_and_dies_every_change_is_had_once(
    during: list[tuple[str, Any]], most: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with patch.object(Maintenance, "begin"), patch.object(maintenance, "REST_FACTOR", 0):
        short = Short(tmp_path_factory.mktemp("s") / "store")
        query = short.query(startingOffsets="earliest")
        if most is not None:
            query.options["maxOffsetsPerTrigger"] = str(most)
        written: dict[tuple[int, int, int], Any] = {}
        begun: dict[int, int] | None = None
        for verb, what in [*during, ("trigger", None)]:
            if verb == "write":
                short.write(what)
                written |= {(*place_of(row), row["k"]): row for row in changes(short.table, "earliest")}
            elif verb == "expire":
                short.expire()
            elif verb == "restart":
                query.stop()
            else:
                begun = begun or short.starts
                query.trigger(what)
        query.run()
        query.stop()
        short.expire()
        assert begun is not None
        expected = [row for place, row in sorted(written.items()) if place[1] >= begun[place[0]]]
        assert in_order(query.rows()) == expected
        short.store.close()


def test_spark_tells_how_far_a_stream_is(short: Short) -> None:
    query = short.query(startingOffsets="earliest")
    query.trigger()
    assert short.table.consumers == {"q": short.ends}
    query.reader.commit(query.reader.initialOffset())  # which says nothing of a place
    assert short.table.consumers == {"q": short.ends}
    query.stop()
    reader = reader_of(short.store, "t$changelog")
    reader.commit(reader.latestOffset(reader.initialOffset(), EVERYTHING))
    reader.stop()
    assert short.table.consumers == {"q": short.ends}


def test_a_stream_that_has_a_checkpoint_may_get_a_name_and_gets_it_back(short: Short) -> None:
    query = short.query(startingOffsets="earliest")
    name = query.options.pop("consumer")
    query.run()
    assert short.table.consumers == {}
    query.stop()
    query.options["consumer"] = name
    query.trigger()
    assert short.table.consumers == {name: short.ends}
    query.stop()
    short.store.drop_consumer(name)
    before = short.ends
    short.write()
    query.trigger("planned")
    assert short.table.consumers == {name: before}
    query.stop()
    there = json.loads(query.offsets[0])  # where it was before that
    assert there.pop("began")
    assert there["offsets"] == {str(bucket): offset for bucket, offset in before.items()}
    # Earlier positions stay: there may be a batch to be done again.
    short.store.consumer(name).commit("t", short.starts)
    query.start()
    query.reader.latestOffset(there, EVERYTHING)
    assert short.table.consumers == {name: short.starts}
    # A position after the stream's own belongs to another reader.
    short.store.consumer(name).commit("t", short.ends)
    query.stop()
    query.start()
    query.reader.latestOffset(there, EVERYTHING)
    assert short.table.consumers == {name: before}
    query.stop()


def test_a_stream_that_skips_what_expired_is_kept_from_there_on(short: Short) -> None:
    query = short.query(startingOffsets="earliest", failOnDataLoss="false")
    query.run()
    query.stop()
    short.store.drop_consumer("q")
    short.write()
    short.expire()
    start = short.starts
    query.trigger()
    query.stop()
    assert [row for row in query.rows() if row["_log_offset"] >= start[row["_bucket"]]]
    assert short.table.consumers == {"q": short.ends}


def test_files_that_may_only_be_read_take_no_name(short: Short) -> None:
    query = short.query()
    with patch("kvstore.meta.journal.Journal.append", side_effect=UnsupportedOperation("may only be read")):
        with pytest.raises(UnsupportedOperation):
            query.run()
        query.stop()
        del query.options["consumer"]
        query.run()
        query.stop()
        source = KvStoreSource({"path": str(short.store.path), "table": "t"})
        assert read(source) == [4]


@pytest.mark.parametrize("table", ["t", "t$changelog"])
def test_a_batch_has_no_name(short: Short, table: str) -> None:
    source = KvStoreSource({"path": str(short.store.path), "table": table, "consumer": "q"})
    with pytest.raises(InvalidRequest, match="`consumer` is for streams"):
        source.reader(source.schema())


def test_a_name_of_a_stream_can_be_shown(short: Short) -> None:
    with pytest.raises(InvalidRequest, match="printable"):
        short.query(consumer="").start()


# DataFrames


def read(source: KvStoreSource) -> list[int]:
    reader = source.reader(source.schema())
    return [sum(batch.num_rows for task in reader.partitions() for batch in reader.read(task))]


def loaded(short: Short, **options: str) -> Any:
    """A DataFrame's source, as it goes to other processes."""
    source = KvStoreSource({"path": str(short.store.path)} | options)
    schema = source.schema()
    return lambda: pickle.loads(pickle.dumps(source)).reader(schema)


def rows_in(reader: Any) -> Rows:
    return [row for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()]


def leases(short: Short) -> int:
    return sum(len(each.named) for each in short.store.runtime.catalog().consumers.values())


@pytest.mark.parametrize("options", [{"table": "t"}, {"table": "t$changelog", "endingOffsets": "latest"}])
def test_what_was_loaded_is_kept_for_a_while_and_longer_if_it_is_used(short: Short, options: dict[str, str]) -> None:
    short.expire()
    assert all(short.starts.values())  # now Spark knows that it does
    short.write()
    frame = loaded(short, **options)
    assert leases(short) == 1
    expected: Rows = []
    for _ in range(3):
        short.write()
        short.expire()
        found = rows_in(frame())
        expected = expected or found
        assert found == expected
        assert leases(short) == 1
        short.clock.now += 1000 * LEASE_SECONDS - 1
    short.clock.now += 1
    short.write()
    short.expire()
    with pytest.raises(OffsetOutOfRange):
        rows_in(frame())


def test_changes_are_kept_from_the_first_query_on(short: Short) -> None:
    """What is asked of a stream when it starts is the same, and nothing is to be kept for that."""
    short.expire()
    short.write()
    frame = loaded(short, table="t$changelog")
    assert leases(short) == 0
    found = rows_in(frame())
    assert leases(short) == 1
    short.write()
    short.expire()
    assert rows_in(frame()) == found


def test_only_a_table_whose_log_expires_has_leases(store: kvstore.Store) -> None:
    for name, retention in (("kept", None), ("short", dt.timedelta(hours=1))):
        table = store.create_table(name, SCHEMA, "k", retention=retention)
        table.upsert({"k": 1, "v": 1})
        table.flush()
        before = store.runtime.catalog()
        source = KvStoreSource({"path": str(store.path), "table": name})
        assert read(source) == [1]
        assert (store.runtime.catalog() is before) == (retention is None)


def test_rows_of_a_wal_table_have_no_lease(short: Short) -> None:
    """They are those of now, or none."""
    short.store.create_table("wal", SCHEMA, "k", changelog_image="wal", retention=dt.timedelta(hours=1))
    rows_in(loaded(short, table="wal")())
    assert leases(short) == 0
    rows_in(loaded(short, table="wal$changelog")())
    assert leases(short) == 1
