"""Option `filter` of changes: put together, they are the rows that pass, in batch and as a stream."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

import kvstore
from kvstore.errors import InvalidRequest, UnsupportedOperation
from kvstore.spark.connector.plans import encode
from kvstore.spark.connector.requests import answer
from kvstore.spark.source import KvStoreSource
from kvstore.spark.types import spark_schema
from tests.spark.streams import EVERYTHING, Query

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string()), pa.field("n", pa.int64())])
FILTER = "n > 3 and s is not null"
Rows = list[dict[str, Any]]


class Sent:
    """The end of a connection that keeps what is sent."""

    message: dict[str, Any]

    def send(self, message: dict[str, Any]) -> None:
        self.message = message


def write(table: kvstore.Table, random: Random) -> None:
    for _ in range(random.randrange(1, 4)):
        rows = [{"k": k, "s": random.choice("ab"), "n": random.randrange(8)} for k in random.sample(range(12), 4)]
        table.upsert(rows)
    table.delete([random.randrange(12)])
    table.flush()


def folded(changes: Rows) -> dict[int, tuple[Any, Any]]:
    """The rows that changes make; an insert has no row before it, and all others have one."""
    rows: dict[int, tuple[Any, Any]] = {}
    for change in sorted(changes, key=lambda change: change["_bucket"]):
        kind = change["_change_type"]
        assert (change["k"] in rows) == (kind != "insert")
        if kind == "delete":
            del rows[change["k"]]
        else:
            rows[change["k"]] = change["s"], change["n"]
    return rows


def passing(table: kvstore.Table) -> dict[int, tuple[Any, Any]]:
    filter = (pc.field("n") > 3) & pc.field("s").is_valid()
    return {row["k"]: (row["s"], row["n"]) for row in table.scan(filter=filter).read_all().to_pylist()}


@pytest.mark.parametrize("start", ["full", "earliest"])
def test_a_batch_of_changes_has_what_the_filter_sees(store: kvstore.Store, start: str) -> None:
    table, random = store.create_table("t", SCHEMA, "k", buckets=2), Random(1)
    options = {"path": str(store.path), "startingOffsets": start, "filter": FILTER}
    for _ in range(6):
        write(table, random)
        for view in ("t$changelog", "t$binlog"):
            source = KvStoreSource(options | {"table": view})
            reader = source.reader(source.schema())
            found = [row for task in reader.partitions() for rows in reader.read(task) for row in rows.to_pylist()]
            if view == "t$binlog":
                found = [each | (each["after"] or each["before"]) for each in found]
            assert folded(found) == passing(table)
            assert reader.aggregates([("count", None)]) is None
    some = KvStoreSource(options | {"table": "t$changelog", "columns": "_change_type"})  # without those of the filter
    reader = some.reader(some.schema())
    names = [row for task in reader.partitions() for rows in reader.read(task) for row in rows.to_pylist()]
    assert {frozenset(row) for row in names} == {frozenset({"_change_type"})}


def test_a_stream_of_changes_has_what_the_filter_sees(store: kvstore.Store) -> None:
    table, random = store.create_table("t", SCHEMA, "k", buckets=2), Random(2)
    write(table, random)
    query = Query({"path": str(store.path), "table": "t$changelog", "filter": FILTER})
    for turn in range(12):
        query.trigger(random.choice([None, "planned", "sunk"]), random.choice([EVERYTHING, ReadMaxRows(3)]))
        if turn < 8:
            write(table, random)
    query.run()
    query.stop()
    assert folded(query.rows()) == passing(table)


def test_filters_that_do_not_fit_are_refused(store: kvstore.Store) -> None:
    store.create_table("t", SCHEMA, "k")
    store.create_table("w", SCHEMA, "k", changelog_image="wal")
    path = str(store.path)
    for table, filter, error in (
        ("t", "n > 3", InvalidRequest),
        ("t$changelog", "m > 3", InvalidRequest),
        ("t$changelog", "n >", InvalidRequest),
        ("w$changelog", "n > 3", UnsupportedOperation),
    ):
        with pytest.raises(error):
            KvStoreSource({"path": path, "table": table, "filter": filter}).schema()
    with pytest.raises(UnsupportedOperation, match="for the changes of a store"):
        KvStoreSource({"path": "s3://bucket/x", "table": "t$changelog", "filter": "n > 3"}).schema()
    source = KvStoreSource({"path": path, "table": "t$changelog"})
    pinned = source.pin(spark_schema(source.load().columns))
    options = {"path": path, "table": "t$changelog", "filter": "n > 3"}
    sent = Sent()
    plan = {"do": "plan", "columns": source.schema().json(), "filters": [], "cores": 1}
    answer(plan | {"options": options, "pinned": encode(pinned)}, sent)  # type: ignore[arg-type]
    assert "CHANGES has the changes of all rows" in sent.message["error"]
