"""A lost index is rebuilt, byte for byte, from a snapshot and the log after it."""

from __future__ import annotations

import datetime as dt
import errno
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Never, TypeAlias
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.bucket import snapshot
from kvstore.bucket.maintenance import Maintenance
from kvstore.errors import CorruptBatch, CorruptData, LogFailed, StoreClosed, StoreFull, UnsupportedOperation
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from logformat.ids import Offset
from logformat.log import snapshot_manifest
from tests.conftest import OpenStore
from tests.crash.places import workplace
from tests.support.clocks import SetClock
from tests.support.disks import FailingDisk, failing
from tests.support.examples import slow
from tests.support.indexes import BUCKET, contents, files_in, lose_index
from tests.support.tables import changes_of, rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("n", pa.int64()), pa.field("s", pa.string())])
SMALL = {"segment_bytes_max": 1500}


def filled(store: kvstore.Store, batches: int = 8) -> kvstore.Table:
    table = store.create_table("t", SCHEMA, "k") if "t" not in store.list_tables() else store.table("t")
    end = table.offsets()[0][1]
    for number in range(batches):
        table.upsert([{"k": k, "n": end + number, "s": "x" * k} for k in range(number % 5, 8)])
    return table


def directory(store: Path, offset: int) -> Path:
    return store / BUCKET / "snapshots" / f"{offset:020d}"


def cut_log(store: Path, taken: Path) -> None:
    """Remove every segment of a closed store that a snapshot makes unnecessary, as retention would."""
    manifest = snapshot_manifest.decode_manifest((taken / "manifest.json").read_bytes())
    for path in (store / BUCKET / "log").iterdir():
        if int(path.stem) < manifest.log_base:
            path.unlink()


def test_a_snapshot_states_its_offset_and_is_plain_parquet(store: kvstore.Store) -> None:
    table = filled(store)
    taken = table.snapshot()
    assert taken.offsets == {0: table.offsets()[0][1]}
    assert taken.paths == [directory(store.path, taken.offsets[0])]  # type: ignore[index]
    rows = pq.read_table(taken.paths[0] / "rows.parquet").drop_columns("_schema_id")
    assert rows.to_pylist() == rows_of(table)
    assert files_in(store.path, "snapshots") == [taken.paths[0].name]


def test_the_newest_two_are_kept_and_an_unchanged_table_takes_no_new_one(store: kvstore.Store) -> None:
    names = []
    for _ in range(4):
        taken = filled(store, 1).snapshot()
        inode = (taken.paths[0] / "rows.parquet").stat().st_ino
        assert filled(store, 0).snapshot() == taken
        assert (taken.paths[0] / "rows.parquet").stat().st_ino == inode
        names.append(taken.paths[0].name)
    assert files_in(store.path, "snapshots") == names[-2:]


def test_a_lost_index_is_rebuilt_from_the_newest_snapshot(open_store: OpenStore, store_path: Path) -> None:
    with open_store(**SMALL) as store:
        filled(store)
        taken = filled(store).snapshot()
        ((newest,), (path,)) = taken.offsets.values(), taken.paths
        table = filled(store, 3)
        expected = rows_of(table), changes_of(table, newest)
    before = contents(store_path)
    cut_log(store_path, path)
    lose_index(store_path)
    with open_store(**SMALL) as store:
        table = store.table("t")
        start = table.offsets()[0][0]
        assert 0 < start <= newest
        assert (rows_of(table), changes_of(table, newest)) == expected
        assert store.check().findings == []
    assert contents(store_path) == before


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("harm", [flip, remove, empty], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("name", ["rows.parquet", "writers.json", "manifest.json"])
def test_a_damaged_snapshot_is_not_used(
    open_store: OpenStore, store_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    with open_store(**SMALL) as store:
        older = filled(store).snapshot().paths[0]
        newer = filled(store).snapshot().paths[0]
        filled(store, 2)
    before = contents(store_path)
    harm(newer / name)
    with open_store(**SMALL) as store:
        (finding,) = store.check().findings
        assert name in finding
    cut_log(store_path, older)
    lose_index(store_path)
    with open_store(**SMALL) as store:
        table = store.table("t")
        assert table.offsets()[0][0] > 0
        table.flush()
    assert contents(store_path) == before
    harm(older / name)
    lose_index(store_path)
    with open_store(**SMALL) as store:
        with pytest.raises(CorruptData, match=r"put index/ or snapshots/ back"):
            store.table("t").upsert({"k": 1, "n": 1, "s": None})
        assert not store.check()
    assert not (store_path / BUCKET / "index").exists()
    harm_undone = filled_again(open_store, store_path)
    assert harm_undone


def filled_again(open_store: OpenStore, store_path: Path) -> bool:
    """Start over, so that the store passes its check at the end."""
    shutil.rmtree(store_path)
    with open_store(**SMALL) as store:
        return bool(filled(store).count())


def test_a_damaged_snapshot_costs_nothing_while_the_log_is_complete(open_store: OpenStore, store_path: Path) -> None:
    with open_store(**SMALL) as store:
        flip(filled(store).snapshot().paths[0] / "rows.parquet")
    before = contents(store_path)
    lose_index(store_path)
    with open_store(**SMALL) as store:
        taken = filled(store, 0).snapshot()
        assert pq.read_table(taken.paths[0] / "rows.parquet").num_rows == 8
    assert contents(store_path) == before


def test_a_snapshot_of_another_bucket_is_not_used(open_store: OpenStore, store_path: Path) -> None:
    with open_store(**SMALL) as store:
        path = filled(store).snapshot().paths[0]
        other = store.create_table("u", SCHEMA, "k")
        other.upsert([{"k": 1, "n": 1, "s": None}])
        theirs = other.snapshot().paths[0]
    shutil.rmtree(path)
    shutil.copytree(theirs, path.with_name(theirs.name))
    with open_store(**SMALL) as store:
        (finding,) = store.check().findings
        assert "belongs elsewhere" in finding
    shutil.rmtree(path.with_name(theirs.name))


def test_a_log_that_ends_before_a_snapshot_has_lost_durable_data(open_store: OpenStore, store_path: Path) -> None:
    """Even if the index is as old as the log: both may be from a backup."""
    with open_store() as store:
        filled(store)
    old = store_path.with_name("old")
    shutil.copytree(store_path / BUCKET, old)
    with open_store() as store:
        filled(store).snapshot()
    shutil.move(store_path / BUCKET / "snapshots", old / "snapshots")
    shutil.rmtree(store_path / BUCKET)
    shutil.move(old, store_path / BUCKET)
    with open_store() as store, pytest.raises(CorruptBatch):
        store.table("t").upsert({"k": 1, "n": 1, "s": None})
    shutil.rmtree(store_path / BUCKET / "snapshots")


def test_the_holder_of_the_lock_removes_strays(open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        filled(store).snapshot()
    stray = store_path / BUCKET / "snapshots" / f"{7:020d}.tmp"
    stray.mkdir()
    (stray / "rows.parquet").touch()
    with open_store(read_only=True) as store:
        assert store.check().findings == []
    assert stray.exists()
    with open_store() as store:
        filled(store, 1)
    assert not stray.exists()


def test_a_damaged_index_makes_no_snapshot(open_store: OpenStore, store_path: Path) -> None:
    import lmdb

    with open_store() as store:
        filled(store)
    before = contents(store_path)
    with lmdb.open(str(store_path / BUCKET / "index")) as environment, environment.begin(write=True) as transaction:
        key = max(before)
        assert transaction.delete(key)
    with open_store() as store, pytest.raises(CorruptData):
        store.table("t").snapshot()
    assert files_in(store_path, "snapshots") == []
    lose_index(store_path)


def test_a_written_snapshot_must_read_back(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(store)
    encode = snapshot_manifest.encode_writers
    monkeypatch.setattr(snapshot, "encode_writers", lambda _: encode({}))
    table.bucket(0).apply(kvstore.Changes.of([], SCHEMA), 3, 0)
    with pytest.raises(CorruptData, match="read back"):
        table.snapshot()
    assert files_in(store.path, "snapshots") == []


def test_read_only_and_closed_stores_take_none(open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        table = filled(store)
    with pytest.raises(StoreClosed):
        table.snapshot()
    with open_store(read_only=True) as store, pytest.raises(UnsupportedOperation):
        store.table("t").snapshot()
    assert files_in(store_path, "snapshots") == []


# Failing disks

CALLS = ("write", "sync", "sync_directory", "rename")


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("call", CALLS)
def test_a_failing_disk_costs_only_the_snapshot(store_path: Path, call: str, code: int) -> None:
    """At every single call; the next attempt succeeds, and the snapshot before stays valid all the time."""
    disk = FailingDisk()
    with Store(store_path, StoreOptions(), files=disk) as store:
        first = filled(store).snapshot()
        table = filled(store, 1)
        table.flush()
        for after in range(20):
            disk.fail = failing(call, code, after=after)
            try:
                taken = table.snapshot()
            except StoreFull:
                assert code == errno.ENOSPC
            except LogFailed:
                assert code == errno.EIO
            else:
                break
            disk.fail = lambda _: 0
            # A name that could not be made durable may exist; its snapshot is complete.
            assert files_in(store_path, "snapshots")[0] == first.paths[0].name
            assert not [name for name in files_in(store_path, "snapshots") if name.endswith(".tmp")]
            assert store.check().findings == []
            filled(store, 1)
            table.flush()
        else:
            raise AssertionError("it never came to an end")
        disk.fail = lambda _: 0
        assert after
        assert table.snapshot() == taken
        filled(store, 1)
    before = contents(store_path)
    lose_index(store_path)
    with kvstore.open(store_path) as again:
        assert again.table("t").count() == 8
        assert again.check().findings == []
    assert contents(store_path) == before


Step: TypeAlias = Callable[[], None]


def steps_are(each: Callable[[Step], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a function called in place of each step of a snapshot; it gets the step."""
    take = snapshot.take

    def taken(*arguments: Any, step: Step, **options: Any) -> snapshot.Snapshot:
        return take(*arguments, step=lambda: each(step), **options)

    monkeypatch.setattr(snapshot, "take", taken)


def until_it_must_end(step: Step) -> Never:
    """Repeat a step until it raises: then the index has to grow, or the store is closed."""
    while True:
        step()
        time.sleep(0.001)


def test_writing_continues_while_a_snapshot_waits(store: kvstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(store)
    reading, go_on = threading.Event(), threading.Event()

    def held(step: Step) -> None:
        reading.set()
        assert go_on.wait(600)
        step()

    steps_are(held, monkeypatch)
    taken: list[kvstore.request.results.TableSnapshot] = []
    before, end = rows_of(table), table.offsets()[0][1]
    thread = threading.Thread(target=lambda: taken.append(table.snapshot()))
    thread.start()
    assert reading.wait(600)
    filled(store)
    table.flush()
    go_on.set()
    thread.join()
    assert taken[0].offsets == {0: end}
    assert pq.read_table(taken[0].paths[0] / "rows.parquet").drop_columns("_schema_id").to_pylist() == before


def test_an_index_grows_while_a_snapshot_is_taken(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader may be open then: the snapshot starts over."""
    steps: list[int] = []
    reading = threading.Event()

    def slow(step: Step) -> None:
        steps.append(1)
        if len(steps) == 1:
            reading.set()
            until_it_must_end(step)
        else:
            step()

    steps_are(slow, monkeypatch)
    with Store(store_path, StoreOptions(map_bytes=1 << 20)) as store:
        table = filled(store)
        thread = threading.Thread(target=table.snapshot)
        thread.start()
        assert reading.wait(600)
        for first in range(0, 40_000, 5_000):
            table.upsert([{"k": k, "n": 0, "s": "x" * 40} for k in range(first, first + 5_000)])
        thread.join()
        assert len(steps) > 1
        assert len(files_in(store_path, "snapshots")) == 1
        assert store.check().findings == []


def test_closing_a_store_ends_a_snapshot(store_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = threading.Event()

    def slow(step: Step) -> None:
        reading.set()
        until_it_must_end(step)

    steps_are(slow, monkeypatch)
    raised: list[Exception] = []

    def take() -> None:
        try:
            table.snapshot()
        except StoreClosed as error:
            raised.append(error)

    with kvstore.open(store_path) as store:
        table = filled(store)
        thread = threading.Thread(target=take)
        thread.start()
        assert reading.wait(600)
    thread.join()
    assert len(raised) == 1
    assert files_in(store_path, "snapshots") == []


def test_a_snapshot_is_loaded_into_an_index_that_must_grow(open_store: OpenStore, store_path: Path) -> None:
    with open_store() as store:
        table = filled(store)
        table.upsert(pa.table({"k": range(30_000), "n": range(30_000), "s": ["x" * 40] * 30_000}))
        table.snapshot()
    before = contents(store_path)
    lose_index(store_path)
    with open_store(map_bytes=1 << 20) as store:
        assert store.table("t").count() == 30_000
    assert contents(store_path) == before


# Any history

TABLES: dict[str, dict[str, Any]] = {
    "last row": {},
    "wal": {"changelog_image": "wal"},
    "first row": {"merge_engine": "first_row"},
    "versioned": {"merge_engine": kvstore.Versioned("n")},
    "sums": {"merge_engine": kvstore.Aggregate({"n": "sum", "s": kvstore.listagg(";")})},
    "numbered": {"auto_increment": "n", "skip_identical_updates": True},
    "log": {"primary_key": None},
}
WRITERS = (0, 1, 7)

Step = tuple[Any, ...]
rows_drawn = st.lists(
    st.tuples(st.integers(-3, 3), st.none() | st.integers(-5, 5), st.none() | st.text("ab\0", max_size=3)), max_size=5
)
steps_drawn = st.lists(
    st.one_of(
        st.tuples(st.just("batch"), st.sampled_from((-1, *WRITERS)), rows_drawn, st.integers(0, 3)),
        st.tuples(st.just("batch"), st.sampled_from((-1, *WRITERS)), rows_drawn, st.integers(0, 3)),
        st.tuples(st.sampled_from(["snapshot", "columns", "flush", "reopen", "retain", "time"])),
    ),
    min_size=3,
    max_size=14,
)


class History:
    """Steps done to a table whose log expires after ten milliseconds of a settable clock.

    Attributes:
        answers: For each writer, the answers to its last five batches.
    """

    def __init__(self, path: Path, kind: str, *, retention: bool) -> None:
        self.path = path
        self.clock = SetClock()
        self.answers: dict[int, list[tuple[int, int, int]]] = {}
        self._next: dict[int, int] = {}
        self.open()
        options = {"primary_key": "k"} | TABLES[kind]
        if retention:
            options["retention"] = dt.timedelta(milliseconds=10)
        self.store.create_table("t", SCHEMA, **options)
        self.is_log = options["primary_key"] is None

    def open(self) -> None:
        self.store = Store(self.path, StoreOptions(segment_bytes_max=900), clock=self.clock)

    @property
    def table(self) -> kvstore.Table:
        return self.store.table("t")

    def do(self, step: Step) -> None:
        match step:
            case ("batch", writer, rows, deletes):
                self._batch(writer, rows, deletes)
            case ("snapshot",):
                self.table.snapshot()
            case ("columns",):
                names = self.table.schema.names
                self.store.add_columns("t", [pa.field(f"c{len(names)}", pa.timestamp("s"))])
            case ("flush",):
                self.table.flush()
            case ("reopen",):
                self.store.close()
                self.open()
            case ("retain",):
                self.table.bucket(0).handle.retain()
            case ("time",):
                self.clock.now += 20

    def _batch(self, writer: int, rows: list[tuple[int, Any, Any]], deletes: int) -> None:
        table = self.table
        filled_columns = [name for name in table.schema.names if name.startswith("c")]
        n = {} if self.store.runtime.definition("t").options.auto_increment else {"n": None}
        operations: list[tuple[str, dict[str, Any]]] = []
        for place, (k, value, s) in enumerate(rows):
            if place < deletes and not self.is_log:
                operations.append(("delete", {"k": k}))
            else:
                row = {"k": k, **({"n": value} if n else {}), "s": s} | dict.fromkeys(
                    filled_columns, dt.datetime(2000 + k, 1, 1)
                )
                operations.append(("upsert", row))
        names = [name for name in table.schema.names if n or name != "n"]
        schema = pa.schema([table.schema.field(name) for name in names])
        changes = kvstore.Changes.of(operations, schema)
        sequence = -1 if writer < 0 else self._next.get(writer, 0)
        answer = table.bucket(0).apply(changes, writer, sequence)
        if writer >= 0:
            self._next[writer] = sequence + 1
            listed = self.answers.setdefault(writer, [])
            listed.append((sequence, answer.first_offset, answer.last_offset))
            del listed[:-5]

    def duplicates_are_answered(self) -> None:
        nothing = kvstore.Changes.of([], self.table.schema)
        for writer, listed in self.answers.items():
            for sequence, first, last in listed:
                answer = self.table.bucket(0).apply(nothing, writer, sequence)
                assert (answer.duplicated, answer.first_offset, answer.last_offset) == (True, first, last)


@slow(25)
@given(steps=steps_drawn, cuts=st.booleans())
@pytest.mark.parametrize("kind", TABLES)
def test_any_history_is_restored_from_a_snapshot_and_the_log(kind: str, steps: list[Step], cuts: bool) -> None:
    # Retention runs only on request, so that the same steps have the same outcome.
    with workplace() as place, patch.object(Maintenance, "begin"):
        history = History(place / "store", kind, retention=cuts)
        try:
            comes_back(history, steps)
        finally:
            history.store.close()


def comes_back(history: History, steps: list[Step]) -> None:
    for step in steps:
        history.do(step)
    assert history.store.check().findings == []
    start, end = history.table.offsets()[0]
    expected = changes_of(history.table)
    history.store.close()
    before = contents(history.path)
    lose_index(history.path)
    history.open()
    assert history.table.offsets()[0] == (start, end)
    history.duplicates_are_answered()
    assert changes_of(history.table) == expected
    assert history.store.check().findings == []
    history.store.close()
    assert contents(history.path) == before
    # And it continues as it would have.
    history.open()
    history.do(("batch", 0, [(1, 2, "z"), (9, None, "")], 0))
    assert history.store.check().findings == []


def test_offsets_of_snapshots_are_listed_newest_first(tmp_path: Path) -> None:
    assert snapshot.offsets(tmp_path) == []
    for name in ("7".zfill(20), "11".zfill(20), "9".zfill(20) + ".tmp", "x"):
        (tmp_path / "snapshots" / name).mkdir(parents=True)
    assert snapshot.offsets(tmp_path) == [Offset(11), Offset(7)]
