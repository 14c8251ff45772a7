"""The public face of a writer: what it takes, when it sends, what it reports."""

from __future__ import annotations

import threading
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from kvstore.errors import (
    AggregateOverflow,
    DeletionDisabled,
    InvalidRequest,
    NotAcknowledged,
    OutOfOrderSequence,
    RowsRefused,
    SchemaMismatch,
    StoreFull,
    UnsupportedOperation,
    WriterFenced,
)
from kvstore.testing import LossyTarget, Network
from logformat.catalog.edits import TableOptions
from logformat.ids import Epoch, WriterId
from logformat.rows.changes import Changes
from tests.support.waiting import ends_or_waits
from tests.writer.inputs import FAST, IDENTITY, PATIENT, eventually, row, rows
from tests.writer.targets import SCHEMA, GatedConnection, MemoryTable
from writer import Identity, TableWriter

# Input


def test_rows_of_every_form_are_applied_in_order() -> None:
    table = MemoryTable()
    with TableWriter(table, IDENTITY, **PATIENT) as writer:
        writer.upsert(row(1))
        writer.delete(1)
        writer.upsert(rows(2, 3))
        writer.upsert(pa.table({"s": ["4", "5"], "k": pa.array([4, 5], pa.int8())}))
        writer.delete([2, (3,), {"k": 4}])
        writer.upsert(pa.RecordBatch.from_pylist(rows(6), SCHEMA))
        writer.delete(pa.array([5]))
        writer.upsert(tuple(rows(7)))
        writer.upsert([])
        writer.delete([])
    gone = [{"k": k, "s": "deleted"} for k in range(6)]
    expected = [row(1), gone[1], *rows(2, 3, 4, 5), *gone[2:5], row(6), gone[5], row(7)]
    assert table.rows() == expected
    assert len(table.real[0].applied) == 1


def test_the_caller_may_reuse_a_dict_at_once() -> None:
    table = MemoryTable()
    with TableWriter(table, IDENTITY) as writer:
        reused = row(0)
        for k in range(10):
            reused["k"], reused["s"] = k, f"{k}"
            writer.upsert(reused)
    assert table.rows() == rows(*range(10))


@pytest.mark.parametrize(
    "data", [7, "text", [1], [row(1), "x"], pa.table({"k": ["a"], "s": ["b"]}), pa.table({"s": ["a"]})]
)
def test_data_that_is_not_rows_is_refused_at_once(data: Any) -> None:
    table = MemoryTable()
    with TableWriter(table, IDENTITY) as writer:
        with pytest.raises(SchemaMismatch):
            writer.upsert(data)
        writer.upsert(row(1))
    assert table.rows() == [row(1)]


def test_a_table_without_deletes_refuses_a_delete_at_once() -> None:
    table = MemoryTable()
    table.options = TableOptions(delete_behavior="disable")
    with TableWriter(table, IDENTITY) as writer:
        with pytest.raises(DeletionDisabled):
            writer.delete(1)
        table.primary_key = None  # type: ignore[assignment]
        with pytest.raises(UnsupportedOperation):
            writer.delete(1)


@pytest.mark.parametrize(
    "options", [{"batch_rows": 0}, {"linger_ms": -1}, {"batch_bytes": 1.5}, {"buffer_bytes": True}, {"batch_rows": "9"}]
)
def test_invalid_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(options))):
        TableWriter(MemoryTable(), IDENTITY, **options)


# Sending


def test_a_batch_is_sent_at_its_row_limit() -> None:
    table = MemoryTable(buckets=2)
    with TableWriter(table, IDENTITY, batch_rows=10, **PATIENT) as writer:
        writer.upsert(rows(*range(50)))
        writer.flush()
        for bucket in table.real:
            assert [len(changes) for _, _, changes in bucket.applied] == [10, 10, 5]
            assert [(id, sequence) for id, sequence, _ in bucket.applied] == [(7, 0), (7, 1), (7, 2)]
    assert sorted(table.rows(), key=lambda row: row["k"]) == rows(*range(50))


def test_a_batch_is_sent_at_its_byte_limit_and_a_row_is_never_divided() -> None:
    table = MemoryTable()
    with TableWriter(table, IDENTITY, batch_bytes=1000, **PATIENT) as writer:
        writer.upsert([{"k": k, "s": "x" * size} for k, size in enumerate([400, 300, 600, 5000, 10, 10, 300, 300])])
    batches = [changes for _, _, changes in table.real[0].applied]
    assert [key for changes in batches for key in changes.rows.column("k").to_pylist()] == [*range(8)]
    assert [changes.rows.nbytes for changes in batches if changes.rows.nbytes > 1000 and len(changes) > 1] == []
    assert len(batches) < 8


class CountedClock:
    """A clock that the test sets, and how often it was looked at."""

    now = 0.0
    looks = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now


def test_a_batch_is_sent_after_its_linger_time() -> None:
    table = MemoryTable()
    clock = CountedClock()
    with TableWriter(table, IDENTITY, linger_ms=2, clock=clock) as writer:
        writer.upsert(row(1))
        assert eventually(lambda: clock.looks >= 20), "the writer looks again when its wait is over"
        assert table.rows() == []
        clock.now = 0.001
        looks = clock.looks
        assert eventually(lambda: clock.looks >= looks + 20)
        assert table.rows() == []
        clock.now = 0.002
        assert eventually(lambda: table.rows() == [row(1)])


def test_a_caller_waits_while_the_buffer_is_full() -> None:
    table = MemoryTable(connection=GatedConnection)
    writer = TableWriter(table, IDENTITY, buffer_bytes=100_000, batch_bytes=10_000)
    taken = count()
    done = 0

    def bring() -> None:
        nonlocal done
        for k in range(1000):
            writer.upsert({"k": k, "s": "x" * 1000})
            done = next(taken) + 1

    thread = threading.Thread(target=bring)
    thread.start()
    assert eventually(lambda: done >= 100)
    assert not ends_or_waits(thread)
    # In addition, one chunk of rows whose size is not known yet.
    assert 100 <= done < 700
    table.connections[0].open()
    thread.join(timeout=600)
    assert done == 1000
    writer.close()
    assert len(table.rows()) == 1000


def test_many_threads_may_share_one_writer() -> None:
    table = MemoryTable(buckets=3)
    with TableWriter(table, IDENTITY, batch_rows=50, **FAST) as writer:

        def bring(first: int) -> None:
            for k in range(first, first + 2000):
                writer.upsert(row(k))
            writer.flush()
            assert {first, first + 1999} <= {each["k"] for each in table.rows()}

        threads = [threading.Thread(target=bring, args=(10_000 * n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    keys = [each["k"] for each in table.rows()]
    assert len(keys) == len(set(keys)) == 8000
    for n in range(4):  # the rows of one thread are in order, in each bucket
        for bucket in table.real:
            of_thread = [each["k"] for each in bucket.rows() if each["k"] // 10_000 == n]
            assert of_thread == sorted(of_thread)


# Reports


def test_flush_waits_for_the_acknowledgements() -> None:
    table = MemoryTable(connection=GatedConnection)
    with TableWriter(table, IDENTITY) as writer:
        writer.upsert(row(1))
        flushed = threading.Thread(target=writer.flush)
        flushed.start()
        assert eventually(lambda: bool(table.rows()))
        assert not ends_or_waits(flushed)
        table.connections[0].open()
        flushed.join(timeout=600)
        assert not flushed.is_alive()


def test_rows_that_do_not_fit_are_reported_one_by_one_and_all_others_are_written() -> None:
    table = MemoryTable()
    with TableWriter(table, IDENTITY) as writer:
        bad = [{"k": "x", "s": ""}, {"s": "x"}, {"k": None, "s": ""}]
        for k in range(300):
            writer.upsert(row(k))
            if k % 100 == 50:
                writer.upsert(bad[k // 100])
        writer.delete("no number")
        writer.delete(5)
        with pytest.raises(RowsRefused) as raised:
            writer.flush()
        assert [each.rows for each in raised.value.refused] == [*([each] for each in bad), ["no number"]]
        assert all(isinstance(each.error, SchemaMismatch) for each in raised.value.refused)
        assert table.rows() == [*rows(*range(300)), {"k": 5, "s": "deleted"}]
        writer.flush()  # each is reported once


def refuse_odd(changes: Changes) -> None:
    if any(key % 2 for key in changes.rows.column("k").to_pylist()):
        raise AggregateOverflow("Too much.")


def test_a_refused_batch_leaves_an_empty_one_in_its_place() -> None:
    table = MemoryTable()
    table.real[0].refuse = refuse_odd
    with TableWriter(table, IDENTITY, batch_rows=2, **PATIENT) as writer:
        writer.upsert(rows(0, 2, 4, 5, 6, 8, 9, 10, 12, 14))
        with pytest.raises(RowsRefused) as raised:
            writer.flush()
        writer.upsert(row(16))
    assert [each.rows for each in raised.value.refused] == [rows(4, 5), rows(9, 10)]
    assert table.rows() == rows(0, 2, 6, 8, 12, 14, 16)
    assert [(sequence, len(changes)) for _, sequence, changes in table.real[0].applied] == [
        *((0, 2), (1, 0), (2, 2), (3, 0), (4, 2), (5, 1))
    ]


def test_unreported_refused_rows_block_the_writer_at_its_limit() -> None:
    table = MemoryTable()
    with TableWriter(table, IDENTITY, buffer_bytes=5000, **FAST) as writer:
        raised: list[RowsRefused] = []
        given = 0
        for _ in range(1500):
            try:
                writer.upsert({"k": None, "s": "x"})
                given += 1
            except RowsRefused as error:
                raised.append(error)
        assert raised
        with pytest.raises(RowsRefused) as last:
            writer.flush()
        assert sum(len(each.changes) for error in [*raised, last.value] for each in error.refused) == given


def test_a_forgotten_writer_continues_and_reports_it(caplog: pytest.LogCaptureFixture) -> None:
    table = MemoryTable()
    ids = count(100)
    with TableWriter(table, IDENTITY, new_id=lambda: next(ids)) as writer:
        writer.upsert(row(1))
        writer.flush()
        table.real[0].model.sent.clear()
        writer.upsert(row(2))
        writer.flush()
        assert [(restart.before, restart.after) for restart in writer.restarts] == [(7, 100)]
    assert [(id, sequence) for id, sequence, _ in table.real[0].applied] == [(7, 0), (100, 0)]
    assert "has forgotten writer 7" in caplog.text


@pytest.mark.parametrize("identity", [IDENTITY, Identity(WriterId(7), Epoch(1), "loader")])
def test_a_forgotten_writer_that_can_not_continue_keeps_its_rows(identity: Identity) -> None:
    table = MemoryTable()
    writer = TableWriter(table, identity, **FAST)
    writer.upsert(row(1))
    writer.flush()
    table.real[0].model.sent.clear()
    writer.upsert(row(2))
    with pytest.raises(OutOfOrderSequence if identity.name else UnsupportedOperation):
        writer.flush()
    assert [changes.rows.to_pylist() for changes in writer.unacknowledged] == [[row(2)]]


def test_a_named_writer_continues_after_its_last_sequence() -> None:
    table = MemoryTable(buckets=2)
    for epoch in (1, 2):
        with TableWriter(table, Identity(WriterId(9), Epoch(epoch), "loader")) as writer:
            writer.upsert(rows(0, 1))
    for bucket in table.real:
        assert [sequence for _, sequence, _ in bucket.applied] == [0, 1]
        assert bucket.begun == [9, 9]


def test_an_error_that_ends_the_writer_reaches_every_caller_and_all_rows_are_kept_in_order() -> None:
    table = MemoryTable()

    def fence(changes: Changes) -> None:
        if 2 in changes.rows.column("k").to_pylist():
            raise WriterFenced("Over.")

    table.real[0].refuse = fence
    writer = TableWriter(table, IDENTITY, batch_rows=1, **PATIENT)
    writer.upsert(row(1))
    writer.flush()
    writer.upsert(rows(2, 3))
    with pytest.raises(WriterFenced):
        writer.flush()
    kept = [each for changes in writer.unacknowledged for each in changes.rows.to_pylist()]
    assert kept == rows(2, 3)
    for use in (writer.flush, writer.close, lambda: writer.upsert(row(4)), lambda: writer.delete(4)):
        with pytest.raises(WriterFenced):
            use()
    writer.close()
    assert table.rows() == [row(1)]


def test_an_unanswered_writer_reports_the_outcome_as_unknown() -> None:
    table = MemoryTable(connection=LossyTarget)
    writer = TableWriter(table, IDENTITY, request_timeout_ms=10, delivery_timeout_ms=100, **FAST)
    writer.upsert(row(1))
    with pytest.raises(NotAcknowledged, match="unknown"):
        writer.flush()
    assert [changes.rows.to_pylist() for changes in writer.unacknowledged] == [[row(1)]]


def test_an_unavailable_bucket_is_retried() -> None:
    table = MemoryTable()
    refusals = iter([True, True, True, False])

    def refuse(_: Changes) -> None:
        if next(refusals, False):
            raise StoreFull("Full.")

    table.real[0].refuse = refuse
    with TableWriter(table, IDENTITY, **FAST) as writer:
        writer.upsert(row(1))
    assert table.rows() == [row(1)]


@pytest.mark.parametrize("seed", range(2))
def test_a_lossy_connection_writes_every_row_once_and_in_order(seed: int) -> None:
    network = Network()
    table = MemoryTable(buckets=2, connection=lambda bucket: LossyTarget(bucket, network))
    for bucket in table.real:
        bucket.refuse = lambda changes: refuse_odd(changes) if len(changes) == 1 else None
    with (
        network.carried(Random(seed)),
        TableWriter(table, IDENTITY, batch_rows=10, request_timeout_ms=30, **FAST) as writer,
    ):
        for k in range(300):
            writer.upsert(row(k))
            if k % 100 == 0:
                writer.flush()
    for bucket in table.real:
        keys = [each["k"] for each in bucket.rows()]
        assert keys == sorted(set(keys))
        assert [sequence for _, sequence, _ in bucket.applied] == list(range(len(bucket.applied)))
    assert len(table.rows()) >= 290
    assert writer.restarts == []
