"""When an edit is durable: at once, or if its loss does no harm with the next one, or some time later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import get_args
from unittest import mock
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.disk.environment import Environment, open_environment
from kvstore.disk.files import Files
from kvstore.errors import InvalidRequest, StoreFull
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from kvstore.meta.state import CatalogState
from kvstore.options import JournalSync
from logformat import paths
from logformat.catalog.edits import AllocateWriter, CreateTable, DropConsumer, SetConsumer, TableOptions
from logformat.ids import Offset, TableId
from tests.support.clocks import SetClock
from tests.support.edits import columns
from tests.support.examples import slow
from tests.support.tables import rows_of
from tests.support.waiting import wait_until

STORE = UUID(int=9)
SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
CREATE = CreateTable(
    table_id=TableId(1), name="t", columns=columns(2), primary_key=["c0"], buckets=1, options=TableOptions()
)


class Pair:
    """Two processes' journals of one catalog, as far as one process can have them."""

    def __init__(self, path: Path, sync: JournalSync, wait_ms: int = 2**31 - 1) -> None:
        path.mkdir()
        (path / "meta").mkdir()
        self.journal = Journal(
            path, Files(), SetClock(), STORE, create=True, sync=sync, wait_ms=wait_ms, leadership=CatalogLeadership()
        )
        self.other = Journal(path, Files(), SetClock(), STORE, leadership=CatalogLeadership())
        self.journal.append(lambda _: CREATE)
        self.consumer_at(0, may_wait=False)

    def consumer_at(self, offset: int, *, may_wait: bool = True) -> CatalogState:
        edit = SetConsumer(table_id=TableId(1), name="c", offsets=[Offset(offset)])
        return self.journal.append(lambda _: edit, may_wait=may_wait)

    def close(self) -> None:
        self.journal.close()
        self.other.close()


@pytest.fixture(params=get_args(JournalSync))
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path / "s", request.param)
    yield pair
    pair.close()


def place_of(state: CatalogState) -> tuple[int, ...] | None:
    named = state.consumers_of(TableId(1)).named
    return named["c"].offsets if "c" in named else None


def test_an_edit_is_seen_at_once_here_and_elsewhere_with_the_next_at_the_latest(pair: Pair) -> None:
    pair.consumer_at(1, may_wait=False)
    assert place_of(pair.other.state()) == (1,)
    assert place_of(pair.consumer_at(2)) == (2,)
    assert place_of(pair.journal.state()) == (2,)
    pair.other.append(lambda state: AllocateWriter(writer_id=state.next_writer_id))
    assert place_of(pair.journal.state()) == (2,)
    pair.journal.append(lambda state: AllocateWriter(writer_id=state.next_writer_id))
    assert place_of(pair.other.state()) == (2,)
    assert pair.other.state().is_same(pair.journal.state())


@pytest.mark.parametrize("how", ["flush", "still", "close"])
def test_what_waits_is_added_before_anything_stands_on_it(pair: Pair, how: str) -> None:
    pair.consumer_at(5)
    if how == "flush":
        pair.journal.flush()
    elif how == "close":
        pair.journal.close()
    else:
        with mock.patch.object(Environment, "sync", autospec=True, side_effect=Environment.sync) as sync:
            with pair.journal.still() as state:
                assert place_of(state) == (5,)
            assert sync.called
    assert place_of(pair.other.state()) == (5,)


def synced(sync: JournalSync, path: Path, may_wait: bool) -> tuple[bool, bool]:
    """Whether an edit was committed at once, and whether it was synced in whatever way."""
    pair = Pair(path, sync)
    environment = open_environment(path / paths.JOURNAL, Files(), map_bytes=1 << 30)  # shared with the journal
    real = environment.last_committed()
    with mock.patch.object(Environment, "sync", autospec=True, side_effect=Environment.sync) as done:
        pair.consumer_at(1, may_wait=may_wait)
        committed = environment.last_committed() > real
        found = committed, committed and (sync == "SYNC" or done.called)
    environment.close()
    pair.close()
    return found


@pytest.mark.parametrize(
    ("sync", "may_wait", "expected"),
    [
        ("SYNC", False, (True, True)),
        ("SYNC", True, (True, True)),
        ("WRITE_NO_SYNC", False, (True, True)),
        ("WRITE_NO_SYNC", True, (True, False)),
        ("NO_SYNC", False, (True, True)),
        ("NO_SYNC", True, (False, False)),
    ],
)
def test_what_a_policy_leaves_out(
    tmp_path: Path, sync: JournalSync, may_wait: bool, expected: tuple[bool, bool]
) -> None:
    assert synced(sync, tmp_path / "s", may_wait) == expected


def test_what_waits_is_added_after_a_while(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "s", "NO_SYNC", wait_ms=30)
    for offset in range(3):
        pair.consumer_at(offset)
    wait_until(lambda: place_of(pair.other.state()) == (2,))
    pair.close()
    assert not [each for each in threading.enumerate() if isinstance(each, threading.Timer) and each.is_alive()]


@slow(60)
@given(st.lists(st.tuples(st.sampled_from(["on", "now", "other", "writer", "flush"]), st.integers(0, 9)), max_size=30))
def test_in_whatever_order_both_come_to_the_same(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """What waits is added unless another process has moved the consumer beyond it, or back and on, meanwhile."""
    pair = Pair(tmp_path_factory.mktemp("sync") / "s", "NO_SYNC")
    known, waiting = 0, list[int]()

    def shown() -> int:
        return max([known, *waiting])

    for what, offset in steps:
        if what == "on":
            waiting.append(shown() + offset)
            pair.consumer_at(waiting[-1])
        elif what == "now":
            known, waiting = offset, []
            pair.consumer_at(offset, may_wait=False)
        elif what == "other":
            edit = SetConsumer(table_id=TableId(1), name="c", offsets=[Offset(offset)])
            pair.other.append(lambda _, edit=edit: edit)  # type: ignore[misc]
            known = offset
        elif what == "writer":
            pair.other.append(lambda state: AllocateWriter(writer_id=state.next_writer_id))
        else:
            pair.journal.flush()
            known, waiting = shown(), []
        assert place_of(pair.journal.state()) == (shown(),)
    pair.journal.flush()
    assert pair.journal.state().is_same(pair.other.state())
    assert place_of(pair.other.state()) == (shown(),)
    pair.close()


def test_a_dropped_consumer_stays_dropped(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "s", "NO_SYNC")
    pair.consumer_at(4)
    pair.other.append(lambda _: DropConsumer(table_id=TableId(1), name="c"))
    pair.journal.flush()
    assert place_of(pair.journal.state()) is None
    assert place_of(pair.other.state()) is None
    pair.close()


def test_what_can_not_be_added_waits_on(tmp_path: Path) -> None:
    pair = Pair(tmp_path / "s", "NO_SYNC")
    pair.consumer_at(4)
    with mock.patch.object(Environment, "begin_write", side_effect=StoreFull("no")), pytest.raises(StoreFull):
        pair.journal.flush()
    assert place_of(pair.journal.state()) == (4,)
    pair.journal.flush()
    assert place_of(pair.other.state()) == (4,)
    pair.close()


@pytest.mark.parametrize("sync", get_args(JournalSync))
def test_commits_and_consumers_of_a_store(tmp_path: Path, sync: JournalSync) -> None:
    with kvstore.open(tmp_path / "s", journal_sync=sync) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=3)
        for epoch in range(4):
            rows = [("upsert", {"k": 3 * epoch + n, "v": epoch}) for n in range(3)]
            table.apply_epoch(kvstore.Changes.of(rows, SCHEMA), "w", epoch)
            store.consumer("c").commit("t", {bucket: end for bucket, (_, end) in table.offsets().items()})
        assert store.consumers == {"c": {"t": {bucket: end for bucket, (_, end) in table.offsets().items()}}}
        store.flush()
        assert not store.runtime.catalog().writers_of(TableId(1)).commits
        done = store.checkpoint()
        measured = store.metrics()["kvstore_checkpoint_seconds"]
        assert (measured["count"], 0 < measured["sum"] <= 1.1 * done.seconds) == (1, True)
        expected, consumers = rows_of(table), store.consumers
        assert len(expected) == 12
    with kvstore.open(tmp_path / "s") as store:
        assert (rows_of(store.table("t")), store.consumers) == (expected, consumers)
        assert store.health().images[0].txid == done.txid
        assert store.check()


def test_a_consumer_that_goes_back_is_known_at_once(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s", journal_sync="NO_SYNC", sync_interval_ms=2**31 - 1) as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": k, "v": k} for k in range(9)])
        core = store.runtime
        other = Journal(core.path, Files(), SetClock(), core.store_id, leadership=CatalogLeadership())
        seen = []
        for offset in (3, 5, 6, 4, 7, 7):
            store.consumer("c").commit("t", {0: offset})
            seen.append(place_of(other.state()))
            assert store.consumers == {"c": {"t": {0: offset}}}
        assert seen == [(3,), (3,), (3,), (4,), (4,), (4,)]
        store.drop_consumer("c")
        assert store.consumers == {}
        store.consumer("c").commit("t", {0: 8})
        assert place_of(other.state()) == (8,)
        other.close()


def test_there_are_no_other_policies(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="journal_sync must be one of SYNC, WRITE_NO_SYNC, NO_SYNC"):
        kvstore.open(tmp_path / "s", journal_sync="sync")
