"""The index is derived: if it is lost, damaged or ahead of the log, it is rebuilt from the log, byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pyarrow as pa
import pytest

import kvstore
from kvstore.bucket.merge import replay, tail
from kvstore.errors import CorruptBatch, CorruptData, UnsupportedVersion
from kvstore.log.writer_state import EXPIRY_MS, STEP_MS_MAX
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from logformat.ids import TableId
from logformat.log import index_state
from tests.conftest import OpenStore
from tests.support.clocks import SetClock
from tests.support.tables import changes_of, rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("s", pa.string()), pa.field("v", pa.float64())])
BUCKET = Path("tables/1/0")


@pytest.fixture
def filled(open_store: OpenStore, store_path: Path) -> Path:
    """A closed store with inserts, updates, deletes, empty batches and writers."""
    with open_store(segment_bytes_max=4096) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        for sequence in range(12):
            operations = [
                ("upsert", {"k": k % 7, "s": f"{k}" * (k % 5), "v": k / 2}) for k in range(sequence, 3 * sequence)
            ]
            operations += [("delete", {"k": sequence % 4})]
            table.bucket(0).apply(
                kvstore.Changes.of(operations, SCHEMA), writer_id=sequence % 2, sequence=sequence // 2
            )
    return store_path


def contents(path: Path) -> dict[bytes, bytes]:
    """Every key and value of a bucket's index."""
    with lmdb.open(str(path / BUCKET / "index"), readonly=True, lock=False) as environment, environment.begin() as view:
        return dict(view.cursor())


def everything(path: Path) -> tuple[object, ...]:
    with kvstore.open(path) as store:
        table = store.table("t")
        return rows_of(table), changes_of(table), table.count(), table.offsets(), store.check().findings


def lose(index: Path) -> None:
    shutil.rmtree(index)


def empty(index: Path) -> None:
    (index / "data.mdb").write_bytes(b"")


def overwrite(index: Path) -> None:
    (index / "data.mdb").write_bytes(b"x" * 50_000)


def forget_state(index: Path) -> None:
    change_state(index, lambda _: None)


def damage_state(index: Path) -> None:
    change_state(index, lambda record: record[:-1] + b"\xff")


def damage_a_writer(index: Path) -> None:
    with lmdb.open(str(index)) as environment, environment.begin(write=True) as transaction:
        key = b"\1" + bytes(8)
        value = transaction.get(key)
        assert isinstance(value, bytes)
        transaction.put(key, value[:-1] + b"\x7f")


def hide_a_writer(index: Path) -> None:
    with lmdb.open(str(index)) as environment, environment.begin(write=True) as transaction:
        value = transaction.pop(b"\1" + bytes(8))
        assert isinstance(value, bytes)
        transaction.put(b"\0" + bytes(8), value)


def put_an_unknown_key(index: Path) -> None:
    with lmdb.open(str(index)) as environment, environment.begin(write=True) as transaction:
        transaction.put(b"\1unknown", b"")


def belong_elsewhere(index: Path) -> None:
    def other_table(record: bytes) -> bytes:
        state = index_state.decode(record)
        return index_state.encode(state._replace(table_id=TableId(77)))

    change_state(index, other_table)


def change_state(index: Path, change: Callable[[bytes], bytes | None]) -> None:
    with lmdb.open(str(index)) as environment, environment.begin(write=True) as transaction:
        record = transaction.pop(b"\0")
        assert isinstance(record, bytes)
        changed = change(record)
        if changed is not None:
            transaction.put(b"\0", changed)


@pytest.mark.parametrize(
    "harm",
    [
        *(lose, empty, overwrite, forget_state, damage_state, damage_a_writer),
        *(hide_a_writer, put_an_unknown_key, belong_elsewhere),
    ],
    ids=lambda f: f.__name__,
)
def test_an_unusable_index_is_rebuilt_from_the_log(filled: Path, harm: Callable[[Path], None]) -> None:
    before, expected = contents(filled), everything(filled)
    harm(filled / BUCKET / "index")
    assert everything(filled) == expected
    assert contents(filled) == before


@pytest.mark.parametrize(("together", "found"), [(tail.TOGETHER_BYTES, 1 << 16), (300, 3)])
@pytest.mark.parametrize("image", ["full", "wal"])
def test_batches_of_several_schemas_are_replayed_byte_for_byte(
    store_path: Path, image: str, together: int, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many batches at once, with keys that are stored, removed and stored again, before and after columns are added."""
    with kvstore.open(store_path) as store:
        table = store.create_table("t", SCHEMA, primary_key="k", changelog_image=image)
        for number in range(30):
            if number in (10, 20):
                store.add_columns("t", [pa.field(f"new{number}", pa.int32())])
            names = table.schema.names[1:]
            table.upsert([{"k": k, **dict.fromkeys(names)} for k in range(number % 7, number % 11 + 3)])
            table.delete([number % 5, 100])
    before = contents(store_path)
    lose(store_path / BUCKET / "index")
    monkeypatch.setattr(tail, "TOGETHER_BYTES", together)
    monkeypatch.setattr(replay, "FOUND_KEYS", found)
    with kvstore.open(store_path) as store:
        assert store.table("t").get(100) is None
    assert contents(store_path) == before


def test_ids_continue_after_many_batches_are_replayed_at_once(store_path: Path) -> None:
    schema = pa.schema([pa.field("k", pa.int64(), False), pa.field("id", pa.int64(), False)])
    with kvstore.open(store_path) as store:
        table = store.create_table("t", schema, primary_key="k", auto_increment="id")
        for k in (1, 2, 3):
            table.upsert({"k": k})
        table.delete([3, 2])
    lose(store_path / BUCKET / "index")
    with kvstore.open(store_path) as store:
        store.table("t").upsert({"k": 4})
        assert store.table("t").get(4) == {"k": 4, "id": 4}


def test_expired_writers_leave_the_index_and_do_not_reappear(store_path: Path) -> None:
    clock = SetClock()
    with Store(store_path, StoreOptions(), clock=clock) as store:
        bucket = store.create_table("t", SCHEMA, primary_key="k").bucket(0)
        for writer in range(3):
            for _ in range(EXPIRY_MS // STEP_MS_MAX // 2 if writer else 0):
                clock.now += STEP_MS_MAX  # of a longer step only so much counts
                bucket.apply(kvstore.Changes.of([], SCHEMA))
            bucket.apply(kvstore.Changes.of([], SCHEMA), writer_id=writer, sequence=0)
    before = contents(store_path)
    assert [key for key in before if key[:1] == b"\1"] == [b"\1" + writer.to_bytes(8, "big") for writer in (1, 2)]
    expected = everything(store_path)
    assert expected[-1] == []
    lose(store_path / BUCKET / "index")
    assert everything(store_path) == expected
    assert contents(store_path) == before


def test_an_index_ahead_of_a_log_that_was_never_durable_is_rebuilt(filled: Path) -> None:
    """Both were written, only the index reached the disk: its additional rows were never promised to be durable."""
    expected, before = everything(filled), contents(filled)

    def ahead(record: bytes) -> bytes:
        state = index_state.decode(record)
        return index_state.encode(state._replace(applied_offset=state.applied_offset + 5))

    change_state(filled / BUCKET / "index", ahead)
    assert everything(filled) == expected
    assert contents(filled) == before


def test_a_log_that_lost_durable_data_is_refused(filled: Path) -> None:
    last = max((filled / BUCKET / "log").glob("*.log"))
    last.write_bytes(last.read_bytes()[:-64])
    with kvstore.open(filled) as store, pytest.raises(CorruptBatch, match=last.name):
        store.table("t").upsert({"k": 1, "s": None, "v": None})
    # Restored, so that the store passes its check at the end.
    lose(filled / BUCKET / "index")


def test_a_read_only_store_reports_a_lost_index_and_rebuilds_nothing(filled: Path) -> None:
    lose(filled / BUCKET / "index")
    with kvstore.open(filled, read_only=True) as store, pytest.raises(CorruptData, match="open the store for writing"):
        store.table("t").count()
    assert not (filled / BUCKET / "index").exists()


def test_an_index_of_a_newer_version_is_not_removed(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = contents(filled)
    monkeypatch.setattr(index_state, "VERSION", 0)
    with kvstore.open(filled) as store, pytest.raises(UnsupportedVersion):
        store.table("t").upsert({"k": 1, "s": None, "v": None})
    assert contents(filled) == before


def test_a_crash_during_a_rebuild_leaves_no_obstacle(filled: Path) -> None:
    expected = everything(filled)
    index = filled / BUCKET / "index"
    index.rename(filled / BUCKET / "index.rebuilt")
    (filled / BUCKET / "index.rebuilt" / "data.mdb").write_bytes(b"half")
    assert everything(filled) == expected
    assert not (filled / BUCKET / "index.rebuilt").exists()


def test_a_full_map_grows(store_path: Path) -> None:
    """Batches that do not fit are applied once the map has grown; nothing is lost or duplicated."""
    options = StoreOptions(map_bytes=1 << 20)
    with Store(store_path, options) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        for first in range(0, 40_000, 5_000):
            table.upsert([{"k": k, "s": "x" * 40, "v": 0.0} for k in range(first, first + 5_000)])
        assert table.count() == 40_000
        assert store.check().ok
    assert (store_path / BUCKET / "index" / "data.mdb").stat().st_size > 3 << 20
    with kvstore.open(store_path) as store:
        assert store.table("t").offsets() == {0: (0, 40_000)}


def test_readers_follow_a_grown_map(store_path: Path) -> None:
    from tests.store.helpers import Program

    with Store(store_path, StoreOptions(map_bytes=1 << 20)) as store:
        table = store.create_table("t", SCHEMA, primary_key="k")
        program = """
        store = kvstore.open(path, read_only=True, map_bytes=1 << 20)
        print(store.table("t").count())
        sys.stdin.readline()
        print(store.table("t").scan().read_all().num_rows)
        """
        with Program(store_path, program) as reader:
            assert reader.line() == "0"
            table.upsert([{"k": k, "s": "x" * 40, "v": 0.0} for k in range(40_000)])
            table.flush()
            reader.go_on()
            assert reader.line() == "40000"


@pytest.fixture
def slow_commits(store_path: Path) -> Iterator[kvstore.Store]:
    with kvstore.open(store_path, commit_wait_ms=60_000, commit_idle_ms=60_000) as store:
        yield store


def test_rows_are_readable_before_they_are_committed(slow_commits: kvstore.Store) -> None:
    table = slow_commits.create_table("t", SCHEMA, primary_key="k")
    table.upsert({"k": 1, "s": "a", "v": 0.5})
    assert table.get(1) == {"k": 1, "s": "a", "v": 0.5}
    assert table.count() == 1
    table.delete(1)
    assert table.get(1) is None
    assert table.offsets() == {0: (0, 2)}
    assert rows_of(table) == []
