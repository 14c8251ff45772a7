"""How a writer ends: closed, forgotten, interrupted, forked, or by an error of its own."""

from __future__ import annotations

import datetime
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from kvstore.errors import ForkedStore, NotAcknowledged, RowsRefused, StoreClosed, StoreLocked
from kvstore.testing import LossyTarget
from tests.support.waiting import SECONDS_MAX, ends_or_waits
from tests.writer.inputs import FAST, IDENTITY, PATIENT, eventually, row, rows, threads
from tests.writer.targets import SCHEMA, GatedConnection, MemoryBucket, MemoryTable
from writer import TableWriter
from writer.accumulator import Accumulator
from writer.intake import Intake


def test_leaving_on_an_exception_reports_unacknowledged_rows() -> None:
    table = MemoryTable()
    with pytest.raises(KeyError) as raised, TableWriter(table, IDENTITY, **PATIENT) as writer:  # noqa: PT012
        writer.upsert(row(1))
        writer.flush()
        writer.upsert(rows(2, 3))
        writer.upsert({"k": "x"})
        raise KeyError("mine")
    first, second = raised.value.__notes__
    assert "2 rows not acknowledged" in first
    assert "1 rows were refused" in second
    assert [each for changes in writer.unacknowledged for each in changes.rows.to_pylist()] == rows(2, 3)
    assert table.rows() == [row(1)]


def test_leaving_on_an_exception_waits_for_answers_to_sent_batches() -> None:
    table = MemoryTable(connection=GatedConnection)
    with pytest.raises(KeyError) as raised, TableWriter(table, IDENTITY, batch_rows=1, **PATIENT) as writer:  # noqa: PT012
        writer.upsert(rows(*range(7)))
        assert eventually(lambda: len(table.rows()) == 5)
        once_the_test_waits(table.connections[0].open)
        raise KeyError("mine")
    assert "2 rows not acknowledged" in raised.value.__notes__[0]
    assert [each for changes in writer.unacknowledged for each in changes.rows.to_pylist()] == rows(5, 6)
    assert table.rows() == rows(*range(5))


def once_the_test_waits(call: Callable[[], object]) -> None:
    """Call something once the test's own thread waits, which by then is leaving its writer."""

    def wait() -> None:
        ends_or_waits(threading.main_thread(), seconds=SECONDS_MAX)
        call()

    threading.Thread(target=wait, daemon=True).start()


class LockedBucket(MemoryBucket):
    """A bucket that is unavailable, and answers so when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.may_answer = threading.Event()

    def submit(self, *_: Any, **__: Any) -> Any:
        self.asked += 1
        assert self.may_answer.wait(SECONDS_MAX)
        raise StoreLocked("Locked.")


def test_no_batch_is_sent_after_a_postponed_one() -> None:
    bucket = LockedBucket()
    bucket.may_answer.set()
    writer = TableWriter(MemoryTable(connection=lambda _: bucket), IDENTITY, batch_rows=1, delivery_timeout_ms=5)
    writer.upsert(rows(*range(5)))
    with pytest.raises(NotAcknowledged, match="Locked"):
        writer.flush()
    assert bucket.asked == 1
    assert [each for changes in writer.unacknowledged for each in changes.rows.to_pylist()] == rows(*range(5))


def test_leaving_on_an_exception_waits_for_at_most_one_call_of_a_bucket() -> None:
    buckets = [LockedBucket() for _ in range(8)]
    connections = iter(buckets)
    table = MemoryTable(buckets=8, connection=lambda _: next(connections))
    with pytest.raises(KeyError), TableWriter(table, IDENTITY, batch_rows=1, **PATIENT) as writer:  # noqa: PT012
        writer.upsert(pa.Table.from_pylist(rows(*range(40)), SCHEMA))
        assert eventually(lambda: any(bucket.asked for bucket in buckets))
        once_the_test_waits(lambda: [bucket.may_answer.set() for bucket in buckets])
        raise KeyError("mine")
    assert sum(bucket.asked for bucket in buckets) == 1
    kept = [each["k"] for changes in writer.unacknowledged for each in changes.rows.to_pylist()]
    assert sorted(kept) == [*range(40)]


def test_an_unclosed_writer_writes_its_rows_and_warns() -> None:
    table = MemoryTable()
    before = threads()
    writer = TableWriter(table, IDENTITY, **PATIENT)
    writer.upsert(row(1))
    with pytest.warns(ResourceWarning, match="not closed"):
        del writer
    assert eventually(lambda: threads() == before)
    assert table.rows() == [row(1)]


def test_an_unclosed_writer_without_open_rows_does_not_warn() -> None:
    before = threads()
    writer = TableWriter(MemoryTable(), IDENTITY)
    writer.upsert(row(1))
    writer.flush()
    del writer
    assert eventually(lambda: threads() == before)


def test_an_unclosed_writer_logs_rows_that_it_can_not_write(caplog: pytest.LogCaptureFixture) -> None:
    before = threads()
    writer = TableWriter(MemoryTable(connection=LossyTarget), IDENTITY, delivery_timeout_ms=20, **PATIENT)
    writer.upsert(rows(1, 2))
    writer.upsert({"k": "x", "s": ""})
    with pytest.warns(ResourceWarning, match="not closed"):
        del writer
    assert eventually(lambda: threads() == before)
    assert "ended with 2 rows not acknowledged" in caplog.text
    assert "refused, of a writer that was not closed: 1" in caplog.text


def test_a_closed_writer_takes_nothing_and_may_be_closed_again() -> None:
    writer = TableWriter(MemoryTable(), IDENTITY)
    writer.close()
    writer.close()
    for use in (writer.flush, lambda: writer.upsert(row(1)), lambda: writer.delete(1), lambda: writer.upsert(rows(1))):
        with pytest.raises(StoreClosed, match="The writer was closed"):
            use()


def test_close_reports_refused_rows_and_ends_the_writer() -> None:
    table = MemoryTable()
    writer = TableWriter(table, IDENTITY)
    writer.upsert({"k": "x", "s": ""})
    writer.upsert(row(1))
    with pytest.raises(RowsRefused):
        writer.close()
    writer.close()
    assert table.rows() == [row(1)]
    with pytest.raises(StoreClosed):
        writer.upsert(row(2))


def test_an_interrupted_flush_leaves_the_writer_unchanged() -> None:
    table = MemoryTable(connection=GatedConnection)
    writer = TableWriter(table, IDENTITY)
    writer.upsert(row(1))
    main = threading.get_ident()
    # A shell makes background processes ignore this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012
            once_the_test_waits(lambda: signal.pthread_kill(main, signal.SIGINT))
            writer.flush()
    finally:
        signal.signal(signal.SIGINT, before)
    writer.upsert(row(2))
    table.connections[0].open()
    writer.close()
    assert table.rows() == rows(1, 2)


def test_a_forked_child_can_not_use_the_writer_and_does_not_hang() -> None:
    table = MemoryTable()
    writer = TableWriter(table, IDENTITY, **PATIENT)
    writer.upsert(row(1))
    child = os.fork()
    if child == 0:  # pragma: no cover
        status = 1
        try:
            for use in (writer.flush, lambda: writer.upsert(row(2)), lambda: writer.delete(1)):
                with pytest.raises(ForkedStore):
                    use()
            writer.close()
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(ended) == 0
    writer.close()
    assert table.rows() == [row(1)]


class BrokenBucket(MemoryBucket):
    def submit(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no error of a store")


class NoZone(datetime.tzinfo):
    def utcoffset(self, _: object) -> datetime.timedelta:
        raise RuntimeError("no zone data")


def test_errors_from_the_code_of_a_value_are_about_its_row() -> None:
    table = MemoryTable()
    table.schema = pa.schema([SCHEMA.field("k"), pa.field("s", pa.timestamp("us", "UTC"))])
    now = datetime.datetime.now(datetime.UTC)
    bad = {"k": 3, "s": now.replace(tzinfo=NoZone())}
    with TableWriter(table, IDENTITY, **PATIENT) as writer:
        for k in range(6):
            writer.upsert(bad if k == 3 else {"k": k, "s": now})
        with pytest.raises(RowsRefused, match="no zone data") as raised:
            writer.flush()
    assert [each.changes for each in raised.value.refused] == [[bad]]
    assert [each["k"] for each in table.rows()] == [0, 1, 2, 4, 5]


def test_when_memory_runs_out_no_caller_hangs_and_no_row_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_type))
    convert = Intake.changes

    def short(intake: Intake, items: list[Any]) -> Any:
        if len(items) > 1 or (isinstance(items[0], dict) and items[0]["k"] == 3):
            raise MemoryError
        return convert(intake, items)

    monkeypatch.setattr(Intake, "changes", short)
    writer = TableWriter(MemoryTable(), IDENTITY, **PATIENT)
    for k in range(6):
        writer.upsert(row(k))
    with pytest.raises(NotAcknowledged) as raised:
        writer.flush()
    assert isinstance(raised.value.__cause__, MemoryError)
    assert [each for changes in writer.unacknowledged for each in changes.rows.to_pylist()] == rows(0, 1, 2, 4, 5)
    assert [each.rows for each in writer.refused] == [rows(3)]
    assert shown == [MemoryError]


def test_no_caller_hangs_even_if_the_remaining_rows_can_not_be_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Accumulator, "left_over", fail)
    writer = TableWriter(MemoryTable(connection=lambda _: BrokenBucket()), IDENTITY, **FAST)
    writer.upsert(row(1))
    with pytest.raises(NotAcknowledged):
        writer.flush()


def test_no_caller_hangs_whatever_ends_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_type))
    table = MemoryTable(connection=lambda _: BrokenBucket())
    writer = TableWriter(table, IDENTITY, **FAST)
    writer.upsert(row(1))
    with pytest.raises(NotAcknowledged) as raised:
        writer.flush()
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert [changes.rows.to_pylist() for changes in writer.unacknowledged] == [[row(1)]]
    with pytest.raises(NotAcknowledged):
        writer.close()
    assert shown == [RuntimeError]
