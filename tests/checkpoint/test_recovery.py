"""A catalog that can't be loaded goes on from what is left, and what is gone is said exactly."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import kvstore
from kvstore.checkpoint import recovery
from kvstore.checkpoint.recovery import Recovery
from kvstore.cli.arguments import store_id_of
from kvstore.clock import SystemClock
from kvstore.disk.environment import open_environment
from kvstore.disk.files import Files
from kvstore.errors import CorruptData, CorruptImage, NotAStore, StoreLocked, UnsupportedVersion, WriterFenced
from kvstore.meta.journal import MAP_BYTES
from kvstore.meta.state import CatalogState
from kvstore.meta.writers import OpenCommit
from logformat import paths
from logformat.catalog import edits
from logformat.catalog.edits import BeginEpoch, DropTable, Edit, EndCommit
from logformat.ids import Epoch, Txid
from tests.checkpoint.catalogs import STORE, Catalog, checkpoint, encoded
from tests.support.examples import slow
from tests.support.repairs import Dying, Killed
from tests.support.tables import rows_of

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])


def recover(catalog: Catalog, *, write: bool = True) -> Recovery:
    return recovery.recover(catalog.path, STORE, Files(), catalog.clock, write=write)


def data_of(catalog: Catalog) -> Path:
    return catalog.path / paths.JOURNAL / "data.mdb"


def replayed(kept: list[Edit]) -> CatalogState:
    """What edits make of an empty catalog if those that are missing are left out."""
    state = CatalogState()
    for edit in kept:
        state = replace(state, txid=Txid(edit.txid - 1)).after(edit)
    return state


def files_of(path: Path) -> dict[str, bytes]:
    """All there is but for lock files."""
    files = (each for each in path.rglob("*") if each.is_file() and each.name not in ("LOCK", "lock.mdb"))
    return {str(each): each.read_bytes() for each in files}


def begun(catalog: Catalog, found: Recovery, before: CatalogState) -> CatalogState:
    """What the catalog is after a recovery that found a state."""
    leader = catalog.reloaded().leader
    edit = Edit(txid=found.txid, epoch=found.leader_epoch, time_ms=catalog.clock.now, payload=BeginEpoch(leader=leader))
    return replace(before, txid=Txid(found.txid - 1)).after(edit)


def test_a_catalog_that_is_whole_goes_on_under_a_new_epoch(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "s", seed=3)
    catalog.append(30)
    catalog.make_files()
    before = files_of(catalog.path)
    said = recover(catalog, write=False)
    assert files_of(catalog.path) == before
    assert (said.gone, said.damaged, said.quarantined, said.written) == ([], [], [], False)
    assert (said.txid, said.leader_epoch) == (31, 1)
    done = recover(catalog)
    assert (done.gone, done.written) == ([], True)
    assert catalog.reloaded().is_same(begun(catalog, done, catalog.expected))
    with pytest.raises(WriterFenced, match="open the store again"):
        catalog.append(1)
    with pytest.raises(WriterFenced), catalog.journal.still():
        pass
    catalog.edits.pop()
    catalog.reopen()
    catalog.expected = catalog.journal.state()
    catalog.append(20)
    assert {edit.epoch for edit in catalog.edits[30:]} == {1}
    for _ in range(2):
        catalog.controller().checkpoint()
        catalog.append(10)
    assert catalog.reloaded().is_same(catalog.expected)
    catalog.journal.close()


def damage_value(catalog: Catalog, txid: int) -> None:
    """An edit fails its checksum; the pages are fine."""
    environment = open_environment(catalog.path / paths.JOURNAL, Files(), map_bytes=MAP_BYTES)
    with environment.read() as reading, reading.cursor() as cursor:
        name = max(bytes(name).decode() for name in cursor.iternext(values=False) if int(name) <= txid)
    transaction = environment.begin_write()
    database = environment.database_within(transaction, name)
    key = txid.to_bytes(8, "big")
    value = bytearray(transaction.get(key, db=database) or b"")
    value[30 % len(value)] ^= 4
    transaction.put(key, bytes(value), db=database)
    transaction.commit()
    environment.close()


@slow(15)
@given(st.integers(0, 2**32), st.data())
def test_what_is_right_is_kept_and_what_is_gone_is_said(seed: int, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        catalog = Catalog(Path(directory) / "s", seed)
        if data.draw(st.booleans(), label="image"):
            catalog.append(20)
            checkpoint(catalog.path)
        catalog.append(30)
        image = catalog.image_txids[0] if catalog.image_txids else 0
        later = st.integers(image + 1, len(catalog.edits))
        damaged = sorted(data.draw(st.sets(later, min_size=1, max_size=5), label="damaged"))
        catalog.journal.close()
        for txid in damaged:
            damage_value(catalog, txid)
        catalog.make_files()
        kept = [edit for edit in catalog.edits if edit.txid not in damaged]
        expected = replayed(kept)
        for table in list(expected.tables):  # a drop that is gone
            if table not in catalog.expected.tables:
                expected = after(expected, DropTable(table_id=table))
        for id, writers in expected.writers.items():
            staged = {commit.commit_id for commit in catalog.expected.writers_of(id).commits}
            for commit in writers.commits:  # of which two have one id, if its end is gone and it began again
                if commit.commit_id not in staged:
                    expected = after(expected, EndCommit(table_id=id, commit_id=commit.commit_id))
        with pytest.raises(CorruptImage):
            catalog.reloaded()
        found = recover(catalog)
        gone = {txid for line in found.gone if line.startswith("edit") for txid in numbers(line)}
        assert gone == set(damaged)
        assert found.txid == len(catalog.edits) + 1
        assert encoded(catalog.reloaded()) == encoded(begun(catalog, found, expected))


def after(state: CatalogState, payload: edits.Payload) -> CatalogState:
    return state.after(Edit(txid=Txid(state.txid + 1), epoch=Epoch(0), time_ms=0, payload=payload))


def numbers(line: str) -> range:
    """Of "edit 3" and "edits 3 to 5"."""
    words = [int(word) for word in line.split() if word.isdecimal()]
    return range(words[0], words[-1] + 1)


@pytest.mark.parametrize("page", [0, 1, 3, 5, 7])
def test_edits_of_a_journal_that_lmdb_must_not_read_are_found_by_their_checksums(tmp_path: Path, page: int) -> None:
    catalog = Catalog(tmp_path / "s", seed=5)
    catalog.append(60)
    catalog.journal.close()
    catalog.make_files()
    data = bytearray(data_of(catalog).read_bytes())
    data[page * 4096 : page * 4096 + 16] = b"\xff" * 16  # its head
    data_of(catalog).write_bytes(data)
    with pytest.raises(CorruptData):
        catalog.reloaded()
    found = recover(catalog)
    gone = {txid for line in found.gone if line.startswith("edit ") for txid in numbers(line)}
    gone |= {txid for line in found.gone if " to " in line for txid in numbers(line)}
    assert f"edits after {found.txid - 1}, if there were any" in found.gone
    assert len(gone) <= 7, "more than the edits of one page"
    kept = [edit for edit in catalog.edits if edit.txid not in gone and edit.txid < found.txid]
    assert len(kept) + len(gone) >= 53
    if not gone and len(kept) == 60:
        assert encoded(catalog.reloaded()) == encoded(begun(catalog, found, catalog.expected))


def test_large_edits_are_found_in_their_own_pages(tmp_path: Path) -> None:
    wide = pa.schema([pa.field("k", pa.int64(), False), *(pa.field(f"column {n}", pa.int64()) for n in range(300))])
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", wide, "k").upsert([{"k": 1} | {f"column {n}": n for n in range(300)}])
        rows = rows_of(store.table("t"))
    data = tmp_path / "s" / paths.JOURNAL / "data.mdb"
    data.write_bytes(b"\0" * 8192 + data.read_bytes()[8192:])
    recover_store(tmp_path / "s")
    with kvstore.open(tmp_path / "s") as store:
        assert rows_of(store.table("t")) == rows
        assert store.check()


def recover_store(path: Path, *, write: bool = True) -> Recovery:
    return recovery.recover(path, store_id_of(path), Files(), SystemClock(), write=write)


def as_of_old(path: Path) -> None:
    """Make it a store of a version that wrote no definitions beside the data of tables."""
    for file in (path / paths.TABLES).glob(f"*/{paths.TABLE_FILE}"):
        file.unlink()


def write(table: kvstore.Table, key: int) -> None:
    """As the next incarnation of a writer with a name."""
    with table.writer("n") as writer:
        writer.upsert({"k": key, "v": key})


def test_what_a_lost_edit_gave_out_is_not_given_out_again(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        table = store.create_table("t", SCHEMA, "k", buckets=2)
        table.apply_epoch(kvstore.Changes.of([("upsert", {"k": 1, "v": 1})], SCHEMA), "w", 0, "r")
        write(table, 2)
        store.checkpoint()
        for _ in range(3):
            write(table, 2)
        table.apply_epoch(kvstore.Changes.of([("upsert", {"k": 3, "v": 3})], SCHEMA), "w", 1, "r")
        ids = [store.new_writer_id() for _ in range(3)]
        store.create_table("later", SCHEMA, "k").upsert({"k": 5, "v": 5})
        kept = rows_of(table)
        table.apply_epoch(kvstore.Changes.of([("upsert", {"k": 4, "v": 4})], SCHEMA), "w", 2, "r", takeover=True)
    shutil.rmtree(path / paths.JOURNAL)
    as_of_old(path)
    with pytest.raises(CorruptImage):
        kvstore.open(path).list_tables()
    said = recover_store(path, write=False)
    done = recover_store(path)
    assert (said.gone, said.quarantined) == (done.gone, done.quarantined)
    assert done.quarantined == [Path("tables/2")]
    assert (done.quarantine / "tables/2/0/log").is_dir()
    assert done.tables == ["t"]
    with kvstore.open(path) as store:
        table = store.table("t")
        assert sorted(map(str, rows_of(table))) == sorted(map(str, [*kept, {"k": 4, "v": 4}]))
        assert store.new_writer_id() > max(ids)
        # Exactly once goes on where it was: what was applied is not applied again.
        before = table.offsets()
        for number in range(3):
            changes = kvstore.Changes.of([("upsert", {"k": number, "v": 7})], SCHEMA)
            table.apply_epoch(changes, "w", number, "r", takeover=True)
        assert table.offsets() == before
        table.apply_epoch(kvstore.Changes.of([("upsert", {"k": 9, "v": 9})], SCHEMA), "w", 3, "r")
        write(table, 7)
        store.create_table("later", SCHEMA, "k").upsert({"k": 6, "v": 6})
        assert store.check()


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, "k").upsert({"k": 1, "v": 1})
        before = files_of(path / "meta")
        with pytest.raises(StoreLocked, match="end it first"):
            recover_store(path)
        assert files_of(path / "meta") == before


def test_what_a_newer_version_wrote_is_not_left_out(tmp_path: Path) -> None:
    catalog = Catalog(tmp_path / "s", seed=5)
    catalog.append(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BeginEpoch, "op", 999)
        catalog.journal.append(lambda _: BeginEpoch(leader="x"))
    with pytest.raises(UnsupportedVersion, match="upgrade"):
        recover(catalog)
    catalog.journal.close()


@pytest.mark.parametrize("steps", range(40))
def test_a_recovery_that_dies_is_done_again(tmp_path: Path, steps: int) -> None:
    catalog = Catalog(tmp_path / "s", seed=7)
    catalog.append(25)
    catalog.journal.close()
    catalog.make_files()

    with suppress(Killed):
        recovery.recover(catalog.path, STORE, Dying(steps), catalog.clock, write=True)
    found = recover(catalog)
    assert [line for line in found.gone if "if there were any" not in line] == []
    state = catalog.reloaded()
    assert state.tables.keys() == catalog.expected.tables.keys()
    assert state.consumers == catalog.expected.consumers


@pytest.mark.parametrize("steps", range(0, 40, 3))
def test_a_recovery_that_dies_loses_no_table(tmp_path: Path, steps: int) -> None:
    """Paths that the catalog lacks are in quarantine before the new image and journal get their names."""
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
    damage_value(Catalog.at(path), 1)
    as_of_old(path)

    with suppress(Killed):
        recovery.recover(path, store_id_of(path), Dying(steps), SystemClock(), write=True)
    recover_store(path)
    with kvstore.open(path) as store:
        store.create_table("u", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
    logs = list((path / paths.LOST).glob("*/tables/1/0/log/*.log"))
    assert len(logs) == 1
    assert logs[0].stat().st_size > 64


def test_a_replica_is_no_store(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.add_replica(str(tmp_path / "r")).ship()
    with pytest.raises(NotAStore, match="This is a replica"):
        recover_store(tmp_path / "r")


def commits_of(state: CatalogState) -> list[OpenCommit]:
    return [each for writers in state.writers.values() for each in writers.commits]


def test_commits_whose_staged_rows_are_gone_are_over(tmp_path: Path) -> None:
    """No bucket waits for rows that are lost."""
    catalog = Catalog(tmp_path / "s", seed=3)
    while len({each.staged is None for each in commits_of(catalog.expected)}) < 2:
        catalog.append(1)
    catalog.make_files()
    commits = commits_of(catalog.expected)
    lost = next(each for each in commits if each.staged is None)
    for each in commits:  # those that are in the edit need no file
        if each is lost or each.staged is not None:
            paths.staged_file(catalog.path, each.commit_id).unlink(missing_ok=True)
    said = recover(catalog).damaged
    assert {each.partition(" are missing")[0] for each in said} == {f"staged rows of commit {lost.commit_id}"}
    assert set(commits_of(catalog.reloaded())) == {each for each in commits if each.commit_id != lost.commit_id}
    catalog.journal.close()


def test_a_copy_that_is_recovered_follows_no_more(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
        store.flush()
        store.add_replica(str(tmp_path / "r")).ship()
    path = tmp_path / "copy"
    kvstore.follow(str(tmp_path / "r"), path).close()
    recover_store(path)
    with kvstore.open(path) as store:
        store.table("t").upsert([{"k": 2, "v": 2}])
        assert rows_of(store.table("t")) == [{"k": 1, "v": 1}, {"k": 2, "v": 2}]
        assert store.check()
    with pytest.raises(NotAStore, match="not a copy that follows"):
        kvstore.promote(path)


def test_a_catalog_that_is_gone_altogether(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with kvstore.open(path) as store:
        store.create_table("t", SCHEMA, "k").upsert([{"k": 1, "v": 1}])
    shutil.rmtree(path / "meta")
    as_of_old(path)
    assert recover_store(path).quarantined == [Path("tables/1")]
    with kvstore.open(path) as store:
        assert store.list_tables() == []


def test_an_edit_that_is_added_meanwhile_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = Catalog(tmp_path / "s", seed=3)
    catalog.append(9)
    catalog.make_files()
    real = recovery.salvage

    def then_another(*arguments: Any) -> Any:
        found = real(*arguments)
        catalog.append(1)
        return found

    monkeypatch.setattr(recovery, "salvage", then_another)
    with pytest.raises(StoreLocked, match="end it first"):
        recover(catalog)
    catalog.journal.close()
