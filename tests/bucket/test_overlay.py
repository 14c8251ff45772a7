"""A process that reads beside one that writes sees what the model has, whatever the index has of it by then."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings, strategies as st

import kvstore
from kvstore.bucket.merge import tail
from kvstore.bucket.reading import overlay, reader
from kvstore.disk.environment import Environment
from kvstore.disk.files import Files
from kvstore.errors import LogFailed
from kvstore.index.index import Index, View
from kvstore.log.writer_state import STEP_MS_MAX
from kvstore.memtable import view as memtable_view
from kvstore.options import StoreOptions
from kvstore.request.row_layout import layout_of
from kvstore.store.store import Store
from kvstore.testing.model import Model, Operation
from logformat import paths
from logformat.ids import BucketId, Offset, Position, TableId
from logformat.log import published_end
from logformat.log.index_state import IndexState
from logformat.rows.keys import ROW
from tests.crash.history import copy_of
from tests.support.clocks import SetClock
from tests.support.processes import Child, Pipe
from tests.support.tables import assert_equals_model, rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string())])
BY_HAND: dict[str, Any] = {"commit_wait_ms": 600_000, "commit_idle_ms": 600_000, "sync_interval_ms": 600_000}
"""The index is committed when a test says so."""
PUBLISHED = paths.bucket_directory(Path(), TableId(1), BucketId(0)) / paths.PUBLISHED_FILE


def write(pipe: Pipe, path: Path, options: dict[str, Any]) -> None:
    """Carry out commands in order."""
    store = kvstore.open(path, **BY_HAND, **options)
    while True:
        what, operations = pipe.recv()
        table = store.table("t")
        match what:
            case "write":
                table.apply(kvstore.Changes.of(operations, SCHEMA))
            case "flush":
                table.flush()
            case "compact":
                table.compact()
            case "close":
                store.close()
                store = kvstore.open(path, **BY_HAND, **options)
            case "close on a full disk":
                with pytest.MonkeyPatch.context() as patches:
                    patches.setattr(Index, "commit", refuse)
                    store.close()
                store = kvstore.open(path, **BY_HAND, **options)
                pipe.send(None)
                continue
        pipe.send(store.table("t").bucket(0).handle.state())


def refuse(*_: object) -> None:
    raise lmdb.DiskError("no space")


@contextmanager
def looked_at_once() -> Iterator[None]:
    """Readers look for everything at each call, and keep little."""
    with pytest.MonkeyPatch.context() as patches:
        for module in (overlay, reader):
            patches.setattr(module, "LOOK_SECONDS", 0.0)
        patches.setattr(overlay, "TOGETHER_BYTES", 700)
        patches.setattr(overlay, "KEPT_MAX", 5)
        yield


@dataclass
class Beside:
    """A writer in another process, a reader in this one, and the model; a context manager.

    Attributes:
        models: After each batch, by its end.
    """

    path: Path
    options: dict[str, Any]
    models: dict[int, Model] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Beside:
        with kvstore.open(self.path) as store:
            store.create_table("t", SCHEMA, "k")
        self.models[0] = self.model = Model(("k",))
        self._writer = self._stack.enter_context(Child(write, self.path, self.options))
        self.table = self._stack.enter_context(kvstore.open(self.path)).table("t")
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tell(self, what: str, operations: list[Operation] | None = None) -> IndexState:
        """Have the writer do something; the state of its bucket then."""
        if operations is not None:
            self.model = copy_of(self.model)
            self.model.apply(operations)
            self.models[self.model.end] = self.model
        self._writer.say((what, operations))
        state: IndexState = self._writer.hear()
        return state

    def kill(self) -> None:
        """Kill the writer, and start another."""
        self._writer.kill()
        self._writer = self._stack.enter_context(Child(write, self.path, self.options))

    def check(self, *, least: int) -> int:
        """The reader sees the model as of a batch, and not less than that of the end ``least``; its end."""
        ((_, end),) = self.table.offsets().values()
        assert end >= least
        model = self.models[end]
        assert_equals_model(self.table, model)
        assert [self.table.get(k) for k in range(-1, 13)] == [model.rows.get((k,)) for k in range(-1, 13)]
        found = self.table.lookup(list(range(13)))
        assert found["_found"].to_pylist() == [(k,) in model.rows for k in range(13)]
        for k in (0, 5, 12):
            assert len(self.table.to_arrow(filter=pc.field("k") == k)) == ((k,) in model.rows)
        assert found.filter(found["_found"]).drop_columns("_found").to_pylist() == [
            model.rows[k,] for k in range(13) if (k,) in model.rows
        ]
        return end


def content(view: View, chunk: int = 1000) -> list[list[tuple[bytes, bytes]]]:
    """Keys and values, without zeros after a value, which may be there or not."""
    return [
        [(key, value.rstrip(b"\0")) for key, value in zip(keys.to_list(), values.to_list(), strict=True)]
        for keys, values in view.rows(chunk)
    ]


def assert_is_whole(view: View, before: list[tuple[bytes, bytes]], random: Random) -> None:
    """A view has the rows that it had, whichever way they are read."""
    keys = [key for key, _ in before]
    chunk, (start, stop) = random.randint(1, 4), sorted(random.choices([*keys, ROW, b"\xff"], k=2))
    found = content(view, chunk)
    assert [pair for part in found for pair in part] == before
    assert max(map(len, found), default=0) <= chunk
    assert [key for part in view.found(chunk, start, stop) for key in part.keys().to_list()] == [
        key for key in keys if start <= key < stop
    ]
    backwards = [part.keys().to_list() for part in view.found(chunk, start, stop, reverse=True)]
    assert [key for part in backwards for key in reversed(part)] == [key for key in keys[::-1] if start <= key < stop]
    assert max(map(len, backwards), default=0) <= chunk
    assert [value.rstrip(b"\0") for value in view.get([*keys, b"\xff"])] == [*(value for _, value in before), b""]
    assert view.row_count() == view.state().row_count == len(before)
    bounds = view.bounds()
    assert (bounds is None or bounds[0] <= min(keys) <= max(keys) <= bounds[1]) if keys else True


def plain(state: IndexState) -> IndexState:
    """A state without what only the index knows."""
    return state._replace(digest=0, synced_base=Offset(0), synced_position=Position(0), synced_offset=Offset(0))


OPERATIONS = st.lists(
    st.builds(
        lambda k, text, delete: ("delete", {"k": k}) if delete else ("upsert", {"k": k, "s": text}),
        *(st.integers(0, 12), st.sampled_from(["", "a", "b" * 300, None]), st.booleans()),
    ),
    max_size=6,
)
STEPS = st.lists(
    st.tuples(st.just("write"), OPERATIONS)
    | st.tuples(st.sampled_from(["flush", "compact", "close", "kill"]), st.none())
    | st.tuples(st.just("write"), OPERATIONS),
    min_size=1,
    max_size=12,
)


@settings(max_examples=settings().max_examples // 2)
@given(
    steps=STEPS,
    durability=st.sampled_from(["sync", "sync", "interval", "none"]),
    segment_bytes_max=st.sampled_from([4096, 1 << 20]),
    run_keys=st.sampled_from([1, 3, overlay.TOGETHER_KEYS]),
    few_of=st.sampled_from([1, memtable_view.FEW_OF]),
    seed=st.integers(0, 1 << 30),
)
def test_a_reader_sees_what_is_durable_at_each_moment(
    steps: list[tuple[str, Any]],
    durability: str,
    segment_bytes_max: int,
    run_keys: int,
    few_of: int,
    seed: int,
    tmp_path_factory: Any,
) -> None:
    path, random = tmp_path_factory.mktemp("beside") / "store", Random(seed)
    options = {"durability": durability, "segment_bytes_max": segment_bytes_max}
    with looked_at_once(), pytest.MonkeyPatch.context() as patch, Beside(path, options) as beside, ExitStack() as views:
        patch.setattr(overlay, "TOGETHER_KEYS", run_keys)
        patch.setattr(tail, "TOGETHER_KEYS", run_keys)
        patch.setattr(tail, "DECODED_BYTES", 100 if run_keys == 1 else tail.DECODED_BYTES)
        patch.setattr(memtable_view, "FEW_OF", few_of)
        held: list[tuple[View, list[tuple[bytes, bytes]]]] = []
        least = 0
        for what, operations in steps:
            if what == "kill":
                beside.kill()
            else:
                state = beside.tell(what, operations)
                if durability == "sync":
                    assert plain(beside.table.bucket(0).handle.committed()) == plain(state)
            if durability == "sync" or what != "write":
                least = beside.model.end
            least = beside.check(least=least)
            view = views.enter_context(beside.table.bucket(0).handle.snapshot())
            held.append((view, [pair for part in content(view) for pair in part]))
            assert len(held[-1][1]) == len(beside.models[least].rows)
            for each in held:
                assert_is_whole(*each, random)
    with kvstore.open(path) as store:
        assert_equals_model(store.table("t"), beside.model)
        assert store.check().ok


def test_a_row_is_seen_before_the_index_has_it_and_costs_no_commit(store_path: Path) -> None:
    with Beside(store_path, {}) as beside:
        index = store_path / "tables/1/0/index/data.mdb"
        before = index.read_bytes()
        for k in range(20):
            beside.tell("write", [("upsert", {"k": k, "s": "a"})])
            assert beside.table.get(k) == {"k": k, "s": "a"}
            assert beside.table.count() == k + 1
        assert index.read_bytes() == before


def test_a_view_stays_as_it_was_while_others_read_on(store_path: Path) -> None:
    with Beside(store_path, {}) as beside, beside.table.bucket(0).handle.latest() as empty:
        definition = beside.table.parts.definition
        [key] = layout_of(definition).encode_keys(pa.RecordBatch.from_pylist([{"k": 1, "s": None}], SCHEMA)).to_list()
        beside.tell("write", [("upsert", {"k": 1, "s": "a"})])
        with beside.table.bucket(0).handle.latest() as view:
            before = view.get([key])
            for s in "bcd":
                beside.tell("write", [("upsert", {"k": 1, "s": s}), ("upsert", {"k": ord(s), "s": s})])
                assert beside.table.get(1) == {"k": 1, "s": s}
                assert view.get([key]) == before != [b""]
                assert [rows.keys().to_list() for rows in view.found(9)] == [[key]]
            assert empty.get([key]) == [b""]


def write_at(pipe: Pipe, path: Path) -> None:
    """Open the store for each list of moments, and write a row at each; sends the state of the bucket."""
    while True:
        clock, moments = SetClock(), pipe.recv()
        with Store(path, StoreOptions(**BY_HAND), clock=clock) as store:
            for clock.now in moments:
                store.table("t").upsert({"k": 1, "s": None})
                pipe.send(store.table("t").bucket(0).handle.state())
                pipe.recv()


def test_a_reader_knows_of_clocks_that_went_back_or_too_far(store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        store.create_table("t", SCHEMA, "k")
    with Child(write_at, store_path) as child, kvstore.open(store_path) as store:
        handle = store.table("t").bucket(0).handle
        for moments in ([1_000, 9_000, 5_000], [9_500, 3 * STEP_MS_MAX], [6_000, 7_000]):
            child.say(moments)
            for _ in moments:
                state = child.hear()
                assert plain(handle.committed()) == plain(state)
                child.say("go on")
        assert state.back_offset > 0
        assert state.uncounted_ms != 0


def test_many_rows_that_the_index_has_by_now_are_forgotten(store: kvstore.Store) -> None:
    table, rows = store.create_table("t", SCHEMA, "k"), [{"k": k, "s": "a"} for k in range(30)]
    for row in rows:
        table.upsert(row)
    log, definition = table.bucket(0).handle.log, store.runtime.definition("t")
    keys = layout_of(definition).encode_keys(pa.RecordBatch.from_pylist(rows, SCHEMA)).to_list()
    with looked_at_once():
        rest = overlay.Overlay(lambda: log, lambda: definition, log.position_of(Offset(0)))
        for index, end, first in [(0, 20, 0), (17, 23, 0), (19, 24, 0), (20, 26, 20), (23, 29, 20), (26, 30, 24)]:
            rest.begin_at(log.position_of(Offset(index)))
            rest.extend(Offset(end), rows=True)
            assert rest.start <= index
            assert [key for key in keys if rest.find(key)] == keys[first:end]
    counted = overlay.Overlay(lambda: log, lambda: definition, log.position_of(Offset(0)))
    counted.extend(Offset(20), rows=False)
    counted.extend(Offset(5), rows=True)
    assert counted.end == 20
    assert all(counted.find(key) for key in keys[:20]), "it has the rows up to its end"


# What a record may be


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def of_another_bucket(data: bytes) -> bytes:
    record = published_end.decode(data)
    assert record is not None
    return published_end.encode(record._replace(bucket_id=BucketId(5)))


@pytest.mark.parametrize("change", [damaged, of_another_bucket, lambda _: b"", lambda data: data + b"\0" * 9, None])
def test_a_record_that_is_none_hides_nothing_of_a_dead_writer(store_path: Path, change: Any) -> None:
    with Beside(store_path, {}) as beside:
        beside.tell("write", [("upsert", {"k": k, "s": "a"}) for k in range(5)])
        beside.kill()
        file = store_path / PUBLISHED
        data = file.read_bytes()
        file.unlink()
        if change is not None:
            file.write_bytes(change(data))
        with looked_at_once():
            beside.check(least=5)


def test_a_record_that_is_newer_than_the_log_is_not_believed_once_its_writer_is_gone(store_path: Path) -> None:
    """A copy of a store that is written may have such a record, and so may a log that was repaired."""
    with Beside(store_path, {}) as beside:
        beside.tell("write", [("upsert", {"k": k, "s": "a"}) for k in range(5)])
        beside.kill()
        file = store_path / PUBLISHED
        record = published_end.decode(file.read_bytes())
        assert record is not None
        file.write_bytes(published_end.encode(record._replace(offset=Offset(50))))
        assert beside.check(least=5) == 5  # many reads, of which few look whether a process writes
        with looked_at_once():
            assert beside.check(least=5) == 5


def test_a_get_that_looks_at_no_file_is_as_new_as_any(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (overlay, reader):
        monkeypatch.setattr(module, "LOOK_SECONDS", 3600.0)
    looks, is_stale = [], Environment.is_stale

    def counted(self: Environment) -> bool:
        looks.append(self)
        return is_stale(self)

    monkeypatch.setattr(Environment, "is_stale", counted)
    with Beside(store_path, {}) as beside:
        for number in range(12):
            for what in ("write", "flush", "compact", "write", "compact", "write", "close"):
                key = (3 * number + len(what)) % 13
                operations = [("upsert", {"k": key, "s": f"{number} {what}"}), ("delete", {"k": number, "s": None})]
                beside.tell(what, operations if what == "write" else None)
                assert [beside.table.get(k) for k in range(13)] == [beside.model.rows.get((k,)) for k in range(13)]
        beside.tell("write", [("upsert", {"k": 7, "s": "only the log has it"})])
        beside.tell("close on a full disk")
        assert beside.table.get(7) == {"k": 7, "s": "only the log has it"}
        looks.clear()
        assert [beside.table.get(k) for k in range(13)] == [beside.model.rows.get((k,)) for k in range(13)]
        assert not looks


class Syncs(Files):
    """Notes what is synced; or refuses to."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[str] = []
        self.refuses = False

    def sync(self, descriptor: int) -> None:
        if self.refuses:
            raise OSError(errno.EIO, "it is refused")
        self.synced.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        super().sync(descriptor)


@pytest.mark.parametrize("read_only", [False, True])
def test_what_a_dead_writer_left_is_synced_before_it_is_shown(store_path: Path, *, read_only: bool) -> None:
    with Beside(store_path, {"durability": "none"}) as beside:
        beside.tell("write", [("upsert", {"k": k, "s": "a"}) for k in range(5)])
        beside.kill()
    disk = Syncs()
    disk.refuses = True
    with Store(store_path, StoreOptions(), read_only=read_only, files=disk) as store:
        table = store.table("t")
        for read in (table.count, lambda: table.get(1), lambda: rows_of(table), table.offsets):
            with pytest.raises(LogFailed):
                read()
        disk.refuses = False
        assert table.count() == 5
        assert disk.synced == [f"{0:020d}.log"]
        assert len(rows_of(table)) == 5
        assert len(disk.synced) == 1, "once"


@pytest.mark.parametrize("change", [damaged, lambda _: published_end.VOID])
def test_beside_a_writer_without_a_record_the_index_is_read(store_path: Path, change: Any) -> None:
    """As an older kvstore writes."""
    with looked_at_once(), Beside(store_path, {}) as beside:
        beside.tell("write", [("upsert", {"k": 1, "s": "a"})])
        beside.tell("flush")
        beside.tell("write", [("upsert", {"k": 2, "s": "a"})])
        file = store_path / PUBLISHED
        file.write_bytes(change(file.read_bytes()))
        assert beside.check(least=1) == 1
        beside.tell("flush")
        assert beside.check(least=2) == 2


@pytest.mark.parametrize("kind", ["directory", "link", "pipe"])
def test_what_can_not_be_a_record_stops_nobody(store_path: Path, tmp_path: Path, kind: str) -> None:
    with kvstore.open(store_path) as store:
        store.create_table("t", SCHEMA, "k")
    file = store_path / PUBLISHED
    file.unlink()
    other = tmp_path / "other"
    other.write_bytes(b"as it was")
    match kind:
        case "directory":
            file.mkdir()
        case "link":
            file.symlink_to(other)
        case "pipe":
            os.mkfifo(file)
    with kvstore.open(store_path) as store:
        store.table("t").upsert({"k": 1, "s": "a"})
    with kvstore.open(store_path) as store:
        assert rows_of(store.table("t")) == [{"k": 1, "s": "a"}]
    assert other.read_bytes() == b"as it was"


def test_a_closed_bucket_has_a_void_record(store_path: Path) -> None:
    with kvstore.open(store_path) as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert({"k": 1, "s": "a"})
        record = published_end.decode((store_path / PUBLISHED).read_bytes())
        assert record is not None
        assert record.offset == 1
    assert (store_path / PUBLISHED).read_bytes() == published_end.VOID


def test_a_reader_beside_large_batches_holds_no_descriptor_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (overlay, tail):
        monkeypatch.setattr(module, "TOGETHER_KEYS", 1)
    with Beside(tmp_path / "store", {}) as beside:
        before = 0
        for number in range(30):
            beside.tell("write", [("upsert", {"k": number, "s": "x"})])
            assert beside.table.get(-1) is None  # so that no row is made, and its batch stays
            if number == 5:
                before = len(os.listdir("/proc/self/fd"))
        assert len(os.listdir("/proc/self/fd")) <= before + 3
