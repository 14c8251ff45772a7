"""What tasks stage comes together again, however Spark cuts it up and in whatever order it comes."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings, strategies as st
from pyspark.errors import UnsupportedOperationException
from pyspark.sql.types import StructType

import kvstore
from kvstore.errors import (
    InvalidRequest,
    LogFailed,
    NoSuchTable,
    OutOfOrderSequence,
    SchemaMismatch,
    StoreError,
    UnsupportedOperation,
    WriterFenced,
)
from kvstore.replica import leadership
from kvstore.spark import KvStoreSource
from kvstore.spark.types import arrow_schema, for_spark, spark_schema
from kvstore.spark.write import job, staged
from kvstore.spark.write.changes import changes_of
from kvstore.spark.write.sink import KvStoreStreamWriter, KvStoreWriter
from kvstore.spark.write.staged import Staged, parts_of
from kvstore.testing.strategies import rows as record_batches
from logformat import paths
from logformat.rows.arrow_values import as_type
from tests.support.bytes_read import bytes_read
from tests.support.clocks import wait_for_the_next_millisecond
from tests.support.contents import values_of
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
ROWS = pa.RecordBatch.from_pylist([{"k": k, "v": k} for k in range(10)], SCHEMA)


def writer_of(store: kvstore.Store, schema: pa.Schema, **options: str) -> KvStoreWriter:
    """As Spark hands it to each task."""
    writer = KvStoreSource({"path": str(store.path), "table": "u"} | options).writer(spark_schema(schema), False)
    found = pickle.loads(pickle.dumps(writer))
    assert isinstance(found, KvStoreWriter)
    return found


def stream_writer_of(store: kvstore.Store, **options: str) -> KvStoreStreamWriter:
    writer = KvStoreSource({"path": str(store.path), "table": "u"} | options).streamWriter(spark_schema(SCHEMA), False)
    assert isinstance(writer, KvStoreStreamWriter)
    return writer


def staged_files(store: kvstore.Store) -> list[str]:
    return [path.name for path in (store.path / paths.STAGING).glob("*")]


@given(record_batches())
def test_types_of_spark_and_back(batch: pa.RecordBatch) -> None:
    try:
        schema: StructType = spark_schema(batch.schema)
        theirs = for_spark(batch, arrow_schema(schema))
    except (UnsupportedOperation, UnsupportedOperationException, pa.ArrowException):
        assume(False)
    ours = [as_type(*each) for each in zip(theirs.columns, batch.schema.types, strict=True)]
    assert list(map(values_of, ours)) == list(map(values_of, batch.columns))


@settings(max_examples=settings().max_examples // 3)
@given(st.randoms(use_true_random=False), st.integers(0, 60), st.integers(1, 3), st.integers(1, 3))
def test_changes_that_spark_has_shuffled_are_applied_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, random: Random, steps: int, buckets: int, other_buckets: int
) -> None:
    with kvstore.open(tmp_path_factory.mktemp("order") / "store") as store:
        table = store.create_table("t", SCHEMA, "k", buckets=buckets)
        copied = store.create_table("u", SCHEMA, "k", buckets=other_buckets)
        for step in range(steps):
            key = random.randrange(8)
            if random.random() < 0.3:
                table.delete(key)
            else:
                table.upsert({"k": key, "v": step})
        changes = pa.Table.from_batches(list(table.changelog()), table.changelog_schema()).to_pylist()
        writer = writer_of(store, table.changelog_schema())
        tasks: list[list[Any]] = [[] for _ in range(3)]
        for change in random.sample(changes, len(changes)):
            random.choice(tasks).append(change)
        schema = arrow_schema(spark_schema(table.changelog_schema()))
        messages = [
            writer.job.stage(iter(cut(pa.RecordBatch.from_pylist(rows, schema), random)), task, task, None)
            for task, rows in enumerate(tasks)
        ]
        writer.commit(random.sample(messages, len(messages)))
        assert sorted(rows_of(copied), key=lambda row: row["k"]) == sorted(rows_of(table), key=lambda row: row["k"])
        assert not staged_files(store)


def cut(batch: pa.RecordBatch, random: Random) -> list[pa.RecordBatch]:
    """The same rows in batches."""
    cuts = sorted(random.randint(0, batch.num_rows) for _ in range(random.randint(0, 3)))
    return [batch.slice(a, b - a) for a, b in zip([0, *cuts], [*cuts, batch.num_rows], strict=True)]


def test_rows_without_an_order_are_applied_as_tasks_count(store: kvstore.Store) -> None:
    table = store.create_table("u", SCHEMA, "k")
    writer = writer_of(store, SCHEMA)
    later = pa.RecordBatch.from_pylist([{"k": 1, "v": 2}, {"k": 1, "v": 3}], SCHEMA)
    messages = [writer.job.stage(iter([batch]), task, 9 - task, None) for task, batch in ((1, later), (0, ROWS))]
    writer.commit(messages)
    assert rows_of(table)[1] == {"k": 1, "v": 3}


def test_a_commit_that_was_reported_as_failed_can_be_repeated(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark calls abort() when commit() raises, also if everything was written by then; then the batch comes again."""
    table = store.create_table("u", SCHEMA, "k", buckets=2)
    query = "a query"
    for batch in range(2):
        writer = stream_writer_of(store, writer="w")
        messages = [writer.job.stage(iter([ROWS]), 0, 0, query)]
        with monkeypatch.context() as patch:

            def fail(_: object) -> None:
                raise RuntimeError("planted")

            patch.setattr(job, "sweep", fail)
            with pytest.raises(RuntimeError, match="planted"):
                writer.commit(messages, batch)
        writer.abort(messages, batch)
        ends = table.offsets()
        again = stream_writer_of(store, writer="w")
        again.commit([again.job.stage(iter([ROWS]), 0, 1, query)], batch)
        assert table.offsets() == ends
    assert sorted(row["k"] for row in rows_of(table)) == list(range(10))
    assert not staged_files(store)


def test_a_batch_that_does_not_follow_is_refused(store: kvstore.Store) -> None:
    table = store.create_table("u", SCHEMA, "k")
    writer = stream_writer_of(store, writer="w")
    writer.commit([writer.job.stage(iter([ROWS]), 0, 0, "q")], 3)
    with pytest.raises(StoreError, match="Epochs come one after the other"):
        writer.commit([writer.job.stage(iter([ROWS]), 0, 0, "q")], 5)
    assert table.offsets() == {0: (0, 10)}


@pytest.mark.parametrize("harm", ["gone", "flipped", "cut off", "forbidden"])
def test_what_a_task_staged_is_not_what_it_was(
    store: kvstore.Store, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.create_table("u", SCHEMA, "k")
    writer = writer_of(store, SCHEMA)
    message = writer.job.stage(iter([ROWS]), 0, 0, None)
    data = bytearray(Path(message.file).read_bytes())
    if harm == "gone":
        Path(message.file).unlink()
    elif harm == "forbidden":  # as of another user, because the user of the tests may be root

        def forbid(_: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(pa, "memory_map", forbid)
    else:
        data[len(data) // 2] ^= 1
        Path(message.file).write_bytes(data if harm == "flipped" else data[:-100])
    with pytest.raises(StoreError, match="run the job again"):
        writer.commit([message])
    assert table.count() == 0


def test_a_task_that_can_not_stage_says_why(store: kvstore.Store) -> None:
    store.create_table("u", SCHEMA, "k")
    writer = writer_of(store, SCHEMA)
    paths.task_file(store.path, "job", 0, 0).parent.write_bytes(b"")  # where the directory should be
    with pytest.raises(LogFailed, match="staging"):
        writer.job.stage(iter([ROWS]), 0, 0, None)


def test_a_task_that_finds_the_disk_full_leaves_no_file(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_table("u", SCHEMA, "k")
    writer = writer_of(store, SCHEMA)
    many = pa.Table.from_batches([ROWS]).take(pa.array([0] * 100_000)).combine_chunks().to_batches()[0]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(StoreError):
            writer.job.stage(iter([many]), 0, 0, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not [*(store.path / paths.STAGING).glob("*")]


def test_columns_of_a_changelog_that_are_large(store: kvstore.Store) -> None:
    """As Spark sends them with ``spark.sql.execution.arrow.useLargeVarTypes``."""
    table = store.create_table("u", SCHEMA, "k")
    table.upsert([{"k": 1, "v": 1}, {"k": 2, "v": 2}])
    writer = writer_of(store, table.changelog_schema())
    rows = pa.table({"k": [1, 3], "v": [None, 3], "_change_type": pa.array(["delete", "insert"], pa.large_string())})
    writer.commit([writer.job.stage(iter(rows.to_batches()), 0, 0, None)])
    assert [row["k"] for row in rows_of(table)] == [2, 3]


def test_changes_of_several_buckets_are_ordered_by_their_time(store: kvstore.Store) -> None:
    """Offsets of different buckets say nothing of each other."""
    log = store.create_table("t", SCHEMA, buckets=2)
    table = store.create_table("u", SCHEMA, "k")
    for bucket, value in ((0, 1), (0, 2), (0, 3), (1, 4)):
        log.bucket(bucket).apply(kvstore.Changes.of([("upsert", {"k": 7, "v": value})], SCHEMA))
        wait_for_the_next_millisecond()
    changes = pa.Table.from_batches(list(log.changelog()), log.changelog_schema())
    writer = writer_of(store, log.changelog_schema())
    writer.commit([writer.job.stage(iter(changes.to_batches()[::-1]), 0, 0, None)])
    assert rows_of(table) == [{"k": 7, "v": 4}]


def test_a_table_that_was_dropped_meanwhile(store: kvstore.Store) -> None:
    store.create_table("u", SCHEMA, "k")
    writer = writer_of(store, SCHEMA)
    message = writer.job.stage(iter([ROWS]), 0, 0, None)
    store.drop_table("u")
    store.create_table("u", SCHEMA, "k")
    with pytest.raises(NoSuchTable, match="dropped since"):
        writer.commit([message])
    with pytest.raises(NoSuchTable, match="dropped since"):
        writer.job.stage(iter([ROWS]), 1, 1, None)
    writer.abort([message, None])
    assert not staged_files(store)


def test_columns_that_are_renamed_or_dropped_meanwhile(store: kvstore.Store) -> None:
    table = store.create_table("u", SCHEMA, "k", buckets=2)
    store.add_columns("u", [pa.field("n", pa.int64())])
    writers = [writer_of(store, table.schema) for _ in range(2)]
    rows = ROWS.append_column("n", ROWS.column("v"))
    messages = [writer.job.stage(iter([rows]), 0, 0, None) for writer in writers]
    store.rename_columns("u", {"v": "n", "n": "v"})
    with pytest.raises(SchemaMismatch, match="renamed or dropped since it was loaded") as refused:
        writers[0].commit(messages[:1])
    assert refused.value.where["renamed"] == {"v": "n", "n": "v"}
    store.rename_columns("u", {"v": "n", "n": "v"})
    writers[0].commit(messages[:1])  # every column has the name again that it had
    store.drop_columns("u", "n")
    for attempt in (lambda: writers[1].commit(messages[1:]), lambda: writers[1].job.stage(iter([rows]), 1, 1, None)):
        with pytest.raises(SchemaMismatch, match="renamed or dropped since it was loaded"):
            attempt()
    writers[1].abort(list(messages))
    assert not staged_files(store)
    assert [row["v"] for row in sorted(rows_of(table), key=lambda row: row["k"])] == [*range(10)]


def test_a_column_that_is_added_meanwhile_is_null(store: kvstore.Store) -> None:
    table = store.create_table("u", SCHEMA, "k", buckets=2)
    writer = writer_of(store, SCHEMA)
    messages = [writer.job.stage(iter([ROWS]), 0, 0, None)]
    store.add_columns("u", [pa.field("n", pa.int64())])
    messages.append(writer.job.stage(iter([ROWS]), 1, 1, None))
    writer.commit(messages)
    assert {row["n"] for row in rows_of(table)} == {None}
    assert table.count() == 10


def test_more_than_one_commit_holds(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = store.create_table("u", SCHEMA, "k")
    writer = writer_of(store, SCHEMA)
    message = writer.job.stage(iter([ROWS]), 0, 0, None)
    monkeypatch.setattr(staged, "ROWS_BYTES_MAX", 100)
    with pytest.raises(InvalidRequest, match="or to a table with more buckets"):
        writer.commit([message])
    assert table.count() == 0


@pytest.mark.parametrize("bytes_max", [500_000, 600, 0])
def test_a_disk_that_is_full(store: kvstore.Store, bytes_max: int) -> None:
    """In the middle, when it is finished, and at its beginning: nothing is left of the file."""
    store.create_table("u", SCHEMA, "k")
    writer = writer_of(store, SCHEMA)
    rows = 100_000 if bytes_max == 500_000 else 10
    many = pa.RecordBatch.from_arrays([pa.array(range(rows)), pa.nulls(rows, pa.int64())], schema=SCHEMA)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, limits[1]))
    try:
        with pytest.raises(StoreError, match="No space on the disk"):
            writer.job.stage(iter([many]), 0, 0, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not staged_files(store)


def test_a_link_in_the_place_of_a_file_is_not_followed(store: kvstore.Store, tmp_path: Path) -> None:
    table = store.create_table("u", SCHEMA, "k")
    writer = writer_of(store, SCHEMA)
    message = writer.job.stage(iter([ROWS]), 0, 0, None)
    Path(message.file).rename(tmp_path / "elsewhere")
    Path(message.file).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        writer.commit([message])
    assert table.count() == 0


def test_a_file_that_is_larger_than_it_was_is_not_read(store: kvstore.Store) -> None:
    table = store.create_table("u", SCHEMA, "k")
    writer = writer_of(store, SCHEMA)
    message = writer.job.stage(iter([ROWS]), 0, 0, None)
    os.truncate(message.file, 16 << 30)
    before = bytes_read()
    with pytest.raises(StoreError, match=f"has changed.* bytes={16 << 30} expected="):
        writer.commit([message])
    assert bytes_read() - before < 64 << 20
    assert table.count() == 0


def test_a_task_without_rows_leaves_no_file(store: kvstore.Store) -> None:
    store.create_table("u", SCHEMA, "k")
    message = writer_of(store, SCHEMA).job.stage(iter([ROWS.slice(0, 0)]), 4, 0, None)
    assert message == Staged(4)
    assert parts_of([message]) == {}
    assert not staged_files(store)


@pytest.mark.parametrize("zone", ["UTC", "Etc/UTC", "Europe/Berlin", "+05:30"])
def test_the_zone_of_a_session_changes_nothing(tmp_path: Path, zone: str) -> None:
    """Spark hands moments over in the zone of its session, whatever they were in the table."""
    schema = pa.schema([pa.field("k", pa.int64(), False)])
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", schema, "k")
        table.upsert([{"k": 1}, {"k": 2}])
        (batch,) = table.changelog()
    place = batch.schema.get_field_index("_commit_timestamp")
    stamped = batch.set_column(place, "_commit_timestamp", batch.column(place).cast(pa.timestamp("us", zone)))
    changes, order = changes_of(stamped)
    expected, expected_order = changes_of(batch)
    assert changes.rows.equals(expected.rows)
    assert {name: column.to_pylist() for name, column in order.items()} == {
        name: column.to_pylist() for name, column in expected_order.items()
    }
    assert {name: column.type for name, column in order.items()} == {
        name: column.type for name, column in expected_order.items()
    }


def test_a_leader_whose_place_was_taken_is_not_written_by_spark_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark commits in a process of its own, which has to ask the replicas itself."""
    monkeypatch.setattr(leadership, "LEASE_SECONDS", 0.1)
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("u", SCHEMA, "k")
        store.add_replica(str(tmp_path / "r"), "r").ship()
        writer = writer_of(store, SCHEMA)
        message = writer.job.stage(iter([ROWS]), 0, 0, None)
    kvstore.follow(str(tmp_path / "r"), tmp_path / "copy").close()
    kvstore.promote(tmp_path / "copy")
    with pytest.raises(WriterFenced, match="write there"):
        writer.commit([message])
    with kvstore.open(tmp_path / "s", read_only=True) as store:
        assert not rows_of(store.table("u"))


def test_a_checkpoint_that_was_put_back_is_refused_before_its_rows_are_lost(store: kvstore.Store) -> None:
    table = store.create_table("u", SCHEMA, "k")

    def write(number: int, key: int, query: str = "q") -> None:
        writer = stream_writer_of(store, writer="copy", takeover="true")
        rows = pa.RecordBatch.from_pylist([{"k": key, "v": number}], SCHEMA)
        writer.commit([writer.job.stage(iter([rows]), 0, number, query)], number)

    for number in range(4):
        write(number, number)
    write(3, 3)  # Spark repeats only the last one
    for number in (0, 2):
        with pytest.raises(OutOfOrderSequence, match=f"older copy of it was put back.*batch={number} last_batch=3"):
            write(number, 9)
    write(4, 4)
    write(0, 5, query="another")
    assert sorted(row["k"] for row in rows_of(table)) == [0, 1, 2, 3, 4, 5]
