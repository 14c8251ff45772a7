"""What Spark calls, while columns of the table exchange their names between two reads of its definition.

It goes by the names of one moment: what it reads or writes is as if the rename came before it or after it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import kvstore
from kvstore.errors import SchemaMismatch
from kvstore.spark import KvStoreSource
from kvstore.spark.options import Kind
from kvstore.spark.read.address import TableAddress
from kvstore.spark.write.job import WriteJob
from kvstore.spark.write.statement import Statement
from tests.support.renames import at_reads, reads_of

pytestmark = pytest.mark.spark

ROW = {"k": "a", "v": 20, "w": 1}
SWAPPED = {"k": "a", "v": 1, "w": 20}


class Swaps:
    """A table of one row, of which two columns exchange their names."""

    def __init__(self, store: kvstore.Store) -> None:
        self.store = store
        self.table = store.create_table("t", {"k": "string", "v": "int64", "w": "int64"}, "k")
        self.is_swapped = False
        self.table.upsert(ROW)

    def swap(self) -> None:
        self.store.rename_columns("t", {"v": "w", "w": "v"})
        self.is_swapped = not self.is_swapped

    def reset(self) -> None:
        if self.is_swapped:
            self.swap()
        self.table.upsert(ROW)

    def results(self, call: Callable[[], Any]) -> list[Any]:
        """What a call returns if a swap, or two, come at any of its reads; not when it was refused."""
        results = []
        for first in range(1, reads_of(call) + 1):
            for then in (None, first + 1):
                self.reset()
                swaps = {first: self.swap} | ({} if then is None else {then: self.swap})
                with at_reads(swaps), suppress(SchemaMismatch):
                    results.append(call())
        assert len(results) > 1
        return results


@pytest.fixture
def swaps(store: kvstore.Store) -> Swaps:
    return Swaps(store)


@pytest.mark.parametrize("of", ["t", "t$changelog", "t$binlog"])
def test_a_query_reads_the_columns_that_it_was_planned_with(swaps: Swaps, of: str) -> None:
    def read() -> list[dict[str, Any]]:
        source = KvStoreSource({"path": str(swaps.store.path), "table": of})
        reader = source.reader(source.schema())
        batches = [batch for task in reader.partitions() for batch in reader.read(task)]
        rows = pa.Table.from_batches(batches).to_pylist()[-1:]
        return [{name: row[name] for name in ROW} for row in (row.get("after", row) for row in rows)]

    for rows in swaps.results(read):
        assert rows in ([ROW], [SWAPPED])


@pytest.mark.parametrize("kind", ["update_postimage", "insert"])
def test_what_a_statement_writes_has_the_columns_that_it_was_planned_with(swaps: Swaps, kind: str) -> None:
    def write() -> dict[str, Any]:
        ends = {bucket: end for bucket, (_, end) in swaps.table.offsets().items()}
        statement = None if kind == "insert" else Statement(ends)
        place = TableAddress.of(str(swaps.store.path), swaps.table, Kind.ROWS)
        is_swapped = place.schema_id in swapped_ids(swaps)
        job = WriteJob(place, statement=statement)
        rows = pa.RecordBatch.from_pylist([{"k": "a", "v": 7, "w": 8}])
        rows = rows.append_column("_change_type", pa.array([kind]))
        staged = job.stage(iter([rows]), 0, 0, None)
        job.commit([staged])
        return {"k": "a", "v": 7, "w": 8} if not is_swapped else {"k": "a", "v": 8, "w": 7}

    def written() -> tuple[dict[str, Any], dict[str, Any] | None]:
        expected = write()
        found = swaps.table["a"]
        return expected, {**found, "v": found["w"], "w": found["v"]} if swaps.is_swapped else found

    for expected, found in swaps.results(written):
        assert found == expected


def swapped_ids(swaps: Swaps) -> set[int]:
    """Schemas in which the columns have each other's names."""
    definition = swaps.store.runtime.catalog().tables[swaps.table.identity[1]]
    return {id for id, schema in definition.schemas.items() if schema.names == ["k", "w", "v"]}


def test_a_frame_has_the_columns_of_one_moment(spark: SparkSession, store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "string", "v": "int64", "w": "string"}, "k")
    table.upsert({"k": "a", "v": 1, "w": "x"})
    for frame in (table.to_spark, partial(table.changelog_to_spark, columns=["k", "v", "w"])):
        with at_reads({2: lambda: store.rename_columns("t", {"v": "w", "w": "v"})}):
            made = frame(spark)
        with pytest.raises(PySparkException, match="renamed or dropped since it was loaded"):
            made.toArrow()
