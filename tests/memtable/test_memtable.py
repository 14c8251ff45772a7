"""A bucket's memtable against a dict: what is pending, what is published, and what views have that stay open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvstore.index.index import Index, View
from kvstore.memtable.layers import Layers
from kvstore.memtable.memtable import Memtable
from kvstore.memtable.run import Run
from logformat.binary_column import BinaryColumn
from logformat.ids import Epoch, Offset, Sequence, WriterId
from logformat.log.index_state import IndexState
from logformat.log.writer_entry import RememberedBatch, WriterEntry
from logformat.rows.keys import ROW
from tests.support.leaves import STATE, an_index

KEYS = [ROW + bytes([number]) for number in range(40)]
Rows = dict[bytes, bytes]
ROWS = st.dictionaries(st.sampled_from(KEYS), st.binary(min_size=1, max_size=9), max_size=12)
SOME_KEYS = st.lists(st.sampled_from(KEYS), max_size=9, unique=True)


def entry(number: int) -> WriterEntry:
    return WriterEntry(Epoch(0), False, (RememberedBatch(Sequence(number), 0, Offset(number), number),))


def state_at(end: int) -> IndexState:
    return STATE._replace(applied_offset=Offset(end), synced_offset=Offset(end))


def merge_all(memtable: Memtable) -> None:
    """Merge what is published, as the bucket's writer does on a flush."""
    while memtable.is_merging:
        memtable.merge_slice()
    if not memtable.is_merged:
        memtable.begin_merge(memtable.published.state)
        merge_all(memtable)


def assert_has(view: View, rows: Mapping[bytes, bytes], writers: Mapping[WriterId, WriterEntry]) -> None:
    listed = sorted(rows.items())
    for chunk in (3, 1000):
        found = [
            pair for keys, values in view.rows(chunk) for pair in zip(keys.to_list(), values.to_list(), strict=True)
        ]
        assert found == listed
    backwards = [
        list(zip(each.keys().to_list(), each.values().to_list(), strict=True)) for each in view.found(3, reverse=True)
    ]
    assert [pair for chunk in reversed(backwards) for pair in chunk] == listed
    there, values = view.find(BinaryColumn.from_list(KEYS))
    assert there.tolist() == [key in rows for key in KEYS]
    assert values.to_list() == [rows[key] for key in KEYS if key in rows]
    assert view.row_count() == len(rows)
    assert view.writers() == writers


class TheMemtable(RuleBasedStateMachine):
    """One change after the other, with any reads in between."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.index = self.stack.enter_context(an_index())
        self.memtable = Memtable(self.index)
        self.end = 0
        self.rows: Rows = {}
        self.writers: dict[WriterId, WriterEntry] = {}
        self.pending, self.pending_writers = dict(self.rows), dict(self.writers)
        self.merged = self.end, self.rows, self.writers
        self.views: list[tuple[View, Rows, dict[WriterId, WriterEntry]]] = []

    @rule(rows=ROWS)
    def put(self, rows: Rows) -> None:
        self.memtable.put(rows)
        self.pending |= rows

    @rule(keys=SOME_KEYS)
    def delete(self, keys: list[bytes]) -> None:
        self.memtable.delete(keys)
        self.pending = {key: row for key, row in self.pending.items() if key not in keys}

    @rule(writer=st.integers(0, 4).map(WriterId), number=st.integers(0, 9), gone=st.booleans())
    def writer(self, writer: WriterId, number: int, gone: bool) -> None:
        self.memtable.put_writer(writer, None if gone else entry(number))
        self.pending_writers[writer] = entry(number)
        if gone:
            del self.pending_writers[writer]

    @rule()
    def publish(self) -> None:
        self.end += 1
        self.memtable.publish(state_at(self.end))
        self.rows, self.writers = dict(self.pending), dict(self.pending_writers)

    @rule(rows=ROWS, gone=SOME_KEYS)
    def put_columns(self, rows: Rows, gone: list[bytes]) -> None:
        """A large batch, or what a recovery has found in the log."""
        both = dict.fromkeys(gone, b"") | rows
        self.memtable.put(Run.of_dict(both))
        self.pending = {key: row for key, row in (self.pending | both).items() if row}

    @rule()
    def drop(self) -> None:
        self.memtable.drop()
        self.pending, self.pending_writers = dict(self.rows), dict(self.writers)

    @precondition(lambda self: not self.memtable.is_merging)
    @rule()
    def begin_merge(self) -> None:
        self.memtable.begin_merge(self.memtable.published.state)
        self.merged = self.end, self.rows, self.writers

    @precondition(lambda self: self.memtable.is_merging)
    @rule(share=st.floats(0, 1))
    def merge_slice(self, share: float) -> None:
        self.memtable.merge_slice(share)
        with self.index.view() as view:
            state, (end, rows, writers) = view.state(), self.merged
            assert state.latest_offset == end
            if self.memtable.is_merging:
                assert state.merging is not None
                assert 0 <= self.memtable.merged_share <= 1
            else:
                assert state.merging is None
                assert_has(view, rows, writers)

    @rule()
    def merge(self) -> None:
        merge_all(self.memtable)
        with self.index.view() as view:
            assert_has(view, self.rows, self.writers)

    @precondition(lambda self: self.memtable.is_merging)
    @rule(calls=st.sampled_from(["put", "put_writer", "commit"]))
    def slice_that_fails(self, calls: str) -> None:
        def refuse(*_: Any) -> None:
            raise lmdb.DiskError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Index, calls, refuse)
            try:
                self.memtable.merge_slice()
            except lmdb.DiskError:
                return
        assert calls == "put_writer"  # there was no writer, or it was not the last slice

    @precondition(lambda self: len(self.views) < 4)
    @rule(kind=st.sampled_from([Index.view, Index.scan_view]))
    def open_a_view(self, kind: Any) -> None:
        view = self.stack.enter_context(self.memtable.view(kind))
        assert view.state().applied_offset == self.end
        self.views.append((view, self.rows, self.writers))

    @invariant()
    def latest_rows(self) -> None:
        for key in KEYS[::5]:
            assert self.memtable.value(key) == self.rows.get(key)
            assert self.memtable.get([key]) == [self.pending.get(key, b"")]
        assert self.memtable.get(KEYS[:35]) == [self.pending.get(key, b"") for key in KEYS[:35]]

    @invariant()
    def views_stay_as_they_were(self) -> None:
        for view, rows, writers in self.views:
            assert_has(view, rows, writers)

    def teardown(self) -> None:
        self.stack.close()


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvstore.memtable.run.JOINED_BYTES", 400)
    monkeypatch.setattr("kvstore.memtable.memtable.FEW_KEYS", 3)
    monkeypatch.setattr("kvstore.memtable.memtable.SLICE_ROWS", 2)
    monkeypatch.setattr("kvstore.memtable.memtable.SLICE_ROWS_MAX", 5)
    monkeypatch.setattr("kvstore.memtable.memtable.SLICE_BYTES", 40)


@pytest.mark.usefixtures("small_slices")
class TestTheMemtable(TheMemtable.TestCase):  # type: ignore[misc, name-defined]
    pass


@given(batches=st.lists(ROWS, max_size=30), seen=st.lists(st.booleans(), min_size=30, max_size=30))
def test_layers_are_few_and_what_was_seen_stays(batches: list[Rows], seen: list[bool]) -> None:
    layers, model = Layers[bytes, bytes](), Rows()
    kept: list[tuple[Layers[bytes, bytes], Rows]] = []
    for batch, is_seen in zip(batches, seen, strict=False):
        if is_seen:
            kept.append((layers, dict(model)))
        layers, model = layers.added(dict(batch), in_place=not is_seen), model | batch
        sizes = [len(each) for each in layers.dicts]
        assert len(sizes) <= 7, "each is more than twice as large as the one before it, but for what grew in place"
    for found, rows in [*kept, (layers, model)]:
        assert found.all() == rows
        assert (found.newest(KEYS) or [None] * len(KEYS)) == [rows.get(key) for key in KEYS]


@contextmanager
def merged_meanwhile(memtable: Memtable, index: Index) -> Iterator[View]:
    """A view of the index, after which the memtable is merged before the view is laid over."""
    with index.view() as view:
        merge_all(memtable)
        yield view


def test_a_merge_while_a_view_is_opened_hides_nothing(tmp_path: Path) -> None:
    with an_index(tmp_path) as index:
        memtable = Memtable(index)
        memtable.put({KEYS[0]: b"row"})
        memtable.publish(state_at(1))
        with memtable.view(lambda index: merged_meanwhile(memtable, index)) as view:
            assert_has(view, {KEYS[0]: b"row"}, {})


def test_a_row_that_is_merged_while_it_is_read_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with an_index(tmp_path) as index:
        memtable = Memtable(index)
        get = index.environment.get
        memtable.put({KEYS[0]: b"row"})
        memtable.publish(state_at(1))

        def merged_first(key: bytes) -> bytes | None:
            merge_all(memtable)
            return get(key)

        monkeypatch.setattr(index.environment, "get", merged_first)
        assert (memtable.value(KEYS[1]), memtable.value(KEYS[0])) == (None, b"row")


def test_a_view_stays_as_it_was_after_a_batch_without_rows(tmp_path: Path) -> None:
    with an_index(tmp_path) as index:
        memtable = Memtable(index)
        for number, keys in enumerate((KEYS[:1], KEYS[1:2]), 1):
            memtable.put(dict.fromkeys(keys, b"row"))
            memtable.put_writer(WriterId(number), entry(number))
            memtable.publish(state_at(number))
        with memtable.view() as view:
            for number, keys in enumerate(([], KEYS[:3]), 3):
                memtable.put(dict.fromkeys(keys, b"later"))
                memtable.put_writer(WriterId(number), entry(number))
                memtable.publish(state_at(number))
            assert_has(view, dict.fromkeys(KEYS[:2], b"row"), {WriterId(n): entry(n) for n in (1, 2)})


def test_a_view_has_no_writer_that_comes_after_a_batch_without_one(tmp_path: Path) -> None:
    with an_index(tmp_path) as index:
        memtable = Memtable(index)
        memtable.put_writer(WriterId(1), entry(1))
        memtable.publish(state_at(1))
        with memtable.view() as view:
            memtable.put({KEYS[0]: b"later"})
            memtable.publish(state_at(2))
            memtable.put_writer(WriterId(2), entry(2))
            memtable.publish(state_at(3))
            assert_has(view, {}, {WriterId(1): entry(1)})
