"""Epochs: each is applied to all buckets once, or to none; the caller that counts them may repeat them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.disk.files import Files
from kvstore.errors import (
    AggregateOverflow,
    CorruptData,
    InvalidRequest,
    LogFailed,
    OutOfOrderSequence,
    StoreFull,
    WriterFenced,
)
from kvstore.options import StoreOptions
from kvstore.process.calls import Call
from kvstore.store.store import Store
from logformat.log.batch import decode_header
from tests.conftest import OpenStore
from tests.support.commits import refuse_ends_of_commits
from tests.support.disks import FailingDisk, failing
from tests.support.examples import slow
from tests.support.tables import changes_to, rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int8(), False)])
BUCKETS = 3


def table_of(store: kvstore.Store, **options: Any) -> kvstore.Table:
    return store.create_table("t", SCHEMA, primary_key="k", buckets=BUCKETS, **options)


changes = partial(changes_to, SCHEMA)


def sequences(table: kvstore.Table, writer_id: int) -> list[list[int]]:
    """For each bucket, the sequences of a writer's batches in its log."""
    return [
        [
            header.batch_sequence
            for header in (decode_header(found.data) for found in table.bucket(bucket).log.batches(0, end))
            if header.writer_id == writer_id
        ]
        for bucket, (_, end) in table.offsets().items()
    ]


def values(table: kvstore.Table) -> dict[int, int]:
    return {row["k"]: row["v"] for row in rows_of(table)}


VALUES = st.dictionaries(st.integers(0, 9), st.one_of(st.none(), st.integers(0, 9)), max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("next"), VALUES),
        st.tuples(st.just("again"), st.integers(1, 7)),
        st.tuples(st.just("gap"), st.integers(1, 3)),
        st.tuples(st.just("plain"), VALUES),
        st.tuples(st.just("refused"), VALUES),
        st.tuples(st.just("take over"), VALUES),
        st.just(("reopen", None)),
    ),
    max_size=14,
)


@slow(40)
@given(first=st.integers(0, 2**40), steps=STEPS)
def test_epochs_are_applied_once_and_in_order(first: int, steps: list[tuple[str, Any]], tmp_path_factory: Any) -> None:
    path = tmp_path_factory.mktemp("s") / "store"
    options = {"merge_engine": kvstore.Aggregate({"v": "sum"}), "delete_behavior": "allow"}
    store = kvstore.open(path)
    table = table_of(store, **options)
    model: dict[int, int] = {}
    answers: list[kvstore.WriteResult] = []
    sent: list[dict[int, int | None]] = []
    run = 0

    def apply(operations: dict[int, int | None]) -> None:
        for k, v in operations.items():
            if v is None:
                model.pop(k, None)
            else:
                model[k] = model.get(k, 0) + v

    for word, argument in steps:
        epoch = first + len(answers)
        if word == "next" and all(value < 100 for value in model.values()):
            result = table.apply_epoch(changes(argument), "w", epoch, str(run))
            assert set(result.by_bucket) == set(range(BUCKETS))
            assert not any(each.duplicated for each in result.by_bucket.values())
            assert not result.duplicated
            apply(argument)
            answers.append(result)
            sent.append(argument)
        elif word == "again" and argument <= len(answers):
            if argument <= 5:
                result = table.apply_epoch(changes(sent[-argument]), "w", epoch - argument, str(run))
                before = answers[-argument]
                assert result.duplicated
                for bucket, each in result.by_bucket.items():
                    assert each.duplicated
                    assert each.first_offset == before.by_bucket[bucket].first_offset
                    assert each.last_offset == before.by_bucket[bucket].last_offset
            else:
                with pytest.raises(OutOfOrderSequence):
                    table.apply_epoch(changes(sent[-argument]), "w", epoch - argument, str(run))
        elif word == "gap" and answers:
            with pytest.raises(OutOfOrderSequence, match=f"last_epoch={epoch - 1}"):
                table.apply_epoch(changes({1: 1}), "w", epoch + argument, str(run))
            with pytest.raises(WriterFenced, match="takeover"):
                table.apply_epoch(changes({1: 1}), "w", epoch, "another")
        elif word == "plain" and all(value < 100 for value in model.values()):
            table.apply(changes(argument))
            apply(argument)
        elif word == "refused":
            before_offsets = table.offsets()
            with pytest.raises(AggregateOverflow):
                table.apply_epoch(
                    kvstore.Changes.of(
                        [*(("upsert", {"k": k, "v": 1}) for k in range(20)), *[("upsert", {"k": 1, "v": 127})] * 2],
                        SCHEMA,
                    ),
                    "w",
                    epoch,
                    str(run),
                )
            assert table.offsets() == before_offsets
        elif word == "take over" and answers and all(value < 100 for value in model.values()):
            run += 1
            table.apply_epoch(changes(argument), "w", 0, str(run), takeover=True)
            apply(argument)
            with pytest.raises(WriterFenced):
                table.apply_epoch(changes({}), "w", epoch, str(run - 1))
            answers, sent, first = [table.apply_epoch(changes(argument), "w", 0, str(run))], [argument], 0
        elif word == "reopen":
            store.close()
            store = kvstore.open(path)
            table = store.table("t")
        assert values(table) == model
    if answers:
        assert sequences(table, table.writers["w"].writer_id) == [list(range(len(answers)))] * BUCKETS
    assert store.check().ok
    store.close()
    assert not list((path / "staging").glob("*"))


def test_every_bucket_gets_a_batch_even_if_it_is_empty(store: kvstore.Store) -> None:
    table = table_of(store)
    for epoch in range(3):
        result = table.apply_epoch(changes({1: epoch}), "w", epoch)
        empty = [each for bucket, each in result.by_bucket.items() if bucket not in table.buckets_of([1])]
        assert [(each.first_offset, each.last_offset) for each in empty] == [(epoch, epoch)] * (BUCKETS - 1)


def test_one_bucket_needs_no_staging_and_gives_the_same_answers(store: kvstore.Store) -> None:
    table = store.create_table("one", SCHEMA, primary_key="k")
    first = table.apply_epoch(changes({1: 1, 2: 2}), "w", 7, "r")
    again = table.apply_epoch(changes({1: 1, 2: 2}), "w", 7, "r")
    assert (again.first_offset, again.last_offset, again.duplicated) == (first.first_offset, first.last_offset, True)
    assert not (store.path / "staging").exists()


def test_a_log_table_takes_epochs(store: kvstore.Store) -> None:
    table = store.create_table("log", SCHEMA, buckets=2)
    for epoch in (0, 0, 1):
        table.apply_epoch(changes({1: 1, 2: 2}), "w", epoch)
    assert table.count() == 4


def test_a_name_sends_epochs_or_batches_and_starts_over_after_a_drop(store: kvstore.Store) -> None:
    table = table_of(store)
    other = store.create_table("other", SCHEMA, primary_key="k")
    table.apply_epoch(changes({1: 1}), "w", 5, "r")
    other.apply_epoch(changes({1: 1}), "w", 0)  # a name belongs to a table
    old = table.writers["w"]
    assert (old.kind, old.run, old.first_epoch) == ("epochs", "r", 5)
    store.drop_writer("w")
    assert table.writers == other.writers == {}
    with pytest.raises(WriterFenced, match="dropped"):
        table.bucket(0).apply(changes({}), old.writer_id, 1, old.epoch)
    table.apply_epoch(changes({1: 1}), "w", 3, "s")
    assert table.writers["w"].writer_id > old.writer_id
    with pytest.raises(InvalidRequest, match=r"Table\.writers"):
        store.drop_writer("missing")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"writer": ""}, "writer"),
        ({"writer": 7}, "writer"),
        ({"epoch": -1}, "epoch"),
        ({"epoch": 1.5}, "epoch"),
        ({"run": 3}, "run"),
        ({"takeover": "yes"}, "takeover"),
        ({"changes": [{"k": 1, "v": 1}]}, "Changes"),
    ],
)
def test_wrong_arguments_write_nothing(store: kvstore.Store, arguments: dict[str, Any], said: str) -> None:
    table = table_of(store)
    with pytest.raises(InvalidRequest, match=said):
        table.apply_epoch(**({"changes": changes({1: 1}), "writer": "w", "epoch": 0} | arguments))
    assert table.writers == {}
    assert table.offsets() == dict.fromkeys(range(BUCKETS), (0, 0))


def test_the_first_epoch_may_have_any_number(store: kvstore.Store) -> None:
    table = table_of(store, merge_engine=kvstore.Aggregate({"v": "sum"}))
    overflow = kvstore.Changes.of([("upsert", {"k": 1, "v": 127})] * 2, SCHEMA)
    with pytest.raises(AggregateOverflow):
        table.apply_epoch(overflow, "w", 3)
    table.apply_epoch(changes({1: 1}), "w", 9)
    with pytest.raises(OutOfOrderSequence, match="first_epoch=9"):
        table.apply_epoch(changes({1: 1}), "w", 8)


def test_a_full_disk_before_the_intent_leaves_nothing(open_store: OpenStore, store_path: Path) -> None:
    open_store().close()
    disk = FailingDisk()
    with Store(store_path, StoreOptions(), files=disk) as store:
        table = table_of(store)
        table.upsert([{"k": k, "v": 1} for k in range(9)])
        disk.fail = failing("write", errno.ENOSPC)
        with pytest.raises(StoreFull):
            table.apply_epoch(changes(dict.fromkeys(range(9), 2)), "w", 0)
        disk.fail = lambda _: 0
        assert values(table) == dict.fromkeys(range(9), 1)
        table.apply_epoch(changes(dict.fromkeys(range(9), 3)), "w", 0)
        assert values(table) == dict.fromkeys(range(9), 3)


@pytest.mark.parametrize("refused", range(1, 2 * BUCKETS))
def test_a_commit_takes_effect_whatever_fails_after_the_intent(
    open_store: OpenStore, store_path: Path, refused: int
) -> None:
    open_store().close()
    disk = FailingDisk()
    with Store(store_path, StoreOptions(), files=disk) as store:
        table = table_of(store)
        table.upsert([{"k": k, "v": 1} for k in range(9)])
        journal = store.runtime.journal
        append, calls = journal.append, []

        def then_fail(decide: Any, **how: Any) -> Any:
            state = append(decide, **how)
            if state.writers_of(table.identity[1]).commits:
                calls.append(0)
                seen: list[object] = []
                disk.fail = lambda call: errno.ENOSPC if seen.append(call) or len(seen) % refused == 0 else 0
            return state

        journal.append = then_fail
        committed = []
        try:
            table.apply_epoch(changes(dict.fromkeys(range(9), 2)), "w", 0)
        except (StoreFull, LogFailed, CorruptData) as error:
            committed.append(error.where["committed"])
        assert committed == [True] or refused > 1
        disk.fail = lambda _: 0
        journal.append = append
        assert calls
    with kvstore.open(store_path) as store:
        table = store.table("t")
        assert values(table) == dict.fromkeys(range(9), 2)
        assert all(r.duplicated for r in table.apply_epoch(changes({1: 5}), "w", 0).by_bucket.values())
        table.apply_epoch(changes({1: 5}), "w", 1)
    assert not list((store_path / "staging").glob("*"))


class Unsynced(Files):
    """The real disk.

    Attributes:
        segments: Segments of logs with bytes that were written and not synced.
    """

    def __init__(self) -> None:
        self.segments: set[str] = set()

    def write(self, descriptor: int, pieces: Sequence[memoryview], position: int) -> None:
        super().write(descriptor, pieces, position)
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.endswith(".log"):
            self.segments.add(path)

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self.segments.discard(os.readlink(f"/proc/self/fd/{descriptor}"))


def test_data_that_an_epoch_was_checked_against_is_durable_before_it_takes_effect(store_path: Path) -> None:
    """Otherwise a power cut could leave rows that it can't be applied to."""
    disk = Unsynced()
    options = StoreOptions(durability="none", commit_wait_ms=60_000, commit_idle_ms=60_000)
    with Store(store_path, options, files=disk) as store:
        table = table_of(store)
        table.upsert([{"k": k, "v": 1} for k in range(9)])
        journal = store.runtime.journal
        append, seen = journal.append, []

        def look(decide: Any, **how: Any) -> Any:
            seen.append(len(disk.segments))
            return append(decide, **how)

        journal.append = look
        table.apply_epoch(changes(dict.fromkeys(range(9), 2)), "w", 0)
        journal.append = append
        opened, begun = seen
        assert (opened, begun) == (BUCKETS, 0)


def test_a_committed_epoch_is_answered_whatever_fails_afterwards(
    store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FailingDisk()
    with Store(store_path, StoreOptions(), files=disk) as store:
        table = table_of(store)
        refuse_ends_of_commits(monkeypatch)
        result = table.apply_epoch(changes(dict.fromkeys(range(9), 2)), "w", 0)
        assert not any(each.duplicated for each in result.by_bucket.values())
        assert len(list((store_path / "staging").glob("*"))) == 1
        monkeypatch.undo()
        table.apply_epoch(changes({}), "w", 1)
        assert not list((store_path / "staging").glob("*"))


def test_an_interrupt_of_an_epoch_ends_only_the_wait_for_it(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_of(store)
    waits = []

    def interrupted(self: Call[Any]) -> None:
        wait(self)
        if not waits:
            waits.append(self)
            raise KeyboardInterrupt

    wait = Call.wait
    monkeypatch.setattr(Call, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        table.apply_epoch(changes(dict.fromkeys(range(9), 7)), "w", 0)
    assert values(table) == dict.fromkeys(range(9), 7)
    assert all(each.duplicated for each in table.apply_epoch(changes({}), "w", 0).by_bucket.values())


def test_an_unused_name_may_start_over_at_an_earlier_epoch(store: kvstore.Store) -> None:
    table = table_of(store, merge_engine=kvstore.Aggregate({"v": "sum"}))
    overflow = kvstore.Changes.of([("upsert", {"k": 1, "v": 127})] * 2, SCHEMA)
    with pytest.raises(AggregateOverflow):
        table.apply_epoch(overflow, "w", 5)
    table.apply_epoch(changes({1: 1}), "w", 3)
    table.apply_epoch(changes({1: 1}), "w", 4)
    assert values(table) == {1: 2}


def test_staged_files_are_removed_with_their_table(store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        table = table_of(store)
        with pytest.MonkeyPatch.context() as patch:
            refuse_ends_of_commits(patch)
            table.apply_epoch(changes({1: 1}), "w", 0)
        assert len(list((store_path / "staging").glob("*"))) == 1
        store.drop_table("t")
        assert not list((store_path / "staging").glob("*"))


def test_a_caller_can_ask_whether_an_epoch_was_applied(store: kvstore.Store) -> None:
    table = table_of(store)
    assert not table.is_applied("w", 5)
    table.apply_epoch(changes({1: 1}), "w", 5)
    assert [table.is_applied("w", epoch) for epoch in (4, 5, 6)] == [False, True, False]
    assert not table.is_applied("other", 5)
    table.apply_epoch(changes({2: None}), "w", 6)
    assert [table.is_applied("w", epoch) for epoch in (5, 6)] == [False, True]
    with table.writer("b") as writer:
        writer.upsert({"k": 1, "v": 1})
    assert not table.is_applied("b", 0)
    with pytest.raises(InvalidRequest):
        table.is_applied("w", -1)


def test_an_epoch_whose_process_died_after_the_intent_was_applied(
    open_store: OpenStore, store_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store() as store:
        table = table_of(store)
        with monkeypatch.context() as patch:
            refuse_ends_of_commits(patch)
            table.apply_epoch(changes(dict.fromkeys(range(9), 2)), "w", 0)
    with open_store() as store:
        assert store.table("t").is_applied("w", 0)
        assert store.runtime.catalog().writers_of(table.identity[1]).commits == ()
