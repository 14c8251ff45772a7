"""Changes as data: of Arrow, pandas and Polars, and for asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable

import polars as pl
import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import InvalidRequest, NoSuchTable, SchemaMismatch, StoreClosed
from tests.support.waiting import wait_until

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.string())])


@pytest.fixture(params=[1, 3])
def table(store: kvstore.Store, request: pytest.FixtureRequest) -> kvstore.Table:
    return store.create_table("t", SCHEMA, "k", buckets=request.param)


class TestReader:
    def test_an_empty_changelog_has_a_schema_and_no_rows(self, table: kvstore.Table) -> None:
        schema = table.changelog_schema()
        assert table.changelog().schema == schema
        for read in (lambda: table.changelog().read_all(), lambda: pa.table(table.changelog())):
            assert (read().schema, read().num_rows) == (schema, 0)
        assert table.changelog().to_polars().columns == schema.names
        assert table.changelog().to_pandas().columns.tolist() == schema.names
        assert (table.binlog().read_all().schema, len(list(table.binlog()))) == (table.binlog_schema(), 0)

    @pytest.mark.parametrize("start", ["earliest", "full"])
    def test_every_form_has_the_same_changes(self, table: kvstore.Table, start: str) -> None:
        table.upsert([{"k": k, "v": f"{k}"} for k in range(9)])
        table.upsert({"k": 1, "v": None})
        table.delete([2, 3])
        whole = [row for batch in table.changelog(start) for row in batch.to_pylist()]
        assert whole
        assert table.changelog(start).read_all().to_pylist() == whole
        assert pa.table(table.changelog(start)).to_pylist() == whole
        assert pl.DataFrame(table.changelog(start)).to_dicts() == whole
        assert table.changelog(start).to_polars().to_dicts() == whole
        assert table.changelog(start).to_pandas()["k"].tolist() == [row["k"] for row in whole]
        assert table.changelog(start, columns=["v", "_log_offset"]).read_all().schema.names == ["v", "_log_offset"]
        assert pa.table(table.binlog()).schema == table.binlog_schema()

    def test_it_goes_on_where_it_was_left_and_ends_when_closed(self, table: kvstore.Table) -> None:
        table.upsert([{"k": k, "v": ""} for k in range(9)])
        reader = table.changelog()
        first = next(reader)
        assert first.num_rows + reader.read_all().num_rows == 9
        reader = table.changelog()
        reader.close()
        assert list(reader) == []


class TestThreads:
    @pytest.mark.parametrize("kind", ["changelog", "binlog"])
    def test_a_reader_that_waits_is_closed_by_another_thread(self, table: kvstore.Table, kind: str) -> None:
        reader = getattr(table, kind)(follow=True)
        found: list[int] = []
        reading = threading.Thread(target=lambda: found.extend(batch.num_rows for batch in reader))
        reading.start()
        table.upsert({"k": 1, "v": "x"})
        wait_until(lambda: bool(found))
        reader.close()
        reading.join(60)
        assert not reading.is_alive()
        assert (found, list(reader)) == ([1], [])
        reader.close()

    def test_threads_that_read_one_reader_share_its_batches(self, table: kvstore.Table) -> None:
        reader = table.changelog(follow=True)
        found: list[int] = []

        def read() -> None:
            for batch in reader:
                found.extend(batch.column("k").to_pylist())

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        for k in range(20):
            table.upsert({"k": k, "v": "x"})
        wait_until(lambda: len(found) == 20)
        reader.close()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert sorted(found) == list(range(20))


async def rest(changes: AsyncIterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return [batch async for batch in changes]


class TestFollow:
    def test_changes_arrive_while_others_write(self, table: kvstore.Table) -> None:
        async def gather() -> list[int]:
            found: list[int] = []
            write = asyncio.create_task(asyncio.to_thread(self.write, table))
            async for batch in table.follow():
                found += batch.column("k").to_pylist()
                if len(found) == 30:
                    break
            await write
            return found

        assert sorted(asyncio.run(gather())) == list(range(30))

    @staticmethod
    def write(table: kvstore.Table) -> None:
        for k in range(30):
            table.upsert({"k": k, "v": "x"})
            table.flush()

    def test_the_end_is_the_end_of_the_loop(self, table: kvstore.Table) -> None:
        table.upsert([{"k": k, "v": "x"} for k in range(5)])

        async def read() -> int:
            ends = {bucket: end for bucket, (_, end) in table.offsets().items()}
            return sum([batch.num_rows async for batch in table.follow("earliest", ends)])

        assert asyncio.run(read()) == 5

    def test_cancelling_ends_everything(self, table: kvstore.Table) -> None:
        async def wait() -> None:
            before = set(threading.enumerate())
            changes = table.follow("latest")
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(changes), 0.05)
            wait_until(lambda: set(threading.enumerate()) <= before)  # the thread of watches ends by itself
            assert await asyncio.wait_for(rest(changes), 60) == []

        asyncio.run(wait())

    def test_leaving_the_loop_leaves_no_thread(self, table: kvstore.Table) -> None:
        table.upsert([{"k": k, "v": "x"} for k in range(5)])

        async def leave() -> None:
            before = set(threading.enumerate())
            async for _ in table.follow("full"):
                break
            assert set(threading.enumerate()) <= before

        asyncio.run(leave())

    @pytest.mark.parametrize("end", [lambda store: store.drop_table("t"), lambda store: store.close()])
    def test_a_table_that_is_gone_is_an_error(self, store: kvstore.Store, end: Callable[[kvstore.Store], None]) -> None:
        table = store.create_table("t", SCHEMA, "k")

        async def wait() -> None:
            waiting = asyncio.ensure_future(anext(table.follow("latest")))
            await asyncio.sleep(0)  # it begins, and waits
            end(store)
            with pytest.raises((NoSuchTable, StoreClosed)):
                await waiting

        asyncio.run(wait())

    def test_wrong_arguments_are_refused_at_once(self, table: kvstore.Table) -> None:
        with pytest.raises(SchemaMismatch):
            table.follow(columns=["other"])
        with pytest.raises(InvalidRequest):
            table.follow("never")
