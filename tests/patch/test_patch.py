"""Patches: reviewed, checked, and applied once; what changed meanwhile is named."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

import kvstore
from kvstore.disk.files import Files
from kvstore.errors import (
    Conflict,
    CorruptData,
    InvalidRequest,
    OffsetOutOfRange,
    SchemaMismatch,
    StoreError,
    StoreFull,
    UnsupportedOperation,
    UnsupportedVersion,
)
from kvstore.table.parts import TableParts
from tests.conftest import OpenStore
from tests.history.histories import History, any_undo, keys_of, table_of

SCHEMA = {"k": "string", "v": "int64"}
Rows = list[dict[str, Any]]


def of(table: kvstore.Table, *operations: tuple[str, dict[str, Any]]) -> kvstore.Patch:
    return kvstore.Patch.of(table, kvstore.Changes.of(operations, table.schema))


def patch_anything(history: History, path: Path) -> None:
    """Save a patch of a random undo, let others write, and apply it: all, or nothing and every conflict is named."""
    asked, table = any_undo(history), history.table
    patch = kvstore.Patch.of(table, table.undo(*asked.arguments))
    assert (keys_of(patch.changes.rows), keys_of(patch.conflicts)) == (asked.differing, asked.conflicts)
    patch.save(path)
    loaded = kvstore.Patch.load(path)
    assert str(loaded) == str(patch)
    for _ in range(history.choose.choice([0, 0, 1, 2])):
        history.commit()
    expected = dict(history.rows)
    since = len(history.places) - 1
    changed = {key for key in asked.differing if any(each.commit >= since for each in history.versions.get(key, []))}
    if changed:
        for call in (loaded.check, loaded.apply):
            with pytest.raises(Conflict) as raised:
                call(table)
            assert {(key["k"], key["n"]) for key in raised.value.keys} == changed
        history.assert_rows(expected)
        return
    loaded.check(table)
    result = loaded.apply(table)
    assert not result.duplicated
    for key in asked.differing:
        expected.pop(key, None)
        if key in asked.rows:
            expected[key] = asked.rows[key]
    history.assert_rows(expected)
    ends = history.ends()
    again = patch.apply(table)
    assert again.duplicated
    assert again.by_bucket.keys() == result.by_bucket.keys()
    assert history.ends() == ends
    history.assert_rows(expected)


@pytest.mark.parametrize("buckets", [1, 3])
def test_patches_agree_with_the_model(store: kvstore.Store, tmp_path: Path, buckets: int) -> None:
    for seed in range(8):
        with table_of(store, seed, buckets) as history:
            patch_anything(history, tmp_path / "patch")


@pytest.mark.long
@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("part", range(20))
def test_a_thousand_patches_agree_with_the_model(store: kvstore.Store, tmp_path: Path, buckets: int, part: int) -> None:
    for seed in range(50 * part, 50 * part + 50):
        with table_of(store, seed, buckets) as history:
            patch_anything(history, tmp_path / "patch")


@pytest.mark.parametrize("call", ["write", "sync", "rename"])
def test_a_patch_that_the_disk_refuses_leaves_no_file(store: kvstore.Store, tmp_path: Path, call: str) -> None:
    patch, directory = of(store.create_table("t", SCHEMA, "k"), ("upsert", {"k": "a", "v": 1})), tmp_path / "patches"
    directory.mkdir()
    full = OSError(errno.ENOSPC, "No space left on device")
    with mock.patch.object(Files, call, side_effect=full), pytest.raises(StoreFull):
        patch.save(directory / "p")
    assert not list(directory.iterdir())


def test_people_can_read_a_patch(store: kvstore.Store, tmp_path: Path) -> None:
    table = store.create_table("files", {"path": "string", "size": "int64", "owner": "string"}, "path")
    table.upsert([{"path": path, "size": 1, "owner": "ann"} for path in "abcd"])
    mistake = [("upsert", {"path": path, "size": 9, "owner": "ann"}) for path in "abe"]
    changes = kvstore.Changes.of([*mistake, ("delete", {"path": "d"})], table.schema)
    table.apply_epoch(changes, writer="nightly", epoch=7)
    table.upsert({"path": "b", "size": 10, "owner": "ann"})
    patch = kvstore.Patch.of(table, table.undo("earliest", writer="nightly", epoch=7))
    patch.save(tmp_path / "undo.patch")
    first, text = (tmp_path / "undo.patch").read_bytes().split(b"\n", 1)
    assert first.startswith(b"kvstore patch 1 ")
    assert text.startswith(str(patch).encode())
    header, rows = str(patch).split("\n\n")
    assert header.splitlines()[0] == 'table: "files"'
    assert header.splitlines()[2:] == [
        'undoes: start {"0":0}, end {"0":12}, writer "nightly", epoch 7',
        "rows: 1 to store, 1 to update, 1 to delete",
        "stay as they are, because of a later change: 1",
    ]
    assert rows.splitlines() == [
        '~ path="a"  size: 9 -> 1',
        '+ path="d"  size=1, owner="ann"',
        '- path="e"  size=9, owner="ann"',
        '= path="b"  changed later by others',
    ]


def test_a_control_character_does_not_reach_the_terminal(store: kvstore.Store) -> None:
    table = store.create_table("t", {"k": "string", "v": "string"}, "k")
    text = str(of(table, ("upsert", {"k": "a\x1b[2J\u202e", "v": "x\ny"})))
    assert all(line.isprintable() for line in text.splitlines())
    assert text.splitlines()[-1].startswith("+ k=")


def test_the_commit_of_a_patch_has_a_name_of_its_own(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=2)
    patch = of(table, ("upsert", {"k": "a", "v": 1}))
    assert not patch.is_applied(table)
    patch.apply(table)
    assert patch.is_applied(table)
    assert table.history("a")["writer"].to_pylist() == [patch.writer]
    patch.check(table)  # what it did itself is no conflict
    table.upsert({"k": "a", "v": 2})
    assert patch.apply(table).duplicated
    assert table["a"]["v"] == 2


@pytest.mark.parametrize("buckets", [1, 3])
def test_a_write_between_check_and_commit_is_a_conflict(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch, buckets: int
) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=buckets)
    table.upsert([{"k": key, "v": 1} for key in "abc"])
    patch = of(table, *(("upsert", {"k": key, "v": 2}) for key in "abc"))
    real = TableParts.apply

    def late(self: TableParts, *arguments: Any, **named: Any) -> kvstore.WriteResult:
        table.upsert([{"k": "b", "v": 7}, {"k": "z", "v": 7}])
        return real(self, *arguments, **named)

    monkeypatch.setattr(TableParts, "apply", late)
    with pytest.raises(Conflict) as raised:
        patch.apply(table)
    assert raised.value.keys == [{"k": "b"}]
    monkeypatch.undo()
    assert {row["k"]: row["v"] for row in table} == {"a": 1, "b": 7, "c": 1, "z": 7}
    table.upsert({"k": "a", "v": 3})  # nothing is left waiting
    of(table, ("delete", {"k": "z"})).apply(table)
    assert "z" not in table


def test_a_patch_that_another_applies_at_the_same_time_is_applied_once(
    store: kvstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = store.create_table("t", SCHEMA, "k", buckets=3)
    table.upsert([{"k": key, "v": 1} for key in "abc"])
    patch = of(table, *(("upsert", {"k": key, "v": 2}) for key in "abc"))
    real, others = TableParts.keys_changed, [patch]

    def late(self: TableParts, *arguments: Any, **named: Any) -> Any:
        if others:
            assert not others.pop().apply(table).duplicated
        return real(self, *arguments, **named)

    monkeypatch.setattr(TableParts, "keys_changed", late)
    assert patch.apply(table).duplicated
    patch.check(table)
    assert [row["v"] for row in table] == [2, 2, 2]


def test_an_undo_that_is_out_of_date_makes_no_patch(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert([{"k": key, "v": 1} for key in "ab"])
    undo = table.undo(0)
    table.upsert({"k": "b", "v": 2})
    with pytest.raises(Conflict) as raised:
        kvstore.Patch.of(table, undo)
    assert raised.value.keys == [{"k": "b"}]


def test_changes_without_effect_are_left_out(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert([{"k": "a", "v": 1}, {"k": "b", "v": 1}])
    patch = of(
        table,
        *[("upsert", {"k": "a", "v": 1}), ("delete", {"k": "x"}), ("upsert", {"k": "b", "v": 2})],
        *[("upsert", {"k": "b", "v": 3}), ("upsert", {"k": "y", "v": 1}), ("delete", {"k": "y"})],
    )
    assert patch.changes.rows.to_pylist() == [{"k": "b", "v": 3}]
    assert len(kvstore.Patch.of(table, table.undo("latest")).changes) == 0
    assert not kvstore.Patch.of(table, table.undo("latest")).apply(table).duplicated


def test_a_damaged_patch_is_refused(store: kvstore.Store, tmp_path: Path) -> None:
    table = store.create_table("t", SCHEMA, "k")
    path = tmp_path / "patch"
    of(table, ("upsert", {"k": "a", "v": 1})).save(path)
    whole = path.read_bytes()
    newer = whole.replace(b"kvstore patch 1 ", b"kvstore patch 2 ", 1)
    for damaged, error in [
        *((whole[:length], CorruptData) for length in (0, 5, 30, 60, len(whole) - 1)),
        (whole + b"x", CorruptData),
        (whole.replace(b"v=1", b"v=2", 1), CorruptData),
        (whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:], CorruptData),
        (newer, UnsupportedVersion),
    ]:
        path.write_bytes(damaged)
        with pytest.raises(error):
            kvstore.Patch.load(path)
    for wrong in (tmp_path / "no such file", tmp_path):
        with pytest.raises(InvalidRequest):
            kvstore.Patch.load(wrong)
    for wrong in (tmp_path, tmp_path / "no" / "patch"):
        with pytest.raises(InvalidRequest):
            of(table).save(wrong)


def _summed(store: kvstore.Store) -> kvstore.Table:
    return store.create_table("t", SCHEMA, "k", merge_engine=kvstore.Aggregate({"v": "sum"}))


def _log(store: kvstore.Store) -> kvstore.Table:
    return store.create_table("t", SCHEMA)


def _no_deletes(store: kvstore.Store) -> kvstore.Table:
    return store.create_table("t", SCHEMA, "k", delete_behavior="ignore")


@pytest.mark.parametrize(
    ("make", "words"), [(_summed, r"merge_engine=.*sum"), (_log, "log table"), (_no_deletes, "delete_behavior=ignore")]
)
def test_what_a_patch_can_not_change_is_named(
    store: kvstore.Store, make: Callable[[kvstore.Store], kvstore.Table], words: str
) -> None:
    table = make(store)
    table.upsert({"k": "a", "v": 1})
    with pytest.raises(UnsupportedOperation, match=words):
        of(table, ("delete", {"k": "a"}))


def test_deletes_that_are_forbidden_later_are_refused(store: kvstore.Store) -> None:
    table = store.create_table("t", SCHEMA, "k")
    table.upsert({"k": "a", "v": 1})
    patch = of(table, ("delete", {"k": "a"}))
    store.alter_table("t", delete_behavior="ignore")
    with pytest.raises(UnsupportedOperation, match="delete_behavior=ignore"):
        patch.apply(store.table("t"))
    assert "a" in table


def test_a_row_that_was_removed_does_not_get_its_number_back(store: kvstore.Store) -> None:
    table = store.create_table("t", {**SCHEMA, "id": "int64"}, "k", auto_increment="id")
    table.upsert([{"k": key, "v": 1} for key in "abc"])
    then = table.offsets()[0][1]
    table.upsert([{"k": key, "v": 2} for key in "abd"])
    kvstore.Patch.of(table, table.undo(then)).apply(table)
    assert [tuple(row.values()) for row in table] == [("a", 1, 1), ("b", 1, 2), ("c", 1, 3)]
    then = table.offsets()[0][1]
    table.delete("a")
    with pytest.raises(UnsupportedOperation, match="column=id rows=1"):
        kvstore.Patch.of(table, table.undo(then))


def test_a_patch_is_for_one_table(store: kvstore.Store) -> None:
    one, other = (store.create_table(name, SCHEMA, "k") for name in ("one", "other"))
    patch = of(one, ("upsert", {"k": "a", "v": 1}))
    for call in (patch.apply, patch.check, patch.is_applied):
        with pytest.raises(InvalidRequest, match="patch_table=one table=other"):
            call(other)
    assert one.count() == other.count() == 0
    store.rename_table("one", "renamed")
    patch.apply(store.table("renamed"))
    assert [row["k"] for row in store.table("renamed")] == ["a"]


def test_a_patch_survives_a_restart_and_new_columns(open_store: OpenStore, tmp_path: Path) -> None:
    with open_store() as store:
        table = store.create_table("t", SCHEMA, "k")
        table.upsert([{"k": key, "v": 1} for key in "ab"])
        of(table, ("upsert", {"k": "a", "v": 2})).save(tmp_path / "patch")
        store.add_columns("t", [pa.field("w", pa.int64())])
    with open_store() as store:
        patch, table = kvstore.Patch.load(tmp_path / "patch"), store.table("t")
        patch.apply(table)
        assert table["a"] == {"k": "a", "v": 2, "w": None}
    with open_store(read_only=True) as store:
        assert patch.is_applied(store.table("t"))
        patch.check(store.table("t"))
        with pytest.raises(StoreError):
            patch.apply(store.table("t"))


def test_a_patch_whose_columns_have_other_names_now_is_refused(store: kvstore.Store) -> None:
    table = store.create_table("t", {**SCHEMA, "w": "int64"}, "k")
    table.upsert({"k": "a", "v": 1, "w": 1})
    undo, patch = table.undo("earliest", "latest", None, None), of(table, ("upsert", {"k": "a", "v": 5, "w": 6}))
    store.rename_columns("t", {"v": "w", "w": "v"})
    for call in (patch.check, patch.apply, lambda table: kvstore.Patch.of(table, undo)):
        with pytest.raises(SchemaMismatch, match="renamed or dropped since the patch was made"):
            call(store.table("t"))
    store.rename_columns("t", {"k": "key"})
    with pytest.raises(SchemaMismatch, match="renamed or dropped"):
        patch.apply(store.table("t"))
    assert store.table("t")["a"] == {"key": "a", "w": 1, "v": 1}


def test_a_history_has_the_names_of_now(store: kvstore.Store) -> None:
    table = store.create_table("t", {**SCHEMA, "w": "int64"}, "k")
    table.upsert({"k": "a", "v": 1, "w": 1})
    table.apply_epoch(kvstore.Changes.of([("upsert", {"k": "a", "v": 2, "w": 1})], table.schema), writer="e", epoch=0)
    store.rename_columns("t", {"k": "key", "v": "value"})
    store.drop_columns("t", ["w"])
    table = store.table("t")
    assert [each["after"] for each in table.history("a").to_pylist()] == [
        {"key": "a", "value": 1}, {"key": "a", "value": 2}
    ]  # fmt: skip
    kvstore.Patch.of(table, table.undo(0, writer="e")).apply(table)
    assert list(table) == [{"key": "a", "value": 1}]


def test_an_old_patch_whose_log_is_gone_is_refused(open_store: OpenStore) -> None:
    store = open_store(segment_bytes_max=1_000, log_bytes_max=3_000)
    table = store.create_table("t", SCHEMA, "k")
    patch = of(table, ("upsert", {"k": "x", "v": 1}))
    for value in range(30):
        table.upsert([{"k": str(other), "v": value} for other in range(20)])
    table.bucket(0).handle.retain()
    assert table.offsets()[0][0] > 0
    with pytest.raises(OffsetOutOfRange):
        patch.apply(table)
    assert "x" not in table
