"""What programs read of one bucket: its rows page by page, how much is in it, its writers, and its log."""

from __future__ import annotations

import datetime as dt
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.errors import InvalidRequest, NoSuchTable, OffsetOutOfRange, SchemaMismatch, UnsupportedOperation
from tests.conftest import OpenStore

COLUMNS = {"a": "string not null", "b": "int64 not null", "v": "int64"}
KEYS = st.tuples(st.sampled_from(["", "a", "a\0", "ab", "b"]), st.integers(-2, 2))
STEPS = st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(0, 3))), max_size=25)
"""A key and its new value, or None for a delete."""
NUMBERS = count()


@pytest.fixture
def filled(store: kvstore.Store) -> kvstore.Table:
    table = store.create_table("t", {"k": "int64", "v": "string"}, primary_key="k")
    for number in range(10):
        table.upsert({"k": number, "v": "x" * number})
    return table


def pages(bucket: kvstore.Bucket, size: int, as_of: int | None) -> list[dict[str, Any]]:
    """All rows, read a page at a time, each from the last key of the page before."""
    rows: list[dict[str, Any]] = []
    after: tuple[str, int] | None = None
    while len(rows) <= 25:  # there are no more
        with bucket.scan(after=after, as_of=as_of, batch_rows=size) as found:
            page = next((batch.slice(0, size).to_pylist() for batch in found.batches if batch.num_rows), [])
        rows += page
        if not page:
            break
        after = (page[-1]["a"], page[-1]["b"])
    return rows


@given(steps=STEPS, size=st.integers(1, 4), data=st.data())
def test_pages_from_key_to_key_are_the_rows_of_every_bucket(
    store: kvstore.Store, steps: list[tuple[tuple[str, int], int | None]], size: int, data: st.DataObject
) -> None:
    table = store.create_table(f"t{next(NUMBERS)}", COLUMNS, primary_key=["a", "b"], buckets=2)
    states: list[dict[int, dict[tuple[str, int], int]]] = [{0: {}}, {0: {}}]  # by bucket and offset
    for key, value in steps:
        (bucket,) = table.buckets_of([key])
        rows = {at: old for at, old in list(states[bucket].values())[-1].items() if at != key}
        if value is None:
            table.delete([key])
        else:
            table.upsert({"a": key[0], "b": key[1], "v": value})
            rows[key] = value
        states[bucket][table.offsets()[bucket][1]] = rows
    for bucket, after in enumerate(states):
        offset = data.draw(st.sampled_from(list(after)))
        for as_of, rows in ((None, list(after.values())[-1]), (offset, after[offset])):
            expected = [{"a": a, "b": b, "v": v} for (a, b), v in sorted(rows.items())]
            assert pages(table.bucket(bucket), size, as_of) == expected
            for key in rows:
                with table.bucket(bucket).scan(["v"], key=key, as_of=as_of) as found:
                    assert pa.Table.from_batches(found.batches, found.schema).to_pylist() == [{"v": rows[key]}]


def test_a_read_says_as_of_when_its_rows_are(filled: kvstore.Table) -> None:
    with filled.bucket(0).scan(as_of=3) as found:
        filled.upsert({"k": 99, "v": "later"})
        assert (found.offset, found.end) == (3, 10)
        assert [row["k"] for batch in found.batches for row in batch.to_pylist()] == [0, 1, 2]


def test_rows_can_not_be_read_after_their_context(filled: kvstore.Table) -> None:
    with filled.bucket(0).scan(batch_rows=2) as found:
        next(found.batches)
    with pytest.raises(InvalidRequest, match="context of these rows was left"):
        next(found.batches)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"key": 1, "after": 1}, InvalidRequest),
        ({"key": [1, 2]}, InvalidRequest),
        ({"after": "no number"}, SchemaMismatch),
        ({"columns": ["x"]}, SchemaMismatch),
        ({"batch_rows": 0}, InvalidRequest),
        ({"as_of": "yesterday"}, InvalidRequest),
        ({"as_of": 11}, OffsetOutOfRange),
    ],
)
def test_reads_that_are_not_possible_are_refused(
    filled: kvstore.Table, asked: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error), filled.bucket(0).scan(**asked) as found:
        list(found.batches)


def test_a_log_table_has_no_rows_by_key(store: kvstore.Store) -> None:
    log = store.create_table("log", {"n": "int64"}, primary_key=None)
    with pytest.raises(UnsupportedOperation), log.bucket(0).scan():
        pass


def test_the_status_is_what_is_in_the_bucket(filled: kvstore.Table, store: kvstore.Store) -> None:
    filled.flush()
    status = filled.bucket(0).status()
    assert (status.rows, status.log_start, status.log_end) == (filled.count(), *filled.offsets()[0])
    assert status.last_ms == filled.committed()[0][1]
    assert min(status.log_bytes, status.index_bytes) > 0
    wal = store.create_table("wal", {"k": "int64"}, primary_key="k", changelog_image="wal")
    empty = wal.bucket(0).status()
    assert (empty.rows, empty.log_end, empty.last_ms) == (None, 0, None)


def test_writers_are_remembered_with_their_last_batches(filled: kvstore.Table, store: kvstore.Store) -> None:
    rows = kvstore.Changes.of([("upsert", {"k": 1, "v": "y"})], filled.schema)
    for sequence in range(7):
        filled.bucket(0).apply(rows, writer_id=7, sequence=sequence)
    assert [each.sequence for each in filled.bucket(0).writers()[7].batches] == [2, 3, 4, 5, 6]
    with filled.writer("nightly") as writer:
        writer.upsert({"k": 1, "v": "z"})
    id = filled.writers["nightly"].writer_id
    assert not filled.fenced_writers
    store.drop_writer("nightly")
    assert filled.fenced_writers == {id}
    assert filled.open_commits == ()


# The log


@pytest.fixture
def segmented(open_store: OpenStore) -> kvstore.Table:
    """A log of many segments, with batches of several changes."""
    store = open_store(segment_bytes_max=2_048)
    table = store.create_table("t", {"k": "int64", "v": "string"}, primary_key="k", compression=None)
    for number in range(30):
        table.upsert([{"k": key, "v": f"{number}" * 40} for key in range(number % 3, 6)])
    table.flush()
    return table


def test_segments_have_every_offset_once(segmented: kvstore.Table) -> None:
    log = segmented.bucket(0).log
    segments = log.segments()
    assert len(segments) > 3
    assert [each.start for each in segments] == [log.start(), *(each.end for each in segments[:-1])]
    assert segments[-1].end == log.end() == segmented.offsets()[0][1]
    contents = [log.segment(each) for each in segments]
    assert [log.offset_at(moment(each.first_ms or 0)) <= at.start for each, at in zip(contents, segments, strict=True)]
    assert sum(each.bytes for each in contents) >= log.bytes_between(log.start(), log.end()) > 0


def test_batches_decode_to_the_binlog(segmented: kvstore.Table) -> None:
    log = segmented.bucket(0).log
    for start in range(log.start() + 7, log.start() + 10):
        for end in range(log.end() - 2, log.end() + 1):  # between the halves of updates, too
            batches = list(log.batches(start, end))
            assert batches[0].header.base_offset <= start < batches[0].header.next_offset
            assert batches[-1].header.base_offset < end <= batches[-1].header.next_offset
            expected = segmented.binlog({0: start}, {0: end}, columns=["v"]).read_all()
            assert pa.Table.from_batches(log.binlog(batches, start, end, ["v"])).equals(expected)


def test_batches_say_who_wrote_them(filled: kvstore.Table) -> None:
    rows = kvstore.Changes.of([("upsert", {"k": 1, "v": "y"})], filled.schema)
    filled.apply_epoch(rows, writer="job", epoch=40, run="query")
    log = filled.bucket(0).log
    first, *_, last = log.batches(0, log.end())
    assert (last.origin.writer, last.origin.epoch, last.origin.run) == ("job", 40, "query")
    assert first.origin.writer is None


def test_commit_times_are_those_of_the_batches(segmented: kvstore.Table) -> None:
    log = segmented.bucket(0).log
    times = {each.header.base_offset: each.header.commit_timestamp for each in log.batches(0, log.end())}
    for most in (1, 5, 1_000):
        found = log.commit_times(most)
        assert found.items() <= times.items()
        assert next(iter(found)) == log.start()
        assert list(found) == sorted(found)
    assert log.commit_times(1_000) == times


def test_a_time_is_an_offset_as_of_the_changelog(segmented: kvstore.Table) -> None:
    log = segmented.bucket(0).log
    for batch in log.batches(0, log.end()):
        time = moment(batch.header.commit_timestamp)
        assert log.offset_at(time) == segmented.offset_ranges(time)[0][0]


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (5, 3), (0, 11), (12, 12), ("a", 3)])
def test_offsets_that_the_log_does_not_hold_are_refused(filled: kvstore.Table, start: Any, end: Any) -> None:
    log = filled.bucket(0).log
    for read in (log.batches, log.bytes_between):
        with pytest.raises((InvalidRequest, OffsetOutOfRange), match="start"):
            read(start, end)


def test_an_empty_log_has_one_segment_and_no_times(store: kvstore.Store) -> None:
    log = store.create_table("t", {"k": "int64"}, primary_key="k").bucket(0).log
    (segment,) = log.segments()
    assert (segment.start, segment.end, log.segment(segment).first_ms) == (0, 0, None)
    assert log.commit_times(5) == {}


# The catalog


def test_a_table_is_found_by_its_id_whatever_its_name(filled: kvstore.Table, store: kvstore.Store) -> None:
    _, id = filled.identity
    store.rename_table("t", "renamed")
    assert store.table_by_id(id).name == "renamed"
    store.drop_table("renamed")
    store.create_table("t", {"k": "int64"}, primary_key="k")
    with pytest.raises(NoSuchTable, match="dropped"):
        store.table_by_id(id)


def test_every_edit_of_the_catalog_counts(store: kvstore.Store) -> None:
    before = store.txid
    store.create_table("one", {"k": "int64"}, primary_key="k")
    store.drop_table("one")
    assert store.txid == before + 2


def test_leases_are_readers_for_a_while(filled: kvstore.Table, store: kvstore.Store) -> None:
    store.alter_table("t", retention=dt.timedelta(days=1))
    filled.parts.lease("reading", {0: 5})
    store.consumer("lasting").commit("t", {0: 3})
    ((name, tables),) = store.leases.items()
    assert (name, tables["t"].offsets, tables["t"].is_over) == ("reading", {0: 5}, False)
    assert list(store.consumers) == ["lasting"]


def moment(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
