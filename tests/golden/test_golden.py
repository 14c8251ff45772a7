"""A store that an earlier version wrote opens, is what it was, and goes on."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.log.writer_state import STEP_MS_MAX
from kvstore.options import StoreOptions
from kvstore.store.store import Store
from logformat.log.writer_entry import EXPIRY_MS
from tests.golden.description import described
from tests.golden.write import KEYED, write
from tests.support.clocks import SetClock

FORMATS = sorted(path for path in Path(__file__).parent.iterdir() if path.name.startswith("format-"))


@pytest.fixture(params=FORMATS, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with ``store`` and ``replica``, and what is expected of them."""
    for name in ("store", "replica"):
        with tarfile.open(request.param / f"{name}.tar.xz") as archive:
            archive.extractall(tmp_path, filter="data")
    (tmp_path / "expected.json").write_bytes((request.param / "expected.json").read_bytes())
    return tmp_path


def expected(golden: Path) -> object:
    return json.loads((golden / "expected.json").read_bytes())


def test_there_is_one() -> None:
    assert [path.name for path in FORMATS][:1] == ["format-1"]


def test_it_is_what_it_was(golden: Path) -> None:
    with kvstore.open(golden / "store", read_only=True) as store:
        assert json.loads(json.dumps(described(store))) == expected(golden)
        assert store.check()
    with kvstore.open(golden / "store") as store:
        assert json.loads(json.dumps(described(store))) == expected(golden)
        assert store.check()


def test_what_would_be_written_now_has_indexes_that_find_their_rows(tmp_path: Path) -> None:
    write(tmp_path / "store", tmp_path / "replica", tmp_path / "in")
    with kvstore.open(tmp_path / "store", read_only=True) as store:
        before = described(store)
        assert set(before["tables"]["indexed"]["indexes"]) == {"by_mail", "one"}
        plan = store.table("indexed").explain(mail="a@x")
        assert plan == "index by_mail by mail"
        assert store.check()
    kvstore.restore(str(tmp_path / "replica"), tmp_path / "restored")
    with kvstore.open(tmp_path / "restored", read_only=True) as store:
        assert described(store)["tables"]["indexed"] == before["tables"]["indexed"]


def test_it_goes_on(golden: Path) -> None:
    with kvstore.open(golden / "store") as store:
        table = store.table("epochs")
        before = table.offsets()
        again = kvstore.Changes.of([("upsert", {"k": 0, "v": 0})], KEYED)
        table.apply_epoch(again, "epochs", 2, "run")
        assert table.offsets() == before, "what was applied is known"
        table.apply_epoch(again, "epochs", 3, "run")
        assert table.get(0) == {"k": 0, "v": 0}
        assert [row["k"] for row in store.table("ids").scan().read_all().to_pylist()] == [1, 2]
        store.table("ids").upsert([{"v": 99}])
        assert store.table("ids").lookup([99]).to_pylist()[0]["k"] > 2
        store.add_columns("wal", [pa.field("w", pa.string())])
        store.create_table("new", KEYED, "k").upsert([{"k": 1, "v": 1}])
        store.checkpoint()
        assert store.check()
    with kvstore.open(golden / "store") as store:
        assert store.table("new").get(1) == {"k": 1, "v": 1}
        assert store.check()


def test_its_writers_expire_when_they_would_have(golden: Path) -> None:
    """No time in it is uncounted: a writer is forgotten seven days after the timestamp of its last batch."""
    clock = SetClock()
    with Store(golden / "store", StoreOptions(), clock=clock) as store:
        unnamed = []
        for table in map(store.table, store.list_tables()):
            for bucket in table.offsets():
                with table.bucket(bucket).handle.snapshot() as view:
                    assert view.state().uncounted_ms == view.state().back_offset == 0
                    unnamed += [(table, bucket, id, entry) for id, entry in view.writers().items() if not entry.named]
        assert unnamed
        for _, _, _, entry in unnamed:
            assert entry.counted_ms == entry.batches[-1].timestamp
        table, number, writer, entry = unnamed[0]
        last, nothing = entry.batches[-1].timestamp, kvstore.Changes.of([], table.schema)
        clock.now = last
        while clock.now < last + EXPIRY_MS:
            assert table.bucket(number).last_sequence(writer) is not None
            table.bucket(number).apply(nothing)
            clock.now = min(clock.now + STEP_MS_MAX, last + EXPIRY_MS)
        assert table.bucket(number).last_sequence(writer) is None
        table.bucket(number).apply(nothing)
        assert store.check().findings == []


def test_its_replica_is_restored_and_followed(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = expected(golden)["tables"]  # type: ignore[index]
    kvstore.restore(str(golden / "replica"), golden / "restored")
    kvstore.follow(str(golden / "replica"), golden / "copy").close()
    for name in ("restored", "copy"):
        with kvstore.open(golden / name, read_only=True) as store:
            found = json.loads(json.dumps(described(store)))["tables"]
            for table in tables:
                assert found[table]["rows"] == tables[table]["rows"]
                assert found[table]["writers"] == tables[table]["writers"]
            assert store.check()
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(golden / "cache"))
    with kvstore.open(golden / "replica", read_only=True) as store, kvstore.open(golden / "copy", read_only=True) as of:
        assert store.list_tables() == of.list_tables()
        for name in tables:
            assert store[name].changelog().read_all() == of[name].changelog().read_all()
            if of[name].primary_key is not None:
                assert store[name].scan().read_all() == of[name].scan().read_all()
        assert store.check()
